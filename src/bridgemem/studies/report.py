"""Report: tables made from records, one filter a column, the paper's figures next to the measured ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import (
    FILTER_WORDS,
    HEADINGS,
    MAIN_METHODS,
    Table,
    figure,
    fitted_here,
    interval,
    method_name,
    place,
)
from bridgemem.ranking.metrics import METRICS

# the seed of the one backbone that all tables show; other seeds measure its own spread
BACKBONE_SEED = 42
# what the short table shows: those that nothing is trained for, the paper's backbone, and several as one
SHORT_BACKBONES = ("recurrence", "recurrence-dyadic", "cenet", "ensemble", "ensemble-by-hand")


@cache
def paper() -> dict[str, Any]:
    """The paper's own figures."""
    text = resources.files("bridgemem.studies").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@dataclass(frozen=True)
class Row:
    """One method on one data set under one filter: the mean over seeds, its spread, and the mean gain."""

    dataset: str
    split: str
    backbone: str
    method: str
    filter: str
    history: str
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]
    gain: list[float] | None
    horizon: int = 1
    cross_fit: float = 0.0

    @classmethod
    def of(cls, records: list[Record]) -> Row:
        """Average records that differ in nothing but the seed, and in what validation chose with it."""
        named = ("dataset", "fingerprint", "split", "backbone", "method", "filter", "history", "subset", "horizon")
        kinds = {
            (*(getattr(r, name) for name in (*named, "cross_fit")), None if r.as_chosen else r.selected_by)
            for r in records
        }
        if len(kinds) != 1:
            raise DataError(
                f"records of {len(kinds)} different measurements have no mean; choose those that differ by seed alone."
            )
        values = {m: np.array([getattr(r, m) for r in records]) for m in METRICS}
        gains = [r.gain["mrr"] for r in records if "mrr" in r.gain]
        first = records[0]
        return cls(
            first.dataset,
            first.split,
            first.backbone,
            first.method,
            first.filter,
            first.history,
            len(records),
            {m: float(v.mean()) for m, v in values.items()},
            {m: float(v.std(ddof=1)) if len(v) > 1 else 0.0 for m, v in values.items()},
            [float(x) for x in np.mean(gains, axis=0)] if gains else None,
            first.horizon,
            first.cross_fit,
        )

    @property
    def name(self) -> str:
        """The method as tables name it."""
        return method_name(self.method, self.cross_fit)

    @property
    def label(self) -> str:
        name = self.backbone if self.method == "backbone" else f"{self.backbone} + {self.name}"
        past = "" if self.history == "rolling" else f", {self.history} history"
        ahead = "" if self.horizon == 1 else f", any of {self.horizon} steps"
        return f"{place(self.dataset, self.split)}, {name}{past}{ahead}{fitted_here(self.method, self.split)}"


def standard(records: Iterable[Record]) -> list[Record]:
    """What tables show of each backbone on each data set: whole methods, one seed of the backbone and one history.

    Seed 42 and rolling history where they were measured, else what there is. Other seeds measure the spread.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in records:
        # an ablation of the history must not decide which history is shown
        if r.method in MAIN_METHODS:
            groups.setdefault((r.dataset, r.backbone), []).append(r)
    kept = []
    for group in groups.values():
        # False sorts first: the standard ones, if there are any
        best = min((backbone_seed(r) != BACKBONE_SEED, r.history != "rolling", backbone_seed(r)) for r in group)
        kept += [r for r in group if (r.history != "rolling", backbone_seed(r)) == best[1:]]
    return kept


def backbone_seed(record: Record) -> int:
    return record.settings.get("backbone_seed", BACKBONE_SEED)


def selected(records: Iterable[Record], filter_name: str) -> list[Record]:
    """Whole-split records under one filter; the residual as chosen under that same filter.

    Nothing is chosen under raw: it shows the choice of the time-aware filter. A measurement repeated on another device
    is shown once.
    """
    once: dict[tuple[object, ...], Record] = {}
    for r in sorted(records, key=lambda r: not r.device.startswith("cuda")):
        if r.filter == filter_name and r.subset is None and r.as_chosen:
            what = (r.dataset, r.split, r.backbone, r.method, r.fingerprint, r.history, r.horizon, r.cross_fit)
            # a backbone alone has no seed but its own
            seed = r.seed if r.method != "backbone" else None
            once.setdefault((*what, seed, backbone_seed(r)), r)
    return list(once.values())


def rows(records: Iterable[Record], filter_name: str) -> list[Row]:
    """One row per data set, backbone and method under one filter."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in selected(records, filter_name):
        if r.method in MAIN_METHODS:
            what = (r.dataset, r.split, r.backbone, r.method, r.fingerprint, r.history, r.horizon, r.cross_fit)
            groups.setdefault((*what, backbone_seed(r)), []).append(r)
    return sorted((Row.of(group) for group in groups.values()), key=order)


def order(row: Row) -> tuple[str, str, int, str, int]:
    """By data set, the training-free backbones first, each alone before the residuals on it."""
    counting = SHORT_BACKBONES.index(row.backbone) if row.backbone in SHORT_BACKBONES[:2] else 2
    return row.dataset, row.split, counting, row.backbone, MAIN_METHODS.index(row.method) + bool(row.cross_fit)


def filter_table(records: list[Record], filter_name: str) -> Table:
    """Backbones and what the residual makes of them under one filter, the paper's row next to it where it has one."""
    found = rows(records, filter_name)
    if not found:
        raise DataError(
            f"no record was measured under the {filter_name} filter; run `bridgemem evaluate RUN --records FILE`."
        )
    printed = {row.label: paper_cells(row) for row in found}
    with_paper = filter_name == "static" and any(any(cells) for cells in printed.values())
    header = ["data set, method", *HEADINGS.values(), "gain in MRR [95 %]"]
    header += [f"paper {h}" for h in HEADINGS.values()] if with_paper else []
    cells = []
    for row in found:
        line = [row.label, *(figure(row.mean[m]) for m in METRICS), interval(row.gain) if row.gain else ""]
        cells.append(line + (printed[row.label] if with_paper else []))
    return Table(f"{FILTER_WORDS[filter_name].capitalize()}, mean ties", header, cells)


def paper_cells(row: Row) -> list[str]:
    """The paper's four figures of CENET and of BridgeMem on it, as far as it has them: on validation the MRR alone.

    Its other rows are time-aware figures and stand next to no static one.
    """
    place = {"backbone": "cenet", "bridgemem": "bridgemem"}.get(row.method)
    if row.backbone != "cenet" or place is None:
        return [""] * 4
    if row.split == "valid":
        before_after = paper()["validation_mrr"].get(row.dataset)
        return [figure(before_after[place == "bridgemem"]) if before_after else "", "", "", ""]
    return [figure(v) for v in paper()["table1"].get(row.dataset, {}).get(place, [])] or [""] * 4

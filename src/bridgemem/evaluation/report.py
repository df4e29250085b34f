"""Report: tables made from records, one filter a column, the paper's figures beside the measured ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from bridgemem.errors import DataError
from bridgemem.evaluation.metrics import METRICS
from bridgemem.evaluation.records import Record

HEADINGS = {"mrr": "MRR", "hits1": "H@1", "hits3": "H@3", "hits10": "H@10"}
FILTER_WORDS = {"raw": "raw", "static": "static filter", "time": "time-aware filter"}
SHORT = {"raw": "raw", "static": "static", "time": "time-aware"}
MAIN_METHODS = ("backbone", "bridgemem", "learned")
# the seed of the one backbone that all tables show; other seeds measure its own spread
BACKBONE_SEED = 42


@dataclass(frozen=True)
class Table:
    """A table as plain cells, to be printed, or written as Markdown."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {_one_line(self.title)}", "", _line(self.header)]
        lines.append("|" + "|".join("---" if i == 0 else "---:" for i in range(len(self.header))) + "|")
        lines += [_line(row) for row in self.rows]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")


def _line(cells: list[str]) -> str:
    """One line of a Markdown table; names come from data and may hold a bar or a line break."""
    return "| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


@cache
def paper() -> dict[str, Any]:
    """The paper's own figures."""
    text = resources.files("bridgemem.evaluation").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def figure(value: float) -> str:
    """A metric as the field prints it: .5903."""
    return f"{value:.4f}".replace("0.", ".", 1)


def interval(gain: list[float]) -> str:
    return f"{gain[0]:+.4f} [{gain[1]:+.4f}, {gain[2]:+.4f}]"


def place(dataset: str, split: str) -> str:
    """The data set, and the split where it is not test."""
    return dataset if split == "test" else f"{dataset} ({split})"


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

    @classmethod
    def of(cls, records: list[Record]) -> Row:
        """Average records that differ in nothing but the seed."""
        named = ("dataset", "fingerprint", "split", "backbone", "method", "filter", "selection", "history", "subset")
        kinds = {tuple(getattr(r, name) for name in named) for r in records}
        if len(kinds) != 1:
            raise DataError(f"records of {len(kinds)} different measurements cannot be averaged into one row.")
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
        )

    @property
    def label(self) -> str:
        name = self.backbone if self.method == "backbone" else f"{self.backbone} + {self.method}"
        past = "" if self.history == "rolling" else f", {self.history} history"
        return f"{place(self.dataset, self.split)}, {name}{past}"


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
        best = min((_backbone_seed(r) != BACKBONE_SEED, r.history != "rolling", _backbone_seed(r)) for r in group)
        kept += [r for r in group if (r.history != "rolling", _backbone_seed(r)) == best[1:]]
    return kept


def _backbone_seed(record: Record) -> int:
    return record.settings.get("backbone_seed", BACKBONE_SEED)


def selected(records: Iterable[Record], filter_name: str) -> list[Record]:
    """Whole-split records under one filter; the residual as chosen under that same filter.

    Nothing is chosen under raw: it shows the choice of the time-aware filter. A measurement repeated on another device
    is shown once.
    """
    wanted = "time" if filter_name == "raw" else filter_name
    once: dict[tuple[object, ...], Record] = {}
    for r in sorted(records, key=lambda r: not r.device.startswith("cuda")):
        if r.filter == filter_name and r.subset is None and r.selection in (None, wanted):
            what = (r.dataset, r.split, r.backbone, r.method, r.fingerprint, r.history)
            # a backbone alone has no seed but its own
            seed = r.seed if r.method != "backbone" else None
            once.setdefault((*what, seed, _backbone_seed(r)), r)
    return list(once.values())


def rows(records: Iterable[Record], filter_name: str) -> list[Row]:
    """One row per data set, backbone and method under one filter."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in selected(records, filter_name):
        if r.method in MAIN_METHODS:
            what = (r.dataset, r.split, r.backbone, r.method, r.fingerprint, r.history)
            groups.setdefault((*what, _backbone_seed(r)), []).append(r)
    order = {"recurrence": 0, "recurrence-dyadic": 1}
    return sorted(
        (Row.of(group) for group in groups.values()),
        key=lambda r: (r.dataset, order.get(r.backbone, 2), r.backbone, MAIN_METHODS.index(r.method)),
    )


def filter_table(records: list[Record], filter_name: str) -> Table:
    """Backbones and what the residual makes of them under one filter, the paper's row beside it where it has one."""
    found = rows(records, filter_name)
    if not found:
        raise DataError(f"no record was measured under the {filter_name} filter.")
    printed = {row.label: _paper_cells(row) for row in found}
    beside = filter_name == "static" and any(any(cells) for cells in printed.values())
    header = ["data set, method", *HEADINGS.values(), "gain in MRR [95 %]"]
    header += [f"paper {h}" for h in HEADINGS.values()] if beside else []
    cells = []
    for row in found:
        line = [row.label, *(figure(row.mean[m]) for m in METRICS), interval(row.gain) if row.gain else ""]
        cells.append(line + (printed[row.label] if beside else []))
    return Table(f"{FILTER_WORDS[filter_name].capitalize()}, mean ties", header, cells)


def main_table(records: list[Record]) -> Table:
    """Table 1: static and time-aware side by side, never in one column, the paper's figures beside the static ones."""
    both = {name: {row.label: row for row in rows(standard(records), name)} for name in ("static", "time")}
    header = ["data set, method", "seeds"]
    header += [f"static {h}" for h in HEADINGS.values()] + ["static gain in MRR [95 %]"]
    header += [f"paper (static) {h}" for h in HEADINGS.values()]
    header += [f"time-aware {h}" for h in HEADINGS.values()] + ["time-aware gain in MRR [95 %]"]
    cells = []
    for label, row in both["static"].items():
        honest = both["time"].get(label)
        line = [label, str(row.seeds), *_figures(row), *_paper_cells(row)]
        cells.append(line + (_figures(honest) if honest else [""] * 5))
    if not cells:
        raise DataError("no record of a whole split was found.")
    note = (
        "Means over the seeds; the gain is over the same backbone, with a paired bootstrap interval clustered by step. "
        "Each residual was chosen on validation under the filter of its column."
    )
    return Table("Backbones, and what the residual makes of them", header, cells, note)


def short_table(records: list[Record]) -> Table:
    """MRR alone, of CENET and the training-free rows: what a reader of the README wants to see."""
    both = {name: {row.label: row for row in rows(standard(records), name)} for name in ("static", "time")}
    cells = []
    for label, row in both["static"].items():
        if row.backbone == "recurrence" and row.method != "backbone":
            continue
        honest = both["time"].get(label)
        cells.append(
            [
                label,
                figure(row.mean["mrr"]),
                _paper_cells(row)[0],
                f"{row.gain[0]:+.4f}" if row.gain else "",
                figure(honest.mean["mrr"]) if honest else "",
                interval(honest.gain) if honest and honest.gain else "",
            ]
        )
    header = [
        "data set, method",
        "static MRR",
        "paper (static)",
        "static gain",
        "time-aware MRR",
        "time-aware gain [95 %]",
    ]
    if not cells:
        raise DataError("no record of a whole split was found.")
    return Table("MRR", header, cells)


def _figures(row: Row) -> list[str]:
    return [*(figure(row.mean[m]) for m in METRICS), interval(row.gain) if row.gain else ""]


def _paper_cells(row: Row) -> list[str]:
    """The paper's four figures of CENET and of BridgeMem on it, as far as it has them: on validation the MRR alone.

    Its other rows are time-aware figures and stand beside no static one.
    """
    place = {"backbone": "cenet", "bridgemem": "bridgemem"}.get(row.method)
    if row.backbone != "cenet" or place is None:
        return [""] * 4
    if row.split == "valid":
        before_after = paper()["validation_mrr"].get(row.dataset)
        return [figure(before_after[place == "bridgemem"]) if before_after else "", "", "", ""]
    return [figure(v) for v in paper()["table1"].get(row.dataset, {}).get(place, [])] or [""] * 4


def spread_table(records: list[Record]) -> Table:
    """How far the figures move with the seed: of the backbone itself, and of the residual on one backbone."""
    cells = []
    for filter_name in ("static", "time"):
        found = [r for r in selected(records, filter_name) if r.history == "rolling"]
        names = sorted({(r.dataset, r.split, r.fingerprint) for r in found if r.backbone == "cenet"})
        for named in names:
            own = [r for r in found if (r.dataset, r.split, r.fingerprint) == named and r.backbone == "cenet"]
            base = [r.mrr for r in own if r.method == "backbone"]
            residual = [r.mrr for r in own if r.method == "bridgemem" and _backbone_seed(r) == BACKBONE_SEED]
            for what, values in (("cenet itself", base), ("bridgemem on one cenet", residual)):
                if len(values) > 1:
                    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
                    extremes = f"{figure(min(values))} to {figure(max(values))}"
                    name = f"{place(*named[:2])}, {what}"
                    cells.append(
                        [name, SHORT[filter_name], str(len(values)), figure(mean), f"{deviation:.4f}", extremes]
                    )
    if not cells:
        raise DataError("no record of cenet under more than one seed was found.")
    header = ["data set, what", "filter", "seeds", "mean MRR", "standard deviation", "range"]
    return Table("Spread over seeds", header, cells)


def efficiency_table(records: list[Record]) -> Table:
    """Table 2: what fitting costs, on each kind of device, beside the paper's seconds on its own GPU."""
    groups: dict[str, list[Record]] = {}
    for r in records:
        if r.method == "bridgemem" and r.subset is None and r.fit_seconds is not None:
            groups.setdefault(r.dataset, []).append(r)
    cells = []
    for dataset, found in sorted(groups.items()):
        printed = paper()["table2"].get(dataset)
        line = [dataset, ", ".join(str(e) for e in sorted({r.settings.get("epochs", 0) for r in found}))]
        for device in ("cuda", "cpu"):
            own = [r for r in found if r.device.startswith(device)]
            # a shared device only ever adds time, so the quickest run says most about the cost
            for field in ("fit_seconds", "refit_seconds"):
                values = [seconds for r in own if (seconds := getattr(r, field)) is not None]
                line.append(f"{min(values):.1f}" if values else "")
        cells.append(line + ([f"{printed[0]}", f"{printed[2]}", f"{printed[3]}"] if printed else ["", "", ""]))
    if not cells:
        raise DataError("no record with the seconds of a fit was found.")
    devices = sorted({r.device for found in groups.values() for r in found})
    header = ["data set", "epochs", "GPU select+fit", "GPU refit", "CPU select+fit", "CPU refit"]
    header += ["paper epochs", "paper select+fit", "paper refit"]
    note = f"Seconds, the quickest of the runs on each device ({'; '.join(devices)}); the paper's on an NVIDIA H20."
    return Table("What fitting costs", header, cells, note)

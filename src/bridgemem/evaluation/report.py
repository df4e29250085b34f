"""Report: tables made from records, one filter a table, the paper's figures beside the measured ones."""

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


@dataclass(frozen=True)
class Table:
    """A table as plain cells, to be printed, or written as Markdown."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", "| " + " | ".join(self.header) + " |"]
        lines.append("|" + "|".join("---" if i == 0 else "---:" for i in range(len(self.header))) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


@cache
def paper() -> dict[str, Any]:
    """The paper's own figures."""
    text = resources.files("bridgemem.evaluation").joinpath("paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def figure(value: float) -> str:
    """A metric as the field prints it: .5903."""
    return f"{value:.4f}".replace("0.", ".", 1)


@dataclass(frozen=True)
class Row:
    """One method on one data set under one filter: the mean over seeds and its spread."""

    dataset: str
    split: str
    backbone: str
    method: str
    filter: str
    seeds: int
    mean: dict[str, float]
    spread: dict[str, float]
    gain: list[float] | None

    @classmethod
    def of(cls, records: list[Record]) -> Row:
        """Average records that differ in nothing but the seed."""
        kinds = {(r.dataset, r.split, r.backbone, r.method, r.filter, r.history, r.fingerprint) for r in records}
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
            len(records),
            {m: float(v.mean()) for m, v in values.items()},
            {m: float(v.std(ddof=1)) if len(v) > 1 else 0.0 for m, v in values.items()},
            [float(x) for x in np.mean(gains, axis=0)] if gains else None,
        )


def rows(records: Iterable[Record], filter_name: str) -> list[Row]:
    """One row per data set, backbone and method under one filter; the residual as chosen under that same filter."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in records:
        # choices under raw are not made; its rows show the choice of the time-aware filter
        wanted = "time" if filter_name == "raw" else filter_name
        shown = r.method in ("backbone", "bridgemem", "learned") and r.selection in (None, wanted)
        if shown and r.filter == filter_name and r.history == "rolling" and r.subset is None:
            groups.setdefault((r.dataset, r.split, r.backbone, r.method, r.fingerprint, r.device), []).append(r)
    return [Row.of(group) for group in groups.values()]


def main_table(records: list[Record], filter_name: str) -> Table:
    """Backbones and what the residual makes of them under one filter, the paper's row beside it where it has one."""
    header = ["data set, method", *HEADINGS.values(), "gain in MRR (95 % interval)"]
    if filter_name == "static":
        header += [f"paper {h}" for h in HEADINGS.values()]
    cells = []
    for row in sorted(rows(records, filter_name), key=lambda r: (r.dataset, r.method != "backbone", r.backbone)):
        name = row.backbone if row.method == "backbone" else f"{row.backbone} + {row.method}"
        split = "" if row.split == "test" else f" ({row.split})"
        gain = "" if row.gain is None else f"{row.gain[0]:+.4f} [{row.gain[1]:+.4f}, {row.gain[2]:+.4f}]"
        line = [f"{row.dataset}{split}, {name}", *(figure(row.mean[m]) for m in METRICS), gain]
        if filter_name == "static":
            printed = _paper_row(row)
            line += [figure(v) for v in printed] if printed else [""] * 4
        cells.append(line)
    if not cells:
        raise DataError(f"no record was measured under the {filter_name} filter.")
    return Table(f"{FILTER_WORDS[filter_name].capitalize()}, rolling history, mean ties", header, cells)


def _paper_row(row: Row) -> list[float] | None:
    """The paper's static row: CENET and BridgeMem on CENET; its other rows are time-aware figures."""
    if row.backbone != "cenet":
        return None
    if row.split == "valid":
        return None
    return paper()["table1"].get(row.dataset, {}).get({"backbone": "cenet"}.get(row.method, row.method))

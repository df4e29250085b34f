"""Compare: paired differences of two runs on the same queries, and the reasons to refuse one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridgemem.backbones.naive import NAIVE
from bridgemem.errors import RunError
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.intervals import Gain, paired_gains
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.residuals.method import BACKBONE
from bridgemem.runs import Run
from bridgemem.storage.tables import ASKED, RANK, read_table, table_file

SAME = ("fingerprint", "valid_start", "test_start", "history")


@dataclass(frozen=True)
class Difference:
    """Run B - run A in one metric under one filter."""

    method: str
    filter: str
    metric: str
    first: float
    second: float
    gain: Gain


def compare(first: Run, second: Run, split: str = "test") -> list[Difference]:
    """Every method that both runs have, under every filter; refused where the runs answered different queries."""
    for what in SAME:
        a, b = getattr(first.config, what), getattr(second.config, what)
        if a != b:
            raise RunError(
                f"the runs differ in {what} ({a!r} and {b!r}); only runs on the same data, split and history can be "
                "compared."
            )
    before, after = _ranks(first, split), _ranks(second, split)
    if not all(np.array_equal(before[name], after[name]) for name in ASKED):
        raise RunError("the runs ranked different queries; evaluate both on the same split.")
    found = [_ranked(columns) for columns in (before, after)]
    if {filter_name for _, filter_name in found[0]} != {filter_name for _, filter_name in found[1]}:
        raise RunError("the runs were ranked under different filters; evaluate both again.")
    return [
        difference
        for (method, filter_name), name in found[0].items()
        if (method, filter_name) in found[1]
        for difference in _differences(before[name], after[name], before["step"], method, filter_name)
    ]


def _ranks(run: Run, split: str) -> dict[str, np.ndarray]:
    """The ranks of a run on a split."""
    path = run.ranks_path(split)
    if table_file(path) is None:
        remedy = f"`bridgemem evaluate {run.folder} --split {split}` does it"
        raise RunError(f"{run.folder} was not evaluated on {split}; {remedy}.")
    columns = read_table(path)
    missing = [name for name in ASKED if name not in columns]
    if missing or not _ranked(columns):
        raise RunError(
            f"{path} lacks the column {(missing or [BACKBONE.column('static')])[0]}; evaluate the run again."
        )
    return columns


def _ranked(columns: dict[str, np.ndarray]) -> dict[tuple[str, str], str]:
    """(method, filter) of every column that holds ranks, and the column's name."""
    pairs = {name: name.removeprefix(RANK).partition(".") for name in columns if name.startswith(RANK)}
    # naive forecasters are the same in both runs
    naive = {kind.name for kind in NAIVE}
    return {
        (method, filter_name): name
        for name, (filter_name, _, method) in pairs.items()
        if filter_name in FILTERS and method not in naive
    }


def _differences(
    before: np.ndarray, after: np.ndarray, step: np.ndarray, method: str, filter_name: str
) -> list[Difference]:
    gains = paired_gains(before, after, step)
    old, new = Metrics.of(before).as_dict(), Metrics.of(after).as_dict()
    return [Difference(method, filter_name, m, old[m], new[m], gains[m]) for m in METRICS]

"""Compare: paired differences of two runs on the same queries, and the reasons to refuse one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridgemem.errors import RunError
from bridgemem.evaluation.filters import FILTERS
from bridgemem.evaluation.intervals import Gain, paired_gains
from bridgemem.evaluation.metrics import METRICS, Metrics
from bridgemem.runs import Run, read_table


@dataclass(frozen=True)
class Difference:
    """Run B less run A in one metric under one filter."""

    method: str
    filter: str
    metric: str
    first: float
    second: float
    gain: Gain


def compare(first: Run, second: Run, split: str = "test") -> list[Difference]:
    """Every method that both runs have, under every filter; refused where the runs answered different questions."""
    a, b = first.config, second.config
    for what in ("dataset", "fingerprint", "valid_start", "test_start", "history"):
        if getattr(a, what) != getattr(b, what):
            raise RunError(
                f"the runs differ in {what} ({getattr(a, what)!r} and {getattr(b, what)!r}); only runs on the same "
                "data, split and history can be compared."
            )
    columns = read_table(first.ranks_path(split)), read_table(second.ranks_path(split))
    for name in ("actor", "relation", "step", "answer"):
        if not np.array_equal(columns[0][name], columns[1][name]):
            raise RunError("the runs ranked different queries; evaluate both on the same split.")
    step = columns[0]["step"]
    suffixes = tuple(f"_{f}" for f in FILTERS)
    shared = [name for name in columns[0] if name.endswith(suffixes) and name in columns[1]]
    return [
        difference for name in shared for difference in _differences(columns[0][name], columns[1][name], step, name)
    ]


def _differences(before: np.ndarray, after: np.ndarray, step: np.ndarray, name: str) -> list[Difference]:
    method, _, filter_name = name.rpartition("_")
    gains = paired_gains(before, after, step)
    old, new = Metrics.of(before).as_dict(), Metrics.of(after).as_dict()
    return [Difference(method, filter_name, m, old[m], new[m], gains[m]) for m in METRICS]

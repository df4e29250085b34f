"""Audit: whether a run's figures can be believed: re-derived, locked before test, and blind to the future."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from bridgemem.backbones.base import Backbone, score_queries
from bridgemem.backbones.check import other_futures
from bridgemem.backbones.history import History
from bridgemem.errors import BridgeMemError
from bridgemem.evaluation.metrics import METRICS, Metrics
from bridgemem.evaluation.queries import Queries
from bridgemem.events.dataset import Dataset
from bridgemem.evidence.transitions import Transitions
from bridgemem.fitting import SELECTION_FILTERS
from bridgemem.runs import Run, read_table


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, whether it holds, and what was seen."""

    check: str
    passed: bool
    seen: str


def audit(
    run: Run, dataset: Dataset | None = None, split: str = "test", steps: int = 5, seed: int = 0
) -> list[Finding]:
    """All checks on a run. A failed check never stops the others."""
    dataset = dataset or run.dataset()
    findings = [*_locks(run, split), _metrics(run, split)]
    findings += future_blind(run.backbone(), run.transitions(), dataset, split, steps, seed)
    return findings


def _locks(run: Run, split: str) -> Iterator[Finding]:
    """The selection is as it was locked, was made without test facts, and is the one the figures were read under."""
    try:
        measured = run.metrics().get(split, [])
    except BridgeMemError:
        measured = []
    for name in SELECTION_FILTERS:
        try:
            selection = run.selection(name)
        except BridgeMemError as problem:
            yield Finding(f"selection ({name})", False, str(problem))
            continue
        used = {r["lock"] for r in measured if r["selection"] == name}
        held = used <= {selection.lock()}
        yield Finding(
            f"selection ({name})", held, f"locked as {selection.lock()}, figures were read under {used or 'none'}"
        )


def _metrics(run: Run, split: str) -> Finding:
    """Every figure of metrics.json comes out again from the ranks of the single queries."""
    try:
        columns, measured = read_table(run.ranks_path(split)), run.metrics()[split]
    except (BridgeMemError, KeyError) as problem:
        return Finding("metrics from ranks", False, f"the {split} split was not evaluated: {problem}")
    worst = 0.0
    for row in measured:
        name = "backbone" if row["method"] == "backbone" else f"bridgemem_by_{row['selection']}"
        again = Metrics.of(columns[f"{name}_{row['filter']}"]).as_dict()
        worst = max(worst, *(abs(again[m] - row[m]) for m in METRICS))
    return Finding("metrics from ranks", worst < 1e-9, f"{len(measured)} rows, largest difference {worst:.1g}")


def future_blind(
    backbone: Backbone, transitions: Transitions, dataset: Dataset, split: str, steps: int = 5, seed: int = 0
) -> Iterator[Finding]:
    """Score a sample of steps again with everything at and after each step corrupted: not one bit may change."""
    rng = np.random.default_rng(seed)
    events = dataset.events if split == "test" else dataset.known
    moments = np.unique(dataset.split(split).step)
    sample = np.sort(rng.choice(moments, size=min(steps, len(moments)), replace=False))
    worst = {"backbone": 0.0, "evidence": 0.0}
    for now in sample.tolist():
        asked = Queries.of(events.between(now, now + 1))
        asked = asked.take(torch.from_numpy(rng.permutation(len(asked))[:64]))
        true = History(events)
        before, e = score_queries(backbone, asked, true), transitions.evidence(asked, true)
        for future in other_futures(events, now, rng).values():
            false = History(future)
            after, f = score_queries(backbone, asked, false), transitions.evidence(asked, false)
            worst["backbone"] = max(worst["backbone"], _gap(before.log_p, after.log_p))
            parts = ("row", "candidate", "a_ct", "a_nn")
            worst["evidence"] = max(worst["evidence"], *(_gap(getattr(e, p), getattr(f, p)) for p in parts))
    for name, gap in worst.items():
        seen = f"{len(sample)} steps scored again with the future corrupted, largest change {gap:.3g}"
        yield Finding(f"{name} blind to the future", gap == 0.0, seen)


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, infinite where the shapes differ."""
    if a.shape != b.shape:
        return math.inf
    return float((a - b).abs().max()) if a.numel() else 0.0

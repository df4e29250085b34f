"""Audit: whether a run's figures can be believed: re-derived, locked before test, and blind to the future."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bridgemem.backbones.base import Backbone, score_queries
from bridgemem.backbones.check import other_futures
from bridgemem.backbones.history import History
from bridgemem.errors import BridgeMemError, RunError
from bridgemem.evaluation.evaluate import column_of, history, methods, rank_columns, read
from bridgemem.evaluation.filters import FILTERS
from bridgemem.evaluation.intervals import paired_gains
from bridgemem.evaluation.metrics import METRICS, Metrics
from bridgemem.evaluation.queries import Queries
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.transitions import Transitions
from bridgemem.fitting import SELECTION_FILTERS
from bridgemem.learned import Learned
from bridgemem.runs import Run, read_table, training_note

QUERIES_A_STEP = 64
# a run that was evaluated on another device may swap candidates whose scores are all but equal
SWAPS = 0.005


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
    whole = dataset or run.dataset()
    known = whole.without_test() if split == "valid" else whole
    part, prefix = ("known", known.known) if split == "test" else ("train", known.train)

    def blind() -> Iterator[Finding]:
        frozen_at = history(run, known, split, "cpu").frozen_at
        learned = [model for name in SELECTION_FILTERS if (model := run.learned(name)) is not None]
        return future_blind(run.backbone(), run.transitions(part), known, split, steps, seed, frozen_at, learned)

    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "data": lambda: [_data(run, whole)],
        "training": lambda: _training(run, whole),
        **{f"selection ({name})": partial(_lock, run, known, split, name) for name in SELECTION_FILTERS},
        "metrics from ranks": lambda: [_metrics(run, split)],
        "ranks from scores": lambda: [_ranks(run, known, split, steps * QUERIES_A_STEP, seed)],
        "counts from the past": lambda: [_counts(run.transitions(part), prefix)],
        "blind to the future": blind,
    }
    return [finding for name, check in checks.items() for finding in _carried_out(name, check)]


def _carried_out(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check; one that cannot be carried out on what lies in the folder has failed."""
    try:
        return list(check())
    except BridgeMemError as problem:
        return [Finding(name, False, str(problem))]
    except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as problem:
        return [Finding(name, False, f"could not be checked: {type(problem).__name__}: {problem}")]


def _data(run: Run, dataset: Dataset) -> Finding:
    """The events and the split are those that the run was fitted on."""
    config, events = run.config, dataset.events
    found = (events.fingerprint, dataset.valid_start, -1 if dataset.test_start is None else dataset.test_start)
    held = found == (config.fingerprint, config.valid_start, config.test_start)
    seen = f"fingerprint {found[0]}, validation from step {found[1]}, test from {found[2]}"
    return Finding("data", held, seen if held else f"{seen}: not what the run was fitted on")


def _training(run: Run, dataset: Dataset) -> list[Finding]:
    """The backbone was trained on the train split and nothing else, where its training is noted at all."""
    noted, train = training_note(run.folder / "backbone").get("fingerprint"), dataset.train
    if noted is None:
        return []
    if noted != train.fingerprint and run.refreshes():  # which may add names and earlier events to what was train
        from bridgemem.live.refresh import chosen_on

        train = chosen_on(run, dataset).prefix(dataset.valid_start)
    own = train.fingerprint
    seen = f"the backbone was trained on {noted}" + ("" if noted == own else f", and the train split is {own}")
    return [Finding("training", noted == own, seen)]


def _lock(run: Run, dataset: Dataset, split: str, name: str) -> list[Finding]:
    """The selection is as it was locked, was made without test facts, and is the one the figures were read under."""
    check, selection = f"selection ({name})", run.selection(name)
    made_on, before = dataset.known, ""
    if run.refreshes():
        from bridgemem.live.refresh import chosen_on

        made_on, before = chosen_on(run, dataset), " of the run before it was refreshed"
    if selection.fingerprint != made_on.fingerprint:
        return [Finding(check, False, f"was made on other events than train and validation{before}")]
    used = sorted({str(row["lock"]) for row in _measured(run, split) if row["selection"] == name})
    held = used == [selection.lock()]
    made = f"made on train and validation{before}, " if before else ""
    seen = f"{made}locked as {selection.lock()}, figures were read under {', '.join(used) or 'none'}"
    return [Finding(check, held, seen)]


def _measured(run: Run, split: str) -> list[dict[str, Any]]:
    """The rows of metrics.json on a split."""
    rows = run.metrics().get(split)
    if not rows:
        raise RunError(f"{run.folder} was not evaluated on {split}.")
    return rows


def _metrics(run: Run, split: str) -> Finding:
    """Every figure of metrics.json, gains and intervals too, comes out again from the ranks of the single queries."""
    columns, measured = read_table(run.ranks_path(split)), _measured(run, split)
    gaps = []
    for row in measured:
        base, name = (
            columns[f"backbone_{row['filter']}"],
            f"{column_of(row['method'], row['selection'])}_{row['filter']}",
        )
        again = Metrics.of(columns[name]).as_dict()
        gaps += [again[m] - row[m] for m in METRICS] + [len(base) - row["queries"]]
        if row["method"] != "backbone":
            for m, gain in paired_gains(base, columns[name], columns["step"]).items():
                gaps += [a - b for a, b in zip((gain.value, gain.low, gain.high), row["gain"][m], strict=True)]
    worst = float(np.abs(gaps).max())  # NaN where anything is NaN, and then no less than the bound
    rows = sorted((column_of(row["method"], row["selection"]), row["filter"]) for row in measured)
    wanted = sorted((method, f) for method in methods(run) for f in FILTERS)
    seen = f"{len(measured)} rows, largest difference {worst:.1g}" + ("" if rows == wanted else ", rows are missing")
    return Finding("metrics from ranks", worst < 1e-9 and rows == wanted, seen)


def _ranks(run: Run, dataset: Dataset, split: str, most: int, seed: int) -> Finding:
    """The table asks the questions of the split, and a sample of them scored anew is ranked as it says."""
    check, columns, queries = "ranks from scores", read_table(run.ranks_path(split)), Queries.of(dataset.split(split))
    assert queries.answer is not None
    asked = {"actor": queries.actor, "relation": queries.relation, "step": queries.step, "answer": queries.answer}
    if not all(np.array_equal(columns[name], column.numpy()) for name, column in asked.items()):
        return Finding(check, False, f"the table holds other queries than those of {split}")
    drawn = np.random.default_rng(seed).choice(len(queries), size=min(most, len(queries)), replace=False)
    rows = np.sort(drawn)
    again = read(run, dataset, split, queries.take(torch.from_numpy(rows)))
    made = rank_columns(again)
    gaps = [
        np.abs(1 / made[name] - 1 / columns[name][rows]).mean()
        for name in (f"{method}_{f}" for method in again.columns for f in FILTERS)
    ]
    worst = float(np.max(gaps))
    return Finding(check, worst < SWAPS, f"{len(rows)} queries ranked again, mean change of 1/rank {worst:.2g}")


def _counts(fitted: Transitions, prefix: EventLog) -> Finding:
    """Prior and count table come out again from the events before the split, so nothing later is in them."""
    again = CountTable.of(mine(prefix, fitted.space, fitted.settings), fitted.space)
    held = torch.equal(again.counts, fitted.counts.counts.cpu())
    held = held and torch.allclose(log_prior(prefix), fitted.log_pi.cpu(), rtol=0, atol=1e-9)
    seen = f"{int(again.counts.sum()):,} counts of {len(prefix):,} events" + (
        "" if held else " are not those of the run"
    )
    return Finding("counts from the past", held, seen)


def future_blind(
    backbone: Backbone,
    transitions: Transitions,
    dataset: Dataset,
    split: str,
    steps: int = 5,
    seed: int = 0,
    frozen_at: int | None = None,
    learned: Sequence[Learned] = (),
) -> Iterator[Finding]:
    """Score a sample of steps again with all that they must not read corrupted: not one bit may change.

    That is everything at and after the step, and with a frozen history everything from `frozen_at` on.
    """
    rng = np.random.default_rng(seed)
    events = dataset.events if split == "test" else dataset.known
    moments = np.unique(dataset.split(split).step)
    sample = np.sort(rng.choice(moments, size=min(steps, len(moments)), replace=False))
    parts = partial(_parts, backbone, transitions, learned)
    true, worst = parts(History(events, frozen_at)), dict.fromkeys(("backbone", "evidence"), 0.0)
    for now in sample.tolist():
        asked = Queries.of(events.between(now, now + 1))
        asked = asked.take(torch.from_numpy(rng.permutation(len(asked))[:QUERIES_A_STEP]))
        before = true(asked)
        hidden = now if frozen_at is None else min(now, frozen_at)
        for future in other_futures(events, hidden, rng).values():
            after = parts(History(future, frozen_at))(asked)
            for name, expected in before.items():
                gaps = (_gap(a, b) for a, b in zip(expected, after[name], strict=True))
                worst[name] = max(worst.get(name, 0.0), *gaps)
    for name, gap in worst.items():
        seen = f"{len(sample)} steps scored again with the future corrupted, largest change {gap:.3g}"
        yield Finding(f"{name} blind to the future", gap == 0.0, seen)


def _parts(
    backbone: Backbone, transitions: Transitions, learned: Sequence[Learned], past: History
) -> Callable[[Queries], dict[str, tuple[torch.Tensor, ...]]]:
    """All that a score is made of, as read from one history, whose indices are built here."""
    reader = learned[0].reader(past, transitions) if learned else None

    def read_parts(asked: Queries) -> dict[str, tuple[torch.Tensor, ...]]:
        scores, e = score_queries(backbone, asked, past), transitions.evidence(asked, past)
        assert scores.uncertainty is not None
        found: dict[str, tuple[torch.Tensor, ...]] = {
            "backbone": (scores.log_p, scores.uncertainty),
            "evidence": (e.row, e.candidate, e.a_ct, e.a_nn, e.support, e.lag),
        }
        if reader is not None:
            x = reader.read(asked, scores)
            corrections = (model.corrections(x, asked.relation) for model in learned)
            found["learned"] = (x.row, x.candidate, *corrections)
        return found

    return read_parts


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; infinite where the shapes differ or a difference is no number."""
    if a.shape != b.shape:
        return math.inf
    if torch.equal(a, b):
        return 0.0
    gap = float((a.double() - b.double()).abs().max())
    return gap if gap > 0 else math.inf

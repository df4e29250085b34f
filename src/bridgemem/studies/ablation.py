"""Ablations: a residual with one thing changed at a time, read under the filter it was selected for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.trained import trained_again, training_free
from bridgemem.config import Settings
from bridgemem.errors import RunError, SettingsError
from bridgemem.evaluation.evaluate import record, scoring_of
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.intervals import paired_gains
from bridgemem.residuals.features import GROUPS
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import earlier_sources, fit_cases, gather
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.residuals.validation import Validation
from bridgemem.runs import Run

TAUS = (1.0, 10.0, 100.0, 1000.0)
LAMBDAS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0)
KS = (1, 2, 4, 8, 16, 32)
WINDOWS = (7, 30, 65, 180, 0)
CHANGE = "change"  # the setting of a record that holds the change in MRR against the residual as selected


def choice_changes(choice: Choice) -> dict[str, Choice]:
    """Changes that need no new fit: they weigh the same evidence differently."""
    return {
        "reader=count": replace(choice, tau=0.0),
        "reader=neural": replace(choice, tau=math.inf),
        "shrinkage=none": replace(choice, shrinkage=False),
        "gate=none": replace(choice, gate="none"),
        "gate=uncertain": replace(choice, gate="uncertain"),
        **{f"tau={tau:g}": replace(choice, tau=tau) for tau in TAUS},
        **{f"lambda={lam:g}": replace(choice, lam=lam) for lam in LAMBDAS},
    }


def settings_changes(settings: Settings) -> dict[str, Settings]:
    """Changes of what is remembered or how it is read: the transitions are fitted again."""
    changes = {
        "direction=none": replace(settings, directions=False),
        "bins=none": replace(settings, bins=()),
        "pooling=mean": replace(settings, pooling="mean"),
        **{f"k={k}": replace(settings, k=k) for k in KS},
        **{f"window={w or 'all'}": replace(settings, window=w) for w in WINDOWS},
    }
    return {label: changed for label, changed in changes.items() if changed != settings}


@dataclass(frozen=True)
class _Change:
    """A named change of the choice that was made under a filter."""

    filter: str
    label: str
    choice: Choice


def ablate(
    run: Run, dataset: Dataset | None = None, split: str = "test", device: str = "cpu", progress: Progress = SILENT
) -> list[Record]:
    """One record per change and filter. Nothing is chosen from them: lambda, gate and tau stay as validation chose."""
    selections = {name: run.selection(name) for name in SELECTION_FILTERS}
    dataset = dataset or run.dataset
    if split == "valid":
        dataset = dataset.without_test()
    queries, part = Queries.of(dataset.split(split)), "known" if split == "test" else "train"
    backbone = run.scorer(part, device)
    filters, frozen_at = Filters(dataset.events, device), dataset.test_start if split == "test" else dataset.valid_start
    pasts = {
        "rolling": Past(dataset.events, device=device),
        "frozen": Past(dataset.events, frozen_at, device),
    }
    # changes are measured under the history that the choice was made under
    own = run.config.history
    other = "rolling" if own == "frozen" else "frozen"
    prefix = dataset.known if split == "test" else dataset.train
    fitted = run.transitions(part, device)
    selected = _selected_ranks(run, scoring_of(run, pasts[own], part, backbone), queries, filters, "bridgemem")

    def read(wanted: list[_Change], history: str, transitions: Transitions) -> Iterator[Record]:
        choices = [w.choice for w in wanted]
        scoring = Scoring(backbone, pasts[history], transitions, choices=choices)
        made = replay(scoring, queries, filters=filters, progress=progress, label="reading ablations")
        settings = {"k": transitions.settings.k, "window": transitions.settings.window}
        for column, w in enumerate(wanted, start=1):
            tau = "inf" if math.isinf(w.choice.tau) else w.choice.tau
            changed = {**settings, "lambda": w.choice.lam, "gate": w.choice.gate, "tau": tau}
            changed |= _change(selected[w.filter], made.of(w.filter, column), queries)
            method, selection = f"ablation:{w.label}", selections[w.filter]
            one = record(run, dataset, split, made, column, w.filter, method, selection, device, changed)
            # the run's seconds are those of its own fit
            timed = (one.fit_seconds, one.refit_seconds) if transitions is fitted else (None, None)
            yield replace(one, history=history, fit_seconds=timed[0], refit_seconds=timed[1])

    def every_filter(label: str) -> list[_Change]:
        return [_Change(name, label, selection.choice) for name, selection in selections.items()]

    weighed = [
        _Change(name, label, choice)
        for name, selection in selections.items()
        for label, choice in choice_changes(selection.choice).items()
    ]
    records = [*read(weighed, own, fitted), *read(every_filter(f"history={other}"), other, fitted)]
    changes = settings_changes(run.settings)
    with progress.task("ablations that refit", total=len(changes)) as advance:
        for label, settings in changes.items():
            records += read(every_filter(label), own, _refit(prefix, settings, fitted, run, device))
            advance(1, note=label)
    return records


def learned_changes(settings: LearnedSettings) -> dict[str, LearnedSettings]:
    """Changes of what the learned residual reads: each group of features left out, and the unseen candidates.

    "plain" reads the pair, its transitions, the triple and the candidate: what a first try would.
    """
    seen = replace(settings, unseen_candidates=0)
    return {
        **{f"without {group}": _without(settings, group) for group in GROUPS},
        "no unseen candidates": seen,
        "no unseen candidates, without common_neighbours": _without(seen, "common_neighbours"),
        "plain": _without(seen, "common_neighbours", "actor"),
    }


def _without(settings: LearnedSettings, *groups: str) -> LearnedSettings:
    """The settings without some groups of features, besides those that are left out already."""
    return replace(settings, without=(*settings.without, *groups))


def ablated_settings(run: Run) -> LearnedSettings:
    """The settings of a run's learned residual, or why they cannot be changed one by one."""
    learned = run.learned("raw")
    if learned is None:
        raise RunError(f"{run.folder} has no learned residual; fit it with --residual learned.")
    if learned.settings.cross_fit and not training_free(run.backbone()):
        raise RunError(
            f"{run.folder} was cross-fitted, and changes are fitted on validation alone; ablate a plain run."
        )
    return learned.settings


def ablate_learned(
    run: Run, dataset: Dataset | None = None, split: str = "test", device: str = "cpu", progress: Progress = SILENT
) -> list[Record]:
    """One record per change of the learned residual and filter, each fitted again, without a filter."""
    as_fitted = ablated_settings(run)
    selections = {name: run.selection(name) for name in SELECTION_FILTERS}
    dataset = dataset or run.dataset
    if split == "valid":
        raise SettingsError("the learned residual is fitted on validation, so its changes are read on test only.")
    backbone, seed = run.scorer("known", device), run.config.seed
    past, filters = Past(dataset.events, device=device), Filters(dataset.events, device)
    validation = Validation.of(dataset, run.scorer("train", device), device=device)
    known = run.transitions("known", device)
    train, again = run.transitions("train", device), run.backbone(device)
    earlier = []
    if training_free(again):

        def fit_again(earlier: Dataset, share: float) -> Backbone:
            return trained_again(again, None, run.config.backbone_seed, device, progress, earlier)

        epochs = run.config.epochs
        earlier = earlier_sources(validation, fit_again, as_fitted, transitions=train, seed=seed, epochs=epochs)
    by_unseen: dict[int, dict[str, LearnedSettings]] = {}
    for label, changed in learned_changes(as_fitted).items():
        by_unseen.setdefault(changed.unseen_candidates, {})[label] = changed
    records, queries = [], Queries.of(dataset.split(split))
    selected: dict[str, np.ndarray] = {}
    for group in by_unseen.values():
        first = next(iter(group.values()))
        cases = gather(validation, train, first, earlier=earlier, seed=seed, progress=progress)
        models = []
        with progress.task("fitting changed residuals", total=len(group)) as advance:
            for label, changed in group.items():
                models.append(fit_cases(cases, "raw", changed, seed=seed).model)
                advance(1, note=label)
        scoring = Scoring(backbone, past, known, learned=models)
        selected = selected or _selected_ranks(
            run, scoring_of(run, past, "known", backbone), queries, filters, "learned"
        )
        made = replay(scoring, queries, filters=filters, progress=progress, label="reading ablations")
        for column, (label, changed) in enumerate(group.items(), start=1):
            own = {"lambda": None, "gate": None, "tau": None, **asdict(changed)}
            for name, selection in selections.items():
                method = f"ablation:learned={label}"
                changed_by = _change(selected[name], made.of(name, column), queries)
                one = record(run, dataset, split, made, column, name, method, selection, device, own | changed_by)
                records.append(replace(one, fit_seconds=None, refit_seconds=None))
    return records


def _selected_ranks(
    run: Run, scoring: Scoring, queries: Queries, filters: Filters, residual: str
) -> dict[str, np.ndarray]:
    """The ranks of the residual as selected under each filter, float64 [n]: what every change is held against."""
    made, columns = replay(scoring, queries, filters=filters, progress=SILENT), run.methods()
    return {name: made.of(name, columns.index(run.method(residual, name))) for name in SELECTION_FILTERS}


def _change(selected: np.ndarray, changed: np.ndarray, queries: Queries) -> dict[str, Any]:
    """The change in MRR against the residual as selected, with its paired interval."""
    gain = paired_gains(selected, changed, queries.step.numpy())["mrr"]
    return {CHANGE: [gain.value, gain.low, gain.high]}


def _refit(prefix: EventLog, settings: Settings, fitted: Transitions, run: Run, device: str) -> Transitions:
    """Transitions under changed settings; where only the reading of the counts changes nothing is fitted again."""
    if replace(settings, pooling=fitted.settings.pooling) == fitted.settings:
        return Transitions(settings, fitted.log_pi, fitted.counts, fitted.reader)
    return Transitions.fit(prefix, settings, run.config.seed, device, epochs=run.config.epochs)[0]

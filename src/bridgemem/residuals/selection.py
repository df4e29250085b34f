"""Fitting and selection: transitions from a prefix, lambda, gate and tau from validation, nothing from test."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

from bridgemem.backbones.naive import naive_backbones
from bridgemem.config import NotNegative, Range, Settings, check
from bridgemem.errors import SelectionError, SettingsError
from bridgemem.events.clock import DAY
from bridgemem.events.dataset import Dataset
from bridgemem.evidence.transitions import Transitions
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.intervals import beyond, paired_gain
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.residuals.scoring import Choice, Replay, replay
from bridgemem.residuals.validation import Validation
from bridgemem.storage.schema import as_settings

SELECTION_FILTERS = ("static", "time")
PAPER = Choice(lam=1.0, gate="uncertain", tau=100.0)
# data with a row in the paper keeps its K and window; on all other validation chooses from these, the paper's first
PAPER_DATA = frozenset({"icews14", "icews18", "icews05-15", "gdelt", "gdelt-resplit", "wiki"})
MEMORIES = ((8, 65), (32, 65), (8, 0), (32, 0))
MEMORY_QUERIES = 3_000
MEMORY_EVENTS = 1_000_000  # the last of train, that K and window are tried on
FEWEST_QUERIES = 20  # of validation; what is chosen or compared on fewer is chance
COUNTS_ALONE = 1e-9  # a tau under which the attention reader has no say where anything was counted
OFF = Choice(lam=0.0)


def digest(values: dict[str, Any]) -> str:
    """The lock of a selection record as it is stored, whatever fields it has; an earlier lock in it does not count."""
    content = {name: value for name, value in values.items() if name != "lock"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Selection:
    """What validation chose under one filter, and everything it was chosen from. Written before test is read."""

    filter: str
    choice: Choice
    feasible: bool
    backbone: Metrics
    chosen: Metrics
    grid: list[dict[str, Any]] = field(repr=False)
    dataset: str = ""
    fingerprint: str = ""
    queries: int = 0
    memories: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def lock(self) -> str:
        """A digest of the whole record; test figures carry it, so that a later change of mind shows."""
        return self._lock

    @cached_property
    def _lock(self) -> str:
        return digest(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Selection:
        """A selection from its record, with or without the lock in it."""
        try:
            own = {name: value for name, value in values.items() if name != "lock"}
            selection = as_settings(cls, own, "the selection record", whole=True)
            check("lam", selection.choice.lam, NotNegative)
            check("tau", selection.choice.tau, Annotated[float, Range(ge=0, finite=False)])
        except SettingsError as problem:
            raise SelectionError(f"{str(problem).rstrip('.')}; select again in a new run.") from None
        # the lock of what was read, not of what it became: a whole number may have become a float
        vars(selection)["_lock"] = digest(values)
        return selection


@dataclass(frozen=True)
class Naive:
    """The MRR of a naive forecaster, and the gain of the residual that was chosen over it with both ends."""

    mrr: float
    gain: tuple[float, float, float]


@dataclass(frozen=True)
class Fitted:
    """Transitions of both prefixes, the selections made on validation, and what the fitting cost.

    naive: the naive forecasters on the same queries under the time-aware filter, where they were asked for.
    """

    train: Transitions
    known: Transitions
    epochs: int
    curve: tuple[float, ...]
    selections: dict[str, Selection]
    select_fit_seconds: float
    refit_seconds: float
    examples: int = 0
    naive: Mapping[str, Naive] = field(default_factory=dict)

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen under each filter."""
        return {name: selection.choice for name, selection in self.selections.items()}

    @property
    def above(self) -> str | None:
        """The best naive forecaster among those above what was chosen by more than a standard error."""
        found = {n: of.mrr for n, of in self.naive.items() if beyond((-of.gain[0], -of.gain[2], -of.gain[1]))}
        return max(found, key=lambda name: found[name], default=None)


def grid(settings: Settings) -> list[Choice]:
    return [Choice(*point) for point in itertools.product(settings.lambdas, settings.gates, settings.taus)]


@dataclass(frozen=True)
class Memory:
    """How much of a pair's past is read, and the MRR of the count reader alone with it, time-aware, on validation."""

    k: int
    window: int
    mrr: float


def memories(
    validation: Validation, settings: Settings, *, seed: int = 42, progress: Progress = SILENT
) -> list[Memory]:
    """Every K and window that validation chooses from, measured by the count reader, which needs no training."""
    queries, found = validation.queries.sample(MEMORY_QUERIES, seed), []
    choices, train = [Choice(lam, "none", COUNTS_ALONE) for lam in settings.lambdas], validation.dataset.train
    if len(train) > MEMORY_EVENTS:
        train = train.rows(len(train) - MEMORY_EVENTS, len(train))
    for k, window in MEMORIES:
        own = replace(settings, k=k, window=window, max_examples=1)
        counted, _ = Transitions.fit(train, own, seed, validation.device, epochs=1)
        scoring, label = validation.scoring(counted, choices=choices), f"trying K {k}, window {window or 'unlimited'}"
        replayed = replay(scoring, queries, filters=validation.filters, progress=progress, label=label)
        found.append(Memory(k, window, max(replayed.metrics("time", c).mrr for c in range(scoring.columns))))
    return found


def fit(
    validation: Validation,
    settings: Settings | None = None,
    *,
    choose_memory: bool = False,
    with_naive: bool = False,
    epochs: int | None = None,
    seed: int = 42,
    progress: Progress = SILENT,
) -> Fitted:
    """Fit on train, choose on validation under the static and the time-aware filter, refit on train + validation.

    choose_memory: whether validation chooses K and window too; otherwise they are those of the settings. with_naive:
    whether naive forecasters rank the same queries in the same pass. epochs: of the reader; the later part of train
    chooses them when left out.
    """
    settings, dataset, device = settings or Settings(), validation.dataset, validation.device
    enough = len(validation.queries) >= FEWEST_QUERIES
    tried = memories(validation, settings, seed=seed, progress=progress) if choose_memory and enough else []
    if tried:
        best = max(tried, key=lambda memory: memory.mrr)  # of equals the first
        settings = replace(settings, k=best.k, window=best.window)
    if not validation.backbone.own_uncertainty and "uncertain" in settings.gates and "entropy" not in settings.gates:
        settings = replace(settings, gates=(*settings.gates, "entropy"))
    began = time.perf_counter()
    train, epoch_choice = Transitions.fit(dataset.train, settings, seed, device, epochs=epochs, progress=progress)
    fitted_after = time.perf_counter() - began
    if not epoch_choice.examples:
        warnings.warn(_nothing_learned(dataset, settings), stacklevel=2)
    if not enough:
        warnings.warn(_too_few(len(validation.queries)), stacklevel=2)
    scoring = validation.scoring(train, choices=grid(settings))
    label = "choosing on validation"
    queries = validation.queries.sample(settings.max_queries, seed)
    name = validation.backbone.name
    rivals = naive_backbones(dataset, device, other_than=name) if with_naive and len(queries) else []
    filters = validation.filters
    replayed = replay(scoring, queries, filters=filters, progress=progress, label=label, rivals=rivals)
    selections = {
        name: replace(select(replayed, name, settings, dataset), memories=[asdict(memory) for memory in tried])
        for name in SELECTION_FILTERS
    }
    began = time.perf_counter()
    known, _ = Transitions.fit(dataset.events, settings, seed, device, epochs=epoch_choice.epochs, progress=progress)
    refitted_after = time.perf_counter() - began
    return Fitted(
        train,
        known,
        epoch_choice.epochs,
        epoch_choice.curve,
        selections,
        fitted_after,
        refitted_after,
        epoch_choice.examples,
        _compared(replayed, selections["time"].choice, [rival.name for rival in rivals], grid(settings)),
    )


def _compared(replayed: Replay, chosen: Choice, rivals: Sequence[str], choices: Sequence[Choice]) -> dict[str, Naive]:
    """Every naive forecaster, whose columns are the last, against what was chosen; all under the time-aware filter."""
    step, made = replayed.queries.step.numpy(), {}
    after = replayed.of("time", 0 if chosen == OFF else 1 + choices.index(chosen))
    for column, name in enumerate(rivals, start=1 + len(choices)):
        gain = paired_gain(replayed.of("time", column), after, step)
        made[name] = Naive(replayed.metrics("time", column).mrr, gain)
    return made


def _too_few(queries: int) -> str:
    return (
        f"validation has {queries} queries, too few to choose a residual on ({FEWEST_QUERIES} at least); forecasts use "
        "the backbone alone."
    )


def _nothing_learned(dataset: Dataset, settings: Settings) -> str:
    """Why there is no transition to learn from, most often because the steps are far shorter than what happens."""
    clock = dataset.events.clock
    apart = f"1 to {settings.window} steps apart" if settings.window else "at different steps"
    instance = ", for instance --step day" if clock.kind == "date" and clock.unit < DAY else ""
    return (
        f"no two events of train between the same parties lie {apart}, so there is no transition to learn from; "
        f"import the events with a longer --step{instance}."
    )


def choose(
    choices: Sequence[Choice], measured: Sequence[Metrics], backbone: Metrics, *, queries: int
) -> tuple[list[bool], int | None]:
    """Which choices are allowed, and where the one to take stands; None where none is, or where queries are too few.

    It is the one with the best MRR among those that lower none of the four metrics. Ties go to the paper's values.
    """
    allowed = [all(getattr(m, name) >= getattr(backbone, name) for name in METRICS) for m in measured]

    def preference(i: int) -> tuple[float, bool, bool, bool]:
        choice = choices[i]
        return (-measured[i].mrr, choice.gate != PAPER.gate, choice.tau != PAPER.tau, choice.lam != PAPER.lam)

    open_ = [i for i, ok in enumerate(allowed) if ok and queries >= FEWEST_QUERIES]
    return allowed, min(open_, key=preference, default=None)


def select(replayed: Replay, filter_name: str, settings: Settings, dataset: Dataset) -> Selection:
    """What `choose` takes on validation. Where no choice is allowed the residual is switched off: lambda 0."""
    choices = grid(settings)
    backbone = replayed.metrics(filter_name)
    measured = [replayed.metrics(filter_name, column + 1) for column in range(len(choices))]
    allowed, best = choose(choices, measured, backbone, queries=len(replayed.queries))
    rows = [
        {**asdict(choice), **m.as_dict(), "allowed": ok}
        for choice, m, ok in zip(choices, measured, allowed, strict=True)
    ]
    choice, chosen = (OFF, backbone) if best is None else (choices[best], measured[best])
    return Selection(
        filter_name,
        choice,
        best is not None,
        backbone,
        chosen,
        rows,
        dataset.name,
        dataset.known.fingerprint,
        len(replayed.queries),
    )

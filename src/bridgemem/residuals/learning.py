"""Learning: the learned residual fitted by cross-entropy on queries whose answers the backbone was not trained on.

One network is fitted without a filter: a forecast knows none, and its softmax is calibrated. Where the time-aware
filter's own network ranks better under it on later validation, that one is fitted too.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.naive import naive_backbones
from bridgemem.config import Count, Declared, Finite, NotNegative, Positive, Range, Size
from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries, sample_rows
from bridgemem.evidence.transitions import Transitions
from bridgemem.progress import SILENT, Progress, Step
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.intervals import beyond, paired_gain
from bridgemem.residuals.cases import CaseReader, Cases, Source, best_scale
from bridgemem.residuals.features import OF_CANDIDATE
from bridgemem.residuals.learned import Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.scoring import Choice, Replay, replay
from bridgemem.residuals.selection import FEWEST_QUERIES
from bridgemem.residuals.validation import Validation, most_steps
from bridgemem.training.captured import DecoupledSteps
from bridgemem.training.checkpoint import seeded

FREE_SHARE = 0.6  # the last share of train that is learned from where the backbone is not trained
LATE_QUERIES = 6_000  # of later validation that residuals are compared on, at most
QUICK_QUERIES = 12_000  # that the networks of the comparison are fitted on, at most
QUICK_EPOCHS = 4
ENOUGH = 60_000  # queries of late train: more of them, from longer ago, gained nothing on later validation
OTHER_ANSWERS = 0.25  # of the queries have other answers at their step where the time-aware filter is worth a network
RISE = 0.25  # the share of the steps in which the learning rate rises

# a backbone of the same kind and settings, trained on the train split of what it is given: on what came before the
# last share of train that the number says
Trains = Callable[[Dataset, float], Backbone]


@dataclass(frozen=True)
class HeldOut(Declared):
    """MRR on the later part of validation under one filter, before the learned residual was fitted on it too.

    learned: as quickly fitted on what came before that part. bridgemem: the paper's as selected; without a filter as
    selected under the time-aware one. gain: of the learned over the paper's, and both ends of its 95 % interval.
    over_backbone: likewise the gain of the better residual over the backbone; empty where it was not measured.
    naive: the MRR of each naive forecaster, and the gain of the better residual over it with both ends.
    """

    queries: Size
    backbone: Finite
    bridgemem: Finite
    learned: Finite
    gain: Annotated[tuple[Finite, ...], Range(ge=3, le=3)]
    naive: dict[str, tuple[Finite, ...]] = field(default_factory=dict)
    over_backbone: tuple[Finite, ...] = ()

    @property
    def above(self) -> str | None:
        """The best naive forecaster among those that are above both residuals by more than a standard error."""
        found = {name: mrr for name, (mrr, value, low, high) in self.naive.items() if beyond((-value, -high, -low))}
        return max(found, key=lambda name: found[name], default=None)

    @property
    def better(self) -> str:
        """What forecasts use unless told otherwise: the residual with the higher MRR, the paper's of equals.

        The paper's was chosen on these very queries, and the other was fitted on fewer than it will be: a gain counts
        however small it is.
        """
        return "learned" if self.gain[0] > 0 else "bridgemem"


@dataclass(frozen=True)
class FitNote(Declared):
    """What is noted of a learned residual's fit: the mean loss of each epoch, and what it was fitted on.

    held_out: by filter, where it is what ranks under that filter.
    """

    epochs: Count
    nll: tuple[float, ...]
    seconds: NotNegative
    parameters: Count
    scale: Positive
    queries: Size
    candidates: Size
    settings: LearnedSettings
    held_out: dict[str, HeldOut] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    """A learned residual, the mean loss of each epoch, how many queries and candidates it saw, and what it cost.

    trial: the network of the comparison, which saw nothing of later validation, and the queries of that part.
    """

    model: Learned
    curve: tuple[float, ...]
    seconds: float
    queries: int
    candidates: int
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    trial: tuple[Learned, Queries] | None = None

    @property
    def note(self) -> FitNote:
        net = self.model.net
        return FitNote(
            epochs=len(self.curve),
            nll=self.curve,
            seconds=self.seconds,
            parameters=sum(p.numel() for p in net.parameters()),
            scale=float(net.scale),
            queries=self.queries,
            candidates=self.candidates,
            settings=self.model.settings,
            held_out=dict(self.held_out),
        )


def learning_of(backbone: Backbone | type[Backbone], asked: LearnedSettings | None = None) -> LearnedSettings:
    """The settings to learn with: as asked for, and what is left at its default as the backbone says."""
    own, plain = asked or LearnedSettings(), LearnedSettings()
    left = {name: said for name, said in backbone.learning.items() if getattr(own, name) == getattr(plain, name)}
    return replace(own, **left)


def serving(fits: Container[str], filter_name: str) -> str | None:
    """Which of the fits ranks under a filter: its own, else the one without a filter."""
    return next((name for name in (filter_name, "raw") if name in fits), None)


def earlier_sources(
    validation: Validation,
    train: Trains,
    settings: LearnedSettings,
    *,
    transitions: Transitions,
    seed: int,
    epochs: int,
    progress: Progress = SILENT,
) -> list[Source]:
    """Queries of late train, the oldest first; backbone and transitions are fitted on what came before each block.

    Blocks are added while they hold fewer queries than are enough, or than are wanted.
    """
    dataset, device = validation.dataset, validation.device
    share, found, wanted = settings.cross_fit or FREE_SHARE, list[Source](), settings.train_queries
    events = dataset.train
    for block in range(1, settings.blocks + 1):
        if settings.train_queries - wanted >= min(ENOUGH, settings.train_queries) or block * share >= 1:
            break
        try:
            split = Dataset.chronological(dataset.name, events, valid=share / (1 - (block - 1) * share), test=0.0)
        except DataError:  # a single step is left
            break
        before, _ = Transitions.fit(split.train, transitions.settings, seed, device, epochs=epochs, progress=progress)
        queries = Queries.sampled(split.valid, wanted, seed, steps=most_steps(dataset.events))
        found.insert(0, Source(queries, train(split, block * share).to(device), before))
        wanted, events = wanted - len(queries), split.train
    return found


def fit_learned(
    validation: Validation,
    transitions: Transitions,
    settings: LearnedSettings | None = None,
    *,
    earlier: Sequence[Source] = (),
    choices: Mapping[str, Choice] | None = None,
    seed: int = 42,
    progress: Progress = SILENT,
) -> dict[str, Fit]:
    """Learned residuals by the filter they were fitted under: "raw", and others as the settings say.

    transitions: fitted on train alone. earlier: queries of late train to learn from too, the oldest first. choices: of
    the paper's residual under each filter, to be measured next to the learned one on later validation; without them
    nothing is.
    The seconds of each fit hold its share of what all have in common.
    """
    settings, began = settings or LearnedSettings(), time.perf_counter()
    cut = late_cut(validation.queries, settings)
    late = validation.queries.take(late_rows(validation.queries, settings, seed))
    if choices is not None and len(late) < FEWEST_QUERIES:
        raise DataError(
            f"later validation has {len(late)} queries, too few to compare residuals on ({FEWEST_QUERIES} at least); "
            "use --residual bridgemem."
        )
    cases = gather(validation, transitions, settings, earlier=earlier, seed=seed, progress=progress)
    wanted: tuple[str, ...] = FILTERS if settings.fitted_under == "each" else ("raw",)
    held: dict[str, HeldOut] = {}
    models: dict[str, Learned] = {}
    if choices is not None:
        early = cases.take(_early(cases, cut, seed))
        other = settings.fitted_under == "auto" and early.touched("time") > OTHER_ANSWERS
        tried = (*wanted, "time") if other else wanted
        quick = replace(settings, epochs=min(QUICK_EPOCHS, settings.epochs))
        models = {name: fit_cases(early, name, quick, seed=seed, progress=progress).model for name in tried}
        del early  # a copy, which the fits below have no room for
        measured = _Compared.of(validation, transitions, models, choices, late, progress)
        if other and measured.own_is_better("time"):
            wanted = (*wanted, "time")
        held = {name: measured.held_out(name, serving(wanted, name) or "raw") for name in FILTERS}
    shared, fits = time.perf_counter() - began, dict[str, Fit]()
    for name in wanted:
        fit = fit_cases(cases, name, settings, seed=seed, progress=progress)
        own = {f: of for f, of in held.items() if serving(wanted, f) == name}
        trial = (models[name], late) if name in models else None
        fits[name] = replace(fit, seconds=fit.seconds + shared / len(wanted), held_out=own, trial=trial)
    return fits


def gather(
    validation: Validation,
    transitions: Transitions,
    settings: LearnedSettings,
    *,
    earlier: Sequence[Source] = (),
    seed: int = 42,
    progress: Progress = SILENT,
) -> Cases:
    """The cases that a fit learns from: of late train where that is given, and of validation."""
    queries, cut = validation.queries, late_cut(validation.queries, settings)
    before = queries.take((queries.step < cut).nonzero().squeeze(1))
    if not len(before) and not earlier:
        raise DataError("validation has a single step, which leaves none to choose on; use --residual bridgemem.")
    # what is compared on later validation knows nothing of it, its scale neither
    known = Source(before, validation.backbone, transitions) if len(before) else earlier[-1]
    scale = best_scale(known.scorer, validation.past, known.queries, seed)
    reader = CaseReader(validation.past, validation.filters, settings.unseen_candidates, scale, seed)
    some = queries.sample(settings.valid_queries, seed)
    sources = [*earlier, Source(some, validation.backbone, transitions)]
    if sum(len(source.queries) for source in sources) < 4:
        raise DataError(f"{validation.dataset.name} has too few queries to learn from; use --residual bridgemem.")
    return Cases.joined([part for source in sources for part in reader.parts(source, progress=progress)])


def late_cut(queries: Queries, settings: LearnedSettings) -> int:
    """The first step of the later part of validation, on which residuals are compared."""
    return math.ceil(float(np.quantile(queries.step.numpy(), settings.fit_share)))


def renewal_split(dataset: Dataset, settings: LearnedSettings) -> Dataset | None:
    """What a backbone is trained on once more: validation but its later part belongs to train, and test is gone.

    None where validation has a single step.
    """
    cut = late_cut(Queries.of(dataset.valid), settings)
    return Dataset(dataset.name, dataset.known, cut) if cut > dataset.valid_start else None


def late_rows(queries: Queries, settings: LearnedSettings, seed: int) -> Tensor:
    """Which of the validation queries residuals are compared on, int64."""
    late = (queries.step >= late_cut(queries, settings)).nonzero().squeeze(1)
    # on no more than are learned from, where few are asked for: over millions of events each is a good part of a fit
    most = min(LATE_QUERIES, max(settings.valid_queries, FEWEST_QUERIES))
    return late[sample_rows(len(late), most, seed)]


def _early(cases: Cases, cut: int, seed: int) -> Tensor:
    """Which of the cases the networks of the comparison are fitted on: a sample of those before the later part."""
    rows = (cases.step < cut).nonzero().squeeze(1)
    draw = np.random.default_rng(seed)
    if len(rows) > QUICK_QUERIES:
        rows = rows[torch.from_numpy(np.sort(draw.choice(len(rows), QUICK_QUERIES, replace=False))).to(rows.device)]
    return rows


@dataclass(frozen=True)
class _Compared:
    """Later validation, ranked by the backbone, the paper's residual as chosen under each filter, and each network.

    columns: of the choices by filter, of the networks by the filter they were fitted under, of naive forecasters.
    """

    replayed: Replay
    chosen: dict[str, int]
    learned: dict[str, int]
    naive: dict[str, int]

    @classmethod
    def of(
        cls,
        validation: Validation,
        transitions: Transitions,
        models: Mapping[str, Learned],
        choices: Mapping[str, Choice],
        late: Queries,
        progress: Progress,
    ) -> _Compared:
        scoring = validation.scoring(transitions, choices=list(choices.values()), learned=list(models.values()))
        label = "comparing the residuals"
        others = naive_backbones(validation.dataset, validation.device, other_than=validation.backbone.name)
        replayed = replay(scoring, late, filters=validation.filters, progress=progress, label=label, rivals=others)
        naive = {scorer.name: scoring.columns + place for place, scorer in enumerate(others)}
        chosen = {name: column for column, name in enumerate(choices, start=1)}
        chosen.setdefault("raw", chosen["time"])
        learned = {name: column for column, name in enumerate(models, start=1 + len(choices))}
        return cls(replayed, chosen, learned, naive)

    def gain(self, filter_name: str, before: int, after: int) -> tuple[float, float, float]:
        ranks = [self.replayed.of(filter_name, column) for column in (before, after)]
        return paired_gain(ranks[0], ranks[1], self.replayed.queries.step.numpy())

    def own_is_better(self, filter_name: str) -> bool:
        """Whether the network that was fitted under a filter ranks better there than the one without a filter."""
        return beyond(self.gain(filter_name, self.learned["raw"], self.learned[filter_name]))

    def held_out(self, filter_name: str, fit: str) -> HeldOut:
        chosen, learned = self.chosen[filter_name], self.learned[fit]
        backbone, bridgemem, own = (self.replayed.metrics(filter_name, c).mrr for c in (0, chosen, learned))
        held = HeldOut(len(self.replayed.queries), backbone, bridgemem, own, self.gain(filter_name, chosen, learned))
        best = learned if held.better == "learned" else chosen
        naive: dict[str, tuple[float, ...]] = {
            name: (self.replayed.metrics(filter_name, column).mrr, *self.gain(filter_name, column, best))
            for name, column in self.naive.items()
        }
        return replace(held, naive=naive, over_backbone=self.gain(filter_name, 0, best))


def fit_cases(
    cases: Cases,
    filter_name: str,
    settings: LearnedSettings,
    *,
    start: Learned | None = None,
    seed: int = 42,
    progress: Progress = SILENT,
) -> Fit:
    """Fit a network under a filter on all cases, for the epochs of the settings; start: a fitted one to go on from."""
    began = time.perf_counter()
    with seeded(seed, cases.own.device):
        training = _Training(cases, filter_name, settings, start)
        label = "fitting the learned residual"
        with progress.task(label, total=settings.epochs * training.batches) as advance:
            curve = tuple(training.epoch(advance) for _ in range(settings.epochs))
    seconds = time.perf_counter() - began
    return Fit(Learned(settings, training.net), curve, seconds, len(cases), len(cases.x))


class _Training:
    """A network being fitted on cases, under one filter; random numbers are torch's own."""

    def __init__(self, cases: Cases, filter_name: str, settings: LearnedSettings, start: Learned | None = None) -> None:
        self.cases, self.settings = cases, settings
        self.rest, device = cases.rest[filter_name], cases.own.device
        if start is None:
            self.net = LearnedNet(cases.n_directed, settings, cases.x.shape[1] - len(OF_CANDIDATE)).to(device)
            self.net.log_scale.fill_(math.log(cases.scale))
            self.net.standardise(cases.of_query, cases.x, settings.without)
        else:
            self.net = copy.deepcopy(start.net)
        of_query, self._own = self.net.columns
        self.of_query = self.net.scaled(cases.of_query, of_query)
        # what a filter removes counts nothing
        self.log_weight = cases.log_weight.masked_fill(cases.removed[filter_name], -torch.inf)
        self.batches = math.ceil(len(cases) / settings.batch)
        parameters = list(self.net.parameters())
        self.steps = DecoupledSteps(parameters, settings.learning_rate, settings.weight_decay, clip=1.0)
        self.taken = 0

    def epoch(self, advance: Step) -> float:
        """The mean loss of one pass over the cases, in a random order."""
        self.net.train()
        self.total = torch.zeros((), device=self.rest.device)
        with self.steps.running():
            for rows in torch.randperm(len(self.cases)).to(self.rest.device).split(self.settings.batch):
                self.steps.learning_rate = self._rate()
                self.steps.take(0, partial(self._loss, rows), stays=False)
                self.taken += 1
                advance(1)
        return float(self.total) / len(self.cases)

    def _rate(self) -> float:
        """One cycle: the learning rate rises to that of the settings, and falls to nothing, each along a cosine."""
        done = self.taken / (self.settings.epochs * self.batches)
        share = done / RISE - 1 if done < RISE else (done - RISE) / (1 - RISE)
        return self.settings.learning_rate * (1 + math.cos(math.pi * share)) / 2

    def _loss(self, rows: Tensor) -> Tensor:
        loss = self.losses(rows).mean()
        self.total += loss.detach() * len(rows)
        return loss

    def losses(self, rows: Tensor) -> Tensor:
        """-log of the answer's share among all candidates that the filter leaves, estimated, for the queries given."""
        c, (row, at, f) = self.cases, self.values(rows)
        own = c.own[rows].index_add(0, row, f * c.is_answer[at])
        logit, rest = f + (c.logit[at] + self.log_weight[at]), self.rest[rows]
        top = rest.scatter_reduce(0, row, logit.detach(), "amax")
        total = (rest - top).exp().index_add(0, row, (logit - top[row]).exp())
        return total.log() + top - own

    def values(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of every candidate of these queries its place in `rows` and among all, int64, and f of it, float32."""
        row, at = self.cases.candidates(rows)
        by_query, weight = self.net.first_layer(self.of_query[rows], self.cases.relation[rows])
        x = self.net.scaled(self.cases.x[at].float(), self._own)
        return row, at, self.net.body[1:](torch.addmm(by_query.index_select(0, row), x, weight)).squeeze(1)

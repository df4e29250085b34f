"""Learning: the learned residual fitted by cross-entropy on validation, which the backbone was not trained on."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from bridgemem.backbones.base import Backbone
from bridgemem.config import Count, Declared, Finite, NotNegative, Positive, Range, Size
from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals.features import NAMES
from bridgemem.residuals.learned import SCALES, Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.scoring import Choice, Scored, replay
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.residuals.validation import Validation
from bridgemem.training.checkpoint import seeded
from bridgemem.training.early_stopping import improving


@dataclass(frozen=True)
class Cases:
    """Queries ready for fitting: the candidates that are read, flat, and all others summed up.

    Of m candidates: x float16 [m, features], log_p float32 and is_answer bool [m], masked: bool [m] for each filter.
    Of n queries: relation, step int64 [n]; start int64 [n + 1]: where its candidates begin; own float32 [n]: log p0 of
    the answer; rest: for each filter float32 [n, scales], log of the summed p0^w of the candidates that are neither
    read nor masked.
    """

    x: Tensor
    log_p: Tensor
    is_answer: Tensor
    masked: dict[str, Tensor]
    relation: Tensor
    step: Tensor
    start: Tensor
    own: Tensor
    rest: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.own)

    @classmethod
    def of(cls, scored: Scored, filters: Filters) -> Cases:
        """The cases of one batch of queries."""
        batch, features = scored.queries, scored.features
        assert batch.answer is not None
        assert features is not None
        log_p = scored.scores.log_p.float().log_softmax(1)
        n, entities = log_p.shape
        row, candidate = features.row, features.candidate
        rows = torch.arange(n + 1, device=log_p.device)
        masked, rest = {}, {}
        for name in SELECTION_FILTERS:
            removed = torch.zeros((n, entities), dtype=torch.bool, device=log_p.device)
            removed[filters.mask(name, batch)] = True
            masked[name] = removed[row, candidate]
            outside = log_p.masked_fill(removed, -torch.inf)
            outside[row, candidate] = -torch.inf
            rest[name] = torch.stack([(outside * s).logsumexp(1) for s in SCALES], dim=1).clamp(min=-1e4)
        return cls(
            x=features.x.half(),
            log_p=log_p[row, candidate],
            is_answer=candidate == batch.answer[row],
            masked=masked,
            relation=batch.relation,
            step=batch.step,
            start=torch.searchsorted(row, rows),
            own=log_p[rows[:-1], batch.answer],
            rest=rest,
        )

    @classmethod
    def joined(cls, parts: list[Cases]) -> Cases:
        sizes = torch.cat([p.start.diff() for p in parts]).cumsum(0)

        def join(name: str) -> Tensor:
            return torch.cat([getattr(p, name) for p in parts])

        def join_each(name: str) -> dict[str, Tensor]:
            return {f: torch.cat([getattr(p, name)[f] for p in parts]) for f in SELECTION_FILTERS}

        return cls(
            join("x"),
            join("log_p"),
            join("is_answer"),
            join_each("masked"),
            join("relation"),
            join("step"),
            torch.cat([sizes.new_zeros(1), sizes]),
            join("own"),
            join_each("rest"),
        )


LEAST_GAIN = 1e-5  # nats by which a later epoch must be better to be chosen
ERRORS = 1.96  # standard errors to either end of a 95 % interval

# a backbone of the same kind and settings, trained on the train split of what it is given
Trains = Callable[[Dataset], Backbone]


@dataclass(frozen=True)
class Slice:
    """Cases to learn from: a validation split, with the transitions that were fitted on its train split alone."""

    validation: Validation
    transitions: Transitions

    def earlier(self, share: float, train: Trains, *, seed: int, epochs: int, progress: Progress = SILENT) -> Slice:
        """The last share of train in place of validation: backbone and transitions are fitted anew on the rest."""
        dataset, device = self.validation.dataset, self.validation.device
        split = Dataset.chronological(dataset.name, dataset.train, valid=share, test=0.0)
        settings = self.transitions.settings
        transitions, _ = Transitions.fit(split.train, settings, seed, device, epochs=epochs, progress=progress)
        return Slice(Validation.of(split, train(split).to(device), device=device), transitions)


def gather(source: Slice, settings: LearnedSettings, *, seed: int = 42, progress: Progress = SILENT) -> Cases:
    """The validation queries as cases; a sample of them where all would be more than memory is meant to hold.

    Masks come from train + validation.
    """
    validation = source.validation
    scoring = validation.scoring(source.transitions, unseen=settings.unseen_candidates)
    queries = _sampled(validation, settings, seed)
    scored = scoring.batches(queries, progress=progress, label="reading features")
    parts = [Cases.of(batch, validation.filters) for batch in scored]
    if sum(map(len, parts)) < 4:
        raise DataError(
            f"{validation.dataset.name} has too few validation queries to learn from; use --residual bridgemem."
        )
    return Cases.joined(parts)


def _sampled(validation: Validation, settings: LearnedSettings, seed: int) -> Queries:
    """The validation queries that are read: all of them, or the sample that memory is meant to hold."""
    queries = validation.queries
    return queries.take(sampled_rows(queries, validation.past, settings, seed))


def sampled_rows(queries: Queries, past: Past, settings: LearnedSettings, seed: int) -> Tensor:
    """Which of the validation queries `_sampled` takes, int64."""
    low, high = past.index.dyads.partner_range(queries.actor.to(past.device))
    pairs = int((high - low).sum()) + settings.unseen_candidates * len(queries)
    if pairs <= settings.max_pairs:
        return torch.arange(len(queries))
    keep = np.random.default_rng(seed).random(len(queries)) < settings.max_pairs / pairs
    return torch.from_numpy(np.flatnonzero(keep))


def later_rows(queries: Queries, past: Past, settings: LearnedSettings, seed: int) -> Tensor:
    """Which of the validation queries `hold_out` compared the residuals on, int64."""
    rows = sampled_rows(queries, past, settings, seed)
    step = queries.step[rows]
    return rows[step >= _cut(step, settings, valid_start=0)]


@dataclass(frozen=True)
class HeldOut(Declared):
    """MRR on the later part of validation under one filter, before the learned residual was fitted on it too.

    learned: as fitted on what came before that part, which chose its epochs. bridgemem: the paper's as selected.
    gain: of the learned over the paper's, and both ends of its 95 % interval.
    """

    queries: Size
    backbone: Finite
    bridgemem: Finite
    learned: Finite
    gain: Annotated[tuple[Finite, ...], Range(ge=3, le=3)]

    @property
    def better(self) -> str:
        """What forecasts use unless told otherwise: the paper's unless the other gains more than a standard error."""
        value, low, _ = self.gain
        return "learned" if value > (value - low) / ERRORS else "bridgemem"


@dataclass(frozen=True)
class FitNote(Declared):
    """What is noted of a learned residual's fit, with the likelihood curve that chose its epochs."""

    epochs: Count
    nll: tuple[float, ...]
    seconds: NotNegative
    parameters: Count
    scale: Positive
    settings: LearnedSettings
    held_out: HeldOut | None = None


@dataclass(frozen=True)
class Fit:
    """A learned residual, the likelihood curve that chose its epochs, and what it cost.

    early: as it was when its epochs were chosen. held_out: how that one did, where it was measured.
    """

    model: Learned
    epochs: int
    curve: tuple[float, ...]
    seconds: float
    early: Learned
    held_out: HeldOut | None = None

    @property
    def note(self) -> FitNote:
        net = self.model.net
        parameters, scale = sum(p.numel() for p in net.parameters()), float(net.scale.detach())
        return FitNote(self.epochs, self.curve, self.seconds, parameters, scale, self.model.settings, self.held_out)


def fit_learned(
    sources: Sequence[Slice],
    settings: LearnedSettings | None = None,
    *,
    seed: int = 42,
    progress: Progress = SILENT,
    choices: Mapping[str, Choice] | None = None,
) -> dict[str, Fit]:
    """A learned residual for each filter; the seconds of each hold its share of the reading they have in common.

    choices: of the paper's residual under each filter, to be measured next to the learned one on what that did not see.
    """
    settings = settings or LearnedSettings()
    began = time.perf_counter()
    cases = Cases.joined([gather(source, settings, seed=seed, progress=progress) for source in sources])
    shared = (time.perf_counter() - began) / len(SELECTION_FILTERS)
    dataset = sources[-1].validation.dataset
    n_directed, start = 2 * dataset.events.n_relations, dataset.valid_start
    fits = {
        name: fit_cases(cases, name, n_directed, settings, seed, progress, shared, start) for name in SELECTION_FILTERS
    }
    if choices is None:
        return fits
    cut = _cut(cases.step, settings, start)
    measured = hold_out(sources[-1], fits, choices=choices, cut=cut, seed=seed, progress=progress)
    return {name: replace(fit, held_out=measured[name]) for name, fit in fits.items()}


def hold_out(
    source: Slice,
    fits: Mapping[str, Fit],
    *,
    choices: Mapping[str, Choice],
    cut: int,
    seed: int = 42,
    progress: Progress = SILENT,
) -> dict[str, HeldOut]:
    """How backbone, bridgemem and early learned residual rank the validation queries from step `cut` on, by filter."""
    validation, early = source.validation, [fit.early for fit in fits.values()]
    queries = _sampled(validation, early[0].settings, seed)
    late = queries.take((queries.step >= cut).nonzero().squeeze(1))
    scoring = validation.scoring(source.transitions, choices=[choices[name] for name in fits], learned=early)
    label = "comparing the residuals"
    read = replay(scoring, late, filters=validation.filters, progress=progress, label=label)
    found = {}
    for place, name in enumerate(fits, start=1):
        ranks = [read.of(name, column) for column in (0, place, len(fits) + place)]
        gain = _gain(ranks[1], ranks[2], late.step.numpy())
        backbone, fixed, learned = (Metrics.of(r).mrr for r in ranks)
        found[name] = HeldOut(len(late), backbone, fixed, learned, gain)
    return found


def _gain(before: np.ndarray, after: np.ndarray, step: np.ndarray) -> tuple[float, float, float]:
    """The gain in MRR with its 95 % interval, by whole steps or by single queries, whichever is wider.

    The later part may be a single step, of which there is nothing to resample. Ranks float64 [n], step int [n].
    """
    by_step, difference = paired_gains(before, after, step)["mrr"], 1 / after - 1 / before
    apart = ERRORS * float(difference.std()) / math.sqrt(len(difference))
    return by_step.value, min(by_step.low, by_step.value - apart), max(by_step.high, by_step.value + apart)


def _cut(step: Tensor, settings: LearnedSettings, valid_start: int) -> int:
    """The first step of the later part of validation, which chooses the epochs, from the steps of the queries [n]."""
    of_validation = step[step >= valid_start].double()
    return math.ceil(float(torch.quantile(of_validation, settings.fit_share)))


def fit_cases(
    cases: Cases,
    filter_name: str,
    n_directed: int,
    settings: LearnedSettings,
    seed: int = 42,
    progress: Progress = SILENT,
    spent: float = 0.0,
    valid_start: int = 0,
) -> Fit:
    """Fit under a filter: the first part in time to fit, the rest to choose the epoch; then all of it, that long.

    valid_start: where validation starts. Its later part chooses, whatever earlier slices are learned from besides.
    """
    began, device = time.perf_counter(), cases.own.device
    cut = _cut(cases.step, settings, valid_start)
    early, late = (cases.step < cut).nonzero().squeeze(1), (cases.step >= cut).nonzero().squeeze(1)
    if not len(early):
        raise DataError("validation has a single step, which leaves none to choose on; use --residual bridgemem.")
    with seeded(seed, device):
        first = _Training(cases, early, filter_name, n_directed, settings, seed)
        epochs, curve, best = _choose_epochs(first, late, progress)
        training = _Training(cases, torch.arange(len(cases), device=device), filter_name, n_directed, settings, seed)
        with progress.task("fitting the learned residual", total=epochs) as advance:
            for _ in range(epochs):
                training.epoch()
                advance(1)
    seconds = spent + time.perf_counter() - began
    return Fit(Learned(settings, training.net), epochs, tuple(curve), seconds, Learned(settings, best))


def _choose_epochs(training: _Training, late: Tensor, progress: Progress) -> tuple[int, list[float], LearnedNet]:
    """The number of epochs after which the later queries were told best, the curve, and the network as it was then."""
    best_epoch, curve, kept, label = 1, [], training.net, "choosing the learned residual's epochs"

    def epoch() -> float:
        training.epoch()
        return training.loss_on(late)

    most, patience = training.settings.max_epochs, training.settings.patience
    tried = improving(epoch, most=most, patience=patience, least_gain=LEAST_GAIN, progress=progress, label=label)
    for number, loss, better in tried:
        curve.append(loss)
        if better:
            best_epoch, kept = number, copy.deepcopy(training.net)
    return best_epoch, curve, kept


class _Training:
    """A network being fitted on some of the cases, under one filter."""

    def __init__(
        self, cases: Cases, rows: Tensor, filter_name: str, n_directed: int, settings: LearnedSettings, seed: int
    ) -> None:
        self.cases, self.rows, self.settings = cases, rows, settings
        self.masked, self.rest = cases.masked[filter_name], cases.rest[filter_name]
        device = rows.device
        torch.manual_seed(seed)
        self.net = LearnedNet(n_directed, settings, cases.x.shape[1] - len(NAMES)).to(device)
        self.scales = torch.tensor(SCALES, device=device)
        self.draw = torch.Generator(device=device).manual_seed(seed)
        self.sizes = cases.start.diff().cpu()
        self.net.standardise((cases.x[self._candidates(*part)[1]] for part in self._batches(rows)), settings.without)
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )

    def epoch(self) -> None:
        self.net.train()
        order = self.rows[torch.randperm(len(self.rows), generator=self.draw, device=self.rows.device)]
        for rows, size in self._batches(order):
            loss = self.losses(rows, size).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()

    @torch.no_grad()
    def loss_on(self, rows: Tensor) -> float:
        self.net.eval()
        return float(torch.cat([self.losses(part, size) for part, size in self._batches(rows)]).mean())

    def _batches(self, rows: Tensor) -> list[tuple[Tensor, int]]:
        """Batches of queries, each with how many candidates it has: known here, so that a device is not waited for."""
        sizes = self.sizes[rows.cpu()].split(self.settings.batch)
        return list(zip(rows.split(self.settings.batch), [int(s.sum()) for s in sizes], strict=True))

    def _candidates(self, rows: Tensor, size: int | None) -> tuple[Tensor, Tensor]:
        """The place in `rows` and the place among all of every candidate of these queries."""
        return expand(self.cases.start[rows], self.cases.start[rows + 1], size)

    def losses(self, rows: Tensor, size: int | None = None) -> Tensor:
        """-log of the answer's share among all candidates that the filter leaves, for the queries given."""
        c = self.cases
        row, at = self._candidates(rows, size)
        w = self.net.scale
        f = self.net(c.x[at], c.relation[rows][row])
        own = (w * c.own[rows]).index_add(0, row, f * c.is_answer[at])
        logit = torch.addcmul(f, w, c.log_p[at]).masked_fill(self.masked[at], -torch.inf)
        rest = self._rest_at(rows, w)
        top = rest.detach().scatter_reduce(0, row, logit.detach(), "amax")
        total = (rest - top).exp().index_add(0, row, (logit - top[row]).exp())
        return total.log() + top - own

    def _rest_at(self, rows: Tensor, w: Tensor) -> Tensor:
        """The tabulated log mass of what is not read at scale w, linear between the two scales around it."""
        upper = torch.searchsorted(self.scales, w.detach()).clamp(1, len(SCALES) - 1)
        low, high = self.scales[upper - 1], self.scales[upper]
        share = (w - low) / (high - low)
        table = self.rest[rows]
        return torch.lerp(table.index_select(1, upper[None] - 1), table.index_select(1, upper[None]), share).squeeze(1)

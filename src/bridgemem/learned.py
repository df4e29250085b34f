"""The learned residual: window, mixture, gate and scale learned together on validation, by cross-entropy.

S(q, c) = w log p0(c|q) + f(features of the pair, relation) for every candidate that the actor ever met, and
w log p0(c|q) for the others. Ranks do not change when a row is divided by w, so this is the backbone's own log score
plus f / w where the pair has a past, and the untouched log score everywhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bridgemem.backbones.base import Backbone, Scores, score_queries
from bridgemem.backbones.history import History
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.filters import Filters
from bridgemem.evaluation.queries import Queries
from bridgemem.evaluation.replay import batch_size
from bridgemem.events.dataset import Dataset
from bridgemem.evidence.features import NAMES, FeatureReader, Features
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.timeline import expand
from bridgemem.progress import SILENT, Progress

# scales at which the mass of the candidates never met is tabulated; between them it is interpolated while fitting
SCALES = tuple(float(s) for s in np.geomspace(0.2, 4.0, 13))


@dataclass(frozen=True)
class LearnedSettings:
    """A small network: tens of thousands of parameters. max_pairs bounds the memory of fitting."""

    hidden: int = 64
    relation_width: int = 16
    dropout: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    batch: int = 256
    max_epochs: int = 30
    patience: int = 4
    fit_share: float = 0.8
    max_pairs: int = 8_000_000

    def __post_init__(self) -> None:
        if min(self.hidden, self.relation_width, self.batch, self.max_epochs, self.patience, self.max_pairs) < 1:
            raise SettingsError("hidden, relation_width, batch, max_epochs, patience and max_pairs must be at least 1.")
        if not 0 < self.fit_share < 1:
            raise SettingsError(f"fit_share must be between 0 and 1, not {self.fit_share}.")


class LearnedNet(nn.Module):
    """f: features and an embedding of the asked relation -> one number; w: the scale of the backbone's log score."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, n_directed: int, settings: LearnedSettings) -> None:
        super().__init__()
        self.relation = nn.Embedding(n_directed, settings.relation_width)
        nn.init.normal_(self.relation.weight, std=0.1)
        width = len(NAMES) + settings.relation_width
        self.body = nn.Sequential(
            nn.Linear(width, settings.hidden),
            nn.GELU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.hidden, settings.hidden),
            nn.GELU(),
            nn.Linear(settings.hidden, 1),
        )
        # f starts at zero: before the first step the learned residual is the backbone
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("mean", torch.zeros(len(NAMES)))
        self.register_buffer("deviation", torch.ones(len(NAMES)))

    def forward(self, x: Tensor, relation: Tensor) -> Tensor:
        """x float32 [m, features] as read, relation int64 [m] directed -> f [m]."""
        scaled = ((x - self.mean) / self.deviation).clamp(-8, 8)
        return self.body(torch.cat([scaled, self.relation(relation)], dim=1)).squeeze(1)

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp().clamp(SCALES[0], SCALES[-1])


class Learned:
    """A fitted learned residual for one filter."""

    def __init__(self, settings: LearnedSettings, net: LearnedNet, transitions: Transitions) -> None:
        self.settings, self.net, self.transitions = settings, net.eval(), transitions

    def reader(self, past: History) -> FeatureReader:
        return FeatureReader(past, self.transitions)

    @torch.no_grad()
    def correction(self, features: Features, relation: Tensor) -> Tensor:
        """f / w of every met candidate, float64 [m]; relation int64 [m] is the one its query asks."""
        return (self.net(features.x, relation) / self.net.scale).double()

    def with_transitions(self, transitions: Transitions) -> Learned:
        """The same network reading counts of a longer prefix."""
        return Learned(self.settings, self.net, transitions)

    def to(self, device: str | torch.device) -> Learned:
        return Learned(self.settings, self.net.to(device), self.transitions.to(device))

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.net.state_dict().items()}

    @classmethod
    def restore(cls, settings: LearnedSettings, tensors: dict[str, Tensor], transitions: Transitions) -> Self:
        net = LearnedNet(len(tensors["relation.weight"]), settings)
        net.load_state_dict(tensors)
        return cls(settings, net, transitions)


@dataclass(frozen=True)
class _Cases:
    """Queries ready for fitting: met candidates flat, and all else summed up.

    start int64 [n + 1]: where each query's candidates begin; log_p, masked, is_answer [m]; rest float32 [n, scales]:
    log of the summed p0^w over the candidates never met and not masked; own float32 [n]: log p0 of the answer.
    """

    x: Tensor
    relation: Tensor
    log_p: Tensor
    masked: Tensor
    is_answer: Tensor
    start: Tensor
    rest: Tensor
    own: Tensor
    step: Tensor

    def __len__(self) -> int:
        return len(self.own)


def fit_learned(
    dataset: Dataset,
    backbone: Backbone,
    transitions: Transitions,
    filter_name: str,
    settings: LearnedSettings | None = None,
    seed: int = 42,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> tuple[Learned, dict[str, Any]]:
    """Fit on validation, which the backbone never saw: its first part in time to fit, the rest to choose the epoch.

    The chosen number of epochs is then run again on the whole of validation. Masks come from train + validation.
    """
    settings = settings or LearnedSettings()
    dataset = dataset.without_test()
    cases = _gather(dataset, backbone, transitions, filter_name, settings, seed, device, progress)
    if len(cases) < 4:
        raise DataError(f"{dataset.name} has too few validation queries to learn from; use --method fixed.")
    cut = torch.quantile(cases.step.double(), settings.fit_share)
    early, late = (cases.step < cut).nonzero().squeeze(1), (cases.step >= cut).nonzero().squeeze(1)
    if not len(early):
        raise DataError(f"{dataset.name} has a single step of validation; use --method fixed.")
    n_relations = dataset.events.n_relations
    # dropout draws from the global generator: it is lent the seed, and given back as it was
    with torch.random.fork_rng(devices=[torch.device(device)] if device.startswith("cuda") else []):
        training = _Training(cases, early, n_relations, settings, seed, device)
        epochs, curve = _choose_epochs(training, late, progress)
        training = _Training(cases, torch.arange(len(cases), device=device), n_relations, settings, seed, device)
        with progress.task("fitting the learned residual", total=epochs) as advance:
            for _ in range(epochs):
                training.epoch()
                advance(1)
    model = Learned(settings, training.net, transitions)
    size = sum(p.numel() for p in training.net.parameters())
    return model, {"epochs": epochs, "nll": curve, "parameters": size, "scale": float(training.net.scale.detach())}


def _choose_epochs(training: _Training, late: Tensor, progress: Progress) -> tuple[int, list[float]]:
    """The number of epochs after which the later queries were told best, and the curve that says so."""
    settings = training.settings
    best, best_epoch, curve = math.inf, 1, []
    with progress.task("choosing the learned residual's epochs", total=settings.max_epochs) as advance:
        for epoch in range(1, settings.max_epochs + 1):
            training.epoch()
            curve.append(training.loss_on(late))
            advance(1, note=f"nll {curve[-1]:.4f}")
            if curve[-1] < best - 1e-5:
                best, best_epoch = curve[-1], epoch
            elif epoch - best_epoch >= settings.patience:
                break
    return best_epoch, curve


class _Training:
    """A network being fitted on some of the cases."""

    def __init__(
        self, cases: _Cases, rows: Tensor, n_relations: int, settings: LearnedSettings, seed: int, device: str
    ) -> None:
        self.cases, self.rows, self.settings = cases, rows, settings
        torch.manual_seed(seed)
        self.net = LearnedNet(2 * n_relations, settings).to(device)
        self.net.mean, self.net.deviation = cases.x.mean(0), cases.x.std(0).clamp(min=1e-3)
        self.draw = torch.Generator(device=device).manual_seed(seed)
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def epoch(self) -> None:
        self.net.train()
        order = self.rows[torch.randperm(len(self.rows), generator=self.draw, device=self.rows.device)]
        for rows in order.split(self.settings.batch):
            loss = self._losses(rows).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()

    @torch.no_grad()
    def loss_on(self, rows: Tensor) -> float:
        self.net.eval()
        return float(torch.cat([self._losses(part) for part in rows.split(self.settings.batch)]).mean())

    def _losses(self, rows: Tensor) -> Tensor:
        """-log of the answer's share among all candidates that the filter leaves, for the queries given."""
        c = self.cases
        row, at = expand(c.start[rows], c.start[rows + 1])
        w = self.net.scale
        logit = w * c.log_p[at] + self.net(c.x[at], c.relation[rows][row])
        own = w * c.own[rows]
        answer = c.is_answer[at]
        own = own.index_add(0, row[answer], logit[answer] - w * c.log_p[at][answer])
        logit = logit.masked_fill(c.masked[at], -torch.inf)
        rest = _interpolate(c.rest[rows], w)
        top = rest.detach().scatter_reduce(0, row, logit.detach(), "amax")
        total = (rest - top).exp().index_add(0, row, (logit - top[row]).exp())
        return total.log() + top - own


def _interpolate(table: Tensor, w: Tensor) -> Tensor:
    """The tabulated log mass [n, scales] at scale w, linear between the two scales around it."""
    scales = torch.tensor(SCALES, device=table.device)
    upper = int(torch.searchsorted(scales, w.detach()).clamp(1, len(SCALES) - 1))
    share = (w - scales[upper - 1]) / (scales[upper] - scales[upper - 1])
    return table[:, upper - 1] * (1 - share) + table[:, upper] * share


def _gather(
    dataset: Dataset,
    backbone: Backbone,
    transitions: Transitions,
    filter_name: str,
    settings: LearnedSettings,
    seed: int,
    device: str,
    progress: Progress,
) -> _Cases:
    """The validation queries as cases; a sample of them where all would be more than memory is meant to hold."""
    past, filters = History(dataset.events, device=device), Filters(dataset.events, device)
    reader = FeatureReader(past, transitions)
    queries = Queries.of(dataset.valid)
    low, high = past.dyads.partner_range(queries.actor.to(past.device))
    pairs = int((high - low).sum())
    if pairs > settings.max_pairs:
        keep = np.random.default_rng(seed).random(len(queries)) < settings.max_pairs / pairs
        queries = queries.take(torch.from_numpy(np.flatnonzero(keep)))
    parts: list[_Cases] = []
    with progress.task("reading features", total=len(queries)) as advance:
        for part in queries.batches(batch_size(dataset.events.n_entities, past.device)):
            batch = part.to(device)
            scores = score_queries(backbone, batch, past)
            parts.append(_cases(batch, scores, reader.read(batch, scores), filters.mask(filter_name, batch)))
            advance(len(part))
    start = torch.cat([p.start[1:] - p.start[:-1] for p in parts]).cumsum(0)
    joined = {
        name: torch.cat([getattr(p, name) for p in parts]) for name in _Cases.__dataclass_fields__ if name != "start"
    }
    return _Cases(**joined, start=torch.cat([start.new_zeros(1), start]))


def _cases(batch: Queries, scores: Scores, features: Features, mask: tuple[Tensor, Tensor]) -> _Cases:
    assert batch.answer is not None
    n, entities = scores.log_p.shape
    log_p = scores.log_p.float()
    log_p = log_p - log_p.logsumexp(1, keepdim=True)
    row, candidate = features.row, features.candidate
    masked = torch.zeros((n, entities), dtype=torch.bool, device=log_p.device)
    masked[mask] = True
    met_masked = masked[row, candidate]
    outside = log_p.masked_fill(masked, -torch.inf)
    outside[row, candidate] = -torch.inf
    rest = torch.stack([(outside * s).logsumexp(1) for s in SCALES], dim=1).clamp(min=-1e4)
    rows = torch.arange(n, device=log_p.device)
    return _Cases(
        x=features.x,
        relation=batch.relation,
        log_p=log_p[row, candidate],
        masked=met_masked,
        is_answer=candidate == batch.answer[row],
        start=torch.searchsorted(row, torch.arange(n + 1, device=log_p.device)),
        rest=rest,
        own=log_p[rows, batch.answer],
        step=batch.step,
    )

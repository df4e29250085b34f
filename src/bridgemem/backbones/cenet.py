"""CENET (Xu et al., AAAI 2023): two scorers with opposite history bias, a contrastive query, and a history oracle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Backbone, Scores
from bridgemem.backbones.history import History, Occurrences
from bridgemem.config import MOST_UNITS, as_settings
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.queries import Queries
from bridgemem.events.dataset import Dataset
from bridgemem.progress import SILENT, Progress
from bridgemem.residual import log_base


@dataclass(frozen=True)
class CenetSettings:
    """second_bias "released" adds the raw count where the triple recurred, "described" takes the bias away there.

    mask "soft" weighs trusted against untrusted candidates e : 1, "hard" takes the untrusted out.
    """

    width: int = 200
    alpha: float = 0.2
    history_bias: float = 2.0
    second_bias: str = "released"
    mask: str = "soft"
    dropout: float = 0.5
    batch: int = 1024
    epochs: int = 30
    oracle_epochs: int = 20
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    clip: float = 1.0
    oracle_l1: float = 0.01

    def __post_init__(self) -> None:
        if self.second_bias not in ("released", "described"):
            raise SettingsError(f"second_bias must be released or described, not {self.second_bias!r}.")
        if self.mask not in ("soft", "hard"):
            raise SettingsError(f"mask must be soft or hard, not {self.mask!r}.")
        if min(self.width, self.epochs, self.oracle_epochs) < 1:
            raise SettingsError("width, epochs and oracle_epochs must be at least 1.")
        if self.width > MOST_UNITS:
            raise SettingsError(f"width must be at most {MOST_UNITS}, not {self.width}.")
        if self.batch < 2:
            raise SettingsError(f"batch must be at least 2, since facts are normalised together, not {self.batch}.")
        # written so that NaN, which no comparison holds for, is refused too
        if not (0 < self.learning_rate < math.inf and 0 < self.clip < math.inf):
            raise SettingsError("learning_rate and clip must be finite numbers above 0.")
        if not (0 <= self.weight_decay < math.inf and 0 <= self.oracle_l1 < math.inf):
            raise SettingsError("weight_decay and oracle_l1 must be finite and not negative.")
        if not math.isfinite(self.history_bias):
            raise SettingsError(f"history_bias must be a finite number, not {self.history_bias}.")
        if not (0 <= self.alpha <= 1 and 0 <= self.dropout < 1):
            raise SettingsError("alpha must be between 0 and 1, and dropout at least 0 and below 1.")


class CenetNet(nn.Module):
    """The network. A query is (actor, directed relation) with the sparse past of that very pair of ids."""

    def __init__(self, n_entities: int, n_relations: int, settings: CenetSettings) -> None:
        super().__init__()
        d, self.settings, self.n_relations = settings.width, settings, n_relations
        gain = math.sqrt(2)
        self.entity = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_entities, d), gain))
        self.relation = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * n_relations, d), gain))
        # the two scorers of object queries, then those of subject queries
        self.scorers = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(4))
        self.frequency = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_entities, d), gain))
        self.frequency_bias = nn.Parameter(torch.empty(d).uniform_(-1, 1) / math.sqrt(n_entities))
        self.contrast = nn.Linear(3 * d, d)
        self.oracle = nn.Sequential(
            nn.Linear(3 * d, 3 * d), nn.BatchNorm1d(3 * d), nn.Dropout(0.4), nn.LeakyReLU(0.2), nn.Linear(3 * d, 1)
        )
        for layer in (*self.scorers, self.oracle[0], self.oracle[4]):
            nn.init.xavier_uniform_(layer.weight, gain)

    def logits(self, actor: Tensor, relation: Tensor, past: Occurrences) -> tuple[Tensor, Tensor]:
        """The two scorers' logits with their history bias, [n, E] each, up to a constant per row."""
        x = self.pair(actor, relation)
        is_object_query = (relation < self.n_relations)[:, None]
        bias = self.settings.history_bias
        at = past.row * len(self.entity) + past.candidate
        # only differences inside a row matter: what "elsewhere" gets is moved over to the recurring candidates
        count = past.count.to(x.dtype)
        first = torch.full_like(count, 2 * bias)
        second = count - bias if self.settings.second_bias == "released" else -first
        both = []
        for scorer, extra in ((0, first), (1, second)):
            dropped = F.dropout(x, self.settings.dropout, self.training)
            query = torch.where(is_object_query, self.scorers[scorer](dropped), self.scorers[scorer + 2](dropped))
            scores = query.tanh() @ self.entity.T
            scores.view(-1).scatter_add_(0, at, extra)
            both.append(scores)
        return both[0], both[1]

    def frequency_feature(self, n: int, past: Occurrences) -> Tensor:
        """f = tanh(W softmax(counts over all entities) + b), [n, d], without ever making the counts dense."""
        count = past.count.to(self.frequency.dtype)
        top = count.new_zeros(n).scatter_reduce_(0, past.row, count, "amax")
        # softmax gives every entity e^-top, and a recurring one e^(count - top): the difference is the sparse part
        floor = (-top).exp()
        extra = (count - top[past.row]).exp() - floor[past.row]
        total = (floor * len(self.frequency)).index_add(0, past.row, extra)
        everywhere = floor[:, None] * self.frequency.sum(0)
        recurring = F.embedding(past.candidate, self.frequency) * extra[:, None]
        pooled = everywhere.index_add(0, past.row, recurring) / total[:, None]
        return torch.tanh(pooled + self.frequency_bias)

    def pair(self, actor: Tensor, relation: Tensor) -> Tensor:
        """The vectors of actor and relation, [n, 2d]."""
        # the values of plain indexing, whose gradient costs a device far more than an embedding's
        return torch.cat([F.embedding(actor, self.entity), F.embedding(relation, self.relation)], dim=1)

    def query(self, actor: Tensor, relation: Tensor, frequency: Tensor) -> Tensor:
        return torch.cat([self.pair(actor, relation), frequency], dim=1)


def nce_loss(first: Tensor, second: Tensor, answer: Tensor) -> Tensor:
    """- mean log(softmax1 + softmax2)[answer]."""
    rows = torch.arange(len(answer), device=answer.device)
    log_p = [scores[rows, answer] - scores.logsumexp(1) for scores in (first, second)]
    return -torch.logaddexp(*log_p).mean()


def contrastive_loss(v: Tensor, label: Tensor) -> Tensor:
    """Supervised contrastive loss of the queries' labels, v [..., n, d], label bool [..., n] -> [...].

    It is zero where a class has a single member, which has nothing to be like.
    """
    n = v.shape[-2]
    if n < 2:
        return v.new_zeros(v.shape[:-2])
    d = v @ v.transpose(-1, -2)
    e = (d - d.amax(dim=-1, keepdim=True).detach()).exp() + 1e-5
    others = ~torch.eye(n, dtype=torch.bool, device=v.device)
    log_share = e.log() - (e * others).sum(-1, keepdim=True).log()
    alike = (label.unsqueeze(-1) == label.unsqueeze(-2)) & others
    each = -(log_share * alike).sum(-1) / alike.sum(-1).clamp(min=1)
    positive = label.sum(-1)
    lonely = (positive == 1) | (positive == n - 1)
    return torch.where(lonely, 0.0, each.mean(-1))


def recurring(train: Queries, n_relations: int, n_entities: int) -> Tensor:
    """Label y of each train query, bool [n]: did the actor meet the answer before, in this role, under any relation."""
    assert train.answer is not None
    role = (train.relation >= n_relations).long()
    key = ((train.actor * 2 + role) * n_entities + train.answer).numpy()
    _, group = np.unique(key, return_inverse=True)
    first = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group, train.step.numpy())
    return torch.from_numpy(train.step.numpy() > first[group])


class _Trainer:
    """Both stages of training over the train split in file order, its past read from the same split."""

    def __init__(self, net: CenetNet, dataset: Dataset, device: str) -> None:
        self.net, self.settings = net, net.settings
        train = Queries.of(dataset.train)
        self.label = recurring(train, dataset.events.n_relations, dataset.events.n_entities).to(device)
        self.train = train.to(device)
        self.past = History(dataset.train, device=device)
        self.start, self.stop = self.past.occurrence_slices(self.train.actor, self.train.relation, self.train.step)
        self.read_before = torch.cat([self.start.new_zeros(1), (self.stop - self.start).cumsum(0)]).cpu().tolist()

    def batches(self) -> Iterator[slice]:
        """Slices of queries: two a fact, `batch` facts at a time, a last single fact joined to the batch before."""
        n, size = len(self.train), 2 * self.settings.batch
        bounds = [*range(0, n, size), n]
        if len(bounds) > 2 and bounds[-1] - bounds[-2] == 2:
            del bounds[-2]
        return (slice(low, high) for low, high in itertools.pairwise(bounds))

    def occurrences(self, part: slice) -> Occurrences:
        size = self.read_before[part.stop] - self.read_before[part.start]
        return self.past.occurrences_in(self.start[part], self.stop[part], self.train.step[part], size)

    def optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        s = self.settings
        fused = self.train.actor.is_cuda or None
        return torch.optim.Adam(parameters, lr=s.learning_rate, weight_decay=s.weight_decay, fused=fused)

    def stage_one(self, progress: Progress) -> None:
        """Scorers and contrastive query; every other row of a batch is an object query, the rest subject queries."""
        net, s = self.net.train(), self.settings
        optimizer = self.optimizer(net.parameters())
        with progress.task("training CENET", total=s.epochs * len(list(self.batches()))) as advance:
            for _ in range(s.epochs):
                for part in self.batches():
                    q, label, past = self.train.take(part), self.label[part], self.occurrences(part)
                    assert q.answer is not None
                    # the two directions have equally many rows, so one mean is the mean of their two means
                    nce = nce_loss(*net.logits(q.actor, q.relation, past), q.answer)
                    v = net.contrast(net.query(q.actor, q.relation, net.frequency_feature(len(q), past)))
                    by_side = v.view(-1, 2, v.shape[1]).transpose(0, 1), label.view(-1, 2).T
                    contrast = contrastive_loss(*by_side).mean()
                    optimizer.zero_grad(set_to_none=True)
                    (s.alpha * nce + (1 - s.alpha) * contrast).backward()
                    nn.utils.clip_grad_norm_(net.parameters(), s.clip)
                    optimizer.step()
                    advance(1)

    def stage_two(self, progress: Progress) -> None:
        """The oracle alone; what it reads does not change any more, so it is computed once."""
        net, s = self.net.eval(), self.settings
        with torch.no_grad():
            features = torch.cat(
                [net.frequency_feature(part.stop - part.start, self.occurrences(part)) for part in self.batches()]
            )
        oracle = net.oracle.train()
        optimizer = self.optimizer(oracle.parameters())
        with progress.task("training CENET's oracle", total=s.oracle_epochs * len(list(self.batches()))) as advance:
            for _ in range(s.oracle_epochs):
                for part in self.batches():
                    q, label = self.train.take(part), self.label[part].to(features.dtype)
                    with torch.no_grad():
                        x = net.query(q.actor, q.relation, features[part])
                    guess = [oracle(x[side::2]).squeeze(1) for side in (0, 1)]
                    fit = [F.binary_cross_entropy_with_logits(guess[side], label[side::2]) for side in (0, 1)]
                    size = sum(p.abs().sum() for p in oracle.parameters())
                    optimizer.zero_grad(set_to_none=True)
                    ((fit[0] + fit[1]) / 2 + s.oracle_l1 * size).backward()
                    nn.utils.clip_grad_norm_(oracle.parameters(), s.clip)
                    optimizer.step()
                    advance(1)
        net.eval()


class Cenet(Backbone):
    """CENET as released, with sparse history; the log of p0 and the oracle's probability as uncertainty."""

    name: ClassVar[str] = "cenet"
    default: ClassVar[CenetSettings] = CenetSettings()

    def __init__(self, settings: CenetSettings, net: CenetNet) -> None:
        self.settings = settings
        self.net = net.eval()

    @classmethod
    def fit(
        cls, dataset: Dataset, settings: Any = None, seed: int = 42, device: str = "cpu", progress: Progress = SILENT
    ) -> Self:
        settings = settings or cls.default
        if len(dataset.train) < 2:
            raise DataError(
                f"CENET needs at least two facts to train on, and the train split of {dataset.name} has "
                f"{len(dataset.train)}: give more events, or a smaller share to validation and test."
            )
        devices = [torch.device(device)] if device.startswith("cuda") else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            net = CenetNet(dataset.events.n_entities, dataset.events.n_relations, settings).to(device)
            trainer = _Trainer(net, dataset, device)
            trainer.stage_one(progress)
            trainer.stage_two(progress)
        return cls(settings, net)

    @torch.no_grad()
    def score(self, queries: Queries, past: History) -> Scores:
        net, n, entities = self.net, len(queries), len(self.net.entity)
        seen = past.occurrences(queries.actor, queries.relation, queries.step)
        first, second = net.logits(queries.actor, queries.relation, seen)
        p = first.softmax(1) + second.softmax(1)
        x = net.query(queries.actor, queries.relation, net.frequency_feature(n, seen))
        u = net.oracle(x).squeeze(1).sigmoid()
        trusted = torch.zeros((n, entities), dtype=torch.bool, device=p.device)
        trusted[past.met_in_role(queries.actor, queries.relation, queries.step)] = True
        # an oracle that expects something new trusts the candidates never met
        trusted ^= (u <= 0.5)[:, None]
        mask = trusted.to(p.dtype)
        if self.settings.mask == "soft":
            mask = mask.softmax(1)
        return Scores(log_base(p * mask), u)

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.net.state_dict().items()}

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        own = as_settings(CenetSettings, settings, "cenet")
        # nothing is allocated or drawn before the weights are known to fit
        with torch.device("meta"):
            net = CenetNet(len(tensors["entity"]), len(tensors["relation"]) // 2, own)
        # cloned, since memory that maps a file is not aligned as torch aligns its own, which can move a last bit
        net.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
        return cls(own, net.float())

    def to(self, device: str) -> Self:
        return type(self)(self.settings, self.net.to(device))

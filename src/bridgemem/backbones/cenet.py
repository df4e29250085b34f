"""CENET (Xu et al., AAAI 2023): two scorers with opposite history bias, a contrastive query, and a history oracle."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Bounds, Grid, NetBackbone
from bridgemem.backbones.scorer import Scores
from bridgemem.backbones.two_scorers import piecewise_loss
from bridgemem.config import BelowOne, Count, Declared, Finite, NotNegative, Positive, Range, Share, Units
from bridgemem.equations import log_base
from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.index import Index, Occurrences
from bridgemem.memory.past import Past
from bridgemem.progress import Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.captured import Steps
from bridgemem.training.checkpoint import Checkpoint, Training

HOST_ROOM = 2**29  # bytes of ordinary memory for what training reads again in every epoch


@dataclass(frozen=True)
class CenetSettings(Declared):
    """second_bias "released" adds the raw count where the triple recurred, "described" takes the bias away there.

    mask "soft" weighs trusted against untrusted candidates e : 1, "hard" takes the untrusted out.
    """

    width: Units = 200
    alpha: Share = 0.2
    history_bias: Finite = 2.0
    second_bias: Literal["released", "described"] = "released"
    mask: Literal["soft", "hard"] = "soft"
    dropout: BelowOne = 0.5
    batch: Annotated[int, Range(ge=2, note="since facts are normalised together")] = 1024
    epochs: Count = 30
    oracle_epochs: Count = 20
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 1e-5
    clip: Positive = 1.0
    oracle_l1: NotNegative = 0.01


@dataclass(frozen=True)
class _QueryPast:
    """What the network reads of the past of n queries; it has no gradient and is the same in every epoch.

    at int64 [m]: the place of each recurring candidate in a flat [n, E]; candidate int32 [m]; count float [m];
    excess float [m]: by how much its softmax over the counts exceeds that of an entity without a past;
    first int32 [n]: where a query's candidates begin; floor float [n]: that softmax of an entity without a past.
    """

    at: Tensor
    candidate: Tensor
    count: Tensor
    excess: Tensor
    first: Tensor
    floor: Tensor

    @classmethod
    def of(cls, seen: Occurrences, n: int, n_entities: int, dtype: torch.dtype = torch.float32) -> _QueryPast:
        count, row = seen.count.to(dtype), seen.row
        top = count.new_zeros(n).scatter_reduce_(0, row, count, "amax")
        # softmax gives every entity e^-top, and a recurring one e^(count - top): the difference is the sparse part
        floor = (-top).exp()
        excess = (count - top[row]).exp() - floor[row]
        total = (floor * n_entities).index_add_(0, row, excess)
        # ordered by row, so the candidates of a query begin after all those of the queries before
        first = torch.searchsorted(row, torch.arange(n, device=row.device), out_int32=True)
        at = row * n_entities + seen.candidate
        return cls(at, seen.candidate.int(), count, excess / total[row], first, floor / total)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values())


class CenetNet(nn.Module):
    """The network. A query is (actor, directed relation) with the sparse past of that very pair of ids."""

    def __init__(self, n_entities: int, n_relations: int, settings: CenetSettings) -> None:
        super().__init__()
        d, self.settings, self.n_relations = settings.width, settings, n_relations
        gain = math.sqrt(2)
        self.entity = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_entities, d), gain))
        self.relation = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * n_relations, d), gain))
        # [scorer, in, (object queries, subject queries) x out]: a linear layer for each scorer and role, side by side
        scorers = torch.empty(2, 2 * d, 2 * d)
        for scorer, role in itertools.product(range(2), range(2)):
            nn.init.xavier_uniform_(scorers[scorer, :, role * d : (role + 1) * d], gain)
        self.scorers = nn.Parameter(scorers)
        self.scorers_bias = nn.Parameter(torch.empty(2, 1, 2 * d).uniform_(-1, 1) / math.sqrt(2 * d))
        self.frequency = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_entities, d), gain))
        self.frequency_bias = nn.Parameter(torch.empty(d).uniform_(-1, 1) / math.sqrt(n_entities))
        self.contrast = nn.Linear(3 * d, d)
        inner, outer = nn.Linear(3 * d, 3 * d), nn.Linear(3 * d, 1)
        for layer in (inner, outer):
            nn.init.xavier_uniform_(layer.weight, gain)
        self.oracle = nn.Sequential(inner, nn.BatchNorm1d(3 * d), nn.Dropout(0.4), nn.LeakyReLU(0.2), outer)

    def past(self, seen: Occurrences, n: int) -> _QueryPast:
        return _QueryPast.of(seen, n, len(self.entity), self.entity.dtype)

    def pair(self, actor: Tensor, relation: Tensor) -> Tensor:
        """The vectors of actor and relation, [n, 2d]."""
        # the values of plain indexing, whose gradient costs a device far more than an embedding's
        return torch.cat([F.embedding(actor, self.entity), F.embedding(relation, self.relation)], dim=1)

    def logits(self, pair: Tensor, is_object_query: Tensor, past: _QueryPast) -> Tensor:
        """Both scorers' logits with their history bias, one after the other, [2n, E], up to a constant per row.

        pair [n, 2d] as `pair` gives it; is_object_query bool [n, 1].
        """
        scores = self.queries(pair, is_object_query).flatten(0, 1) @ self.entity.T
        # a constant has no gradient: past autograd, which would copy the gradient of all scores for it
        for flat, extra in zip(scores.detach().view(2, -1).unbind(), self.history_biases(past), strict=True):
            flat.scatter_add_(0, past.at, extra)
        return scores

    def queries(self, pair: Tensor, is_object_query: Tensor) -> Tensor:
        """What each scorer asks the entities for, [2, n, d]."""
        n, width = pair.shape
        # each scorer drops units of its own
        dropped = F.dropout(pair.expand(2, n, width), self.settings.dropout, self.training)
        as_object, as_subject = torch.baddbmm(self.scorers_bias, dropped, self.scorers).view(2, n, 2, -1).unbind(2)
        return torch.where(is_object_query, as_object, as_subject).tanh()

    def history_biases(self, past: _QueryPast) -> tuple[Tensor, Tensor]:
        """What each scorer adds to the recurring candidates, float [m] each.

        Only differences inside a row matter: what "elsewhere" gets is moved over to them.
        """
        s = self.settings
        first = past.count.new_full((), 2 * s.history_bias).expand_as(past.count)
        return first, past.count - s.history_bias if s.second_bias == "released" else -first

    def frequency_feature(self, past: _QueryPast) -> Tensor:
        """f = tanh(W softmax(counts over all entities) + b), [n, d], without ever making the counts dense."""
        recurring = F.embedding_bag(
            past.candidate, self.frequency, past.first, mode="sum", per_sample_weights=past.excess
        )
        return torch.tanh(torch.addr(recurring, past.floor, self.frequency.sum(0)) + self.frequency_bias)

    def oracle_by_side(self, x: Tensor) -> Tensor:
        """The oracle's logits [n] of x [n, 3d]: all object queries, then as many subject queries, normalised apart."""
        linear, norm, *rest = self.oracle
        x = torch.cat([norm(side) for side in linear(x).chunk(2)])
        for layer in rest:
            x = layer(x)
        return x.squeeze(1)


def nce_loss(scores: Tensor, answers: Tensor) -> Tensor:
    """- mean log(softmax1 + softmax2)[answer]; scores [2n, E] and answers int64 [2n] of one scorer, then the other."""
    first, second = F.cross_entropy(scores, answers, reduction="none").view(2, -1)
    # -log(e^-a + e^-b), in as few operations as there are
    return (first + F.logsigmoid(second - first)).mean()


def likeness(label: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What each query's mean over those of its label weighs in the loss, float [..., n], of labels bool [..., n].

    It is zero where a class has a single member, which has nothing to be like.
    """
    n, positive = label.shape[-1], label.sum(-1, keepdim=True)
    alike = torch.where(label, positive, n - positive) - 1
    lonely = (positive == 1) | (positive == n - 1)
    return torch.where(lonely, 0.0, 1 / (n * alike.clamp(min=1).to(dtype)))


def contrastive_loss(v: Tensor, label: Tensor, weight: Tensor, others: Tensor) -> Tensor:
    """Supervised contrastive loss of the queries' labels -> [...].

    v [..., n, d], n at least 2; label bool [..., n]; weight: its `likeness`; others bool [n, n]: all but the diagonal.
    """
    d = v @ v.transpose(-1, -2)
    e = (d - d.detach().amax(dim=-1, keepdim=True)).exp() + 1e-5
    log_share = e.log() - (e * others).sum(-1, keepdim=True).log()
    alike = (label.unsqueeze(-1) == label.unsqueeze(-2)) & others
    return -((log_share * alike).sum(-1) * weight).sum(-1)


def recurring(train: Queries, n_relations: int, n_entities: int) -> Tensor:
    """Label y of each train query, bool [n]: did the actor meet the answer before, in this role, under any relation."""
    assert train.answer is not None
    role = (train.relation >= n_relations).long()
    key = ((train.actor * 2 + role) * n_entities + train.answer).numpy()
    _, group = np.unique(key, return_inverse=True)
    first = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, group, train.step.numpy())
    return torch.from_numpy(train.step.numpy() > first[group])


@dataclass(frozen=True)
class _Batch:
    """The rows `part` of the train queries, two a fact, and what training reads of them besides their past.

    actor, relation int64 [n]; is_object_query bool [n, 1]; answers int64 [2n], once for each scorer;
    label bool [2, n / 2], of the object queries and of the subject queries; weight: its `likeness`.
    """

    part: slice
    actor: Tensor
    relation: Tensor
    is_object_query: Tensor
    answers: Tensor
    label: Tensor
    weight: Tensor
    others: Tensor

    def __len__(self) -> int:
        return len(self.actor)


class _Trainer:
    """Both stages of training over the train split in file order, its past read from the same split."""

    def __init__(self, net: CenetNet, dataset: Dataset, checkpoint: Checkpoint) -> None:
        self.net, self.settings, self.checkpoint = net, net.settings, checkpoint
        device = net.entity.device
        train = Queries.of(dataset.train)
        label = recurring(train, net.n_relations, dataset.events.n_entities)
        self.train = train.to(device)
        self.past = Index(dataset.train, device)
        self.start, self.stop = self.past.occurrence_slices(self.train.actor, self.train.relation, self.train.step)
        self.read_before = torch.cat([self.start.new_zeros(1), (self.stop - self.start).cumsum(0)]).cpu().tolist()
        self.batches = list(self._batches(label.to(device)))
        self.kept: dict[int, _QueryPast] = {}
        self.room = torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else HOST_ROOM

    def _parts(self) -> Iterator[slice]:
        """Slices of queries: two a fact, `batch` facts at a time, a last single fact joined to the batch before."""
        n, size = len(self.train), 2 * self.settings.batch
        bounds = [*range(0, n, size), n]
        if len(bounds) > 2 and bounds[-1] - bounds[-2] == 2:
            del bounds[-2]
        return (slice(low, high) for low, high in itertools.pairwise(bounds))

    def _batches(self, label: Tensor) -> Iterator[_Batch]:
        others = torch.empty(0, 0)
        for part in self._parts():
            q, by_side = self.train.take(part), label[part].view(-1, 2).T.contiguous()
            assert q.answer is not None
            if len(others) != len(q) // 2:
                others = ~torch.eye(len(q) // 2, dtype=torch.bool, device=label.device)
            is_object_query = (q.relation < self.net.n_relations)[:, None]
            yield _Batch(
                part, q.actor, q.relation, is_object_query, q.answer.repeat(2), by_side, likeness(by_side), others
            )

    def past_of(self, batch: _Batch) -> _QueryPast:
        """The past of a batch, which is the same in every epoch: kept as long as there is room for it."""
        part = batch.part
        if part.start in self.kept:
            return self.kept[part.start]
        size = self.read_before[part.stop] - self.read_before[part.start]
        seen = self.past.occurrences_in(self.start[part], self.stop[part], self.train.step[part], size)
        past = self.net.past(seen, len(batch))
        if past.nbytes <= self.room:
            self.room -= past.nbytes
            self.kept[part.start] = past
        return past

    def run(self, progress: Progress) -> None:
        if self.checkpoint.stage == 1:
            self.stage_one(progress)
        self.stage_two(progress)

    def stage_one(self, progress: Progress) -> None:
        """Scorers and contrastive query; every other row of a batch is an object query, the rest subject queries."""
        net = self.net.train()
        parameters = [p for name, p in net.named_parameters() if not name.startswith("oracle.")]
        self._train(1, "training CENET", self.settings.epochs, parameters, self.loss, progress)

    def loss(self, batch: _Batch) -> Tensor:
        """What stage one makes small."""
        net, past = self.net, self.past_of(batch)
        pair = net.pair(batch.actor, batch.relation)
        # the two directions have equally many rows, so one mean is the mean of their two means
        if net.entity.device.type == "cpu":
            query, answer = net.queries(pair, batch.is_object_query), batch.answers[: len(batch)]
            biases = torch.stack(net.history_biases(past))
            nce = piecewise_loss(query, net.entity, past.at, biases, past.first, answer)
        else:
            nce = nce_loss(net.logits(pair, batch.is_object_query, past), batch.answers)
        v = net.contrast(torch.cat([pair, net.frequency_feature(past)], dim=1))
        by_side = v.view(-1, 2, v.shape[1]).transpose(0, 1)
        contrast = contrastive_loss(by_side, batch.label, batch.weight, batch.others).mean()
        return torch.lerp(contrast, nce, self.settings.alpha)

    def stage_two(self, progress: Progress) -> None:
        """The oracle alone; what it reads does not change any more, so it is computed once."""
        net = self.net.eval()
        with torch.no_grad():
            features = torch.cat([net.frequency_feature(self.past_of(batch)) for batch in self.batches])
        self.kept.clear()
        oracle, loss = net.oracle.train(), partial(self.oracle_loss, features)
        epochs, parameters = self.settings.oracle_epochs, list(oracle.parameters())
        self._train(2, "training CENET's oracle", epochs, parameters, loss, progress)
        net.eval()

    def oracle_loss(self, features: Tensor, batch: _Batch) -> Tensor:
        """What stage two makes small; features [queries of train, d]."""
        net = self.net
        with torch.no_grad():
            x = torch.cat([net.pair(batch.actor, batch.relation), features[batch.part]], dim=1)
            x = torch.cat([x[0::2], x[1::2]])
        fit = F.binary_cross_entropy_with_logits(net.oracle_by_side(x), batch.label.view(-1).to(x.dtype))
        size = nn.utils.parameters_to_vector(net.oracle.parameters()).abs().sum()
        return fit + self.settings.oracle_l1 * size

    def _train(
        self,
        stage: int,
        title: str,
        epochs: int,
        parameters: list[nn.Parameter],
        loss: Callable[[_Batch], Tensor],
        progress: Progress,
    ) -> None:
        """All epochs of a stage, or those that are left of it."""
        s = self.settings
        steps = Steps(parameters, s.learning_rate, s.weight_decay, s.clip)
        done = self.checkpoint.resume(stage, steps.optimizer)
        with steps.running(), progress.task(title, total=epochs * len(self.batches)) as advance:
            advance(done * len(self.batches))
            for epoch in range(done + 1, epochs + 1):
                for number, batch in enumerate(self.batches):
                    # what a past without room for it is read into moves; all else of a batch stays where it is
                    steps.take(number, partial(loss, batch), stays=stage == 2 or batch.part.start in self.kept)
                    advance(1)
                self.checkpoint.keep(stage, epoch, steps.optimizer, whole=stage == 1 and epoch == epochs)


class Cenet(NetBackbone):
    """CENET as released, with sparse history; the log of p0 and the oracle's probability as uncertainty."""

    name: ClassVar[str] = "cenet"
    own_uncertainty: ClassVar[bool] = True
    default: ClassVar[CenetSettings] = CenetSettings()
    grid: ClassVar[Grid] = {"mask": ("soft", "hard"), "history_bias": (1.0, 2.0, 5.0)}
    trial: ClassVar[Bounds] = {"epochs": 6, "oracle_epochs": 4}
    net: CenetNet

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        if len(dataset.train) < 2:
            raise DataError(
                f"CENET needs at least two facts to train on, and the train split of {dataset.name} has "
                f"{len(dataset.train)}: give more events, or a smaller share to validation and test."
            )
        net = CenetNet(dataset.events.n_entities, dataset.events.n_relations, settings).to(training.device)
        state = training.state(cls.name, dataset.train.fingerprint, settings, net)
        _Trainer(net, dataset, state).run(training.progress)
        return cls(settings, net)

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        net, n, entities = self.net, len(queries), len(self.net.entity)
        seen = net.past(past.occurrences(queries.actor, queries.relation, queries.step), n)
        pair = net.pair(queries.actor, queries.relation)
        is_object_query = (queries.relation < net.n_relations)[:, None]
        p = net.logits(pair, is_object_query, seen).softmax(1).view(2, n, entities).sum(0)
        u = net.oracle(torch.cat([pair, net.frequency_feature(seen)], dim=1)).squeeze(1).sigmoid()
        trusted = torch.zeros((n, entities), dtype=torch.bool, device=p.device)
        trusted[past.seen_in_role(queries.actor, queries.relation, queries.step)] = True
        # an oracle that expects something new trusts the unseen candidates
        trusted ^= (u <= 0.5)[:, None]
        mask = trusted.to(p.dtype)
        if self.settings.mask == "soft":
            mask = mask.softmax(1)
        return Scores(log_base(p * mask), u)

    @classmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        return CenetNet(len(tensor_of(tensors, "entity", 2)), len(tensor_of(tensors, "relation", 2)) // 2, settings)

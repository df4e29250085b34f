"""CyGNet (Zhu et al., AAAI 2021): what was seen with the query is copied, everything else is generated."""

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

from bridgemem.backbones.base import Grid, NetBackbone
from bridgemem.backbones.scorer import Scores
from bridgemem.config import Count, Declared, Inside, NotNegative, Positive, Units
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.occurrences import first_meetings
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import Timeline, changes, expand
from bridgemem.progress import Progress
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.checkpoint import Checkpoint, Training

UNSEEN = -100.0  # what the copy mode adds to an entity outside the history vocabulary
BOTH = slice(0, 2)
HOST_ROOM = 2**29  # bytes of ordinary memory for what training reads again in every epoch


@dataclass(frozen=True)
class CygnetSettings(Declared):
    """alpha is the weight of the copy mode; l2 weighs the mean squares of the embeddings in the loss.

    The number of epochs is fixed: among the busiest actors of icews14, validation gains nothing after the fifth.
    """

    width: Units = 200
    alpha: Inside = 0.8
    batch: Count = 1024
    epochs: Count = 6
    learning_rate: Positive = 1e-3
    l2: NotNegative = 0.01


def _tables(rows: int, width: int) -> nn.Parameter:
    """One embedding table for each model, [2, rows, width]."""
    tables = torch.empty(2, rows, width)
    for table in tables:
        nn.init.xavier_uniform_(table, math.sqrt(2))
    return nn.Parameter(tables)


class CygnetNet(nn.Module):
    """Two models that share nothing, side by side: side 0 is asked for objects, side 1 for subjects.

    A slice `sides` says which of them are used; k is how many that are, and n the queries to each.
    """

    first: Tensor

    def __init__(self, n_entities: int, n_relations: int, settings: CygnetSettings, first: int = 0) -> None:
        """first: the step that training begins with, from which time is counted."""
        super().__init__()
        self.register_buffer("first", torch.tensor(first))
        d, self.settings = settings.width, settings
        self.n_entities, self.n_relations = n_entities, n_relations
        self.entity, self.relation, self.time = _tables(n_entities, d), _tables(n_relations, d), _tables(1, d)
        # [mode, side, entity, in]: the copy mode and the generation mode are classifiers of their own
        bound = 1 / math.sqrt(3 * d)
        self.modes = nn.Parameter(torch.empty(2, 2, n_entities, 3 * d).uniform_(-bound, bound))
        self.modes_bias = nn.Parameter(torch.empty(2, 2, 1, n_entities).uniform_(-bound, bound))

    def query(self, sides: slice, actor: Tensor, relation: Tensor, step: Tensor) -> Tensor:
        """m = [actor; relation; (step - first + 1) u], [k, n, 3d]; actor, directed relation, step int64 [k, n]."""
        # a directed relation is its own place in the two tables one after the other
        place = actor + relation // self.n_relations * self.n_entities
        # the loss never moves the direction of time; it is only made smaller
        time = (step - self.first + 1).unsqueeze(-1) * self.time[sides].detach()
        # the values of plain indexing, whose gradient costs a device far more than an embedding's
        vectors = F.embedding(place, self.entity.flatten(0, 1)), F.embedding(relation, self.relation.flatten(0, 1))
        return torch.cat([*vectors, time], dim=-1)

    def logits(self, sides: slice, query: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the copy mode and of the generation mode, [k * n, E] each.

        query [k, n, 3d]; seen int64 [m]: the places of the history vocabularies in a flat [k, n, E].
        """
        weight, bias = self.modes[:, sides].flatten(0, 1), self.modes_bias[:, sides].flatten(0, 1)
        copy, generation = torch.baddbmm(bias, query.repeat(2, 1, 1), weight.transpose(1, 2)).float().chunk(2)
        outside = torch.full_like(copy, UNSEEN).view(-1).index_fill_(0, seen, 0.0).view_as(copy)
        return (copy.tanh() + outside).flatten(0, 1), generation.flatten(0, 1)

    def mix(self, log_copy: Tensor, log_generation: Tensor) -> Tensor:
        """log(alpha c + (1 - alpha) g) of log c and log g."""
        alpha = self.settings.alpha
        return torch.logaddexp(log_copy + math.log(alpha), log_generation + math.log1p(-alpha))


def history_vocabulary(events: EventLog, past: Past) -> Timeline:
    """Every candidate of (actor, directed relation) once, at the step of its first occurrence.

    It knows seen and unseen alone, so a slice of this is all of it, and far shorter than the occurrences themselves.
    """
    facts = Queries.of(events)
    assert facts.answer is not None
    key = past.relation_key(facts.actor, facts.relation)
    return first_meetings(key.numpy(), facts.answer.numpy(), facts.step.numpy(), past.device)


@dataclass(frozen=True)
class _Batch:
    """Facts of one step, asked from both sides: actor, relation, step int64 [2, n]; answer int64 [2n].

    start, stop int64 [2n]: the history vocabularies in the timeline of first occurrences; size: their total length.
    """

    actor: Tensor
    relation: Tensor
    step: Tensor
    answer: Tensor
    start: Tensor
    stop: Tensor
    size: int


class _Trainer:
    """Epochs over the train split in order of time, each fact read with what came before its step."""

    def __init__(self, net: CygnetNet, dataset: Dataset, checkpoint: Checkpoint) -> None:
        self.net, self.settings, self.checkpoint = net, net.settings, checkpoint
        self.device = net.entity.device
        past = Past(dataset.train, device=self.device)
        self.line = history_vocabulary(dataset.train, past)
        self.batches = list(self._batches(dataset.train, past))
        self.kept: dict[int, Tensor] = {}
        on_gpu = self.device.type == "cuda"
        self.room = torch.cuda.mem_get_info(self.device)[0] // 4 if on_gpu else HOST_ROOM

    def _batches(self, train: EventLog, past: Past) -> Iterator[_Batch]:
        """At most `batch` facts at a time, never of two steps."""
        facts = Queries.of(train).to(self.device)
        assert facts.answer is not None
        start, stop = self.line.before(past.relation_key(facts.actor, facts.relation), facts.step)
        columns = (facts.actor, facts.relation, facts.step, facts.answer, start, stop)
        by_side = [column.view(-1, 2).T for column in columns]
        read_before = [0, *(stop - start).view(-1, 2).sum(1).cumsum(0).tolist()]
        edges = [*np.flatnonzero(changes(train.step)).tolist(), len(train)]
        for begin, end in itertools.pairwise(edges):
            for low in range(begin, end, self.settings.batch):
                high = min(low + self.settings.batch, end)
                actor, relation, step, answer, first, last = (c[:, low:high].contiguous() for c in by_side)
                size = read_before[high] - read_before[low]
                yield _Batch(actor, relation, step, answer.flatten(), first.flatten(), last.flatten(), size)

    def seen(self, number: int) -> Tensor:
        """The history vocabularies of a batch, the same in every epoch: kept as long as there is room for them."""
        if number in self.kept:
            return self.kept[number]
        batch = self.batches[number]
        row, at = expand(batch.start, batch.stop, batch.size)
        seen = row * self.net.n_entities + self.line.value[at]
        if seen.nbytes <= self.room:
            self.room -= seen.nbytes
            self.kept[number] = seen
        return seen

    def loss(self, number: int) -> Tensor:
        """What training makes small on the batch of that number: the losses of both models, added up."""
        net, batch = self.net, self.batches[number]
        query = net.query(BOTH, batch.actor, batch.relation, batch.step)
        # nothing but the two large products is done in half precision, and that on a GPU alone
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            copy, generation = net.logits(BOTH, query, self.seen(number))
        log_c, log_g = (-F.cross_entropy(logits, batch.answer, reduction="none") for logits in (copy, generation))
        size = net.entity.square().mean() + net.relation.square().mean() + net.time.square().mean()
        # the means are over both sides, which have equally much of everything
        return 2 * (self.settings.l2 * size - net.mix(log_c, log_g).mean())

    def run(self, progress: Progress) -> None:
        """All epochs, or those that are left; facts come in order of time, as they will be in use."""
        epochs, batches = self.settings.epochs, len(self.batches)
        parameters = list(self.net.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.settings.learning_rate, amsgrad=True, fused=True)
        done = self.checkpoint.resume(1, optimizer)
        with progress.task("training CyGNet", total=epochs * batches) as advance:
            advance(done * batches)
            for epoch in range(done + 1, epochs + 1):
                for number in range(batches):
                    optimizer.zero_grad(set_to_none=True)
                    self.loss(number).backward()
                    optimizer.step()
                    advance(1)
                self.checkpoint.keep(1, epoch, optimizer, whole=False)


class Cygnet(NetBackbone):
    """CyGNet with a history vocabulary that grows up to the query's step, and one alpha in training and in use.

    The released code chooses its epoch on validation; here it is a setting, and validation is never read.
    """

    name: ClassVar[str] = "cygnet"
    default: ClassVar[CygnetSettings] = CygnetSettings()
    grid: ClassVar[Grid] = {"alpha": (0.8, 0.5, 0.7, 0.9), "epochs": (6, 3, 9)}
    net: CygnetNet

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        events, first = dataset.events, int(dataset.train.step[0])
        net = CygnetNet(events.n_entities, events.n_relations, settings, first).to(training.device)
        state = training.state(cls.name, dataset.train.fingerprint, settings, net)
        _Trainer(net, dataset, state).run(training.progress)
        return cls(settings, net)

    @torch.no_grad()
    def score(self, queries: Queries, past: Past) -> Scores:
        net = self.net
        log_p = net.entity.new_empty(len(queries), net.n_entities)
        for side in range(2):
            rows = (queries.relation // net.n_relations == side).nonzero().squeeze(1)
            asked, this = queries.take(rows), slice(side, side + 1)
            found = past.occurrences(asked.actor, asked.relation, asked.step)
            query = net.query(this, asked.actor[None], asked.relation[None], asked.step[None])
            logits = net.logits(this, query, found.row * net.n_entities + found.candidate)
            log_p[rows] = net.mix(*(mode.log_softmax(1) for mode in logits))
        return Scores(log_p)

    @classmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        entity, relation = (tensor_of(tensors, name, 3) for name in ("entity", "relation"))
        return CygnetNet(entity.shape[1], relation.shape[1], settings)

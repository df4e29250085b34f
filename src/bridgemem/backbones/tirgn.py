"""TiRGN (Li et al., IJCAI 2022): RE-GCN with time vectors, and a second decoder over all that happened before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.base import Grid
from bridgemem.backbones.convtranse import ConvTransE
from bridgemem.backbones.regcn import Evolved, GraphLayer, Regcn, RegcnNet, RegcnSettings, Selection, Trainer, unit
from bridgemem.backbones.snapshots import Snapshot, Snapshots
from bridgemem.config import Finite, Inside, Recent
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import Timeline, changes, expand
from bridgemem.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class TirgnSettings(RegcnSettings):
    """Those of RE-GCN; history_rate: the share of the decoder that looks at what happened before."""

    history: Recent = 9
    angle: Finite = 14.0
    history_rate: Inside = 0.3


class ConvolvedLayer(GraphLayer):
    """A graph layer whose messages mix A[u] and Z[r], normalised over the edges of the snapshot, by two weights."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__(width, dropout)
        self.norm = nn.BatchNorm1d(2)
        self.mix = nn.Linear(2, 1)

    def around(self, a: Tensor, z: Tensor, snapshot: Snapshot) -> Tensor:
        edges, own = snapshot.ends(torch.cat([a, z])).split([2 * len(snapshot), len(snapshot.active)])
        ends = self.norm(edges.view(-1, 2, self.width))
        # the mean of the mixed is the mixed mean, and there are fewer entities than edges
        incoming = snapshot.incoming(ends.flatten(1)).view(-1, 2, self.width)
        message = torch.baddbmm(self.mix.bias, self.mix.weight.expand(len(incoming), -1, -1), incoming).squeeze(1)
        return torch.cat([message, own], dim=1)


class TirgnNet(RegcnNet):
    """The network; both tasks have a local decoder and a global one, whose logits are zero where there is no past."""

    layer: ClassVar[type[GraphLayer]] = ConvolvedLayer
    settings: TirgnSettings

    def _add_parts(self) -> None:
        s = self.settings
        # slopes and offsets of the linear and of the periodic time vector
        self.slope, self.offset = (nn.Parameter(torch.randn(2, s.width)) for _ in range(2))
        self.entity_cell = nn.GRUCell(s.width, s.width)
        self.entity_local, self.entity_global, self.relation_local, self.relation_global = (
            ConvTransE(4, s.width, s.kernels, s.dropout) for _ in range(4)
        )

    def pooled(self, h: Tensor, snapshot: Snapshot) -> Tensor:
        return snapshot.pooled_subjects(h)

    def move(self, h: Tensor, c: Tensor) -> Tensor:
        return unit(self.entity_cell(c, h))

    def channels(self, first: Tensor, second: Tensor, step: Tensor) -> Tensor:
        """What a decoder reads of n queries: two vectors each [n, d], and the time of step int64 [n] or [1]."""
        linear, phase = torch.addcmul(self.offset, self.slope, step.to(first.dtype)[:, None, None]).unbind(1)
        return torch.stack([first, second, linear.expand_as(first), phase.sin().expand_as(first)], dim=1)

    def mixed_loss(self, local: Tensor, of_past: Tensor, seen: Tensor, answer: Tensor) -> Tensor:
        """- mean log of both softmaxes' mixture at the answer; logits and seen [n, k], answer int64 [n]."""
        rate = self.settings.history_rate
        by_past = F.cross_entropy(of_past * seen, answer, reduction="none")
        by_local = F.cross_entropy(local, answer, reduction="none")
        return -torch.logaddexp(math.log(rate) - by_past, math.log1p(-rate) - by_local).mean()

    def loss_given(self, evolved: Evolved, target: Snapshot, seen: Tensor, seen_relations: Tensor) -> Tensor:
        """What training makes small; seen bool [2n, E] and seen_relations bool [2n, 2R]: what happened before."""
        entity, relation, weight = evolved.entity, evolved.relation, self.settings.task_weight
        actor, answer = entity.index_select(0, target.actor), entity.index_select(0, target.answer)
        step = target.actor.new_full((1,), target.step)
        x = self.channels(actor, relation.index_select(0, target.relation), step)
        of_entities = self.mixed_loss(self.entity_local(x, entity), self.entity_global(x, entity), seen, target.answer)
        x = self.channels(actor, answer, step)
        of_relations = self.mixed_loss(
            self.relation_local(x, relation), self.relation_global(x, relation), seen_relations, target.relation
        )
        loss = torch.lerp(of_relations, of_entities, weight)
        return loss if evolved.penalty is None else loss + evolved.penalty

    def log_p_given(self, evolved: Evolved, actor: Tensor, relation: Tensor, step: Tensor, seen: Tensor) -> Tensor:
        """Log probabilities of every entity; actor, relation, step int64 [n], seen bool [n, E] -> [n, E]."""
        entity, rate = evolved.entity, self.settings.history_rate
        x = self.channels(entity[actor], evolved.relation[relation], step)
        by_past = (self.entity_global(x, entity) * seen).log_softmax(1)
        by_local = self.entity_local(x, entity).log_softmax(1)
        return torch.logaddexp(math.log(rate) + by_past, math.log1p(-rate) + by_local)


class Indicator:
    """Which values had occurred under the key of each edge strictly before its step, for all edges of a log.

    It knows on the host how much there is to read, so a device is never waited for.
    """

    def __init__(self, graph: Snapshots, key: np.ndarray, value: np.ndarray, width: int, device: torch.device) -> None:
        """key, value int64 [2N] of the edges as the graph orders them; values are below width."""
        self.width, self.bounds = width, graph.bounds
        _, key = np.unique(key, return_inverse=True)
        step = np.repeat(graph.steps, np.diff(graph.bounds))
        order = np.lexsort((step, value, key))
        order = order[changes(key[order], value[order])]
        self.timeline = Timeline.build(key[order], step[order], value[order], device)
        keys, steps = (torch.from_numpy(column).to(device) for column in (key, step))
        self.start, self.stop = self.timeline.before(keys, steps)
        read = np.append(0, (self.stop - self.start).cumsum(0).cpu().numpy())
        self.sizes = np.diff(read[graph.bounds]).tolist()

    def at(self, position: int) -> Tensor:
        """bool [2n, width] for the edges of a snapshot."""
        first, last = self.bounds[position : position + 2].tolist()
        row, place = expand(self.start[first:last], self.stop[first:last], self.sizes[position])
        seen = torch.zeros((last - first) * self.width, dtype=torch.bool, device=self.start.device)
        seen.index_fill_(0, row * self.width + self.timeline.value[place], True)
        return seen.view(-1, self.width)


class TirgnTrainer(Trainer):
    """As for RE-GCN, with what happened before each snapshot, in train and validation, for the global decoders."""

    net: TirgnNet

    def __init__(self, selection: Selection, dataset: Dataset, checkpoint: Checkpoint) -> None:
        super().__init__(selection, dataset, checkpoint)
        graph, device = self.graph, self.net.relation.device
        actor, relation, answer = graph.columns
        under = actor * (2 * graph.n_relations) + relation
        self.answers = Indicator(graph, under, answer, graph.n_entities, device)
        self.relations = Indicator(graph, actor * graph.n_entities + answer, relation, 2 * graph.n_relations, device)

    def loss_of(self, evolved: Evolved, at: int) -> Tensor:
        return self.net.loss_given(evolved, self.graph[at], self.answers.at(at), self.relations.at(at))

    def log_p(self, evolved: Evolved, at: int) -> Tensor:
        target = self.graph[at]
        step = target.actor.new_full((1,), target.step)
        return self.net.log_p_given(evolved, target.actor, target.relation, step, self.answers.at(at))


class Tirgn(Regcn):
    """TiRGN; as in the released code, the epoch whose weights are used is the best on the validation split."""

    name: ClassVar[str] = "tirgn"
    title: ClassVar[str] = "TiRGN"
    default: ClassVar[TirgnSettings] = TirgnSettings()
    grid: ClassVar[Grid] = {
        "history": (9, 1, 2, 7, 15),
        "layers": (2, 1),
        "static": (False, True),
        "angle": (14.0, 10.0),
        "history_rate": (0.3, 0.5, 0.7),
    }
    only_with: ClassVar[Mapping[str, str]] = {"angle": "static"}
    network: ClassVar[type[RegcnNet]] = TirgnNet
    trainer: ClassVar[type[Trainer]] = TirgnTrainer
    net: TirgnNet

    def _log_p(self, evolved: Evolved, queries: Queries, past: Past) -> Tensor:
        occurred = past.occurrences(queries.actor, queries.relation, queries.step)
        seen = torch.zeros((len(queries), len(evolved.entity)), dtype=torch.bool, device=queries.actor.device)
        seen[occurred.row, occurred.candidate] = True
        return self.net.log_p_given(evolved, queries.actor, queries.relation, queries.step, seen)

"""CENET trained the plain way: the host makes the history of every step dense, [batch, entities], and sends it over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.cenet import CenetNet, CenetSettings, recurring
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past


@dataclass(frozen=True)
class Side:
    """The queries of one direction in a batch, on the host: ids int64 [n], labels bool [n], the past as sparse rows."""

    actor: Tensor
    relation: Tensor
    answer: Tensor
    label: Tensor
    row: np.ndarray
    candidate: np.ndarray
    count: np.ndarray


def batch_bounds(facts: int, batch: int) -> list[int]:
    """Where each batch of facts begins, and where the last ends; a single fact at the end joins the batch before."""
    bounds = [*range(0, facts, batch), facts]
    if len(bounds) > 2 and bounds[-1] - bounds[-2] == 1:
        del bounds[-2]
    return bounds


def batches(dataset: Dataset, settings: CenetSettings, chosen: list[int] | None = None) -> Iterator[tuple[Side, Side]]:
    """Object and subject queries of `batch` facts at a time in file order; only the chosen ones, if any are named."""
    train = Queries.of(dataset.train)
    label = recurring(train, dataset.events.n_relations, dataset.events.n_entities)
    past = Past(dataset.train)
    bounds = batch_bounds(len(dataset.train), settings.batch)
    for number in chosen if chosen is not None else range(len(bounds) - 1):
        rows = torch.arange(2 * bounds[number], 2 * bounds[number + 1])
        sides = [_side(train.take(rows[side::2]), label[rows[side::2]], past) for side in (0, 1)]
        yield sides[0], sides[1]


def _side(queries: Queries, label: Tensor, past: Past) -> Side:
    assert queries.answer is not None
    seen = past.occurrences(queries.actor, queries.relation, queries.step)
    sparse = (x.numpy() for x in (seen.row, seen.candidate, seen.count))
    return Side(queries.actor, queries.relation, queries.answer, label, *sparse)


class DenseCenet(nn.Module):
    """The network with one linear layer for each scorer and direction, and a dense layer over all frequencies."""

    def __init__(self, start: CenetNet) -> None:
        super().__init__()
        self.settings, d = start.settings, start.settings.width
        entities = len(start.entity)
        self.entity = nn.Parameter(start.entity.detach().clone())
        self.relation = nn.Parameter(start.relation.detach().clone())
        scorers = [nn.Linear(2 * d, d) for _ in range(4)]
        self.scorers = nn.ModuleList(scorers)
        self.frequency = nn.Linear(entities, d)
        self.contrast = nn.Linear(3 * d, d)
        with torch.no_grad():
            for number, layer in enumerate(scorers):
                scorer, role = divmod(number, 2)
                part = slice(role * d, (role + 1) * d)
                layer.weight.copy_(start.scorers[scorer, :, part].T)
                layer.bias.copy_(start.scorers_bias[scorer, 0, part])
            self.frequency.weight.copy_(start.frequency.T)
            self.frequency.bias.copy_(start.frequency_bias)
            self.contrast.load_state_dict(start.contrast.state_dict())

    def loss(self, side: Side, role: int) -> tuple[Tensor, Tensor]:
        """Both losses of one direction (role 0: object queries)."""
        s, device = self.settings, self.entity.device
        dense = np.zeros((len(side.actor), len(self.entity)), dtype=np.float32)
        dense[side.row, side.candidate] = side.count
        frequency = torch.from_numpy(dense).to(device)
        actor, relation, answer, label = (x.to(device) for x in (side.actor, side.relation, side.answer, side.label))
        bias = s.history_bias
        first = torch.where(frequency > 0, bias, -bias)
        second = torch.where(frequency > 0, frequency if s.second_bias == "released" else -bias, bias)
        pair = torch.cat([self.entity[actor], self.relation[relation]], dim=1)
        p = [
            F.softmax(torch.tanh(layer(F.dropout(pair, s.dropout, self.training))) @ self.entity.T + extra, dim=1)
            for layer, extra in zip((self.scorers[role], self.scorers[2 + role]), (first, second), strict=True)
        ]
        nce = -(p[0] + p[1]).gather(1, answer[:, None]).log().mean()
        feature = torch.tanh(self.frequency(F.softmax(frequency, dim=1)))
        v = self.contrast(torch.cat([pair, feature], dim=1))
        return nce, _contrastive(v, label)


def _contrastive(v: Tensor, label: Tensor) -> Tensor:
    """Mean over queries of -log share of those with the same label; 0 where a class has a single member."""
    n, positive = len(v), int(label.sum())
    if 1 in (positive, n - positive):
        return v.new_zeros(())
    similar = v @ v.T
    e = (similar - similar.max(dim=1, keepdim=True).values.detach()).exp() + 1e-5
    others = ~torch.eye(n, dtype=torch.bool, device=v.device)
    share = (e / (e * others).sum(1, keepdim=True)).log()
    alike = (label[:, None] == label[None, :]) & others
    return -((share * alike).sum(1) / alike.sum(1)).mean()


class DenseTraining:
    """Adam with clipped gradients over batches of both directions."""

    def __init__(self, start: CenetNet, device: str) -> None:
        self.net = DenseCenet(start).to(device).train()
        s = self.net.settings
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay)

    def step(self, sides: tuple[Side, Side]) -> None:
        s = self.net.settings
        losses = [self.net.loss(side, role) for role, side in enumerate(sides)]
        nce, contrast = (sum(part) / 2 for part in zip(*losses, strict=True))
        self.optimizer.zero_grad()
        (s.alpha * nce + (1 - s.alpha) * contrast).backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), s.clip)
        self.optimizer.step()

"""Snapshots: the graph of each time step on a device, both directions at once, and the sparse products over it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.events.log import EventLog


class Product:
    """A constant sparse matrix [rows, columns] that multiplies tables [columns, d]; its transpose lies ready.

    Each row is summed by itself and in a fixed order, forward and backward, so the same numbers give the same bits
    every time, which atomic additions on a GPU do not. A product is one kernel there, and so is its gradient.
    """

    def __init__(
        self, row: np.ndarray, column: np.ndarray, weight: np.ndarray, shape: tuple[int, int], device: torch.device
    ) -> None:
        """row, column int64 [m]; weight float [m]; entries at the same place add up."""
        self.rows = _bags(row, column, weight, shape[0], device)
        self.columns = _bags(column, row, weight, shape[1], device)

    def __call__(self, table: Tensor) -> Tensor:
        """table float32 [columns, d] -> [rows, d]."""
        return _Multiply.apply(table, self.rows, self.columns)


# the other index of every entry int32 [m], where each bag begins int32 [bags + 1], weights float32 [m]
Bags = tuple[Tensor, Tensor, Tensor]


def _bags(row: np.ndarray, column: np.ndarray, weight: np.ndarray, n: int, device: torch.device) -> Bags:
    order = np.argsort(row, kind="stable")
    first = np.zeros(n + 1, dtype=np.int32)
    np.cumsum(np.bincount(row, minlength=n), out=first[1:])
    columns = (column[order].astype(np.int32), first, weight[order].astype(np.float32))
    index, begin, weights = (torch.from_numpy(c).to(device) for c in columns)
    return index, begin, weights


def _sum_bags(table: Tensor, bags: Bags) -> Tensor:
    index, begin, weight = bags
    return F.embedding_bag(index, table, begin, mode="sum", per_sample_weights=weight, include_last_offset=True)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Bags, columns: Bags) -> Tensor:
        ctx.columns = columns
        return _sum_bags(table.contiguous(), rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _sum_bags(grad.contiguous(), ctx.columns), None, None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The facts of one step, each in both directions: an edge actor -> answer under a directed relation.

    actor, relation, answer int64 [2n], n facts (s, r, o) and then their inverses (o, r + R, s), duplicates kept;
    edges int64 [3, 2n]: the same on the host. An entity has as many edges coming in as going out.

    Snapshots of several steps can lie side by side as one, for states that do not meet: `count` of them, of which the
    k-th has entities of its own, see `Rows`, and its directed relations from 2 k R on; the step is the first's.

    What multiplies it is made at its first use and kept: entity tables are [E, d], relation tables [2R, d] for each of
    them, and `[A; Z]` is the one above the other.
    """

    step: int
    actor: Tensor
    relation: Tensor
    answer: Tensor
    edges: np.ndarray
    n_entities: int
    n_relations: int
    count: int = 1

    def __len__(self) -> int:
        return self.edges.shape[1]

    @property
    def tables(self) -> tuple[int, int]:
        """The rows of an entity table and of a relation table."""
        return self.n_entities, self.count * 2 * self.n_relations

    def _product(self, row: np.ndarray, column: np.ndarray, weight: np.ndarray, shape: tuple[int, int]) -> Product:
        return Product(row, column, weight, shape, self.actor.device)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The entities with edges [a], which of them each edge goes to [2n], and what an edge weighs in a mean [2n]."""
        entities, place, degree = np.unique(self.edges[2], return_inverse=True, return_counts=True)
        return entities, place, 1 / degree[place]

    @cached_property
    def active(self) -> Tensor:
        """The entities that have an edge, int64 [a], ascending."""
        return torch.from_numpy(self._places[0]).to(self.actor.device)

    @cached_property
    def pooled_ends(self) -> Product:
        """H -> [2R, d]: the mean of the entities at either end of each relation, each once; 0 for an absent one."""
        return self._pooled(self.edges[0], self.edges[1])

    @cached_property
    def pooled_subjects(self) -> Product:
        """H -> [2R, d]: the mean of the subjects of each relation and of its inverse, each once; 0 if absent."""
        facts = self.edges[1] % (2 * self.n_relations) < self.n_relations
        return self._pooled(self.edges[0, facts], self.edges[1, facts])

    def _pooled(self, entity: np.ndarray, relation: np.ndarray) -> Product:
        entities, relations = self.tables
        # a relation and its inverse are one here, whichever of the snapshots they are of
        relation = relation - np.where(relation % (2 * self.n_relations) < self.n_relations, 0, self.n_relations)
        relation, entity = np.divmod(np.unique(relation * entities + entity), entities)
        weight = 1 / np.bincount(relation)[relation]
        row = np.concatenate([relation, relation + self.n_relations])
        return self._product(row, np.tile(entity, 2), np.tile(weight, 2), (relations, entities))

    @cached_property
    def around(self) -> Product:
        """[A; Z] -> [2a, d], two rows for each active entity: the mean of A[u] + Z[r] over its edges, and its own A."""
        entities, place, weight = self._places
        actor, relation, _ = self.edges
        own = np.arange(len(entities))
        row = np.concatenate([2 * place, 2 * place, 2 * own + 1])
        column = np.concatenate([actor, self.tables[0] + relation, entities])
        weights = np.concatenate([weight, weight, np.ones(len(own))])
        return self._product(row, column, weights, (2 * len(entities), sum(self.tables)))

    @cached_property
    def ends(self) -> Product:
        """[A; Z] -> [4n + a, d]: A[u] and Z[r] of every edge, one after the other; then A of the active entities."""
        actor, relation, _ = self.edges
        pairs = np.stack([actor, self.tables[0] + relation], axis=1)
        column = np.concatenate([pairs.ravel(), self._places[0]])
        row = np.arange(len(column))
        return self._product(row, column, np.ones(len(row)), (len(column), sum(self.tables)))

    @cached_property
    def incoming(self) -> Product:
        """Messages [2n, d] -> [a, d]: the mean of those that come in at each active entity."""
        entities, place, weight = self._places
        return self._product(place, np.arange(len(place)), weight, (len(entities), len(place)))


@dataclass(frozen=True, eq=False)
class Rows:
    """Whom the rows of a table of states stand for, where the windows of several targets evolve side by side.

    First comes every entity once, as it is where nothing happens to it, which is the same in all windows; then, for one
    target after the other, the entities that have an edge in its window. entity int64 [E + A]; sizes: how many the
    targets have, A in all; weight float32 [E + A]: in how many of the windows an entity is in that row, of all windows.
    """

    entity: Tensor
    sizes: tuple[int, ...]
    weight: Tensor

    def apart(self, table: Tensor) -> list[Tensor]:
        """The states of all entities for each of the targets; table [E + A, d] -> [E, d] each."""
        sizes = [len(table) - sum(self.sizes), *self.sizes]
        (idle, *moved), (_, *places) = table.split(sizes), self.entity.split(sizes)
        return [idle.index_copy(0, at, own) for at, own in zip(places, moved, strict=True)]


class Snapshots:
    """The steps of a log at which anything happened, in order; steps without events are no snapshots.

    columns int64 [3, 2N] on the host: actor, directed relation and answer of every edge, snapshot after snapshot;
    bounds int64 [snapshots + 1]: where the edges of each begin; steps int64 [snapshots].
    """

    def __init__(self, events: EventLog, device: str | torch.device) -> None:
        self.n_entities, self.n_relations = events.n_entities, events.n_relations
        self.steps, first, facts = np.unique(events.step.astype(np.int64), return_index=True, return_counts=True)
        self.bounds = 2 * np.append(first, len(events)).astype(np.int64)
        # n facts of a snapshot fill its first n places, and their inverses the n places after them
        ahead = np.arange(len(events)) + np.repeat(first, facts)
        inverse_places = ahead + np.repeat(facts, facts)
        self.columns = np.empty((3, 2 * len(events)), dtype=np.int64)
        self.columns[:, ahead] = events.subject, events.relation, events.object
        self.columns[:, inverse_places] = (
            events.object,
            events.relation.astype(np.int64) + self.n_relations,
            events.subject,
        )
        self._tensors = torch.from_numpy(self.columns).to(device)
        self._made: dict[int, Snapshot] = {}
        self._joined: dict[tuple[range, int], tuple[list[Snapshot], Rows]] = {}

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, position: int) -> Snapshot:
        if position not in self._made:
            part = slice(int(self.bounds[position]), int(self.bounds[position + 1]))
            actor, relation, answer = self._tensors[:, part]
            step, edges = int(self.steps[position]), self.columns[:, part]
            self._made[position] = Snapshot(step, actor, relation, answer, edges, self.n_entities, self.n_relations)
        return self._made[position]

    def position(self, step: int) -> int:
        """How many snapshots lie strictly before a step: where its own is, if it has one."""
        return int(np.searchsorted(self.steps, step))

    def before(self, position: int, length: int) -> list[Snapshot]:
        """The last `length` snapshots in front of a position, or as many as there are, the oldest first."""
        return [self[i] for i in range(max(0, position - length), position)]

    def before_each(self, targets: range, length: int) -> tuple[list[Snapshot], Rows]:
        """The windows in front of several positions, side by side; each has `length` snapshots. They are kept."""
        if (targets, length) not in self._joined:
            self._joined[targets, length] = self._join(targets, length)
        return self._joined[targets, length]

    def _join(self, targets: range, length: int) -> tuple[list[Snapshot], Rows]:
        device, n, count = self._tensors.device, self.n_entities, len(targets)
        windows = [self.columns[0, self.bounds[at - length] : self.bounds[at]] for at in targets]
        own = [np.unique(actors) for actors in windows]
        row = np.full((count, n), -1)
        for k, (entities, start) in enumerate(zip(own, np.cumsum([n, *map(len, own)]), strict=False)):
            row[k, entities] = start + np.arange(len(entities))
        weight = np.ones(n + sum(map(len, own)), dtype=np.float32) / count
        weight[:n] *= (row < 0).sum(0)
        rows = Rows(
            torch.from_numpy(np.concatenate([np.arange(n), *own])).to(device),
            tuple(map(len, own)),
            torch.from_numpy(weight).to(device),
        )
        snapshots = []
        for first in range(targets.start - length, targets.start):
            bounds = self.bounds[first : first + count + 1]
            target = np.repeat(np.arange(count), np.diff(bounds))
            actor, relation, answer = self.columns[:, bounds[0] : bounds[-1]]
            edges = np.stack([row[target, actor], relation + target * 2 * self.n_relations, row[target, answer]])
            on_device = torch.from_numpy(edges).to(device)
            step, shape = int(self.steps[first]), (len(weight), self.n_relations, count)
            snapshots.append(Snapshot(step, on_device[0], on_device[1], on_device[2], edges, *shape))
        return snapshots, rows

"""Queries: who comes next for (actor, directed relation, ?, step); both sides of a fact in the same form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog


def renumbered(relation: Tensor, old: int, new: int) -> Tensor:
    """Directed relations of a vocabulary of `old` relations as one of `new` relations numbers them, int64 [n]."""
    return relation % old + relation // old * new


def sample_rows(size: int, most: int, seed: int) -> Tensor:
    """Which of `size` queries are read: all of them, or `most` at random; int64, ascending."""
    if size <= most:
        return torch.arange(size)
    return torch.from_numpy(np.sort(np.random.default_rng(seed).choice(size, most, replace=False)))


@dataclass(frozen=True)
class Queries:
    """actor, relation (directed, 0..2R-1), step: int64 [n]; answer: int64 [n], or None where it is not known."""

    actor: Tensor
    relation: Tensor
    step: Tensor
    answer: Tensor | None = None

    @classmethod
    def of(cls, events: EventLog, rows: np.ndarray | None = None) -> Queries:
        """Two queries a fact, in the order of the facts: (s, r, ?) with answer o, then (o, r + R, ?) with answer s.

        rows: int64 [m], places among them of those that are wanted; the others are not even read.
        """

        def interleave(first: np.ndarray, second: np.ndarray) -> Tensor:
            if rows is not None:
                return torch.from_numpy(np.where(rows % 2, second[rows // 2], first[rows // 2]).astype(np.int64))
            return torch.from_numpy(np.stack([first, second], axis=1).ravel().astype(np.int64))

        relation = interleave(events.relation, events.relation)
        side = torch.arange(len(relation)) % 2 if rows is None else torch.from_numpy(rows % 2)
        return cls(
            interleave(events.subject, events.object),
            relation + side * events.n_relations,
            interleave(events.step, events.step),
            interleave(events.object, events.subject),
        )

    @classmethod
    def sampled(cls, events: EventLog, most: int, seed: int, *, steps: int | None = None) -> Queries:
        """`of` all events, or that many of their queries at random, in their order; only these are read.

        steps: they are drawn from at most that many steps, spread evenly over the events.
        """
        size = 2 * len(events)
        if size <= most:
            return cls.of(events)
        if steps is None:
            return cls.of(events, sample_rows(size, most, seed).numpy())
        chosen = np.unique(events.step[np.linspace(0, len(events) - 1, steps).astype(np.int64)])
        first, last = (2 * np.searchsorted(events.step, chosen, side) for side in ("left", "right"))
        ends = np.cumsum(last - first)
        drawn = sample_rows(int(ends[-1]), most, seed).numpy()
        which = np.searchsorted(ends, drawn, "right")
        return cls.of(events, drawn + (last - ends)[which])

    def __len__(self) -> int:
        return len(self.actor)

    def take(self, rows: Tensor | slice) -> Queries:
        answer = None if self.answer is None else self.answer[rows]
        return Queries(self.actor[rows], self.relation[rows], self.step[rows], answer)

    def sample(self, most: int, seed: int) -> Queries:
        """All queries, or that many of them at random, in their order."""
        return self if len(self) <= most else self.take(sample_rows(len(self), most, seed))

    def batches(self, size: int) -> Iterator[Queries]:
        for at in range(0, len(self), size):
            yield self.take(slice(at, at + size))

    def to(self, device: str | torch.device) -> Queries:
        answer = None if self.answer is None else self.answer.to(device)
        return Queries(self.actor.to(device), self.relation.to(device), self.step.to(device), answer)

    def unanswered(self) -> Queries:
        """The same queries without their answers: all that a forecaster is ever shown."""
        return Queries(self.actor, self.relation, self.step)


def joined(queries: Sequence[Queries]) -> Queries:
    """Queries without answers, in their order, as one batch."""
    return Queries(*(torch.cat([getattr(one, name) for one in queries]) for name in ("actor", "relation", "step")))

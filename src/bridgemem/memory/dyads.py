"""DyadMemory: the events of every ordered pair, both orientations, read strictly before a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.memory.scan import last_events, taken
from bridgemem.memory.timeline import STEP_BITS, expand

PAIR_BITS = 32
WIDTH = 1 << PAIR_BITS  # a pair is actor * width + candidate; on disk the width is the number of entities
BLOCK_ROWS = 1 << 17  # that a pass over all pairs holds at a time


@dataclass(frozen=True)
class PairStates:
    """Dyadic states B(a, c, t) that hold at least one event, newest event first.

    row int64 [n]: which (actor, step) of the request; candidate int64 [n]; count int64 [n]: all events of the pair
    before the cut, also those beyond K and the window.
    relation, direction, lag int64 [n, K]; found bool [n, K] (False: no such event, the other values mean nothing).
    """

    row: Tensor
    candidate: Tensor
    count: Tensor
    relation: Tensor
    direction: Tensor
    lag: Tensor
    found: Tensor

    def take(self, which: Tensor) -> PairStates:
        """Some of them, int64 [k]."""
        return PairStates(*(getattr(self, column.name)[which] for column in fields(self)))


def pair_rows(events: EventLog) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every event seen from both parties: pair code, step, relation, direction (int64 [2n] each), in total order.

    Direction 0: the event went from the first of the ordered pair to the second; 1: the other way.
    """
    subject, object_ = events.subject.astype(np.int64), events.object.astype(np.int64)
    pair = np.stack([(subject << PAIR_BITS) | object_, (object_ << PAIR_BITS) | subject], axis=1).ravel()
    direction = np.tile(np.array([0, 1], dtype=np.int64), len(events))
    return pair, np.repeat(events.step.astype(np.int64), 2), np.repeat(events.relation.astype(np.int64), 2), direction


class DyadMemory:
    """Sparse index keyed by ordered pair: pairs int64 [p] ascending, rows grouped by pair in total order.

    The columns of the rows may have any whole type; what is read from them is int64.
    """

    def __init__(
        self,
        pairs: Tensor,
        start: Tensor,
        step: Tensor,
        relation: Tensor,
        direction: Tensor,
        end: int,
        width: int = WIDTH,
    ) -> None:
        self.pairs, self.start = pairs, start
        self.step, self.relation, self.direction = step, relation, direction
        self.end, self.width = end, width

    @classmethod
    def build(cls, events: EventLog, device: str | torch.device = "cpu") -> DyadMemory:
        pair, step, relation, direction = pair_rows(events)
        order = np.argsort(pair, kind="stable")
        return cls._from_rows(pair[order], step[order], relation[order], direction[order], events.end).to(device)

    @classmethod
    def _from_rows(
        cls, pair: np.ndarray, step: np.ndarray, relation: np.ndarray, direction: np.ndarray, end: int
    ) -> DyadMemory:
        pairs, first = np.unique(pair, return_index=True)
        start = np.append(first, len(pair)).astype(np.int64)
        columns = [torch.from_numpy(a) for a in (pairs, start, step, relation, direction)]
        return cls(columns[0], columns[1], columns[2], columns[3], columns[4], end)

    def to(self, device: str | torch.device) -> DyadMemory:
        return DyadMemory(
            self.pairs.to(device),
            self.start.to(device),
            self.step.to(device),
            self.relation.to(device),
            self.direction.to(device),
            self.end,
            self.width,
        )

    def __len__(self) -> int:
        return len(self.step)

    def before(self, end: int, n_entities: int) -> DyadMemory:
        """The same as if nothing at or after a step had come, among the first entities alone; rows are shared.

        Where there are later entities, the rows of their pairs are left out, in a copy.
        """
        actor, candidate = self.parties()
        known = (actor < n_entities) & (candidate < n_entities)
        end, rows = min(end, self.end), (self.step, self.relation, self.direction)
        if bool(known.all()):
            made = DyadMemory(self.pairs, self.start, *rows, end=end, width=self.width)
            vars(made)["_row_codes"] = self._row_codes
            return made
        size = self.start.diff()
        kept = torch.repeat_interleave(known, size)
        start = torch.cat([self.start[:1], size[known].cumsum(0)])
        step, relation, direction = (column[kept] for column in rows)
        return DyadMemory(self.pairs[known], start, step, relation, direction, end, self.width)

    @cached_property
    def _row_codes(self) -> Tensor:
        rank = torch.repeat_interleave(torch.arange(len(self.pairs), device=self.start.device), self.start.diff())
        return (rank << STEP_BITS) | self.step

    def ready(self) -> None:
        """Build what the first read would build."""
        nobody = self.start[:0]
        self._ends(nobody, nobody)

    def read(
        self, actor: Tensor, candidate: Tensor, step: Tensor, k: int, window: int, until: Tensor | None = None
    ) -> PairStates:
        """The states of given pairs; `row` counts the requests, requests without any event are left out.

        Lags count from `step`; only events before `until` are read, which is `step` itself unless history is frozen.
        """
        pair = actor.long() * self.width + candidate.long()
        rank = torch.searchsorted(self.pairs, pair).clamp(max=max(len(self.pairs) - 1, 0))
        row = (self.pairs[rank] == pair).nonzero().squeeze(1) if len(self.pairs) else pair.new_empty(0)
        return self._states(row, rank[row], step, step if until is None else until, k, window)

    def partners(self, actor: Tensor, step: Tensor, k: int, window: int, until: Tensor | None = None) -> PairStates:
        """The states of every candidate that an actor interacted with in the window, for each (actor, step).

        Ordered by row and candidate; lags and `until` as in `read`.
        """
        row, rank = expand(*self.partner_range(actor))
        return self._states(row, rank, step, step if until is None else until, k, window)

    def parties(self) -> tuple[Tensor, Tensor]:
        """First and second of every pair in the index, int64 [p] each."""
        actor = self.pairs // self.width
        return actor, self.pairs - actor * self.width

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[slice, slice]]:
        """All pairs in their order, and their rows, some at a time: whole pairs with about that many rows."""
        first, last = 0, len(self.pairs)
        while first < last:
            begin = int(self.start[first])
            stop = max(int(torch.searchsorted(self.start, begin + rows, right=True)) - 1, first + 1)
            yield slice(first, stop), slice(begin, int(self.start[stop]))
            first = stop

    def partner_range(self, actor: Tensor) -> tuple[Tensor, Tensor]:
        """Where each actor's pairs lie in the index, seen before or after: (start, stop) int64 [n]."""
        low = torch.searchsorted(self.pairs, actor.long() * self.width)
        return low, torch.searchsorted(self.pairs, (actor.long() + 1) * self.width)

    def _ends(self, rank: Tensor, limit: Tensor) -> Tensor:
        """Where the rows of a pair end that are earlier than a step; rank, limit int64 [n] -> int64 [n]."""
        return torch.searchsorted(self._row_codes, (rank << STEP_BITS) | limit.clamp(max=self.end))

    def _states(self, row: Tensor, rank: Tensor, step: Tensor, until: Tensor, k: int, window: int) -> PairStates:
        # the one place where the past is cut off: strictly before `until`, which is never after the step that asks
        limit = torch.minimum(until, step).long()[row]
        now, first = step.long()[row], self.start[rank]
        end = self._ends(rank, limit)
        seen = end > first
        if window:
            seen &= (now - self.step[(end - 1).clamp(min=0)]) <= window
        row, rank, now, first, end = (x[seen] for x in (row, rank, now, first, end))
        back = torch.arange(1, k + 1, device=row.device)
        position, lag, found = last_events(first, end, now, self.step, back, window)
        candidate = self.pairs[rank]
        candidate = candidate & (WIDTH - 1) if self.width == WIDTH else candidate % self.width
        relation, direction = (taken(column, position).long() for column in (self.relation, self.direction))
        return PairStates(row, candidate, end - first, relation, direction, lag, found)

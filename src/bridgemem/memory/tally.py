"""Tally: one log's events under keys of one kind, and what happened under each of them before a cut.

Every event counts, told twice or not. A level is the sum of e^(-lag / T) over the past events of a key: a count that
decays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bridgemem.memory.timeline import STEP_BITS, changes, code, expand

DECAYS = (2.0, 7.0, 30.0, 120.0)  # T of the levels, in steps
NO_STEP = 2**31 - 1
KEY_BLOCK = 1 << 20  # keys that a pass over all of them holds at a time


class Tallied(NamedTuple):
    """What happened before a cut under n keys: events int64 [n], first and last step int64 [n], levels float64 [n, T].

    Where nothing happened their number and the levels are 0, the last step is -1 and the first beyond all others.
    """

    events: Tensor
    first: Tensor
    last: Tensor
    level: Tensor

    @classmethod
    def nothing(cls, size: int, device: torch.device) -> Tallied:
        count = torch.zeros(size, dtype=torch.int64, device=device)
        level = torch.zeros((size, len(DECAYS)), dtype=torch.float64, device=device)
        return cls(count, count + NO_STEP, count - 1, level)

    def plus(self, other: Tallied) -> Tallied:
        """Of two logs together."""
        first, last = torch.minimum(self.first, other.first), torch.maximum(self.last, other.last)
        return Tallied(self.events + other.events, first, last, self.level + other.level)

    def take(self, rows: Tensor) -> Tallied:
        return Tallied(*(column[rows] for column in self))

    def put(self, rows: Tensor, other: Tallied) -> Tallied:
        """The same with other values in some rows."""
        for column, values in zip(self, other, strict=True):
            column[rows] = values
        return self


def decayed(lag: Tensor, decays: tuple[float, ...] = DECAYS) -> Tensor:
    """e^(-lag / T) float64 [n, T] of lags int64 [n]."""
    rates = torch.tensor([1 / decay for decay in decays], dtype=torch.float64, device=lag.device)
    return torch.exp(-lag[:, None].double() * rates)


class TallyRows(NamedTuple):
    """Events by (key, step), each once: keys int64 [k], start int64 [k + 1]: where the rows of each key begin.

    Of each row, int64 [m]: the rank of its key, the step, the events of the step, and all of the key until its end.
    """

    keys: np.ndarray
    start: np.ndarray
    rank: np.ndarray
    step: np.ndarray
    events: np.ndarray
    counted: np.ndarray

    @classmethod
    def of(cls, key: np.ndarray, step: np.ndarray, count: np.ndarray | None = None) -> TallyRows:
        """key, step int64 [n], by key and step; count int64 [n]: how many events each is, one where None."""
        new_key = changes(key)
        rows = np.flatnonzero(new_key | changes(step))
        events = np.diff(np.append(rows, len(key))) if count is None else np.add.reduceat(count, rows)
        key, step, new_key = key[rows], step[rows], new_key[rows]
        first = np.flatnonzero(new_key)
        rank = np.cumsum(new_key) - 1
        total = np.cumsum(events)
        before = total[first] - events[first]
        return cls(key[first], np.append(first, len(key)), rank, step, events, total - before[rank])


class Tally:
    """One log's events under keys: keys int64 [k] ascending; by (key, step), each once, steps, codes and levels [m]."""

    def __init__(self, key: np.ndarray, step: np.ndarray, device: torch.device) -> None:
        """key, step int64 [events], in the order of time."""
        order = np.argsort(key, kind="stable")
        rows = TallyRows.of(key[order], step[order])
        place = np.arange(len(rows.step)) - rows.start[rows.rank]
        columns = (rows.keys, rows.start, rows.step, (rows.rank << STEP_BITS) | rows.step, rows.counted)
        self.keys, self.start, self.step, self.codes, self.counted = (torch.from_numpy(c).to(device) for c in columns)
        self._events, self._place = (torch.from_numpy(c).to(device) for c in (rows.events, place))
        self._level: Tensor | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def level(self) -> Tensor:
        """The levels right after each step with events, float64 [m, T]."""
        if self._level is None:
            self._level = _levels(self.step, self._place, self._events)
        return self._level

    def find(self, key: Tensor) -> Tensor:
        """The rank of keys int64 [n] among all that occur; -1 for one that never does."""
        return found_among(self.keys, key)

    def between(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Where the keys from low on and below high lie: (start, stop) int64 [n] of ranks."""
        return torch.searchsorted(self.keys, low), torch.searchsorted(self.keys, high)

    def before(self, rank: Tensor, step: Tensor, cut: Tensor, *, levels: bool = True) -> Tallied:
        """What happened before the cut under keys given by rank, -1 for none, as seen at a step; int64 [n] each.

        levels: otherwise they are not read, and 0.
        """
        made = Tallied.nothing(len(rank), rank.device)
        known = (rank >= 0).nonzero().squeeze(1)
        stop = torch.searchsorted(self.codes, code(rank[known], cut[known]))
        start = self.start[rank[known]]
        some = (stop > start).nonzero().squeeze(1)
        if not len(some):
            return made
        rows, start, at = known[some], start[some], stop[some] - 1
        last = self.step[at]
        level = self.level[at] * decayed(step[rows] - last) if levels else made.level[rows]
        return made.put(rows, Tallied(self.counted[at], self.step[start], last, level))

    def next(self, rank: Tensor, step: Tensor) -> Tensor:
        """The step of the first event at or after a step under keys given by rank; int64 [n], beyond all for none."""
        made = torch.full_like(step, NO_STEP)
        known = (rank >= 0).nonzero().squeeze(1)
        at = torch.searchsorted(self.codes, code(rank[known], step[known]))
        some = (at < self.start[rank[known] + 1]).nonzero().squeeze(1)
        return made.index_copy_(0, known[some], self.step[at[some]])

    def steps(self, rank: Tensor, since: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """When keys given by rank, -1 for none, occurred from a step on and before a cut; int64 [n] each.

        Returns row int64 [m] and step int64 [m], ascending.
        """
        known = (rank >= 0).nonzero().squeeze(1)
        start, stop = (torch.searchsorted(self.codes, code(rank[known], at[known])) for at in (since, cut))
        row, at = expand(start, stop)
        return known[row], self.step[at]

    def begun(self, step: int) -> Iterator[tuple[int, Tensor]]:
        """Which keys occurred before a step, in blocks of keys: the rank of the first of them, and bool [block]."""
        for at in range(0, len(self), KEY_BLOCK):
            yield at, self.step[self.start[at : min(at + KEY_BLOCK, len(self))]] < step

    def active(self, since: int, until: int) -> Tensor:
        """Which keys occurred at a step from one on and before another; bool [k]."""
        rows = ((self.step >= since) & (self.step < until)).nonzero().squeeze(1)
        made = torch.zeros(len(self), dtype=torch.bool, device=self.keys.device)
        return made.index_fill_(0, self.codes[rows] >> STEP_BITS, True)


def found_among(keys: Tensor, key: Tensor) -> Tensor:
    """The place of each key int64 [n] among keys int64 [k], ascending; -1 for one that is not there."""
    if not len(keys):
        return torch.full_like(key, -1)
    rank = torch.searchsorted(keys, key).clamp_(max=len(keys) - 1)
    return torch.where(keys[rank] == key, rank, -1)


def _levels(step: Tensor, place: Tensor, events: Tensor) -> Tensor:
    """The levels right after each row: step, place among the rows of its key, events int64 [m] -> float64 [m, T].

    A sum over all rows before is made of sums over twice as many in each pass. What is added to a row depends on it and
    earlier ones alone, so that later events change no bit of it.
    """
    level = events.double()[:, None].repeat(1, len(DECAYS))
    back, most = 1, int(place.max()) if len(place) else 0
    while back <= most:
        rows = (place >= back).nonzero().squeeze(1)
        level[rows] += level[rows - back] * decayed(step[rows] - step[rows - back])
        back *= 2
    return level


def last_levels(step: Tensor, events: Tensor) -> Tensor:
    """The levels right after the newest row of each of n keys, float64 [n, T], as `_levels` adds them up.

    step, events int [n, rows], the newest first; what is no row of a key has no events, and no later step. Of the sums
    that `_levels` makes only those are made that the newest row is made of: each pass halves the rows.
    """
    level = events.double()[..., None].repeat(1, 1, len(DECAYS))
    while level.shape[1] > 1:
        older = level[:, 1::2]
        lag = step[:, ::2][:, : older.shape[1]] - step[:, 1::2]
        step, level = step[:, ::2], level[:, ::2].clone()
        level[:, : older.shape[1]] += older * decayed(lag.flatten()).view(older.shape)
    return level[:, 0]

"""The one kernel: the last K strictly earlier events of a pair inside the window.

Rows are sorted by pair, then step, then order, then direction. The arithmetic is the same for numpy arrays and torch
tensors, so mining examples and reading for a query share it. `PairScan` runs it over a stream of blocks of any size, so
that one process or a cluster, once it has sorted, can mine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from bridgemem.errors import DataError
from bridgemem.memory.timeline import changes

Array = TypeVar("Array", np.ndarray, Tensor)


def taken(column: Array, position: Array) -> Array:
    """column [m] at positions int64 of any shape, none below 0: what indexing gives, at a third of torch's time."""
    if isinstance(column, Tensor) and isinstance(position, Tensor):
        return column.index_select(0, position.flatten()).view(position.shape)
    return column[position]


def last_events(
    first: Array, end: Array, now: Array, step: Array, back: Array, window: int
) -> tuple[Array, Array, Array]:
    """The most recent events before `end`, newest first.

    Args:
        first: int64 [n], position of the pair's first row.
        end: int64 [n], position after the pair's last row that is strictly earlier than now.
        now: int [n], the step that asks.
        step: int [m], step of every row.
        back: int64 [K], 1..K.
        window: largest lag that still counts; 0 for no limit.

    Returns:
        position int64 [n, K], lag int [n, K] and found bool [n, K]; where nothing is found the position is 0.
    """
    position = end[:, None] - back
    found = position >= first[:, None]
    position = position * found
    lag = now[:, None] - taken(step, position)
    if window:
        found = found & (lag <= window)
    return position * found, lag, found


def tie_bounds(pair: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every row: where its pair starts, and where its own step starts inside the pair (int64 [m] each).

    Rows of one pair and one step do not see each other: the past of each ends where their step starts.
    """
    new_pair = changes(pair)
    new_step = new_pair | changes(step)
    rows = np.arange(len(pair), dtype=np.int64)
    first = np.maximum.accumulate(np.where(new_pair, rows, 0))
    end = np.maximum.accumulate(np.where(new_step, rows, 0))
    return first, end


@dataclass(frozen=True)
class Scanned:
    """The rows of a block that had a past inside the window, and the last K events of it, newest first.

    row int64 [m]: positions in the block, ascending; relation, direction, lag int64 [m, K]; found bool [m, K] (False:
    no such event, the other values mean nothing).
    """

    row: np.ndarray
    relation: np.ndarray
    direction: np.ndarray
    lag: np.ndarray
    found: np.ndarray


class PairScan:
    """The kernel over a sorted stream, block by block; what it finds does not depend on where the blocks are cut.

    Between blocks at most 2K rows are kept, all of the last pair: its last K rows before its last step, which rows of
    that step may still ask for, and the last K rows of that step, since no later row can see further back.
    """

    def __init__(self, k: int, window: int) -> None:
        self.k, self.window = k, window
        self._back = np.arange(1, k + 1, dtype=np.int64)
        self._carry = tuple(np.empty(0, dtype=np.int64) for _ in range(4))

    def feed(self, pair: np.ndarray, step: np.ndarray, relation: np.ndarray, direction: np.ndarray) -> Scanned:
        """Read the next block: int [n] columns sorted by (pair, step, order, direction), going on where the last ended.

        pair: any number that is the same for rows of one ordered pair and differs between neighbouring pairs.
        """
        kept = len(self._carry[0])
        block = (pair, step, relation, direction)
        pair, step, relation, direction = (
            np.concatenate([old, new.astype(np.int64, copy=False)]) for old, new in zip(self._carry, block, strict=True)
        )
        first, end = tie_bounds(pair, step)
        if ((step[1:] < step[:-1]) & (first[1:] == first[:-1])).any():
            raise DataError("the rows of a pair must come in the order of their steps; sort them before the scan.")
        has_past = end > first
        if self.window:
            has_past &= step - step[np.maximum(end - 1, 0)] <= self.window
        has_past[:kept] = False  # the carried rows were answered with their own block
        at = np.flatnonzero(has_past)
        position, lag, found = last_events(first[at], end[at], step[at], step, self._back, self.window)
        if len(pair):
            begin, tied = int(first[-1]), int(end[-1])
            keep = np.r_[max(begin, tied - self.k) : tied, max(tied, len(pair) - self.k) : len(pair)]
            self._carry = tuple(column[keep] for column in (pair, step, relation, direction))
        return Scanned(at - kept, relation[position], direction[position], lag, found)

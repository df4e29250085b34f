"""The one kernel: the last K strictly earlier events of a pair inside the window.

Rows are sorted by pair, then step, then order. The arithmetic is the same for numpy arrays and torch tensors, so mining
examples and reading for a query share it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

from bridgemem.memory.timeline import changes

Array = TypeVar("Array", np.ndarray, Tensor)


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
    lag = now[:, None] - step[position]
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

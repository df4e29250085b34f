"""Timeline: values filed under a key and a step, with one strict way to ask for the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import DataError
from bridgemem.events.log import KEYS

STEP_BITS = 31


def code(key: Tensor, step: Tensor | int) -> Tensor:
    """Key and step in one int64 whose order is (key, step)."""
    # added, not or-ed: the step after the last one belongs to the next key
    return (key.long() << STEP_BITS) + step


@dataclass(frozen=True)
class Timeline:
    """Entries in the order (key, step): codes int64 [m] ascending, value int64 [m].

    Every read returns slices (start, stop) of the entries, int64 [n] each; `expand` turns slices into rows.
    """

    codes: Tensor
    value: Tensor

    @classmethod
    def build(
        cls, key: np.ndarray, step: np.ndarray, value: np.ndarray, device: str | torch.device = "cpu"
    ) -> Timeline:
        """File values under (key, step), keeping the given order among equals."""
        if len(key) and int(key.max()) >= KEYS - 1:
            raise DataError("there are more than 2^32 pairs of an entity and a directed relation: merge rare ones.")
        codes = (key.astype(np.int64) << STEP_BITS) | step
        order = np.argsort(codes, kind="stable")
        return cls(
            torch.from_numpy(codes[order]).to(device),
            torch.from_numpy(value.astype(np.int64)[order]).to(device),
        )

    def to(self, device: str | torch.device) -> Timeline:
        return replace(self, codes=self.codes.to(device), value=self.value.to(device))

    @property
    def step(self) -> Tensor:
        return self.codes & ((1 << STEP_BITS) - 1)

    def before(self, key: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """The past: entries of the key with a strictly smaller step."""
        return self._search(code(key, 0)), self._search(code(key, step))

    def at(self, key: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of the key at exactly this step."""
        return self._search(code(key, step)), self._search(code(key, step + 1))

    def ever(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """All entries of the key."""
        return self._search(code(key, 0)), self._search(code(key + 1, 0))

    def _search(self, codes: Tensor) -> Tensor:
        return torch.searchsorted(self.codes, codes)


def drained(parts: list[Tensor], return_freed: Callable[[], None] = lambda: None) -> Tensor:
    """Parts one below the other; each is let go of as soon as it is copied, so that none is held twice."""
    first = parts[0]
    made, at = first.new_empty((sum(map(len, parts)), *first.shape[1:])), 0
    parts.reverse()
    while parts:
        part = parts.pop()
        made[at : at + len(part)] = part
        at += len(part)
        del part
        return_freed()
    return made


def expand(start: Tensor, stop: Tensor, size: int | None = None) -> tuple[Tensor, Tensor]:
    """Slices as flat rows: (row, position) int64 [sum of lengths], row i repeated for each of its positions."""
    length = (stop - start).clamp(min=0)
    rows = torch.arange(len(length), device=length.device)
    row = torch.repeat_interleave(rows, length, output_size=size)
    first = length.cumsum(0) - length
    return row, torch.arange(len(row), device=length.device).sub_((first - start).index_select(0, row))


def halved(step: Tensor, low: Tensor, high: Tensor, limit: Tensor) -> Tensor:
    """The first row at or after a limit in slices (low, high) of rows, ascending in each; int64 [n] each.

    A slice is searched in its own rows, so that of a mapped column only their pages are read.
    """
    longest = int((high - low).max()) if len(low) else 0
    for _ in range(longest.bit_length()):
        middle = (low + high) // 2
        open_ = low < high
        # a closed search stays where it is; its middle may lie after the last row
        earlier = open_ & (step[torch.where(open_, middle, 0)] < limit)
        low = torch.where(earlier, middle + 1, low)
        high = torch.where(earlier, high, torch.where(open_, middle, high))
    return low


def changes(*columns: np.ndarray) -> np.ndarray:
    """True for the first row and wherever any of the sorted columns differs from the row before; bool [m]."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    return new

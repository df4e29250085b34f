"""Overlay: an immutable base of events, in memory or on disk, with a small delta of those that came after it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.memory.dyads import WIDTH, DyadMemory, PairStates

_BEYOND = 2**62  # the lag of an event that is not there


class Overlay(EventLog):
    """A base followed by its delta, in one total order: by step, and inside a step the base's events first.

    delta: the events since, early or late, whose vocabularies begin with the base's. The columns of both together are
    put together in memory where they are asked for.
    """

    base: EventLog
    delta: EventLog

    def __init__(self, base: EventLog, delta: EventLog) -> None:
        names = {"base": base, "delta": delta, "entities": delta.entities, "relations": delta.relations}
        vars(self).update(names, clock=base.clock)

    def __len__(self) -> int:
        return len(self.base) + len(self.delta)

    @property
    def start(self) -> int:
        return min((log.start for log in (self.base, self.delta) if len(log)), default=0)

    @property
    def end(self) -> int:
        return max(self.base.end, self.delta.end)

    @cached_property
    def order(self) -> np.ndarray:
        """The total order, as positions in the base's events followed by the delta's; int64 [n]."""
        return np.argsort(np.concatenate([self.base.step, self.delta.step]), kind="stable")

    def _column(self, name: str) -> np.ndarray:
        column = np.concatenate([getattr(self.base, name), getattr(self.delta, name)])[self.order]
        column.flags.writeable = False
        return column

    @cached_property
    def subject(self) -> np.ndarray:
        return self._column("subject")

    @cached_property
    def relation(self) -> np.ndarray:
        return self._column("relation")

    @cached_property
    def object(self) -> np.ndarray:
        return self._column("object")

    @cached_property
    def step(self) -> np.ndarray:
        return self._column("step")

    @cached_property
    def tallies(self) -> tuple[np.ndarray, np.ndarray]:
        made = []
        for before, since in zip(self.base.tallies, self.delta.tallies, strict=True):
            since = since.copy()
            since[: len(before)] += before
            made.append(since)
        return made[0], made[1]


class OverlayDyads:
    """The pairs of a base and of its delta, read apart and put together."""

    def __init__(self, base: DyadMemory, delta: DyadMemory) -> None:
        self.base, self.delta = base, delta
        # a pair on disk is told by the number of entities there are
        self._known = base.width

    def __len__(self) -> int:
        return len(self.base) + len(self.delta)

    def read(
        self, actor: Tensor, candidate: Tensor, step: Tensor, k: int, window: int, until: Tensor | None = None
    ) -> PairStates:
        """As `DyadMemory.read`."""
        limit = step if until is None else until
        rows = ((actor < self._known) & (candidate < self._known)).nonzero().squeeze(1)
        new = self.delta.read(actor, candidate, step, k, 0, limit)
        wanted = 0 if len(new.row) else window
        old = self.base.read(actor[rows], candidate[rows], step[rows], k, wanted, limit[rows])
        return _together(rows, old, new, k, window)

    def partners(self, actor: Tensor, step: Tensor, k: int, window: int, until: Tensor | None = None) -> PairStates:
        """As `DyadMemory.partners`."""
        limit = step if until is None else until
        rows = (actor < self._known).nonzero().squeeze(1)
        new = self.delta.partners(actor, step, k, 0, limit)
        wanted = 0 if len(new.row) else window
        old = self.base.partners(actor[rows], step[rows], k, wanted, limit[rows])
        return _together(rows, old, new, k, window)


def _together(rows: Tensor, old: PairStates, new: PairStates, k: int, window: int) -> PairStates:
    """The states of pairs whose events lie in two memories; rows: those asked of the old.

    Both are read without a window, since the k newest of either may be needed; the old alone, as asked, where the new
    one holds nothing. Of events at the same step the new memory's are the later ones.
    """
    if not len(new.row):
        return replace(old, row=rows[old.row])
    key = torch.cat([rows[old.row] * WIDTH + old.candidate, new.row * WIDTH + new.candidate])
    keys, place = key.unique(return_inverse=True)
    parts = ((new, place[len(old.row) :], 0), (old, place[: len(old.row)], k))
    lag = torch.full((len(keys), 2 * k), _BEYOND, device=keys.device)
    relation, direction, count = torch.zeros_like(lag), torch.zeros_like(lag), torch.zeros_like(keys)
    for states, at, column in parts:
        own = slice(column, column + k)
        lag[at, own] = torch.where(states.found, states.lag, _BEYOND)
        relation[at, own], direction[at, own] = states.relation, states.direction
        count[at] += states.count
    order = lag.argsort(dim=1, stable=True)[:, :k]
    lag, relation, direction = (values.gather(1, order) for values in (lag, relation, direction))
    found = lag < _BEYOND
    if window:
        found &= lag <= window
    kept = found.any(1)
    keys, count, relation, direction, lag, found = (x[kept] for x in (keys, count, relation, direction, lag, found))
    return PairStates(keys // WIDTH, keys % WIDTH, count, relation, direction, torch.where(found, lag, 0), found)

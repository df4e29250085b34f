"""Overlay: an immutable base of events, in memory or on disk, with a small delta of those that came after it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.memory.dyads import PAIR_BITS, WIDTH, DyadMemory, PairStates

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
    keys, added = rows[old.row] * WIDTH + old.candidate, new.row * WIDTH + new.candidate
    at = torch.searchsorted(keys, added)
    # the pairs of both, which are few, are merged in their places; those of the new one alone are put among the others
    both = keys[at.clamp(max=len(keys) - 1)] == added if len(keys) else torch.zeros_like(added, dtype=torch.bool)
    known, fresh = both.nonzero().squeeze(1), (~both).nonzero().squeeze(1)
    columns = [old.count, old.relation, old.direction, old.lag, old.found]
    if len(known):
        merged = _merged(old.take(at[known]), new.take(known), k)
        # in place: what was read of the old memory is nobody else's
        columns = [c.index_copy_(0, at[known], m) for c, m in zip(columns, merged, strict=True)]
    if len(fresh):
        alone = new.take(fresh)
        values = (alone.count, alone.relation, alone.direction, alone.lag, alone.found)
        order = _inserted(len(keys), at[fresh])
        keys = torch.cat([keys, added[fresh]])[order]
        columns = [torch.cat([c, v]).index_select(0, order) for c, v in zip(columns, values, strict=True)]
    count, relation, direction, lag, found = columns
    if window:
        found = found & (lag <= window)
        kept = found.any(1).nonzero().squeeze(1)
        keys, count, relation, direction, lag, found = (
            column.index_select(0, kept) for column in (keys, count, relation, direction, lag, found)
        )
        lag = torch.where(found, lag, 0)
    return PairStates(keys >> PAIR_BITS, keys & (WIDTH - 1), count, relation, direction, lag, found)


def _merged(old: PairStates, new: PairStates, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Count, and relation, direction, lag and found of the k newest events, of pairs that lie in both memories."""
    lag = torch.cat([torch.where(states.found, states.lag, _BEYOND) for states in (new, old)], dim=1)
    order = lag.argsort(dim=1, stable=True)[:, :k]
    relation, direction = (
        torch.cat([getattr(states, name) for states in (new, old)], dim=1).gather(1, order)
        for name in ("relation", "direction")
    )
    lag = lag.gather(1, order)
    found = lag < _BEYOND
    return old.count + new.count, relation, direction, torch.where(found, lag, 0), found


def _inserted(size: int, before: Tensor) -> Tensor:
    """The order of rows with others put before some of them; the others count from `size` on. int64 [k] ascending."""
    count = len(before)
    others = torch.arange(count, device=before.device)
    order = torch.empty(size + count, dtype=torch.int64, device=before.device)
    own = torch.ones(size + count, dtype=torch.bool, device=before.device)
    own[before + others] = False
    order[before + others] = size + others
    order[own] = torch.arange(size, device=before.device)
    return order

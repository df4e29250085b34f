"""Grown: a memory on disk with the events that came after it was written, which are few and held in memory."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.memory.disk.mapped import MappedLog, memory_of
from bridgemem.memory.dyads import WIDTH, DyadMemory, PairStates
from bridgemem.memory.timeline import expand

_BEYOND = 2**62  # the lag of an event that is not there


class GrownLog(EventLog):
    """A mapped log followed by fresh events, in one total order: by step, and inside a step the mapped ones first.

    base: all events of a memory on disk. fresh: the events since, early or late, whose vocabularies begin with the
    base's. The columns of both together are put together in memory if anybody asks for them.
    """

    base: MappedLog
    fresh: EventLog

    def __init__(self, base: MappedLog, fresh: EventLog) -> None:
        names = {"base": base, "fresh": fresh, "entities": fresh.entities, "relations": fresh.relations}
        vars(self).update(names, clock=base.clock)

    def __len__(self) -> int:
        return len(self.base) + len(self.fresh)

    @property
    def start(self) -> int:
        return min((log.start for log in (self.base, self.fresh) if len(log)), default=0)

    @property
    def end(self) -> int:
        return max(self.base.end, self.fresh.end)

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(np.concatenate([self.base.step, self.fresh.step]), kind="stable")

    def _column(self, name: str) -> np.ndarray:
        column = np.concatenate([getattr(self.base, name), getattr(self.fresh, name)])[self._order]
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
        for before, since in zip(self.base.tallies, self.fresh.tallies, strict=True):
            since = since.copy()
            since[: len(before)] += before
            made.append(since)
        return made[0], made[1]

    @cached_property
    def known(self) -> np.ndarray:
        """Which fresh events are facts that the base holds too, at the same step; bool [fresh]."""
        base, fresh, memory = self.base, self.fresh, memory_of(self.base)
        found = np.zeros(len(fresh), dtype=bool)
        if memory is None:
            return found
        parties = np.maximum(fresh.subject, fresh.object)
        rows = np.flatnonzero((parties < base.n_entities) & (fresh.relation < base.n_relations))
        columns = (fresh.subject, fresh.relation, fresh.object, fresh.step)
        subject, relation, object_, step = (torch.from_numpy(c[rows].astype(np.int64)) for c in columns)
        line = memory.triples[0]
        row, at = expand(*line.at(subject * (2 * base.n_relations) + relation, step))
        found[rows[row[line.value[at] == object_[row]].numpy()]] = True
        return found

    def without_known(self) -> EventLog:
        """The fresh events that are new facts."""
        return picked(self.fresh, ~self.known)


def picked(events: EventLog, wanted: np.ndarray) -> EventLog:
    """The events where wanted, bool [n], is true."""
    columns = (events.subject, events.relation, events.object, events.step)
    subject, relation, object_, step = (c[wanted] for c in columns)
    return EventLog(subject, relation, object_, step, events.entities, events.relations, events.clock)


class GrownDyads(DyadMemory):
    """The pairs of the fresh events, which are its columns, read together with those of the memory on disk."""

    def __init__(self, old: DyadMemory, new: DyadMemory) -> None:
        end = max(old.end, new.end)
        super().__init__(new.pairs, new.start, new.step, new.relation, new.direction, end, new.width)
        self._old = old

    def read(
        self, actor: Tensor, candidate: Tensor, step: Tensor, k: int, window: int, until: Tensor | None = None
    ) -> PairStates:
        limit = step if until is None else until
        rows = ((actor < self._old.width) & (candidate < self._old.width)).nonzero().squeeze(1)
        old = self._old.read(actor[rows], candidate[rows], step[rows], k, 0, limit[rows])
        return _together(rows, old, super().read(actor, candidate, step, k, 0, limit), k, window)

    def partners(self, actor: Tensor, step: Tensor, k: int, window: int, until: Tensor | None = None) -> PairStates:
        limit = step if until is None else until
        rows = (actor < self._old.width).nonzero().squeeze(1)
        old = self._old.partners(actor[rows], step[rows], k, 0, limit[rows])
        return _together(rows, old, super().partners(actor, step, k, 0, limit), k, window)


def _together(rows: Tensor, old: PairStates, new: PairStates, k: int, window: int) -> PairStates:
    """The states of pairs whose events lie in two memories, each read without a window; rows: those asked of the old.

    Of events at the same step the new memory's are the later ones.
    """
    key = torch.cat([rows[old.row] * WIDTH + old.candidate, new.row * WIDTH + new.candidate])
    keys, place = key.unique(return_inverse=True)
    parts = ((new, place[len(old.row) :], 0), (old, place[: len(old.row)], k))
    lag = torch.full((len(keys), 2 * k), _BEYOND)
    relation, direction = torch.zeros_like(lag), torch.zeros_like(lag)
    count = torch.zeros(len(keys), dtype=torch.int64)
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
    kept = found[:, 0]
    keys, count, relation, direction, lag, found = (x[kept] for x in (keys, count, relation, direction, lag, found))
    return PairStates(keys // WIDTH, keys % WIDTH, count, relation, direction, torch.where(found, lag, 0), found)

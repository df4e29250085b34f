"""Past: what is read strictly before a step, from an immutable base and a small delta of later events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.events.queries import renumbered
from bridgemem.memory.actors import LastEvents, last_of_both
from bridgemem.memory.dyads import WIDTH, DyadMemory, PairStates
from bridgemem.memory.index import Index, Occurrences
from bridgemem.memory.overlay import Overlay, OverlayDyads
from bridgemem.memory.timeline import STEP_BITS, expand
from bridgemem.storage.allocator import return_freed


@dataclass(frozen=True)
class _Pairs:
    """The pairs of a batch: moments int64 [u], ascending, and the states of each between bounds int64 [u + 1]."""

    moments: Tensor
    bounds: Tensor
    states: PairStates


class Past:
    """Everything known, asked by step: rolling (all facts before t), or frozen at a step for multi-step forecasting.

    The base lies in memory or on disk. The delta is small: events that came since, early or late, with new names. Both
    are read apart, and the answers are those of one log that holds all of it. A past never changes: `with_delta` makes
    another one, which shares the base's indices.
    """

    def __init__(
        self,
        events: EventLog,
        frozen_at: int | None = None,
        device: str | torch.device = "cpu",
        *,
        base: Index | None = None,
    ) -> None:
        """base: the index of an overlay's base, where it is made already."""
        given = events.base if isinstance(events, Overlay) else events
        self._base = Index(given, device) if base is None else base
        self._delta = None
        self._last = threading.local()
        if isinstance(events, Overlay):
            # without any event and any name of its own a delta says nothing
            names = (events.n_entities, events.n_relations) != (given.n_entities, given.n_relations)
            if len(events.delta) or names:
                self._delta = Index(events.delta, device)
        self.events = given if self._delta is None else events
        self.frozen_at, self.device = frozen_at, torch.device(device)
        self._within: dict[tuple[int, int], Past] = {}

    @property
    def on_disk(self) -> bool:
        """Whether the base is read by memory map: what is held next to it is to stay small too."""
        return self._base.memory is not None

    def return_freed(self) -> None:
        """Where the base is on disk, give the system back the memory that reads left free."""
        if self.on_disk:
            return_freed()

    @property
    def base(self) -> EventLog:
        """The events that never change."""
        return self._base.events

    @property
    def delta(self) -> EventLog:
        """The events that came after the base, in the vocabularies of all."""
        return self._base.events.rows(0, 0) if self._delta is None else self._delta.events

    def with_delta(self, delta: EventLog) -> Past:
        """The same base with another delta, whose vocabularies begin with the base's; the base is not indexed again."""
        return Past(Overlay(self._base.events, delta), self.frozen_at, self.device, base=self._base)

    def within(self, n_entities: int, n_relations: int) -> Past:
        """The past among the first entities and relations alone, as if no others had ever come; made once."""
        if n_entities >= self.events.n_entities and n_relations >= self.events.n_relations:
            return self
        found = self._within.get((n_entities, n_relations))
        if found is None:
            base = self._base.within(n_entities, n_relations)
            log = Overlay(base.events, self.delta.within(n_entities, n_relations))
            found = Past(log, self.frozen_at, self.device, base=base)
        return self._within.setdefault((n_entities, n_relations), found)

    @property
    def indices(self) -> tuple[Index, ...]:
        """The index of the base, which all pasts on it share, and that of the delta where there is one."""
        return (self._base,) if self._delta is None else (self._base, self._delta)

    def ready(self) -> None:
        """Build what reads of triples, pairs and partners need, so that the first query does not wait for it."""
        for index in self.indices if self._delta is None else {*self.indices, self._facts}:
            index.ready()

    def cut(self, step: Tensor) -> Tensor:
        """The step up to which (excluded) a query at this step may look."""
        until = step if self.frozen_at is None else step.clamp(max=self.frozen_at)
        return self._base.cut(until) if self._delta is None else until

    def relation_key(self, actor: Any, relation: Any) -> Any:
        """One number for (actor, directed relation), of arrays or tensors."""
        return actor * (2 * self.events.n_relations) + relation

    @cached_property
    def repeated(self) -> np.ndarray:
        """Which events of the delta are facts that the base holds too, at the same step; bool [delta]."""
        return np.zeros(0, dtype=bool) if self._delta is None else self._base.holds(self._delta.events)

    @cached_property
    def _facts(self) -> Index:
        """The new facts of the delta: a fact at one step counts once, even if several events state it."""
        assert self._delta is not None
        return Index(self.delta.take(~self.repeated), self.device) if self.repeated.any() else self._delta

    def _asked_of_base(self, actor: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """The rows whose actor and relation the base knows, and their directed relations as it numbers them."""
        own, base = self.events.n_relations, self._base.events
        rows = ((actor < base.n_entities) & (relation % own < base.n_relations)).nonzero().squeeze(1)
        return rows, renumbered(relation[rows], own, base.n_relations)

    def told(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """(row, step) of every past fact of the actor of each query under its directed relation, once a snapshot."""
        until = self.cut(step)
        if self._delta is None:
            return self._base.told(actor, relation, until)
        rows, asked = self._asked_of_base(actor, relation)
        old = self._base.told(actor[rows], asked, until[rows])
        new = self._facts.told(actor, relation, until)
        row, when = torch.cat([rows[old[0]], new[0]]), torch.cat([old[1], new[1]])
        order = (row << STEP_BITS | when).argsort(stable=True)
        return row[order], when[order]

    def occurrences(self, actor: Tensor, relation: Tensor, step: Tensor) -> Occurrences:
        """With whom the actor of each query did its directed relation before, how often, and when last."""
        # several scorers read the same of one batch: the very tensors of the last call are answered at once
        asked, last = (actor, relation, step), getattr(self._last, "read", None)
        if last is None or any(a is not b for a, b in zip(last[0], asked, strict=True)):
            self._last.read = last = (asked, self._occurrences(*asked))
        return last[1]

    def _occurrences(self, actor: Tensor, relation: Tensor, step: Tensor) -> Occurrences:
        until = self.cut(step)
        if self._delta is None:
            return self._base.occurrences(actor, relation, until)
        rows, asked = self._asked_of_base(actor, relation)
        old = self._base.occurrences(actor[rows], asked, until[rows])
        new = self._facts.occurrences(actor, relation, until)
        if not len(new.row):
            return replace(old, row=rows[old.row])
        key = torch.cat([rows[old.row] * WIDTH + old.candidate, new.row * WIDTH + new.candidate])
        keys, place = key.unique(return_inverse=True)
        last = torch.zeros_like(keys).scatter_reduce_(0, place, torch.cat([old.step, new.step]), "amax")
        count = torch.zeros_like(keys).index_add_(0, place, torch.cat([old.count, new.count]))
        row = keys // WIDTH
        # inside a row by the time of the last occurrence, as in one index
        order = (row << STEP_BITS | last).argsort(stable=True)
        return Occurrences(row[order], (keys % WIDTH)[order], last[order], count[order])

    def happened(self, actor: Tensor, relation: Tensor, candidate: Tensor, step: Tensor) -> Tensor:
        """Whether (actor, directed relation, candidate) occurred before the step; bool [n]."""
        seen = self.occurrences(actor, relation, step)
        hits = seen.row[seen.candidate == candidate[seen.row]]
        return torch.zeros(len(actor), dtype=torch.bool, device=actor.device).index_fill_(0, hits, True)

    @cached_property
    def dyads(self) -> DyadMemory | OverlayDyads:
        """The events of every pair, either way round."""
        return self._base.dyads if self._delta is None else OverlayDyads(self._base.dyads, self._delta.dyads)

    @contextmanager
    def reading_once(self, actor: Tensor, step: Tensor, k: int) -> Iterator[None]:
        """Read the pairs of a batch of queries once: whatever this thread asks of them within is taken from it."""
        moments, entities = self._moments(actor, step).unique(), self.events.n_entities
        actor, step = moments % entities, moments // entities
        states = self.dyads.partners(actor, step, k, 0, self.cut(step))
        bounds = torch.searchsorted(states.row, torch.arange(len(moments) + 1, device=moments.device))
        self._last.pairs = _Pairs(moments, bounds, states)
        try:
            yield
        finally:
            self._last.pairs = None

    def _moments(self, actor: Tensor, step: Tensor) -> Tensor:
        """One number for (step, actor), all that the states of pairs depend on."""
        return step * self.events.n_entities + actor

    def partners(self, actor: Tensor, step: Tensor, k: int, window: int = 0) -> PairStates:
        """The states of everyone that an actor interacted with in the window, as `DyadMemory.partners` gives them."""
        pairs: _Pairs | None = getattr(self._last, "pairs", None)
        whole = pairs is not None and not window and k == pairs.states.lag.shape[1]
        if pairs is not None and whole and torch.equal(self._moments(actor, step), pairs.moments):
            return pairs.states
        if (found := self._read_before(actor, step, k)) is None:
            return self.dyads.partners(actor, step, k, window, self.cut(step))
        row, at, states = found
        if window:
            near = (states.lag[:, 0] <= window)[at].nonzero().squeeze(1)
            row, at = row[near], at[near]
        count, *events = (
            column[..., :k].index_select(0, at) if column.dim() == 2 else column[at]
            for column in (states.count, states.relation, states.direction, states.lag, states.found)
        )
        relation, direction, lag, seen = events
        return PairStates(
            row, states.candidate[at], count, relation, direction, lag, seen & (lag <= window) if window else seen
        )

    def _read_before(self, actor: Tensor, step: Tensor, k: int) -> tuple[Tensor, Tensor, PairStates] | None:
        """What was read of the batch; None where it does not hold all that is asked.

        Returns:
            row, at int64 [m]: the query, and the place of a state of it among the states; the states.
        """
        pairs: _Pairs | None = getattr(self._last, "pairs", None)
        if pairs is None or k > pairs.states.lag.shape[1] or not len(pairs.moments):
            return None
        asked = self._moments(actor, step)
        place = torch.searchsorted(pairs.moments, asked).clamp_(max=len(pairs.moments) - 1)
        if not torch.equal(pairs.moments[place], asked):
            return None
        return *expand(pairs.bounds[place], pairs.bounds[place + 1]), pairs.states

    def last_events(self, actor: Tensor, step: Tensor, k: int) -> LastEvents:
        """The last k events of each actor before the step, in either role."""
        until = self.cut(step)
        if self._delta is None:
            return self._base.by_actor.last(actor, step, k, until)
        base, own = self._base.events, self.events.n_relations
        rows = (actor < base.n_entities).nonzero().squeeze(1)
        old = self._base.by_actor.last(actor[rows], step[rows], k, self._base.cut(until[rows]))
        old = replace(old, relation=renumbered(old.relation, base.n_relations, own))
        return last_of_both(rows, old, self._delta.by_actor.last(actor, step, k, until))

    def seen_in_role(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """(row, candidate) of all partners of the actor in the role the relation gives it, under any relation."""
        role, until = relation // self.events.n_relations, self.cut(step)
        if self._delta is None:
            return self._base.seen_in_role(actor, role, until)
        rows = (actor < self._base.events.n_entities).nonzero().squeeze(1)
        old = self._base.seen_in_role(actor[rows], role[rows], until[rows])
        return _either(rows, old, self._delta.seen_in_role(actor, role, until))

    def seen(self, actor: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """(row, candidate) of all that the actor has interacted with under any relation, either way round."""
        if (read := self._read_before(actor, step, 1)) is not None:
            return read[0], read[2].candidate[read[1]]
        until = self.cut(step)
        if self._delta is None:
            return self._base.seen(actor, until)
        rows = (actor < self._base.events.n_entities).nonzero().squeeze(1)
        return _either(rows, self._base.seen(actor[rows], until[rows]), self._delta.seen(actor, until))


def _either(rows: Tensor, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Each (row, candidate) of either answer once; rows: those that were asked of the base."""
    keys = torch.cat([rows[old[0]] * WIDTH + old[1], new[0] * WIDTH + new[1]]).unique()
    return keys // WIDTH, keys % WIDTH

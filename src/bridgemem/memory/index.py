"""Index: the lookups of one immutable log, built in memory on first use or read from a folder by memory map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.log import KEYS, EventLog
from bridgemem.events.queries import renumbered
from bridgemem.memory.actors import ActorEvents
from bridgemem.memory.disk.mapped import memory_of
from bridgemem.memory.dyads import DyadMemory
from bridgemem.memory.occurrences import first_meetings, occurrence_lines
from bridgemem.memory.timeline import Timeline, expand

Made = TypeVar("Made")


@dataclass(frozen=True)
class Occurrences:
    """What the actor of each query did under its relation before: every candidate once, flat, ordered by row.

    row int64 [m] of the batch; candidate int64 [m]; step int64 [m] of the last occurrence; count int64 [m]: the
    snapshots in which (actor, relation, candidate) occurred.
    """

    row: Tensor
    candidate: Tensor
    step: Tensor
    count: Tensor


class Index:
    """Reads of one log. `until` int64 [n]: only facts before it are read."""

    def __init__(self, events: EventLog, device: str | torch.device = "cpu") -> None:
        if events.n_entities * 2 * events.n_relations >= KEYS:
            raise DataError(
                f"{events.n_entities:,} entities under {events.n_relations:,} relations, either way round, are more "
                "than the 2^32 pairs that can be told apart: merge or drop rare ones."
            )
        self.events, self.device = events, torch.device(device)
        self.memory = memory_of(events)
        if self.memory is not None and self.device.type != "cpu":
            raise SettingsError("a memory on disk is read by the CPU: leave --device or --memory-dir out.")
        # what lies on disk may reach beyond these events: then it ends where they do
        self.limit = None if self.memory is None or self.memory.end == events.end else events.end
        self._within: dict[tuple[int, int], Index] = {}
        self._once: dict[object, Any] = {}

    def within(self, n_entities: int, n_relations: int) -> Index:
        """The index of the events among the first entities and relations alone, built once."""
        own = self.events.n_entities, self.events.n_relations
        key = (min(n_entities, own[0]), min(n_relations, own[1]))
        if key == own:
            return self
        return self._within.get(key) or self._within.setdefault(key, Index(self.events.within(*key), self.device))

    def before(self, step: int, n_entities: int, n_relations: int) -> Index:
        """The index of the events before a step, none of which has a later name than the first ones; of those alone."""
        return CutIndex(self, step, n_entities, n_relations)

    def once(self, make: Callable[[Index], Made]) -> Made:
        """What a function makes of this index, made once and kept with it."""
        if make not in self._once:
            self._once.setdefault(make, make(self))
        return self._once[make]

    def ready(self) -> None:
        """Build the lookups of triples, pairs and partners."""
        if self.events.n_entities and self.events.n_relations:
            self.dyads.ready()
            _ = self.triples, self.first_met

    def trim(self) -> None:
        """Let go of mapped pages where more are resident than may be."""
        if self.memory is not None:
            self.memory.trim()

    def cut(self, until: Tensor) -> Tensor:
        """The step up to which (excluded) the events of this log reach."""
        return until if self.limit is None else until.clamp(max=self.limit)

    def relation_key(self, actor: Any, relation: Any) -> Any:
        """One number for (actor, directed relation), of arrays or tensors."""
        return actor * (2 * self.events.n_relations) + relation

    def _directed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Actor, directed relation, candidate and step of both sides of every event, int64 [2n]."""
        e, relations = self.events, self.events.n_relations
        actor = np.concatenate([e.subject, e.object]).astype(np.int64)
        relation = np.concatenate([e.relation, e.relation.astype(np.int64) + relations])
        candidate = np.concatenate([e.object, e.subject]).astype(np.int64)
        return actor, relation, candidate, np.concatenate([e.step, e.step]).astype(np.int64)

    @cached_property
    def triples(self) -> tuple[Timeline, Tensor, Tensor]:
        """Occurrences under (actor, directed relation), one a snapshot; the count at each, and the step of the next."""
        if self.memory is not None:
            return self.memory.triples
        actor, relation, candidate, step = self._directed()
        return occurrence_lines(self.relation_key(actor, relation), candidate, step, self.device)

    def occurrence_slices(self, actor: Tensor, relation: Tensor, until: Tensor) -> tuple[Tensor, Tensor]:
        """Where the past occurrences of each query lie, for `occurrences_in`."""
        self.trim()
        return self.triples[0].before(self.relation_key(actor, relation), self.cut(until))

    def occurrences_in(self, start: Tensor, stop: Tensor, until: Tensor, size: int | None = None) -> Occurrences:
        """The occurrences in given slices; naming the slices' total length spares a device the wait for it."""
        line, count, following = self.triples
        row, at = expand(start, stop, size)
        # of the snapshots of one triple only the last before the query knows the whole count
        last = (following[at] >= self.cut(until)[row]).nonzero().squeeze(1)
        row, at = row[last], at[last]
        found = Timeline(line.codes[at], line.value[at].long())
        return Occurrences(row, found.value, found.step, count[at].long())

    def occurrences(self, actor: Tensor, relation: Tensor, until: Tensor) -> Occurrences:
        return self.occurrences_in(*self.occurrence_slices(actor, relation, until), until)

    def told(self, actor: Tensor, relation: Tensor, until: Tensor) -> tuple[Tensor, Tensor]:
        """(row, step) of every fact of the actor under its directed relation, once a snapshot."""
        row, at = expand(*self.occurrence_slices(actor, relation, until))
        return row, Timeline(self.triples[0].codes[at], at).step

    def holds(self, events: EventLog) -> np.ndarray:
        """Which of other events, whose vocabularies begin with the own, are facts here at the same step; bool [n]."""
        found, own = np.zeros(len(events), dtype=bool), self.events
        known = (np.maximum(events.subject, events.object) < own.n_entities) & (events.relation < own.n_relations)
        rows = np.flatnonzero(known & (events.step < own.end))
        if not len(rows):
            return found
        columns = (events.subject, events.relation, events.object, events.step)
        subject, relation, object_, step = (torch.from_numpy(c[rows].astype(np.int64)).to(self.device) for c in columns)
        line = self.triples[0]
        row, at = expand(*line.at(self.relation_key(subject, relation), step))
        same = row[line.value[at] == object_[row]]
        found[rows[same.cpu().numpy()]] = True
        return found

    @cached_property
    def dyads(self) -> DyadMemory:
        """The events of every pair, either way round."""
        if self.memory is not None:
            return self.memory.dyads(self.events.end)
        return DyadMemory.build(self.events, self.device)

    @cached_property
    def by_actor(self) -> ActorEvents:
        """The events of every actor in time order; also those of a folder are put in order in memory."""
        return ActorEvents.build(self.events, self.device)

    @cached_property
    def first_in_role(self) -> Timeline:
        """Each candidate of an actor in one of its two roles, at their first meeting."""
        if self.memory is not None:
            return self.memory.seen_in_role
        actor, relation, candidate, step = self._directed()
        return first_meetings(actor * 2 + (relation >= self.events.n_relations), candidate, step, self.device)

    @cached_property
    def first_met(self) -> Timeline:
        """Each candidate of an actor, at their first meeting."""
        if self.memory is not None:
            return self.memory.seen
        actor, _, candidate, step = self._directed()
        return first_meetings(actor, candidate, step, self.device)

    def seen_in_role(self, actor: Tensor, role: Tensor, until: Tensor) -> tuple[Tensor, Tensor]:
        """(row, candidate) of all that the actor has interacted with as subject, role 0, or as object, role 1."""
        row, at = expand(*self.first_in_role.before(actor * 2 + role, self.cut(until)))
        return row, self.first_in_role.value[at].long()

    def seen(self, actor: Tensor, until: Tensor) -> tuple[Tensor, Tensor]:
        """(row, candidate) of all that the actor has interacted with under any relation, either way round."""
        row, at = expand(*self.first_met.before(actor, self.cut(until)))
        return row, self.first_met.value[at].long()


class CutIndex(Index):
    """A log in memory without its events from a step on: they are cut off in every read, and nothing is built again.

    No event before the step has a later name than the first ones. What is not shared is made of the events.
    """

    def __init__(self, whole: Index, step: int, n_entities: int, n_relations: int) -> None:
        super().__init__(whole.events.prefix(step).within(n_entities, n_relations), whole.device)
        self.whole, self.limit = whole, step

    def before(self, step: int, n_entities: int, n_relations: int) -> Index:
        return self.whole.before(min(step, self.end), n_entities, n_relations)

    @property
    def end(self) -> int:
        assert self.limit is not None
        return self.limit

    def within(self, n_entities: int, n_relations: int) -> Index:
        own, whole = (self.events.n_entities, self.events.n_relations), self.whole
        key = (min(n_entities, own[0]), min(n_relations, own[1]))
        if key == own:
            return self
        if key not in self._within:
            # one with all names of a kind is there already where the whole was asked before
            every = whole.events.n_entities, whole.events.n_relations
            asked = [of if k == o else k for of, k, o in zip(every, key, own, strict=True)]
            self._within.setdefault(key, whole.within(*asked).before(self.end, *key))
        return self._within[key]

    def relation_key(self, actor: Any, relation: Any) -> Any:
        return self.whole.relation_key(
            actor, renumbered(relation, self.events.n_relations, self.whole.events.n_relations)
        )

    @cached_property
    def triples(self) -> tuple[Timeline, Tensor, Tensor]:
        return self.whole.triples

    @cached_property
    def dyads(self) -> DyadMemory:
        return self.whole.dyads.before(self.end, self.events.n_entities)

    @cached_property
    def by_actor(self) -> ActorEvents:
        own, whole, found = self.events.n_relations, self.whole.events.n_relations, self.whole.by_actor
        return found if own == whole else ActorEvents(found.line, renumbered(found.relation, whole, own))

    @cached_property
    def first_in_role(self) -> Timeline:
        return self.whole.first_in_role

    @cached_property
    def first_met(self) -> Timeline:
        return self.whole.first_met

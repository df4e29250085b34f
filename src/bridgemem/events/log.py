"""EventLog: what happened, as immutable columns in one total order, with the names of the ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self, overload

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.clock import DAY, Clock
from bridgemem.events.names import Names
from bridgemem.events.vocabulary import Vocabulary
from bridgemem.showing import SHOWN, as_frame, html_table

# the parts of a log, which most callers want next to it
__all__ = ["DAY", "KEYS", "Clock", "Columns", "Event", "EventLog", "Vocabulary"]

Columns = np.ndarray

KEYS = 2**32  # pairs of an entity and a directed relation that fit above a step in an int64


class Event(NamedTuple):
    """One event by name, and its time as the data set writes it."""

    subject: str
    relation: str
    object: str
    time: str


@dataclass(frozen=True, eq=False)
class EventLog:
    """Events in total order: by step, and within a step as they stood in the file.

    Duplicates and self loops are events like any other.

    Args:
        subject: Ids of entities, int32 [n].
        relation: Ids of relations, int32 [n].
        object: Ids of entities, int32 [n].
        step: Time steps, int32 [n], ascending.
        entities: The names of entities.
        relations: The names of relations.
        clock: The map between steps and times.

    Raises:
        DataError: Columns differ in length, are not in order, or hold an id without a name.

    Example:
        >>> events = data.events
        >>> events[0]
        Event(subject='Joram Dramisson', relation='negotiate', object='Katla Velthesson', time='2030-01-01')
    """

    subject: Columns
    relation: Columns
    object: Columns
    step: Columns
    entities: Vocabulary
    relations: Vocabulary
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        for name in ("subject", "relation", "object", "step"):
            given = np.asarray(getattr(self, name))
            column = np.ascontiguousarray(given, dtype=np.int32).view()
            if given.dtype != np.int32 and not np.array_equal(given, column):
                raise DataError(f"the {name} column holds a value that is not a whole number below 2^31; give ids.")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        sizes = {len(self.subject), len(self.relation), len(self.object), len(self.step)}
        if len(sizes) != 1:
            raise DataError("the columns subject, relation, object and step must have equal length.")
        if len(self) and (np.diff(self.step) < 0).any():
            raise DataError("events must be ordered by step; EventLog.from_columns sorts them.")
        for name, bound in (("subject", self.n_entities), ("object", self.n_entities), ("relation", self.n_relations)):
            column = getattr(self, name)
            if len(column) and not (column.min() >= 0 and column.max() < bound):
                raise DataError(f"the {name} column holds an id outside 0..{bound - 1}; give ids of the vocabulary.")
        if len(self) and self.step[0] < 0:
            raise DataError("steps must not be negative.")
        if len(self) and not (self.clock.holds(self.step[0]) and self.clock.holds(self.step[-1])):
            raise DataError(
                "the clock puts an event outside of the calendar, or at a time of more than 18 digits; check it."
            )

    @classmethod
    def from_columns(
        cls,
        subject: Columns,
        relation: Columns,
        object: Columns,
        step: Columns,
        entities: Vocabulary,
        relations: Vocabulary,
        clock: Clock | None = None,
    ) -> EventLog:
        """Make a log from columns in any order: sorted by step, the given order kept within a step.

        Args:
            subject: Ids of entities.
            relation: Ids of relations.
            object: Ids of entities.
            step: Time steps.
            entities: The names of entities.
            relations: The names of relations.
            clock: The map between steps and times (default: steps are times).

        Returns:
            The log.

        Example:
            >>> names, kinds = data.entities, data.relations
            >>> bm.EventLog.from_columns([0, 1], [0, 0], [1, 2], [5, 3], names, kinds).step.tolist()
            [3, 5]
        """
        order = np.argsort(step, kind="stable")
        return cls(
            np.asarray(subject)[order],
            np.asarray(relation)[order],
            np.asarray(object)[order],
            np.asarray(step)[order],
            entities,
            relations,
            clock or Clock(),
        )

    def __len__(self) -> int:
        return len(self.subject)

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice | Columns) -> EventLog: ...
    def __getitem__(self, place: int | slice | Columns) -> Event | EventLog:
        """One event by name; the events of a slice, or as `take` has them."""
        if not isinstance(place, int | np.integer):
            return self.take(place)
        who, what = self.entities.names, self.relations.names
        subject, relation, object_, step = (
            int(c[place]) for c in (self.subject, self.relation, self.object, self.step)
        )
        return Event(who[subject], what[relation], who[object_], self.clock.label(step))

    def __iter__(self) -> Iterator[Event]:
        return (self[place] for place in range(len(self)))

    def to_frame(self) -> Any:
        """Make a data frame of subject, relation, object and time.

        Times are dates where the data set has dates, and else whole numbers.

        Returns:
            A pandas data frame; a dict of columns where pandas is not installed.

        Example:
            >>> list(data.events.to_frame())
            ['subject', 'relation', 'object', 'time']
        """
        who, what = (np.array(names, dtype=object) for names in (self.entities.names, self.relations.names))
        time = self.clock.origin + self.step.astype(np.int64) * self.clock.unit
        return as_frame(
            {
                "subject": who[self.subject],
                "relation": what[self.relation],
                "object": who[self.object],
                "time": time.astype("datetime64[s]") if self.clock.kind == "date" else time,
            }
        )

    def described(self) -> str:
        """Describe sizes, span and step in one line.

        Returns:
            The line.

        Example:
            >>> data.events.described()
            '2,400 events, 30 entities, 8 relations, 2030-01-01 to 2030-03-01 in steps of 1 day'
        """
        sizes = f"{len(self):,} events, {self.n_entities:,} entities, {self.n_relations:,} relations"
        if not len(self):
            return sizes
        first, last = (self.clock.label(step) for step in (self.start, self.end - 1))
        return f"{sizes}, {first} to {last} in steps of {self.clock.length()}"

    def __repr__(self) -> str:
        return f"EventLog({self.described()})"

    def _repr_html_(self) -> str:
        rows = (self[place] for place in range(min(len(self), SHOWN)))
        more = f"{len(self) - SHOWN:,} more" if len(self) > SHOWN else ""
        return html_table(self.described(), Event._fields, rows, more)

    @property
    def n_entities(self) -> int:
        """The number of entities."""
        return len(self.entities)

    @property
    def n_relations(self) -> int:
        """The number of relations."""
        return len(self.relations)

    @property
    def start(self) -> int:
        """The step of the first event, which may be far from 0 where times are whole numbers."""
        return int(self.step[0]) if len(self) else 0

    @property
    def end(self) -> int:
        """The first step after the last event: the earliest step a forecast of the unknown can ask for."""
        return int(self.step[-1]) + 1 if len(self) else 0

    def with_vocabularies(self, entities: Vocabulary, relations: Vocabulary) -> Self:
        """Exchange the vocabularies for ones that know more of the same names, such as labels.

        Args:
            entities: The names of entities.
            relations: The names of relations.

        Returns:
            A log of the same events.

        Example:
            >>> len(data.events.with_vocabularies(data.entities, data.relations))
            2400
        """
        made = copy(self)
        for derived in ("entity_names", "relation_names"):
            vars(made).pop(derived, None)
        vars(made).update(entities=entities, relations=relations)
        return made

    def rows(self, start: int, stop: int) -> EventLog:
        """Get the events at positions start to stop - 1, sharing memory with this log.

        Args:
            start: The first position.
            stop: The position after the last.

        Returns:
            A log of these events.

        Example:
            >>> len(data.events.rows(10, 20))
            10
        """
        part = slice(start, stop)
        return EventLog(
            self.subject[part],
            self.relation[part],
            self.object[part],
            self.step[part],
            self.entities,
            self.relations,
            self.clock,
        )

    def take(self, rows: slice | Columns) -> EventLog:
        """Get the events at given positions.

        Args:
            rows: A slice, ascending positions int64 [m], or a mask bool [n].

        Returns:
            A log of these events.

        Example:
            >>> len(data.events.take(data.events.relation == 0))
            524
        """
        columns = self.subject, self.relation, self.object, self.step
        subject, relation, object_, step = (column[rows] for column in columns)
        return EventLog(subject, relation, object_, step, self.entities, self.relations, self.clock)

    def within(self, n_entities: int, n_relations: int) -> EventLog:
        """Keep the events among the first entities and relations alone.

        Args:
            n_entities: How many entities.
            n_relations: How many relations.

        Returns:
            A log with vocabularies of at most these sizes.

        Example:
            >>> data.events.within(10, 4).n_entities
            10
        """
        if n_entities >= self.n_entities and n_relations >= self.n_relations:
            return self
        own = (self.subject < n_entities) & (self.object < n_entities) & (self.relation < n_relations)
        names = self.entities.first(n_entities), self.relations.first(n_relations)
        return EventLog(self.subject[own], self.relation[own], self.object[own], self.step[own], *names, self.clock)

    def between(self, start: int, stop: int) -> EventLog:
        """Get the events with start <= step < stop.

        Args:
            start: The first step.
            stop: The step after the last.

        Returns:
            A log of these events.

        Example:
            >>> data.events.between(10, 20).start >= 10
            True
        """
        lo, hi = np.searchsorted(self.step, [start, stop])
        return self.rows(int(lo), int(hi))

    def prefix(self, step: int) -> EventLog:
        """Get the past of a step: the events strictly before it.

        Args:
            step: The step.

        Returns:
            A log of these events.

        Example:
            >>> data.events.prefix(10).end
            10
        """
        return self.rows(0, int(np.searchsorted(self.step, step)))

    def append(self, later: EventLog) -> EventLog:
        """Append events that are not earlier than the last one.

        Args:
            later: The events, in the same vocabularies.

        Returns:
            A log of both.

        Raises:
            DataError: An event is earlier than the last one of this log.

        Example:
            >>> past, rest = data.events.prefix(30), data.events.between(30, 60)
            >>> len(past.append(rest))
            2400
        """
        if len(later) and len(self) and later.step[0] < self.step[-1]:
            raise DataError("appended events must not be earlier than the last event of the log.")
        return EventLog(
            np.concatenate([self.subject, later.subject]),
            np.concatenate([self.relation, later.relation]),
            np.concatenate([self.object, later.object]),
            np.concatenate([self.step, later.step]),
            later.entities,
            later.relations,
            self.clock,
        )

    @cached_property
    def tallies(self) -> tuple[Columns, Columns]:
        """How many events every entity, on either side, and every relation has: int64 [entities], int64 [relations]."""
        entities, relations = np.zeros(self.n_entities, np.int64), np.zeros(self.n_relations, np.int64)
        # in blocks, since the columns may be mapped and larger than the memory
        for at in range(0, len(self), 1 << 22):
            part = slice(at, at + (1 << 22))
            for column in (self.subject, self.object):
                entities += np.bincount(column[part], minlength=self.n_entities)
            relations += np.bincount(self.relation[part], minlength=self.n_relations)
        return entities, relations

    @cached_property
    def entity_names(self) -> Names:
        """The entities, searched by what people type, the most active first."""
        return Names(self.entities.kind, self.entities.names, self.tallies[0])

    @cached_property
    def relation_names(self) -> Names:
        """The relations, searched by what people type, the most frequent first."""
        relations = self.relations
        labels = list(map(relations.label, relations.names)) if relations.labels else None
        return Names(relations.kind, relations.names, self.tallies[1], labels=labels)

    def entity_id(self, name: str | int) -> int:
        """Find the id of an entity.

        Args:
            name: A name as text, or an id as an int.

        Returns:
            The id.

        Raises:
            NotFoundError: There is no such entity; the most active ones that come close are suggested.

        Example:
            >>> data.events.entity_id(data.entities[3])
            3
        """
        found = self.entities.get(name)
        if found is None:
            raise self.entities.unknown(name, self.entity_names)
        return found

    def relation_id(self, name: str | int) -> int:
        """Find the id of a relation.

        Args:
            name: A name as text, or an id as an int.

        Returns:
            The id.

        Raises:
            NotFoundError: There is no such relation; the most frequent ones that come close are suggested.

        Example:
            >>> data.events.relation_id("consult")
            0
        """
        found = self.relations.get(name)
        if found is None:
            raise self.relations.unknown(name, self.relation_names)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the content: the events in order and the sizes of the vocabularies."""
        digest = hashlib.sha256(f"{self.n_entities} {self.n_relations} {len(self)}".encode())
        for column in (self.subject, self.relation, self.object, self.step):
            digest.update(column.astype("<i4").tobytes())
        return digest.hexdigest()[:16]

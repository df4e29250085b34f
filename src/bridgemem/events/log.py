"""EventLog: what happened, as immutable columns in one total order, with the names of the ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple, Self, overload

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.dates import FIRST_SECOND, LAST_SECOND, parse_date
from bridgemem.events.names import Names
from bridgemem.showing import SHOWN, as_frame, first_few, html_table

Columns = np.ndarray

DAY = 86_400
UNITS = ((7 * DAY, "week"), (DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
LAST_TIME = 10**18 - 1  # a time has at most 18 digits, and so fits into 64 bits
KEYS = 2**32  # pairs of an entity and a directed relation that fit above a step in an int64


class Event(NamedTuple):
    """One event by name, and its time as the data set writes it."""

    subject: str
    relation: str
    object: str
    time: str


class Ids(Mapping[str, int]):
    """The ids of names, most of them in a dict that all vocabularies which follow one another share."""

    def __init__(self, first: dict[str, int], since: dict[str, int]) -> None:
        self._first, self._since = first, since

    @classmethod
    def of(cls, ids: Mapping[str, int]) -> Ids:
        return ids if isinstance(ids, Ids) else cls(ids if isinstance(ids, dict) else dict(ids), {})

    def followed_by(self, ids: dict[str, int]) -> Ids:
        """These and others, which it lacks."""
        if len(self._since) > len(self._first):
            return Ids(dict(self), ids)  # so that what is copied each time stays the smaller part
        return Ids(self._first, self._since | ids)

    def __getitem__(self, name: str) -> int:
        found = self._first.get(name)
        return self._since[name] if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self._first or name in self._since

    def __len__(self) -> int:
        return len(self._first) + len(self._since)

    def __iter__(self) -> Iterator[str]:
        yield from self._first
        yield from self._since


@dataclass(frozen=True)
class Vocabulary:
    """Names of entities or relations; the id of a name is its position.

    aliases: other names under which some of these are known; see aliases.py. labels: words for names that are codes.
    types: what an id file says of a name besides its id, by name; several columns with tabs between them.

    Example:
        >>> names = Vocabulary("entity", ("Iran", "Iraq", "China"))
        >>> names[0], names[1:], names.id("China"), "Iran" in names
        ('Iran', ('Iraq', 'China'), 2, True)
        >>> names.find("ira")
        ['Iran', 'Iraq']
    """

    kind: str
    names: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    labels: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    types: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        return self.names[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.ids or (isinstance(name, str) and self.aliases.get(name) in self.ids)

    def find(self, text: str, *, most: int = 10) -> list[str]:
        """The names that a text may mean, the best first; codes are found by their words too."""
        labels = list(map(self.label, self.names)) if self.labels else None
        return [found.name for found in Names(self.kind, self.names, labels=labels).search(text, most)]

    def to_frame(self) -> Any:
        """A pandas data frame of ids, names and types, if any; a dict of columns where pandas is not installed."""
        types = {"type": [self.types.get(name, "") for name in self.names]} if self.types else {}
        return as_frame({"id": np.arange(len(self)), self.kind: list(self.names), **types})

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind!r}, {len(self):,} names: {first_few(self.names)})"

    def _repr_html_(self) -> str:
        more = f"{len(self) - SHOWN:,} more" if len(self) > SHOWN else ""
        return html_table(f"{len(self):,} names", ["id", self.kind], enumerate(self.names[:SHOWN]), more)

    def first(self, size: int) -> Vocabulary:
        """The first names alone."""
        return self if size >= len(self) else replace(self, names=self.names[:size])

    def followed_by(self, names: Sequence[str]) -> Vocabulary:
        """These names and, after them, others that it lacks."""
        made = replace(self, names=(*self.names, *names))
        vars(made)["ids"] = Ids.of(self.ids).followed_by({name: i for i, name in enumerate(names, len(self))})
        return made

    def label(self, name: str) -> str | None:
        """The words for a name that is a code, with the code in brackets; None where it has none."""
        return f"{self.labels[name]} ({name})" if name in self.labels else None

    def shown(self, id: int) -> str:
        """The name of an id for people: with its words where it is a code."""
        return self.label(self.names[id]) or self.names[id]

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The id of every name; of two equal names the first."""
        return {name: i for i, name in reversed(list(enumerate(self.names)))}

    @cached_property
    def numbers(self) -> bool:
        """Whether all names are whole numbers themselves, as where a file gives ids without names.

        Codes with leading zeros, as CAMEO's 020, are names.
        """
        return all(name.isdecimal() and (name == "0" or name[0] != "0") for name in self.names)

    def get(self, name: str | int) -> int | None:
        """The id of a name, or None; a number (or its digits, when no name matches) is taken as the id itself.

        Where the names are numbers, a number is one of them and never the id of another.
        """
        text = str(name)
        if text in self.ids and (self.numbers or isinstance(name, str)):
            return self.ids[text]
        if text in self.aliases:
            return self.ids.get(self.aliases[text])
        # no id has as many digits as make a number that int() refuses to read
        if not self.numbers and text.isdecimal() and len(text) < 20 and int(text) < len(self):
            return int(text)
        return None

    def id(self, name: str | int) -> int:
        """The id of a name, as `get` finds it, or an error with names that may have been meant."""
        found = self.get(name)
        if found is None:
            raise Names(self.kind, self.names).unknown(str(name))
        return found


@dataclass(frozen=True)
class Clock:
    """The map between steps and the user's own times: time = origin + step * unit.

    kind "integer": origin and unit are in the file's own time units.
    kind "date": origin and unit are seconds since 1970-01-01 UTC.
    """

    kind: str = "integer"
    origin: int = 0
    unit: int = 1

    def __post_init__(self) -> None:
        numbers = all(isinstance(n, int | np.integer) and type(n) is not bool for n in (self.origin, self.unit))
        if self.kind not in ("integer", "date") or not numbers:
            raise DataError(
                "a clock must be of kind integer or date, with an origin and a unit that are whole numbers."
            )
        # the first step may begin before the first event, by less than the longest step
        first, last = (FIRST_SECOND - 2**31, LAST_SECOND) if self.kind == "date" else (-LAST_TIME, LAST_TIME)
        if not (first <= self.origin <= last and 1 <= self.unit <= LAST_TIME):
            raise DataError(
                "a clock must begin within the years 1 to 9999, or at a number of at most 18 digits, and have steps "
                "of at least 1."
            )

    def holds(self, step: int) -> bool:
        """Whether a step has a time: one of at most 18 digits, or one that reaches into the calendar."""
        time = self.origin + int(step) * self.unit
        if self.kind == "integer":
            return abs(time) <= LAST_TIME
        return FIRST_SECOND - self.unit < time <= LAST_SECOND

    def label(self, step: int) -> str:
        """The time of a step as a user writes it."""
        time = self.origin + int(step) * self.unit
        if self.kind == "integer":
            return str(time)
        try:
            moment = datetime(1970, 1, 1) + timedelta(seconds=time)
        except OverflowError:  # a step next to data at the ends of the calendar
            return f"{time} seconds after 1970"
        # the hour is left out where it is midnight at every step, so that the label always leads back to its step
        days = self.unit % DAY == 0 and self.origin % DAY == 0
        return moment.date().isoformat() if days else moment.isoformat(" ")

    def length(self) -> str:
        """How long a step is, in words."""
        if self.kind == "integer":
            return f"{self.unit:,} unit{'s' * (self.unit > 1)} of the times"
        size, name = next((size, name) for size, name in UNITS if self.unit % size == 0)
        count = self.unit // size
        return f"{count:,} {name}{'s' * (count > 1)}"

    def step(self, time: str | int) -> int:
        """The step that a user's time falls into; on a clock of dates bare digits are 20141201 or an epoch time."""
        if self.kind == "date":
            return (_moment(str(time).strip()) - self.origin) // self.unit
        try:
            return (int(time) - self.origin) // self.unit
        except ValueError:
            raise DataError(f"{str(time)[:40]!r} is not a time of this data set: give a whole number.") from None


def _moment(text: str) -> int:
    """Seconds since 1970-01-01 UTC of a time as a user writes it."""
    if not text.isdecimal() or len(text) in (8, 14):
        return parse_date(text)
    # fewer digits are a year or a step number far more often than a second of the last century
    if len(text) > 99 or int(text) < 10**9:
        raise DataError(f"{text[:40]!r} is a bare number, and this data set has dates: write it as 2014-12-01.")
    return int(text) // (1000 if len(text) == 13 else 1)


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
            name: A name, or an id.

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
            raise self.entity_names.unknown(str(name))
        return found

    def relation_id(self, name: str | int) -> int:
        """Find the id of a relation.

        Args:
            name: A name, or an id.

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
            raise self.relation_names.unknown(str(name))
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the content: the events in order and the sizes of the vocabularies."""
        digest = hashlib.sha256(f"{self.n_entities} {self.n_relations} {len(self)}".encode())
        for column in (self.subject, self.relation, self.object, self.step):
            digest.update(column.astype("<i4").tobytes())
        return digest.hexdigest()[:16]

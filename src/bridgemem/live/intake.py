"""Intake: the new names, duplicates and late events of a batch, found before it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from bridgemem.events.leaps import check_ahead
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.naming import NewEvent, NewNames, checked, ids_of, stored_text

if TYPE_CHECKING:
    import duckdb

Row = tuple[str, str, str, str, int]  # subject, relation, object, time as text, step
Fact = tuple[str, str, str]  # subject, relation, object

IN_FORCE = "FROM events WHERE id NOT IN (SELECT event FROM retractions)"
MOST_TOGETHER = 64  # batches whose rows are kept: as many as are written at once
KEPT_STEPS = 16  # steps whose stored facts are kept: batches of one time come together


@dataclass(frozen=True)
class Batch:
    """Events that are stored together or not at all, once for each source and key."""

    events: Sequence[NewEvent]
    source: str
    key: str
    offset: str | int | None = None


@dataclass(frozen=True)
class Checked:
    """A batch whose every text and time can be stored; digest: of its events, by which it is known again."""

    rows: list[Row]
    source: str
    key: str
    offset: str | None
    digest: str

    @classmethod
    def of(cls, batch: Batch, clock: Clock) -> Checked:
        rows = [checked(event, f"event {place} of the batch", clock) for place, event in enumerate(batch.events, 1)]
        source, key = stored_text(batch.source, "the source"), stored_text(batch.key, "the key")
        offset = None if batch.offset is None else stored_text(str(batch.offset), "the offset")
        return cls(rows, source, key, offset, hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32])


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


class Intake:
    """What new batches are held against: the log that is followed, and the stored events in force.

    The stored ones are read when they are first needed, and kept: one process writes at a time. `forget` lets them be
    read again, after a retraction or a batch that was not written after all.
    """

    def __init__(self) -> None:
        self.follow(None)

    def follow(self, base: EventLog | None) -> None:
        """Count the events of a log when late ones, duplicates and new names are found."""
        self._base = base
        names: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._base_ids = names if base is None else (ids_of(base.entities), ids_of(base.relations))
        self.forget()

    def forget(self) -> None:
        """Read what is stored again when it is next needed."""
        self._names: tuple[set[str], set[str]] | None = None  # those in force that the base lacks
        self._day, self._new_today = "", 0  # UTC, and how many entities were new in batches of that day
        self._latest: int | None = None
        self._facts: dict[int, set[Fact]] = {}
        self._written: list[tuple[int, int, Sequence[Row]]] = []  # the last batches: number, first id, rows

    def wrote(self, batch: int, first: int, rows: Sequence[Row]) -> None:
        """Keep the rows of a batch that is written, in place of earlier ones where it does not follow them."""
        follows = self._written and self._written[-1][0] + 1 == batch and batch <= self._written[0][0] + MOST_TOGETHER
        self._written = [*(self._written if follows else ()), (batch, first, rows)]

    def written(self, since: int, until: int) -> dict[str, np.ndarray] | None:
        """The events of the batches after one and up to another, as they are stored; None where they are not kept."""
        kept = [one for one in self._written if since < one[0] <= until]
        if len(kept) != until - since or not kept:
            return None
        rows = [
            (first + place, s, r, o, step) for _, first, own in kept for place, (s, r, o, _, step) in enumerate(own)
        ]
        types = {"id": np.int64, "subject": object, "relation": object, "object": object, "step": np.int64}
        columns = zip(*rows, strict=True) if rows else [()] * len(types)
        return {name: np.array(column, kind) for (name, kind), column in zip(types.items(), columns, strict=True)}

    def take(
        self,
        cursor: duckdb.DuckDBPyConnection,
        rows: Sequence[Row],
        limits: NewNames,
        max_ahead: int | None,
        clock: Clock,
    ) -> tuple[int, int]:
        """How many rows are duplicates, and how many late; from now on they count among what is stored.

        A batch with more new names than the limits allow, or one that leaps more than max_ahead steps, is refused, and
        counts nowhere.
        """
        if max_ahead is not None:
            check_ahead([row[4] for row in rows], self._last(cursor), max_ahead, clock)
        self._take_names(cursor, rows, limits)
        return self._duplicates(cursor, rows), self._late(cursor, rows)

    def _take_names(self, cursor: duckdb.DuckDBPyConnection, rows: Sequence[Row], limits: NewNames) -> None:
        if self._names is None:
            columns = ("unnest([subject, object])", "relation")
            stored = [cursor.execute(f"SELECT DISTINCT {column} {IN_FORCE}").fetchall() for column in columns]
            entities, relations = ({str(row[0]) for row in found} for found in stored)
            self._names = entities.difference(self._base_ids[0]), relations.difference(self._base_ids[1])
        given = {name for s, _, o, *_ in rows for name in (s, o)}, {row[1] for row in rows}
        today = self.new_today(cursor)
        limits.check(self._base_ids, self._names, given, today)
        self._new_today = today + len(given[0].difference(self._base_ids[0], self._names[0]))
        for held, new, known in zip(self._names, given, self._base_ids, strict=True):
            held |= new.difference(known)

    def new_today(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """How many entities that the log lacks came for the first time today, in UTC."""
        if self._day != (today := _today()):
            self._day, self._new_today = today, self._count_new(cursor, today)
        return self._new_today

    def _count_new(self, cursor: duckdb.DuckDBPyConnection, day: str) -> int:
        found = cursor.execute(
            f"SELECT name FROM (SELECT unnest([subject, object]) AS name, batch {IN_FORCE}) GROUP BY name "
            'HAVING min(batch) >= (SELECT min(id) FROM batches WHERE starts_with("when", ?))',
            [day],
        ).fetchall()
        return sum(name not in self._base_ids[0] for (name,) in found)

    def _duplicates(self, cursor: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> int:
        """How many of the rows equal an event in force, of the log that is followed, stored, or earlier in the rows."""
        self._read_facts(cursor, {row[4] for row in rows})
        found = 0
        for subject, relation, object_, _, step in rows:
            fact, stored = (subject, relation, object_), self._facts[step]
            found += fact in stored or self._in_base(fact, step)
            stored.add(fact)
        for step in sorted(self._facts)[:-KEPT_STEPS]:
            del self._facts[step]
        return found

    def _read_facts(self, cursor: duckdb.DuckDBPyConnection, steps: set[int]) -> None:
        """Put the stored facts of these steps that are in force among those kept."""
        missing = sorted(steps.difference(self._facts))
        if not missing:
            return
        self._facts |= {step: set() for step in missing}
        # the bounds let the file's older parts be passed over
        read = cursor.execute(
            f"SELECT subject, relation, object, step {IN_FORCE} AND step BETWEEN ? AND ? "
            "AND step IN (SELECT unnest(?::BIGINT[]))",
            [missing[0], missing[-1], missing],
        ).fetchall()
        for *fact, step in read:
            self._facts[step].add(tuple(fact))

    def _in_base(self, fact: Fact, step: int) -> bool:
        if self._base is None or step >= self._base.end:
            return False
        entity, link = self._base_ids
        subject, relation, object_ = entity.get(fact[0]), link.get(fact[1]), entity.get(fact[2])
        if subject is None or relation is None or object_ is None:
            return False
        day = self._base.between(step, step + 1)
        return bool(((day.subject == subject) & (day.relation == relation) & (day.object == object_)).any())

    def _late(self, cursor: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> int:
        """How many of the rows are earlier than one in force that came before them."""
        steps = np.array([self._last(cursor), *(row[4] for row in rows)], np.int64)
        highest = np.maximum.accumulate(steps)
        self._latest = int(highest[-1])
        return int((steps[1:] < highest[:-1]).sum())

    def _last(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """The latest step in force."""
        if self._latest is None:
            stored = cursor.execute(f"SELECT coalesce(max(step), 0) {IN_FORCE}").fetchall()[0][0]
            self._latest = max(stored, 0 if self._base is None else self._base.end - 1)
        return self._latest

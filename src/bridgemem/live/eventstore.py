"""EventStore: an append-only DuckDB file of events that came after a run's own, batch by batch.

A batch is one transaction: its events, source, offset and key are all there or none of them is, and once `append`
returns they survive a kill. The same key again changes nothing.

Policies, also in docs/concepts/live.md:

- Late events (of an earlier step than one already known) are accepted, filed under their own step and counted as late.
  Forecasts for later steps see them from then on; nothing already forecast is changed.
- Duplicates (same subject, relation, object and step as an event in force) are always written. "keep" lets them count
  like any other event; "drop" passes them over whenever events are read, so that the policy can be changed at any time
  and the second of two equal events takes over when the first is retracted.
- Retracted events stay in the file and are never read again. Removed ones (`bridgemem.live.retention`) do not stay.
- A batch with one event that cannot be used is refused as a whole, and so is one with too many new names.
- One process writes at a time. Readers name a snapshot, which reads the same for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bridgemem.config import Duplicates, check
from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.naming import NewEvent, NewNames, numbered, stored_text
from bridgemem.live.database import Database
from bridgemem.live.intake import Batch, Checked, Intake
from bridgemem.live.receipts import Reading, Receipt, Snapshot, Source, Stored, event_number, first_of_equals, stored_of
from bridgemem.live.removed import NONE_REMOVED, in_ranges, last_removal, removed_ranges
from bridgemem.live.storefile import StoreError, StoreInUseError
from bridgemem.live.storefile import create as create_file
from bridgemem.storage.files import locked

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "Batch",
    "EventStore",
    "NewEvent",
    "NewNames",
    "Reading",
    "Receipt",
    "Snapshot",
    "Source",
    "StoreError",
    "StoreInUseError",
    "Stored",
]

Made = TypeVar("Made")

_STORED = (
    'SELECT events.id, subject, relation, object, time, source, batch, retractions."when", reason FROM events '
    "JOIN batches ON batches.id = batch LEFT JOIN retractions ON event = events.id"
)


class EventStore:
    """One DuckDB file; a new one is whole or absent. Methods may be called from several threads.

    duplicates: "keep" or "drop", remembered in the file (default: as remembered, else "keep").
    read_only: the file is there, and stays as it is; any number of processes may read it so, while none writes.
    new_names: how many names of later batches may be unknown to the log that is followed.
    """

    def __init__(
        self,
        path: Path | str,
        create: bool = True,
        duplicates: str | None = None,
        read_only: bool = False,
        new_names: NewNames | None = None,
    ) -> None:
        check("duplicates", duplicates, Duplicates | None)
        self.path, self.read_only = Path(path), read_only
        self._missing = 0, NONE_REMOVED  # the last removal that was seen, and the ids that were removed, in ranges
        self.new_names, self._intake = new_names or NewNames(), Intake()
        # the last batch, event and retraction, once they were read; one process writes at a time
        self._last: tuple[int, int, int] | None = None
        self._at: Snapshot | None = None  # the store as it is now, where that was written here
        self.max_ahead: int | None = None  # steps that a batch may leap after the last event; None for any number
        if not self.path.exists():
            if read_only or not create:
                raise NotFoundError(f"there is no event store at {self.path}; `bridgemem ingest` makes one.")
            with locked(self.path):
                # a faster process may have stored events in it by now
                if not self.path.exists():
                    create_file(self.path)
        self._database = Database(self.path, self.read_only)
        about = self._about()
        self.clock = Clock(*json.loads(about["clock"])) if "clock" in about else None
        self._origin, self._told = about.get("origin"), False  # whether clock and origin are surely in the file
        known = about.get("duplicates", "keep")
        self.duplicates = duplicates or known
        if self.duplicates != known and not read_only:
            with self._writing() as cursor:
                cursor.execute("DELETE FROM about WHERE name = 'duplicates'")
                cursor.execute("INSERT INTO about VALUES ('duplicates', ?)", [self.duplicates])

    def close(self) -> None:
        """Close the file once no one reads it; a store that is not closed loses nothing either."""
        self._database.close()

    def __enter__(self) -> EventStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, base: EventLog, origin: str | None = None) -> None:
        """Continue a log: take over its clock, and count its events when late ones and duplicates are found.

        origin: which data the store's events came after, if that is known; they may count already in any other. Clock
        and origin are written with the first events: a store without any follows the next log it is opened for.
        """
        self.clock, self._origin = self.clock or base.clock, self._origin or origin
        if self.clock != base.clock:
            raise DataError(
                f"{self.path} counts time from {self.clock.label(0)} in steps of {self.clock.unit}, and the run from "
                f"{base.clock.label(0)} in steps of {base.clock.unit}; use a store of the run's own."
            )
        if origin not in (None, self._origin):
            raise DataError(
                f"{self.path} holds events that came after other data than the run's, and may be part of it by now; "
                "use a store of the run's own."
            )
        self._told = False
        self._intake.follow(base)

    # ---- writing ---------------------------------------------------------------------------------------------------

    @property
    def store(self) -> EventStore:
        """Itself, for what takes a feed in through another object."""
        return self

    def append(self, events: Sequence[NewEvent], *, source: str, key: str, offset: str | int | None = None) -> Receipt:
        """Write a batch durably, once for each source and key."""
        (found,) = self.append_all([Batch(events, source, key, offset)])
        if isinstance(found, DataError):
            raise found
        return found

    def append_all(self, batches: Sequence[Batch], *, checkpoint: bool = True) -> list[Receipt | DataError]:
        """Write batches that came together in one transaction: the receipt of each, or why it was refused.

        A batch is written as a whole or not at all, independently of the others. checkpoint: at once, else soon.
        """
        clock = self.clock or Clock()
        outcomes = [_or_refused(Checked.of, batch, clock) for batch in batches]
        if all(isinstance(outcome, DataError) for outcome in outcomes):
            return [outcome for outcome in outcomes if isinstance(outcome, DataError)]
        with self._writing(checkpoint) as cursor:
            made = [
                outcome if isinstance(outcome, DataError) else _or_refused(self._write, cursor, outcome, clock)
                for outcome in outcomes
            ]
        if any(isinstance(receipt, Receipt) and receipt.ids for receipt in made):
            self.clock, self._told = clock, True
        return made

    def _write(self, cursor: duckdb.DuckDBPyConnection, batch: Checked, clock: Clock) -> Receipt:
        """Write a batch in the transaction that is open; refused is only what has written nothing yet."""
        found = cursor.execute(
            "SELECT id, digest FROM batches WHERE source = ? AND key = ?", [batch.source, batch.key]
        ).fetchone()
        if found is not None:
            if found[1] != batch.digest:
                raise DataError(
                    f"the key {batch.key!r} was used for another batch of {batch.source!r}; give every batch a key of "
                    "its own."
                )
            return replace(self._receipt(cursor, found[0]), replayed=True)
        duplicates, late = 0, 0
        if batch.rows:
            duplicates, late = self._intake.take(
                cursor, batch.rows, self.new_names, clock=clock, max_ahead=self.max_ahead
            )
        if batch.rows and not self._told:
            self._tell(cursor, clock)
        if self._last is None:
            # the last events may have been removed; their ids are not given again
            last = (("max(id)", "batches"), ("max(first + size) - 1", "batches"), ("max(id)", "retractions"))
            ids = ", ".join(f"(SELECT coalesce({what}, 0) FROM {table})" for what, table in last)
            self._last = cursor.execute(f"SELECT {ids}").fetchall()[0]
        number, first, size = self._last[0] + 1, self._last[1] + 1, len(batch.rows)
        cursor.execute(
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [number, batch.source, batch.offset, batch.key, now(), batch.digest, first, size, duplicates, late],
        )
        if batch.rows:
            cursor.execute(
                "INSERT INTO events SELECT unnest(?::BIGINT[]), ?, unnest(?::VARCHAR[]), unnest(?::VARCHAR[]), "
                "unnest(?::VARCHAR[]), unnest(?::VARCHAR[]), unnest(?::BIGINT[])",
                [list(range(first, first + size)), number, *(list(c) for c in zip(*batch.rows, strict=True))],
            )
        self._last = number, first + size - 1, self._last[2]
        self._intake.wrote(number, first, batch.rows)
        return self._told_of(number, first, size, duplicates, late)

    def retract(self, event_ids: str | Sequence[str], reason: str = "") -> list[Stored]:
        """Take events back, all or none: no later reading holds them. A second time changes nothing.

        The events are given as they were before: those that have `retracted` were taken back earlier.
        """
        ids = dict.fromkeys([event_ids] if isinstance(event_ids, str) else event_ids)
        found = [self.stored_event(event_id) for event_id in ids]
        why = stored_text(reason, "the reason") if reason.strip() else ""
        with self._writing() as cursor:
            for event in found:
                cursor.execute(
                    "INSERT INTO retractions SELECT (SELECT coalesce(max(id), 0) + 1 FROM retractions), $1, $2, $3 "
                    "WHERE $1 NOT IN (SELECT event FROM retractions)",
                    [event_number(event.id), now(), why],
                )
            self._intake.forget()
            self._last = None
        return found

    @contextmanager
    def removing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction that may delete events; what memory holds of them is read again."""
        with self._writing() as cursor:
            yield cursor
            self._intake.forget()
            self._last = None

    def rewrite(self) -> None:
        """Rewrite the file, so that nothing is left of deleted rows; other threads wait."""
        self._database.rewrite()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The store as it is now."""
        if (at := self._at) is not None:
            return at
        with self.reading() as cursor:
            return self.snapshot_of(cursor)

    def events(self, base: EventLog | None = None, at: Snapshot | None = None) -> EventLog:
        """A log followed by the stored events in force, by step and inside a step as they came; see `read`."""
        return self.read(base, at).events

    def read(
        self,
        base: EventLog | None = None,
        at: Snapshot | None = None,
        known: np.ndarray | None = None,
        since: int = 0,
        held: np.ndarray | None = None,
        until: int | None = None,
        again_from: int | None = None,
    ) -> Reading:
        """The events in force at a snapshot, the last one unless named, after those of a base log.

        The base's ids and clock stay; new names follow its vocabularies in the order in which they came. known int64
        [n]: which stored event each row of the base is (-1: none), for a base that holds some of them already; since:
        the last batch whose events it holds, where it holds those of every earlier one too. held int64 [m]: stored
        events that are left out, since they are known from elsewhere. until: only events before this step. again_from:
        a step from which on the events of earlier batches are read too.
        """
        if base is None:
            none = np.zeros(0, np.int32)
            names = Vocabulary("entity", ()), Vocabulary("relation", ())
            base = EventLog(none, none, none, none, *names, self.clock or Clock())
        elif self.clock not in (None, base.clock):
            raise DataError(f"{self.path} counts time differently from the log that it follows; use another store.")
        known = np.full(len(base), -1, np.int64) if known is None else known
        columns, gone, ranges = None, np.zeros(0, np.int64), NONE_REMOVED
        # where nothing was ever taken back nothing was removed either
        if at is not None and not at.retractions and until is again_from is None:
            columns = self._intake.written(since, at.batches)
        if at is None or columns is None:
            with self.reading() as cursor:
                at = at or self.snapshot_of(cursor)
                gone, ranges = _retracted(cursor, at), self._removed_ranges(cursor)
                columns = cursor.execute(
                    "SELECT id, subject, relation, object, step FROM events WHERE (batch > $1 OR step >= $4) "
                    "AND batch <= $2 AND ($3 IS NULL OR step < $3) ORDER BY id",
                    [since, at.batches, until, again_from],
                ).fetchnumpy()
        left = [gone, known] if held is None else [gone, known, held]
        wanted = ~np.isin(columns["id"], np.concatenate(left))
        stays = ~(np.isin(known, gone) | in_ranges(known, ranges))
        number, subject, relation, object_, step = (columns[name][wanted] for name in columns)
        names, new = numbered(base, subject.tolist(), relation.tolist(), object_.tolist())
        old = (base.subject, base.relation, base.object, base.step, known)
        rows = [np.concatenate([o[stays], n]) for o, n in zip(old, (*new, step, number), strict=True)]
        if self.duplicates == "drop":
            counts = np.arange(len(rows[0])) < stays.sum()
            rows = [column[counts | first_of_equals(*rows[:4])] for column in rows]
        order = np.argsort(rows[3], kind="stable")
        s, r, o, t, ids = (column[order] for column in rows)
        return Reading(EventLog(s, r, o, t, *names, base.clock), ids, at)

    def gone(self, ids: np.ndarray, at: Snapshot) -> np.ndarray:
        """Which stored events, by their numbers int64 [n], were retracted up to a snapshot, or removed; bool [n]."""
        with self.reading() as cursor:
            return np.isin(ids, _retracted(cursor, at)) | in_ranges(ids, self._removed_ranges(cursor))

    def _removed_ranges(self, cursor: duckdb.DuckDBPyConnection) -> np.ndarray:
        last = last_removal(cursor)
        if self._missing[0] != last:
            self._missing = last, removed_ranges(cursor)
        return self._missing[1]

    def event(self, event_id: str) -> NewEvent:
        """A stored event as it came, in force or not."""
        found = self.stored_event(event_id)
        return found.subject, found.relation, found.object, found.time

    def stored_event(self, event_id: str) -> Stored:
        """A stored event with what is known of it."""
        with self.reading() as cursor:
            found = cursor.execute(f"{_STORED} WHERE events.id = ?", [event_number(event_id)]).fetchone()
        if found is None:
            raise NotFoundError(
                f"{self.path.name} holds no event called {event_id!r}; receipts and `bridgemem stored` name the ids."
            )
        return stored_of(found)

    def stored(self, source: str | None = None, last: int | None = None) -> list[Stored]:
        """What the store holds, retracted or not, in the order in which it came; of one source, and the last alone."""
        with self.reading() as cursor:
            found = cursor.execute(
                f"{_STORED} WHERE $1 IS NULL OR source = $1 ORDER BY events.id DESC LIMIT $2", [source, last]
            ).fetchall()
        return [stored_of(row) for row in reversed(found)]

    def sources(self) -> list[Source]:
        """Who sent what is stored, by name, and where each was left off."""
        with self.reading() as cursor:
            found = cursor.execute(
                "SELECT source, count(*), sum(size)::BIGINT, sum(duplicates)::BIGINT, arg_max(key, id), "
                'arg_max("offset", id) '
                "FROM batches GROUP BY source ORDER BY source"
            ).fetchall()
        return [Source(*row) for row in found]

    def counts(self) -> dict[str, int]:
        """How many events, batches and retractions are stored."""
        tables = ("events", "batches", "retractions")
        with self.reading() as cursor:
            return {table: cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in tables}

    def last_offset(self, source: str) -> str | None:
        """Where a source was left off: the offset of its last batch that had one."""
        return next((known.last_offset for known in self.sources() if known.source == source), None)

    def sender(self, key: str) -> str | None:
        """The first source that sent a batch under a key."""
        with self.reading() as cursor:
            found = cursor.execute("SELECT source FROM batches WHERE key = ? ORDER BY id LIMIT 1", [key]).fetchone()
        return None if found is None else found[0]

    def receipts(self) -> list[Receipt]:
        """The receipts of all batches, in the order in which they came."""
        with self.reading() as cursor:
            batches = [row[0] for row in cursor.execute("SELECT id FROM batches ORDER BY id").fetchall()]
            return [self._receipt(cursor, batch) for batch in batches]

    @staticmethod
    def snapshot_of(cursor: duckdb.DuckDBPyConnection) -> Snapshot:
        """The store as a transaction sees it."""
        return Snapshot(
            *cursor.execute(
                "SELECT (SELECT coalesce(max(id), 0) FROM batches), (SELECT coalesce(max(id), 0) FROM retractions)"
            ).fetchall()[0]
        )

    def _receipt(self, cursor: duckdb.DuckDBPyConnection, batch: int) -> Receipt:
        found = cursor.execute("SELECT first, size, duplicates, late FROM batches WHERE id = ?", [batch]).fetchall()
        return self._told_of(batch, *found[0])

    def _told_of(self, batch: int, first: int, size: int, duplicates: int, late: int) -> Receipt:
        accepted = size - duplicates if self.duplicates == "drop" else size
        return Receipt(batch, accepted, duplicates, late, False, [f"e{n}" for n in range(first, first + size)])

    # ---- the file --------------------------------------------------------------------------------------------------

    def _about(self) -> dict[str, str]:
        with self.reading() as cursor:
            return dict(cursor.execute("SELECT name, value FROM about").fetchall())

    def _tell(self, cursor: duckdb.DuckDBPyConnection, clock: Clock) -> None:
        """Write how the store counts time and which data it follows, where it does not say so yet."""
        for name, value in (("clock", json.dumps([clock.kind, clock.origin, clock.unit])), ("origin", self._origin)):
            cursor.execute(
                "INSERT INTO about SELECT $1, $2 WHERE $2 IS NOT NULL AND $1 NOT IN (SELECT name FROM about)",
                [name, value],
            )

    def reading(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A transaction that sees the store as it is now, whatever is written meanwhile."""
        return self._database.reading()

    def _writing(self, checkpoint: bool = True) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A transaction of its own for the holder of the lock; it is on the disk when this ends."""
        return self._database.writing(checkpoint, ended=self._written)

    def _written(self, well: bool) -> None:
        if not well:  # what was not written may count among what is kept
            self._intake.forget()
            self._last = None
        self._at = None if self._last is None else Snapshot(self._last[0], self._last[2])

    @contextmanager
    def writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction that writes next to the events; the store then says how it counts time."""
        with self._writing() as cursor:
            if self.clock is not None and not self._told:
                self._tell(cursor, self.clock)
            yield cursor

    def changing(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A transaction that changes other tables than those of events; it is on the disk when it ends."""
        return self._writing()

    def new_today(self) -> int:
        """How many entities that the followed log lacks came for the first time today, in UTC."""
        with self.reading() as cursor:
            return self._intake.new_today(cursor)

    def holds_batch(self, source: str, key: str) -> bool:
        """Whether a batch of a source was stored under a key."""
        with self.reading() as cursor:
            found = cursor.execute("SELECT 1 FROM batches WHERE source = ? AND key = ?", [source, key]).fetchone()
        return found is not None

    def checkpoint(self) -> None:
        """Bring what was committed into the file itself, so that a copy of the file alone is whole.

        It is safe in the write-ahead log already: where this fails, such as on a full disk, a later one makes it good.
        """
        self._database.checkpoint()


def _or_refused(make: Callable[..., Made], *given: Any) -> Made | DataError:
    """What a function makes, or why it refuses."""
    try:
        return make(*given)
    except DataError as problem:
        return problem


def _retracted(cursor: duckdb.DuckDBPyConnection, at: Snapshot) -> np.ndarray:
    if not at.retractions:
        return np.zeros(0, np.int64)
    return cursor.execute("SELECT event FROM retractions WHERE id <= ?", [at.retractions]).fetchnumpy()["event"]


def now() -> str:
    """The time of the computer, as it is noted in a store."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

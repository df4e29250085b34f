"""Retention: events removed from a store permanently, by age, by source or by name.

A removed event is gone from the file, and from every copy that is made of it later. What stays is a tombstone: how many
events were removed, when and why, and never a name that was erased. So the counts add up: a store holds as many events
as it was sent, less those that its tombstones count. Keys of batches stay, so that a batch that comes again is known
and brings nothing back. Ids are not given again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bridgemem.errors import SettingsError
from bridgemem.events.log import Clock
from bridgemem.events.naming import stored_text
from bridgemem.live.eventstore import EventStore
from bridgemem.live.ledger import Ledger, erase_claims, settle
from bridgemem.live.quarantine import MENTIONS, mentions

if TYPE_CHECKING:
    import duckdb

UNSCRUBBED = "unscrubbed"  # in the store while the bytes of removed rows may yet be in its file
ERASED = "erased"  # in place of a text that named what was erased


@dataclass(frozen=True)
class Removal:
    """What was removed by one command.

    kind: "prune" or "erase"; what: of a prune, which events; empty for an erasure, which keeps no name.
    events: removed from the store, of which counted were in force. rejected: rows removed from the quarantine.
    texts: reasons of retractions that were blanked. claims: of issued forecasts that named it. carried: batches that
    carry an erased name in their source, key or offset, which stay. left: events that the store holds now.
    """

    kind: str
    what: str
    when: str
    events: int
    counted: int
    rejected: int
    texts: int
    claims: int
    carried: int
    left: int


Remove = Callable[[EventStore], Removal]


def prune(store: EventStore, *, before: str | int | None = None, source: str | None = None) -> Removal:
    """Remove the events before a time, of a source, or of a source before a time.

    Args:
        store: The event store.
        before: A time of the store's clock; events of earlier steps are removed.
        source: Events that came from it are removed.

    Returns:
        What was removed; a second time nothing is.

    Example:
        >>> import tempfile, pathlib
        >>> with EventStore(pathlib.Path(tempfile.mkdtemp()) / "store.duckdb") as store:
        ...     _ = store.append([("A", "visits", "B", "1"), ("A", "visits", "C", "9")], source="wire", key="1")
        ...     prune(store, before=5).events
        1
    """
    if before is None and source is None:
        raise SettingsError("say what to remove: events before a time, of a source, or both.")
    tests, values, words = list[str](), list[str | int](), list[str]()
    rows = list[str]()
    if source is not None:
        source = stored_text(source, "the source")
        tests.append("batch IN (SELECT id FROM batches WHERE source = ?)")
        rows.append("source = ?")
        values.append(source)
        words.append(f"of {source}")
    if before is not None:
        clock = store.clock or Clock()
        step = clock.step(before)
        tests.append("step < ?")
        values.append(step)
        words.append(f"before {clock.label(step)}")
    # of rejected rows nobody knows the time
    rejected = ("FALSE", []) if before is not None else (rows[0], values)
    return _remove(store, "prune", " ".join(words), (" AND ".join(tests), values), rejected)


def erase(store: EventStore, name: str) -> Removal:
    """Remove every event that names an entity or relation, and the name from every other text of the store.

    Args:
        store: The event store.
        name: The name, in its exact spelling.

    Returns:
        What was removed; a second time nothing is.

    Example:
        >>> import tempfile, pathlib
        >>> with EventStore(pathlib.Path(tempfile.mkdtemp()) / "store.duckdb") as store:
        ...     _ = store.append([("A", "visits", "B", "1"), ("A", "visits", "C", "9")], source="wire", key="1")
        ...     erase(store, "B").events
        1
    """
    name = stored_text(name, "the name")
    events = "subject = ? OR relation = ? OR object = ?", [name] * 3
    return _remove(store, "erase", "", events, (MENTIONS, [mentions(name)]), name)


Condition = tuple[str, list[Any]]


def _remove(
    store: EventStore, kind: str, what: str, events: Condition, rejected: Condition, name: str | None = None
) -> Removal:
    """Delete rows and note a tombstone in one transaction, then rewrite the file without them."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    Ledger(store).resolve()  # while the events that decide them are still there
    with store.removing() as cursor:
        counted = _retract_one(cursor, events, kind, now)
        (reaches,) = cursor.execute(f"SELECT max(step) FROM events WHERE {events[0]}", events[1]).fetchall()[0]
        if reaches is not None:
            settle(cursor, reaches + 1)
        gone = _deleted(cursor, "events", events)
        rows = _deleted(cursor, "rejected", rejected)
        texts, carried = (0, 0) if name is None else _blank(cursor, name)
        claims = 0 if name is None else erase_claims(cursor, name)
        left = _count(cursor, "events", ("TRUE", []))
        if gone or rows or texts or claims:
            cursor.execute(
                "INSERT INTO removals SELECT coalesce(max(id), 0) + 1, ?, ?, ?, ?, ?, ?, ? FROM removals",
                [kind, now, what, gone, rows, texts, claims],
            )
            cursor.execute("DELETE FROM about WHERE name = ?", [UNSCRUBBED])
            cursor.execute("INSERT INTO about VALUES (?, '1')", [UNSCRUBBED])
        unscrubbed = _count(cursor, "about", ("name = ?", [UNSCRUBBED]))
    if unscrubbed:  # also after a kill between the two
        store.rewrite()
        _scrubbed(store)
    return Removal(kind, what, now, gone, counted, rows, texts, claims, carried, left)


def _scrubbed(store: EventStore) -> None:
    with store.changing() as cursor:
        cursor.execute("DELETE FROM about WHERE name = ?", [UNSCRUBBED])


def _retract_one(cursor: duckdb.DuckDBPyConnection, events: Condition, kind: str, now: str) -> int:
    """How many of the events are in force; one of them is retracted, by which readers know that the store changed."""
    test, values = events
    counted, first = cursor.execute(
        f"SELECT count(*), min(id) FROM events WHERE ({test}) AND id NOT IN (SELECT event FROM retractions)", values
    ).fetchall()[0]
    if counted:
        cursor.execute(
            "INSERT INTO retractions SELECT coalesce(max(id), 0) + 1, ?, ?, ? FROM retractions", [first, now, kind]
        )
    return counted


def _blank(cursor: duckdb.DuckDBPyConnection, name: str) -> tuple[int, int]:
    """Blank the reasons of retractions that mention a name; how many, and how many batches carry it otherwise."""
    pattern = mentions(name)
    texts = _count(cursor, "retractions", ("regexp_matches(reason, ?)", [pattern]))
    cursor.execute("UPDATE retractions SET reason = ? WHERE regexp_matches(reason, ?)", [ERASED, pattern])
    carried = "regexp_matches(concat_ws(' ', source, key, \"offset\"), ?)"
    return texts, _count(cursor, "batches", (carried, [pattern]))


def _count(cursor: duckdb.DuckDBPyConnection, table: str, rows: Condition) -> int:
    return cursor.execute(f"SELECT count(*) FROM {table} WHERE {rows[0]}", rows[1]).fetchall()[0][0]


def _deleted(cursor: duckdb.DuckDBPyConnection, table: str, rows: Condition) -> int:
    count = _count(cursor, table, rows)
    if count:
        cursor.execute(f"DELETE FROM {table} WHERE {rows[0]}", rows[1])
    return count


@dataclass(frozen=True)
class Tombstone:
    """What stays of a removal."""

    kind: str
    when: str
    what: str
    events: int
    rejected: int
    texts: int
    claims: int


def tombstones(store: EventStore) -> list[Tombstone]:
    """All removals of a store, the oldest first."""
    with store.reading() as cursor:
        found = cursor.execute(
            'SELECT kind, "when", what, events, rejected, texts, claims FROM removals ORDER BY id'
        ).fetchall()
    return [Tombstone(*row) for row in found]

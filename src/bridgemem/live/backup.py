"""Backup: a copy of an event store as it is at one moment, read back before it gets its name.

The copy is made inside one transaction, so batches that come meanwhile are in it as a whole or not at all, and no
one waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import SettingsError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.storefile import StoreError, attachable, connect_soon, copied, digest, reason
from bridgemem.storage.whole import whole_file

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Backup:
    """What a backup holds. digest: of every row of the store at that moment, in any order."""

    path: str
    events: int
    batches: int
    retractions: int
    bytes: int
    digest: str


def backup(store: EventStore, to: Path | str, *, replace: bool = False) -> Backup:
    """Write a copy of a store, whole or not at all, and verify it by reading it back."""
    to = Path(to)
    if to.exists() and (not replace or to.is_dir() or to.samefile(store.path)):
        remedy = "choose another name" if to.is_dir() or to.samefile(store.path) else "choose another name, or --force"
        raise SettingsError(f"{to} exists already; {remedy}.")
    try:
        with whole_file(to, replace) as aside:
            aside.unlink(missing_ok=True)
            expected, counts = _copy(store, aside, to)
            _verify(aside, expected, to)
            size = aside.stat().st_size
    except OSError as problem:
        raise _unwritten(to, problem) from None
    return Backup(str(to), **counts, bytes=size, digest=expected)


def _unwritten(to: Path, problem: Exception) -> StoreError:
    return StoreError(f"{to} cannot be written: {reason(problem)}; nothing is left of it.")


def _count(cursor: duckdb.DuckDBPyConnection, table: str) -> int:
    return cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]


def _copy(store: EventStore, aside: Path, to: Path) -> tuple[str, dict[str, int]]:
    """Write the rows of one moment into a new file, and give their digest and their numbers; to: its name in errors."""
    import duckdb

    name = attachable()
    try:
        with store.reading() as cursor:
            expected = digest(cursor)
            counts = {table: _count(cursor, table) for table in ("events", "batches", "retractions")}
            try:
                copied(cursor, aside, name)
            except duckdb.Error as problem:  # not the store is at fault
                raise _unwritten(to, problem) from None
    finally:
        with store.reading() as cursor:
            cursor.execute(f"DETACH DATABASE IF EXISTS {name}")
    return expected, counts


def _verify(aside: Path, expected: str, to: Path) -> None:
    database = connect_soon(aside, read_only=True)
    try:
        found = digest(database)
    finally:
        database.close()
    if found != expected:
        raise StoreError(f"{to} differed from the store after it was copied, and was deleted; check the disk.")

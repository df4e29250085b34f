"""Backup: a copy of an event store as it is at one moment, read back before it gets its name.

The copy is made inside one transaction, so batches that come meanwhile are in it as a whole or not at all, and no
one waits for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import SettingsError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.storefile import (
    StoreError,
    attachable,
    connect_soon,
    copied,
    digest,
    reason,
    system_reason,
    whole_store,
)
from bridgemem.storage.whole import remedy_if_full

if TYPE_CHECKING:
    import duckdb


SLASHES = tuple(filter(None, (os.sep, os.altsep)))


@dataclass(frozen=True)
class Backup:
    """What a backup holds. digest: of every row of the store at that moment, in any order."""

    path: str
    events: int
    batches: int
    retractions: int
    bytes: int
    digest: str


def copy_name(store: Path, to: str) -> Path:
    """The file of a copy: the one that was named, or one named by the time in a folder, which need not be there yet."""
    if to.endswith(SLASHES) or Path(to).is_dir():
        return Path(to) / f"{store.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{store.suffix}"
    return Path(to)


def backup(store: EventStore, to: Path | str, *, replace: bool = False) -> Backup:
    """Write a copy of a store, whole or not at all, and verify it by reading it back."""
    to = Path(to)
    if to.exists() and (not replace or to.is_dir() or to.samefile(store.path)):
        remedy = "choose another name" if to.is_dir() or to.samefile(store.path) else "choose another name, or --force"
        raise SettingsError(f"{to} exists already; {remedy}.")
    try:
        with whole_store(to, replace) as aside:
            expected, counts = _copy(store, aside, to)
            _verify(aside, expected, to)
            size = aside.stat().st_size
    except OSError as problem:
        raise _unwritten(to, problem) from None
    return Backup(str(to), **counts, bytes=size, digest=expected)


def _unwritten(to: Path, problem: Exception) -> StoreError:
    said = system_reason(str(problem)) or reason(problem)
    return StoreError(f"{to} cannot be written: {said}; nothing is left of it{remedy_if_full(said, to)}.")


def _count(cursor: duckdb.DuckDBPyConnection, table: str) -> int:
    return cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]


def _copy(store: EventStore, aside: Path, to: Path) -> tuple[str, dict[str, int]]:
    """Write the rows of one moment into a new file, and give their digest and their numbers; to: its name in errors."""
    import duckdb

    name, whole = attachable(), False
    try:
        with store.reading() as cursor:
            expected = digest(cursor)
            counts = {table: _count(cursor, table) for table in ("events", "batches", "retractions")}
            try:
                copied(cursor, aside, name)
            except duckdb.Error as problem:  # not the store is at fault
                raise _unwritten(to, problem) from None
            whole = True
    except StoreError as problem:
        if whole:  # the end of the transaction writes the copy, and nothing else
            raise _unwritten(to, problem) from None
        raise
    finally:
        with store.reading() as cursor:
            try:
                cursor.execute(f"DETACH DATABASE IF EXISTS {name}")
            except duckdb.Error as problem:  # the log of the copy could not be brought into it
                raise _unwritten(to, problem) from None
    return expected, counts


def _verify(aside: Path, expected: str, to: Path) -> None:
    database = connect_soon(aside, read_only=True)
    try:
        found = digest(database)
    finally:
        database.close()
    if found != expected:
        raise StoreError(f"{to} differed from the store after it was copied, and was deleted; check the disk.")

"""The file of an event store: made whole, opened, and what is said where it cannot be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import BridgeMemError
from bridgemem.storage.whole import whole_file

if TYPE_CHECKING:
    import duckdb

FORMAT = 2

_TABLES = f"""
CREATE TABLE about (name VARCHAR, value VARCHAR);
CREATE TABLE batches (
    id BIGINT PRIMARY KEY, source VARCHAR, "offset" VARCHAR, key VARCHAR, "when" VARCHAR, digest VARCHAR,
    first BIGINT, size BIGINT, duplicates BIGINT, late BIGINT, UNIQUE (source, key)
);
CREATE TABLE events (
    id BIGINT, batch BIGINT, subject VARCHAR, relation VARCHAR, object VARCHAR, time VARCHAR, step BIGINT
);
CREATE TABLE retractions (id BIGINT PRIMARY KEY, event BIGINT UNIQUE, "when" VARCHAR, reason VARCHAR);
INSERT INTO about VALUES ('format', '{FORMAT}');
"""

TABLES = ("about", "batches", "events", "retractions")

# what the system says of a file that may be as whole as ever
_KEPT_OUT = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.EISDIR,
)


class StoreError(BridgeMemError):
    """An event store cannot be opened, read or written; the events that were sent are not at fault."""

    code = "bad_store"


class StoreInUseError(StoreError):
    """An event store is open elsewhere."""

    code = "store_in_use"


def create(path: Path) -> None:
    """An empty store, whole or absent."""
    import duckdb

    try:
        with whole_file(path) as aside, duckdb.connect(str(aside)) as database:
            database.execute(_TABLES)
            database.close()
    except (duckdb.Error, OSError) as problem:
        raise StoreError(f"{path} cannot be made: {reason(problem)}.") from None


def connect(path: Path, read_only: bool) -> duckdb.DuckDBPyConnection:
    """The database in the file."""
    import duckdb

    if not _is_duckdb(path):
        raise StoreError(
            f"{path} is no event store, but a file of another kind; a store is a DuckDB file, and named first, as in "
            "`bridgemem ingest events.duckdb news.csv`."
        )
    try:
        database = duckdb.connect(str(path), read_only=read_only)
        made_as = database.execute("SELECT value FROM about WHERE name = 'format'").fetchone()
    except duckdb.CatalogException:
        raise StoreError(f"{path} is a DuckDB file, but no event store; name another file.") from None
    except (duckdb.Error, OSError) as problem:
        raise _not_opened(path, read_only, problem) from None
    if made_as != (str(FORMAT),):
        database.close()
        raise StoreError(f"{path} has another format version than this program's, which is {FORMAT}; name a new file.")
    return database


def _not_opened(path: Path, read_only: bool, problem: Exception) -> StoreError:
    """Why a file did not open: it is held by others, it may not be used as asked, or it is damaged."""
    said = str(problem)
    # the latter within one process, where the file is open for writing
    if "lock" in said or "different configuration" in said:
        return StoreInUseError(
            f"{path} is open in another process; stop that one, or send events, retractions and queries through it."
        )
    kept_out = system_reason(said)
    if kept_out:
        return StoreError(f"{path} cannot be {'read' if read_only else 'written'}: {kept_out}; fix that and try again.")
    return StoreError(
        f"{path} is no whole event store ({reason(problem)}); move it away, put a copy back or let the sources send "
        "their batches to a new one."
    )


def system_reason(said: str) -> str:
    """What the system says in a sentence about a store, such as that the disk is full; empty where it says nothing."""
    return next((text for text in map(os.strerror, _KEPT_OUT) if text in said), "")


def _is_duckdb(path: Path) -> bool:
    """Whether the file begins as DuckDB's do; one that was cut to nothing may have been one."""
    try:
        with path.open("rb") as file:
            start = file.read(12)
    except OSError as problem:
        raise StoreError(f"{path} cannot be opened: {reason(problem)}.") from None
    return len(start) < 12 or start[8:] == b"DUCK"


def reason(problem: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    text = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
    return text.removeprefix("IO Error: ").removeprefix("TransactionContext Error: ").rstrip(".!")

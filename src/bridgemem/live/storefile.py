"""The file of an event store: created, opened, copied and rewritten, with one sentence for each failure."""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import BridgeMemError
from bridgemem.storage.whole import whole_file

if TYPE_CHECKING:
    import duckdb

FORMAT = 3
HELD = 0.05  # seconds that a file that was replaced stays locked, for others that were about to open it
PATIENCE = 30.0  # seconds to wait for a process that opened the file in between

_TABLES = """
CREATE TABLE about (name VARCHAR, value VARCHAR);
CREATE TABLE batches (
    id BIGINT PRIMARY KEY, source VARCHAR, "offset" VARCHAR, key VARCHAR, "when" VARCHAR, digest VARCHAR,
    first BIGINT, size BIGINT, duplicates BIGINT, late BIGINT, UNIQUE (source, key)
);
CREATE TABLE events (
    id BIGINT, batch BIGINT, subject VARCHAR, relation VARCHAR, object VARCHAR, time VARCHAR, step BIGINT
);
CREATE TABLE retractions (id BIGINT PRIMARY KEY, event BIGINT UNIQUE, "when" VARCHAR, reason VARCHAR);
"""
# since format 3: what was removed for good, and rows that were rejected
_SINCE_3 = f"""
CREATE TABLE removals (
    id BIGINT PRIMARY KEY, kind VARCHAR, "when" VARCHAR, what VARCHAR, events BIGINT, rejected BIGINT, texts BIGINT,
    claims BIGINT
);
CREATE TABLE rejected (
    id BIGINT PRIMARY KEY, source VARCHAR, key VARCHAR, "when" VARCHAR, file VARCHAR, line BIGINT, reason VARCHAR,
    subject VARCHAR, relation VARCHAR, object VARCHAR, time VARCHAR, "row" VARCHAR
);
DELETE FROM about WHERE name = 'format';
INSERT INTO about VALUES ('format', '{FORMAT}');
"""

# what DuckDB says of a file whose bytes are not those that it wrote
DAMAGE = ("Could not read enough bytes", "Corrupt database", "does not match stored checksum", "Failed to deserialize")

TABLES = ("about", "batches", "events", "retractions", "removals", "rejected")

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


@contextmanager
def whole_store(path: Path, replace: bool = True) -> Iterator[Path]:
    """A database file to fill, whole or absent, as `whole_file`; its write-ahead log goes with it."""
    with whole_file(path, replace) as aside:
        aside.unlink(missing_ok=True)
        log = aside.with_name(f"{aside.name}.wal")
        try:
            yield aside
            if log.exists() and log.stat().st_size:  # rows that are in the log alone, as on a full disk
                raise OSError(errno.ENOSPC, "what was written last could not be brought into the file")
        finally:
            log.unlink(missing_ok=True)


def create(path: Path) -> None:
    """An empty store, whole or absent."""
    import duckdb

    try:
        with whole_store(path) as aside, duckdb.connect(str(aside)) as database:
            database.execute(_TABLES + _SINCE_3)
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
        # read to its end: a result that is not keeps its transaction open, and then no checkpoint frees a block
        made_as = database.execute("SELECT value FROM about WHERE name = 'format'").fetchall()
    except duckdb.CatalogException:
        raise StoreError(f"{path} is a DuckDB file, but no event store; name another file.") from None
    except (duckdb.Error, OSError) as problem:
        raise _not_opened(path, read_only, problem) from None
    if made_as == [("2",)]:
        database.close()
        return _brought_up(path, read_only)
    if made_as != [(str(FORMAT),)]:
        database.close()
        raise StoreError(f"{path} has another format version than this program's, which is {FORMAT}; name a new file.")
    return database


def _brought_up(path: Path, read_only: bool) -> duckdb.DuckDBPyConnection:
    """The database of an earlier format, with the tables that were added since."""
    import duckdb

    try:
        with duckdb.connect(str(path)) as database:
            database.execute(f"BEGIN; {_SINCE_3} COMMIT")
            database.close()
    except (duckdb.Error, OSError) as problem:
        raise _not_opened(path, False, problem) from None
    return connect(path, read_only)


def attachable() -> str:
    """A name that no other file is attached by."""
    return f"copy_{secrets.token_hex(8)}"


def copied(cursor: duckdb.DuckDBPyConnection, to: Path, name: str) -> None:
    """Write all rows that a transaction sees into a new file, which stays attached by a name."""
    place = str(to).replace("'", "''")
    own = cursor.execute("SELECT current_database()").fetchall()[0][0]
    cursor.execute(f"ATTACH '{place}' AS {name}")
    cursor.execute(f'COPY FROM DATABASE "{own}" TO {name}')


def digest(cursor: duckdb.DuckDBPyConnection) -> str:
    """A digest of all rows of a store: of each row a hash, of each table the sum of them and their number."""
    parts = []
    # what was added to a store later, such as a ledger, is part of it
    more = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()").fetchall()
    for table in (*TABLES, *sorted({name for (name,) in more}.difference(TABLES))):
        rows = cursor.execute(f"SELECT count(*), coalesce(sum(hash(t)), 0)::VARCHAR FROM {table} t").fetchall()
        parts.append(f"{rows[0][0]}-{int(rows[0][1]) % 2**64:016x}")
    return ".".join(parts)


def rewrite(path: Path, database: duckdb.DuckDBPyConnection) -> None:
    """Put a new file of the same rows in the place of a store, which is closed; no other process may have it open.

    DuckDB leaves the bytes of deleted rows in a file; a new one never had them. A kill leaves the old file or the new.
    """
    import duckdb

    try:
        with ExitStack() as exits, whole_store(path) as aside:
            database.execute("CHECKPOINT")
            expected, name = digest(database), attachable()
            copied(database, aside, name)
            database.execute(f"DETACH {name}")
            copy = connect_soon(aside, read_only=True)
            found = digest(copy)
            copy.close()
            if found != expected:
                raise StoreError("the copy differs")
            database.close()
            if path.with_name(f"{path.name}.wal").exists():  # which belongs to the old file alone
                raise StoreError("what was written last could not be brought into it")
            exits.enter_context(_kept_closed(path))
    except (duckdb.Error, OSError, StoreError) as problem:
        raise StoreError(
            f"{path} could not be rewritten ({reason(problem)}), so bytes of removed rows may be left in the file; "
            "fix that and give the same command again."
        ) from None
    finally:
        database.close()


@contextmanager
def _kept_closed(path: Path) -> Iterator[None]:
    """Keep other processes from opening a file, by the lock that DuckDB takes, while another takes its place."""
    try:
        import fcntl
    except ImportError:  # the system has other locks, under which an open file cannot be replaced at all
        yield
        return
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreInUseError("another process opened it meanwhile") from None
        yield
        time.sleep(HELD)


def connect_soon(path: Path, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """The database in the file, also where another process has it for a moment, or a transaction of this one.

    A file that was attached and detached is let go when the transactions end that began in between.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return connect(path, read_only)
        except StoreInUseError:
            if time.monotonic() > until:
                raise
            time.sleep(HELD)


def _not_opened(path: Path, read_only: bool, problem: Exception) -> StoreError:
    """Why a file did not open: it is held by others, it may not be used as asked, or it is damaged."""
    said = str(problem)
    # the latter two within one process, where the file is open for writing; a damaged block is no lock
    if re.search(r"\block", said) or "different configuration" in said or "already attached" in said:
        return StoreInUseError(
            f"{path} is open in another process; stop that one, or send events, retractions and queries through it."
        )
    kept_out = system_reason(said)
    if kept_out:
        return StoreError(f"{path} cannot be {'read' if read_only else 'written'}: {kept_out}; fix that and try again.")
    return _damaged(path, problem)


def _damaged(path: Path, problem: Exception) -> StoreError:
    return StoreError(
        f"{path} is no whole event store ({reason(problem)}); move it away, put a copy back or let the sources send "
        "their batches to a new one."
    )


def not_done(path: Path, done: str, problem: Exception) -> StoreError:
    """Why a transaction failed; done: what was to be done with the file, read or written."""
    said = str(problem)
    if not system_reason(said) and any(sign in said for sign in DAMAGE):
        return _damaged(path, problem)
    return StoreError(f"{path} cannot be {done}: {reason(problem)}; nothing was changed; fix that and try again.")


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

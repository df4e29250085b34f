"""Database: the open file of an event store. One thread writes at a time, any number read, and a checkpoint follows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.live.gate import Gate
from bridgemem.live.storefile import StoreError, connect, connect_soon, not_done, reason, rewrite

if TYPE_CHECKING:
    import duckdb

NEXT_CHECKPOINT = 10.0  # seconds after one that failed
SOON = 1.0  # seconds until one that many batches share


class Database:
    """One DuckDB file, opened once; its methods may be called from several threads.

    connection: None once it is closed.
    """

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self.connection: duckdb.DuckDBPyConnection | None = connect(path, read_only)
        self.not_before = 0.0  # the time.monotonic() at which the next checkpoint may be tried
        self._writer = threading.Lock()
        self._gate = Gate()  # cursors, or one that closes the database or puts another file in its place
        self._soon: threading.Timer | None = None  # the checkpoint of all that is written until then

    def close(self) -> None:
        """Close the file once no one reads it; a database that is not closed loses nothing either."""
        if (soon := self._soon) is not None:
            soon.cancel()
        with self._writer, self._gate.alone():
            if self.connection is not None:
                self.connection.close()
            self.connection = None

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction that sees the file as it is now, whatever is written meanwhile."""
        with self._transaction("read") as cursor:
            yield cursor

    @contextmanager
    def writing(self, checkpoint: bool = True, *, ended: Callable[[bool], None]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction of its own for the holder of the lock; it is on the disk when this ends.

        checkpoint: at once, else soon. ended: told before the next one may write whether all went well.
        """
        with self._writer:
            well = False
            try:
                with self._transaction("written") as cursor:
                    yield cursor
                if checkpoint:
                    self._checkpoint()
                elif self._soon is None:
                    self._soon = threading.Timer(SOON, self._checkpoint_late)
                    self._soon.daemon = True
                    self._soon.start()
                well = True
            finally:
                ended(well)

    def rewrite(self) -> None:
        """Rewrite the file, so that nothing is left of deleted rows; other threads wait."""
        with self._writer, self._gate.alone():
            database, self.connection = self._opened(), None
            try:
                rewrite(self.path, database)
            finally:
                self.connection = connect_soon(self.path)

    def checkpoint(self) -> None:
        """Bring what was committed into the file itself, so that a copy of the file alone is whole.

        It is safe in the write-ahead log already: where this fails, such as on a full disk, a later one makes it good.
        """
        with self._writer:
            self._checkpoint()

    def _checkpoint_late(self) -> None:
        self._soon = None
        with suppress(StoreError):  # as after any other that fails
            self.checkpoint()

    def _checkpoint(self) -> None:
        import duckdb

        if self.connection is None or time.monotonic() < self.not_before:
            return
        try:
            with self._cursor() as cursor:
                cursor.execute("CHECKPOINT")
        except (duckdb.Error, OSError) as problem:
            self.not_before = time.monotonic() + NEXT_CHECKPOINT
            if isinstance(problem, duckdb.FatalException):
                self._reopen()

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of its own for one thread; the database is not closed meanwhile."""
        with self._gate.one_of_many(), self._opened().cursor() as cursor:
            yield cursor

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if self.connection is None:
            raise StoreError(f"{self.path} was closed; open it again.")
        return self.connection

    def _reopen(self) -> None:
        """Open the file again after a fatal error, when DuckDB refuses every query; commits are safe in it."""
        with self._gate.alone():
            if self.connection is not None:
                self.connection.close()
                self.connection = connect(self.path, self.read_only)

    @contextmanager
    def _transaction(self, done: str) -> Iterator[duckdb.DuckDBPyConnection]:
        import duckdb

        try:
            with self._cursor() as cursor:
                cursor.execute("BEGIN")
                try:
                    yield cursor
                except BaseException:
                    cursor.execute("ROLLBACK")
                    raise
                cursor.execute("COMMIT")
        except duckdb.FatalException as problem:
            self._reopen()
            raise StoreError(f"{self.path} cannot be {done}: {reason(problem)}; try again.") from None
        except (duckdb.Error, OSError) as problem:
            raise not_done(self.path, done, problem) from None

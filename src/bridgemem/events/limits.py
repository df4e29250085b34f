"""Limits on what a file may unpack to, so that a small file cannot fill the memory or run for hours.

Any file may unpack to FREE bytes, and a large one to a multiple of its own size. A row counts with the memory that it
takes up once it is read, however few bits it was packed into. Text that is not packed never reaches the limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bridgemem.errors import DataError, LimitError, SettingsError

FREE = 1 << 30  # bytes that any file may unpack to
ROW_BYTES = 200  # memory that a row takes until it is an event
TEXT_RATIO = 250  # times its own size, for gz, zip and npz; more than ROW_BYTES + 1, so that plain text always fits
TABLE_RATIO = 1000  # the same for Parquet, where a column of repeated values takes up next to nothing
MOST_IDLE_LINES = 1_000_000  # blank or rejected lines of one file; beyond that, at most IDLE_SHARE for each row
IDLE_SHARE = 9
MOST_PAIRS = 100  # events that one row between several parties may become
MOST_NOTE_BYTES = 1 << 20  # of the note in a packed data set
VARIABLE = "BRIDGEMEM_UNPACK_LIMIT"  # raises FREE

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def bytes_of(text: str | int) -> int:
    """A number of bytes from 2GB, 512 MB, 1.5G or a whole number."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)i?B?", str(text)[:80].strip(), re.IGNORECASE)
    if not match:
        raise SettingsError(f"{str(text)[:40]!r} is not an amount of memory: write it as 2GB or 512MB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def free_bytes() -> int:
    """FREE, or what the environment variable sets it to."""
    given = os.environ.get(VARIABLE)
    try:
        return bytes_of(given) if given else FREE
    except SettingsError as problem:
        raise SettingsError(f"{VARIABLE}: {problem}") from None


class Budget:
    """What the files of one reading may unpack to, and how much of it is spent.

    free: the bytes that do not depend on the size of the files; FREE or what the environment says, if not given.
    """

    def __init__(self, free: int | None = None) -> None:
        self._free = free_bytes() if free is None else free
        self._earned = self._spent = 0

    @property
    def allowed(self) -> int:
        return max(self._free, self._earned)

    def open(self, path: Path, ratio: int) -> None:
        """Begin with a file: it earns a multiple of its own size."""
        self._earned += ratio * path.stat().st_size

    def spend(self, path: Path, size: int, rows: int = 0) -> None:
        """Count unpacked bytes and rows; DataError beyond the limit."""
        self._spent += size + ROW_BYTES * rows
        if self._spent > self.allowed:
            raise LimitError(
                f"{path} of {path.stat().st_size:,} bytes unpacks to more than {self.allowed >> 20:,} MB in memory, "
                f"the limit for its size: if it can be trusted, set {VARIABLE} to more, such as 8GB."
            )


def check_idle(path: Path, lines: int, rows: int, rejects: Sequence[str] = ()) -> None:
    """Stop at a text file that is made of blank and rejected lines; rejects: the line and the reason of the first."""
    if lines - rows > MOST_IDLE_LINES + IDLE_SHARE * rows:
        why = f", the first rejected one at line {rejects[0]}" if rejects else ""
        raise DataError(
            f"{path} was given up after {lines:,} lines, of which {rows:,} can be rows of events{why}: give a file of "
            "events."
        )

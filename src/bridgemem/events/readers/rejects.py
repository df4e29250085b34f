"""Rejected rows as a file: where each stands, why, and the row itself, to be repaired and given again.

The columns subject, relation, object and time are those of a table of events or queries, so a repaired file is one. A
line that could not be cut into columns stands whole in the column row.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.readers.options import ROLES
from bridgemem.events.readers.text import Reject
from bridgemem.storage.whole import whole_file

ABOUT = ("file", "line", "reason", "row")  # the columns next to those of an event
COLUMNS = ("file", "line", "reason", *ROLES, "row")
MOST = 1_000_000  # rejected rows that are written
HEADER = ",".join(COLUMNS)


class RejectedError(DataError):
    """Rows that refuse a whole file, with all of them; sentences: what is wrong with each, if known."""

    def __init__(self, message: str, rejects: Sequence[Reject], sentences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.rejects, self.sentences = rejects, sentences


def check_name(path: Path) -> Path:
    """Refuse the name of a file that is there and holds anything but rejected rows."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; name a file for the rejected rows.")
    if path.exists():
        with path.open("rb") as file:
            first = file.readline(len(HEADER) + 2)
        if first.strip() != HEADER.encode():
            raise SettingsError(f"{path} exists already and holds no rejected rows; choose another name.")
    return path


def write_rejects(path: Path, rejects: Iterable[Reject]) -> None:
    """Write rejected rows as CSV, whole or not at all; without any the file has its header alone."""
    with whole_file(check_name(path)) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows(map(_row, rejects))


class RejectsLog:
    """A file of rejected rows that keeps growing: rows that are on the disk when `add` returns.

    Rows are added before what they belong to is acknowledged, so that none is lost; after a kill in between they come
    again, in the first block, and are known there by line and text; the file may have been renamed. A row that a kill
    cut off is written again.
    """

    def __init__(self, path: Path) -> None:
        self.path = check_name(path)
        self._known: set[tuple[str, ...]] | None = set()
        if path.exists():
            held = path.read_bytes()
            if not held.endswith(b"\n"):
                os.truncate(path, held.rfind(b"\n") + 1)
            with path.open(encoding="utf-8", newline="") as file:
                self._known = {_key(row) for row in csv.reader(file)}
        if not path.exists() or not path.stat().st_size:
            write_rejects(path, ())

    def add(self, rejects: Sequence[Reject]) -> None:
        """Write rows after those that are there."""
        rows = [_row(reject) for reject in rejects]
        if self._known is not None:
            rows = [row for row in rows if _key(row) not in self._known]
        if rows:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
                file.flush()
                os.fsync(file.fileno())

    def acknowledged(self) -> None:
        """What was added last will not come again."""
        self._known = None


def _key(row: Sequence[str | int]) -> tuple[str, ...]:
    """What identifies a written row: its line and its values."""
    return tuple(map(str, (*row[1:2], *row[3:])))


def _row(reject: Reject) -> list[str | int]:
    """The cells of a rejected row; one that was not cut into columns stands whole in the last."""
    cut = len(reject.row) == len(ROLES)
    values = [*reject.row, ""] if cut else [*("",) * len(ROLES), *(reject.row or (reject.text,))]
    return [reject.file, reject.line, reject.reason, *values]

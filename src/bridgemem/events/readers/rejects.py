"""Rejected rows as a file: where each stands, why, and the row itself, to be repaired and given again.

The columns subject, relation, object and time are those of a table of events or queries, so a repaired file is one. A
line that could not be cut into columns stands whole in the column row.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
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
    """Rows that refuse a whole file, with all of them."""

    def __init__(self, message: str, rejects: Sequence[Reject]) -> None:
        super().__init__(message)
        self.rejects = rejects


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


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """Write rejected rows as CSV, whole or not at all; without any the file has its header alone."""
    with whole_file(check_name(path)) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for reject in rejects:
            cut = len(reject.row) == len(ROLES)
            values = [*reject.row, ""] if cut else [*("",) * len(ROLES), *(reject.row or (reject.text,))]
            table.writerow([reject.file, reject.line, reject.reason, *values])

"""Quarantine: rows that were rejected, kept in the store until they are repaired and replayed, or dropped.

A row is kept as `--rejects` writes it: the file or source it came from, its line, the reason, its values, and the row
itself where it could not be cut into values. The rows of a batch replace those that an earlier try of it left, and go
when it is taken in after all. The quarantine is bounded: the oldest rows are dropped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgemem.errors import DataError
from bridgemem.events.naming import LONGEST_NAME, NewEvent
from bridgemem.events.readers.options import ROLES
from bridgemem.events.readers.text import Reject
from bridgemem.live.eventstore import EventStore, Receipt

if TYPE_CHECKING:
    import duckdb

MOST = 100_000  # rows that a quarantine holds
LONGEST = 4 * LONGEST_NAME  # characters of a text that are kept
# whether any text of a row matches a pattern, such as that of a name
MENTIONS = "regexp_matches(concat_ws(' ', source, key, file, reason, subject, relation, object, time, \"row\"), ?)"
_COLUMNS = 'id, source, key, "when", file, line, reason, subject, relation, object, time, "row"'


@dataclass(frozen=True)
class Rejected:
    """A row in quarantine. row: as it came, where it could not be cut into values, which are empty then."""

    source: str
    when: str
    file: str
    line: int
    reason: str
    subject: str
    relation: str
    object: str
    time: str
    row: str


@dataclass(frozen=True)
class Replayed:
    """What became of repaired rows: receipts of the batches that they made, one for each source, and rows left."""

    events: int
    accepted: int
    duplicates: int
    late: int
    left: int


def mentions(name: str) -> str:
    """A pattern, in DuckDB's words, of texts that hold a name as a whole word or several."""
    return rf"(^|[^\p{{L}}\p{{N}}_]){re.escape(name)}($|[^\p{{L}}\p{{N}}_])"


class Quarantine:
    """The quarantine of a store that is open for writing."""

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self._batches: set[tuple[str, str]] | None = None  # source and key of those that have rows here

    def keep(self, source: str, key: str, rejects: Sequence[Reject]) -> None:
        """Keep rejected rows of a batch in place of those of an earlier try; without any, nothing is left of it."""
        batch = (_text(source), _text(key))
        if not rejects and batch not in self._known():
            return
        with self.store.changing() as cursor:
            cursor.execute("DELETE FROM rejected WHERE source = ? AND key = ?", batch)
            _add(cursor, *batch, rejects)
        self._batches = None

    def taken(self, source: str, key: str) -> None:
        """Forget the rows of a batch, which was taken in after all."""
        self.keep(source, key, ())

    def _known(self) -> set[tuple[str, str]]:
        if self._batches is None:
            with self.store.reading() as cursor:
                self._batches = {
                    (s, k) for s, k in cursor.execute("SELECT DISTINCT source, key FROM rejected").fetchall()
                }
        return self._batches


def _add(cursor: duckdb.DuckDBPyConnection, source: str, key: str, rejects: Sequence[Reject]) -> None:
    rejects = rejects[-MOST:]
    first = cursor.execute("SELECT coalesce(max(id), 0) + 1 FROM rejected").fetchall()[0][0]
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    rows = [
        (first + n, source, key, now, _text(r.file), r.line, _text(r.reason), *_values(r))
        for n, r in enumerate(rejects)
    ]
    if rows:
        kinds = ["BIGINT[]" if n in (0, 5) else "VARCHAR[]" for n in range(12)]
        cursor.execute(
            f"INSERT INTO rejected SELECT {', '.join(f'unnest(?::{kind})' for kind in kinds)}",
            [list(column) for column in zip(*rows, strict=True)],
        )
        cursor.execute("DELETE FROM rejected WHERE id <= ?", [first + len(rows) - 1 - MOST])


def _values(reject: Reject) -> tuple[str, ...]:
    """The values of a row and an empty text, or empty values and the row."""
    if len(reject.row) == len(ROLES):
        return (*map(_text, reject.row), "")
    return ("",) * len(ROLES) + (_text(reject.row[0] if reject.row else reject.text),)


def _text(value: object) -> str:
    """A text that DuckDB can store, cut."""
    text = str(value).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _count(cursor: duckdb.DuckDBPyConnection) -> int:
    return cursor.execute("SELECT count(*) FROM rejected").fetchall()[0][0]


def rejected(store: EventStore, *, source: str | None = None, last: int | None = None) -> list[Rejected]:
    """The rows in quarantine, in the order in which they came; of one source, and the last alone."""
    with store.reading() as cursor:
        found = cursor.execute(
            f"SELECT {_COLUMNS} FROM rejected WHERE $1 IS NULL OR source = $1 ORDER BY id DESC LIMIT $2", [source, last]
        ).fetchall()
    return [Rejected(row[1], *row[3:]) for row in reversed(found)]


def in_quarantine(store: EventStore) -> int:
    """How many rows are in quarantine."""
    with store.reading() as cursor:
        return _count(cursor)


def as_rejects(rows: Sequence[Rejected]) -> list[Reject]:
    """Rows of a quarantine as a file of rejected rows has them."""
    return [Reject(r.file, r.line, r.reason, r.row, () if r.row else astuple(r)[5:9]) for r in rows]


def drop(store: EventStore, *, source: str | None = None) -> int:
    """Remove the rows in quarantine, or those of a source; how many they were."""
    with store.changing() as cursor:
        before = _count(cursor)
        cursor.execute("DELETE FROM rejected WHERE $1 IS NULL OR source = $1", [source])
        return before - _count(cursor)


@dataclass(frozen=True)
class Repaired:
    """A repaired row: where it stands in the quarantine, and the event that it is."""

    file: str
    line: int
    event: NewEvent


Append = Callable[[Sequence[NewEvent], str, str], Receipt]


def replay(store: EventStore, rows: Sequence[Repaired], append: Append) -> Replayed:
    """Store repaired rows under the sources they came from, and take them out of quarantine.

    append: takes events, their source and their key, as `EventStore.append` or a live forecaster does. The key is made
    of the rows, so that the same ones count once. Rows that are not in quarantine are refused, and nothing is stored.
    """
    if not rows:
        raise DataError("there are no repaired rows in it; fill the columns subject, relation, object and time.")
    with store.reading() as cursor:
        known = dict(_by_place(cursor.execute("SELECT file, line, source FROM rejected").fetchall()))
    sources = dict[str, list[Repaired]]()
    for row in rows:
        source = known.get((row.file, row.line))
        if source is None and (done := _done_before(store, rows)) is not None:
            return done
        if source is None:
            raise DataError(
                f"{row.file!r}, line {row.line}, is not in quarantine; keep the columns file and line as `bridgemem "
                "rejected --out` wrote them. Nothing was stored."
            )
        sources.setdefault(source, []).append(row)
    receipts = [append([row.event for row in own], source, _key(rows)) for source, own in sources.items()]
    with store.changing() as cursor:
        for row in rows:
            cursor.execute("DELETE FROM rejected WHERE file = ? AND line = ?", [row.file, row.line])
        left = _count(cursor)
    return _sum(receipts, left)


def _by_place(rows: Sequence[Sequence[Any]]) -> list[tuple[tuple[str, int], str]]:
    return [((file, line), source) for file, line, source in rows]


def _key(rows: Sequence[Repaired]) -> str:
    told = json.dumps([(row.file, row.line, row.event) for row in rows])
    return f"replay-{hashlib.sha256(told.encode()).hexdigest()[:24]}"


def _done_before(store: EventStore, rows: Sequence[Repaired]) -> Replayed | None:
    """What was stored of the same rows before, if they were replayed already."""
    if store.sender(_key(rows)) is None:
        return None
    return Replayed(0, 0, 0, 0, in_quarantine(store))


def _sum(receipts: Sequence[Receipt], left: int) -> Replayed:
    parts = [(len(r.ids), r.accepted, r.duplicates, r.late) if not r.replayed else (0, 0, 0, 0) for r in receipts]
    events, accepted, duplicates, late = (sum(column) for column in zip(*parts, strict=True))
    return Replayed(events, accepted, duplicates, late, left)


def read_repaired(path: Path) -> list[Repaired]:
    """The rows of a file of rejected rows whose values were filled in; rows without any are passed by."""
    import csv

    from bridgemem.events.readers.rejects import COLUMNS

    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file)
        missing = [name for name in COLUMNS[:2] + ROLES if name not in (table.fieldnames or ())]
        if missing:
            raise DataError(
                f"{path} lacks the columns {', '.join(missing)}; repair what `bridgemem rejected` exported."
            )
        found = []
        for number, row in enumerate(table, 2):
            values = [(row[name] or "").strip() for name in ROLES]
            if not any(values):
                continue
            if not all(values) or not (row["line"] or "").isdecimal():
                raise DataError(
                    f"{path}, row {number}: subject, relation, object, time and line must be filled; empty all four "
                    "values to leave a row in quarantine. Nothing was stored."
                )
            subject, relation, object_, time = values
            found.append(Repaired(row["file"] or "", int(row["line"]), (subject, relation, object_, time)))
    return found

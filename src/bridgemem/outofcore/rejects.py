"""Rejected rows of a corpus: DuckDB keeps them next to the events, and they are written as they are fetched."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bridgemem.events.limits import MOST_PAIRS
from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.options import ROLES
from bridgemem.events.readers.text import Reject, Screened, short
from bridgemem.events.readers.values import missing_value, name_fault
from bridgemem.outofcore.sources import CROWD

if TYPE_CHECKING:
    import duckdb

FETCH = 1 << 14  # rows fetched at a time
KINDS = ("entity", "relation", "entity")  # of the names of a row

# broken: lines that are no rows, with the row that stands before. no_rows: as `Screened.rows_above` has them.
TABLES = """CREATE TABLE IF NOT EXISTS broken (file INTEGER, row BIGINT, line BIGINT, reason VARCHAR, text VARCHAR);
CREATE TABLE IF NOT EXISTS no_rows (file INTEGER, above BIGINT)"""


def keep_lines(db: duckdb.DuckDBPyConnection, file: int, text: Screened) -> None:
    """Keep which lines of a file are no rows, and what is wrong with them."""
    above, none = text.rows_above(), text.rejects
    lines = np.array([reject.line for reject in none], np.int64)
    # a rejected line is one of those that are no rows: what is left of its number are the rows above it
    rows = lines - 1 - np.searchsorted(above + np.arange(len(above)), lines)
    columns = [rows.tolist(), lines.tolist(), [r.reason for r in none], ["".join(r.row) for r in none]]
    unnested = "unnest(?::BIGINT[]), unnest(?::BIGINT[]), unnest(?::VARCHAR[]), unnest(?::VARCHAR[])"
    db.execute(f"INSERT INTO broken SELECT {file}, {unnested}", columns)
    db.execute(f"INSERT INTO no_rows SELECT {file}, unnest(?::BIGINT[])", [above.tolist()])


@dataclass(frozen=True)
class Judge:
    """Says why a row is no event, in the words of `read_events`.

    missing: what stands for a missing value, by role. vocabularies, by_id: of entity and relation, the names that are
    known, and whether whole numbers are ids. times: why a time cannot be read, by its text. published: in a published
    layout rows without a party are counted, and are no rejects.
    """

    missing: Mapping[str, Collection[str]]
    vocabularies: Mapping[str, Vocabulary | None]
    by_id: Mapping[str, bool]
    times: Mapping[str, str] = field(default_factory=dict)
    published: bool = False

    def reason(self, row: Sequence[str]) -> str | None:
        """Why a row of four texts is rejected; None where it is left out without a word."""
        lacking = [(role, text) for role, text in zip(ROLES, row, strict=True) if text in self.missing[role]]
        if self.published and any(role in ("subject", "object") for role, _ in lacking):
            return None
        for role, text in lacking[:1]:
            return f"the {role} is empty" if self.published else missing_value(role, text)
        if self.published and row[3] == CROWD:
            return f"the row names more pairs of parties than {MOST_PAIRS}, and at most that many of one row are read"
        names = zip(KINDS, row[:3], strict=True)
        faults = (name_fault(name, kind, self.vocabularies[kind], by_id=self.by_id[kind]) for kind, name in names)
        found = next(filter(None, faults), "") or self.times.get(row[3])
        return found or f"the time {short(row[3], 40)} is negative"


def rejected(db: duckdb.DuckDBPyConnection, files: Sequence[str], values: str, judge: Judge) -> Iterator[Reject]:
    """The rows of `raw` that did not become events, and the lines that are no rows, in the order of the files.

    values: SQL of the four texts of a row.
    """
    above: defaultdict[int, list[int]] = defaultdict(list)
    for file, row in db.execute("SELECT file, above FROM no_rows ORDER BY ALL").fetchall():
        above[file].append(row)
    found = db.execute(
        f"""SELECT file, row, 0 AS line, NULL AS reason, [{values}] AS texts
            FROM raw ANTI JOIN events ON raw.rowid = events.ord
        UNION ALL SELECT file, row, line, reason, [text] FROM broken ORDER BY file, row, line"""
    )
    last = None
    while block := found.fetchmany(FETCH):
        for file, row, line, reason, texts in block:
            # a row between several parties has become several, side by side; it is rejected once
            if reason is None and last != (last := (file, row)):
                line, reason = row + bisect_right(above[file], row), judge.reason(texts)
            if reason is not None:
                text = "\t".join(texts)
                yield Reject(files[file], line, reason, short(text), tuple(texts))

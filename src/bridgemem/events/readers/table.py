"""Tables of events: which column of a file or frame holds which part of an event, and its rows as DuckDB reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bridgemem.errors import BridgeMemError, DataError
from bridgemem.events.limits import FREE, TABLE_RATIO, Budget
from bridgemem.events.readers.layouts import LAYOUTS, SourceLayout, detect, detect_headless, plainly, unquoted
from bridgemem.events.readers.text import Dialect, Reject, Screened, literal, open_bytes, sample, screened, short
from bridgemem.events.times import is_time
from bridgemem.progress import SILENT, Step

if TYPE_CHECKING:
    import duckdb

ROLES = ("subject", "relation", "object", "time")
# What headings are called elsewhere, in lower case; the earlier one wins where a table has two of them.
SYNONYMS = {
    "subject": ("subject", "source", "head", "actor1", "s"),
    "relation": ("relation", "rel", "predicate", "type", "event", "r", "p"),
    "object": ("object", "target", "tail", "actor2", "o"),
    "time": ("time", "timestamp", "date", "datetime", "day", "t"),
}
SEPARATORS = ("\t", ",", ";", "|")
TEXTS = ("VARCHAR",) * len(ROLES)
PARQUET = (".parquet", ".pq", ".parq")

REMARK = re.compile("#.*|sep=.", re.IGNORECASE)  # lines that some programs put above all others
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # no leading zeros: the codes 010 and 10 are two names, not one id


@dataclass(frozen=True)
class ColumnNames:
    """The headings under which a table holds its events; an empty one is found by the usual names."""

    subject: str = ""
    relation: str = ""
    object: str = ""
    time: str = ""


@dataclass(frozen=True)
class Asked:
    """What is known of a source before it is opened: its format (one of FORMATS), headings, and the step wanted."""

    format: str = "auto"
    columns: ColumnNames = ColumnNames()
    step: str | int | None = None

    def layout(self, headings: Sequence[str]) -> SourceLayout | None:
        """The published layout that was named, or that the headings tell."""
        return detect(headings) if self.format == "auto" else LAYOUTS.get(self.format)

    def candidates(self, layout: SourceLayout | None) -> dict[str, tuple[str, ...]]:
        """The headings that may hold each role."""
        given = {role: getattr(self.columns, role) for role in ROLES}
        return {
            role: (name,) if name else layout.headings(role, self.step) if layout else SYNONYMS[role]
            for role, name in given.items()
        }


@dataclass(frozen=True)
class Source:
    """A file or frame, and the columns of it that hold the four roles.

    headings, columns, kinds: of each role its heading, its column as SQL, and DuckDB's type of it. table: what DuckDB
    reads, apart from a text file, which has a dialect instead. by_position: it has no heading.
    """

    name: str
    layout: SourceLayout | None
    headings: tuple[str, ...]
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    table: str = ""
    dialect: Dialect | None = None
    by_position: bool = False

    @contextmanager
    def rows(
        self, budget: Budget, advance: Step, *, folder: Path | None = None
    ) -> Iterator[tuple[str, Screened | None]]:
        """What DuckDB reads the rows from, and what was found of the lines of a text file; folder: for a copy of it."""
        if self.dialect is None:
            yield self.table, None
            return
        with screened(Path(self.name), self.dialect, advance, budget=budget, folder=folder) as found:
            yield found.sql(), found

    def texts(self) -> list[str]:
        """The four columns as SQL that gives texts, empty where a value is missing."""
        return [_as_text(column, kind) for column, kind in zip(self.columns, self.kinds, strict=True)]


def connect() -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that leaves nothing on the disk."""
    try:
        import duckdb
    except ImportError:
        raise DataError("reading tables needs DuckDB: pip install duckdb.") from None
    return duckdb.connect(config={"temp_directory": ""})


@contextmanager
def reading(name: str) -> Iterator[None]:
    """What DuckDB raises while it reads a table, as one sentence."""
    try:
        yield
    except BridgeMemError:
        raise
    except Exception as error:  # over damaged files DuckDB raises more than its own errors
        if "interrupted" in str(error).lower():  # what becomes of a signal that comes while DuckDB works
            raise KeyboardInterrupt from None
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{name} cannot be read as a table: {short(reason, 300)}.") from None


# ---- finding the columns -------------------------------------------------------------------------------------------


def find_columns(part: Any, asked: Asked, db: duckdb.DuckDBPyConnection) -> Source | None:
    """Where a file, a data frame or a dict of columns holds its events; None where a file is empty.

    A frame is known to the DuckDB as `frame` from here on.
    """
    if not isinstance(part, str | Path):
        if isinstance(part, Mapping):
            return _from_dict(part, asked, db)
        with reading("data frame"):
            db.register("frame", part)
        return _described("data frame", "frame", asked, db)
    path = Path(part)
    if path.suffix.lower() in PARQUET:
        open_bytes(path).close()
        return _described(str(path), f"read_parquet({literal(path)})", asked, db)
    lines = sample(path)
    return _from_text(path, lines, asked) if lines else None


def _described(name: str, table: str, asked: Asked, db: duckdb.DuckDBPyConnection) -> Source:
    """Where a table that DuckDB can describe holds the roles."""
    with reading(name):
        described = [row[:2] for row in db.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]
    heading = Heading([str(column) for column, _ in described], asked)
    columns, kinds = zip(*(described[i] for i in heading.places(name)), strict=True)
    return Source(name, heading.layout, columns, tuple(map(_identifier, columns)), tuple(map(str, kinds)), table)


def _from_dict(frame: Mapping[Any, Any], asked: Asked, db: duckdb.DuckDBPyConnection) -> Source:
    heading, columns = Heading([str(key) for key in frame], asked), list(frame.values())
    places = heading.places("the dict of columns")
    texts = {role: [_text(value) for value in columns[i]] for role, i in zip(ROLES, places, strict=True)}
    if len({len(column) for column in texts.values()}) > 1:
        raise DataError("the columns of the dict must have equal length.")
    with reading("the dict of columns"):
        db.register("frame", {role: np.array(column, dtype=object) for role, column in texts.items()})
    return Source("data frame", heading.layout, tuple(heading.row[i] for i in places), ROLES, TEXTS, "frame")


def _from_text(path: Path, lines: Sequence[tuple[int, str]], asked: Asked) -> Source:
    """Where a text file holds the roles, found from its first filled lines with their numbers.

    The heading is the one of the lines up to the first of full width that names the most roles. Four or five columns
    without one are read by position.
    """
    separator = max(SEPARATORS, key=lambda s: [sum(line.count(s) >= n for _, line in lines) for n in (3, 1)])
    rows = [Dialect(separator, 0).fields(line) for _, line in lines]
    widths = list(map(len, rows))
    width = max(set(widths), key=lambda w: (widths.count(w), w in (4, 5), -w))
    if max(widths) == 1:
        raise DataError(f"{path} has one column only: separate its columns by tabs, commas, semicolons or bars.")
    full = widths.index(width)
    remarks = next(i for i, (_, line) in enumerate(lines) if i == full or not REMARK.fullmatch(line.strip()))
    below_remarks = lines[remarks - 1][0] if remarks else 0
    headings = [Heading(row, asked) for row in rows[: full + 1]]
    at = max(range(full + 1), key=lambda i: (headings[i].named, i))
    heading, above = headings[at], lines[at][0]
    if heading.layout is None and asked.format == "auto" and (layout := detect_headless(rows[full])):
        heading = Heading(heading.row, asked, layout)
    if heading.named < 4 and heading.layout and heading.layout.headless and detect(heading.row) is not heading.layout:
        heading, above = Heading(heading.layout.columns_of(path, width), asked, heading.layout), below_remarks
    if heading.named == 4:
        places = heading.places(str(path))
        columns, names = tuple(f"c{i}" for i in places), tuple(unquoted(heading.row[i]) for i in places)
        dialect = Dialect(separator, len(heading.row), above)
        return Source(str(path), heading.layout, names, columns, TEXTS, dialect=dialect)
    by_position = heading.named < 2 or (len(heading.row) > 3 and is_time(heading.row[3]))
    if heading.layout or asked.columns != ColumnNames() or width not in (4, 5) or not by_position:
        raise heading.missing(str(path))
    for i in range(remarks, full + 1):
        if len(rows[i]) > 2 and not _timed(rows[i]) and any(map(_timed, rows[i + 1 :])):
            problem = str(headings[i].missing(str(path))).rstrip(".")
            raise DataError(f"{problem}; or fix line {lines[i][0]}, if it is an event, since it holds no time.")
    columns, names = tuple(f"c{i}" for i in range(4)), tuple(f"column {i + 1}" for i in range(4))
    dialect = Dialect(separator, width, below_remarks)
    return Source(str(path), None, names, columns, TEXTS, dialect=dialect, by_position=True)


def _timed(row: Sequence[str]) -> bool:
    """Whether any field of a row is a time, as in events, and never in a heading."""
    return any(is_time(unquoted(text)) for text in row)


class Heading:
    """A row of a table read as its heading: the layout that it tells, and where it names each role (None: nowhere)."""

    def __init__(self, row: Sequence[str], asked: Asked, layout: SourceLayout | None = None) -> None:
        self.row, self.asked, self.layout = row, asked, layout or asked.layout(row)
        key = plainly if self.layout else str.lower
        self._keys = [key(name) for name in row]
        candidates = {role: map(key, names) for role, names in asked.candidates(self.layout).items()}
        self._found = {
            role: next((self._keys.index(name) for name in names if name in self._keys), None)
            for role, names in candidates.items()
        }

    @property
    def named(self) -> int:
        """How many of the four roles it names."""
        return sum(place is not None for place in self._found.values())

    def places(self, source: str) -> tuple[int, ...]:
        """Where the roles are; each must have a column of its own, and the only one of its name."""
        taken: dict[int, str] = {}
        for role, place in self._found.items():
            if place is None:
                raise self.missing(source)
            if place in taken:
                both = f"both {taken[place]} and {role}"
                raise DataError(f"{source}: the column {self.row[place]!r} cannot be {both}: name two columns.")
            if self._keys.count(self._keys[place]) > 1:
                raise DataError(
                    f"{source} has two columns called {self.row[place]!r}: rename the one that is not meant."
                )
            taken[place] = role
        return tuple(taken)

    def missing(self, source: str) -> DataError:
        """The error that roles are not named."""
        usual = {role: self.layout.columns[role][0] if self.layout else role for role in ROLES}
        lost = [getattr(self.asked.columns, role) or usual[role] for role, i in self._found.items() if i is None]
        shown = short(", ".join(repr(name) for name in self.row))
        read = f", read as {self.layout.name}," if self.layout else ""
        return DataError(
            f"{source}{read} has no column for {short(', '.join(lost))}; it has {shown}: name the columns with "
            "--subject-column, --relation-column, --object-column and --time-column, or in Python with "
            'ColumnNames(subject="...", relation="...", object="...", time="...").'
        )


# ---- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """The rows of a text file as texts, with the lines they stand on, and the lines that are no rows."""

    headings: list[str]
    rows: list[tuple[str, ...]]
    lines: list[int]
    rejects: list[Reject]


def read_table(path: Path) -> Table:
    """Read all columns of a text file with a heading; a quoted field may run over several lines."""
    rows = ((number, max(SEPARATORS, key=line.count), line) for number, line in sample(path))
    first = next((row for row in rows if any(Dialect(row[1], 0).fields(row[2]))), None)
    if first is None:
        return Table([], [], [], [])
    number, separator, line = first
    headings = Dialect(separator, 0).fields(line)
    dialect = Dialect(separator, len(headings), number)
    with SILENT.task("") as advance, connect() as db, screened(path, dialect, advance, spanning=True) as found:
        with reading(str(path)):
            table = db.execute(f"FROM {found.sql()}").fetchall()
        return Table(headings, table, found.numbers().tolist(), found.rejects)


def check_rows(source: Source, table: str, budget: Budget, db: duckdb.DuckDBPyConnection) -> None:
    """Refuse what must not become rows: Parquet that unpacks to too much, and five columns that may be no events."""
    if table.startswith("read_parquet"):
        path, lengths = Path(source.name), " + ".join(f"strlen({text})" for text in source.texts())
        budget.open(path, TABLE_RATIO)
        # what a file declares is compared before anything is unpacked; it may be wrong, so DuckDB is limited as well
        db.execute(f"SET memory_limit = '{max(budget.allowed, FREE) >> 20}MiB'")
        declared = f"""SELECT max(size), max(rows) FROM (
            SELECT sum(total_uncompressed_size) OVER () AS size,
                sum(greatest(num_values, row_group_num_rows)) OVER (PARTITION BY column_id) AS rows
            FROM parquet_metadata({literal(path)}))"""
        for query in (declared, f"SELECT sum({lengths}), 0 FROM {table}"):
            size, rows = db.execute(query).fetchall()[0]
            budget.spend(path, int(size or 0), int(rows or 0))
    if source.by_position and source.dialect and source.dialect.width == 5:
        whole = f"regexp_full_match(trim(c4), {literal(INTEGER.pattern)})"
        if db.execute(f"SELECT count(DISTINCT c4) > 1 AND NOT bool_and({whole}) FROM {table}").fetchall()[0][0]:
            raise DataError(
                f"{source.name} has no heading and a fifth column of text: add a heading that names its columns."
            )


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_text(column: str, kind: str) -> str:
    text = f"CAST({column} AS VARCHAR)"
    if kind in ("FLOAT", "DOUBLE", "NUMBER"):
        # whole numbers with gaps come as floats from some tables: 3.0 means the id or the time 3
        whole = f"TRY_CAST({column} AS BIGINT)"
        text = f"CASE WHEN {whole} = {column} THEN CAST({whole} AS VARCHAR) ELSE {text} END"
    return f"COALESCE({text}, '')"

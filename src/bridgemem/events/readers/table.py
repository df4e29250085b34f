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
from bridgemem.events.readers.text import Dialect, Reject, literal, open_bytes, sample, screened, short
from bridgemem.events.times import is_time
from bridgemem.progress import SILENT

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

    headings, columns, kinds: of each role its heading, its column as SQL, and DuckDB's type of it. dialect: of a text
    file alone. by_position: it has no heading, and its first four columns are the roles.
    """

    name: str
    layout: SourceLayout | None
    headings: tuple[str, ...]
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    dialect: Dialect | None = None
    by_position: bool = False

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
        found = [(str(row[0]), str(row[1])) for row in db.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]
    headings = [heading for heading, _ in found]
    layout, places = find_roles(name, headings, asked)
    columns, kinds = ([pair[part] for pair in (found[i] for i in places)] for part in (0, 1))
    quoted = tuple('"' + column.replace('"', '""') + '"' for column in columns)
    return Source(name, layout, tuple(columns), quoted, tuple(kinds))


def _from_dict(frame: Mapping[Any, Any], asked: Asked, db: duckdb.DuckDBPyConnection) -> Source:
    name, headings, columns = "the dict of columns", [str(key) for key in frame], list(frame.values())
    layout, places = find_roles(name, headings, asked)
    texts = {role: [_text(value) for value in columns[i]] for role, i in zip(ROLES, places, strict=True)}
    if len({len(column) for column in texts.values()}) > 1:
        raise DataError("the columns of the dict must have equal length.")
    with reading(name):
        db.register("frame", {role: np.array(column, dtype=object) for role, column in texts.items()})
    return Source("data frame", layout, tuple(headings[i] for i in places), ROLES, ("VARCHAR",) * len(ROLES))


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
    at = max(range(full + 1), key=lambda i: (_named(rows[i], asked), i))
    heading, above = rows[at], lines[at][0]
    layout = asked.layout(heading)
    if layout is None and asked.format == "auto":
        layout = detect_headless(rows[full])
    found = _roles(heading, asked, layout)
    if layout and layout.headless and None in found.values() and detect(heading) is not layout:
        heading, above = _headless(path, width, layout), below_remarks
        found = _roles(heading, asked, layout)
    text = ("VARCHAR",) * len(ROLES)
    if None not in found.values():
        places = _distinct(str(path), heading, found, layout)
        columns, names = tuple(f"c{i}" for i in places), tuple(unquoted(heading[i]) for i in places)
        return Source(str(path), layout, names, columns, text, Dialect(separator, len(heading), above))
    problem = _missing(str(path), heading, found, asked, layout)
    few = sum(i is not None for i in found.values()) < 2
    looks_like_data = len(heading) > 3 and is_time(heading[3])
    if layout or asked.columns != ColumnNames() or width not in (4, 5) or not (looks_like_data or few):
        raise problem
    for i in range(remarks, full + 1):
        if len(rows[i]) > 2 and not _timed(rows[i]) and any(map(_timed, rows[i + 1 :])):
            problem = _missing(str(path), rows[i], found, asked, layout)
            raise DataError(
                f"{str(problem).rstrip('.')}; or fix line {lines[i][0]}, if it is an event, since it holds no time."
            )
    names = tuple(f"column {i + 1}" for i in range(4))
    dialect = Dialect(separator, width, below_remarks)
    return Source(str(path), None, names, ("c0", "c1", "c2", "c3"), text, dialect, by_position=True)


def _named(row: Sequence[str], asked: Asked) -> int:
    """How many roles a row names, if it is a heading."""
    return sum(i is not None for i in _roles(row, asked, asked.layout(row)).values())


def _timed(row: Sequence[str]) -> bool:
    """Whether any field of a row is a time, as in events, and never in a heading."""
    return any(is_time(unquoted(text)) for text in row)


def _headless(path: Path, width: int, layout: SourceLayout) -> list[str]:
    """The headings of a file that has none, by its number of columns."""
    for headings in layout.headless:
        if len(headings) == width:
            return list(headings)
    widths = ", ".join(str(len(headings)) for headings in layout.headless)
    raise DataError(f"{path} has {width} columns, and a {layout.name} file of events has {widths}: give such a file.")


def find_roles(source: str, headings: Sequence[str], asked: Asked) -> tuple[SourceLayout | None, tuple[int, ...]]:
    """The layout that the headings of a table tell, and where the four roles are among them."""
    layout = asked.layout(headings)
    found = _roles(headings, asked, layout)
    if None in found.values():
        raise _missing(source, headings, found, asked, layout)
    return layout, _distinct(source, headings, found, layout)


def _roles(headings: Sequence[str], asked: Asked, layout: SourceLayout | None) -> dict[str, int | None]:
    """Where each role's column is: the first of its candidates that is among the headings; None where none is."""
    key = plainly if layout else str.lower
    places = {key(name): i for i, name in reversed(list(enumerate(headings)))}
    candidates = asked.candidates(layout).items()
    return {role: next((places[key(n)] for n in names if key(n) in places), None) for role, names in candidates}


def _distinct(
    source: str, headings: Sequence[str], found: Mapping[str, int | None], layout: SourceLayout | None
) -> tuple[int, ...]:
    """Where the four roles are, all of them found; each must have a column of its own, and the only one of its name."""
    key = plainly if layout else str.lower
    taken: dict[int, str] = {}
    for role, place in found.items():
        if place is None:
            continue
        if place in taken:
            raise DataError(
                f"{source}: the column {headings[place]!r} cannot be both {taken[place]} and {role}: name two columns."
            )
        if [key(heading) for heading in headings].count(key(headings[place])) > 1:
            raise DataError(f"{source} has two columns called {headings[place]!r}: rename the one that is not meant.")
        taken[place] = role
    return tuple(taken)


def _missing(
    source: str,
    headings: Sequence[str],
    found: Mapping[str, int | None],
    asked: Asked,
    layout: SourceLayout | None,
) -> DataError:
    usual = {role: layout.columns[role][0] if layout else role for role in ROLES}
    lost = [getattr(asked.columns, role) or usual[role] for role, i in found.items() if i is None]
    shown = short(", ".join(repr(name) for name in headings))
    read = f", read as {layout.name}," if layout else ""
    return DataError(
        f"{source}{read} has no column for {short(', '.join(lost))}; it has {shown}: name the columns with --subject, "
        "--relation, --object and --time, or in Python with "
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


def check_fifth(source: Source, table: str, db: duckdb.DuckDBPyConnection) -> None:
    """Refuse a fifth column of texts that differ where none has a heading: the first four may be no events."""
    if source.by_position and source.dialect and source.dialect.width == 5:
        whole = f"regexp_full_match(trim(c4), {literal(INTEGER.pattern)})"
        found = db.execute(f"SELECT count(DISTINCT c4) > 1 AND NOT bool_and({whole}) FROM {table}").fetchone()
        if found and found[0]:
            raise DataError(
                f"{source.name} has no heading and a fifth column of text: add a heading that names its columns."
            )


def check_declared(source: Source, table: str, budget: Budget, db: duckdb.DuckDBPyConnection) -> None:
    """Compare what a Parquet file says of its own size with the budget, before anything of it is unpacked."""
    path = Path(source.name)
    budget.open(path, TABLE_RATIO)
    declared = """SELECT max(size), max(rows) FROM (
        SELECT sum(total_uncompressed_size) OVER () AS size,
            sum(greatest(num_values, row_group_num_rows)) OVER (PARTITION BY column_id) AS rows
        FROM parquet_metadata(?))"""
    # what a file declares may be wrong, so what DuckDB unpacks is limited as well
    db.execute(f"SET memory_limit = '{max(budget.allowed, FREE) >> 20}MiB'")
    size, rows = db.execute(declared, [str(path)]).fetchone() or (0, 0)
    budget.spend(path, int(size or 0), int(rows or 0))
    lengths = " + ".join(f"strlen({text})" for text in source.texts())
    found = db.execute(f"SELECT sum({lengths}) FROM {table}").fetchone()
    budget.spend(path, int(found[0] or 0) if found else 0)


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _as_text(column: str, kind: str) -> str:
    text = f"CAST({column} AS VARCHAR)"
    if kind in ("FLOAT", "DOUBLE", "NUMBER"):
        # whole numbers with gaps come as floats from some tables: 3.0 means the id or the time 3
        whole = f"TRY_CAST({column} AS BIGINT)"
        text = f"CASE WHEN {whole} = {column} THEN CAST({whole} AS VARCHAR) ELSE {text} END"
    return f"COALESCE({text}, '')"

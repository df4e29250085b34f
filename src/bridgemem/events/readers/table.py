"""Tables of events: which column of a file or frame holds which part of an event, and its rows as DuckDB reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bridgemem.errors import BridgeMemError, DataError, SettingsError
from bridgemem.events.limits import FREE, TABLE_RATIO, Budget
from bridgemem.events.readers.layouts import SourceLayout, detect, detect_headless, plainly, unquoted
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.text import (
    KEPT_REJECTS,
    Dialect,
    Reject,
    Screened,
    literal,
    open_bytes,
    sample,
    screened,
    short,
)
from bridgemem.events.times import is_time
from bridgemem.events.whole_numbers import plain_number_sql
from bridgemem.progress import SILENT, Step

if TYPE_CHECKING:
    import duckdb

SEPARATORS = ("\t", ",", ";", "|")
TEXTS = ("VARCHAR",) * len(ROLES)
PARQUET = (".parquet", ".pq", ".parq")
FRAME = "frame"  # what DuckDB knows a data frame as

Roles = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]  # headings, columns as SQL, and types of the roles

MOMENT = re.compile(r"DATE|TIMESTAMP.*")  # DuckDB's types of dates
REMARK = re.compile("#.*|sep=.", re.IGNORECASE)  # lines that some programs put above all others
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # no leading zeros: the codes 010 and 10 are two names, not one id


@dataclass(frozen=True)
class Source:
    """A file or frame, and the columns of it that hold the four roles.

    headings, columns, kinds: of each role its heading (empty where the relation is the same in every row), its column
    as SQL, and DuckDB's type of it. table: what DuckDB reads, apart from a text file, which has a dialect instead.
    by_position: it has no heading.
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
        self, budget: Budget, advance: Step, *, folder: Path | None = None, kept: int = KEPT_REJECTS
    ) -> Iterator[tuple[str, Screened | None]]:
        """What DuckDB reads the rows from, and what was found of the lines of a text file; folder: for a copy of it."""
        if self.dialect is None:
            yield self.table, None
            return
        with screened(Path(self.name), self.dialect, advance, budget=budget, folder=folder, kept=kept) as found:
            yield found.sql(), found

    def texts(self) -> list[str]:
        """The four columns as SQL that gives texts, empty where a value is missing."""
        return [_as_text(column, kind) for column, kind in zip(self.columns, self.kinds, strict=True)]


def connect(folder: Path | None = None, memory: str = "") -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that leaves nothing on the disk; folder: where it puts what does not fit into `memory`."""
    try:
        import duckdb
    except ImportError:
        raise DataError("reading tables needs DuckDB: pip install duckdb.") from None
    limit = {"memory_limit": memory} if memory else {}
    return duckdb.connect(config={"temp_directory": str(folder or ""), **limit})


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


def find_columns(part: Any, options: ReadOptions, db: duckdb.DuckDBPyConnection) -> Source | None:
    """Where a file, a data frame or a dict of columns holds its events; None where a file is empty.

    A frame is known to the DuckDB as `frame` from here on.
    """
    if not isinstance(part, str | Path):
        if isinstance(part, Mapping):
            return _from_dict(part, options, db)
        with reading("data frame"):
            db.register(FRAME, part)
        return _described("data frame", FRAME, options, db)
    path = Path(part)
    if path.suffix.lower() in PARQUET:
        open_bytes(path).close()
        return _described(str(path), f"read_parquet({literal(path)})", options, db)
    lines = sample(path)
    return _from_text(path, lines, options) if lines else None


def _described(name: str, table: str, options: ReadOptions, db: duckdb.DuckDBPyConnection) -> Source:
    """Where a table that DuckDB can describe holds the roles."""
    with reading(name):
        described = [row[:2] for row in db.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]
    heading = Heading([str(column) for column, _ in described], options, file=table != FRAME)
    roles = heading.roles(name, [(_identifier(column), str(kind)) for column, kind in described])
    return Source(name, heading.layout, *roles, table)


def _from_dict(frame: Mapping[Any, Any], options: ReadOptions, db: duckdb.DuckDBPyConnection) -> Source:
    heading, columns = Heading([str(key) for key in frame], options, file=False), list(frame.values())
    roles = heading.roles("the dict of columns", [(f"c{i}", "VARCHAR") for i in range(len(columns))])
    used = {i for places in heading.places("the dict of columns") for i in places}
    texts = {f"c{i}": [_text(value) for value in columns[i]] for i in sorted(used)}
    if len({len(column) for column in texts.values()}) > 1:
        raise DataError("the columns of the dict must have equal length.")
    with reading("the dict of columns"):
        db.register("frame", {name: np.array(column, dtype=object) for name, column in texts.items()})
    return Source("data frame", heading.layout, *roles, "frame")


def _from_text(path: Path, lines: Sequence[tuple[int, str]], options: ReadOptions) -> Source:
    """Where a text file holds the roles, found from its first filled lines with their numbers.

    The heading is the one of the lines up to the first of full width that names the most roles. Four or five columns
    without one are read by position; three, where the relation is the same in every row.
    """
    usual = (3,) if options.relation_is else (4, 5)  # columns of a file without a heading
    separator = max(SEPARATORS, key=lambda s: [sum(line.count(s) >= n for _, line in lines) for n in (usual[0] - 1, 1)])
    rows = [Dialect(separator, 0).fields(line) for _, line in lines]
    widths = list(map(len, rows))
    width = max(set(widths), key=lambda w: (widths.count(w), w in usual, -w))
    if max(widths) == 1:
        raise DataError(f"{path} has one column only: separate its columns by tabs, commas, semicolons or bars.")
    full = widths.index(width)
    remarks = next(i for i, (_, line) in enumerate(lines) if i == full or not REMARK.fullmatch(line.strip()))
    below_remarks = lines[remarks - 1][0] if remarks else 0
    headings = [Heading(row, options) for row in rows[: full + 1]]
    at = max(range(full + 1), key=lambda i: (headings[i].named, i))
    heading, above = headings[at], lines[at][0]
    if heading.layout is None and options.format == "auto" and (layout := detect_headless(rows[full])):
        heading = Heading(heading.row, options, layout)
    if heading.named < 4 and heading.layout and heading.layout.headless and detect(heading.row) is not heading.layout:
        heading, above = Heading(heading.layout.columns_of(path, width), options, heading.layout), below_remarks
    if heading.named == 4:
        roles = heading.roles(str(path), [(f"c{i}", "VARCHAR") for i in range(len(heading.row))])
        return Source(str(path), heading.layout, *roles, dialect=Dialect(separator, len(heading.row), above))
    timed = is_time("".join(heading.row[usual[0] - 1 : usual[0]]), options.time_format)
    by_position = heading.named - bool(options.relation_is) < 2 or timed
    if heading.layout or options.headings or width not in usual or not by_position:
        raise heading.missing(str(path))
    for i in range(remarks, full + 1):
        has_digits = any(
            map(str.isdigit, "".join(rows[i][usual[0] - 1 : usual[0]]))
        )  # as a time has, well or badly written
        if len(rows[i]) > 2 and not has_digits and _above_times(rows[i], rows[i + 1 :], options.time_format):
            problem = str(headings[i].missing(str(path))).rstrip(".")
            raise DataError(f"{problem}; or fix line {lines[i][0]}, if it is an event, since it holds no time.")
    dialect = Dialect(separator, width, below_remarks)
    return Source(str(path), None, *_by_position(options), dialect=dialect, by_position=True)


def _by_position(options: ReadOptions) -> Roles:
    """The roles of a file without a heading."""
    places = (0, None, 1, 2) if options.relation_is else (0, 1, 2, 3)
    columns = tuple(literal(options.relation_is) if place is None else f"c{place}" for place in places)
    return tuple("" if place is None else f"column {place + 1}" for place in places), columns, TEXTS


def _above_times(row: Sequence[str], later: Sequence[Sequence[str]], form: str) -> bool:
    """Whether a row holds no time, while most of the rows below it have one in the same column, as under a heading."""

    def timed(texts: Sequence[str]) -> set[int]:
        return {i for i, text in enumerate(texts) if is_time(unquoted(text), form)}

    if timed(row):
        return False
    below = [i for texts in later for i in timed(texts)]
    return any(2 * below.count(i) >= len(later) for i in set(below))


class Heading:
    """A row read as a heading: the layout that it identifies, and where it names each role (None: no column).

    file: whether it is that of a file, which the command line reads too.
    """

    def __init__(
        self, row: Sequence[str], options: ReadOptions, layout: SourceLayout | None = None, *, file: bool = True
    ) -> None:
        self.file = file
        self.row, self.options, self.layout = row, options, layout or options.layout(row)
        key = plainly if self.layout else str.lower
        self._keys = [key(name) for name in row]

        def places(headings: tuple[str, ...]) -> tuple[int, ...] | None:
            names = [key(name) for name in headings]
            return tuple(map(self._keys.index, names)) if set(names) <= set(self._keys) else None

        self._found = {
            role: next((found for names in candidates if (found := places(names)) is not None), None)
            for role, candidates in options.candidates(self.layout).items()
        }

    @property
    def named(self) -> int:
        """How many of the four roles it names."""
        return sum(places is not None for places in self._found.values())

    def places(self, source: str) -> tuple[tuple[int, ...], ...]:
        """Where each role is: in several columns where they are joined, in none where it is the same in every row.

        Two roles must not have one and the same column, and a column must be the only one of its name.
        """
        taken: dict[tuple[int, ...], str] = {}
        for role, places in self._found.items():
            if places is None:
                raise self.missing(source)
            if places in taken:
                both = f"both {taken[places]} and {role}"
                raise DataError(f"{source}: the column {self.row[places[0]]!r} cannot be {both}: name two columns.")
            for place in places:
                if self._keys.count(self._keys[place]) > 1:
                    raise DataError(
                        f"{source} has two columns called {self.row[place]!r}: rename the one that is not meant."
                    )
            taken[places] = role
        return tuple(taken)

    def roles(self, source: str, columns: Sequence[tuple[str, str]]) -> Roles:
        """Heading, SQL and type of each role; columns: SQL and type of every column of the table."""
        headings, sql, kinds = [], [], []
        for role, places in zip(ROLES, self.places(source), strict=True):
            parts = [columns[i] for i in places]
            headings.append(", ".join(unquoted(self.row[i]) for i in places))
            if len(parts) == 1:
                column, kind = parts[0]
                if role == "time" and self.options.time_format and MOMENT.fullmatch(kind):
                    raise SettingsError(f"{source} holds dates as such, which need no time format: leave it out.")
            else:
                as_written = role == "time" and "%" in self.options.time_format
                column = (
                    _joined(role, parts, self.options.missing(), as_written)
                    if parts
                    else literal(self.options.relation_is)
                )
                kind = "VARCHAR"
            sql.append(column)
            kinds.append(kind)
        return tuple(headings), tuple(sql), tuple(kinds)

    def missing(self, source: str) -> DataError:
        """The error that roles are not named."""
        usual = {role: self.layout.columns[role][0] if self.layout else role for role in ROLES}
        lost = [role for role, places in self._found.items() if places is None]
        wanted = short(", ".join(getattr(self.options, role) or usual[role] for role in lost))
        shown = short(", ".join(repr(name) for name in self.row))
        read = f", read as {self.layout.name}," if self.layout else ""
        how = 'load(..., subject="...", relation="...", object="...", time="...")'
        one = "relation" in lost
        if one:
            how += ', or relation_is="..." for one relation in every row'
        if self.file:
            constant = ' (or --relation-is "...")' if one else ""
            how += (
                f"; on the command line with --subject-column, --relation-column{constant}, --object-column and "
                "--time-column"
            )
        return DataError(f"{source}{read} has no column for {wanted}; it has {shown}: name the columns with {how}.")


def _joined(role: str, columns: Sequence[tuple[str, str]], missing: Collection[str], as_written: bool) -> str:
    """Several columns as SQL of one text: a date of its parts, others with colons in between; empty where missing.

    as_written: a whole number keeps a fraction of zero.
    """
    # a pattern, since DuckDB makes a join of a long list, and a join does not keep the order of the rows
    nothing = literal("|".join(map(re.escape, sorted(missing))))
    texts = [f"trim({_as_text(*column)})" for column in columns]
    texts = texts if as_written else list(map(plain_number_sql, texts))
    filled = [f"CASE WHEN regexp_full_match({text}, {nothing}) THEN NULL ELSE {text} END" for text in texts]
    return joined_parts(role, filled)


def joined_parts(role: str, filled: list[str]) -> str:
    """SQL of several texts as one, for DuckDB and Spark alike; filled: SQL of each, NULL where it is missing."""
    if role != "time":
        return f"concat_ws(': ', {', '.join(filled)})"
    between = [" "] if len(filled) == 2 else ["-", "-", " ", ":", ":"]
    if len(filled) > len(between) + 1:
        raise DataError("a time is joined from at most six columns; name year, month, day, hour, minute, second.")
    filled[4:] = [f"lpad({part}, 2, '0')" for part in filled[4:]]
    parts = [f"{literal(b)} || {part}" for b, part in zip(between, filled[1:], strict=False)]
    parts += ["':00'"] if len(filled) == 4 else []  # an hour alone
    return f"COALESCE({' || '.join([filled[0], *parts])}, '')"


# ---- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A text file with a heading: the lines that are no rows, and the rows as texts with the lines they stand on."""

    headings: list[str]
    rejects: list[Reject]
    blocks: Callable[[int], Iterator[tuple[list[int], list[tuple[str, ...]]]]]


@contextmanager
def open_table(path: Path, kept: int = KEPT_REJECTS) -> Iterator[Table]:
    """All columns of a text file with a heading; a quoted field may run over several lines. kept: as of `screened`."""
    rows = ((number, max(SEPARATORS, key=line.count), line) for number, line in sample(path))
    first = next((row for row in rows if any(Dialect(row[1], 0).fields(row[2]))), None)
    if first is None:
        yield Table([], [], lambda size: iter(()))
        return
    number, separator, line = first
    headings = Dialect(separator, 0).fields(line)
    dialect = Dialect(separator, len(headings), number)

    with (
        SILENT.task("") as advance,
        connect() as db,
        screened(path, dialect, advance, spanning=True, kept=kept) as found,
    ):

        def blocks(size: int) -> Iterator[tuple[list[int], list[tuple[str, ...]]]]:
            with reading(str(path)):
                result, start = db.execute(f"FROM {found.sql()}"), 1
                while rows := result.fetchmany(size):
                    yield found.lines_of(np.arange(start, start + len(rows))).tolist(), rows
                    start += len(rows)

        yield Table(headings, found.rejects, blocks)


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
    try:
        if value is None or value != value:
            return ""
    except TypeError:  # pandas.NA is neither equal to itself nor different
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

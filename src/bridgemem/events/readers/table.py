"""Text files, Parquet files and data frames, cut into columns of texts that know their file and line.

Text is cut into fields here and not by a library, so that line numbers are exact whatever the bytes are; Parquet
files and data frames come through DuckDB.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.errors import BridgeMemError, DataError
from bridgemem.events.limits import FREE, TABLE_RATIO, Budget, check_idle
from bridgemem.events.readers.layouts import LAYOUTS, SourceLayout, detect, detect_headless, plainly, unquoted
from bridgemem.events.readers.lines import LONGEST_LINE, blocks, check_kind, fault, open_bytes
from bridgemem.events.readers.quotes import UNCLOSED, Judged, OpenQuotes
from bridgemem.events.times import is_time
from bridgemem.progress import Step

ROLES = ("subject", "relation", "object", "time")
# What headings are called elsewhere, in lower case; the earlier one wins where a table has two of them.
SYNONYMS = {
    "subject": ("subject", "source", "head", "actor1", "s"),
    "relation": ("relation", "rel", "predicate", "type", "event", "r", "p"),
    "object": ("object", "target", "tail", "actor2", "o"),
    "time": ("time", "timestamp", "date", "datetime", "day", "t"),
}
SEPARATORS = ("\t", ",", ";", "|")
ROWS = 100_000  # table rows fetched at a time
KEPT_REJECTS = 10_000

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
class Reject:
    """A row that is not an event: where it stands (the first line is 1), why, and what it says, shortened."""

    file: str
    line: int
    reason: str
    text: str


def short(text: str, most: int = 80) -> str:
    """At most that many characters of a text, with what cannot be printed made visible."""
    shown = text if len(text) <= most else text[: most - 3] + "..."
    return shown.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def new_codes() -> defaultdict[str, int]:
    """A dict that gives every new text the next number."""
    codes: defaultdict[str, int] = defaultdict()
    codes.default_factory = codes.__len__
    return codes


@dataclass
class Gathered:
    """Rows on their way in: columns as codes into distinct texts, with the file and the line of each row."""

    files: list[str] = field(default_factory=list)
    texts: dict[str, defaultdict[str, int]] = field(default_factory=lambda: {k: new_codes() for k in ROLES})
    columns: dict[str, list[np.ndarray]] = field(default_factory=lambda: {k: [] for k in (*ROLES, "file", "line")})
    rejects: list[Reject] = field(default_factory=list)
    rejected: int = 0
    total: int = 0
    layout: SourceLayout | None = None
    headings: dict[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        self.texts["object"] = self.texts["subject"]  # one space of entities

    def found(self, layout: SourceLayout | None, headings: Sequence[str]) -> None:
        """Note how the current file holds the four roles; all files of one reading must be of one layout."""
        if len(self.files) == 1:
            self.layout, self.headings = layout, dict(zip(ROLES, headings, strict=True))
        elif layout is not self.layout:
            first, other = (x.name if x else "plain" for x in (self.layout, layout))
            raise DataError(
                f"{self.files[0]} is in the {first} format and {self.files[-1]} in the {other} one: "
                "give files of one format at a time."
            )

    def add(self, values: Sequence[Sequence[str]], lines: np.ndarray) -> None:
        """Add rows: values are the four columns in the order of ROLES, lines int64 [n]."""
        for role, column in zip(ROLES, values, strict=True):
            codes = map(self.texts[role].__getitem__, column)
            self.columns[role].append(np.fromiter(codes, np.int32, len(column)))
        self.columns["file"].append(np.full(len(lines), len(self.files) - 1, np.int32))
        self.columns["line"].append(lines)
        self.total += len(lines)

    def reject(self, line: int, reason: str, text: str) -> None:
        """Count a row that cannot even be cut into fields, and keep it if there is room."""
        self.total += 1
        self.rejected += 1
        if len(self.rejects) < KEPT_REJECTS:
            self.rejects.append(Reject(self.files[-1], line, reason, short(text)))

    def first_reject(self) -> str:
        """Where and why the first row of the current file was rejected; empty where none was."""
        first = next((reject for reject in self.rejects if reject.file == self.files[-1]), None)
        return f"line {first.line}, {first.reason}" if first else ""


# ---- text files ----------------------------------------------------------------------------------------------------


def gather_file(path: Path, asked: Asked, gathered: Gathered, advance: Step) -> None:
    if path.suffix.lower() == ".parquet":
        open_bytes(path).close()
        gathered.budget.open(path, TABLE_RATIO)
        _gather_query("read_parquet(?)", [str(path)], asked, gathered, advance)
        return
    fifth: set[str] = set()
    for shape, values, numbers, read in _cut_blocks(path, asked, gathered):
        if values:
            gathered.add([values[i] for i in shape.positions], numbers)
            if shape.width == 5 and not shape.headed:
                fifth.update(values[4])
        advance(read)
    if len(fifth) > 1 and not all(INTEGER.fullmatch(text.strip()) for text in fifth):
        raise DataError(f"{path} has no heading and a fifth column of text: add a heading that names its columns.")


def _cut_blocks(
    path: Path, asked: Asked, gathered: Gathered
) -> Iterator[tuple[_Shape, list[list[str]], np.ndarray, int]]:
    """The shape of a text file, and of its blocks the columns, the numbers of their lines, and how many were read."""
    shape: _Shape | None = None
    rows = 0
    for first, lines, clean in blocks(path, gathered.budget):
        if shape is None:
            if not any(line.strip() for line in lines):
                check_idle(path, first + len(lines) - 1, 0, str)
                continue
            check_kind(path, lines)
            shape = _shape(path, first, lines, asked, gathered)
            quotes = OpenQuotes(shape.separator, partial(_row, shape=shape), LONGEST_LINE)
        values, numbers = _cut(first, lines, clean, shape, quotes, gathered)
        rows += len(numbers)
        check_idle(path, first + len(lines) - 1, rows, gathered.first_reject)
        yield shape, values, numbers, len(lines)
    if shape is not None:
        yield shape, *_kept(quotes.release(), gathered), 0


@dataclass(frozen=True)
class _Shape:
    """How a text file holds its events: the separator, the number of columns, where the four roles are, on which line
    what stands above the events ends (0: nothing does), and whether that is a heading."""

    separator: str
    width: int
    positions: tuple[int, ...]
    above: int = 0
    headed: bool = False

    def split(self, line: str) -> list[str]:
        """The fields of a line; csv.Error where its quotes do not close."""
        if '"' not in line or self.separator == "\t":
            return line.split(self.separator)
        return next(csv.reader([line], delimiter=self.separator, strict=True))


def _shape(path: Path, first: int, lines: list[str], asked: Asked, gathered: Gathered) -> _Shape:
    """Find separator and columns from the first lines of a file, of which not all are blank."""
    sample = list(islice(((number, line) for number, line in enumerate(lines, first) if line.strip()), 50))
    separator = max(SEPARATORS, key=lambda s: [sum(line.count(s) >= n for _, line in sample) for n in (3, 1)])
    rows = [_fields(line, separator) for _, line in sample]
    widths = list(map(len, rows))
    width = max(set(widths), key=lambda w: (widths.count(w), w in (4, 5), -w))
    if max(widths) == 1:
        raise DataError(f"{path} has one column only: separate its columns by tabs, commas, semicolons or bars.")
    full = widths.index(width)
    remarks = next(i for i, (_, line) in enumerate(sample) if i == full or not REMARK.fullmatch(line.strip()))
    above = sample[remarks - 1][0] if remarks else 0
    at = _heading(rows[: full + 1], asked)
    heading, headed = rows[at], True
    layout = asked.layout(heading)
    if layout is None and asked.format == "auto":
        layout = detect_headless(rows[full])
    found = _roles(heading, asked.candidates(layout), layout)
    if layout and layout.headless and None in found.values() and detect(heading) is not layout:
        heading, headed = _headless(path, width, layout), False
        found = _roles(heading, asked.candidates(layout), layout)
    if None not in found.values():
        positions = _distinct(str(path), heading, found, layout)
        gathered.found(layout, [unquoted(heading[i]) for i in positions])
        return _Shape(separator, len(heading), positions, sample[at][0] if headed else above, headed)
    missing = partial(_missing, str(path), found=found, asked=asked, layout=layout)
    looks_like_data = len(heading) > 3 and is_time(heading[3])
    few = sum(i is not None for i in found.values()) < 2
    if layout or asked.columns != ColumnNames() or width not in (4, 5) or not (looks_like_data or few):
        raise missing(heading)
    for i in range(remarks, full + 1):
        if len(rows[i]) > 2 and not _timed(rows[i]) and any(map(_timed, rows[i + 1 :])):
            problem = str(missing(rows[i])).rstrip(".")
            raise DataError(f"{problem}; or fix line {sample[i][0]}, if it is an event, since it holds no time.")
    gathered.found(None, [f"column {i + 1}" for i in range(4)])
    return _Shape(separator, width, (0, 1, 2, 3), above)


def _fields(line: str, separator: str) -> list[str]:
    """The fields of a line without the space around them, also where its quotes do not close."""
    try:
        row = _Shape(separator, 0, ()).split(line)
    except csv.Error:
        row = line.split(separator)
    return [text.strip() for text in row]


def _heading(rows: Sequence[Sequence[str]], asked: Asked) -> int:
    """Which of the first rows is the heading, if any is: the one that names the most roles, of equal ones the last.

    rows: all up to the first of full width; those before it are the heading or stand above it.
    """

    def named(row: Sequence[str]) -> int:
        layout = asked.layout(row)
        return sum(i is not None for i in _roles(row, asked.candidates(layout), layout).values())

    return max(range(len(rows)), key=lambda i: (named(rows[i]), i))


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


def _roles(
    headings: Sequence[str], candidates: Mapping[str, Sequence[str]], layout: SourceLayout | None
) -> dict[str, int | None]:
    """Where each role's column is: the first of its candidates that is among the headings; None where none is."""
    key = plainly if layout else str.lower
    places = {key(name): i for i, name in reversed(list(enumerate(headings)))}
    return {role: next((places[key(n)] for n in names if key(n) in places), None) for role, names in candidates.items()}


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


def _cut(
    first: int, lines: list[str], clean: bool, shape: _Shape, quotes: OpenQuotes, gathered: Gathered
) -> tuple[list[list[str]], np.ndarray]:
    """The columns of a block of lines, and the numbers of the lines; what is no row goes to the rejects."""
    skip = max(0, shape.above - first + 1)
    lines, first = lines[skip:], first + skip
    if clean and not quotes.held and _regular(lines, shape):
        # one long row cut at once: no list per line, which would be most of the work
        fields = shape.separator.join(lines).split(shape.separator)
        return [fields[i :: shape.width] for i in range(shape.width)], np.arange(first, first + len(lines))
    filled = ((number, line) for number, line in enumerate(lines, first) if line and not line.isspace())
    judged = (found for number, line in filled for found in quotes.take(number, line))
    return _kept(judged, gathered)


def _kept(judged: Iterable[Judged], gathered: Gathered) -> tuple[list[list[str]], np.ndarray]:
    """The columns of the lines that are rows, and the numbers of these lines; the others go to the rejects."""
    rows, numbers = [], []
    for number, line, row in judged:
        if isinstance(row, list):
            rows.append(row)
            numbers.append(number)
        elif line.strip():
            gathered.reject(number, row, line)
    return [list(column) for column in zip(*rows, strict=True)], np.array(numbers, np.int64)


def _regular(lines: list[str], shape: _Shape) -> bool:
    """Whether every line can be cut at its separators into the expected number of fields."""
    if shape.separator != "\t" and any('"' in line for line in lines):
        return False
    return {line.count(shape.separator) for line in lines} == {shape.width - 1}


def _row(line: str, shape: _Shape) -> list[str] | str:
    """The fields of one line, or why it has none."""
    if reason := fault(line):
        return reason
    try:
        row = shape.split(line)
    except csv.Error:
        return UNCLOSED
    if len(row) != shape.width:
        return f"expected {shape.width} columns, found {len(row)}"
    return row


# ---- tables --------------------------------------------------------------------------------------------------------


def gather_frame(frame: Any, asked: Asked, gathered: Gathered, advance: Step) -> None:
    if not isinstance(frame, Mapping):
        _gather_query("frame", [], asked, gathered, advance, frame)
        return
    positions = _positions("the dict of columns", [str(name) for name in frame], asked, gathered)
    values = [list(column) for column in frame.values()]
    chosen = [[_text(value) for value in values[i]] for i in positions]
    if len({len(column) for column in chosen}) > 1:
        raise DataError("the columns of the dict must have equal length.")
    gathered.add(chosen, np.arange(1, len(chosen[0]) + 1))
    advance(len(chosen[0]))


def _positions(source: str, headings: Sequence[str], asked: Asked, gathered: Gathered) -> tuple[int, ...]:
    """Where a table with headings holds the four roles."""
    layout = asked.layout(headings)
    found = _roles(headings, asked.candidates(layout), layout)
    if None in found.values():
        raise _missing(source, headings, found, asked, layout)
    positions = _distinct(source, headings, found, layout)
    gathered.found(layout, [headings[i] for i in positions])
    return positions


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _gather_query(
    table: str,
    parameters: list[str],
    asked: Asked,
    gathered: Gathered,
    advance: Step,
    frame: Any = None,
) -> None:
    """Fetch the four columns of a table as text, in the table's order."""
    try:
        import duckdb
    except ImportError:
        raise DataError("reading Parquet files and data frames needs duckdb: install it.") from None
    name = gathered.files[-1]
    try:
        with duckdb.connect() as connection:
            if frame is not None:
                connection.register("frame", frame)
            else:
                _check_declared(connection, Path(name), gathered.budget)
            headings = connection.execute(f"SELECT * FROM {table} LIMIT 0", parameters).description or []
            positions = _positions(name, [heading[0] for heading in headings], asked, gathered)
            chosen = [headings[i] for i in positions]
            texts = [_as_text(heading[0], str(heading[1])) for heading in chosen]
            if frame is None:
                lengths = " + ".join(f"strlen({text})" for text in texts)
                size = connection.execute(f"SELECT sum({lengths}) FROM {table}", parameters).fetchone()
                gathered.budget.spend(Path(name), int(size[0] or 0) if size else 0)
            result = connection.execute(f"SELECT {', '.join(texts)} FROM {table}", parameters)
            number = 1
            while rows := result.fetchmany(ROWS):
                gathered.add(list(zip(*rows, strict=True)), np.arange(number, number + len(rows)))
                number += len(rows)
                advance(len(rows))
    except BridgeMemError:
        raise
    except Exception as error:  # over damaged files DuckDB raises more than its own errors
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{name} cannot be read as a table: {short(reason, 300)}.") from None


def _check_declared(connection: Any, path: Path, budget: Budget) -> None:
    """Compare what a Parquet file says of its own size with the budget, before anything of it is unpacked."""
    declared = """SELECT max(size), max(rows) FROM (
        SELECT sum(total_uncompressed_size) OVER () AS size,
            sum(greatest(num_values, row_group_num_rows)) OVER (PARTITION BY column_id) AS rows
        FROM parquet_metadata(?))"""
    # what a file declares may be wrong, so what DuckDB unpacks is limited as well
    connection.execute(f"SET memory_limit = '{max(budget.allowed, FREE) >> 20}MiB'")
    size, rows = connection.execute(declared, [str(path)]).fetchone()
    budget.spend(path, int(size or 0), int(rows or 0))


def _as_text(heading: str, kind: str) -> str:
    column = '"' + heading.replace('"', '""') + '"'
    text = f"CAST({column} AS VARCHAR)"
    if kind in ("FLOAT", "DOUBLE", "NUMBER"):
        # whole numbers with gaps come as floats from some tables: 3.0 means the id or the time 3
        whole = f"TRY_CAST({column} AS BIGINT)"
        text = f"CASE WHEN {whole} = {column} THEN CAST({whole} AS VARCHAR) ELSE {text} END"
    return f"COALESCE({text}, '')"

"""Text files, Parquet files and data frames, cut into columns of texts that know their file and line.

Text is cut into fields here and not by a library, so that line numbers are exact whatever the bytes are; Parquet
files and data frames come through DuckDB.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from bridgemem.errors import DataError
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
BLOCK = 1 << 21  # bytes read at a time
ROWS = 100_000  # table rows fetched at a time
LONGEST_LINE = 100_000  # characters; a longer line is a broken file, not an event
KEPT_REJECTS = 10_000

INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")  # no leading zeros: the codes 010 and 10 are two names, not one id
ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of bytes that are not UTF-8


@dataclass(frozen=True)
class ColumnNames:
    """The headings under which a table holds its events."""

    subject: str = "subject"
    relation: str = "relation"
    object: str = "object"
    time: str = "time"


@dataclass(frozen=True)
class Reject:
    """A row that is not an event: where it stands (the first line is 1), why, and what it says, shortened."""

    file: str
    line: int
    reason: str
    text: str


def short(text: str) -> str:
    """At most 80 characters of a text, with what cannot be printed made visible."""
    shown = text if len(text) <= 80 else text[:77] + "..."
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

    def __post_init__(self) -> None:
        self.texts["object"] = self.texts["subject"]  # one space of entities

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


# ---- text files ----------------------------------------------------------------------------------------------------


def gather_file(path: Path, columns: ColumnNames | None, gathered: Gathered, advance: Step) -> None:
    if path.suffix.lower() == ".parquet":
        _open(path).close()
        _gather_query("read_parquet(?)", [str(path)], columns, gathered, advance)
        return
    layout: _Layout | None = None
    fifth: set[str] = set()
    for first, lines, clean in blocks(path):
        if layout is None:
            if not any(line.strip() for line in lines):
                continue
            layout = _layout(path, first, lines, columns)
        values, numbers = _cut(first, lines, clean, layout, gathered)
        if values:
            gathered.add([values[i] for i in layout.positions], numbers)
            if layout.width == 5 and not layout.header_line:
                fifth.update(values[4])
        advance(len(lines))
    if len(fifth) > 1 and not all(INTEGER.fullmatch(text.strip()) for text in fifth):
        raise DataError(f"{path} has no heading and a fifth column of text: add a heading that names its columns.")


def _open(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is a gz."""
    try:
        file = path.open("rb")
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
    except IsADirectoryError:
        raise DataError(f"{path} is a directory: give a file of events.") from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    if path.suffix.lower() == ".gz" and not packed:
        with file:
            if file.read(1):
                raise DataError(f"{path} is named as a gz but is none: rename it or pack it again.")
            raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    return cast(IO[bytes], gzip.open(file)) if packed else file


def blocks(path: Path) -> Iterator[tuple[int, list[str], bool]]:
    """Lines in blocks: the number of the first, the lines, and whether all bytes are as text should be."""
    number = 1
    rest = b""
    with _open(path) as file:
        while True:
            try:
                chunk = file.read(BLOCK)
            except EOFError:
                raise DataError(f"{path} is cut short after line {number}: fetch it again.") from None
            except (OSError, zlib.error) as error:
                raise DataError(f"{path} cannot be unpacked, it is damaged: {error}.") from None
            if number == 1 and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError(f"{path} is UTF-16: save it as UTF-8.")
            block, newline, rest = (rest + chunk).rpartition(b"\n")
            if not chunk:
                block, newline, rest = rest, b"\n" if rest else b"", b""
            # a line that is too long already is rejected whatever follows, so its middle need not be kept
            rest = rest[: 4 * LONGEST_LINE + 4]
            if newline:
                lines, clean = _decode(block, number)
                yield number, lines, clean
                number += len(lines)
            if not chunk:
                return


def _decode(block: bytes, number: int) -> tuple[list[str], bool]:
    try:
        text, clean = block.decode(), b"\0" not in block
    except UnicodeDecodeError:
        text, clean = block.decode(errors="surrogateescape"), False
    if number == 1:
        text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    return lines, clean and max(map(len, lines)) <= LONGEST_LINE


@dataclass(frozen=True)
class _Layout:
    """How a text file holds its events: the separator, the number of columns, where the four roles are, and on
    which line the heading is (0: there is none)."""

    separator: str
    width: int
    positions: tuple[int, ...]
    header_line: int

    def split(self, line: str) -> list[str]:
        """The fields of a line; csv.Error where its quotes do not close."""
        if '"' not in line or self.separator == "\t":
            return line.split(self.separator)
        return next(csv.reader([line], delimiter=self.separator, strict=True))


def _layout(path: Path, first: int, lines: list[str], columns: ColumnNames | None) -> _Layout:
    """Find separator and columns from the first lines of a file, of which not all are blank."""
    start = next(i for i, line in enumerate(lines) if line.strip())
    sample = [line for line in lines[start : start + 50] if line.strip()]
    separator = max(SEPARATORS, key=lambda s: sum(line.count(s) >= 3 for line in sample))
    try:
        heading = _Layout(separator, 0, (), 0).split(sample[0])
    except csv.Error:
        heading = sample[0].split(separator)
    heading = [text.strip() for text in heading]
    found = _roles(heading, columns)
    if None not in found.values():
        return _Layout(separator, len(heading), tuple(i for i in found.values() if i is not None), first + start)
    widths = [line.count(separator) + 1 for line in sample if '"' not in line or separator == "\t"] or [len(heading)]
    width = max(set(widths), key=lambda w: (widths.count(w), w in (4, 5), -w))
    named = sum(i is not None for i in found.values())
    looks_like_data = len(heading) > 3 and is_time(heading[3])
    if columns is None and width in (4, 5) and (looks_like_data or named < 2):
        return _Layout(separator, width, (0, 1, 2, 3), 0)
    raise _missing(str(path), heading, found, columns)


def _roles(headings: Sequence[str], columns: ColumnNames | None) -> dict[str, int | None]:
    """Where each role's column is, by the given headings or by the usual synonyms; None where there is none."""
    places = {name.lower(): i for i, name in reversed(list(enumerate(headings)))}
    if columns is not None:
        return {role: places.get(getattr(columns, role).lower()) for role in ROLES}
    return {role: next((places[n] for n in SYNONYMS[role] if n in places), None) for role in ROLES}


def _missing(
    source: str, headings: Sequence[str], found: Mapping[str, int | None], columns: ColumnNames | None
) -> DataError:
    lost = [role if columns is None else getattr(columns, role) for role, i in found.items() if i is None]
    shown = short(", ".join(repr(name) for name in headings))
    return DataError(
        f"{source} has no column for {', '.join(lost)}; it has {shown}: name the columns with --subject, "
        "--relation, --object and --time of `bridgemem data import`, or in Python with "
        'ColumnNames(subject="...", relation="...", object="...", time="...").'
    )


def _cut(
    first: int, lines: list[str], clean: bool, layout: _Layout, gathered: Gathered
) -> tuple[list[list[str]], np.ndarray]:
    """The columns of a block of lines, and the numbers of the lines; what is no row goes to the rejects."""
    skip = max(0, layout.header_line - first + 1)
    lines, first = lines[skip:], first + skip
    if clean and _regular(lines, layout):
        # one long row cut at once: no list per line, which would be most of the work
        fields = layout.separator.join(lines).split(layout.separator)
        return [fields[i :: layout.width] for i in range(layout.width)], np.arange(first, first + len(lines))
    rows, numbers = [], []
    for number, line in enumerate(lines, first):
        row = _row(line, layout)
        if isinstance(row, list):
            rows.append(row)
            numbers.append(number)
        elif line.strip():
            gathered.reject(number, row, line)
    return [list(column) for column in zip(*rows, strict=True)], np.array(numbers, np.int64)


def _regular(lines: list[str], layout: _Layout) -> bool:
    """Whether every line can be cut at its separators into the expected number of fields."""
    if layout.separator != "\t" and any('"' in line for line in lines):
        return False
    return {line.count(layout.separator) for line in lines} == {layout.width - 1}


def fault(line: str) -> str | None:
    """Why a line is not text, or None."""
    if len(line) > LONGEST_LINE:
        return f"the line is longer than {LONGEST_LINE:,} characters"
    if "\0" in line:
        return "the line holds a NUL byte"
    if ESCAPED_BYTE.search(line):
        return "the line is not UTF-8"
    return None


def _row(line: str, layout: _Layout) -> list[str] | str:
    """The fields of one line, or why it has none."""
    if reason := fault(line):
        return reason
    try:
        row = layout.split(line)
    except csv.Error:
        return "the line has a quote that is not closed or stands inside a field"
    if len(row) != layout.width:
        return f"expected {layout.width} columns, found {len(row)}"
    return row


# ---- tables --------------------------------------------------------------------------------------------------------


def gather_frame(frame: Any, columns: ColumnNames | None, gathered: Gathered, advance: Step) -> None:
    if not isinstance(frame, Mapping):
        _gather_query("frame", [], columns, gathered, advance, frame)
        return
    found = _roles([str(name) for name in frame], columns)
    if None in found.values():
        raise _missing("the dict of columns", [str(name) for name in frame], found, columns)
    values = [list(column) for column in frame.values()]
    chosen = [[_text(value) for value in values[i]] for i in found.values() if i is not None]
    if len({len(column) for column in chosen}) > 1:
        raise DataError("the columns of the dict must have equal length.")
    gathered.add(chosen, np.arange(1, len(chosen[0]) + 1))
    advance(len(chosen[0]))


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _gather_query(
    table: str,
    parameters: list[str],
    columns: ColumnNames | None,
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
            headings = connection.execute(f"SELECT * FROM {table} LIMIT 0", parameters).description or []
            found = _roles([heading[0] for heading in headings], columns)
            if None in found.values():
                raise _missing(name, [heading[0] for heading in headings], found, columns)
            chosen = [headings[i] for i in found.values() if i is not None]
            texts = ", ".join(_as_text(heading[0], str(heading[1])) for heading in chosen)
            result = connection.execute(f"SELECT {texts} FROM {table}", parameters)
            number = 1
            while rows := result.fetchmany(ROWS):
                gathered.add(list(zip(*rows, strict=True)), np.arange(number, number + len(rows)))
                number += len(rows)
                advance(len(rows))
    except (duckdb.Error, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise DataError(f"{name} cannot be read as a table: {reason}.") from None


def _as_text(heading: str, kind: str) -> str:
    column = '"' + heading.replace('"', '""') + '"'
    text = f"CAST({column} AS VARCHAR)"
    if kind in ("FLOAT", "DOUBLE", "NUMBER"):
        # whole numbers with gaps come as floats from some tables: 3.0 means the id or the time 3
        whole = f"TRY_CAST({column} AS BIGINT)"
        text = f"CASE WHEN {whole} = {column} THEN CAST({whole} AS VARCHAR) ELSE {text} END"
    return f"COALESCE({text}, '')"

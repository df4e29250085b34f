"""Text files prepared for DuckDB's CSV reader: what that reader does not guarantee is handled here and nowhere else.

DuckDB cuts and unquotes fields far faster than Python. But it does not say on which line a row stands, takes whatever
follows an open quote for one row, refuses a whole file for mixed line ends, lets NUL bytes through, and neither opens a
zip nor compares a gz with its checksum. So a file is looked through first, in blocks, by a regular expression that
sound lines match. Where all are sound, DuckDB reads the file itself; if not, a copy that has the rows alone. Every line
that is no row is rejected with its number and the reason.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import lzma
import re
import struct
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, cast

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.limits import TEXT_RATIO, Budget, check_idle
from bridgemem.progress import Step

BLOCK = 1 << 21  # bytes read at a time
LONGEST_LINE = 100_000  # characters; a longer line is a broken file, not an event
OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # how an .xls begins
WORKBOOK = ("xl/workbook.xml", "xl/workbook.bin", "META-INF/manifest.xml")  # what an .xlsx, .xlsb or .ods holds
MARK = b"\xef\xbb\xbf"  # the byte order mark, which some programs write first
SAMPLE = 50  # filled lines from which the columns of a file are found
KEPT_REJECTS = 10_000

# what the modules for gz and zip raise over bytes that are cut, foreign or made to harm
UNPACKING = (OSError, RuntimeError, ValueError, zlib.error, lzma.LZMAError, struct.error, zipfile.BadZipFile)

ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of bytes that are not UTF-8
JSON = re.compile(r"\s*(\[\s*)?\{\s*([\"}].*)?|\s*\[\s*", re.DOTALL)  # how the first line of objects looks
NOT_UTF8 = "the line is not UTF-8"
UNCLOSED = "the line has a quote that is not closed or stands inside a field"


@dataclass(frozen=True)
class Reject:
    """A row that cannot be used: where it stands (the first line is 1), why, and what it says, shortened.

    row: its four values in full, or the line itself where it could not be cut into columns.
    """

    file: str
    line: int
    reason: str
    text: str
    row: tuple[str, ...] = ()


def short(text: str, most: int = 80) -> str:
    """At most that many characters of a text, with what cannot be printed made visible."""
    shown = text if len(text) <= most else text[: most - 3] + "..."
    return shown.encode(errors="backslashreplace").decode().replace("\0", "\\0")


def to_utf8(file: str) -> str:
    """What to do with a file that is not UTF-8; Western and Central Europe have an older encoding each."""
    return f"save it as CSV UTF-8, or convert it: iconv -f CP1252 -t UTF-8 {file} > utf8.csv (or -f CP1250)"


def literal(value: str | Path) -> str:
    """A text as an SQL literal; a path as the pattern of this one file."""
    text = glob.escape(str(value)) if isinstance(value, Path) else value
    return "'" + text.replace("'", "''") + "'"


# ---- opening -------------------------------------------------------------------------------------------------------


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is a gz or a zip."""
    try:
        file = path.open("rb")
        start = file.read(len(OLD_EXCEL))
        packed, zipped = start[:2] == b"\x1f\x8b", start[:4] == b"PK\3\4"
        file.seek(0)
    except IsADirectoryError:
        raise DataError(
            f"{path} is a directory: give a file of events; a folder of train, valid and test files goes to --data "
            "as it is."
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check its name.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    if path.suffix.lower() == ".gz" and not packed:
        with file:
            if file.read(1):
                raise DataError(f"{path} is named as a gz but is none: rename it or pack it again.")
            raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    if start == OLD_EXCEL:
        file.close()
        raise _workbook(path)
    if zipped:
        return _open_zip(path, file)
    if not packed:
        return file
    file.close()  # the unpacked one closes what it opened itself, and nothing else
    return cast(IO[bytes], gzip.open(path))


def _open_zip(path: Path, file: IO[bytes]) -> IO[bytes]:
    """The bytes of the one file in a zip."""
    try:
        archive = zipfile.ZipFile(file)
        inside = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        if any(name in WORKBOOK for name in inside):
            raise _workbook(path)
        if len(inside) == 1:
            return archive.open(inside[0])
        if inside and all(name.endswith(".npy") for name in inside):
            raise DataError(
                f"{path} is a packed data set, which commands take as it is (--data {path}): give them that, or import "
                "the file of events that it was made from."
            )
    except (*UNPACKING, EOFError) as error:
        raise DataError(f"{path} cannot be unpacked, it is damaged or locked: {str(error).rstrip('.')}.") from None
    raise DataError(f"{path} is a zip of {len(inside)} files: unpack it, and give the files of events.")


def _workbook(path: Path) -> DataError:
    """The error that a file is a spreadsheet."""
    kind = "a spreadsheet" if path.suffix.lower() == ".ods" else "an Excel workbook"
    return DataError(f"{path} is {kind}, which is not read: save its sheet of events as CSV UTF-8 and give that file.")


def _blocks(path: Path, file: IO[bytes], budget: Budget) -> Iterator[bytes]:
    """The bytes of a text file in blocks of whole lines; the last one may lack its end.

    Of a line that is too long the beginning alone, since it is rejected whatever follows.
    """
    budget.open(path, TEXT_RATIO)
    rest, lines = b"", 0
    while True:
        try:
            chunk = file.read(BLOCK)
        except EOFError:
            raise DataError(f"{path} is cut short after line {lines + 1}: fetch it again.") from None
        except UNPACKING as error:
            raise DataError(f"{path} cannot be unpacked, it is damaged: {str(error).rstrip('.')}.") from None
        if not lines and (rest + chunk)[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{path} is UTF-16: save it as UTF-8.")
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if not chunk:
            whole, rest = rest, b""
        found = whole.count(b"\n") + bool(whole or newline)
        budget.spend(path, len(chunk), rows=found)
        if found:
            yield whole + newline
        if not chunk:
            return
        lines, rest = lines + found, rest[: 4 * LONGEST_LINE + 4]


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, the first is 1; bytes that are not UTF-8 are escaped."""
    number = 0
    with open_bytes(path) as file:
        for block in _blocks(path, file, Budget()):
            for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), number + 1):  # noqa: B020
                yield number, _decoded(line, number)


def _decoded(line: bytes, number: int) -> str:
    text = line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")
    return text.removeprefix("\ufeff") if number == 1 else text


def fault(line: str) -> str | None:
    """Why a line is not text, or None."""
    if len(line) > LONGEST_LINE:
        return f"the line is longer than {LONGEST_LINE:,} characters"
    if "\0" in line:
        return "the line holds a NUL byte"
    if ESCAPED_BYTE.search(line):
        return NOT_UTF8
    return None


def sample(path: Path) -> list[tuple[int, str]]:
    """The first filled lines of a text file with their numbers; JSON and old line ends are refused by them."""
    found: list[tuple[int, str]] = []
    for number, line in text_lines(path):
        if line.strip():
            found.append((number, line))
        elif not found:
            check_idle(path, number, 0)
        if len(found) == SAMPLE:
            break
    if found and JSON.fullmatch(found[0][1]):
        raise DataError(f"{path} is JSON, which is not read: give CSV, TSV or Parquet.")
    if len(found) == 1 and "\r" in found[0][1].strip():
        raise DataError(f"{path} has the line ends of old Macs: save it with those of Unix or Windows.")
    return found


# ---- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialect:
    """How a text file holds its rows: separator, number of columns, and the line on which what is above them ends."""

    separator: str
    width: int
    above: int = 0

    @property
    def quote(self) -> str:
        """What quotes a field. Where tabs separate, a quotation mark is a letter, and a control character serves."""
        return "\x01" if self.separator == "\t" else '"'

    def split(self, line: str) -> list[str]:
        """The fields of a line; csv.Error where its quotes do not close."""
        if '"' not in line or self.separator == "\t":
            return line.split(self.separator)
        return next(csv.reader([part + "\n" for part in line.split("\n")], delimiter=self.separator, strict=True))

    def fields(self, line: str) -> list[str]:
        """The fields of a line without the space around them, also where its quotes do not close."""
        try:
            row = self.split(line)
        except csv.Error:
            row = line.split(self.separator)
        return [text.strip() for text in row]

    def join(self, row: Sequence[str]) -> bytes:
        """A row as a line whose fields are all quoted."""
        doubled = (text.replace(self.quote, self.quote * 2) for text in row)
        return self.separator.join(f"{self.quote}{text}{self.quote}" for text in doubled).encode()

    def sql(self, path: Path, end: bytes) -> str:
        """What DuckDB reads the rows from, as columns c0, c1 and so on; end: of every line."""
        names = [f"c{i}" for i in range(self.width)]
        columns = ", ".join(f"{name}: 'VARCHAR'" for name in names)
        quote = literal(self.quote)
        return (
            f"read_csv({literal(path)}, auto_detect=false, columns={{{columns}}}, delim={literal(self.separator)}, "
            f"quote={quote}, escape={quote}, header=false, skip={self.above}, force_not_null={names}, "
            f"new_line={end.decode()!r}, compression='none')"
        )


class _Patterns:
    """What lines look like, as regular expressions over bytes.

    sound: rows of the right width that end alike, as many as there are. heading: one row of any width. left_open: a
    line at whose end a quoted field is open. over_lines: a row of any width whose quoted fields may hold line ends.
    """

    def __init__(self, dialect: Dialect, end: bytes) -> None:
        quote, separator = dialect.quote.encode(), re.escape(dialect.separator.encode())
        separators = dialect.separator.encode()

        def field(outside: bytes, inside: bytes) -> bytes:
            quoted = rb"%b[^%b%b]*+(?:%b[^%b%b]*+)*+" % (quote, quote, inside, 2 * quote, quote, inside)
            return rb"(?:%b%b|[^%b%b%b]*+)" % (quoted, quote, quote, separators, outside)

        strict, one_line, lines = field(rb"\n\r\0", rb"\n\r\0"), field(rb"\n", rb"\n"), field(rb"\n", b"")
        self.sound = re.compile(rb"(?:%b(?:%b%b){%d}%b)*+" % (strict, separator, strict, dialect.width - 1, end))
        self.heading = re.compile(rb"%b(?:%b%b)*+%b" % (strict, separator, strict, end))
        self.over_lines = re.compile(rb"%b(?:%b%b)*+\r?\n" % (lines, separator, lines))
        self.left_open = re.compile(
            rb"(?:%b%b)*+%b[^%b]*+(?:%b[^%b]*+)*+" % (one_line, separator, quote, quote, 2 * quote, quote)
        )


class Screened:
    """A text file whose lines were looked through: which of them are rows, and what DuckDB reads the rows from.

    spanning: a row may run over several lines inside quotes, and stands on the first of them; else it is rejected.
    """

    def __init__(
        self, path: Path, dialect: Dialect, folder: Path, *, spanning: bool = False, kept: int = KEPT_REJECTS
    ) -> None:
        self.path, self.dialect, self.spanning, self.kept = path, dialect, spanning, kept
        self.lines = self.rejected = 0
        self.rejects: list[Reject] = []
        self._no_rows = array("q")  # the numbers of the lines that are none
        self._folder = folder
        self._copy: IO[bytes] | None = None
        self._start = self._offset = 0  # bytes of the file before its rows, and before the line that is looked at
        self._end = b"\n"
        self._in_doubt = False

    @property
    def rows(self) -> int:
        return self.lines - len(self._no_rows)

    def numbers(self) -> np.ndarray:
        """The number of each row's line: int64 [n]."""
        return self.lines_of(np.arange(1, self.rows + 1))

    def lines_of(self, rows: np.ndarray) -> np.ndarray:
        """The number of the line that rows stand on; rows int64 [n], the first is 1."""
        return rows + np.searchsorted(self.rows_above(), rows, side="right")

    def rows_above(self) -> np.ndarray:
        """Of each line that is no row, how many rows stand above it, and one: int64, ascending."""
        none = np.array(self._no_rows, np.int64)
        return none - np.arange(len(none))

    def sql(self) -> str:
        """What DuckDB reads the rows from."""
        if self._copy is None:
            return self.dialect.sql(self.path, self._end)
        return replace(self.dialect, above=0).sql(Path(self._copy.name), self._end)

    def look_through(self, budget: Budget, advance: Step) -> None:
        """Judge every line of the file."""
        rest = b""
        with open_bytes(self.path) as file:
            if not isinstance(file, io.BufferedReader):
                self._begin_copy()
            for block in chain(_blocks(self.path, file, budget), [b""]):
                before = self.lines
                if not before and not rest:
                    self._end = b"\r\n" if 2 * block.count(b"\r\n") > block.count(b"\n") else b"\n"
                    self._patterns = _Patterns(self.dialect, self._end)
                    self._start = self._offset = len(MARK) * block.startswith(MARK)
                    block = block.removeprefix(MARK)
                buffer = rest + block + (self._end if block and not block.endswith(b"\n") else b"")
                rest = buffer[self._judge(buffer, last=not block) :]
                check_idle(self.path, self.lines, self.rows, [f"{x.line}, {x.reason}" for x in self.rejects[:1]])
                advance(self.lines - before)
        if self._copy:
            self._copy.close()

    def _judge(self, buffer: bytes, last: bool) -> int:
        """Judge whole lines; the bytes of those that could be judged before more is read."""
        at, clean = 0, _is_clean(buffer)
        while at < len(buffer):
            if clean and self.lines >= self.dialect.above:
                at += self._keep(buffer[at : self._patterns.sound.match(buffer, at).end()])  # type: ignore[union-attr]
                if at == len(buffer):
                    break
            size = self._judge_line(buffer, at, last)
            if not size:
                break
            at += size
        return at

    def _judge_line(self, buffer: bytes, at: int, last: bool) -> int:
        """Judge a line that is not plainly sound; its bytes, 0 where its quote may close in what is not read yet."""
        raw = buffer[at : buffer.index(b"\n", at) + 1]
        if self.lines < self.dialect.above:  # DuckDB skips one line that it can read, and no others
            self._take(raw, None, in_place=self.dialect.above == 1 and bool(self._patterns.heading.fullmatch(raw)))
            self._start = self._offset
            return len(raw)
        text = _decoded(raw, self.lines + 1)
        if not text.strip():
            return self._take(raw, None, in_place=raw == self._end)  # DuckDB passes over lines without a letter
        if not (self._quoted(text) and self._patterns.left_open.fullmatch(raw)):
            return self._take(raw, self._row(text, raw))
        row = self._patterns.over_lines.match(buffer, at, at + LONGEST_LINE)
        if not row and not last and len(buffer) - at < LONGEST_LINE:
            return 0
        if row is None:
            self._in_doubt = True
            return self._take(raw, fault(text) or UNCLOSED)
        if self.spanning:
            return self._take(row[0], self._row(_decoded(row[0], self.lines + 1), row[0]))
        first, end = self.lines + 1, self.lines + row[0].count(b"\n")
        return self._take(row[0], f"a quoted field runs over lines {first} to {end}, and a row is one line")

    def _quoted(self, text: str) -> bool:
        return '"' in text and self.dialect.separator != "\t"

    def _row(self, text: str, raw: bytes) -> list[str] | str:
        """The fields of a line, or why it has none."""
        doubted = self._in_doubt and self._quoted(text)
        if doubted:  # after a quote that closes nowhere near, a line that may end its field must be sound by itself
            self._in_doubt = bool(self._patterns.left_open.fullmatch(b'"' + raw))
        if reason := fault(text):
            return reason
        try:
            row = self.dialect.split(text)
        except csv.Error:
            return UNCLOSED
        if len(row) != self.dialect.width:
            return f"expected {self.dialect.width} columns, found {len(row)}"
        return UNCLOSED if doubted and not self._patterns.over_lines.fullmatch(raw) else row

    def _keep(self, raw: bytes) -> int:
        """Take lines that are sound, as they are; their bytes."""
        self.lines += raw.count(b"\n")
        self._offset += len(raw)
        self._in_doubt = self._in_doubt and b'"' not in raw.replace(b'""', b"")
        if self._copy:
            self._copy.write(raw)
        return len(raw)

    def _take(self, raw: bytes, row: list[str] | str | None, in_place: bool = False) -> int:
        """Take lines that are one row, that are rejected for a reason, or that are neither; their bytes."""
        first = self.lines + 1
        self.lines += raw.count(b"\n")
        self._no_rows.extend(range(first + isinstance(row, list), self.lines + 1))
        if isinstance(row, str):
            self.rejected += 1
            if len(self.rejects) < self.kept:
                text = _decoded(raw, first)
                self.rejects.append(Reject(str(self.path), first, row, short(text), (short(text, LONGEST_LINE),)))
        if not in_place:
            self._begin_copy().write(self.dialect.join(row) + self._end if isinstance(row, list) else b"")
        self._offset += len(raw)
        return len(raw)

    def _begin_copy(self) -> IO[bytes]:
        """The copy, with the rows before the line that is looked at."""
        if self._copy is None:
            self._copy = (self._folder / "rows.csv").open("wb")
            with self.path.open("rb") as file:
                file.seek(self._start)
                for at in range(self._start, self._offset, BLOCK):
                    self._copy.write(file.read(min(BLOCK, self._offset - at)))
        return self._copy


@contextmanager
def screened(
    path: Path,
    dialect: Dialect,
    advance: Step,
    *,
    budget: Budget | None = None,
    spanning: bool = False,
    folder: Path | None = None,
    kept: int = KEPT_REJECTS,
) -> Iterator[Screened]:
    """Look through a text file; what its rows are read from is there inside the block.

    budget: what the file may unpack to, where it shares that with others. folder: where a copy goes, if one is needed;
    else into the system's folder for temporary files. kept: how many rejected lines are kept.
    """
    with tempfile.TemporaryDirectory(prefix="bridgemem-", dir=folder) as place:
        found = Screened(path, dialect, Path(place), spanning=spanning, kept=kept)
        try:
            found.look_through(budget or Budget(), advance)
        except OSError as problem:
            raise DataError(f"{path} cannot be copied to {place}: {problem.strerror or problem}.") from None
        yield found


def _is_clean(block: bytes) -> bool:
    """Whether a block of lines is UTF-8, and none of them is too long."""
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    half = LONGEST_LINE // 2
    return all(block.find(b"\n", at, at + half) >= 0 for at in range(0, len(block), half))

"""The lines of a text file, also of a packed one, and why a file or a line is no text of events."""

from __future__ import annotations

import gzip
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from bridgemem.errors import DataError
from bridgemem.events.limits import TEXT_RATIO, Budget

BLOCK = 1 << 21  # bytes read at a time
LONGEST_LINE = 100_000  # characters; a longer line is a broken file, not an event

# what the modules for gz and zip raise over bytes that are cut, foreign or made to harm
UNPACKING = (OSError, RuntimeError, ValueError, zlib.error, lzma.LZMAError, struct.error, zipfile.BadZipFile)

ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of bytes that are not UTF-8
JSON = re.compile(r"\s*(\[\s*)?\{\s*([\"}].*)?|\s*\[\s*", re.DOTALL)  # how the first line of objects looks


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it is a gz or a zip."""
    try:
        file = path.open("rb")
        start = file.read(4)
        packed, zipped = start[:2] == b"\x1f\x8b", start == b"PK\3\4"
        file.seek(0)
    except IsADirectoryError:
        raise DataError(
            f"{path} is a directory: give a file of events; a folder of train, valid and test files goes to --data "
            "as it is."
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None
    if path.suffix.lower() == ".gz" and not packed:
        with file:
            if file.read(1):
                raise DataError(f"{path} is named as a gz but is none: rename it or pack it again.")
            raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    if zipped:
        return _open_zip(path, file)
    return cast(IO[bytes], gzip.open(file)) if packed else file


def _open_zip(path: Path, file: IO[bytes]) -> IO[bytes]:
    """The bytes of the one file in a zip."""
    try:
        archive = zipfile.ZipFile(file)
        inside = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
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


def blocks(path: Path, budget: Budget | None = None) -> Iterator[tuple[int, list[str], bool]]:
    """Lines in blocks: the number of the first, the lines, and whether all bytes are as text should be.

    budget: what the file may unpack to, where it shares that with others.
    """
    number = 1
    rest = b""
    with open_bytes(path) as file:
        budget = budget or Budget()
        budget.open(path, TEXT_RATIO)
        while True:
            try:
                chunk = file.read(BLOCK)
            except EOFError:
                raise DataError(f"{path} is cut short after line {number}: fetch it again.") from None
            except UNPACKING as error:
                raise DataError(f"{path} cannot be unpacked, it is damaged: {str(error).rstrip('.')}.") from None
            budget.spend(path, len(chunk))
            if number == 1 and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError(f"{path} is UTF-16: save it as UTF-8.")
            block, newline, rest = (rest + chunk).rpartition(b"\n")
            if not chunk:
                block, newline, rest = rest, b"\n" if rest else b"", b""
            # a line that is too long already is rejected whatever follows, so its middle need not be kept
            rest = rest[: 4 * LONGEST_LINE + 4]
            if newline:
                lines, clean = _decode(block, number)
                budget.spend(path, 0, rows=len(lines))
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


def check_kind(path: Path, lines: Sequence[str]) -> None:
    """Refuse JSON and old line ends by the first lines of a file, of which not all are blank."""
    filled = [line for line in lines if line.strip()]
    if JSON.fullmatch(filled[0]):
        raise DataError(f"{path} is JSON, which is not read: give CSV, TSV or Parquet.")
    if len(filled) == 1 and "\r" in filled[0].strip():
        raise DataError(f"{path} has the line ends of old Macs: save it with those of Unix or Windows.")


def fault(line: str) -> str | None:
    """Why a line is not text, or None."""
    if len(line) > LONGEST_LINE:
        return f"the line is longer than {LONGEST_LINE:,} characters"
    if "\0" in line:
        return "the line holds a NUL byte"
    if ESCAPED_BYTE.search(line):
        return "the line is not UTF-8"
    return None

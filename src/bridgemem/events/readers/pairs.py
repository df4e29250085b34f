"""Small tables of texts: labels, aliases, groups and watch lists."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.readers.text import short

LARGEST = 64 << 20  # bytes of such a file


def read_pairs(path: Path | str, headings: tuple[frozenset[str], frozenset[str]]) -> dict[str, str]:
    """The second text of each row by the first; a heading is passed over.

    headings: the words that may stand over each column, in small letters.
    """
    found: dict[str, str] = {}
    for line, name, value in read_twos(path, headings):
        if found.setdefault(name, value) != value:
            raise DataError(
                f"{path}, line {line}: {short(name)!r} stands there already, as {short(found[name])!r}; keep one of "
                "both."
            )
    return found


def read_twos(path: Path | str, headings: tuple[frozenset[str], frozenset[str]]) -> Iterator[tuple[int, str, str]]:
    """Both texts of each row with its line; headings as in `read_pairs`."""
    for place, (line, cells) in enumerate(read_rows(path)):
        if place == 0 and len(cells) == 2 and _over(cells, headings):
            continue
        if len(cells) != 2 or not cells[0]:
            raise DataError(f"{path}, line {line}: expected two texts, found {short(', '.join(cells))!r}.")
        yield line, cells[0], cells[1]


def read_rows(path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row with its line, without empty ones at its end; rows without any are passed over."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} has more than {LARGEST >> 20} MB; give a table of two columns.")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist; check its name.") from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8; save it as CSV UTF-8.") from None
    first = text.partition("\n")[0]
    separator = next((sign for sign in ("\t", ";", ",") if sign in first), ",")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield rows.line_num, cells
    except csv.Error as problem:
        raise DataError(f"{path}, line {rows.line_num}: {problem}; give a table of two columns.") from None


def _over(cells: list[str], headings: tuple[frozenset[str], frozenset[str]]) -> bool:
    return all(cell.lower().replace("_", " ") in known for cell, known in zip(cells, headings, strict=True))

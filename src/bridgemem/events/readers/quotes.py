"""Quoted fields that are left open at the end of a line: all lines of such a field are one rejected row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

UNCLOSED = "the line has a quote that is not closed or stands inside a field"

Judged = tuple[int, str, list[str] | str]  # the number of a line, its text, and its fields or why it has none


class OpenQuotes:
    """Judges lines one by one; those after a quote that was left open are held back until it is known where it closes.

    split: the fields of a line, or the reason why it has none. limit: the characters that are held back at most; a
    quote that closes nowhere in that many is a slip of its own line, and the lines after it are rows like any other.
    """

    def __init__(self, separator: str, split: Callable[[str], list[str] | str], limit: int) -> None:
        self.separator, self.split, self.limit = separator, split, limit
        self.held: list[tuple[int, str]] = []
        self._size = 0
        self._in_doubt = False

    def take(self, number: int, line: str) -> Iterator[Judged]:
        """What can be said after one line more."""
        if self.held:
            still_open = left_open(line, self.separator, inside=True)
            if still_open is False:
                first, text = self.held[0]
                self.held = []
                yield first, text, f"a quoted field runs over lines {first} to {number}, and a row is one line"
                return
            self._size += len(line) + 1
            if still_open and self._size <= self.limit:
                self.held.append((number, line))
                return
            yield from self.release()
        quoted = '"' in line and self.separator != "\t"
        row = self.split(line)
        if quoted and isinstance(row, str) and left_open(line, self.separator):
            self.held, self._size = [(number, line)], len(line)
        else:
            yield number, line, self._trusted(line, row) if quoted else row

    def release(self) -> Iterator[Judged]:
        """The lines held back, each by itself: the quote before them closes nowhere."""
        held, self.held = self.held, []
        for place, (number, line) in enumerate(held):
            row = self.split(line)
            tail = place > 0 and '"' in line and left_open(line, self.separator) is not False
            yield number, line, UNCLOSED if tail and isinstance(row, list) else row
        self._in_doubt = bool(held)

    def _trusted(self, line: str, row: list[str] | str) -> list[str] | str:
        """The first quoted line after a quote that was given up may end its field: it must be sound by itself."""
        doubted, self._in_doubt = self._in_doubt, False
        return UNCLOSED if doubted and isinstance(row, list) and left_open(line, self.separator) is None else row


def left_open(line: str, separator: str, inside: bool = False) -> bool | None:
    """Whether a quoted field is open at the end of a line; None where a quote stands at no end of a field.

    inside: one was open at its beginning.
    """
    at = 0
    if not inside:
        inside = line.startswith('"')
        at = int(inside)
    while True:
        if inside:
            at = line.find('"', at)
            while at >= 0 and line.startswith('""', at):  # a doubled quote is a letter
                at = line.find('"', at + 2)
            if at < 0:
                return True
            at += 1
            if at < len(line) and line[at] != separator:
                return None
        else:
            start, at = at, line.find(separator, at)
            at = len(line) if at < 0 else at
            if '"' in line[start:at]:
                return None
        if at >= len(line):
            return False
        at += 1
        inside = line.startswith('"', at)
        at += int(inside)

"""Tail: the complete lines of a growing file, through rotations, from a position that is kept elsewhere.

A file is known again by its inode and by the bytes before the position. So it is found after a rename under its new
name, after a copy in the copy, and a file that was truncated and has grown again is not taken for the old one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bridgemem.errors import DataError, NotFoundError, SettingsError

CHUNK = 1 << 20  # bytes of a block; more than the longest line that is read
MARK = 256  # bytes before the position that tell whether a file is the one that was read
FIRST_OF_LINE = 1 << 19  # bytes that are kept of a line longer than a block: too many for an event


@dataclass(frozen=True)
class Position:
    """How far a source was read.

    file: which of the source's files it is in, in the order in which they were rotated, from 1. offset: bytes that
    were read of it, all of them whole lines. line: how many lines these are. mark: a digest of the last of the bytes.
    """

    file: int = 1
    inode: int = 0
    offset: int = 0
    line: int = 0
    mark: str = ""

    def text(self) -> str:
        """The position as it is kept with a batch."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str, source: str) -> Position:
        """A position that was kept."""
        try:
            values = json.loads(text)
            found = cls(**values)
            if not all(type(getattr(found, name)) is type(value) for name, value in asdict(cls()).items()):
                raise ValueError
        except (TypeError, ValueError):
            raise DataError(
                f"the last batch of {source!r} was sent with the offset {text[:40]!r}, and not read from a file with "
                "--follow; give this feed another name with --source."
            ) from None
        return found


@dataclass(frozen=True)
class Block:
    """Whole lines of a file in their order, the number of the first, and the offset after each."""

    name: str
    lines: list[bytes]
    first: int
    ends: list[int]


class Tail:
    """The lines of a file from a position on. remark: is told in a sentence what happened to the file."""

    def __init__(
        self, path: Path, position: Position | None, *, from_start: bool = False, remark: Callable[[str], None]
    ) -> None:
        self.path, self._remark = path, remark
        self.position, self._name, self._file = Position(), path, -1
        if position is None or from_start:
            if not path.exists():
                raise NotFoundError(f"there is no file {path} to follow.")
            self._waiting = [path]
            self._begin(position or Position(file=0))
        else:
            self._resume(position)

    def close(self) -> None:
        os.close(self._file)

    def block(self) -> Block | None:
        """The next whole lines; None where there are none yet."""
        while True:
            if not self._is_same():
                self._find_copy()
            raw = os.pread(self._file, CHUNK, self.position.offset)
            end = raw.rfind(b"\n") + 1
            if end:
                return self._cut(raw[:end])
            if len(raw) == CHUNK:
                return self._overlong(raw)
            if not self._left_behind():
                return None
            # read again: the last lines may have been written after the first look, and before the writer moved on
            raw = os.pread(self._file, CHUNK, self.position.offset)
            if raw:
                return self._cut(raw[: raw.rfind(b"\n") + 1] or raw)
            self._begin(self.position)

    def advanced(self, block: Block, lines: int) -> Position:
        """The position after the first lines of the last block; the next block begins there."""
        offset = block.ends[lines - 1]
        at = replace(self.position, offset=offset, line=block.first + lines - 1)
        self.position = replace(at, mark=_mark(self._file, offset))
        return self.position

    def half_line(self) -> int:
        """Bytes after the last whole line."""
        return max(0, os.fstat(self._file).st_size - self.position.offset)

    # ---- one file --------------------------------------------------------------------------------------------------

    def _cut(self, raw: bytes) -> Block:
        lines = re.findall(rb"[^\n]*\n|[^\n]+", raw)
        ends = itertools.accumulate(map(len, lines), initial=self.position.offset)
        return Block(str(self._name), lines, self.position.line + 1, list(ends)[1:])

    def _overlong(self, start: bytes) -> Block | None:
        """A line that is longer than a block, if it has ended; it counts with all of its bytes."""
        at = self.position.offset + len(start)
        while raw := os.pread(self._file, CHUNK, at):
            end = raw.find(b"\n") + 1
            at += end or len(raw)
            if end:
                return Block(str(self._name), [start[:FIRST_OF_LINE]], self.position.line + 1, [at])
        return None

    def _is_same(self) -> bool:
        """Whether what was read is still there; a file that was truncated lacks it, or has other lines in its place."""
        at = self.position
        return os.fstat(self._file).st_size >= at.offset and _mark(self._file, at.offset) == at.mark

    def _left_behind(self) -> bool:
        """Whether the writer went on to another file, and will never write to this one again."""
        if self._waiting:
            return True
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # renamed, and the new file is still to come
        # an empty file may have been made by the rotation, before the writer knows
        return now.st_ino != self.position.inode and now.st_size > 0

    # ---- from file to file -----------------------------------------------------------------------------------------

    def _begin(self, before: Position) -> None:
        """Go on to the next file, which is read from its start."""
        after = self._waiting.pop(0) if self._waiting else self.path
        self._open(after, replace(Position(), file=before.file + 1))

    def _open(self, path: Path, position: Position) -> None:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            os.close(file)
            raise SettingsError(f"{path} is not a file that grows; pipe it into `bridgemem ingest STORE -` instead.")
        if self._file >= 0:
            os.close(self._file)
        self._file, self._name = file, path
        self.position = replace(position, inode=about.st_ino)

    def _resume(self, position: Position) -> None:
        """Open the file that was read up to a position, wherever it is by now."""
        found = self._located(position)
        if found is None:
            raise DataError(
                f"{self.path} is not the file that was read up to byte {position.offset:,}, and no file next to it "
                "is; put that one back (unpacked, if it was compressed), or say --from-start to give up what was not "
                "read of it."
            )
        self._waiting = [] if found == self.path else [*self._later(found), self.path]
        self._open(found, position)
        if found != self.path:
            self._remark(f"{self.path.name} was rotated; the rest of it is read from {found.name}.")
            self._waiting = [path for path in self._waiting if path.exists()]

    def _find_copy(self) -> None:
        """After a truncation: read the rest of what was there from its copy, if there is one, then the file anew."""
        found = self._located(self.position)
        self._waiting = [self.path]
        if found is not None and found != self.path:
            self._remark(f"{self.path.name} was truncated; the rest of it is read from its copy {found.name}.")
            self._open(found, self.position)
        else:
            self._remark(
                f"{self.path.name} was truncated, and no copy of it is next to it; it is read from its start. Lines "
                f"that were written after line {self.position.line:,}, if any, are lost."
            )
            self._begin(self.position)

    def _located(self, position: Position) -> Path | None:
        """The file that a position is in: by inode, else by what stands before it."""
        near = [path for path in sorted(self.path.parent.iterdir()) if path.is_file() and not path.is_symlink()]
        by_inode = [path for path in near if path.stat().st_ino == position.inode]
        rotated = [path for path in near if path != self.path and self._is_rotated(path)]
        for path in (*by_inode, self.path, *rotated):
            if path.is_file() and _holds(path, position, by_inode=path in by_inode):
                return path
        return None

    def _later(self, path: Path) -> list[Path]:
        """Rotated files that were written after one, in their order."""
        after = path.stat().st_mtime_ns
        found = [(other.stat().st_mtime_ns, other) for other in self.path.parent.iterdir() if self._is_rotated(other)]
        return [other for time, other in sorted(found) if time > after and other not in (path, self.path)]

    def _is_rotated(self, path: Path) -> bool:
        """Whether a name is one that rotation gives: feed.jsonl.1, feed.jsonl-20240131, feed.1.jsonl."""
        number = r"[.-]\d[\d.T:_-]*"
        forms = (re.escape(self.path.name) + number, re.escape(self.path.stem) + number + re.escape(self.path.suffix))
        return any(re.fullmatch(form, path.name) for form in forms)


def _mark(file: int, offset: int) -> str:
    """A digest of the bytes before an offset; empty at the start."""
    if not offset:
        return ""
    held = os.pread(file, min(MARK, offset), max(0, offset - MARK))
    return hashlib.sha256(held).hexdigest()[:16]


def _holds(path: Path, position: Position, *, by_inode: bool) -> bool:
    """Whether a file has what was read up to a position; without any byte read, the inode alone tells."""
    if path.stat().st_size < position.offset or not (position.offset or by_inode):
        return False
    with path.open("rb") as file:
        return _mark(file.fileno(), position.offset) == position.mark

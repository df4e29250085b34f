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
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bridgemem.errors import DataError, NotFoundError, SettingsError

CHUNK = 1 << 20  # bytes of a block; more than the longest line that is read
MARK = 256  # bytes before the position that tell whether a file is the one that was read
FIRST_OF_LINE = 1 << 19  # bytes that are kept of a line longer than a block: too many for an event


class LostFeedError(DataError):
    """The file that a source was read from is not there any more."""


@dataclass(frozen=True)
class Position:
    """How far a source was read.

    file: which of the source's files it is in, in the order in which they were rotated, from 1. before: the inode of
    the file before it. offset: bytes that were read of it, all of them whole lines. line: how many lines these are.
    mark: a digest of the last of the bytes.
    """

    file: int = 1
    before: int = 0
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
    """The lines of a file from a position on.

    from_start: read the file from its start where the one of the position is lost. So the option may stay set in a
    unit file: a file that is found is still read once. remark: called with a sentence on what happened to the file.
    """

    def __init__(
        self, path: Path, position: Position | None, *, from_start: bool = False, remark: Callable[[str], None]
    ) -> None:
        self.path, self._remark = path, remark
        self.position, self._name, self._file = Position(), path, -1
        if position is None:
            self._open(path, Position())
        else:
            self._resume(position, from_start)

    def close(self) -> None:
        os.close(self._file)

    def block(self) -> Block | None:
        """The next whole lines; None where there are none yet."""
        while True:
            if not self._is_same():
                self._find_copy()
            raw = _read(self._file, CHUNK, self.position.offset)
            end = raw.rfind(b"\n") + 1
            if end:
                return self._cut(raw[:end])
            if len(raw) == CHUNK:
                return self._overlong(raw)
            if not self._left_behind():
                return None
            # read again: the last lines may have been written after the first look, and before the writer moved on
            raw = _read(self._file, CHUNK, self.position.offset)
            if raw:
                return self._cut(raw[: raw.rfind(b"\n") + 1] or raw)
            if not self._begin():
                return None

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
        while raw := _read(self._file, CHUNK, at):
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
        try:
            now = self.path.stat()
        except FileNotFoundError:
            now = None  # renamed, and the new file is still to come
        if now is not None and now.st_ino == self.position.inode:
            return False
        # an empty file may have been made by the rotation, before the writer knows
        return bool(now is not None and now.st_size) or bool(self._later())

    # ---- from file to file -----------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Go on to the next file, which is read from its start: the first that was rotated since, else the newest.

        False where it was taken away again.
        """
        at = self.position
        begun = Position(file=at.file + 1, before=at.inode)
        # a rotation in between may give its name to another file; then there is another first one
        while True:
            later = self._later()
            file = _opened(later[0][1] if later else self.path)
            inode = None if file is None else os.fstat(file).st_ino
            first = next(iter(self._later()), None)
            if file is not None and (inode == first[0] if first else not later):
                self._take(file, later[0][1] if later else self.path, begun)
                return True
            if file is not None:
                os.close(file)
            elif first is None:
                return False

    def _open(self, path: Path, position: Position) -> None:
        file = _opened(path)
        if file is None:
            raise NotFoundError(f"there is no file {path} to follow; check its name.")
        self._take(file, path, position)

    def _take(self, file: int, path: Path, position: Position) -> None:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            os.close(file)
            raise SettingsError(f"{path} is not a file that grows; pipe it into `bridgemem ingest STORE -` instead.")
        if self._file >= 0:
            os.close(self._file)
        self._file, self._name = file, path
        self.position = replace(position, inode=about.st_ino)

    def _resume(self, position: Position, from_start: bool) -> None:
        """Open the file that was read up to a position, wherever it is by now."""
        try:
            found = self._located(position)
        except OSError as problem:
            raise LostFeedError(f"{self.path} cannot be read: {problem.strerror}; fix that and start again.") from None
        if found is not None:
            self._open(found, position)
            if found != self.path:
                self._remark(f"{self.path.name} was rotated; the rest of it is read from {found.name}.")
        elif self._was_truncated(position):
            self._restart(position)
        elif from_start and self.path.exists():
            self._open(self.path, Position(file=position.file + 1))
        else:
            raise LostFeedError(
                f"{self.path} is not the file that was read up to byte {position.offset:,}, and no file next to it "
                "is; put that one back (unpacked, if it was compressed), or use --from-start to skip what was not "
                "read of it."
            )

    def _was_truncated(self, position: Position) -> bool:
        """Whether the file is the same as before and has less than was read of it."""
        with suppress(FileNotFoundError):
            now = self.path.stat()
            return now.st_ino == position.inode and now.st_size < position.offset
        return False

    def _find_copy(self) -> None:
        """After a truncation: read the rest of what was there from its copy, if there is one, then the file again."""
        found = self._located(self.position)
        if found is not None and found != self.path:
            self._remark(f"{self.path.name} was truncated; the rest of it is read from its copy {found.name}.")
            self._open(found, self.position)
        else:
            self._restart(self.position)

    def _restart(self, position: Position) -> None:
        """Read a file again that was truncated after a position."""
        self._remark(
            f"{self.path.name} was truncated, and no copy of it is next to it; it is read from its start. Lines "
            f"that were written after line {position.line:,}, if any, are lost."
        )
        self._open(self.path, Position(file=position.file + 1))

    def _located(self, position: Position) -> Path | None:
        """The file that a position is in: by inode, else by what stands before it."""
        folder = self.path.parent
        near = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
        near = [path for path in near if not path.is_symlink()]
        by_inode = [path for path in near if path.stat().st_ino == position.inode]
        rotated = [path for path in near if path != self.path and self._is_rotated(path)]
        for path in (*by_inode, self.path, *rotated):
            if path.is_file() and _holds(path, position, by_inode=path in by_inode):
                return path
        return None

    def _later(self) -> list[tuple[int, Path]]:
        """Inodes and names of the rotated files that were written after this one, in their order."""
        own, found = os.fstat(self._file).st_mtime_ns, []
        for path in self.path.parent.iterdir():
            if path != self.path and self._is_rotated(path):
                with suppress(FileNotFoundError):  # renamed meanwhile
                    about = path.stat()
                    # of files that were written in one tick of the system's clock, one was read before
                    tied = about.st_mtime_ns == own and about.st_ino != self.position.before
                    if about.st_ino != self.position.inode and (about.st_mtime_ns > own or tied):
                        found.append((about.st_mtime_ns, about.st_ino, path))
        return [(inode, path) for _, inode, path in sorted(found)]

    def _is_rotated(self, path: Path) -> bool:
        """Whether a name is one that rotation gives: feed.jsonl.1, feed.jsonl-20240131, feed.1.jsonl."""
        number = r"[.-]\d[\d.T:_-]*"
        forms = (re.escape(self.path.name) + number, re.escape(self.path.stem) + number + re.escape(self.path.suffix))
        return any(re.fullmatch(form, path.name) for form in forms)


def _opened(path: Path) -> int | None:
    """A file to read, or None where there is none of that name."""
    try:
        return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None


def _read(file: int, size: int, offset: int) -> bytes:
    """Bytes of a file from an offset on, fewer at its end."""
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


def _mark(file: int, offset: int) -> str:
    """A digest of the bytes before an offset; empty at the start."""
    if not offset:
        return ""
    held = _read(file, min(MARK, offset), max(0, offset - MARK))
    return hashlib.sha256(held).hexdigest()[:16]


def _holds(path: Path, position: Position, *, by_inode: bool) -> bool:
    """Whether a file has what was read up to a position; without any byte read, the inode alone tells."""
    if path.stat().st_size < position.offset or not (position.offset or by_inode):
        return False
    with path.open("rb") as file:
        return _mark(file.fileno(), position.offset) == position.mark

"""Following a feed: the lines of a growing file or of a stream, taken into an event store batch by batch.

How far a feed was read is kept with each batch, in its transaction: a batch is stored and passed by, or neither. So a
file, and a stream whose lines carry their offsets, are read exactly once, whenever the reader is killed.
"""

from __future__ import annotations

import os
import select
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from bridgemem.errors import DataError
from bridgemem.events.naming import NewEvent
from bridgemem.events.readers.json_lines import JsonLines, Line
from bridgemem.events.readers.rejects import RejectedError, RejectsLog
from bridgemem.events.readers.text import Reject
from bridgemem.live.eventstore import EventStore, Receipt
from bridgemem.live.quarantine import Quarantine
from bridgemem.live.storefile import StoreInUseError
from bridgemem.live.tail import CHUNK, FIRST_OF_LINE, Block, Position, Tail

POLL = 0.2  # seconds between two looks at a feed, and at a store that is in use


@dataclass(frozen=True)
class Batch:
    """Lines of a block that are taken in together: how many they are, under which key, and the offset after them."""

    lines: int
    key: str
    offset: str | None


class Feed(Protocol):
    """Where lines come from. ended: no more will come. skipped: lines that were passed by, as taken in before."""

    ended: bool
    skipped: int

    def block(self) -> Block | None:
        """The next whole lines; None where there are none yet."""

    def batch(self, block: Block, lines: Sequence[Line]) -> tuple[Batch, Sequence[Line]]:
        """What is taken in of a block whose first lines were read: all of them, less those that were before."""

    def half_line(self) -> int:
        """Bytes that wait for the end of their line."""


class FileFeed:
    """A file that grows, from the position of the source's last batch on."""

    def __init__(self, tail: Tail) -> None:
        self.tail, self.ended, self.skipped = tail, False, 0

    def block(self) -> Block | None:
        return self.tail.block()

    def batch(self, block: Block, lines: Sequence[Line]) -> tuple[Batch, Sequence[Line]]:
        before = self.tail.position
        after = self.tail.advanced(block, len(lines))
        return Batch(len(lines), f"{before.file}:{before.offset}", after.text()), lines

    def half_line(self) -> int:
        return self.tail.half_line()


class StreamFeed:
    """Lines of a stream, such as standard input; with offsets, those up to the last one that was taken in are skipped.

    Offsets must grow, since a smaller one is one that was taken in. last: that of the source's last batch.
    """

    def __init__(self, file: int, name: str, *, offsets: bool, last: str | None = None) -> None:
        self.name, self.offsets, self.ended, self.skipped = name, offsets, False, 0
        if last is not None and not last.isdecimal():
            raise DataError(
                f"the last batch of {name!r} was sent with the offset {last[:40]!r}, which is not a whole number; give "
                "this feed another name with --source."
            )
        self._taken = int(last) if last is not None else -1
        self._file, self._rest, self._line, self._seen = file, b"", 0, -1

    def block(self) -> Block | None:
        """The whole lines that have come; at the end of the stream the last line needs no end."""
        while not self.ended and len(self._rest) < CHUNK and self._waits():
            raw = os.read(self._file, CHUNK)
            self.ended = not raw
            self._rest += raw
        end = len(self._rest) if self.ended else self._rest.rfind(b"\n") + 1
        raw, self._rest = self._rest[:end], self._rest[end:][:FIRST_OF_LINE]
        lines = raw.removesuffix(b"\n").split(b"\n") if raw else []
        first, self._line = self._line + 1, self._line + len(lines)
        return Block(self.name, lines, first, []) if lines else None

    def _waits(self) -> bool:
        """Whether something is there to be read, or the stream has ended."""
        try:
            return bool(select.select([self._file], [], [], POLL / 4)[0])
        except OSError:  # not every system can tell; then reading waits
            return True

    def batch(self, block: Block, lines: Sequence[Line]) -> tuple[Batch, Sequence[Line]]:
        if not self.offsets:
            return Batch(len(lines), uuid.uuid4().hex, None), lines
        kept = []
        for number, line in enumerate(lines, block.first):
            if line.offset is not None:
                if line.offset <= self._seen:
                    raise DataError(
                        f"line {number:,} has the offset {line.offset:,} after {self._seen:,}, and the offsets of a "
                        "source must grow; read each partition by itself, under a --source of its own."
                    )
                self._seen = line.offset
            if line.offset is None or line.offset > self._taken:
                kept.append(line)
            else:
                self.skipped += 1
        before, self._taken = self._taken, max(self._taken, self._seen)
        offset = str(self._taken) if self._taken > before else None
        return Batch(len(lines), f"{self._taken}:{uuid.uuid4().hex}", offset), kept

    def half_line(self) -> int:
        return len(self._rest)


@dataclass
class Followed:
    """What became of a feed. skipped: lines that were taken in before. late, duplicates: as in receipts."""

    source: str
    batches: int = 0
    events: int = 0
    accepted: int = 0
    duplicates: int = 0
    late: int = 0
    rejected: int = 0
    skipped: int = 0
    last_offset: str | None = None


class Target(Protocol):
    """What a feed is taken into: an event store, or what writes to one."""

    @property
    def store(self) -> EventStore: ...

    def append(
        self, events: Sequence[NewEvent], *, source: str, key: str, offset: str | int | None = None
    ) -> Receipt: ...

    def last_offset(self, source: str) -> str | None: ...

    def close(self) -> None: ...


@dataclass
class Follower:
    """Takes a feed into a store. The store is held while there are lines, and let go while none come.

    opened: opens the store for the run that it follows. rejects: where lines go that cannot be used; None: the first
    of them ends it, unless `skip` says to pass them by. remark: called with a sentence that a user should see.
    """

    feed: Feed
    lines: JsonLines
    opened: Callable[[], Target]
    done: Followed
    rejects: RejectsLog | None = None
    skip: bool = False
    remark: Callable[[str], None] = lambda sentence: None
    _held: Target | None = field(default=None, init=False)

    def run(self, stop: threading.Event, *, until_end: bool = False) -> Followed:
        """Take in what comes until `stop` is set, or the feed ends; with until_end, until nothing more is there."""
        with ExitStack() as exits:
            exits.callback(self._let_go)
            while not stop.is_set():
                block = self.feed.block()
                if block is not None:
                    self._take(block, stop)
                    continue
                if self.feed.ended or until_end:
                    break
                self._let_go()
                stop.wait(POLL)
        return self.done

    def _take(self, block: Block, stop: threading.Event) -> None:
        """Store the lines of a block as one batch; where one cannot be used and may not be passed by, those before."""
        read = []
        wrong: Line | None = None
        for number, raw in enumerate(block.lines, block.first):
            line = self.lines.read(raw, block.name, number)
            if line.reject and not self.skip and self.rejects is None:
                wrong = line
                break
            read.append(line)
        if read:
            batch, kept = self.feed.batch(block, read)
            events = [line.event for line in kept if line.event is not None]
            rejected = [line.reject for line in kept if line.reject is not None]
            if not self._store(batch, events, rejected, stop):
                return
        if wrong is not None and wrong.reject is not None:
            raise RejectedError(
                f"{block.name}:{wrong.reject.line}: {wrong.reject.reason}. The lines before it were taken in. Fix the "
                "line, or use --rejects FILE to set such lines aside and go on.",
                [wrong.reject],
            )

    def _store(self, batch: Batch, events: list[NewEvent], rejected: list[Reject], stop: threading.Event) -> bool:
        """Write a batch with the offset after it; whether it was, since a store in use is waited for until `stop`."""
        if not (events or rejected or batch.offset):
            return True
        store = self._open(stop)
        if store is None:
            return False
        if self.rejects is not None:
            self.rejects.add(rejected)
        done = self.done
        if rejected:
            Quarantine(store.store).keep(done.source, batch.key, rejected)
        if events or batch.offset:
            receipt = store.append(events, source=done.source, key=batch.key, offset=batch.offset)
            done.batches += 1
            done.events += len(receipt.ids)
            done.accepted += receipt.accepted
            done.duplicates += receipt.duplicates
            done.late += receipt.late
            done.last_offset = batch.offset or done.last_offset
        if self.rejects is not None:
            self.rejects.acknowledged()
        done.rejected += len(rejected)
        return True

    def _open(self, stop: threading.Event) -> Target | None:
        """The store, once no other process has it; None where `stop` comes first."""
        told = False
        while self._held is None:
            try:
                held = self.opened()
            except StoreInUseError as problem:
                if not told:
                    self.remark(f"{str(problem).split(';')[0]}; waiting for it.")
                    told = True
                if stop.wait(POLL):
                    return None
                continue
            reached = held.last_offset(self.done.source)
            if reached != self.done.last_offset:
                held.close()
                raise DataError(
                    f"another process follows {self.done.source!r} into the same store; stop one of the two, or give "
                    "each a --source of its own."
                )
            self._held = held
        return self._held

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def position_of(store: EventStore, source: str) -> Position | None:
    """How far a file was read that a source follows; None where it was not read yet."""
    reached = store.last_offset(source)
    return None if reached is None else Position.of(reached, source)

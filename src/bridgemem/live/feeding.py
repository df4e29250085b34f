"""Feeding: a file of newline-delimited JSON that a service follows by itself, exactly once, while it answers.

It is taken in as `ingest --follow` does it, through the live forecaster: what was stored is in the next forecast, and
how far the file was read is kept with each batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bridgemem.errors import BridgeMemError
from bridgemem.events.log import EventLog
from bridgemem.events.naming import NewEvent
from bridgemem.events.readers.json_lines import JsonLines, Line
from bridgemem.events.readers.rejects import RejectsLog
from bridgemem.events.readers.text import Reject, short
from bridgemem.live.eventstore import EventStore, Receipt
from bridgemem.live.following import FileFeed, Followed, Follower, position_of
from bridgemem.live.storefile import StoreError
from bridgemem.live.tail import LostFeedError, Tail

LOG = logging.getLogger(__name__)
AGAIN = 5.0  # seconds after a store could not be written


class _View(Protocol):
    @property
    def events(self) -> EventLog: ...


class Live(Protocol):
    """What a feed needs of a live forecaster."""

    @property
    def store(self) -> EventStore: ...
    @property
    def view(self) -> _View: ...

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt: ...


@dataclass(frozen=True)
class _Target:
    """A store as a live forecaster writes it; it stays open."""

    live: Live

    @property
    def store(self) -> EventStore:
        return self.live.store

    def append(self, events: Sequence[NewEvent], *, source: str, key: str, offset: str | int | None = None) -> Receipt:
        receipt = self.live.add(events, source, key, offset)
        LOG.info("%s: ingested %s events as batch %s", source, f"{len(receipt.ids):,}", receipt.batch)
        return receipt

    def last_offset(self, source: str) -> str | None:
        return self.live.store.last_offset(source)

    def close(self) -> None:
        pass


class _Lines(JsonLines):
    """Lines to events; one that leaps further ahead than the store allows is set aside, and takes no other with it."""

    def __init__(self, lines: JsonLines, live: Live) -> None:
        vars(self).update(vars(lines))
        self.live, self._latest = live, live.view.events.end - 1

    def read(self, raw: bytes, file: str, number: int) -> Line:
        line, most = super().read(raw, file, number), self.live.store.max_ahead
        if line.event is None or most is None:
            return line
        step, self._latest = self.clock.step(line.event[3]), max(self._latest, self.live.view.events.end - 1)
        if step - self._latest <= most:
            self._latest = max(self._latest, step)
            return line
        cells = tuple(map(str, line.event))
        reason = f"the time lies {step - self._latest:,} steps after the last event; --max-ahead allows {most:,}"
        return replace(line, event=None, reject=Reject(file, number, reason, short(" ".join(cells)), cells))


class Feeding:
    """A thread that follows a file into a live forecaster.

    rejects: the file for lines that cannot be used. following: whether the file is followed; False once it is lost,
    also where that was so from the start, since forecasts need no feed.
    """

    def __init__(
        self,
        live: Live,
        file: Path,
        lines: JsonLines,
        *,
        source: str | None,
        rejects: Path,
        from_start: bool = False,
    ) -> None:
        """Open the file where it was left off; one that was never read must be there."""
        self.live, self.file, self.source, self._from_start = live, file, source or file.name, from_start
        self._lines, self._rejects, self._stop = _Lines(lines, live), RejectsLog(rejects), threading.Event()
        self.following, self._tail = True, None
        try:
            self._tail = self._opened()
        except LostFeedError as problem:
            self._stopped(problem)

    def _opened(self) -> Tail:
        position = position_of(self.live.store, self.source)
        return Tail(self.file, position, from_start=self._from_start, remark=LOG.warning)

    def _stopped(self, problem: BridgeMemError | OSError) -> None:
        self.following = False
        LOG.error("not following %s; the service runs without the feed: %s", self.file, problem)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Follow the file until the context ends; the batch at hand is stored first."""
        thread = threading.Thread(target=self._run, name="feeding")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        tail = self._tail
        try:
            while tail is not None and not self._stop.is_set():
                with closing(tail):
                    try:
                        self._follow(tail)
                        return
                    except StoreError as problem:
                        # what was read since the last batch is read again
                        LOG.error("%s: %s", self.source, problem)
                        self._stop.wait(AGAIN)
                tail = self._opened()
        except (BridgeMemError, OSError) as problem:
            self._stopped(problem)
        except Exception:
            self.following = False
            LOG.exception("not following %s; the service runs without the feed", self.file)

    def _follow(self, tail: Tail) -> None:
        done = Followed(self.source, last_offset=self.live.store.last_offset(self.source))
        target = _Target(self.live)
        Follower(FileFeed(tail), self._lines, lambda: target, done, self._rejects, remark=LOG.warning).run(self._stop)

"""A run as agents ask it: over its own events alone, or with those of a store, which is followed and never written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bridgemem.errors import BridgeMemError, SettingsError
from bridgemem.events.leaps import most_ahead
from bridgemem.events.log import EventLog
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore, NewEvent, Receipt, Stored
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.ledger import Ledger
from bridgemem.live.retention import Removal, Remove
from bridgemem.runs import Run

LOG = logging.getLogger(__name__)
NOTHING = "agents only ask: events are added with `bridgemem ingest`, or by a service."
NO_STORE = "there is no event store, so no forecast was issued; name one with --store."
PAUSE = 1.0  # seconds between two looks at a store, at least
SHARE = 10  # of the time since the last look, one part at most is spent on looking


@dataclass(frozen=True)
class KnownThen:
    """What was known at one moment."""

    predictor: Predictor
    version: str

    @property
    def events(self) -> EventLog:
        return self.predictor.events


class Still:
    """What a service needs of a live forecaster, of one that takes no events in."""

    def __init__(self, run: Run, predictor: Predictor) -> None:
        self.run, self._view = run, KnownThen(predictor, run.version)
        self._asking = threading.Lock()

    @property
    def view(self) -> KnownThen:
        return self._view

    @property
    def store(self) -> Any:
        """How far ahead assumed events may lie; nothing is stored."""
        return SimpleNamespace(max_ahead=most_ahead(self.view.events))

    @contextmanager
    def asking(self) -> Iterator[KnownThen]:
        with self._asking:
            yield self._view

    def ledger(self) -> AbstractContextManager[Ledger]:
        """The issued forecasts, to be read."""
        raise SettingsError(NO_STORE)

    def tidy(self) -> None:
        """There is nothing to merge."""

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt:
        raise SettingsError(NOTHING)

    def retract(self, event_ids: Sequence[str], reason: str = "") -> list[Stored]:
        raise SettingsError(NOTHING)

    def remove(self, remove: Remove) -> Removal:
        raise SettingsError(NOTHING)


class Following(Still):
    """One that reads a store again whenever its file has changed, and lets the file go in between.

    open_store: opens the store, or a copy of it where a service has it open. A store that cannot be read leaves what is
    known as it is. stored: how many of its events are known.
    """

    def __init__(
        self, model: Forecaster, path: Path, open_store: Callable[[], AbstractContextManager[EventStore]]
    ) -> None:
        super().__init__(model.run, model.predictor)
        self._model, self._path, self._open = model, path, open_store
        self._looking, self._seen, self._next, self.stored = threading.Lock(), self._stamp(), 0.0, 0

    def read(self) -> None:
        """Read the store now."""
        seen = self._stamp()
        with self._open() as store:
            live = LiveForecaster(self._model, store)
        self._view, self.stored, self._seen = KnownThen(live.view.predictor, self.run.version), live.stored, seen

    @property
    def view(self) -> KnownThen:
        began = time.monotonic()
        # one looks, and others are answered from what is known
        if began >= self._next and self._looking.acquire(blocking=False):
            try:
                if self._stamp() != self._seen:
                    self.read()
            except BridgeMemError as problem:
                LOG.warning("could not re-read the event store; answers use the events read before: %s", problem)
            finally:
                now = time.monotonic()
                self._next = now + max(PAUSE, SHARE * (now - began))
                self._looking.release()
        return self._view

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        if not self._path.is_file():
            raise SettingsError(NO_STORE)
        with self._open() as store:
            yield Ledger(store)

    def _stamp(self) -> tuple[tuple[int, int] | None, ...]:
        """When the file and its log were last written, and how large they are."""
        return tuple(map(_written, (self._path, self._path.with_name(f"{self._path.name}.wal"))))


def _written(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size

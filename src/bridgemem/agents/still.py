"""Still: a run over its own events and those that a store held when it was opened, as a service is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from bridgemem.errors import SettingsError
from bridgemem.events.leaps import most_ahead
from bridgemem.events.log import EventLog
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import NewEvent, Receipt, Stored
from bridgemem.live.retention import Removal, Remove
from bridgemem.runs import Run

NOTHING = "agents only ask: events are added with `bridgemem ingest`, or by a service."


@dataclass(frozen=True)
class StillView:
    """What was known when the run was opened."""

    predictor: Predictor
    version: str

    @property
    def events(self) -> EventLog:
        return self.predictor.events


@dataclass(frozen=True)
class Still:
    """What a service needs of a live forecaster, of one that takes no events in."""

    run: Run
    view: StillView
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def of(cls, run: Run, predictor: Predictor) -> Still:
        return cls(run, StillView(predictor, run.version))

    @property
    def store(self) -> Any:
        """How far ahead assumed events may lie; nothing is stored."""
        return SimpleNamespace(max_ahead=most_ahead(self.view.events))

    @contextmanager
    def asking(self) -> Iterator[StillView]:
        with self._lock:
            yield self.view

    def tidy(self) -> None:
        """There is nothing to merge."""

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt:
        raise SettingsError(NOTHING)

    def retract(self, event_ids: Sequence[str], reason: str = "") -> list[Stored]:
        raise SettingsError(NOTHING)

    def remove(self, remove: Remove) -> Removal:
        raise SettingsError(NOTHING)

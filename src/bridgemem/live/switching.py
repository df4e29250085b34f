"""Switch: the live forecaster that is served, replaced by another one between two requests.

The new run is loaded and tried next to the old one, on the same store. Forecasts go on meanwhile; batches wait while
the new run reads the store. A refused run changes nothing: the old one is served on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bridgemem.errors import BridgeMemError, RunError
from bridgemem.events.naming import NewEvent
from bridgemem.forecaster import Forecaster
from bridgemem.live.eventstore import EventStore, Receipt, Stored
from bridgemem.live.forecasting import LiveForecaster, View
from bridgemem.live.gate import Gate
from bridgemem.live.retention import Removal, Remove
from bridgemem.runs import Run

CANARIES = 3  # queries about the last events that a new model is tried on


@dataclass(frozen=True)
class Switched:
    """The version of the model that is served now, and of the one before; changed: whether they are two."""

    model_version: str
    before: str
    changed: bool


class RefusedRunError(RunError):
    """A run was not taken in place of the one that is served, which goes on."""


class Switch:
    """A live forecaster whose run can be changed; every request sees one run and one view.

    source: the run folder, or a link to it that may be moved to another. load: how a run folder is opened.
    """

    def __init__(self, source: Path, store: EventStore, load: Callable[[Path], Forecaster]) -> None:
        self.source, self.store, self._load = source, store, load
        self._switching, self._writers = threading.Lock(), Gate()
        self._now = LiveForecaster(load(source.resolve()), store)

    @property
    def run(self) -> Run:
        return self._now.run

    @property
    def view(self) -> View:
        return self._now.view

    @property
    def moved(self) -> Path | None:
        """Where the link points, if that is no longer the run that is served."""
        target = self.source.resolve()
        return None if target == self.run.folder.resolve() else target

    def asking(self) -> AbstractContextManager[View]:
        return self._now.asking()

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt:
        with self._writers.one_of_many():
            return self._now.add(events, source, key, offset)

    def retract(self, event_ids: str | Sequence[str], reason: str = "") -> list[Stored]:
        with self._writers.one_of_many():
            return self._now.retract(event_ids, reason)

    def remove(self, remove: Remove) -> Removal:
        with self._writers.one_of_many():
            return self._now.remove(remove)

    def tidy(self, wait: bool = False) -> None:
        self._now.tidy(wait)

    def compact(self) -> int:
        with self._writers.one_of_many():  # so that no other run comes meanwhile
            return self._now.compact()

    def reload(self) -> Switched:
        """Serve what the source is now; a RefusedRunError says why not, and what is served on.

        A folder that was replaced under its name is another version too.
        """
        with self._switching:
            old, target = self._now, self.source.resolve()
            try:
                model = self._load(target)
                version = model.run.version
                if version == old.run.version:
                    return Switched(version, version, changed=False)
                with self._writers.alone():
                    self._now = self._tried(model, old)
            except (BridgeMemError, OSError) as problem:
                why = str(problem).rstrip(".")
                raise RefusedRunError(f"{target.name} was refused ({why}); {old.run.version} is served on.") from None
            return Switched(version, old.run.version, changed=True)

    def _tried(self, model: Forecaster, old: LiveForecaster) -> LiveForecaster:
        """The new model on the store, if it answers; else the store follows the old one as before."""
        try:
            new = LiveForecaster(model, self.store, asking=old.lock)
            _check_names(new, old)
            _try_out(new, old)
        except BaseException:
            old.follow_again()
            raise
        return new


def _check_names(new: LiveForecaster, old: LiveForecaster) -> None:
    """Refuse a run that lacks names of what is served, so that every query that is possible now stays possible."""
    for kind in ("entities", "relations"):
        before, after = (getattr(live.view.events, kind).names for live in (old, new))
        if lost := set(before).difference(after):
            raise RunError(f"it lacks {len(lost):,} {kind} that are known now, such as {min(lost)!r}")


def _try_out(new: LiveForecaster, old: LiveForecaster) -> None:
    """Ask about the last events: scores are numbers, and what the old model answers the new one does."""
    events = new.view.events
    for row in range(max(0, len(events) - CANARIES), len(events)):
        subject, relation = events.subject[row], events.relation[row]
        names = events.entities.names[subject], events.relations.names[relation]
        try:
            found = new.forecast(*names, top=5)
        except BridgeMemError:
            if _answers(old, *names):  # stored scores that end before now fail in both
                raise
        else:
            if not found or not all(math.isfinite(candidate.score) for candidate in found):
                raise RunError("its scores are not finite")


def _answers(live: LiveForecaster, subject: str, relation: str) -> bool:
    try:
        return bool(live.forecast(subject, relation, top=1))
    except BridgeMemError:
        return False

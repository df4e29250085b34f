"""LiveForecaster: a run's forecasts over its own data and all that an event store has taken in since.

What a run was fitted on is frozen: backbone, transitions and choice know the names of its data and no others. Relations
that came later are forecast by recurrence alone, and their events are no evidence for other relations, until
`bridgemem refresh` fits a run that knows them. Entities that came later are actors like any other, and
candidates after their first event; a training-free backbone scores them as such, a trained one puts them last, and the
residual lifts them by what happened.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from bridgemem.backbones.base import Backbone, score_queries
from bridgemem.backbones.open_vocabulary import Widened, narrow
from bridgemem.errors import BridgeMemError, NotFoundError, RunError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.forecasting.explanations import Explanation
from bridgemem.forecasting.predictor import Candidate, Predictor
from bridgemem.live.eventstore import EventStore, Reading, Receipt, Snapshot, Stored
from bridgemem.live.naming import NewEvent
from bridgemem.memory.disk.mapped import MappedLog
from bridgemem.memory.overlay import GrownLog
from bridgemem.memory.past import Past
from bridgemem.residuals.scoring import Choice
from bridgemem.runs import Run
from bridgemem.storage.tensors import TensorSpec, read_tensors

MERGED = "merged.safetensors"  # in a refreshed run: which stored event each row of its data is


@dataclass(frozen=True)
class View:
    """What was known at one snapshot of the store, ready to be asked; it never changes.

    ids int64 [n]: the number of the stored event that each row is, -1 for those of the run's own data; over a memory on
    disk, of the fresh events alone.
    fitted: for relations that the run was fitted on. later: for all others, or None where there are none.
    """

    events: EventLog
    ids: np.ndarray
    at: Snapshot
    fitted: Predictor
    later: Predictor | None

    def asked(self, relation: str | int) -> Predictor:
        """The forecaster that answers queries about a relation."""
        number = self.events.relations.id(relation)
        return self.fitted if self.later is None or number < self.fitted.events.n_relations else self.later

    @property
    def past(self) -> Past:
        """All that is known, of whatever relation."""
        return (self.fitted if self.later is None else self.later).past

    @property
    def forecaster(self) -> Predictor:
        """One forecaster for queries about any relation."""
        return self.fitted if self.later is None else AnyRelation(self, self.later)


class Partly(Predictor):
    """A forecaster that cannot read every event, and says so where it matters.

    unread: the events of relations that the run was not fitted on.
    """

    unread: EventLog

    def _explained(self, query: Queries, chosen: int) -> Explanation:
        found, new, actor = super()._explained(query, chosen), self.unread.prefix(int(query.step)), int(query.actor)
        if found.base == -math.inf and ((new.subject == chosen) | (new.object == chosen)).any():
            raise NotFoundError(
                f"{found.candidate!r} is no candidate at {found.time} under {found.relation!r}, since the run was not "
                "fitted on the relations of its earlier events; `bridgemem refresh` makes a run that is."
            )
        there = (new.subject == actor) & (new.object == chosen)
        back = (new.subject == chosen) & (new.object == actor)
        return replace(found, unread=int((there | back).sum()))


class AnyRelation(Predictor):
    """Puts each query to the forecaster of a view that can answer it; steps are those of all its events."""

    def __init__(self, view: View, later: Predictor) -> None:
        fitted = view.fitted
        super().__init__(view.events, later.backbone, later.transitions, later.choice, None, fitted.calibration)
        self.learned, self.view, self.later = fitted.learned, view, later

    def knows(self, relation: str | int) -> bool:
        """Whether the run was fitted on a relation."""
        return self.view.asked(relation) is self.view.fitted

    def answers(self, queries: Queries, top: int = 10, horizon: int | None = None) -> list[list[Candidate]]:
        fitted, found = self.view.fitted, dict[int, list[Candidate]]()
        plain, inverse = queries.relation % self.events.n_relations, queries.relation // self.events.n_relations
        known = plain < fitted.events.n_relations
        renumbered = Queries(queries.actor, plain + inverse * fitted.events.n_relations, queries.step)
        for forecaster, asked, wanted in ((fitted, renumbered, known), (self.later, queries, ~known)):
            rows = wanted.nonzero().squeeze(1)
            if len(rows):
                found |= zip(rows.tolist(), forecaster.answers(asked.take(rows), top, horizon), strict=True)
        return [found[row] for row in range(len(queries))]

    def explain(
        self,
        actor: str | int,
        relation: str | int,
        candidate: str | int,
        at: str | int | None = None,
        inverse: bool = False,
    ) -> Explanation:
        return self.view.asked(relation).explain(actor, relation, candidate, at, inverse)


class LiveForecaster:
    """Asks a run by name, takes in events, and takes them back. Safe to be called from several threads.

    A query is answered from the view that was current when it was asked; a new view replaces it only when it is
    whole, and after `add` has returned every query is answered from one that holds the batch.
    """

    def __init__(
        self,
        run: Run,
        store: EventStore,
        selected_by: str = "time",
        residual: str | None = None,
        data_dir: Path | None = None,
        memory_dir: Path | None = None,
    ) -> None:
        self.run, self.store = run, store
        opened = Run(run.folder).predictor(selected_by, data_dir, residual, memory_dir)
        self.base = opened.events
        if isinstance(self.base, MappedLog):
            _check_mapped(run, opened)
        # what a memory on disk holds is not read anew with every event: the store's are read after its names alone
        self._stem = self.base.prefix(0) if isinstance(self.base, MappedLog) else self.base
        self.known = merged_ids(run, self._stem)
        self._opened = opened
        assert isinstance(opened.backbone, Backbone)
        self._backbone: Backbone = opened.backbone
        if not isinstance(self._backbone, Widened):
            self._backbone = Widened(opened.backbone, self.base.n_entities, self.base.n_relations)
        store.follow(self.base, run.origin)
        self._updating, self._asking = threading.Lock(), threading.Lock()
        self._view = self._built(store.read(self._stem, known=self.known))

    @property
    def view(self) -> View:
        """What is known now."""
        return self._view

    @property
    def events(self) -> EventLog:
        """Every event that is known now."""
        return self._view.events

    @property
    def stored(self) -> int:
        """How many events of the store are known now that the run's own data do not hold."""
        return int((~np.isin(self._view.ids, [-1, *self.known])).sum())

    @contextmanager
    def asking(self) -> Iterator[View]:
        """The current view, for one thread at a time: backbones keep what they computed for the last step."""
        with self._asking:
            yield self._view

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt:
        """Write a batch durably, then let forecasts use it."""
        with self._updating:
            receipt = self.store.append(events, source=source, key=key, offset=offset)
            self._update()
        return receipt

    def retract(self, event_ids: str | Sequence[str], reason: str = "") -> list[Stored]:
        """Take events back, all or none: the view is then that of a store that never saw them.

        They are given as they were before: those that have `retracted` were taken back earlier.
        """
        with self._updating:
            before = self.store.retract(event_ids, reason)
            self._update()
        return before

    def forecast(
        self,
        actor: str | int,
        relation: str | int,
        at: str | int | None = None,
        top: int = 10,
        inverse: bool = False,
        horizon: int | None = None,
    ) -> list[Candidate]:
        """The likeliest answers, as Predictor.forecast gives them."""
        with self.asking() as view:
            return view.asked(relation).forecast(actor, relation, at, top, inverse, horizon)

    def explain(
        self,
        actor: str | int,
        relation: str | int,
        candidate: str | int,
        at: str | int | None = None,
        inverse: bool = False,
    ) -> Explanation:
        """Why a candidate has its score, as Predictor.explain gives it."""
        with self.asking() as view:
            return view.asked(relation).explain(actor, relation, candidate, at, inverse)

    def _update(self) -> None:
        view, at = self._view, self.store.snapshot()
        if at == view.at:
            return
        if at.retractions == view.at.retractions:
            known = view.events.fresh if isinstance(view.events, GrownLog) else view.events
            reading = self.store.read(known, at, view.ids, since=view.at.batches)
        else:
            reading = self.store.read(self._stem, at, self.known)
        self._view = self._built(reading, view)

    def _built(self, reading: Reading, before: View | None = None) -> View:
        """A view with all of its indices, so that the first query after the change waits for none of them."""
        opened, relations = self._opened, self.base.n_relations
        reading = self._grown(reading)
        events = reading.events
        parts = (self._backbone, opened.transitions, opened.choice, opened.learned, opened.calibration)
        # without a time, the step after all events is asked for, of whatever relation they are
        if events.n_relations == relations:
            fitted = Predictor(events, *parts, events.end)
        else:
            fitted = partly = Partly(narrow(events, events.n_entities, relations), *parts, events.end)
            partly.unread = _of_later(events, relations)
        self._prepare(fitted, None if before is None else before.fitted)
        later = None
        if events.n_relations > relations:
            later = Predictor(events, self._backbone, None, Choice(lam=0.0))
            self._prepare(later, None if before is None else before.later)
        return View(events, reading.ids, reading.at, fitted, later)

    def _grown(self, reading: Reading) -> Reading:
        """What was read, after the memory on disk where there is one."""
        if not isinstance(self.base, MappedLog):
            return reading
        grown = GrownLog(self.base, reading.events)
        if self.store.duplicates == "drop" and grown.known.any():
            ids = reading.ids[~grown.known]
            return Reading(GrownLog(self.base, grown.without_known()), ids, reading.at)
        return Reading(grown, reading.ids, reading.at)

    def _prepare(self, forecaster: Predictor, before: Predictor | None) -> None:
        """Build what a query needs; the index of the pairs goes on from an earlier one where that is possible."""
        if before is not None and (added := _continuation(before.events, forecaster.events)) is not None:
            vars(forecaster.past)["dyads"] = before.past.dyads.append(added)
        past, query = forecaster.past, Queries(*(torch.tensor([value]) for value in (0, 0, forecaster.end)))
        past.seen(query.actor, query.step)
        past.occurrences(query.actor, query.relation, query.step)
        if forecaster.transitions is not None:
            forecaster.transitions.evidence(query, past)
        # a backbone that cannot answer says so to the caller; taking in events goes on
        with suppress(BridgeMemError):
            # queries wait for the backbone alone, and for none of the indices
            with self._asking:
                scores = score_queries(forecaster.backbone, query, past)
            if forecaster.learned is not None:
                forecaster.scoring.reader.read(query, scores)


def _of_later(events: EventLog, n_relations: int) -> EventLog:
    """The events of the relations after the first ones; those first are all that a memory on disk knows."""
    log = events.fresh if isinstance(events, GrownLog) else events
    rows = np.flatnonzero(log.relation >= n_relations)
    columns = log.subject[rows], log.relation[rows], log.object[rows], log.step[rows]
    return EventLog(*columns, events.entities, events.relations, events.clock)


def _continuation(before: EventLog, now: EventLog) -> EventLog | None:
    """The events by which a log is longer than an earlier one, or None where it does not begin with that one."""
    if isinstance(now, GrownLog):
        return None
    n = len(before)
    for name in ("subject", "relation", "object", "step"):
        if not np.array_equal(getattr(before, name), getattr(now, name)[:n]):
            return None
    return now.rows(n, len(now))


def _check_mapped(run: Run, opened: Predictor) -> None:
    """Refuse what reads or changes all events at once, over a memory that may be larger than what is allowed."""
    if opened.learned is not None:
        raise SettingsError(
            "the learned residual holds all events in memory; say --residual bridgemem, or leave --memory-dir out."
        )
    if (run.folder / MERGED).is_file():
        raise RunError(
            f"{run.folder} was refreshed with events that may yet be taken back, which a memory on disk cannot do; "
            "leave --memory-dir out."
        )


def merged_ids(run: Run, events: EventLog) -> np.ndarray:
    """Which stored event each row of a run's data is, int64 [n]; -1 for those that came from no store."""
    path = run.folder / MERGED
    if not path.is_file():
        return np.full(len(events), -1, np.int64)
    specs = {"ids": TensorSpec((len(events),), torch.int64)}
    return read_tensors(path, specs, "refresh the run again")["ids"].numpy()

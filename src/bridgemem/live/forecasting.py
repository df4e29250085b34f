"""LiveForecaster: a run's forecasts over its own data and all that an event store has taken in since.

What a run was fitted on is frozen: backbone, transitions and choice know the names of its data and no others. Relations
that came later are forecast by recurrence alone, and their events are no evidence for other relations, until
`bridgemem refresh` fits a run that knows them. Entities that came later are actors like any other, and
candidates after their first event; a training-free backbone scores them as such, a trained one puts them last, and the
residual lifts them by what happened.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from bridgemem.errors import BridgeMemError, DataError, RunError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.mapped import MappedLog
from bridgemem.events.naming import NewEvent
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.explanations import Explanation
from bridgemem.forecasting.predictor import Answers, Predictor
from bridgemem.live.eventstore import Batch, EventStore, Reading, Receipt, Snapshot, Stored
from bridgemem.live.ledger import Ledger
from bridgemem.live.retention import Removal, Remove
from bridgemem.live.storefile import StoreError
from bridgemem.live.together import Together
from bridgemem.memory.overlay import Overlay
from bridgemem.memory.past import Past
from bridgemem.runs import Run
from bridgemem.storage.allocator import return_freed
from bridgemem.storage.tensors import read_tensors

LOG = logging.getLogger(__name__)
MERGED = "merged.safetensors"  # in a refreshed run: which stored event each row of its data is
UPDATED = -2  # in place of such an event, for one that the run was updated with before
# events of a delta from which on it is made part of its base, and the share of the base that it then is at least: each
# batch indexes its delta anew, and each merge everything
LARGE, SHARE = 1 << 13, 1 / 256
FREED_EACH = 2.0  # seconds after which memory that was freed meanwhile goes back to the system
TRIES = 10  # of a merge that retractions get in the way of
COLUMNS = ("subject", "relation", "object", "step")


@dataclass(frozen=True)
class Base:
    """What the stored events of later batches are put on, indexed once.

    past: the run's own, with what it was updated with as its delta, or one log of everything that was known once.
    ids int64 [n]: which stored event each row of its base is, below 0 for those of no store; of_delta int64 [m]: of its
    delta. batches: those up to this one are in it. again_from: stored events from this step on are not, of any batch.
    """

    past: Past
    ids: np.ndarray
    of_delta: np.ndarray
    batches: int = 0
    again_from: int | None = None


@dataclass(frozen=True)
class View:
    """What was known at one snapshot of the store, ready to be asked; it never changes.

    ids int64 [n]: the number of the stored event that each row of the past's delta is, below 0 for those of no store.
    """

    predictor: Predictor
    ids: np.ndarray
    at: Snapshot
    version: str  # of the model

    @property
    def events(self) -> EventLog:
        return self.predictor.events


class LiveForecaster:
    """Asks a run by name, takes in events, and takes them back. Safe to be called from several threads.

    A query is answered from the view that was current when it was asked; a new view replaces it only when it is
    whole, and after `add` has returned every query is answered from one that holds the batch.
    """

    def __init__(
        self,
        model: Forecaster,
        store: EventStore,
        *,
        asking: threading.Lock | None = None,
    ) -> None:
        """model: one that is saved; its forecasts go on from its own predictor, and it stays as it is.

        asking: the lock of another one, where both may be asked for a moment.
        """
        self.run, self.store = (run := model.run), store
        self._opened = opened = model.predictor
        self.base = opened.past.base
        if isinstance(self.base, MappedLog):
            _check_mapped(run, opened)
        # what the run's own data hold of the store; a memory on disk, which is never merged, none
        mapped = isinstance(self.base, MappedLog)
        self.merged = np.empty(0, np.int64) if mapped else merged_ids(run, self.base)
        self._follow(opened.events)
        self._updating, self._asking = threading.Lock(), asking or threading.Lock()
        self._freed = time.monotonic()
        self._adding: Together[Batch, Receipt] = Together(self._add, "adding")
        self._tidying: Together[None, None] = Together(self._tidy, "tidying")
        self._base = Base(opened.past, self.merged, np.full(len(opened.past.delta), -1, np.int64))
        self._view = self._read(store.snapshot())

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
        ids = np.concatenate([self._base.ids, self._view.ids])
        return int((ids >= 0).sum()) - int(np.isin(self.merged[self.merged >= 0], ids).sum())

    @property
    def lock(self) -> threading.Lock:
        """Held while the backbone is asked."""
        return self._asking

    @contextmanager
    def asking(self) -> Iterator[View]:
        """The current view, for one thread at a time: backbones keep what they computed for the last step."""
        with self._asking:
            yield self._view

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt:
        """Write a batch durably, then let forecasts use it.

        Batches that come while another is written are committed together, and read as one.
        """
        return self._adding(Batch(events, source, key, offset))

    def _add(self, batches: Sequence[Batch]) -> list[Receipt | DataError]:
        with self._updating:
            found = self.store.append_all(batches, checkpoint=False)
            self._update()
        return found

    def retract(self, event_ids: str | Sequence[str], reason: str = "") -> list[Stored]:
        """Take events back, all or none: the view is then that of a store that never saw them.

        They are given as they were before: those that have `retracted` were taken back earlier.
        """
        with self._updating:
            before = self.store.retract(event_ids, reason)
            self._update()
        return before

    def remove(self, remove: Remove) -> Removal:
        """Remove events from the store for good; the view is then that of a store that never saw them."""
        with self._updating:
            made = remove(self.store)
            self._update()
        return made

    def forecast(
        self,
        subject: str | int | None = None,
        relation: str | int | None = None,
        *,
        object: str | int | None = None,
        at: str | int | None = None,
        horizon: int | None = None,
        top: int = 10,
    ) -> Answers:
        """The likeliest answers, as Predictor.forecast gives them."""
        with self.asking() as view:
            return view.predictor.forecast(subject, relation, object=object, at=at, horizon=horizon, top=top)

    def explain(
        self,
        subject: str | int,
        relation: str | int,
        object: str | int,
        *,
        at: str | int | None = None,
        candidate: str = "object",
    ) -> Explanation:
        """Why a candidate has its score, as Predictor.explain gives it."""
        with self.asking() as view:
            return view.predictor.explain(subject, relation, object, at=at, candidate=candidate)

    def follow_again(self) -> None:
        """Let the store continue this run's log, after another run was tried on it."""
        self._follow(self._followed)

    def _follow(self, events: EventLog) -> None:
        self._followed = events
        self.store.follow(events, self.run.origin)

    def _update(self) -> None:
        view, at = self._view, self.store.snapshot()
        if at == view.at:
            return
        if at.retractions == view.at.retractions:
            past = view.predictor.past
            self._view = self._built(past, self.store.read(past.delta, at, view.ids, since=view.at.batches))
        else:
            self._view = self._read(at)
        self._tidying.submit(None)

    def _read(self, at: Snapshot) -> View:
        """The view of a snapshot, read from the store since the base."""
        taken = self.store.gone(self._base.ids, at)
        if taken.any():
            self._base = self._without(taken)
            own = in_force(self.base, self.merged, self.store, at)
            if own is not self.base:
                # what was taken back makes no later event late, nor a duplicate
                self._follow(Past(own).with_delta(self._opened.past.delta).events)
        base = self._base
        reading = self.store.read(
            base.past.delta, at, base.of_delta, since=base.batches, held=base.ids, again_from=base.again_from
        )
        return self._built(base.past, reading)

    def _without(self, taken: np.ndarray) -> Base:
        """The base without rows that were taken back, bool [n]: cut off before them, and nothing of it indexed anew.

        What came from there on is part of the delta. So is all that has a name which a memory that never saw the events
        would not know, or number otherwise; those are read from the store again, in their order.
        """
        base, own = self._base, self._opened.events
        events = base.past.base
        step, names, links = _cut(events, base.ids, taken, (own.n_entities, own.n_relations))
        size = int(np.searchsorted(events.step, step))
        index = base.past.indices[0].before(step, names, links)
        # the run's own events stay as they are, those of the store are read again
        rows = np.arange(size, len(events))
        rows = rows[~taken[rows] & ((base.ids[rows] < 0) | np.isin(base.ids[rows], self.merged))]
        before = base.past.delta
        columns = [np.concatenate([getattr(log, name) for log in (events.take(rows), before)]) for name in COLUMNS]
        order = np.argsort(columns[3], kind="stable")
        subject, relation, object_, when = (column[order] for column in columns)
        vocabularies = (
            before.entities.first(max(names, own.n_entities)),
            before.relations.first(max(links, own.n_relations)),
        )
        moved = EventLog(subject, relation, object_, when, *vocabularies, events.clock)
        of_delta = np.concatenate([base.ids[rows], base.of_delta])[order]
        past = Past(Overlay(index.events, moved), device=base.past.device, base=index)
        return Base(past, base.ids[:size], of_delta, base.batches, step)

    # ---- what is done in the background --------------------------------------------------------------------------

    def tidy(self, wait: bool = False) -> None:
        """Have a delta that has grown made part of its base, and the next step made ready, on another thread.

        wait: until it is done. After every batch this is done anyway.
        """
        done = self._tidying.submit(None)
        if wait:
            done.result()

    def _tidy(self, asked: Sequence[None]) -> Sequence[None]:
        view = self._view
        try:
            large = max(LARGE, SHARE * len(self._base.past.base))
            if len(view.predictor.past.delta) > large and not isinstance(self.base, MappedLog):
                self.merge()
            # events of the first unknown step are as a rule the next to come, and move it by one
            view.predictor.prepare(view.events.end + 1)
            if not self.store.read_only:
                Ledger(self.store).resolve()
            self._return_freed()
        except BridgeMemError as problem:
            # such as a store that was closed meanwhile; forecasts go on from base and delta as they are
            LOG.warning("could not merge new events or resolve forecasts: %s", problem)
        return [None] * len(asked)

    def _return_freed(self) -> None:
        """Every batch and view frees much that the allocator would keep, in pieces that the next ones do not fit."""
        if (now := time.monotonic()) - self._freed >= FREED_EACH:
            self._freed = now
            return_freed()

    def merge(self) -> bool:
        """Make the delta part of the base, which is indexed anew while forecasts and batches go on.

        Nothing that is forecast changes, and nothing is written: the store stays as it is. False: an event was taken
        back meanwhile, and all is as before.
        """
        with self._updating:
            view, before = self._view, self._base
        events = view.events
        ids = np.concatenate([before.ids, view.ids])
        ids = ids[events.order] if isinstance(events, Overlay) else ids
        merged = Past(events.take(slice(None)), device=before.past.device)
        self._opened.with_past(merged).warm(lambda: self._asking)
        with self._updating:
            now = self._view.at
            if self._base is not before or now.retractions != view.at.retractions:
                return False
            if self._opened.past is before.past:
                # the run's own index is not needed again, unless an event is taken back
                self._opened = self._opened.with_past(Past(self.base).with_delta(before.past.delta))
            self._base = base = Base(merged, ids, np.zeros(0, np.int64), view.at.batches)
            self._view = self._built(merged, self.store.read(merged.delta, now, since=base.batches))
        return True

    def compact(self) -> int:
        """Merge now, however small the delta is; returns how many events became part of the base."""
        if isinstance(self.base, MappedLog):
            raise SettingsError(
                "the base of this run is a memory on disk, which is not written here; `bridgemem refresh` makes a run "
                "that holds the new events."
            )
        for _ in range(TRIES):
            size = len(self._view.predictor.past.delta)
            if self.merge():
                return size
        raise StoreError("events are being taken back all the time; compact again when that is over.")

    def _built(self, past: Past, reading: Reading) -> View:
        """A view with all of its indices, so that the first query after the change waits for none of them."""
        now, ids = past.with_delta(reading.events), reading.ids
        if self.store.duplicates == "drop" and now.repeated.any():
            new = ~now.repeated
            now, ids = past.with_delta(reading.events.take(new)), ids[new]
        predictor = self._opened.with_past(now)
        # queries wait for the backbone alone, and for none of the indices
        predictor.warm(lambda: self._asking)
        return View(predictor, ids, reading.at, self.run.version)


def _cut(events: EventLog, ids: np.ndarray, taken: np.ndarray, own: tuple[int, int]) -> tuple[int, int, int]:
    """The step before which no row is one of those taken, and how many entities and relations keep their ids there.

    ids int64 [n], taken bool [n]: the stored event that each row is, and whether it goes. own: names of the run itself.
    Others are numbered in the order of the stored events that they came with. One whose first event goes, or lies after
    the step, is numbered anew, and so are all names after it: none of them may have a row before the step.
    """
    step, sizes = int(events.step[taken].min()), [events.n_entities, events.n_relations]
    kinds: list[tuple[np.ndarray, ...]] = [(events.subject, events.object), (events.relation,)]
    firsts = [_first_rows(columns, ids, of, size) for columns, of, size in zip(kinds, own, sizes, strict=True)]
    while True:
        before = step
        for place, (columns, rows) in enumerate(zip(kinds, firsts, strict=True)):
            lost = np.flatnonzero(taken[rows] | (events.step[rows] >= step))
            if len(lost):
                sizes[place] = own[place] + int(lost[0])
                later = np.logical_or.reduce([column >= sizes[place] for column in columns])
                step = min(step, int(events.step[later].min()))
        if step == before:
            return step, sizes[0], sizes[1]


def _first_rows(columns: Sequence[np.ndarray], ids: np.ndarray, own: int, size: int) -> np.ndarray:
    """The row of the first stored event of each name that is none of the run's own; int64 [size - own]."""
    rows = np.concatenate([np.flatnonzero(column >= own) for column in columns])
    names = np.concatenate([column[column >= own] for column in columns])
    last_first = np.argsort(-ids[rows], kind="stable")
    found = np.zeros(max(size - own, 0), np.int64)
    found[names[last_first] - own] = rows[last_first]  # of equal places the last one stays
    return found


def _check_mapped(run: Run, opened: Predictor) -> None:
    """Refuse what reads or changes all events at once, over a memory that may be larger than what is allowed."""
    if (run.folder / MERGED).is_file():
        raise RunError(
            f"{run.folder} was refreshed with events that may yet be taken back, which a memory on disk cannot do; "
            "leave --memory-dir out."
        )


def in_force(events: EventLog, merged: np.ndarray, store: EventStore, at: Snapshot) -> EventLog:
    """The data of a run without the stored events that were taken back since; merged int64 [n], as `merged_ids`."""
    stays = ~store.gone(merged, at)
    return events if stays.all() else events.take(stays)


def merged_ids(run: Run, events: EventLog) -> np.ndarray:
    """Which stored event each row of a run's data is, int64 [n]; -1 for those that came from no store."""
    path = run.folder / MERGED
    if not path.is_file():
        return np.full(len(events), -1, np.int64)
    ids = read_tensors(path).get("ids")
    if ids is None or ids.dtype != torch.int64 or ids.shape != (len(events),):
        raise RunError(f"{path} does not belong to the data of this run; refresh the run again.")
    return ids.numpy()

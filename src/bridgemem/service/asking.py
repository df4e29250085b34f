"""The service's queries put to a live forecaster, by name, and its answers in the shapes that go out."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from pydantic import TypeAdapter

from bridgemem import __version__
from bridgemem.errors import BridgeMemError, DataError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.names import Names
from bridgemem.events.naming import faults
from bridgemem.events.queries import Queries
from bridgemem.events.readers.options import ROLES
from bridgemem.events.readers.text import Reject
from bridgemem.forecasting.asked import Found, suppose
from bridgemem.forecasting.batch_queries import Query, answer
from bridgemem.forecasting.predictor import Answers, Predictor
from bridgemem.live.eventstore import EventStore, NewEvent, Receipt, Stored
from bridgemem.live.quarantine import Quarantine
from bridgemem.live.retention import Removal, Remove
from bridgemem.live.storefile import StoreError
from bridgemem.live.together import Together
from bridgemem.ranking.ranks import batch_size
from bridgemem.runs import Run
from bridgemem.service.ahead_models import (
    ExpectedEventTold,
    OutlookQuery,
    ServedOutlook,
)
from bridgemem.service.ledger import ASSUMED, Issuer
from bridgemem.service.limits import Limits
from bridgemem.service.logs import note, note_names
from bridgemem.service.models import (
    LONGEST_HORIZON,
    MOST_ANSWERS,
    MOST_ASSUMED,
    MOST_CANDIDATES,
    MOST_EVENTS,
    MOST_ISSUED,
    MOST_NAMES,
    MOST_QUERIES,
    MOST_RETRACTED,
    MOST_STORED,
    BatchForecast,
    ExplainQuery,
    ForecastQueries,
    ForecastQuery,
    Forecasts,
    KnownLimits,
    KnownSource,
    KnownSources,
    Model,
    NameFound,
    NamesFound,
    NewEvents,
    Received,
    Retracted,
    Retraction,
    ServedBridgeMem,
    ServedExplanation,
    ServedForecast,
    ServedLearned,
    StoredEvent,
    StoredEvents,
)
from bridgemem.service.requests import (
    AnyAnswer,
    AnyQuery,
    MisspeltError,
    asked_of,
    forecast_values,
    key_of,
    note_sides,
    served,
    unknown_name,
    with_remark,
)
from bridgemem.service.scores import ScoreCache, Used

LOG = logging.getLogger(__name__)
OF_A_REFUSED_BATCH = "nothing is wrong with it, but its batch was refused"
NO_HEADS = "the run that is served cannot tell what or whether: it was fitted without; serve one that was fitted again."
NAMED = 20  # events of a batch that are named one by one
PATIENCE = 0.015  # seconds in which one of many clients is heard again
_EXPLANATION: TypeAdapter[ServedBridgeMem | ServedLearned] = TypeAdapter(ServedExplanation)


class View(Protocol):
    """What was known at one moment; it never changes."""

    @property
    def events(self) -> EventLog: ...
    @property
    def predictor(self) -> Predictor: ...
    @property
    def version(self) -> str: ...


class Live(Protocol):
    """What the service needs of a live forecaster; `bridgemem.live.forecasting.LiveForecaster` is one."""

    @property
    def run(self) -> Run: ...
    @property
    def view(self) -> View: ...
    @property
    def store(self) -> EventStore: ...

    def asking(self) -> AbstractContextManager[object]: ...

    def add(self, events: Sequence[NewEvent], source: str, key: str, offset: str | int | None = None) -> Receipt: ...

    def retract(self, event_ids: Sequence[str], reason: str = "") -> list[Stored]: ...

    def remove(self, remove: Remove) -> Removal: ...

    def tidy(self) -> None: ...


class Kept:
    """Forecasters that ask a backbone only once for the same query, as long as their view lasts.

    alone: entered while the backbone is asked, which one thread does at a time; the rest of a forecast is done by many.
    """

    def __init__(self, alone: Callable[[], AbstractContextManager[object]]) -> None:
        self.used, self.alone = Used(), alone
        self._made: WeakKeyDictionary[Predictor, Predictor] = WeakKeyDictionary()

    def of(self, forecaster: Predictor) -> Predictor:
        """The same forecaster, on the same memory, with its backbone's scores kept."""
        made = self._made.get(forecaster)
        if made is None:
            made = forecaster.with_scorer(ScoreCache(forecaster.scorer, self.used, alone=self.alone))
            # two threads may both come here; they then agree on one
            made = self._made.setdefault(forecaster, made)
        return made


class Service:
    """Everything the routes do, without anything of HTTP. issue: whether answers are issued into the store's ledger."""

    def __init__(self, live: Live, *, issue: bool = False) -> None:
        self.live, self.quarantine = live, Quarantine(live.store)
        self.issuer = Issuer(live.store) if issue else None
        self.kept = Kept(live.asking)
        self._looking = threading.Lock()
        self._forecasting: Together[AnyQuery, AnyAnswer] = Together(self._together, "forecasting", patience=PATIENCE)

    def warm(self) -> None:
        """One forecast, so that the memory's indices are built before anyone waits for them."""
        view = self.live.view
        view.events.entity_names.search("a", 1)
        if view.events.n_entities and view.events.n_relations:
            # a backbone that cannot answer, such as stored scores that end before, says so to the caller
            with suppress(BridgeMemError):
                self.kept.of(view.predictor).forecast(0, 0, top=1)
            # likewise a run without what and whether
            with suppress(BridgeMemError):
                view.predictor.whether(0, 0, object=0)
        self.live.tidy()

    def add(self, batch: NewEvents) -> Received:
        # a number is a time like any other here; to the store a bare number would be a step
        rows: list[NewEvent] = [(e.subject, e.relation, e.object, str(e.time)) for e in batch.events]
        try:
            receipt = self.live.add(rows, batch.source, batch.key, batch.offset)
        except DataError as problem:
            wrong = faults(rows, self.live.view.events.clock)
            self._keep(batch.source, batch.key, rows, dict(wrong), str(problem).rstrip("."))
            if wrong:
                raise DataError(_all_faults(wrong, len(rows))) from None
            raise
        self._forget(batch.source, batch.key)
        return Received.model_validate(receipt, from_attributes=True)

    def new_names(self, batch: NewEvents) -> tuple[int, int]:
        """How many entities and relations of a batch are not known yet."""
        events = self.live.view.events
        entities = {name for e in batch.events for name in (e.subject, e.object) if name not in events.entities}
        return len(entities), len({e.relation for e in batch.events if e.relation not in events.relations})

    def keep_invalid(self, body: Any, wrong: dict[int, str]) -> dict[int, str]:
        """Keep the rows of a body that has not the shape of a batch, if it tells whose they are.

        wrong: what is wrong with the shape of some rows; the others are checked too, and what is wrong with them given.
        """
        if not isinstance(body, dict) or not wrong:
            return {}
        source, key, events = (body.get(name) for name in ("source", "key", "events"))
        if not (isinstance(source, str) and isinstance(key, str) and isinstance(events, list)):
            return {}
        note(source=source, key=key, rejected=len(events))
        if len(events) > MOST_EVENTS:
            return {}
        found, clock = dict[int, str](), self.live.view.events.clock
        for place, row in enumerate(events, 1):
            if place not in wrong and (one := faults([_cells(row)], clock)):
                found[place] = one[0][1].removeprefix("event 1: ")
        self._keep(source, key, events, wrong | found, OF_A_REFUSED_BATCH)
        return found

    def _keep(self, source: str, key: str, rows: Sequence[Any], wrong: dict[int, str], why: str) -> None:
        """Put the rows of a refused batch in quarantine; wrong: what is with some of them; why: with the batch."""
        others = OF_A_REFUSED_BATCH if wrong else why
        rejects = [
            Reject(f"{source}/{key}", place, wrong.get(place, others), "", _cells(row))
            for place, row in enumerate(rows, 1)
        ]
        with _unharmed():
            self.quarantine.keep(source, key, rejects)

    def _forget(self, source: str, key: str) -> None:
        with _unharmed():
            self.quarantine.taken(source, key)

    def of_store(self, count: Callable[[EventStore], int]) -> float:
        """A number of the store for the metrics, which are told also where the store cannot be read."""
        try:
            return count(self.live.store)
        except StoreError:
            return math.nan

    def retract(self, asked: Retraction) -> Retracted:
        before = self.live.retract(asked.ids, asked.reason)
        return Retracted(
            retracted=[event.id for event in before if event.retracted is None],
            already=[event.id for event in before if event.retracted is not None],
        )

    def stored(self, source: str | None, last: int) -> StoredEvents:
        return StoredEvents(events=[StoredEvent.model_validate(e) for e in self.live.store.stored(source, last)])

    def stored_event(self, event_id: str) -> StoredEvent:
        return StoredEvent.model_validate(self.live.store.stored_event(event_id))

    def sources(self) -> KnownSources:
        return KnownSources(sources=[KnownSource.model_validate(one) for one in self.live.store.sources()])

    def answer(self, request: AnyQuery) -> AnyAnswer:
        """The answer to one query of any kind; queries that come at the same time are answered together."""
        note_sides(request)
        try:
            return self._forecasting(request)
        except MisspeltError as problem:
            raise problem.told() from None

    def forecast(self, request: ForecastQuery) -> ServedForecast:
        """The answers to who."""
        found = self.answer(request)
        assert isinstance(found, ServedForecast)
        return found

    async def answer_soon(self, request: AnyQuery) -> AnyAnswer:
        """The same for a caller that has other things to do meanwhile."""
        note_sides(request)
        try:
            found = await asyncio.wrap_future(self._forecasting.submit(request))
        except MisspeltError as problem:
            raise await asyncio.to_thread(problem.told) from None
        note(model_version=found.model_version)
        return found

    def _together(self, requests: Sequence[AnyQuery]) -> list[AnyAnswer | Exception]:
        """The answers to each query, from what is known now, or why it has none."""
        view, found = self.live.view, dict[int, AnyAnswer | Exception]()
        # by top and horizon: actor, relation and step by their places
        alike: dict[tuple[int, int | None], dict[int, tuple[int, int, int]]] = {}
        for place, request in enumerate(requests):
            try:
                if (unknown := unknown_name(view.events, request)) is not None:
                    raise unknown
                if not isinstance(request, ForecastQuery) or request.assume is not None:
                    found[place] = self._alone(view, request)
                    continue
                ids = view.predictor.query_ids(request.subject, request.relation, request.object, request.at)
                alike.setdefault((request.top, request.horizon), {})[place] = ids
            except (BridgeMemError, MisspeltError) as problem:
                found[place] = problem
        for wanted, queries in alike.items():
            for place, made in _answers(self.kept.of(view.predictor), queries, *wanted).items():
                request = requests[place]
                found[place] = made if isinstance(made, Exception) else self._served(view, request, made)
        return [found[place] for place in range(len(requests))]

    def _served(self, view: View, request: AnyQuery, found: Answers) -> AnyAnswer | Exception:
        """The answers to who in the shape that goes out."""
        try:
            told = served(found, view.predictor, asked_of(request), view.version)
            return self._issued(view, request, found, told)
        except BridgeMemError as problem:
            return problem

    def _alone(self, view: View, request: AnyQuery) -> AnyAnswer:
        """A query that is not scored together with others: no who, or one with assumed events."""
        predictor, asked = view.predictor, asked_of(request)
        if predictor.heads is None and not isinstance(request, ForecastQuery):
            raise SettingsError(NO_HEADS)
        if request.assume is None:
            made = asked.of(predictor)
            return self._issued(view, request, made, served(made, predictor, asked, view.version))
        rows = [(e.subject, e.relation, e.object, str(e.time)) for e in request.assume]
        if wrong := faults(rows, view.events.clock):
            raise DataError(_all_faults(wrong, len(rows), "assume"))
        predictor, asked, found, assumed = suppose(predictor, asked, rows, self.live.store.max_ahead or 0)
        told = served(found, predictor, asked, view.version, assumed)
        return told if self.issuer is None else with_remark(told, ASSUMED)

    def _issued(self, view: View, request: AnyQuery, found: Found, told: AnyAnswer) -> AnyAnswer:
        """The answer with its number in the ledger, or with the reason why it has none."""
        if self.issuer is None:
            return told
        number, why = self.issuer.issue(key_of(request), found, view.predictor, view.version)
        return with_remark(told.model_copy(update={"issued": number}), why)

    def forecasts(self, request: ForecastQueries) -> Forecasts:
        """Many queries at once; every one that cannot be asked is named."""
        size = len(request.queries)
        if size * request.top > MOST_ANSWERS:
            raise SettingsError(
                f"{size:,} queries for {request.top:,} candidates each are more than {MOST_ANSWERS:,} in all; ask for "
                "fewer at once."
            )
        view, asked = self.live.view, list[Query]()
        for q in request.queries:
            unknown = unknown_name(view.events, q)
            problem = "" if unknown is None else str(unknown.told()).rstrip(".")
            asked.append(Query(q.subject, q.relation, q.object, q.at, problem=problem))
        found = answer(self.kept.of(view.predictor), asked, request.top, request.horizon, "the request")
        note(model_version=view.version)
        told = [BatchForecast.model_construct(**forecast_values(each)) for each in found.candidates]
        if self.issuer is not None:
            # the same query alone is the same forecast
            whole = [ForecastQuery(**q.model_dump(), top=request.top, horizon=request.horizon) for q in request.queries]
            made = dict(zip(map(key_of, whole), found.candidates, strict=True))
            issued = self.issuer.issue_all(made, view.predictor, view.version)
            for one, (number, why) in zip(told, (issued[key_of(q)] for q in whole), strict=True):
                one.issued, one.remark = number, why
        return Forecasts(forecasts=told, model_version=view.version)

    def explain(self, request: ExplainQuery) -> ServedBridgeMem | ServedLearned:
        view = self.live.view
        forecaster = self._asked(view, request)
        sides = (request.subject, request.relation, request.object)
        found = forecaster.explain(*sides, at=request.at, candidate=request.candidate)
        return _EXPLANATION.validate_python({**found.as_dict(), "model_version": view.version})

    def outlook(self, request: OutlookQuery) -> ServedOutlook:
        """The events of the coming steps; one at a time, next to the queue of forecasts, since it reads all events."""
        view = self.live.view
        note(model_version=view.version)
        if view.predictor.heads is None:
            raise SettingsError(NO_HEADS)
        watch = None if request.watch is None else [tuple(w) if isinstance(w, list) else w for w in request.watch]
        with self._looking:
            found = view.predictor.outlook(
                horizon=request.horizon, top=request.top, surprising=request.surprising, watch=watch, at=request.at
            )
        rows = [ExpectedEventTold.model_construct(**vars(one)) for one in found]
        query = {**vars(found.query), "watch": list(found.query.watch), "remark": found.query.remark or None}
        told = ServedOutlook.model_construct(**query, candidates=rows, model_version=view.version)
        if self.issuer is not None and rows:
            told.issued, why = self.issuer.issue(key_of(request), found, view.predictor, view.version)
            told.remark = " ".join(filter(None, (told.remark, why))) or None
        return told

    def model(self) -> Model:
        view, config = self.live.view, self.live.run.config
        events = view.events
        return Model(
            model_version=view.version,
            version=__version__,
            dataset=config.dataset,
            fingerprint=config.fingerprint,
            backbone=config.backbone,
            residual="bridgemem" if view.predictor.learned is None else "learned",
            history=config.history,
            events=len(events),
            entities=events.n_entities,
            relations=events.n_relations,
            first_time=events.clock.label(events.start),
            last_time=_label(events, events.end - 1) if len(events) else None,
            next_time=_label(events, events.end),
        )

    def limits(self, limits: Limits) -> KnownLimits:
        new = self.live.store.new_names
        return KnownLimits(
            body_bytes=limits.body,
            concurrent=limits.concurrent,
            timeout_seconds=limits.timeout,
            connections=limits.connections,
            connections_per_client=limits.per_client,
            events=MOST_EVENTS,
            queries=MOST_QUERIES,
            candidates=MOST_CANDIDATES,
            answers=MOST_ANSWERS,
            horizon=LONGEST_HORIZON,
            retracted=MOST_RETRACTED,
            stored=MOST_STORED,
            issued=MOST_ISSUED,
            names=MOST_NAMES,
            assumed=MOST_ASSUMED,
            new_relations=new.relations,
            new_entities=new.entities,
            new_entities_per_batch=new.batch,
            new_entities_per_day=new.day,
            max_ahead=self.live.store.max_ahead,
        )

    def entities(self, text: str, most: int) -> NamesFound:
        return self._found(self.live.view.events.entity_names, text, most)

    def relations(self, text: str, most: int) -> NamesFound:
        return self._found(self.live.view.events.relation_names, text, most)

    @staticmethod
    def _found(names: Names, text: str, most: int) -> NamesFound:
        found = [NameFound.model_validate(each) for each in names.search(text, most)]
        return NamesFound(names=found, known=len(names))

    def _asked(self, view: View, request: ForecastQuery | ExplainQuery) -> Predictor:
        """Who answers; names that do not occur are refused with suggestions."""
        note(model_version=view.version)
        note_names(subject=request.subject, relation=request.relation, object=request.object)
        if (unknown := unknown_name(view.events, request)) is not None:
            raise unknown.told()
        return self.kept.of(view.predictor)


@contextmanager
def _unharmed() -> Iterator[None]:
    """What is answered does not depend on whether the quarantine can be written."""
    try:
        yield
    except StoreError as problem:
        LOG.warning("could not write rejected rows to the quarantine: %s", problem)


def _cells(row: Any) -> tuple[str, ...]:
    """The four values of an event as text, empty where one is missing; a row that is none, as JSON."""
    if isinstance(row, dict) and set(row) <= set(ROLES):
        return tuple("" if (value := row.get(role)) is None else str(value) for role in ROLES)
    if isinstance(row, tuple) and len(row) == len(ROLES):
        return tuple(map(str, row))
    return (json.dumps(row, default=str),)


def _answers(
    predictor: Predictor, queries: dict[int, tuple[int, int, int]], top: int, horizon: int | None
) -> dict[int, Answers | Exception]:
    """The answers to queries by their places; one that cannot be answered refuses no other."""
    found: dict[int, Answers | Exception] = {}
    places, size = list(queries), batch_size(predictor.events.n_entities, predictor.past.device)
    for start in range(0, len(places), size):
        some = places[start : start + size]
        try:
            asked = torch.tensor([queries[place] for place in some])
            answers = predictor.answers(Queries(*asked.T.contiguous()), top, horizon)
            found |= zip(some, answers, strict=True)
        except BridgeMemError as problem:
            if len(some) == 1:
                found[some[0]] = problem
            else:
                for place in some:
                    found |= _answers(predictor, {place: queries[place]}, top, horizon)
    return found


def _all_faults(wrong: list[tuple[int, str]], size: int, where: str = "") -> str:
    """One sentence that names every event that cannot be used, up to a limit."""
    if size == 1:
        return f"{where and f'{where}: '}{wrong[0][1]}."
    told = "; ".join(reason for _, reason in wrong[:NAMED])
    more = f"; and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
    return f"{len(wrong):,} of {size:,} events cannot be used, and nothing was stored: {told}{more}."


def _label(events: EventLog, step: int) -> str | None:
    """The time of a step, or None where the calendar ends before it."""
    return events.clock.label(step) if events.clock.holds(step) else None

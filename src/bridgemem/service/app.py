"""The application: routes, their documents, and how every error becomes one shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from bridgemem import __version__
from bridgemem.errors import BridgeMemError, DataError, NotFoundError, SettingsError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.feeding import Feeding
from bridgemem.live.quarantine import in_quarantine
from bridgemem.live.storefile import StoreError, system_reason
from bridgemem.live.switching import RefusedRunError
from bridgemem.service.admin import ADMIN, Admin, Reloading, admin_router
from bridgemem.service.ahead_models import (
    OutlookQuery,
    PartnersQuery,
    ServedOutlook,
    ServedPartners,
    ServedWhat,
    ServedWhether,
    WhatQuery,
    WhetherQuery,
)
from bridgemem.service.asking import Live, Service
from bridgemem.service.docs_page import PATHS as DOCS
from bridgemem.service.docs_page import docs_router
from bridgemem.service.drift import Drift, DriftSettings
from bridgemem.service.keeping import keeping_router
from bridgemem.service.ledger import ledger_router
from bridgemem.service.limits import Guard, Limits, Tokens, refusal, retry_later
from bridgemem.service.logs import note
from bridgemem.service.metrics import METHODS, Measured, Metrics, Scope
from bridgemem.service.models import (
    MOST_NAMES,
    MOST_STORED,
    ExplainQuery,
    ForecastQueries,
    ForecastQuery,
    Forecasts,
    KnownLimits,
    KnownSources,
    Model,
    NamesFound,
    NewEvents,
    Received,
    Refusal,
    Retracted,
    Retraction,
    ServedBridgeMem,
    ServedExplanation,
    ServedForecast,
    ServedLearned,
    State,
    StoredEvent,
    StoredEvents,
)
from bridgemem.service.quick import Quick
from bridgemem.service.requests import AnyQuery
from bridgemem.service.wording import in_words, place_of, said_of

LOG = logging.getLogger(__name__)
Wanted = Annotated[str, Query(max_length=200, description="A few letters of the name; none for the most active.")]
Most = Annotated[int, Query(ge=1, le=MOST_NAMES)]
Whose = Annotated[str | None, Query(max_length=1000, description="Only what came from this source.")]
EventId = Annotated[str, PathParameter(min_length=1, max_length=40, description="As answers to /v1/events name it.")]
Last = Annotated[int, Query(ge=1, le=MOST_STORED, description="That many, those that came last.")]

EVENTS = "/v1/events"
QUICK: dict[str, type[BaseModel]] = {
    "/v1/forecast": ForecastQuery,
    "/v1/what": WhatQuery,
    "/v1/partners": PartnersQuery,
    "/v1/whether": WhetherQuery,
}
NO_STORE = "the event store cannot be used now ({}); send the same request again later."
NO_ANSWER = "the run that is served cannot answer this; the service's log says why."
NO_JSON = "the body must be one JSON object as /openapi.json describes it, sent as application/json."

_LATER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
WHY: dict[int, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong."},
    404: {"description": "A name does not occur; the suggestions are close to it."},
    408: {"description": "The headers or the body did not arrive in time."},
    409: {"description": "The run was refused; the old one is served on."},
    413: {"description": "The request is too long."},
    421: {"description": "The Host header names another machine."},
    422: {"description": "Something has the wrong type or a value that cannot be used."},
    429: {"description": "Too many requests at once.", "headers": _LATER},
    500: {"description": "A mistake of the service."},
    503: {"description": "The service cannot do this now.", "headers": _LATER},
}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    every = (401, 408, 413, 421, 429, 500, 503)
    return {status: {"model": Refusal, **WHY[status]} for status in sorted({*every, *statuses})}


def create_app(
    live: Live,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] = (),
    page: Callable[[Service], APIRouter] | None = None,
    *,
    admin: Admin | None = None,
    drift: DriftSettings | None = None,
    issue: bool = False,
    feeding: Feeding | None = None,
) -> FastAPI:
    """The application over a live forecaster.

    token: what callers must send; hosts: the only Host headers that are answered, none for any; page: routes for
    people on this machine, next to those for programs; admin: the operator of the service, and what they may change;
    drift: how the model is measured on the last steps, None for not at all; issue: whether answers are issued into the
    ledger of the store; feeding: the file that is followed meanwhile.
    """
    service, metrics, ready = Service(live, issue=issue), Metrics(), asyncio.Event()
    limits = limits or Limits()
    metrics.serves(live.run.version)
    # another model is served at once, and made quick by the first query that it is asked
    reloading = admin and Reloading(admin.live, metrics, lambda: metrics.serves(live.run.version))

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(_warm(service, ready))
        tasks = []
        if reloading and admin and admin.watch:
            tasks.append(asyncio.create_task(reloading.watch(admin.watch)))
        if drift is not None and drift.window:
            tasks.append(asyncio.create_task(Drift(live, drift, metrics).watch()))
        yield
        ready.clear()
        for task in tasks:
            task.cancel()
        await warming

    app = FastAPI(
        title="bridgemem",
        version=__version__,
        summary="Who comes next, and why: forecasts from what happened between the two parties in question.",
        description="Every refusal has the shape `Refusal`, also a 404 for an address that does not exist and a 405 "
        "for a method that an address does not take.",
        # the usual pages of documents load their scripts from elsewhere; ours, at /docs, does not
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    metrics.watch("bridgemem_memory_events", "Events in memory.", lambda: len(live.view.events))
    metrics.watch("bridgemem_memory_entities", "Entities in memory.", lambda: live.view.events.n_entities)
    of_store = service.of_store
    metrics.watch("bridgemem_quarantine_rows", "Rejected rows in quarantine.", lambda: of_store(in_quarantine))
    metrics.watch(
        "bridgemem_new_entities_today",
        "Entities new to the run that came today.",
        lambda: of_store(EventStore.new_today),
    )
    if feeding is not None:
        metrics.watch("bridgemem_feed_followed", "1 while the feed is followed, else 0.", lambda: feeding.following)
    used = service.kept.used
    metrics.watch("bridgemem_scores_found", "Queries whose scores were kept.", lambda: used.hits)
    metrics.watch("bridgemem_scores_made", "Queries whose scores had to be made.", lambda: used.misses)
    # the guard below asks for the token; here it is only written into the document
    needs = [] if token is None else [Depends(HTTPBearer(auto_error=False, description="The service's token."))]
    open_to_all = [_health(ready), docs_router()]
    # routes are tried in their order: what is asked most comes first
    guarded = [_queries(service), _stored(service, metrics), _about(service, metrics, limits)]
    guarded.append(ledger_router(live.store, _refusals))
    if reloading:
        guarded.append(admin_router(reloading, live.store, _refusals(409, 422)))
        guarded.append(keeping_router(live, service.quarantine, _refusals(422)))
    if page is not None:
        open_to_all.append(page(service))
    for router in (*guarded, *open_to_all):
        app.include_router(router, dependencies=needs if router in guarded else [])
    paths = {getattr(route, "path", "") for router in (*open_to_all, *guarded) for route in router.routes}
    paths |= {*DOCS, "/openapi.json"}
    # the page is for the owner of the run, on this machine; others learn nothing of where its files lie
    _errors(app, service, metrics, () if page is not None else (live.store.path, live.run.folder))
    app.add_middleware(Quick, queries=QUICK, answer=service.answer_soon)
    tokens = Tokens(token, admin.token if admin else None)
    app.add_middleware(Guard, limits=limits, tokens=tokens, hosts=hosts, admin=ADMIN)
    app.add_middleware(Measured, metrics=metrics, paths=paths, version=lambda: live.run.version)
    return app


async def _warm(service: Service, ready: asyncio.Event) -> None:
    try:
        await asyncio.to_thread(service.warm)
    except Exception:
        LOG.exception("could not build the memory index")
    else:
        ready.set()


def _health(ready: asyncio.Event) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", summary="Whether the process lives", responses={421: {"model": Refusal, **WHY[421]}})
    async def healthz() -> State:
        """The process is running."""
        return State(state="alive")

    @router.get("/readyz", summary="Whether forecasts are quick", response_model=State, responses=_refusals())
    async def readyz() -> State | JSONResponse:
        """The memory is loaded and forecasts are quick."""
        if ready.is_set():
            return State(state="ready")
        return retry_later(503, "the memory is being made ready; try again in a moment.")

    return router


def _stored(service: Service, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["events"])

    @router.post(EVENTS, summary="Store events", responses=_refusals(422))
    def events(batch: NewEvents) -> Received:
        """Store a batch of events. Once answered it is on disk, and the next forecast may use it."""
        new = service.new_names(batch)
        note(source=batch.source, key=batch.key, new_entities=new[0], new_relations=new[1])
        try:
            received = service.add(batch)
        except BridgeMemError:
            note(rejected=len(batch.events))
            metrics.rejected.inc(len(batch.events))
            raise
        counts = received.model_dump(include={"batch", "accepted", "duplicates", "late", "replayed"})
        note(**counts, rejected=0)
        if received.replayed:
            metrics.replayed.inc()
        else:
            metrics.accepted.inc(received.accepted)
            metrics.duplicates.inc(received.duplicates)
            metrics.late.inc(received.late)
            for kind, count in zip(("entity", "relation"), new, strict=True):
                metrics.new_names.labels(kind).inc(count)
        return received

    @router.get("/v1/events", summary="List stored events", responses=_refusals(422))
    def stored(source: Whose = None, last: Last = 20) -> StoredEvents:
        """The latest stored events, with the ids that /v1/retract takes."""
        return service.stored(source, last)

    @router.get("/v1/events/{id}", summary="One stored event", responses=_refusals(404, 422))
    def one(id: EventId) -> StoredEvent:
        """A stored event, and when it was retracted."""
        return service.stored_event(id)

    @router.post("/v1/retract", summary="Take events back", responses=_refusals(404, 422))
    def retract(retraction: Retraction) -> Retracted:
        """Retract events, all or none. The next forecast is as if they had never come."""
        done = service.retract(retraction)
        metrics.retracted.inc(len(done.retracted))
        return done

    @router.get("/v1/sources", summary="Who sent events", responses=_refusals())
    def sources() -> KnownSources:
        """All sources of batches, with the last key and the last offset of each."""
        return service.sources()

    return router


def _queries(service: Service) -> APIRouter:
    router = APIRouter(tags=["forecasts"])

    @router.post("/v1/forecast", summary="Forecast", response_model=ServedForecast, responses=_refusals(404, 422))
    async def forecast(query: ForecastQuery) -> Response:
        """The likeliest answers, best first, from the events strictly before the time asked."""
        return await _answered(service, query)

    @router.post(
        "/v1/what", summary="What happens between two", response_model=ServedWhat, responses=_refusals(404, 422)
    )
    async def what(query: WhatQuery) -> Response:
        """The events that may happen between two parties, either way round, from the events strictly before `at`."""
        return await _answered(service, query)

    @router.post(
        "/v1/partners", summary="Whom an actor deals with", response_model=ServedPartners, responses=_refusals(404, 422)
    )
    async def partners(query: PartnersQuery) -> Response:
        """The likely partners of an actor, under any relation and in either role, and the likeliest event with each."""
        return await _answered(service, query)

    @router.post("/v1/whether", summary="Whether and when", response_model=ServedWhether, responses=_refusals(404, 422))
    async def whether(query: WhetherQuery) -> Response:
        """Whether and when (subject, relation, object) happens; one of them may be left out."""
        return await _answered(service, query)

    _add_outlook(router, service)

    @router.post("/v1/forecasts", summary="Forecast several queries", responses=_refusals(422))
    def forecasts(queries: ForecastQueries) -> Forecasts:
        """The likeliest answers to each query, in their order; an error names all queries that cannot be asked."""
        note(queries=len(queries.queries))
        return service.forecasts(queries)

    @router.post(
        "/v1/explain", summary="Explain a candidate", response_model=ServedExplanation, responses=_refusals(404, 422)
    )
    def explain(query: ExplainQuery) -> ServedBridgeMem | ServedLearned:
        """Why a candidate has its score: parts that add up, and the events they come from."""
        return service.explain(query)

    return router


def _add_outlook(router: APIRouter, service: Service) -> None:
    @router.post("/v1/outlook", summary="The events to come", responses=_refusals(404, 422))
    def outlook(query: OutlookQuery) -> ServedOutlook:
        """The likeliest events of the coming steps, or those that are likelier than usual, from all known events."""
        return service.outlook(query)


async def _answered(service: Service, query: AnyQuery) -> Response:
    """The answer, written out here: the framework would check and copy every candidate once more."""
    found = await service.answer_soon(query)
    return Response(found.model_dump_json(), media_type="application/json")


def _about(service: Service, metrics: Metrics, limits: Limits) -> APIRouter:
    router = APIRouter(tags=["about"])

    @router.get("/v1/limits", summary="What a request may hold", responses=_refusals())
    def known_limits() -> KnownLimits:
        """The limits of one request and of one client."""
        return service.limits(limits)

    @router.get("/v1/model", summary="What is served", responses=_refusals())
    def model() -> Model:
        """The served model and the events it knows."""
        return service.model()

    @router.get("/v1/entities", summary="Find entities", responses=_refusals(422))
    def entities(q: Wanted = "", limit: Most = 20) -> NamesFound:
        """Search entities by beginning, words or spelling, without case and accents; the most active first."""
        return service.entities(q, limit)

    @router.get("/v1/relations", summary="Find relations", responses=_refusals(422))
    def relations(q: Wanted = "", limit: Most = 20) -> NamesFound:
        """Search relations by beginning, words or spelling, without case and accents; the most frequent first."""
        return service.relations(q, limit)

    @router.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=Response,
        responses={**_refusals(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def counted() -> Response:
        """Metrics of the service, for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    return router


def _errors(app: FastAPI, service: Service, metrics: Metrics, places: Sequence[Path]) -> None:
    """Turn every error into one shape; places: whose folders no answer may name."""

    @app.exception_handler(BridgeMemError)
    async def known(request: Request, problem: BridgeMemError) -> JSONResponse:
        if isinstance(problem, NotFoundError):
            return refusal(404, _without(places, str(problem)), problem.suggestions, reason=problem.code)
        if isinstance(problem, RefusedRunError):
            LOG.error("%s", problem)
            return refusal(409, _without(places, str(problem)), reason=problem.code)
        if isinstance(problem, DataError | SettingsError):
            return refusal(422, _without(places, str(problem)), reason=problem.code)
        LOG.error("%s %s: %s", request.method, request.url.path, problem)
        if isinstance(problem, StoreError):  # it can be written again some time; what else is wrong stays so
            told = NO_STORE.format(system_reason(str(problem)) or "its log says why")
            return retry_later(503, told, problem.code)
        return refusal(503, NO_ANSWER if places else str(problem), reason=problem.code)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: RequestValidationError) -> JSONResponse:
        told = [f"{place_of(one['loc'])}{said_of(one)}" for one in problem.errors()]
        if request.url.path == EVENTS and (wrong := _by_row(problem.errors())):
            more = await asyncio.to_thread(service.keep_invalid, problem.body, wrong)
            metrics.rejected.inc(len(problem.body["events"]))
            told += [f"event {place}: {reason}" for place, reason in more.items()]
        return refusal(422, NO_JSON if _unreadable(problem.errors()[0]) else in_words(told))

    @app.exception_handler(400)
    async def unreadable(request: Request, problem: Exception) -> JSONResponse:
        return refusal(422, NO_JSON)  # such as a body nested too deeply, or a number of thousands of digits

    @app.exception_handler(404)
    async def nowhere(request: Request, problem: Exception) -> JSONResponse:
        return refusal(404, "there is nothing at this address; /openapi.json lists what there is.")

    @app.exception_handler(405)
    async def no_method(request: Request, problem: HTTPException) -> JSONResponse:
        allowed = {"Allow": ", ".join(_methods(app, request.scope))}
        return refusal(405, "this address does not take this method; /openapi.json says which.", (), allowed)

    @app.exception_handler(Exception)
    async def mistake(request: Request, problem: Exception) -> JSONResponse:
        LOG.error("%s %s failed", request.method, request.url.path, exc_info=problem)
        return refusal(500, "the service made a mistake, which its log describes; please report it.")


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods that an address takes by any of its routes; a route alone knows only its own."""
    plain = {name: scope[name] for name in ("type", "path", "root_path", "headers")}
    return [
        method
        for method in sorted(METHODS)
        if any(route.matches({**plain, "method": method})[0].name == "FULL" for route in app.routes)
    ]


def _without(places: Sequence[Path], text: str) -> str:
    """The sentence with the names of these files alone, and not the folders they lie in."""
    folders = {str(way.parent) for place in places for way in (place, place.absolute(), place.resolve())}
    for folder in sorted(folders - {".", "/"}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text


def _unreadable(problem: Any) -> bool:
    return problem["type"] == "json_invalid" or problem["loc"] == ("body",)


def _by_row(problems: Sequence[Any]) -> dict[int, str]:
    """What is wrong with each event of a batch, by its place, counted from 1."""
    found: dict[int, str] = {}
    for problem in problems:
        where = problem["loc"]
        if where[:2] == ("body", "events") and len(where) > 2 and isinstance(where[2], int):
            found.setdefault(where[2] + 1, f"{place_of(where[3:])}{said_of(problem)}")
    return found

"""The explorer's addresses: its page, the charts' library, and what the page asks beyond the service's own routes."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import RedirectResponse

from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.events.times import LAST_STEP
from bridgemem.explorer.views import (
    Opinion,
    Overview,
    PairPast,
    Quality,
    Recorded,
    opinions,
    outcome,
    overview,
    pair_past,
    quality,
    recorded,
)
from bridgemem.service.asking import Service
from bridgemem.service.assets import SAFE, Asset

CHARTS = "plotly.js"
SCRIPTS = ("page", "ask", "assume", "ahead", "outlook", "record", "quality", "charts", "probability")
FILES = ("page.html", "page.css", *(f"{name}.js" for name in SCRIPTS), CHARTS)

Name = Annotated[str, Query(min_length=1, max_length=1000)]
Grouping = Literal["all", "month", "relation", "horizon"]
Step = Annotated[int, Query(ge=0, lt=LAST_STEP)]


@cache
def asset(name: str) -> Asset:
    """One of FILES."""
    if name == CHARTS:
        return Asset.of(name, _library().encode(), library=True)
    return Asset.of(name, resources.files(__package__).joinpath(name).read_bytes())


def _library() -> str:
    """Plotly's JavaScript, which comes inside its Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SettingsError(
            "exploring needs plotly, which is not installed: pip install -e '.[explore]' in the checkout."
        ) from None
    return get_plotlyjs()


def explorer_router(service: Service) -> APIRouter:
    """The page at /explore and all that it needs; none of it is part of the service's OpenAPI document."""
    for name in FILES:
        asset(name)
    router = APIRouter(include_in_schema=False, dependencies=[Depends(_safely)])

    @router.get("/")
    def start() -> RedirectResponse:
        return RedirectResponse("/explore", headers=SAFE)

    @router.get("/explore")
    def page(if_none_match: Annotated[str, Header()] = "") -> Response:
        return asset("page.html").sent(if_none_match)

    _add_answers(router, service)

    @router.get("/explore/{name}")
    def file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if name not in FILES:
            raise NotFoundError("there is nothing at this address; the page is at /explore.")
        return asset(name).sent(if_none_match)

    return router


def _add_answers(router: APIRouter, service: Service) -> None:
    @router.get("/explore/overview")
    def steps() -> Overview:
        return overview(service.live.view.events)

    @router.get("/explore/pair")
    def pair(actor: Name, candidate: Name, step: Step) -> PairPast:
        return pair_past(service.live.view.predictor.past, actor, candidate, step)

    @router.get("/explore/outcome")
    def happened(
        relation: Name, step: Step, subject: Name | None = None, object: Name | None = None
    ) -> list[str] | None:
        return outcome(service.live.view.events, relation, step, subject=subject, object=object)

    @router.get("/explore/reasons")
    def why(
        step: Step, subject: Name | None = None, relation: Name | None = None, object: Name | None = None
    ) -> list[str]:
        predictor = service.live.view.predictor
        at = predictor.events.clock.label(step)
        return [one.sentence for one in predictor.reasons(subject, relation, object, at=at)]

    @router.get("/explore/backbone")
    def backbone(
        subject: Name,
        relation: Name,
        object: Name,
        step: Step,
        candidate: Literal["object", "subject"] = "object",
        top: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> list[Opinion]:
        predictor = service.kept.of(service.live.view.predictor)
        return opinions(predictor, (subject, relation, object), step, candidate=candidate, top=top)

    @router.get("/explore/record")
    def track_record(by: Grouping = "all") -> Recorded:
        return recorded(service.live.store, by)

    @router.get("/explore/quality")
    def measured() -> Quality:
        return quality(service.live.run)


def _safely(response: Response) -> None:
    response.headers.update(SAFE)
    response.headers["Cache-Control"] = "no-store"

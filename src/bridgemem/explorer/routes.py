"""The explorer's addresses: its page, the charts' library, and what the page asks beyond the service's own routes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
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
    opinions,
    outcome,
    overview,
    pair_past,
    quality,
)
from bridgemem.service.asking import Service

CHARTS = "plotly.js"
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
FILES = ("page.html", "page.css", "page.js", "ask.js", "charts.js", "quality.js", CHARTS)
# Plotly writes the style of what it draws into the page; scripts come from here alone, and none is written inline
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SAFE = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
DAY = 86_400

Name = Annotated[str, Query(min_length=1, max_length=1000)]
Step = Annotated[int, Query(ge=0, lt=LAST_STEP)]


@dataclass(frozen=True)
class Asset:
    """A file that never changes while the program runs."""

    content: bytes
    kind: str
    tag: str
    kept: str


@cache
def asset(name: str) -> Asset:
    """One of FILES. The library changes with its package alone, so browsers need not ask for it again."""
    if name == CHARTS:
        content = _library().encode()
    else:
        content = resources.files(__package__).joinpath(name).read_bytes()
    kind = KINDS[name.rpartition(".")[2]]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return Asset(content, f"{kind}; charset=utf-8", tag, f"max-age={DAY}" if name == CHARTS else "no-cache")


def _library() -> str:
    """Plotly's JavaScript, which comes inside its Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SettingsError(
            "exploring needs plotly, which is not installed: pip install 'bridgemem[explore]'."
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
        return _sent(asset("page.html"), if_none_match)

    _add_answers(router, service)

    @router.get("/explore/{name}")
    def file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if name not in FILES:
            raise NotFoundError("there is nothing at this address; the page is at /explore.")
        return _sent(asset(name), if_none_match)

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

    @router.get("/explore/quality")
    def measured() -> Quality:
        return quality(service.live.run)


def _safely(response: Response) -> None:
    response.headers.update(SAFE)
    response.headers["Cache-Control"] = "no-store"


def _sent(found: Asset, known: str) -> Response:
    """The file, or nothing where the browser has it already."""
    headers = {**SAFE, "ETag": found.tag, "Cache-Control": found.kept}
    if found.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.kind, headers=headers)

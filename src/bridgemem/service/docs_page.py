"""The interactive page at /docs: every route to try out, from files of this machine alone."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated

from fastapi import APIRouter, Header, Response

from bridgemem.errors import NotFoundError
from bridgemem.service.assets import Asset

OWN = ("docs.html", "docs.js", "docs.css")
LIBRARY = ("swagger-ui-bundle.js", "swagger-ui.css")
# the page holds nothing of the run; what it shows, /openapi.json, asks for the token where there is one
PATHS = frozenset({"/docs", *(f"/docs/{name}" for name in (*OWN, *LIBRARY))})


@cache
def asset(name: str) -> Asset:
    if name in LIBRARY:
        from swagger_ui_bundle import swagger_ui_path

        return Asset.of(name, swagger_ui_path.joinpath(name).read_bytes(), library=True)
    return Asset.of(name, resources.files(__package__).joinpath(name).read_bytes())


def docs_router() -> APIRouter:
    """The page and its files; none of them is part of the OpenAPI document."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    def page(if_none_match: Annotated[str, Header()] = "") -> Response:
        return asset("docs.html").sent(if_none_match)

    @router.get("/docs/{name}")
    def file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if name not in (*OWN, *LIBRARY):
            raise NotFoundError("there is nothing at this address; the page is at /docs.")
        return asset(name).sent(if_none_match)

    return router

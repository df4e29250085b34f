"""Limits that are told and kept, the page at /docs, and rows that are counted one way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient
from test_app import ASKED, NEXT, batch, event, refused

from bridgemem.live.eventstore import EventStore, NewNames
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from bridgemem.service.limits import Limits
from fits import loaded

pytest_plugins = ("small_runs",)


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb", new_names=NewNames(relations=7)) as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture
def client(live: LiveForecaster) -> Any:
    return TestClient(create_app(live, limits=Limits(concurrent=3)))


# --- many at once ----------------------------------------------------------------------------------------------------


def test_too_many_answers_are_refused(client: Any) -> None:
    body = {"queries": [ASKED] * 101, "top": 1000}
    assert "100,000 in all" in refused(client.post("/v1/forecasts", json=body), 422)["error"]
    assert "at most 1000" in refused(client.post("/v1/forecasts", json={"queries": [ASKED] * 1001}), 422)["error"]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_bad_events_are_all_named_and_counted_from_one(client: Any) -> None:
    rows = [event("Arvan", "visit", "Kel", time) for time in (NEXT, "soon", NEXT, "1999-01-01")]
    error = refused(client.post("/v1/events", json=batch(*rows)), 422)["error"]
    assert error.startswith("2 of 4 events cannot be used, and nothing was stored: event 2: ")
    assert "event 4" in error
    wrong = [event("Arvan", "visit", "Kel", NEXT), event("Arvan", "visit", "", NEXT), event("", "visit", "Kel", NEXT)]
    error = refused(client.post("/v1/events", json=batch(*wrong)), 422)["error"]
    assert "event 2, object: " in error
    assert "event 3, subject: " in error
    assert client.get("/v1/model").json()["events"] == 600


def test_no_more_rows_are_named_than_can_be_read(client: Any) -> None:
    for wrong, said in (("soon", "; and 80 more."), ("", "; and 80 more.")):
        rows = [event("Arvan", "visit", "Kel", wrong)] * 100
        assert refused(client.post("/v1/events", json=batch(*rows)), 422)["error"].endswith(said)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_limits_are_told_and_are_those_of_the_schema(client: Any) -> None:
    told = client.get("/v1/limits").json()
    assert (told["concurrent"], told["body_bytes"], told["new_relations"]) == (3, 4 << 20, 7)
    shapes = client.get("/openapi.json").json()["components"]["schemas"]
    assert shapes["NewEvents"]["properties"]["events"]["maxItems"] == told["events"] == 10_000
    assert shapes["ForecastQueries"]["properties"]["queries"]["maxItems"] == told["queries"]
    assert shapes["ForecastQuery"]["properties"]["top"]["maximum"] == told["candidates"]
    assert shapes["Retraction"]["properties"]["ids"]["maxItems"] == told["retracted"]


def test_a_crowded_service_counts_429_under_the_route_that_was_asked(live: LiveForecaster) -> None:
    app = create_app(live, limits=Limits(concurrent=1, body=10_000))
    client = TestClient(app)
    client.post("/v1/forecast", content=b"x" * 20_000, headers={"Content-Type": "application/json"})
    client.get("/v1/nowhere")
    text = client.get("/metrics").text
    assert 'bridgemem_requests_total{method="POST",route="/v1/forecast",status="413"} 1.0' in text
    assert 'route="other",status="404"' in text


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_of_documents_needs_nothing_from_elsewhere_and_no_token(live: LiveForecaster) -> None:
    client = TestClient(create_app(live, token="secret"))
    page = client.get("/docs")
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "//" not in page.text
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "docs.js", "docs.css"):
        assert f'"docs/{name}"' in page.text
        file = client.get(f"/docs/{name}")
        assert file.status_code == 200
        assert client.get(f"/docs/{name}", headers={"If-None-Match": file.headers["etag"]}).status_code == 304
    assert client.get("/openapi.json").status_code == 401
    assert client.get("/docs/index.html").status_code in (401, 404)
    assert "/docs" not in client.get("/openapi.json", headers={"Authorization": "Bearer secret"}).json()["paths"]

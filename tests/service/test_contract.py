"""The service against its own OpenAPI document: whatever is sent, nothing breaks, and every answer is as described."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("schemathesis", reason="needs schemathesis, of the extra 'dev'")

import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from commands import ACTORS, DAYS, RELATIONS
from fits import loaded

pytest_plugins = ("small_runs",)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


OPERATIONS = (
    ("/healthz", "get"),
    ("/metrics", "get"),
    ("/v1/entities", "get"),
    ("/v1/events", "get"),
    ("/v1/events", "post"),
    ("/v1/events/{id}", "get"),
    ("/v1/explain", "post"),
    ("/v1/forecast", "post"),
    ("/v1/forecasts", "post"),
    ("/v1/ledger", "get"),
    ("/v1/ledger/score", "get"),
    ("/v1/limits", "get"),
    ("/v1/model", "get"),
    ("/v1/outlook", "post"),
    ("/v1/partners", "post"),
    ("/v1/relations", "get"),
    ("/v1/retract", "post"),
    ("/v1/sources", "get"),
    ("/v1/what", "post"),
    ("/v1/whether", "post"),
)


@pytest.fixture(scope="module")
def document(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with EventStore(tmp_path_factory.mktemp("store") / "events.duckdb") as store:
        app = create_app(LiveForecaster(loaded(recurrence_run), store))
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


def test_every_route_is_tried(document: Any) -> None:
    # readiness is told only once the application has been started, which a document's own client does not do
    described = {(path, method) for path, methods in document.raw_schema["paths"].items() for method in methods}
    assert {*OPERATIONS, ("/readyz", "get")} == described


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_request_breaks_the_service_and_every_answer_is_as_described(
    document: Any, path: str, method: str, mode: GenerationMode
) -> None:
    operation = document[path][method]
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
        pytest.skip("nothing can be sent wrongly here")

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_out(case: Any) -> None:
        case.call_and_validate(checks=[*CHECKS, negative_data_rejection])

    try_out()


def known(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


QUERY = {
    "relation": known(RELATIONS),
    "at": st.none() | st.integers(0, 99_999_999) | st.dates().map(str) | st.datetimes().map(str) | st.text(max_size=9),
}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    subject=known(ACTORS),
    inverse=st.booleans(),
    query=st.fixed_dictionaries({**QUERY, "top": st.integers(1, 1000), "horizon": st.none() | st.integers(1, 10_000)}),
    candidate=known(ACTORS),
)
def test_queries_about_known_names_break_nothing_either(
    document: Any, subject: str, inverse: bool, query: dict[str, Any], candidate: str
) -> None:
    side, asked = ("object", "subject") if inverse else ("subject", "object")
    query[side] = subject
    answer = document["/v1/forecast"]["post"].Case(body=query).call_and_validate(checks=CHECKS)
    # a horizon longer than the past before it is refused, and nothing is explained about several steps
    long = answer.status_code == 422 and (query["horizon"] or 1) > 1
    assert query["at"] is not None or answer.status_code == 200 or (long and query["horizon"] > DAYS)
    query = {
        **{name: value for name, value in query.items() if name in (*QUERY, side)},
        asked: candidate,
        "candidate": asked,
    }
    again = document["/v1/explain"]["post"].Case(body=query).call_and_validate(checks=CHECKS)
    assert again.status_code == answer.status_code or long

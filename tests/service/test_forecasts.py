"""Several queries in one request: the answers of each alone, or one refusal that names all that cannot be asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient

from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from fits import loaded

pytest_plugins = ("small_runs",)
QUERIES = [
    {"subject": "Arvan", "relation": "visit"},
    {"object": "Kel", "relation": "consult", "at": "2024-02-01"},
    {"subject": "Kel", "relation": "visit", "at": "2024-01-20"},
]


@pytest.fixture(scope="module")
def client(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with EventStore(tmp_path_factory.mktemp("store") / "events.duckdb") as store:
        live = LiveForecaster(loaded(recurrence_run), store)
        with TestClient(create_app(live)) as made:
            yield made


@pytest.mark.parametrize("horizon", [None, 3])
def test_queries_that_are_sent_together_are_answered_as_alone(client: Any, horizon: int | None) -> None:
    sent = client.post("/v1/forecasts", json={"queries": QUERIES, "top": 4, "horizon": horizon})
    assert sent.status_code == 200, sent.text
    together = sent.json()["forecasts"]
    for query, found in zip(QUERIES, together, strict=True):
        alone = client.post("/v1/forecast", json={**query, "top": 4, "horizon": horizon}).json()
        assert alone.pop("model_version") == sent.json()["model_version"]
        own = {name: alone.pop(name) for name in ("assumed", "p_event")}
        assert (own["assumed"], alone["remark"], alone["issued"]) == (None, None, None)
        assert (own["p_event"] is None) == (horizon is None)
        candidates = [(c["name"], c["rank"], c["backbone_rank"]) for c in alone.pop("candidates")]
        assert [(c["name"], c["rank"], c["backbone_rank"]) for c in found.pop("candidates")] == candidates
        assert found == alone


def test_all_queries_that_cannot_be_asked_are_named(client: Any) -> None:
    queries = [QUERIES[0], {"subject": "Arvn", "relation": "visit"}, {"subject": "0", "relation": "visit"}]
    refused = client.post("/v1/forecasts", json={"queries": [*queries, {"relation": "visit"}]})
    assert refused.status_code == 422
    said = refused.json()["error"]
    assert "query 2: no entity is called 'Arvn'; did you mean 'Arvan'" in said
    assert "query 3: no entity is called '0'" in said  # no id
    assert "query 4: give a subject or an object" in said


@pytest.mark.parametrize("queries", [[], [QUERIES[0]] * 1001], ids=["none", "too many"])
def test_a_request_has_between_one_and_a_thousand_queries(client: Any, queries: list[Any]) -> None:
    assert client.post("/v1/forecasts", json={"queries": queries}).status_code == 422

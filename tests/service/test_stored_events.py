"""Stored events over HTTP: listed, taken back, and where each source was left off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient
from test_app import ASKED, NEXT, SECOND_NEXT, batch, event, refused

from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from fits import loaded

pytest_plugins = ("small_runs",)


@pytest.fixture
def client(recurrence_run: Path, tmp_path: Path) -> Iterator[Any]:
    with (
        EventStore(tmp_path / "events.duckdb") as store,
        TestClient(create_app(LiveForecaster(loaded(recurrence_run), store))) as made,
    ):
        yield made


def test_an_event_dated_far_ahead_is_found_and_undone(client: Any) -> None:
    before = client.post("/v1/forecast", json=ASKED).json()
    client.post(
        "/v1/events", json=batch(event("Arvan", "visit", "Kel", NEXT), event("Arvan", "visit", "Kel", "2204-02-10"))
    )
    assert client.get("/v1/model").json()["next_time"] == "2204-02-11"
    found = client.get("/v1/events", params={"last": 1}).json()["events"]
    assert [(e["id"], e["time"], e["source"], e["retracted"]) for e in found] == [("e2", "2204-02-10", "test", None)]
    done = client.post("/v1/retract", json={"ids": ["e2"], "reason": "a slip"}).json()
    assert done == {"retracted": ["e2"], "already": []}
    assert client.get("/v1/model").json()["next_time"] == SECOND_NEXT
    assert client.get("/v1/events").json()["events"][1]["reason"] == "a slip"
    done = client.post("/v1/retract", json={"ids": ["e1", "e2"]}).json()
    assert done == {"retracted": ["e1"], "already": ["e2"]}
    assert client.post("/v1/forecast", json=ASKED).json() == before
    assert "bridgemem_events_retracted_total 2.0" in client.get("/metrics").text


def test_a_retraction_with_an_unknown_id_takes_nothing_back(client: Any) -> None:
    client.post("/v1/events", json=batch(event("Arvan", "visit", "Kel", NEXT)))
    assert "'e9'" in refused(client.post("/v1/retract", json={"ids": ["e1", "e9"]}), 404)["error"]
    wrong: list[dict[str, Any]] = [{"ids": []}, {"ids": "e1"}, {"ids": ["e1"], "reason": "\0"}, {"reason": "none"}]
    for body in wrong:
        refused(client.post("/v1/retract", json=body), 422)
    assert client.get("/v1/events").json()["events"][0]["retracted"] is None


def test_a_source_is_told_where_it_was_left_off(client: Any) -> None:
    assert client.get("/v1/sources").json() == {"sources": []}
    told = event("Arvan", "visit", "Kel", NEXT)
    client.post("/v1/events", json={**batch(told, key="1"), "offset": 7})
    client.post("/v1/events", json=batch(told, told, key="2"))
    client.post("/v1/events", json={**batch(told, key="1"), "source": "other"})
    assert client.get("/v1/sources").json()["sources"] == [
        {"source": "other", "batches": 1, "events": 1, "duplicates": 1, "last_key": "1", "last_offset": None},
        {"source": "test", "batches": 2, "events": 3, "duplicates": 2, "last_key": "2", "last_offset": "7"},
    ]
    assert {e["source"] for e in client.get("/v1/events", params={"source": "other"}).json()["events"]} == {"other"}

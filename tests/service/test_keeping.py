"""Routes for what a store keeps and forgets: refused batches in quarantine, replay, prune and erase."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from fastapi.testclient import TestClient

from bridgemem.events.naming import NewNames
from bridgemem.forecaster import Forecaster
from bridgemem.live.eventstore import EventStore
from bridgemem.live.switching import Switch
from bridgemem.service.admin import Admin
from bridgemem.service.app import create_app

pytest_plugins = ("small_runs",)
ADMIN = {"Authorization": "Bearer admin"}
DAY = "2024-02-10"


@pytest.fixture
def client(recurrence_run: Path, tmp_path: Path) -> Iterator[TestClient]:
    limits = NewNames(batch=3, day=4)
    with EventStore(tmp_path / "s.duckdb", new_names=limits) as store:
        store.max_ahead = 30
        live = Switch(recurrence_run, store, Forecaster.load)
        app = create_app(live, admin=Admin(live, "admin"))
        with TestClient(app, headers=ADMIN) as client:
            yield client


def event(object_: str = "Kel", time: Any = DAY) -> dict[str, Any]:
    return {"subject": "Arvan", "relation": "visit", "object": object_, "time": time}


def post(client: TestClient, key: str, *events: Any) -> int:
    return client.post("/v1/events", json={"source": "wire", "key": key, "events": list(events)}).status_code


def kept(client: TestClient) -> list[dict[str, Any]]:
    found = client.get("/v1/rejected").json()
    assert found["known"] == len(found["rows"])
    return found["rows"]


def metric(client: TestClient, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def test_a_refused_batch_is_kept_whole_and_goes_when_it_comes_repaired(client: TestClient) -> None:
    assert post(client, "1", event(), event(time="never"), event("Lor")) == 422
    assert post(client, "1", event(), event(time="never"), event("Lor")) == 422  # a client that tries again
    rows = kept(client)
    assert [(row["file"], row["line"], row["object"]) for row in rows] == [
        ("wire/1", 1, "Kel"),
        ("wire/1", 2, "Kel"),
        ("wire/1", 3, "Lor"),
    ]
    assert "'never'" in rows[1]["reason"]
    assert "its batch was refused" in rows[0]["reason"]
    assert metric(client, "bridgemem_quarantine_rows") == 3
    assert metric(client, "bridgemem_events_rejected_total") == 6
    assert post(client, "1", event(), event(), event("Lor")) == 200
    assert kept(client) == []


def test_rows_of_a_wrong_shape_are_kept_too(client: TestClient) -> None:
    assert post(client, "1", event(), {**event(), "time": None}, "text", {**event(), "extra": 1}) == 422
    rows = kept(client)
    assert [row["time"] for row in rows] == [DAY, "", "", ""]
    assert [bool(row["row"]) for row in rows] == [False, False, True, True]
    assert rows[1]["reason"].startswith("time: ")
    assert client.post("/v1/events", json={"source": "wire", "events": [1]}).status_code == 422
    assert client.post("/v1/events", content=b"{").status_code == 422
    assert len(kept(client)) == 4


def test_next_to_rows_of_a_wrong_shape_other_wrong_rows_are_named_too(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    events = [event(time="never"), {**event(), "time": None}, event()]
    with caplog.at_level("INFO"):
        refused = client.post("/v1/events", json={"source": "wire", "key": "1", "events": events})
    assert refused.status_code == 422
    assert "event 2, time: " in refused.json()["error"]
    assert "event 1: 'never'" in refused.json()["error"]
    rows = kept(client)
    assert "'never'" in rows[0]["reason"]
    assert "its batch was refused" in rows[2]["reason"]
    assert metric(client, "bridgemem_events_rejected_total") == 3
    (line,) = [one for one in caplog.records if getattr(one, "fields", {}).get("status") == 422]
    told = {name: line.__dict__["fields"][name] for name in ("source", "key", "rejected")}
    assert told == {"source": "wire", "key": "1", "rejected": 3}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([event(time="2031-12-05")], "--max-ahead"),
        ([event(f"New {n}") for n in range(4)], "a batch may name 3"),
    ],
)
def test_what_guards_refuse_is_kept_with_the_reason(client: TestClient, events: list[Any], said: str) -> None:
    assert post(client, "1", *events) == 422
    rows = kept(client)
    assert len(rows) == len(events)
    assert all(said in row["reason"] for row in rows)


def test_new_names_of_a_day_are_counted_and_bounded(client: TestClient) -> None:
    assert post(client, "1", event("N1"), event("N2")) == 200
    assert post(client, "2", event("N3"), event("N1"), event("N4")) == 200
    assert metric(client, "bridgemem_new_entities_today") == 4
    refused = client.post("/v1/events", json={"source": "wire", "key": "3", "events": [event("N5")]})
    assert refused.status_code == 422
    assert "4 new entities a day" in refused.json()["error"]
    assert post(client, "4", event("N4"), event("Kel")) == 200
    limits = client.get("/v1/limits").json()
    assert (limits["new_entities_per_batch"], limits["new_entities_per_day"]) == (3, 4)


def test_repaired_rows_are_replayed_and_answered_from_at_once(client: TestClient) -> None:
    post(client, "1", event("New", "never"))
    before = client.get("/v1/model").json()["events"]
    row = {"file": "wire/1", "line": 1, **event("New")}
    done = client.post("/v1/replay", json={"rows": [row]}).json()
    assert (done["events"], done["left"]) == (1, 0)
    assert client.get("/v1/model").json()["events"] == before + 1
    assert client.post("/v1/replay", json={"rows": [row]}).json()["events"] == 0
    assert client.post("/v1/replay", json={"rows": [{**row, "line": 9}]}).status_code == 422


def test_removals_change_the_next_forecast(client: TestClient) -> None:
    post(client, "1", event("New"), event("Kel"))
    asked = {"subject": "Arvan", "relation": "visit", "top": 20, "at": "2024-02-20"}
    names = [c["name"] for c in client.post("/v1/forecast", json=asked).json()["candidates"]]
    assert "New" in names
    done = client.post("/v1/erase", json={"name": "New"}).json()
    assert (done["kind"], done["what"], done["events"], done["left"]) == ("erase", "", 1, 1)
    names = [c["name"] for c in client.post("/v1/forecast", json=asked).json()["candidates"]]
    assert "New" not in names
    assert client.post("/v1/prune", json={"before": "2024-02-11"}).json()["events"] == 1
    assert client.post("/v1/prune", json={}).status_code == 422


@pytest.mark.parametrize("path", ["/v1/prune", "/v1/erase", "/v1/rejected", "/v1/rejected/drop", "/v1/replay"])
def test_all_of_it_needs_the_admin_token(client: TestClient, path: str) -> None:
    assert client.post(path, json={}, headers={"Authorization": "Bearer other"}).status_code == 401

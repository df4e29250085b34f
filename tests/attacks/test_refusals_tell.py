"""What a refusal of the service tells a caller: what to do, and nothing of where its files lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient

from bridgemem.live.eventstore import EventStore, StoreError
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from commands import small_files_only
from fits import loaded

pytest_plugins = ("small_runs",)


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture
def client(live: LiveForecaster) -> Any:
    return TestClient(create_app(live))


def batch(*names: str) -> dict[str, Any]:
    new = [{"subject": "Arvan", "relation": "visit", "object": name, "time": "2024-02-10"} for name in names]
    return {"source": "test", "key": "one", "events": new}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('{path} cannot be written: Cannot write "{path}.wal": No space left on device; fix that.', "No space left"),
        ("{path} cannot be written: something new about {path}; try again.", "its log says why"),
    ],
    ids=["full", "other"],
)
def test_a_store_that_cannot_be_written_asks_to_try_later_and_tells_not_where_it_lies(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str, told: str
) -> None:
    sentence = said.format(path=live.store.path)

    def full(*args: Any, **named: Any) -> None:
        raise StoreError(sentence)

    monkeypatch.setattr(live.store, "append_all", full)
    client = TestClient(create_app(live))
    answer = client.post("/v1/events", json=batch("Kel"))
    assert answer.status_code == 503
    assert told in answer.json()["error"]
    assert "events.duckdb" not in answer.text
    assert str(live.store.path.parent) not in answer.text
    assert sentence in caplog.text
    assert int(answer.headers["retry-after"]) > 0
    assert client.post("/v1/forecast", json={"subject": "Arvan", "relation": "visit"}).status_code == 200


def test_a_full_disk_is_told_without_the_place_of_the_store(client: Any, live: LiveForecaster) -> None:
    many = [f"a long name that takes room {i}" for i in range(2000)]
    with small_files_only(1000):
        answer = client.post("/v1/events", json=batch(*many))
    assert answer.status_code == 503
    assert "event store cannot be used now" in answer.json()["error"]
    assert str(live.store.path.parent) not in answer.text
    assert client.post("/v1/events", json=batch(*many)).json()["accepted"] == len(many)  # nothing was lost


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/events", "GET, POST"),
        ("DELETE", "/v1/forecast", "POST"),
        ("POST", "/v1/model", "GET"),
        ("HEAD", "/healthz", "GET"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("MADE-UP", "/v1/events", "GET, POST"),
    ],
)
def test_a_refused_method_is_told_every_method_of_the_address(
    client: Any, method: str, path: str, allowed: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed

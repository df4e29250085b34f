"""Forecasts that the service issues: the number of each, what later events make of it, and what is never issued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient
from test_app import batch, event, refused
from test_client import served

from bridgemem import Client
from bridgemem.errors import DataError, NotFoundError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.storefile import StoreError
from bridgemem.service.app import create_app
from commands import bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)
WHO = {"subject": "Arvan", "relation": "visit", "top": 3}
WHETHER = {"subject": "Arvan", "relation": "visit", "object": "Belmor"}


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture
def client(live: LiveForecaster) -> Iterator[Any]:
    with TestClient(create_app(live, issue=True)) as made:
        yield made


def asked(client: Any, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def following(live: LiveForecaster) -> tuple[str, str]:
    """The first two unknown times."""
    events = live.view.events
    return events.clock.label(events.end), events.clock.label(events.end + 1)


def test_a_posted_event_resolves_an_issued_forecast(client: Any, live: LiveForecaster) -> None:
    now, after = following(live)
    who, whether = asked(client, "/v1/forecast", **WHO), asked(client, "/v1/whether", **WHETHER)
    assert (who["issued"], whether["issued"], whether["remark"]) == (1, 2, None)
    found = client.get("/v1/ledger").json()["forecasts"]
    assert [(one["id"], one["query"], one["time"]) for one in found] == [(1, "who", now), (2, "whether", now)]
    assert {claim["state"] for one in found for claim in one["claims"]} == {"open"}
    assert [c["p"] for c in found[0]["claims"]] == [c["p_given_event"] for c in who["candidates"]]
    assert [c["p"] for c in found[1]["claims"]] == [whether["p_event"]]
    assert client.get("/v1/ledger/score").json()["scores"] == []

    client.post("/v1/events", json=batch(event("Arvan", "visit", "Belmor", now), event("Kel", "visit", "Arvan", after)))
    [one] = client.get("/v1/ledger", params={"forecast": 2}).json()["forecasts"]
    assert [(c["state"], c["hits"], c["total"]) for c in one["claims"]] == [("yes", 1, 1)]
    score = client.get("/v1/ledger/score", params={"by": "relation"}).json()
    assert (score["forecasts"], score["open"]) == (2, 0)
    [event_score] = [s for s in score["scores"] if s["probability"] == "p_event"]
    assert (event_score["group"], event_score["claims"], event_score["came_true"]) == ("visit", 1, 1.0)
    assert event_score["brier"] == pytest.approx((1 - whether["p_event"]) ** 2)


def test_a_batch_and_an_outlook_are_issued_as_each_alone(client: Any, live: LiveForecaster) -> None:
    begun = live.view.events.clock.label(live.view.events.end - 1)
    who = {name: WHO[name] for name in ("subject", "relation")}
    sent = asked(client, "/v1/forecasts", queries=[who, {**who, "at": begun}, who], top=3)["forecasts"]
    assert [one["issued"] for one in sent] == [1, None, 1]
    assert "its window has begun" in sent[1]["remark"]
    assert asked(client, "/v1/forecast", **WHO)["issued"] == 1
    outlook = asked(client, "/v1/outlook", horizon=3, top=4)
    assert outlook["issued"] == 2
    [kept] = client.get("/v1/ledger", params={"forecast": 2}).json()["forecasts"]
    assert (kept["query"], kept["horizon"]) == ("outlook", 3)
    assert [c["p"] for c in kept["claims"]] == [c["p_event"] for c in outlook["candidates"]]
    assert asked(client, "/v1/outlook", horizon=3, top=4, at=begun)["issued"] is None


def test_a_window_that_has_begun_is_answered_and_not_issued(client: Any, live: LiveForecaster) -> None:
    now, _ = following(live)
    for path, body in (("/v1/forecast", WHO), ("/v1/whether", WHETHER)):
        answer = asked(client, path, **body, at=live.view.events.clock.label(live.view.events.end - 1))
        assert answer["issued"] is None
        assert "Not issued: " in answer["remark"]
        assert "its window has begun" in answer["remark"]
    client.post("/v1/events", json=batch(event("Kel", "visit", "Arvan", now)))
    assert asked(client, "/v1/whether", **WHETHER, at=now)["issued"] is None
    assert client.get("/v1/ledger").json() == {"forecasts": []}


def test_assumed_events_are_never_issued(client: Any, live: LiveForecaster) -> None:
    now, _ = following(live)
    answer = asked(client, "/v1/whether", **WHETHER, assume=[event("Kel", "visit", "Arvan", now)])
    assert answer["issued"] is None
    assert "assumed events" in answer["remark"]
    assert client.get("/v1/ledger").json() == {"forecasts": []}


def test_the_same_query_is_issued_once_until_something_new_comes(client: Any, live: LiveForecaster) -> None:
    now, _ = following(live)
    assert [asked(client, "/v1/forecast", **WHO)["issued"] for _ in range(3)] == [1, 1, 1]
    client.post("/v1/events", json=batch(event("Kel", "visit", "Arvan", now)))
    assert asked(client, "/v1/forecast", **WHO)["issued"] == 2


def test_nothing_is_issued_unless_it_is_switched_on(live: LiveForecaster) -> None:
    with TestClient(create_app(live)) as client:
        answer = asked(client, "/v1/whether", **WHETHER)
        assert (answer["issued"], answer["remark"]) == (None, None)
        assert client.get("/v1/ledger").json() == {"forecasts": []}
        assert client.get("/v1/ledger/score").json()["claims"] == 0


def test_an_answer_does_not_depend_on_whether_it_can_be_issued(
    client: Any, live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Any:
        raise StoreError("/secret/place: no space left on device")

    monkeypatch.setattr(live.store, "writing", full)
    answer = asked(client, "/v1/whether", **WHETHER)
    assert answer["p_event"] > 0
    assert (answer["issued"], answer["remark"]) == (None, "Not issued: the event store cannot be written now.")


def test_what_cannot_be_listed_is_refused(client: Any) -> None:
    assert "no forecast 7" in refused(client.get("/v1/ledger", params={"forecast": 7}), 404)["error"]
    for wrong in ({"last": 0}, {"last": 101}, {"forecast": "x"}):
        refused(client.get("/v1/ledger", params=wrong), 422)
    refused(client.get("/v1/ledger/score", params={"by": "year"}), 422)


def test_the_client_lists_and_scores(live: LiveForecaster) -> None:
    now, after = following(live)
    with served(create_app(live, issue=True)) as address:
        client = Client(address)
        number = client.whether("Arvan", "visit", object="Belmor")["issued"]
        client.add([("Kel", "visit", "Arvan", now), ("Kel", "visit", "Arvan", after)], source="test")
        assert client.ledger(forecast=number)[0]["claims"][0]["state"] == "no"
        assert [one["id"] for one in client.ledger(last=1)] == [number]
        assert client.ledger_score(by="month")["scores"][0]["group"] == now[:7]
        with pytest.raises(NotFoundError, match="no forecast 9"):
            client.ledger(forecast=9)
        with pytest.raises(DataError, match="by"):
            client.ledger_score(by="year")


def test_a_memory_on_disk_cannot_issue(recurrence_run: Path, tmp_path: Path) -> None:
    refusal = bridgemem("serve", recurrence_run, "--issue", "--memory-dir", tmp_path).refused()
    assert "leave --memory-dir or --issue out" in refusal

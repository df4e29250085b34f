"""What, with whom, whether and what if over HTTP: the predictor's own answers, and refusals with the right status."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient

from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from bridgemem.service.models import MOST_ASSUMED
from fits import loaded

pytest_plugins = ("small_runs",)
NEXT = "2024-02-10"  # any time after the last event
VISIT = {"subject": "Arvan", "relation": "visit", "object": "Belmor", "time": NEXT}


@pytest.fixture(scope="module")
def live(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path_factory.mktemp("store") / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture(scope="module")
def client(live: LiveForecaster) -> Iterator[Any]:
    with TestClient(create_app(live)) as made:
        yield made


@pytest.fixture
def predictor(live: LiveForecaster) -> Predictor:
    return live.view.predictor


def asked(client: Any, path: str, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_is_the_predictor_s_own(client: Any, predictor: Predictor) -> None:
    found = asked(client, "/v1/what", subject="Arvan", object="Belmor", horizon=7, top=4)
    own = predictor.what("Arvan", "Belmor", horizon=7, top=4)
    assert [(c["subject"], c["relation"], c["object"], c["rank"]) for c in found["candidates"]] == [
        (c.subject, c.relation, c.object, c.rank) for c in own
    ]
    assert [c["p_event"] for c in found["candidates"]] == pytest.approx([c.p_event for c in own])
    assert [c["p_given_event"] for c in found["candidates"]] == pytest.approx([c.p_given_event for c in own])
    assert (found["horizon"], found["past_events"], found["assumed"]) == (7, own.query.past_events, None)
    assert found["p_event"] == pytest.approx(own.query.p_event)


def test_partners_are_the_predictor_s_own(client: Any, predictor: Predictor) -> None:
    found = asked(client, "/v1/partners", actor="Arvan", top=5, at="2024-02-01")
    own = predictor.partners("Arvan", top=5, at="2024-02-01")
    assert [c["name"] for c in found["candidates"]] == [c.name for c in own]
    assert found["p_event"] is None
    assert found["time"] == "2024-02-01"


@pytest.mark.parametrize("left_out", [None, "subject", "relation", "object"])
def test_whether_takes_anybody_or_anything_for_one_of_the_three(
    client: Any, predictor: Predictor, left_out: str | None
) -> None:
    names = {"subject": "Arvan", "relation": "visit", "object": "Belmor"}
    if left_out is not None:
        del names[left_out]
    found = asked(client, "/v1/whether", **names, horizon=5)
    own = predictor.whether(**{"subject": None, "relation": None, "object": None, **names}, horizon=5)
    assert found["p_event"] == pytest.approx(own.query.p_event)
    assert {w["steps"]: w["p_event"] for w in found["within"]} == pytest.approx(
        {w.steps: w.p_event for w in own.within}
    )
    assert found["median"] == own.median


def test_who_with_a_horizon_tells_both_probabilities_under_their_names(client: Any, predictor: Predictor) -> None:
    found = asked(client, "/v1/forecast", subject="Arvan", relation="visit", horizon=5)
    assert found["p_event"] == pytest.approx(predictor.whether("Arvan", "visit", horizon=5).query.p_event)
    assert all("p_event" not in candidate for candidate in found["candidates"])
    assert asked(client, "/v1/forecast", subject="Arvan", relation="visit")["p_event"] is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/forecast", {"subject": "Arvan", "relation": "visit"}),
        ("/v1/what", {"subject": "Arvan", "object": "Belmor"}),
        ("/v1/partners", {"actor": "Arvan"}),
        ("/v1/whether", {"subject": "Arvan", "relation": "visit", "object": "Belmor"}),
    ],
    ids=["who", "what", "whom", "whether"],
)
def test_what_if_says_what_changes_and_keeps_nothing(
    client: Any, live: LiveForecaster, path: str, body: dict[str, Any]
) -> None:
    before, events = client.post(path, json=body).json(), len(live.view.events)
    found = asked(client, path, **body, assume=[VISIT, VISIT | {"time": "2024-02-11"}])
    assert found["assumed"]["events"] == 2
    assert found["time"] == "2024-02-12"
    changes = found["assumed"]["changes"]
    assert any(c["plain"] != c["assumed"] for c in changes)
    rows = found.get("candidates", found.get("within"))
    assert len(changes) == len(rows)
    assert len(live.view.events) == events
    assert client.post(path, json=body).json() == before


def test_assumed_events_that_do_not_count_are_told(client: Any) -> None:
    late = [VISIT, VISIT | {"time": "2024-02-11"}]
    found = asked(client, "/v1/partners", actor="Arvan", at="2024-02-11", assume=late)
    assert found["assumed"]["remark"].startswith("1 of the 2 assumed events, at 2024-02-11, lies not before 2024-02-11")
    said = client.post("/v1/partners", json={"actor": "Arvan", "at": NEXT, "assume": late})
    assert said.status_code == 422
    assert "none of the 2 assumed events lies before" in said.text


def test_an_assumed_event_may_bring_a_name_that_is_asked_about(client: Any) -> None:
    new = {"subject": "Newland", "relation": "visit", "object": "Arvan", "time": NEXT}
    found = asked(client, "/v1/partners", actor="Newland", assume=[new])
    assert [c["name"] for c in found["candidates"]] == ["Arvan"]
    assert found["assumed"]["changes"] == [
        {"answer": "Arvan", "plain": None, "assumed": found["candidates"][0]["p_event"]}
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/what", {"subject": "Arvan", "object": "Nobody"}, 404, "no entity is called 'Nobody'"),
        ("/v1/whether", {"subject": "Arvan", "relation": "vist"}, 404, "no relation is called 'vist'"),
        ("/v1/whether", {"subject": "Arvan"}, 422, "give two of subject, relation and object"),
        ("/v1/whether", {}, 422, "give two of subject, relation and object"),
        ("/v1/what", {"subject": "Arvan"}, 422, "object"),
        ("/v1/what", {"subject": "Arvan", "object": "Belmor", "horizon": 0}, 422, "horizon"),
        ("/v1/what", {"subject": "Arvan", "object": "Belmor", "horizon": 10_001}, 422, "horizon"),
        ("/v1/partners", {"actor": "Arvan", "at": "1990-01-01"}, 422, "lies before the data set begins"),
        ("/v1/partners", {"actor": "Arvan", "at": "9999-12-30", "horizon": 99}, 422, "too far ahead"),
        ("/v1/partners", {"actor": "Arvan", "top": 0}, 422, "top"),
        ("/v1/partners", {"actor": "Arvan", "assume": []}, 422, "assume"),
        ("/v1/partners", {"actor": "Arvan", "assume": [VISIT] * (MOST_ASSUMED + 1)}, 422, "assume"),
        ("/v1/partners", {"actor": "Arvan", "assume": [VISIT | {"time": "soon"}]}, 422, "soon"),
        ("/v1/partners", {"actor": "Arvan", "p_event": 1}, 422, "p_event"),
    ],
)
def test_a_refusal_has_the_right_status_and_one_sentence(
    client: Any, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]


def test_queries_of_every_kind_at_once_are_answered_as_alone(client: Any) -> None:
    bodies = [
        ("/v1/forecast", {"subject": "Arvan", "relation": "visit"}),
        ("/v1/what", {"subject": "Arvan", "object": "Belmor"}),
        ("/v1/partners", {"actor": "Belmor"}),
        ("/v1/whether", {"relation": "visit", "object": "Belmor"}),
        ("/v1/what", {"subject": "Arvan", "object": "Nobody"}),
        ("/v1/partners", {"actor": "Kel", "assume": [VISIT]}),
    ] * 3
    alone = [client.post(path, json=body).json() for path, body in bodies[:6]] * 3
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda one: client.post(one[0], json=one[1]).json(), bodies))
    for one, other in zip(alone, together, strict=True):
        if "candidates" in one:
            names = [[c.get("name", c.get("relation")) for c in found["candidates"]] for found in (one, other)]
            assert names[0] == names[1]
        else:
            assert one == other


def test_leaps_of_assumed_events_are_refused_where_those_of_stored_ones_are(client: Any, live: LiveForecaster) -> None:
    live.store.max_ahead = 30
    try:
        answer = client.post("/v1/partners", json={"actor": "Arvan", "assume": [VISIT | {"time": "2034-01-01"}]})
    finally:
        live.store.max_ahead = None
    assert answer.status_code == 422
    assert "steps after the last event before it" in answer.json()["error"]


def test_an_outlook_without_a_remark_has_null_as_other_answers(client: Any, live: LiveForecaster) -> None:
    own = live.view.predictor.outlook(horizon=3, top=2).query.remark
    assert asked(client, "/v1/outlook", horizon=3, top=2)["remark"] == (own or None)

"""The service over HTTP: what it answers, what it refuses, and that it reads the past alone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient

from bridgemem.backbones.open_vocabulary import OpenVocabulary
from bridgemem.backbones.recurrence import Recurrence
from bridgemem.backbones.scorer import Scores
from bridgemem.backbones.stored import write_scores
from bridgemem.errors import BackboneError, SettingsError
from bridgemem.events.dates import parse_date
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.queries import Queries
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.memory.past import Past
from bridgemem.runs import Run
from bridgemem.service.app import create_app
from bridgemem.service.limits import Limits
from builders import SMALL_READER, dataset_of, random_log, side
from commands import ACTORS, TINY_READER, bridgemem
from fits import fit_run, loaded
from precision import close

pytest_plugins = ("small_runs",)

ASKED = {"subject": "Arvan", "relation": "visit"}
JSON = {"Content-Type": "application/json"}
NEXT, SECOND_NEXT = "2024-02-10", "2024-02-11"  # the first days after the planted data


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture
def client(live: LiveForecaster) -> Iterator[Any]:
    with TestClient(create_app(live)) as made:
        yield made


def event(subject: str, relation: str, object: str, time: str | int) -> dict[str, Any]:
    return {"subject": subject, "relation": relation, "object": object, "time": time}


def batch(*events: dict[str, Any], key: str = "one") -> dict[str, Any]:
    return {"source": "test", "key": key, "events": list(events)}


def refused(answer: Any, status: int) -> dict[str, Any]:
    """The body of an error, which has one shape everywhere."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"error", "suggestions"}
    assert body["error"].endswith((".", "?"))
    assert "\n" not in body["error"]
    return body


def ready(client: Any) -> None:
    """Wait until the service has made itself ready."""
    for _ in range(6000):
        if client.get("/readyz").status_code != 503:
            return
        time.sleep(0.01)
    pytest.fail("the service was never ready")


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inverse", [False, True])
def test_a_forecast_is_that_of_the_run(client: Any, recurrence_run: Path, inverse: bool) -> None:
    expected = Run(recurrence_run).predictor().forecast(relation="visit", top=5, **side("Arvan", inverse))
    found = client.post("/v1/forecast", json={"relation": "visit", "top": 5, **side("Arvan", inverse)}).json()
    assert (found["time"], found["step"]) == (NEXT, 40)
    assert (found["subject"], found["object"]) == ((None, "Arvan") if inverse else ("Arvan", None))
    assert [tuple(c.values()) for c in found["candidates"]] == [
        (c.name, c.rank, c.backbone_rank, c.score, c.backbone_score, c.residual, c.p_given_event) for c in expected
    ]


def test_the_parts_of_an_explanation_sum_to_the_score_of_the_forecast(client: Any) -> None:
    best = client.post("/v1/forecast", json=ASKED).json()["candidates"][0]
    why = client.post("/v1/explain", json={**ASKED, "object": best["name"]}).json()
    assert why["residual_name"] == "bridgemem"
    assert why["score"] == pytest.approx(best["score"])
    assert why["base"] + sum(e["part"] for e in why["events"]) == pytest.approx(why["score"])
    assert best["name"] in why["sentence"]


def test_a_learned_residual_is_explained_by_groups_that_sum_to_it(own_csv: Path, tmp_path: Path) -> None:
    few = (*TINY_READER, "--residual", "learned", "--learned-set", "epochs=1")
    assert bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", tmp_path / "run", *few).code == 0
    with EventStore(tmp_path / "events.duckdb") as store:
        client = TestClient(create_app(LiveForecaster(loaded(tmp_path / "run", residual="learned"), store)))
        assert client.get("/v1/model").json()["residual"] == "learned"
        best = client.post("/v1/forecast", json=ASKED).json()["candidates"][0]
        why = client.post("/v1/explain", json={**ASKED, "object": best["name"]}).json()
    assert why["residual_name"] == "learned"
    assert why["start"] + sum(why["groups"].values()) == pytest.approx(why["residual"])
    assert (why["score"], why["rank"]) == (pytest.approx(best["score"]), best["rank"])


def test_a_horizon_keeps_the_ranking_of_its_first_step(client: Any) -> None:
    one, week = (client.post("/v1/forecast", json={**ASKED, "horizon": horizon}).json() for horizon in (None, 7))
    assert (one["horizon"], week["horizon"]) == (None, 7)
    assert [c["rank"] for c in week["candidates"]] == [c["rank"] for c in one["candidates"]]


def test_the_model_says_what_it_knows_by_now(client: Any) -> None:
    before = client.get("/v1/model").json()
    assert (before["last_time"], before["next_time"], before["events"]) == ("2024-02-09", NEXT, 600)
    client.post("/v1/events", json=batch(event("Arvan", "visit", "Newland", NEXT)))
    after = client.get("/v1/model").json()
    assert (after["next_time"], after["events"]) == (SECOND_NEXT, 601)
    assert after["entities"] == before["entities"] + 1


def test_names_are_found_by_a_few_letters_the_most_active_first(client: Any) -> None:
    found = client.get("/v1/entities", params={"q": "AR"}).json()
    assert [n["name"] for n in found["names"]] == ["Arvan", "Eskara", "Farlow"]  # one begins so, two hold it
    assert found["names"][1]["events"] > found["names"][2]["events"]
    every = client.get("/v1/relations").json()["names"]
    assert [n["events"] for n in every] == sorted((n["events"] for n in every), reverse=True)
    assert [n["name"] for n in client.get("/v1/relations?q=vissit").json()["names"]] == ["visit"]
    assert len(client.get("/v1/entities?limit=3").json()["names"]) == 3


def test_a_run_of_stored_scores_gets_ready_and_answers_for_the_steps_it_has(tmp_path: Path) -> None:
    dataset = dataset_of(random_log(4, n=300))
    recurrence, past = Recurrence.fit(dataset), Past(dataset.events)
    write_scores(tmp_path / "scores", dataset, lambda queries: recurrence.score(queries, past))
    run, _ = fit_run(dataset, tmp_path / "scores", tmp_path / "run", SMALL_READER)
    names, last = dataset.events, len(dataset.events) - 1
    asked = {
        "subject": names.entities.names[names.subject[last]],
        "relation": names.relations.names[names.relation[last]],
    }
    with (
        EventStore(tmp_path / "events.duckdb") as store,
        TestClient(create_app(LiveForecaster(loaded(run), store))) as client,
    ):
        ready(client)
        found = client.post("/v1/forecast", json={**asked, "at": names.clock.label(int(names.step[last]))})
        assert found.status_code == 200, found.text
        answer = client.post("/v1/forecast", json=asked)
        assert "no scores for" in refused(answer, 404)["error"]
        assert str(tmp_path) not in answer.text
        assert client.get("/readyz").status_code == 200


def test_a_backbone_that_can_never_answer_gets_ready_and_asks_nobody_to_come_again(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise BackboneError("these are scores of other data; write them again.")

    monkeypatch.setattr(OpenVocabulary, "score", broken)
    with TestClient(create_app(live)) as client:
        ready(client)
        answer = client.post("/v1/forecast", json=ASKED)
        assert "the service's log says why" in refused(answer, 503)["error"]
        assert "these are scores of other data" in caplog.text
        assert "retry-after" not in answer.headers


def test_days_that_begin_at_six_are_asked_and_filed_as_they_are_told(tmp_path: Path) -> None:
    log = random_log(4, n=300)
    columns = (log.subject, log.relation, log.object, log.step)
    clock = Clock("date", parse_date("2014-01-01T06:00"), 86_400)
    dataset = dataset_of(EventLog(*columns, log.entities, log.relations, clock))
    Recurrence.fit(dataset).save(tmp_path / "backbone")
    run, _ = fit_run(dataset, tmp_path / "backbone", tmp_path / "run", SMALL_READER)
    asked = {"subject": "entity 1", "relation": "relation 0", "top": 1}
    with EventStore(tmp_path / "events.duckdb") as store:
        client = TestClient(create_app(LiveForecaster(loaded(run), store)))
        now = client.get("/v1/model").json()["next_time"]
        assert client.post("/v1/forecast", json=asked).json()["step"] == log.end
        assert client.post("/v1/forecast", json={**asked, "at": now}).json()["step"] == log.end
        stored = client.post("/v1/events", json=batch(event("entity 1", "relation 0", "Newland", now))).json()
        assert (stored["accepted"], stored["late"]) == (1, 0)
        found = client.post("/v1/forecast", json={**asked, "top": 20}).json()
        why = {"subject": "entity 1", "relation": "relation 0", "object": "Newland"}
        told = client.post("/v1/explain", json=why).json()
    assert found["step"] == log.end + 1
    assert "Newland" in {c["name"] for c in found["candidates"] if c["residual"]}
    assert (told["time"], [e["time"] for e in told["events"]]) == (found["time"], [now])


def test_the_model_begins_at_the_first_event(tmp_path: Path) -> None:
    log = random_log(4, n=300)
    columns = (log.subject, log.relation, log.object, log.step + 1960)
    dataset = dataset_of(EventLog(*columns, log.entities, log.relations))
    Recurrence.fit(dataset).save(tmp_path / "backbone")
    run, _ = fit_run(dataset, tmp_path / "backbone", tmp_path / "run", SMALL_READER)
    with EventStore(tmp_path / "events.duckdb") as store:
        client = TestClient(create_app(LiveForecaster(loaded(run), store)))
        assert client.get("/v1/model").json()["first_time"] == str(1960 + log.start)
        asked = {"subject": "entity 1", "relation": "relation 0", "at": 1200}
        assert "before the data set begins" in refused(client.post("/v1/forecast", json=asked), 422)["error"]


def test_a_time_before_the_calendar_is_no_time_ahead(client: Any) -> None:
    answer = client.post("/v1/forecast", json={**ASKED, "at": "0001-01-01"})
    assert "lies before the data set begins, at 2024-01-01" in refused(answer, 422)["error"]


def test_health_readiness_and_metrics(client: Any) -> None:
    assert client.get("/healthz").json() == {"state": "alive"}
    ready(client)
    assert client.get("/readyz").json() == {"state": "ready"}
    client.post("/v1/forecast", json=ASKED)
    client.post("/v1/forecast", json=ASKED)
    client.get("/made-up-by-a-caller")
    text = client.get("/metrics").text
    assert 'bridgemem_requests_total{method="POST",route="/v1/forecast",status="200"} 2.0' in text
    assert "bridgemem_scores_found 1.0" in text  # the second forecast asked the backbone no more
    assert "bridgemem_memory_events 600.0" in text
    assert "made-up" not in text


# --- growing ---------------------------------------------------------------------------------------------------------


def test_an_acknowledged_event_is_used_by_the_next_forecast(client: Any) -> None:
    asked = {**ASKED, "at": SECOND_NEXT, "top": 20}
    before = client.post("/v1/forecast", json=asked).json()["candidates"]
    added = client.post("/v1/events", json=batch(event("Arvan", "visit", "Newland", NEXT)))
    assert added.status_code == 200
    assert added.json()["accepted"] == 1
    after = client.post("/v1/forecast", json=asked).json()["candidates"]
    assert "Newland" not in {c["name"] for c in before}
    assert "Newland" in {c["name"] for c in after}
    assert after != before


def test_a_forecast_never_sees_its_own_step_or_a_later_one(client: Any) -> None:
    known = {c["name"] for c in client.post("/v1/forecast", json={**ASKED, "top": 20}).json()["candidates"]}
    queries = [{**ASKED, "at": at, "top": 20} for at in ("2024-01-20", NEXT)]
    why = {**ASKED, "at": NEXT, "object": "Belmor"}
    before = (
        [client.post("/v1/forecast", json=q).json() for q in queries],
        client.post("/v1/explain", json=why).json(),
    )
    for number, day in enumerate((NEXT, SECOND_NEXT, "2024-03-01")):
        rows = [event("Arvan", "visit", name, day) for name in sorted(known)]
        assert client.post("/v1/events", json=batch(*rows, key=str(number))).status_code == 200
    after = [client.post("/v1/forecast", json=q).json() for q in queries], client.post("/v1/explain", json=why).json()
    assert after == before
    # and they are seen one step later, so that the test can fail
    later = client.post("/v1/explain", json={**why, "at": SECOND_NEXT}).json()
    assert NEXT in {e["time"] for e in later["events"]}


def test_names_of_a_later_step_take_no_share_of_an_answer_before_it(client: Any) -> None:
    query, why = {**ASKED, "at": NEXT, "top": 99}, {**ASKED, "at": NEXT, "object": "Belmor"}
    before = [client.post(f"/v1/{kind}", json=q).json() for kind, q in (("forecast", query), ("explain", why))]
    crowd = [event(f"New {i}", "visit", "Arvan", NEXT) for i in range(50)]
    assert client.post("/v1/events", json=batch(*crowd)).status_code == 200
    after = [client.post(f"/v1/{kind}", json=q).json() for kind, q in (("forecast", query), ("explain", why))]
    chances = [[c.pop("p_given_event") for c in found[0]["candidates"]] for found in (before, after)]
    assert chances[1] == pytest.approx(chances[0])
    assert after == before
    early = client.post("/v1/explain", json={**why, "object": "New 7"})
    assert (early.status_code, "not a candidate" in early.json()["error"]) == (404, True)
    later = client.post("/v1/forecast", json={**query, "at": SECOND_NEXT}).json()["candidates"]
    assert {f"New {i}" for i in range(50)} < {c["name"] for c in later}


def test_a_batch_delivered_twice_counts_once(client: Any) -> None:
    sent = batch(event("Arvan", "visit", "Kel", NEXT))
    first, second = (client.post("/v1/events", json=sent).json() for _ in range(2))
    assert (first["replayed"], second["replayed"]) == (False, True)
    assert second["ids"] == first["ids"]
    assert client.get("/v1/model").json()["events"] == 601
    assert "bridgemem_events_accepted_total 1.0" in client.get("/metrics").text
    refused(client.post("/v1/events", json=batch(event("Kel", "visit", "Lor", NEXT))), 422)  # the key is taken


def test_a_bad_event_refuses_the_whole_batch(client: Any) -> None:
    rows = (event("Arvan", "visit", "Kel", NEXT), event("Arvan", "visit", "Kel", "soon"))
    assert "soon" in refused(client.post("/v1/events", json=batch(*rows)), 422)["error"]
    assert client.get("/v1/model").json()["events"] == 600


def test_new_relations_can_be_asked_at_once(client: Any) -> None:
    client.post("/v1/events", json=batch(event("Arvan", "trade with", "Kel", NEXT)))
    found = client.post("/v1/forecast", json={"subject": "Arvan", "relation": "trade with"}).json()
    assert found["candidates"][0]["name"] == "Kel"


def test_an_event_at_the_end_of_the_calendar_breaks_nothing(client: Any) -> None:
    refused(client.post("/v1/events", json=batch(event("Arvan", "visit", "Kel", "9999-12-31"))), 422)
    assert client.post("/v1/forecast", json=ASKED).status_code == 200


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"subject": "Arvan", "relation": "visit", "top": NaN}',
        '{"subject": "Arvan", "relation": "visit", "top": Infinity}',
        '{"subject": "Arvan", "relation": "visit", "at": -Infinity}',
        '{"subject": "Arvan", "relation": "visit", "top": 1e400}',
        '{"subject": "Arvan", "relation": "visit", "top": 0}',
        '{"subject": "Arvan", "relation": "visit", "top": "5"}',
        '{"subject": "Arvan", "relation": "visit", "top": true}',
        '{"subject": "Arvan", "relation": "visit", "inverse": true}',
        '{"subject": "Arvan", "relation": "visit", "object": "Kel"}',
        '{"relation": "visit"}',
        '{"subject": "Arvan", "relation": "visit", "at": 3.5}',
        '{"subject": "Arvan", "relation": "visit", "at": "some day"}',
        '{"subject": "Arvan", "relation": "visit", "at": "1999-01-01"}',
        '{"subject": "Arvan", "relation": "visit", "at": "9999-12-31T23:59:59-23:59"}',
        '{"subject": "Arvan", "relation": "visit", "at": "0001-01-01T00:00:00+23:59"}',
        '{"subject": "Arvan", "relation": "visit", "at": 99999999999999999999999999}',
        '{"subject": "Arvan", "relation": "visit", "tpo": 3}',
        '{"subject": "Arvan", "relation": "visit", "\\ud800": 3}',
        '{"subject": "\\ud800", "relation": "visit"}',
        '{"subject": ["Arvan"], "relation": "visit"}',
        '{"subject": "", "relation": "visit"}',
        '{"subject": "Arvan"}',
        '{"subject": "Arvan", "relation": "visit", "top": ' + "9" * 6000 + "}",
        "[" * 50_000,
        "null",
        "not JSON",
        "",
        b"\xff\xfe\x00",
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(client: Any, body: str | bytes) -> None:
    refused(client.post("/v1/forecast", content=body, headers=JSON), 422)


def test_a_form_from_another_page_is_no_query(client: Any) -> None:
    refused(client.post("/v1/forecast", content=json.dumps(ASKED), headers={"Content-Type": "text/plain"}), 422)


@pytest.mark.parametrize(
    ("path", "change", "suggestion"),
    [
        ("/v1/forecast", {"subject": "arvann"}, "Arvan"),
        ("/v1/forecast", {"relation": "visits"}, "visit"),
        ("/v1/explain", {"object": "Belmore"}, "Belmor"),
    ],
)
def test_an_unknown_name_is_not_found_and_close_ones_are_named(
    client: Any, path: str, change: dict[str, str], suggestion: str
) -> None:
    asked = ASKED if path == "/v1/forecast" else {**ASKED, "object": "Belmor"}
    found = refused(client.post(path, json={**asked, **change}), 404)
    assert found["suggestions"][0] == suggestion
    assert next(iter(change.values())) in found["error"]


def test_a_number_is_no_name(client: Any) -> None:
    refused(client.post("/v1/forecast", json={**ASKED, "subject": "3"}), 404)


def test_a_value_of_no_possible_type_is_told_what_was_wanted(client: Any) -> None:
    wanted = "at: this should be a time: a text such as '2014-12-01', or a whole number of at least 0."
    assert refused(client.post("/v1/forecast", json={**ASKED, "at": [3]}), 422)["error"] == wanted
    sent = {**batch(event("Arvan", "visit", "Kel", NEXT)), "offset": 1.5}
    assert refused(client.post("/v1/events", json=sent), 422)["error"].startswith("offset: this should be an offset")


@pytest.mark.parametrize(
    ("path", "sent", "told"),
    [
        ("forecast", {**ASKED, "foo": 1}, "foo: is no field of this request; leave it out."),
        ("forecast", {**ASKED, "top": "ten"}, "top: is no whole number; send one."),
        ("forecast", {**ASKED, "top": 0}, "top: is too small; send 1 or more."),
        ("events", {"source": "s", "key": "k", "events": []}, "events: is empty; send 1 or more."),
        ("events", {"source": "s", "events": [event("Arvan", "visit", "Kel", NEXT)]}, "key: is missing; send it."),
        ("events", batch(event("", "visit", "Kel", NEXT)), "event 1, subject: is empty; send 1 or more characters."),
    ],
)
def test_what_is_often_sent_wrongly_is_told_with_its_remedy(client: Any, path: str, sent: Any, told: str) -> None:
    assert refused(client.post(f"/v1/{path}", json=sent), 422)["error"] == told


def test_other_addresses_and_methods_are_refused_in_the_same_shape(client: Any) -> None:
    refused(client.get("/v2/forecast"), 404)
    answer = client.get("/v1/forecast")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert "405" in client.get("/openapi.json").json()["info"]["description"]


def test_a_mistake_of_the_service_tells_nothing_of_its_inside(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "answers", lambda *args, **named: 1 / 0)
    client = TestClient(create_app(live), raise_server_exceptions=False)
    assert "division" not in refused(client.post("/v1/forecast", json=ASKED), 500)["error"]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_without_the_token_only_health_is_told(live: LiveForecaster) -> None:
    client = TestClient(create_app(live, token="secret"))
    assert client.get("/healthz").status_code == 200
    for path in ("/v1/model", "/v1/entities", "/metrics", "/openapi.json", "/nowhere"):
        for header in (None, "Bearer wrong", "Bearer secre", "Bearer", "Basic secret", "Bearer sécret"):
            headers = {} if header is None else {b"Authorization": header.encode()}
            answer = client.get(path, headers=headers)
            refused(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
    refused(client.post("/v1/events", json=batch(event("Arvan", "visit", "Kel", NEXT))), 401)
    assert client.get("/v1/model", headers={"Authorization": "bearer secret"}).json()["events"] == 600


def test_the_document_says_that_a_token_is_needed(live: LiveForecaster) -> None:
    guarded = create_app(live, token="secret").openapi()
    assert guarded["paths"]["/v1/forecast"]["post"]["security"]
    assert "security" not in guarded["paths"]["/healthz"]["get"]
    assert "security" not in create_app(live).openapi()["paths"]["/v1/forecast"]["post"]


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_body_over_the_limit_is_refused_however_its_length_is_told(live: LiveForecaster, in_parts: bool) -> None:
    client = TestClient(create_app(live, limits=Limits(body=200)))
    body = json.dumps({**ASKED, "at": " " * 300}).encode()
    sent: Any = (body[i : i + 50] for i in range(0, len(body), 50)) if in_parts else body
    assert "200" in refused(client.post("/v1/forecast", content=sent, headers=JSON), 413)["error"]
    assert client.post("/v1/forecast", json=ASKED).status_code == 200


def test_a_body_that_never_ends_is_given_up(live: LiveForecaster) -> None:
    app = create_app(live, limits=Limits(timeout=0.01, concurrent=1))
    answers: list[dict[str, Any]] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/forecast", "headers": [], "query_string": b""}

    async def never() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def note(message: dict[str, Any]) -> None:
        answers.append(message)

    asyncio.run(app(scope, never, note))  # type: ignore[arg-type]
    assert answers[0]["status"] == 408
    assert TestClient(app).post("/v1/forecast", json=ASKED).status_code != 429  # its place is free again


def test_the_backbone_is_asked_by_one_thread_at_a_time(live: LiveForecaster, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, score = 0, 0, OpenVocabulary.score

    def counting(self: OpenVocabulary, queries: Queries, past: Past) -> Scores:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.005)  # long enough for another thread to come in, if it could
        try:
            return score(self, queries, past)
        finally:
            inside -= 1

    client = TestClient(create_app(live))
    alone = [client.post("/v1/forecast", json={**ASKED, "subject": name}).json() for name in ACTORS]
    live.add([("Arvan", "visit", "Kel", "2024-05-01")], source="test", key="another view")
    monkeypatch.setattr(OpenVocabulary, "score", counting)
    queries = [{**ASKED, "subject": name, "at": NEXT} for name in ACTORS]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: client.post("/v1/forecast", json=query).json(), queries))
    for one, other in zip(together, alone, strict=True):
        named = [[(c["name"], c["rank"]) for c in answer["candidates"]] for answer in (one, other)]
        assert named[0] == named[1]
        scores = [[c["score"] for c in answer["candidates"]] for answer in (one, other)]
        assert close(*scores)  # those that came together are scored in one batch
    assert most == 1


def test_too_many_at_once_are_asked_to_come_again(live: LiveForecaster, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answers_of = Predictor.answers

    def slow(*args: Any, **named: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return answers_of(*args, **named)

    with TestClient(create_app(live, limits=Limits(concurrent=1))) as client:
        ready(client)  # making ready forecasts too
        monkeypatch.setattr(Predictor, "answers", slow)
        answers: list[Any] = []
        first = threading.Thread(target=lambda: answers.append(client.post("/v1/forecast", json=ASKED)))
        first.start()
        try:
            assert begun.wait(30)
            crowded = client.get("/v1/model")
            assert client.get("/healthz").status_code == 200
        finally:
            go_on.set()
            first.join()
        refused(crowded, 429)
        assert int(crowded.headers["retry-after"]) > 0
        assert answers[0].status_code == 200
        assert client.get("/v1/model").status_code == 200


def test_a_page_that_points_its_own_name_here_is_refused(live: LiveForecaster) -> None:
    client = TestClient(create_app(live, hosts=("localhost", "[::1]")))
    refused(client.get("/v1/model", headers={"Host": "evil.example"}), 421)
    for host in ("localhost", "localhost:8008", "[::1]:8008"):
        assert client.get("/v1/model", headers={"Host": host}).status_code == 200


def test_limits_that_let_nobody_in_are_refused() -> None:
    for wrong in ({"body": 0}, {"concurrent": 0}, {"timeout": 0.0}, {"timeout": float("nan")}, {"per_client": 0}):
        with pytest.raises(SettingsError):
            Limits(**wrong)

"""bridgemem.Client against the real service: answers, errors, and retries that store nothing twice."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from bridgemem import Client
from bridgemem.cli.serve import listen
from bridgemem.client import ServiceError, sending
from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from fits import loaded
from serving import served

pytest_plugins = ("small_runs",)
EVENT = ("Arvan", "visit", "Kel", "2024-02-10")


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    # of the client alone: threads of the service sleep by the same name
    clock = SimpleNamespace(sleep=waited.append)
    monkeypatch.setattr(sending, "time", clock)
    return waited


def test_every_method_gives_what_the_service_answers(live: LiveForecaster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    with served(create_app(live, token="s3cret")) as address:
        asked = Client(address, token_file=tmp_path / "token")
        assert asked.model()["events"] == 600
        best = asked.forecast("Arvan", "visit", top=1)["candidates"][0]
        assert asked.explain("Arvan", "visit", best["name"])["score"] == pytest.approx(best["score"])
        assert asked.forecast(relation="visit", object="Kel", at="2024-01-20", horizon=2)["subject"] is None
        assert {c["subject"] for c in asked.what("Arvan", "Kel", horizon=3)["candidates"]} <= {"Arvan", "Kel"}
        assert asked.partners("Arvan", top=2, at="2024-01-20")["time"] == "2024-01-20"
        assert 0 < asked.whether("Arvan", "visit", horizon=3)["p_event"] < 1
        ahead = asked.outlook(horizon=3, top=4, watch=["Arvan", ("Kel", "Belmor")])
        assert [one["rank"] for one in ahead["candidates"]] == [1, 2, 3, 4]
        supposed = asked.whether("Arvan", "visit", object="Kel", assume=[EVENT])
        assert supposed["assumed"]["events"] == 1
        assert asked.model()["events"] == 600  # what is assumed is not kept
        both = asked.forecasts([{"subject": "Arvan", "relation": "visit"}, {"object": "Kel", "relation": "visit"}])
        assert len(both) == 2
        receipt = asked.add(
            [EVENT, dict(zip(("subject", "relation", "object", "time"), EVENT, strict=True))], source="t"
        )
        assert (receipt["accepted"], receipt["duplicates"]) == (2, 1)
        assert [event["id"] for event in asked.stored("t", last=5)] == receipt["ids"]
        assert asked.retract(receipt["ids"][:1], reason="twice")["retracted"] == ["e1"]
        assert asked.sources()[0]["events"] == 2
        assert asked.limits()["events"] == 10_000
        assert asked.entities("arv")[0]["name"] == "Arvan"
        assert "visit" in {found["name"] for found in asked.relations()}
        with pytest.raises(ServiceError, match="token") as refused:
            Client(address, retries=0).model()
        assert refused.value.status == 401


def test_refusals_are_the_errors_of_the_library(live: LiveForecaster) -> None:
    with served(create_app(live)) as address:
        asked = Client(address)
        with pytest.raises(NotFoundError, match="Arvann") as unknown:
            asked.forecast("Arvann", "visit")
        assert unknown.value.suggestions[0] == "Arvan"
        with pytest.raises(DataError, match="soon"):
            asked.add([(*EVENT[:3], "soon")], source="t")
        with pytest.raises(DataError, match=r"\(subject, relation, object, time\)"):
            asked.add([("Arvan", "visit")], source="t")


def lossy(once: Callable[..., Any], lost: int) -> Callable[..., Any]:
    """Requests that arrive, while the answers to the first of them get lost."""
    calls = 0

    def sent(self: Client, method: str, path: str, body: bytes | None) -> Any:
        nonlocal calls
        calls += 1
        answer = once(self, method, path, body)
        if calls <= lost:
            raise http.client.RemoteDisconnected("the line went dead")
        return answer

    return sent


def test_a_batch_whose_answer_got_lost_is_sent_again_and_counts_once(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch, no_waiting: list[float]
) -> None:
    with served(create_app(live)) as address:
        monkeypatch.setattr(Client, "_once", lossy(Client._once, lost=2))
        receipt = Client(address).add([EVENT], source="t")
        assert receipt["replayed"] is True
        assert Client(address).model()["events"] == 601
    assert len(no_waiting) == 2
    assert no_waiting[0] < no_waiting[1]  # the second time it waits longer


def test_a_service_that_is_busy_is_asked_again_when_it_says_so(
    monkeypatch: pytest.MonkeyPatch, no_waiting: list[float]
) -> None:
    answers = [(429, "3", {}), (503, None, {}), (200, None, {"events": 1})]
    monkeypatch.setattr(Client, "_once", lambda *args: answers.pop(0))
    assert Client("http://127.0.0.1:1").model() == {"events": 1}
    assert 3 <= no_waiting[0] < 4
    assert no_waiting[1] < 1


def test_what_stays_wrong_is_said_in_one_sentence(no_waiting: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as place:
        port = place.getsockname()[1]
    with pytest.raises(ServiceError, match=rf"127.0.0.1:{port} cannot be reached: .*; check that it") as problem:
        Client(f"http://127.0.0.1:{port}", retries=2).model()
    assert (problem.value.status, len(no_waiting)) == (0, 2)
    monkeypatch.setattr(Client, "_once", lambda *args: (503, None, {"error": "not now."}))
    with pytest.raises(ServiceError, match="not now"):
        Client(retries=0).model()


@pytest.mark.parametrize("address", ["127.0.0.1:8008", "ftp://here", "http://", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="not the address of a service"):
        Client(address)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for wrong in ({"timeout": 0}, {"retries": -1}, {"token": "a", "token_file": tmp_path}):
        with pytest.raises(SettingsError):
            Client(**wrong)
    with pytest.raises(DataError, match="JSON"):
        Client(retries=0).forecast("a", "b", at=float("nan"))  # type: ignore[arg-type]

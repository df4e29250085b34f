"""Log lines: one for each request, text or JSON, with the counts of a batch and without the names of events."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")
pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")

from starlette.testclient import TestClient
from test_app import ASKED, NEXT, batch, event

from bridgemem.config import LogFormat, LogLevel
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from bridgemem.service.limits import Limits
from bridgemem.service.logs import set_up_logs
from commands import bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)
NAMES = ("Arvan", "visit", "Kel")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    logs = [logging.getLogger(name) for name in ("bridgemem", "uvicorn", "py.warnings")]
    before = [(log, log.handlers, log.propagate, log.level) for log in logs]
    yield
    logging.captureWarnings(False)
    for log, handlers, propagate, level in before:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


@pytest.fixture
def client(recurrence_run: Path, tmp_path: Path) -> Iterator[Any]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield TestClient(create_app(LiveForecaster(loaded(recurrence_run), store), limits=Limits(body=20_000)))


def written(form: LogFormat = "json", level: LogLevel = "info") -> io.StringIO:
    out = io.StringIO()
    set_up_logs(form, level, out)
    return out


def lines_of(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_request_leaves_one_line_that_names_the_model(client: Any) -> None:
    out = written()
    answer = client.post("/v1/forecast", json=ASKED)
    (line,) = lines_of(out)
    assert list(line) == [
        "time", "level", "message", "method", "route", "status", "milliseconds", "client", "model_version",
    ]  # fmt: skip
    assert (line["level"], line["message"], line["method"]) == ("info", "request", "POST")
    assert (line["route"], line["status"], line["client"]) == ("/v1/forecast", 200, "testclient")
    assert line["milliseconds"] > 0
    assert line["time"].endswith("Z")
    assert line["model_version"] == answer.headers["bridgemem-model"]
    assert line["model_version"].startswith("run@")


def test_the_line_of_a_batch_has_its_source_key_and_counts(client: Any) -> None:
    out = written()
    told = event(*NAMES, NEXT)
    client.post("/v1/events", json=batch(told, told, event(*NAMES, "2024-01-05")))
    client.post("/v1/events", json=batch(told, told, event(*NAMES, "2024-01-05")))
    first, again = lines_of(out)
    assert (first["source"], first["key"], first["batch"]) == ("test", "one", 1)
    counts = ("accepted", "duplicates", "late", "rejected", "replayed")
    assert [first[name] for name in counts] == [3, first["duplicates"], 1, 0, False]
    assert first["duplicates"] >= 1
    assert again["replayed"] is True


def test_a_refused_batch_is_counted_with_its_reason(client: Any) -> None:
    out = written()
    client.post("/v1/events", json=batch(event(*NAMES, NEXT), event(*NAMES, "soon")))
    (line,) = lines_of(out)
    assert (line["level"], line["status"], line["source"]) == ("warning", 422, "test")
    assert (line["rejected"], line["reason"]) == (2, "bad_data")


def test_every_refusal_has_a_reason_and_its_route(client: Any) -> None:
    out = written()
    client.get("/v2/a%0Ab")
    client.get("/v1/forecast")
    client.post("/v1/forecast", json={**ASKED, "top": -1})
    client.post("/v1/forecast", json={**ASKED, "subject": "Arvna"})
    client.post("/v1/forecast", json={**ASKED, "subject": "A" * 30_000})
    found = [(line["route"], line["status"], line["reason"]) for line in lines_of(out)]
    assert found == [
        ("other", 404, "address"),
        ("/v1/forecast", 405, "method"),
        ("/v1/forecast", 422, "invalid"),
        ("/v1/forecast", 404, "not_found"),
        ("/v1/forecast", 413, "too_large"),
    ]
    assert lines_of(out)[0]["path"] == "/v2/a\nb"


def test_events_are_named_at_level_debug_alone(client: Any) -> None:
    def ask() -> None:
        client.post("/v1/events", json=batch(event("Arvan", "visit", "Kel", "soon")))
        client.post("/v1/forecast", json=ASKED)
        client.post("/v1/forecast", json={**ASKED, "subject": "Arvanna"})

    quiet = written(level="info")
    ask()
    assert len(lines_of(quiet)) == 3
    assert not [name for name in (*NAMES, "soon") if name in quiet.getvalue()]
    full = written(level="debug")
    ask()
    _, asked, unknown = lines_of(full)
    assert (asked["subject"], asked["relation"]) == ("Arvan", "visit")
    assert "'Arvanna'" in unknown["error"]


@pytest.mark.parametrize(("level", "seen"), [("debug", 4), ("info", 2), ("warning", 1), ("error", 0)])
def test_a_level_leaves_out_those_below_it_and_probes_are_debug(client: Any, level: LogLevel, seen: int) -> None:
    out = written(level=level)
    client.get("/healthz")
    assert client.get("/readyz").status_code == 503  # as during the start
    client.get("/v1/model")
    client.get("/nowhere")
    assert len(lines_of(out)) == seen


def test_text_is_one_line_whatever_a_client_sends(client: Any) -> None:
    out = written("text")
    sent = batch(event(*NAMES, NEXT), key="a\nb=\x1b[1m" + "x" * 500)
    assert client.post("/v1/events", json=sent).status_code == 200
    (line,) = out.getvalue().splitlines()
    assert " info request method=POST route=/v1/events status=200 " in line
    assert r'key="a\nb=\u001b[1mxxx' in line
    assert len(line) < 500


def test_a_mistake_leaves_its_traceback_inside_one_json_line(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = written()
    monkeypatch.setattr(Predictor, "answers", lambda *args, **named: 1 / 0)
    careless = TestClient(client.app, raise_server_exceptions=False)
    assert careless.post("/v1/forecast", json=ASKED).status_code == 500
    told, line = sorted(lines_of(out), key=lambda line: line["message"] == "request")
    assert "ZeroDivisionError" in told["traceback"]
    assert (line["level"], line["reason"]) == ("error", "internal")


def test_what_the_server_and_python_remark_has_the_same_form() -> None:
    out = written()
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    warnings.warn("old", UserWarning, stacklevel=1)
    assert [line["level"] for line in lines_of(out)] == ["warning", "warning"]


@pytest.mark.parametrize("option", ["--log-format", "--log-level"])
def test_a_format_or_level_that_is_none_is_refused(recurrence_run: Path, option: str) -> None:
    said = bridgemem("serve", recurrence_run, "--port", "0", option, "loud").refused()
    assert option in said or option.removeprefix("--").replace("-", "_") in said

"""`bridgemem serve` and the load test: a process that listens, answers under load, and ends well."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from benchmarks.load import SERVE, Outcome, Plan, load, main, percentile, record, report, serving

from bridgemem.live.eventstore import EventStore
from commands import bridgemem

pytest_plugins = ("small_runs",)


def started(*words: str | Path) -> tuple[subprocess.Popen[str], str]:
    """A service in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SERVE, "serve", *map(str, words), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found is not None, process.communicate()
    return process, found[0]


def test_a_service_keeps_its_events_and_ends_well(recurrence_run: Path, tmp_path: Path) -> None:
    secret, store = tmp_path / "token", tmp_path / "events.duckdb"
    secret.write_text("s3cret\n")
    event = {"subject": "Arvan", "relation": "visit", "object": "Newland", "time": "2024-02-10"}
    body = json.dumps({"source": "test", "key": "one", "events": [event]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer s3cret"}
    logs = ("--log-format", "json")
    process, address = started(recurrence_run, "--store", store, "--token-file", secret, *logs)
    try:
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{address}/v1/model", timeout=60)
        asked = urllib.request.Request(f"{address}/v1/events", body, headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["ids"] == ["e1"]
        slip = json.dumps({"source": "test", "key": "two", "events": [{**event, "time": "2031-02-10"}]}).encode()
        with pytest.raises(urllib.error.HTTPError, match="422"):
            urllib.request.urlopen(urllib.request.Request(f"{address}/v1/events", slip, headers), timeout=60)
    finally:
        process.terminate()
        out, err = process.communicate(timeout=60)
    lines = [json.loads(line) for line in err.splitlines()]
    assert process.returncode == 0
    assert [(line["route"], line["status"]) for line in lines if line["message"] == "request"] == [
        ("/v1/model", 401),
        ("/v1/events", 200),
        ("/v1/events", 422),
    ]
    assert out.startswith("Ended")
    with EventStore(store, create=False) as kept:
        assert kept.events().entities.names == ("Arvan", "Newland")


def test_a_small_load_is_answered_without_an_error_and_memory_stays(recurrence_run: Path) -> None:
    plan = Plan(clients=3, seconds=3, events=0.1, explain=0.2, alone=10)
    with serving(recurrence_run) as port:
        outcome = load(port, plan)
    assert outcome.errors == []
    assert len(outcome.together) > 0
    together = {"forecast", "explain", "event"}
    assert together | {"forecast alone, first", "forecast alone, again", "10 events alone"} == outcome.seconds.keys()
    page = report(outcome, plan)
    assert page.startswith("# The service under load\n")
    assert "0 errors" in page
    assert "| forecast |" in page
    row = record(outcome, plan)
    assert (row.operation, row.agrees) == ("service, 3 clients", True)
    assert row.figures["requests_per_second"] > 0
    if outcome.memory[0]:  # where the system tells
        assert max(outcome.memory) - outcome.memory[0] < 100 << 20


def test_the_load_test_of_no_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "service.md")]) == 2
    assert capsys.readouterr().err.startswith("bridgemem: there is no run at ")


def test_an_error_under_load_is_shown() -> None:
    model = {"dataset": "d", "backbone": "b", "residual": "bridgemem", "events": 1, "entities": 1, "relations": 1}
    outcome = Outcome(errors=["forecast: 500 no"], memory=[1], wall=1.0, model=model)
    assert "1 errors" in report(outcome, Plan())
    assert "- forecast: 500 no" in report(outcome, Plan())


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no run" in bridgemem("serve", tmp_path / "none").refused()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(recurrence_run: Path, seconds: str) -> None:
    assert "above 0, not" in bridgemem("serve", recurrence_run, "--port", "0", "--timeout", seconds).refused()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", "sécret".encode(), b"a\x00b"])
def test_a_file_without_a_token_is_refused(recurrence_run: Path, tmp_path: Path, content: bytes) -> None:
    secret = tmp_path / "token"
    secret.write_bytes(content)
    assert "token" in bridgemem("serve", recurrence_run, "--token-file", secret).refused()
    lost = bridgemem("serve", recurrence_run, "--token-file", secret.parent / "lost").refused()
    assert "lost cannot be read: No such file or directory; write the token into a file, and name it." in lost


def test_a_port_that_is_taken_is_refused_before_anything_is_made(recurrence_run: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.duckdb"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in bridgemem("serve", recurrence_run, "--port", port, "--store", store).refused()
    assert not store.exists()


def test_a_file_that_is_no_store_is_refused(recurrence_run: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.duckdb"
    store.write_text("not a store")
    assert "events.duckdb" in bridgemem("serve", recurrence_run, "--store", store, "--port", "0").refused()
    assert store.read_text() == "not a store"


@pytest.mark.parametrize("command", ["serve", "explore"])
def test_where_no_store_can_be_made_the_option_that_names_another_is_told(
    command: str, recurrence_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridgemem.cli.serve.default_store", lambda run: Path("/proc/none.events.duckdb"))
    said = bridgemem(command, recurrence_run, "--port", "0").refused()
    assert "none.events.duckdb cannot be written" in said
    assert "--store names another file" in said

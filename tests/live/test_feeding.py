"""serve --follow: a file is taken in exactly once while forecasts are answered, through kills and restarts."""

from __future__ import annotations

import csv
import gzip
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from test_following import WAIT, expected, line, stored

from bridgemem.errors import NotFoundError
from bridgemem.events.readers.json_lines import JsonLines
from bridgemem.events.readers.options import ReadOptions
from bridgemem.live import feeding
from bridgemem.live.eventstore import EventStore
from bridgemem.live.feeding import Feeding
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.storefile import StoreError
from commands import bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "store") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


def fed(live: LiveForecaster, feed: Path, **more: bool) -> Feeding:
    lines = JsonLines(ReadOptions(), live.view.events)
    return Feeding(live, feed, lines, source=None, rejects=feed.with_name("rejects.csv"), **more)


def compressed(feed: Path, text: str) -> None:
    """Rotate a feed as logrotate does with compress and create."""
    old = feed.with_name("feed.jsonl.1")
    feed.rename(old)
    feed.write_text(text)
    old.with_name("feed.jsonl.1.gz").write_bytes(gzip.compress(old.read_bytes()))
    old.unlink()


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_file_gets_is_in_the_next_forecast_once(live: LiveForecaster, tmp_path: Path) -> None:
    feed = tmp_path / "feed.jsonl"
    feed.write_text(line(0) + line(1)[:9])
    with fed(live, feed).running():
        wait_until(lambda: live.stored == 1)
        assert "s0" in {c.name for c in live.forecast(relation="visit", object="Kel", at="2024-02-11", top=99)}
        with feed.open("a") as writer:
            writer.write(line(1)[9:] + line(2))
        wait_until(lambda: live.stored == 3)
    with feed.open("a") as writer:
        writer.write(line(3))
    with fed(live, feed).running():  # where it was left off
        wait_until(lambda: live.stored == 4)
    assert [event.subject for event in live.store.stored()] == expected(4)


def test_lines_that_cannot_be_used_are_set_aside_and_the_rest_goes_on(live: LiveForecaster, tmp_path: Path) -> None:
    feed, live.store.max_ahead = tmp_path / "feed.jsonl", 30
    feed.write_text(line(0) + "no json\n" + line(9, time="2042-02-10") + line(1))
    with fed(live, feed).running():
        wait_until(lambda: live.stored == 2)
    assert [event.subject for event in live.store.stored()] == expected(2)
    with (tmp_path / "rejects.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["line"] for row in rows] == ["2", "3"]
    assert "steps after the last event; --max-ahead allows 30" in rows[1]["reason"]


def test_a_store_that_cannot_be_written_for_a_while_loses_and_repeats_nothing(
    live: LiveForecaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "AGAIN", 0.01)
    add, feed, failures = live.add, tmp_path / "feed.jsonl", [1, 2]

    def unsure(*batch: object) -> object:
        made = add(*batch) if len(failures) == 1 else None  # the second time it was written, and nobody was told
        if failures:
            failures.pop()
            raise StoreError("No space left on device.")
        return made or add(*batch)

    monkeypatch.setattr(live, "add", unsure)
    feed.write_text(line(0) + line(1))
    with fed(live, feed).running():
        wait_until(lambda: not failures)
        with feed.open("a") as writer:
            writer.write(line(2))
        wait_until(lambda: live.stored == 3)
    assert [event.subject for event in live.store.stored()] == expected(3)


def test_a_file_that_is_not_there_is_refused_before_anything_is_served(
    live: LiveForecaster, recurrence_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match="no file"):
        fed(live, tmp_path / "feed.jsonl")
    command = ("serve", recurrence_run, "--port", "0", "--store", tmp_path / "other")
    assert "there is no file" in bridgemem(*command, "--follow", tmp_path / "feed.jsonl").refused()
    assert "use --follow" in bridgemem(*command, "--source", "wire").refused()


def test_a_feed_that_was_lost_while_the_service_was_down_is_left_out_until_it_is_read_from_its_start(
    live: LiveForecaster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = tmp_path / "feed.jsonl"
    feed.write_text(line(0) + line(1))
    with fed(live, feed).running():
        wait_until(lambda: live.stored == 2)
    compressed(feed, line(2))
    lost = fed(live, feed)
    with lost.running():
        assert not lost.following
    assert [record.levelname for record in caplog.records if "without the feed" in record.message] == ["ERROR"]
    assert "--from-start" in caplog.text
    for _ in range(2):  # the option may stay set
        with fed(live, feed, from_start=True).running():
            wait_until(lambda: live.stored == 3)
    assert [event.subject for event in live.store.stored()] == expected(3)


@contextmanager
def serving(*args: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service in a process of its own, and its address."""
    command = [sys.executable, "-u", "-m", "bridgemem", "serve", *map(str, args), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split(" at ")[1].split()[0]
        finally:
            process.kill()


def metric(address: str, name: str) -> float:
    with urlopen(f"{address}/metrics", timeout=WAIT) as answer:
        values = (row.split() for row in answer.read().decode().splitlines() if not row.startswith("#"))
        return float(dict(values)[name])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_service_that_is_killed_goes_on_where_its_file_was_left(recurrence_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
    from bridgemem.client import Client

    feed, store = tmp_path / "feed.jsonl", tmp_path / "store"
    feed.write_text("".join(map(line, range(3))))
    command = (recurrence_run, "--store", store, "--follow", feed)

    def told(address: str) -> int:
        return len(Client(address).stored(last=100))

    with serving(*command) as (process, address):
        wait_until(lambda: told(address) == 3)
        with feed.open("a") as writer:
            writer.write("".join(map(line, range(3, 6))))
        process.send_signal(signal.SIGKILL)
    with serving(*command) as (process, address):
        wait_until(lambda: told(address) == 6)
        rejected = json.loads(line(6)) | {"time": "never"}
        with feed.open("a") as writer:
            writer.write(json.dumps(rejected) + "\n" + line(6))
        wait_until(lambda: told(address) == 7)
        assert metric(address, "bridgemem_feed_followed") == 1
        process.send_signal(signal.SIGTERM)
        assert "every event that was acknowledged is stored" in process.communicate(timeout=WAIT)[0]
    assert stored(store) == expected(7)
    compressed(feed, line(7))
    with serving(*command) as (process, address):
        assert told(address) == 7
        assert metric(address, "bridgemem_feed_followed") == 0
    with serving(*command, "--from-start") as (process, address):
        wait_until(lambda: told(address) == 8)
    assert stored(store) == expected(8)
    assert "never" in (tmp_path / "store.rejects.csv").read_text()

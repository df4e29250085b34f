"""A live forecaster killed among batches, group commits and merges: what was acknowledged is there, whole, and read."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bridgemem.events.naming import NewEvent
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live import forecasting
from bridgemem.live.compaction import compact
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.memory.past import Past

pytest_plugins = ("small_runs",)

SENDERS = 3


def batch(sender: str, number: int) -> list[NewEvent]:
    """Between one and nine events that tell whose batch they belong to, and how many it has; some are late."""
    size = 1 + (number * 7) % 9
    day = f"2024-02-{10 + number % 12:02d}"
    return [("Arvan", f"of {size}", f"{sender} {number} {part}", day) for part in range(size)]


def send_for_ever(run: str, path: str, acknowledged: str) -> None:
    """Several senders at once, each from where the store stands; every few batches everything is merged."""
    forecasting.LARGE, forecasting.SHARE = 40, 0.0
    store = EventStore(path)
    assert store._database.connection is not None
    # small, so that the write-ahead log is folded into the file many times a second, and kills fall there too
    store._database.connection.execute("SET checkpoint_threshold = '16KB'")
    live = LiveForecaster(Forecaster.load(run), store)
    begun = {source.source: source.batches for source in store.sources()}
    note = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def send(sender: str) -> None:
        number = begun.get(sender, 0)
        while True:
            number += 1
            live.add(batch(sender, number), sender, str(number), number)
            os.write(note, f"{sender}\n".encode())

    senders = [threading.Thread(target=send, args=(f"sender {place}",)) for place in range(SENDERS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def compact_for_ever(path: str) -> None:
    while True:
        compact(EventStore(path))


def check(run: Path, path: Path, acknowledged: Path) -> Counter[str]:
    """Every acknowledged batch is whole, at most one more of each sender is there; forecasts are those of a rebuild."""
    with EventStore(path) as store:
        live = LiveForecaster(Forecaster.load(run), store)
        held = {source.source: source.batches for source in store.sources()}
        told = Counter(acknowledged.read_text().splitlines())
        for sender, count in held.items():
            assert told[sender] <= count <= told[sender] + 1
        assert told.keys() <= held.keys()
        expected = Counter(event for sender, n in held.items() for k in range(n) for event in batch(sender, k + 1))
        assert Counter((e.subject, e.relation, e.object, e.time) for e in store.stored()) == expected
        now = live.view.predictor
        parts = now.scorer, now.transitions, now.choice, now.learned, now.calibration
        rebuilt = Predictor(Past(live.events.take(slice(None))), *parts)
        for relation in ("visit", "of 8"):
            assert live.forecast("Arvan", relation, top=99) == rebuilt.forecast("Arvan", relation, top=99)
        # a sender that is not sure whether its last batch went through sends it again
        for sender, count in held.items():
            assert live.add(batch(sender, count), sender, str(count), count).replayed
    acknowledged.write_text("".join(f"{sender}\n" * count for sender, count in held.items()))
    return Counter(held)


def killed(run: Path, home: Path, kills: int, record: Callable[[str, object], None]) -> None:
    path, acknowledged = home / "events.duckdb", home / "acknowledged"
    acknowledged.touch()
    # one process imports everything once; each writer is forked from it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bridgemem.live.forecasting", "duckdb"])
    chance, last = random.Random(7), Counter[str]()
    for _ in range(kills):
        writer = context.Process(target=send_for_ever, args=(str(run), str(path), str(acknowledged)))
        writer.start()
        before, deadline = acknowledged.stat().st_size, time.monotonic() + 60
        while acknowledged.stat().st_size == before and time.monotonic() < deadline and writer.is_alive():
            time.sleep(0.002)
        time.sleep(chance.random() * 0.6)
        assert writer.is_alive(), "the writer ended before it was killed"
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        compacting = context.Process(target=compact_for_ever, args=(str(path),))
        compacting.start()
        time.sleep(chance.random() * 0.6)
        assert compacting.pid is not None
        os.kill(compacting.pid, signal.SIGKILL)
        compacting.join(60)
        now = check(run, path, acknowledged)
        assert all(now[sender] >= count for sender, count in last.items())
        last = now
    assert sum(last.values()) >= kills
    record("kills", kills)
    record("batches", sum(last.values()))


needs_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")


@needs_kill
def test_kills_among_batches_and_merges_lose_nothing(
    recurrence_run: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    killed(recurrence_run, tmp_path, 3, record_property)


@needs_kill
@pytest.mark.long
def test_25_kills_among_batches_and_merges_lose_nothing(
    recurrence_run: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    killed(recurrence_run, tmp_path, 25, record_property)

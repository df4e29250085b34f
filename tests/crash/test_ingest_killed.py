"""Taking in events under kills, a full disk and a cut log: no acknowledged batch is lost, and none is torn."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from bridgemem.events.naming import NewEvent
from bridgemem.live.eventstore import EventStore, StoreError

KILLS = 25


def batch(number: int) -> list[NewEvent]:
    """Between one and forty events that tell which batch they belong to, and how many it has."""
    size = 1 + (number * 7) % 40
    return [(f"batch {number}", f"of {size}", f"part {part}", number) for part in range(size)]


def write_for_ever(path: str, acknowledged: str, closes: bool) -> None:
    """Append batch after batch from where the store stands, noting each one when it was acknowledged."""
    store = EventStore(path)
    if store._database.connection is not None:
        # small, so that the write-ahead log is folded into the file many times a second, and kills fall there too
        store._database.connection.execute("SET checkpoint_threshold = '16KB'")
    number = store.snapshot().batches
    note = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        number += 1
        store.append(batch(number), source="killed", key=str(number), offset=number)
        os.write(note, f"{number}\n".encode())
        if closes and number % 5 == 0:
            store.close()
            store = EventStore(path)


def check(store: EventStore, acknowledged: list[int]) -> int:
    """Every acknowledged batch is whole, at most one more is there, and it is whole too; returns the last one."""
    receipts = store.receipts()
    assert [receipt.batch for receipt in receipts] == list(range(1, len(receipts) + 1))
    assert len(acknowledged) <= len(receipts) <= len(acknowledged) + 1 or not acknowledged
    assert set(acknowledged) <= {receipt.batch for receipt in receipts}
    events = store.events()
    entities, relations = events.entities.names, events.relations.names
    found: list[NewEvent] = [
        (entities[s], relations[r], entities[o], int(step))
        for s, r, o, step in zip(events.subject, events.relation, events.object, events.step, strict=True)
    ]
    assert found == [event for receipt in receipts for event in batch(receipt.batch)]
    assert store.last_offset("killed") == (str(len(receipts)) if receipts else None)
    return len(receipts)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kills_in_a_loop_lose_no_acknowledged_batch_and_tear_none(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "events.duckdb", tmp_path / "acknowledged"
    acknowledged.touch()
    # one process imports everything once; each writer is forked from it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bridgemem.live.eventstore", "duckdb"])
    chance, last = random.Random(5), 0
    for kill in range(KILLS):
        writer = context.Process(target=write_for_ever, args=(str(path), str(acknowledged), kill % 3 == 0))
        writer.start()
        before, deadline = acknowledged.stat().st_size, time.monotonic() + 60
        # most are killed among their batches, some while they open the store
        while kill % 6 and acknowledged.stat().st_size == before and time.monotonic() < deadline and writer.is_alive():
            time.sleep(0.002)
        time.sleep(chance.random() * 0.12)
        assert writer.is_alive(), "the writer ended before it was killed"
        writer.kill()
        writer.join()
        if not path.exists():
            continue
        with EventStore(path) as store:
            now = check(store, [int(line) for line in acknowledged.read_text().split()])
            # a batch that was written but not acknowledged is sent again, and changes nothing
            if now:
                assert store.append(batch(now), source="killed", key=str(now), offset=now).replayed
                assert check(store, list(range(1, now + 1))) == now
            if now > len(acknowledged.read_text().split()):
                with acknowledged.open("a") as note:
                    note.write(f"{now}\n")
        assert now >= last
        last = now
    assert last >= KILLS - KILLS // 6 - 1, "every writer but the early killed had acknowledged a batch"


def fill_up(path: str, outcome: str) -> None:
    """Append until the file may not grow any more; then once more, with room again."""
    import resource

    store = EventStore(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(path).stat().st_size + 60_000, hard))
    number, said = 0, ""
    while not said and number < 2000:
        number += 1
        try:
            store.append(batch(number), source="killed", key=str(number), offset=number)
        except StoreError as problem:
            said = str(problem)
    check(store, list(range(1, number)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.append(batch(number), source="killed", key=str(number), offset=number)
    check(store, list(range(1, number + 1)))
    Path(outcome).write_text(f"{number}\n{said}")


def test_a_full_disk_is_one_sentence_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="needs limits on the size of files")
    path, outcome = tmp_path / "events.duckdb", tmp_path / "outcome"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bridgemem.live.eventstore", "duckdb"])
    writer = context.Process(target=fill_up, args=(str(path), str(outcome)))
    writer.start()
    writer.join(60)
    assert writer.exitcode == 0
    number, said = outcome.read_text().split("\n")
    assert int(number) > 1
    assert "cannot be written" in said
    assert said.endswith("nothing was changed; fix that and try again.")
    with EventStore(path) as store:
        assert check(store, list(range(1, int(number) + 1))) == int(number)


def test_a_store_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    from commands import left_in, small_files_only

    with small_files_only(1000), pytest.raises(StoreError, match="cannot be made"):
        EventStore(tmp_path / "events.duckdb")
    assert left_in(tmp_path) == []
    assert EventStore(tmp_path / "events.duckdb").snapshot().batches == 0


def logged(path: Path) -> Path:
    """A store of twelve batches that still lie in the write-ahead log, as a kill leaves it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bridgemem.live.eventstore", "duckdb"])
    writer = context.Process(target=leave_logged, args=(str(path),))
    writer.start()
    writer.join(60)
    log = path.with_name(path.name + ".wal")
    assert log.stat().st_size > 1000
    return log


def leave_logged(path: str) -> None:
    store = EventStore(path)
    store._database.not_before = math.inf  # no batch is brought into the file itself
    for number in range(1, 13):
        store.append(batch(number), source="killed", key=str(number), offset=number)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("share", [0.02, 0.4, 0.8, 0.999])
def test_a_cut_write_ahead_log_keeps_every_whole_batch_before_the_cut(share: float, tmp_path: Path) -> None:
    log = logged(tmp_path / "events.duckdb")
    log.write_bytes(log.read_bytes()[: int(log.stat().st_size * share)])
    with EventStore(tmp_path / "events.duckdb") as store:
        kept = check(store, [])
        assert kept < 12
        assert share < 0.4 or kept > 0
        store.append(batch(kept + 1), source="killed", key=str(kept + 1), offset=kept + 1)
    with EventStore(tmp_path / "events.duckdb") as store:
        assert check(store, []) == kept + 1

"""Compaction: the file of a store written anew, or the new events merged by the service that has it open."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridgemem.live import storefile
from bridgemem.live.compaction import compact
from bridgemem.live.eventstore import EventStore, StoreInUseError
from commands import bridgemem, left_in, write_rows

pytest_plugins = ("small_runs",)
OPENING = "import sys; from bridgemem.live.eventstore import EventStore; EventStore(sys.argv[1])"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of many small batches."""
    made = tmp_path / "store.duckdb"
    with EventStore(made) as store:
        for number in range(30):
            store.append([(f"A{number}", "visit", f"B{n}", "7") for n in range(20)], source="p", key=str(number))
        store.retract("e7", "wrong")
    return made


def everything(path: Path) -> object:
    with EventStore(path, create=False, read_only=True) as store:
        return store.stored(), store.receipts(), store.sources(), store.snapshot(), store.clock


def test_a_compacted_store_is_smaller_and_holds_the_same(path: Path) -> None:
    before = everything(path)
    with EventStore(path) as store:
        made = compact(store)
    assert made.bytes == path.stat().st_size <= made.before
    assert (made.events, made.batches, made.retractions, made.merged) == (600, 30, 1, None)
    assert everything(path) == before
    with EventStore(path) as store:
        assert store.append([("A0", "visit", "B0", "7")], source="p", key="more").ids == ["e601"]
        assert store.append([("A3", "visit", f"B{n}", "7") for n in range(20)], source="p", key="3").replayed
    assert left_in(path.parent) == ["store.duckdb"]


def test_no_other_process_gets_the_store_before_the_new_file_has_its_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_closed = storefile._kept_closed

    @contextmanager
    def watched(of: Path) -> Iterator[None]:
        with kept_closed(of):
            other = subprocess.run([sys.executable, "-c", OPENING, path], capture_output=True, text=True, check=False)
            assert StoreInUseError.__name__ in other.stderr
            yield

    monkeypatch.setattr(storefile, "_kept_closed", watched)
    with EventStore(path) as store:
        assert compact(store).events == 600


def test_a_compaction_that_fails_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(cursor: object, to: Path, name: str) -> None:
        to.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storefile, "copied", full)
    assert "No space left" in bridgemem("compact", path).refused()
    assert path.read_bytes() == before
    assert left_in(path.parent) == ["store.duckdb"]


def test_the_command_says_what_it_did(path: Path, tmp_path: Path) -> None:
    said = bridgemem("compact", path).out
    assert said.startswith(f"Rewrote {path}: 600 events in 30 batches, 1 retraction; ")
    assert bridgemem("compact", path, "--json").json["merged"] is None
    assert "no event store" in bridgemem("compact", tmp_path / "none.duckdb").refused()


def test_a_service_that_has_the_store_merges_its_new_events(recurrence_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
    store = tmp_path / "events.duckdb"
    program = [sys.executable, "-u", "-c", "from bridgemem.cli.main import main; main()"]
    serving = [*program, "serve", str(recurrence_run), "--store", str(store), "--port", "0"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert "http://" in process.stdout.readline()
            rows = [("Arvan", "visit", "Nova", "2024-02-10"), ("Kel", "visit", "Arvan", "2024-02-10")]
            bridgemem("ingest", store, write_rows(tmp_path / "a.csv", rows), "--run", recurrence_run)
            said = bridgemem("compact", store).out
            assert said == (
                f"The service merged 2 new events into its base; {store} holds 2 events in 1 batch, 0 retractions.\n"
            )
            assert "e1 is retracted" in bridgemem("retract", store, "e1").out  # which takes its name along
            again = bridgemem("compact", store, "--json").json
            assert again["merged"] > 0
            assert (again["events"], again["retractions"]) == (2, 1)
        finally:
            process.terminate()
            process.communicate(timeout=60)

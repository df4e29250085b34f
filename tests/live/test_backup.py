"""Backups: whole, verified, of one moment, also while a service has the store; and commands that ask that service."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from bridgemem.cli.serve import listen
from bridgemem.errors import SettingsError
from bridgemem.live import backup as backups
from bridgemem.live.backup import backup
from bridgemem.live.eventstore import EventStore
from bridgemem.live.storefile import StoreError, digest
from commands import bridgemem, left_in, small_files_only, write_rows

pytest_plugins = ("small_runs",)
SERVE = "from bridgemem.cli.main import main; main()"
DAY, STEP = "2024-02-10", "7"


def fill(store: EventStore, batches: int, size: int = 3) -> None:
    for number in range(batches):
        events = [(f"A{number}", "visit", f"B{place}", STEP) for place in range(size)]
        store.append(events, source="wire", key=str(number))


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_copy_of_the_file_alone_holds_every_acknowledged_batch(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 5)
        store.retract("e2", "wrong")
        shutil.copyfile(store.path, tmp_path / "copy.duckdb")  # as one would with cp
        expected = store.stored()
    with EventStore(tmp_path / "copy.duckdb", create=False, read_only=True) as copy:
        assert copy.stored() == expected
        assert len(expected) == 15


def test_a_batch_is_acknowledged_although_the_file_cannot_be_brought_up(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 1)
        with small_files_only(store.path.stat().st_size):
            assert store.append([("A", "visit", "B", STEP)], source="wire", key="more").accepted == 1
    with EventStore(tmp_path / "store.duckdb") as store:
        assert len(store.stored()) == 4
        assert store.append([("A", "visit", "B", STEP)], source="wire", key="more").replayed


# --- backup ----------------------------------------------------------------------------------------------------------


def test_a_backup_equals_the_store_at_its_moment(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 4)
        store.retract("e1")
        made = backup(store, tmp_path / "copy.duckdb")
        assert (made.events, made.batches, made.retractions) == (12, 4, 1)
        with store.reading() as cursor:
            assert digest(cursor) == made.digest
        store.append([("later", "visit", "B", STEP)], source="wire", key="later")
    with EventStore(tmp_path / "copy.duckdb", create=False) as copy:
        assert len(copy.stored()) == 12
        assert copy.append([("A", "visit", "B", STEP)], source="wire", key="5").batch == 5  # it goes on where it ends
    assert left_in(tmp_path) == ["copy.duckdb", "store.duckdb"]


def test_backups_while_batches_come_in_hold_whole_batches(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 2)
        writing = threading.Thread(
            target=lambda: [store.append([("A", "visit", "B", STEP)] * 7, source="p", key=str(n)) for n in range(40)]
        )
        writing.start()
        made = [backup(store, tmp_path / f"copy{n}.duckdb") for n in range(5)]
        writing.join()
        assert len(store.receipts()) == 42
    for n, one in enumerate(made):
        with EventStore(tmp_path / f"copy{n}.duckdb", create=False, read_only=True) as copy:
            assert len(copy.receipts()) == one.batches
            assert len(copy.stored()) == one.events == 6 + 7 * (one.batches - 2)
    assert [one.batches for one in made] == sorted(one.batches for one in made)


def test_a_copy_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 1)
        copy = backups._copy

        def spoiled(store: EventStore, aside: Path, to: Path) -> object:
            made = copy(store, aside, to)
            other = backups.connect_soon(aside)
            other.execute("UPDATE events SET object = 'C' WHERE id = 2")
            other.close()
            return made

        monkeypatch.setattr(backups, "_copy", spoiled)
        with pytest.raises(StoreError, match="differed from the store"):
            backup(store, tmp_path / "copy.duckdb")
    assert left_in(tmp_path) == ["store.duckdb"]


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 1)
        with pytest.raises(SettingsError, match="exists already"):
            backup(store, tmp_path / "taken")
        with pytest.raises(SettingsError, match="exists already"):
            backup(store, store.path, replace=True)
        with pytest.raises(StoreError, match="cannot be written"):
            backup(store, Path("/proc/copy.duckdb"))
        assert backup(store, tmp_path / "taken", replace=True).events == 3
    assert "exists already" in bridgemem("backup", tmp_path / "store.duckdb", tmp_path / "taken").refused()
    said = bridgemem("backup", tmp_path / "store.duckdb", tmp_path / "taken", "--force").out
    assert said.endswith("3 events in 1 batch, 0 retractions; read back and equal to the store.\n")
    assert "no event store" in bridgemem("backup", tmp_path / "none.duckdb", tmp_path / "x.duckdb").refused()


def test_a_folder_that_is_missing_is_made_and_takes_every_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 1)
    for hour in (10, 11):
        monkeypatch.setattr(backups, "datetime", mock.Mock(now=lambda _, hour=hour: datetime(2024, 1, 31, hour)))
        bridgemem("backup", tmp_path / "store.duckdb", f"{tmp_path}/new/backups/")
    assert left_in(tmp_path / "new/backups") == [f"store-20240131T{hour}0000Z.duckdb" for hour in (10, 11)]


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of a few kilobytes."""
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid():
        pytest.skip("needs to mount a file system")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a small file system")
@pytest.mark.parametrize("size", ["64k", "300k", "900k"])  # no room for a file, for the log, for bringing it in
def test_a_full_disk_is_said_of_the_copy_and_nothing_is_left_there(size: str, tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 3, size=3000)
    with small_disk(tmp_path / "small", size):
        said = bridgemem("backup", tmp_path / "store.duckdb", tmp_path / "small/copy.duckdb").refused()
        assert f"{tmp_path / 'small/copy.duckdb'} cannot be written: No space left on device" in said
        assert f"free some space in {tmp_path / 'small'}" in said
        assert left_in(tmp_path / "small") == []


def test_a_copy_whose_rows_are_in_its_log_alone_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = backups._verify

    def with_log(aside: Path, expected: str, to: Path) -> None:
        verify(aside, expected, to)
        aside.with_name(f"{aside.name}.wal").write_text("rows")

    monkeypatch.setattr(backups, "_verify", with_log)
    with EventStore(tmp_path / "store.duckdb") as store:
        fill(store, 1)
        with pytest.raises(StoreError, match="could not be brought into the file"):
            backup(store, tmp_path / "copy.duckdb")
    assert left_in(tmp_path) == ["store.duckdb"]


# --- a service that has the store ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of a service that runs in a process of its own."""
    home = tmp_path_factory.mktemp("held")
    store = home / "events.duckdb"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", SERVE, "serve", str(recurrence_run), "--store", str(store), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "http://" in process.stdout.readline()
        yield store
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert left_in(home) == [name for name in left_in(home) if "service" not in name and "admin" not in name]


def test_commands_ask_the_service_that_has_the_store(held: Path, recurrence_run: Path, tmp_path: Path) -> None:
    rows = [("Arvan", "visit", "Kel", DAY), ("Kel", "visit", "Arvan", DAY)]
    first = bridgemem("ingest", held, write_rows(tmp_path / "a.csv", rows), "--run", recurrence_run, "--json").json
    assert (first["accepted"], first["replayed"]) == (2, False)
    again = bridgemem("ingest", held, tmp_path / "a.csv", "--run", recurrence_run).out
    assert "was stored before" in again
    listed = bridgemem("stored", held).out.splitlines()
    assert listed[0] == f"e1: Arvan, visit, Kel, {DAY} (batch 1 of a.csv)"
    assert bridgemem("retract", held, "e1", "--reason", "a slip").out == f"e1 is retracted: Arvan, visit, Kel, {DAY}.\n"
    assert "was retracted before" in bridgemem("retract", held, "e1").out
    assert "'e99'" in bridgemem("retract", held, "e99").refused()
    made = bridgemem("backup", held, tmp_path / "copy.duckdb", "--json").json
    assert (made["events"], made["retractions"]) == (2, 1)
    with EventStore(tmp_path / "copy.duckdb", create=False, read_only=True) as copy:
        assert [event.id for event in copy.stored()] == ["e1", "e2"]
    done = bridgemem("refresh", recurrence_run, "--store", held, "--out", tmp_path / "run-2", "-q", "--json").json
    assert (done["added"], done["store"]) == (1, "events.duckdb")


def test_the_note_of_a_service_can_be_read_by_nobody_else(held: Path) -> None:
    for ending in ("service.json", "admin-token"):
        path = held.with_name(f"{held.name}.{ending}")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (held.with_name(f"{held.name}.admin-token").read_text().strip()) not in held.with_name(
        f"{held.name}.service.json"
    ).read_text()


def test_a_store_that_others_hold_without_a_service_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb"):
        assert "is open in another process" in bridgemem("stored", tmp_path / "store.duckdb").refused()
        with listen("127.0.0.1", 0) as place:
            port = place.getsockname()[1]
        (tmp_path / "token").write_text("t\n")
        note = f'{{"address": "http://127.0.0.1:{port}", "token_file": "{tmp_path / "token"}"}}'
        (tmp_path / "store.duckdb.service.json").write_text(note)
        assert "which does not answer" in bridgemem("stored", tmp_path / "store.duckdb").refused()


def test_more_events_than_a_service_takes_at_once_are_refused(
    held: Path, recurrence_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridgemem.cli.running.ONE_BATCH", 1)
    rows = [("Arvan", "visit", "Lor", DAY), ("Lor", "visit", "Arvan", DAY)]
    said = bridgemem("ingest", held, write_rows(tmp_path / "b.csv", rows), "--run", recurrence_run).refused()
    assert "split the file, or stop the service" in said

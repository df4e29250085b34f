"""Retention and erasure: events removed for good, counts that add up, and forecasts as if they had never come."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bridgemem.errors import SettingsError
from bridgemem.events.readers.text import Reject
from bridgemem.forecaster import Forecaster
from bridgemem.live import retention
from bridgemem.live.backup import backup
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.ledger import Ledger
from bridgemem.live.quarantine import Quarantine, rejected
from bridgemem.live.refresh import refresh
from bridgemem.live.retention import erase, prune, tombstones
from bridgemem.live.storefile import StoreError
from bridgemem.runs import Run
from commands import bridgemem, left_in, small_files_only, write_rows

pytest_plugins = ("small_runs",)
SERVE = "from bridgemem.cli.main import main; main()"
DAY = "2024-02-10"
SECRET = "Zerubabel Quillfeather"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "store.duckdb") as store:
        store.append([("A", "visit", "B", "1"), (SECRET, "visit", "B", "2")], source="wire", key="1")
        store.append([("B", "visit", SECRET, "3"), ("A", "visit", "C", "4")], source="desk", key="1")
        store.append([("A", "visit", "D", "5")], source="wire", key="2")
        yield store


def adds_up(store: EventStore) -> bool:
    """Whether the store holds what it was sent, less what its tombstones count."""
    sent = sum(source.events for source in store.sources())
    return len(store.stored()) == sent - sum(stone.events for stone in tombstones(store))


def test_events_before_a_time_are_removed_and_counted(store: EventStore) -> None:
    made = prune(store, before=3)
    assert (made.events, made.counted, made.left) == (2, 2, 3)
    assert [event.id for event in store.stored()] == ["e3", "e4", "e5"]
    assert [(stone.kind, stone.what, stone.events) for stone in tombstones(store)] == [("prune", "before 3", 2)]
    assert adds_up(store)


def test_events_of_a_source_are_removed_alone_or_before_a_time(store: EventStore) -> None:
    assert prune(store, source="wire", before=2).events == 1
    assert prune(store, source="wire").events == 2
    assert {event.source for event in store.stored()} == {"desk"}
    assert [source.events for source in store.sources()] == [2, 3]  # what they sent
    assert adds_up(store)
    with pytest.raises(SettingsError, match="say what to remove"):
        prune(store)


def test_a_second_time_changes_nothing(store: EventStore) -> None:
    prune(store, before=3)
    before = store.stored(), tombstones(store), store.snapshot()
    assert prune(store, before=3).events == 0
    assert erase(store, "nobody").events == 0
    assert (store.stored(), tombstones(store), store.snapshot()) == before


def test_a_removed_batch_that_comes_again_is_known_and_ids_are_not_given_again(store: EventStore) -> None:
    prune(store, source="wire")
    again = store.append([("A", "visit", "D", "5")], source="wire", key="2")
    assert (again.replayed, again.ids) == (True, ["e5"])
    assert store.append([("X", "visit", "Y", "6")], source="wire", key="3").ids == ["e6"]
    assert [event.id for event in store.stored()] == ["e3", "e4", "e6"]


def test_what_was_removed_makes_no_later_event_late_or_a_duplicate(store: EventStore) -> None:
    prune(store, source="wire")
    made = store.append([("A", "visit", "D", "5"), ("A", "visit", "B", "4")], source="new", key="1")
    assert (made.duplicates, made.late) == (0, 1)  # late after its own batch alone


def test_an_erased_name_is_in_no_table_and_no_byte_of_file_and_later_copies(store: EventStore, tmp_path: Path) -> None:
    store.retract("e1", f"{SECRET} asked for it")
    Quarantine(store).keep("wire", "9", [Reject("wire/9", 1, "no time", "", (SECRET, "visit", "B", ""))])
    Quarantine(store).keep("wire", "10", [Reject("f.csv", 7, "no columns", f"x|{SECRET}|y")])
    assert SECRET.encode() in store.path.read_bytes()
    made = erase(store, SECRET)
    assert (made.events, made.rejected, made.texts, made.carried) == (2, 2, 1, 0)
    assert [event.id for event in store.stored()] == ["e1", "e4", "e5"]
    assert rejected(store) == []
    backup(store, tmp_path / "copy.duckdb")
    store.close()
    assert left_in(tmp_path) == ["copy.duckdb", "store.duckdb"]
    for file in tmp_path.iterdir():
        assert b"Quillfeather" not in file.read_bytes()


def test_a_name_inside_a_longer_word_is_another_name(store: EventStore) -> None:
    store.append([("Bo", "visit", "A", "6")], source="wire", key="3")
    store.retract("e4", "Bo was there")
    made = erase(store, "B")
    assert (made.events, made.texts) == (3, 0)
    assert store.stored_event("e4").reason == "Bo was there"


def test_keys_that_carry_the_name_are_told(store: EventStore) -> None:
    store.append([("A", "visit", "B", "7")], source=SECRET, key="1")
    assert erase(store, SECRET).carried == 1


def test_an_erasure_that_was_cut_off_is_completed_by_the_next(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(EventStore, "rewrite", lambda self: None)  # as a kill in between
        patch.setattr(retention, "_scrubbed", lambda store: None)
        erase(store, SECRET)
    assert erase(store, SECRET).events == 0
    store.close()
    assert b"Quillfeather" not in store.path.read_bytes()


def test_a_full_disk_leaves_a_whole_store_and_says_what_to_do(store: EventStore) -> None:
    store.append([(f"N{n}", "visit", f"M{n}", "8") for n in range(9000)], source="wire", key="many")
    with small_files_only(4096), pytest.raises(StoreError, match="give the same command again"):
        erase(store, SECRET)
    assert len(store.stored()) == 9003
    assert erase(store, SECRET).events == 0
    store.close()
    assert left_in(store.path.parent) == ["store.duckdb"]
    assert b"Quillfeather" not in store.path.read_bytes()


def test_threads_read_and_write_while_the_file_is_written_anew(store: EventStore) -> None:
    ended, failed = threading.Event(), list[Exception]()

    def busy(number: int) -> None:
        place = 0
        while not ended.is_set():
            place += 1
            try:
                store.append([(f"T{number}", "visit", f"P{place}", "9")], source=f"t{number}", key=str(place))
                store.stored(last=5)
            except Exception as problem:
                failed.append(problem)

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(6):
        erase(store, f"P{number + 1}")
    ended.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert adds_up(store)


def test_a_store_of_the_format_before_is_brought_up(store: EventStore, tmp_path: Path) -> None:
    import duckdb

    expected = store.stored()
    store.close()
    with duckdb.connect(str(store.path)) as old:
        old.execute("DROP TABLE removals; DROP TABLE rejected; UPDATE about SET value = '2' WHERE name = 'format'")
    with EventStore(store.path, create=False, read_only=True) as opened:
        assert opened.stored() == expected
        assert tombstones(opened) == []


# --- forecasts -------------------------------------------------------------------------------------------------------


def scores(live: LiveForecaster) -> list[tuple[str, float]]:
    return [(found.name, found.score) for found in live.forecast("Arvan", "visit", top=20)]


def batches(names: tuple[str, ...]) -> list[tuple[str, list[tuple[str, str, str, str]]]]:
    return [(f"{n}", [("Arvan", "visit", name, DAY), (name, "consult", "Kel", DAY)]) for n, name in enumerate(names)]


def test_forecasts_after_an_erasure_are_those_of_a_store_that_never_saw_the_name(
    recurrence_run: Path, tmp_path: Path
) -> None:
    model = Forecaster.load(recurrence_run)
    with EventStore(tmp_path / "a.duckdb") as store, EventStore(tmp_path / "b.duckdb") as never:
        live, other = LiveForecaster(model, store), LiveForecaster(model, never)
        for key, events in batches((SECRET, "Lor", "Newcomer")):
            live.add(events, "wire", key)
            if SECRET not in events[0]:
                other.add(events, "wire", key)
        assert live.merge()
        assert any(name == SECRET for name, _ in scores(live))
        made = live.remove(lambda store: erase(store, SECRET))
        assert made.events == 2
        assert scores(live) == scores(other)
        assert SECRET not in live.events.entities
        live.add(batches(("Gorland",))[0][1], "wire", "later")
        other.add(batches(("Gorland",))[0][1], "wire", "later")
        assert scores(live) == scores(other)
    with EventStore(tmp_path / "a.duckdb") as store:
        np.testing.assert_array_equal(LiveForecaster(model, store).events.subject, live.events.subject)


def test_a_refreshed_run_forgets_pruned_events_over_the_same_store(recurrence_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recurrence_run, tmp_path / "run"))
    with EventStore(tmp_path / "run.events.duckdb") as store:
        for key, events in batches((SECRET, "Lor")):
            LiveForecaster(Forecaster.load(run), store).add(events, f"wire{key}", key)
        refresh(Run(run), store, tmp_path / "run-2")
        before = LiveForecaster(Forecaster.load(tmp_path / "run-2"), store)
        assert len(before.events) == 604
        prune(store, source="wire0")
        after = LiveForecaster(Forecaster.load(tmp_path / "run-2"), store)
        assert len(after.events) == 602
        assert not any(name == SECRET for name, _ in scores(after))
        again = refresh(Run(tmp_path / "run-2"), store, tmp_path / "run-3")
        assert (again.retracted, again.events) == (2, 602)


# --- the command line ------------------------------------------------------------------------------------------------


def test_commands_remove_and_say_what_they_did(recurrence_run: Path, tmp_path: Path) -> None:
    rows = [("Arvan", "visit", SECRET, DAY), ("Kel", "visit", "Arvan", "2024-02-12")]
    place = tmp_path / "s.duckdb"
    assert bridgemem("ingest", place, write_rows(tmp_path / "a.csv", rows), "--run", recurrence_run).code == 0
    said = bridgemem("erase", place, SECRET).out.splitlines()
    assert said[0] == "1 event was removed; the store holds 1."
    assert said[1].startswith("Earlier backups and runs")
    assert "Nothing in the store has this name" in bridgemem("erase", place, SECRET).out
    found = bridgemem("prune", place, "--before", "2024-02-13", "--json").json
    assert (found["events"], found["left"], found["what"]) == (1, 0, "before 2024-02-13")
    assert "nothing changed" in bridgemem("prune", place, "--before", "2024-02-13").out
    assert "say what to remove" in bridgemem("prune", place).refused()
    assert "'soon'" in bridgemem("prune", place, "--before", "soon").refused()
    assert "no event store" in bridgemem("erase", tmp_path / "none.duckdb", "x").refused()


def test_a_service_removes_what_is_asked_of_the_store_it_has_open(recurrence_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'serve'")
    place = tmp_path / "s.duckdb"
    rows = [("Arvan", "visit", SECRET, DAY), ("Kel", "visit", "Arvan", DAY)]
    command = [sys.executable, "-u", "-c", SERVE, "serve", str(recurrence_run), "--store", str(place), "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert "http://" in process.stdout.readline()
        bridgemem("ingest", place, write_rows(tmp_path / "a.csv", rows), "--run", recurrence_run)
        assert bridgemem("erase", place, SECRET, "--json").json["events"] == 1
        assert bridgemem("erase", place, SECRET, "--json").json["events"] == 0
        assert bridgemem("prune", place, "--source", "a.csv", "--json").json["events"] == 1
        assert "No events are stored" in bridgemem("stored", place).out
        (tmp_path / "b.csv").write_text("subject,relation,object,time\nArvan,visit,Kel,2024-02-11\n")
        assert bridgemem("ingest", place, tmp_path / "b.csv", "--run", recurrence_run).code == 0
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert b"Quillfeather" not in place.read_bytes()
    assert "Quillfeather" not in (tmp_path / "log").read_text()


def test_the_tombstone_of_an_erasure_holds_no_name(store: EventStore) -> None:
    erase(store, SECRET)
    assert SECRET not in str(tombstones(store))
    assert retention.UNSCRUBBED not in str(store._about())


# --- issued forecasts ------------------------------------------------------------------------------------------------


def test_issued_forecasts_are_resolved_first_and_lose_an_erased_name(recurrence_run: Path, tmp_path: Path) -> None:
    with EventStore(tmp_path / "s.duckdb") as store:
        live = LiveForecaster(Forecaster.load(recurrence_run), store)
        predictor, ledger = live.view.predictor, Ledger(store)
        version = live.view.version
        ledger.issue(predictor.whether("Arvan", "visit", object="Kel", horizon=2), predictor=predictor, version=version)
        ledger.issue(predictor.forecast("Lor", "visit", top=3), predictor=predictor, version=version)
        live.add([("Arvan", "visit", "Kel", DAY), ("Kel", "visit", "Lor", "2024-02-14")], "wire", "1")
        assert prune(store, before="2024-02-13").events == 1
        assert [claim.state for claim in ledger.forecasts()[0].claims] == ["yes"]
        live.add([("Kel", "visit", "Lor", DAY)], "wire", "late")  # in the window whose events were removed
        ledger.resolve()
        assert [claim.state for claim in ledger.forecasts()[0].claims] == ["yes"]
        made = erase(store, "Lor")
        assert (made.events, made.claims) == (2, 3)
        assert [issued.subject for issued in ledger.forecasts()] == ["Arvan"]
        assert tombstones(store)[-1].claims == 3
        assert adds_up(store)

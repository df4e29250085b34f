"""The event store: batches that are whole and counted once, events that can be taken back, and snapshots."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.naming import NewEvent, named_events
from bridgemem.live import database, eventstore
from bridgemem.live.eventstore import EventStore, StoreError
from bridgemem.memory.index import Index
from builders import few, random_log, rows_of

DAYS = Clock("date", 1_704_067_200, 86_400)  # from 2024-01-01
NAMES = Vocabulary("entity", ("a", "b")), Vocabulary("relation", ("r",))
A = [("Ada", "visit", "Bo", 3), ("Bo", "call", "Cy", 5), ("Ada", "visit", "Cy", 5)]


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore(tmp_path / "events.duckdb")


def named(events: EventLog) -> list[tuple[str, str, str, int]]:
    entities, relations = events.entities.names, events.relations.names
    return [(entities[s], relations[r], entities[o], step) for s, r, o, step in rows_of(events)]


def one_event(step: int, clock: Clock) -> EventLog:
    columns = np.array([[0], [0], [1], [step]])
    return EventLog.from_columns(columns[0], columns[1], columns[2], columns[3], *NAMES, clock)


def same_log(one: EventLog, other: EventLog) -> None:
    """Equal in every column, name and state that is ever read from them."""
    assert rows_of(one) == rows_of(other)
    assert (one.entities.names, one.relations.names, one.clock) == (
        other.entities.names,
        other.relations.names,
        other.clock,
    )
    if not one.n_relations:
        return
    first, second = Index(one), Index(other)
    for name in ("pairs", "start", "step", "relation", "direction"):
        assert getattr(first.dyads, name).equal(getattr(second.dyads, name)), name
    for a, b in zip(first.triples[1:], second.triples[1:], strict=True):
        assert a.equal(b)
    for line in ("first_met", "first_in_role"):
        assert getattr(first, line).codes.equal(getattr(second, line).codes)
        assert getattr(first, line).value.equal(getattr(second, line).value)


def test_a_batch_is_read_back_in_order_of_step_and_arrival(store: EventStore) -> None:
    receipt = store.append([*A, ("Cy", "call", "Ada", 3)], source="wire", key="k", offset=17)
    assert (receipt.batch, receipt.accepted, receipt.ids) == (1, 4, ["e1", "e2", "e3", "e4"])
    assert named(store.events()) == [A[0], ("Cy", "call", "Ada", 3), A[1], A[2]]
    assert store.events().entities.names == ("Ada", "Bo", "Cy")
    assert store.last_offset("wire") == "17"
    assert store.last_offset("other") is None


def test_batches_just_written_are_read_as_the_file_has_them(store: EventStore) -> None:
    for key, rows in enumerate((A[:1], A[1:], [("Dee", "call", "Ada", 1)])):
        store.append(rows, source="wire", key=str(key))
    kept = [store.read(at=store.snapshot(), since=since) for since in (0, 1, 2)]
    store._intake.forget()
    for since, one in enumerate(kept):
        read = store.read(at=store.snapshot(), since=since)
        assert named(one.events) == named(read.events)
        assert np.array_equal(one.ids, read.ids)
    assert len(kept[0].events) == 4
    store.retract("e4")
    assert named(store.read(at=store.snapshot(), since=1).events) == [A[1], A[2]]


def test_batches_that_follow_each_other_share_a_checkpoint(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "SOON", 0.05)
    log = store.path.with_name(f"{store.path.name}.wal")
    for key in ("1", "2"):
        store.append_all([eventstore.Batch(A, "wire", key)], checkpoint=False)
    assert log.stat().st_size > 0
    until = time.monotonic() + 30
    while log.exists() and log.stat().st_size and time.monotonic() < until:
        time.sleep(0.01)
    assert not log.exists() or not log.stat().st_size
    store.close()


def test_the_same_batch_again_changes_nothing_also_after_opening_anew(store: EventStore) -> None:
    first = store.append(A, source="wire", key="k")
    before, at = named(store.events()), store.snapshot()
    again = store.append(A, source="wire", key="k")
    assert (again.replayed, again.batch, again.ids, again.late) == (True, first.batch, first.ids, first.late)
    store.close()
    with EventStore(store.path) as reopened:
        assert reopened.append(A, source="wire", key="k").replayed
        assert (named(reopened.events()), reopened.snapshot()) == (before, at)


def test_a_key_is_not_taken_for_other_events(store: EventStore) -> None:
    store.append(A, source="wire", key="k")
    with pytest.raises(DataError, match="used for another batch"):
        store.append(A[:1], source="wire", key="k")
    assert len(store.events()) == 3


def test_sources_do_not_share_their_keys(store: EventStore) -> None:
    first = store.append(A, source="s", key="1")
    assert not store.append(A, source="other", key="1").replayed
    store.append([("x", "r", "y", 5)], source="third", key="1")
    assert store.append(A, source="s", key="1") == replace(first, replayed=True)
    assert store.sender("1") == "s"


def test_a_store_of_another_format_is_refused_and_left_alone(store: EventStore) -> None:
    import duckdb

    store.close()
    with duckdb.connect(str(store.path)) as file:
        file.execute("UPDATE about SET value = '1' WHERE name = 'format'")
    for read_only in (True, False):
        with pytest.raises(StoreError, match="another format version"):
            EventStore(store.path, read_only=read_only)
    with duckdb.connect(str(store.path)) as file:
        assert file.execute("SELECT value FROM about WHERE name = 'format'").fetchone() == ("1",)


def test_what_is_stored_is_listed_with_its_ids(store: EventStore) -> None:
    store.follow(one_event(0, DAYS))
    store.append([("a", "r", "b", "2024-01-03 00:00:00+00:00"), ("c", "r", "d", "2024-01-02")], source="s", key="1")
    store.append([("e", "r", "f", "2024-01-04")], source="t", key="1", offset="x")
    store.append([], source="t", key="2")
    assert [e.retracted for e in store.retract(["e2", "e3"], "twice")] == [None, None]
    again = store.retract(["e1", "e2"], "another reason")
    assert [(e.retracted is None, e.reason) for e in again] == [(True, None), (False, "twice")]
    assert [(e.id, e.subject, e.time, e.source, e.reason) for e in store.stored()] == [
        ("e1", "a", "2024-01-03", "s", "another reason"),
        ("e2", "c", "2024-01-02", "s", "twice"),
        ("e3", "e", "2024-01-04", "t", "twice"),
    ]
    assert [e.id for e in store.stored(last=1)] == ["e3"]
    assert [e.id for e in store.stored("s", 1)] == ["e2"]
    assert store.stored("nobody") == []
    assert [(s.source, s.events, s.last_key, s.last_offset) for s in store.sources()] == [
        ("s", 2, "1", None),
        ("t", 1, "2", "x"),
    ]


def test_of_several_retractions_one_unknown_id_refuses_all(store: EventStore) -> None:
    store.append(A, source="s", key="1")
    with pytest.raises(NotFoundError, match="e99"):
        store.retract(["e1", "e99"])
    assert len(store.events()) == len(A)


def test_late_events_are_filed_under_their_own_step_and_counted(store: EventStore) -> None:
    assert store.append(A, source="wire", key="1").late == 0
    assert store.append([("Bo", "call", "Ada", 4), ("Bo", "call", "Ada", 9)], source="wire", key="2").late == 1
    assert store.append([("Bo", "call", "Ada", 11), ("Bo", "call", "Cy", 10)], source="wire", key="3").late == 1
    assert store.events().step.tolist() == [3, 4, 5, 5, 9, 10, 11]


def test_events_before_the_end_of_the_followed_log_are_late(store: EventStore) -> None:
    base = random_log(1)
    store.follow(base)
    late, timely = ("x", "y", "z", base.end - 2), ("x", "y", "z", base.end - 1)
    assert store.append([late, timely], source="wire", key="1").late == 1


def test_a_retracted_event_makes_no_later_one_late(store: EventStore) -> None:
    wrong = store.append([*A, ("Ada", "visit", "Bo", 2031)], source="wire", key="1").ids[-1]
    assert store.append([("Bo", "call", "Ada", 6)], source="wire", key="2").late == 1
    store.retract(wrong)
    assert store.append([("Bo", "call", "Ada", 6), ("Bo", "call", "Ada", 5)], source="wire", key="3").late == 1


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_retracted_event_leaves_what_a_store_that_never_saw_it_holds(at: int, tmp_path: Path) -> None:
    base = random_log(4)
    extra: list[NewEvent] = [
        ("entity 3", "relation 1", "entity 0", 12),
        ("newcomer", "relation 2", "entity 1", 30),
        ("entity 2", "new relation", "newcomer", 31),
        ("entity 2", "relation 0", "other newcomer", 31),
    ]
    with EventStore(tmp_path / "all.duckdb") as one, EventStore(tmp_path / "less.duckdb") as other:
        receipt = one.append(extra, source="s", key="k")
        one.retract(receipt.ids[at], "wrong")
        other.append([event for i, event in enumerate(extra) if i != at], source="s", key="k")
        same_log(one.events(base), other.events(base))
        one.retract(receipt.ids[at])
        same_log(one.events(base), other.events(base))


@settings(few, max_examples=8)  # each makes two files
@given(st.lists(st.tuples(*(st.integers(0, n) for n in (3, 2, 3, 6))), max_size=12), st.data())
def test_any_retractions_under_any_policy_leave_what_was_never_seen_out(rows: list[Any], data: st.DataObject) -> None:
    import tempfile

    events: list[NewEvent] = [(f"n{s}", f"r{r}", f"n{o}", t) for s, r, o, t in rows]
    gone = data.draw(st.sets(st.integers(0, len(events) - 1))) if events else set[int]()
    policy = data.draw(st.sampled_from(["keep", "drop"]))
    with (
        tempfile.TemporaryDirectory() as folder,
        EventStore(f"{folder}/one", duplicates=policy) as one,
        EventStore(f"{folder}/other", duplicates=policy) as other,
    ):
        receipt = one.append(events, source="s", key="k")
        for place in gone:
            one.retract(receipt.ids[place])
        other.append([event for i, event in enumerate(events) if i not in gone], source="s", key="k")
        same_log(one.events(), other.events())


@pytest.mark.parametrize("unknown", ["e9", "9", "", "e-1", "e1; DROP TABLE events", "e" + "9" * 30, "é1"])
def test_retracting_what_is_not_there_is_refused(unknown: str, store: EventStore) -> None:
    store.append(A, source="wire", key="k")
    with pytest.raises(NotFoundError):
        store.retract(unknown)
    with pytest.raises(NotFoundError):
        store.event(unknown)
    assert len(store.events()) == 3


def test_duplicates_are_counted_and_dropped_only_where_that_is_wanted(tmp_path: Path) -> None:
    base = random_log(2)
    repeated = named(base)[5]
    batch: list[NewEvent] = [repeated, ("x", "y", "z", 40), ("x", "y", "z", 40), ("x", "y", "z", 41)]
    with EventStore(tmp_path / "s") as keep:
        keep.follow(base)
        receipt = keep.append(batch, source="s", key="k")
        assert (receipt.accepted, receipt.duplicates) == (4, 2)
        assert keep.append([("x", "y", "z", 41)], source="s", key="2").duplicates == 1
        assert len(keep.events(base)) == len(base) + 5
    with EventStore(tmp_path / "s", duplicates="drop") as drop:
        replayed = drop.append(batch, source="s", key="k")
        assert (replayed.accepted, replayed.duplicates) == (2, 2)
        # the base's own repetitions are the base's business
        assert named(drop.events(base)) == [*named(base), ("x", "y", "z", 40), ("x", "y", "z", 41)]
        drop.retract("e2")
        assert len(drop.events(base)) == len(base) + 2, "the second of two equal events takes over"
        drop.retract("e3")
        assert len(drop.events(base)) == len(base) + 1
    with pytest.raises(SettingsError, match="keep or drop"):
        EventStore(tmp_path / "s", duplicates="maybe")


def test_the_ids_of_a_base_never_move(store: EventStore) -> None:
    base = random_log(3)
    store.append([("newcomer", "relation 1", "entity 2", 0), ("entity 1", "new", "newcomer", 50)], source="s", key="k")
    grown = store.read(base)
    events = grown.events
    assert events.entities.names == (*base.entities.names, "newcomer")
    assert events.relations.names == (*base.relations.names, "new")
    assert rows_of(events.rows(0, 0)) == []
    own = grown.ids == -1
    assert [row for row, mine in zip(rows_of(events), own, strict=True) if mine] == rows_of(base)
    assert grown.ids[~own].tolist() == [1, 2]


def test_a_base_that_holds_stored_events_is_not_given_them_twice(store: EventStore) -> None:
    base = random_log(3)
    store.append([("a", "r", "b", 7), ("a", "r", "c", 40)], source="s", key="1")
    merged = store.read(base)
    store.append([("d", "r", "b", 8), ("a", "r", "c", 41)], source="s", key="2")
    same_log(store.read(merged.events, known=merged.ids).events, store.events(base))
    same_log(store.read(merged.events, known=merged.ids, since=1).events, store.events(base))
    store.retract("e1")
    again = store.read(merged.events, known=merged.ids)
    assert named(again.events) == named(store.events(base))
    assert 1 not in again.ids


def test_a_snapshot_reads_the_same_for_ever(store: EventStore) -> None:
    store.append(A, source="s", key="1")
    at = store.snapshot()
    before = named(store.events(at=at))
    store.append([("x", "y", "z", 1)], source="s", key="2")
    store.retract("e1")
    assert named(store.events(at=at)) == before
    assert len(store.events()) == 3


def test_readers_never_see_half_a_batch(store: EventStore) -> None:
    seen, done = set[int](), threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(len(store.events()))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for i in range(12):
            store.append([(f"n{j}", "r", "m", i) for j in range(50)], source="s", key=str(i))
    finally:
        done.set()
        reader.join()
    assert all(size % 50 == 0 for size in seen)


def test_two_threads_writing_the_same_keys_make_each_batch_once(store: EventStore) -> None:
    def write() -> None:
        for i in range(10):
            store.append([("a", "r", "b", i)], source="s", key=str(i))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.events().step.tolist() == list(range(10))
    assert [receipt.batch for receipt in store.receipts()] == list(range(1, 11))


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (("", "r", "b", 1), "subject of event 2"),
        (("a", "  ", "b", 1), "relation of event 2"),
        (("a", "r", None, 1), "object of event 2"),
        (("a", "r", "b"), "not made of"),
        ("abcd", "not made of"),
        (("a", "r", "b", -1), "before the data begin"),
        (("a", "r", "b", 2**31), "too far ahead"),
        (("a", "r", "b", 1.5), "whole number"),
        (("a", "r", "b", float("nan")), "whole number"),
        (("a", "r", "b", True), "whole number"),
        (("a", "r", "b", "soon"), "whole number"),
        (("a\x00", "r", "b", 1), "cannot be stored"),
        (("\ud800", "r", "b", 1), "cannot be stored"),
        (("a" * 2000, "r", "b", 1), "at most"),
    ],
)
def test_one_bad_event_refuses_its_whole_batch(event: Any, said: str, store: EventStore) -> None:
    with pytest.raises(DataError, match=said):
        store.append([("a", "r", "b", 1), event], source="s", key="k")
    assert len(store.events()) == 0
    assert store.append([("a", "r", "b", 1)], source="s", key="k").batch == 1


def test_names_that_look_like_sql_or_ids_are_names(store: EventStore) -> None:
    odd = ["'; DROP TABLE events; --", "7", "Žluťoučký\tkůň", "<script>", "e1"]
    store.append([(name, "r", "b", i) for i, name in enumerate(odd)], source="s", key="k")
    assert [row[0] for row in named(store.events())] == odd


def test_times_fall_into_the_steps_of_the_followed_log(store: EventStore) -> None:
    base = one_event(0, DAYS)
    store.follow(base)
    store.append(
        [("a", "r", "b", "2024-01-03"), ("a", "r", "b", "2024-01-03T23:59"), ("b", "r", "a", 4)], source="s", key="k"
    )
    assert store.events(base).step.tolist() == [0, 2, 2, 4]
    assert store.events(base).clock == DAYS
    with pytest.raises(DataError, match="event 1 of the batch"):
        store.append([("a", "r", "b", "1")], source="s", key="2")
    store.close()
    with EventStore(store.path) as reopened, pytest.raises(DataError, match="store of the run's own"):
        reopened.follow(random_log(0))


def test_a_log_by_name_keeps_its_times_under_a_finer_clock(store: EventStore) -> None:
    at_six = one_event(2, Clock("date", DAYS.origin + 21_600, 86_400))
    hourly = one_event(0, Clock("date", DAYS.origin, 3600))
    store.follow(hourly)
    store.append(named_events(at_six), source="s", key="k")
    assert store.events().step.tolist() == [54]


def test_only_events_decide_what_a_store_follows(store: EventStore) -> None:
    store.follow(one_event(0, DAYS), "one run")
    store.append([], source="s", key="empty")
    store.close()
    with EventStore(store.path) as reopened:
        other = random_log(0)
        reopened.follow(other, "another run")
        reopened.append([("a", "r", "b", 4)], source="s", key="k")
    with EventStore(store.path, read_only=True) as reopened:
        assert reopened.clock == other.clock
        with pytest.raises(DataError, match="other data"):
            reopened.follow(other, "one run")
        reopened.follow(other, "another run")


ANOTHER = """
import sys, time
from bridgemem.live.eventstore import EventStore, StoreInUseError
print("ready", flush=True)
while True:
    try:
        with EventStore(sys.argv[1]) as store:
            print(store.append([("a", "r", "b", 1)], source="another", key="1").ids)
        break
    except StoreInUseError:
        time.sleep(0.05)
"""


def test_of_two_processes_that_begin_the_same_store_neither_loses_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begin = tmp_path / "new.duckdb", eventstore.create_file
    with subprocess.Popen([sys.executable, "-c", ANOTHER, path], stdout=subprocess.PIPE, text=True) as another:
        assert another.stdout is not None
        said = another.stdout

        def slow(where: Path) -> None:
            assert said.readline() == "ready\n"
            time.sleep(1)  # the other one has written by now, unless it waits for this one
            begin(where)

        monkeypatch.setattr(eventstore, "create_file", slow)
        with EventStore(path) as store:
            store.append([("b", "r", "a", 2)], source="one", key="2")
        assert said.readline().startswith("['e")
    with EventStore(path, create=False) as store:
        assert [r.ids for r in store.receipts()] == [["e1"], ["e2"]]
    assert [file.name for file in tmp_path.iterdir()] == ["new.duckdb"]


def test_an_empty_batch_moves_the_offset(store: EventStore) -> None:
    receipt = store.append([], source="s", key="k", offset=9)
    assert (receipt.accepted, receipt.ids, store.last_offset("s")) == (0, [], "9")


def test_a_second_process_is_told_who_holds_the_store(store: EventStore) -> None:
    store.append(A, source="s", key="k")
    code = (
        "import sys, duckdb\ntry:\n    duckdb.connect(sys.argv[1])\nexcept duckdb.Error as problem:\n    print(problem)"
    )
    told = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=True)
    assert "lock" in told.stdout, "the sentence below rests on this word of DuckDB"


def test_a_lock_held_elsewhere_is_one_clear_sentence(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    def held(*_: object, **__: object) -> None:
        raise duckdb.IOException("IO Error: Could not set lock on file: Conflicting lock is held in PID 7.")

    monkeypatch.setattr(duckdb, "connect", held)
    with pytest.raises(StoreError, match="open in another process"):
        EventStore(store.path)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_whole_store_that_may_not_be_written_is_not_called_broken(
    code: int, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    def kept_out(*_: object, **__: object) -> None:
        raise duckdb.IOException(f'IO Error: Cannot open file "{store.path}": {os.strerror(code)}')

    monkeypatch.setattr(duckdb, "connect", kept_out)
    with pytest.raises(StoreError, match=f"cannot be written: {os.strerror(code)}") as told:
        EventStore(store.path)
    assert "move it away" not in str(told.value)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.02, 0.3])
def test_a_cut_file_says_what_to_do(share: float, store: EventStore) -> None:
    store.append([(f"n{i}", "r", f"m{i}", i) for i in range(3000)], source="s", key="k")
    store.close()
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(StoreError, match="put a copy back or let the sources send their batches"):
        EventStore(store.path).events()


def test_a_block_that_is_not_what_was_written_says_what_to_do(store: EventStore) -> None:
    store.append([(f"n{i}", "r", f"m{i}", i) for i in range(3000)], source="s", key="k")
    store.close()
    whole = store.path.read_bytes()
    said = []
    for at in range(20_000, len(whole), 100_000):  # not every block is read
        spoiled = bytearray(whole)
        spoiled[at : at + 4096] = bytes(byte ^ 1 for byte in whole[at : at + 4096])
        store.path.write_bytes(spoiled)
        try:
            with EventStore(store.path, read_only=True) as opened:
                opened.stored()
        except StoreError as problem:
            said.append(str(problem))
    assert said
    assert all("put a copy back or let the sources send their batches" in text for text in said)


def test_a_file_of_another_kind_is_left_as_it_is(tmp_path: Path) -> None:
    import duckdb

    text = tmp_path / "notes.txt"
    text.write_text("not a store")
    with pytest.raises(StoreError, match="no whole event store"):
        EventStore(text)
    assert text.read_text() == "not a store"
    with duckdb.connect(str(tmp_path / "other.duckdb")) as other:
        other.execute("CREATE TABLE mine (a INTEGER)")
    with pytest.raises(StoreError, match="no event store"):
        EventStore(tmp_path / "other.duckdb")
    with pytest.raises(NotFoundError, match="ingest"):
        EventStore(tmp_path / "absent", create=False)
    assert not (tmp_path / "absent").exists()


def test_a_closed_store_says_so(store: EventStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.events()


def test_a_database_that_gave_up_is_opened_again(store: EventStore) -> None:
    import duckdb

    store.append(A, source="s", key="1")
    with pytest.raises(StoreError, match="try again"), store._writing():
        raise duckdb.FatalException("FATAL Error: database has been invalidated")
    assert store.append(A, source="s", key="2").batch == 2
    assert len(store.events()) == 6


def test_small_batches_do_not_each_take_blocks_of_the_file(store: EventStore) -> None:
    """A transaction left open in the process would keep every checkpoint from freeing the blocks before it."""
    sizes = []
    for number in range(24):
        store.append(A, source="s", key=f"{number}")
        sizes.append(store.path.stat().st_size)
    assert sizes[-1] < 2 * sizes[3]
    with store.reading() as cursor:
        (groups,) = cursor.execute("SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('events')").fetchall()
    assert groups == (1,)

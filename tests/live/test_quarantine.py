"""The quarantine: rows that were rejected are kept, listed, exported, replayed after repair, and bounded."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgemem.errors import DataError
from bridgemem.events.readers.text import Reject
from bridgemem.live import quarantine
from bridgemem.live.eventstore import EventStore
from bridgemem.live.quarantine import Quarantine, Repaired, drop, in_quarantine, rejected, replay
from commands import bridgemem

pytest_plugins = ("small_runs",)
HEADER = "subject,relation,object,time\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "store.duckdb") as store:
        store.append([("A", "visit", "B", "1")], source="wire", key="1")
        yield store


def row(line: int, time: str = "") -> Reject:
    return Reject("wire/2", line, "no time", "", ("A", "visit", f"B{line}", time))


def test_rows_of_a_batch_are_kept_once_and_go_when_it_is_taken_in(store: EventStore) -> None:
    kept = Quarantine(store)
    for _ in range(3):
        kept.keep("wire", "2", [row(1), row(2)])
    kept.keep("desk", "2", [row(1)])
    assert [(found.source, found.line, found.reason) for found in rejected(store)] == [
        ("wire", 1, "no time"),
        ("wire", 2, "no time"),
        ("desk", 1, "no time"),
    ]
    kept.taken("wire", "2")
    assert [found.source for found in rejected(store)] == ["desk"]
    assert rejected(store, source="wire") == []
    assert drop(store, source="wire") == 0
    assert drop(store) == 1


def test_the_quarantine_is_bounded_and_the_oldest_rows_give_way(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MOST", 10)
    kept = Quarantine(store)
    for batch in range(6):
        kept.keep("wire", str(batch), [row(10 * batch + n) for n in range(4)])
    assert in_quarantine(store) == 10
    assert [found.line for found in rejected(store, last=4)] == [50, 51, 52, 53]
    kept.keep("wire", "large", [row(n) for n in range(100, 130)])
    assert [found.line for found in rejected(store)] == list(range(120, 130))


def test_texts_of_any_kind_and_length_can_be_kept(store: EventStore) -> None:
    Quarantine(store).keep("wire", "2", [Reject("f", 1, "r\x00\ud800", "x" * 100_000)])
    (found,) = rejected(store)
    assert (found.subject, len(found.row)) == ("", quarantine.LONGEST)


def test_repaired_rows_are_stored_under_their_sources_once(store: EventStore) -> None:
    kept = Quarantine(store)
    kept.keep("wire", "2", [row(1), row(2)])
    rows = [Repaired("wire/2", 1, ("A", "visit", "B1", "4"))]

    def append(events, source, key):  # type: ignore[no-untyped-def]
        return store.append(events, source=source, key=key)

    made = replay(store, rows, append)
    assert (made.events, made.accepted, made.left) == (1, 1, 1)
    assert store.stored()[-1].source == "wire"
    again = replay(store, rows, append)
    assert (again.events, again.left, len(store.stored())) == (0, 1, 2)
    with pytest.raises(DataError, match="is not in quarantine"):
        replay(store, [Repaired("other", 1, ("A", "visit", "B1", "4"))], append)
    with pytest.raises(DataError, match="no repaired rows"):
        replay(store, [], append)
    with pytest.raises(DataError, match="not a time"):
        replay(store, [Repaired("wire/2", 2, ("A", "visit", "B1", "never"))], append)
    assert in_quarantine(store) == 1


def test_a_file_with_bad_rows_leaves_them_in_quarantine_until_they_are_replayed(
    recurrence_run: Path, tmp_path: Path
) -> None:
    place, file = tmp_path / "s.duckdb", tmp_path / "day.csv"
    ingest = ("ingest", place, file, "--run", recurrence_run)
    file.write_text(HEADER + "Arvan,visit,Kel,2024-02-10\n")
    assert bridgemem(*ingest).code == 0
    assert bridgemem("rejected", place).out == "No row is in quarantine.\n"
    file.write_text(HEADER + "Arvan,visit,Kel,2024-02-11\nArvan,visit,Lor,2024-02-3x\nKel,visit\n")
    assert "Nothing was taken in" in bridgemem(*ingest).refused()
    assert bridgemem("rejected", place, "--json").json["known"] == 2
    assert bridgemem(*ingest, "--skip-rejected").code == 0
    listed = bridgemem("rejected", place).out.splitlines()
    assert listed[0].startswith(f"{file}:3: ")
    assert "(Arvan, visit, Lor, 2024-02-3x)" in listed[0]
    assert listed[1].startswith(f"{file}:4: ")
    export = tmp_path / "rejected.csv"
    assert bridgemem("rejected", place, "--out", export, "--json").json["rows"] == 2
    rows = list(csv.DictReader(export.open()))
    assert list(rows[0]) == ["file", "line", "reason", "subject", "relation", "object", "time", "row"]
    assert rows[1]["row"] == "Kel,visit"
    repair = ("rejected", place, "--replay", export, "--run", recurrence_run)
    assert "2024-02-3x" in bridgemem(*repair).refused()
    export.write_text(export.read_text().replace("2024-02-3x", "2024-02-13"))
    assert bridgemem(*repair).out.splitlines() == [
        "Stored 1 repaired row; 1 new.",
        "Repeated within their step: 0; late: 0.",
        "In quarantine now: 1 row.",
    ]
    assert "were replayed before" in bridgemem(*repair).out
    assert bridgemem("stored", place, "--json").json["events"][-1]["source"] == "day.csv"
    assert bridgemem(*ingest, "--skip-rejected").code == 0  # the same file again
    assert bridgemem("rejected", place, "--json").json["known"] == 1
    assert bridgemem("rejected", place, "--drop").out == "Dropped 1 row.\n"


def test_wrong_uses_are_refused_in_one_sentence(store: EventStore, tmp_path: Path) -> None:
    store.close()
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert "lacks the columns" in bridgemem("rejected", store.path, "--replay", tmp_path / "x.csv").refused()
    (tmp_path / "y.csv").write_text("file,line,reason,subject,relation,object,time,row\nf,1,r,A,visit,,1,\n")
    assert "must be filled" in bridgemem("rejected", store.path, "--replay", tmp_path / "y.csv").refused()
    (tmp_path / "y.csv").write_text("file,line,reason,subject,relation,object,time,row\nf,1,r,A,visit,B,1,\n")
    assert "--run" in bridgemem("rejected", store.path, "--replay", tmp_path / "y.csv").refused()
    assert "choose one of" in bridgemem("rejected", store.path, "--drop", "--out", tmp_path / "z.csv").refused()
    assert "no event store" in bridgemem("rejected", tmp_path / "none.duckdb").refused()
    assert "holds no rejected rows" in bridgemem("rejected", store.path, "--out", tmp_path / "x.csv").refused()


def test_a_followed_feed_leaves_its_bad_lines_in_quarantine(recurrence_run: Path, tmp_path: Path) -> None:
    feed, place = tmp_path / "feed.jsonl", tmp_path / "s.duckdb"
    feed.write_text('["Arvan", "visit", "Kel", "2024-02-10"]\n["Arvan", "visit"]\n')
    follow = ("ingest", place, feed, "--run", recurrence_run, "--follow", "--until-end", "--skip-rejected")
    assert bridgemem(*follow).code == 0
    assert [found["line"] for found in bridgemem("rejected", place, "--json").json["rows"]] == [2]

"""Whole numbers that a program wrote with a fraction of zero: 107.0 is the name 107, wherever a table holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.mapped import open_log
from bridgemem.events.naming import new_events
from bridgemem.events.readers.check import check_events
from bridgemem.events.readers.json_lines import JsonLines
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events
from bridgemem.events.whole_numbers import plain_number
from bridgemem.outofcore.duckdb import mine_files
from commands import write_rows
from corpora import write_parquet

ROLES = ("subject", "relation", "object", "time")
ROWS = [
    ("107", "pays", "205.0", "2024-01-01"),
    ("205", "pays", "107.0", "2024-01-02"),
    ("107", "pays", "", "2024-01-02"),
    ("900107", "pays", "205.00", "2024-01-03"),
]
PLAIN = [tuple(text.split(".0")[0] for text in row) for row in ROWS]


def columns(rows: list[tuple[str, ...]]) -> dict[str, list[str]]:
    return dict(zip(ROLES, map(list, zip(*rows, strict=True)), strict=True))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("107.0", "107"), (" 107.00 ", "107"), ("-3.0", "-3"), ("0.0", "0"), ("107.5", "107.5"), ("107.", "107."),
        ("007.0", "007.0"), ("1.0.0", "1.0.0"), ("v1.0", "v1.0"), ("1e3", "1e3"), (f"{10**18}.0", f"{10**18}.0"),
    ],
)  # fmt: skip
def test_only_a_whole_number_loses_its_fraction(text: str, plain: str) -> None:
    assert plain_number(text) == plain


def test_every_reader_takes_one_entity_for_both_spellings(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path, expected = write_rows(tmp_path / "e.csv", ROWS), read_events(columns(PLAIN)).events
    assert expected.entities.names == ("107", "205", "900107")
    frame = pandas.DataFrame(columns(PLAIN))
    frame["subject"], frame["object"] = frame["subject"].astype("int64"), pandas.to_numeric(frame["object"])
    for source in (path, columns(ROWS), frame):
        events = read_events(source).events
        assert (events.fingerprint, events.entities.names) == (expected.fingerprint, expected.entities.names)
    assert check_events(path).feed.entities == 3
    for file in (path, write_parquet(tmp_path / "e.parquet", columns(ROWS))):
        mine_files([file], tmp_path / "out", force=True)
        mined = open_log(tmp_path / "out")
        assert (mined.fingerprint, mined.entities.names) == (expected.fingerprint, expected.entities.names)


def test_parts_of_joined_columns_and_times_are_read_so_too(tmp_path: Path) -> None:
    rows = [(row[0], "pays", "7", row[2], "2024.0", "1.0", day) for row, day in zip(ROWS, "1234", strict=True)]
    rows[1] = (*rows[1][:2], "7.0", *rows[1][3:])
    path, names = tmp_path / "e.csv", ("subject", "kind", "code", "object", "year", "month", "day")
    path.write_text("\n".join(",".join(row) for row in (names, *rows)) + "\n")
    options = ReadOptions(relation="kind,code", time="year,month,day")
    reading = read_events(path, options)
    assert (reading.events.relations.names, reading.events.clock.label(0)) == (("pays: 7",), "2024-01-01")
    mine_files([path], tmp_path / "out", options=options)
    assert open_log(tmp_path / "out").fingerprint == reading.events.fingerprint
    whole = write_rows(tmp_path / "t.csv", [("A", "r", "B", f"{1_706_572_800 + 86_400 * i}.0") for i in range(3)])
    assert read_events(whole, ReadOptions(step="day")).events.clock.label(0) == "2024-01-30"
    as_written = write_rows(tmp_path / "w.csv", [("A", "r", "B", f"2024-01-30 {h}.00") for h in (12, 13)])
    assert len(read_events(as_written, ReadOptions(time_format="%Y-%m-%d %H.%M")).events) == 2


def test_a_missing_value_is_told_in_either_spelling(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "e.csv", [*ROWS, ("-99.0", "pays", "107", "2024-01-03")])
    for mark in (-99, "-99.0"):
        options = ReadOptions(na=[mark])
        assert sum(read_events(path, options).dropped.values()) == 2
        assert sum(mine_files([path], tmp_path / "out", options=options, force=True)["source"]["dropped"].values()) == 2


def test_a_name_that_is_known_as_it_stands_stays_so(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "e.csv", [("2.0", "follows", "1", "5"), ("3.0", "follows", "2.0", "6")])
    known = Vocabulary("entity", ("1", "2.0", "3")), Vocabulary("relation", ("follows",))
    assert read_events(path, entities=known[0], relations=known[1]).events.subject.tolist() == [1, 2]
    mine_files([path], tmp_path / "out", entities=known[0], relations=known[1])
    assert open_log(tmp_path / "out").subject.tolist() == [1, 2]
    base = EventLog([0], [0], [1], [0], *known)
    assert [event[:3] for event in new_events(path, base)] == [("2.0", "follows", "1"), ("3", "follows", "2.0")]


def test_lines_of_json_have_them_as_numbers_or_as_texts() -> None:
    base = read_events(columns([(*row[:3], "1") for row in PLAIN])).events
    for line in (b'[107.0, "pays", 205, 2]', b'["107.0", "pays", "205.0", 2]', b'["107", "pays", "205", 2.0]'):
        found = JsonLines(ReadOptions(), base).read(line, "feed", 1).event
        assert found is not None
        assert found[:3] == ("107", "pays", "205")


def test_a_query_finds_the_name_in_either_spelling() -> None:
    names = Vocabulary("entity", ("107", "205", "2.0"))
    assert (names.get("107.0"), names.get("2.0"), names.get("205"), names.get("3.0")) == (0, 2, 1, None)

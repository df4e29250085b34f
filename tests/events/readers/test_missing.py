"""Missing values: NA, nan, - and the like are no actors, in files and in frames, unless they are said to be names."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.loading import load
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.naming import new_events
from bridgemem.events.readers.options import MISSING
from bridgemem.events.readers.read import ReadOptions, read_events
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.outofcore.mined import Mined
from builders import named_rows

FLIGHTS = """subject,relation,object,time
N14228,UA,IAH,2013-01-01
NA,UA,IAH,2013-01-01
N24211,UA,NA,2013-01-02
"",B6,BQN,2013-01-02
N619AA,AA,MIA,2013-01-03
N804JB,,MIA,2013-01-03
N804JB,B6,BQN,NA
NA,EV,NA,2013-01-04
N39463,UA,ORD,2013-01-05
"""
LEFT_OUT = {
    "without a subject (NA, empty)": 3,
    "without a relation (empty)": 1,
    "without an object (NA)": 1,
    "without a time (NA)": 1,
}


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    path.write_text(FLIGHTS)
    return path


def columns(path: Path) -> dict[str, list[str]]:
    heading, *rows = [line.replace('""', "").split(",") for line in path.read_text().splitlines()]
    return {name: [row[i] for row in rows] for i, name in enumerate(heading)}


def test_rows_with_a_missing_value_are_left_out_and_counted_by_what_they_lack(flights):
    reading = read_events(flights)
    assert [row[0] for row in named_rows(reading)] == ["N14228", "N619AA", "N39463"]
    assert reading.dropped == LEFT_OUT
    assert reading.rejects.count == 0
    assert reading.sentence() == (
        "3 of 9 rows were read. 3 rows without a subject (NA, empty), 1 row without a relation (empty), "
        "1 row without an object (NA) and 1 row without a time (NA) were left out, "
        f"the first at {flights}:3."
    )


@pytest.mark.parametrize("library", ["dict", "pandas", "pyarrow"])
def test_frames_are_read_as_files_are(flights, library):
    table = columns(flights)
    frame = table if library == "dict" else pytest.importorskip(library)
    frame = frame.table(table) if library == "pyarrow" else frame.DataFrame(table) if library == "pandas" else table
    assert read_events(frame).dropped == LEFT_OUT
    assert named_rows(read_events(frame)) == named_rows(read_events(flights))


def test_values_that_a_frame_itself_has_as_missing_are_missing():
    pandas = pytest.importorskip("pandas")
    actors = pandas.array(["Ann", pandas.NA, "Bob", None, "nan"], dtype=object)
    frame = {"subject": actors, "relation": ["r"] * 5, "object": ["Cid"] * 5, "time": [1, 2, 3, 4, 5]}
    for table in (frame, pandas.DataFrame(frame)):
        reading = read_events(table)
        assert [row[0] for row in named_rows(reading)] == ["Ann", "Bob"]
        assert sum(reading.dropped.values()) == 3
    moments = pandas.to_datetime(["2024-01-01", "2024-01-01", None, "2024-01-03", "2024-01-04"])
    assert read_events(pandas.DataFrame(frame | {"time": moments})).dropped == {
        "without a subject (empty, nan)": 3,
        "without a time (empty)": 1,
    }


@pytest.mark.parametrize("mark", MISSING)
def test_each_usual_mark_is_missing_by_default_and_a_name_on_request(mark, tmp_path):
    path = tmp_path / "e.tsv"
    path.write_text(f"A\tr\tB\t1\n{mark}\tr\tB\t2\nA\tr\tC\t3\n")
    assert read_events(path).dropped == {f"without a subject ({mark})": 1}
    kept = read_events(path, ReadOptions(na=()))
    assert (kept.dropped, mark in kept.events.entities.names) == ({}, True)


def test_the_list_can_be_another_one(flights):
    reading = read_events(flights, ReadOptions(na=["IAH", "unknown"]))
    assert reading.dropped["without an object (IAH)"] == 2
    assert "NA" in reading.events.entities.names
    with pytest.raises(SettingsError, match="give one of the two"):
        load(flights, na=["x"], keep_na=True)


def test_missing_values_do_not_turn_ids_into_names():
    rows = {"subject": ["2", "NA", "0"], "relation": [0, 0, 0], "object": [1, 1, 1], "time": [1, 2, 3]}
    events = read_events(rows).events
    assert (events.entities.names, events.subject.tolist()) == (("0", "1", "2"), [2, 0])


def test_a_number_may_stand_for_a_missing_value():
    rows = {"subject": [2, -99, 0], "relation": [0, 0, 0], "object": [1, 1, 1], "time": [1, 2, -99]}
    reading = read_events(rows, ReadOptions(na=[-99]))
    assert reading.dropped == {"without a subject (-99)": 1, "without a time (-99)": 1}
    assert reading.rejects.count == 0


def test_a_strict_reading_refuses_a_missing_value(flights):
    with pytest.raises(DataError, match=r"flights.csv:3: the subject is missing \(NA\)"):
        read_events(flights, strict=True)


def test_a_file_of_nothing_but_missing_values_is_one_sentence(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("s,r,o,t\nNA,r,B,1\nNA,r,C,2\n")
    with pytest.raises(DataError, match=r"is an event: 2 rows without a subject \(NA\) were left out\.$"):
        read_events(path)


def test_load_says_how_many_rows_were_left_out(flights):
    with pytest.warns(UserWarning, match=r"3 rows without a subject \(NA, empty\)"):
        assert len(load(flights).events) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = {"subject": ["NA", "DE", "NA"], "relation": ["r"] * 3, "object": ["FR"] * 3, "time": [1, 2, 3]}
        assert "NA" in load(frame, keep_na=True, test=0.1).events.entities.names


def test_names_that_the_data_have_already_are_never_missing(tmp_path):
    base = EventLog([0], [0], [1], [0], Vocabulary("entity", ("NA", "DE")), Vocabulary("relation", ("r",)), Clock())
    frame = {"subject": ["NA", "nan"], "relation": ["r", "r"], "object": ["DE", "DE"], "time": [1, 2]}
    with pytest.raises(DataError, match=r"1 row without a subject \(nan\) was left out, .*frame:2. No event was added"):
        new_events(frame, base)
    assert new_events({name: column[:1] for name, column in frame.items()}, base) == [("NA", "r", "DE", 1)]
    known = read_events(frame, entities=base.entities, relations=base.relations)
    assert named_rows(known) == [("NA", "r", "DE", "1")]


def test_published_layouts_keep_their_rules_next_to_names_that_are_known():
    names = Vocabulary("entity", ("NA", "DE")), Vocabulary("relation", ("r",))
    base = EventLog([0], [0], [1], [0], *names, Clock("date", 0, 86_400))
    row = {"event_id_cnty": [1], "event_date": ["2024-01-01"], "event_type": ["r"], "actor1": ["NA"], "actor2": ["-"]}
    assert new_events(row, base, max_ahead=0) == [("NA", "r", "-", 19_723)]


@pytest.mark.parametrize("na", [None, (), ("IAH",)])
def test_mining_leaves_out_the_same_rows(flights, tmp_path, na):
    options = ReadOptions(na=na)
    done, reading = mine_files([flights], tmp_path / "out", options=options), read_events(flights, options)
    assert done["source"]["dropped"] == reading.dropped
    assert done["source"]["rejected"] == reading.rejects.count
    assert done["events"] == len(reading.events)
    assert Mined(tmp_path / "out").entities == reading.events.entities


def test_mining_numbers_leaves_out_the_same_rows(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "e.parquet"
    rows = "(2, 0, 1, 1), (-99, 0, 1, 2), (0, 0, 1, NULL), (1, 0, 0, -99), (1, 0, 2, 5)"
    with duckdb.connect() as db:
        db.execute(f"COPY (SELECT * FROM (VALUES {rows}) t(subject, relation, object, time)) TO '{path}'")
    for i, options in enumerate((ReadOptions(), ReadOptions(na=("-99",)))):
        done, reading = mine_files([path], tmp_path / str(i), options=options), read_events(path, options)
        assert (done["source"]["dropped"], done["source"]["rejected"]) == (reading.dropped, reading.rejects.count)
        assert done["events"] == len(reading.events)


def test_published_layouts_keep_their_own_rules(tmp_path):
    path = tmp_path / "acled.csv"
    heading = "event_id_cnty,event_date,event_type,sub_event_type,actor1,actor2\n"
    path.write_text(heading + "1,2024-01-01,Battles,Attack,NA,-\n2,2024-01-02,Battles,Attack,A,\n")
    assert named_rows(read_events(path)) == [("NA", "Attack", "-", "2024-01-01")]
    path.write_text(heading + "1,2024-01-01,Battles,Attack,A,B\n2,2024-01-02,Battles,Attack,A,-\n")
    assert read_events(path, ReadOptions(na=["-"])).dropped == {"without a second party": 1}

"""Columns: usual names are told, others are given, and a relation may be constant or joined from two columns."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import bridgemem as bm
from bridgemem.errors import DataError, SettingsError
from bridgemem.events.readers.read import ReadOptions, read_events
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.outofcore.mined import Mined
from builders import named_rows
from commands import bridgemem

ORDERS = """buyer,seller,kind,detail,year,month,day
Acme,Bolt,order,steel,2024,1,30
Bolt,Core,order,NA,2024,1,31
Core,Acme,NA,NA,2024,2,1
Acme,Core,invoice,late,2024,2,NA
Acme,Bolt,invoice,late,2024,2,2
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.csv"
    path.write_text(ORDERS)
    return path


def table(text: str) -> dict[str, list[str]]:
    heading, *rows = [line.split(",") for line in text.splitlines()]
    return {name: [row[i] for row in rows] for i, name in enumerate(heading)}


@pytest.mark.parametrize(
    "heading", ["actor,action,partner,date", "Source,Type,Target,Timestamp", "head,event,tail,day"]
)
def test_usual_names_are_told_and_said(heading, tmp_path):
    path = tmp_path / "e.csv"
    path.write_text(f"{heading}\nA,r,B,1\nB,r,A,2\nA,r,B,3\n")
    subject, relation, object_, time = heading.split(",")
    told = f"subject from {subject}, relation from {relation}, object from {object_}, time from {time}."
    assert read_events(path).source() == f"Read as plain: {told}"
    with pytest.warns(UserWarning, match=f"^Columns found by name: {told}$"):
        bm.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bm.load(path, subject=subject, relation=relation, object=object_, time=time, test=0.1)


@pytest.mark.parametrize("library", ["file", "dict", "pandas"])
def test_load_takes_headings_a_constant_relation_and_a_date_in_three_columns(library, orders):
    source = orders if library == "file" else table(ORDERS)
    if library == "pandas":
        source = pytest.importorskip("pandas").read_csv(orders)  # days and details that are missing are NaN
    with pytest.warns(UserWarning, match="1 row without a time"):
        data = bm.load(source, subject="buyer", object="seller", relation_is="buys from")
    assert data.events.relations.names == ("buys from",)
    assert [data.events.clock.label(s) for s in data.events.step] == [
        *("2024-01-30", "2024-01-31", "2024-02-01", "2024-02-02"),
    ]


JOINED = {"subject": "buyer", "object": "seller", "relation": "kind,detail", "time": "year,month,day"}


@pytest.mark.parametrize("frame", [False, True], ids=["file", "frame"])
def test_columns_are_joined_to_a_relation_and_to_a_date(frame, orders):
    reading = read_events(table(ORDERS) if frame else orders, ReadOptions(**JOINED))
    assert named_rows(reading) == [
        ("Acme", "order: steel", "Bolt", "2024-01-30"),
        ("Bolt", "order", "Core", "2024-01-31"),
        ("Acme", "invoice: late", "Bolt", "2024-02-02"),
    ]
    assert reading.dropped == {"without a relation (empty)": 1, "without a time (empty)": 1}
    assert reading.columns["relation"] == "kind, detail"
    as_tuples = {name: tuple(value.split(",")) for name, value in JOINED.items()}
    assert ReadOptions(**as_tuples) == ReadOptions(**JOINED)


def test_rows_with_joined_columns_keep_the_order_of_the_file(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "e.parquet"
    with duckdb.connect() as db:
        rows = "SELECT i AS subject, i % 3 AS a, i % 7 AS b, 0 AS object, 1 AS time FROM range(100000) t(i)"
        db.execute(f"COPY ({rows}) TO '{path}' (ROW_GROUP_SIZE 10000)")
    events = read_events(path, ReadOptions(relation="a,b")).events
    assert events.subject.tolist() == list(range(100_000))


def test_a_heading_that_holds_a_comma_is_one_column():
    frame = {"a,b": ["x"], "a": ["A"], "b": ["B"], "time": [1]}
    options = ReadOptions(subject="a", relation="a,b", object="b")
    assert named_rows(read_events(frame, options)) == [("A", "x", "B", "1")]


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({"date": ["2024-01-31"], "clock": ["06:30"]}, "2024-01-31 06:30:00"),
        ({"y": [2024], "m": [1], "d": [31], "h": [6]}, "2024-01-31 06:00:00"),
        ({"y": [2024], "m": ["Jan"], "d": [31], "h": [6], "min": [5]}, "2024-01-31 06:05:00"),
    ],
)
def test_a_time_is_joined_from_its_parts(columns, label):
    frame = {"subject": ["A"], "relation": ["r"], "object": ["B"], **columns}
    reading = read_events(frame, ReadOptions(time=",".join(columns)))
    assert reading.events.clock.label(0) == label


def test_three_columns_without_a_heading_are_read_by_position_under_a_constant_relation(tmp_path):
    path = tmp_path / "e.csv"
    path.write_text("Acme,Bolt,2024-01-30\nBolt,Core,2024-01-31\n")
    reading = read_events(path, ReadOptions(relation_is="buys from"))
    assert named_rows(reading)[0] == ("Acme", "buys from", "Bolt", "2024-01-30")
    assert "the same relation in every row" in reading.source()


def test_headings_may_be_numbers_and_options_may_be_none():
    frame = {0: ["A", "B"], 1: ["B", "A"], 2: [1, 2]}
    options = ReadOptions(subject=0, relation=None, object=1, time=2, relation_is="calls", time_format=None)
    assert named_rows(read_events(frame, options))[0] == ("A", "calls", "B", "1")


def test_what_cannot_be_is_one_sentence(orders):
    with pytest.raises(SettingsError, match="give one of the two"):
        ReadOptions(relation="kind", relation_is="buys from")
    with pytest.raises(DataError, match=r"has no column for subject, .*load\(.*relation_is=.*--relation-is "):
        read_events(orders)
    with pytest.raises(DataError, match="has no column for kind,nothing"):
        read_events(orders, ReadOptions("buyer", "kind,nothing", "seller"))
    with pytest.raises(SettingsError, match="leave such options out"):
        bm.load("world", subject="buyer")


OPTIONS = {
    "constant": ("--relation-is", "buys from"),
    "joined": ("--relation-column", "kind,detail", "--time-column", "year,month,day"),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_mining_reads_the_same_columns(kind, orders, tmp_path):
    given = {"relation_is": "buys from"} if kind == "constant" else {"relation": "kind,detail"}
    options = ReadOptions(subject="buyer", object="seller", **given)
    done, reading = mine_files([orders], tmp_path / "out", options=options), read_events(orders, options)
    mined = Mined(tmp_path / "out")
    assert (mined.entities, mined.relations, mined.clock) == (
        *(reading.events.entities, reading.events.relations),
        reading.events.clock,
    )
    assert done["source"]["dropped"] == reading.dropped


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_command_reads_alike(kind, orders, tmp_path):
    options = ("--subject-column", "buyer", "--object-column", "seller", *OPTIONS[kind])
    events = 4 if kind == "constant" else 3
    packed = tmp_path / "packed.npz"
    imported = bridgemem("data", "import", orders, "-o", packed, *options, "--json").json
    assert imported["events"] == events
    fingerprint = bridgemem("data", "check", packed, "--json").json["fingerprint"]
    assert bridgemem("data", "stats", orders, *options, "--json").json["fingerprint"] == fingerprint
    assert bridgemem("data", "check", orders, *options, "--json").json["events"] == events
    mined = bridgemem("mine", orders, "-o", tmp_path / "mined", *options, "--json").json
    assert (mined["events"], mined["source"]["dropped"]) == (events, imported["dropped"])
    assert "--format" in bridgemem("data", "check", "--help").out
    assert (
        "a gdelt file of events has 61"
        in bridgemem("mine", orders, "-o", tmp_path / "m", "--format", "gdelt").refused()
    )

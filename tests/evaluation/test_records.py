"""Records: written, replaced and read as JSON lines."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, replace

import pytest

from bridgemem.errors import DataError
from bridgemem.evaluation import records
from bridgemem.evaluation.records import Record, read_records, write_records

ONE = Record(
    dataset="world",
    fingerprint="f",
    split="test",
    backbone="cenet",
    method="bridgemem",
    filter="time",
    selected_by="time",
    history="rolling",
    seed=42,
    queries=10,
    mrr=0.5,
    hits1=0.4,
    hits3=0.6,
    hits10=0.9,
    settings={"lambda": 1.0, "backbone_seed": 42},
    gain={"mrr": [0.1, 0.05, 0.15]},
    device="cpu 2 threads",
)


def test_records_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    write_records(path, [ONE, replace(ONE, filter="static")])
    assert read_records(path) == [ONE, replace(ONE, filter="static")]
    assert [p.name for p in path.parent.iterdir()] == ["records.jsonl"], "nothing half-written is left"


def test_a_line_of_before_there_was_an_identity_is_read(tmp_path):
    path = tmp_path / "records.jsonl"
    line = {name: value for name, value in asdict(ONE).items() if name != "identity"}
    path.write_text(json.dumps(line) + "\n")
    assert read_records(path) == [replace(ONE, identity="")]
    write_records(path, [replace(ONE, identity="i")])
    assert read_records(path) == [replace(ONE, identity="i")], "measured again, it replaces the older line"


def test_a_newer_measurement_of_the_same_thing_replaces_the_older(tmp_path):
    path = tmp_path / "records.jsonl"
    write_records(path, [ONE, replace(ONE, filter="raw")])
    newer = replace(ONE, mrr=0.7, version="2", device="cpu 8 threads")
    write_records(path, [newer])
    assert read_records(path) == [newer, replace(ONE, filter="raw")]


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "icews14"},
        {"split": "valid"},
        {"backbone": "recurrence"},
        {"method": "backbone"},
        {"filter": "raw"},
        {"selected_by": "static"},
        {"history": "frozen"},
        {"seed": 43},
        {"subset": "repeated"},
        {"device": "cuda NVIDIA"},
        {"settings": {"backbone_seed": 43}},
    ],
)
def test_measurements_of_other_things_stay_apart(tmp_path, change):
    path = tmp_path / "records.jsonl"
    write_records(path, [ONE])
    write_records(path, [replace(ONE, **change)])
    assert len(read_records(path)) == 2


@pytest.mark.parametrize("damage", ['{"dataset": "world"', '{"dataset": "world"}', "[1, 2]", '{"unknown": 1}', ""])
def test_a_damaged_line_is_named(tmp_path, damage):
    path = tmp_path / "records.jsonl"
    write_records(path, [ONE])
    path.write_text(path.read_text() + damage + "\n")
    with pytest.raises(DataError, match="line 2 is not a record"):
        read_records(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mrr", "0.5"),
        ("mrr", None),
        ("mrr", True),
        ("seed", 1.5),
        ("queries", "10"),
        ("dataset", 3),
        ("selected_by", 3),
        ("fit_seconds", "1"),
        ("settings", []),
        ("settings", None),
        ("gain", [1, 2, 3]),
        ("gain", {"mrr": 0.1}),
        ("gain", {"mrr": [0.1, 0.2]}),
        ("gain", {"mrr": [0.1, "0.2", 0.3]}),
        ("lock", ["a"]),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_line(tmp_path, field, value):
    path = tmp_path / "records.jsonl"
    write_records(path, [ONE])
    path.write_text(path.read_text() + json.dumps({**asdict(ONE), field: value}) + "\n")
    with pytest.raises(DataError, match=rf"records\.jsonl, line 2 is not a record: (each of )?{field}[ .]"):
        read_records(path)


def test_whole_numbers_are_numbers_too(tmp_path):
    path = tmp_path / "records.jsonl"
    write_records(path, [replace(ONE, mrr=1, gain={"mrr": [0, 0, 1]}, fit_seconds=None)])
    assert read_records(path)[0].mrr == 1


def test_bytes_that_are_no_text_are_a_data_error(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"records\.jsonl"):
        read_records(path)


def test_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="no file of records"):
        read_records(tmp_path / "records.jsonl")


def test_records_that_are_written_at_once_are_all_kept(tmp_path, monkeypatch):
    def slowly(path):
        found = read_records(path)
        time.sleep(0.01)
        return found

    path = tmp_path / "records.jsonl"
    write_records(path, [ONE])
    monkeypatch.setattr(records, "read_records", slowly)

    def write(seeds):
        for seed in seeds:
            write_records(path, [replace(ONE, seed=seed)])

    writers = [threading.Thread(target=write, args=(range(first, first + 5),)) for first in (100, 200, 300, 400)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read_records(path)) == 21
    assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]

"""The commands of large data: a memory on disk answers like the one in memory, and shards join to the whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bridgemem import forecaster
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.records import Record
from bridgemem.memory.disk import mapped
from bridgemem.memory.disk.writing import write_memory
from bridgemem.runs import REFRESHES, Run
from builders import refresh_note
from commands import Walk, bridgemem, write_rows

pytest_plugins = ["small_runs"]


@pytest.fixture(scope="module")
def memory(walk: Walk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "memory"
    made = bridgemem("memory", walk.run, "--out", folder)
    assert made.code == 0, made.err
    assert "600 events" in made.out
    assert f"--memory-dir {folder}" in made.out
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("forecast", "--subject", "Arvan", "--relation", "visit"),
        ("forecast", "--object", "Arvan", "--relation", "visit", "--horizon", "3"),
        ("forecast", "--subject", "Kel", "--relation", "consult", "--at", "2024-01-20"),
        ("explain", "--subject", "Arvan", "--relation", "visit", "--object", "Kel"),
        ("forecast", "--subject", "Arvan", "--object", "Kel", "--horizon", "3"),
        ("forecast", "--subject", "Arvan", "--relation", "visit", "--object", "Kel"),
        ("forecast", "--subject", "Arvan"),
        ("outlook", "--horizon", "3", "--surprising"),
    ],
)
def test_a_run_answers_from_its_memory_on_disk_as_from_its_data(walk, memory, command):
    name, *options = command
    plain = bridgemem(name, walk.run, *options, "--json")
    mapped = bridgemem(name, walk.run, *options, "--json", "--memory-dir", memory)
    assert plain.code == 0, plain.err
    assert mapped.json == plain.json


@pytest.mark.parametrize("query", [("what",), ("whether", "--horizon", "2")])
def test_what_and_whether_are_measured_from_a_memory_on_disk(walk, memory, tmp_path, query):
    asked = ("evaluate", Path(shutil.copytree(walk.run, tmp_path / "run")), "--query", *query, "--json", "-q")
    assert bridgemem(*asked, "--memory-dir", memory).json == bridgemem(*asked).json
    assert "no whole memory on disk" in bridgemem(*asked, "--memory-dir", tmp_path).refused()


def test_queries_are_answered_from_a_memory_on_disk(walk, memory, tmp_path):
    asked = tmp_path / "queries.csv"
    asked.write_text("subject,relation\nArvan,visit\nKel,consult\n")
    for place, more in (("plain", ()), ("mapped", ("--memory-dir", memory))):
        out = bridgemem("forecast", walk.run, "--queries", asked, "--out", tmp_path / f"{place}.csv", *more)
        assert out.code == 0, out.err
    assert (tmp_path / "mapped.csv").read_bytes() == (tmp_path / "plain.csv").read_bytes()


@pytest.mark.parametrize("split", ["test", "valid"])
def test_a_memory_on_disk_is_evaluated_to_the_same_ranks(run_copy, memory, split):
    plain = bridgemem("evaluate", run_copy, "--split", split, "--json", "-q")
    ranks = run_copy / ("ranks.parquet" if split == "test" else "ranks.valid.parquet")
    expected = ranks.read_bytes()
    mapped = bridgemem("evaluate", run_copy, "--split", split, "--json", "-q", "--memory-dir", memory)
    assert plain.code == 0, plain.err
    assert mapped.out == plain.out
    assert ranks.read_bytes() == expected


def test_shards_are_written_and_joined_by_commands(run_copy, memory, tmp_path):
    whole = bridgemem("evaluate", run_copy, "--json", "-q")
    expected = (run_copy / "ranks.parquet").read_bytes()
    (run_copy / "ranks.parquet").unlink()
    first = bridgemem("evaluate", run_copy, "--shard", "1/2", "-q", "--cells", "99999")
    assert "--join" in first.out
    assert not (run_copy / "ranks.parquet").exists()
    assert "lacks 1 of 2 shards: 2/2" in bridgemem("evaluate", run_copy, "--join", "-q").refused()
    second = bridgemem(
        "evaluate", run_copy, "--shard", "2/2", "-q", "--json", "--cells", "99999", "--memory-dir", memory
    )
    assert json.loads(second.out)["shard"] == "2/2"
    joined = bridgemem("evaluate", run_copy, "--join", "-q", "--json", "--records", tmp_path / "records.jsonl")
    assert joined.out == whole.out
    assert (run_copy / "ranks.parquet").read_bytes() == expected
    own = [r for r in whole.json["records"] if "model_gain" not in r["settings"]]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == len(own)


def test_workers_are_passed_on_to_the_pool(run_copy, memory, monkeypatch):
    asked = []

    def pool(run: Run, workers: int, split: str, *options: object) -> list[Record]:
        asked.append((workers, split, run.memory_dir))
        return evaluate(run, split=split)

    monkeypatch.setattr(forecaster, "evaluate_in_pool", pool)
    command = ("evaluate", run_copy, "--json", "-q")
    pooled = bridgemem(*command, "--workers", "3", "--memory-dir", memory)
    assert asked == [(3, "test", memory)]
    assert pooled == bridgemem(*command)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shard", "3/2"), "a shard is written as"),
        (("--shard", "all"), "a shard is written as"),
        (("--shard", "1/99"), "too few for 99 shards"),
        (("--shard", "1/2", "--join"), "choose one"),
        (("--workers", "2", "--horizon", "3"), "choose one"),
        (("--shard", "1/2", "--records", "r.jsonl"), "--records with --join"),
        (("--join",), "holds no part of test"),
        (("--join", "--cells", "99"), "--cells is for"),
    ],
)
def test_ways_to_read_that_cannot_be_are_refused(run_copy, options, said):
    assert said in bridgemem("evaluate", run_copy, *options, "-q").refused()


def test_a_memory_of_other_data_is_refused(walk, recurrence_run, memory, tmp_path):
    rows = [("Kel", "visit", f"Someone {i % 9}", f"2024-02-{i % 28 + 1:02d}") for i in range(200)]
    other, run = write_rows(tmp_path / "other.csv", rows), tmp_path / "run"
    assert bridgemem("fit", "-d", other, "-b", "recurrence", "-o", run, "--set", "max_epochs=1").code == 0
    for command in (("forecast", "--subject", "Kel", "--relation", "visit"), ("evaluate", "-q")):
        name, *options = command
        assert "other entity names" in bridgemem(name, run, *options, "--memory-dir", memory).refused()
    # of the same names and another split
    write_memory(replace(Run(walk.run).dataset, valid_start=5), tmp_path / "moved")
    asked = ("forecast", walk.run, "--subject", "Kel", "--relation", "visit", "--memory-dir", tmp_path / "moved")
    assert "other split boundaries" in bridgemem(*asked).refused()


def test_a_memory_of_the_same_events_at_other_dates_is_refused(walk, tmp_path):
    dataset = Run(walk.run).dataset
    sooner = replace(dataset.events, clock=replace(dataset.events.clock, origin=0))
    write_memory(replace(dataset, events=sooner), tmp_path / "memory")
    asked = ("forecast", walk.run, "--subject", "Kel", "--relation", "visit", "--memory-dir", tmp_path / "memory")
    assert "another clock" in bridgemem(*asked).refused()


def test_no_memory_is_written_of_a_refreshed_run(run_copy, tmp_path):
    (run_copy / REFRESHES).write_text(json.dumps([refresh_note()]))
    assert "was refreshed" in bridgemem("memory", run_copy, "--out", tmp_path / "memory").refused()
    assert not (tmp_path / "memory").exists()


def test_a_memory_that_is_not_whole_is_refused_in_one_sentence(walk, memory, tmp_path):
    asked = ("forecast", walk.run, "--subject", "Kel", "--relation", "visit", "--memory-dir")
    assert "no whole memory on disk" in bridgemem(*asked, tmp_path).refused()
    for name in ("segment-all.step.npy", "triples.codes.npy", "memory.json", "segments.json", "names.json"):
        spoilt = Path(shutil.copytree(memory, tmp_path / name))
        (spoilt / name).write_bytes((spoilt / name).read_bytes()[:-9])
        assert bridgemem(*asked, spoilt).refused()


def test_a_memory_is_verified_by_a_command(walk, memory, recurrence_run, tmp_path, monkeypatch):
    verify = ("memory", walk.run, "--verify", "--out")
    assert "checksums of 60 files match" in bridgemem(*verify, memory).out
    assert bridgemem(*verify, memory, "--json").json["files"] == 60
    assert "leave --segments and --force out" in bridgemem(*verify, memory, "--force").refused()
    assert "no whole memory" in bridgemem(*verify, tmp_path).refused()
    monkeypatch.setattr(mapped, "VERIFIED", 0)
    spoilt = Path(shutil.copytree(memory, tmp_path / "spoilt"))
    content = bytearray((spoilt / "events.step.npy").read_bytes())
    content[len(content) // 2] ^= 64
    (spoilt / "events.step.npy").write_bytes(content)
    assert "events.step.npy is damaged" in bridgemem(*verify, spoilt).refused()


def test_a_memory_is_not_written_over_anything(walk, memory):
    assert "exists already" in bridgemem("memory", walk.run, "--out", memory).refused()


def test_force_replaces_a_memory_and_nothing_else(walk, memory, tmp_path):
    old = Path(shutil.copytree(memory, tmp_path / "memory"))
    (old / "names.json").unlink()
    (old / "left over").touch()
    command = ("memory", walk.run, "--force", "--out")
    assert bridgemem(*command, old).code == 0
    assert {f.name: f.read_bytes() for f in old.iterdir()} == {f.name: f.read_bytes() for f in memory.iterdir()}
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.txt").touch()
    for other in (kept, walk.run):
        before = sorted(path.name for path in other.iterdir())
        assert "is not a memory on disk" in bridgemem(*command, other).refused()
        assert sorted(path.name for path in other.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "memory"]


def test_the_index_is_taken_from_a_mined_folder(walk, memory, own_csv, tmp_path):
    mined = tmp_path / "mined"
    done = bridgemem("mine", own_csv, "--out", mined, "--threads", "1", "-q")
    assert done.code == 0, done.err
    for number, segments in enumerate((mined, mined / "index")):
        made = bridgemem("memory", walk.run, "--out", tmp_path / str(number), "--segments", segments)
        assert made.code == 0, made.err
        for file in memory.iterdir():
            assert (tmp_path / str(number) / file.name).read_bytes() == file.read_bytes(), file.name
    assert "segments.json" in bridgemem("memory", walk.run, "-o", tmp_path / "x", "--segments", tmp_path).refused()

"""Evaluation in shards: the parts join to the ranks and records of the whole, and to nothing where one is not right."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from bridgemem.backbones.scorer import Scores
from bridgemem.backbones.stored import write_scores
from bridgemem.errors import RunError, SelectionError, SettingsError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.shards import (
    Shard,
    evaluate_in_pool,
    join_parts,
    parts_folder,
    shard_ranks,
    shard_steps,
    write_part,
)
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.events.queries import Queries
from bridgemem.memory.disk.writing import write_memory
from bridgemem.ranking import ranks
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table
from builders import SMALL_READER, dataset_of, log_of, random_log
from commands import measured_rows
from fits import fit_run

pytest_plugins = ["small_runs"]


@pytest.fixture
def run(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on CENET, read in batches so small that shards are cut inside them."""
    monkeypatch.setitem(ranks.CELLS, "cpu", 12 * 17)
    return Run(run_copy)


def results(run: Run, split: str) -> tuple[bytes, object]:
    """What an evaluation leaves in the run."""
    return run.ranks_path(split).read_bytes(), measured_rows(run)[split]


@pytest.mark.parametrize("split", ["test", "valid"])
@pytest.mark.parametrize("shards", [1, 3])
def test_parts_join_to_the_very_files_and_records_of_one_reading(run, split, shards):
    whole = evaluate(run, split=split)
    expected = results(run, split)
    run.ranks_path(split).unlink()
    for number in reversed(range(1, shards + 1)):
        write_part(run, Shard(number, shards), split)
    assert [asdict(r) for r in join_parts(run, split)] == [asdict(r) for r in whole]
    assert results(run, split) == expected
    assert not parts_folder(run).exists(), "joined parts are taken away"


def test_parts_of_machines_with_and_without_duckdb_join(run, monkeypatch):
    whole = evaluate(run)
    for number, machines in ((1, ("with", "without")), (2, ("without", "with")), (3, ("without",))):
        for machine in machines:
            with monkeypatch.context() as there:
                if machine == "without":
                    there.setitem(sys.modules, "duckdb", None)
                last = write_part(run, Shard(number, 3))
        assert last.suffix == {"with": ".parquet", "without": ".npz"}[machines[-1]]
        other = last.with_suffix({".npz": ".parquet", ".parquet": ".npz"}[last.suffix])
        assert not other.exists()
        other.write_bytes(b"older")  # copied from elsewhere, and not what the note tells of
    assert [asdict(r) for r in join_parts(run)] == [asdict(r) for r in whole]


def test_a_shard_gives_rows_of_the_whole_bit_for_bit(run):
    evaluate(run)
    whole, dataset = read_table(run.ranks_path("test")), run.dataset
    for first, stop in shard_steps(dataset, "test", 4):
        part = shard_ranks(str(run.folder), "test", first=first, stop=stop)
        own = (whole["step"] >= first) & (whole["step"] < stop)
        assert set(part) == set(whole)
        for name, column in part.items():
            np.testing.assert_array_equal(column, whole[name][own], err_msg=name)
            assert column.dtype == whole[name].dtype


def test_a_shard_of_a_memory_on_disk_is_the_same(run, tmp_path):
    write_memory(run.dataset, tmp_path / "memory")
    first, stop = shard_steps(run.dataset, "test", 2)[1]
    here = shard_ranks(run.folder, "test", first=first, stop=stop)
    there = shard_ranks(run.folder, "test", first=first, stop=stop, memory_dir=tmp_path / "memory")
    for name, column in here.items():
        np.testing.assert_array_equal(there[name], column, err_msg=name)


def test_stored_scores_are_ranked_from_a_memory_on_disk_in_shards(own_csv, tmp_path):
    dataset = load(str(own_csv))
    spread = torch.arange(dataset.events.n_entities, dtype=torch.float64)

    def outside(queries: Queries) -> Scores:
        return Scores(-((queries.actor[:, None] * 5 + queries.relation[:, None] - spread) % 7))

    write_scores(tmp_path / "scores", dataset, outside)
    run, _ = fit_run(dataset, tmp_path / "scores", tmp_path / "run", SMALL_READER)
    write_memory(dataset, tmp_path / "memory")
    mapped = Run(run.folder, memory_dir=tmp_path / "memory")
    whole = evaluate(run, dataset)
    expected = results(run, "test")
    for number in (1, 2):
        write_part(mapped, Shard(number, 2))
    assert [asdict(r) for r in join_parts(mapped)] == [asdict(r) for r in whole]
    assert results(run, "test") == expected


def test_a_pool_of_processes_gives_the_same_records(run_copy):
    run = Run(run_copy)
    whole = evaluate(run)
    expected = results(run, "test")
    assert [asdict(r) for r in evaluate_in_pool(run, 2)] == [asdict(r) for r in whole]
    assert results(run, "test") == expected


def test_a_problem_in_a_worker_is_told_in_its_own_words(run_copy):
    run = Run(run_copy)
    (run.folder / "backbone" / "weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(RunError, match=r"weights\.safetensors is damaged"):
        evaluate_in_pool(run, 1)


def test_the_function_that_is_mapped_can_be_sent_elsewhere(run):
    arguments = (run.folder, "test", 1, 2, None, None, "cpu", 1, 5000)
    assert pickle.loads(pickle.dumps((shard_ranks, arguments)))[1] == arguments  # noqa: S301


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_cut_every_step_once_and_leave_none_empty(seed, shards):
    dataset = dataset_of(random_log(seed, n=300, steps=60))
    steps = dataset.test.step
    bounds = shard_steps(dataset, "test", shards)
    assert len(bounds) == shards
    counts = [int(((steps >= first) & (steps < stop)).sum()) for first, stop in bounds]
    assert sum(counts) == len(steps)
    assert min(counts) > 0
    assert [b[0] for b in bounds[1:]] == [b[1] for b in bounds[:-1]]


def test_a_heavy_step_leaves_no_shard_empty():
    rows = [(0, 0, 1, 0), (0, 0, 1, 1), *[(0, 0, 1, 2)] * 50, (0, 0, 1, 3), (0, 0, 1, 4)]
    dataset = Dataset("heavy", log_of(rows), 1, 2)
    assert shard_steps(dataset, "test", 3) == [(2, 3), (3, 4), (4, 5)]
    with pytest.raises(SettingsError, match="3 steps, too few for 4"):
        shard_steps(dataset, "test", 4)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "x/3", "1", "1/", "-1/3", "1/3/4", ""])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(SettingsError, match="a shard is written as"):
        Shard.parse(text)


def written(run: Run, *shards: str) -> None:
    for shard in shards:
        write_part(run, Shard.parse(shard))


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (["1/3"], "lacks 2 of 3 shards: 2/3, 3/3"),
        (["1/2", "2/2", "1/3"], "parts of 2 and of 3 shards"),
        ([], "holds no part of test"),
    ],
)
def test_a_set_of_parts_that_is_not_whole_is_refused_and_kept(run, shards, said):
    before = results(run, "test")
    written(run, *shards)
    with pytest.raises(RunError, match=said):
        join_parts(run)
    assert results(run, "test") == before
    assert len(list(parts_folder(run).glob("*.json"))) == len(shards)


def test_a_shard_that_is_there_twice_is_refused(run):
    written(run, "1/2", "2/2")
    note = next(parts_folder(run).glob("*1-of*.json"))
    shutil.copy(note, note.with_name("test-copy.json"))
    with pytest.raises(RunError, match="shard 1/2 more than once"):
        join_parts(run)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": "0123"}, "part of another run"),
        ({"split": "valid"}, "part of another run"),
        ({"format": 7}, "format 7"),
        ({"digest": "0123"}, "not the one that was written"),
        ({"steps": [1, 2]}, "other steps"),
        ({"table": "test-gone.parquet"}, "is missing"),
        (None, "damaged"),
    ],
)
def test_a_foreign_or_damaged_part_is_refused(run, change, said):
    written(run, "1/2", "2/2")
    note = next(parts_folder(run).glob("*2-of*.json"))
    values = json.loads(note.read_text())
    note.write_text(json.dumps({**values, **change} if change else [values]))
    with pytest.raises(RunError, match=said):
        join_parts(run)


def test_the_batches_can_be_chosen_and_are_the_same_for_all_parts(run):
    evaluate(run, cells=12 * 5)
    expected = results(run, "test")
    write_part(run, Shard(1, 2), cells=12 * 5)
    write_part(run, Shard(2, 2))
    with pytest.raises(RunError, match="different --cells"):
        join_parts(run)
    write_part(run, Shard(2, 2), cells=12 * 5)
    join_parts(run)
    assert results(run, "test") == expected


def test_a_part_of_the_run_before_it_changed_is_refused(run):
    written(run, "1/2")
    path = run.folder / "config.toml"
    path.write_text(path.read_text().replace("window = 65", "window = 64"))
    changed = Run(run.folder)
    written(changed, "2/2")
    with pytest.raises(RunError, match="before it was changed"):
        join_parts(changed)


def test_test_stays_closed_to_shards_of_a_run_whose_selection_was_edited(run):
    path = run.folder / "selection.json"
    path.write_text(path.read_text().replace('"lam": ', '"lam": 1', 1))
    with pytest.raises(SelectionError):
        shard_ranks(run.folder, "test", first=0, stop=99)

"""A run folder holds everything that its figures need, and gives back the forecaster that was saved."""

from __future__ import annotations

import json
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from bridgemem import runs
from bridgemem.backbones import load_backbone
from bridgemem.backbones.trained import train
from bridgemem.config import Settings
from bridgemem.errors import RunError, SelectionError
from bridgemem.evaluation.records import metrics_of
from bridgemem.events.loading import load
from bridgemem.events.log import Vocabulary
from bridgemem.events.packs import pack, unpack
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS
from bridgemem.runs import Run
from bridgemem.storage.files import read_json
from bridgemem.storage.tables import read_columns, read_table, write_table
from builders import side
from commands import ACTORS, RELATIONS, TINY_READER, Walk, bridgemem, left_in, measured_rows, named_own
from fits import fit_run

pytest_plugins = ("small_runs",)
SMALL = Settings(width=8, hidden=8, max_epochs=2)


def test_the_folder_holds_all_parts_and_nothing_else(walk: Walk) -> None:
    assert left_in(walk.run) == [
        "README.md",
        "backbone",
        "calibration.json",
        "config.toml",
        "data.npz",
        "entities.txt",
        "epochs.json",
        "heads.json",
        "metrics.json",
        "metrics.strata.json",
        "model.safetensors",
        "ranks.parquet",
        "relations.txt",
        "selection.json",
    ]
    assert left_in(walk.run / "backbone") == ["config.toml", "trained.json", "weights.safetensors"]
    # a pickle begins with its protocol and ends with a full stop; a length before tensors may begin alike
    contents = {path: path.read_bytes() for path in walk.run.rglob("*") if path.is_file()}
    assert not [path for path, own in contents.items() if (own[:1], own[-1:]) == (b"\x80", b".")]


def test_the_config_names_data_backbone_seeds_and_every_setting(walk: Walk) -> None:
    tables = tomllib.loads((walk.run / "config.toml").read_text())
    assert tables["run"]["dataset"] == "own"
    assert tables["run"]["fingerprint"] == unpack(walk.home / "own.npz").events.fingerprint
    assert (tables["run"]["backbone"], tables["run"]["backbone_seed"], tables["run"]["seed"]) == ("cenet", 5, 42)
    assert tables["settings"]["width"] == 8
    assert set(tables["settings"]) == set(vars(Settings()))
    assert Run(walk.run).settings == Settings(width=8, hidden=8, max_epochs=2)


def test_the_vocabularies_are_one_name_a_line_in_the_order_of_the_ids(walk: Walk) -> None:
    events = Run(walk.run).dataset.events
    assert (walk.run / "entities.txt").read_text().splitlines() == list(events.entities.names)
    assert set(events.entities.names) == set(ACTORS)
    assert (walk.run / "relations.txt").read_text().splitlines() == list(events.relations.names)
    assert set(events.relations.names) == set(RELATIONS)


def test_both_selections_are_kept_apart_each_with_its_lock(walk: Walk) -> None:
    stored = json.loads((walk.run / "selection.json").read_text())
    assert set(stored) == {"static", "time"}
    for name, record in stored.items():
        selection = Run(walk.run).selection(name)
        assert selection.filter == record["filter"] == name
        assert selection.lock() == record["lock"]
        assert selection.queries == 2 * len(unpack(walk.home / "own.npz").valid)
    assert stored["static"]["lock"] != stored["time"]["lock"]
    assert stored["static"]["backbone"]["mrr"] > stored["time"]["backbone"]["mrr"]


def test_a_lost_file_is_named_and_nothing_is_answered_in_its_place(run_copy: Path) -> None:
    (run_copy / "epochs.json").unlink()
    with pytest.raises(RunError, match=r"epochs\.json is missing"):
        Run(run_copy).preferred()
    (run_copy / "data.npz").unlink()
    with pytest.raises(RunError, match=r"data\.npz is missing"):
        _ = Run(run_copy).dataset


def test_settings_that_were_cut_off_are_not_taken_for_the_defaults(run_copy: Path) -> None:
    path = run_copy / "config.toml"
    lines = path.read_text().splitlines(keepends=True)
    for kept in range(1, next(i for i, line in enumerate(lines) if line.startswith("taus"))):
        path.write_text("".join(lines[:kept]))
        with pytest.raises(RunError, match=r"config\.toml: [a-z._]+ is missing|describe a run"):
            Run(run_copy)


def test_no_selection_is_made_under_another_filter(walk: Walk) -> None:
    with pytest.raises(SelectionError, match="static or time"):
        Run(walk.run).selection("raw")


def test_the_metrics_follow_from_the_ranks_on_disk(walk: Walk) -> None:
    (split,) = json.loads((walk.run / "metrics.json").read_text()).items()
    name, records = split
    assert name == "test"
    assert len(records) == 9
    for record in records:
        method = "backbone" if record["method"] == "backbone" else f"bridgemem.{record['selected_by']}"
        column = f'"rank_{record["filter"]}.{method}"'
        hits = ", ".join(f"avg(({column} <= {k})::int)" for k in (1, 3, 10))
        query = f"SELECT count(*), avg(1 / {column}), {hits} FROM read_parquet(?)"
        with duckdb.connect() as connection:
            found = connection.execute(query, [str(walk.run / "ranks.parquet")]).fetchone()
        stated = [record[key] for key in ("queries", "mrr", "hits1", "hits3", "hits10")]
        assert found == pytest.approx(stated, abs=1e-12)


def test_the_ranks_name_every_query_of_the_split_in_both_directions(walk: Walk) -> None:
    test = Run(walk.run).dataset.test
    table = read_table(walk.run / "ranks.parquet")
    n = test.n_relations
    assert table["actor"].tolist() == np.stack([test.subject, test.object], 1).ravel().tolist()
    assert table["answer"].tolist() == np.stack([test.object, test.subject], 1).ravel().tolist()
    assert table["relation"].tolist() == np.stack([test.relation, test.relation + n], 1).ravel().tolist()
    assert table["step"].tolist() == np.repeat(test.step, 2).tolist()
    for name in FILTERS:
        assert (table[f"rank_{name}.backbone"] >= 1).all()
        assert (table[f"rank_{name}.backbone"] <= len(ACTORS)).all()
    assert (table["rank_raw.backbone"] >= table["rank_time.backbone"]).all()
    assert (table["rank_time.backbone"] >= table["rank_static.backbone"]).all()


def test_a_run_on_disk_forecasts_as_the_model_did_before_it_was_saved(walk: Walk, tmp_path: Path) -> None:
    dataset = load(walk.home / "own.npz")
    run, fitted = fit_run(dataset, walk.backbone, tmp_path / "run", SMALL)
    after = Run(run.folder).predictor()
    parts = (load_backbone(walk.backbone), fitted.known, fitted.choices["time"])
    before = Predictor(Past(dataset.events), *parts, calibration=after.calibration)
    for inverse in (False, True):
        asked = {"relation": "consult", "top": 12, **side("Kel", inverse)}
        assert before.forecast(**asked) == after.forecast(**asked)


def test_a_run_does_not_need_the_folders_it_was_made_from(own_csv: Path, tmp_path: Path) -> None:
    dataset, backbone = load(own_csv), tmp_path / "backbone"
    train("recurrence", dataset, backbone)
    fit_run(dataset, backbone, tmp_path / "run", SMALL)
    for path in backbone.iterdir():
        path.unlink()
    assert Run(tmp_path / "run").predictor().forecast("Kel", "visit")


def test_own_data_that_is_called_like_a_benchmark_travels_with_the_run(own_csv: Path, tmp_path: Path) -> None:
    packed, run = tmp_path / "gdelt.npz", tmp_path / "run"
    assert bridgemem("data", "import", own_csv, "--out", packed).code == 0
    fitted = bridgemem("fit", "-d", packed, "-b", "recurrence", "-o", run, *TINY_READER)
    assert fitted.code == 0, fitted.err
    assert Run(run).dataset.name == "gdelt"
    packed.unlink()
    assert bridgemem("forecast", run, "--subject", "Kel", "--relation", "visit").code == 0


def test_a_benchmark_does_not_travel_with_the_run_however_it_was_read(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = named_own(load(own_csv), "own", monkeypatch)
    pack(dataset, tmp_path / "own.npz")
    monkeypatch.setenv("BRIDGEMEM_DATA", str(tmp_path))
    for source in ("own", tmp_path / "own.npz"):
        run = tmp_path / f"run of {type(source).__name__}"
        assert bridgemem("fit", "-d", source, "-b", "recurrence", "-o", run, *TINY_READER).code == 0
        assert not (run / "data.npz").exists()
        assert Run(run).dataset.events.fingerprint == dataset.events.fingerprint


def test_the_two_prefixes_are_fitted_apart(walk: Walk) -> None:
    run = Run(walk.run)
    train, known = run.transitions("train"), run.transitions("known")
    assert train.counts.counts.sum() < known.counts.counts.sum()


def test_a_run_without_figures_says_how_to_get_them(recurrence_run: Path, run_copy: Path) -> None:
    (run_copy / "metrics.json").unlink()
    with pytest.raises(RunError, match="bridgemem evaluate"):
        metrics_of(Run(run_copy), "test")


def test_tables_come_back_with_or_without_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"a": np.arange(5), "b": np.array([1.5, np.nan, 2.0, 3.0, -1.0])}
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setitem(sys.modules, "duckdb", None)
        path = tmp_path / f"{name}.parquet"
        assert write_table(path, columns).suffix == {"with": ".parquet", "without": ".npz"}[name]
        found = read_table(path)
        assert all(np.array_equal(found[key], values, equal_nan=key == "b") for key, values in columns.items())


def test_a_table_takes_the_place_of_one_of_the_other_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ranks.valid.parquet"
    for value, without in enumerate((False, True, False)):
        with monkeypatch.context() as here:
            if without:
                here.setitem(sys.modules, "duckdb", None)
            written = write_table(path, {"a": np.array([value])})
        assert left_in(tmp_path) == [written.name]
        assert read_table(path)["a"].tolist() == [value]


def test_two_tables_of_which_one_is_older_are_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "ranks.parquet", {"a": np.array([1])})
    np.savez(tmp_path / "ranks.npz", a=np.array([2]))
    with pytest.raises(RunError, match=r"ranks\.parquet and ranks\.npz are both there.* evaluate again\.$"):
        read_table(path)
    assert [read_columns(tmp_path / f"ranks.{kind}")["a"].tolist() for kind in ("parquet", "npz")] == [[1], [2]]


def test_without_duckdb_a_parquet_table_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path / "ranks.parquet", {"a": np.array([1])})
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(RunError, match=r"ranks\.parquet is Parquet.*: pip install duckdb\.$"):
        read_table(path)


@pytest.mark.parametrize("name", ["ranks.parquet", "ranks.npz"])
@pytest.mark.parametrize("content", [b"PAR1 nothing more", b"PK\x03\x04 nothing", b"\x93NUMPY", b""])
def test_a_damaged_table_is_said_to_be_damaged(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match=f"{name} is damaged"):
        read_table(tmp_path / "ranks.parquet")
    with pytest.raises(RunError, match="missing"):
        read_table(tmp_path / "none.parquet")


def test_a_single_array_is_no_table(tmp_path: Path) -> None:
    with (tmp_path / "ranks.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(RunError, match="damaged"):
        read_table(tmp_path / "ranks.parquet")


@pytest.fixture
def odd_run(own_csv: Path, tmp_path: Path) -> Run:
    """A run whose names hold all that anything takes for a line break."""
    dataset = load(own_csv)
    entities, relations = dataset.events.entities.names, dataset.events.relations.names
    odd = replace(
        dataset.events,
        entities=Vocabulary("entity", ("Arvan\nlimited", "D\rE", *entities[2:])),
        relations=Vocabulary("relation", ("make a\u2028statement", "visit\x85twice", *relations[2:])),
    )
    dataset = replace(dataset, events=odd)
    train("recurrence", dataset, tmp_path / "backbone")
    return fit_run(dataset, tmp_path / "backbone", tmp_path / "run", SMALL)[0]


def test_names_with_line_breaks_keep_their_ids_and_their_memory(odd_run: Run, tmp_path: Path) -> None:
    dataset = odd_run.dataset
    assert odd_run.relations() == dataset.events.relations.names
    assert len(odd_run.relations()) == len(RELATIONS)
    write_memory(dataset, tmp_path / "memory")
    assert Run(odd_run.folder, memory_dir=tmp_path / "memory").dataset.events.entities == dataset.events.entities
    flat = tuple(name.replace("\n", " ") for name in dataset.events.entities.names)
    other = replace(dataset, events=replace(dataset.events, entities=Vocabulary("entity", flat)))
    write_memory(other, tmp_path / "other")
    with pytest.raises(RunError, match="a memory of other entity names"):
        _ = Run(odd_run.folder, memory_dir=tmp_path / "other").dataset


def test_figures_that_are_written_at_once_are_all_kept(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(path: Path) -> Any:
        found = read_json(path)
        time.sleep(0.02)
        return found

    monkeypatch.setattr(runs, "read_json", slowly)
    run, before = Run(run_copy), left_in(run_copy)
    splits = [f"split {number}" for number in range(4)]
    writers = [threading.Thread(target=run.write_metrics, args=({split: []},)) for split in splits]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert set(measured_rows(run)) == {"test", *splits}
    assert left_in(run_copy) == before


def test_the_config_names_the_gates_that_were_searched(walk: Walk, recurrence_run: Path) -> None:
    for run in (Run(walk.run), Run(recurrence_run)):
        searched = {point["gate"] for point in run.selection("time").grid}
        assert searched == set(run.settings.gates)
    assert "entropy" in Run(recurrence_run).settings.gates

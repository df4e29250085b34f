"""A run folder holds everything that its figures need, and gives back the forecaster that was saved."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import duckdb
import numpy as np
import pytest

from bridgemem.api import fit_run, load
from bridgemem.backbones import load_backbone
from bridgemem.config import Settings
from bridgemem.errors import RunError, SelectionError
from bridgemem.evaluation.filters import FILTERS
from bridgemem.events.benchmarks import pack, unpack
from bridgemem.fitting import digest
from bridgemem.forecast import Forecaster
from bridgemem.runs import Run, read_table, write_table
from commands import ACTORS, RELATIONS, TINY_READER, Walk, bridgemem, left_in, named_own

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
        "metrics.json",
        "model.safetensors",
        "ranks.parquet",
        "relations.txt",
        "selection.json",
    ]
    assert left_in(walk.run / "backbone") == ["config.toml", "trained.json", "weights.safetensors"]
    assert not [path for path in walk.run.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"\x80"]


def test_the_config_names_data_backbone_seeds_and_every_setting(walk: Walk) -> None:
    tables = tomllib.loads((walk.run / "config.toml").read_text())
    assert tables["run"]["dataset"] == "own"
    assert tables["run"]["fingerprint"] == unpack(walk.home / "own.npz").events.fingerprint
    assert (tables["run"]["backbone"], tables["run"]["backbone_seed"], tables["run"]["seed"]) == ("cenet", 5, 42)
    assert tables["settings"]["width"] == 8
    assert set(tables["settings"]) == set(vars(Settings()))
    assert Run(walk.run).settings == Settings(width=8, hidden=8, max_epochs=2)


def test_the_vocabularies_are_one_name_a_line_in_the_order_of_the_ids(walk: Walk) -> None:
    events = Run(walk.run).dataset().events
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


def test_a_run_from_before_a_field_was_added_stays_readable_and_locked(run_copy: Path) -> None:
    path = run_copy / "selection.json"
    records = json.loads(path.read_text())
    for record in records.values():
        del record["choice"]["shrinkage"]
        record["lock"] = digest(record)
    path.write_text(json.dumps(records))
    selection = Run(run_copy).selection("time")
    assert selection.choice.shrinkage
    assert selection.lock() == records["time"]["lock"]
    records["time"]["choice"]["lam"] += 1
    path.write_text(json.dumps(records))
    with pytest.raises(SelectionError, match="changed after it was locked"):
        Run(run_copy).selection("time")


def test_no_selection_is_made_under_another_filter(walk: Walk) -> None:
    with pytest.raises(SelectionError, match="static or time"):
        Run(walk.run).selection("raw")


def test_the_metrics_follow_from_the_ranks_on_disk(walk: Walk) -> None:
    (split,) = json.loads((walk.run / "metrics.json").read_text()).items()
    name, records = split
    assert name == "test"
    assert len(records) == 9
    for record in records:
        method = "backbone" if record["method"] == "backbone" else f"bridgemem_by_{record['selection']}"
        column = f"{method}_{record['filter']}"
        hits = ", ".join(f"avg(({column} <= {k})::int)" for k in (1, 3, 10))
        query = f"SELECT count(*), avg(1 / {column}), {hits} FROM read_parquet(?)"
        with duckdb.connect() as connection:
            found = connection.execute(query, [str(walk.run / "ranks.parquet")]).fetchone()
        stated = [record[key] for key in ("queries", "mrr", "hits1", "hits3", "hits10")]
        assert found == pytest.approx(stated, abs=1e-12)


def test_the_ranks_name_every_query_of_the_split_in_both_directions(walk: Walk) -> None:
    test = Run(walk.run).dataset().test
    table = read_table(walk.run / "ranks.parquet")
    n = test.n_relations
    assert table["actor"].tolist() == np.stack([test.subject, test.object], 1).ravel().tolist()
    assert table["answer"].tolist() == np.stack([test.object, test.subject], 1).ravel().tolist()
    assert table["relation"].tolist() == np.stack([test.relation, test.relation + n], 1).ravel().tolist()
    assert table["step"].tolist() == np.repeat(test.step, 2).tolist()
    for name in FILTERS:
        assert (table[f"backbone_{name}"] >= 1).all()
        assert (table[f"backbone_{name}"] <= len(ACTORS)).all()
    assert (table["backbone_raw"] >= table["backbone_time"]).all()
    assert (table["backbone_time"] >= table["backbone_static"]).all()


def test_a_run_on_disk_forecasts_as_the_model_did_before_it_was_saved(walk: Walk, tmp_path: Path) -> None:
    dataset = load(walk.home / "own.npz")
    run, fitted = fit_run(dataset, walk.backbone, tmp_path / "run", SMALL)
    for name, selection in fitted.selections.items():
        after = Forecaster.open(run.folder, name)
        parts = (load_backbone(walk.backbone), fitted.known, selection.choice)
        before = Forecaster(dataset.events, *parts, calibration=after.calibration)
        for inverse in (False, True):
            asked = ("Kel", "consult", None, 12, inverse)
            assert before.forecast(*asked) == after.forecast(*asked)


def test_a_run_does_not_need_the_folders_it_was_made_from(own_csv: Path, tmp_path: Path) -> None:
    from bridgemem.api import train

    dataset, backbone = load(own_csv), tmp_path / "backbone"
    train("recurrence", dataset, backbone)
    fit_run(dataset, backbone, tmp_path / "run", SMALL)
    for path in backbone.iterdir():
        path.unlink()
    assert Forecaster.open(tmp_path / "run").forecast("Kel", "visit")


def test_own_data_that_is_called_like_a_benchmark_travels_with_the_run(own_csv: Path, tmp_path: Path) -> None:
    packed, run = tmp_path / "gdelt.npz", tmp_path / "run"
    assert bridgemem("data", "import", own_csv, "--out", packed).code == 0
    fitted = bridgemem("fit", "-d", packed, "-b", "recurrence", "-o", run, *TINY_READER)
    assert fitted.code == 0, fitted.err
    assert Run(run).dataset().name == "gdelt"
    packed.unlink()
    assert bridgemem("forecast", run, "--actor", "Kel", "--relation", "visit").code == 0


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
        assert Run(run).dataset().events.fingerprint == dataset.events.fingerprint


def test_the_two_prefixes_are_fitted_apart(walk: Walk) -> None:
    run = Run(walk.run)
    train, known = run.transitions("train"), run.transitions("known")
    assert train.counts.counts.sum() < known.counts.counts.sum()


def test_a_run_without_figures_says_how_to_get_them(recurrence_run: Path, run_copy: Path) -> None:
    (run_copy / "metrics.json").unlink()
    with pytest.raises(RunError, match="bridgemem evaluate"):
        Run(run_copy).metrics()


def test_tables_come_back_with_or_without_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"a": np.arange(5), "b": np.array([1.5, np.nan, 2.0, 3.0, -1.0])}
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setitem(sys.modules, "duckdb", None)
        path = tmp_path / f"{name}.parquet"
        assert write_table(path, columns).suffix == {"with": ".parquet", "without": ".npz"}[name]
        found = read_table(path)
        assert all(np.array_equal(found[key], values, equal_nan=key == "b") for key, values in columns.items())


def test_a_damaged_table_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "ranks.parquet").write_bytes(b"PAR1 nothing more")
    with pytest.raises(RunError, match="damaged"):
        read_table(tmp_path / "ranks.parquet")
    with pytest.raises(RunError, match="missing"):
        read_table(tmp_path / "none.parquet")

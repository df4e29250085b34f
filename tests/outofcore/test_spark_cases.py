"""Spark on this machine: the features of a fit, joined columns and one relation for all rows, as without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bridgemem as bm
import spark_cluster
from bridgemem.events.readers.options import ReadOptions
from bridgemem.outofcore import spark
from bridgemem.outofcore.duckdb import mine_files
from commands import bridgemem
from corpora import write_parquet

missing = spark_cluster.why_not()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")
MASTER = "local[2]"
QUICK = ("--set", "max_epochs=1", "--set", "max_queries=200", "--set", "max_examples=500")
QUICK += ("--learned-set", "epochs=1", "--learned-set", "train_queries=1500", "--learned-set", "valid_queries=600")


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One session for all tests, small and quick to start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_CONF_DIR", str(spark_cluster.write_settings(tmp_path_factory.mktemp("spark") / "conf")))
        patched.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        with spark.session(MASTER):
            yield


def test_a_fit_that_reads_its_features_on_spark_is_the_same(tmp_path: Path) -> None:
    table, mined = tmp_path / "events.csv", tmp_path / "mined"
    world = bm.simulate(bm.WorldSettings(actors=40, relations=6, steps=60, events=6_000)).dataset.events
    world.to_frame().to_csv(table, index=False)
    mine_files([table], mined)
    for name, how in (("here", ()), ("there", ("--engine", "spark", "--master", MASTER))):
        assert bridgemem("fit", "-d", mined, "--out", tmp_path / name, *QUICK, *how, "-q").code == 0
    for file in ("model.safetensors", "backbone/weights.safetensors"):
        here, there = (load_file(tmp_path / name / file) for name in ("here", "there"))
        assert here.keys() == there.keys()
        assert file != "model.safetensors" or any(name.startswith("learned.") for name in here)
        assert all(torch.equal(values, there[tensor]) for tensor, values in here.items()), file


def test_spark_fits_from_a_mined_folder_alone(tmp_path: Path) -> None:
    said = bridgemem("fit", "-d", "world", "--out", tmp_path / "run", "--engine", "spark", "--master", MASTER, "-q")
    assert "Spark reads the queries of a mined folder" in said.refused()
    said = bridgemem("fit", "-d", "world", "--out", tmp_path / "run", "--engine", "spark")
    assert "--master goes with --engine spark" in said.refused()


@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(relation="kind,detail", time="year,month,day"),
        ReadOptions(relation_is="trades with", time="year,month,day"),
    ],
    ids=["joined", "one relation"],
)
def test_columns_are_joined_as_by_duckdb(options: ReadOptions, tmp_path: Path) -> None:
    columns = {
        "subject": ["a", "b", "a", "c", "b", "a"],
        "kind": ["sell", "buy", "sell", "NA", "-", "buy"],
        "detail": ["oil", " ", "gas", "oil", "", "oil"],
        "object": ["b", "c", "c", "a", "a", "c"],
        "year": [2024, 2024, 2024, 2024, 2024, 2024],
        "month": [1, 1, 1, 2, 2, 2],
        "day": [1, 2, 30, 4, 5, 6],
    }
    file = write_parquet(tmp_path / "e.parquet", columns)
    one = mine_files([file], tmp_path / "duckdb", options=options)
    other = spark.mine_on_spark([file], tmp_path / "spark", MASTER, options=options)
    kept = ("fingerprint", "events", "n_entities", "n_relations", "clock")
    assert {name: one[name] for name in kept} == {name: other[name] for name in kept}
    assert one["source"]["dropped"] == other["source"]["dropped"]
    for name in ("entities.txt", "relations.txt", "counts.safetensors"):
        assert (tmp_path / "duckdb" / name).read_bytes() == (tmp_path / "spark" / name).read_bytes()


@pytest.mark.parametrize("kind", ["texts", "whole numbers"])
def test_steps_much_finer_than_the_stream_are_remarked_as_by_duckdb(kind: str, tmp_path: Path) -> None:
    seconds = 1_704_067_200 + 3_660 * np.arange(40)
    texts = [str(moment) for moment in seconds.astype("datetime64[s]").astype(str)]
    columns = {"subject": ["a", "b"] * 20, "relation": ["r"] * 40, "object": ["b", "c"] * 20}
    columns["time"] = texts if kind == "texts" else seconds.tolist()
    file = write_parquet(tmp_path / "e.parquet", columns)
    # whole days are counted alike from either kind, so one of them is asked
    days = {"day": ReadOptions(step="day")} if kind == "texts" else {}
    for name, options in {"fine": ReadOptions(), **days}.items():
        one = mine_files([file], tmp_path / f"duckdb {name}", options=options)["source"]["remarks"]
        other = spark.mine_on_spark([file], tmp_path / f"spark {name}", MASTER, options=options)["source"]["remarks"]
        assert one == other
        assert sum("A step is 61 minutes" in remark for remark in one) == (name == "fine")


def test_a_number_with_a_fraction_of_zero_is_the_name_that_duckdb_reads(tmp_path: Path) -> None:
    columns = {
        "subject": ["107", "205", "900107", "x"],
        "kind": ["pays", "pays", "pays", "pays"],
        "detail": ["7.0", "7", "7", " 7.0 "],
        "object": ["205.0", "107.0", "x", "107.00"],
        "time": ["1.0", "2", "3", "4"],
    }
    file, options = write_parquet(tmp_path / "e.parquet", columns), ReadOptions(relation="kind,detail")
    mine_files([file], tmp_path / "duckdb", options=options)
    spark.mine_on_spark([file], tmp_path / "spark", MASTER, options=options)
    for name, lines in (("entities.txt", 4), ("relations.txt", 1)):
        here, there = ((tmp_path / engine / name).read_text() for engine in ("duckdb", "spark"))
        assert here == there
        assert len([line for line in here.splitlines() if line and not line.startswith("#")]) == lines
    assert (tmp_path / "duckdb" / "counts.safetensors").read_bytes() == (
        tmp_path / "spark" / "counts.safetensors"
    ).read_bytes()

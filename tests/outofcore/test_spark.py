"""The Spark engine on a real cluster of a master and two workers: the same files as the other engines write."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spark_cluster
from bridgemem.config import Settings
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.outofcore import spark
from bridgemem.outofcore.base import Mining
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.outofcore.mined import Mined
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table
from commands import bridgemem
from corpora import assert_same_as_in_memory, awkward_log, columns_of, write_files, write_parquet
from spark_cluster import Cluster

pytest_plugins = ["small_runs"]
missing = spark_cluster.why_not()
pytestmark = pytest.mark.skipif(missing is not None, reason=missing or "")

HOT = 100_000
HALF = Settings(max_examples=60_000)  # fewer than there are, so that a sample is drawn


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, and this process connected to them, so that executors start only once."""
    home = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patched, spark_cluster.running(home) as cluster:
        patched.setenv("SPARK_CONF_DIR", str(spark_cluster.write_settings(home / "conf")))
        patched.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        with spark.session(cluster.url):
            yield cluster


@pytest.fixture(scope="module")
def hot_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ties, self loops, duplicates, pairs that never meet, and one pair with 100,000 events, in three files."""
    return write_files(tmp_path_factory.mktemp("hot"), awkward_log(1, HOT))


@pytest.fixture(scope="module")
def mined_whole(cluster: Cluster, hot_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the cluster mines from them, undisturbed, in four partitions."""
    out = tmp_path_factory.mktemp("undisturbed") / "mined"
    spark.mine_on_spark(hot_files, out, cluster.url, HALF, rows=60_000)
    return out


def assert_same_files(one: Path, other: Path) -> None:
    """Counts, examples, names and index are the same to the byte; only the engine's own note may differ."""
    for name in ("counts.safetensors", "examples-00000.npz", "entities.txt", "relations.txt"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    left, right = Mined(one), Mined(other)
    assert left.about | {"source": None} == right.about | {"source": None}
    for a, b in zip(left.segments.parts, right.segments.parts, strict=True):
        for name, column in a.columns.items():
            assert np.array_equal(column, b.columns[name]), name
    for file in (one / "index").glob("*.npy"):
        if not file.name.startswith("segment-"):
            assert file.read_bytes() == (other / "index" / file.name).read_bytes(), file.name


def test_a_cluster_writes_the_files_that_duckdb_writes(
    mined_whole: Path, hot_files: list[Path], tmp_path: Path
) -> None:
    mine_files(hot_files, tmp_path / "duckdb", HALF)
    assert_same_files(mined_whole, tmp_path / "duckdb")
    assert Mined(mined_whole).about["sampled"] == HALF.max_examples
    assert not (mined_whole / "work").exists()


def test_a_cluster_gives_what_the_in_memory_path_gives(mined_whole: Path) -> None:
    assert_same_as_in_memory(Mined(mined_whole), awkward_log(1, HOT), HALF)


@pytest.mark.parametrize("rows", [50, 10_000])
def test_any_partitioning_and_order_of_files_gives_the_result_of_duckdb(
    cluster: Cluster, tmp_path: Path, rows: int
) -> None:
    events, settings = awkward_log(3, n=150), Settings(k=3, window=9, max_examples=100)
    columns = columns_of(events)
    if rows == 50:  # ids of which some are missing
        columns |= {name: 3 * columns[name] for name in ("subject", "relation", "object")}
    mixed = np.random.default_rng(rows).permutation(len(events))
    # the order is not that of the names, one of which is odd; one file keeps ids in fewer bits, and has a bad row
    write_parquet(tmp_path / "b ö 5%.parquet", {name: c[mixed[:70]].astype(np.int64) for name, c in columns.items()})
    write_parquet(tmp_path / "a.parquet", {name: np.append(c[mixed[70:]], -1) for name, c in columns.items()})
    files = [tmp_path / "b ö 5%.parquet", tmp_path / "a.parquet"]
    done = spark.mine_on_spark(files, tmp_path / "spark", cluster.url, settings, rows=rows)
    mine_files(files, tmp_path / "duckdb", settings)
    assert_same_files(tmp_path / "spark", tmp_path / "duckdb")
    assert (done["n_entities"], done["n_relations"]) == (events.n_entities, events.n_relations)
    assert done["source"] == {"engine": "spark", "files": 2, "rejected": 1, "dropped": {}, "remarks": []}


def test_names_and_dates_are_numbered_as_by_duckdb_and_tables_stay_where_a_user_wants_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    events = awkward_log(5, n=120)
    names = np.array([" Ada", "Bo", "Cy\t", "f", "Ösel", "7", "Gil ", "Hu", "Ida", "Jo"])
    columns: dict[str, np.ndarray] = {
        "head": names[events.subject],
        "rel": np.char.add("does ", events.relation.astype(str)),
        "tail": names[events.object],
        "date": (np.datetime64("2020-02-27") + events.step[::-1] * 7).astype("datetime64[us]"),
    }
    columns["head"][3], columns["tail"][5] = "", "NA"
    file = write_parquet(tmp_path / "named.parquet", columns)
    tables = (tmp_path / "tables").as_uri()
    outcome = bridgemem(
        *("mine", "--engine", "spark", "--master", cluster.url, file, "-o", tmp_path / "spark", "--tables", tables),
        *("--json", "--seed", "7"),
    )
    mine_files([file], tmp_path / "duckdb", seed=7)
    assert_same_files(tmp_path / "spark", tmp_path / "duckdb")
    assert outcome.json["source"]["rejected"] == 0
    assert outcome.json["source"]["dropped"] == {"without a subject (empty)": 1, "without an object (NA)": 1}
    assert outcome.json["clock"]["kind"] == "date"
    assert outcome.json["clock"]["unit"] == 7 * 86_400
    assert list((tmp_path / "tables").glob("kind=rows/bucket=*/*.parquet"))


def test_a_catalog_table_is_mined_in_the_order_that_its_column_gives(cluster: Cluster, tmp_path: Path) -> None:
    events = awkward_log(6, n=100)
    columns = columns_of(events)
    whole = write_parquet(tmp_path / "whole.parquet", columns)
    backwards = {name: c[::-1].copy() for name, c in (columns | {"order": np.arange(len(events))}).items()}
    table = f"parquet.`{write_parquet(tmp_path / 'backwards.parquet', backwards)}`"
    spark.mine_on_spark([table], tmp_path / "spark", cluster.url)
    mine_files([whole], tmp_path / "duckdb")
    assert_same_files(tmp_path / "spark", tmp_path / "duckdb")
    with pytest.raises(DataError, match="no whole-number column 'order'"):
        spark.mine_on_spark([f"parquet.`{whole}`"], tmp_path / "no", cluster.url)


def test_the_tasks_of_a_cluster_rank_like_one_process(cluster: Cluster, recurrence_run: Path, tmp_path: Path) -> None:
    names = ("alone", "shared", "commanded")
    alone, shared, commanded = (Run(shutil.copytree(recurrence_run, tmp_path / name)) for name in names)
    expected = evaluate(alone)
    found = spark.evaluate_on_spark(shared, cluster.url, shards=3)
    assert [replace(record, device="") for record in found] == [replace(record, device="") for record in expected]
    assert bridgemem("evaluate", commanded.folder, "--master", cluster.url).code == 0
    one, *others = (read_table(run.ranks_path("test")) for run in (alone, shared, commanded))
    for other in others:
        assert one.keys() == other.keys()
        for name, column in one.items():
            assert np.array_equal(column, other[name], equal_nan=column.dtype.kind == "f"), name


# ---- bad input -----------------------------------------------------------------------------------------------------


def refused(cluster: Cluster, out: Path, *events: str | Path) -> str:
    sentence = bridgemem("mine", "--engine", "spark", "--master", cluster.url, *events, "-o", out).refused()
    assert not (out / "mined.json").exists()
    return sentence


def test_a_damaged_file_among_many_is_named(cluster: Cluster, hot_files: list[Path], tmp_path: Path) -> None:
    good = hot_files[0].read_bytes()
    cut, torn = tmp_path / "cut.parquet", tmp_path / "torn.parquet"
    cut.write_bytes(good[: len(good) // 2])
    torn.write_bytes(good[:100] + bytes(len(good) // 2) + good[100 + len(good) // 2 :])
    for bad in (cut, torn):
        sentence = refused(cluster, tmp_path / "out", hot_files[1], bad, hot_files[2])
        assert bad.name in sentence
        assert "cannot be read" in sentence


def test_a_file_of_another_schema_is_named(cluster: Cluster, hot_files: list[Path], tmp_path: Path) -> None:
    columns: dict[str, Any] = {name: c[:9] for name, c in columns_of(awkward_log(1)).items()}
    lacking = write_parquet(tmp_path / "lacking.parquet", {n: c for n, c in columns.items() if n != "relation"})
    sentence = refused(cluster, tmp_path / "out", hot_files[0], lacking)
    assert "lacking.parquet has no column for relation" in sentence
    drifted = write_parquet(tmp_path / "drifted.parquet", columns | {"object": ["x"] * 9})
    sentence = refused(cluster, tmp_path / "out", hot_files[0], drifted)
    assert "drifted.parquet" in sentence
    assert "one schema" in sentence


def test_what_is_not_there_is_named(cluster: Cluster, tmp_path: Path) -> None:
    assert "nothing.parquet does not exist" in refused(cluster, tmp_path / "out", tmp_path / "nothing.parquet")


def test_a_master_that_nobody_answers_for_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port, and nobody answers
        url = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        outcome = bridgemem("mine", "--engine", "spark", "--master", url, "x.parquet", "-o", tmp_path / "out")
    assert f"no Spark master answers at {url}" in outcome.refused()
    for wrong in ("localhost:7077", "spark://localhost", "spark://:7077"):
        with pytest.raises(SettingsError, match="not a Spark master"):
            spark.check_master(wrong)


# ---- a worker dies; last, since the cluster has one worker less from here on ---------------------------------------


def test_a_worker_killed_in_the_middle_changes_nothing(
    cluster: Cluster, mined_whole: Path, hot_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = tmp_path / "sign"

    def stall_once(batches: Iterator[Any], mining: Mining) -> Iterator[Any]:
        """On a worker: mine, but let the first task of all wait amid its rows, until it is killed."""
        from bridgemem.outofcore.spark import _mine_partition

        mined = _mine_partition(batches, mining)
        yield next(mined)
        try:
            aside = sign.with_suffix(f".{os.getpid()}")
            aside.write_text(f"{os.getsid(0)} {os.getpgid(0)}")
            os.link(aside, sign)  # whole when it appears, and only once
        except FileExistsError:
            yield from mined
        else:
            time.sleep(600)
            raise RuntimeError("nobody killed this task")

    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not sign.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        worker, python = map(int, sign.read_text().split())
        # the worker with its executor, and the Python that the executor runs, which leads a group of its own
        cluster.kill(next(process for process in cluster.workers if process.pid == worker))
        os.killpg(python, signal.SIGKILL)
        killed.append(worker)

    monkeypatch.setattr(spark, "_mine_partition", stall_once)
    killer = threading.Thread(target=kill)
    killer.start()
    spark.mine_on_spark(hot_files, tmp_path / "mined", cluster.url, HALF, rows=60_000)
    killer.join()
    assert len(killed) == 1
    assert sum(process.poll() is not None for process in cluster.workers) == 1
    assert_same_files(tmp_path / "mined", mined_whole)

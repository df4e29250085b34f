"""The parts of the Spark engine that need no cluster: clocks from few times, batches, sources and clear sentences."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_cluster
from bridgemem.config import Settings
from bridgemem.errors import BridgeMemError, DataError, RunError, SettingsError
from bridgemem.events.times import clock_for
from bridgemem.outofcore import spark
from bridgemem.outofcore.base import COLUMNS, Mining
from bridgemem.outofcore.spark_events import _few_times, is_table
from builders import few
from corpora import awkward_log

needs_arrow = spark_cluster.NEEDS_EXTRA


@few
@given(
    partitions=st.lists(st.lists(st.integers(0, 10**6).map(lambda n: n * 6), max_size=6), min_size=1, max_size=4),
    unit=st.sampled_from([1, 5, 43_200, 86_400]),
    wanted=st.sampled_from([("integer", None), ("date", None), ("date", "week")]),
)
def test_few_times_of_each_partition_give_the_clock_of_all(
    partitions: list[list[int]], unit: int, wanted: tuple[str, str | None]
) -> None:
    kind, step = wanted
    pa = pytest.importorskip("pyarrow", reason=needs_arrow)
    times = [np.array(part, dtype=np.int64) * unit for part in partitions]
    whole = np.concatenate(times)
    if not len(whole):
        return
    found = []
    for part in times:
        # in batches of two rows, some of them empty
        cuts = [part[at : at + 2] for at in range(0, len(part) + 1, 2)]
        batches = (pa.RecordBatch.from_pydict({"time": pa.array(cut, pa.int64())}) for cut in cuts)
        found += [batch.column("time").to_numpy() for batch in _few_times(batches, step is not None)]
    assert clock_for(np.concatenate(found), kind, step) == clock_for(whole, kind, step)


def test_few_times_keep_the_weekday_that_all_have_and_bring_no_other() -> None:
    pa = pytest.importorskip("pyarrow", reason=needs_arrow)
    saturday = 1_704_571_200  # at 20:00
    for hours in ([0, 150, 165], [0, 12, 24]):
        times = saturday + 3600 * np.array(hours, np.int64)
        batch = pa.RecordBatch.from_pydict({"time": pa.array(times)})
        (found,) = (few.column("time").to_numpy() for few in _few_times(iter([batch]), True))
        assert clock_for(found, "date", "week") == clock_for(times, "date", "week")


def test_a_partition_passes_its_rows_through_and_its_examples_come_by_lot() -> None:
    pa = pytest.importorskip("pyarrow", reason=needs_arrow)
    pytest.importorskip("pyspark", reason=needs_arrow)
    events, mining = awkward_log(2), Mining(Settings(max_examples=50), 10, 5)
    both = (events.subject, events.object), (events.object, events.subject)
    sides = [(a, c, events.step, np.arange(400), events.relation, np.full(400, d)) for d, (a, c) in enumerate(both)]
    table = np.concatenate([np.stack(side).astype(np.int64) for side in sides], axis=1)
    table = table[:, np.lexsort(table[[5, 3, 2, 1, 0]])]
    rows = dict(zip(COLUMNS, table, strict=True))
    batches = [
        pa.RecordBatch.from_pydict({name: pa.array(c[at : at + 97]) for name, c in rows.items()})
        for at in range(0, 800, 97)
    ]
    found = pa.Table.from_batches(list(spark._mine_partition(iter(batches), mining)))
    of = {kind: found.filter(pa.compute.field("kind") == kind) for kind in ("rows", "examples", "part")}
    assert of["rows"].column("at").to_pylist() == list(range(800))
    assert of["rows"].column("pair").to_pylist() == (rows["actor"] * 10 + rows["candidate"]).tolist()
    sample_keys = of["examples"].column("at").to_numpy()
    assert len(sample_keys) == 50
    assert (np.diff(sample_keys) > 0).all()
    assert of["part"].num_rows == 1


@pytest.mark.parametrize(
    ("source", "table"),
    [
        ("lake.gdelt.events", True),
        ("delta.`s3a://lake/events`", True),
        ("s3a://lake/events/", False),
        ("s3a://lake/events/2020.parquet", False),
        ("events.parquet", False),
        ("folder/events.v2", False),
        ("/data/*.parquet", False),
    ],
)
def test_tables_are_told_from_places(source: str, table: bool) -> None:
    assert is_table(source) == table


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/tmp/a b.parquet. SQLSTATE: 42K03",
            DataError,
            "file:/tmp/a b.parquet does not exist.",
        ),
        (
            "org.x.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///tmp/x.parquet."
            "  SQLSTATE: KD001\n\tat org.apache",
            DataError,
            "file:///tmp/x.parquet cannot be read as Parquet",
        ),
        (
            "Traceback (most recent call last):\nbridgemem.errors.DataError: the rows are bad.\n\n\tat org.apache",
            DataError,
            "the rows are bad.",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before", SettingsError, "install Java 17"),
        ("ModuleNotFoundError: No module named 'torch.nn'", SettingsError, "Python lacks torch;"),
        ("java.io.IOException: No space left on device", RunError, "is full"),
        ("An error occurred while calling o1.x.\n: java.lang.Oops: out of luck\n\tat", RunError, "up: out of luck."),
        ("", RunError, "it gave no reason."),
    ],
)
def test_a_page_of_java_becomes_one_sentence(text: str, kind: type[BridgeMemError], sentence: str) -> None:
    found = spark._sentence(text)
    assert type(found) is kind
    assert sentence in str(found)
    assert "\n" not in str(found)
    assert str(found).endswith(".")


def test_the_workers_get_the_package_that_runs_here(tmp_path: Path) -> None:
    with zipfile.ZipFile(spark._package(tmp_path)) as packed:
        names = packed.namelist()
        here = Path(spark.__file__).read_bytes()
        assert packed.read("bridgemem/outofcore/spark.py") == here
    assert "bridgemem/backbones/settings.toml" in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "needs Java 17 or later, and the one found here is 11"),
        ('java version "1.8.0_292"', "needs Java 17 or later, and the one found here is 8"),
        ("not found", "needs Java 17 or later"),
        ('openjdk version "17" 2021-09-14', None),
        ('openjdk version "21.0.4-ea" 2024-07-16', None),
    ],
)
def test_where_no_cluster_can_start_the_reason_names_java(
    said: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark_cluster.why_not() in ((why,) if why else (None, spark_cluster.NEEDS_EXTRA))
    java.unlink()
    assert spark_cluster.why_not() == "needs Java 17 or later"

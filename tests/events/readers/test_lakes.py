"""Delta, Iceberg and S3 as sources, with the libraries themselves: the events of the same rows in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bridgemem.events.readers import lakes
from commands import bridgemem, left_in, planted_rows, write_rows

pa = pytest.importorskip("pyarrow", reason="needs the extras 'delta', 'iceberg' and 's3'")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extras 'delta', 'iceberg' and 's3'")
deltalake = pytest.importorskip("deltalake", reason="needs the extra 'delta'")
pyiceberg_catalog = pytest.importorskip("pyiceberg.catalog", reason="needs the extra 'iceberg'")
Config = pytest.importorskip("pyiceberg.utils.config", reason="needs the extra 'iceberg'").Config
moto_server = pytest.importorskip("moto.server", reason="needs moto, of the extra 'dev'")
boto3 = pytest.importorskip("boto3", reason="needs boto3, of the extra 'dev'")

pytest_plugins = ("small_runs",)
ROWS = planted_rows()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events as a plain file."""
    return write_rows(tmp_path_factory.mktemp("plain") / "events.csv", ROWS)


def table(rows: list[tuple[str, str, str, str]] = ROWS) -> Any:
    """The events as a lake holds them, with a column that is none of theirs."""
    columns = dict(zip(("subject", "relation", "object", "time"), map(list, zip(*rows, strict=True)), strict=True))
    return pa.table({**columns, "payload": [b"x" * 100] * len(rows)})


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of two commits, the second after the first."""
    path = str(tmp_path_factory.mktemp("delta") / "events")
    deltalake.write_deltalake(path, table(ROWS[:300]))
    deltalake.write_deltalake(path, table(ROWS[300:]), mode="append")
    return path


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table in a SQL catalog on this machine, told to PyIceberg as its users do."""
    home = tmp_path / "warehouse"
    home.mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{home}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", f"file://{home}")
    # PyIceberg reads the environment when it is imported
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())
    catalog = pyiceberg_catalog.load_catalog("local")
    catalog.create_namespace("news")
    rows = table()
    catalog.create_table("news.events", schema=rows.schema).append(rows)
    catalog.create_table("news.empty", schema=rows.schema)
    return "iceberg://local/news.events"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """An S3 server on this machine alone."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Objects of a bucket: the events in two Parquet files, and whole as text."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3_server)
    client.create_bucket(Bucket="feeds")
    for number, rows in enumerate((ROWS[:300], ROWS[300:])):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(table(rows), path)
        client.upload_file(str(path), "feeds", f"events/{path.name}")
    client.upload_file(str(file), "feeds", "events.csv")
    return "s3://feeds/events/*.parquet"


@pytest.fixture(params=["delta", "iceberg", "s3"])
def lake(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_events_of_a_lake_are_those_of_a_file(lake: str, file: Path, tmp_path: Path) -> None:
    found = bridgemem("data", "import", lake, "-o", tmp_path / "lake.npz", "--json").json
    plain = bridgemem("data", "import", file, "-o", tmp_path / "file.npz", "--json").json
    assert found["events"] == plain["events"] == len(ROWS)
    both = [
        bridgemem("data", "check", tmp_path / name, "--json").json["fingerprint"] for name in ("lake.npz", "file.npz")
    ]
    assert both[0] == both[1]
    assert bridgemem("data", "stats", lake, "--json").json["fingerprint"] == both[0]
    assert bridgemem("data", "check", lake, "--json").json["events"] == len(ROWS)


def test_a_lake_is_mined_as_a_file_is(lake: str, file: Path, tmp_path: Path) -> None:
    here = tmp_path / "mined"
    here.mkdir()
    mined = [bridgemem("mine", source, "-o", here / str(i), "--json").json for i, source in enumerate((lake, file))]
    assert mined[0]["fingerprint"] == mined[1]["fingerprint"]
    assert left_in(here) == ["0", "1"]


def test_text_on_s3_is_read_as_text(s3: str, file: Path) -> None:
    found = bridgemem("data", "check", "s3://feeds/events.csv", "--json").json
    assert found["events"] == len(ROWS)


def test_a_mining_that_was_cut_off_fetches_nothing_twice(
    delta: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridgemem.outofcore import duckdb

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "mined"
    with monkeypatch.context() as patched:
        patched.setattr(duckdb, "write_mined", stop)
        assert bridgemem("mine", delta, "-o", out).code == 1
    assert "mined.sources" in left_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(lakes, "whole_file", stop)
        assert bridgemem("mine", delta, "-o", out).code == 0
    assert left_in(tmp_path) == ["mined"]


def test_rejected_rows_are_told_by_the_name_of_the_table(tmp_path: Path) -> None:
    rows = [*ROWS[:50], ("Arvan", "visit", "Kel", "soon")]
    deltalake.write_deltalake(str(tmp_path / "t"), table(rows))
    rejects = tmp_path / "rejects.csv"
    checked = bridgemem("data", "check", tmp_path / "t", "--rejects", rejects)
    assert checked.code == 2
    assert f"{tmp_path / 't'}:51: the time 'soon' is neither" in checked.out
    assert rejects.read_text().splitlines()[1].startswith(f"{tmp_path / 't'},51,")
    packed = ("-o", tmp_path / "p.npz")
    assert f"{tmp_path / 't'}:51" in bridgemem("data", "import", tmp_path / "t", *packed, "--strict").refused()


def test_only_the_columns_of_events_are_fetched(delta: str) -> None:
    with lakes.local_files([delta], lakes.event_columns(lakes.ReadOptions())) as files:
        (path,) = files
        assert parquet.read_schema(path).names == ["subject", "relation", "object", "time"]


def test_queries_come_from_a_delta_table(recurrence_run: Path, tmp_path: Path) -> None:
    rows = pa.table({"subject": ["Arvan", "Kel"], "relation": ["visit", "visit"], "note": ["", ""]})
    deltalake.write_deltalake(str(tmp_path / "queries"), rows)
    out = tmp_path / "a.csv"
    done = bridgemem(
        "forecast", recurrence_run, "--queries", tmp_path / "queries", "--out", out, "--top", "1", "--json"
    )
    assert (done.json["queries"], done.json["rows"]) == (2, 2)
    deltalake.write_deltalake(str(tmp_path / "other"), pa.table({"who": ["Arvan"]}))
    said = bridgemem("forecast", recurrence_run, "--queries", tmp_path / "other", "--out", out, "--force").refused()
    assert f"{tmp_path / 'other'} has no column relation" in said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("delta:absent", "absent cannot be read as a table"),
        ("iceberg://local", "write iceberg://CATALOG/NAMESPACE.TABLE"),
        ("iceberg://local/news.absent", "Table does not exist"),
        ("iceberg://local/news.empty", "holds no events"),
        ("s3://feeds/none/*.csv", "does not exist"),
        ("s3://feeds/events", "does not exist"),
        ("s3://absent/events.csv", "s3://absent/events.csv"),
    ],
)
def test_what_is_not_there_is_one_sentence(source: str, said: str, iceberg: str, s3: str) -> None:
    assert said in bridgemem("data", "check", source).refused()


def test_a_table_without_the_columns_of_events_names_those_it_has(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"who": ["a"], "whom": ["b"]}))
    said = bridgemem("data", "check", tmp_path / "t").refused()
    assert f"{tmp_path / 't'} has no column for subject" in said
    assert "it has 'who', 'whom'" in said


@pytest.mark.parametrize(
    ("source", "module", "extra"),
    [
        ("delta:t", "deltalake", "delta"),
        ("iceberg://c/n.t", "pyiceberg.catalog", "iceberg"),
        ("s3://b/k", "pyarrow.fs", "s3"),
    ],
)
def test_a_missing_extra_is_named(source: str, module: str, extra: str) -> None:
    with mock.patch.dict(sys.modules, {module: None}):
        assert f"pip install -e '.[{extra}]'" in bridgemem("data", "check", source).refused()

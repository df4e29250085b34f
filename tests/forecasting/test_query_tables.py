"""Tables of queries: answered in parts that outlive a kill, with the answers of one that was not interrupted."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bridgemem.errors import DataError
from bridgemem.forecasting import query_tables
from bridgemem.forecasting.batch_queries import answer, read_queries
from bridgemem.forecasting.predictor import Predictor
from bridgemem.forecasting.query_sources import QuerySource, query_source
from bridgemem.forecasting.query_tables import answer_table
from bridgemem.runs import Run
from commands import ACTORS, RELATIONS, bridgemem, left_in

pytest_plugins = ("small_runs",)
SMALL = 5  # queries of a part
ASK = "import bridgemem.forecasting.query_tables as t; t.BLOCK = 1; from bridgemem.cli.main import main; main()"


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """23 queries of four times, as a table."""
    rows = [
        (actor, relation, "", time) if number % 3 else ("", relation, actor, time)
        for number, (actor, relation, time) in enumerate(
            (actor, relation, time)
            for actor in ACTORS[:3]
            for relation in RELATIONS[:2]
            for time in ("", "2024-02-05", "2024-01-20", "2024-02-01")
        )
    ][:23]
    path = tmp_path / "q.csv"
    path.write_text("subject,relation,object,time\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_tables, "BLOCK", SMALL)


@pytest.fixture(scope="module")
def forecaster(recurrence_run: Path) -> Predictor:
    return Run(recurrence_run).predictor()


def interrupted_after(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come after that many parts."""
    make, made = query_tables._Parts.make, list[int]()

    def stopped(self: Any, predictor: Predictor, number: int, block: Any) -> Any:
        if len(made) == parts:
            raise KeyboardInterrupt
        made.append(number)
        return make(self, predictor, number, block)

    monkeypatch.setattr(query_tables._Parts, "make", stopped)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_answers_in_parts_are_those_of_all_queries_at_once(form: str, forecaster: Predictor, queries: Path) -> None:
    out, whole = queries.with_name(f"a.{form}"), queries.with_name(f"whole.{form}")
    made = answer_table(lambda: forecaster, query_source(queries), out, top=3)
    assert (made.queries, made.parts, made.resumed) == (23, 5, 0)
    answer(forecaster, read_queries(queries), 3).write(whole)
    assert left_in(queries.parent) == sorted([out.name, whole.name, "q.csv"])
    both = [
        duckdb.sql(f"SELECT query, subject, object, time, candidate, rank FROM '{path}'").fetchall()
        for path in (out, whole)
    ]
    assert both[0] == both[1]
    assert [row[0] for row in both[0]] == [number for number in range(1, 24) for _ in range(3)]
    if form == "csv":
        assert out.read_text().splitlines()[0] == whole.read_text().splitlines()[0]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_resumed_table_is_the_table_of_an_uninterrupted_run(
    form: str, recurrence_run: Path, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = queries.with_name(f"a.{form}"), queries.with_name(f"whole.{form}")
    command = ("forecast", recurrence_run, "--queries", queries, "--top", "3", "--out")
    assert bridgemem(*command, whole).code == 0
    with monkeypatch.context() as patched:
        interrupted_after(2, patched)
        stopped = bridgemem(*command, out)
    assert stopped.code == 1
    assert stopped.err == (
        f"bridgemem: interrupted; the answers so far are in {out}.parts; the same command with --resume continues.\n"
    )
    assert not out.exists()
    assert "use --resume to continue, or --force to start over" in bridgemem(*command, out).refused()
    # what is damaged, or was never noted, is answered again
    (queries.parent / f"{out.name}.parts" / f"part-000002.{form}").write_bytes(b"torn")
    with (queries.parent / f"{out.name}.parts" / "done.jsonl").open("a") as noted:
        noted.write("[2, 1")
    resumed = bridgemem(*command, out, "--resume", "--json").json
    assert (resumed["parts"], resumed["resumed"]) == (5, 1)
    assert out.read_bytes() == whole.read_bytes()
    assert left_in(queries.parent) == sorted([out.name, whole.name, "q.csv"])
    assert "there is nothing to resume" in bridgemem(*command, queries.with_name("b.csv"), "--resume").refused()


@pytest.mark.usefixtures("small_parts")
def test_a_full_disk_is_named_and_the_parts_so_far_are_kept(
    recurrence_run: Path, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = queries.with_name("a.csv")
    note, noted = query_tables._note, list[int]()

    def full(*part: Any) -> None:
        if len(noted) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        noted.append(1)
        note(*part)

    command = ("forecast", recurrence_run, "--queries", queries, "--out", out)
    with monkeypatch.context() as patched:
        patched.setattr(query_tables, "_note", full)
        said = bridgemem(*command).refused()
    assert f"{out}.parts/done.jsonl cannot be written: No space left on device; free some space in " in said
    assert bridgemem(*command, "--resume", "--json").json["resumed"] == 2


@pytest.mark.usefixtures("small_parts")
def test_a_table_is_resumed_only_as_it_was_begun(
    recurrence_run: Path, queries: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, store = queries.with_name("a.csv"), tmp_path / "new" / "store"
    store.parent.mkdir()
    command = ("forecast", recurrence_run, "--queries", queries, "--out", out)
    with monkeypatch.context() as patched:
        interrupted_after(2, patched)
        assert bridgemem(*command).code == 1
    assert "was begun with --top 10;" in bridgemem(*command, "--resume", "--top", "3").refused()
    assert "was begun with --horizon None;" in bridgemem(*command, "--resume", "--horizon", "3").refused()
    assert "choose one" in bridgemem(*command, "--resume", "--force").refused()
    events = tmp_path / "new" / "events.csv"
    events.write_text("subject,relation,object,time\nArvan,visit,Kel,2024-02-10\n")
    assert bridgemem("ingest", store, events, "--run", recurrence_run).code == 0
    assert "other events in its store;" in bridgemem(*command, "--resume", "--store", store).refused()
    before = queries.read_text()
    queries.write_text(before.replace("Belmor", "Castel", 1))
    assert "was begun with other queries;" in bridgemem(*command, "--resume").refused()
    queries.write_text(before)
    assert bridgemem(*command, "--resume", "--json").json["resumed"] == 2
    with monkeypatch.context() as patched:
        interrupted_after(1, patched)
        assert bridgemem(*command, "--force").code == 1
    (queries.parent / "a.csv.parts" / "thesis.txt").touch()
    assert "'thesis.txt', which would be lost" in bridgemem(*command, "--force").refused()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_killed_run_is_resumed(recurrence_run: Path, queries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_tables, "BLOCK", 1)
    queries.write_text(queries.read_text() + "Kel,visit,,\n" * 40)
    out, whole, noted = (
        queries.with_name("a.csv"),
        queries.with_name("w.csv"),
        queries.with_name("a.csv.parts") / "done.jsonl",
    )
    command = ("forecast", recurrence_run, "--queries", queries, "--out")
    program = [sys.executable, "-c", ASK, *map(str, (*command, out))]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (noted.exists() and noted.stat().st_size > 60) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    resumed = bridgemem(*command, out, "--resume", "--json").json
    assert 0 < resumed["resumed"] < resumed["parts"] == 63
    assert bridgemem(*command, whole).code == 0
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_workers_give_the_answers_of_one(recurrence_run: Path, queries: Path) -> None:
    command = ("forecast", recurrence_run, "--queries", queries, "--top", "3", "--out")
    one, two = queries.with_name("1.csv"), queries.with_name("2.csv")
    assert bridgemem(*command, one).code == 0
    done = bridgemem(*command, two, "--workers", "2")
    assert done.code == 0, done.err
    names = [duckdb.sql(f"SELECT query, candidate, rank FROM '{path}'").fetchall() for path in (one, two)]
    assert names[0] == names[1]


@pytest.mark.usefixtures("small_parts")
def test_queries_come_from_text_parquet_and_duckdb_alike(forecaster: Predictor, queries: Path) -> None:
    parquet, out = queries.with_name("q.parquet"), queries.with_name("a.csv")
    duckdb.sql(
        f"COPY (SELECT subject, relation, object, time::DATE AS time FROM read_csv('{queries}', all_varchar = true)) "
        f"TO '{parquet}'"
    )
    database = queries.with_name("q.duckdb")
    with duckdb.connect(str(database)) as db:
        db.execute(f"CREATE TABLE q AS FROM read_csv('{queries}', all_varchar = true)")
    sources = (queries, str(parquet), f"SELECT * FROM '{parquet}'", f"ATTACH '{database}' AS d; FROM d.q")
    found = []
    for source in sources:
        answer_table(lambda: forecaster, query_source(source), out, top=2, replace=True)
        found.append(out.read_bytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("SELECT nothing", "the query cannot be read as a table"),
        ("SELECT 'Kel' AS who", "the query has no column relation"),
        ("FROM 'absent.parquet'", "the query cannot be read as a table"),
        ("SELECT 'Kel' AS subject, 'visit' AS relation WHERE false", "the query holds no query"),
        ("SELECT 'Kel' AS subject, 'vist' AS relation, NULL AS object", "did you mean 'visit'"),
    ],
    ids=["wrong", "columns", "absent", "empty", "name"],
)
def test_what_gives_no_queries_is_one_sentence(source: str, said: str, recurrence_run: Path, tmp_path: Path) -> None:
    refused = bridgemem("forecast", recurrence_run, "--queries", source, "--out", tmp_path / "a.csv").refused()
    assert said in refused
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("small_parts")
def test_queries_that_change_while_they_are_read_are_refused(forecaster: Predictor, queries: Path) -> None:
    kept, times = read_queries(queries), iter(range(9))

    def read(size: int) -> Iterator[list[Any]]:
        yield kept if next(times) % 2 == 0 else kept[::-1]

    with pytest.raises(DataError, match="ORDER BY"):
        answer_table(lambda: forecaster, QuerySource("q", read), queries.with_name("a.csv"))
    assert left_in(queries.parent) == ["q.csv"]


@pytest.mark.usefixtures("small_parts")
def test_all_bad_queries_of_all_blocks_are_named_before_any_is_answered(recurrence_run: Path, queries: Path) -> None:
    queries.write_text(queries.read_text().replace("Belmor", "Belmr").replace("Castel,", "Castl,", 1))
    rejects, out = queries.with_name("r.csv"), queries.with_name("a.csv")
    said = bridgemem("forecast", recurrence_run, "--queries", queries, "--out", out, "--rejects", rejects).refused()
    assert "has 9 rows that cannot be asked, and nothing was answered" in said
    assert len(rejects.read_text().splitlines()) == 10
    assert left_in(queries.parent) == ["q.csv", "r.csv"]


MEASURED = """
import resource, sys
from bridgemem.cli.main import main
try:
    main()
finally:
    sys.stderr.write(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}")
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_queries(
    recurrence_run: Path, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    pytest.importorskip("resource", reason="needs what the system says of memory")
    peaks = {}
    for count in (20_000, 200_000):
        queries = tmp_path / f"{count}.parquet"
        pick = f"[{', '.join(map(repr, ACTORS))}][1 + i % {len(ACTORS)}]"
        times = "date '2024-02-01' + (i % 9)::INTEGER"
        duckdb.sql(
            f"COPY (SELECT {pick} AS subject, 'visit' AS relation, {times} AS time FROM range({count}) r(i)) "
            f"TO '{queries}'"
        )
        asked = (
            "forecast",
            recurrence_run,
            "--queries",
            queries,
            "--out",
            tmp_path / f"{count}.out.parquet",
            "--top",
            "3",
        )
        program = [sys.executable, "-c", MEASURED, *map(str, asked)]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        peaks[count] = int(done.stderr.rsplit("peak ", 1)[1])
        record_property(f"peak_mb_{count}", round(peaks[count] / 1024, 1))
    assert peaks[200_000] < 1.15 * peaks[20_000]

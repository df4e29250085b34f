"""Many queries at once: the same answers as one by one, every bad row named, and nothing half-written."""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path

import pytest

from bridgemem.errors import DataError, SettingsError
from bridgemem.forecasting.batch_queries import ANSWER, Answers, Query, answer, forecast, read_queries
from bridgemem.forecasting.predictor import Predictor
from bridgemem.runs import Run
from builders import side
from commands import ACTORS, RELATIONS, left_in

pytest_plugins = ("small_runs",)
MANY = [
    Query(relation=relation, at=at, **side(actor, inverse))
    for actor in ACTORS[:4]
    for relation in RELATIONS[:3]
    for at in (None, "2024-01-20", "2024-02-05")
    for inverse in (False, True)
]


@pytest.fixture(scope="module")
def forecaster(recurrence_run: Path) -> Predictor:
    return Run(recurrence_run).predictor()


def test_a_batch_answers_as_the_queries_one_by_one(forecaster: Predictor) -> None:
    made = answer(forecaster, MANY, top=5)
    for q, time, found in zip(made.queries, made.times, made.candidates, strict=True):
        alone = forecaster.forecast(q.subject, q.relation, object=q.object, at=q.at, top=5)
        assert time == (q.at or "2024-02-10")
        assert [(c.name, c.rank, c.backbone_rank) for c in found] == [(c.name, c.rank, c.backbone_rank) for c in alone]
        assert [c.p_given_event for c in found] == pytest.approx([c.p_given_event for c in alone])
        assert [c.score for c in found] == pytest.approx([c.score for c in alone])


def test_a_file_of_queries_is_read_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('\ufeffRelation, subject,OBJECT,time\nvisit,"Kel",,\n\nconsult,,Lor,2024-01-20\n', "utf-8")
    found = read_queries(path)
    assert found == [Query("Kel", "visit"), Query(None, "consult", "Lor", "2024-01-20")]
    assert [q.line for q in found] == [2, 4]


@pytest.mark.parametrize("separator", ["\t", ";", "|"])
def test_queries_may_be_separated_as_events_are(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    rows = [("", ""), ("subject", "relation"), ("Kel, the first", "visit")]
    path.write_text("\n".join(separator.join(row) for row in rows) + "\n")
    assert read_queries(path) == [Query("Kel, the first", "visit")]


@pytest.mark.parametrize(
    ("content", "phrases"),
    [
        (b"", ["q.csv is empty; write one query per line below the header subject,relation,object."]),
        (b"subject,relation\n", ["holds no query"]),
        (b"subject,who\nKel,visit\n", ["no column relation", "names some of subject, relation, object, time, with"]),
        (b"relation,time\nvisit,\n", ["no column subject or object"]),
        (b"subject,relation,when\nKel,visit,1\n", ["has a column 'when'"]),
        (b"subject,relation,subject\nKel,visit,Kel\n", ["two columns called 'subject'"]),
        (
            b"subject,relation\nKel\nKel,\n,visit\n",
            ["3 rows", "line 2: expected 2 columns, found 1", "line 3: its relation is empty"],
        ),
        (b"subject,relation,object\nKel,visit,Lor\n", ["line 2: it has a subject and an object; leave out the one"]),
        (b"subject,relation,object\n,visit,\n", ["line 2: its subject and its object are empty"]),
        (
            b"subject,relation,time\nKel\nArvn,visit,\nKel,visit,1999-01-01\n",
            ["3 rows", "line 3: no entity", "line 4: '1999"],
        ),
        (
            b'subject,relation\n"Kel,visit\nKel,visit\n',
            ["1 row that", "line 2: the line has a quote that is not closed"],
        ),
        (b"subject,relation\nK\xff,visit\n", ["line 2: the line is not UTF-8"]),
    ],
)
def test_files_that_hold_no_queries_are_refused(
    content: bytes, phrases: list[str], forecaster: Predictor, tmp_path: Path
) -> None:
    (tmp_path / "q.csv").write_bytes(content)
    with pytest.raises(DataError) as refused:
        forecast(forecaster, tmp_path / "q.csv")
    assert all(phrase in str(refused.value) for phrase in phrases), refused.value


def test_every_query_that_cannot_be_asked_is_named(forecaster: Predictor) -> None:
    asked = [
        Query("Arvn", "visit"),
        Query("Kel", "visit"),
        Query("Kel", "vist"),
        Query("Kel", "visit", at="x"),
    ]
    with pytest.raises(DataError) as refused:
        answer(forecaster, asked)
    said = str(refused.value)
    assert "3 rows that cannot be asked" in said
    for phrase in ("query 1: no entity", "did you mean 'Arvan'?", "query 3: no relation", "query 4: 'x' is"):
        assert phrase in said
    many = [Query("nobody", "visit")] * 150
    with pytest.raises(DataError, match=r"150 rows.*query 100: .*; and 50 more"):
        answer(forecaster, many)
    with pytest.raises(DataError, match="no query to answer"):
        answer(forecaster, [])


def test_answers_are_written_as_csv_and_as_parquet_alike(forecaster: Predictor, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="Parquet needs DuckDB")
    made = answer(forecaster, MANY[:6], top=4, horizon=3)
    made.write(tmp_path / "a.csv")
    made.write(tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert tuple(rows[0]) == ANSWER
    assert len(rows) == 24
    assert {row["horizon"] for row in rows} == {"3"}
    stored = duckdb.sql(f"SELECT * FROM read_parquet('{tmp_path / 'a.parquet'}')").fetchall()
    assert [row[6] for row in stored] == [row["candidate"] for row in rows]
    assert [row[9] for row in stored] == [float(row["p_given_event"]) for row in rows]
    assert left_in(tmp_path) == ["a.csv", "a.parquet"]
    plain = answer(forecaster, MANY[:2], top=1)
    plain.write(tmp_path / "b.csv")
    plain.write(tmp_path / "b.parquet")
    with (tmp_path / "b.csv").open(encoding="utf-8", newline="") as handle:
        assert [row["horizon"] for row in csv.DictReader(handle)] == ["", ""]
    kept = duckdb.sql(f"SELECT horizon, typeof(horizon) FROM read_parquet('{tmp_path / 'b.parquet'}')").fetchall()
    assert kept == [(None, "BIGINT")] * 2
    with pytest.raises(SettingsError, match=r"\.csv or \.parquet"):
        made.write(tmp_path / "a.xlsx")


def test_python_gets_columns_where_pandas_is_not_installed(
    forecaster: Predictor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = forecast(forecaster, Query("Kel", "visit"), top=3)
    assert tuple(found) == ANSWER
    assert found["candidate"] == [c.name for c in forecaster.forecast("Kel", "visit", top=3)]
    (tmp_path / "q.csv").write_text("subject,relation\nKel,visit\n")
    assert forecast(forecaster, tmp_path / "q.csv", top=3) == found
    assert forecast(forecaster, MANY[:2], top=3)["query"] == [1, 1, 1, 2, 2, 2]


def test_python_gets_a_data_frame_where_pandas_is_installed(
    forecaster: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, list[object]]] = []
    pandas = types.ModuleType("pandas")
    vars(pandas)["DataFrame"] = lambda columns: made.append(columns) or "a frame"  # type: ignore[func-returns-value]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert forecast(forecaster, Query("Kel", "visit"), top=3) == "a frame"
    assert len(made[0]["candidate"]) == 3


def test_a_real_data_frame_has_a_row_for_each_candidate(forecaster: Predictor) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas, of the extra 'spark'")
    found = forecast(forecaster, MANY[:2], top=3)
    assert isinstance(found, pandas.DataFrame)
    assert list(found.columns) == list(ANSWER)
    assert found.groupby("query")["rank"].min().tolist() == [1, 1]


def test_a_run_without_probabilities_leaves_them_empty(forecaster: Predictor, tmp_path: Path) -> None:
    parts = (forecaster.past, forecaster.scorer, forecaster.transitions, forecaster.choice)
    made: Answers = answer(Predictor(*parts), MANY[:1], top=2)
    made.write(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as handle:
        assert [row["p_given_event"] for row in csv.DictReader(handle)] == ["", ""]

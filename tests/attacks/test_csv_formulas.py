"""Names that a spreadsheet would calculate: harmless in a CSV file of answers, and unchanged wherever programs read."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bridgemem.forecasting.answers import Candidate
from bridgemem.forecasting.batch_queries import Answers, Query, read_queries
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from commands import bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)

EVIL = "=1+1"
NAMES = (
    EVIL,
    '=HYPERLINK("http://evil.example","open")',
    "+1",
    "-1",
    "@SUM(A1:A9)",
    "\t=1+1",
    "\r=1+1",
    " =1+1",
    "\uff1d1+1",
    "'=1+1",
    "''-1",
)
PLAIN = ("Arvan", "a=b", "x-y", "'quoted'", "", "1", "D'Or", "two\r=1+1", "two\n=1+1", 'a "b", c')


def written(names: tuple[str, ...], path: Path) -> list[str]:
    """The candidates of answers to one query, as they stand in a CSV file."""
    found = [Candidate(name, 1, 1, -1.0, -2.0, -0.5, 0.25) for name in names]
    Answers([Query("Kel", "visit")], ["2024-01-01"], [found], None).write(path)
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert {(row["score"], row["residual"]) for row in rows} == {("-1.0", "-0.5")}  # numbers stay numbers
    return [row["candidate"] for row in rows]


def test_a_name_that_would_be_calculated_has_a_quote_before_it(tmp_path: Path) -> None:
    assert written(NAMES, tmp_path / "a.csv") == [f"'{name}" for name in NAMES]


def test_every_other_name_is_written_as_it_is(tmp_path: Path) -> None:
    assert written(PLAIN, tmp_path / "a.csv") == list(PLAIN)


def test_a_name_copied_from_the_answers_into_the_queries_is_the_same_name(tmp_path: Path) -> None:
    names = tuple(name for name in (*NAMES, *PLAIN) if name == name.strip() != "")  # cells of queries are trimmed
    copied = written(names, tmp_path / "a.csv")
    with (tmp_path / "q.csv").open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("subject", "relation"), *((name, "visit") for name in copied)])
    assert [query.subject for query in read_queries(tmp_path / "q.csv")] == list(names)


def test_such_a_name_is_asked_in_either_form_and_told_to_programs_as_it_is(
    recurrence_run: Path, tmp_path: Path
) -> None:
    store, asked = tmp_path / "events.duckdb", tmp_path / "q.csv"
    with EventStore(store) as events:
        LiveForecaster(loaded(recurrence_run), events).add([(EVIL, "visit", "Arvan", "2024-02-10")], "test", "one")
    asked.write_text(f"subject,relation\n{EVIL},visit\n'{EVIL},visit\n")
    found = bridgemem("forecast", recurrence_run, "--store", store, "--queries", asked, "--out", tmp_path / "a.csv")
    assert found.code == 0, found.err
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as handle:
        assert {row["subject"] for row in csv.DictReader(handle)} == {f"'{EVIL}"}
    who = ("--object", "Arvan", "--relation", "visit", "--top", "99")
    told = bridgemem("forecast", recurrence_run, "--store", store, *who, "--json")
    assert EVIL in {candidate["name"] for candidate in told.json["candidates"]}


def test_parquet_holds_the_name_itself(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="Parquet needs DuckDB")
    found = [Candidate(name, 1, 1, -1.0, -2.0, -0.5, 0.25) for name in NAMES]
    Answers([Query("Kel", "visit")], ["2024-01-01"], [found], None).write(tmp_path / "a.parquet")
    stored = duckdb.sql(f"SELECT candidate FROM read_parquet('{tmp_path / 'a.parquet'}')").fetchall()
    assert [name for (name,) in stored] == list(NAMES)

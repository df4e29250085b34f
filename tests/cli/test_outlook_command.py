"""`bridgemem outlook`, as a user types it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from commands import bridgemem

pytest_plugins = ("small_runs",)


def test_an_outlook_is_printed_and_written(recurrence_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "outlook.csv"
    found = bridgemem("outlook", recurrence_run, "--horizon", "3", "--top", "4", "--out", out)
    assert found.code == 0, found.err
    assert found.out.startswith("Likeliest events from ")
    assert found.out.count("->") == 4
    rows = list(csv.DictReader(out.open()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    assert "already" in bridgemem("outlook", recurrence_run, "--out", out).refused()
    assert bridgemem("outlook", recurrence_run, "--out", out, "--force").code == 0


def test_a_watch_list_and_surprise_as_json(recurrence_run: Path, tmp_path: Path) -> None:
    watch = tmp_path / "watch.csv"
    watch.write_text("Arvan\nvisit\nKel,Lor\n")
    found = bridgemem("outlook", recurrence_run, "--watch", watch, "--surprising", "--json").json
    assert found["watch"] == ["Arvan", "visit", "Kel - Lor"]
    assert all(one["p_event"] > one["usual"] for one in found["candidates"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--horizon", "0"), "horizon must be at least 1"),
        (("--horizon", "9999999"), "lie too far ahead"),
        (("--at", "1990-01-01"), "lies before the data set begins"),
        (("--watch", "nothing.csv"), "does not exist"),
        (("--out", "outlook.txt"), "answers must be written as .csv or .parquet"),
    ],
    ids=["no-steps", "too-far", "before", "no-file", "format"],
)
def test_bad_outlooks_are_one_sentence(recurrence_run: Path, options: tuple[str, ...], said: str) -> None:
    assert said in bridgemem("outlook", recurrence_run, *options).refused()

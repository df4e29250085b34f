"""Compare: paired differences of two runs, and the refusal of runs that answered different queries."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.errors import RunError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.metrics import METRICS
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table, write_table
from bridgemem.studies.compare import compare_runs as compare
from commands import TINY_READER, bridgemem, measured_rows

pytest_plugins = ("small_runs",)
ROWS = ("backbone", "bridgemem")
SELECTED = {"raw": "time", "static": "static", "time": "time"}  # the choice of bridgemem that ranks under each filter


@pytest.fixture(scope="module")
def first(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    opened = Run(shutil.copytree(recurrence_run, tmp_path_factory.mktemp("compare") / "a"))
    evaluate(opened)
    return opened


@pytest.fixture(scope="module")
def second(own_csv: Path, first: Run) -> Run:
    """A run on the same data with another backbone."""
    folder = first.folder.parent / "b"
    assert bridgemem("fit", "-d", own_csv, "-b", "popularity", "-o", folder, *TINY_READER).code == 0
    opened = Run(folder)
    evaluate(opened)
    return opened


def changed(run: Run, folder: Path, **columns: Any) -> Run:
    """A copy of a run whose table of ranks has other columns; None takes one out."""
    copy = Run(shutil.copytree(run.folder, folder))
    table = {**read_table(run.ranks_path("test")), **columns}
    write_table(copy.ranks_path("test"), {name: column for name, column in table.items() if column is not None})
    return copy


def test_a_run_does_not_differ_from_itself(first: Run) -> None:
    found = compare(first, first)
    assert [(d.method, d.filter, d.metric) for d in found] == [
        (row, f, metric) for row in ROWS for f in FILTERS for metric in METRICS
    ]
    assert all((d.gain.value, d.gain.low, d.gain.high) == (0, 0, 0) and d.first == d.second for d in found)


def test_differences_are_those_of_the_measured_figures(first: Run, second: Run) -> None:
    measured = [
        {(r["method"], r["filter"]): r for r in rows if r["selected_by"] in (None, SELECTED[r["filter"]])}
        for rows in (measured_rows(run)["test"] for run in (first, second))
    ]
    found = compare(first, second)
    for d in found:
        a, b = (rows[d.method, d.filter][d.metric] for rows in measured)
        assert (d.first, d.second) == (a, b)
        assert d.gain.value == pytest.approx(b - a)
        assert d.gain.low <= d.gain.value <= d.gain.high
    assert any(d.gain.high < 0 for d in found if d.method == "backbone" and d.metric == "mrr")


def test_runs_of_two_backbones_are_no_seeds_of_one_method(first: Run, second: Run) -> None:
    with pytest.raises(RunError, match="joins popularity and recurrence; give them apart"):
        bm.compare(first, ([first, second], "bridgemem"))


def test_exchanged_runs_give_the_opposite_difference(first: Run, second: Run) -> None:
    for d, back in zip(compare(first, second), compare(second, first), strict=True):
        assert back.gain.value == pytest.approx(-d.gain.value)
        assert (back.first, back.second) == (d.second, d.first)


def test_an_interval_counts_steps_and_not_queries(first: Run, tmp_path: Path) -> None:
    """One step that is all better and the others equal: far from certain, however many queries it holds."""
    columns = read_table(first.ranks_path("test"))
    day = columns["step"] == columns["step"].max()
    worse = changed(
        first, tmp_path / "worse", **{"rank_raw.backbone": np.where(day, 50.0, columns["rank_raw.backbone"])}
    )
    (mrr,) = (d for d in compare(worse, first) if (d.method, d.filter, d.metric) == ("backbone", "raw", "mrr"))
    assert mrr.gain.value > 0
    assert mrr.gain.low == 0


@pytest.mark.parametrize(
    ("what", "other"),
    [("fingerprint", "0" * 16), ("valid_start", 3), ("test_start", 9), ("history", "frozen")],
)
def test_runs_on_other_data_splits_or_histories_are_refused(what: str, other: Any, first: Run) -> None:
    second = Run(first.folder)
    second.config = replace(second.config, **{what: other})
    with pytest.raises(RunError, match=f"the runs differ in {what} "):
        compare(first, second)


def test_the_same_events_under_another_name_are_compared(first: Run) -> None:
    second = Run(first.folder)
    second.config = replace(second.config, dataset="elsewhere")
    assert all(difference.gain.value == 0 for difference in compare(first, second))


def test_tables_that_do_not_match_are_refused(first: Run, tmp_path: Path) -> None:
    columns = read_table(first.ranks_path("test"))
    with pytest.raises(RunError, match="different queries"):
        compare(first, changed(first, tmp_path / "a", answer=columns["answer"][::-1].copy()))
    shorter = {name: column[:-2] for name, column in columns.items()}
    with pytest.raises(RunError, match="different queries"):
        compare(first, changed(first, tmp_path / "b", **shorter))
    no_time = dict.fromkeys(name for name in columns if name.startswith("rank_time."))
    with pytest.raises(RunError, match="different filters"):
        compare(first, changed(first, tmp_path / "c", **no_time))
    with pytest.raises(RunError, match="lacks the column step"):
        compare(changed(first, tmp_path / "d", step=None), first)


def test_only_methods_that_both_have_are_compared(first: Run, tmp_path: Path) -> None:
    gone = dict.fromkeys(f"rank_{f}.bridgemem.static" for f in FILTERS)
    found = compare(first, changed(first, tmp_path / "a", **gone))
    both = [("backbone", f) for f in FILTERS] + [("bridgemem", "raw"), ("bridgemem", "time")]
    assert list(dict.fromkeys((d.method, d.filter) for d in found)) == both


def test_two_runs_are_listed_by_what_ranks_and_a_choice_for_another_filter_by_its_name(first: Run, second: Run) -> None:
    printed = bridgemem("compare", first.folder, second.folder).out
    assert "bridgemem: MRR" in printed
    assert "bridgemem.static" not in printed
    assert printed.index("Time-aware filter") < printed.index("Static filter") < printed.index("Raw")
    named = bm.compare((first, "bridgemem.static"), (second, "bridgemem.static")).differences
    for d in (d for d in named if d.metric == "mrr"):
        a, b = (read_table(run.ranks_path("test"))[f"rank_{d.filter}.bridgemem.static"] for run in (first, second))
        assert (d.first, d.second) == pytest.approx((np.mean(1 / a), np.mean(1 / b)))


def test_a_learned_residual_is_called_learned_under_every_filter(first: Run, tmp_path: Path) -> None:
    columns = read_table(first.ranks_path("test"))
    own = {f"rank_{f}.learned.raw": columns[f"rank_{f}.bridgemem.time"] for f in FILTERS}
    both = changed(first, tmp_path / "learned", **own)
    found = [d for d in compare(both, both) if d.metric == "mrr"]
    assert [(d.method, d.filter) for d in found] == [(row, f) for row in (*ROWS, "learned") for f in FILTERS]


def test_a_metric_that_is_named_is_the_only_one_of_two_runs(first: Run) -> None:
    printed = bridgemem("compare", first.folder, first.folder, "--metric", "hits@3").out
    assert "backbone: H@3" in printed
    assert "MRR" not in printed


def test_ranks_of_a_machine_without_duckdb_are_compared_too(
    first: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        columns = read_table(first.ranks_path("test"))
        there.setitem(sys.modules, "duckdb", None)
        other = Run(shutil.copytree(first.folder, tmp_path / "there"))
        write_table(other.ranks_path("test"), columns)
    assert not other.ranks_path("test").exists()
    assert compare(first, other) == compare(first, first)


def test_a_run_that_was_not_evaluated_is_refused_with_the_remedy(first: Run, tmp_path: Path) -> None:
    unread = Run(shutil.copytree(first.folder, tmp_path / "unread"))
    unread.ranks_path("test").unlink()
    with pytest.raises(RunError, match=r"was not evaluated on test; run `bridgemem evaluate .* --split test`"):
        compare(first, unread)
    with pytest.raises(RunError, match="was not evaluated on valid"):
        compare(first, first, "valid")

"""Mechanism: every query falls into one part of each kind, and the parts' figures add up to the whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from bridgemem.errors import DataError, RunError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.strata import PARTS, parts
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table, write_table
from commands import measured_rows

pytest_plugins = ("small_runs",)
NAN = np.nan


@pytest.fixture(scope="module")
def run(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    opened = Run(shutil.copytree(recurrence_run, tmp_path_factory.mktemp("mechanism") / "run"))
    evaluate(opened)
    return opened


@pytest.fixture(scope="module")
def names(run: Run) -> tuple[str, ...]:
    return run.dataset.events.relations.names


# eight queries by hand; the second pair interacted, but its events had never led to anything when the counts were made
HAND = {
    "relation": np.array([0, 1, 2, 0, 1, 2, 0, 0]),
    "answer_support": np.array([0.0, 0.0, 1.0, 99.0, 100.0, 12345.0, 5e6, 0.0]),
    "answer_lag": np.array([NAN, 3.0, 1.0, 2.0, 5.0, 64.0, 65.0, NAN]),
    "uncertainty": np.array([0.0, 0.19, 0.2, 0.5, 0.79, 0.8, 1.0, 0.4]),
    "triple_seen": np.array([False, False, True, False, True, True, False, True]),
}
EXPECTED = {
    "support": {
        "no dyadic past": [0, 7],
        "0": [1],
        "1-99": [2, 3],
        "100-999": [4],
        "1,000-9,999": [],
        "10,000-99,999": [5],
        "100,000 and more": [6],
    },
    "recency": {"none in the window": [0, 7], "1": [2], "2-4": [1, 3], "5-16": [4], "17-64": [5], "65 and more": [6]},
    "uncertainty": {
        "0.0 to 0.2": [0, 1],
        "0.2 to 0.4": [2],
        "0.4 to 0.6": [3, 7],
        "0.6 to 0.8": [4],
        "0.8 to 1.0": [5, 6],
    },
    "repeat": {
        "seen triple": [2, 4, 5, 7],
        "seen pair": [1, 3, 6],
        "unseen pair": [0],
    },
    "relation": {"0": [0, 3, 6, 7], "1": [1, 4], "2": [2, 5]},
}


@pytest.mark.parametrize("by", PARTS)
def test_queries_fall_where_they_belong(by: str) -> None:
    found = PARTS[by](HAND)
    assert {name: np.flatnonzero(mask).tolist() for name, mask in found.items()} == EXPECTED[by]


@pytest.mark.parametrize("by", PARTS)
def test_every_query_is_in_exactly_one_part(by: str) -> None:
    rng = np.random.default_rng(3)
    n = 500
    support = np.floor(10 ** rng.uniform(-1, 7, n))
    lag = np.where(rng.random(n) < 0.3, NAN, rng.integers(1, 200, n))
    columns = {
        "relation": rng.integers(0, 7, n),
        "answer_support": np.where(np.isnan(lag), 0, support),
        "answer_lag": lag,
        "uncertainty": np.concatenate([[0, 1], rng.random(n - 2)]),
        "triple_seen": rng.random(n) < 0.5,
    }
    assert (np.sum(list(PARTS[by](columns).values()), axis=0) == 1).all()


@pytest.mark.parametrize("by", PARTS)
def test_the_parts_of_a_run_add_up_to_its_figures(by: str, run: Run, names: tuple[str, ...]) -> None:
    found = parts(run, by, names)
    assert len({r.key() for r in found}) == len(found)
    for name in SELECTION_FILTERS:
        own = [r for r in found if r.filter == name]
        (whole,) = (r for r in measured_rows(run)["test"] if (r["filter"], r["selected_by"]) == (name, name))
        assert sum(r.queries for r in own) == whole["queries"]
        for metric in ("mrr", "hits1", "hits3", "hits10"):
            share = [r.queries / whole["queries"] for r in own]
            assert sum(s * getattr(r, metric) for s, r in zip(share, own, strict=True)) == pytest.approx(whole[metric])
            gain = sum(s * r.gain[metric][0] for s, r in zip(share, own, strict=True))
            assert gain == pytest.approx(whole["gain"][metric][0])
        assert all(r.lock == whole["lock"] and r.selected_by == name for r in own)
        assert all(r.method == f"ablation:part={r.subset}" and r.subset.startswith(f"{by}: ") for r in own)


def test_relations_go_by_their_names_in_both_directions(run: Run, names: tuple[str, ...]) -> None:
    events = run.dataset.test
    found = {r.subset: r.queries for r in parts(run, "relation", names) if r.filter == "time"}
    assert found == {f"relation: {names[i]}": 2 * int((events.relation == i).sum()) for i in np.unique(events.relation)}


def test_relations_of_one_name_stay_apart(run: Run, names: tuple[str, ...]) -> None:
    alike = ("meet", "meet", *names[2:])
    found = [r.subset for r in parts(run, "relation", alike) if r.filter == "time"]
    assert found[:3] == ["relation: meet (0)", "relation: meet (1)", f"relation: {names[2]}"]


def test_no_record_is_made_of_no_queries(run: Run, names: tuple[str, ...]) -> None:
    assert all(r.queries > 0 for by in PARTS for r in parts(run, by, names))


def test_what_cannot_be_taken_apart_is_refused(run: Run, names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'weather'"):
        parts(run, "weather", names)
    with pytest.raises(RunError):
        parts(run, "support", names, "valid")
    old = Run(shutil.copytree(run.folder, tmp_path / "run"))
    columns = read_table(old.ranks_path("test"))
    del columns["triple_seen"]
    write_table(old.ranks_path("test"), columns)
    with pytest.raises(RunError, match="lacks the column triple_seen; evaluate the run again"):
        parts(old, "support", names)

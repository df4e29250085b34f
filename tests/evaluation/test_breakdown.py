"""Breakdown: each query is in the stratum of what had happened before it, and nothing later changes that."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bridgemem.evaluation.breakdown import groups, ranks_of, rows_of
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.familiarity import familiarity
from bridgemem.evaluation.strata import read_strata, strata
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table
from builders import random_log
from commands import bridgemem

pytest_plugins = ("small_runs",)
FIELDS = ("triple", "pair", "two_hop", "new", "lag", "frequency")


def asked(events: EventLog, since: int) -> dict[str, np.ndarray]:
    queries = Queries.of(events[np.flatnonzero(np.asarray(events.step) >= since)])
    return {name: getattr(queries, name).numpy() for name in ("actor", "relation", "step", "answer")}


def sparse_log(seed: int = 3) -> EventLog:
    """Forty entities that rarely interact, so that all strata occur."""
    return random_log(seed, n=60, n_entities=40, steps=30)


@pytest.mark.parametrize("frozen", [None, 20])
def test_strata_are_those_of_a_slow_loop(frozen: int | None) -> None:
    events = sparse_log()
    queries = asked(events, 20)
    found = familiarity(events, queries, valid_start=15, frozen_at=frozen)
    columns = (events.subject, events.relation, events.object, events.step)
    rows = list(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
    kinds = set()
    for i, (actor, relation, step, answer) in enumerate(zip(*(queries[n].tolist() for n in queries), strict=True)):
        cut = step if frozen is None else min(step, frozen)
        before = [row for row in rows if row[3] < cut]
        both = {(s, r, o) for s, r, o, _ in before} | {(o, r + events.n_relations, s) for s, r, o, _ in before}
        met = {frozenset((s, o)) for s, _, o, _ in before}
        last = [t for s, _, o, t in before if {s, o} == {actor, answer}]
        near = [{s if o == e else o for s, _, o, _ in before if e in (s, o)} for e in (actor, answer)]
        assert found.triple[i] == ((actor, relation, answer) in both)
        assert found.pair[i] == (frozenset((actor, answer)) in met)
        assert found.new[i] == (not near[0] or not near[1])
        if last:
            assert found.lag[i] == step - max(last)
        else:
            assert np.isnan(found.lag[i])
            if not found.new[i]:
                assert found.two_hop[i] == bool(near[0] & near[1])
        assert found.frequency[i] == sum(r == relation % events.n_relations and t < 15 for _, r, _, t in rows)
        kinds.add((bool(found.triple[i]), bool(found.pair[i]), bool(found.two_hop[i]), bool(found.new[i])))
    assert len(kinds) > 2


def test_nothing_at_or_after_the_step_of_a_query_changes_its_stratum() -> None:
    events = sparse_log(5)
    queries = asked(events, 20)
    step, random = 24, np.random.default_rng(0)
    at = queries["step"] <= step
    now = {name: column[at] for name, column in queries.items()}
    later = np.asarray(events.step) >= step
    spoiled = replace(
        events,
        subject=np.where(later, random.integers(0, events.n_entities, len(events)), events.subject),
        object=np.where(later, random.integers(0, events.n_entities, len(events)), events.object),
        relation=np.where(later, 0, events.relation),
    )
    one, two = (familiarity(log, now, valid_start=15) for log in (events, spoiled))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.fixture(scope="module")
def run(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    opened = Run(shutil.copytree(recurrence_run, tmp_path_factory.mktemp("strata") / "run"))
    evaluate(opened)
    return opened


def test_every_query_is_in_one_stratum_of_each_group(run: Run) -> None:
    columns = read_table(run.ranks_path("test"))
    known = familiarity(run.dataset.events, columns, valid_start=run.dataset.valid_start)
    for masks in groups(known).values():
        np.testing.assert_array_equal(sum(mask.astype(int) for mask in masks.values()), 1)
    np.testing.assert_array_equal(known.triple, columns["triple_seen"].astype(bool))


def test_the_strata_of_a_group_add_up_to_the_run(run: Run) -> None:
    columns, found = read_table(run.ranks_path("test")), strata(run)
    for row in ("backbone", "bridgemem"):
        whole = ranks_of(columns, row, "time")
        assert whole is not None
        for group in {one.group for one in found.strata}:
            parts = [one for one in found.strata if (one.group, one.filter) == (group, "time")]
            assert sum(one.queries for one in parts) == len(whole)
            mrr = sum(one.share * one.rows[row]["mrr"] for one in parts)
            assert mrr == pytest.approx(float((1 / whole).mean()))


def test_an_evaluation_keeps_them_and_the_card_shows_them(run: Run) -> None:
    assert read_strata(run, "test") == strata(run)
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert "## By stratum" in card
    assert "history: seen triple" in card


def test_strata_that_were_not_kept_are_found_when_asked_for(run: Run, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.folder, tmp_path / "run"))
    (copy.folder / "metrics.strata.json").unlink()
    assert strata(copy) == strata(run)
    assert (copy.folder / "metrics.strata.json").is_file()


def test_rows_are_named_without_the_filter_that_chose_them() -> None:
    columns = dict.fromkeys(
        ("actor", "rank_time.backbone", "rank_time.bridgemem.static", "rank_time.learned.raw", "rank_time.most-recent")
    )
    assert rows_of(columns) == ("backbone", "bridgemem", "learned", "most-recent")


def test_the_command_prints_one_table_and_writes_it(run: Run, tmp_path: Path) -> None:
    made = bridgemem("strata", run.folder, "--metric", "hits@1", "-o", tmp_path / "s.tex")
    assert made.code == 0, made.err
    for name in ("history: seen triple", "entities: both seen", "relation, events in train", "lag in steps"):
        assert name in made.out
    assert "\\midrule" in (tmp_path / "s.tex").read_text(encoding="utf-8")
    document = json.loads(bridgemem("strata", run.folder, "--json").out)
    assert {one["filter"] for one in document["strata"]} == {"raw", "static", "time"}
    assert bridgemem("strata", run.folder, "-o", tmp_path / "s.csv").code == 0
    with (tmp_path / "s.csv").open(encoding="utf-8") as handle:
        assert "rows.backbone.hits@1" in next(csv.DictReader(handle))


def test_a_run_that_was_not_evaluated_has_no_strata(recurrence_run: Path) -> None:
    assert "was not evaluated on test" in bridgemem("strata", recurrence_run).refused()
    assert "--filter is raw, static or time" in bridgemem("strata", recurrence_run, "--filter", "x").refused()

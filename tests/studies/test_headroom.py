"""Headroom: bounds and oracles as plain loops define them, the model as its evaluation has it, and no forecast."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.publish import tables

import bridgemem as bm
from bridgemem.config import Settings
from bridgemem.errors import SettingsError
from bridgemem.evaluation.evaluate import evaluate, queries_of
from bridgemem.evaluation.records import Record, read_records
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.forecasting.model import Parts
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import replay
from bridgemem.runs import Run
from bridgemem.studies import headroom as study
from bridgemem.studies.halfstep import DRAWS, OtherHalf
from bridgemem.studies.headroom import HEADROOM, ROWS, figures_of, headroom_table, measure
from builders import log_of, random_log, rows_of
from commands import bridgemem
from measurements import ahead, campaign

pytest_plugins = ("small_runs",)

TINY = Settings(width=8, hidden=8, max_epochs=1)


@cache
def model() -> Parts:
    """A model with a learned residual that reads few of the unseen candidates, so that some answers are not read."""
    world = bm.simulate(bm.WorldSettings(actors=40, relations=4, steps=30, events=700, partners=4)).dataset
    learned = bm.LearnedSettings(hidden=8, epochs=1, unseen_candidates=2)
    return bm.Forecaster("recurrence", settings=TINY, learned_settings=learned).fit(world).parts


@cache
def measured() -> tuple[Record, ...]:
    return tuple(measure(model()))


def of_whole(records: tuple[Record, ...] | list[Record], row: str) -> Record:
    (one,) = (r for r in records if r.method == HEADROOM + row and r.subset is None)
    return one


# --- the study -------------------------------------------------------------------------------------------------------


def test_the_model_is_the_one_that_its_evaluation_measures() -> None:
    own, name = evaluate(model()), model().preferred()
    (expected,) = (r for r in own if (r.method, r.filter, r.as_chosen) == (name, "time", True))
    for row in ROWS:
        one = of_whole(measured(), row)
        assert one.mrr - one.gain["mrr"][0] == pytest.approx(expected.mrr, abs=1e-9)
        assert one.hits10 - one.gain["hits10"][0] == pytest.approx(expected.hits10, abs=1e-9)
        assert (one.queries, one.settings["over"], one.lock) == (expected.queries, name, expected.lock)


def test_strata_share_the_queries_and_all_that_is_missing() -> None:
    figures = figures_of(measured())
    assert figures[0]["stratum"] == "all"
    for group in ("history", "entities", study.AT_ONCE):
        own = [one for one in figures if one["stratum"].startswith(f"{group}: ")]
        assert sum(one["queries"] for one in own) == figures[0]["queries"]
        assert sum(one["missing"] for one in own) == pytest.approx(1.0)
    assert all(one["read"] >= max(one["told-apart"], one["model"]) for one in figures)


def test_an_answer_that_is_read_ranks_first_and_another_behind_all_that_is_not_read() -> None:
    run, dataset = model(), model().dataset
    on = study._model_on(run, dataset, "test", "cpu")
    ranks, told = [], []
    for part in on.queries.batches(64):
        batch, filters = on.scoring.of(part), Filters(dataset.events)
        assert part.answer is not None
        assert batch.features is not None
        removed = set(zip(*(c.tolist() for c in filters.mask("time", part)), strict=True))
        net = run.learned("time")
        assert net is not None
        x = net.net.scaled(batch.features.x)
        place = {(r, c): i for i, (r, c) in enumerate(zip(batch.row.tolist(), batch.candidate.tolist(), strict=True))}
        for i, answer in enumerate(part.answer.tolist()):
            left = [c for c in range(dataset.events.n_entities) if c != answer and (i, c) not in removed]
            score = batch.scores.log_p[i]
            if (i, answer) in place:
                ranks.append(1.0)
                gap = [(x[place[i, c]] - x[place[i, answer]]).abs().max() for c in left if (i, c) in place]
                told.append(1 + sum(float(g) <= study.NEAR for g in gap) / 2)
                continue
            signs = [float((score[c] - score[answer]).sign()) for c in left if (i, c) not in place]
            ranks.append(1 + sum(1 + sign for sign in signs) / 2)
            told.append(ranks[-1])
    assert min(len(set(ranks)), len(set(told))) > 1
    assert of_whole(measured(), "read").mrr == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-9)
    assert of_whole(measured(), "told-apart").mrr == pytest.approx(np.mean(1 / np.array(told)), abs=1e-6)


def test_queries_are_parted_by_how_many_answers_they_have_at_once() -> None:
    dataset = model().dataset
    answers: dict[tuple[int, ...], set[int]] = {}
    asked = queries_of(dataset, "test")
    assert asked.answer is not None
    rows = list(zip(*(c.tolist() for c in (asked.actor, asked.relation, asked.step)), strict=True))
    for key, answer in zip(rows, asked.answer.tolist(), strict=True):
        answers.setdefault(key, set()).add(answer)
    expected = sum(len(answers[key]) == 2 for key in rows)
    assert expected > 0
    (found,) = (one for one in figures_of(measured()) if one["stratum"] == f"{study.AT_ONCE}: 2")
    assert found["queries"] == expected


def test_two_halves_rank_every_query_by_the_network_that_was_not_fitted_on_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted, fit = [], study.fit_cases

    def noted(cases: object, *args: object, **more: object) -> object:
        made = fit(cases, *args, **more)  # type: ignore[arg-type]
        fitted.append((set(cases.step.tolist()), made.model))  # type: ignore[attr-defined]
        return made

    monkeypatch.setattr(study, "fit_cases", noted)
    records = measure(model())
    (every, whole), (first, one), (second, two) = fitted
    assert (first | second, first & second) == (every, set())
    run, dataset = model(), model().dataset
    on = study._model_on(run, dataset, "test", "cpu", networks=(whole, one, two))
    ranks = replay(on.scoring, on.queries, filters=on.filters)
    known = np.array([step in first for step in on.queries.step.tolist()])
    apart = np.where(known, ranks.of("time", on.scoring.columns - 1), ranks.of("time", on.scoring.columns - 2))
    assert of_whole(records, "two-halves").mrr == pytest.approx(np.mean(1 / apart), abs=1e-9)
    same = ranks.of("time", on.scoring.columns - 3)
    assert of_whole(records, "in-sample").mrr == pytest.approx(np.mean(1 / same), abs=1e-9)


def test_a_single_step_is_halved_by_its_facts() -> None:
    queries = Queries.of(log_of([(i % 5, 0, i % 3, 7) for i in range(20)]))
    half = study._halves(queries, 1)
    assert (half[::2] == half[1::2]).all()
    assert half.sum() == 20


def test_a_sample_of_the_queries_says_so() -> None:
    some = measure(model(), most=60)
    assert {r.queries for r in some if r.subset is None} == {60}
    assert {r.settings["sampled_from"] for r in some} == {of_whole(measured(), "read").queries}
    assert "sampled_from" not in of_whole(measured(), "read").settings


def test_validation_is_read_without_test() -> None:
    known = replace(model().dataset, events=model().dataset.known, test_start=None)
    own = [vars(r) for r in measure(model(), split="valid")]
    assert own == [{**vars(r), "fingerprint": own[0]["fingerprint"]} for r in measure(model(), known, "valid")]


# --- the half-step oracle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_query_sees_the_other_half_of_its_step_and_nothing_else(draw: str, seed: int) -> None:
    events = random_log(seed, steps=10)
    seen, queries, n = OtherHalf(events, draw, seed), Queries.of(events), events.n_relations
    half, classes = seen.half(queries).tolist(), seen.classes(queries)
    assert queries.answer is not None
    rows = rows_of(events)
    assert 0 < sum(half) < len(half)
    for i, (actor, relation, step, answer) in enumerate(
        zip(*(c.tolist() for c in (queries.actor, queries.relation, queries.step, queries.answer)), strict=True)
    ):
        own = (actor, relation, answer) if relation < n else (answer, relation - n, actor)
        other = [row for j, row in enumerate(rows) if row[3] == step and half[2 * j] != half[i]]
        assert own not in [row[:3] for row in other]
        expected = torch.zeros(events.n_entities, dtype=torch.int64)
        for s, _, o, _ in other:
            expected[[s, o]] = 1
        for s, r, o, _ in other:
            if r == relation % n:
                expected[o if relation < n else s] = 2
        partners = {o if s == actor else s for s, _, o, _ in other if actor in (s, o)}
        for partner in partners:
            expected[partner] += 3
        assert classes[i].tolist() == expected.tolist()
        assert draw == "facts" or answer not in partners


def hot_steps() -> Dataset:
    """At every step everybody visits one host, drawn anew: the past says nothing, half of the step says all."""
    rng = np.random.default_rng(3)
    hosts = rng.integers(12, size=40)
    rows = [(actor, 0, int(host), step) for step, host in enumerate(hosts) for actor in rng.choice(12, 6, False)]
    return Dataset.chronological("hot", log_of([r for r in rows if r[0] != r[2]], 12, 1), valid=0.3, test=0.3)


def test_what_only_the_step_itself_knows_is_found_by_the_half_step_oracle_alone() -> None:
    fitted = bm.Forecaster("recurrence", residual="bridgemem", settings=TINY).fit(hot_steps())
    found = bm.headroom(fitted)
    own = figures_of(found.records)[0]
    assert own["half-step-pairs"] > own["model"] + 0.2
    assert own["two-halves"] < own["half-step-pairs"] - 0.2
    assert of_whole(found.records, "half-step-pairs").settings["weight"] > 0
    assert "No row but the model is a forecast" in str(found)


# --- command, files, tables ------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_records_what_was_measured(recurrence_run: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    shown = bridgemem("headroom", recurrence_run, "-o", tmp_path / "t.tex", "--records", records, "--quiet")
    assert shown.code == 0, shown.err
    kept = read_records(records)
    assert kept == measure(Run(recurrence_run))
    table = headroom_table(kept)
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert all(" ".join(row) in lines for row in table.rows)
    assert "No row but the model is a forecast" in shown.out
    assert table.latex() in (tmp_path / "t.tex").read_text()
    made = bridgemem("headroom", recurrence_run, "-o", tmp_path / "t.csv", "--json").json
    assert made["records"] == [vars(r) for r in kept]
    header, first, *_ = (tmp_path / "t.csv").read_text().splitlines()
    assert header.split(",") == list(figures_of(kept)[0])
    assert float(first.split(",")[4]) == pytest.approx(figures_of(kept)[0]["model"])
    assert table.rows[0][3] in bridgemem("report", "--records", records).out


def test_bad_input_is_refused_in_one_sentence(recurrence_run: Path, tmp_path: Path) -> None:
    assert "split is test or valid" in bridgemem("headroom", recurrence_run, "--split", "train").refused()
    assert "use cpu or cuda" in bridgemem("headroom", recurrence_run, "--device", "abacus").refused()
    assert "tables are written as" in bridgemem("headroom", recurrence_run, "-o", "t.doc").refused()
    assert "nowhere" in bridgemem("headroom", tmp_path / "nowhere").refused()
    with pytest.raises(SettingsError, match="test or valid"):
        bm.headroom(recurrence_run, split="train")


def test_its_records_change_no_other_table() -> None:
    known = [*campaign(), *ahead()]
    own = [replace(r, dataset=known[0].dataset) for r in measured()]
    before, after = tables(known), tables([*known, *own])
    assert set(after) - set(before) == {"headroom in short", f"headroom {known[0].dataset} test recurrence"}
    # the list of what is not remade counts all records
    others = [name for name in before if name != "not remade"]
    assert [before[name]() for name in others] == [after[name]() for name in others]
    assert [row[0] for row in after["headroom in short"]().rows] == ["the model", *ROWS.values()]

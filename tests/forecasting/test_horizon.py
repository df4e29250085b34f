"""Queries of several steps: what a window holds, that nothing in it is known, and how it is measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import asdict, astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bridgemem.backbones.recurrence import Recurrence
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.reliability import evaluate_horizon
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.forecasting import horizon
from bridgemem.forecasting.batch_queries import Query, answer
from bridgemem.forecasting.calibration import OverSteps
from bridgemem.forecasting.horizon import Activity, Openings, Windowed, in_windows
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.runs import Run
from bridgemem.storage.files import read_json
from builders import log_of, random_log, random_transitions, rows_of

pytest_plugins = ("small_runs",)


def small() -> Dataset:
    return Dataset.chronological("small", random_log(4, n=400), valid=0.2, test=0.3)


def test_windows_hold_every_fact_once_and_leave_an_unfilled_one_out() -> None:
    events = log_of([(0, 0, 1, 4), (0, 0, 1, 5), (0, 0, 2, 6), (1, 1, 2, 8), (0, 0, 1, 10)])
    assert rows_of(in_windows(events, 4, 3)) == [(0, 0, 1, 4), (0, 0, 2, 4), (1, 1, 2, 7)]
    assert rows_of(in_windows(events, 4, 1)) == rows_of(events)
    with pytest.raises(DataError, match="7 steps to read, fewer than the 8"):
        in_windows(events, 4, 8)
    with pytest.raises(SettingsError, match="horizon must be at least 1, not 0"):
        in_windows(events, 4, 0)


@pytest.mark.parametrize("horizon", [2, 3])
def test_a_window_is_ranked_from_what_was_known_before_it_began(horizon: int) -> None:
    """Ranked anew from a log that ends where the window begins, by a slow count."""
    dataset = small()
    windowed = Windowed.of(dataset, "test", horizon)
    queries, backbone = windowed.queries(), Recurrence.fit(dataset)
    replayed = replay(Scoring(backbone, Past(dataset.events)), queries, filters=windowed.filters)
    assert queries.answer is not None
    facts = rows_of(dataset.events)
    both = facts + [(o, r + dataset.events.n_relations, s, t) for s, r, o, t in facts]
    for i in range(0, len(queries), 7):
        actor, relation, step, answer = (
            int(c[i]) for c in (queries.actor, queries.relation, queries.step, queries.answer)
        )
        known = Past(dataset.events.prefix(step))
        score = backbone.score(queries.take(slice(i, i + 1)).unanswered(), known).log_p[0].double()
        came = {c for a, r, c, t in both if (a, r) == (actor, relation) and step <= t < step + horizon}
        ever = {c for a, r, c, _ in both if (a, r) == (actor, relation)}
        assert answer in came
        for name, removed in (("raw", set[int]()), ("time", came), ("static", ever)):
            kept = [c for c in range(dataset.events.n_entities) if c == answer or c not in removed]
            own = float(score[answer])
            rank = 1 + sum(float(score[c]) > own for c in kept) + (sum(float(score[c]) == own for c in kept) - 1) / 2
            assert replayed.of(name)[i] == rank, (i, name)


def test_windows_of_one_step_are_the_queries_of_every_day() -> None:
    events = log_of(sorted(set(rows_of(random_log(4, n=400)))), 12, 4)
    dataset = Dataset.chronological("small", events, valid=0.2, test=0.3)
    windowed = Windowed.of(dataset, "test", 1)
    backbone, past = Recurrence.fit(dataset), Past(events)
    by_window = replay(Scoring(backbone, past), windowed.queries(), filters=windowed.filters)
    by_step = replay(Scoring(backbone, past), Queries.of(dataset.test), filters=Filters(events))
    for name in FILTERS:
        assert sorted(by_window.of(name)) == sorted(by_step.of(name))


def test_hits_are_the_answers_of_the_window() -> None:
    dataset = small()
    windowed = Windowed.of(dataset, "test", 3)
    distinct = windowed.distinct()
    answers = {(int(a), int(r), int(t)): set[int]() for a, r, t in zip(*_columns(distinct), strict=True)}
    queries = windowed.queries()
    assert queries.answer is not None
    for a, r, t, c in zip(*_columns(queries), queries.answer.tolist(), strict=True):
        answers[a, r, t].add(c)
    hits = windowed.hits(distinct)
    for row, key in zip(hits, zip(*_columns(distinct), strict=True), strict=True):
        assert set(row.nonzero().flatten().tolist()) == answers[key]


def _columns(queries: Queries) -> tuple[list[int], list[int], list[int]]:
    return queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist()


def test_draws_are_the_mean_of_past_windows_and_of_one_with_a_single_event() -> None:
    # before step 9, windows of 3: {6, 7, 8} holds two events, {3, 4, 5} none, {0, 1, 2} one
    events = log_of([(0, 0, 1, 1), (0, 0, 1, 7), (0, 0, 2, 7), (0, 0, 2, 7), (0, 0, 3, 9), (4, 0, 1, 8)])
    activity = Activity(Past(events))
    asked = Queries(torch.tensor([0, 0, 5, 1]), torch.tensor([0, 1, 0, 3]), torch.tensor([9, 9, 9, 9]))
    one, three = activity.draws(asked, asked.step, 3).T.tolist()
    assert three == pytest.approx([4 / 3, 1, 1, 4 / 3])
    assert one == pytest.approx([4 / 3, 1, 1, 1])  # the steps 1 and 7 hold three events
    assert activity.draws(asked, asked.step + 1, 9)[0].tolist() == pytest.approx([(4 + 1) / (3 + 1), (4 + 1) / (1 + 1)])


def test_at_least_once_is_the_chance_of_that_many_draws() -> None:
    p = torch.tensor([[0.5, 0.0], [0.25, 1.0]], dtype=torch.float64)
    draws = torch.tensor([[1.5, 2.0], [1.0, 1.0]], dtype=torch.float64)
    found = OverSteps().at_least_once(p, draws, 7)
    assert found.flatten().tolist() == pytest.approx([0.75, 0.0, 0.25, 1.0])


def test_the_fit_finds_the_numbers_that_several_steps_were_drawn_with() -> None:
    draw = torch.Generator().manual_seed(3)
    true, read = OverSteps(-0.1, -0.2, 0.4, -0.3), []
    for steps in (1, 2, 4, 8):
        p, one, grown = torch.rand((4000, 7), generator=draw).double().split((5, 1, 1), dim=1)
        draws = torch.cat([1 + one, (1 + one) * (1 + (steps - 1) * grown)], dim=1)
        came = torch.rand((4000, 5), generator=draw) < true.at_least_once(p, draws, steps)
        read.append((steps, p, draws, came))
    found = OverSteps.fit(read)
    assert astuple(found)[:4] == pytest.approx(astuple(true)[:4], abs=0.08)
    assert all(share == pytest.approx(stated, abs=0.05) for stated, share in found.knots)
    assert OverSteps.fit([]) == OverSteps()


def test_single_steps_alone_do_not_say_how_several_go() -> None:
    """The partners of one step differ; that must not be carried over to steps in which the same ones come again."""
    draw = torch.Generator().manual_seed(3)
    p, one = torch.rand((4000, 5), generator=draw).double(), 1 + torch.rand(4000, generator=draw).double()
    draws = torch.stack([one, one], dim=1)
    came = torch.rand((4000, 5), generator=draw) < OverSteps(draws=1.5).at_least_once(p, draws, 1)
    found = OverSteps.fit([(1, p, draws, came)])
    assert found.draws == pytest.approx(1.5, abs=0.15)
    assert (found.slope, found.steps, found.growth) == (0, 0, 0)
    # where a step holds one event, five steps are five draws
    five = torch.tensor([[1.0, 5.0]], dtype=torch.float64)
    assert float(found.at_least_once(p[:1, :1], five, 5)) == pytest.approx(1 - (1 - float(p[0, 0])) ** 5)


def test_the_best_candidate_is_read_from_a_curve_several_steps_ahead() -> None:
    """The others come as they are stated, the best half as often: no four numbers fit both."""
    draw = torch.Generator().manual_seed(3)
    p = torch.rand((4000, 5), generator=draw).double().sort(dim=1, descending=True).values
    draws, chance = torch.ones((4000, 2), dtype=torch.float64), torch.tensor([0.5, 1, 1, 1, 1])
    came = torch.rand((4000, 5), generator=draw) < p * chance
    found = OverSteps.fit([(2, p, draws, came), (4, p, draws, came)])
    stated, plain = (one.at_least_once(p, draws, 2) for one in (found, replace(found, knots=())))
    assert torch.equal(stated[:, 1:], plain[:, 1:])
    assert (stated[:, 0] >= stated[:, 1]).all()
    assert abs(float(stated[:, 0].mean()) - 0.5 * float(p[:, 0].mean())) < abs(float((plain - p * 0.5)[:, 0].mean()))
    assert torch.equal(found.at_least_once(p, draws, 1), replace(found, knots=()).at_least_once(p, draws, 1))
    tied = torch.full((1, 2), 0.4, dtype=torch.float64)
    assert len(set(found.at_least_once(tied, draws[:1], 2).flatten().tolist())) == 1


def test_fitting_horizons_loads_no_compiler() -> None:
    """In a process of its own; the optimizers of torch load one, for longer than the fit of all horizons takes."""
    code = """
import sys, torch
from bridgemem.forecasting.calibration import OverSteps
p = torch.full((9, 2), 0.3, dtype=torch.float64)
OverSteps.fit([(2, p, torch.full((9, 2), 1.5, dtype=torch.float64), p > 0.5)])
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("block", [horizon.BLOCK, 7])
def test_a_window_is_opened_once_for_all_horizons(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizon, "BLOCK", block)
    events = random_log(4, n=400)
    windows = Openings.of(events, 40, 0)
    facts = rows_of(events)
    both = facts + [(o, r + events.n_relations, s, t) for s, r, o, t in facts]
    everybody = torch.arange(events.n_entities).expand(len(windows.queries), -1)
    until, first = windows.until(everybody), windows.first()
    assert len(windows.queries) == 40
    for row, (a, r, t) in enumerate(zip(*_columns(windows.queries), strict=True)):
        assert t + windows.longest <= events.end
        came = {c: s - t for b, q, c, s in reversed(both) if (b, q) == (a, r) and t <= s < t + windows.longest}
        assert until[row].tolist() == [came.get(c, windows.longest) for c in range(events.n_entities)]
        assert int(first[row]) == min(came.values())
    assert windows.horizons()[-1] <= windows.longest < 2 * windows.horizons()[-1]


def test_a_longer_horizon_keeps_the_ranking(recurrence_run: Path) -> None:
    forecaster = Run(recurrence_run).predictor()
    assert forecaster.calibration is not None
    assert forecaster.calibration.over_steps != OverSteps()
    alone = forecaster.forecast("Arvan", "visit", top=12)
    week = forecaster.forecast("Arvan", "visit", top=12, horizon=7)
    assert [(c.name, c.rank, c.score) for c in week] == [(c.name, c.rank, c.score) for c in alone]
    (first,) = forecaster.forecast("Arvan", "visit", top=1, horizon=7)
    assert first.p_given_event == week[0].p_given_event
    chances = [c.p_given_event for c in week if c.p_given_event is not None]
    assert chances == sorted(chances, reverse=True)
    assert 0 < chances[-1] < chances[0] < 1


def test_what_happens_inside_the_window_changes_no_forecast_of_it(recurrence_run: Path) -> None:
    whole = Run(recurrence_run).predictor()
    step = whole.events.end - 7
    cut = Predictor(
        Past(whole.events.prefix(step)), whole.scorer, whole.transitions, whole.choice, None, whole.calibration
    )
    how = {"at": whole.events.clock.label(step), "horizon": 7, "top": 12}
    assert whole.forecast("Arvan", "visit", **how) == cut.forecast("Arvan", "visit", **how)


@pytest.mark.parametrize("horizon", [0, -3, 2**31])
def test_horizons_that_are_none_are_refused(horizon: int) -> None:
    events = random_log(4, n=300)
    backbone = Recurrence.fit(Dataset.chronological("small", events))
    of = Predictor(Past(events), backbone, random_transitions(events), Choice())
    with pytest.raises((SettingsError, DataError), match=r"at least 1|too far ahead"):
        of.forecast(0, 0, horizon=horizon)


def test_a_horizon_longer_than_the_past_before_it_is_refused(recurrence_run: Path) -> None:
    forecaster = Run(recurrence_run).predictor()
    days = forecaster.events.end
    assert len(forecaster.forecast("Arvan", "visit", top=3, horizon=days)) == 3
    with pytest.raises(DataError, match=f"{days} steps before the one that is asked for, fewer than the {days + 1} of"):
        forecaster.forecast("Arvan", "visit", horizon=days + 1)
    # what is asked for later knows no more
    later = forecaster.events.clock.label(days + 30)
    with pytest.raises(DataError, match=f"there are {days} steps"):
        forecaster.forecast("Arvan", "visit", at=later, horizon=days + 1)
    early = forecaster.events.clock.label(5)
    with pytest.raises(DataError, match="there are 5 steps"):
        forecaster.forecast("Arvan", "visit", at=early, horizon=6)
    first = forecaster.events.clock.label(0)
    assert forecaster.forecast("Arvan", "visit", at=first, horizon=1, top=3)
    with pytest.raises(DataError, match="there are 5 steps"):
        answer(forecaster, [Query("Arvan", "visit"), Query("Arvan", "visit", at=early)], horizon=6)


def test_records_of_a_horizon_say_so_and_hold_their_calibration_error(recurrence_run: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(recurrence_run, tmp_path / "run"))
    records = evaluate_horizon(run, 2)
    assert {r.horizon for r in records} == {2}
    assert {(r.method, r.filter) for r in records} == {(m, f) for m in ("backbone", "bridgemem") for f in FILTERS}
    dataset = run.dataset
    assert dataset.test_start is not None
    windows = (dataset.events.end - dataset.test_start) // 2
    for r in records:
        assert r.settings["windows"] == windows
        assert 0 < r.mrr <= 1
        assert r.queries == len(Windowed.of(dataset, "test", 2).queries())
        if r.method == "bridgemem":
            assert 0 <= r.settings["ece"] <= 1
            assert np.isfinite(r.gain["mrr"]).all()
    evaluate_horizon(run, 2, split="valid")
    kept = read_json(run.folder / "metrics.horizon2.json")
    assert set(kept) == {"test", "valid"}
    assert kept["test"] == [asdict(record) for record in records]
    with pytest.raises(SettingsError, match="at least 2"):
        evaluate_horizon(run, 1)

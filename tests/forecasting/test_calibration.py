"""Probabilities: the fit finds the numbers that made the answers, and a run's own are fitted on validation alone."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bridgemem.config import Settings
from bridgemem.errors import RunError, SettingsError
from bridgemem.evaluation.evaluate import scoring_of
from bridgemem.evaluation.reliability import calibrate, reliability
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.forecasting.calibration import (
    TEMPERATURES,
    Calibration,
    Curve,
    LogP,
    Stated,
    fit_calibration,
    read_calibration,
    with_late,
)
from bridgemem.residuals.method import Method
from bridgemem.runs import Run
from builders import futures, random_log, side
from fits import fit
from precision import close

pytest_plugins = ("small_runs",)


def drawn(temperature: float, floor: float, n: int = 6000, entities: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and answers that were drawn with a known temperature and floor."""
    draw = torch.Generator().manual_seed(1)
    score = 4 * torch.randn((n, entities), generator=draw, dtype=torch.float64)
    p = (1 - floor) * (score / temperature).softmax(1) + floor / entities
    return score, torch.multinomial(p, 1, generator=draw).squeeze(1)


@pytest.mark.parametrize(("temperature", "floor"), [(1.0, 0.0), (2.7, 0.0), (0.8, 0.15), (0.5, 0.3)])
def test_the_fit_finds_the_temperature_and_floor_that_the_answers_were_drawn_with(
    temperature: float, floor: float
) -> None:
    score, answer = drawn(temperature, floor)
    found = fit_calibration(LogP.of(score, answer, answer), score.shape[1])
    assert found.temperature == pytest.approx(temperature, rel=0.08)
    assert found.floor == pytest.approx(floor, abs=0.03)
    assert found.nll <= found.plain_nll + 1e-12 <= found.raw_nll + 2e-12
    p = found.probabilities(score)
    assert p.sum(1).tolist() == pytest.approx([1] * len(p))
    best = p.max(1)
    assert Curve.of(best.values.numpy(), (best.indices == answer).numpy()).error < 0.03


def test_a_score_of_minus_infinity_has_no_probability() -> None:
    calibration = Calibration(2.0, 0.3, 1, 0.0, 0.0, 0.0)
    score = torch.tensor([[1.0, 0.5, -3.0], [0.0, 0.0, 0.0]])
    wide = torch.full((2, 9), -torch.inf)
    wide[:, [1, 4, 8]] = score
    p = calibration.probabilities(wide)
    assert close(p[:, [1, 4, 8]], calibration.probabilities(score))
    assert p.sum(1).tolist() == pytest.approx([1, 1])
    assert int((p == 0).sum()) == 12


def test_the_likelihoods_are_those_of_a_slow_computation() -> None:
    score, answer = drawn(2.0, 0.1, n=50)
    table = LogP.of(score, answer, answer)
    for i in (0, 12, 24):
        slow = [float((row / TEMPERATURES[i]).log_softmax(0)[a]) for row, a in zip(score, answer, strict=True)]
        assert table.answer[:, i].tolist() == pytest.approx(slow, rel=1e-5, abs=1e-5)
        best = (score / TEMPERATURES[i]).log_softmax(1).max(1).values
        assert table.best[:, i].tolist() == pytest.approx(best.tolist(), rel=1e-5, abs=1e-5)
    found = replace(fit_calibration(table, 30), knots=())
    slow_nll = -found.probabilities(score).gather(1, answer[:, None]).log().mean()
    assert found.nll == pytest.approx(float(slow_nll), rel=1e-3)


def unlike_a_softmax(n: int = 6000) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores whose best comes true far more often than any temperature says, whatever the margin."""
    draw = torch.Generator().manual_seed(2)
    score = torch.randn((n, 200), generator=draw, dtype=torch.float64)
    answer = torch.randint(200, (n,), generator=draw)
    sure = torch.rand(n, generator=draw) < 0.4
    return score, torch.where(sure, score.argmax(1), answer)


def test_the_curve_makes_the_best_as_probable_as_it_came_true() -> None:
    score, answer = unlike_a_softmax()
    early, late = slice(0, 4000), slice(4000, None)
    found = fit_calibration(LogP.of(score[early], answer[early], answer[early]), 200)
    errors = []
    for calibration in (replace(found, knots=()), found):
        best = calibration.probabilities(score[late]).max(1)
        errors.append(Curve.of(best.values.numpy(), (best.indices == answer[late]).numpy()).error)
    assert errors[1] < 0.04 < errors[0]


def test_the_curve_keeps_the_order_and_the_sum() -> None:
    calibration = Calibration(1.0, 0.0, 1, 0.0, 0.0, 0.0, knots=((0.4, 0.1), (0.6, 0.2)))
    score = torch.tensor([[2.0, 1.9, 0.0, -1.0], [5.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [900.0, 0.0, 0.0, 0.0]])
    p = calibration.probabilities(score)
    assert p.sum(1).tolist() == pytest.approx([1] * 4)
    assert (p.diff(dim=1) <= 1e-12).all()
    assert float(p[2, 0]) == float(p[2, 1])


def test_what_was_stated_and_did_not_come_true_is_remarked() -> None:
    stated = np.repeat([0.7, 0.1], 200)
    hit = np.concatenate([np.arange(200) < 110, np.arange(200) < 20])
    assert Stated.of(1, stated, hit).remark == "stated 70%, came true 55% on the last part of validation"
    assert Stated.of(1, stated, np.concatenate([np.arange(200) < 140, np.arange(200) < 20])).remark == ""
    # nine forecasts of nine different probabilities tell nothing apart, and are off by .06 in the mean
    few = np.linspace(0.1, 0.9, 9)
    assert Stated.of(1, few, few > 0.45).remark == ""
    assert Stated.of(1, few, few > 2).remark == "stated 50%, came true 0% on the last part of validation"


def test_later_queries_are_measured_by_what_came_before_them() -> None:
    score, answer = drawn(1.0, 0.0, n=2000)
    late = with_late(LogP.of(score, answer, torch.arange(2000)), 30).late
    assert late is not None
    assert late.error < 0.08
    turned = answer.clone()
    turned[1600:] = (answer[1600:] + 1) % 30  # from then on nothing is as it was
    late = with_late(LogP.of(score, turned, torch.arange(2000)), 30).late
    assert late is not None
    assert late.remark.startswith("stated ")


def test_the_error_is_the_mean_distance_between_probability_and_share() -> None:
    curve = Curve.of(np.array([0.12, 0.18, 0.95, 0.95]), np.array([False, True, True, True]))
    assert [(b.low, b.high, b.count, b.share) for b in curve.bins] == [(0.1, 0.2, 2, 0.5), (0.9, 1.0, 2, 1.0)]
    assert curve.error == pytest.approx((2 * 0.35 + 2 * 0.05) / 4)
    assert Curve.of(np.array([0.0, 1.0]), np.array([False, True])).error == 0


@pytest.mark.parametrize(("temperature", "floor"), [(0.0, 0.0), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1)])
def test_numbers_that_give_no_probabilities_are_refused(temperature: float, floor: float) -> None:
    with pytest.raises(SettingsError, match=r"temperature must be|floor must be"):
        Calibration(temperature, floor, 1, 1.0, 1.0, 1.0)


def test_a_run_is_calibrated_when_it_is_fitted_and_again_to_the_same_numbers(
    recurrence_run: Path, tmp_path: Path
) -> None:
    run = Run(shutil.copytree(recurrence_run, tmp_path / "run"))
    before = json.loads((run.folder / "calibration.json").read_text())
    assert set(before) == {"bridgemem.static", "bridgemem.time"}
    (run.folder / "calibration.json").unlink()
    assert Run(run.folder).predictor().forecast("Arvan", "visit")[0].p_given_event is None
    calibrate(run)
    assert json.loads((run.folder / "calibration.json").read_text()) == before
    ranked = Run(run.folder).predictor().forecast("Arvan", "visit", top=99)
    chances = [c.p_given_event for c in ranked if c.p_given_event is not None]
    assert sum(chances) == pytest.approx(1)
    assert chances == sorted(chances, reverse=True)


def test_no_test_event_changes_a_calibration() -> None:
    settings = Settings(width=8, hidden=8, max_epochs=1)
    dataset = Dataset.chronological("small", random_log(5, n=400), valid=0.2, test=0.2)
    assert dataset.test_start is not None
    found = fit(dataset, "recurrence", settings).calibration
    assert found is not None
    for name in ("permuted", "corrupted"):
        other = futures(dataset.events, dataset.test_start)[name]
        assert fit(replace(dataset, events=other), "recurrence", settings).calibration == found


def test_the_reliability_of_a_run_is_that_of_its_own_forecasts(recurrence_run: Path) -> None:
    run = Run(recurrence_run)
    dataset = run.dataset
    measured = {r.selected_by: r for r in reliability(run, dataset, "test")}
    assert set(measured) == {"static", "time"}
    forecaster = Run(recurrence_run).predictor()
    test = dataset.test
    best, hits = [], []
    for s, r, o, t in zip(test.subject, test.relation, test.object, test.step, strict=True):
        for actor, answer, inverse in ((s, o, False), (o, s, True)):
            top = forecaster.forecast(
                relation=int(r), at=dataset.events.clock.label(int(t)), top=1, **side(int(actor), inverse)
            )[0]
            best.append(top.p_given_event)
            hits.append(top.name == dataset.events.entities.names[answer])
    expected = Curve.of(np.array(best), np.array(hits))
    assert measured["time"].queries == len(best)
    assert [b.count for b in measured["time"].best.bins] == [b.count for b in expected.bins]
    assert measured["time"].best.error == pytest.approx(expected.error)


def test_every_residual_gets_the_scores_it_forecasts_with(recurrence_run: Path) -> None:
    run = Run(recurrence_run)
    forecaster = Run(recurrence_run).predictor()
    query, column = forecaster.query("Arvan", "visit"), run.methods().index(Method("bridgemem", "time"))
    (scored,) = scoring_of(run, forecaster.past, "known").batches(query, lambda scored: scored)
    own = {c.name: c.score for c in forecaster.forecast("Arvan", "visit", top=99)}
    names = forecaster.events.entities.names
    assert dict(zip(names, scored.total(column)[0].tolist(), strict=True)) == pytest.approx(own)


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        ("not json", "is damaged"),
        ("[]", "it must be a table"),
        ('{"bridgemem.time": 3}', "bridgemem.time must be a table"),
        ('{"bridgemem.time": {}}', "temperature is missing"),
        ('{"bridgemem.time": {"temperature": "hot"}}', "temperature must be a number"),
    ],
)
def test_a_damaged_calibration_is_refused(content: str, phrase: str, recurrence_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(recurrence_run, tmp_path / "run")
    (run / "calibration.json").write_text(content)
    with pytest.raises(RunError, match=phrase):
        Run(run).predictor()


def test_a_calibration_of_another_selection_is_refused(recurrence_run: Path) -> None:
    assert read_calibration(recurrence_run, Method("learned", "time"), "") is None
    with pytest.raises(RunError, match="made under another selection"):
        read_calibration(recurrence_run, Method("bridgemem", "time"), "other")


def test_a_run_that_was_never_calibrated_has_no_reliability(recurrence_run: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(recurrence_run, tmp_path / "run"))
    (run.folder / "calibration.json").unlink()
    with pytest.raises(RunError, match="bridgemem calibrate"):
        reliability(run, load(run.folder / "data.npz"))

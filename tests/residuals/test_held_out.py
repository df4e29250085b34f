"""The later part of validation: what the residuals make of it before the learned one is fitted on it too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import paired_gain
from bridgemem.residuals.cases import Cases
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import Fit, HeldOut, fit_cases, fit_learned, late_rows, serving
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.residuals.validation import Validation
from builders import random_transitions, small_world

QUICK = LearnedSettings(epochs=6, hidden=16, relation_width=4, batch=64, unseen_candidates=5)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small_world().dataset


@pytest.fixture(scope="module")
def transitions(data: Dataset) -> Transitions:
    return random_transitions(data.train)


def test_the_later_part_of_validation_is_measured_before_it_is_fitted_on(
    data: Dataset, transitions: Transitions
) -> None:
    validation, choices = Validation.of(data, RecurrenceDyadic.fit(data)), {"static": Choice(), "time": Choice(lam=3.0)}
    fits, again = (fit_learned(validation, transitions, QUICK, seed=3, choices=found) for found in (None, choices))
    fit, queries = again["raw"], Queries.of(data.valid)
    # measuring changes nothing of what is fitted
    assert all(torch.equal(t, fits["raw"].model.tensors()[key]) for key, t in fit.model.tensors().items())
    assert fits["raw"].note.held_out == {}
    cut = np.quantile(queries.step.numpy(), QUICK.fit_share)
    late = queries.take((queries.step >= cut).nonzero().squeeze(1))
    assert 0 < len(late) < len(queries)
    for name in FILTERS:
        chosen = choices["static" if name == "static" else "time"]
        scoring = validation.scoring(transitions, choices=[chosen], learned=[fit.model])
        read = replay(scoring, late, filters=Filters(data.known))
        held = again[serving(again, name) or ""].held_out[name]
        mrr = [read.metrics(name, column).mrr for column in range(3)]
        assert (held.queries, held.backbone, held.bridgemem) == (len(late), mrr[0], mrr[1])
        assert held.learned != mrr[2]
        assert held.gain[0] == pytest.approx(held.learned - held.bridgemem)


def test_nothing_of_the_later_part_is_in_the_network_that_is_measured_on_it(
    data: Dataset, transitions: Transitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation, choices = Validation.of(data, RecurrenceDyadic.fit(data)), {"static": Choice(), "time": Choice()}
    fitted_on: list[Cases] = []

    def noted(cases: Cases, *arguments: Any, **others: Any) -> Fit:
        fitted_on.append(cases)
        return fit_cases(cases, *arguments, **others)

    monkeypatch.setattr("bridgemem.residuals.learning.fit_cases", noted)
    fit_learned(validation, transitions, replace(QUICK, fitted_under="raw"), choices=choices)
    cut = np.quantile(validation.queries.step.numpy(), QUICK.fit_share)
    quick, whole = fitted_on
    assert 0 < int(quick.step.max()) < cut <= int(whole.step.max())
    assert len(quick) < len(whole) == len(validation.queries)


def test_a_network_for_the_time_aware_filter_is_fitted_where_it_ranks_better_there(
    data: Dataset, transitions: Transitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation, choices = Validation.of(data, RecurrenceDyadic.fit(data)), {"static": Choice(), "time": Choice()}
    few = replace(QUICK, epochs=1)
    for better, tried, expected in ((True, -1.0, ["raw", "time"]), (False, -1.0, ["raw"]), (True, 1.1, ["raw"])):
        monkeypatch.setattr("bridgemem.residuals.learning.OTHER_ANSWERS", tried)
        monkeypatch.setattr("bridgemem.residuals.learning._Compared.own_is_better", lambda self, name, b=better: b)
        fits = fit_learned(validation, transitions, few, choices=choices)
        assert list(fits) == expected
        assert sorted(name for fit in fits.values() for name in fit.held_out) == ["raw", "static", "time"]


def test_of_many_later_queries_a_sample_is_measured_that_anyone_finds_again(
    data: Dataset, transitions: Transitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridgemem.residuals.learning.LATE_QUERIES", 40)
    validation, few = Validation.of(data, RecurrenceDyadic.fit(data)), replace(QUICK, epochs=1)
    choices = {"static": Choice(), "time": Choice()}
    held = fit_learned(validation, transitions, few, seed=3, choices=choices)["raw"].held_out["time"]
    queries, past = Queries.of(data.valid), Past(data.known)
    rows = late_rows(queries, few, seed=3)
    read = replay(Scoring(validation.backbone, past), queries, filters=Filters(data.known))
    assert len(rows) == held.queries == 40
    assert (1 / read.of("time")[rows.numpy()]).mean() == pytest.approx(held.backbone)


def test_the_residual_that_ranks_better_is_used() -> None:
    rng = np.random.default_rng(0)
    before = rng.integers(1, 5, 24).astype(float)
    after = before.copy()
    after[:3] = 1.0
    before[:3] = 3.0
    value, low, high = paired_gain(before, after, np.zeros(24))
    assert low < 0 < value < high
    # whole steps that differ count for more than the queries in them
    many = np.repeat([1.0, 4.0], 300)
    assert paired_gain(np.full(600, 2.0), many, np.repeat([0, 1], 300))[1] < 0
    sure = paired_gain(np.full(600, 3.0), np.full(600, 2.0), np.arange(600) % 20)
    assert sure[1] > 0
    held = HeldOut(24, 0.2, 0.3, 0.4, sure)
    assert held.better == "learned"
    assert replace(held, gain=(0.01, -0.2, 0.2)).better == "learned"
    assert replace(held, gain=(-0.01, -0.2, 0.2)).better == "bridgemem"
    assert replace(held, gain=(0.0, 0.0, 0.0)).better == "bridgemem"

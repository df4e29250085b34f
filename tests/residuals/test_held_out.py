"""The later part of validation: what the residuals make of it before the learned one is fitted on it too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import HeldOut, Slice, _gain, _Training, fit_cases, fit_learned, gather, later_rows
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.residuals.validation import Validation
from builders import random_transitions, small_world

QUICK = LearnedSettings(max_epochs=6, patience=2, hidden=16, relation_width=4, batch=64, unseen_candidates=5)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small_world().dataset


@pytest.fixture(scope="module")
def transitions(data: Dataset) -> Transitions:
    return random_transitions(data.train)


def test_the_later_part_of_validation_is_measured_before_it_is_fitted_on(
    data: Dataset, transitions: Transitions
) -> None:
    source, choices = (
        Slice(Validation.of(data, RecurrenceDyadic.fit(data)), transitions),
        {"static": Choice(), "time": Choice(lam=3.0)},
    )
    fits, again = (fit_learned([source], QUICK, seed=3, choices=found) for found in (None, choices))
    cases, n_directed = gather(source, QUICK, seed=3), 2 * data.events.n_relations
    cut = torch.quantile(cases.step.double(), QUICK.fit_share)
    queries, filters = Queries.of(data.valid), Filters(data.known)
    late = queries.take((queries.step >= cut).nonzero().squeeze(1))
    assert 0 < len(late) < len(queries)
    for name, fit in again.items():
        # measuring changes nothing of what is fitted
        assert all(torch.equal(t, fits[name].model.tensors()[key]) for key, t in fit.model.tensors().items())
        training = _Training(cases, torch.arange(len(cases)), name, n_directed, QUICK, 0)
        training.net = fit.early.net
        assert training.loss_on((cases.step >= cut).nonzero().squeeze(1)) == pytest.approx(min(fit.curve), rel=1e-6)
        read = replay(
            source.validation.scoring(transitions, choices=[choices[name]], learned=[fit.early, fit.model]),
            late,
            filters=filters,
        )
        held = fit.held_out
        assert held is not None
        mrr = [read.metrics(name, column).mrr for column in range(4)]
        assert (held.queries, held.backbone, held.bridgemem) == (len(late), mrr[0], mrr[1])
        assert held.learned == mrr[2] != mrr[3]
        assert held.gain[0] == pytest.approx(mrr[2] - mrr[1])
        assert fit.note.held_out == held
        assert fits[name].note.held_out is None


def test_nothing_of_the_later_part_is_in_the_network_that_is_measured_on_it(
    data: Dataset, transitions: Transitions
) -> None:
    once, n_directed = replace(QUICK, max_epochs=1), 2 * data.events.n_relations
    cases = gather(Slice(Validation.of(data, RecurrenceDyadic.fit(data)), transitions), once, seed=3)
    late = cases.step >= torch.quantile(cases.step.double(), once.fit_share)
    of_late = torch.repeat_interleave(late, cases.start.diff())[:, None]
    other = replace(cases, x=torch.where(of_late, 3.0, cases.x.float()).half())
    found, expected = (fit_cases(c, "time", n_directed, once) for c in (other, cases))
    tensors = expected.early.tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.early.tensors().items())
    assert not torch.equal(found.model.net.mean, expected.model.net.mean)


def test_of_more_than_memory_holds_the_sample_that_was_read_is_measured(
    data: Dataset, transitions: Transitions
) -> None:
    few = replace(QUICK, max_pairs=5_000, max_epochs=1)
    source = Slice(Validation.of(data, RecurrenceDyadic.fit(data)), transitions)
    choices = {"static": Choice(), "time": Choice()}
    held = fit_learned([source], few, seed=3, choices=choices)["time"].held_out
    cases = gather(source, few, seed=3)
    assert held is not None
    assert len(cases) < 2 * len(data.valid)
    assert held.queries == int((cases.step >= torch.quantile(cases.step.double(), few.fit_share)).sum())
    # and found again by anyone who has the settings and the seed alone
    queries, past = Queries.of(data.valid), Past(data.known)
    rows = later_rows(queries, past, few, seed=3)
    read = replay(Scoring(source.validation.backbone, past), queries, filters=Filters(data.known))
    assert len(rows) == held.queries
    assert (1 / read.of("time")[rows.numpy()]).mean() == pytest.approx(held.backbone)


def test_with_cross_fitting_the_later_part_of_validation_is_measured_too(
    data: Dataset, transitions: Transitions
) -> None:
    source, choices = (
        Slice(Validation.of(data, RecurrenceDyadic.fit(data)), transitions),
        {"static": Choice(), "time": Choice()},
    )
    few, earlier = replace(QUICK, max_epochs=1), source.earlier(0.25, RecurrenceDyadic.fit, seed=1, epochs=1)
    plain, crossed = (
        fit_learned(found, few, choices=choices)["time"].held_out for found in ([source], [earlier, source])
    )
    assert plain is not None
    assert crossed is not None
    assert (plain.queries, plain.backbone, plain.bridgemem) == (crossed.queries, crossed.backbone, crossed.bridgemem)


def test_the_learned_residual_must_gain_more_than_a_standard_error() -> None:
    rng = np.random.default_rng(0)
    before = rng.integers(1, 5, 24).astype(float)
    after = before.copy()
    after[:3] = 1.0
    before[:3] = 3.0
    value, low, high = _gain(before, after, np.zeros(24))
    assert low < 0 < value < high
    # whole steps that differ count for more than the queries in them
    many = np.repeat([1.0, 4.0], 300)
    assert _gain(np.full(600, 2.0), many, np.repeat([0, 1], 300))[1] < 0
    sure = _gain(np.full(600, 3.0), np.full(600, 2.0), np.arange(600) % 20)
    assert sure[1] > 0
    held = HeldOut(24, 0.2, 0.3, 0.4, sure)
    assert held.better == "learned"
    for error, better in ((0.11, "bridgemem"), (0.09, "learned")):
        gain = (0.1, 0.1 - 1.96 * error, 0.1 + 1.96 * error)
        assert replace(held, gain=gain).better == better
    assert replace(held, gain=(-0.1, -0.1, -0.1)).better == "bridgemem"

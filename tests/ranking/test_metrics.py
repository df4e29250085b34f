"""Metrics and intervals: hand-made values, and a bootstrap that knows what a day is."""

from __future__ import annotations

import numpy as np
import pytest

from bridgemem.evaluation.tables import interval
from bridgemem.ranking.intervals import paired_gain, paired_gains, seeded_gains, steps_note
from bridgemem.ranking.metrics import METRICS, Metrics


def test_metrics_of_known_ranks():
    metrics = Metrics.of(np.array([1.0, 1.5, 3.0, 10.0, 10.5]))
    assert metrics.mrr == pytest.approx((1 + 1 / 1.5 + 1 / 3 + 0.1 + 1 / 10.5) / 5)
    assert (metrics.hits1, metrics.hits3, metrics.hits10) == (0.2, 0.6, 0.8)
    assert tuple(metrics.as_dict()) == METRICS


def test_no_gain_has_no_width():
    ranks = np.random.default_rng(1).integers(1, 40, size=200).astype(float)
    for gain in paired_gains(ranks, ranks, np.arange(200) // 10).values():
        assert (gain.value, gain.low, gain.high) == (0, 0, 0)


def test_an_equal_gain_on_every_query_has_no_width_either():
    gains = paired_gains(np.full(60, 2.0), np.full(60, 1.0), np.arange(60) // 7)
    assert (gains["mrr"].value, gains["mrr"].low, gains["mrr"].high) == pytest.approx((0.5, 0.5, 0.5))
    assert gains["hits1"].low == pytest.approx(1)
    assert gains["hits3"].high == 0


def test_queries_of_one_step_are_resampled_together():
    rng = np.random.default_rng(2)
    day = np.repeat(np.arange(20), 50)
    better = np.repeat(rng.random(20) < 0.5, 50)
    before, after = np.full(1000, 2.0), np.where(better, 1.0, 2.0)
    clustered = paired_gains(before, after, day)["hits1"]
    one_by_one = paired_gains(before, after, np.arange(1000))["hits1"]
    assert clustered.value == one_by_one.value == better.mean()
    # whole days move together, so the interval is that of 20 draws and not of 1000
    ratio = (clustered.high - clustered.low) / (one_by_one.high - one_by_one.low)
    assert ratio == pytest.approx(np.sqrt(50), rel=0.2)


def test_three_days_give_the_possible_means():
    before, after = np.array([2.0, 2.0, 2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0, 2.0, 2.0])
    gain = paired_gains(before, after, np.array([0, 0, 0, 1, 2]))["hits1"]
    assert (gain.value, gain.low, gain.high) == (0.6, 0.0, 1.0)


def test_intervals_are_decided_by_the_seed():
    rng = np.random.default_rng(3)
    before, after, day = rng.integers(1, 30, size=300) / 1.0, rng.integers(1, 20, size=300) / 1.0, np.arange(300) // 9
    assert paired_gains(before, after, day) == paired_gains(before, after, day)
    assert paired_gains(before, after, day, seed=1) != paired_gains(before, after, day, seed=2)


def test_the_interval_holds_the_gain():
    rng = np.random.default_rng(4)
    before, day = rng.integers(1, 30, size=500).astype(float), np.arange(500) // 10
    for gain in paired_gains(before, np.maximum(1, before - rng.integers(0, 3, size=500)), day).values():
        assert gain.low <= gain.value <= gain.high


@pytest.mark.parametrize(("steps", "none"), [(1, True), (2, True), (3, False)])
def test_fewer_than_three_steps_give_no_interval(steps: int, none: bool) -> None:
    before, step = np.tile([4.0, 2.0, 3.0, 1.0], 3), np.arange(12) % steps
    found = paired_gains(before, np.ones(12), step)["mrr"]
    assert ((found.low, found.high) == (-1.0, 1.0)) == none
    assert interval([found.value, found.low, found.high]).endswith("(no interval)") == none
    seeded, p = seeded_gains([before], [np.ones(12)], step)["mrr"]
    assert ((seeded.low, seeded.high, p) == (-1.0, 1.0, 1.0)) == none
    assert paired_gain(before, np.ones(12), step)[1] > -1  # a fit still weighs what few steps say


def test_few_steps_are_said_once() -> None:
    assert steps_note(10) == ""
    assert steps_note(6) == "6 steps: the interval is rough."
    assert steps_note(2) == "2 steps: too few for an interval."

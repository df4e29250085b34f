"""Whether: Brier scores, skills and areas under the curve, against figures made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bridgemem.evaluation.whether import _auc, _skill, usual_horizons


def test_the_area_under_the_curve_counts_pairs_in_their_order() -> None:
    rng = np.random.default_rng(0)
    p, hit, weight = rng.integers(0, 5, 40) / 5, rng.random(40) < 0.4, rng.integers(1, 4, 40).astype(float)
    total = right = 0.0
    for i in np.flatnonzero(hit):
        for j in np.flatnonzero(~hit):
            total += weight[i] * weight[j]
            right += weight[i] * weight[j] * ((p[i] > p[j]) + (p[i] == p[j]) / 2)
    assert _auc(p, hit, weight) == pytest.approx(right / total)


def test_skill_is_what_is_left_of_the_rules_score() -> None:
    own, rule = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.2, 0.4, 0.6, 0.8])
    skill = _skill(own, rule, np.array([1.0, 2.0, 1.0, 5.0]), np.array([0, 0, 1, 1]), 1)
    assert skill == pytest.approx([0.5, 0.5, 0.5])
    assert len(_skill(own, rule, np.ones(4), np.zeros(4), 1)) == 1  # one step has no interval


def test_the_interval_of_a_skill_is_wider_where_steps_share_outcomes() -> None:
    """A good week follows a bad one: seven steps at once tell no more than one."""
    step = np.arange(140)
    rule = np.ones(140)
    own = np.where(step // 7 % 2 == 0, 0.2, 0.8)
    widths = [np.ptp(_skill(own, rule, rule, step, horizon)[1:]) for horizon in (1, 7)]
    assert widths[1] > 1.5 * widths[0]


def test_even_two_windows_have_an_interval_of_some_width() -> None:
    rng = np.random.default_rng(0)
    point, low, high = _skill(rng.random(17), np.ones(17), np.ones(17), np.arange(17), 14)
    assert low < point < high


def test_short_splits_are_asked_for_short_horizons() -> None:
    assert [usual_horizons(steps) for steps in (6, 31, 370)] == [(1, 3), (1, 7, 14), (1, 7, 14, 30)]

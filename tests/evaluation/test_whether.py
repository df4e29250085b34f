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
    own, rule = np.array([0.1, 0.2, 0.3, 0.0]), np.array([0.2, 0.4, 0.6, 0.0])
    skill = _skill(own, rule, np.array([1.0, 2.0, 1.0, 5.0]), np.array([0, 0, 1, 1]))
    assert skill == pytest.approx([0.5, 0.5, 0.5])
    assert len(_skill(own, rule, np.ones(4), np.zeros(4))) == 1  # one window has no interval


def test_short_splits_are_asked_for_short_horizons() -> None:
    assert [usual_horizons(steps) for steps in (6, 31, 370)] == [(1, 3), (1, 7, 14), (1, 7, 14, 30)]

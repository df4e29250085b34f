"""Lags: decayed sums, whole cycles and gaps equal a plain count, and a network learns from them who is due."""

import itertools

import numpy as np
import pytest
import torch

import bridgemem as bm
from bridgemem.events.clock import CYCLES
from bridgemem.events.dataset import Dataset
from bridgemem.residuals.lags import DECAYS, NAMES, of_lags
from builders import log_of


def plain(lags: list[int], cycle: int) -> list[float]:
    """The same for one row, as somebody would count it by hand."""
    known = [lag for lag in lags if lag]
    decayed = [sum(np.exp(-(lag - 1) / decay) for lag in known) for decay in DECAYS]
    steps = sorted(set(known))
    gaps = [older - newer for newer, older in itertools.pairwise(steps)]
    now = steps[0] if steps else 0
    counts = [
        sum(cycle > 0 and step % cycle == 0 and step <= CYCLES * cycle for step in steps),
        gaps.count(now),
        sum(abs(gap - now) <= max(1.0, now / 10) for gap in gaps),
        sum(gap >= now for gap in gaps),
    ]
    return [float(np.log1p(value)) for value in (*decayed, *counts)]


@pytest.mark.parametrize("cycle", [0, 7, 24])
def test_columns_equal_a_plain_count(cycle: int) -> None:
    rng = np.random.default_rng(cycle)
    rows = [sorted(rng.integers(1, 90, 16).tolist()) for _ in range(40)]
    rows += [[7 * n for n in range(1, 17)], [30, 60, 91, 121], [5], [3, 3, 3], [], [9_000, 18_000, 27_000]]
    # events of another kind stand between as zeros
    rows = [[lag if rng.random() < 0.7 else 0 for lag in row] for row in rows] + rows
    table = torch.tensor([row + [0] * (16 - len(row)) for row in rows])
    found = of_lags(table, cycle)
    assert found.shape == (len(rows), len(NAMES))
    torch.testing.assert_close(found, torch.tensor([plain(row, cycle) for row in rows]), atol=1e-6, rtol=1e-5)


def test_who_is_due_ranks_first() -> None:
    """Each shop orders from ten makers, from each after so many days; the clock tells of no cycle."""
    rng = np.random.default_rng(3)
    rows = []
    for shop in range(12):
        for maker in range(12, 22):
            rows += [(shop, 0, maker, step) for step in range(int(rng.integers(25)), 300, int(rng.integers(5, 25)))]
    data = Dataset("orders", log_of(rows, 22, 1), 220, 250)
    settings = {"train_queries": 2000}
    model = bm.Forecaster("popularity", residual="learned", learned_settings=settings).fit(data)
    found = model.evaluate()
    assert found.mrr("learned") > 0.9 > 0.5 > found.mrr("backbone")

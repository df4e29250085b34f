"""Prior and count table: sums, merging, smoothing, and convergence to the world's planted truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.config import Settings
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.tokens import TokenSpace
from builders import few, log_of, logs, random_log
from precision import FLOAT64, close


def mined(events, settings: Settings | None = None) -> tuple[Examples, TokenSpace]:
    settings = settings or Settings()
    space = TokenSpace.of(settings, events.n_relations)
    return mine(events, space, settings), space


@few
@given(events=logs())
def test_every_token_of_every_example_counts_once(events):
    examples, space = mined(events)
    expected = torch.zeros(space.size, space.n_directed, dtype=torch.int64)
    for tokens, target in zip(examples.tokens.tolist(), examples.target.tolist(), strict=True):
        for token in tokens:
            if token != space.pad:
                expected[token, target] += 1
    table = CountTable.of(examples, space)
    assert torch.equal(table.counts, expected)
    assert table.support().tolist() == [*expected.sum(1).tolist(), 0]


@few
@given(events=logs(min_size=5), cut=st.integers(0, 80))
def test_tables_of_two_halves_merge_into_the_whole(events, cut):
    examples, space = mined(events)
    cut = min(cut, len(examples))
    parts = [examples.take(torch.arange(*bounds)) for bounds in ((0, cut), (cut, len(examples)))]
    merged = CountTable.of(parts[0], space).merge(CountTable.of(parts[1], space))
    whole = CountTable.of(examples, space)
    assert torch.equal(merged.counts, whole.counts)
    assert torch.equal(CountTable.empty(space).merge(whole).counts, whole.counts)


def test_smoothed_rows_are_probabilities_and_the_pad_adds_nothing():
    events = random_log(2)
    examples, space = mined(events)
    table, log_pi = CountTable.of(examples, space), log_prior(events)
    p = table.smooth(log_pi, 10.0)
    assert p.shape == (space.size + 1, space.n_directed)
    assert close(p[:-1].sum(1), torch.ones(space.size, dtype=torch.float64), FLOAT64)
    assert (p[:-1] > 0).all()
    assert not p[-1].any()
    unseen = table.counts.sum(1) == 0
    assert unseen.any()
    assert close(p[:-1][unseen], log_pi.exp().expand(int(unseen.sum()), -1))
    token = int(table.counts.sum(1).argmax())
    n = table.counts[token].double()
    assert close(p[token], (n + 10 * log_pi.exp()) / (n.sum() + 10))


def test_the_prior_counts_each_fact_from_both_sides_plus_one():
    events = log_of([(0, 0, 1, 1), (1, 0, 2, 1), (2, 2, 2, 4)])
    expected = [3 / 12, 1 / 12, 2 / 12] * 2
    assert log_prior(events).exp().tolist() == pytest.approx(expected, abs=1e-15)
    assert math.fsum(log_prior(random_log(3)).exp().tolist()) == pytest.approx(1, abs=1e-12)
    assert log_prior(log_of([])).exp().tolist() == pytest.approx([1 / 6] * 6)


def distance_to_truth(events: int) -> float:
    """Total variation between count reader and planted table, each token weighted by its support."""
    world = simulate(WorldSettings(actors=150, events=events))
    settings = Settings(k=1)
    examples, space = mined(world.events, settings)
    table = CountTable.of(examples, space)
    p = table.smooth(log_prior(world.events), settings.smoothing)[:-1].numpy()
    apart = np.abs(p - world.transition).sum(1) / 2
    return float(np.average(apart, weights=table.support()[:-1].numpy()))


def test_the_count_reader_converges_to_the_planted_table():
    far, nearer, near = (distance_to_truth(n) for n in (8_000, 32_000, 128_000))
    assert far > 1.8 * nearer > 1.8 * 1.8 * near
    assert near < 0.08

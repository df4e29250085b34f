"""Prior and count table: sums, merging, smoothing, and convergence to the world's planted truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bridgemem.evidence.counts as counts_module
from bridgemem.config import Settings
from bridgemem.equations import count_evidence
from bridgemem.events.datasets import CATALOG
from bridgemem.events.log import Vocabulary
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.evidence.counts import CountTable, is_dense, log_prior
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


# ---- dense and sparse ----------------------------------------------------------------------------------------------


def both(monkeypatch: pytest.MonkeyPatch, make: Callable[[], CountTable]) -> tuple[CountTable, CountTable]:
    """The same table, kept dense and kept sparse."""
    made = []
    for most in (2**40, 0):
        monkeypatch.setattr(counts_module, "MOST_DENSE", most)
        made.append(make())
    assert made[0].cells is None
    assert made[1].cells is not None
    return made[0], made[1]


@pytest.mark.parametrize("seed", range(4))
def test_a_sparse_table_answers_bit_for_bit_as_the_dense_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    events = random_log(seed)
    examples, space = mined(events)
    monkeypatch.setattr(counts_module, "_BLOCK", 7)  # so that many parts are summed
    dense, sparse = both(monkeypatch, lambda: CountTable.of(examples, space))
    assert torch.equal(dense.support(), sparse.support())
    p, q = (table.smooth(log_prior(events), 10.0) for table in (dense, sparse))
    assert len(p) == len(q) == space.size + 1
    tokens, asked = torch.arange(space.size + 1)[:, None], torch.arange(space.n_directed)
    assert torch.equal(q[tokens, asked[None]], p[tokens, asked[None]])
    assert torch.equal(q[tokens[:, 0], 1], p[tokens[:, 0], 1])
    state = torch.randint(0, space.size + 1, (50, 8), generator=torch.Generator().manual_seed(seed))
    asked = state[:, 0] % space.n_directed
    for pooling in ("sum", "mean"):
        found = [count_evidence(table, log_prior(events), state, asked, pooling) for table in (p, q)]
        assert torch.equal(*found)
    assert torch.equal(dense.counts.flatten()[sparse.cells], sparse.counts)
    assert dense.counts.sum() == sparse.counts.sum()


def test_sparse_tables_add_up_and_what_comes_to_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "MOST_DENSE", 0)
    examples, space = mined(random_log(2))
    half = len(examples) // 2
    one, two = (CountTable.of(examples.take(torch.arange(*ends)), space) for ends in ((0, half), (half, len(examples))))
    whole = CountTable.of(examples, space)
    assert one.merge(two).equal(whole)
    assert whole.merge(one, -1).equal(two)
    assert whole.merge(whole, -1).equal(CountTable.empty(space))
    assert CountTable.restore(space, whole.tensors()).equal(whole)


@pytest.mark.parametrize("most", [0, 2**40], ids=["sparse", "dense"])
def test_a_widened_table_keeps_every_count_under_its_relation(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "MOST_DENSE", most)
    events = random_log(5)
    examples, space = mined(events)
    more = TokenSpace.of(Settings(), events.n_relations + 3)
    names = Vocabulary("relation", (*events.relations.names, "a", "b", "c"))
    again, _ = mined(replace(events, relations=names))
    assert CountTable.of(examples, space).widened(more).equal(CountTable.of(again, more))


def test_a_table_that_outgrows_the_dense_size_is_sparse_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a refresh meets new relations."""
    events = random_log(5)
    examples, space = mined(events)
    monkeypatch.setattr(counts_module, "MOST_DENSE", space.size * space.n_directed)
    table = CountTable.of(examples, space)
    wide = table.widened(TokenSpace.of(Settings(), events.n_relations + 3))
    assert table.cells is None
    assert wide.cells is not None
    assert wide.counts.sum() == table.counts.sum()
    assert wide.support().sum() == table.support().sum()


def test_the_tables_of_the_benchmarks_are_dense() -> None:
    """Their figures were measured so, and it is quicker; some thousand relations are not."""
    assert is_dense(TokenSpace.of(Settings(), max(b.relations for b in CATALOG.values())))
    assert not is_dense(TokenSpace.of(Settings(), 1_000))

"""Ranks: the counting shortcut equals ranking dense corrected and masked scores one candidate at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bridgemem.events.queries import Queries
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.ranks import answer_ranks, best_first, ranks_of, shared_ranks
from builders import few, logs, random_log

Mask = tuple[Tensor, Tensor]
NOTHING = torch.empty(0, dtype=torch.int64)
NO_DELTA = torch.empty((0, 1), dtype=torch.float64)


def brute_force(log_p, answer, row, candidate, delta, masks) -> Tensor:
    """float64 [filters, corrections, n] by filling in every score and comparing the answer with each."""
    n, entities = log_p.shape
    ranks = torch.empty(len(masks), delta.shape[1], n, dtype=torch.float64)
    for f, (mask_row, mask_candidate) in enumerate(masks):
        for g in range(delta.shape[1]):
            score = log_p.double().clone()
            for i in range(len(row)):
                score[row[i], candidate[i]] += delta[i, g]
            removed = set(zip(mask_row.tolist(), mask_candidate.tolist(), strict=True))
            for q in range(n):
                own = float(score[q, answer[q]])
                rivals = [float(score[q, c]) for c in range(entities) if c != answer[q] and (q, c) not in removed]
                ranks[f, g, q] = 1 + sum(x > own for x in rivals) + sum(x == own for x in rivals) / 2
    return ranks


@st.composite
def problems(draw: st.DrawFn):
    """Scores from a handful of values, so that ties are the rule, with corrections that make and break more of them."""
    n, entities, corrections = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    level = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 1.0])
    log_p = torch.tensor(draw(st.lists(level, min_size=n * entities, max_size=n * entities))).view(n, entities)
    answer = torch.tensor(draw(st.lists(st.integers(0, entities - 1), min_size=n, max_size=n)))
    cells = st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, entities - 1)))
    corrected = sorted(draw(cells))
    shift = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 1e-9])
    size = len(corrected) * corrections
    delta = torch.tensor(draw(st.lists(shift, min_size=size, max_size=size)), dtype=torch.float64)
    row, candidate = torch.tensor(corrected, dtype=torch.int64).view(-1, 2).unbind(1)
    masks = []
    for _ in range(draw(st.integers(1, 3))):
        hidden = sorted(cell for cell in draw(cells) if cell[1] != answer[cell[0]])
        masks.append(torch.tensor(hidden, dtype=torch.int64).view(-1, 2).unbind(1))
    return log_p, answer, row, candidate, delta.view(len(corrected), corrections), masks


@few
@given(problem=problems())
def test_ranks_equal_brute_force(problem):
    assert torch.equal(answer_ranks(*problem), brute_force(*problem))


@few
@given(problem=problems())
def test_ranks_over_shared_scores_equal_brute_force(problem):
    log_p, *rest = problem
    assert torch.equal(shared_ranks(log_p[0].double(), *rest), brute_force(log_p[:1].expand_as(log_p), *rest))


def random_problem(seed: int, n: int = 40, entities: int = 60) -> tuple:
    rng = np.random.default_rng(seed)
    log_p = torch.from_numpy(rng.integers(-6, 6, size=(n, entities)) / 2.0)
    answer = torch.from_numpy(rng.integers(entities, size=n))
    row, candidate = (torch.from_numpy(x) for x in np.nonzero(rng.random((n, entities)) < 0.2))
    delta = torch.from_numpy(rng.integers(-4, 5, size=(len(row), 3)) / 2.0)
    masks = [(NOTHING, NOTHING)]
    for share in (0.05, 0.5):
        hidden = rng.random((n, entities)) < share
        hidden[np.arange(n), answer.numpy()] = False
        masks.append(tuple(torch.from_numpy(x) for x in np.nonzero(hidden)))
    return log_p, answer, row, candidate, delta, masks


@pytest.mark.parametrize("seed", range(3))
def test_ranks_equal_brute_force_on_larger_problems(seed):
    problem = random_problem(seed)
    assert torch.equal(answer_ranks(*problem), brute_force(*problem))


def test_a_constant_scorer_gets_the_middle_rank():
    answer = torch.tensor([0, 3, 8])
    mask = torch.tensor([1, 1, 2]), torch.tensor([0, 1, 7])
    ranks = answer_ranks(torch.zeros(3, 9), answer, NOTHING, NOTHING, NO_DELTA, [(NOTHING, NOTHING), mask])
    assert ranks[:, 0].tolist() == [[5.0, 5.0, 5.0], [5.0, 4.0, 4.5]]


def test_the_best_answer_is_first_and_the_worst_is_last():
    log_p = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    ranks = answer_ranks(log_p, torch.tensor([0, 2]), NOTHING, NOTHING, NO_DELTA, [(NOTHING, NOTHING)])
    assert ranks.flatten().tolist() == [1.0, 3.0]


def test_ranks_do_not_depend_on_order_or_batch():
    log_p, answer, row, candidate, delta, masks = random_problem(7)
    whole = answer_ranks(log_p, answer, row, candidate, delta, masks)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(answer)))
    for q in order.tolist():
        own = row == q
        alone = [(r[r == q] * 0, c[r == q]) for r, c in masks]
        single = answer_ranks(log_p[q : q + 1], answer[q : q + 1], row[own] * 0, candidate[own], delta[own], alone)
        assert torch.equal(single[:, :, 0], whole[:, :, q])


def test_float32_scores_are_ranked_by_their_exact_values():
    log_p = torch.tensor([[0.1, 0.2, 0.30000001192092896]], dtype=torch.float32)
    # in float32 the corrected first candidate would tie with the answer; in float64 it stays after
    row, candidate, delta = torch.tensor([0]), torch.tensor([0]), torch.tensor([[0.2]], dtype=torch.float64)
    ranks = answer_ranks(log_p, torch.tensor([2]), row, candidate, delta, [(NOTHING, NOTHING)])
    assert ranks.item() == 1.0


@few
@given(events=logs(min_size=1), seed=st.integers(0, 10_000), levels=st.sampled_from([1, 2, 5, 10_000]))
def test_reciprocal_ranks_grow_from_raw_to_time_to_static_for_any_scorer(events, seed, levels):
    queries = Queries.of(events)
    filters = Filters(events)
    rng = np.random.default_rng(seed)
    log_p = torch.from_numpy(rng.integers(levels, size=(len(queries), events.n_entities)).astype(np.float32))
    row, candidate = (torch.from_numpy(x) for x in np.nonzero(rng.random(log_p.shape) < 0.3))
    delta = torch.from_numpy(rng.normal(size=(len(row), 2)))
    masks = [filters.mask(name, queries) for name in FILTERS]
    ranks = dict(zip(FILTERS, 1 / answer_ranks(log_p, queries.answer, row, candidate, delta, masks), strict=True))
    assert (ranks["raw"] <= ranks["time"]).all()
    assert (ranks["time"] <= ranks["static"]).all()


@pytest.mark.parametrize("name", FILTERS)
def test_the_answer_is_never_masked_and_nothing_is_masked_twice(name):
    events = random_log(3, n=300)
    queries = Queries.of(events)
    row, candidate = Filters(events).mask(name, queries)
    assert (candidate != queries.answer[row]).all()
    cells = row * events.n_entities + candidate
    assert len(cells.unique()) == len(cells)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_thresholds_between_two_scores_of_a_narrow_type_are_not_rounded(dtype):
    # the answer's score moves by less than the type can tell, onto a neighbour, and to just next to it
    near = torch.tensor(-1.0, dtype=dtype)
    up = near.nextafter(torch.tensor(0.0, dtype=dtype))
    down = near.nextafter(torch.tensor(-2.0, dtype=dtype))
    log_p = torch.stack([near, near, up, down, torch.tensor(-30.0, dtype=dtype)])[None]
    step = float(up) - float(near)
    shifts = [0.0, step / 3, -step / 3, step, step * 1.5, -(float(near) - float(down)), 1e-13, -1e-13, 1e30]
    delta = torch.tensor([shifts], dtype=torch.float64)
    problem = (log_p, torch.tensor([0]), torch.tensor([0]), torch.tensor([0]), delta, [(NOTHING, NOTHING)])
    assert torch.equal(answer_ranks(*problem), brute_force(*problem))


def test_rows_that_are_counted_block_by_block_rank_as_all_at_once(monkeypatch):
    torch.manual_seed(0)
    log_p, answer = torch.randn(50, 30).round(decimals=1), torch.randint(30, (50,))
    row, candidate = (torch.rand(50, 30) < 0.3).nonzero(as_tuple=True)
    delta = torch.randn(len(row), 12, dtype=torch.float64).round(decimals=1)
    problem = (log_p, answer, row, candidate, delta, [(NOTHING, NOTHING)])
    whole = answer_ranks(*problem)
    monkeypatch.setattr("bridgemem.ranking.ranks._BLOCK", 7 * 30)
    assert torch.equal(answer_ranks(*problem), whole)


@pytest.mark.parametrize("top", [1, 3, 10, 40, 99])
def test_the_best_are_those_of_a_stable_sort_of_all(top: int) -> None:
    draw = torch.Generator().manual_seed(top)
    for values in (2, 5, 1000):  # from ties everywhere to hardly any
        score = torch.randint(values, (30, 40), generator=draw).double()
        score[torch.rand(score.shape, generator=draw) < 0.3] = -torch.inf
        score[0] = -torch.inf
        assert torch.equal(best_first(score, top), score.argsort(dim=1, descending=True, stable=True)[:, :top])


@pytest.mark.parametrize("size", [0, 3, 65])
def test_ranks_of_candidates_count_those_that_score_higher(size: int) -> None:
    rng = np.random.default_rng(1)
    # with ties, and with entities that are no candidates
    score = torch.from_numpy(rng.integers(5, size=(4, 90)).astype(float)).masked_fill(
        torch.rand(4, 90) < 0.1, -torch.inf
    )
    chosen = torch.from_numpy(rng.integers(90, size=(4, size)))
    expected = [[1 + int((row > row[c]).sum()) for c in own.tolist()] for row, own in zip(score, chosen, strict=True)]
    assert ranks_of(score, chosen).tolist() == expected

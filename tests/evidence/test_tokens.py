"""Tokens: ids, recency bins at their edges, and states grouped as multisets."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.config import Settings
from bridgemem.evidence.tokens import TokenSpace, distinct_states
from builders import few, token_parts

PAPER = TokenSpace.of(Settings(), n_relations=3)


def encode(space: TokenSpace, relation: int, direction: int, lag: int, found: bool = True) -> int:
    return int(space.encode(*(torch.tensor([x]) for x in (relation, direction, lag, found))))


@pytest.mark.parametrize(
    ("lag", "recency"), [(1, 0), (2, 1), (4, 1), (5, 2), (16, 2), (17, 3), (64, 3), (65, 4), (66, 4), (10_000, 4)]
)
def test_recency_bins_end_where_the_paper_says(lag, recency):
    assert encode(PAPER, 0, 0, lag) == recency


def test_every_direction_relation_and_bin_has_its_own_id():
    lags = (1, 2, 5, 17, 65)
    ids = [encode(PAPER, r, d, lag) for d in (0, 1) for r in range(3) for lag in lags]
    assert ids == list(range(PAPER.size))
    assert encode(PAPER, 2, 1, 65, found=False) == PAPER.pad == PAPER.size
    assert [encode(PAPER, r, d, lags[b]) for d, r, b in token_parts(PAPER)] == ids


def test_without_directions_both_orientations_share_a_token():
    space = TokenSpace.of(Settings(directions=False), 3)
    assert encode(space, 2, 1, 3) == encode(space, 2, 0, 3) == encode(PAPER, 2, 0, 3)


states = st.integers(1, 5).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 4), min_size=k, max_size=k), min_size=1, max_size=30)
)


@few
@given(rows=states)
def test_states_are_equal_exactly_when_their_multisets_are(rows):
    first, group = distinct_states(torch.tensor(rows))
    for i, row in enumerate(rows):
        assert Counter(rows[first[group[i]]]) == Counter(row)
    assert len(first) == len({tuple(sorted(row)) for row in rows})
    assert len(group) == len(rows)


def test_the_order_of_events_does_not_split_a_state():
    first, group = distinct_states(torch.tensor([[3, 1, 9], [9, 3, 1], [1, 1, 9]], dtype=torch.int16))
    assert len(first) == 2
    assert group[0] == group[1] != group[2]


def test_grouping_stays_exact_when_codes_collide(monkeypatch):
    def useless(low: int, high: int, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int64)

    monkeypatch.setattr(torch, "randint", useless)
    tokens = torch.tensor([[0, 1], [1, 0], [2, 2]])
    first, group = distinct_states(tokens)
    assert torch.equal(tokens[first][group].sort(dim=1).values, tokens.sort(dim=1).values)


def test_no_states_make_no_groups():
    first, group = distinct_states(torch.empty((0, 8), dtype=torch.int64))
    assert len(first) == len(group) == 0

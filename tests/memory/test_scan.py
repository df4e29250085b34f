"""The kernel over blocks: the same as walking the log, wherever the blocks are cut, with a carry that stays small."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import DataError
from bridgemem.events.log import EventLog
from bridgemem.memory.dyads import pair_rows
from bridgemem.memory.scan import PairScan
from builders import few, logs, random_log

State = list[tuple[int, int, int]]


def sorted_rows(events: EventLog) -> list[np.ndarray]:
    columns = pair_rows(events)
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def slow_states(columns: list[np.ndarray], k: int, window: int) -> dict[int, State]:
    """(relation, direction, lag) of the last K strictly earlier rows of each row's pair, newest first."""
    rows = list(zip(*(c.tolist() for c in columns), strict=True))
    found = {}
    for i, (pair, step, _, _) in enumerate(rows):
        past = [(r, d, step - s) for p, s, r, d in rows[:i] if p == pair and s < step]
        state = [event for event in past[::-1][:k] if not window or event[2] <= window]
        if state:
            found[i] = state
    return found


def states_of(columns: list[np.ndarray], k: int, window: int, cuts: list[int]) -> dict[int, State]:
    scan = PairScan(k, window)
    found = {}
    bounds = [0, *sorted(min(cut, len(columns[0])) for cut in cuts), len(columns[0])]
    for start, stop in itertools.pairwise(bounds):
        seen = scan.feed(*(column[start:stop] for column in columns))
        for n, row in enumerate(seen.row.tolist()):
            held = seen.found[n]
            parts = (seen.relation[n][held], seen.direction[n][held], seen.lag[n][held])
            found[start + row] = list(zip(*(p.tolist() for p in parts), strict=True))
    return found


@few
@given(
    events=logs(),
    k=st.integers(1, 9),
    window=st.one_of(st.just(0), st.integers(1, 70)),
    cuts=st.lists(st.integers(0, 96), max_size=12),
)
def test_blocks_cut_anywhere_give_what_walking_the_rows_gives(events, k, window, cuts):
    columns = sorted_rows(events)
    assert states_of(columns, k, window, cuts) == slow_states(columns, k, window)


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 10_000])
def test_every_block_size_gives_the_same(block):
    columns = sorted_rows(random_log(5, n=600))
    n = len(columns[0])
    assert states_of(columns, 8, 10, list(range(block, n, block))) == states_of(columns, 8, 10, [])


def test_a_step_with_more_ties_than_k_shows_its_last_k_to_the_next_step_and_none_to_itself():
    step = np.array([0, 0] + [5] * 50 + [6])
    relation = np.arange(53)
    columns = [np.zeros(53, np.int64), step, relation, np.zeros(53, np.int64)]
    found = states_of(columns, 4, 0, list(range(1, 53)))
    assert all([r for r, _, _ in found[row]] == [1, 0] for row in range(2, 52))
    assert [r for r, _, _ in found[52]] == [51, 50, 49, 48]


def test_the_carry_stays_small_however_long_a_pair_and_a_step_are():
    scan = PairScan(8, 65)
    for at in range(0, 20_000, 1_000):
        step = np.arange(at, at + 1_000) // 5_000
        same = np.zeros(1_000, np.int64)
        scan.feed(same, step, same, same)
        assert len(scan._carry[0]) <= 16


def test_empty_blocks_change_nothing():
    columns = sorted_rows(random_log(6))
    assert states_of(columns, 8, 0, [50, 50, 50, 0, 0]) == states_of(columns, 8, 0, [])


def test_rows_of_a_pair_that_go_back_in_time_are_refused_also_across_blocks():
    pair, zero = np.zeros(2, np.int64), np.zeros(2, np.int64)
    with pytest.raises(DataError, match="order of their steps"):
        PairScan(8, 0).feed(pair, np.array([3, 2]), zero, zero)
    scan = PairScan(8, 0)
    scan.feed(pair, np.array([3, 4]), zero, zero)
    with pytest.raises(DataError, match="order of their steps"):
        scan.feed(pair[:1], np.array([1]), zero[:1], zero[:1])

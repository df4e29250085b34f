"""Timeline, expand and the scan kernel: small pieces that everything sparse is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import DataError
from bridgemem.memory.scan import last_events, tie_bounds
from bridgemem.memory.timeline import Timeline, changes, expand
from builders import few

entries = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 99)), max_size=30)


def built(rows: list[tuple[int, int, int]]) -> Timeline:
    key, step, value = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Timeline.build(key, step, value)


def values(line: Timeline, bounds: tuple[torch.Tensor, torch.Tensor]) -> list[list[int]]:
    return [line.value[start:stop].tolist() for start, stop in zip(*(b.tolist() for b in bounds), strict=True)]


@few
@given(rows=entries, asked=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=6))
def test_before_at_and_ever_equal_a_walk_over_the_entries(rows, asked):
    line = built(rows)
    key, step = (torch.tensor(c) for c in zip(*asked, strict=True))
    by_time = sorted(rows, key=lambda row: (row[0], row[1]))
    assert values(line, line.before(key, step)) == [[v for k, s, v in by_time if k == a and s < t] for a, t in asked]
    assert values(line, line.at(key, step)) == [[v for k, s, v in by_time if k == a and s == t] for a, t in asked]
    assert values(line, line.ever(key)) == [[v for k, _, v in by_time if k == a] for a, _ in asked]
    assert line.step.tolist() == [s for _, s, _ in by_time]


def test_large_keys_and_steps_stay_apart():
    last = 2**31 - 1
    line = built([(2**31, 0, 1), (2**31, last, 2), (2**31 + 1, 0, 3)])
    key, step = torch.tensor([2**31]), torch.tensor([last])
    assert values(line, line.ever(key)) == [[1, 2]]
    assert values(line, line.before(key, step)) == [[1]]
    assert values(line, line.at(key, step)) == [[2]]


def test_the_last_step_of_an_odd_key_is_found():
    last = 2**31 - 1
    line = built([(3, last, 1), (4, 0, 2)])
    assert values(line, line.at(torch.tensor([3, 4]), torch.tensor([last, 0]))) == [[1], [2]]


def test_keys_that_do_not_fit_next_to_a_step_are_refused():
    last = 2**32 - 2
    line = built([(last, 5, 1)])
    assert values(line, line.ever(torch.tensor([last]))) == [[1]]
    with pytest.raises(DataError, match=r"more than 2\^32"):
        built([(last + 1, 5, 1)])


@few
@given(slices=st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 5)), max_size=8))
def test_expand_lists_every_position_of_every_slice(slices):
    start = torch.tensor([s for s, _ in slices], dtype=torch.int64)
    stop = torch.tensor([s + n for s, n in slices], dtype=torch.int64)
    expected = [(i, at) for i, (s, n) in enumerate(slices) for at in range(s, s + n)]
    row, position = expand(start, stop)
    assert list(zip(row.tolist(), position.tolist(), strict=True)) == expected
    sized = expand(start, stop, len(expected))
    assert torch.equal(sized[0], row)
    assert torch.equal(sized[1], position)


def test_changes_marks_the_first_row_of_every_group():
    assert changes(np.array([1, 1, 2, 2, 2]), np.array([0, 0, 0, 3, 3])).tolist() == [True, False, True, True, False]
    assert changes(np.array([], dtype=np.int64)).tolist() == []


def test_rows_of_one_pair_and_step_share_where_their_past_ends():
    pair = np.array([3, 3, 3, 3, 7, 7])
    step = np.array([1, 2, 2, 5, 2, 2])
    first, end = tie_bounds(pair, step)
    assert first.tolist() == [0, 0, 0, 0, 4, 4]
    assert end.tolist() == [0, 1, 1, 3, 4, 4]


def test_the_kernel_is_the_same_for_arrays_and_tensors():
    step = np.array([1, 2, 2, 5, 9, 9, 70])
    first, end, now = np.array([0, 0, 4]), np.array([3, 0, 7]), np.array([5, 1, 75])
    back = np.arange(1, 4)
    arrays = last_events(first, end, now, step, back, 65)
    tensors = last_events(*(torch.from_numpy(x) for x in (first, end, now, step, back)), 65)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert array.tolist() == tensor.tolist()
    position, lag, found = arrays
    assert found.tolist() == [[True, True, True], [False] * 3, [True, False, False]]
    assert position[found].tolist() == [2, 1, 0, 6]
    assert lag[found].tolist() == [3, 3, 4, 5]

"""Calls that are done together: each has its own outcome, and what waits is the next batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from bridgemem.live.together import Together


def test_what_comes_while_work_is_done_is_done_together() -> None:
    going, batches = threading.Event(), list[list[int]]()

    def work(items: Sequence[int]) -> list[int | Exception]:
        batches.append(list(items))
        going.wait(10)
        return [item * item if item else ValueError("nothing") for item in items]

    together = Together(work, "squares", most=3)
    first = together.submit(7)
    while not batches:
        time.sleep(0.001)
    others = [together.submit(item) for item in (1, 0, 2, 3)]
    going.set()
    assert first.result(10) == 49
    assert [future.result(10) for future in (others[0], *others[2:])] == [1, 4, 9]
    with pytest.raises(ValueError, match="nothing"):
        others[1].result(10)
    assert batches == [[7], [1, 0, 2], [3]]


def test_work_that_fails_fails_for_all_of_its_batch_and_for_no_later_one() -> None:
    def work(items: Sequence[int]) -> list[int]:
        return [1 // item for item in items]

    together = Together(work, "division")
    with pytest.raises(ZeroDivisionError):
        together(0)
    assert together(1) == 1


def test_one_who_does_not_wait_any_longer_costs_nothing() -> None:
    going, begun, seen = threading.Event(), threading.Event(), list[int]()

    def work(items: Sequence[int]) -> list[int]:
        begun.set()
        going.wait(10)
        seen.extend(items)
        return list(items)

    together = Together(work, "waiting")
    first = together.submit(1)
    assert begun.wait(10)
    gone, last = together.submit(2), together.submit(3)
    assert gone.cancel()
    going.set()
    assert (first.result(10), last.result(10)) == (1, 3)
    assert seen == [1, 3]


def test_a_batch_waits_for_as_many_as_came_together_before_and_no_longer_than_they_come() -> None:
    going, batches = threading.Event(), list[list[int]]()

    def work(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        going.wait(10)
        return list(items)

    together = Together(work, "patience", patience=0.5)
    first = together.submit(0)
    while not batches:
        time.sleep(0.001)
    several = [together.submit(item) for item in (1, 2, 3)]
    going.set()
    assert [future.result(10) for future in (first, *several)] == [0, 1, 2, 3]
    # three came together: the next ones, one after the other, make a batch of three
    late = []
    for item in (4, 5, 6):
        late.append(together.submit(item))
        time.sleep(0.005)
    assert [future.result(10) for future in late] == [4, 5, 6]
    assert together(7) == 7  # alone after all: it is done when no other has come for a while
    assert together(8) == 8
    began = time.monotonic()
    assert together(9) == 9  # two came alone, so nobody is waited for
    assert time.monotonic() - began < 10
    assert batches[:3] == [[0], [1, 2, 3], [4, 5, 6]]
    assert batches[3:] == [[7], [8], [9]]

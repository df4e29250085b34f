"""DyadMemory: reads equal a slow reference, and growing piece by piece equals building at once."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.memory.dyads import DyadMemory, PairStates
from builders import Row, few, log_of, logs, rows_of

Event = tuple[int, int, int]


def slow_state(rows: list[Row], a: int, c: int, t: int, k: int, window: int, until: int | None = None) -> list[Event]:
    """(relation, direction, lag) of the last K events of (a, c) before t, newest first, by walking the whole log."""
    limit = t if until is None else min(until, t)
    seen = []
    for s, r, o, step in rows:
        if step < limit and (not window or t - step <= window):
            seen += [(r, 0, t - step)] if (s, o) == (a, c) else []
            seen += [(r, 1, t - step)] if (o, s) == (a, c) else []
    return seen[::-1][:k]


def listed(states: PairStates) -> dict[tuple[int, int], list[Event]]:
    """States as plain lists under (row, candidate)."""
    columns = (states.relation, states.direction, states.lag, states.found)
    table = {}
    for i, key in enumerate(zip(states.row.tolist(), states.candidate.tolist(), strict=True)):
        relation, direction, lag, found = (c[i].tolist() for c in columns)
        n = sum(found)
        assert found == [True] * n + [False] * (len(found) - n), "events must come first, the padding last"
        table[key] = list(zip(relation[:n], direction[:n], lag[:n], strict=True))
    return table


def everybody(n: int, steps: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All (actor, candidate, step) combinations."""
    grid = torch.cartesian_prod(torch.arange(n), torch.arange(n), torch.tensor(steps))
    return grid[:, 0], grid[:, 1], grid[:, 2]


reads = {"k": st.integers(1, 9), "window": st.one_of(st.just(0), st.integers(1, 70))}


@few
@given(events=logs(), **reads, steps=st.lists(st.integers(0, 95), min_size=1, max_size=3, unique=True))
def test_read_equals_walking_the_log(events, k, window, steps):
    actor, candidate, step = everybody(events.n_entities, steps)
    found = listed(DyadMemory.build(events).read(actor, candidate, step, k, window))
    rows = rows_of(events)
    for i, (a, c, t) in enumerate(zip(actor.tolist(), candidate.tolist(), step.tolist(), strict=True)):
        expected = slow_state(rows, a, c, t, k, window)
        assert found.get((i, c), []) == expected
        assert bool(expected) == ((i, c) in found), "requests without any event are left out"


@few
@given(events=logs(), **reads, t=st.integers(0, 95), until=st.integers(0, 110))
def test_partners_are_all_candidates_seen_in_the_window(events, k, window, t, until):
    actor = torch.arange(events.n_entities)
    step, limit = torch.full_like(actor, t), torch.full_like(actor, until)
    states = DyadMemory.build(events).partners(actor, step, k, window, until=limit)
    rows = rows_of(events)
    expected = {
        (a, c): state
        for a in range(events.n_entities)
        for c in range(events.n_entities)
        if (state := slow_state(rows, a, c, t, k, window, until))
    }
    assert listed(states) == expected
    keys = list(zip(states.row.tolist(), states.candidate.tolist(), strict=True))
    assert keys == sorted(expected), "ordered by row and candidate"


def test_events_of_the_asked_step_are_never_seen():
    memory = DyadMemory.build(log_of([(0, 0, 1, 3), (0, 1, 1, 4), (1, 2, 0, 4)]))
    one = torch.tensor([0]), torch.tensor([1])
    assert listed(memory.read(*one, torch.tensor([4]), 8, 0)) == {(0, 1): [(0, 0, 1)]}
    assert listed(memory.read(*one, torch.tensor([3]), 8, 0)) == {}
    assert listed(memory.read(*one, torch.tensor([5]), 8, 0)) == {(0, 1): [(2, 1, 1), (1, 0, 1), (0, 0, 2)]}


def test_the_later_event_of_a_step_is_the_newer_one():
    memory = DyadMemory.build(log_of([(0, 2, 1, 3), (1, 0, 0, 3), (0, 1, 1, 3)]))
    newest_first = [(1, 0, 1), (0, 1, 1), (2, 0, 1)]
    states = memory.read(torch.tensor([0]), torch.tensor([1]), torch.tensor([4]), 8, 0)
    assert listed(states)[0, 1] == newest_first
    mirrored = memory.read(torch.tensor([1]), torch.tensor([0]), torch.tensor([4]), 8, 0)
    assert listed(mirrored)[0, 0] == [(r, 1 - d, lag) for r, d, lag in newest_first]


def test_the_window_includes_its_last_step():
    memory = DyadMemory.build(log_of([(0, 0, 1, 10)]))
    one = torch.tensor([0]), torch.tensor([1])
    assert len(memory.read(*one, torch.tensor([75]), 8, 65).row) == 1
    assert len(memory.read(*one, torch.tensor([76]), 8, 65).row) == 0
    assert len(memory.read(*one, torch.tensor([76]), 8, 0).row) == 1


def test_unknown_pairs_and_an_empty_memory_have_no_state():
    request = torch.tensor([0, 5]), torch.tensor([5, 0]), torch.tensor([9, 9])
    assert len(DyadMemory.build(log_of([(0, 0, 1, 1)])).read(*request, 8, 0).row) == 0
    empty = DyadMemory.build(log_of([]))
    assert len(empty.read(*request, 8, 65).row) == 0
    assert len(empty.partners(request[0], request[2], 8, 65).row) == 0

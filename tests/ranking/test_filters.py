"""Filters and queries: which true rivals leave the ranking, on a case made by hand and against a slow walk."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from bridgemem.events.queries import Queries
from bridgemem.ranking.filters import Filters
from builders import few, log_of, logs, rows_of

EVENTS = log_of([(0, 0, 1, 1), (0, 0, 2, 1), (0, 0, 2, 1), (0, 0, 3, 5), (0, 1, 4, 1), (5, 0, 1, 1)])


def masked(filters: Filters, name: str, actor: int, relation: int, step: int, answer: int) -> set[int]:
    query = Queries(*(torch.tensor([x]) for x in (actor, relation, step, answer)))
    return set(filters.mask(name, query)[1].tolist())


def test_each_filter_removes_what_it_says():
    filters = Filters(EVENTS)
    asked = {"actor": 0, "relation": 0, "step": 1, "answer": 1}
    assert masked(filters, "raw", **asked) == set()
    assert masked(filters, "time", **asked) == {2}
    assert masked(filters, "static", **asked) == {2, 3}


def test_the_other_direction_has_its_own_answers():
    filters = Filters(EVENTS)
    asked = {"actor": 1, "relation": 3, "step": 1, "answer": 0}
    assert masked(filters, "time", **asked) == {5}
    assert masked(filters, "static", **asked) == {5}


def test_a_step_without_facts_removes_nothing_by_time():
    filters = Filters(EVENTS)
    asked = {"actor": 0, "relation": 0, "step": 9, "answer": 1}
    assert masked(filters, "time", **asked) == set()
    assert masked(filters, "static", **asked) == {2, 3}


def test_facts_outside_the_filter_are_not_removed():
    before = Filters(EVENTS.prefix(5))
    assert masked(before, "static", actor=0, relation=0, step=5, answer=1) == {2}


@few
@given(events=logs())
def test_masks_equal_a_slow_walk(events):
    queries, filters, R = Queries.of(events), Filters(events), events.n_relations
    facts = [f for s, r, o, t in rows_of(events) for f in ((s, r, o, t), (o, r + R, s, t))]
    found = {name: [set() for _ in range(len(queries))] for name in ("time", "static")}
    for name, sets in found.items():
        for row, candidate in zip(*(x.tolist() for x in filters.mask(name, queries)), strict=True):
            sets[row].add(candidate)
    for i, (a, r, answer, t) in enumerate(facts):
        rivals = [(c, step) for a2, r2, c, step in facts if (a2, r2) == (a, r) and c != answer]
        assert found["static"][i] == {c for c, _ in rivals}
        assert found["time"][i] == {c for c, step in rivals if step == t}


def test_a_filter_needs_answers():
    with pytest.raises(ValueError, match="answers"):
        Filters(EVENTS).mask("time", Queries.of(EVENTS).unanswered())


def test_every_fact_asks_for_both_of_its_ends():
    queries = Queries.of(log_of([(0, 1, 2, 4), (3, 0, 3, 7)]))
    columns = (queries.actor, queries.relation, queries.step, queries.answer)
    asked = list(zip(*(c.tolist() for c in columns), strict=True))
    assert asked == [(0, 1, 4, 2), (2, 4, 4, 0), (3, 0, 7, 3), (3, 3, 7, 3)]


def test_batches_hold_every_query_once_in_order():
    queries = Queries.of(EVENTS)
    parts = list(queries.batches(5))
    assert [len(p) for p in parts] == [5, 5, 2]
    for name in ("actor", "relation", "step", "answer"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(queries, name))
    assert all(p.unanswered().answer is None for p in parts)

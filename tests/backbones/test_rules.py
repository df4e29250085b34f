"""Rule mining: walks obey time, confidences equal those of an exhaustive search, and planted rules are found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bridgemem.backbones.rules import SMOOTHING, Filed, Graph, mine, sample, walk
from builders import log_of, random_log, rows_of
from precision import close

Edge = tuple[int, int, int, int]


def edges_of(events) -> set[Edge]:
    """Both directions of every fact, each once."""
    R = events.n_relations
    return {side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, (r + R) % (2 * R), s, t))}


def groundings(edges: set[Edge], body: tuple[int, ...]) -> list[tuple[Edge, ...]]:
    """Every way to walk a body along edges that are not earlier than the one before."""
    found = [(e,) for e in edges if e[1] == body[0]]
    for relation in body[1:]:
        found = [
            (*path, e)
            for path in found
            for e in edges
            if e[1] == relation and e[0] == path[-1][2] and e[3] >= path[-1][3]
        ]
    return found


def possible_rules(edges: set[Edge], R: int, length: int) -> set[tuple[int, ...]]:
    """(head, *body) of every walk back in time that the recipe allows, by exhaustive search."""

    def inverse(e: Edge) -> Edge:
        return (e[2], (e[1] + R) % (2 * R), e[0], e[3])

    rules = set()
    for head in edges:
        paths: list[tuple[Edge, ...]] = [(head,)]
        for hop in range(1, length + 1):
            paths = [
                (*path, e)
                for path in paths
                for e in edges
                if e[0] == path[-1][2]
                and (e[3] < head[3] if hop == 1 else e[3] <= path[-1][3] and e != inverse(path[-1]))
                and (hop < length or e[2] == head[0])
            ]
        for path in paths:
            if len({e[0] for e in path}) == len(path):
                rules.add((head[1], *(inverse(e)[1] for e in reversed(path[1:]))))
    return rules


@pytest.mark.parametrize("length", [1, 2, 3])
def test_walks_find_exactly_the_rules_that_time_allows(length):
    events = random_log(2, n=30, n_entities=6, n_relations=2, steps=6)
    head, body = walk(Graph(events), length, 20_000, np.random.default_rng(0))
    found = {(int(h), *map(int, b)) for h, b in zip(head, body, strict=True)}
    expected = possible_rules(edges_of(events), events.n_relations, length)
    assert len(expected) > 4
    assert found == expected


def test_recent_edges_are_likelier_by_the_exponential_of_their_lag():
    step = np.array([7, 5, 6, 6, 9])
    filed = Filed(np.array([3, 3, 3, 3, 8]), step)
    start, stop = filed.before(np.full(40_000, 3), 8)
    drawn = filed.order[filed.draw_recent(start, stop, np.random.default_rng(1))]
    weight = np.exp(np.array([7.0, 5, 6, 6, -np.inf]))
    assert close(np.bincount(drawn, minlength=5) / 40_000, weight / weight.sum(), 0.01)


def test_a_key_far_away_in_time_or_number_does_not_disturb_the_draw():
    # the same three lags under the first and the last of many keys, whose steps reach over many thousands
    key = np.concatenate([np.arange(50_000), [0, 0, 49_999, 49_999]])
    step = np.concatenate([np.full(50_000, 9_000), [8_999, 0, 8_998, 1]])
    filed = Filed(key, step)
    rng = np.random.default_rng(1)
    for wanted, share in ((0, 1 / (1 + np.exp(-1))), (49_999, 1 / (1 + np.exp(-2)))):
        start, stop = filed.before(np.full(20_000, wanted), 9_001)
        drawn = filed.order[filed.draw_recent(start, stop, rng)]
        assert set(key[drawn]) == {wanted}
        assert np.mean(step[drawn] == 9_000) == pytest.approx(share, abs=0.015)


def test_slices_are_strict_and_empty_for_unknown_keys():
    filed = Filed(np.array([4, 2, 4, 4]), np.array([5, 1, 7, 5]))

    def steps(slices):
        return [sorted(np.array([5, 1, 7, 5])[filed.order[a:b]].tolist()) for a, b in zip(*slices, strict=True)]

    key = np.array([4, 4, 4, 2, 3, 9])
    assert steps(filed.before(key, np.array([5, 6, 8, 1, 9, 9]))) == [[], [5, 5], [5, 5, 7], [], [], []]
    assert steps(filed.since(key, np.array([5, 6, 8, 1, 0, 0]))) == [[5, 5, 7], [7], [], [1], [], []]


def test_sampled_bodies_are_the_distinct_groundings():
    events = random_log(5, n=30, n_entities=5, n_relations=2, steps=10)
    bodies = list(itertools.product(range(4), repeat=2))
    found = sample(Graph(events), np.array([(*b, -1) for b in bodies]), 3000, np.random.default_rng(0))
    for row, body in enumerate(bodies):
        expected = sorted((path[0][0], path[-1][2], path[-1][3]) for path in groundings(edges_of(events), body))
        at = found.distinct[row]
        columns = (found.first[row, at], found.last[row, at], found.step[row, at])
        assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == expected, body


def test_confidences_equal_an_exhaustive_count():
    events = random_log(5, n=30, n_entities=5, n_relations=2, steps=10)
    rules = mine(events, longest=2, walks=2000, samples=3000, min_confidence=0.0, min_support=1)
    edges = edges_of(events)
    expected = {}
    for length in (1, 2):
        for head, *body in possible_rules(edges, 2, length):
            paths = groundings(edges, tuple(body))
            hits = sum(any(e[:3] == (p[0][0], head, p[-1][2]) and e[3] > p[-1][3] for e in edges) for p in paths)
            if hits:
                expected[head, *body, *[-1] * (2 - length)] = hits / (len(paths) + SMOOTHING)
    found = {(int(h), *map(int, b)): c for h, b, c in zip(rules.head, rules.body, rules.confidence, strict=True)}
    assert len(found) > 10
    assert found == pytest.approx(expected)


def planted(repeats: int = 30) -> list[Edge]:
    """Relation 1 answers relation 0 with roles swapped; relation 2 closes 0 and 0; between ever new entities."""
    rows = []
    for i in range(repeats):
        a, b, c = 3 * i, 3 * i + 1, 3 * i + 2
        rows += [
            (a, 0, b, 5 * i),
            (b, 0, c, 5 * i + 1),
            (b, 1, a, 5 * i + 2),
            (c, 1, b, 5 * i + 3),
            (a, 2, c, 5 * i + 4),
        ]
    return rows


def test_planted_rules_come_first_with_their_confidence():
    events = log_of(planted(), n_entities=90)
    rules = mine(events, longest=2)
    swapped, closed = (rules.head == 1), (rules.head == 2)
    # b did 1 to a because a did 0 to b: all 60 bodies hold
    assert rules.body[swapped][0].tolist() == [3, -1]
    assert rules.confidence[swapped][0] == pytest.approx(60 / 63)
    assert rules.body[closed].tolist()[:1] == [[0, 0]]
    assert rules.confidence[closed][0] == pytest.approx(30 / 33)


def test_rules_are_ordered_cut_and_above_their_floors():
    events = random_log(1, n=300)
    every = mine(events, min_confidence=0.0, min_support=1)
    few = mine(events, min_confidence=0.1, min_support=5, kept=3)
    for rules in (every, few):
        for head in np.unique(rules.head):
            confidence = rules.confidence[rules.head == head]
            assert (np.diff(confidence) <= 0).all()
    assert (np.diff(few.head) >= 0).all()
    assert np.bincount(few.head).max() == 3
    assert few.confidence.min() > 0.1
    first = every.confidence[np.unique(every.head, return_index=True)[1]]
    assert set(few.confidence.tolist()) <= set(every.confidence.tolist())
    assert few.confidence.max() <= first.max()


def test_mining_is_decided_by_the_seed():
    events = random_log(3, n=300)
    one, again, other = (mine(events, walks=20, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.body, again.body)
    assert np.array_equal(one.confidence, again.confidence)
    assert not (len(one) == len(other) and np.array_equal(one.confidence, other.confidence))


def test_bodies_that_do_not_fit_at_once_are_weighed_the_same(monkeypatch):
    events = random_log(5, n=30, n_entities=5, n_relations=2, steps=10)
    at_once = mine(events, longest=2, walks=500, samples=2000)
    monkeypatch.setattr("bridgemem.backbones.rules.CHUNK", 6000)
    in_parts = mine(events, longest=2, walks=500, samples=2000)
    assert len(at_once) > 10
    assert np.array_equal(at_once.body, in_parts.body)
    assert close(at_once.confidence, in_parts.confidence)


@pytest.mark.parametrize("rows", [[(0, 0, 1, 1)], [(0, 0, 0, 1), (0, 0, 0, 2)], [(0, 0, 1, 1), (2, 1, 3, 1)]])
def test_a_log_without_any_rule_gives_none(rows):
    rules = mine(log_of(rows))
    assert len(rules) == 0
    assert rules.body.shape == (0, 3)


def test_facts_told_twice_in_a_step_count_once():
    rows = planted(5)
    one, two = (mine(log_of(r, n_entities=90), longest=2) for r in (rows, [*rows, *rows]))
    assert np.array_equal(one.confidence, two.confidence)

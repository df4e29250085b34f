"""Tallies: counts, first and last steps and levels of any key, strictly before a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bridgemem.events.log import EventLog
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import DECAYS, PastTallies, Tallied
from builders import base_and_delta, random_log, rows_of, together

KINDS = ("pair", "link", "triple", "actor", "role", "role_relation", "relation")


def asked(events: EventLog, seed: int) -> list[torch.Tensor]:
    """Keys of what happened and of what may never have, at many steps."""
    rng = np.random.default_rng(seed)
    e, r = events.n_entities, events.n_relations
    columns = rng.integers(0, [[e], [r], [e], [events.end + 3]], (4, 300))
    return [torch.from_numpy(column) for column in columns]


def slow(events: EventLog, kind: str, key: tuple[int, int, int], step: int) -> list[int]:
    """The steps of the events of a key before a step, by hand."""
    subject, relation, other = key
    found = []
    for s, r, o, t in rows_of(events):
        same = {
            "pair": {s, o} == {subject, other},
            "link": (s, o) == (subject, other),
            "triple": (s, r, o) == (subject, relation, other),
            "actor": subject in (s, o),
            "relation": r == relation,
        }.get(kind)
        if kind == "role":  # as subject (0) or as object (1)
            same = (s, o)[relation] == subject
        if kind == "role_relation":
            same = (s, r) == (subject, relation)
        if same and t < step:
            found.append(t)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tallies_are_those_of_the_events_before_the_step(kind: str) -> None:
    events = random_log(3)
    subject, relation, other, step = asked(events, 1)
    if kind == "role":
        relation = relation % 2
    found = PastTallies(Past(events)).before(kind, subject, relation, other, step)
    for row in range(len(step)):
        at = int(step[row])
        steps = slow(events, kind, (int(subject[row]), int(relation[row]), int(other[row])), at)
        assert int(found.events[row]) == len(steps)
        if steps:
            assert (int(found.first[row]), int(found.last[row])) == (min(steps), max(steps))
        levels = [sum(np.exp(-(at - t) / decay) for t in steps) for decay in DECAYS]
        np.testing.assert_allclose(found.level[row].numpy(), levels, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_base_with_a_delta_is_tallied_as_one_log(kind: str, seed: int) -> None:
    base, delta = base_and_delta(seed)
    columns = asked(together(base, delta), seed)
    if kind == "role":
        columns[1] = columns[1] % 2
    whole, parts = (PastTallies(past) for past in (Past(together(base, delta)), Past(base).with_delta(delta)))
    one, two = (made.before(kind, *columns) for made in (whole, parts))
    assert_same(one, two)
    assert torch.equal(whole.next(kind, *columns), parts.next(kind, *columns))


def assert_same(one: Tallied, two: Tallied) -> None:
    for name in ("events", "first", "last"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    torch.testing.assert_close(one.level, two.level, rtol=1e-12, atol=1e-12)


def test_all_relations_of_a_link_and_of_an_actor_are_found() -> None:
    events = random_log(5)
    tallies = PastTallies(Past(events))
    subject, _, other, step = asked(events, 2)
    row, relation, found = tallies.relations_of("triple", subject, other, step)
    assert_same(found, tallies.before("triple", subject[row], relation, other[row], step[row]))
    every = torch.arange(events.n_relations).repeat(len(step))
    rows = torch.arange(len(step)).repeat_interleave(events.n_relations)
    known = tallies.before("triple", subject[rows], every, other[rows], step[rows]).events > 0
    assert len(row) == int(known.sum())
    row, relation, found = tallies.relations_of("role_relation", subject, subject, step)
    assert_same(found, tallies.before("role_relation", subject[row], relation, subject[row], step[row]))


def test_the_next_event_is_at_or_after_the_step() -> None:
    events = random_log(7)
    subject, relation, other, step = asked(events, 3)
    found = PastTallies(Past(events)).next("pair", subject, relation, other, step)
    rows = rows_of(events)
    for row in range(len(step)):
        pair, at = {int(subject[row]), int(other[row])}, int(step[row])
        steps = [t for s, _, o, t in rows if {s, o} == pair and t >= at]
        assert int(found[row]) == min(steps, default=2**31 - 1)

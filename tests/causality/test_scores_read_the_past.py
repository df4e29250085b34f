"""Causality of scores: whatever happens at or after t, a forecast for t stays the same bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.recurrence import Recurrence, RecurrenceDyadic
from bridgemem.backbones.scorer import score_queries
from bridgemem.backbones.stream import Stream
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import Choice, Scoring, replay
from builders import SMALL_READER, futures, log_of, random_log, random_transitions, rows_of, small_world, tiny_cenet

CHOICES = [Choice(1.0, "uncertain", 100.0), Choice(4.0, "none", 30.0)]
NOW = 50
FUTURES = ("deleted", "half deleted", "permuted", "corrupted", "moved to now")


@cache
def transitions() -> Transitions:
    return random_transitions(small_world().events.prefix(NOW))


@cache
def queries() -> Queries:
    return Queries.of(small_world().events.between(NOW, NOW + 1))


@cache
def tiny_stream() -> Stream:
    return Stream.fit(small_world().dataset, replace(Stream.default, width=16, k=8, batch=128))


def backbone(name: str) -> Backbone:
    if name in ("cenet", "stream"):
        return tiny_cenet() if name == "cenet" else tiny_stream()
    return {"recurrence": Recurrence, "recurrence-dyadic": RecurrenceDyadic}[name].fit(small_world().dataset)


def same(a: Evidence, b: Evidence) -> bool:
    names = ("row", "candidate", "a_ct", "a_nn", "support", "tokens", "lag")
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in names)


def with_event(events: EventLog, event: tuple[int, int, int, int]) -> EventLog:
    return log_of([*rows_of(events), event], events.n_entities, events.n_relations)


@pytest.mark.parametrize("future", FUTURES)
def test_evidence_does_not_see_the_future(future):
    events = small_world().events
    expected = transitions().evidence(queries(), Past(events))
    other = futures(events, NOW)[future]
    assert other.fingerprint != events.fingerprint
    assert same(transitions().evidence(queries(), Past(other)), expected)


@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize("name", ["recurrence", "recurrence-dyadic", "cenet", "stream"])
def test_backbones_do_not_see_the_future(name, future):
    events = small_world().events
    expected = score_queries(backbone(name), queries(), Past(events))
    found = score_queries(backbone(name), queries(), Past(futures(events, NOW)[future]))
    assert torch.equal(found.log_p, expected.log_p)
    assert torch.equal(found.uncertainty, expected.uncertainty)


@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize("name", ["recurrence-dyadic", "cenet"])
def test_replay_does_not_see_the_future(name, future):
    events = small_world().events
    # the filters judge the ranking and do know the truth; they stay the same, the history does not
    filters = Filters(events)
    expected = replay(Scoring(backbone(name), Past(events), transitions(), choices=CHOICES), queries(), filters=filters)
    other = Past(futures(events, NOW)[future])
    found = replay(Scoring(backbone(name), other, transitions(), choices=CHOICES), queries(), filters=filters)
    assert np.array_equal(found.ranks, expected.ranks)
    assert np.array_equal(found.uncertainty, expected.uncertainty)
    assert np.array_equal(found.answer_lag, expected.answer_lag, equal_nan=True)
    assert np.array_equal(found.answer_support, expected.answer_support)
    assert np.array_equal(found.triple_seen, expected.triple_seen)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [0, 65])
def test_evidence_at_every_step_of_random_logs_is_causal(seed, window):
    events = random_log(seed, n=120, steps=20)
    fitted = random_transitions(events.prefix(8), replace(SMALL_READER, window=window), seed)
    for now in range(8, 20, 3):
        asked = Queries.of(events.between(now, now + 1))
        expected = fitted.evidence(asked, Past(events))
        for what, other in futures(events, now, seed).items():
            assert same(fitted.evidence(asked, Past(other)), expected), what


def unseen_candidates() -> tuple[int, int]:
    """Two actors of the world that never meet."""
    events = small_world().events
    seen = {(s, o) for s, _, o, _ in rows_of(events)}
    pairs = ((a, c) for a in range(events.n_entities) for c in range(a))
    return next((a, c) for a, c in pairs if (a, c) not in seen and (c, a) not in seen)


@pytest.mark.parametrize("name", ["recurrence", "recurrence-dyadic", "cenet", "stream"])
def test_an_answer_planted_at_the_asked_step_changes_nothing(name):
    events = small_world().events
    actor, answer = unseen_candidates()
    asked = Queries(*(torch.tensor([x]) for x in (actor, 3, NOW)))
    base = Past(events)
    now = Past(with_event(events, (actor, 3, answer, NOW)))
    just_before = Past(with_event(events, (actor, 3, answer, NOW - 1)))
    expected = score_queries(backbone(name), asked, base)
    planted = score_queries(backbone(name), asked, now)
    assert torch.equal(planted.log_p, expected.log_p)
    assert torch.equal(planted.uncertainty, expected.uncertainty)
    assert same(transitions().evidence(asked, now), transitions().evidence(asked, base))

    known = score_queries(backbone(name), asked, just_before)
    assert not torch.equal(known.log_p, expected.log_p), "one step earlier it must be seen"
    assert known.log_p[0, answer] > expected.log_p[0, answer]
    evidence = transitions().evidence(asked, just_before)
    assert answer in evidence.candidate.tolist()
    assert answer not in transitions().evidence(asked, base).candidate.tolist()
    of_answer = (evidence.candidate == answer).nonzero().item()
    assert evidence.lag[of_answer] == 1


@pytest.mark.parametrize("name", ["recurrence", "recurrence-dyadic", "cenet", "stream"])
def test_growing_the_log_step_by_step_equals_reading_the_whole(name):
    """A forecaster that lives through the test period says the same as one that replays it from the full log."""
    world = small_world()
    model, whole = backbone(name), Past(world.events)
    base = Past(world.events.prefix(NOW))
    for step in range(NOW, world.events.end):
        today = world.events.between(step, step + 1)
        asked = Queries.of(today)
        # the past grows by a delta; a rebuild must not be needed
        live = base.with_delta(world.events.between(NOW, step))
        expected, found = (score_queries(model, asked, past) for past in (whole, live))
        assert torch.equal(found.log_p, expected.log_p)
        assert torch.equal(found.uncertainty, expected.uncertainty)
        assert same(transitions().evidence(asked, live), transitions().evidence(asked, whole))

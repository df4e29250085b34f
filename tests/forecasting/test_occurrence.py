"""Occurrence: hazards that tell whether and when, fitted on sampled keys of known weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch

from bridgemem.events.clock import DAY, Clock
from bridgemem.forecasting.occurrence import (
    KINDS,
    PHASES,
    SPANS,
    WINDOWS,
    HazardNet,
    Keys,
    Kind,
    Occurrence,
    OccurrenceSettings,
    Watched,
    exposure,
    features,
    fit_hazard,
    outcomes,
    sampled_outcomes,
    seen_keys,
    wholes,
    width_of,
)
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies, Tallies
from bridgemem.memory.tally import DECAYS
from builders import log_of, random_log, small_world

HOUR = DAY // 24
QUICK = OccurrenceSettings(hidden=16, rows=4000, dates=8, epochs=4)


def fitted(past: Past, settings: OccurrenceSettings, *kinds: Kind) -> Occurrence:
    tallies = PastTallies(past)
    watched = [Watched.of(sampled_outcomes(kind, past, settings, 0), tallies) for kind in kinds or KINDS]
    return Occurrence(settings, {one.kind: fit_hazard(one, settings) for one in watched})


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_grow_with_the_horizon(kind: str) -> None:
    past = Past(small_world().events)
    tallies = PastTallies(past)
    keys = seen_keys(kind, tallies.parts[0], 55)
    p = fitted(past, QUICK).probability(keys, tallies, (1, 2, 3, 7, 30, 1000))
    assert (p.diff(dim=1) >= 0).all()
    assert ((p > 0) & (p <= 1)).all()
    assert features(keys, tallies).shape[1] == width_of(kind)


def test_survived_steps_and_the_event_lie_in_their_spans() -> None:
    after, known = torch.tensor([1, 4, 9, 2**31 - 1]), torch.tensor([10, 10, 5, 6])
    survived, event = exposure(after, known)
    assert event.sum(1).tolist() == [1, 1, 0, 0]  # the last two had not come when the events ended
    assert survived.sum(1).tolist() == [0, 3, 5, 6]
    assert int(event[1].argmax()) == SPANS.index(3)
    assert survived[3].tolist()[:4] == [1, 1, 2, 2]


def test_a_sample_stands_for_all_keys() -> None:
    past = Past(random_log(1, n=3000, n_entities=60, steps=80))
    whole, some = (outcomes("pair", past, [60, 70], most, 0) for most in (10**6, 200))
    assert len(some) < len(whole)
    assert float(some.weight.sum()) == pytest.approx(len(whole), rel=1e-6)
    share = float((whole.after <= 5).float().mean())
    assert float(((some.after <= 5) * some.weight).sum() / some.weight.sum()) == pytest.approx(share, abs=0.06)


def test_what_is_learned_before_a_step_does_not_depend_on_later_events() -> None:
    events = random_log(1, n=3000, n_entities=60, steps=80)
    whole, part = Past(events), Past(events.prefix(60))
    for kind in KINDS:
        one, two = sampled_outcomes(kind, whole, QUICK, 0, 60), sampled_outcomes(kind, part, QUICK, 0)
        assert torch.equal(features(one.keys, PastTallies(whole)), features(two.keys, PastTallies(part)))
        assert torch.equal(one.weight, two.weight)
        for first, second in zip(exposure(one.after, one.known), exposure(two.after, two.known), strict=True):
            assert torch.equal(first, second)


def test_events_of_the_last_steps_are_counted() -> None:
    tallies = PastTallies(Past(log_of([(0, 0, 1, step) for step in (1, 5, 8, 9, 9)], 2, 1)))
    zero, one = torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    found = features(Keys("pair", zero, zero, one, torch.tensor([10, 9])), tallies)
    assert WINDOWS == (1, 2, 3, 7, 14)
    assert found[:, 8:13].expm1().round().tolist() == [[2, 3, 3, 4, 5], [1, 1, 1, 2, 3]]


def phases(steps: Iterable[int], step: int, unit: int = DAY) -> list[float]:
    """What is read of the rhythm of (0, 0, 1) that occurred at some steps."""
    zero = torch.zeros(1, dtype=torch.int64)
    keys = Keys("triple", zero, zero, zero + 1, zero + step)
    events = replace(log_of([(0, 0, 1, at) for at in steps], 2, 1), clock=Clock("date", 0, unit))
    at = 4 + len(DECAYS) + len(WINDOWS)
    return features(keys, PastTallies(Past(events)))[0, at : at + len(PHASES)].tolist()


def test_the_rhythm_of_a_key_is_read_from_its_last_eight_weeks() -> None:
    weekly = range(3, 90, 7)
    assert PHASES == ((0, 1), (1, 2), (2, 4), (4, 7))
    assert phases(weekly, 80) == [1, 0, 0, 0]  # due at this very step
    assert phases(weekly, 79) == [0, 1, 0, 0]
    assert phases(weekly, 77) == [0, 0, 1, 0]
    assert phases(weekly, 81) == [0, 0, 0, 1]
    assert phases(weekly, 10) == [1 / 8, 0, 0, 0]  # it came once before
    assert phases([3], 80) == [0, 0, 0, 0]


def test_where_steps_are_shorter_than_a_day_the_rhythm_is_that_of_the_day() -> None:
    daily = range(9, 500, 24)
    assert phases(daily, 9 + 24 * 10, HOUR) == [1, 0, 0, 0]
    assert phases(daily, 8 + 24 * 10, HOUR) == [0, 1, 0, 0]
    assert phases(daily, 9 + 24 * 10 - 7, HOUR) == [0, 0, 0, 0]  # seven hours later
    assert phases(range(9, 1000, 96), 9 + 96 * 9, HOUR // 4) == [1, 0, 0, 0]
    assert phases(range(7, 10 * DAY, DAY), 7 + 9 * DAY, 1) == [1, 0, 0, 0]  # a second each


def test_what_comes_every_week_is_told_apart_from_what_comes_as_often_by_chance() -> None:
    """Sixty events a week apart each, and sixty at random steps; some of the first are due."""
    rng = np.random.default_rng(0)
    rows = [(key, 0, 120 + key, step) for key in range(60) for step in range(key % 7, 210, 7)]
    rows += [(key, 0, 120 + key, step) for key in range(60, 120) for step in np.flatnonzero(rng.random(210) < 1 / 7)]
    past = Past(replace(log_of(rows, 240, 1), clock=Clock("date", 0, DAY)))
    tallies, settings = PastTallies(past), OccurrenceSettings(hidden=32, dates=64)
    keys = seen_keys("triple", tallies.parts[0], 210)  # 210 is a multiple of seven
    p = fitted(past, settings).probability(keys, tallies, (1,))[:, 0]
    weekly, due = keys.subject < 60, keys.subject % 7 == 0
    assert p[weekly & due].mean() > 0.6
    assert p[weekly & ~due].mean() < 0.1
    assert 0.05 < p[~weekly].mean() < 0.3


def test_a_rare_rhythm_is_found_too() -> None:
    """Ten events a week apart each among four hundred at random steps."""
    rng = np.random.default_rng(0)
    rows = [(key, 0, 410 + key, step) for key in range(10) for step in range(key % 7, 210, 7)]
    rows += [(key, 0, 410 + key, step) for key in range(10, 410) for step in np.flatnonzero(rng.random(210) < 1 / 20)]
    past = Past(replace(log_of(rows, 820, 1), clock=Clock("date", 0, DAY)))
    tallies = PastTallies(past)
    keys = seen_keys("triple", tallies.parts[0], 210)
    p = fitted(past, OccurrenceSettings()).probability(keys, tallies, (1,))[:, 0]
    weekly, due = keys.subject < 10, keys.subject % 7 == 0
    assert p[weekly & due].mean() > 0.6
    assert p[weekly & ~due].mean() < 0.05
    assert 0.02 < p[~weekly].mean() < 0.1


def test_hazards_find_the_rates_that_were_planted() -> None:
    """Busy pairs interact at each step with 30 %, quiet ones with 3 %."""
    rng = np.random.default_rng(0)
    rate = np.where(np.arange(60) % 2, 0.3, 0.03)
    rows = [(pair, 0, pair + 60, step) for step in range(150) for pair in np.flatnonzero(rng.random(60) < rate)]
    rows += [(pair, 0, pair + 60, 0) for pair in range(60)]
    events = log_of(rows, 120, 1)
    past = Past(events)
    tallies = PastTallies(past)
    settings = OccurrenceSettings(hidden=16, rows=20_000, dates=60, epochs=24, share=0.9)
    keys = seen_keys("pair", tallies.parts[0], 150)
    p = fitted(past, settings, "pair").probability(keys, tallies, (1, 7)).numpy()
    busy = keys.subject.numpy() % 2 == 1
    for column, horizon in enumerate((1, 7)):
        for own, planted in ((busy, 0.3), (~busy, 0.03)):
            assert p[own, column].mean() == pytest.approx(1 - (1 - planted) ** horizon, abs=0.08)


def test_a_span_that_the_events_do_not_reach_has_the_hazard_of_the_last_that_they_do() -> None:
    past = Past(random_log(1, n=3000, n_entities=60, steps=80))
    tallies = PastTallies(past)
    head = fitted(past, QUICK, "pair")
    assert head.nets["pair"].span.tolist() == [0, 1, 2, 3, 4, 5, 6, 6]  # at most 56 steps ahead are known
    keys = seen_keys("pair", tallies.parts[0], 80)
    survival = head.log_survival(keys, tallies, (30, 31, 100))
    assert torch.allclose(survival[:, 2] - survival[:, 1], 69 * (survival[:, 1] - survival[:, 0]))


def test_a_triple_is_no_likelier_than_what_it_is_a_part_of() -> None:
    past = Past(random_log(1, n=3000, n_entities=60, steps=80))
    head, tallies = fitted(past, QUICK), PastTallies(past)
    head.nets["triple"].begin_at(torch.full((len(SPANS),), 0.5))  # a network that says so of all
    keys = seen_keys("triple", tallies.parts[0], 80)
    p = head.probability(keys, tallies, (1, 7))
    pair, roles = (head.probability(whole, tallies, (1, 7)) for whole in wholes(keys, past.events.n_relations))
    assert all((p <= whole).all() for whole in (pair, *roles.split(len(p))))
    assert (p[:, 0] < 0.4).any()


def test_weights_come_back_as_they_were() -> None:
    events = small_world().events
    tallies = PastTallies(Past(events))
    head = Occurrence(QUICK, {kind: HazardNet(width_of(kind), QUICK.hidden) for kind in KINDS})
    back = Occurrence.restore(QUICK, head.tensors())
    (own,) = tallies.parts
    assert isinstance(own, Tallies)
    for kind in KINDS:
        keys: Keys = seen_keys(kind, own, 40)
        assert torch.equal(back.probability(keys, tallies, (3,)), head.probability(keys, tallies, (3,)))
    with pytest.raises(ValueError, match="there are 8 spans"):
        Occurrence.restore(QUICK, {**head.tensors(), "pair.span": torch.full((8,), 8)})
    with pytest.raises(ValueError, match=r"nothing is known of other\.x"):
        Occurrence.restore(QUICK, {**head.tensors(), "other.x": torch.zeros(1)})


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_do_under_other_relations_is_not_read(kind: str) -> None:
    """What all keys of a step have in common would tell the few steps of a fit apart."""
    own = [(0, 0, 1, step) for step in (1, 5, 8)]
    others = [(2, 1, 3, step) for step in (6, 7, 7, 9)]
    zero, one, step = (torch.tensor([value]) for value in (0, 1, 10))
    quiet, busy = (PastTallies(Past(log_of(rows, 4, 2))) for rows in (own, own + others))
    keys = Keys(kind, zero, zero, one, step)
    assert torch.equal(features(keys, quiet), features(keys, busy))

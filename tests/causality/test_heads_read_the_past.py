"""Causality of what and whether: whatever happens at or after t, the answers for t stay the same bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from bridgemem.events.dataset import Dataset
from bridgemem.forecasting.ahead import Ahead
from bridgemem.forecasting.heads import Heads, fit_heads
from bridgemem.forecasting.occurrence import KINDS, Keys, OccurrenceSettings, features
from bridgemem.forecasting.outlook import outlook
from bridgemem.forecasting.relations import PairQueries, RelationReader, RelationSettings
from bridgemem.forecasting.watching import Watch
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies
from builders import futures, small_world

NOW = 50
FUTURES = ("deleted", "half deleted", "permuted", "corrupted", "moved to now")
QUICK = RelationSettings(hidden=8, queries=300, epochs=1), OccurrenceSettings(hidden=8, rows=2000, epochs=1, dates=4)


@cache
def heads() -> Heads:
    return fit_heads(Dataset("small", small_world().events.prefix(NOW), 35), *QUICK)


@cache
def pairs() -> PairQueries:
    events = small_world().events
    return PairQueries.of(events.between(NOW, NOW + 1))


@pytest.mark.parametrize("future", FUTURES)
def test_what_does_not_see_the_future(future: str) -> None:
    events = small_world().events
    one, two = (RelationReader(Past(log), events.n_relations) for log in (events, futures(events, NOW)[future]))
    assert torch.equal(heads().relations.scores(one, pairs()), heads().relations.scores(two, pairs()))


@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_whether_does_not_see_the_future(kind: str, future: str) -> None:
    events, asked = small_world().events, pairs()
    assert asked.answer is not None
    keys = Keys(kind, asked.first, asked.answer, asked.second, asked.step)
    one, two = (PastTallies(Past(log)) for log in (events, futures(events, NOW)[future]))
    assert torch.equal(features(keys, one), features(keys, two))
    horizons = (1, 7, 30)
    assert torch.equal(*(heads().occurrence.log_survival(keys, tallies, horizons) for tallies in (one, two)))


@pytest.mark.parametrize("future", FUTURES)
def test_answers_do_not_see_the_future(future: str) -> None:
    events = small_world().events
    one, two = (Ahead(Past(log), heads()) for log in (events, futures(events, NOW)[future]))
    for actor, other in ((0, 1), (3, 29), (5, 5)):
        assert one.what(actor, other, NOW, horizon=7, top=5) == two.what(actor, other, NOW, horizon=7, top=5)
        assert one.partners(actor, NOW, horizon=7, top=5) == two.partners(actor, NOW, horizon=7, top=5)


@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize("surprising", [False, True])
def test_an_outlook_does_not_see_the_future(future: str, surprising: bool) -> None:
    events = small_world().events
    one, two = (Ahead(Past(log), heads()) for log in (events, futures(events, NOW)[future]))
    watched = Watch(frozenset({3}), frozenset({0}), frozenset({(1, 2), (5, 29)}), ("some",))
    for watch in (None, watched):
        found = [outlook(a, NOW, horizon=7, top=500, surprising=surprising, watch=watch) for a in (one, two)]
        assert found[0]
        assert found[0] == found[1]
        assert found[0].query == found[1].query


def test_a_fit_reads_neither_test_nor_its_names() -> None:
    events = small_world().events
    noise = futures(events, NOW)["corrupted"]
    fits = [fit_heads(Dataset("small", log, 35, NOW), *QUICK).tensors() for log in (events, noise)]
    assert fits[0].keys() == fits[1].keys()
    assert all(np.array_equal(fits[0][name].numpy(), fits[1][name].numpy()) for name in fits[0])

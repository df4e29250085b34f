"""Features of a base and a delta are, to the last bit, those of one log; the base is counted once for all deltas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bridgemem.backbones.scorer import Scores
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.residuals.activity import OverlayActivity
from bridgemem.residuals.features import FeatureReader
from bridgemem.residuals.neighbours import Neighbours
from builders import base_and_delta, random_transitions, together

STEPS = (0, 9, 31, 45)


def asked(events: EventLog) -> Queries:
    actors, relations = torch.arange(events.n_entities), torch.arange(2 * events.n_relations)
    return Queries(*torch.cartesian_prod(actors, relations, torch.tensor(STEPS)).T)


def same_features(there: Past, here: Past) -> None:
    events, draw = here.events, torch.Generator().manual_seed(0)
    queries, transitions = asked(events), random_transitions(events)
    log_p = torch.randn((len(queries), events.n_entities), generator=draw).log_softmax(1)
    scores = Scores(log_p, torch.rand(len(queries), generator=draw))
    readers = [FeatureReader(past, transitions, unseen_candidates=3) for past in (there, here)]
    mine, other = (reader.read(queries, scores) for reader in readers)
    assert torch.equal(mine.row, other.row)
    assert torch.equal(mine.candidate, other.candidate)
    assert torch.equal(mine.x, other.x)
    # and one by one, as forecasts ask
    for row in range(0, len(queries), 37):
        part = slice(row, row + 1)
        one = Scores(log_p[part], scores.uncertainty[part])  # type: ignore[index]
        mine, other = (reader.read(queries.take(part), one) for reader in readers)
        assert torch.equal(mine.x, other.x)
    everybody = torch.arange(events.n_entities)
    for cut in STEPS:
        mine, other = (Neighbours(past).adjacent(everybody, cut) for past in (there, here))
        assert torch.equal(mine, other)


@pytest.mark.parametrize("seed", range(3))
def test_batches_late_events_new_names_and_retractions_read_like_a_rebuild(seed: int) -> None:
    base, delta = base_and_delta(seed)
    rng, past = np.random.default_rng(seed), Past(base)
    came = rng.integers(0, 3, len(delta))
    for batch in range(3):
        kept = delta.take((came <= batch) & (rng.random(len(delta)) < 0.8))
        past = past.with_delta(kept)
        same_features(past, Past(together(base, kept)))
    fewer = base.n_entities - 2, base.n_relations - 1
    same_features(past.within(*fewer), Past(together(base, kept).within(*fewer)))


@pytest.mark.parametrize("size", [0, 1])
def test_a_base_with_hardly_an_event_grows_like_any_other(size: int) -> None:
    base, delta = base_and_delta(3)
    base = base.rows(0, size)
    same_features(Past(base).with_delta(delta), Past(together(base, delta)))
    nothing = delta.rows(0, 0)
    same_features(Past(base).with_delta(nothing), Past(together(base, nothing)))


def test_a_further_delta_counts_nothing_of_the_base_again() -> None:
    base, delta = base_and_delta(1)
    past, transitions = Past(base), random_transitions(together(base, delta))
    readers = [FeatureReader(past.with_delta(delta.rows(0, size)), transitions) for size in (9, len(delta))]
    for name in ("active", "roles", "actor_roles"):
        first, second = (getattr(reader, name) for reader in readers)
        assert isinstance(first, OverlayActivity)
        assert first.base is second.base
    first, second = (reader.neighbours for reader in readers)
    assert first.base is second.base
    assert first.weights_before(31)[0].base is second.weights_before(31)[0].base
    assert "subject" not in vars(readers[1].past.events), "the columns are not put together"

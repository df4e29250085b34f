"""Kept scores: the backbone's own, asked once for each query and history, within bounds."""

from __future__ import annotations

import gc

import pytest
import torch

from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.scorer import Scores
from bridgemem.events.queries import Queries, joined
from bridgemem.memory.past import Past
from bridgemem.service.scores import ScoreCache
from builders import small_world


def one(actor: int, relation: int, step: int) -> Queries:
    return Queries(*(torch.tensor([value]) for value in (actor, relation, step)))


class Counting(RecurrenceDyadic):
    """How often the backbone itself was asked."""

    asked = 0

    def score(self, queries: Queries, past: Past) -> Scores:
        self.asked += 1
        return super().score(queries, past)


@pytest.fixture
def backbone() -> Counting:
    return Counting.fit(small_world().dataset)


@pytest.fixture
def past() -> Past:
    return Past(small_world().dataset.events)


def test_a_query_is_scored_once_and_its_scores_are_the_backbones(backbone: Counting, past: Past) -> None:
    kept = ScoreCache(backbone)
    queries = [one(3, 2, 40), one(3, 2, 41), one(3, 4, 40), one(4, 2, 40)]
    for query in queries * 2:
        assert torch.equal(kept.score(query, past).log_p, RecurrenceDyadic.score(backbone, query, past).log_p)
    assert backbone.asked == len(queries)
    assert (kept.used.hits, kept.used.misses) == (len(queries), len(queries))


def test_a_memory_that_has_grown_is_scored_anew(backbone: Counting, past: Past) -> None:
    kept, query = ScoreCache(backbone), one(3, 2, 59)
    events = small_world().dataset.events
    early = kept.score(query, Past(events.prefix(20))).log_p
    assert not torch.equal(kept.score(query, past).log_p, early)
    assert backbone.asked == 2


def test_scores_go_with_their_history(backbone: Counting) -> None:
    kept, gone = ScoreCache(backbone), Past(small_world().dataset.events)
    kept.score(one(3, 2, 40), gone)
    assert len(kept._kept) == 1
    del gone
    gc.collect()
    assert len(kept._kept) == 0


def test_the_least_recently_used_scores_go_first(backbone: Counting, past: Past) -> None:
    row = backbone.score(one(0, 0, 40), past).log_p.nbytes
    kept = ScoreCache(backbone, most=2 * row)
    first, second, third = (one(actor, 0, 40) for actor in range(3))
    for query in (first, second, first, third):
        kept.score(query, past)
    before = backbone.asked
    kept.score(first, past)
    kept.score(third, past)
    assert backbone.asked == before
    kept.score(second, past)
    assert backbone.asked == before + 1


def test_of_a_batch_only_what_is_not_kept_is_scored(backbone: Counting, past: Past) -> None:
    kept = ScoreCache(backbone)
    queries = [one(3, 2, 40), one(4, 2, 41), one(3, 2, 40), one(5, 0, 40)]
    kept.score(queries[1], past)
    found = kept.score(joined(queries), past)
    assert torch.equal(found.log_p, RecurrenceDyadic.score(backbone, joined(queries), past).log_p)
    assert (kept.used.hits, kept.used.misses) == (1, 4)
    before = backbone.asked
    assert torch.equal(kept.score(joined(queries[::-1]), past).log_p, found.log_p.flip(0))
    assert backbone.asked == before


def test_all_that_is_said_of_a_query_is_kept(past: Past) -> None:
    entities = past.events.n_entities

    class Telling(RecurrenceDyadic):
        def score(self, queries: Queries, past: Past) -> Scores:
            made = super().score(queries, past).log_p
            late = queries.step > 40
            absent = (late[:, None] & (torch.arange(entities) < 3)) if bool(late.any()) else None
            return Scores(made, queries.actor / 10, torch.stack([made, made - 1]), absent)

    backbone = Telling.fit(small_world().dataset)
    batch = joined([one(3, 2, 40), one(4, 2, 41), one(5, 1, 30)])
    kept, expected = ScoreCache(backbone), backbone.score(batch, past)
    for query in (one(3, 2, 40), one(4, 2, 41)):
        kept.score(query, past)
    for found in (kept.score(batch, past), kept.score(batch, past)):
        for name in ("log_p", "uncertainty", "members", "absent"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name

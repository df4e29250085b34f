"""Training-free backbones: their formula, from the raw events."""

from __future__ import annotations

import math
import re

import pytest
import torch

from bridgemem.backbones import BACKBONES, backbone_class, load_backbone
from bridgemem.backbones.recurrence import Popularity, Recurrence, RecurrenceDyadic
from bridgemem.errors import NotFoundError
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import dataset_of, random_log, rows_of, small_world
from precision import close


@pytest.mark.parametrize("kind", [Popularity, Recurrence, RecurrenceDyadic])
@pytest.mark.parametrize("frozen", [None, 18])
def test_scores_equal_the_formula(kind, frozen):
    events = random_log(8, n=150)
    dataset = dataset_of(events)
    queries = Queries.of(events.between(20, 30))
    scores = kind.fit(dataset).score(queries, Past(events, frozen)).log_p
    ends = [e for s, _, o, _ in rows_of(dataset.train) for e in (s, o)]
    R = events.n_relations
    for row, (a, r, t) in enumerate(
        zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True)
    ):
        past = [e for e in rows_of(events) if e[3] < (t if frozen is None else min(t, frozen))]
        sides = [side for s, r2, o, t2 in past for side in ((s, r2, o, t2), (o, r2 + R, s, t2))]
        for c in range(events.n_entities):
            share = ends.count(c) / len(ends)
            triple = [t - t2 for a2, r2, c2, t2 in sides if (a2, r2, c2) == (a, r, c)]
            pair = [t - t2 for a2, _, c2, t2 in sides if (a2, c2) == (a, c)]
            expected = share if kind is Popularity else 0.001 * share
            if triple and kind is not Popularity:
                expected += 1 + 0.9 ** min(triple)
            if pair and kind is RecurrenceDyadic:
                expected += 0.05 + 0.5 / (1 + min(pair))
            assert float(scores[row, c]) == pytest.approx(math.log(max(expected, 1e-12)), abs=1e-9)


def test_an_empty_past_leaves_popularity_alone():
    world = small_world()
    queries = Queries.of(world.dataset.train).take(slice(0, 4))
    queries = Queries(queries.actor, queries.relation, torch.zeros(4, dtype=torch.int64))
    popular = Popularity.fit(world.dataset).score(queries, Past(world.events)).log_p
    for kind in (Recurrence, RecurrenceDyadic):
        found = kind.fit(world.dataset).score(queries, Past(world.events)).log_p
        assert close(found, popular + math.log(0.001))


@pytest.mark.parametrize("name", ["recurrence", "recurrence-dyadic", "popularity"])
def test_backbones_are_found_saved_and_loaded_by_name(tmp_path, name):
    world = small_world()
    backbone = backbone_class(name).fit(world.dataset)
    assert backbone.name == name
    backbone.save(tmp_path / name)
    again = load_backbone(tmp_path / name)
    assert type(again) is type(backbone)
    queries, past = Queries.of(world.dataset.valid), Past(world.events)
    assert torch.equal(again.score(queries, past).log_p, backbone.score(queries, past).log_p)


def test_an_unknown_backbone_is_named_with_the_known_ones():
    with pytest.raises(NotFoundError, match="'cent'.*" + re.escape(", ".join(BACKBONES))):
        backbone_class("cent")

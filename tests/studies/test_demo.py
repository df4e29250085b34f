"""The demo on a small world: every method in the table, and the truth on top of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bridgemem.events.world import WorldSettings, simulate
from bridgemem.ranking.filters import FILTERS
from bridgemem.studies.demo import Demo, Oracle

pytest_plugins = ("small_runs",)
NAIVE = ["most-frequent", "most-recent", "recurrence", "recurrence-dyadic"]


def test_the_default_stands_between_what_is_naive_and_the_truth(small_demo: Demo) -> None:
    shown = {row[0]: row for row in small_demo.table().rows}
    assert list(shown)[-1] == "oracle (upper bound)"
    assert set(NAIVE) <= set(shown)
    best = next(r.mrr for r in small_demo.records if (r.method, r.filter) == (small_demo.model, "time") and r.as_chosen)
    for row in shown.values():
        assert float(row[1]) <= small_demo.oracle["time"].mrr + 5e-5
    assert max(float(shown[name][1]) for name in NAIVE) < best
    assert small_demo.short_of_oracle.value == pytest.approx(best - small_demo.oracle["time"].mrr, abs=1e-12)


def test_records_keep_every_filter(small_demo: Demo) -> None:
    for method in ("backbone", "bridgemem", "learned"):
        assert {r.filter for r in small_demo.records if r.method == method} == set(FILTERS)


def test_the_model_goes_a_part_of_the_way_to_the_oracle(small_demo: Demo) -> None:
    assert 0 < small_demo.headroom < 1


def test_the_explained_forecast_is_one_that_the_residual_lifted(small_demo: Demo) -> None:
    why = small_demo.forecast
    assert why.residual > 0
    assert why.rank == 1 < why.backbone_rank
    assert why.candidate in why.sentence()


def test_the_oracle_does_not_read_the_answers() -> None:
    from bridgemem.events.queries import Queries
    from bridgemem.memory.past import Past

    world = simulate(WorldSettings(actors=20, relations=6, steps=30, events=600, partners=4))
    queries = Queries.of(world.dataset.test)
    past = Past(world.dataset.events)
    told = Oracle(world).score(queries, past)
    lied = Oracle(world).score(replace(queries, answer=torch.zeros_like(queries.actor)), past)
    assert torch.equal(told.log_p, lied.log_p)

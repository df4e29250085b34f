"""The demo on a small world: every method in the table, and the truth on top of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bridgemem.events.world import WorldSettings, simulate
from bridgemem.ranking.filters import FILTERS
from bridgemem.studies.demo import Demo, Oracle

pytest_plugins = ("small_runs",)
METHODS = ("recurrence", "recurrence-dyadic", "cenet", "cenet + bridgemem", "oracle (upper bound)")


def test_every_method_has_every_filter_and_metric(small_demo: Demo) -> None:
    assert set(small_demo.metrics) == set(METHODS)
    for by_filter in small_demo.metrics.values():
        assert set(by_filter) == set(FILTERS)
        for metrics in by_filter.values():
            assert 0 < metrics.mrr <= 1
            assert metrics.hits1 <= metrics.hits3 <= metrics.hits10 <= 1
        assert by_filter["raw"].mrr <= by_filter["time"].mrr <= by_filter["static"].mrr


@pytest.mark.parametrize("filter_name", ["raw", "time"])
def test_nothing_ranks_better_than_the_truth(filter_name: str, small_demo: Demo) -> None:
    oracle = small_demo.metrics["oracle (upper bound)"][filter_name].mrr
    for method in METHODS:
        assert small_demo.metrics[method][filter_name].mrr <= oracle


def test_the_residual_wins_a_part_of_the_headroom(small_demo: Demo) -> None:
    assert set(small_demo.headroom) == {"raw", "time"}
    for name, share in small_demo.headroom.items():
        assert 0 < share < 1
        backbone, residual = (small_demo.metrics[m][name].mrr for m in ("cenet", "cenet + bridgemem"))
        assert small_demo.gains[name].value == pytest.approx(residual - backbone, abs=1e-12)
        assert small_demo.gains[name].low <= small_demo.gains[name].value <= small_demo.gains[name].high


def test_the_explained_forecast_is_one_that_the_residual_lifted(small_demo: Demo) -> None:
    why = small_demo.forecast
    assert why.residual > 0
    assert why.events
    assert sum(event.part for event in why.events) == pytest.approx(why.residual, abs=1e-9)
    assert why.candidate in why.sentence()


def test_choices_were_made_on_validation_and_never_on_test(small_demo: Demo) -> None:
    known = small_demo.dataset.without_test()
    for selection in small_demo.selections.values():
        assert selection.fingerprint == known.events.fingerprint
        assert selection.queries == 2 * len(small_demo.dataset.valid)


def test_the_oracle_does_not_read_the_answers() -> None:
    from bridgemem.events.queries import Queries
    from bridgemem.memory.past import Past

    world = simulate(WorldSettings(actors=20, relations=6, steps=30, events=600, partners=4))
    queries = Queries.of(world.dataset.test)
    past = Past(world.dataset.events)
    told = Oracle(world).score(queries, past)
    lied = Oracle(world).score(replace(queries, answer=torch.zeros_like(queries.actor)), past)
    assert torch.equal(told.log_p, lied.log_p)

"""The two training-free rows on the tests of icews14 and yago."""

from __future__ import annotations

import pytest

from bridgemem.backbones.recurrence import Recurrence, RecurrenceDyadic
from bridgemem.events.datasets import load_benchmark
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import Scoring, replay


@pytest.fixture(scope="module")
def icews14(data_dir):
    return load_benchmark("icews14", data_dir)


@pytest.mark.parametrize(("kind", "time", "static"), [(Recurrence, 0.3662, 0.5472), (RecurrenceDyadic, 0.4119, 0.6036)])
def test_recurrence_scores_what_was_measured_independently(icews14, kind, time, static):
    replayed = replay(
        Scoring(kind.fit(icews14), Past(icews14.events)), Queries.of(icews14.test), filters=Filters(icews14.events)
    )
    assert replayed.metrics("time").mrr == pytest.approx(time, abs=0.001)
    assert replayed.metrics("static").mrr == pytest.approx(static, abs=0.001)
    assert replayed.metrics("raw").mrr < replayed.metrics("time").mrr


@pytest.mark.parametrize(("kind", "time"), [(Recurrence, 0.9034), (RecurrenceDyadic, 0.9035)])
def test_facts_of_yago_recur(data_dir, kind, time):
    yago = load_benchmark("yago", data_dir)
    replayed = replay(Scoring(kind.fit(yago), Past(yago.events)), Queries.of(yago.test), filters=Filters(yago.events))
    assert replayed.metrics("time").mrr == pytest.approx(time, abs=0.001)

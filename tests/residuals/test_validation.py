"""Validation: every pass of a fit reads the same past, filters and scores, and each query is scored once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from tests.precision import same

from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.scorer import Scorer, Scores, score_queries
from bridgemem.config import Settings
from bridgemem.events.queries import Queries
from bridgemem.forecaster import Forecaster
from bridgemem.memory.past import Past
from bridgemem.residuals import validation
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.validation import ScoredOnce
from builders import random_log, small_world


@dataclass
class Counting(Scorer):
    """A scorer that notes how many queries it was given."""

    scorer: Scorer
    asked: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.scorer.name

    @property
    def own_uncertainty(self) -> bool:
        return self.scorer.own_uncertainty

    def score(self, queries: Queries, past: Past) -> Scores:
        self.asked.append(len(queries))
        return self.scorer.score(queries, past)


@pytest.fixture
def backbone() -> RecurrenceDyadic:
    return RecurrenceDyadic.fit(small_world().dataset)


def test_kept_scores_are_those_of_the_scorer(backbone: RecurrenceDyadic) -> None:
    dataset = small_world().dataset.without_test()
    past, queries = Past(dataset.events), Queries.of(dataset.valid)
    mixed = Ensemble.fit(dataset, EnsembleSettings(members=("hri", "recurrence-dyadic")))
    for scorer in (backbone, mixed):
        counting = Counting(scorer)
        kept, expected = ScoredOnce(counting, queries, past), score_queries(scorer, queries, past)
        first, again = (score_queries(kept, queries, past) for _ in range(2))
        some = torch.arange(0, len(queries), 3)
        part = score_queries(kept, queries.take(some), past)
        assert counting.asked == [len(queries)]
        for found, rows in ((first, slice(None)), (again, slice(None)), (part, some)):
            assert same(found.log_p, expected.log_p[rows])
            assert same(found.uncertainty, expected.uncertainty[rows])
            assert (found.members is None) == (expected.members is None)
            if expected.members is not None:
                assert same(found.members, expected.members[:, rows])


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_what_does_not_fit_is_scored_again_and_stays_right(backbone: RecurrenceDyadic, rows: int) -> None:
    dataset = small_world().dataset.without_test()
    past, queries = Past(dataset.events), Queries.of(dataset.valid).take(slice(0, 40))
    counting = Counting(backbone)
    expected = score_queries(backbone, queries, past)
    kept = ScoredOnce(counting, queries, past, most=rows * expected.log_p[0].nbytes)
    for _ in range(2):
        found = [score_queries(kept, part, past) for part in queries.batches(5)]
        assert same(torch.cat([one.log_p for one in found]), expected.log_p)
    assert len(counting.asked) == 16 - (rows >= 5)


def test_other_queries_and_other_pasts_are_scored_as_they_come(backbone: RecurrenceDyadic) -> None:
    dataset = small_world().dataset.without_test()
    past, queries = Past(dataset.events), Queries.of(dataset.valid).take(slice(0, 20))
    kept = ScoredOnce(backbone, queries, past)
    score_queries(kept, queries, past)
    later = Queries(queries.actor, queries.relation, queries.step + 1)
    assert same(score_queries(kept, later, past).log_p, score_queries(backbone, later, past).log_p)
    frozen = Past(dataset.events, dataset.valid_start)
    assert same(score_queries(kept, queries, frozen).log_p, score_queries(backbone, queries, frozen).log_p)


@pytest.mark.parametrize("residual", ["bridgemem", "learned"])
def test_a_fit_scores_every_validation_query_once(monkeypatch: pytest.MonkeyPatch, residual: str) -> None:
    dataset, asked = small_world().dataset, list[tuple[int, int, int]]()
    score = RecurrenceDyadic.score

    def noted(self: RecurrenceDyadic, queries: Queries, past: Past) -> Scores:
        asked.extend(zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True))
        return score(self, queries, past)

    monkeypatch.setattr(RecurrenceDyadic, "score", noted)
    # what is said of several steps asks at the first of them, and so asks other queries
    monkeypatch.setattr("bridgemem.evaluation.reliability._over_steps", lambda *_: {})
    quick, small = Settings(max_epochs=1), LearnedSettings(epochs=1, unseen_candidates=3, hidden=4)
    Forecaster("recurrence-dyadic", residual=residual, settings=quick, learned_settings=small).fit(dataset)
    valid = Queries.of(dataset.valid)
    # late train is read once too, by a backbone of before
    asked = [query for query in asked if query[2] >= dataset.valid_start]
    assert len(asked) == len(valid)


@pytest.mark.parametrize("most", [30, 10_000])
def test_queries_of_many_events_are_drawn_from_few_steps(most: int) -> None:
    events = random_log(3, n=5_100, steps=40)
    every, drawn = Queries.of(events), Queries.sampled(events, most, 0, steps=6)
    assert len(drawn.step.unique()) <= 6
    assert int(drawn.step.min()) == events.start
    assert int(drawn.step.max()) == events.end - 1
    inside = torch.isin(every.step, drawn.step)
    assert len(drawn) == min(most, int(inside.sum()))
    if most > len(drawn):  # all that these steps hold, in their order
        for column in ("actor", "relation", "step", "answer"):
            assert torch.equal(getattr(drawn, column), getattr(every, column)[inside])


def test_only_more_events_than_a_pass_should_read_ask_for_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    events = random_log(3, n=300)
    assert validation.most_steps(events) is None
    monkeypatch.setattr(validation, "MANY_EVENTS", 299)
    assert validation.most_steps(events) == validation.MOST_STEPS

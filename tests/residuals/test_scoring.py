"""Replay: corrections only where there is history, and the backbone's own ranks where nothing is added."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.recurrence import Popularity, Recurrence
from bridgemem.backbones.scorer import Scores, score_queries
from bridgemem.errors import BackboneError, SettingsError
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks
from bridgemem.residuals.scoring import Choice, Scoring, corrections, replay
from builders import futures, random_log, random_transitions, rows_of, small_world
from precision import FLOAT32, FLOAT64, close

CHOICES = [Choice(lam, gate, tau) for lam in (0.5, 4.0) for gate in ("uncertain", "none") for tau in (30.0, 300.0)]


class Certain(Backbone):
    """Fixed scores with one and the same uncertainty for every query."""

    name = "certain"
    settings = None

    def __init__(self, u: float, value: float | None = None) -> None:
        self.u, self.value = u, value

    @classmethod
    def train(cls, dataset: Any, settings: Any, training: Any) -> Self:
        raise NotImplementedError

    def score(self, queries: Queries, past: Past) -> Scores:
        entities = past.events.n_entities
        grid = queries.actor[:, None] * 7 + queries.relation[:, None] * 3 + torch.arange(entities)
        log_p = -(grid % 5).float() if self.value is None else torch.full((len(queries), entities), self.value)
        return Scores(log_p, torch.full((len(queries),), self.u))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        raise NotImplementedError


def test_only_candidates_seen_in_the_window_are_corrected():
    events = random_log(5, n=150, steps=120)
    transitions = random_transitions(events.prefix(60))
    queries = Queries.of(events.between(60, 120))
    evidence = transitions.evidence(queries, Past(events))
    seen = {
        (row, c)
        for row, (a, t) in enumerate(zip(queries.actor.tolist(), queries.step.tolist(), strict=True))
        for s, o, step in zip(events.subject.tolist(), events.object.tolist(), events.step.tolist(), strict=True)
        if 1 <= t - step <= transitions.settings.window
        for first, c in ((s, o), (o, s))
        if first == a
    }
    found = list(zip(evidence.row.tolist(), evidence.candidate.tolist(), strict=True))
    assert found == sorted(seen), "each pair once, in the order that ranking needs"
    assert 0 < len(seen) < len(queries) * events.n_entities, "there must be candidates without history too"
    assert ((evidence.lag >= 1) & (evidence.lag <= 65)).all()
    assert all(x.isfinite().all() for x in (evidence.a_ct, evidence.a_nn, evidence.support))


def certain(u, n):
    """Scores of n queries over one candidate, all with the same uncertainty."""
    return Scores(torch.zeros(n, 1), torch.full((n,), u))


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_a_certain_backbone_is_never_corrected(u):
    events = random_log(5)
    transitions = random_transitions(events)
    queries = Queries.of(events.between(20, 30))
    evidence = transitions.evidence(queries, Past(events))
    gated = [c for c in CHOICES if c.gate == "uncertain"]
    assert not corrections(evidence, certain(u, len(queries)), gated).any()
    replayed = replay(Scoring(Certain(u), Past(events), transitions, choices=gated), queries, filters=Filters(events))
    for column in range(1, len(gated) + 1):
        assert np.array_equal(replayed.ranks[:, column], replayed.ranks[:, 0])


def test_lambda_zero_is_the_backbone_exactly():
    events = random_log(5)
    transitions = random_transitions(events)
    queries = Queries.of(events.between(20, 30))
    evidence = transitions.evidence(queries, Past(events))
    none = [Choice(0.0, gate, tau) for gate in ("uncertain", "none") for tau in (0.0, 100.0, float("inf"))]
    assert not corrections(evidence, certain(0.4, len(queries)), none).any()
    alone = replay(Scoring(Certain(0.4), Past(events)), queries, filters=Filters(events))
    both = replay(
        Scoring(Certain(0.4), Past(events), transitions, choices=[*none, Choice(4.0, "none")]),
        queries,
        filters=Filters(events),
    )
    for column in range(len(none) + 1):
        assert np.array_equal(both.ranks[:, column], alone.ranks[:, 0])
    assert not np.array_equal(both.ranks[:, -1], alone.ranks[:, 0]), "a choice that corrects must show"


def test_actors_without_history_keep_the_backbones_scores():
    events = random_log(5, steps=30)
    transitions = random_transitions(events)
    queries = Queries.of(events.between(20, 30))
    long_after = Queries(queries.actor, queries.relation, queries.step + 1000, queries.answer)
    assert len(transitions.evidence(long_after, Past(events)).row) == 0
    replayed = replay(
        Scoring(Certain(0.4), Past(events), transitions, choices=CHOICES), long_after, filters=Filters(events)
    )
    assert (replayed.ranks == replayed.ranks[:, :1]).all()
    assert not replayed.answer_support.any()
    assert np.isnan(replayed.answer_lag).all()


def test_replay_ranks_the_dense_corrected_scores():
    world = small_world()
    events = world.events
    transitions = random_transitions(world.dataset.train)
    backbone = Recurrence.fit(world.dataset)
    queries = Queries.of(world.dataset.valid)
    past, filters = Past(events), Filters(events)
    replayed = replay(Scoring(backbone, past, transitions, choices=CHOICES), queries, filters=filters)
    scores = score_queries(backbone, queries, past)
    evidence = transitions.evidence(queries, past)
    delta = corrections(evidence, scores, CHOICES)
    none = torch.empty(0, dtype=torch.int64)
    masks = [filters.mask(name, queries) for name in FILTERS]
    for column in range(len(CHOICES) + 1):
        dense = scores.log_p.double().clone()
        dense[evidence.row, evidence.candidate] += delta[:, column]
        expected = answer_ranks(dense, queries.answer, none, none, delta[:0, :1], masks)[:, 0]
        assert np.array_equal(replayed.ranks[:, column], expected.numpy())
    assert replayed.metrics("time", 2) == Metrics.of(replayed.of("time", 2))
    assert close(replayed.uncertainty, scores.uncertainty.double())


def test_replay_does_not_depend_on_the_batch_size():
    world = small_world()
    transitions = random_transitions(world.dataset.train)
    queries = Queries.of(world.dataset.valid)
    scoring = Scoring(Recurrence.fit(world.dataset), Past(world.events), transitions, choices=CHOICES)
    whole = replay(scoring, queries, filters=Filters(world.events))
    in_sevens = replay(scoring, queries, filters=Filters(world.events), cells=7 * world.events.n_entities)
    assert np.array_equal(whole.ranks, in_sevens.ranks)
    assert np.array_equal(whole.answer_lag, in_sevens.answer_lag, equal_nan=True)
    assert np.array_equal(whole.answer_support, in_sevens.answer_support)


def test_the_answers_state_is_reported_with_its_rank():
    events = random_log(5)
    transitions = random_transitions(events)
    queries = Queries.of(events.between(20, 30))
    replayed = replay(
        Scoring(Certain(0.4), Past(events), transitions, choices=CHOICES), queries, filters=Filters(events)
    )
    evidence = transitions.evidence(queries, Past(events))
    own = evidence.candidate == queries.answer[evidence.row]
    expected = np.full(len(queries), np.nan)
    expected[evidence.row[own].numpy()] = evidence.lag[own].numpy()
    assert np.array_equal(replayed.answer_lag, expected, equal_nan=True)
    assert (replayed.answer_support[np.isnan(expected)] == 0).all()
    rows, R = rows_of(events), events.n_relations
    facts = [side for s, r, o, t in rows for side in ((s, r, o, t), (o, r + R, s, t))]
    asked = zip(*(c.tolist() for c in (queries.actor, queries.relation, queries.answer, queries.step)), strict=True)
    seen = [any(fact[:3] == q[:3] and fact[3] < q[3] for fact in facts) for q in asked]
    assert 0 < sum(seen) < len(seen)
    assert replayed.triple_seen.tolist() == seen


def test_without_shrinkage_both_readers_count_the_same():
    events = random_log(5)
    transitions = random_transitions(events)
    queries = Queries.of(events.between(20, 30))
    evidence = transitions.evidence(queries, Past(events))
    delta = corrections(
        evidence, certain(0.5, len(queries)), [Choice(2.0, "none", tau, shrinkage=False) for tau in (30.0, 300.0)]
    )
    expected = 2 * ((evidence.a_ct.exp() + evidence.a_nn.exp()) / 2).log()
    assert close(delta[:, 1], expected, FLOAT64)
    assert torch.equal(delta[:, 1], delta[:, 2]), "tau has no say"


def test_frozen_history_reads_nothing_after_the_freeze():
    events = random_log(5)
    transitions = random_transitions(events.prefix(20))
    queries = Queries.of(events.between(24, 30))
    frozen = transitions.evidence(queries, Past(events, frozen_at=20))
    for what, other in futures(events, 20).items():
        again = transitions.evidence(queries, Past(other, frozen_at=20))
        assert torch.equal(again.a_nn, frozen.a_nn), what
        assert torch.equal(again.tokens, frozen.tokens), what
    rolling = transitions.evidence(queries, Past(events))
    assert len(rolling.row) != len(frozen.row) or not torch.equal(rolling.tokens, frozen.tokens)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite_are_an_error(value):
    events = random_log(5)
    with pytest.raises(BackboneError, match="NaN or infinite"):
        replay(Scoring(Certain(0.5, value), Past(events)), Queries.of(events), filters=Filters(events))


@pytest.mark.parametrize("u", [-0.1, 1.1, float("nan")])
def test_an_uncertainty_outside_its_range_is_an_error(u):
    events = random_log(5)
    with pytest.raises(BackboneError, match="uncertainty"):
        replay(Scoring(Certain(u), Past(events)), Queries.of(events), filters=Filters(events))


def test_a_backbone_is_never_shown_the_answers():
    shown = []

    class Curious(Certain):
        def score(self, queries: Queries, past: Past) -> Scores:
            shown.append(queries.answer)
            return super().score(queries, past)

    events = random_log(5)
    replay(Scoring(Curious(0.5), Past(events)), Queries.of(events), filters=Filters(events))
    assert shown == [None]


def test_a_constant_backbone_scores_as_chance():
    events = random_log(5)
    replayed = replay(Scoring(Certain(0.5, value=-1.0), Past(events)), Queries.of(events), filters=Filters(events))
    assert (replayed.of("raw") == (events.n_entities + 1) / 2).all()


def test_the_mass_on_seen_candidates_stands_in_for_a_missing_oracle():
    world = small_world()
    queries, past = Queries.of(world.dataset.valid), Past(world.events)
    backbone = Popularity.fit(world.dataset)
    scores = score_queries(backbone, queries, past)
    seen = torch.zeros_like(scores.log_p, dtype=torch.bool)
    seen[past.seen(queries.actor, queries.step)] = True
    expected = (scores.log_p.softmax(1) * seen).sum(1)
    assert close(scores.uncertainty, expected, FLOAT32)  # powers of e are taken in single precision


@pytest.mark.parametrize("lam", [1e308, float("inf"), float("nan")])
def test_a_correction_that_is_not_finite_is_an_error_and_no_rank(lam):
    events = random_log(5)
    transitions = random_transitions(events)
    with pytest.raises(SettingsError, match="a correction is NaN or infinite"):
        replay(
            Scoring(Certain(0.5), Past(events), transitions, choices=[Choice(1e3), Choice(lam)]),
            Queries.of(events),
            filters=Filters(events),
        )


def test_memory_that_holds_no_cell_is_refused():
    events = random_log(5)
    with pytest.raises(SettingsError, match="cells must be at least 1"):
        replay(Scoring(Certain(0.5), Past(events)), Queries.of(events), filters=Filters(events), cells=0)


def test_no_queries_have_no_ranks():
    events = random_log(5)
    none = Queries.of(events).take(slice(0, 0))
    replayed = replay(
        Scoring(Certain(0.5), Past(events), random_transitions(events), choices=CHOICES),
        none,
        filters=Filters(events),
    )
    assert replayed.ranks.shape == (len(FILTERS), 1 + len(CHOICES), 0)
    assert replayed.triple_seen.shape == (0,)

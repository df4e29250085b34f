"""The learned residual taken apart: parts that sum to the score, to the last digits, and that mean what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bridgemem.backbones.recurrence import Recurrence
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.attribution import (
    BETWEEN,
    LISTED,
    double,
    event_parts,
    group_parts,
    pair_features,
    shapley,
    subsets,
    third_parties,
)
from bridgemem.forecasting.explanations import LearnedExplanation, ordinal
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past
from bridgemem.residuals.features import GROUPS, NAMES, group_columns
from bridgemem.residuals.learned import Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.neighbours import FLOOR, Neighbours
from bridgemem.residuals.scoring import Choice
from builders import dataset_of, futures, random_log, random_transitions, side, triple
from precision import close

NOW = 20
SETTINGS = LearnedSettings(hidden=12, relation_width=4, unseen_candidates=3)


def near(expected: Any) -> Any:
    """Equal as far as double precision goes."""
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


def opinionated(n_relations: int, settings: LearnedSettings = SETTINGS, seed: int = 0, members: int = 0) -> Learned:
    """A network that was not fitted but has strong opinions on every feature, so that all of them show."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = LearnedNet(2 * n_relations, settings, members)
        for parameter in net.body.parameters():
            nn.init.normal_(parameter, std=0.4)
        net.log_scale.data.fill_(0.3)
        x = torch.randn(500, len(NAMES) + members) * 2 + 1
        net.standardise(*(x[:, columns] for columns in net.columns), settings.without)
    return Learned(settings, net)


@pytest.fixture(scope="module")
def events() -> EventLog:
    return random_log(4, n=300)


@pytest.fixture(scope="module")
def transitions(events: EventLog) -> Transitions:
    return random_transitions(events)


def forecaster(events: EventLog, transitions: Transitions, settings: LearnedSettings = SETTINGS) -> Predictor:
    backbone = Recurrence.fit(dataset_of(random_log(4, n=300)))
    return Predictor(Past(events), backbone, transitions, Choice(), opinionated(events.n_relations, settings))


def explain(of: Predictor, *asked: int | bool) -> LearnedExplanation:
    actor, relation, candidate, step, inverse = asked
    found = of.explain(at=step, **triple(actor, relation, candidate, bool(inverse)))
    assert isinstance(found, LearnedExplanation)
    return found


def everything(of: Predictor, step: int = NOW) -> list[LearnedExplanation]:
    """Every candidate of a few queries at one step."""
    return [
        explain(of, *asked, candidate, step, inverse)
        for *asked, inverse in ((0, 1, False), (5, 2, True), (9, 0, False))
        for candidate in range(of.events.n_entities)
    ]


@pytest.fixture(scope="module")
def found(events: EventLog, transitions: Transitions) -> list[LearnedExplanation]:
    return everything(forecaster(events, transitions))


def features_of(of: Predictor, query: Queries, candidate: int) -> Tensor:
    """What the reader reads of one candidate, float64 [features]."""
    found = of.scoring.of(query).features
    assert found is not None
    return found.x[int((found.candidate == candidate).nonzero())].double()


# --- Shapley values --------------------------------------------------------------------------------------------------


def slow_shapley(worth: dict[frozenset[int], float], players: int) -> list[float]:
    """By definition: what a player adds on coming, over all orders in which they can come."""
    gains = [0.0] * players
    for order in permutations(range(players)):
        for i, player in enumerate(order):
            gains[player] += worth[frozenset(order[: i + 1])] - worth[frozenset(order[:i])]
    return [gain / math.factorial(players) for gain in gains]


@pytest.mark.parametrize("players", [1, 2, 5])
def test_values_are_the_average_gain_over_all_orders(players: int) -> None:
    worth = torch.randn(1 << players, dtype=torch.float64, generator=torch.Generator().manual_seed(players))
    sets = [frozenset(row.nonzero().flatten().tolist()) for row in subsets(players)]
    assert len(set(sets)) == 1 << players
    expected = slow_shapley(dict(zip(sets, worth.tolist(), strict=True)), players)
    assert (shapley(players) @ worth).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("members", [0, 2])
def test_groups_that_enter_a_linear_network_have_their_own_terms_as_parts(members: int) -> None:
    learned, read = double(opinionated(3, members=members)), len(NAMES) + members
    net = learned.net
    linear = nn.Linear(read + SETTINGS.relation_width, 1).double()
    net.body = nn.Sequential(linear)
    x = torch.randn(2, read, dtype=torch.float64)
    found = group_parts(learned, x[0], x, relation=4)
    with torch.no_grad():
        terms = net.scaled(x) * linear.weight[:, :read] / net.scale
        start = (net.relation(torch.tensor(4)) @ linear.weight[0, read:] + linear.bias) / net.scale
    assert found.start == near(float(start))
    for name, columns in group_columns(members).items():
        assert found.groups[name] == near(float(terms[0, columns].sum()))
        average = float(terms[:, columns].sum(1).mean())
        assert found.apart[name] == near(float(terms[0, columns].sum()) - average)


def test_groups_that_the_network_cannot_tell_apart_have_equal_parts() -> None:
    learned = double(opinionated(3))
    net, columns = learned.net, group_columns()
    one, other = columns["backbone"], columns["common_neighbours"]
    assert len(one) == len(other)
    first = net.body[0]
    assert isinstance(first, nn.Linear)
    x = torch.randn(len(NAMES), dtype=torch.float64)
    for tensor in (first.weight.data.T, net.mean, net.inverse, x):
        tensor[other] = tensor[one]
    found = group_parts(learned, x, x[None], relation=0)
    assert found.groups["backbone"] == near(found.groups["common_neighbours"])
    assert abs(found.groups["backbone"]) > 1e-3
    assert found.groups["backbone"] != pytest.approx(found.groups["pair"], rel=1e-3)


def test_a_group_that_is_left_out_has_no_part(events: EventLog, transitions: Transitions) -> None:
    of = forecaster(events, transitions, replace(SETTINGS, without=("common_neighbours", "actor")))
    read = [explain(of, 5, 2, candidate, 3, False) for candidate in (0, 1, 2)]
    assert any(e.groups for e in read)
    read = [e for e in read if e.groups]
    assert all(abs(e.groups[name]) < 1e-12 for e in read for name in ("common_neighbours", "actor"))
    assert all(abs(e.groups["candidate"]) > 1e-6 for e in read)


# --- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, 13, 31])
def test_parts_sum_to_the_score(events: EventLog, transitions: Transitions, step: int) -> None:
    found = everything(forecaster(events, transitions), step)
    read = [e for e in found if e.groups]
    assert sum(e.seen for e in read) > 5
    assert sum(not e.seen for e in read) > 2
    for e in read:
        assert list(e.groups) == list(GROUPS)
        assert e.base + e.start + sum(e.groups.values()) == near(e.score)
        assert sum(e.groups[name] for name in BETWEEN) == near(e.between)
        earlier = e.earlier.part if e.earlier else 0.0
        assert e.unseen_pair + sum(event.part for event in e.events) + earlier == near(e.between)
        if e.seen:
            shares = sum(event.share for event in e.events) + (e.earlier.share if e.earlier else 0.0)
            assert shares == pytest.approx(1, abs=1e-12)
    assert all(e.score == e.base + e.residual for e in found)


def test_candidates_that_are_not_read_keep_the_score_of_the_backbone(
    events: EventLog, transitions: Transitions
) -> None:
    for settings, words in (
        (SETTINGS, "the 3 unseen candidates that are read"),
        (replace(SETTINGS, unseen_candidates=0), "not read"),
    ):
        unread = [e for e in everything(forecaster(events, transitions, settings), 3) if not e.groups]
        assert unread
        for e in unread:
            assert (e.score, e.residual, e.events, e.seen) == (e.base, 0.0, (), False)
            assert "keeps the backbone's score" in e.sentence()
            assert words in e.sentence()


@pytest.mark.parametrize("inverse", [False, True])
def test_a_forecast_and_its_explanations_agree(events: EventLog, transitions: Transitions, inverse: bool) -> None:
    of = forecaster(events, transitions)
    ranked = of.forecast(relation=1, at=NOW, top=events.n_entities, **side(0, inverse))
    assert [c.rank for c in ranked] != [c.backbone_rank for c in ranked]
    mass = 0.0
    for c in ranked:
        why = explain(of, 0, 1, of.events.entities.id(c.name), NOW, inverse)
        mass += math.exp(why.log_p0)
        assert (why.rank, why.backbone_rank, why.base) == (c.rank, c.backbone_rank, c.backbone_score)
        assert why.residual == near(c.residual)
        assert why.scale == pytest.approx(math.exp(0.3), rel=1e-6)
    assert mass == pytest.approx(1, abs=1e-12)


def test_parts_sum_to_the_number_that_the_forecast_has(events: EventLog, transitions: Transitions) -> None:
    of = forecaster(events, transitions)
    for c in of.forecast(0, 1, at=NOW, top=events.n_entities):
        why = explain(of, 0, 1, of.events.entities.id(c.name), NOW, False)
        # the same number, through one path and in one precision
        assert (why.residual, why.score) == (c.residual, c.score)
        if why.groups:
            assert why.start + sum(why.groups.values()) == near(c.residual)
            assert sum(why.groups[name] for name in BETWEEN) == near(why.between)


# --- events ----------------------------------------------------------------------------------------------------------


def rows_between(events: EventLog, actor: int, candidate: int, step: int) -> list[int]:
    """Where the events of a pair before a step stand in the log, newest first."""
    there = (events.subject == actor) & (events.object == candidate)
    back = (events.subject == candidate) & (events.object == actor)
    return np.flatnonzero((there | back) & (events.step < step))[::-1].tolist()


def without(events: EventLog, rows: list[int]) -> EventLog:
    keep = np.delete(np.arange(len(events)), rows)
    subject, relation, object_, step = (c[keep] for c in (events.subject, events.relation, events.object, events.step))
    return EventLog(subject, relation, object_, step, events.entities, events.relations, events.clock)


PAIRS = [(0, 1, 1, False), (0, 1, 3, True), (1, 2, 4, False), (0, 0, 0, False), (2, 3, 0, True), (3, 1, 0, False)]


@pytest.mark.parametrize(("actor", "relation", "candidate", "inverse"), PAIRS)
def test_features_without_events_are_those_of_a_log_without_them(
    events: EventLog, transitions: Transitions, actor: int, relation: int, candidate: int, inverse: bool
) -> None:
    # with as many unseen candidates as entities the candidate is read also when the pair has no event left
    of = forecaster(events, transitions, replace(SETTINGS, unseen_candidates=events.n_entities))
    query, own = (
        of.query(relation=relation, at=NOW, **side(actor, inverse)),
        rows_between(events, actor, candidate, NOW),
    )
    x, pair = features_of(of, query, candidate), PairEvents.of(of.past, actor, candidate, NOW)
    assert pair.n_events == len(own) > 0
    listed = min(len(own), LISTED + 1)
    chosen = subsets(listed)[[0, 1, 2, (1 << listed) // 3, (1 << listed) // 2, (1 << listed) - 2, (1 << listed) - 1]]
    made = pair_features(of.scoring.reader, query, candidate, x, pair, chosen[:, pair.event.clamp(max=LISTED)])
    assert torch.equal(made[-1], x)
    changing = [i for name in BETWEEN for i in group_columns()[name]]
    others = [i for i in range(len(NAMES)) if i not in changing]
    for present, row in zip(chosen.tolist(), made, strict=True):
        gone = [at for j, at in enumerate(own) if not present[min(j, LISTED)]]
        less = forecaster(without(events, gone), transitions, replace(SETTINGS, unseen_candidates=events.n_entities))
        expected = features_of(less, query, candidate)
        assert close(row[changing], expected[changing])
        assert torch.equal(row[others], x[others])


def test_parts_of_events_are_their_average_gains_when_they_are_taken_out_of_the_log(
    events: EventLog, transitions: Transitions
) -> None:
    of = forecaster(events, transitions, replace(SETTINGS, unseen_candidates=events.n_entities))
    query, candidate = of.query(2, 1, at=NOW), 4
    own = rows_between(events, 2, candidate, NOW)
    assert 2 <= len(own) <= 5
    assert of.learned is not None
    x, learned, columns = features_of(of, query, candidate), double(of.learned), group_columns()
    worth = {}
    for row in subsets(len(own)).tolist():
        gone = [at for j, at in enumerate(own) if not row[j]]
        less = forecaster(without(events, gone), transitions, replace(SETTINGS, unseen_candidates=events.n_entities))
        altered, read = x.clone(), features_of(less, query, candidate)
        for name in BETWEEN:
            altered[columns[name]] = read[columns[name]]
        groups = group_parts(learned, altered, x[None], int(query.relation)).groups
        worth[frozenset(j for j in range(len(own)) if row[j])] = sum(groups[name] for name in BETWEEN)
    found = explain(of, 2, 1, candidate, NOW, False)
    expected = slow_shapley(worth, len(own))
    assert found.unseen_pair == pytest.approx(worth[frozenset()], abs=1e-5)
    assert [event.part for event in found.events] == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, expected)) > 1e-2


def test_the_events_are_the_newest_ones_and_the_rest_is_counted(
    events: EventLog, found: list[LearnedExplanation]
) -> None:
    names, relations = events.entities.names, events.relations.names
    for e in found:
        actor, candidate = events.entities.id(e.actor), events.entities.id(e.candidate)
        own = rows_between(events, actor, candidate, NOW)
        said = [(x.subject, x.relation, x.object, int(x.time)) for x in e.events]
        columns = (events.subject, events.relation, events.object, events.step)
        expected = [tuple(int(c[row]) for c in columns) for row in own]
        assert said == [(names[s], relations[r], names[o], t) for s, r, o, t in expected[:LISTED]]
        assert all(x.lag == NOW - int(x.time) > 0 for x in e.events)
        assert (e.earlier.count if e.earlier else 0) == max(0, len(own) - LISTED)
        if e.earlier:
            assert (int(e.earlier.first), int(e.earlier.last)) == (expected[-1][3], expected[LISTED][3])
    assert any(e.earlier for e in found)


def test_an_event_without_a_part_can_be_taken_out_and_nothing_changes(
    events: EventLog, transitions: Transitions
) -> None:
    # a residual that reads of a pair only how often the very same thing happened
    narrow = replace(SETTINGS, without=("transitions", "pair"), unseen_candidates=events.n_entities)
    whole, checked = forecaster(events, transitions, narrow), 0
    for candidate in (1, 3, 5):
        query, own = whole.query(0, 1, at=NOW), rows_between(events, 0, candidate, NOW)
        found = explain(whole, 0, 1, candidate, NOW, False)
        idle = [j for j, event in enumerate(found.events) if abs(event.part) < 1e-12]
        busy = [event.part for event in found.events if abs(event.part) >= 1e-12]
        assert {found.events[j].relation == "relation 1" and not found.events[j].direction for j in idle} <= {False}
        if not idle:
            continue
        less = forecaster(without(events, [own[idle[0]]]), transitions, narrow)
        assert less.learned is not None
        x, learned = features_of(whole, query, candidate), double(less.learned)
        pair = PairEvents.of(less.past, 0, candidate, NOW)
        after = event_parts(learned, less.scoring.reader, query, candidate, x, pair)
        assert (after.total, after.unseen_pair) == near((found.between, found.unseen_pair))
        assert [part for part in after.listed if abs(part) >= 1e-12][: len(busy)] == pytest.approx(busy, rel=1e-6)
        checked += 1
    assert checked


def test_equal_events_have_equal_parts(found: list[LearnedExplanation]) -> None:
    twins = 0
    for e in found:
        for one, other in zip(e.events, e.events[1:], strict=False):
            if (one.relation, one.direction, one.lag) == (other.relation, other.direction, other.lag):
                assert one.part == pytest.approx(other.part, abs=1e-5)
                twins += 1
    assert twins > 1


@pytest.mark.parametrize("future", ["deleted", "half deleted", "permuted", "corrupted", "moved to now"])
def test_no_explanation_reads_the_future(
    events: EventLog, transitions: Transitions, found: list[LearnedExplanation], future: str
) -> None:
    assert everything(forecaster(futures(events, NOW)[future], transitions)) == found


# --- common neighbours and words -------------------------------------------------------------------------------------


def test_third_parties_are_those_of_a_slow_walk(events: EventLog) -> None:
    n, now = events.n_entities, NOW
    graph = np.zeros((n, n))
    for s, o, step in zip(events.subject, events.object, events.step, strict=True):
        if step < now:
            graph[s, o] += np.exp(-(now - 1 - step) / 100)
            graph[o, s] += np.exp(-(now - 1 - step) / 100)
    graph = np.log1p(graph)
    scale = 1 / np.sqrt(graph.sum(1) + 1e-6)
    graph *= scale[:, None] * scale
    neighbours = Neighbours(Past(events))
    for actor, candidate in ((0, 7), (2, 9), (5, 5)):
        through = graph[actor] * graph[candidate]
        share = through / (through.sum() + FLOOR)
        share[[actor, candidate]] = 0
        found = third_parties(neighbours, actor, candidate, now, most=4)
        assert list(found.values()) == pytest.approx(np.sort(share)[::-1][:4].tolist(), rel=1e-4)
        assert all(of == pytest.approx(share[party], rel=1e-4) for party, of in found.items())
    assert third_parties(neighbours, 0, 7, cut=0) == {}


def test_a_sentence_says_how_the_rank_moved_and_why(found: list[LearnedExplanation]) -> None:
    read = [e for e in found if e.groups]
    for e in read:
        text = e.sentence()
        assert f"ranks {e.candidate} {ordinal(e.rank)}" in text
        assert (f"up from {ordinal(e.backbone_rank)}" in text) == (e.rank < e.backbone_rank)
        assert (f"down from {ordinal(e.backbone_rank)}" in text) == (e.rank > e.backbone_rank)
        assert ("The two never interacted" in text) == (not e.seen)
        if not e.seen and e.common_neighbours:
            assert e.common_neighbours[0].name in text
        if "mostly because of what happened between the two" in text and "did" in text:
            sign = 1 if e.rank < e.backbone_rank else -1
            main = max(e.events, key=lambda event: sign * event.part)
            assert f"{main.subject} did '{main.relation}' to {main.object}" in text
    texts = " ".join(e.sentence() for e in read)
    assert all(
        words in texts for words in ("up from", "down from", "mostly because of", "above all that", "common neighb")
    )


def test_what_sets_a_candidate_apart_sums_to_its_distance_from_the_average(
    events: EventLog, found: list[LearnedExplanation]
) -> None:
    read = [e for e in found[: events.n_entities] if e.groups]
    average = sum(e.residual for e in read) / len(read)
    for e in read:
        # residuals are the forecast's, in single precision
        assert sum(e.apart.values()) == pytest.approx(e.residual - average, abs=1e-5)


def test_ranks_are_written_as_people_say_them() -> None:
    written = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 13: "13th", 21: "21st", 112: "112th", 122: "122nd"}
    assert {n: ordinal(n) for n in written} == written

"""The simulated world: its shape, its planted scripts, and the exactness of what it says about itself."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from bridgemem.errors import SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.world import RELATIONS, World, WorldSettings, simulate
from precision import close

COLUMNS = ("subject", "relation", "object", "step")
SMALL = WorldSettings(actors=20, relations=8, steps=90, events=900, partners=4, distractors=0.3, seed=3)


@pytest.fixture(scope="module")
def world() -> World:
    return simulate()


@pytest.fixture(scope="module")
def small() -> World:
    return simulate(SMALL)


def recency(lag: int) -> int:
    return 0 if lag <= 1 else 1 if lag <= 4 else 2 if lag <= 16 else 3 if lag <= 64 else 4


def next_relation_counts(events: EventLog) -> np.ndarray:
    """float64 [2R * 5, 2R]: how often a directed relation followed the last strictly earlier event within 65 steps."""
    R = events.n_relations
    counts = np.zeros((2 * R * 5, 2 * R))
    last: dict[tuple[int, int], tuple[int, int]] = {}
    of_this_step: dict[tuple[int, int], tuple[int, int]] = {}
    now = -1
    for s, r, o, t in zip(*(getattr(events, c).tolist() for c in COLUMNS), strict=True):
        if t != now:
            last |= of_this_step
            of_this_step, now = {}, t
        for pair, directed in (((s, o), r), ((o, s), r + R)):
            before, then = last.get(pair, (0, -1000))
            if t - then <= 65:
                counts[before * 5 + recency(t - then), directed] += 1
            of_this_step[pair] = (directed, t)
    return counts


def meeting(world: World, actor: np.ndarray, step: np.ndarray) -> np.ndarray:
    """float64 [n, E]: what true_scores is worth without the transitions, the chance to meet by whatever relation."""
    chance = np.empty((len(actor), world.settings.actors))
    for rows, now, pairs in world._pasts(step, None):
        chance[rows] = pairs.probability(now)[actor[rows]]
    return chance


def ranks(scores: np.ndarray, answer: np.ndarray) -> np.ndarray:
    own = scores[np.arange(len(answer)), answer][:, None]
    return (scores > own).sum(1) + ((scores == own).sum(1) + 1) / 2


def queries(events: EventLog) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """actor, directed relation, step, answer of both sides of every event."""
    actor = np.concatenate([events.subject, events.object])
    answer = np.concatenate([events.object, events.subject])
    relation = np.concatenate([events.relation, events.relation + events.n_relations])
    return actor, relation, np.tile(events.step, 2), answer


# ---- shape -------------------------------------------------------------------------------------------------------


def test_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    one, two, other = simulate(SMALL), simulate(SMALL), simulate(dataclasses.replace(SMALL, seed=4))
    assert one.events.fingerprint == two.events.fingerprint
    assert one.events.entities == two.events.entities
    assert np.array_equal(one.weight, two.weight)
    assert one.events.fingerprint != other.events.fingerprint


def test_default_world_has_the_promised_size_and_split(world: World) -> None:
    events, data = world.events, world.dataset
    assert data.name == "world"
    assert events.n_entities == 300
    assert events.n_relations == 24
    assert 40_000 <= len(events) <= 60_000
    assert events.end == 200
    assert len(data.train) / len(events) == pytest.approx(0.8, abs=0.02)
    assert len(data.valid) / len(events) == pytest.approx(0.1, abs=0.02)
    assert len(data.test) / len(events) == pytest.approx(0.1, abs=0.02)
    assert events.clock.label(31) == "2030-02-01"


@pytest.mark.parametrize("actors", [3, 20, 300, 2000])
def test_every_actor_has_a_name_of_its_own(actors: int) -> None:
    names = simulate(WorldSettings(actors=actors, steps=10, events=100)).events.entities.names
    assert len(set(names)) == actors
    assert all(name.strip() == name and name for name in names)


def test_no_actor_meets_itself_and_every_actor_has_a_partner(world: World) -> None:
    assert (world.events.subject != world.events.object).all()
    assert world.weight.any(axis=1).all()
    assert not world.weight.diagonal().any()


def test_activity_is_heavy_tailed_over_actors_and_pairs(world: World) -> None:
    events = world.events
    per_actor = np.sort(np.bincount(np.concatenate([events.subject, events.object]), minlength=300))[::-1]
    low, high = np.minimum(events.subject, events.object), np.maximum(events.subject, events.object)
    per_pair = np.sort(np.unique(low.astype(np.int64) * 300 + high, return_counts=True)[1])[::-1]
    assert per_actor[:30].sum() > 0.4 * per_actor.sum()
    assert per_actor[-150:].sum() < 0.25 * per_actor.sum()
    assert per_pair[: len(per_pair) // 10].sum() > 0.4 * per_pair.sum()


def test_distractors_join_unseen_candidates(world: World) -> None:
    unseen_candidates = world.weight[world.events.subject, world.events.object] == 0
    # a chance meeting may also hit a pair that has a weight of its own
    assert 0.5 * 0.15 < unseen_candidates.mean() < 0.15


def test_without_distractors_only_structured_pairs_meet() -> None:
    world = simulate(dataclasses.replace(SMALL, distractors=0.0))
    assert world.weight[world.events.subject, world.events.object].all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("actors", 2),
        ("actors", 2001),
        ("actors", 20.5),
        ("relations", 1),
        ("relations", 25),
        ("steps", 9),
        ("events", 99),
        ("seed", -1),
        ("distractors", 1.5),
        ("distractors", math.nan),
        ("strength", -0.1),
        ("boost", math.inf),
        ("partners", 0),
        ("tail", "long"),
    ],
)
def test_unusable_settings_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        WorldSettings(**{field: value})  # type: ignore[arg-type]


# ---- the planted table -------------------------------------------------------------------------------------------


def test_planted_table_is_a_law_for_every_token(world: World) -> None:
    assert world.transition.shape == (2 * 24 * 5, 2 * 24)
    assert (world.transition > 0).all()
    assert world.transition.sum(axis=1) == pytest.approx(1)
    assert world.base.sum() == pytest.approx(1)


def test_planted_table_does_not_depend_on_which_side_looks(world: World) -> None:
    table = world.transition.reshape(2, 24, 5, 2, 24)
    assert np.array_equal(table, table[::-1, :, :, ::-1])


def test_scripts_fade_with_lag_down_to_the_base_rates(world: World) -> None:
    table = world.transition.reshape(48, 5, 48)
    for link in world.scripts:
        effect = RELATIONS.index(link.effect) + 24 * link.reply
        chance = table[RELATIONS.index(link.cause), :, effect]
        assert (np.diff(chance) < 0).all(), link
        assert chance[0] > 3 * world.base[effect], link
    assert close(table[:, 4], np.broadcast_to(world.base, (48, 48)))


@pytest.mark.parametrize(
    ("cause", "effect", "reply"),
    [("provide aid", "visit", True), ("visit", "consult", True), ("criticise", "sanction", False)],
)
def test_scripts_are_visible_in_the_events(world: World, cause: str, effect: str, reply: bool) -> None:
    counts = next_relation_counts(world.events).reshape(48, 5, 48)[RELATIONS.index(cause)]
    seen = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    right, wrong = (RELATIONS.index(effect) + 24 * side for side in (reply, not reply))
    assert seen[0, right] > 4 * world.base[right], "the script holds at lag 1"
    assert seen[0, wrong] < 1.2 * world.base[wrong], "the other direction is no part of it"
    assert seen[3, right] < 0.4 * seen[0, right], "it fades"


def test_next_relation_frequencies_converge_to_the_planted_table() -> None:
    error = []
    for n in (8_000, 32_000, 128_000):
        world = simulate(WorldSettings(events=n, actors=150))
        counts = next_relation_counts(world.events)
        support = counts.sum(axis=1)
        known = support > 0
        T = world.transition[known]
        variation = np.abs(counts[known] / support[known, None] - T).sum(axis=1) / 2
        error.append((variation * support[known]).sum() / support.sum())
    assert error[0] > 1.8 * error[1] > 1.8**2 * error[2], "four times the data, half the error"
    assert error[2] < 0.07

    # what sampling alone explains, token by token; any bias of a well-supported token would stand out
    expected = np.sqrt(T * (1 - T) / (2 * np.pi * support[known, None])).sum(axis=1)
    well = support[known] >= 200
    assert well.sum() > 100
    assert (variation[well] < 2.0 * expected[well]).all()
    assert variation[well].mean() == pytest.approx(expected[well].mean(), rel=0.1)


# ---- the exact scores --------------------------------------------------------------------------------------------


def slow_joint(world: World, a: int, c: int, directed: int, t: int) -> float:
    """The joint of one candidate, event by event, from the definition."""
    settings, R, E = world.settings, world.settings.relations, world.settings.actors
    rows = zip(*(getattr(world.events, k).tolist() for k in COLUMNS), strict=True)
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for s, r, o, step in rows:
        if step < t:
            last[s, o], last[o, s] = (r, step), (r + R, step)

    def intensity(i: int, j: int) -> float:
        recent = (i, j) in last and t - last[i, j][1] <= 3
        return float(world.weight[i, j]) * (1 + settings.boost if recent else 1)

    pairs = [(i, j) for i in range(E) for j in range(i + 1, E)]
    meet = (1 - settings.distractors) * intensity(a, c) / sum(intensity(i, j) for i, j in pairs)
    chance = sum(world.activity[i] * world.activity[j] for i, j in pairs)
    meet += settings.distractors * world.activity[a] * world.activity[c] / chance
    if (a, c) not in last or t - last[a, c][1] > 65:
        return meet * world.base[directed]
    before, then = last[a, c]
    return meet * world.transition[before * 5 + recency(t - then), directed]


def test_true_scores_equal_the_definition(small: World) -> None:
    rng = np.random.default_rng(0)
    actor, relation, step = rng.integers(0, 20, 12), rng.integers(0, 16, 12), rng.integers(0, 91, 12)
    scores = small.true_scores(actor, relation, step)
    for i, (a, r, t) in enumerate(zip(actor.tolist(), relation.tolist(), step.tolist(), strict=True)):
        slow = [slow_joint(small, a, c, r, t) for c in range(20) if c != a]
        assert np.exp(np.delete(scores[i], a)) == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize("step", [0, 1, 40, 90, 400])
def test_true_scores_sum_to_one_over_all_that_can_happen(small: World, step: int) -> None:
    actor, relation = (part.ravel() for part in np.indices((20, 16)))
    joint = np.exp(small.true_scores(actor, relation, np.full(320, step))).reshape(20, 16, 20).sum(axis=1)
    assert np.triu(joint, 1).sum() == pytest.approx(1)
    assert meeting(small, np.arange(20), np.full(20, step)) == pytest.approx(joint)


def test_both_sides_of_an_event_get_the_same_score(small: World) -> None:
    event = small.events.rows(300, 500)
    there = small.true_scores(event.subject, event.relation, event.step)
    back = small.true_scores(event.object, event.relation + 8, event.step)
    n = np.arange(200)
    assert there[n, event.object] == pytest.approx(back[n, event.subject])


def test_true_scores_are_finite_even_for_the_impossible() -> None:
    world = simulate(dataclasses.replace(SMALL, distractors=0.0, strength=1.0))
    scores = world.true_scores(np.arange(20), np.zeros(20, dtype=int), np.full(20, 60))
    assert np.isfinite(scores).all()
    assert (scores.argmin(axis=1) != scores.argmax(axis=1)).all()


def test_true_scores_read_strictly_earlier_events_only(small: World) -> None:
    events, t = small.events, 60
    query = (np.arange(20), np.arange(20) % 16, np.full(20, t))
    scores = small.true_scores(*query)
    assert np.array_equal(scores, small.true_scores(*query, events=events.prefix(t)))
    future = events.step >= t
    rng = np.random.default_rng(1)
    columns = [np.where(future, rng.permutation(getattr(events, c)), getattr(events, c)) for c in COLUMNS[:3]]
    corrupt = EventLog(*columns, events.step, events.entities, events.relations)
    assert np.array_equal(scores, small.true_scores(*query, events=corrupt))


def test_an_event_moves_the_scores_from_the_next_step_on(small: World) -> None:
    t = 60
    past = small.events.prefix(t)
    one = [np.append(getattr(past, c), v) for c, v in zip(COLUMNS, (4, 2, 9, t), strict=True)]
    longer = EventLog(*one, past.entities, past.relations)
    for step, moved in ((t, False), (t + 1, True)):
        query = (np.array([4, 9]), np.array([1, 1]), np.array([step, step]))
        changed = small.true_scores(*query, events=past) != small.true_scores(*query, events=longer)
        assert changed[[0, 1], [9, 4]].all() == moved
        assert changed.any() == moved


def test_true_scores_do_not_depend_on_the_order_of_queries(small: World) -> None:
    actor, relation, step, _ = queries(small.dataset.test)
    scores = small.true_scores(actor, relation, step)
    order = np.random.default_rng(2).permutation(len(actor))
    assert np.array_equal(scores[order], small.true_scores(actor[order], relation[order], step[order]))


def test_pairs_meet_as_often_as_the_law_says() -> None:
    world = simulate(WorldSettings(actors=40, steps=60, events=6_000, partners=8))
    expected = np.zeros((40, 40))
    recent, recent_expected, variance = 0, 0.0, 0.0
    for t in range(60):
        q = meeting(world, np.arange(40), np.full(40, t))
        at, before = world.events.between(t, t + 1), world.events.between(t - 3, t)
        recently = np.zeros((40, 40), dtype=bool)
        recently[before.subject, before.object] = recently[before.object, before.subject] = True
        p = np.triu(q * recently).sum()
        recent += int(recently[at.subject, at.object].sum())
        recent_expected += len(at) * p
        variance += len(at) * p * (1 - p)
        expected += len(at) * q
    assert abs(recent - recent_expected) < 4 * math.sqrt(variance)
    seen = np.zeros((40, 40))
    np.add.at(seen, (world.events.subject, world.events.object), 1)
    seen, expected = (seen + seen.T)[np.triu_indices(40, 1)], expected[np.triu_indices(40, 1)]
    # squared errors of counts are as large as the counts themselves, and no larger
    busy = expected > 5
    assert ((seen - expected)[busy] ** 2 / expected[busy]).mean() == pytest.approx(1, abs=0.4)


def test_transitions_are_worth_knowing(world: World) -> None:
    actor, relation, step, answer = queries(world.dataset.test)
    oracle, intensity, chance = (
        (1 / ranks(scores, answer)).mean()
        for scores in (
            world.true_scores(actor, relation, step),
            meeting(world, actor, step),
            np.random.default_rng(5).random((len(actor), 300)),
        )
    )
    assert 0.35 < oracle < 0.6
    assert intensity < oracle - 0.05
    assert chance < 0.05 < intensity - 0.1

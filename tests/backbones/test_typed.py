"""RecurrenceTyped: its formula and its counts, from the raw events."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from bridgemem.backbones import load_backbone, typed
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.typed import RecurrenceTyped, TypedSettings, Usual, count_confidence, read_events
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import dataset_of, log_of, random_log, rows_of, small_world
from precision import FLOAT64, close


@cache
def dataset() -> Dataset:
    return dataset_of(random_log(8, n=300))


@cache
def fitted(k: int = 3) -> RecurrenceTyped:
    return RecurrenceTyped.fit(dataset(), TypedSettings(ks=(k,), frequencies=(0.3,), smoothing=0.5))


def sides(events: EventLog) -> list[tuple[int, int, int, int]]:
    """(actor, directed relation, candidate, step) of both sides of every event."""
    R = events.n_relations
    return [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]


def test_confidence_is_the_same_searched_and_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    events, model = dataset().events, fitted()
    queries, seen = Queries.of(events).take(slice(0, 200)), replace(model.confidence)
    states = Past(events).dyads.partners(queries.actor, queries.step, 3, 0)
    expected = seen.sums(queries.relation, states, events.n_relations)
    monkeypatch.setattr("bridgemem.backbones.typed.DENSE", 0)
    assert torch.equal(seen.sums(queries.relation, states, events.n_relations), expected)
    assert expected.unique().numel() > 3


@pytest.mark.parametrize("frozen", [None, 18])
def test_scores_equal_the_formula(frozen: int | None) -> None:
    events, model = dataset().events, fitted()
    queries = Queries.of(events.between(20, 30)).take(slice(0, 40))
    found = model.score(queries, Past(events, frozen)).log_p
    seen = model.confidence
    confidence = {
        (b, a): float(v) for b, a, v in zip(seen.before.tolist(), seen.after.tolist(), seen.value, strict=True)
    }
    train = sides(dataset().train)
    for row, (a, r, t) in enumerate(
        zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True)
    ):
        past = [side for side in sides(events) if side[3] < (t if frozen is None else min(t, frozen))]
        answers = [c for _, r2, c, _ in train if r2 == r]
        for c in range(events.n_entities):
            share = sum(c2 == c for _, _, c2, _ in train) / len(train)
            expected = 0.1 * (answers.count(c) + 5 * share) / (len(answers) + 5)
            triple = [t - t2 for a2, r2, c2, t2 in past if (a2, r2, c2) == (a, r, c)]
            if triple:
                expected += 2 * (1 + 0.5 ** min(triple)) + 0.3 * math.log(1 + len(set(triple)))
            for _, r2, _, t2 in [side for side in past if (side[0], side[2]) == (a, c)][-3:]:
                factor = float(seen.lag[int(math.log2(t - t2))])
                expected += confidence.get((r2, r), float(seen.usual)) * factor
            assert float(found[row, c]) == pytest.approx(math.log(max(expected, 1e-12)), abs=1e-9)


def test_confidence_and_lags_expect_as_many_answers_as_there_were() -> None:
    settings = TypedSettings(smoothing=1e-9)
    past, queries = Past(dataset().train), Queries.of(dataset().train)
    assert queries.answer is not None
    read = read_events(queries, past, (1, 4))
    found = count_confidence(read[4], past.events.n_relations, 4, settings)
    states = past.dyads.partners(queries.actor, queries.step, 4, 0)
    hits = float(((states.candidate == queries.answer[states.row])[:, None] & states.found).sum())
    assert hits > 100
    expected = float(found.sums(queries.relation, states, past.events.n_relations).sum())
    assert expected == pytest.approx(hits, rel=1e-6)


@pytest.mark.parametrize("most", [10, 10**6])
def test_events_that_are_read_for_several_k_at_once_are_those_of_each_alone(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed, "MOST_EVENTS", most)
    past, queries = Past(dataset().train), Queries.of(dataset().train)
    together = read_events(queries, past, (1, 4, 16))
    assert all(torch.equal(read, read_events(queries, past, (k,))[k]) for k, read in together.items())
    assert len(together[1]) != len(together[16])


def test_the_usual_answers_of_a_relation_add_up() -> None:
    events = dataset().train
    usual = Usual.of(events)
    of = usual.of_relations(torch.arange(2 * events.n_relations), 5.0, 1.0)
    assert close(of.sum(1), torch.ones(2 * events.n_relations, dtype=torch.float64), FLOAT64)


def lasting() -> Dataset:
    """Each of ten actors stays with one partner for ten steps, then with another; only the last one counts."""
    rows = [(a, 0, 10 + (a + t // 10) % 7, t) for a in range(10) for t in range(60)]
    return Dataset("lasting", log_of(rows, 20, 2), 54)


def test_facts_that_last_are_told_from_events_that_repeat() -> None:
    settings = TypedSettings(triple=0.0, frequencies=(0.0,))
    assert RecurrenceTyped.fit(lasting(), settings).confidence.k == 1
    rows = [(a, 0, 10 + (a + (t % 4 == 0) * (1 + t % 5)) % 10, t) for a in range(10) for t in range(60)]
    repeating = Dataset("repeating", log_of(rows, 20, 2), 54)
    assert RecurrenceTyped.fit(repeating, settings).confidence.k == 16


def test_the_frequency_is_chosen_by_what_repeats() -> None:
    """The usual partner comes two times in three, and never last before a query of train's end."""
    rows = [(a, 0, 10 + (a if t % 3 else a + 1 + t % 7) % 10, t) for a in range(10) for t in range(60)]
    settings = TypedSettings(ks=(1,), frequencies=(0.0, 5.0))
    assert RecurrenceTyped.fit(Dataset("usual", log_of(rows, 20, 2), 54), settings).frequency == 5.0
    assert RecurrenceTyped.fit(lasting(), settings).frequency == 0.0


def test_it_keeps_the_contract() -> None:
    check_backbone(fitted(), dataset().events)


def test_training_reads_train_alone_and_is_decided_by_the_seed() -> None:
    only_train = replace(dataset(), events=dataset().known.prefix(dataset().valid_start + 1), test_start=None)
    for name, tensor in RecurrenceTyped.fit(only_train, fitted().settings).tensors().items():
        assert torch.equal(tensor, fitted().tensors()[name]), name


def test_it_is_saved_and_loaded_by_name(tmp_path: Path) -> None:
    world = small_world()
    backbone = RecurrenceTyped.fit(world.dataset)
    backbone.save(tmp_path / "typed")
    again = load_backbone(tmp_path / "typed")
    assert isinstance(again, RecurrenceTyped)
    queries, past = Queries.of(world.dataset.valid), Past(world.events)
    assert torch.equal(again.score(queries, past).log_p, backbone.score(queries, past).log_p)


def test_grown_it_is_what_fit_makes_of_the_same_train_split_with_more_names() -> None:
    events = dataset().events
    wide = log_of(rows_of(events), events.n_entities + 3, events.n_relations + 2)
    queries = Queries.of(wide.between(15, 25))
    settings = TypedSettings(ks=(3,))
    grown = RecurrenceTyped.fit(Dataset("own", events, 20), settings).grown(wide.n_entities, wide.n_relations)
    fit = RecurrenceTyped.fit(Dataset("own", wide, 20), settings)
    for name, tensor in grown.tensors().items():
        assert close(tensor.double(), fit.tensors()[name].double(), FLOAT64), name
    assert close(grown.score(queries, Past(wide)).log_p, fit.score(queries, Past(wide)).log_p, FLOAT64)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("k", torch.tensor(7)),
        ("start", torch.tensor([0, 3, 2])),
        ("answer", torch.tensor([-1])),
        ("lag", torch.ones(3)),
        ("value", torch.tensor([math.nan])),
    ],
)
def test_tensors_of_something_else_are_refused(name: str, wrong: torch.Tensor) -> None:
    tensors = fitted().tensors()
    if name in ("answer", "value"):
        wrong = wrong.repeat(len(tensors[name]))
    with pytest.raises(ValueError, match=name):
        RecurrenceTyped.restore(fitted().settings, {**tensors, name: wrong})


def test_a_train_split_of_a_single_fact_can_be_fitted() -> None:
    few = Dataset("few", log_of([(0, 0, 1, 1), (0, 0, 2, 5)]), 5)
    scores = RecurrenceTyped.fit(few).score(Queries.of(few.valid), Past(few.events)).log_p
    assert scores.isfinite().all()

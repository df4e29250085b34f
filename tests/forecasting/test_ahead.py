"""Ahead: what, with whom, whether and when, asked of a forecaster by name."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import pytest
import torch

from bridgemem.config import Settings
from bridgemem.errors import DataError, NotFoundError, RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.ahead import Ahead, Chance
from bridgemem.forecasting.chances import Pairs
from bridgemem.forecasting.heads import fit_heads
from bridgemem.forecasting.occurrence import Keys, OccurrenceSettings, wholes
from bridgemem.forecasting.relations import RelationSettings
from bridgemem.live.eventstore import EventStore
from bridgemem.live.refresh import refresh
from bridgemem.memory.past import Past
from bridgemem.runs import Run
from builders import log_of, small_world
from fits import last_event as seen_pair
from fits import small_forecaster as fitted

QUICK = RelationSettings(hidden=8, queries=300, epochs=1), OccurrenceSettings(hidden=8, dates=8)


def chance(subject: str, relation: str | int | None, object: str, horizon: int = 1) -> Chance:
    return fitted().whether(subject, relation, object=object, horizon=horizon)


def test_what_ranks_every_event_between_two_parties_once() -> None:
    one, _, two = seen_pair()
    found = fitted().what(one, two, top=1000, horizon=7)
    assert len(found) == 2 * small_world().events.n_relations
    assert sum(c.p_given_event for c in found) == pytest.approx(1)
    assert [c.rank for c in found] == list(range(1, len(found) + 1))
    assert {(c.subject, c.object) for c in found} == {(one, two), (two, one)}
    assert all(c.p_event <= found.query.p_event + 1e-9 for c in found)


def test_what_is_the_same_whoever_is_named_first() -> None:
    one, _, two = seen_pair()
    events = [
        {(c.subject, c.relation, c.object): round(c.p_given_event, 5) for c in fitted().what(*pair, top=50)}
        for pair in ((one, two), (two, one))
    ]
    assert events[0] == events[1]


def test_partners_are_those_of_the_past_with_the_probability_of_the_pair() -> None:
    actor, _, _ = seen_pair()
    found = fitted().partners(actor, horizon=3, top=5)
    assert len(found) == 5
    assert [c.p_event for c in found] == sorted((c.p_event for c in found), reverse=True)
    pair = chance(actor, None, found[0].name, 3)
    assert pair.query.p_event == pytest.approx(found[0].p_event, rel=1e-5)
    assert actor in (found[0].subject, found[0].object)


def test_whether_grows_with_the_horizon_and_knows_its_median() -> None:
    found = chance(*seen_pair(), 5)
    chances = [one.p_event for one in found.within]
    assert chances == sorted(chances)
    (asked,) = (one.p_event for one in found.within if one.steps == 5)
    assert asked == found.query.p_event
    if found.median is not None and found.median > 1:
        around = [chance(*seen_pair(), h).query.p_event for h in (found.median - 1, found.median)]
        assert around[0] < 0.5 <= around[1]


def test_what_never_happened_has_a_small_probability_above_zero() -> None:
    events = small_world().events
    pairs = {frozenset((int(s), int(o))) for s, o in zip(events.subject, events.object, strict=True)}
    one, two = next((i, j) for i in range(30) for j in range(i) if frozenset((i, j)) not in pairs)
    names = events.entities.names
    strangers, seen = (chance(*pair, 7).query for pair in ((names[one], None, names[two]), seen_pair()))
    assert strangers.past_events == 0
    assert seen.past_events > 0
    assert 0 < (strangers.p_event or 0) < (seen.p_event or 0)
    triple = chance(names[one], 0, names[two], 7).query
    assert 0 < (triple.p_event or 0) < (strangers.p_event or 0)


def test_a_triple_that_never_happened_may_be_any_event_of_its_pair() -> None:
    """Two parties with five events a step, and two with one: a share of a tenth is soon among the former."""
    rows = [(0, 0, 1, step) for step in range(40) for _ in range(5)] + [(2, 0, 3, step) for step in range(40)]
    events = log_of(rows)
    ahead = Ahead(Past(events), fit_heads(Dataset("two pairs", events, 30), *QUICK))
    first, other = torch.tensor([0, 2]), torch.tensor([1, 3])
    step = torch.full_like(first, events.end)
    pair, triple = (Keys(kind, first, torch.ones_like(first), other, step) for kind in ("pair", "triple"))
    whole = ahead.p_event(pair, 3)
    pairs = Pairs(ahead, triple)
    pairs.shares = torch.full((2, 2 * events.n_relations), 0.1).double()
    busy, quiet = -torch.expm1(ahead.log_survival(triple, (3,), pairs)[:, 0]) / whole
    assert 0.1 < quiet < busy < 1
    assert quiet < 0.35  # of three events
    assert busy > 0.6  # of fifteen


@pytest.mark.parametrize("horizon", [1, 7, 40])
def test_all_events_of_a_pair_come_to_no_less_than_the_pair(horizon: int) -> None:
    """The union bound, wherever no bound by what an event is a part of lies below."""
    events, ahead = small_world().events, fitted().predictor.ahead
    raised = 0
    for first, second in {(int(s), int(o)) for s, o in zip(events.subject[-40:], events.object[-40:], strict=True)}:
        found = fitted().what(first, second, top=1000, horizon=horizon)
        ends = [[events.entity_id(getattr(one, name)) for one in found] for name in ("subject", "object")]
        subject, object_ = map(torch.tensor, ends)
        relation = torch.tensor([events.relation_id(one.relation) for one in found])
        triples = Keys("triple", subject, relation, object_, torch.full_like(subject, events.end))
        own = ahead.log_survival(triples, (horizon,), together=False)[:, 0]
        together = ahead.log_survival(triples, (horizon,))[:, 0]
        assert (together <= own + 1e-12).all()
        raised += int((together < own - 1e-9).any())
        parts = torch.cat([ahead.p_event(whole, horizon) for whole in wholes(triples, events.n_relations)])
        bound = parts.view(3, -1).amin(0)
        free = (-torch.expm1(together) < bound * (1 - 1e-6)).all()
        if free:
            assert sum(one.p_event for one in found) > (found.query.p_event or 0) * (1 - 1e-6)
    assert raised


def test_an_event_has_one_probability_in_every_answer() -> None:
    top = fitted().outlook(horizon=7, top=5)
    for one in top:
        alone = chance(one.subject, one.relation, one.object, 7).query.p_event
        among = {
            (c.subject, c.relation, c.object): c for c in fitted().what(one.subject, one.object, top=1000, horizon=7)
        }
        assert alone == pytest.approx(one.p_event, rel=1e-5)
        assert among[one.subject, one.relation, one.object].p_event == pytest.approx(one.p_event, rel=1e-5)


def test_a_saved_forecaster_gives_the_same_answers(tmp_path: Path) -> None:
    one, relation, two = seen_pair()
    before = fitted().what(one, two), fitted().partners(one), chance(one, relation, two)
    own = Forecaster("recurrence", residual="bridgemem", settings=Settings(width=8, hidden=8, max_epochs=1))
    own.fit(small_world().dataset).save(tmp_path / "run")
    loaded = Forecaster.load(tmp_path / "run")
    assert (loaded.what(one, two), loaded.partners(one), loaded.whether(one, relation, object=two)) == before


def test_an_update_counts_at_once() -> None:
    model = Forecaster("recurrence", residual="bridgemem", settings=Settings(width=8, hidden=8, max_epochs=1))
    model.fit(small_world().dataset)
    events = small_world().events
    one, relation, two = seen_pair()
    now = events.clock.label(62)
    before = model.whether(one, relation, object=two, at=now).query
    model.update([(one, relation, two, events.clock.label(step)) for step in (60, 61)])
    after = model.whether(one, relation, object=two, at=now).query
    assert after.past_events == before.past_events + 2
    model.update([(one, "a new relation", two, events.clock.label(61))])
    with pytest.raises(NotFoundError, match="was fitted without 'a new relation'"):
        model.whether(one, "a new relation", object=two)
    assert len(model.what(one, two, top=1000)) == 2 * events.n_relations


def test_a_refreshed_run_goes_on_with_the_heads_of_its_fit(tmp_path: Path) -> None:
    events = small_world().events
    one, relation, two = seen_pair()
    run = copy(fitted()).save(tmp_path / "run")
    later = events.clock.label(61)
    with EventStore(tmp_path / "events.duckdb") as store:
        store.follow(events, Run(run).origin)
        store.append([(one, "brand new", two, later), ("Newcomer", relation, two, later)], source="wire", key="1")
        refresh(Run(run), store, out=tmp_path / "later")
    model = Forecaster.load(tmp_path / "later")
    assert len(model.what(one, two, top=1000)) == 2 * events.n_relations
    assert [c.name for c in model.partners("Newcomer")] == [two]
    assert model.whether(one, relation, object=two).query.p_event


def test_bad_queries_are_refused_in_one_sentence(tmp_path: Path) -> None:
    one, relation, two = seen_pair()
    with pytest.raises(SettingsError, match="give two of subject, relation and object"):
        fitted().whether(one)
    with pytest.raises(SettingsError, match="horizon must be at least 1"):
        fitted().what(one, two, horizon=0)
    with pytest.raises(DataError, match="lie too far ahead"):
        chance(one, relation, two, 10**18)
    with pytest.raises(NotFoundError, match="no entity is called 'Nobody'"):
        fitted().partners("Nobody")
    run = copy(fitted()).save(tmp_path / "run")
    (run / "heads.json").unlink()
    with pytest.raises(RunError, match="fit it again"):
        Forecaster.load(run).what(one, two)

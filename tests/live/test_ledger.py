"""Ledger: forecasts are kept as issued, resolved when their window is over, and again when the past changes."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.forecasting.claims import Claim
from bridgemem.live.backup import backup
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.ledger import Ledger
from builders import small_world
from fits import last_event, small_forecaster

ONE, VISIT, TWO = last_event()
END = small_world().events.end


def label(step: int) -> str:
    return small_world().events.clock.label(step)


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    made = EventStore(tmp_path / "events.duckdb")
    made.follow(small_world().events)
    return made


def add(store: EventStore, *events: tuple[str, str, str, int]) -> list[str]:
    rows = [(s, r, o, label(step)) for s, r, o, step in events]
    found = store.append(rows, source="wire", key=str(len(store.receipts()))).ids
    Ledger(store).resolve()
    return found


def issue(store: EventStore, found: Any) -> int:
    return Ledger(store).issue(found, predictor=small_forecaster().predictor, version="v1")


def states(store: EventStore, forecast: int) -> list[str]:
    return [claim.state for claim in Ledger(store).forecasts(forecast=forecast)[0].claims]


def test_a_forecast_is_kept_with_its_window_and_its_probabilities(store: EventStore) -> None:
    chance = small_forecaster().whether(ONE, VISIT, object=TWO, horizon=3)
    assert issue(store, chance) == 1
    (kept,) = Ledger(store).forecasts()
    assert (kept.query, kept.subject, kept.relation, kept.object) == ("whether", ONE, VISIT, TWO)
    assert (kept.as_of, kept.time, kept.until, kept.horizon) == (label(END), label(END), label(END + 2), 3)
    (claim,) = kept.claims
    assert claim.claim.p == chance.query.p_event
    assert (claim.state, claim.probability, kept.version) == ("open", "p_event", "v1")
    assert 0 < claim.claim.base_rate < 1
    assert 0 < claim.claim.persistence < 1


@pytest.mark.parametrize("kind", ["who", "who-subject", "who-horizon", "what", "partners", "outlook"])
def test_every_answer_can_be_issued(store: EventStore, kind: str) -> None:
    model = small_forecaster()
    found = {
        "who": lambda: model.forecast(ONE, VISIT, top=3),
        "who-subject": lambda: model.forecast(None, VISIT, object=ONE, top=3),
        "who-horizon": lambda: model.forecast(ONE, VISIT, top=3, horizon=2),
        "what": lambda: model.what(ONE, TWO, top=3),
        "partners": lambda: model.partners(ONE, top=3),
        "outlook": lambda: model.outlook(top=3),
    }[kind]()
    issue(store, found)
    (kept,) = Ledger(store).forecasts()
    assert len(kept.claims) == (7 if kind == "what" else 3)
    assert kept.query == kind.partition("-")[0]
    for one in kept.claims:
        assert all(0 <= p <= 1 for p in (one.claim.p, one.claim.base_rate, one.claim.persistence))
    # twice the window after all of it, so that everything is over
    add(store, (ONE, VISIT, TWO, END + 20))
    assert "open" not in states(store, 1)


def test_a_window_that_has_begun_is_refused_by_the_stores_clock(store: EventStore) -> None:
    model = small_forecaster()
    with pytest.raises(SettingsError, match="its window has begun; ask for a window from"):
        issue(store, model.whether(ONE, VISIT, object=TWO, at=label(END - 1)))
    made = model.whether(ONE, VISIT, object=TWO)
    add(store, (ONE, VISIT, TWO, END))
    with pytest.raises(SettingsError, match=f"knows events up to {label(END)}"):
        issue(store, made)  # the events came after the forecast, and before it was issued
    assert not Ledger(store).exists


def test_an_event_is_resolved_when_its_window_is_over_and_not_before(store: EventStore) -> None:
    model = small_forecaster()
    issue(store, model.whether(ONE, VISIT, object=TWO, horizon=2))
    issue(store, model.whether(TWO, VISIT, object=ONE, horizon=2))
    issue(store, model.whether(ONE, None, object=TWO, horizon=2))
    add(store, (TWO, VISIT, ONE, END + 1))
    assert [states(store, n) for n in (1, 2, 3)] == [["open"], ["open"], ["open"]]
    add(store, ("Somebody", VISIT, TWO, END + 2))
    assert [states(store, n) for n in (1, 2, 3)] == [["no"], ["yes"], ["yes"]]


def test_late_events_and_retractions_resolve_again_and_the_history_is_kept(store: EventStore) -> None:
    issue(store, small_forecaster().whether(ONE, VISIT, object=TWO))
    add(store, ("Somebody", VISIT, TWO, END + 5))
    claim = Ledger(store).forecasts()[0].claims[0].id
    (late,) = add(store, (ONE, VISIT, TWO, END))
    assert states(store, 1) == ["yes"]
    add(store, (ONE, VISIT, TWO, END))  # once more changes nothing
    assert len(Ledger(store).history(claim)) == 2
    again = store.stored(last=1)[0].id
    store.retract([late, again])
    Ledger(store).resolve()
    assert states(store, 1) == ["no"]
    history = Ledger(store).history(claim)
    assert [(one.hits, one.total) for one in history] == [(0, 1), (1, 1), (0, 1)]
    assert [one.batches for one in history] == [1, 2, 3]
    assert [one.retractions for one in history] == [0, 0, 2]
    assert Ledger(store).resolve() == 0


def test_shares_count_the_events_that_meet_the_condition(store: EventStore) -> None:
    model = small_forecaster()
    issue(store, model.forecast(ONE, VISIT, top=1000))
    issue(store, model.what(ONE, TWO, top=1000))
    add(store, (ONE, VISIT, TWO, END), (ONE, VISIT, "Somebody", END), ("Later", VISIT, TWO, END + 1))
    who, what = Ledger(store).forecasts()
    came = {c.claim.object: (c.hits, c.total, c.state) for c in who.claims}
    assert came.pop(TWO) == (1, 2, "partly")
    assert set(came.values()) == {(0, 2, "no")}
    shares = {(c.claim.subject, c.claim.relation): c.state for c in what.claims if c.claim.measure == "share"}
    assert shares.pop((ONE, VISIT)) == "yes"
    assert set(shares.values()) == {"no"}


def test_a_condition_that_is_never_met_is_void_and_not_scored(store: EventStore) -> None:
    issue(store, small_forecaster().forecast(ONE, VISIT, top=3, horizon=2))
    add(store, ("Somebody", VISIT, TWO, END + 9))
    assert states(store, 1) == ["void"] * 3
    record = Ledger(store).score()
    assert (record.claims, record.void, record.scores) == (3, 3, ())


def test_scores_are_those_of_the_formulas(store: EventStore) -> None:
    model = small_forecaster()
    issue(store, model.outlook(top=40, horizon=2))
    issue(store, model.partners(ONE, top=5, horizon=1))
    best = model.outlook(top=2, horizon=2)
    events = [(e.subject, e.relation, e.object, END) for e in best]
    add(store, *events, ("Somebody", VISIT, TWO, END + 9))
    claims = [c for f in Ledger(store).forecasts() for c in f.claims]
    p, hit = np.array([c.claim.p for c in claims]), np.array([c.state == "yes" for c in claims])
    (score,) = Ledger(store).score().scores
    assert score.claims == len(claims) == 45
    assert score.brier == pytest.approx(((p - hit) ** 2).mean())
    assert score.log_score == pytest.approx(-np.log(np.where(hit, p, 1 - p)).mean())
    assert score.came_true == pytest.approx(hit.mean())
    rates = np.array([c.claim.base_rate for c in claims])
    assert score.brier_base_rate == pytest.approx(((rates - hit) ** 2).mean())
    by = {name: Ledger(store).score(by=name) for name in ("month", "relation", "horizon")}
    assert [s.group for s in by["horizon"].scores] == ["1 step", "2 steps"]
    assert {s.group for s in by["month"].scores} == {label(END)[:7]}
    assert "any" in {s.group for s in by["relation"].scores}
    assert sum(s.claims for s in by["relation"].scores) == 45
    assert len(str(by["relation"]).splitlines()) == len(by["relation"].scores) + 1
    with pytest.raises(SettingsError, match="scores are grouped by all, month, relation or horizon"):
        Ledger(store).score(by="weekday")


def test_rules_and_probabilities_do_not_see_the_window(store: EventStore, tmp_path: Path) -> None:
    model = small_forecaster()
    known = copy(model).update([(ONE, VISIT, TWO, label(END + 3))])
    when = label(END)
    made = [m.whether(ONE, VISIT, object=TWO, at=when, horizon=2) for m in (model.predictor, known)]
    other = EventStore(tmp_path / "other.duckdb")
    other.follow(small_world().events)
    for place, found in zip((store, other), made, strict=True):
        issue(place, found)
    assert Ledger(store).forecasts()[0].claims == Ledger(other).forecasts()[0].claims


def test_aliases_of_a_name_resolve_it(store: EventStore) -> None:
    from dataclasses import replace

    model = small_forecaster()
    predictor = model.predictor.with_past(model.predictor.past)
    entities = replace(predictor.events.entities, aliases={"The Other": TWO})
    predictor.events = replace(predictor.events, entities=entities)
    found = model.whether(ONE, VISIT, object=TWO)
    Ledger(store).issue(found, predictor=predictor, version="v1")
    add(store, (ONE, VISIT, "The Other", END), ("Somebody", VISIT, TWO, END + 2))
    assert states(store, 1) == ["yes"]


def test_a_live_forecaster_resolves_what_it_takes_in(tmp_path: Path) -> None:
    model = copy(small_forecaster())
    model.save(tmp_path / "run")
    with EventStore(tmp_path / "events.duckdb") as store:
        live = LiveForecaster(model, store)
        found = live.view.predictor.whether(ONE, VISIT, object=TWO)
        Ledger(store).issue(found, predictor=live.view.predictor, version=live.view.version)
        live.add([(ONE, VISIT, TWO, label(END)), (ONE, VISIT, TWO, label(END + 1))], "wire", "1")
        live.tidy(wait=True)
        assert states(store, 1) == ["yes"]


def test_a_backup_holds_the_ledger_and_a_store_opens_again_with_it(store: EventStore, tmp_path: Path) -> None:
    issue(store, small_forecaster().whether(ONE, VISIT, object=TWO))
    backup(store, tmp_path / "copy.duckdb")
    kept = Ledger(store).forecasts()
    with EventStore(tmp_path / "copy.duckdb", read_only=True) as copy:
        assert Ledger(copy).forecasts() == kept
        assert Ledger(copy).score().open == 1
    store.close()
    with EventStore(store.path) as again:
        assert Ledger(again).forecasts() == kept


def test_what_is_not_there_is_one_sentence(store: EventStore) -> None:
    assert Ledger(store).forecasts() == []
    assert Ledger(store).history(1) == []
    with pytest.raises(NotFoundError, match="has no forecast 7"):
        Ledger(store).forecasts(forecast=7)
    with pytest.raises(SettingsError, match="is no forecast that can be issued"):
        issue(store, [0.5])
    with pytest.raises(SettingsError, match="states no probability"):
        issue(
            store,
            small_forecaster().forecast(ONE, VISIT)[:0],
        )


def test_a_condition_leaves_the_side_asked_for_open() -> None:
    claim = Claim("A", "visit", "B", "share", 0.5, "object")
    assert claim.condition == Claim("A", "visit", None, "event", 0.5)

"""Groups: any of several actors or relations, wherever a name can stand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.ledger import Ledger
from bridgemem.memory.past import Past
from builders import futures, small_world
from fits import last_event, small_forecaster

ONE, VISIT, TWO = last_event()
NAMES, RELATIONS = small_world().events.entities.names, small_world().events.relations.names
THREE = [name for name in NAMES[:5] if name not in (ONE, TWO)][:3]
ALL = {
    "three": THREE,
    "alone": [ONE],
    "all relations": RELATIONS,
    "two relations": RELATIONS[:2],
    "only visit": [VISIT],
}


def grouped() -> Predictor:
    return small_forecaster().with_groups(ALL)


def p_event(*names: Any, horizon: int = 3, predictor: Predictor | None = None) -> float:
    subject, relation, object_ = names
    found = (predictor or grouped()).whether(subject, relation, object=object_, horizon=horizon).query.p_event
    assert found is not None
    return found


@pytest.mark.parametrize(
    "names",
    [(ONE, VISIT, TWO), (ONE, None, TWO), (ONE, VISIT, None), (None, VISIT, ONE)],
    ids=["triple", "pair", "subject", "object"],
)
def test_a_group_of_one_is_its_member(names: tuple[str | None, ...]) -> None:
    swapped = ["alone" if n == ONE else "only visit" if n == VISIT else n for n in names]
    assert p_event(*swapped) == pytest.approx(p_event(*names), rel=1e-5)
    plain = small_forecaster().whether(names[0], names[1], object=names[2], horizon=3)
    made = grouped().whether(swapped[0], swapped[1], object=swapped[2], horizon=3)
    assert made.median == plain.median
    assert made.query.past_events == plain.query.past_events


@pytest.mark.parametrize("names", [("three", VISIT, TWO), ("three", None, TWO), ("three", VISIT, None)])
def test_a_group_of_actors_is_any_of_them(names: tuple[str | None, ...]) -> None:
    none = math.prod(1 - p_event(one, *names[1:]) for one in THREE)
    assert p_event(*names) == pytest.approx(1 - none, rel=1e-5)
    assert p_event(*names) >= max(p_event(one, *names[1:]) for one in THREE)


def test_relations_of_one_pair_are_bounded_by_the_pair() -> None:
    two = [p_event(ONE, relation, TWO) for relation in RELATIONS[:2]]
    pair = p_event(ONE, None, TWO)
    assert p_event(ONE, "two relations", TWO) == pytest.approx(min(1 - (1 - two[0]) * (1 - two[1]), pair), rel=1e-5)
    assert p_event(ONE, "all relations", TWO) <= pair + 1e-9


def test_what_and_partners_and_who_of_one_are_those_of_its_member() -> None:
    model = small_forecaster()
    made, plain = grouped().what("alone", TWO, top=100), model.what(ONE, TWO, top=100)
    shares = {(ONE if c.subject == "alone" else c.subject, c.relation): c.p_given_event for c in made}
    assert shares == pytest.approx({(c.subject, c.relation): c.p_given_event for c in plain}, rel=1e-4)
    theirs = {c.name: c.p_event for c in model.partners(ONE, top=100)}
    assert {c.name: c.p_event for c in grouped().partners("alone", top=100)} == pytest.approx(theirs, rel=1e-4)
    who = {c.name: c.p_given_event for c in model.forecast(ONE, VISIT, top=100)}
    assert {c.name: c.p_given_event for c in grouped().forecast("alone", VISIT, top=100)} == pytest.approx(
        who, rel=1e-4
    )
    asked = {c.name: c.p_given_event for c in model.forecast(None, VISIT, object=ONE, top=100)}
    found = grouped().forecast(None, "only visit", object="alone", top=100)
    assert {c.name: c.p_given_event for c in found} == pytest.approx(asked, rel=1e-4)


def test_answers_of_a_group_are_probabilities() -> None:
    what = grouped().what("three", TWO, top=1000, horizon=3)
    assert sum(c.p_given_event for c in what) == pytest.approx(1)
    assert all(c.p_event <= (what.query.p_event or 0) + 1e-9 for c in what)
    who = grouped().forecast("three", "two relations", top=1000, horizon=3)
    assert sum(c.p_given_event for c in who) == pytest.approx(1)
    best = who[0]
    assert p_event("three", "two relations", best.name) == pytest.approx(best.p_event, rel=1e-5)
    partners = grouped().partners("three", top=1000, horizon=3)
    assert not {c.name for c in partners} & set(THREE)
    assert p_event("three", None, partners[0].name) == pytest.approx(partners[0].p_event, rel=1e-5)
    assert str(who.query).startswith("(three, two relations, anybody) from ")


def test_names_without_a_group_are_asked_as_ever() -> None:
    model = small_forecaster()
    assert grouped().forecast(ONE, VISIT) == model.forecast(ONE, VISIT)
    assert grouped().outlook(top=3) == model.outlook(top=3)


def test_a_group_in_a_watch_list_stands_for_its_members() -> None:
    model = small_forecaster()
    assert grouped().outlook(watch=["three"]) == model.outlook(watch=THREE)
    assert grouped().outlook(watch=[("three", TWO)], top=500) == model.outlook(watch=[(n, TWO) for n in THREE], top=500)


@pytest.mark.parametrize("future", ["deleted", "corrupted", "moved to now"])
def test_groups_do_not_see_the_future(future: str) -> None:
    model, now = small_forecaster(), 50
    events = small_world().events
    logs = (events, futures(events, now)[future])
    one, two = (model.predictor.with_past(Past(log)).with_groups(ALL) for log in logs)
    at = events.clock.label(now)
    for names in (("three", VISIT, TWO), (ONE, "two relations", TWO), ("three", None, TWO), ("three", VISIT, None)):
        found = [p.whether(names[0], names[1], object=names[2], at=at, horizon=7) for p in (one, two)]
        assert found[0] == found[1]
    assert one.what("three", TWO, at=at) == two.what("three", TWO, at=at)
    assert one.partners("three", at=at) == two.partners("three", at=at)


def test_assumed_events_leave_the_groups() -> None:
    when = small_world().events.clock.label(60)
    later = grouped().assume([(THREE[0], VISIT, TWO, when)])
    assert p_event("three", VISIT, TWO, predictor=later) > 0


def test_an_issued_forecast_of_a_group_is_resolved_by_a_member(tmp_path: Path) -> None:
    events = small_world().events
    with EventStore(tmp_path / "events.duckdb") as store:
        store.follow(events)
        ledger, asked = Ledger(store), grouped()
        for found in (
            asked.whether("three", "two relations", object=TWO),
            asked.forecast("three", VISIT, top=50),
            asked.what("three", TWO, top=3),
        ):
            ledger.issue(found, predictor=asked, version="v1")
        rows = [(THREE[1], RELATIONS[1], TWO, 60), (THREE[2], VISIT, TWO, 60), (ONE, VISIT, TWO, 65)]
        store.append([(s, r, o, events.clock.label(t)) for s, r, o, t in rows], source="wire", key="1")
        ledger.resolve()
        whether, who, what = ledger.forecasts()
        assert whether.claims[0].state == "yes"
        assert {(c.claim.object, c.state) for c in who.claims[1:] if c.state != "no"} == {(TWO, "yes")}
        assert what.claims[0].state == "yes"
        assert what.query == "what"


def test_a_file_of_groups_is_read(tmp_path: Path) -> None:
    file = tmp_path / "groups.csv"
    file.write_text("group,member\n" + "".join(f"three,{name}\n" for name in THREE))
    made = small_forecaster().with_groups(file)
    assert p_event("three", VISIT, TWO, predictor=made) == p_event("three", VISIT, TWO)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"us": [ONE, "Nobody"]}, "group 'us': no entity is called 'Nobody'"),
        ({"us": [VISIT, "nothing"]}, "group 'us': no relation is called 'nothing'"),
        ({"us": []}, "the group 'us' has no member"),
        ({ONE: [TWO]}, "has the name of an entity"),
        ({VISIT: [TWO]}, "has the name of a relation"),
    ],
    ids=["unknown-actor", "unknown-relation", "empty", "actor", "relation"],
)
def test_bad_groups_are_one_sentence(groups: dict[str, list[str]], said: str) -> None:
    with pytest.raises((DataError, NotFoundError), match=said):
        small_forecaster().with_groups(groups)


def test_groups_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="'three' is a group of actors; name a relation"):
        grouped().whether(ONE, "three", object=TWO)
    with pytest.raises(NotFoundError, match="'two relations' is a group of relations; name an actor"):
        grouped().partners("two relations")
    with pytest.raises(SettingsError, match="give two of subject, relation and object"):
        grouped().whether("three")
    with pytest.raises(SettingsError, match="the side left out is what is asked"):
        grouped().forecast("three", VISIT, object=TWO)
    empty = tmp_path / "groups.csv"
    empty.write_text("group,member\n")
    with pytest.raises(DataError, match="holds no group"):
        small_forecaster().with_groups(empty)
    with pytest.raises(NotFoundError, match="does not exist"):
        small_forecaster().with_groups(tmp_path / "none.csv")

"""Outlook: the likeliest and the most surprising events ahead, for all or a watch list."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.forecasting import outlook
from bridgemem.forecasting.outlook import divergence
from bridgemem.forecasting.predictor import Predictor
from builders import small_world
from fits import last_event as seen_pair
from fits import small_forecaster as fitted


def predictor() -> Predictor:
    return fitted().predictor


def test_the_likeliest_events_come_first_with_the_probability_of_whether() -> None:
    found = fitted().outlook(horizon=3, top=20)
    chances = [one.p_event for one in found]
    assert chances == sorted(chances, reverse=True)
    assert [one.rank for one in found] == list(range(1, 21))
    best = found[0]
    alone = fitted().whether(best.subject, best.relation, object=best.object, horizon=3).query
    assert alone.p_event == pytest.approx(best.p_event, rel=1e-5)
    assert alone.past_events == best.past_events > 0
    events = small_world().events
    assert found.query.events == len({(e.subject, e.relation, e.object) for e in events})


def test_surprising_events_are_those_above_their_usual_rate() -> None:
    found = fitted().outlook(horizon=3, top=20, surprising=True)
    assert all(one.p_event > one.usual and one.surprise > 0 for one in found)
    bits = [one.surprise for one in found]
    assert bits == sorted(bits, reverse=True)


@pytest.mark.parametrize(
    ("p", "usual", "bits"), [(0.5, 0.25, 0.2075), (0.25, 0.25, 0.0), (0.1, 0.25, 0.0), (1.0, 0.5, 1.0), (0.0, 0.0, 0.0)]
)
def test_surprise_is_the_divergence_of_what_rose(p: float, usual: float, bits: float) -> None:
    found = divergence(*(torch.tensor([value], dtype=torch.float64) for value in (p, usual)))
    assert found.item() == pytest.approx(bits, abs=1e-4)


def test_a_watch_list_holds_actors_relations_and_pairs() -> None:
    one, relation, two = seen_pair()
    actor = fitted().outlook(top=10_000, watch=[one])
    assert all(one in (e.subject, e.object) for e in actor)
    assert {e.relation for e in fitted().outlook(top=10_000, watch=relation)} == {relation}
    pair = fitted().outlook(top=10_000, watch=[(one, two)])
    assert len(pair) == 2 * small_world().events.n_relations
    assert {frozenset((e.subject, e.object)) for e in pair} == {frozenset((one, two))}
    assert any(e.past_events == 0 and e.last is None and 0 < e.p_event < 1 for e in pair)
    seen = {(e.subject, e.relation, e.object) for e in actor}
    both = fitted().outlook(top=10_000, watch=[one, (one, two)])
    assert {(e.subject, e.relation, e.object) for e in both} >= seen
    assert both.query.watch == (one, f"{one} - {two}")


def test_a_watch_file_is_read_with_or_without_a_heading(tmp_path: Path) -> None:
    one, relation, two = seen_pair()
    plain, headed = tmp_path / "plain.csv", tmp_path / "headed.csv"
    plain.write_text(f"{one},{two}\n{relation}\n")
    headed.write_text(f"name,partner\n{one},{two}\n\n{relation},\n")
    assert fitted().outlook(watch=plain) == fitted().outlook(watch=str(headed))
    assert fitted().outlook(watch=plain) == fitted().outlook(watch=[(one, two), relation])
    headed.write_text(f"group\n{one}\n")
    assert fitted().outlook(watch=headed) == fitted().outlook(watch=[one])


def test_events_that_came_after_the_fit_count_once() -> None:
    events = small_world().events
    one, relation, two = seen_pair()
    now = events.clock.label(60)
    later = predictor().assume([(one, relation, two, now), ("Newcomer", relation, two, now)])
    found = later.outlook(top=10_000)
    facts = [(e.subject, e.relation, e.object) for e in found]
    assert len(facts) == len(set(facts)) == fitted().outlook().query.events + 1
    assert ("Newcomer", relation, two) in facts


def test_events_read_in_parts_are_those_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once and none left out, whether it happened before, came since or is of a watched pair."""
    events = small_world().events
    names, label = events.entities.names, events.clock.label(events.end)
    fresh = [
        ("Newcomer", events.relations.names[0], names[0], label),
        (names[0], events.relations.names[1], names[1], label),
    ]
    model = predictor().assume(fresh)
    for watch in (None, [names[0], (names[2], names[3]), ("Newcomer", names[1])]):
        whole = model.outlook(horizon=3, top=10_000, watch=watch)
        with monkeypatch.context() as patched:
            patched.setattr(outlook, "CHUNK", 7)
            parts = model.outlook(horizon=3, top=10_000, watch=watch)
        assert parts.query.events == whole.query.events == len(whole)
        told = [{(e.subject, e.relation, e.object): e.p_event for e in found} for found in (parts, whole)]
        assert told[0] == pytest.approx(told[1], rel=1e-4)
        assert len(told[0]) == len(parts)
        assert [e.p_event for e in parts] == sorted((e.p_event for e in parts), reverse=True)


def test_an_outlook_is_a_table_a_frame_and_a_file(tmp_path: Path) -> None:
    found = fitted().outlook(horizon=3, top=3)
    assert str(found).splitlines()[0].split() == ["event", "rank", "p_event", "usual", "surprise", "earlier", "last"]
    assert repr(found).startswith("Outlook(3 to Likeliest events from ")
    assert list(found.to_frame()["rank"]) == [1, 2, 3]
    found.write(tmp_path / "outlook.csv")
    assert len((tmp_path / "outlook.csv").read_text().splitlines()) == 4
    found.write(tmp_path / "outlook.parquet")
    assert (tmp_path / "outlook.parquet").stat().st_size > 0


def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="horizon must be at least 1"):
        fitted().outlook(horizon=0)
    with pytest.raises(SettingsError, match="top must be at least 1"):
        fitted().outlook(top=0)
    with pytest.raises(DataError, match="lie too far ahead"):
        fitted().outlook(horizon=10**18)
    with pytest.raises(DataError, match="lies before the data set begins"):
        fitted().outlook(at="1990-01-01")
    with pytest.raises(NotFoundError, match="watch list, entry 2: no entity or relation is called 'Nobody'"):
        fitted().outlook(watch=[seen_pair()[0], "Nobody"])
    with pytest.raises(DataError, match="watch list is empty"):
        fitted().outlook(watch=[])
    bad = tmp_path / "watch.csv"
    bad.write_text("a,b,c\n")
    with pytest.raises(DataError, match="line 1: a row has one name"):
        fitted().outlook(watch=bad)

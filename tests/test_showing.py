"""Objects show themselves: one short line, a table in a notebook, lengths, slices, data frames and names by id."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Clock, Event, EventLog, Vocabulary
from bridgemem.events.queries import Queries
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.batch_queries import Query
from bridgemem.showing import percent
from builders import small_world

LONGEST = 300  # characters of a line that is still read


def test_a_probability_is_neither_shown_as_none_nor_as_certain_unless_it_is() -> None:
    shown = {0.0: "0.0%", 1e-9: "<0.1%", 0.001: "0.1%", 0.5: "50.0%", 0.9999: ">99.9%", 1.0: "100.0%"}
    assert {p: percent(p) for p in shown} == shown


@pytest.fixture(scope="module")
def world() -> Dataset:
    return small_world().dataset


@pytest.fixture(scope="module")
def model(world: Dataset) -> Forecaster:
    return Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1)).fit(world)


def shown(world: Dataset, model: Forecaster) -> dict[str, Any]:
    answers = model.forecast(0, 0, top=3)
    return {
        "data set": world,
        "events": world.events,
        "names": world.entities,
        "world": small_world(),
        "forecaster": model,
        "answers": answers,
        "explanation": model.explain(0, 0, answers[0].name),
        "evaluation": model.evaluate("valid"),
    }


def test_everything_has_one_short_line_and_a_table(world: Dataset, model: Forecaster) -> None:
    for what, one in shown(world, model).items():
        line = repr(one)
        assert "\n" not in line, what
        assert len(line) < LONGEST, what
        html = one._repr_html_()
        assert html.count("<table>") == html.count("</table>") == 1, what


def test_the_line_says_what_the_object_is(world: Dataset, model: Forecaster) -> None:
    assert repr(world).startswith(f"Dataset('world', {len(world):,} events, {len(world.entities)} entities,")
    assert f"train {len(world.train):,}" in repr(world)
    first = world.entities[0]
    assert first in repr(world.entities)
    answers = model.forecast(first, 0, top=3)
    assert f"Answers(3 to ({first}, {world.relations[0]}, ?) at " in repr(answers)
    assert answers[0].name in repr(answers)
    assert "time-aware MRR: recurrence ." in repr(model.evaluate("valid"))
    assert f"for ({first}, " in repr(model.explain(first, 0, answers[0].name))


def test_a_long_vocabulary_stays_short() -> None:
    many = Vocabulary("entity", tuple(f"{'name ' * 100}{i}" for i in range(100_000)))
    assert len(repr(many)) < LONGEST
    assert many._repr_html_().count("<tr>") == 11
    assert "99,990 more" in many._repr_html_()


def test_names_are_never_markup() -> None:
    names = Vocabulary("entity", ("<script>alert(1)</script>", "b"))
    relations = Vocabulary("relation", ("<b>",))
    events = EventLog.from_columns(np.array([0]), np.array([0]), np.array([1]), np.array([0]), names, relations)
    for one in (names, events):
        assert "<script>" not in one._repr_html_()
        assert "&lt;script&gt;" in one._repr_html_()


def test_names_are_had_by_id_and_found_by_what_people_type() -> None:
    names = Vocabulary("entity", ("South Korea", "Iran", "China", "Iranian Army", "Foreign Ministry (Iran)", "iran"))
    assert (names[1], names[-1], names[:2]) == ("Iran", "iran", ("South Korea", "Iran"))
    assert list(names) == list(names.names)
    assert "Iran" in names
    assert "Irak" not in names
    assert names.find("Iran")[0] == "Iran"
    assert set(names.find("iran")) == {"Iran", "iran", "Iranian Army", "Foreign Ministry (Iran)"}
    assert names.find("korea") == ["South Korea"]
    assert names.find("Chnia") == ["China"]
    assert names.find("xyzzy") == []
    assert len(names.find("iran", most=2)) == 2


def test_events_are_had_one_by_one_in_slices_and_by_a_mask(world: Dataset) -> None:
    events = world.events
    one = world[3]
    assert one == Event(
        events.entities[events.subject[3]],
        events.relations[events.relation[3]],
        events.entities[events.object[3]],
        events.clock.label(events.step[3]),
    )
    assert len(world) == len(events)
    assert world[-1] == events[len(events) - 1]
    assert len(world[10:20]) == 10
    assert world[10:20][0] == world[10]
    assert [*world[:3]] == [world[0], world[1], world[2]]
    mask = events.relation == 0
    assert len(events[mask]) == mask.sum()
    with pytest.raises(IndexError):
        world[len(world)]


def test_frames_hold_names_and_times_and_are_read_back(world: Dataset) -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    frame = world.to_frame()
    assert list(frame.columns) == ["subject", "relation", "object", "time", "split"]
    assert frame["split"].value_counts().to_dict() == world.sizes
    assert frame["time"].iloc[0].isoformat()[:10] == world[0].time
    again = bm.load(frame.drop(columns="split"))
    assert [*again[:50]] == [*world[:50]]
    assert len(again) == len(world)
    names = world.entities.to_frame()
    assert names["entity"][names["id"] == 3].item() == world.entities[3]


def test_without_pandas_a_frame_is_a_dict_of_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    names, relations = Vocabulary("entity", ("a", "b")), Vocabulary("relation", ("r",))
    columns = [np.array(c) for c in ([0, 1], [0, 0], [1, 0], [0, 2])]
    dated = EventLog.from_columns(*columns, names, relations, Clock("date", 86400, 86400)).to_frame()
    assert dated == {
        "subject": ["a", "b"],
        "relation": ["r", "r"],
        "object": ["b", "a"],
        "time": [datetime(1970, 1, 2), datetime(1970, 1, 4)],
    }
    assert EventLog.from_columns(*columns, names, relations, Clock("integer", 5, 10)).to_frame()["time"] == [5, 25]


def test_answers_are_sliced_and_know_their_query(model: Forecaster, world: Dataset) -> None:
    actor, relation = world.entities[2], world.relations[1]
    answers = model.forecast(relation=relation, object=actor, top=5, horizon=3)
    query = answers.query
    assert (query.subject, query.relation, query.object, query.horizon) == (None, relation, actor, 3)
    clock, end = world.events.clock, world.events.end
    assert (query.time, query.until, query.step) == (clock.label(end), clock.label(end + 2), end)
    assert query.residual == "bridgemem"
    assert "at least one such event within 3 steps" in query.meaning
    assert answers[:2] == list(answers)[:2]
    assert answers[:2].query == query
    assert len(answers[:2].to_frame()["name"]) == 2


def test_records_are_had_one_by_one_and_in_slices(model: Forecaster) -> None:
    measured = model.evaluate("valid")
    assert len(measured) == len(measured.records)
    assert measured[0] == measured.records[0]
    assert measured[:2].records == measured.records[:2]
    assert [*measured] == list(measured.records)


def test_scores_are_those_of_the_forecasts(model: Forecaster, world: Dataset) -> None:
    relation, object_ = world.relations[1], world.entities[3]
    scores = model.scores([(0, 0), (None, relation, object_)])
    assert scores.shape == (2, len(model.entities))
    assert scores.dtype == np.float64
    everybody = len(model.entities)
    for row, found in zip(
        scores,
        (model.forecast(0, 0, top=everybody), model.forecast(relation=relation, object=object_, top=everybody)),
        strict=True,
    ):
        by_name = {c.name: c.score for c in found}
        assert [by_name[name] for name in model.entities] == pytest.approx(row.tolist(), abs=1e-5)


def test_scores_take_queries_in_every_plain_form(model: Forecaster, world: Dataset) -> None:
    actor, relation, time = world.entities[0], world.relations[0], world.events.clock.label(world.test_start or 0)
    wanted = model.scores([(actor, relation, None, time)])
    columns = {"subject": [actor], "relation": [relation], "time": [time]}
    for given in ((actor, relation, None, time), Query(actor, relation, at=time), [[0, 0, None, time]], columns):
        assert np.array_equal(model.scores(given), wanted)
    in_ids = Queries.of(world.events.between(world.test_start or 0, (world.test_start or 0) + 1))
    assert model.scores(in_ids).shape == (len(in_ids), len(world.entities))


def test_scores_of_a_newcomer_have_a_column_and_no_candidate_before_it_came(world: Dataset) -> None:
    model = Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1)).fit(world)
    end, clock = world.events.end, world.events.clock
    model.update([(world.entities[0], world.relations[0], "Newcomer", clock.label(end))])
    before, after = model.scores([(0, 0, None, clock.label(end)), (0, 0, None, clock.label(end + 1))])
    assert model.entities[-1] == "Newcomer"
    assert before[-1] == -np.inf
    assert np.isfinite(after[-1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is no query to answer"),
        (
            [("nobody at all", 0), (0, "nothing at all")],
            "2 rows that cannot be asked.*query 1: no entity.*query 2: no rel",
        ),
        ([(0,)], "is not a query: give .subject, relation."),
        ([3], "is not a query"),
        ({"subject": [0]}, "has no column relation"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: Any, said: str, model: Forecaster) -> None:
    with pytest.raises(bm.BridgeMemError, match=said):
        model.scores(given)

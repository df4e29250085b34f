"""A window of steps after the fit: measured under the locked selection, with the events that came since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridgemem.config import Settings
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.window import what_in_window, whether_in_window, window_of
from bridgemem.forecaster import Forecaster
from builders import small_world
from fits import last_event, small_forecaster

ONE, VISIT, TWO = last_event()
WORLD = small_world().dataset
START = WORLD.test_start or 0


def label(step: int) -> str:
    return WORLD.events.clock.label(step)


def test_the_window_of_all_of_test_has_the_figures_of_test() -> None:
    model = small_forecaster()
    whole, window = model.evaluate("test"), model.evaluate(start=label(START))
    assert [r.mrr for r in window] == pytest.approx([r.mrr for r in whole], rel=1e-9)
    assert [r.lock for r in window] == [r.lock for r in whole]
    assert window[0].settings["from"] == label(START)
    assert f"{label(START)} to {label(WORLD.events.end - 1)}" in str(window)


def test_the_last_steps_are_asked_alone() -> None:
    model, end = small_forecaster(), WORLD.events.end
    last = model.evaluate(last=2)
    assert last[0].queries == 2 * len(WORLD.events.between(end - 2, end))
    assert [r.mrr for r in last] == [r.mrr for r in model.evaluate(start=label(end - 2), end=label(end - 1))]
    assert len(model.evaluate(end=label(START))) == len(last)


def test_events_that_came_since_are_measured_and_later_relations_are_not_asked() -> None:
    model = Forecaster("recurrence", residual="bridgemem", settings=Settings(width=8, hidden=8, max_epochs=1))
    model.fit(WORLD)
    end = WORLD.events.end
    rows = [
        (ONE, VISIT, TWO, label(end)),
        ("Newcomer", VISIT, TWO, label(end + 1)),
        (ONE, "brand new", TWO, label(end)),
    ]
    model.update(rows)
    found = model.evaluate(start=label(end))
    assert found[0].queries == 4
    assert all(0 < record.mrr <= 1 for record in found)


def test_what_comes_after_the_window_changes_nothing() -> None:
    model, end = small_forecaster(), WORLD.events.end
    later = model.assume([(ONE, VISIT, TWO, label(end + 3))])
    asked = {"start": label(START), "end": label(end - 1)}
    one, two = (window_of(model.parts, p.past, **asked) for p in (model.predictor, later))
    assert one.events.fingerprint == two.events.fingerprint
    assert one.test_start == two.test_start


def test_what_and_whether_are_measured_on_a_window() -> None:
    model = small_forecaster()
    window = window_of(model.parts, model.predictor.past, last=4)
    assert {r.settings["to"] for r in what_in_window(model.parts, window)} == {label(WORLD.events.end - 1)}
    records = whether_in_window(model.parts, window, horizon=2)
    assert {r.settings["from"] for r in records} == {label(WORLD.events.end - 4)}
    assert [r.steps for r in records] == [3, 3, 3]


def test_a_window_that_was_fitted_on_is_refused() -> None:
    model, end = small_forecaster(), WORLD.events.end
    before = f"fitted on the events before {label(START)}"
    with pytest.raises(DataError, match=f"{before}, which cannot measure it; choose a window from then on, of at most"):
        model.evaluate(last=end)
    with pytest.raises(DataError, match=before):
        model.evaluate(start=label(START - 1))
    with pytest.raises(DataError, match=f"there is no event from {label(end + 1)}"):
        model.evaluate(start=label(end + 1))
    with pytest.raises(SettingsError, match="not both"):
        model.evaluate(start=label(START), last=3)
    with pytest.raises(SettingsError, match=f"--from {label(end - 1)} lies after --to {label(end - 3)}"):
        model.evaluate(start=label(end - 1), end=label(end - 3))
    with pytest.raises(SettingsError, match="last must be at least 1"):
        model.evaluate(last=0)
    with pytest.raises(SettingsError, match="a window is read by itself"):
        model.evaluate("valid", last=3)
    whole = replace(WORLD, test_start=None)
    parts = Forecaster("recurrence", residual="bridgemem", settings=Settings(width=8, hidden=8, max_epochs=1)).fit(
        whole
    )
    with pytest.raises(DataError, match="the run was fitted on all events that are known"):
        parts.evaluate(last=3)

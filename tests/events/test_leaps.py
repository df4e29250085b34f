"""Events of a mistyped year are refused, backlogs are not, and forecasts far ahead carry a remark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridgemem.errors import DataError
from bridgemem.events.leaps import LEAST, check_ahead, most_ahead, remark_ahead
from bridgemem.events.log import Clock
from bridgemem.forecaster import Forecaster
from bridgemem.live.eventstore import EventStore
from builders import random_log
from commands import bridgemem, write_rows

pytest_plugins = ("small_runs",)


def test_a_leap_is_refused_and_a_backlog_is_not() -> None:
    check_ahead([11, 12, 40, 70], 10, 30, Clock())
    check_ahead([3, 1, 2], 10, 30, Clock())  # late ones lie behind
    check_ahead([70, 40], 10, 30, Clock())  # in whatever order they come
    with pytest.raises(DataError, match=r"event 2: the time 71 lies 31 steps after the last event before it, at 40"):
        check_ahead([40, 71], 10, 30, Clock())


def test_the_default_is_a_few_times_the_largest_gap_and_at_least_a_month_of_days() -> None:
    log = random_log(4, n=300)
    assert most_ahead(log) == LEAST
    kept = log.take((log.step < 3) | (log.step > 12))
    gap = int((kept.step[1:] - kept.step[:-1]).max())
    assert gap >= 10
    assert most_ahead(kept) == 5 * gap
    assert remark_ahead(log, log.end) is None
    assert "steps after the last known event" in (remark_ahead(log, log.end + 400) or "")


def test_a_batch_with_a_mistyped_year_is_refused_whole_and_its_key_stays_free(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        store.append([("a", "r", "b", "10")], source="s", key="1")
        store.max_ahead = 30
        with pytest.raises(DataError, match="raise --max-ahead if it is right"):
            store.append([("a", "r", "c", "11"), ("a", "r", "c", "2000")], source="s", key="2")
        assert len(store.stored()) == 1
        assert store.append([("a", "r", "c", "11")], source="s", key="2").accepted == 1
        assert store.append([("a", "r", "c", "41")], source="s", key="3").late == 0


def test_ingest_refuses_a_leap_unless_it_is_told_that_it_is_right(recurrence_run: Path, tmp_path: Path) -> None:
    store, file = tmp_path / "store.duckdb", write_rows(tmp_path / "a.csv", [("Arvan", "visit", "Kel", "2031-12-05")])
    said = bridgemem("ingest", store, file, "--run", recurrence_run).refused()
    assert "event 1: the time 2031-12-05 lies" in said
    assert "--max-ahead" in said
    assert bridgemem("ingest", store, file, "--run", recurrence_run, "--max-ahead", "0").code == 0


def test_update_and_assume_refuse_a_leap_unless_they_are_told_that_it_is_right(recurrence_run: Path) -> None:
    model = Forecaster.load(recurrence_run)
    mistyped = [("Arvan", "visit", "Kel", "2024-02-10"), ("Arvan", "visit", "Kel", "2042-02-11")]
    for take in (model.update, model.assume):
        with pytest.raises(DataError, match=r"event 2: the time 2042-02-11 lies .* No event was added\.$"):
            take(mistyped)
    assert len(model.predictor.events) == len(model.dataset.events)
    assert model.assume(mistyped, max_ahead=0).events.clock.label(model.assume(mistyped, max_ahead=0).end) > "2042"
    with pytest.raises(DataError, match="at most 3 are taken"):
        model.update([("Arvan", "visit", "Kel", "2024-02-20")], max_ahead=3)
    assert len(model.update(mistyped[:1]).predictor.events) == len(model.dataset.events) + 1


def test_an_assumed_leap_is_refused_unless_it_is_said_to_be_right(recurrence_run: Path, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.csv", [("Arvan", "visit", "Kel", "2042-02-11")])
    asked = ("forecast", recurrence_run, "--subject", "Arvan", "--relation", "visit", "--assume", file)
    assert "raise --max-ahead if it is right. Nothing was assumed." in bridgemem(*asked).refused()
    assert bridgemem(*asked, "--max-ahead", "0").code == 0


def test_one_event_in_place_of_a_list_of_them_is_refused(recurrence_run: Path) -> None:
    with pytest.raises(DataError, match=r"expected a list of events, not one alone: give \[\('Arvan', 'visit'"):
        Forecaster.load(recurrence_run).update(("Arvan", "visit", "Kel", "2024-02-10"))


def test_a_forecast_far_ahead_is_answered_with_a_remark(recurrence_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recurrence_run, tmp_path / "run"))
    asked = ("forecast", run, "--subject", "Arvan", "--relation", "visit")
    far = bridgemem(*asked, "--at", "2031-12-05")
    assert far.code == 0
    assert far.err == (
        "bridgemem: 2031-12-05 lies 2,856 steps after the last known event, at 2024-02-09; check the time.\n"
    )
    assert bridgemem(*asked, "--at", "2024-02-20").err == ""

"""Renewal: an honest comparison before another model is served, refits that choose again, and what the window says."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from bridgemem.cli import renew as renew_command
from bridgemem.cli.renew import Every
from bridgemem.errors import SettingsError
from bridgemem.forecaster import Forecaster
from bridgemem.live import renewal
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refit import refit
from bridgemem.live.refresh import chosen_on, refresh
from bridgemem.live.renewal import Rules, renew
from bridgemem.live.versions import promote, rollback
from bridgemem.live.window import Measured, measured
from bridgemem.runs import Run
from commands import DAYS, FIRST_DAY, bridgemem, document, left_in, planted_rows

pytest_plugins = ("small_runs",)
NEW_DAYS = 14


def later_rows(days: int = NEW_DAYS) -> list[tuple[str, str, str, str]]:
    """The same script played on for some days after the data, and a name that it does not know."""
    rows = []
    for s, r, o, day in planted_rows(seed=8):
        moved = FIRST_DAY.fromisoformat(day) + timedelta(days=DAYS)
        if moved < FIRST_DAY + timedelta(days=DAYS + days):
            rows.append((s, r, "Newcomer" if o == "Lor" else o, str(moved)))
    return rows


@pytest.fixture
def link(recurrence_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(recurrence_run, tmp_path / "mine")
    promote(tmp_path / "mine", tmp_path / "current")
    return tmp_path / "current"


@pytest.fixture
def store(link: Path) -> Iterator[EventStore]:
    with EventStore(link.parent / "events.duckdb") as store:
        live = LiveForecaster(Forecaster.load(link.resolve()), store)
        live.add(later_rows(), "wire", "1")
        yield store


def test_a_candidate_that_is_not_worse_is_fitted_on_everything_and_promoted(link: Path, store: EventStore) -> None:
    made = renew(link, store, Rules(window=5, enough=10, keep=2))
    assert (made.outcome, made.how, made.run) == ("renewed", "refresh", "mine-2")
    assert made.new_events == len(later_rows())
    assert made.queries > 50
    assert made.serving_mrr is not None
    assert made.candidate_mrr is not None
    assert made.gain == pytest.approx(made.candidate_mrr - made.serving_mrr)
    assert made.low <= made.gain <= made.high  # type: ignore[operator]
    run = Run(link.resolve())
    assert (run.folder.name, run.version) == ("mine-2", made.model_version)
    assert len(run.dataset.events) == 600 + len(later_rows())
    assert [json.loads(line)["outcome"] for line in (link.parent / "current.renewals.jsonl").open()] == ["renewed"]
    again = renew(link, store, Rules(window=5, enough=10))
    assert (again.outcome, again.run, again.queries) == ("waiting", "mine-2", 0)
    assert rollback(link).run == "mine"
    assert not [name for name in left_in(link.parent) if name.startswith(".")]


def test_a_worse_candidate_is_not_promoted(link: Path, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = measured, list[Measured]()

    def spoiled(*args: object, **named: object) -> Measured:
        found = real(*args, **named)  # type: ignore[arg-type]
        calls.append(found)
        worse = found.ranks if len(calls) == 1 else found.ranks + 5
        return Measured(found.start, found.end, worse, found.step, found.unknown, found.calibration)

    monkeypatch.setattr(renewal, "measured", spoiled)
    made = renew(link, store, Rules(window=5, enough=10))
    assert (made.outcome, made.run) == ("kept", "mine")
    assert made.high is not None
    assert made.high < 0
    assert link.resolve().name == "mine"
    assert "mine-2" not in left_in(link.parent)


def test_both_models_are_asked_the_same_queries_of_steps_that_neither_was_fitted_on(
    link: Path, store: EventStore
) -> None:
    run = Run(link.resolve())
    end = LiveForecaster(Forecaster.load(run.folder), store).events.end
    refresh(run, store, link.parent / "cut", until=end - 5)
    cut = Run(link.parent / "cut")
    assert cut.dataset.events.end <= end - 5
    live = [LiveForecaster(Forecaster.load(folder), store) for folder in (run.folder, cut.folder)]
    ours, theirs = (measured(one.view.predictor, one.run.dataset.events, end - 5) for one in live)
    np.testing.assert_array_equal(ours.step, theirs.step)
    assert (ours.start, ours.end, len(ours.ranks)) == (end - 5, end, len(theirs.ranks))
    assert ours.unknown > theirs.unknown == 0  # Newcomer came before the window
    assert 0 <= ours.calibration <= 1


def test_later_events_change_no_rank_of_the_window(link: Path, store: EventStore) -> None:
    live = LiveForecaster(Forecaster.load(link.resolve()), store)
    fitted, start = live.run.dataset.events, live.events.end - 5
    before = measured(live.view.predictor, fitted, start)
    first = before.step < start + 2
    live.add([("Arvan", "visit", f"Later {n}", str(FIRST_DAY + timedelta(days=start + 3))) for n in range(9)], "w", "2")
    after = measured(live.view.predictor, fitted, start)
    np.testing.assert_array_equal(before.ranks[first], after.ranks[after.step < start + 2])


def test_a_refit_chooses_again_and_goes_on_with_the_store(link: Path, store: EventStore) -> None:
    run = Run(link.resolve())
    made = refit(run, store, link.parent / "mine-2")
    again = Run(link.parent / "mine-2")
    assert (made.source, again.origin, again.refreshes()) == ("mine", run.origin, [])
    assert again.selection("time").fingerprint == again.dataset.events.fingerprint != run.selection("time").fingerprint
    live = LiveForecaster(Forecaster.load(again.folder), store)
    assert len(live.events) == 600 + len(later_rows())
    live.add([("Arvan", "visit", "Kel", str(FIRST_DAY + timedelta(days=DAYS + NEW_DAYS)))], "wire", "2")
    live.retract("e1")
    refresh(again, store, link.parent / "mine-3")
    third = Run(link.parent / "mine-3")
    assert len(third.dataset.events) == 600 + len(later_rows())
    assert third.origin == run.origin
    assert len(chosen_on(third, third.dataset)) == len(again.dataset.events) - 1  # less what was taken back
    assert bridgemem("forecast", link.parent / "mine-2", "--subject", "Arvan", "--relation", "visit").code == 0


def test_enough_new_events_make_a_refit(link: Path, store: EventStore) -> None:
    made = renew(link, store, Rules(window=5, enough=0.1))
    assert (made.outcome in ("renewed", "kept"), made.how) == (True, "refit")


def test_the_command_compares_once_and_says_both(link: Path, store: EventStore) -> None:
    store.close()
    args = ("refresh", link, "--store", store.path, "--window", "5", "--choose-after", "10", "-q")
    said = bridgemem(*args, "--compare").out.splitlines()
    assert said[0].startswith("Compared on 2024-02-19 to 2024-02-23, ")
    assert [line.split()[0] for line in said[1:4]] == ["serving", "candidate", "gain"]
    assert said[4].startswith("Renewed: the candidate is ")
    found = bridgemem(*args, "--compare", "--json").json
    assert (found["outcome"], found["gain"]) == ("waiting", None)
    assert "is not a link" in bridgemem("refresh", link.resolve(), "--store", store.path, "--compare").refused()
    assert "--every is written" in bridgemem(*args, "--every", "soon").refused()
    assert "leave them out" in bridgemem(*args, "--compare", "--force").refused()


def test_how_often_is_told_by_the_wall_clock_or_by_the_stores() -> None:
    assert Every.of("24h") == Every(seconds=86_400.0)
    assert Every.of("30 min") == Every(seconds=1800.0)
    assert Every.of("7steps") == Every(steps=7)
    for wrong in ("0h", "h", "5 years", "-1h"):
        with pytest.raises(SettingsError, match="--every"):
            Every.of(wrong)


@pytest.mark.parametrize("every", ["1s", "14steps"])
def test_rounds_go_on_until_it_is_stopped_and_survive_one_that_fails(
    every: str, link: Path, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    waits = list[float]()

    def wait(stop: threading.Event, every: Every) -> None:
        waits.append(0.0)
        if len(waits) == 1:
            (link.parent / "mine" / "config.toml").rename(link.parent / "away")
        if len(waits) == 2:
            (link.parent / "away").rename(link.parent / "mine" / "config.toml")
        if len(waits) == 3:
            stop.set()

    monkeypatch.setattr(renew_command, "_wait", wait)
    monkeypatch.setattr(renewal, "LEAST", 10_000)  # no round goes further than the comparison
    found = bridgemem("refresh", link, "--store", store.path, "--window", "5", "--every", every, "-q", "--json")
    assert found.code == 0
    rounds = [document(line) for line in found.out.splitlines()]
    assert [one["outcome"] for one in rounds] == ["waiting", "waiting"]
    assert len(found.remarks) == 1
    assert "there is no run" in found.remarks[0]

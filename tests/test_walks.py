"""The walks that ARCHITECTURE.md describes: every function that it names is passed, in that order."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import bridgemem
from bridgemem.config import Settings
from bridgemem.events.world import WorldSettings
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.studies.demo import run_demo
from commands import TINY_READER
from commands import bridgemem as command
from fits import loaded

pytest_plugins = ("small_runs",)

MAP = Path(__file__).parents[1] / "ARCHITECTURE.md"
PACKAGE = Path(bridgemem.__file__).parent


def described(title: str) -> list[str]:
    """The functions of one walk."""
    if not MAP.is_file():
        pytest.skip("needs ARCHITECTURE.md of the repository")
    walks = MAP.read_text(encoding="utf-8").split("## Three walks")[1].split("\n## ")[0]
    (section,) = (part for part in walks.split("\n### ") if part.startswith(title))
    return re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)


@contextmanager
def passed() -> Iterator[list[str]]:
    """Every function of the package that is called inside, by all threads that start there."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            module = Path(path).relative_to(PACKAGE).with_suffix("")
            parts = [part for part in module.parts if part != "__init__"]
            calls.append(".".join((*parts, frame.f_code.co_qualname)))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def holds(wanted: list[str], walk: Callable[[], object]) -> None:
    with passed() as calls:
        walk()
    left = iter(calls)
    for place, name in enumerate(wanted, 1):
        assert name in left, f"step {place}, {name}, is not passed after those before it"
    assert wanted


def test_the_demo_takes_the_path_of_a_user() -> None:
    world = WorldSettings(actors=30, relations=8, steps=60, events=2400, partners=6)
    reader = Settings(width=8, hidden=8, max_epochs=1)
    holds(described("`bridgemem demo`"), lambda: run_demo(world, reader))


def test_a_file_is_fitted_and_evaluated_without_a_detour(own_csv: Path, tmp_path: Path) -> None:
    def walk() -> None:
        run = tmp_path / "run"
        assert command("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER).code == 0
        assert command("evaluate", run).code == 0

    holds(described("`bridgemem fit`"), walk)


def test_a_forecast_follows_an_event_that_was_sent(recurrence_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'serve'")
    from bridgemem.service.asking import Service
    from bridgemem.service.models import ForecastQuery, NewEvents

    with EventStore(tmp_path / "events.duckdb") as store:
        service = Service(LiveForecaster(loaded(recurrence_run), store))
        event = {"subject": "Arvan", "relation": "visit", "object": "Nova", "time": "2024-02-10"}
        batch = NewEvents.model_validate({"events": [event], "source": "wire", "key": "1"})
        query = ForecastQuery.model_validate({"subject": "Arvan", "relation": "visit"})
        holds(described("An event sent"), lambda: (service.add(batch), service.forecast(query)))

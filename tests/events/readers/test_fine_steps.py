"""Steps that nobody chose and that are much finer than the stream: every way to read events says so, once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import bridgemem as bm
from bridgemem.events.readers.check import check_events
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.read import read_events
from bridgemem.outofcore.duckdb import mine_files
from commands import bridgemem, write_rows

SAID = (
    "A step is 1 minute, and most events have one of their own: a horizon of 7 means 7 minutes, and hardly any two "
    'events are seen to happen together or again. Read the events with longer steps: --step day (step="day" in Python).'
)
NAMES = ("Ann", "Bob", "Cid", "Dan")


def rows(times: list[str]) -> list[tuple[str, str, str, str]]:
    return [(NAMES[i % 3], ("calls", "pays")[i % 2], NAMES[i % 3 + 1], time) for i, time in enumerate(times)]


def minutes(n: int = 200) -> list[tuple[str, str, str, str]]:
    return rows([f"2024-01-{1 + i // 10:02d} {9 + i % 10:02d}:{i * 7 % 60:02d}" for i in range(n)])


def said_by(source: Any, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bm.load(source, **options)
    return [str(one.message) for one in caught if "A step is" in str(one.message)]


def test_every_source_in_python_says_it_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "e.csv", minutes())
    columns = dict(zip(("subject", "relation", "object", "time"), map(list, zip(*minutes(), strict=True)), strict=True))
    parts = [write_rows(tmp_path / f"{name}.csv", minutes()[a:b]) for name, a, b in CUT]
    for source in (path, columns, minutes(), parts):
        assert said_by(source) == [SAID]
        assert said_by(source, step="day") == said_by(source, step="hour") == []


CUT = (("train", 0, 150), ("valid", 150, 170), ("test", 170, 200))


def test_a_fit_says_it_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="A step is 1 minute") as caught:
        bm.Forecaster("recurrence", residual="bridgemem", settings={"max_epochs": 1}).fit(minutes())
    assert [str(one.message) for one in caught].count(SAID) == 1


@pytest.mark.parametrize("command", [("fit", "-b", "recurrence", "-q", "-d"), ("data", "import"), ("data", "check")])
def test_a_command_says_it_once(command: tuple[str, ...], tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "e.csv", minutes()), tmp_path / "out.npz"
    to = () if "check" in command else ("-o", out)
    assert bridgemem(*command, path, *to).err.count(SAID) == 1
    force = ("--force",) if to else ()
    assert "longer steps" not in bridgemem(*command, path, *to, "--step", "day", *force).err


def test_mining_says_it_as_the_reader_does(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "e.csv", minutes())
    assert mine_files([path], tmp_path / "fine")["source"]["remarks"] == [SAID]
    assert mine_files([path], tmp_path / "day", options=ReadOptions(step="day"))["source"]["remarks"] == []


@pytest.mark.parametrize(
    "times",
    [
        [f"2024-01-{1 + i // 5:02d}" for i in range(100)],
        [f"2024-01-{1 + i:02d}" for i in range(30)],
        [f"2024-01-{1 + i // 96:02d} {i // 4 % 24:02d}:00" for i in range(960)],
        [str(i) for i in range(100)],
    ],
    ids=["days", "one a day", "four an hour", "whole numbers"],
)
def test_steps_that_suit_the_stream_are_not_remarked(times: list[str], tmp_path: Path) -> None:
    path = write_rows(tmp_path / "e.csv", rows(times))
    assert said_by(path) == []
    assert read_events(path).fine == ""
    assert not any("longer steps" in remark for remark in check_events(path).feed.remarks)
    assert mine_files([path], tmp_path / "out")["source"]["remarks"] == []


def test_events_that_come_in_batches_of_a_second_are_remarked_too(tmp_path: Path) -> None:
    times = [f"2024-01-{1 + i // 10:02d} 09:{i // 5 * 7 % 60:02d}:{i // 5 * 13 % 60:02d}" for i in range(200)]
    path = write_rows(tmp_path / "e.csv", rows(times))
    (said,) = said_by(path)
    assert said.startswith("A step is 1 second, and fewer than one in 100 has an event: a horizon of 7 means 7 seconds")
    assert [said] == [r for r in check_events(path).feed.remarks if "A step is" in r]


def test_epoch_times_kept_as_numbers_are_told_the_step_of_a_day_in_their_own_units(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "e.csv", rows([str(1_704_067_200 + 6_000 * i) for i in range(100)]))
    (said,) = said_by(path, time_format="number")
    assert said.endswith("--step 86400 (step=86400 in Python).")
    assert said_by(path, time_format="number", step=86_400) == []

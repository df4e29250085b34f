"""A soak: posts, forecasts, backups, reloads, a bad reload, a refresh and a kill; nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from soaking import check_backups, soak

from bridgemem.live.eventstore import EventStore
from bridgemem.live.versions import promote

pytest_plugins = ("small_runs",)
linux_only = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads memory from /proc")


def soaked(recurrence_run: Path, home: Path, seconds: float, every: float) -> dict[str, Any]:
    shutil.copytree(recurrence_run, home / "mine")
    promote(home / "mine", home / "current")
    seen = soak(home, seconds, every)
    assert seen.wrong == []
    assert seen.refused == 1
    assert {"mine", "mine-2"} <= seen.versions <= {"mine", "mine-2", "mine-3"}
    assert ("mine-3" in seen.versions) == (seen.renewed == "renewed")
    with EventStore(home / "events.duckdb", create=False, read_only=True) as store:
        check_backups(seen, store)
        stored = {event.batch for event in store.stored()}
        assert len(store.stored()) == 2 * len(stored)  # batches are whole
        keys = store.sources()[0].batches
    assert len(seen.acknowledged) <= keys <= len(seen.acknowledged) + 1  # one may have been stored, its answer lost
    lines = [json.loads(line) for line in (home / "log.jsonl").read_text().splitlines()]
    requests = [line for line in lines if line["message"] == "request"]
    assert not [line for line in requests if line["status"] >= 500]
    assert all("@" in line["model_version"] for line in requests)
    first = seen.memory[: seen.restarted]  # of the process that lived longest
    quarter = len(first) // 4
    return {
        "batches": len(seen.acknowledged),
        "forecasts": seen.forecasts,
        "backups": len(seen.backups),
        "memory_second_quarter_mb": round(median(first[quarter : 2 * quarter] or first) / 1e6),
        "memory_last_quarter_mb": round(median(first[-quarter:] or first) / 1e6),
        "memory_most_mb": round(max(seen.memory) / 1e6),
        "comparison": seen.renewed,
    }


@linux_only
def test_a_short_soak_loses_nothing(recurrence_run: Path, tmp_path: Path) -> None:
    figures = soaked(recurrence_run, tmp_path, seconds=6, every=1.5)
    assert figures["backups"] >= 4
    assert min(figures["batches"], figures["forecasts"]) > 10


@linux_only
@pytest.mark.long
@pytest.mark.parametrize("minutes", [2, 30])
def test_a_long_soak_loses_nothing_and_its_memory_stays_flat(
    minutes: int, recurrence_run: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    figures = soaked(recurrence_run, tmp_path, seconds=60.0 * minutes, every=10.0 if minutes == 2 else 60.0)
    for name, value in figures.items():
        record_property(name, value)
    assert figures["backups"] >= min(minutes, 10)
    assert figures["comparison"] in ("renewed", "kept")
    assert figures["memory_last_quarter_mb"] <= 1.05 * figures["memory_second_quarter_mb"]

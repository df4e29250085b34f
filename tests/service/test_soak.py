"""A soak: posts, forecasts, backups, reloads, a bad reload, a refresh and a kill; nothing is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from soaking import check_backups, soak

from bridgemem.live.eventstore import EventStore
from bridgemem.live.versions import promote

pytest_plugins = ("small_runs",)
linux_only = pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads memory from /proc")


def soaked(recurrence_run: Path, home: Path, seconds: float, every: float) -> dict[str, float]:
    shutil.copytree(recurrence_run, home / "mine")
    promote(home / "mine", home / "current")
    seen = soak(home, seconds, every)
    assert seen.wrong == []
    assert seen.refused == 1
    assert seen.versions == {"mine", "mine-2"}
    check_backups(seen)
    with EventStore(home / "events.duckdb", create=False, read_only=True) as store:
        stored = {event.batch for event in store.stored()}
        assert len(store.stored()) == 2 * len(stored)  # batches are whole
        keys = store.sources()[0].batches
    assert len(seen.acknowledged) <= keys <= len(seen.acknowledged) + 1  # one may have been stored, its answer lost
    lines = [json.loads(line) for line in (home / "log.jsonl").read_text().splitlines()]
    requests = [line for line in lines if line["message"] == "request"]
    assert not [line for line in requests if line["status"] >= 500]
    assert all("@" in line["model_version"] for line in requests)
    return {
        "batches": len(seen.acknowledged),
        "forecasts": seen.forecasts,
        "backups": len(seen.backups),
        "memory_first_mb": round(seen.memory[0] / 1e6),
        "memory_last_mb": round(seen.memory[-1] / 1e6),
        "memory_most_mb": round(max(seen.memory) / 1e6),
    }


@linux_only
def test_a_short_soak_loses_nothing(recurrence_run: Path, tmp_path: Path) -> None:
    figures = soaked(recurrence_run, tmp_path, seconds=2, every=1)
    assert figures["backups"] >= 4
    assert min(figures["batches"], figures["forecasts"]) > 10

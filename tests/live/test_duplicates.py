"""Events that come twice: said at ingest, reported by source, and a policy that the store remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.errors import SettingsError
from bridgemem.live.eventstore import EventStore
from commands import bridgemem, write_rows

pytest_plugins = ("small_runs",)
ROWS = [("Arvan", "visit", "Kel", "2024-02-10"), ("Kel", "visit", "Arvan", "2024-02-10")]


def test_a_store_remembers_whether_repeated_events_count(tmp_path: Path) -> None:
    path, event = tmp_path / "store.duckdb", ("a", "r", "b", "1")
    with EventStore(path) as store:
        assert store.duplicates == "keep"
        store.append([event], source="one", key="1")
    with EventStore(path, duplicates="drop") as store:
        assert store.append([event], source="two", key="1").accepted == 0
    with EventStore(path) as store:
        assert (store.duplicates, len(store.events())) == ("drop", 1)
    with EventStore(path, duplicates="keep", read_only=True) as store:
        assert len(store.events()) == 2  # for this once
    with EventStore(path) as store:
        assert store.duplicates == "drop"
    with pytest.raises(SettingsError, match="keep or drop"):
        EventStore(path, duplicates="some")


def test_the_share_of_repeated_events_is_told_by_source(tmp_path: Path) -> None:
    with EventStore(tmp_path / "store.duckdb") as store:
        store.append([("a", "r", "b", "1"), ("a", "r", "c", "1")], source="one", key="1")
        store.append([("a", "r", "b", "1"), ("a", "r", "d", "1")], source="two", key="1")
        assert [(one.source, one.events, one.duplicates) for one in store.sources()] == [("one", 2, 0), ("two", 2, 1)]


def test_ingest_says_that_repeated_events_count_again_and_how_to_change_it(
    recurrence_run: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store.duckdb"
    for name in ("wire", "desk"):
        write_rows(
            tmp_path / f"{name}.csv", ROWS if name == "wire" else [ROWS[0], ("Kel", "visit", "Lor", "2024-02-10")]
        )
    ingest = ("--run", recurrence_run)
    assert "Repeated within their step: 0; late: 0." in bridgemem("ingest", store, tmp_path / "wire.csv", *ingest).out
    said = bridgemem("ingest", store, tmp_path / "desk.csv", *ingest).out
    assert "Repeated within their step: 1 (50%), which count again (--duplicates drop lets an event count once" in said
    again = write_rows(tmp_path / "again.csv", ROWS[:1])
    said = bridgemem("ingest", store, again, *ingest, "--duplicates", "drop").out
    assert "Repeated within their step: 1, which do not count again; late: 0." in said
    last = write_rows(tmp_path / "last.csv", ROWS[1:])
    assert "do not count again" in bridgemem("ingest", store, last, *ingest).out  # it is remembered

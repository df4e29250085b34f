"""ingest, retract and refresh as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.live.eventstore import EventStore
from commands import bridgemem, left_in, write_rows

pytest_plugins = ("small_runs",)


@pytest.fixture
def news(tmp_path: Path) -> Path:
    rows = [
        ("Arvan", "visit", "Nova", "2024-02-10"),
        ("Nova", "sing to", "Kel", "2024-02-11"),
        ("Arvan", "consult", "Kel", "2024-01-11"),
    ]
    return write_rows(tmp_path / "news.csv", rows)


def test_a_file_is_taken_in_once(news: Path, recurrence_run: Path, tmp_path: Path) -> None:
    store = tmp_path / "events.duckdb"
    command = ("ingest", store, news, "--run", recurrence_run, "--offset", "3")
    first = bridgemem(*command, "--json").json
    assert (first["accepted"], first["late"], first["replayed"], first["ids"]) == (3, 1, False, ["e1", "e2", "e3"])
    assert bridgemem(*command, "--json").json["replayed"]
    assert "nothing was changed" in bridgemem(*command).out
    with EventStore(store) as opened:
        assert opened.last_offset("news.csv") == "3"
        assert len(opened.events()) == 3


def test_ingest_retract_and_refresh_make_a_run_that_forecasts_new_names(
    news: Path, recurrence_run: Path, tmp_path: Path
) -> None:
    store, new = tmp_path / "events.duckdb", tmp_path / "new"
    assert "e1 to e3" in bridgemem("ingest", store, news, "--run", recurrence_run).out
    assert bridgemem("retract", store, "e1", "--reason", "wrong day").out.startswith("e1 is retracted: Arvan, consult")
    refreshed = bridgemem("refresh", recurrence_run, "--store", store, "--out", new, "-q")
    assert refreshed.code == 0, refreshed.err
    assert "2 events were added" in refreshed.out
    assert "selection was kept" in refreshed.out
    from bridgemem.forecast import Forecaster

    assert Forecaster.open(new).forecast("Nova", "sing to")[0].name == "Kel"
    assert "exists already" in bridgemem("refresh", recurrence_run, "--store", store, "--out", new).refused()


def test_what_cannot_be_done_is_one_sentence_and_leaves_no_file(
    news: Path, recurrence_run: Path, tmp_path: Path
) -> None:
    before = left_in(tmp_path)
    assert "no event store" in bridgemem("retract", tmp_path / "none", "e1").refused()
    assert "no event store" in bridgemem("refresh", recurrence_run, "--store", tmp_path / "none").refused()
    bridgemem("ingest", tmp_path / "s", tmp_path / "absent.csv", "--run", recurrence_run).refused()
    bridgemem("ingest", tmp_path / "s", news, "--run", tmp_path / "absent").refused()
    bridgemem("ingest", tmp_path / "s", news, "--run", recurrence_run, "--duplicates", "maybe").refused()
    assert left_in(tmp_path) == before
    bad = write_rows(tmp_path / "bad.csv", [("a", "r", "b", "7"), ("a", "r", "b", "8")])
    bridgemem("ingest", tmp_path / "s", bad, "--run", recurrence_run).refused()
    with EventStore(tmp_path / "s") as store:
        assert not len(store.events())


def test_rejected_rows_are_told_beside_the_receipt(recurrence_run: Path, tmp_path: Path) -> None:
    rows = [("Arvan", "visit", "Nova", "2024-02-10"), ("Arvan", "", "Nova", "2024-02-10")]
    outcome = bridgemem("ingest", tmp_path / "s", write_rows(tmp_path / "f.csv", rows), "--run", recurrence_run)
    assert outcome.code == 0
    assert "1 of 2 rows was rejected" in outcome.err

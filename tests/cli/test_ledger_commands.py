"""Forecasts issued, listed and scored from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commands import bridgemem

pytest_plugins = ("small_runs",)
WHETHER = ("--subject", "Arvan", "--relation", "visit", "--object", "Kel")


@pytest.fixture
def run(recurrence_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recurrence_run, tmp_path / "run"))


def test_issued_forecasts_are_resolved_by_ingest_and_scored(run: Path, tmp_path: Path) -> None:
    store, events = tmp_path / "store.duckdb", tmp_path / "events.csv"
    made = bridgemem("forecast", run, *WHETHER, "--horizon", "2", "--issue", store, "--json").json
    assert made["issued"] == 1
    shown = bridgemem("outlook", run, "--horizon", "2", "--top", "5", "--issue", store)
    assert "Issued as forecast 2." in shown.out
    listed = bridgemem("ledger", "list", store, "--json").json["forecasts"]
    assert [(one["query"], len(one["claims"])) for one in listed] == [("whether", 1), ("outlook", 5)]
    events.write_text("subject,relation,object,time\nArvan,visit,Kel,2024-02-10\nKel,visit,Lor,2024-02-20\n")
    assert bridgemem("ingest", store, events, "--run", run).code == 0
    one = bridgemem("ledger", "list", store, "--forecast", "1", "--json").json["forecasts"][0]["claims"][0]
    assert (one["state"], len(one["history"])) == ("yes", 1)
    assert bridgemem("retract", store, "e1").code == 0
    told = bridgemem("ledger", "list", store, "--forecast", "1")
    assert "yes at 20" in told.out
    assert "no at 20" in told.out
    score = bridgemem("ledger", "score", store, "--by", "horizon", "--json").json
    assert [row["group"] for row in score["scores"]] == ["2 steps"]
    assert (score["scores"][0]["claims"], score["open"]) == (6, 0)
    assert "Track record of store.duckdb" in bridgemem("ledger", "score", store).out


def test_what_came_true_in_part_is_counted_apart(run: Path, tmp_path: Path) -> None:
    store, events = tmp_path / "store.duckdb", tmp_path / "events.csv"
    asked = ("forecast", run, "--subject", "Arvan", "--relation", "visit", "--top", "50", "--issue", store, "--json")
    (kel,) = [n for n, one in enumerate(bridgemem(*asked).json["candidates"]) if one["name"] == "Kel"]
    rows = [f"Arvan,visit,{who},2024-02-10" for who in ("Kel", "Kel", "Newcomer")]
    events.write_text("\n".join(["subject,relation,object,time", *rows, "Kel,visit,Lor,2024-02-20"]) + "\n")
    assert bridgemem("ingest", store, events, "--run", run).code == 0
    heading, _, row = bridgemem("ledger", "list", store).out.splitlines()[1:4]
    assert heading.split("probabilities")[1].split()[:5] == ["open", "void", "came", "true", "partly"]
    assert row.split("2024-02-10")[2].split()[1:5] == ["0", "0", "0", "1"]
    told = bridgemem("ledger", "list", store, "--forecast", "1", "--json").json["forecasts"][0]["claims"][kel]
    assert (told["state"], told["hits"], told["total"]) == ("partly", 1, 2)  # Kel twice in a step is one event
    assert "1 of 2 events at" in bridgemem("ledger", "list", store, "--forecast", "1").out


def test_a_window_that_began_is_refused(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    asked = ("forecast", run, *WHETHER, "--at", "2024-02-05", "--issue", store)
    assert "its window has begun; ask for a window from 2024-02-10 on." in bridgemem(*asked).refused()
    assert "No forecast was issued to store.duckdb" in bridgemem("ledger", "list", store).out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--assume", "events.csv"), "a forecast on assumed events cannot be issued"),
        (("--store", "none"), "leave --store out"),
        (("--memory-dir", "memory"), "leave --memory-dir or --issue out"),
    ],
    ids=["assume", "store", "memory"],
)
def test_what_cannot_be_issued_is_refused(run: Path, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    found = bridgemem("forecast", run, *WHETHER, "--issue", tmp_path / "store.duckdb", *options)
    assert said in found.refused()
    assert not (tmp_path / "store.duckdb").exists()


def test_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for command in ("list", "score"):
        assert "there is no event store" in bridgemem("ledger", command, tmp_path / "none.duckdb").refused()
    assert "scores are grouped by" in bridgemem("ledger", "score", made_store(tmp_path), "--by", "weekday").refused()


def made_store(folder: Path) -> Path:
    from bridgemem.live.eventstore import EventStore

    EventStore(folder / "empty.duckdb").close()
    return folder / "empty.duckdb"

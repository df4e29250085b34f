"""Aliases from import to query: merged, reported, used for queries and stored events, undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from commands import TINY_READER, bridgemem, planted_rows, write_rows
from fits import loaded

TABLE = "name,canonical name\nKELL,Kel\nThe Kel,Kel\nNobody,Kel\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events in which one actor has two names, imported and fitted with a table of aliases."""
    home = tmp_path_factory.mktemp("aliases")
    rows = [("KELL" if i % 2 and s == "Kel" else s, r, o, when) for i, (s, r, o, when) in enumerate(planted_rows())]
    write_rows(home / "own.csv", rows)
    (home / "aliases.csv").write_text(TABLE)
    made = bridgemem("data", "import", home / "own.csv", "-o", home / "own.npz", "--aliases", home / "aliases.csv")
    assert made.code == 0, made.err
    assert "1 of 3 aliases occur, and are merged into 1 name." in made.out
    assert "KELL" in made.out
    fitted = bridgemem("fit", "-d", home / "own.npz", "-b", "recurrence", "-o", home / "run", *TINY_READER)
    assert fitted.code == 0, fitted.err
    return home


def test_a_query_by_an_alias_is_one_by_its_name(home: Path) -> None:
    asked = [("--subject", name, "--relation", "visit", "--json") for name in ("Kel", "KELL", "The Kel")]
    answers = [bridgemem("forecast", home / "run", *one).json["candidates"] for one in asked]
    assert answers[0] == answers[1] == answers[2]
    assert "KELL" not in {
        row["name"] for row in bridgemem("names", home / "run", "--top", "99", "--json").json["names"]
    }


def test_stored_events_keep_their_names_and_count_for_the_canonical_one(home: Path, tmp_path: Path) -> None:
    new, store = tmp_path / "new.csv", tmp_path / "store.duckdb"
    write_rows(new, [("The Kel", "visit", "Arvan", "2024-02-10")] * 3)
    took = bridgemem("ingest", store, new, "--run", home / "run", "--json").json
    assert took["new_entities"] == 0
    count = {row["name"]: row["events"] for row in bridgemem("names", home / "run", "kel", "--json").json["names"]}[
        "Kel"
    ]
    after = bridgemem("names", home / "run", "kel", "--store", store, "--json").json["names"][0]
    assert (after["name"], after["events"]) == ("Kel", count + 3)
    assert bridgemem("stored", store, "--json").json["events"][0]["subject"] == "The Kel"
    undone = bridgemem("data", "aliases", home / "run", "--undo", "The Kel", "--json").json["aliases"]
    assert undone == {"KELL": "Kel", "Nobody": "Kel"}
    found = bridgemem("names", home / "run", "kel", "--store", store, "--json").json["names"]
    assert {row["name"]: row["events"] for row in found}["The Kel"] == 3
    (tmp_path / "again.csv").write_text(TABLE)
    again = bridgemem("data", "aliases", home / "run", "--add", tmp_path / "again.csv", "--json").json["aliases"]
    assert again.keys() == {"KELL", "The Kel", "Nobody"}


def test_the_service_takes_an_alias_for_its_name(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'serve'")
    from starlette.testclient import TestClient

    from bridgemem.service.app import create_app

    store = EventStore(tmp_path / "s.duckdb")
    with store, TestClient(create_app(LiveForecaster(loaded(home / "run"), store))) as client:
        asked = [{"subject": name, "relation": "visit"} for name in ("Kel", "KELL")]
        answers = [client.post("/v1/forecast", json=one).json()["candidates"] for one in asked]
        event = {"subject": "KELL", "relation": "visit", "object": "Arvan", "time": "2024-02-10"}
        before = client.get("/v1/entities", params={"q": "Kel", "limit": 1}).json()["names"][0]["events"]
        client.post("/v1/events", json={"source": "a", "key": "1", "events": [event]}).raise_for_status()
        after = client.get("/v1/entities", params={"q": "Kel", "limit": 1}).json()["names"][0]["events"]
    assert answers[0] == answers[1]
    assert after == before + 1


def test_undoing_in_a_pack_brings_the_names_back(home: Path) -> None:
    shown = bridgemem("data", "aliases", home / "own.npz")
    assert "1 of 3 aliases occur" in shown.out
    left = bridgemem("data", "aliases", home / "own.npz", "--undo", "KELL", "--json").json
    assert left["aliases"] == {"The Kel": "Kel", "Nobody": "Kel"}
    assert bridgemem("data", "stats", home / "own.npz", "--json").json["entities"] == 13
    back = bridgemem("data", "aliases", home / "own.npz", "--add", home / "aliases.csv", "--json").json
    assert [row["name"] for row in back["merged"]] == ["KELL"]
    assert bridgemem("data", "stats", home / "own.npz", "--json").json["entities"] == 12


def test_names_that_a_run_was_fitted_on_apart_are_not_merged_in_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("Arvan,Kel\n")
    said = bridgemem("data", "aliases", home / "run", "--add", tmp_path / "bad.csv").refused()
    assert "'Arvan' has events of its own in the data of the run; import the events again" in said
    assert "has no alias 'x'" in bridgemem("data", "aliases", home / "run", "--undo", "x").refused()

"""`bridgemem names`: names of a run by what one would type."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from commands import RELATIONS, TINY_READER, bridgemem, planted_rows, write_rows
from fits import loaded

pytest_plugins = ("small_runs",)


def test_names_are_found_by_a_few_letters_and_counted(recurrence_run: Path) -> None:
    found = bridgemem("names", recurrence_run, "arvn", "--json").json["names"]
    assert found[0]["name"] == "Arvan"
    assert found[0]["events"] > 0
    shown = bridgemem("names", recurrence_run, "kel")
    assert shown.out.splitlines()[0].endswith("of 12 entities")
    assert shown.out.splitlines()[3].startswith("Kel ")


def test_relations_are_searched_where_wanted_and_all_are_listed_without_a_text(recurrence_run: Path) -> None:
    assert bridgemem("names", recurrence_run, "AID", "--relations", "--json").json["names"][0]["name"] == "provide aid"
    every = bridgemem("names", recurrence_run, "--relations", "--json").json["names"]
    assert [row["events"] for row in every] == sorted((row["events"] for row in every), reverse=True)
    assert len(every) == 5


def test_a_text_that_nothing_is_called_is_told_in_a_sentence(recurrence_run: Path) -> None:
    assert "None of 12 entities matches 'Zanzibar'." in bridgemem("names", recurrence_run, "Zanzibar").out


def test_a_forecast_of_an_unknown_name_suggests_what_the_search_finds(recurrence_run: Path) -> None:
    said = bridgemem("forecast", recurrence_run, "--subject", "arv", "--relation", "visit").refused()
    best = bridgemem("names", recurrence_run, "arv", "--json").json["names"][0]["name"]
    assert f"did you mean {best!r}" in said


@pytest.fixture(scope="module")
def coded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose relations are CAMEO codes."""
    home = tmp_path_factory.mktemp("coded")
    codes = dict(zip(RELATIONS, ("0233", "042", "040", "111", "163"), strict=True))
    rows = [(s, codes[r], o, when) for s, r, o, when in planted_rows()]
    fitted = bridgemem(
        "fit", "-d", write_rows(home / "coded.csv", rows), "-b", "recurrence", "-o", home / "run", *TINY_READER
    )
    assert fitted.code == 0, fitted.err
    return home / "run"


def test_codes_are_shown_under_the_label_of_their_root(coded_run: Path) -> None:
    assert "criticise (111)" in bridgemem("names", coded_run, "--relations").out
    assert (
        bridgemem("names", coded_run, "talk", "--relations", "--json")
        .json["names"][0]["label"]
        .startswith("meet or talk (04")
    )
    asked = ("--subject", "Arvan", "--relation", "042")
    shown = bridgemem("forecast", coded_run, *asked)
    assert shown.out.startswith("(Arvan, meet or talk (042), ?)")
    best = bridgemem("forecast", coded_run, *asked, "--json").json["candidates"][0]["name"]
    why = bridgemem("explain", coded_run, *asked, "--object", best)
    assert "(Arvan, meet or talk (042), ?)" in why.out
    values = bridgemem("explain", coded_run, *asked, "--object", best, "--json").json["explanations"][0]
    assert (values["relation"], values["relation_label"]) == ("042", "meet or talk (042)")


def test_a_file_of_labels_names_the_codes_in_tables_and_explanations(coded_run: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("code,label\n042,pay a visit\n")
    asked = ("--subject", "Arvan", "--relation", "042", "--relation-names", labels)
    assert bridgemem("forecast", coded_run, *asked).out.startswith("(Arvan, pay a visit (042), ?)")
    labels.write_text("x,y\n")
    assert "labels none of the 5 relations" in bridgemem("forecast", coded_run, *asked).refused()


def test_the_service_gives_labels_next_to_codes(coded_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'serve'")
    from starlette.testclient import TestClient

    from bridgemem.service.app import create_app

    with (
        EventStore(tmp_path / "s.duckdb") as store,
        TestClient(create_app(LiveForecaster(loaded(coded_run), store))) as client,
    ):
        found = client.get("/v1/relations", params={"q": "talk"}).json()["names"]
        assert {one["label"] for one in found} == {"meet or talk (040)", "meet or talk (042)"}
        asked = {"subject": "Arvan", "relation": "042"}
        answer = client.post("/v1/forecast", json=asked).json()
        assert answer["relation_label"] == "meet or talk (042)"
        why = client.post("/v1/explain", json={**asked, "object": answer["candidates"][0]["name"]}).json()
        assert why["relation_label"] == "meet or talk (042)"
        assert all(event["relation_label"].endswith(f"({event['relation']})") for event in why["events"])

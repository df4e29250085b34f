"""`bridgemem names`: names of a run by what one would type."""

from __future__ import annotations

from pathlib import Path

from commands import bridgemem

pytest_plugins = ("small_runs",)


def test_names_are_found_by_a_few_letters_and_counted(recurrence_run: Path) -> None:
    found = bridgemem("names", recurrence_run, "arvn", "--json").json
    assert found[0]["name"] == "Arvan"
    assert found[0]["events"] > 0
    shown = bridgemem("names", recurrence_run, "kel")
    assert shown.out.splitlines()[0].endswith("of 12 entities")
    assert shown.out.splitlines()[3].startswith("Kel ")


def test_relations_are_searched_where_wanted_and_all_are_listed_without_a_text(recurrence_run: Path) -> None:
    assert bridgemem("names", recurrence_run, "AID", "--relations", "--json").json[0]["name"] == "provide aid"
    every = bridgemem("names", recurrence_run, "--relations", "--json").json
    assert [row["events"] for row in every] == sorted((row["events"] for row in every), reverse=True)
    assert len(every) == 5


def test_a_text_that_nothing_is_called_is_told_in_a_sentence(recurrence_run: Path) -> None:
    assert (
        "None of 12 entities is called 'Zanzibar' or nearly so." in bridgemem("names", recurrence_run, "Zanzibar").out
    )


def test_a_forecast_of_an_unknown_name_suggests_what_the_search_finds(recurrence_run: Path) -> None:
    said = bridgemem("forecast", recurrence_run, "--subject", "arv", "--relation", "visit").refused()
    best = bridgemem("names", recurrence_run, "arv", "--json").json[0]["name"]
    assert f"did you mean {best!r}" in said

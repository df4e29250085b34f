"""Names searched by what people type: beginnings, words, case, accents, then wrong letters; the active ones first."""

from __future__ import annotations

import numpy as np
import pytest

from bridgemem.errors import NotFoundError
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.names import Names, UnknownNameError, _similarity

WORDS = ("Iran", "IRAN", "Iraq", "Republic of Iran", "Tirana", "Straße", "North Korea")
FIRMS = ("App", "Apple Inc.", "Apple Rubber", "Pineapple Corp", "Big Apple", "Société Générale", "Sony_Group", "apple")


@pytest.fixture
def names() -> Names:
    return Names("entity", WORDS, np.array([5, 9, 7, 3, 8, 1, 2]))


def found(names: Names, text: str, most: int = 9) -> list[str]:
    return [each.name for each in names.search(text, most)]


def test_equal_names_come_first_then_beginnings_then_words_then_the_rest(names: Names) -> None:
    assert found(names, "iran") == ["IRAN", "Iran", "Republic of Iran", "Tirana"]
    assert found(names, "Iran", 2) == ["Iran", "IRAN"]  # written just so, though the other is more active
    assert found(names, "ira") == ["IRAN", "Iraq", "Iran", "Republic of Iran", "Tirana"]


def test_a_company_is_found_by_its_usual_name_before_a_shorter_word() -> None:
    firms = Names("entity", FIRMS[:5], np.array([900, 10, 3, 500, 40]))
    assert found(firms, "Apple") == ["Apple Inc.", "Apple Rubber", "Big Apple", "Pineapple Corp"]
    assert found(firms, "apple", 1) == ["Apple Inc."]
    assert "App" not in found(firms, "Apple Inc", 3)[:1]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("societe generale", "Société Générale"),
        ("GENERALE societe", "Société Générale"),
        ("gen soc", "Société Générale"),
        ("sony group", "Sony_Group"),
        ("Sony-Group", "Sony_Group"),
        ("Sony Gruop", "Sony_Group"),
        ("Aple", "apple"),
        ("Pinapple", "Pineapple Corp"),
        ("Generalle", "Société Générale"),
    ],
)
def test_words_case_accents_signs_and_wrong_letters_lead_to_the_name(typed: str, meant: str) -> None:
    assert found(Names("entity", FIRMS), typed)[0] == meant


def test_of_equally_close_names_the_active_one_comes_first() -> None:
    assert found(Names("entity", ("Irax", "Iraq"), np.array([1, 1000])), "Irak") == ["Iraq", "Irax"]


def test_swapped_letters_are_the_first_slip_that_is_thought_of() -> None:
    lands = Names("entity", ("Lin_Chia-lung", "China", "Chinese Taipei"), np.array([300, 200, 100]))
    assert found(lands, "Chnia", 1) == ["China"]


def test_an_empty_search_shows_the_most_active(names: Names) -> None:
    assert [each[:2] for each in names.search("  ", 3)] == [("IRAN", 9), ("Tirana", 8), ("Iraq", 7)]


def test_a_search_that_nothing_holds_shows_close_names(names: Names) -> None:
    assert found(names, "Nort Koreaa") == ["North Korea"]
    assert found(names, "STRASSE") == ["Straße"]
    assert found(names, "zzzzz") == []


def test_names_are_found_whatever_letters_they_are_made_of() -> None:
    odd = Names("entity", ["北京市政府", "\ud800", "", "a\nb", "???"])
    assert found(odd, "北京市政") == ["北京市政府"]
    assert found(odd, "京市") == ["北京市政府"]
    assert found(odd, "?") == ["???"]
    assert found(odd, "a" * 5000) == found(Names("entity", []), "abc") == []


def test_an_unknown_name_suggests_the_active_ones(names: Names) -> None:
    problem = names.unknown("iran")
    assert isinstance(problem, NotFoundError)
    assert problem.suggestions == ["IRAN", "Iran", "Republic of Iran", "Tirana"]
    assert str(problem) == "no entity is called 'iran'; did you mean 'IRAN', 'Iran', 'Republic of Iran'?"
    assert names.unknown("xyz").suggestions == []
    assert str(names.unknown("xyz")) == "no entity is called 'xyz'; `bridgemem names` searches all names of a run."


def test_an_event_log_suggests_by_its_own_activity() -> None:
    entities, relations = Vocabulary("entity", ("Apple Rubber", "Apple Inc.")), Vocabulary("relation", ("visit",))
    log = EventLog(*np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 2]]), entities, relations)
    assert (log.entity_id("Apple Inc."), log.entity_id(1), log.relation_id("visit")) == (1, 1, 0)
    with pytest.raises(UnknownNameError, match=r"did you mean 'Apple Inc\.', 'Apple Rubber'\?"):
        log.entity_id("apple")
    with pytest.raises(UnknownNameError, match="no relation is called 'vist'; did you mean 'visit'"):
        log.relation_id("vist")


def test_of_many_names_few_are_compared_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(
        "bridgemem.events.names._similarity", lambda m, p, w: compared.append(p) or _similarity(m, p, w)
    )
    many = Names("entity", [f"Ministry {i} ({place})" for i in range(2000) for place in ("Norway", "Sweden")])
    assert found(many, "Minstry 1234 (Swedn)")[0] == "Ministry 1234 (Sweden)"
    assert len(compared) <= 200 * 4

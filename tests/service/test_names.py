"""Names looked up: exactly, by a few letters, and what may have been meant."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from bridgemem.errors import NotFoundError
from bridgemem.service.names import Names, UnknownNameError

WORDS = ("Iran", "IRAN", "Iraq", "Republic of Iran", "Tirana", "Straße", "North Korea")


@pytest.fixture
def names() -> Names:
    return Names("entity", WORDS, np.array([5, 9, 7, 3, 8, 1, 2]))


def test_a_known_name_is_itself_and_case_counts(names: Names) -> None:
    assert names.check("Iran") == "Iran"
    with pytest.raises(UnknownNameError) as problem:
        names.check("iran")
    assert isinstance(problem.value, NotFoundError)
    assert problem.value.suggestions[0] == "IRAN"  # of the two that differ in case only, the more active one
    assert "Iraq" in problem.value.suggestions


def test_a_name_like_no_other_has_no_suggestion(names: Names) -> None:
    with pytest.raises(UnknownNameError, match=r"no entity is called 'xyz'\.") as problem:
        names.check("xyz")
    assert problem.value.suggestions == []


def test_a_search_puts_equal_names_first_then_beginnings_then_words_then_the_rest(names: Names) -> None:
    assert names.search("iran", 9) == [("IRAN", 9), ("Iran", 5), ("Republic of Iran", 3), ("Tirana", 8)]
    assert [name for name, _ in names.search("ira", 9)] == ["IRAN", "Iraq", "Iran", "Republic of Iran", "Tirana"]
    assert names.search("iran", 2) == [("IRAN", 9), ("Iran", 5)]


def test_an_empty_search_shows_the_most_active(names: Names) -> None:
    assert names.search("  ", 3) == [("IRAN", 9), ("Tirana", 8), ("Iraq", 7)]


def test_a_search_that_nothing_holds_shows_close_names(names: Names) -> None:
    assert names.search("Nort Koreaa", 9) == [("North Korea", 2)]
    assert names.search("STRASSE", 9) == [("Straße", 1)]
    assert names.search("zzzzz", 9) == []

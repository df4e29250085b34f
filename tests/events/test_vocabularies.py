"""Vocabularies that grow: every one knows its own names, and shares what it can with those before it."""

from __future__ import annotations

import doctest
import sys

from bridgemem.events.vocabulary import Ids, Vocabulary


def test_the_example_runs() -> None:
    outcome = doctest.testmod(sys.modules[Vocabulary.__module__])
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_each_of_the_vocabularies_that_follow_one_another_knows_its_own_names() -> None:
    made = [Vocabulary("entity", ("a", "b", "a"))]
    for number in range(12):
        made.append(made[-1].followed_by([f"new {number}", f"newer {number}"]))
    for number, vocabulary in enumerate(made):
        assert len(vocabulary) == 3 + 2 * number
        known = {name: vocabulary.names.index(name) for name in vocabulary.names}
        assert dict(vocabulary.ids) == known
        assert ("new 3" in vocabulary) == (number > 3)
        assert vocabulary.get(f"newer {number - 1}") == (2 + 2 * number if number else None)
    branch = made[2].followed_by(["other"])
    assert branch.id("other") == 7
    assert "other" not in made[3]
    assert "new 2" not in branch


def test_the_names_of_a_large_vocabulary_are_not_numbered_again_for_a_new_one() -> None:
    first = Vocabulary("entity", tuple(map(str, range(1000))))
    second = first.followed_by(["x"])
    third = second.followed_by(["y"])
    assert isinstance(second.ids, Ids)
    assert isinstance(third.ids, Ids)
    assert first.ids is second.ids._first is third.ids._first

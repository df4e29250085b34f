"""Aliases: names merged when events are read, undone without a trace, known to queries and to later events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bridgemem.errors import DataError
from bridgemem.events.aliases import MergedName, merged, proposed, read_aliases, write_aliases
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.naming import followed_by
from bridgemem.events.packs import pack, unpack, unpack_unmerged

NAMES = ("Apple Computer", "IBM", "Apple Inc.", "Sony")
TABLE = {"Apple Computer": "Apple Inc.", "Big Blue": "IBM"}


@pytest.fixture
def events() -> EventLog:
    rows = [(0, 0, 1, 0), (2, 0, 0, 1), (1, 0, 3, 2), (3, 0, 0, 3)]
    return EventLog(*np.array(rows).T, Vocabulary("entity", NAMES), Vocabulary("relation", ("buys",)))


def named(events: EventLog) -> list[tuple[str, str]]:
    names = events.entities.names
    return [(names[s], names[o]) for s, o in zip(events.subject, events.object, strict=True)]


def test_events_of_an_alias_become_those_of_its_canonical_name(events: EventLog) -> None:
    found, report = merged(events, TABLE)
    assert found.entities.names == ("Apple Inc.", "IBM", "Sony")
    assert named(found) == [
        ("Apple Inc.", "IBM"),
        ("Apple Inc.", "Apple Inc."),
        ("IBM", "Sony"),
        ("Sony", "Apple Inc."),
    ]
    assert report.names == (MergedName("Apple Computer", "Apple Inc.", 3),)
    assert report.sentence() == (
        "1 of 2 aliases occur, and are merged into 1 name. 1 event is now between a name and itself."
    )
    assert found.entity_id("Apple Computer") == found.entity_id("Apple Inc.") == 0
    assert found.entity_id("Big Blue") == found.entity_id("IBM")
    assert "Big Blue" in found.entities
    assert "Nobody" not in found.entities


def test_a_canonical_name_that_does_not_occur_is_the_new_name(events: EventLog) -> None:
    found, _ = merged(events, {"Sony": "Sony Group"})
    assert found.entities.names == ("Apple Computer", "IBM", "Apple Inc.", "Sony Group")
    assert found.subject.tolist() == events.subject.tolist()


def test_later_events_under_an_alias_count_for_its_name(events: EventLog) -> None:
    found, _ = merged(events, {**TABLE, "Sony Corp": "Sony", "HP": "Hewlett"})
    later = followed_by(found, [("Sony Corp", "buys", "Big Blue", 9), ("HP", "buys", "Hewlett", 9)])
    assert named(later)[-2:] == [("Sony", "IBM"), ("Hewlett", "Hewlett")]
    assert later.entities.names == (*found.entities.names, "Hewlett")


def test_a_pack_keeps_the_names_that_came_and_applies_the_table_when_read(events: EventLog, tmp_path: Path) -> None:
    dataset, path = Dataset("firms", events, 2), tmp_path / "firms.npz"
    pack(dataset, path, aliases=TABLE)
    assert unpack(path).events.fingerprint == merged(events, TABLE)[0].fingerprint
    assert unpack(path).events.entities.aliases == TABLE
    raw, table = unpack_unmerged(path)
    assert (raw.events.fingerprint, table) == (events.fingerprint, TABLE)
    pack(raw, path, aliases={})
    assert unpack(path).identity == dataset.identity
    pack(replace(dataset, events=merged(events, TABLE)[0]), path)
    assert unpack(path).events.entities.aliases == TABLE


def test_chains_lead_to_the_last_name_and_circles_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "aliases.csv"
    file.write_text("name,canonical name\nA,B\nB,C\nC,C\n")
    assert read_aliases(file) == {"A": "C", "B": "C"}
    file.write_text("A,B\nB,C\nC,A\n")
    with pytest.raises(DataError, match="the aliases of 'A' lead back to it"):
        read_aliases(file)


def test_a_written_table_is_read_as_it_was(tmp_path: Path) -> None:
    table = {'a "b", c': "d", "line\u2028end": "x\ny"}
    write_aliases(tmp_path / "aliases.csv", table)
    assert read_aliases(tmp_path / "aliases.csv") == table


def test_names_that_differ_by_case_spaces_or_accents_are_proposed() -> None:
    names = ("IRAN", "Iran", "Iraq", "Société  Générale", "societe generale", "Iran ")
    found = proposed(names, np.array([3, 9, 5, 1, 2, 4]))
    assert found == {"IRAN": "Iran", "Iran ": "Iran", "Société  Générale": "societe generale"}

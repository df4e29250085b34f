"""Aliases: several names of one entity, from a table of names and their canonical names.

Events are kept under the names that they came with, and the table is applied when they are read. A row that is taken
out of the table is thereby undone.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.names import folded
from bridgemem.events.readers.pairs import read_pairs
from bridgemem.events.readers.text import short
from bridgemem.storage.whole import whole_file

Aliases = Mapping[str, str]  # the canonical name by the name; no canonical name is itself an alias

HEADINGS = (frozenset({"name", "alias"}), frozenset({"canonical name", "canonical", "name"}))


@dataclass(frozen=True)
class MergedName:
    """A name that became another, and how many of its parts in events did so."""

    name: str
    canonical: str
    events: int


@dataclass(frozen=True)
class Merged:
    """What a table of aliases did to some events. loops: those whose two parties became one."""

    names: tuple[MergedName, ...]
    rows: int
    loops: int

    def sentence(self) -> str:
        """The report in one or two sentences."""
        if not self.names:
            return f"None of {self.rows:,} aliases occurs in the events."
        made, loops = len({found.canonical for found in self.names}), self.loops
        said = (
            f"{len(self.names):,} of {self.rows:,} aliases occur, and are merged into {made:,} name{'s' * (made > 1)}."
        )
        many = f" {loops:,} event{' is' if loops == 1 else 's are'} now between a name and itself."
        return said + (many if loops else "")


def read_aliases(path: Path | str) -> dict[str, str]:
    """A table of aliases; an alias of an alias leads to the last name."""
    return resolved(read_pairs(path, HEADINGS), str(path))


def resolved(table: Aliases, where: str) -> dict[str, str]:
    """The table with the last name of every chain; one that leads back to itself is refused."""
    found = {}
    for name in table:
        passed, last = {name}, table[name]
        while last in table and table[last] != last:
            if last in passed:
                raise DataError(f"{where}: the aliases of {short(name)!r} lead back to it; take one of these rows out.")
            passed.add(last)
            last = table[last]
        if name != last:
            found[name] = last
    return found


def write_aliases(path: Path | str, table: Aliases) -> None:
    """Write a table that `read_aliases` reads; whole or not at all."""
    with whole_file(Path(path)) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("name", "canonical name"), *table.items()])


def canonical(names: Sequence[str], table: Aliases) -> tuple[np.ndarray, tuple[str, ...]]:
    """The new id of each name int64 [n], and the names that are left, in the order in which they come first."""
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    return np.array([ids[table.get(name, name)] for name in names], np.int64), tuple(ids)


def merged(events: EventLog, table: Aliases) -> tuple[EventLog, Merged]:
    """The events under canonical names, with a vocabulary that knows the aliases, and what was merged."""
    names = events.entities.names
    place, left = canonical(names, table)
    entities = Vocabulary(events.entities.kind, left, aliases=table, types=events.entities.types)
    counts = events.tallies[0]
    found = tuple(
        MergedName(name, table[name], int(count)) for name, count in zip(names, counts, strict=True) if name in table
    )
    if not found:
        return events.with_vocabularies(replace(events.entities, aliases=table), events.relations), Merged(
            (), len(table), 0
        )
    subject, object_ = place[events.subject], place[events.object]
    loops = int(((subject == object_) & (events.subject != events.object)).sum())
    made = EventLog(subject, events.relation, object_, events.step, entities, events.relations, events.clock)
    return made, Merged(found, len(table), loops)


def proposed(names: Sequence[str], counts: np.ndarray) -> dict[str, str]:
    """Aliases for names that differ only by case, spaces, accents or signs; the one with the most events is kept.

    counts int64 [n]: the events of each name.
    """
    alike: defaultdict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        alike[folded(name)].append(place)
    found: dict[str, str] = {}
    for places in alike.values():
        if len(places) > 1:
            best, *others = sorted(places, key=lambda place: -counts[place])
            found |= {names[place]: names[best] for place in others if names[place] != names[best]}
    return found

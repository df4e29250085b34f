"""Watch lists: the actors, pairs of actors and relations that an outlook is for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bridgemem.errors import DataError
from bridgemem.events.groups import Groups
from bridgemem.events.log import EventLog
from bridgemem.events.names import UnknownNameError
from bridgemem.events.readers.pairs import read_rows
from bridgemem.forecasting.occurrence import Keys

HEADINGS = ({"name", "watch", "actor", "group", "relation", "subject"}, {"partner", "other", "object"})


@dataclass(frozen=True)
class Watch:
    """What is watched, in ids: actors in either role, relations, pairs either way round; names: as it was given."""

    actors: frozenset[int]
    relations: frozenset[int]
    pairs: frozenset[tuple[int, int]]
    names: tuple[str, ...]

    def holds(self, keys: Keys) -> Tensor:
        """Which events of (subject, relation, object) are watched, bool [n]."""
        found = torch.isin(keys.relation, torch.tensor(sorted(self.relations), dtype=torch.int64))
        actors = torch.tensor(sorted(self.actors), dtype=torch.int64)
        found |= torch.isin(keys.subject, actors) | torch.isin(keys.object, actors)
        pairs = torch.tensor([(a << 32) | b for a, b in sorted(self.pairs)], dtype=torch.int64)
        ends = torch.minimum(keys.subject, keys.object), torch.maximum(keys.subject, keys.object)
        return found | torch.isin((ends[0] << 32) | ends[1], pairs)


def watch_of(given: Any, events: EventLog, groups: Groups | None = None) -> Watch:
    """A watch list in ids, or the sentence that says what cannot be watched; a group stands for its members.

    given: a file with a name (an actor or a relation) or two names (a pair of actors) in each row; a list of names and
    of tuples of two; or one name.
    """
    rows, where = _rows(given)
    actors, relations, pairs = set[int](), set[int](), set[tuple[int, int]]()
    for place, row in rows:
        try:
            sides = [(groups or {}).get(name, (name,)) for name in row]
            if len(row) == 1:
                for name in sides[0]:
                    who, what = _meant(name, events)
                    actors.update(who)
                    relations.update(what)
            elif len(row) == 2:
                ids = ([events.entity_id(name) for name in side] for side in sides)
                pairs.update((min(pair), max(pair)) for pair in product(*ids))
            else:
                raise DataError("a row has one name, of an actor or a relation, or two, of a pair of actors.")
        except UnknownNameError as problem:
            raise problem.at(f"{where}{place}: ") from None
        except DataError as problem:
            raise DataError(f"{where}{place}: {problem}") from None
    if not rows:
        raise DataError("the watch list is empty; write a name, or two names, in each row.")
    return Watch(frozenset(actors), frozenset(relations), frozenset(pairs), tuple(" - ".join(row) for _, row in rows))


def _rows(given: Any) -> tuple[list[tuple[int, list[str]]], str]:
    """The names of each row with its number, and what numbers are called."""
    if isinstance(given, Path) or (isinstance(given, str) and Path(given).is_file()):
        rows = list(read_rows(given))
        if rows and all(cell.lower() in known for cell, known in zip(rows[0][1], HEADINGS, strict=False)):
            rows = rows[1:]
        return rows, f"{given}, line "
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    made = [[str(name) for name in one] if isinstance(one, tuple | list) else [str(one)] for one in given]
    return list(enumerate(made, 1)), "watch list, entry "


def _meant(name: str, events: EventLog) -> tuple[list[int], list[int]]:
    """The actors and the relations of a name; it may be both."""
    found = [known.get(name) for known in (events.entities, events.relations)]
    if found == [None, None]:
        near = [n for known in (events.entity_names, events.relation_names) for n in known.unknown(name).suggestions]
        raise UnknownNameError("entity or relation", name, near)
    who, what = ([] if one is None else [one] for one in found)
    return who, what

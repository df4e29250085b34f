"""Groups: one name for several actors or several relations, from a table of groups and their members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bridgemem.errors import DataError
from bridgemem.events.log import EventLog
from bridgemem.events.names import UnknownNameError
from bridgemem.events.readers.pairs import read_twos

Groups = Mapping[str, tuple[str, ...]]  # the members by the group's name

HEADINGS = (frozenset({"group", "name"}), frozenset({"member", "members"}))


def read_groups(path: Path | str) -> dict[str, tuple[str, ...]]:
    """A table of two columns, group and member, with a row for each member."""
    found: dict[str, dict[str, None]] = {}
    for _, group, member in read_twos(path, HEADINGS):
        found.setdefault(group, {})[member] = None
    if not found:
        raise DataError(f"{path} holds no group; write a row of group and member for each member.")
    return {group: tuple(members) for group, members in found.items()}


def groups_of(given: Any, events: EventLog) -> dict[str, tuple[str, ...]]:
    """Groups whose every member is known, all of them actors or all relations.

    given: a file, or the members by the group's name.
    """
    if isinstance(given, str | Path):
        given, where = read_groups(given), f"{given}: "
    else:
        where = ""
    made = {str(name): _members(members) for name, members in dict(given).items()}
    for name, members in made.items():
        taken = next((known.kind for known in (events.entities, events.relations) if name in known.ids), None)
        if taken is not None:
            raise DataError(f"{where}the group {name!r} has the name of {_a(taken)}; give it another name.")
        if not members:
            raise DataError(f"{where}the group {name!r} has no member; name one, or take the group out.")
        kinds = (events.entities, events.relations)
        fits = [known for known in kinds if all(known.get(one) is not None for one in members)]
        if not fits:
            # of the kind that most members are of, the first that is not known
            likely = max(kinds, key=lambda known: sum(known.get(one) is not None for one in members))
            lacking = next(one for one in members if likely.get(one) is None)
            search = events.entity_names if likely is events.entities else events.relation_names
            problem: UnknownNameError = search.unknown(lacking)
            raise problem.at(f"{where}group {name!r}: ")
    return made


def _members(members: str | Iterable[str]) -> tuple[str, ...]:
    return (members,) if isinstance(members, str) else tuple(dict.fromkeys(map(str, members)))


def _a(kind: str) -> str:
    return f"an {kind}" if kind.startswith("e") else f"a {kind}"

"""Vocabulary: the names of entities or relations, whose positions are their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from bridgemem.events.names import Names
from bridgemem.events.whole_numbers import plain_number
from bridgemem.showing import SHOWN, as_frame, first_few, html_table


class Ids(Mapping[str, int]):
    """The ids of names, most of them in a dict that all vocabularies which follow one another share."""

    def __init__(self, first: dict[str, int], since: dict[str, int]) -> None:
        self._first, self._since = first, since

    @classmethod
    def of(cls, ids: Mapping[str, int]) -> Ids:
        return ids if isinstance(ids, Ids) else cls(ids if isinstance(ids, dict) else dict(ids), {})

    def followed_by(self, ids: dict[str, int]) -> Ids:
        """These and others, which it lacks."""
        if len(self._since) > len(self._first):
            return Ids(dict(self), ids)  # so that what is copied each time stays the smaller part
        return Ids(self._first, self._since | ids)

    def __getitem__(self, name: str) -> int:
        found = self._first.get(name)
        return self._since[name] if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self._first or name in self._since

    def __len__(self) -> int:
        return len(self._first) + len(self._since)

    def __iter__(self) -> Iterator[str]:
        yield from self._first
        yield from self._since


@dataclass(frozen=True)
class Vocabulary:
    """Names of entities or relations; the id of a name is its position.

    aliases: other names under which some of these are known; see aliases.py. labels: words for names that are codes.
    types: what an id file says of a name besides its id, by name; several columns with tabs between them.

    Example:
        >>> names = Vocabulary("entity", ("Iran", "Iraq", "China"))
        >>> names[0], names[1:], names.id("China"), "Iran" in names
        ('Iran', ('Iraq', 'China'), 2, True)
        >>> names.find("ira")
        ['Iran', 'Iraq']
    """

    kind: str
    names: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    labels: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)
    types: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        return self.names[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.ids or (isinstance(name, str) and self.aliases.get(name) in self.ids)

    def find(self, text: str, *, most: int = 10) -> list[str]:
        """The names that a text may mean, the best first; codes are found by their words too."""
        labels = list(map(self.label, self.names)) if self.labels else None
        return [found.name for found in Names(self.kind, self.names, labels=labels).search(text, most)]

    def to_frame(self) -> Any:
        """A pandas data frame of ids, names and types, if any; a dict of columns where pandas is not installed."""
        types = {"type": [self.types.get(name, "") for name in self.names]} if self.types else {}
        return as_frame({"id": np.arange(len(self)), self.kind: list(self.names), **types})

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind!r}, {len(self):,} names: {first_few(self.names)})"

    def _repr_html_(self) -> str:
        more = f"{len(self) - SHOWN:,} more" if len(self) > SHOWN else ""
        return html_table(f"{len(self):,} names", ["id", self.kind], enumerate(self.names[:SHOWN]), more)

    def first(self, size: int) -> Vocabulary:
        """The first names alone."""
        return self if size >= len(self) else replace(self, names=self.names[:size])

    def followed_by(self, names: Sequence[str]) -> Vocabulary:
        """These names and, after them, others that it lacks."""
        made = replace(self, names=(*self.names, *names))
        vars(made)["ids"] = Ids.of(self.ids).followed_by({name: i for i, name in enumerate(names, len(self))})
        return made

    def label(self, name: str) -> str | None:
        """The words for a name that is a code, with the code in brackets; None where it has none."""
        return f"{self.labels[name]} ({name})" if name in self.labels else None

    def shown(self, id: int) -> str:
        """The name of an id for people: with its words where it is a code."""
        return self.label(self.names[id]) or self.names[id]

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The id of every name; of two equal names the first."""
        return {name: i for i, name in reversed(list(enumerate(self.names)))}

    @cached_property
    def numbers(self) -> bool:
        """Whether all names are whole numbers themselves, as where a file gives ids without names.

        Codes with leading zeros, as CAMEO's 020, are names.
        """
        return all(name.isdecimal() and (name == "0" or name[0] != "0") for name in self.names)

    def get(self, name: str | int) -> int | None:
        """The id of a name, or None; a number (or its digits, when no name matches) is taken as the id itself.

        Where the names are numbers, a number is one of them and never the id of another. 107.0 is the name 107, as it
        is in a table.
        """
        text = str(name)
        if text in self.ids and (self.numbers or isinstance(name, str)):
            return self.ids[text]
        if text in self.aliases:
            return self.ids.get(self.aliases[text])
        if (plain := plain_number(text)) != text and plain in self.ids:
            return self.ids[plain]
        # no id has as many digits as make a number that int() refuses to read
        if not self.numbers and text.isdecimal() and len(text) < 20 and int(text) < len(self):
            return int(text)
        return None

    def id(self, name: str | int) -> int:
        """The id of a name, as `get` finds it, or an error with names that may have been meant."""
        found = self.get(name)
        if found is None:
            raise Names(self.kind, self.names).unknown(str(name))
        return found

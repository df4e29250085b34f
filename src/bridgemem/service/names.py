"""Names looked up: exactly for forecasts, by a few letters for people, and what a misspelt one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np

from bridgemem.errors import NotFoundError

SUGGESTED = 5


class UnknownNameError(NotFoundError):
    """A name that does not occur, with those that are close to it."""

    def __init__(self, kind: str, name: str, suggestions: list[str]) -> None:
        hint = f"; did you mean {', '.join(map(repr, suggestions))}?" if suggestions else "."
        super().__init__(f"no {kind} is called {name!r}{hint}")
        self.suggestions = suggestions


class Names:
    """The names of one vocabulary and how many events each has.

    counts int64 [n]. Of names that fit equally well the one with the most events comes first.
    """

    def __init__(self, kind: str, names: Sequence[str], counts: np.ndarray) -> None:
        self.kind, self.names, self.counts = kind, names, counts
        self._exact = frozenset(names)
        self._folded = [name.casefold() for name in names]
        self._by_count = np.argsort(-counts, kind="stable").tolist()

    def __len__(self) -> int:
        return len(self.names)

    def check(self, name: str) -> str:
        """The name itself, or an error with suggestions."""
        if name in self._exact:
            return name
        raise UnknownNameError(self.kind, name, self.close(name))

    def close(self, name: str) -> list[str]:
        """Names that may have been meant: by their letters first, then those that hold the text."""
        places: dict[str, int] = {}
        for place in self._by_count:
            places.setdefault(self._folded[place], place)
        similar = difflib.get_close_matches(name.casefold()[:200], places, n=SUGGESTED, cutoff=0.6)
        found = dict.fromkeys(self.names[places[folded]] for folded in similar)
        found |= dict.fromkeys(self.names[place] for place in self._holding(name.casefold()))
        return list(found)[:SUGGESTED]

    def search(self, text: str, most: int) -> list[tuple[str, int]]:
        """(name, events) of the names that hold the text, whichever case; close ones where none does."""
        wanted = text.strip().casefold()
        found = [(self.names[place], int(self.counts[place])) for place in self._holding(wanted)[:most]]
        if found or not wanted:
            return found
        counts = {self.names[place]: int(self.counts[place]) for place in range(len(self))}
        return [(name, counts[name]) for name in self.close(text)[:most]]

    def _holding(self, wanted: str) -> list[int]:
        """Places of the names that hold the text: those equal to it, then that begin with it, then any."""
        if not wanted:
            return self._by_count

        def distance(place: int) -> int:
            folded = self._folded[place]
            return 0 if folded == wanted else 1 if folded.startswith(wanted) else 2 if f" {wanted}" in folded else 3

        return sorted((place for place in self._by_count if wanted in self._folded[place]), key=distance)

"""Names looked up: exactly for forecasts, by a few letters for people, and what a misspelt one may have meant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridgemem.errors import NotFoundError
from bridgemem.events.log import close_names

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
        raise UnknownNameError(self.kind, name, [self.names[place] for place in self._close(name.casefold())])

    def _close(self, wanted: str) -> list[int]:
        """Places of names that may have been meant: by their letters first, then those that hold the text."""
        similar = close_names(wanted, self._folded, SUGGESTED)
        found = dict.fromkeys(self._holding(folded)[0] for folded in similar)
        return list(found | dict.fromkeys(self._holding(wanted)))[:SUGGESTED]

    def search(self, text: str, most: int) -> list[tuple[str, int]]:
        """(name, events) of the names that hold the text, whichever case; close ones where none does."""
        wanted = text.strip().casefold()
        found = self._holding(wanted) or self._close(wanted)
        return [(self.names[place], int(self.counts[place])) for place in found[:most]]

    def _holding(self, wanted: str) -> list[int]:
        """Places of the names that hold the text: those equal to it, then that begin with it, then any."""
        if not wanted:
            return self._by_count

        def distance(place: int) -> int:
            folded = self._folded[place]
            return 0 if folded == wanted else 1 if folded.startswith(wanted) else 2 if f" {wanted}" in folded else 3

        return sorted((place for place in self._by_count if wanted in self._folded[place]), key=distance)

"""Names by what people type: a beginning, some words, another case, no accents, a wrong letter."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bridgemem.errors import NotFoundError

SUGGESTED = 5  # names that an error suggests
FEW = 3  # with fewer names that hold the text, those that are nearly written so are found too
SIMILAR = 0.6  # the share of letters in common from which on a name is nearly written as a text
SWAPPED = 0.95  # that share where all letters are in common, in another order: the commonest slip
WITHIN = 0.98  # how much words of a name count that are written so, compared with a whole name
ACTIVITY = 0.05  # how much of that share the most active name is ahead of one without events
LIKELY = 100  # of the names that share the most with a misspelt one, how many are looked at letter by letter
LONGEST = 200  # characters of a text that are searched for


class UnknownNameError(NotFoundError):
    """A name that does not occur, with those that may have been meant."""

    def __init__(self, kind: str, name: str, suggestions: list[str]) -> None:
        close = ", ".join(map(repr, suggestions[:3]))
        hint = f"did you mean {close}?" if close else "`bridgemem names` searches all names of a run."
        shown = name if len(name) <= LONGEST else name[: LONGEST - 3] + "..."
        super().__init__(f"no {kind} is called {shown!r}; {hint}")
        self.kind, self.name, self.suggestions = kind, name, suggestions

    def at(self, where: str) -> UnknownNameError:
        """The same with the place where the name stands before it."""
        made = UnknownNameError(self.kind, self.name, list(self.suggestions))
        made.args = (f"{where}{self}",)
        return made


class Found(NamedTuple):
    """A name that was found, how many events it has, and the words for it where it is a code."""

    name: str
    events: int
    label: str | None = None


class Names:
    """The names of one vocabulary, searched by what people type.

    counts int64 [n]: the events of each name. Of names that fit equally well the one with the most events comes first.
    labels: words for names that are codes, with the codes; they are found by both.
    """

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        counts: np.ndarray | None = None,
        *,
        labels: Sequence[str | None] | None = None,
    ) -> None:
        self.kind, self.names, self.labels = kind, names, labels
        self.counts = np.zeros(len(names), np.int64) if counts is None else counts

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _folded(self) -> list[str]:
        texts = zip(self.labels, self.names, strict=True) if self.labels else ((None, name) for name in self.names)
        return [folded(label or name) for label, name in texts]

    @cached_property
    def _by_count(self) -> list[int]:
        return np.argsort(-self.counts, kind="stable").tolist()

    def search(self, text: str, most: int) -> list[Found]:
        """The names that fit a text best; of an empty text the most active ones."""
        return [
            Found(self.names[place], int(self.counts[place]), self.labels[place] if self.labels else None)
            for place in self._places(text)[:most]
        ]

    def unknown(self, name: str) -> UnknownNameError:
        """The error that a name does not occur, with those that may have been meant."""
        found = self.search(name, SUGGESTED) if name.strip() else []
        return UnknownNameError(self.kind, name, list(dict.fromkeys(each.name for each in found)))

    def _places(self, text: str) -> list[int]:
        wanted = folded(text.strip()[:LONGEST])
        if not wanted:
            return self._by_count
        if not any(letter.isalnum() for letter in wanted):
            return [place for place in self._by_count if wanted in self.names[place]]
        words = wanted.split()
        held = [place for place in self._by_count if all(word in self._folded[place] for word in words)]
        fits = {place: self._fit(place, text.strip(), wanted, words) for place in held}
        found = sorted((place for place in held if fits[place] is not None), key=lambda place: fits[place] or 0)
        return found if len(found) >= FEW else list(dict.fromkeys([*found, *self._close(wanted)]))

    def _fit(self, place: int, text: str, wanted: str, words: list[str]) -> int | None:
        """How a name that holds all words of a text does it, 0 the best; None where the words lie across its own."""
        name = self._folded[place]
        own = name.split()
        return next(
            (
                rank
                for rank, fits in enumerate(
                    (
                        self.names[place] == text,
                        name == wanted,
                        name.startswith(f"{wanted} "),
                        name.startswith(wanted),
                        set(words) <= set(own),
                        all(any(one.startswith(word) for one in own) for word in words),
                        wanted in name,
                    )
                )
                if fits
            ),
            None,
        )

    def _close(self, wanted: str) -> list[int]:
        """Places of the names that are nearly written as a text, or that hold words that are."""
        most = np.log1p(self.counts.max(initial=1))
        matcher, found = difflib.SequenceMatcher(b=wanted, autojunk=False), []
        for place in self._likely(wanted):
            whole, *parts = (_similarity(matcher, part, wanted) for part in _parts(self._folded[place], wanted))
            similar = max(whole, WITHIN * max(parts, default=0))
            if similar >= SIMILAR:
                found.append((similar + ACTIVITY * np.log1p(self.counts[place]) / most, -place))
        return [-place for _, place in sorted(found, reverse=True)]

    def _likely(self, wanted: str) -> list[int]:
        """Places of the names that share the most pairs of letters with a text, as a whole or anywhere in them."""
        # letter by letter is slow, so it is done for these alone
        names = self._folded
        size = np.array([len(name) + 1 for name in names], np.int64)
        shared = np.flatnonzero(np.isin(_letter_pairs("\n".join(names)), np.unique(_letter_pairs(wanted))))
        count = np.bincount(np.searchsorted(size.cumsum(), shared, side="right"), minlength=len(size))[: len(size)]
        whole = np.argsort(-count / (size + len(wanted)), kind="stable")[:LIKELY]
        part = np.lexsort((size, -np.minimum(count, len(wanted))))[:LIKELY]
        return list(dict.fromkeys([*whole.tolist(), *part.tolist()]))


def folded(text: str) -> str:
    """A text without case, accents, and signs between words; the text itself where nothing else is in it."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = text.casefold()
    words = "".join(c if c.isalnum() else " " for c in text).split() if not text.isalnum() else [text]
    return " ".join(words) or text.strip()


def _parts(name: str, wanted: str) -> Iterable[str]:
    """A name, and the runs of as many of its words as a text has."""
    yield name
    words, size = name.split(), len(wanted.split())
    for first in range(len(words) - size + 1):
        yield " ".join(words[first : first + size])


def _similarity(matcher: difflib.SequenceMatcher[str], part: str, wanted: str) -> float:
    """matcher: its second text is the one that is wanted."""
    if sorted(part) == sorted(wanted):
        return SWAPPED
    matcher.set_seq1(part)
    # the first two are quick, and never below the third
    if matcher.real_quick_ratio() < SIMILAR or matcher.quick_ratio() < SIMILAR:
        return 0.0
    return matcher.ratio()


def _letter_pairs(text: str) -> np.ndarray:
    """A number for every two letters that follow each other, uint32; unlike pairs seldom share one."""
    letters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return letters[:-1] * np.uint32(1_000_003) + letters[1:]

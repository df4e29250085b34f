"""The values of a table's rows: distinct texts, the ids that names have, and which values are missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.options import ROLES
from bridgemem.events.readers.table import INTEGER
from bridgemem.events.readers.text import short


@dataclass
class Texts:
    """The distinct texts of one or two columns: codes int64 [n] per column, texts [d], and how many rows hold each.

    missing bool [d]: which of them stand for no value. faults: why others cannot be used.
    """

    columns: list[np.ndarray]
    texts: list[str]
    rows: np.ndarray
    missing: np.ndarray
    faults: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        columns: Sequence[np.ndarray],
        missing: Collection[str],
        clean: Callable[[str], str] = str.strip,
    ) -> Texts:
        """Clean the texts, and let those that are then equal share a code; missing: those that stand for no value."""
        codes = new_codes()
        merged = np.array([codes[clean(text)] for text in texts], np.int64)
        renamed = [merged[column] for column in columns]
        rows = np.bincount(np.concatenate(renamed), minlength=len(codes))
        return cls(renamed, list(codes), rows, np.array([text in missing for text in codes], bool))

    def filled(self) -> list[str]:
        """The texts, empty where they stand for no value."""
        return ["" if gone else text for text, gone in zip(self.texts, self.missing.tolist(), strict=True)]

    def valid(self) -> np.ndarray:
        """Which rows have no fault in any of the columns: bool [n]."""
        good = np.ones(len(self.texts), bool)
        good[list(self.faults)] = False
        return np.logical_and.reduce([good[column] for column in self.columns])


def new_codes() -> defaultdict[str, int]:
    """A dict that gives every new text the next number."""
    codes: defaultdict[str, int] = defaultdict()
    codes.default_factory = codes.__len__
    return codes


@dataclass(frozen=True)
class Values:
    """The texts of all rows: the two parties, the relation and the time."""

    actors: Texts
    links: Texts
    moments: Texts

    def roles(self) -> list[tuple[str, Texts, np.ndarray]]:
        """The texts of each role, and the code of each row: int64 [n]."""
        subject, object_ = self.actors.columns
        texts, codes = (self.actors, self.links, self.actors, self.moments), (self.links.columns[0], object_)
        return list(zip(ROLES, texts, (subject, *codes, self.moments.columns[0]), strict=True))

    def valid(self) -> np.ndarray:
        """Which rows have no fault: bool [n]."""
        return self.actors.valid() & self.links.valid() & self.moments.valid()

    def lacking(self) -> tuple[np.ndarray, list[tuple[str, str, int]]]:
        """Which rows lack one of the four, bool [n]; and role, text and rows of what they lack first."""
        gone = np.zeros(len(self.moments.columns[0]), bool)
        counts: list[tuple[str, str, int]] = []
        for role, found, codes in self.roles():
            new = found.missing[codes] & ~gone
            rows = np.bincount(codes[new], minlength=len(found.texts)).tolist()
            counts += [(role, found.texts[i], n) for i, n in enumerate(rows) if n]
            gone |= new
        return gone, counts

    def left_out(self) -> tuple[np.ndarray, dict[str, int]]:
        """Which rows lack one of the four, bool [n], and how many of them by what they lack first."""
        gone, counts = self.lacking()
        return gone, lacking(counts)

    def missing(self, row: int) -> str:
        """What a row lacks first."""
        role, found, codes = next(x for x in self.roles() if x[1].missing[x[2][row]])
        return missing_value(role, found.texts[codes[row]])

    def fault(self, row: int) -> str:
        """Why a row cannot be used."""
        return next(
            found.faults[int(codes[row])] for _, found, codes in self.roles() if int(codes[row]) in found.faults
        )

    def text(self, row: int) -> str:
        """What a row says, with tabs between its values."""
        return "\t".join(self.row(row))

    def row(self, row: int) -> tuple[str, ...]:
        """The four values of a row."""
        return tuple(found.texts[codes[row]] for _, found, codes in self.roles())


def lacking(found: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    """How many rows lack a value, in words; found: the role, the text that stands for nothing, and the rows of each."""
    by_role = {role: sorted((-n, mark) for other, mark, n in found if other == role) for role in ROLES}
    return {
        _without(role, [mark for _, mark in rows]): -sum(n for n, _ in rows) for role, rows in by_role.items() if rows
    }


def _without(role: str, marks: Sequence[str]) -> str:
    """What a row lacks; marks: the texts that stand for nothing there, the most frequent first."""
    shown = ", ".join(short(mark, 20) or "empty" for mark in marks[:5]) + ", ..." * (len(marks) > 5)
    return f"without {'an' if role[0] in 'aeiou' else 'a'} {role} ({shown})"


def ids_of(found: Texts, kind: str, vocabulary: Vocabulary | None, named: bool) -> np.ndarray | None:
    """The id of each distinct text, int64 [d], or None where names are still to be numbered; notes the faults.

    named: whole numbers are names too, never ids.
    """
    whole = np.array([bool(INTEGER.fullmatch(text)) for text in found.filled()], bool)
    filled = ~found.missing
    found.faults = {int(i): f"the {kind} is empty" for i in np.flatnonzero(~filled)}
    all_whole = bool((whole == filled).all()) and not named
    if vocabulary is None:
        if not all_whole:
            return None
        ids = np.array([int(text) if text else -1 for text in found.filled()], np.int64)
        if ids.max(initial=0) >= 10_000 + 100 * len(ids):
            return None  # numbers with wide gaps name things, they do not count them
        for i in np.flatnonzero(filled & (ids < 0)):
            found.faults[int(i)] = name_fault(found.texts[i], kind, None, by_id=True)
        return ids
    known = {name: i for i, name in reversed(list(enumerate(vocabulary.names)))}
    known_texts = np.array([text in known for text in found.texts], bool)
    by_id = all_whole or (not named and found.rows[whole].sum() > found.rows[known_texts].sum())
    ids = np.zeros(len(found.texts), np.int64)
    for i in np.flatnonzero(filled):
        text = found.texts[i]
        if by_id and whole[i]:
            ids[i] = int(text)
        elif text in known:
            ids[i] = known[text]
        if reason := name_fault(text, kind, vocabulary, by_id=by_id):
            found.faults[int(i)] = reason
    return ids


def name_fault(text: str, kind: str, vocabulary: Vocabulary | None, *, by_id: bool) -> str:
    """Why a name cannot be used, empty where it can; by_id: whole numbers are ids."""
    if by_id and INTEGER.fullmatch(text):
        if vocabulary is None:
            return f"the {kind} id {text} is negative" if int(text) < 0 else ""
        if not 0 <= int(text) < len(vocabulary):
            return f"unknown {kind} id {text}, the vocabulary ends at {len(vocabulary) - 1}"
        return ""
    return "" if vocabulary is None or text in vocabulary.ids else f"unknown {kind} {short(text)!r}"


def missing_value(role: str, text: str) -> str:
    """The sentence that a row lacks a value; text: what stands there."""
    return f"the {role} is missing ({text or 'empty'})"


def numbered(
    ids: np.ndarray | None, texts: list[str], codes: np.ndarray, kind: str, vocabulary: Vocabulary | None
) -> tuple[np.ndarray, Vocabulary]:
    """The ids of the accepted rows, and the vocabulary of them; codes int64, in the order of the events."""
    if ids is not None and vocabulary is not None:
        return ids[codes], vocabulary
    if ids is not None:
        # many a table grows with the vocabulary, so numbers that do not occur are left out of it
        used = np.flatnonzero(np.bincount(ids[codes].ravel()))
        return np.searchsorted(used, ids)[codes], Vocabulary(kind, tuple(map(str, used.tolist())))
    first = np.full(len(texts), codes.size)
    first[codes.ravel()[::-1]] = np.arange(codes.size)[::-1]  # of equal codes the last one stays, which is the first
    by_appearance = np.argsort(first)
    number = np.argsort(by_appearance)
    used = by_appearance[: int((first < codes.size).sum())]
    return number[codes], Vocabulary(kind, tuple(texts[i] for i in used))

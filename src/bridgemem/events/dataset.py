"""Dataset: an event log with its chronological split into train, validation and test."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.log import EventLog, Vocabulary


@dataclass(frozen=True)
class Identity:
    """What the ids and steps of a data set mean, part by part, so that a difference can be named.

    fingerprint: that of the events. entities, relations: digests of the names in their order. clock: kind, origin and
    unit. split: the first steps of validation and test, the latter "none" where there is no test.
    """

    fingerprint: str
    entities: str
    relations: str
    clock: str
    split: str

    @property
    def digest(self) -> str:
        """One digest of all parts. It is unkeyed: anyone who changes the data can compute it again."""
        return _digest(sorted(asdict(self).items()))

    def differences(self, other: Identity) -> str:
        """What data of another identity has, in words; empty where both are the same."""
        words = {
            "fingerprint": "other events",
            "entities": "other entity names",
            "relations": "other relation names",
            "clock": "another clock (dates or length of a step)",
            "split": "other split boundaries",
        }
        return " and ".join(word for part, word in words.items() if getattr(self, part) != getattr(other, part))


def _digest(content: object) -> str:
    # as JSON, which tells ["a", "b"] from ["a b"]; ASCII alone, so that no name is refused
    return hashlib.sha256(json.dumps(content).encode("ascii")).hexdigest()[:32]


def _names(vocabulary: Vocabulary) -> str:
    return _digest(list(vocabulary.names))


@dataclass(frozen=True)
class Dataset:
    """Events and two boundaries: train < valid_start <= valid < test_start <= test.

    test_start is None where no test split exists; validation then reaches to the end.
    """

    name: str
    events: EventLog
    valid_start: int
    test_start: int | None = None

    def __post_init__(self) -> None:
        if not len(self.train) or not len(self.valid):
            raise DataError(
                f"{self.name} needs events before and after the start of validation, step {self.valid_start}."
            )
        if self.test_start is not None and not len(self.test):
            raise DataError(f"{self.name} has no event at or after the start of test, step {self.test_start}.")

    @property
    def train(self) -> EventLog:
        return self.events.prefix(self.valid_start)

    @property
    def known(self) -> EventLog:
        """Train and validation: all that fitting and choosing may ever read."""
        return self.events if self.test_start is None else self.events.prefix(self.test_start)

    @property
    def valid(self) -> EventLog:
        return self.known.between(self.valid_start, self.events.end)

    @property
    def test(self) -> EventLog:
        if self.test_start is None:
            raise DataError(f"{self.name} has no test split; use its validation split.")
        return self.events.between(self.test_start, self.events.end)

    def split(self, name: str) -> EventLog:
        """The events of "train", "valid" or "test"."""
        if name not in ("train", "valid", "test"):
            raise DataError(f"there is no split called {name!r}: choose train, valid or test.")
        return getattr(self, name)

    @property
    def identity(self) -> Identity:
        """What `fingerprint` does not cover: the names, the clock and the boundaries of the split."""
        events, clock = self.events, self.events.clock
        return Identity(
            events.fingerprint,
            _names(events.entities),
            _names(events.relations),
            f"{clock.kind} {clock.origin} {clock.unit}",
            f"{self.valid_start} {'none' if self.test_start is None else self.test_start}",
        )

    def without_test(self) -> Dataset:
        """The same data with the test events gone, for whatever must not be able to see them."""
        return replace(self, events=self.known, test_start=None)

    @classmethod
    def chronological(cls, name: str, events: EventLog, *, valid: float = 0.1, test: float = 0.1) -> Dataset:
        """Cut a log by time so that about the given shares of its events fall into validation and test."""
        if not (0 < valid < 1 and 0 <= test < 1 and valid + test < 1):
            raise DataError("the shares of validation and test must be between 0 and 1 and leave room for train.")
        distinct = np.unique(events.step)
        if len(distinct) < (3 if test else 2):
            raise DataError(f"{name} has too few time steps to be split; give events over at least three steps.")

        def place(share: float) -> int:
            """Where the step lies that leaves about this share of the events to it and later ones."""
            row = min(int(len(events) * (1 - share)), len(events) - 1)
            return int(np.searchsorted(distinct, events.step[row]))

        # each part keeps at least one step, whatever the shares say
        last = len(distinct) - 1
        valid_place = min(max(place(valid + test), 1), last - 1 if test else last)
        if not test:
            return cls(name, events, int(distinct[valid_place]))
        test_place = min(max(place(test), valid_place + 1), last)
        return cls(name, events, int(distinct[valid_place]), int(distinct[test_place]))

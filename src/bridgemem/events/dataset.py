"""Dataset: an event log with its chronological split into train, validation and test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.log import Columns, Event, EventLog, Vocabulary
from bridgemem.showing import html_table


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


def distinct_steps(events: EventLog) -> np.ndarray:
    """The steps that have events, ascending; read in blocks, since the columns may be mapped."""
    blocks = range(0, len(events), 1 << 22)
    return np.unique(np.concatenate([events.step[:0], *(np.unique(events.step[at : at + (1 << 22)]) for at in blocks)]))


@dataclass(frozen=True)
class Dataset:
    """Events and their chronological split: train < valid_start <= validation < test_start <= test.

    Args:
        name: What tables and records call it.
        events: All events, in order.
        valid_start: The first step of validation.
        test_start: The first step of test; None where there is no test split, and validation reaches to the end.

    Raises:
        DataError: A split has no event.

    Example:
        >>> data.name, len(data), data.sizes
        ('world', 2400, {'train': 1903, 'valid': 249, 'test': 248})
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
            raise DataError(
                f"{self.name} has no event at or after the start of test, step {self.test_start}; choose an "
                "earlier one."
            )

    @property
    def train(self) -> EventLog:
        """The events before validation."""
        return self.events.prefix(self.valid_start)

    @property
    def known(self) -> EventLog:
        """Train and validation: all that fitting and choosing may ever read."""
        return self.events if self.test_start is None else self.events.prefix(self.test_start)

    @property
    def valid(self) -> EventLog:
        """The events of validation: all choices are made on them."""
        return self.known.between(self.valid_start, self.events.end)

    @property
    def test(self) -> EventLog:
        """The events of test.

        Raises:
            DataError: There is no test split.
        """
        if self.test_start is None:
            raise DataError(f"{self.name} has no test split; use its validation split.")
        return self.events.between(self.test_start, self.events.end)

    @property
    def entities(self) -> Vocabulary:
        """The names of entities by id; `find` searches them."""
        return self.events.entities

    @property
    def relations(self) -> Vocabulary:
        """The names of relations by id."""
        return self.events.relations

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice | Columns) -> EventLog: ...
    def __getitem__(self, place: int | slice | Columns) -> Event | EventLog:
        """As of the events: one by name, or a slice of them."""
        return self.events[place]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def sizes(self) -> dict[str, int]:
        """How many events each split has."""
        splits = ("train", "valid") if self.test_start is None else ("train", "valid", "test")
        return {name: len(self.split(name)) for name in splits}

    def to_frame(self) -> Any:
        """Make a data frame of the events, with the split of each.

        Returns:
            A pandas data frame; a dict of columns where pandas is not installed.

        Example:
            >>> list(data.to_frame())
            ['subject', 'relation', 'object', 'time', 'split']
        """
        frame, sizes = self.events.to_frame(), self.sizes
        frame["split"] = [name for name, size in sizes.items() for _ in range(size)]
        return frame

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        return f"Dataset({self.name!r}, {self.events.described()}; {splits})"

    def _repr_html_(self) -> str:
        clock = self.events.clock
        starts = {"train": self.events.start, "valid": self.valid_start, "test": self.test_start or 0}
        rows = [(name, f"{size:,}", clock.label(starts[name])) for name, size in self.sizes.items()]
        return html_table(f"{self.name}: {self.events.described()}", ["split", "events", "from"], rows)

    def split(self, name: str) -> EventLog:
        """Get the events of one split.

        Args:
            name: "train", "valid" or "test".

        Returns:
            The events, sharing memory with the data set.

        Raises:
            DataError: There is no such split.

        Example:
            >>> len(data.split("valid"))
            249
        """
        if name not in ("train", "valid", "test"):
            raise DataError(f"there is no split called {name!r}: choose train, valid or test.")
        return getattr(self, name)

    @cached_property
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
        """Drop the test events, for code that must not see them.

        Returns:
            A data set without a test split.

        Example:
            >>> data.without_test().sizes
            {'train': 1903, 'valid': 249}
        """
        return replace(self, events=self.known, test_start=None)

    @classmethod
    def split_at(cls, name: str, events: EventLog, *, valid: str | int, test: str | int) -> Dataset:
        """Cut a log where validation and test begin, each given as a time of the events.

        Args:
            name: What the data set is called.
            events: The events.
            valid: First time of validation, such as "2024-10-01".
            test: First time of test.

        Returns:
            The data set.

        Raises:
            DataError: A time is none, or a part would have no events.

        Example:
            >>> later = bm.Dataset.split_at("later", data.events, valid="2030-02-01", test="2030-02-15")
            >>> later.sizes["test"] > 0
            True
        """
        starts = [events.clock.step(time) for time in (valid, test)]
        sizes = np.diff(np.searchsorted(events.step, [events.start, *starts, events.end]))
        if not (sizes > 0).all():
            empty = ("train", "validation", "test")[int(np.argmin(sizes))]
            first, last = (events.clock.label(step) for step in (events.start, events.end - 1))
            raise DataError(
                f"splitting {name} at {valid} and {test} leaves no events for {empty}; the events reach from {first} "
                f"to {last}. Give the first time of validation, then that of test."
            )
        return cls(name, events, *starts)

    @classmethod
    def chronological(cls, name: str, events: EventLog, *, valid: float = 0.1, test: float = 0.1) -> Dataset:
        """Split a log by time.

        Args:
            name: What tables and records call it.
            events: The log.
            valid: Share of the events for validation, about.
            test: Share of the events for test; 0 for none.

        Returns:
            The data set; each split has at least one step.

        Raises:
            DataError: The shares leave no room for train, or there are too few steps.

        Example:
            >>> bm.Dataset.chronological("mine", data.events, valid=0.2, test=0).sizes
            {'train': 1903, 'valid': 497}
        """
        if not (0 < valid < 1 and 0 <= test < 1 and valid + test < 1):
            raise DataError("the shares of validation and test must be between 0 and 1 and leave room for train.")
        distinct = distinct_steps(events)
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

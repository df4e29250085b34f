"""What an event store returns: receipts of batches, stored events, sources, snapshots, and events read from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridgemem.errors import NotFoundError
from bridgemem.events.log import EventLog
from bridgemem.events.naming import shown_time
from bridgemem.memory.timeline import changes


@dataclass(frozen=True)
class Receipt:
    """What became of a batch. All of its events have ids; `accepted` are those that count under the store's policy."""

    batch: int
    accepted: int
    duplicates: int
    late: int
    replayed: bool
    ids: list[str]


@dataclass(frozen=True)
class Stored:
    """An event and what became of it: `retracted` is when it was taken back, None while it is in force."""

    id: str
    subject: str
    relation: str
    object: str
    time: str
    source: str
    batch: int
    retracted: str | None
    reason: str | None


@dataclass(frozen=True)
class Source:
    """A source of batches: how much it sent, the key of its last batch, and its last offset.

    duplicates: how many of its events equal one of their step that came before, in the batch or ahead of it.
    """

    source: str
    batches: int
    events: int
    duplicates: int
    last_key: str
    last_offset: str | None


@dataclass(frozen=True)
class Snapshot:
    """The store after that many batches and retractions."""

    batches: int
    retractions: int


@dataclass(frozen=True)
class Reading:
    """Events in force, and where they came from: ids int64 [n], the number of the stored event, -1 for others."""

    events: EventLog
    ids: np.ndarray
    at: Snapshot


def stored_of(row: Sequence[Any]) -> Stored:
    """A row of the store's tables as a stored event."""
    number, subject, relation, object_, time, *rest = row
    return Stored(f"e{number}", subject, relation, object_, shown_time(time), *rest)


def event_number(event_id: str) -> int:
    """The number of an event by its id, such as 12 of e12."""
    digits = str(event_id).removeprefix("e")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise NotFoundError(f"{str(event_id)[:40]!r} is not the id of a stored event; write it as e12.")
    return int(digits)


def first_of_equals(subject: np.ndarray, relation: np.ndarray, object_: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Whether a row is the first with its values; bool [n]."""
    order = np.lexsort((object_, relation, subject, step))  # stable: equal rows stay in their order
    first = np.zeros(len(order), bool)
    first[order[changes(*(column[order] for column in (step, subject, relation, object_)))]] = True
    return first

"""Leaps: how far after the last known event a time may lie before it is taken for a mistake."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.log import Clock, EventLog

GAPS = 5  # times the largest gap seen so far
LEAST = 30  # steps that are always allowed: a source may pause
STORED = "raise --max-ahead if it is right. Nothing was stored."
ADDED = "give a larger max_ahead if it is right. No event was added."
SUPPOSED = "raise --max-ahead if it is right. Nothing was assumed."


def most_ahead(events: EventLog) -> int:
    """Steps after the last event that are plausible: a few times the largest gap between two events so far."""
    steps = np.asarray(events.step)
    return max(LEAST, GAPS * int(np.diff(steps).max())) if len(steps) > 1 else LEAST


def max_ahead_of(given: int | None, events: EventLog) -> int | None:
    """The limit that is given, None for 0; else a few times the largest gap of the events."""
    return (most_ahead(events) if given is None else given) or None


def check_ahead(steps: Sequence[int], latest: int, most: int, clock: Clock, otherwise: str = STORED) -> None:
    """Refuse a batch with a leap of more than `most` steps after the latest event, or after an earlier one of its own.

    A backlog of many days passes; a year that was mistyped does not. steps: of the batch, in its order. otherwise: what
    to do where the time is right, and what became of the batch.
    """
    order = np.array(sorted({latest, *(step for step in steps if step > latest)}), np.int64)
    leaps = np.flatnonzero(np.diff(order) > most)
    if len(leaps):
        before, after = int(order[leaps[0]]), int(order[leaps[0] + 1])
        raise DataError(
            f"event {list(steps).index(after) + 1}: the time {clock.label(after)} lies {after - before:,} steps after "
            f"the last event before it, at {clock.label(before)}, and at most {most:,} are taken; correct the time, or "
            f"{otherwise}"
        )


def remark_ahead(events: EventLog, step: int) -> str | None:
    """What to say of a forecast for a step far after the last event; None where it is near."""
    ahead = step - (events.end - 1)
    if not len(events) or ahead <= LEAST or ahead <= most_ahead(events):
        return None
    last = events.clock.label(events.end - 1)
    return f"{events.clock.label(step)} lies {ahead:,} steps after the last known event, at {last}; check the time."

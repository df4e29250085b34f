"""Events by name on their way into a store: checked one by one, and turned into ids behind a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.times import LAST_STEP

LONGEST_NAME = 1000  # characters of a name, a key, a source, an offset or a reason

NewEvent = tuple[str, str, str, str | int]  # subject, relation, object, and a time as text or a step as a number


def stored_text(value: Any, what: str) -> str:
    """A text that can be stored: not empty, of bounded length, and of letters that can be written."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} must be a text that is not empty, not {value!r}.")
    value = value.strip()
    if len(value) > LONGEST_NAME:
        raise DataError(f"{what} has {len(value):,} characters; use at most {LONGEST_NAME:,}.")
    if "\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise DataError(f"{what} holds a character that cannot be stored; write it without.")
    return value


def checked(event: Sequence[Any], where: str, clock: Clock) -> tuple[str, str, str, str, int]:
    """Subject, relation, object, time as text, and step of an event, or the sentence that says why it is none.

    where: what the event is called in that sentence.
    """
    if isinstance(event, str) or len(event) != 4:
        raise DataError(f"{where} is not made of subject, relation, object and time.")
    named = zip(event, ("subject", "relation", "object"), strict=False)
    subject, relation, object_ = (stored_text(value, f"the {what} of {where}") for value, what in named)
    time = event[3]
    if isinstance(time, str):
        time = stored_text(time, f"the time of {where}")
        try:
            step = clock.step(time)
        except DataError as problem:
            raise DataError(f"{where}: {problem}") from None
        except (OverflowError, ValueError):
            step = LAST_STEP
    elif isinstance(time, int | np.integer) and not isinstance(time, bool):
        step = int(time)
    else:
        raise DataError(f"the time of {where} is a text, or a step as a whole number, not {time!r}.")
    shown = shown_time(str(time))
    if step < 0:
        raise DataError(f"the time {shown} of {where} lies before the data begin, at {clock.label(0)}.")
    try:
        if step >= LAST_STEP:
            raise OverflowError
        clock.label(step + 1)  # a forecast for the step after it must be able to name its time
    except OverflowError:
        raise DataError(
            f"the time {shown} of {where} lies too far ahead; give the true one, or leave it out."
        ) from None
    return subject, relation, object_, time if isinstance(time, str) else clock.label(step), step


def named_events(events: EventLog, base: EventLog | None = None) -> list[NewEvent]:
    """A log as events by name, with times that any clock of the same kind can place.

    base: the log that they follow; entities or relations that are all told by its ids get its names.
    """
    clock, entities, relations = events.clock, events.entities.names, events.relations.names
    if base is not None:
        entities = _by_id(entities, np.union1d(events.subject, events.object), base.entities)
        relations = _by_id(relations, np.unique(events.relation), base.relations)
    texts = {}
    for step in np.unique(events.step).tolist():
        time = clock.origin + step * clock.unit
        # to the second, since the log's own labels leave out the hour where its steps are days
        texts[step] = str(time) if clock.kind == "integer" else str(datetime.fromtimestamp(0, UTC) + timedelta(0, time))
    columns = (events.subject, events.relation, events.object, events.step)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(entities[s], relations[r], entities[o], texts[step]) for s, r, o, step in rows]


def _by_id(names: tuple[str, ...], used: np.ndarray, known: Vocabulary) -> tuple[str, ...]:
    """Names of which some are used, int64 [n]; in place of ids of a vocabulary, if all that are used are, its names."""
    ids = {name: i for i, name in enumerate(map(str, range(len(known))))}
    if not {names[i] for i in used.tolist()} <= ids.keys() - set(known.names):
        return names
    return tuple(known.names[ids[name]] if name in ids else name for name in names)


def shown_time(text: str) -> str:
    """A stored time for people: in UTC, as all are, and without the hour where that is midnight."""
    return text.removesuffix("+00:00").removesuffix(" 00:00:00")


def ids_of(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of every name; of two equal names the first."""
    return {name: i for i, name in reversed(list(enumerate(vocabulary.names)))}


def extended(vocabulary: Vocabulary, names: Sequence[str]) -> tuple[Vocabulary, list[int]]:
    """The ids of names, and the vocabulary with those that it lacked behind its own, in the order given."""
    ids = ids_of(vocabulary)
    unknown = [name for name in dict.fromkeys(names) if name not in ids]
    ids |= {name: i for i, name in enumerate(unknown, len(vocabulary))}
    grown = Vocabulary(vocabulary.kind, (*vocabulary.names, *unknown)) if unknown else vocabulary
    return grown, [ids[name] for name in names]

"""Events by name that come after a log: checked one by one, and turned into ids after its vocabularies."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.config import Declared, Size
from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.leaps import ADDED, check_ahead, max_ahead_of
from bridgemem.events.log import KEYS, Clock, EventLog, Vocabulary
from bridgemem.events.readers.read import ReadOptions, read_events
from bridgemem.events.times import LAST_STEP
from bridgemem.progress import SILENT, Progress

LONGEST_NAME = 1000  # characters of a name, a key, a source, an offset or a reason

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")  # what a database ends a text at, and halves of a letter

NewEvent = tuple[str, str, str, str | int]  # subject, relation, object, and a time as text or a step as a number
Stamped = tuple[str, str, str, int]  # subject, relation, object and step, all of them checked


@dataclass(frozen=True)
class NewNames(Declared):
    """How many names a store takes that the run which it follows does not know.

    Each new entity is a candidate of every later query, and each new relation widens every index, so a batch of
    mistaken columns would slow down all forecasts. relations: of a store; the benchmark data sets have 24 to 256 in
    all. entities: of a store. batch: entities of one batch. day: entities of all batches that come on one day, in UTC.
    """

    relations: Size = 1_000
    entities: Size = 1_000_000
    batch: Size = 100_000
    day: Size = 250_000

    @classmethod
    def of(cls, relations: int | None, batch: int | None = None, day: int | None = None) -> NewNames:
        """The usual limits, with others where they are given."""
        given = {"relations": relations, "batch": batch, "day": day}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def check(
        self,
        known: Sequence[Collection[str]],
        held: Sequence[set[str]],
        given: Sequence[set[str]],
        today: int = 0,
    ) -> None:
        """Refuse names, given as (entities, relations), that would be too many with those held besides those known.

        today: how many entities were new among those that came before on the same day.
        """
        entities, relations = (g.difference(k, h) for g, k, h in zip(given, known, held, strict=True))
        remedy = "check its columns, or bring the run up to date with `bridgemem refresh`; nothing was stored."
        if relations and len(relations) + len(held[1]) > self.relations:
            raise DataError(
                f"the batch names {len(relations):,} new relations, and a store takes {self.relations:,} besides those "
                f"of its run, of which {len(held[1]):,} are used; raise --max-new-relations, {remedy}"
            )
        if len(entities) > self.batch:
            raise DataError(
                f"the batch names {len(entities):,} new entities, and a batch may name {self.batch:,}; split it, raise "
                f"--max-new-names, {remedy}"
            )
        if entities and len(entities) + today > self.day:
            raise DataError(
                f"the batch names {len(entities):,} new entities, and a store takes {self.day:,} new entities a day, "
                f"of which {today:,} came today; send it tomorrow, raise --max-new-names-day, {remedy}"
            )
        if entities and len(entities) + len(held[0]) > self.entities:
            raise DataError(
                f"the batch names {len(entities):,} new entities, and a store takes {self.entities:,} besides those of "
                f"its run, of which {len(held[0]):,} are used; {remedy}"
            )
        sizes = [len(k) + len(h) + len(new) for k, h, new in zip(known, held, (entities, relations), strict=True)]
        # more could be stored, but never be indexed again
        if (entities or relations) and sizes[0] * 2 * sizes[1] >= KEYS:
            raise DataError(
                f"with the batch there were {sizes[0]:,} entities under {sizes[1]:,} relations, more than the 2^32 "
                f"pairs that can be told apart; {remedy}"
            )


def stored_text(value: Any, what: str) -> str:
    """A text that can be stored: not empty, of bounded length, and of letters that can be written."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{what} must be a text that is not empty, not {value!r}.")
    value = value.strip()
    if len(value) > LONGEST_NAME:
        raise DataError(f"{what} has {len(value):,} characters; use at most {LONGEST_NAME:,}.")
    if _UNSTORABLE.search(value):
        raise DataError(f"{what} holds a character that cannot be stored; write it without.")
    return value


def checked(event: Any, where: str, clock: Clock) -> tuple[str, str, str, str, int]:
    """Subject, relation, object, time as text, and step of an event, or the sentence that says why it is none.

    where: what the event is called in that sentence.
    """
    if not isinstance(event, Sequence) or isinstance(event, str) or len(event) != 4:
        raise DataError(f"{where} is not made of four parts; give subject, relation, object and time.")
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
        raise DataError(
            f"the time {shown} of {where} lies before the data begin, at {clock.label(0)}; give a later one."
        )
    # a forecast for the step after it must be able to name its time
    if step >= LAST_STEP or not clock.holds(step + 1):
        raise DataError(f"the time {shown} of {where} lies too far ahead; give the true one, or leave it out.")
    return subject, relation, object_, time if isinstance(time, str) else clock.label(step), step


def faults(events: Sequence[Any], clock: Clock) -> list[tuple[int, str]]:
    """The place of every event that cannot be used, counted from 1, and why, as a sentence without its end."""
    found = []
    for place, event in enumerate(events, 1):
        try:
            checked(event, f"event {place}", clock)
        except DataError as problem:
            found.append((place, str(problem).rstrip(".")))
    return found


def new_events(
    source: Any, base: EventLog, *, max_ahead: int | None = None, progress: Progress = SILENT, leap: str = ADDED
) -> list[Stamped]:
    """Events that come after a log, in their order, all of them or an error that names the first wrong one.

    source: a list of (subject, relation, object, time), an event log, or whatever `read_events` takes. A time is text
    or a number, as a file has it. max_ahead, leap: most steps that one may lie after the last event before it, as in
    `max_ahead_of`, and what a refusal says of it.
    """
    named: list[NewEvent]
    if _one_event(source):
        raise DataError(f"expected a list of events, not one alone: give [{tuple(source)!r:.200}].")
    if isinstance(source, list | tuple) and not any(isinstance(part, str | Path) for part in source):
        named = [_with_text(event) for event in source]
    elif isinstance(source, EventLog | Dataset):
        named = named_events(source if isinstance(source, EventLog) else source.events, base)
    else:
        reading = read_events(source, ReadOptions().following(base), progress=progress)
        if reading.unusable:
            raise DataError(f"{reading.sentence()} No event was added; fix these rows, or leave them out.")
        in_order = np.argsort(reading.lines, kind="stable").tolist()
        all_named = named_events(reading.events, base if reading.by_position else None)
        named = [all_named[row] for row in in_order]
    found = (checked(event, f"event {place}", base.clock) for place, event in enumerate(named, 1))
    made = [(subject, relation, object_, step) for subject, relation, object_, _, step in found]
    if len(base) and (most := max_ahead_of(max_ahead, base)) is not None:
        check_ahead([step for *_, step in made], base.end - 1, most, base.clock, leap)
    return made


def _one_event(source: Any) -> bool:
    """Whether a source is one event, and no list of events or files."""
    values = isinstance(source, list | tuple) and all(isinstance(part, str | int | np.integer) for part in source)
    return values and len(source) == 4 and not any(Path(str(part)).exists() for part in source)


def _with_text(event: Any) -> Any:
    """An event whose time is text, since a bare number would be a step; what is no event stays as it is."""
    return (*event[:3], str(event[3])) if isinstance(event, tuple | list) and len(event) == 4 else event


def followed_by(events: EventLog, added: Sequence[Stamped]) -> EventLog:
    """A log with further events, late ones in their place, and their new names after its own."""
    subjects, links, objects, steps = zip(*added, strict=True) if added else ((), (), (), ())
    names, ids = numbered(events, subjects, links, objects)
    new = (*ids, np.array(steps, np.int64))
    old = (events.subject, events.relation, events.object, events.step)
    subject, relation, object_, step = (np.concatenate(both) for both in zip(old, new, strict=True))
    return EventLog.from_columns(subject, relation, object_, step, *names, events.clock)


def numbered(
    base: EventLog, subjects: Sequence[str], relations: Sequence[str], objects: Sequence[str]
) -> tuple[tuple[Vocabulary, Vocabulary], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Events in the ids of a log, int64 [n] each, with the vocabularies that hold their new names too.

    New names follow in the order in which they come.
    """
    parties = [name for pair in zip(subjects, objects, strict=True) for name in pair]
    entities, ids = extended(base.entities, parties)
    known, links = extended(base.relations, relations)
    pairs = np.array(ids, np.int64).reshape(-1, 2)
    return (entities, known), (pairs[:, 0], np.array(links, np.int64), pairs[:, 1])


def named_events(events: EventLog, base: EventLog | None = None) -> list[NewEvent]:
    """A log as events by name, with times that any clock of the same kind can place.

    base: the log that they follow, for events that may be told by its ids: a log, or a file without a heading, whose
    entities or relations all are ids of the base and no names in it. A heading stands over names.
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
    if known.numbers:
        return names
    ids = {name: i for i, name in enumerate(map(str, range(len(known))))}
    if not {names[i] for i in used.tolist()} <= ids.keys() - set(known.names):
        return names
    return tuple(known.names[ids[name]] if name in ids else name for name in names)


def shown_time(text: str) -> str:
    """A stored time for people: in UTC, as all are, and without the hour where that is midnight."""
    return text.removesuffix("+00:00").removesuffix(" 00:00:00")


def ids_of(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of every name and alias; of two equal names the first."""
    ids = vocabulary.ids
    return {alias: ids[name] for alias, name in vocabulary.aliases.items() if name in ids} | dict(ids)


def extended(vocabulary: Vocabulary, names: Sequence[str]) -> tuple[Vocabulary, list[int]]:
    """The ids of names, and the vocabulary with those that it lacked after its own, in the order given.

    An alias is the name that it stands for, known or not.
    """
    ids = vocabulary.ids
    names = [name if name in ids else vocabulary.aliases.get(name, name) for name in names]
    unknown = [name for name in dict.fromkeys(names) if name not in ids]
    grown = vocabulary.followed_by(unknown) if unknown else vocabulary
    return grown, [grown.ids[name] for name in names]

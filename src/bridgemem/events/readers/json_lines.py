"""Newline-delimited JSON: each line is an event and is checked by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.naming import NewEvent, checked
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.text import LONGEST_LINE, Reject, fault, short
from bridgemem.events.times import INTEGER, read_times

SHAPES = 1_000  # sets of field names whose roles are remembered


@dataclass(frozen=True)
class Line:
    """The outcome of a line: an event, a reason why it is none, or neither if it is blank.

    offset: where in its source the line says it stands; None where it does not say.
    """

    event: NewEvent | None = None
    reject: Reject | None = None
    offset: int | None = None


class JsonLines:
    """Lines to events that follow a log: objects with the fields of an event, or lists of its four values.

    Fields have the names that columns of a table may have. event_field: the field that holds the event, as an object
    or as JSON in a text. offset_field: the field that holds the offset of the line, a whole number.
    """

    def __init__(self, options: ReadOptions, base: EventLog, *, event_field: str = "", offset_field: str = "") -> None:
        if options.format not in ("auto", "plain"):
            raise SettingsError("--format is for tables, and lines of JSON name their fields: leave it out.")
        self.options, self.clock = replace(options, format="plain").following(base), base.clock
        self.event_field, self.offset_field = event_field, offset_field
        self._missing = self.options.missing()
        self._candidates = self.options.candidates(None)
        self._roles: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}

    def read(self, raw: bytes, file: str, number: int) -> Line:
        """The event of a line; file and number say where it stands."""
        text = raw.decode("utf-8", "surrogateescape").strip().removeprefix("\ufeff")
        if not text:
            return Line()
        offset, cells = None, None
        try:
            if reason := fault(text):
                raise DataError(reason)
            found = _parsed(text, "the line")
            offset = self._offset(found)
            cells = self._cells(self._event(found))
            return Line(self._checked(cells), None, offset)
        except DataError as problem:
            shown = text.encode("utf-8", "backslashreplace").decode()[:LONGEST_LINE]
            row = cells or (shown,)
            return Line(None, Reject(file, number, str(problem).rstrip("."), short(shown), row), offset)

    def _offset(self, found: Any) -> int | None:
        if not self.offset_field:
            return None
        value = found.get(self.offset_field) if isinstance(found, dict) else None
        if isinstance(value, str) and INTEGER.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise DataError(f"the line has no whole number as its {self.offset_field}")
        return value

    def _event(self, found: Any) -> Any:
        if not self.event_field:
            return found
        inner = found.get(self.event_field) if isinstance(found, dict) else None
        if inner is None:
            raise DataError(f"the line has no field {self.event_field}")
        return _parsed(inner, f"the field {self.event_field}") if isinstance(inner, str) else inner

    def _cells(self, event: Any) -> tuple[str, ...]:
        """The four values of an event as texts, as they stand there."""
        if isinstance(event, list) and len(event) == len(ROLES):
            values = [(value,) for value in event]
        elif isinstance(event, dict):
            values = [tuple(event[name] for name in names) for names in self._fields(event).values()]
            if self.options.relation_is:
                values[1] = (self.options.relation_is,)
        else:
            raise DataError("the line is neither an object nor a list of subject, relation, object and time")
        return tuple(self._joined(role, parts) for role, parts in zip(ROLES, values, strict=True))

    def _fields(self, event: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """The names of the fields that hold each role; events of one shape are looked at once."""
        shape = tuple(event)
        if shape not in self._roles:
            known = {name.lower(): name for name in reversed(shape)}
            found = {}
            for role, candidates in self._candidates.items():
                at = next((names for names in candidates if all(name.lower() in known for name in names)), None)
                if at is None:
                    wanted = getattr(self.options, role) or role
                    raise DataError(f"the line has no field {wanted}; it has {short(', '.join(shape)) or 'none'}")
                found[role] = tuple(known[name.lower()] for name in at)
            if len(self._roles) >= SHAPES:
                self._roles.clear()
            self._roles[shape] = found
        return self._roles[shape]

    def _joined(self, role: str, parts: Sequence[Any]) -> str:
        """The value of a role; several fields are joined as the columns of a table are."""
        texts = [_text(value, role) for value in parts]
        texts = texts if role == "time" else list(map(self.options.name, texts))
        filled = [text for text in texts if text not in self._missing]
        if not filled or (role == "time" and len(filled) < len(texts)):
            shown = f" ({texts[0]})" if len(texts) == 1 and texts[0] else ""
            raise DataError(f"the {role} is missing{shown}")
        if role != "time":
            return ": ".join(filled)
        if len(filled) < 3:
            return " ".join(filled)
        clock = ":".join(text.zfill(2) for text in filled[3:]) + ":00" * (len(filled) == 4)
        return " ".join(filter(None, ("-".join(filled[:3]), clock)))

    def _checked(self, cells: tuple[str, ...]) -> NewEvent:
        subject, relation, object_, time = cells
        form = self.options.time_format
        if form and self.clock.kind == "date":
            times = read_times([time], np.ones(1, np.int64), form=form)
            if times.faults:
                raise DataError(times.faults[0])
            if times.kind == "date":
                time = str(datetime.fromtimestamp(0, UTC) + timedelta(0, int(times.values[0])))
        # the step is left to the store, which knows the clock too
        return checked((subject, relation, object_, time), "the line", self.clock)[:4]


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{what} is not JSON") from None


def _text(value: Any, role: str) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else json.dumps(value)
        raise DataError(f"the {role} is {kind}, and not a text")
    return str(value).strip()

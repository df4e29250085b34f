"""How a table of events is to be read: one record, the same for every command and for Python."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridgemem.errors import SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.readers.layouts import FORMATS, LAYOUTS, SourceLayout, detect
from bridgemem.events.readers.text import short
from bridgemem.events.times import check_format
from bridgemem.events.whole_numbers import plain_number

ROLES = ("subject", "relation", "object", "time")
Headings = tuple[str, ...]  # of one role: one heading, or several whose columns are joined

# What headings are called elsewhere, in lower case; the earlier one wins where a table has two of them.
SYNONYMS: dict[str, tuple[Headings, ...]] = {
    "subject": (("subject",), ("source",), ("head",), ("actor1",), ("s",), ("actor",)),
    "relation": (("relation",), ("rel",), ("predicate",), ("type",), ("event",), ("r",), ("p",), ("action",)),
    "object": (("object",), ("target",), ("tail",), ("actor2",), ("o",), ("partner",)),
    "time": (("time",), ("timestamp",), ("date",), ("datetime",), ("year", "month", "day"), ("day",), ("t",)),
}
# What programs write where there is nothing. An empty field is missing too, whatever else is.
MISSING = (
    *("NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NaT", "null", "Null", "NULL", "None", "none"),
    *("-", "--", '""', "''"),
)


@dataclass(frozen=True)
class ReadOptions:
    """How a table of events is to be read.

    subject, relation, object, time: the heading of each; left out, it is found by the usual names. Several headings
        with commas between them (or a tuple) are joined: year, month and day to a date, others by a colon.
    relation_is: the relation of every row, where no column has one.
    format: gdelt, icews, polecat or acled for a file in that published layout, plain for any other; auto decides by
        the headings or the number of columns.
    step: the length of a time step: a whole number in the file's own units for whole-number times; for dates "hour",
        "day", "week", "15min", "7d" or a number of seconds. Left out, it is the longest step that fits all times.
    time_format: how times are written, where that is not plain: day-first, month-first, epoch (seconds), epoch-ms,
        epoch-us, epoch-ns, number, or as for `datetime.strptime`, such as %d/%m/%y.
    na: the texts that stand for a missing value, next to an empty one; () for none. Left out, `MISSING` in plain
        tables, and what a published layout has for it.
    known: names that are never read as missing values, nor as whole numbers.
    """

    subject: str | Sequence[str] = ""
    relation: str | Sequence[str] = ""
    object: str | Sequence[str] = ""
    time: str | Sequence[str] = ""
    relation_is: str = ""
    format: str = "auto"
    step: str | int | None = None
    time_format: str = ""
    na: Sequence[Any] | None = None
    known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*ROLES, "relation_is", "time_format"):
            object.__setattr__(self, name, ",".join(_texts(getattr(self, name))))
        if self.na is not None:
            object.__setattr__(self, "na", tuple(text.strip() for text in _texts(self.na)))
        if self.format not in FORMATS:
            raise SettingsError(f"{short(str(self.format))!r} is not a format: give one of {', '.join(FORMATS)}.")
        check_format(self.time_format)
        if self.relation_is and self.relation:
            raise SettingsError("the relation is a column or the same in every row: give one of the two, not both.")

    @property
    def headings(self) -> bool:
        """Whether any heading is given."""
        return any(getattr(self, role) for role in ROLES)

    @property
    def for_tables(self) -> bool:
        """Whether anything is asked for that only a table of events can have."""
        return replace(self, step=None) != ReadOptions()

    def layout(self, headings: Sequence[str]) -> SourceLayout | None:
        """The published layout that was named, or that the headings identify."""
        return detect(headings) if self.format == "auto" else LAYOUTS.get(self.format)

    def candidates(self, layout: SourceLayout | None) -> dict[str, tuple[Headings, ...]]:
        """The headings that may hold each role; () for a relation that needs none."""
        found: dict[str, tuple[Headings, ...]] = {}
        for role in ROLES:
            name = getattr(self, role)
            if name:
                parts = tuple(part.strip() for part in name.split(","))
                found[role] = ((name,), parts)  # a heading may hold a comma itself
            elif role == "relation" and self.relation_is:
                found[role] = ((),)
            elif layout:
                found[role] = tuple((heading,) for heading in layout.headings(role, self.step))
            else:
                found[role] = SYNONYMS[role]
        return found

    def missing(self, known: Collection[str] = ()) -> frozenset[str]:
        """The texts that stand for a missing value in a plain table; known: names, which are never one."""
        marks = frozenset(MISSING if self.na is None else self.na)
        return (marks | frozenset(map(plain_number, marks))).difference(known, self.known) | {""}

    def name(self, text: str, known: Collection[str] = ()) -> str:
        """A name as a plain table means it: 107.0 is 107, unless it is known as it stands; known: further names."""
        text = text.strip()
        return text if text in known or text in self.known else plain_number(text)

    def following(self, base: EventLog) -> ReadOptions:
        """The same for events that follow a log: its names are never missing, and its whole numbers no epoch."""
        names, marks = (*base.entities.names, *base.relations.names), self.missing()
        known = {name for name in names if name in marks or plain_number(name) != name}
        form = "number" if base.clock.kind == "integer" and not self.time_format else self.time_format
        return replace(self, known=tuple(sorted(known)), time_format=form)


def _texts(given: Any) -> list[str]:
    """What a user gives as one text or as several, or not at all; the headings of a frame may be numbers."""
    return [str(text) for text in (given if isinstance(given, list | tuple) else [] if given is None else [given])]


def listed_missing(na: Sequence[Any] | None, keep_na: bool) -> Sequence[Any] | None:
    """What stands for a missing value, from a list and the wish to have none."""
    if keep_na and na:
        raise SettingsError("na lists what is missing, and keep_na says that nothing is: give one of the two.")
    return () if keep_na else na

"""The layouts of published event data, as data: GDELT, ICEWS, POLECAT and ACLED, and how to recognise them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.times import seconds

DAY = 86_400
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

BETWEEN_WORDS = re.compile(r"[\W_]+")
DIGITS = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2}))?")
WORDED = re.compile(r"([0-9]{1,2})[ /-]([A-Za-z]{3,9})[ /-]([0-9]{4})")


def _gdelt_headings() -> tuple[str, ...]:
    """The 61 columns of a GDELT 2 event file, which has no heading of its own."""
    actors = [
        f"Actor{i}{part}"
        for i in (1, 2)
        for part in (
            *("Code", "Name", "CountryCode", "KnownGroupCode", "EthnicCode", "Religion1Code", "Religion2Code"),
            *("Type1Code", "Type2Code", "Type3Code"),
        )
    ]
    action = ["IsRootEvent", "EventCode", "EventBaseCode", "EventRootCode", "QuadClass", "GoldsteinScale"]
    action += ["NumMentions", "NumSources", "NumArticles", "AvgTone"]
    places = [
        f"{whose}Geo_{part}"
        for whose in ("Actor1", "Actor2", "Action")
        for part in ("Type", "FullName", "CountryCode", "ADM1Code", "ADM2Code", "Lat", "Long", "FeatureID")
    ]
    dates = ["GlobalEventID", "SQLDATE", "MonthYear", "Year", "FractionDate"]
    return (*dates, *actors, *action, *places, "DATEADDED", "SOURCEURL")


GDELT_2 = _gdelt_headings()
GDELT_1 = tuple(heading for heading in GDELT_2 if not heading.endswith("ADM2Code"))


@dataclass(frozen=True)
class SourceLayout:
    """One kind of published file.

    marks: headings that identify it together. columns: for each role the headings that may hold it, usual first.
    moment: the column with a time of day, if there is one. headless: its columns where files come without a heading.
    missing: texts that mean no party. separator: stands between several parties, if a row may name several.
    """

    name: str
    marks: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    moment: str = ""
    headless: tuple[tuple[str, ...], ...] = ()
    missing: frozenset[str] = field(default_factory=frozenset)
    separator: str = ""
    step: str = "day"

    def headings(self, role: str, step: str | int | None) -> tuple[str, ...]:
        """The headings that may hold a role; steps shorter than a day need the column with a time of day."""
        if role != "time" or step is None or seconds(step) >= DAY:
            return self.columns[role]
        if not self.moment:
            raise self.too_short(step)
        return (self.moment,)

    def columns_of(self, path: Path, width: int) -> tuple[str, ...]:
        """The headings of a file that has none, by its number of columns."""
        for headings in self.headless:
            if len(headings) == width:
                return headings
        widths = ", ".join(str(len(headings)) for headings in self.headless)
        raise DataError(f"{path} has {width} columns, and a {self.name} file of events has {widths}: give such a file.")

    def too_short(self, step: str | int) -> SettingsError:
        """The error that a step needs a time of day, where there are days only."""
        return SettingsError(
            f"{step!r} is too short a step for {self.name} files that have days only: give day, week or 7d."
        )

    def parties(self, text: str) -> tuple[str, ...]:
        """The distinct names in a field; empty if it names no party."""
        parts = text.split(self.separator) if self.separator else [text]
        names = dict.fromkeys(unquoted(part) for part in parts)
        return tuple(name for name in names if name and name not in self.missing)

    def label(self, text: str) -> str:
        """The name of a relation, empty where it is missing."""
        name = unquoted(text)
        return "" if name in self.missing else name


LAYOUTS = {
    layout.name: layout
    for layout in (
        SourceLayout(
            "gdelt",
            ("GlobalEventID", "EventCode"),
            {
                "subject": ("Actor1Name", "Actor1Code"),
                "relation": ("EventCode",),
                "object": ("Actor2Name", "Actor2Code"),
                "time": ("SQLDATE", "Day"),
            },
            moment="DATEADDED",
            headless=(GDELT_2, GDELT_1, GDELT_1[:-1]),
        ),
        SourceLayout(
            "icews",
            ("Event Date", "Source Name", "Target Name", "CAMEO Code"),
            {
                "subject": ("Source Name",),
                "relation": ("Event Text", "CAMEO Code"),
                "object": ("Target Name",),
                "time": ("Event Date",),
            },
        ),
        SourceLayout(
            "polecat",
            ("Event Date", "Event Type", "Actor Name", "Recipient Name"),
            {
                "subject": ("Actor Name",),
                "relation": ("Event Type",),
                "object": ("Recipient Name",),
                "time": ("Event Date",),
            },
            missing=frozenset({"None"}),
            separator=";",
        ),
        SourceLayout(
            "acled",
            ("event_id_cnty", "event_date", "event_type", "actor1"),
            {
                "subject": ("actor1",),
                "relation": ("sub_event_type", "event_type"),
                "object": ("actor2",),
                "time": ("event_date",),
            },
        ),
    )
}
FORMATS = ("auto", *LAYOUTS, "plain")


def detect(headings: Sequence[str]) -> SourceLayout | None:
    """The layout that a row of headings identifies, if any."""
    found = {plainly(heading) for heading in headings}
    return next((x for x in LAYOUTS.values() if all(plainly(mark) in found for mark in x.marks)), None)


def detect_headless(row: Sequence[str]) -> SourceLayout | None:
    """The layout that a first row of values identifies, if any: by its width, a number and a day in front."""
    if len(row) < 2 or not row[0].strip().isdecimal() or not DIGITS.fullmatch(row[1].strip()):
        return None
    return next((x for x in LAYOUTS.values() if len(row) in map(len, x.headless)), None)


def plainly(heading: str) -> str:
    """A heading without the differences between Event Date, event_date and "Event.Date"."""
    return BETWEEN_WORDS.sub(" ", heading.lower()).strip()


def unquoted(text: str) -> str:
    """A text without the space around it, and without the quotes that some archives put around every text."""
    text = text.strip()
    return text[1:-1].replace('""', '"').strip() if len(text) > 1 and text[0] == text[-1] == '"' else text


def iso(text: str) -> str:
    """A time as an ISO date where it is 20230131, 20230131064500 or 31 January 2023; other texts as they are."""
    text = unquoted(text)
    if match := DIGITS.fullmatch(text):
        year, month, day, *clock = match.groups()
        return f"{year}-{month}-{day}" + (f"T{':'.join(clock)}" if clock[0] else "")
    if (match := WORDED.fullmatch(text)) and match[2][:3].lower() in MONTHS:
        return f"{match[3]}-{MONTHS.index(match[2][:3].lower()) + 1:02d}-{int(match[1]):02d}"
    return text

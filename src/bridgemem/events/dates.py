"""Dates as people write them: ISO 8601, numbers with dots, slashes or dashes, and English names of months.

What may be read in two ways is never guessed: 02/01/2024 is given back with both of its meanings.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import NamedTuple

from bridgemem.errors import DataError

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, which are all that dates have
EPOCH_DAY = date(1970, 1, 1).toordinal()
COMPACT = re.compile(r"(?:19|20)[0-9]{6}(?:[0-9]{6})?")  # a day, or a second of one, as a whole number
NUMBER = re.compile(r"[0-9]{9}")  # how a number begins that is no day
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)

_CLOCK = (
    r"(?:(?:,? +|T)(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,][0-9]{1,9})?)?"
    r"(?: ?(?P<half>[AaPp])\.?[Mm]\.?)?(?: ?(?P<zone>Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
_YEAR, _DAY, _NAME = r"(?P<year>[0-9]{4})", r"(?P<day>[0-9]{1,2})", r"(?P<name>[A-Za-z]{3,9})\.?"
_FORMS = tuple(
    re.compile(form + _CLOCK)
    for form in (
        r"(?P<one>[0-9]{1,2})(?P<between>[./-])(?P<two>[0-9]{1,2})(?P=between)" + _YEAR,
        _YEAR + r"(?P<between>[./-])(?P<month>[0-9]{1,2})(?P=between)" + _DAY,
        _YEAR + r"[ /-]" + _NAME + r"[ /-]" + _DAY,
        _DAY + r"(?:st|nd|rd|th)?[ /.-]+" + _NAME + r"[ /,-]+" + _YEAR,
        _NAME + r" +" + _DAY + r"(?:st|nd|rd|th)?,? +" + _YEAR,
    )
)


class Written(NamedTuple):
    """A date as it is written: the seconds since 1970 UTC that it means if the day, or the month, comes first.

    One of them is None where it is no date that way, and both are equal where the order is plain. between: what stands
    between day and month where their order is not plain by itself. zoned: it names a time zone.
    """

    day_first: int | None
    month_first: int | None
    between: str
    zoned: bool

    @property
    def only(self) -> int | None:
        """What it means, None where that is not sure."""
        if self.day_first is None or self.month_first is None:
            return self.month_first if self.day_first is None else self.day_first
        return self.day_first if self.day_first == self.month_first else None


def read_date(text: str) -> Written | None:
    """What a text means as a date, None where it is none. Without a time zone it is UTC."""
    if len(text) == 14 and COMPACT.fullmatch(text):
        return from_format(text, "%Y%m%d%H%M%S")
    if NUMBER.match(text):  # 1704067200000000000 would be a day of the year 1704, with a digit before its time
        return None
    try:
        return _plain(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        pass
    found = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
    clock = _clock(found) if found else None
    if found is None or clock is None:
        return None
    parts, zoned = found.groupdict(), found["zone"] is not None
    year = int(parts["year"])
    if "one" in parts:
        one, two = int(parts["one"]), int(parts["two"])
        written = Written(_moment(year, two, one, clock), _moment(year, one, two, clock), parts["between"], zoned)
        return None if written.day_first is written.month_first is None else written
    month = _month(parts["name"]) if "name" in parts else int(parts["month"])
    moment = _moment(year, month, int(parts["day"]), clock)
    return None if moment is None else Written(moment, moment, "", zoned)


def parse_date(text: str) -> int:
    """Seconds since 1970-01-01 UTC of a date or date-time that can be read in one way only."""
    written = read_date(text)
    if written is None:
        raise DataError(f"{text[:40]!r} is not a date: write it as 2014-12-01 or 2014-12-01T06:00.") from None
    if written.only is None:
        raise DataError(f"{text[:40]!r} has a day and a month that may be either: write it as 2014-12-01.")
    if not FIRST_SECOND <= written.only <= LAST_SECOND:
        raise DataError(f"{text!r} lies outside the years 1 to 9999 in UTC: give a time inside them.")
    return written.only


def from_format(text: str, form: str) -> Written | None:
    """What a text means under a format of `strptime`."""
    try:
        return _plain(datetime.strptime(text, form))
    except (ValueError, OverflowError):
        return None


def _plain(moment: datetime) -> Written:
    zoned = moment.tzinfo is not None
    seconds = int((moment if zoned else moment.replace(tzinfo=UTC)).timestamp())
    return Written(seconds, seconds, "", zoned)


def _month(name: str) -> int:
    """The number of a month's English name or of its first letters, 0 where it is none."""
    name = name.lower()
    known = name in MONTHS or name in MONTH_NAMES or name == "sept"
    return MONTHS.index(name[:3]) + 1 if known else 0


def _clock(found: re.Match[str]) -> int | None:
    """Seconds since midnight UTC of the time of day in a date, None where there is no such time."""
    if found["hour"] is None:
        return 0
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"] or 0)
    if half := found["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half in "Pp")
    if hour > 23 or minute > 59 or second > 59:
        return None
    zone, shift = found["zone"], 0
    if zone and zone[0] in "+-":
        shift = (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60) * (-1 if zone[0] == "-" else 1)
    return hour * 3600 + minute * 60 + second - shift


def _moment(year: int, month: int, day: int, clock: int) -> int | None:
    """Seconds since 1970 of a day and the time of day, None where there is no such day."""
    try:
        return (date(year, month, day).toordinal() - EPOCH_DAY) * 86_400 + clock
    except ValueError:
        return None

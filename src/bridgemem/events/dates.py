"""Dates as people write them: ISO 8601, numbers with dots, slashes or dashes, and English names of months.

What may be read in two ways is never guessed: 02/01/2024 is given back with both of its meanings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from bridgemem.errors import DataError

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, which are all that dates have
COMPACT = re.compile(r"(?:19|20)[0-9]{6}(?:[0-9]{6})?")  # a day, or a second of one, as a whole number
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


@dataclass(frozen=True)
class Written:
    """A date as it is written: the seconds since 1970 UTC that it means if the day, or the month, comes first.

    One of them is None where it is no date that way, and both are equal where the order is plain. between: what stands
    between day and month where their order is not plain by itself. zoned: it names a time zone.
    """

    day_first: int | None
    month_first: int | None
    between: str = ""
    zoned: bool = False

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
    try:
        return _plain(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        pass
    found = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
    if found is None:
        return None
    parts = found.groupdict()
    if parts.get("one"):
        day, month = int(parts["one"]), int(parts["two"])
        written = Written(_moment(parts, month, day), _moment(parts, day, month), parts["between"], bool(parts["zone"]))
        return None if written.day_first is written.month_first is None else written
    month = _month(parts["name"]) if parts.get("name") else int(parts["month"])
    moment = _moment(parts, month, int(parts["day"]))
    return None if moment is None else Written(moment, moment, zoned=bool(parts["zone"]))


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
    return Written(seconds, seconds, zoned=zoned)


def _month(name: str) -> int:
    """The number of a month's English name or of its first letters, 0 where it is none."""
    name = name.lower()
    known = name in MONTHS or name in MONTH_NAMES or name == "sept"
    return MONTHS.index(name[:3]) + 1 if known else 0


def _moment(parts: dict[str, str | None], month: int, day: int) -> int | None:
    """Seconds since 1970 of the parts of a date, None where there is no such day or time."""
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    if half := parts["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (half in "Pp")
    zone = parts["zone"]
    shift = timedelta(0)
    if zone and zone[0] in "+-":
        shift = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])) * (-1 if zone[0] == "-" else 1)
    try:
        moment = datetime(int(parts["year"] or 0), month, day, hour, minute, second, tzinfo=timezone(shift))
    except ValueError:
        return None
    return int(moment.timestamp())

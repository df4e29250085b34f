"""Clock: the map between the steps of a log and the times that people write."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.dates import FIRST_SECOND, LAST_SECOND, parse_date

DAY = 86_400
DAYS_OF_WEEK = 7
UNITS = ((DAYS_OF_WEEK * DAY, "week"), (DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
CYCLES = 8  # how many of the last weeks, or days, a rhythm is read from
EPOCH_DIGITS = {10: 1, 13: 10**3, 16: 10**6, 19: 10**9}  # of an epoch time of our days, and its parts of a second
LAST_TIME = 10**18 - 1  # a time has at most 18 digits, and so fits into 64 bits


@dataclass(frozen=True)
class Clock:
    """The map between steps and the user's own times: time = origin + step * unit.

    kind "integer": origin and unit are in the file's own time units.
    kind "date": origin and unit are seconds since 1970-01-01 UTC.
    """

    kind: str = "integer"
    origin: int = 0
    unit: int = 1

    def __post_init__(self) -> None:
        numbers = all(isinstance(n, int | np.integer) and type(n) is not bool for n in (self.origin, self.unit))
        if self.kind not in ("integer", "date") or not numbers:
            raise DataError(
                "a clock must be of kind integer or date, with an origin and a unit that are whole numbers."
            )
        # the first step may begin before the first event, by less than the longest step
        first, last = (FIRST_SECOND - 2**31, LAST_SECOND) if self.kind == "date" else (-LAST_TIME, LAST_TIME)
        if not (first <= self.origin <= last and 1 <= self.unit <= LAST_TIME):
            raise DataError(
                "a clock must begin within the years 1 to 9999, or at a number of at most 18 digits, and have steps "
                "of at least 1."
            )

    def holds(self, step: int) -> bool:
        """Whether a step has a time: one of at most 18 digits, or one that reaches into the calendar."""
        time = self.origin + int(step) * self.unit
        if self.kind == "integer":
            return abs(time) <= LAST_TIME
        return FIRST_SECOND - self.unit < time <= LAST_SECOND

    def label(self, step: int) -> str:
        """The time of a step as a user writes it."""
        time = self.origin + int(step) * self.unit
        if self.kind == "integer":
            return str(time)
        try:
            moment = datetime(1970, 1, 1) + timedelta(seconds=time)
        except OverflowError:  # a step next to data at the ends of the calendar
            return f"{time} seconds after 1970"
        # the hour is left out where it is midnight at every step, so that the label always leads back to its step
        days = self.unit % DAY == 0 and self.origin % DAY == 0
        return moment.date().isoformat() if days else moment.isoformat(" ")

    @property
    def cycle(self) -> int:
        """The steps of a day, or of a week where a day has fewer than seven; 0 where the clock tells of neither."""
        if self.kind != "date" or DAY % self.unit:
            return 0
        steps = DAY // self.unit
        return steps if steps >= DAYS_OF_WEEK else DAYS_OF_WEEK * steps

    def length(self) -> str:
        """How long a step is, in words."""
        if self.kind == "integer":
            return f"{self.unit:,} unit{'s' * (self.unit > 1)} of the times"
        size, name = next((size, name) for size, name in UNITS if self.unit % size == 0)
        count = self.unit // size
        return f"{count:,} {name}{'s' * (count > 1)}"

    def step(self, time: str | int) -> int:
        """The step that a user's time falls into; on a clock of dates bare digits are 20141201 or an epoch time."""
        if self.kind == "date":
            return (_moment(str(time).strip()) - self.origin) // self.unit
        try:
            return (int(time) - self.origin) // self.unit
        except ValueError:
            raise DataError(f"{str(time)[:40]!r} is not a time of this data set: give a whole number.") from None


def _moment(text: str) -> int:
    """Seconds since 1970-01-01 UTC of a time as a user writes it."""
    if not text.isdecimal() or len(text) in (8, 14):
        return parse_date(text)
    # fewer digits are a year or a step number far more often than a second of the last century
    if len(text) not in EPOCH_DIGITS or int(text) < 10**9:
        raise DataError(f"{text[:40]!r} is a bare number, and this data set has dates: write it as 2014-12-01.")
    return int(text) // EPOCH_DIGITS[len(text)]

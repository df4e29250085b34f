"""Times as a user writes them, whole numbers or dates, and the steps they fall into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridgemem.config import MOST_STEPS
from bridgemem.errors import DataError, SettingsError
from bridgemem.events.log import DAY, Clock, EventLog, parse_date

INTEGER = re.compile(r"-?[0-9]{1,18}")  # what fits into 64 bits
COMPACT_DATE = re.compile(r"(19|20)[0-9]{6}")
SPAN = re.compile(r"([0-9]{0,9}) *(s|sec|second|min|minute|h|hour|d|day|w|week)s?")
SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
SECONDS |= {"d": DAY, "day": DAY, "w": 7 * DAY, "week": 7 * DAY}
MONDAY = 4 * DAY  # 1970-01-05, from which weeks are counted
LAST_STEP = MOST_STEPS


@dataclass(frozen=True)
class Times:
    """Distinct times: kind "integer" or "date", values int64 [n], and why some texts are none, by position."""

    kind: str
    values: np.ndarray
    faults: dict[int, str]


def is_time(text: str) -> bool:
    """Whether a text is a whole number or a date."""
    return bool(INTEGER.fullmatch(text)) or _date(text) is not None


def read_times(texts: Sequence[str], rows: np.ndarray) -> Times:
    """Judge distinct texts together; rows int64 [n] counts how often each occurs.

    Whole numbers and dates do not mix: the kind that most rows have decides, and the rest are faults. Numbers that
    all read as a day such as 20140131 are dates.
    """
    whole = np.array([bool(INTEGER.fullmatch(text)) for text in texts], bool)
    compact = [COMPACT_DATE.fullmatch(text) is not None and _date(text) is not None for text in texts]
    dates: list[int | None] = [None] * len(texts)
    for i, text in enumerate(texts):
        if not whole[i] or compact[i]:
            dates[i] = _date(text)
    dated = np.array([date is not None for date in dates], bool)
    plain = whole & ~np.array(compact, bool)
    as_dates = rows[dated].sum() > rows[whole].sum() or (dated.any() and rows[plain].sum() == 0)
    values = np.zeros(len(texts), np.int64)
    faults: dict[int, str] = {}
    for i, text in enumerate(texts):
        value = dates[i] if as_dates else int(text) if whole[i] else None
        if value is not None and (as_dates or value >= 0):
            values[i] = value
        elif not text:
            faults[i] = "the time is empty"
        elif value is not None:
            faults[i] = f"the time {text} is negative"
        elif whole[i] or dated[i]:
            faults[i] = f"the time {text!r} is not {'a date' if as_dates else 'a whole number'} as the others are"
        else:
            faults[i] = f"the time {text[:40]!r} is neither a whole number nor a date; write dates as 2024-01-31"
    return Times("date" if as_dates else "integer", values, faults)


def clock_for(values: np.ndarray, kind: str, step: str | int | None) -> Clock:
    """The clock of times int64 [n], n > 0, with the given step, or the longest one that meets every time."""
    first, last = int(values.min()), int(values.max())
    if kind == "integer" and step is not None and _is_span(step) and (parts := epoch_parts(first, last)):
        unit = seconds(step) * parts
        # what counts seconds is a date already; thousandths stay numbers, since a clock of dates has none
        kind, origin = "date" if parts == 1 else kind, _floor(first // parts, unit // parts) * parts
    elif kind == "integer":
        unit = (int(np.gcd.reduce(values)) or 1) if step is None else _whole(step)
        # whole numbers keep their own zero, unless steps counted from it would not fit
        origin = 0 if last // unit <= LAST_STEP else first - first % unit
    else:
        unit = (int(np.gcd.reduce(values - first)) or _coarsest(first)) if step is None else seconds(step)
        if step is not None:
            origin = _floor(first, unit)
        else:  # days begin at midnight, whatever the hour that all the times have
            origin = _floor(first, DAY) if unit % DAY == 0 else first
    if (last - origin) // unit > LAST_STEP:
        raise DataError(f"the times span more than {LAST_STEP:,} steps of {unit}: give a longer step.")
    return Clock(kind, origin, unit)


def seconds(step: str | int) -> int:
    """The length of a step of dates: "hour", "day", "week", "15min", "7d", or a number of seconds."""
    text = _step_text(step)
    match = SPAN.fullmatch(text.lower())
    if match:
        unit = int(match[1] or 1) * SECONDS[match[2]]
    else:
        unit = int(text) if INTEGER.fullmatch(text) else 0
    if not 1 <= unit <= LAST_STEP:
        shown = text if isinstance(step, int) else repr(text)
        raise SettingsError(f"{shown} is not a time step: give hour, day, week, 15min, 7d, or a number of seconds.")
    return unit


def epoch_parts(first: int, last: int) -> int:
    """How many of a second whole-number times between two count since 1970, 1 or 1000; 0 where they do not seem to.

    Only times from 2001 to 2286 are told: such numbers hardly count anything else.
    """
    return next((parts for parts in (1, 1000) if 10**9 <= first // parts <= last // parts < 10**10), 0)


def fine_steps(events: EventLog) -> str:
    """The remark that steps are shorter than a day and most events have one of their own; empty where it is not so."""
    clock = events.clock
    parts = 1
    if clock.kind == "integer":
        parts = epoch_parts(*(clock.origin + int(step) * clock.unit for step in (events.step[0], events.step[-1])))
    if clock.unit >= parts * DAY or 2 * len(np.unique(events.step)) <= len(events):
        return ""
    return (
        "Most events have a step of their own, and hardly any two are seen to happen together or again; "
        "read the events with longer steps, as in --step day."
    )


def _is_span(step: str | int) -> bool:
    return bool(SPAN.fullmatch(_step_text(step).lower()))


def _step_text(step: str | int) -> str:
    """A step as a text that is short enough to be shown, and no step where it had to be shortened."""
    if isinstance(step, int) and abs(step) >= 10**40:
        return "a number of more than 40 digits"  # Python refuses to write out longer ones
    text = str(step).strip()
    return text if len(text) <= 40 else text[:37] + "..."


def _whole(step: str | int) -> int:
    text = _step_text(step)
    if INTEGER.fullmatch(text) and int(text) >= 1:
        return int(text)
    hint = f", such as {seconds(step)} if they are seconds" if _is_span(step) else ""
    shown = text if isinstance(step, int) else repr(text)
    raise SettingsError(
        f"{shown} is not a step of these times, which are whole numbers: give a whole number of at least 1{hint}."
    )


def _floor(moment: int, unit: int) -> int:
    """Where the first step begins: on a Monday for weeks, at midnight for days, else at a multiple of the step."""
    if unit % (7 * DAY) == 0:
        return moment - (moment - MONDAY) % (7 * DAY)
    return moment - moment % (DAY if unit % DAY == 0 else unit)


def _coarsest(moment: int) -> int:
    """The step of a log with one moment only: the coarsest usual one that it is a multiple of."""
    return next(unit for unit in (DAY, 3600, 60, 1) if moment % unit == 0)


def _date(text: str) -> int | None:
    try:
        return parse_date(text)
    except (DataError, OverflowError):
        return None

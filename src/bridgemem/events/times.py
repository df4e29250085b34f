"""Times as a user writes them, whole numbers or dates, and the steps they fall into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from bridgemem.config import MOST_STEPS
from bridgemem.errors import DataError, SettingsError
from bridgemem.events.clock import DAY, LAST_TIME, Clock
from bridgemem.events.dates import COMPACT, FIRST_SECOND, LAST_SECOND, Written, from_format, read_date
from bridgemem.events.whole_numbers import plain_number

INTEGER = re.compile(r"-?[0-9]{1,18}")  # what fits into 64 bits
NANOSECONDS = 19  # digits of an epoch time in them, which fits into 64 bits too
COUNTED = re.compile(rf"-?[0-9]{{1,{NANOSECONDS}}}")
DECIMAL = re.compile(rf"{COUNTED.pattern}(\.[0-9]+)?")
SPAN = re.compile(r"([0-9]{0,9}) *(s|sec|second|min|minute|h|hour|d|day|w|week)s?")
SECONDS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
SECONDS |= {"d": DAY, "day": DAY, "w": 7 * DAY, "week": 7 * DAY}
WEEK = 7 * DAY
RARE = 0.01  # of the steps: where fewer have an event, they are much finer than the stream
MONDAY = 4 * DAY  # 1970-01-05, from which weeks are counted
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
EPOCH = {"epoch": 1, "epoch-ms": 10**3, "epoch-us": 10**6, "epoch-ns": 10**9}  # of a second
EPOCH_WORDS = dict(zip(EPOCH.values(), ("seconds", "milliseconds", "microseconds", "nanoseconds"), strict=True))
NAMED_FORMATS = ("day-first", "month-first", *EPOCH, "number")
EPOCH_ENDS = (10**8, 2**32)  # seconds, from 1973 to 2106: between these a number counts one unit alone
MIXED_ZONES = "Times with a time zone{} and without one{} are mixed; those without are taken as UTC."
UNDERSTOOD = (
    "Understood are whole numbers, 2024-01-31, 2024-01-31T06:00, 20240131, 2024-W05, 31.01.2024, 01/31/2024, "
    "31 Jan 2024, Jan 31, 2024, epoch seconds, milli-, micro- and nanoseconds; say how others are written, as in "
    "--time-format %d/%m/%y."
)
LAST_STEP = MOST_STEPS
DAYS = (19_000_101, 20_991_231)  # whole numbers in between may be days written as 20140131


@dataclass(frozen=True)
class Times:
    """Distinct times: kind "integer" or "date", values int64 [n], and why some texts are none, by position.

    remarks: what a user should know of how they were read, each a sentence.
    """

    kind: str
    values: np.ndarray
    faults: dict[int, str]
    remarks: tuple[str, ...] = ()


def check_format(form: str) -> None:
    """Refuse a format of times that is neither one of the names nor one that `strptime` knows."""
    if form in ("", *NAMED_FORMATS):
        return
    try:
        datetime.strptime("", form)
    except (ValueError, re.error) as problem:
        if "%" in form and "does not match format" in str(problem):
            return
    raise SettingsError(
        f"{form[:40]!r} is not a format of times: give {', '.join(NAMED_FORMATS)}, or one such as %d/%m/%y."
    )


def is_time(text: str, form: str = "") -> bool:
    """Whether a text is a whole number or a date, whatever its day and month may be."""
    if "%" in form:
        return from_format(text, form) is not None
    text = plain_number(text)
    return bool(COUNTED.fullmatch(text)) or read_date(text) is not None


def read_times(texts: Sequence[str], rows: np.ndarray, *, form: str = "", step: str | int | None = None) -> Times:
    """Judge distinct texts together; rows int64 [n] counts how often each occurs.

    Whole numbers and dates do not mix: the kind that most rows have decides, and the rest are faults. Numbers that
    all read as a day such as 20140131 are dates, and so are epoch times, unless the step is a whole number of the
    file's own units. form: how the times are written, as `check_format` knows it.
    """
    texts = texts if "%" in form else list(map(plain_number, texts))
    written, whole = _written(texts, form)
    dated = np.array([date is not None for date in written], bool)
    remarks: tuple[str, ...]
    plain = whole & ~dated
    as_dates = rows[dated].sum() > rows[whole].sum() or (dated.any() and rows[plain].sum() == 0)
    if as_dates or "%" in form:
        dates, remarks = _dates(texts, written, rows, form)
        if long := [text for i, text in enumerate(texts) if whole[i] and dated[i] and len(text) == 14]:
            remarks += (f"Times such as {min(long)} are read as dates; --time-format number keeps them as numbers.",)
        return _judged(texts, dates, ("date", "a date"), dated | whole, form, remarks)
    numbers = [int(text.partition(".")[0]) if whole[i] else None for i, text in enumerate(texts)]
    found = [number for number in numbers if number is not None]
    parts, remarks = EPOCH.get(form, 0), ()
    if not form and found and (step is None or is_span(step)):
        parts = epoch_parts(min(found), max(found))
        if parts:
            remarks = (epoch_remark(parts),)
    if not parts:
        if found and step is not None and is_span(step) and epoch_parts(max(found), max(found)):
            _whole(step, min(found), max(found))  # refuses it, before the largest are taken for no times at all
        numbers = [number if number is not None and abs(number) <= LAST_TIME else None for number in numbers]
        return _judged(texts, numbers, ("integer", "a whole number"), dated | whole, form)
    dates = [None if number is None else _in_calendar(number // parts) for number in numbers]
    return _judged(texts, dates, ("date", "an epoch time"), dated | whole, form, remarks)


def _written(texts: Sequence[str], form: str) -> tuple[list[Written | None], np.ndarray]:
    """What each text means as a date, None where it is none or a whole number, and which are whole numbers."""
    if "%" in form:
        return [from_format(text, form) for text in texts], np.zeros(len(texts), bool)
    number = DECIMAL if form in EPOCH else COUNTED
    whole = np.array([bool(number.fullmatch(text)) for text in texts], bool)
    if form in EPOCH or form == "number":
        return [None] * len(texts), whole
    dates = [read_date(text) if not whole[i] or COMPACT.fullmatch(text) else None for i, text in enumerate(texts)]
    return dates, whole


def _dates(
    texts: Sequence[str], written: Sequence[Written | None], rows: np.ndarray, form: str
) -> tuple[list[int | None], tuple[str, ...]]:
    """The seconds of each date, and what is to be said of them. A column has one order of day and month."""
    found: list[int | None] = [date.only if date else None for date in written]
    remarks = []
    for between in sorted({date.between for date in written if date} - {""}):
        group = [(i, date) for i, date in enumerate(written) if date and date.between == between]
        order = form
        if not order and any(found[i] is None for i, _ in group):
            order, told_by = _order(texts, group)
            example = min(texts[i] for i, _ in group if found[i] is None)
            remarks.append(f"Times such as {example} are read {order}, as {told_by} must be.")
        for i, date in group if order else ():
            found[i] = date.day_first if order == "day-first" else date.month_first
    zoned = np.array([date is not None and date.zoned for date in written], bool)
    naive = np.array([date is not None and not date.zoned for date in written], bool)
    if zoned.any() and naive.any():
        with_zone, without = int(rows[zoned].sum()), int(rows[naive].sum())
        remarks.append(MIXED_ZONES.format(f" ({with_zone:,})", f" ({without:,})"))
    return [None if moment is None else _in_calendar(moment) for moment in found], tuple(remarks)


def _in_calendar(moment: int) -> int | None:
    return moment if FIRST_SECOND <= moment <= LAST_SECOND else None


def _order(texts: Sequence[str], group: Sequence[tuple[int, Written]]) -> tuple[str, str]:
    """Which of day and month comes first, and the text that tells it; an error where none does, or two disagree."""
    day_first = [texts[i] for i, date in group if date.month_first is None]
    month_first = [texts[i] for i, date in group if date.day_first is None]
    if bool(day_first) != bool(month_first):
        return "day-first" if day_first else "month-first", min(day_first or month_first)
    unclear = min(texts[i] for i, date in group if date.only is None)
    why = f", and {min(day_first)} and {min(month_first)} disagree" if day_first else ""
    raise DataError(
        f"the time {unclear!r} may begin with the day or with the month{why}: say which with --time-format day-first "
        "or --time-format month-first."
    )


def _judged(
    texts: Sequence[str],
    found: Sequence[int | None],
    kind: tuple[str, str],
    other: np.ndarray,
    form: str,
    remarks: tuple[str, ...] = (),
) -> Times:
    """Times with the reason for each text that is none. kind: of the others, also in words; other bool [n]: it is a
    time of another kind."""
    values, faults = np.zeros(len(texts), np.int64), dict[int, str]()
    for i, text in enumerate(texts):
        value = found[i]
        if value is not None and (kind[0] == "date" or value >= 0):
            values[i] = value
        elif not text:
            faults[i] = "the time is empty"
        elif value is not None:
            faults[i] = f"the time {text} is negative"
        elif COUNTED.fullmatch(text) and not INTEGER.fullmatch(text) and form not in EPOCH:
            faults[i] = f"the time {text} has 19 digits; use --time-format epoch-ns if all times are epoch nanoseconds"
        elif form == "number":
            faults[i] = f"the time {text[:40]!r} is not a whole number"
        elif form:
            faults[i] = f"the time {text[:40]!r} is not written as {form}"
        elif other[i]:
            faults[i] = f"the time {text!r} is not {kind[1]} as the others are"
        else:
            faults[i] = f"the time {text[:40]!r} is neither a whole number nor a date; write dates as 2024-01-31"
    return Times(kind[0], values, faults, remarks)


def clock_for(values: np.ndarray, kind: str, step: str | int | None) -> Clock:
    """The clock of times int64 [n], n > 0, with the given step, or the longest one that meets every time."""
    first, last = int(values.min()), int(values.max())
    if kind == "integer":
        unit = (int(np.gcd.reduce(values)) or 1) if step is None else _whole(step, first, last)
        # whole numbers keep their own zero, unless steps counted from it would not fit
        origin = 0 if last // unit <= LAST_STEP else first - first % unit
    else:
        unit = (int(np.gcd.reduce(values - first)) or _coarsest(first)) if step is None else seconds(step)
        if step is not None:
            origin = _first_week(values) if unit % WEEK == 0 else first - first % (DAY if unit % DAY == 0 else unit)
        else:  # days begin at midnight, whatever the hour that all the times have
            origin = first - first % DAY if unit % DAY == 0 else first
    if (last - origin) // unit > LAST_STEP:
        raise DataError(f"the times span more than {LAST_STEP:,} steps of {unit}: give a longer step.")
    return Clock(kind, origin, unit)


def _first_week(values: np.ndarray) -> int:
    """Where the first week begins: on the weekday that all times have, else on a Monday."""
    days = values // DAY
    first = int(days.min())
    return first * DAY if not ((days - first) % 7).any() else first * DAY - (first * DAY - MONDAY) % WEEK


def week_remark(clock: Clock, step: str | int | None) -> str:
    """The remark that weeks begin on another day than Monday; empty where they do not."""
    day = (clock.origin - MONDAY) // DAY % 7
    if clock.kind != "date" or step is None or clock.unit % WEEK or not day:
        return ""
    return f"Weeks begin on {WEEKDAYS[day]}, the weekday of all times."


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
    """How many of a second whole-number times between two count since 1970; 0 where they do not seem to.

    Only seconds from 2001 on and parts of them from 1973 on are told, up to 2106: such numbers count nothing else.
    """
    least, most = EPOCH_ENDS
    if first < 10**9:
        return 0
    return next((parts for parts in EPOCH_WORDS if least <= first // parts <= last // parts < most), 0)


def whole_numbers(first: int, last: int, form: str, step: str | int | None) -> tuple[str, int]:
    """How times that are all whole numbers, the first and the last given, are read: "text", "integer" or "date".

    As text they are judged one by one. As dates they are epoch times, with the parts of a second that they count.
    """
    days = any(10**n * DAYS[0] <= first and last < 10**n * (DAYS[1] + 1) for n in (0, 6))
    if "%" in form or (form not in (*EPOCH, "number") and days):
        return "text", 0
    parts = EPOCH.get(form, 0) if form or not (step is None or is_span(step)) else epoch_parts(first, last)
    return ("date", parts) if parts else ("integer", 0)


def epoch_remark(parts: int) -> str:
    """The remark that whole numbers are read as dates; parts: of a second."""
    return f"Times are read as epoch {EPOCH_WORDS[parts]}; --time-format number keeps them as numbers."


def fine_steps(clock: Clock, ends: tuple[int, int], used: int, events: int) -> str:
    """The remark that steps are much finer than the stream of events; empty where they are not.

    They are where a step is shorter than a day, and most events have one of their own or hardly any step has an event.

    ends: the first and the last step with events. used: how many steps have some. events: how many there are.
    """
    if not shorter_than_day(clock, ends):
        return ""
    if 2 * used > events:
        why = "most events have one of their own"
    elif used < RARE * (ends[1] - ends[0] + 1):
        why = f"fewer than one in {round(1 / RARE)} has an event"
    else:
        return ""
    week = Clock(clock.kind, 0, 7 * clock.unit).length()
    day = "day" if clock.kind == "date" else str(DAY * epoch_parts(*_times_at(clock, ends)))
    in_python = f'step="{day}"' if clock.kind == "date" else f"step={day}"
    return (
        f"A step is {clock.length()}, and {why}: a horizon of 7 means {week}, and hardly any two events are seen to "
        f"happen together or again. Read the events with longer steps: --step {day} ({in_python} in Python)."
    )


def shorter_than_day(clock: Clock, ends: tuple[int, int]) -> bool:
    """Whether a step is shorter than a day, as far as the clock tells; ends: the first and the last step."""
    parts = 1 if clock.kind == "date" else epoch_parts(*_times_at(clock, ends))
    return clock.unit < parts * DAY


def _times_at(clock: Clock, steps: tuple[int, int]) -> tuple[int, int]:
    return clock.origin + int(steps[0]) * clock.unit, clock.origin + int(steps[1]) * clock.unit


def is_span(step: str | int) -> bool:
    """Whether a step is a length of time such as day or 15min, and not a whole number."""
    return bool(SPAN.fullmatch(_step_text(step).lower()))


def _step_text(step: str | int) -> str:
    """A step as a text that is short enough to be shown, and no step where it had to be shortened."""
    if isinstance(step, int) and abs(step) >= 10**40:
        return "a number of more than 40 digits"  # Python refuses to write out longer ones
    text = str(step).strip()
    return text if len(text) <= 40 else text[:37] + "..."


def _whole(step: str | int, first: int, last: int) -> int:
    """The step of whole numbers between two, in their own units."""
    text = _step_text(step)
    if INTEGER.fullmatch(text) and int(text) >= 1:
        return int(text)
    parts = epoch_parts(last, last)
    words = EPOCH_WORDS[parts or 1]
    hint = f", such as {seconds(step) * (parts or 1)} if they are {words}" if is_span(step) else ""
    if hint and parts:
        form = next(name for name, each in EPOCH.items() if each == parts)
        hint += (
            f"; or leave out those that are no epoch {words}, such as {first}, or read all as such with "
            f"--time-format {form}"
        )
    shown = text if isinstance(step, int) else repr(text)
    raise SettingsError(
        f"{shown} is not a step of these times, which are whole numbers: give a whole number of at least 1{hint}."
    )


def _coarsest(moment: int) -> int:
    """The step of a log with one moment only: the coarsest usual one that it is a multiple of."""
    return next(unit for unit in (DAY, 3600, 60, 1) if moment % unit == 0)

"""EventLog: one total order, cuts that share memory, names after ids, and times after steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.dates import parse_date
from bridgemem.events.log import Clock, EventLog, Vocabulary
from builders import few, log_of, logs, random_log, rows_of, vocabulary


def columns(*rows: tuple[int, int, int, int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(rows, dtype=np.int64).T)


NAMES = vocabulary("entity", 3), vocabulary("relation", 2)


def test_events_are_ordered_by_step_and_then_as_given():
    log = EventLog.from_columns(*columns((0, 0, 1, 5), (1, 0, 2, 3), (2, 1, 0, 5), (0, 1, 2, 3)), *NAMES)
    assert rows_of(log) == [(1, 0, 2, 3), (0, 1, 2, 3), (0, 0, 1, 5), (2, 1, 0, 5)]
    assert log.subject.dtype == np.int32


def test_duplicates_and_self_loops_are_kept():
    rows = [(0, 0, 0, 1), (0, 1, 1, 2), (0, 1, 1, 2)]
    assert rows_of(log_of(rows)) == rows


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(0, 0, 1, 5), (0, 0, 1, 4)], "ordered by step"),
        ([(3, 0, 1, 1)], "subject column"),
        ([(0, 0, -1, 1)], "object column"),
        ([(0, 2, 1, 1)], "relation column"),
        ([(0, 0, 1, -1)], "negative"),
    ],
)
def test_events_that_cannot_be_are_refused(rows, complaint):
    with pytest.raises(DataError, match=complaint):
        EventLog(*columns(*rows), *NAMES)


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(DataError, match="equal length"):
        EventLog(np.array([0, 1]), np.array([0]), np.array([1]), np.array([1]), *NAMES)


@pytest.mark.parametrize("row", [(2**32, 0, 1, 1), (0, 0, 1, 2**32 + 5)])
def test_numbers_too_large_for_a_column_are_refused_and_not_wrapped(row):
    with pytest.raises(DataError):
        EventLog(*columns(row), *NAMES)


def test_columns_cannot_be_changed():
    log = log_of([(0, 0, 1, 1)])
    with pytest.raises(ValueError, match="read-only"):
        log.subject[0] = 1


@few
@given(events=logs(), start=st.integers(0, 95), stop=st.integers(0, 95))
def test_cuts_equal_a_comparison_of_steps(events, start, stop):
    rows = rows_of(events)
    assert rows_of(events.prefix(start)) == [e for e in rows if e[3] < start]
    assert rows_of(events.between(start, stop)) == [e for e in rows if start <= e[3] < stop]
    assert rows_of(events.prefix(start).append(events.between(start, 96))) == rows
    assert events.end == max((e[3] for e in rows), default=-1) + 1


def test_a_prefix_shares_memory():
    events = random_log(1)
    assert np.shares_memory(events.prefix(10).subject, events.subject)


def test_earlier_events_cannot_be_appended():
    log = log_of([(0, 0, 1, 5)])
    with pytest.raises(DataError, match="earlier"):
        log.append(log_of([(0, 0, 1, 4)]))
    assert len(log.append(log_of([(0, 0, 1, 5)]))) == 2


def test_the_fingerprint_knows_content_order_and_sizes():
    rows = [(0, 0, 1, 1), (1, 1, 2, 1), (0, 0, 1, 2)]
    same = log_of(rows).fingerprint
    assert log_of(rows).fingerprint == same
    others = [
        log_of(rows[:2]),
        log_of([rows[1], rows[0], rows[2]]),
        log_of([(0, 0, 2, 1), *rows[1:]]),
        log_of([*rows[:2], (0, 0, 1, 3)]),
        log_of(rows, n_entities=7),
        log_of(rows, n_relations=4),
    ]
    prints = {same, *(log.fingerprint for log in others)}
    assert len(prints) == len(others) + 1


def test_a_text_is_a_name_and_a_whole_number_is_an_id():
    names = Vocabulary("entity", ("Norway", "Sweden", "7", "Norway"))
    assert (names.id("Sweden"), names.id("Norway"), names.id("7")) == (1, 0, 2)
    assert (names.id(3), names.id(np.int64(1))) == (3, 1)


@pytest.mark.parametrize("id", [2, -1, np.int32(9), 10**30])
def test_an_id_beyond_the_names_is_one_clear_error(id):
    with pytest.raises(NotFoundError, match=f"no entity has the id {id}; the ids are 0 to 1, and a name is given as"):
        Vocabulary("entity", ("Norway", "Sweden")).id(id)


@pytest.mark.parametrize("name", ["Swedn", "1", "9", True, "", "²", "9" * 5000])
def test_an_unknown_name_is_one_clear_error(name):
    names = Vocabulary("entity", ("Norway", "Sweden"))
    with pytest.raises(NotFoundError, match="no entity is called"):
        names.id(name)


def test_a_close_name_is_suggested():
    with pytest.raises(NotFoundError, match="did you mean 'Sweden'"):
        Vocabulary("entity", ("Norway", "Sweden")).id("Swedn")


def test_a_clock_turns_steps_into_times_and_back():
    days = Clock("date", parse_date("2014-01-01"), 86400)
    assert days.label(31) == "2014-02-01"
    assert days.step("2014-02-01") == days.step("2014-02-01T23:59:59") == 31
    quarters = Clock("date", parse_date("2018-01-01T00:00"), 900)
    assert quarters.label(5) == "2018-01-01 01:15:00"
    assert quarters.step("2018-01-01T01:29") == 5
    plain = Clock("integer", 10, 24)
    assert plain.label(2) == "58"
    assert (plain.step("58"), plain.step(81), plain.step(82)) == (2, 2, 3)


@few
@given(step=st.integers(0, 10**6), origin=st.integers(-(10**9), 10**9), unit=st.sampled_from([1, 900, 3600, 86400]))
def test_every_label_leads_back_to_its_step(step, origin, unit):
    assert Clock("integer", origin, unit).step(Clock("integer", origin, unit).label(step)) == step
    for first in (origin, origin - origin % 86400, parse_date("0850-01-01")):
        dates = Clock("date", first, unit)
        if first + step * unit < 2**32:
            assert dates.step(dates.label(step)) == step


def test_a_day_that_begins_at_six_is_told_with_its_hour():
    assert Clock("date", parse_date("2014-01-01T06:00"), 86400).label(1) == "2014-01-02 06:00:00"


def test_times_that_are_none_are_refused():
    with pytest.raises(DataError, match="whole number"):
        Clock().step("tomorrow")
    with pytest.raises(DataError, match="not a date"):
        Clock("date", 0, 86400).step("tomorrow")


def test_a_clock_of_dates_takes_compact_dates_and_epoch_seconds():
    days = Clock("date", parse_date("2014-01-01"), 86400)
    for time in ("20140201", 20140201, " 2014-02-01 ", "1391212800", 1391212800):
        assert days.step(time) == 31, time


@pytest.mark.parametrize("time", ["2014", 2014, "7", "201402", "999999999", "0000000031", "9" * 5000])
def test_a_bare_number_that_is_no_date_is_refused_with_a_hint(time):
    with pytest.raises(DataError, match="write it as 2014-12-01"):
        Clock("date", parse_date("2014-01-01"), 86400).step(time)


@pytest.mark.parametrize("time", ["20141399", "-5", "1e9", ""])
def test_what_only_looks_like_a_date_is_refused_with_a_hint(time):
    with pytest.raises(DataError, match="not a date: write it as 2014-12-01"):
        Clock("date", parse_date("2014-01-01"), 86400).step(time)


@pytest.mark.parametrize(
    ("clock", "length"),
    [
        (Clock("date", 0, 86400), "1 day"),
        (Clock("date", 0, 3 * 86400), "3 days"),
        (Clock("date", 0, 14 * 86400), "2 weeks"),
        (Clock("date", 0, 900), "15 minutes"),
        (Clock("date", 0, 1), "1 second"),
        (Clock("integer", 0, 1), "1 unit of the times"),
        (Clock("integer", 0, 24), "24 units of the times"),
    ],
)
def test_a_clock_says_how_long_a_step_is(clock, length):
    assert clock.length() == length


def test_a_number_is_the_id_of_a_name_unless_the_names_are_numbers() -> None:
    codes = Vocabulary("relation", ("020", "1", "042"))
    assert [codes.id(name) for name in ("020", "1", 1, 2)] == [0, 1, 1, 2]
    assert codes.get("2") is None
    numbers = Vocabulary("relation", ("0", "36", "2042"))
    assert [numbers.id(name) for name in ("0", 36, "2042")] == [0, 1, 2]
    for unknown in (1, "2"):
        with pytest.raises(NotFoundError):
            numbers.id(unknown)


@pytest.mark.parametrize(
    "wrong",
    [
        ("date", 0, 0),
        ("date", 0, -1),
        ("integer", 0, 10**18),
        ("integer", 10**18, 1),
        ("years", 0, 1),
        ("date", 0.5, 1),
    ],
)
def test_a_clock_that_cannot_be_is_refused(wrong):
    with pytest.raises(DataError):
        Clock(*wrong)


def test_events_outside_of_the_calendar_are_refused():
    last = parse_date("9999-12-31")
    at_the_end = EventLog.from_columns(*columns((0, 0, 1, 0)), *NAMES, Clock("date", last, 86_400))
    assert at_the_end.clock.label(0) == "9999-12-31"
    with pytest.raises(DataError, match="outside of the calendar"):
        EventLog.from_columns(*columns((0, 0, 1, 0), (0, 0, 1, 1)), *NAMES, Clock("date", last, 86_400))
    with pytest.raises(DataError, match="within the years 1 to 9999"):
        Clock("date", 10**12, 86_400)

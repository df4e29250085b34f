"""Lines of JSON as events: each line is judged by itself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from bridgemem.errors import SettingsError
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.readers.json_lines import JsonLines
from bridgemem.events.readers.options import ReadOptions

DAYS = Clock("date", 1704067200, 86400)  # from 2024-01-01


@pytest.fixture(scope="module")
def base() -> EventLog:
    zero = np.zeros(1, np.int32)
    names = Vocabulary("entity", ("Iran", "NA")), Vocabulary("relation", ("visit",))
    return EventLog(zero, zero, zero + 1, zero, *names, DAYS)


def read(base: EventLog, line: Any, options: ReadOptions | None = None, **fields: str) -> Any:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    return JsonLines(options or ReadOptions(), base, **fields).read(raw, "feed", 7)


@pytest.mark.parametrize(
    "line",
    [
        {"subject": "Iran", "relation": "visit", "object": "Oman", "time": "2024-01-31", "note": [1]},
        {"Source": "Iran", "TYPE": "visit", "target": "Oman", "timestamp": "2024-01-31"},
        {"s": " Iran ", "p": "visit", "o": "Oman", "year": 2024, "month": 1, "day": 31},
        ["Iran", "visit", "Oman", "2024-01-31"],
    ],
    ids=["roles", "synonyms", "joined", "list"],
)
def test_fields_are_found_as_columns_are(base: EventLog, line: Any) -> None:
    found = read(base, line)
    assert found.reject is None
    assert found.event == ("Iran", "visit", "Oman", found.event[3])
    assert DAYS.step(found.event[3]) == 30


def test_a_time_may_be_a_number_of_seconds_or_have_a_format(base: EventLog) -> None:
    seconds = read(base, ["Iran", "visit", "Oman", 1706659200]).event
    assert DAYS.step(seconds[3]) == 30
    written = read(base, ["Iran", "visit", "Oman", "31.1.24"], ReadOptions(time_format="%d.%m.%y")).event
    assert DAYS.step(written[3]) == 30
    thousandths = read(base, ["Iran", "visit", "Oman", 1706659200123], ReadOptions(time_format="epoch-ms")).event
    assert DAYS.step(thousandths[3]) == 30


def test_a_name_of_the_run_is_never_a_missing_value(base: EventLog) -> None:
    assert read(base, ["NA", "visit", "Iran", "2024-01-31"]).event[0] == "NA"
    assert "the subject is missing (null)" in read(base, ["null", "visit", "Iran", "2024-01-31"]).reject.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "the line is not JSON"),
        (b'{"a": 1}', "the line has no field subject; it has a"),
        (b"{}", "it has none"),
        (b"7", "neither an object nor a list"),
        (b'["Iran", "visit", "Oman"]', "neither an object nor a list"),
        (b'["Iran", "visit", null, "2024-01-31"]', "the object is missing"),
        (b'["Iran", "visit", {"id": 1}, "2024-01-31"]', "the object is an object, and not a text"),
        (b'["Iran", "visit", true, "2024-01-31"]', "the object is true, and not a text"),
        (b'["Iran", "visit", "Oman", "soon"]', "'soon' is not a date"),
        (b'["Iran", "visit", "Oman", "2023-12-31"]', "lies before the data begin"),
        (b'["Iran", "visit", "Oman", "9999-12-31"]', "lies too far ahead"),
        (b'["Iran", "visit", "\\ud800", "2024-01-31"]', "cannot be stored"),
        (b'["Iran", "visit", "\xff", "2024-01-31"]', "the line is not UTF-8"),
        (b"[" * 50_000, "the line is not JSON"),
        (b'"' + b"x" * 200_000 + b'"', "the line is longer than 100,000 characters"),
    ],
    ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else None,
)
def test_a_line_that_is_no_event_says_why(base: EventLog, line: bytes, reason: str) -> None:
    found = read(base, line)
    assert found.event is None
    assert reason in found.reject.reason
    assert (found.reject.file, found.reject.line) == ("feed", 7)


def test_a_rejected_event_keeps_its_values_to_be_repaired(base: EventLog) -> None:
    assert read(base, ["Iran", "visit", "Oman", "soon"]).reject.row == ("Iran", "visit", "Oman", "soon")
    assert read(base, b"{").reject.row == ("{",)


def test_a_blank_line_is_nothing(base: EventLog) -> None:
    assert read(base, b" \r\n") == read(base, b"")
    assert read(base, b"").event is read(base, b"").reject is None


def test_the_event_may_lie_in_a_field_next_to_the_offset(base: EventLog) -> None:
    event, fields = ["Iran", "visit", "Oman", "2024-01-31"], {"event_field": "payload", "offset_field": "offset"}
    for payload in (event, json.dumps(event)):
        found = read(base, {"offset": 12, "payload": payload}, **fields)
        assert (found.offset, found.event[2]) == (12, "Oman")
    assert read(base, {"offset": "12", "payload": event}, **fields).offset == 12
    bad = read(base, {"offset": 12, "payload": "{"}, **fields)
    assert (bad.offset, bad.reject.reason) == (12, "the field payload is not JSON")
    for offset in (None, -1, 1.5, True, "x"):
        reason = read(base, {"offset": offset, "payload": event}, **fields).reject.reason
        assert reason == "the line has no whole number as its offset"


def test_published_layouts_are_no_lines_of_json(base: EventLog) -> None:
    with pytest.raises(SettingsError, match="--format is for tables"):
        JsonLines(ReadOptions(format="gdelt"), base)

"""Dates as files have them: what is understood, what is never guessed, and what a user is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.dates import parse_date, read_date
from bridgemem.events.loading import load
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.naming import new_events
from bridgemem.events.readers.check import check_events
from bridgemem.events.readers.read import Reading, ReadOptions, read_events
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.outofcore.mined import Mined
from corpora import write_parquet

HEADING = "subject,relation,object,time\n"


def written(path: Path, times: list[str]) -> Path:
    path.write_text(HEADING + "".join(f'A,r,B,"{time}"\n' for time in times))
    return path


def labels(reading: Reading) -> list[str]:
    events = reading.events
    return [events.clock.label(step) for step in events.step.tolist()]


UNDERSTOOD = {
    "ISO": ["2024-01-30", "2024-01-31"],
    "ISO without zeros": ["2024-1-30", "2024-1-31"],
    "compact": ["20240130", "20240131"],
    "compact to the second": ["20240130000000", "20240131000000"],
    "dotted": ["30.01.2024", "31.1.2024"],
    "slashed, month first": ["01/30/2024", "1/31/2024"],
    "slashed, day first": ["30/01/2024", "31/1/2024"],
    "dashed, day first": ["30-01-2024", "31-01-2024"],
    "year first": ["2024/01/30", "2024.01.31"],
    "month names": ["Jan 30, 2024", "January 31, 2024"],
    "day and month name": ["30 Jan 2024", "31-Jan-2024"],
    "epoch seconds": ["1706572800", "1706659200"],
    "epoch milliseconds": ["1706572800123", "1706659200456"],
    "epoch microseconds": ["1706572800123456", "1706659200456123"],
    "epoch nanoseconds": ["1706572800123456789", "1706659200456123789"],
}
DAYS = ["2024-01-30", "2024-01-31"]


@pytest.mark.parametrize("kind", UNDERSTOOD)
def test_a_date_that_can_be_read_in_one_way_is_understood(kind, tmp_path):
    path = written(tmp_path / "e.csv", UNDERSTOOD[kind])
    assert labels(read_events(path, ReadOptions(step="day"))) == DAYS
    frame = {"subject": ["A"] * 2, "relation": ["r"] * 2, "object": ["B"] * 2, "time": UNDERSTOOD[kind]}
    assert labels(read_events(frame, ReadOptions(step="day"))) == DAYS


def test_weeks_of_a_year_begin_on_their_monday(tmp_path):
    assert labels(read_events(written(tmp_path / "e.csv", ["2024-W05", "2024W06"]))) == ["2024-01-29", "2024-02-05"]


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("31.01.2024 06:30", "2024-01-31T06:30"),
        ("1/31/2024 6:30:05 PM", "2024-01-31T18:30:05"),
        ("1/31/2024 12:05 AM", "2024-01-31T00:05"),
        ("31 Jan 2024, 23:59", "2024-01-31T23:59"),
        ("31-Jan-2024 06:30 +02:00", "2024-01-31T04:30"),
        ("2024/01/31 06:30 UTC", "2024-01-31T06:30"),
        ("Sept 3rd, 2024", "2024-09-03"),
    ],
)
def test_a_time_of_day_may_follow(text, iso):
    assert parse_date(text) == parse_date(iso)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "31/01/24",
        "32.01.2024",
        "13/13/2024",
        "31 Foo 2024",
        "Feb 30, 2024",
        "2024-13-01",
        "1/31/2024 13:00 PM",
        "x",
    ],
)
def test_what_is_no_date_is_none(text):
    assert read_date(text) is None


# ---- never guessed -------------------------------------------------------------------------------------------------


def test_one_date_of_a_column_tells_the_order_of_all_and_it_is_said(tmp_path):
    reading = read_events(written(tmp_path / "e.csv", ["01/02/2024", "02/13/2024"]))
    assert labels(reading) == ["2024-01-02", "2024-02-13"]
    assert reading.remarks == ("Times such as 01/02/2024 are read month-first, as 02/13/2024 must be.",)


@pytest.mark.parametrize(
    ("times", "phrase"),
    [
        (["01/02/2024", "03/04/2024"], "'01/02/2024' may begin with the day or with the month: say which with --time"),
        (["01.02.2024", "05.05.2024"], "'01.02.2024' may begin with the day"),
        (["01/02/2024", "13/01/2024", "01/13/2024"], "13/01/2024 and 01/13/2024 disagree"),
    ],
)
def test_an_order_that_nothing_tells_is_asked_for(times, phrase, tmp_path):
    path = written(tmp_path / "e.csv", times)
    with pytest.raises(DataError, match=phrase):
        read_events(path)
    assert labels(read_events(path, ReadOptions(time_format="day-first")))[0] in ("2024-02-01", "2024-01-13")
    with pytest.raises(DataError, match=phrase):
        mine_files([path], tmp_path / "out")


@pytest.mark.parametrize(
    ("times", "form", "expected"),
    [
        (["01/02/2024", "03/04/2024"], "month-first", ["2024-01-02", "2024-03-04"]),
        (["01/02/2024", "03/04/2024"], "day-first", ["2024-02-01", "2024-04-03"]),
        (["31/01/24", "01/02/24"], "%d/%m/%y", ["2024-01-31", "2024-02-01"]),
        (["31012024", "01022024"], "%d%m%Y", ["2024-01-31", "2024-02-01"]),
        (["86400", "172800"], "epoch", ["1970-01-02", "1970-01-03"]),
        (["86400.5", "172800"], "epoch", ["1970-01-02", "1970-01-03"]),
        (["86400000"], "epoch-ms", ["1970-01-02"]),
        (["0", "86400000000"], "epoch-us", ["1970-01-01", "1970-01-02"]),
        (["0", "86400000000000"], "epoch-ns", ["1970-01-01", "1970-01-02"]),
        (["1706572800", "1706572801"], "number", ["1706572800", "1706572801"]),
        (["20240131"], "number", ["20240131"]),
    ],
)
def test_a_time_format_says_how_times_are_written(times, form, expected, tmp_path):
    path, options = written(tmp_path / "e.csv", times), ReadOptions(time_format=form)
    assert labels(read_events(path, options)) == expected


@pytest.mark.parametrize(("times", "form"), [(["31/01/24", "01/02/24"], "%d/%m/%y"), (["86400000"], "epoch-ms")])
def test_mining_takes_the_same_time_formats(times, form, tmp_path):
    path, options = written(tmp_path / "e.csv", times), ReadOptions(time_format=form)
    assert mine_files([path], tmp_path / "out", options=options)["events"] == len(times)
    assert Mined(tmp_path / "out").clock == read_events(path, options).events.clock


def test_a_row_that_is_not_in_the_time_format_is_rejected(tmp_path):
    path = written(tmp_path / "e.csv", ["31/01/24", "2024-01-31"])
    (row,) = read_events(path, ReadOptions(time_format="%d/%m/%y")).rejects.rows
    assert (row.line, row.reason) == (3, "the time '2024-01-31' is not written as %d/%m/%y")


@pytest.mark.parametrize("form", ["dmy", "%Q", "%", "day first"])
def test_a_time_format_that_is_none_is_refused(form):
    with pytest.raises(SettingsError, match="is not a format of times: give day-first"):
        ReadOptions(time_format=form)


def test_dates_that_a_frame_has_as_such_need_no_format():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"subject": ["A"], "relation": ["r"], "object": ["B"], "time": pandas.to_datetime(["2024"])}
    )
    with pytest.raises(SettingsError, match="need no time format"):
        read_events(frame, ReadOptions(time_format="day-first"))


# ---- epoch ---------------------------------------------------------------------------------------------------------


def test_epoch_times_are_dates_and_it_is_said(tmp_path):
    reading = read_events(written(tmp_path / "e.csv", ["1706572800000", "1706659200000"]))
    assert (labels(reading), reading.events.clock.length()) == (DAYS, "1 day")
    assert reading.remarks == ("Times are read as epoch milliseconds; --time-format number keeps them as numbers.",)
    assert reading.events.clock.step("1706659200000") == reading.events.clock.step("1706659200") == 1


PARTS = {"milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


@pytest.mark.parametrize("unit", PARTS)
@pytest.mark.parametrize("year", ["1975", "1999", "2024", "2099"])
def test_parts_of_a_second_are_told_by_their_size_in_files_frames_and_mining(unit, year, tmp_path):
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range(f"{year}-01-31 06:00", periods=4, freq="D").as_unit("s").astype("int64")
    times = [day * PARTS[unit] + 5 for day in days.tolist()]
    expected, options = [f"{year}-01-31", *(f"{year}-02-0{i}" for i in (1, 2, 3))], ReadOptions(step="day")
    columns = {"subject": ["A"] * 4, "relation": ["r"] * 4, "object": ["B"] * 4, "time": times}
    path = written(tmp_path / "e.csv", map(str, times))
    for source in (path, columns, pandas.DataFrame(columns), pandas.DataFrame(columns).astype({"time": "float64"})):
        reading = read_events(source, options)
        assert (labels(reading), reading.rejects.count) == (expected, 0)
        assert reading.remarks == (f"Times are read as epoch {unit}; --time-format number keeps them as numbers.",)
    for file in (path, write_parquet(tmp_path / "e.parquet", columns)):
        mine_files([file], tmp_path / "out", options=options, force=True)
        assert Mined(tmp_path / "out").clock == reading.events.clock


@pytest.mark.parametrize("parts", PARTS.values())
def test_one_epoch_time_is_understood_as_those_of_the_data_are(parts):
    clock = Clock("date", 1_706_572_800, 86_400)
    assert clock.step(str(1_706_659_200 * parts)) == 1
    with pytest.raises(DataError, match="is a bare number"):
        clock.step(str(1_706_659_200 * parts * 100))


@pytest.mark.parametrize("unit", PARTS)
def test_epoch_times_next_to_others_are_refused_with_their_unit_and_the_remedy(unit, tmp_path):
    path = written(tmp_path / "e.csv", ["17", *(str((1_706_572_800 + i) * PARTS[unit]) for i in range(3))])
    form = {"milliseconds": "epoch-ms", "microseconds": "epoch-us", "nanoseconds": "epoch-ns"}[unit]
    said = f"leave out those that are no epoch {unit}, such as 17, or read all as such with --time-format {form}"
    with pytest.raises(SettingsError, match=said):
        read_events(path, ReadOptions(step="day"))
    assert labels(read_events(path, ReadOptions(step="day", time_format=form)))[::3] == ["1970-01-01", "2024-01-30"]


def test_a_number_of_19_digits_among_shorter_ones_is_rejected_with_the_remedy(tmp_path):
    reading = read_events(written(tmp_path / "e.csv", ["17", "1706572800000000000"]))
    (row,) = reading.rejects.rows
    assert row.reason.endswith("has 19 digits; use --time-format epoch-ns if all times are epoch nanoseconds")


@pytest.mark.parametrize("text", ["1704067200000000000", "1704060210101010101", "170406021010", "1704060200000000"])
def test_a_long_number_is_no_day_of_another_century(text):
    assert read_date(text) is None


def test_a_time_beyond_the_calendar_is_one_rejected_row(tmp_path):
    for form, times in (("epoch", ["999999999999999999", "5"]), ("", ["9999-12-31T23:00-05:00", "2024-01-31"])):
        reading = read_events(written(tmp_path / "e.csv", times), ReadOptions(time_format=form))
        assert (len(reading.events), [row.line for row in reading.rejects.rows]) == (1, [2])


def test_numbers_that_are_days_to_the_second_are_dates_and_it_is_said(tmp_path):
    reading = read_events(written(tmp_path / "e.csv", UNDERSTOOD["compact to the second"]))
    assert (labels(reading), len(reading.remarks)) == (DAYS, 1)
    assert reading.events.clock.step("20240131000000") == 1


@pytest.mark.parametrize("times", [["999999999", "1706572800"], ["5000000000", "5000000001"], ["1", "2"]])
def test_other_whole_numbers_stay_numbers(times, tmp_path):
    reading = read_events(written(tmp_path / "e.csv", times), ReadOptions(step=1))
    assert (reading.events.clock.kind, reading.remarks) == ("integer", ())


def test_events_that_follow_a_log_of_numbers_have_numbers():
    base = EventLog([0], [0], [1], [0], *(Vocabulary(k, ("A", "B")) for k in "er"), Clock("integer", 1706572800, 60))
    frame = {"subject": ["A"], "relation": ["A"], "object": ["B"], "time": [1706572920]}
    assert new_events(frame, base) == [("A", "A", "B", 2)]


# ---- what is said --------------------------------------------------------------------------------------------------


def test_help_with_dates_is_given_where_dates_are_at_fault_alone(tmp_path):
    path = tmp_path / "e.csv"
    path.write_bytes(b"subject,relation,object,time\nK\xff,visit,L,2024-01-31\nA\0,visit,L,2024-01-31\n")
    for read in (read_events, check_events):
        with pytest.raises(DataError, match="the line is not UTF-8") as error:
            read(path)
        assert "Understood" not in str(error.value)


def test_where_no_time_can_be_read_the_value_and_the_formats_are_shown_and_no_heading_is_blamed(tmp_path):
    path = tmp_path / "e.csv"
    for heading in (HEADING, ""):
        path.write_text(heading + "A,r,B,31/01/24\n17,r,B,1/02/24\n18,r,C,2/02/24\n")
        with pytest.raises(DataError) as error:
            read_events(path)
        said = str(error.value)
        assert "the time '31/01/24' is neither a whole number nor a date" in said
        assert "Understood are whole numbers, 2024-01-31" in said
        assert "--time-format %d/%m/%y" in said
        assert "column" not in said
        with pytest.raises(DataError, match=r"the time '.*/24' is neither .* Understood are"):
            mine_files([path], tmp_path / "out")
        assert len(read_events(path, ReadOptions(time_format="%d/%m/%y")).events) == 3


def test_times_with_and_without_a_zone_are_said_to_be_mixed(tmp_path):
    times = ["2024-01-01T00:00Z", "2024-01-01T02:00+01:00", "2024-01-01T02:00"]
    path = written(tmp_path / "e.csv", times)
    said = "Times with a time zone (2) and without one (1) are mixed; those without are taken as UTC."
    assert read_events(path).remarks == (said,)
    assert said in read_events(path).source()
    assert mine_files([path], tmp_path / "out")["source"]["remarks"][0] == said
    assert read_events(written(tmp_path / "z.csv", times[:2])).remarks == ()
    with pytest.warns(UserWarning, match="time zone"):
        load(path)


def test_parquet_files_with_and_without_a_zone_are_said_to_be_mixed(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    for name, kind in (("a", "TIMESTAMP"), ("b", "TIMESTAMPTZ")):
        with duckdb.connect() as db:
            row = f"'A' AS subject, 'r' AS relation, 'B' AS object, {kind} '2024-01-01 00:00:00' AS time"
            db.execute(f"COPY (SELECT {row}) TO '{tmp_path / name}.parquet'")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert "are mixed" in read_events(paths).source()
    assert "are mixed" in mine_files(paths, tmp_path / "out")["source"]["remarks"][0]


# ---- weeks ---------------------------------------------------------------------------------------------------------

SATURDAYS = ["2024-01-06", "2024-01-13 18:00", "2024-01-27"]


def test_weeks_keep_the_weekday_that_all_times_have(tmp_path):
    path = written(tmp_path / "e.csv", SATURDAYS)
    for step in ("week", "7d"):
        reading = read_events(path, ReadOptions(step=step))
        assert labels(reading) == ["2024-01-06", "2024-01-13", "2024-01-27"]
        assert reading.remarks == ("Weeks begin on Saturday, the weekday of all times.",)
    mixed = read_events(written(tmp_path / "e.csv", [*SATURDAYS, "2024-01-30"]), ReadOptions(step="week"))
    assert (labels(mixed)[0], mixed.remarks) == ("2024-01-01", ())


@pytest.mark.parametrize(
    ("kind", "days"), [("text", [6, 13, 27]), ("DATE", [6, 13, 27]), ("BIGINT", [6, 13]), ("DATE", [6, 7, 27])]
)
def test_mining_begins_its_weeks_on_the_same_day(kind, days, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "e.parquet"
    time = {"DATE": "day", "text": "strftime(day, '%d.%m.%Y')", "BIGINT": "epoch(day)::BIGINT"}[kind]
    rows = ", ".join(f"(DATE '2024-01-{day:02d}')" for day in days)
    with duckdb.connect() as db:
        query = f"SELECT 'A' AS subject, 'r' AS relation, 'B' AS object, {time} AS time FROM (VALUES {rows}) t(day)"
        db.execute(f"COPY ({query}) TO '{path}'")
    options = ReadOptions(step="week")
    done, reading = mine_files([path], tmp_path / "out", options=options), read_events(path, options)
    assert Mined(tmp_path / "out").clock == reading.events.clock
    assert tuple(done["source"]["remarks"]) == reading.remarks

"""Reading events: what is accepted, what is rejected and why, and that nothing else ever happens."""

import csv
import gzip
import io
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bridgemem as bm
from bridgemem.errors import BridgeMemError, DataError, NotFoundError, SettingsError
from bridgemem.events.log import Clock, Vocabulary
from bridgemem.events.readers import text
from bridgemem.events.readers.files import find_files
from bridgemem.events.readers.id_files import read_vocabulary
from bridgemem.events.readers.read import Reading, ReadOptions, read_events
from bridgemem.events.readers.text import UNCLOSED
from bridgemem.outofcore.duckdb import mine_files
from builders import named_rows
from commands import bridgemem

ENTITIES = Vocabulary("entity", ("Ann", "Bob", "Cid"))
RELATIONS = Vocabulary("relation", ("greets", "pays"))


def columns(reading: Reading) -> list[tuple[int, int, int, int]]:
    log = reading.events
    return list(zip(log.subject.tolist(), log.relation.tolist(), log.object.tolist(), log.step.tolist(), strict=True))


def lines_and_reasons(reading: Reading) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in reading.rejects.rows]


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes, name: str = "events.tsv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# ---- what is accepted ----------------------------------------------------------------------------------------------


def test_headerless_integers_are_ids_in_step_then_file_order(write):
    reading = read_events(write("2\t1\t0\t48\n0\t0\t1\t24\n1\t1\t1\t24\n0\t0\t1\t24\n"))
    assert columns(reading) == [(0, 0, 1, 1), (1, 1, 1, 1), (0, 0, 1, 1), (2, 1, 0, 2)]
    assert reading.events.clock == Clock("integer", 0, 24)
    assert reading.events.entities.names == ("0", "1", "2")
    assert reading.rejects.count == 0
    assert reading.rejects.total == 4


def test_names_get_ids_by_first_appearance_in_time_not_in_the_file(write):
    reading = read_events(write("Zoe\tpays\tAnn\t7\nAnn\tgreets\tBob\t3\n"))
    assert reading.events.entities.names == ("Ann", "Bob", "Zoe")
    assert reading.events.relations.names == ("greets", "pays")
    assert named_rows(reading) == [("Ann", "greets", "Bob", "3"), ("Zoe", "pays", "Ann", "7")]


def test_duplicates_and_self_loops_are_kept(write):
    assert columns(read_events(write("0\t0\t0\t1\n" * 3))) == [(0, 0, 0, 1)] * 3


def test_quoted_fields_may_hold_commas_and_quotes(write):
    path = write('subject,relation,object,time\n"Ann, ""the"" first",pays,"Bob, Inc",5\n', "e.csv")
    assert named_rows(read_events(path)) == [('Ann, "the" first', "pays", "Bob, Inc", "5")]


def test_quotes_in_tab_separated_text_are_letters(write):
    assert named_rows(read_events(write('"Al" Ann\tpays\tBob "\t5\n'))) == [('"Al" Ann', "pays", 'Bob "', "5")]


@pytest.mark.parametrize("content", ["\ufeffs\tr\to\tt\r\n0\t0\t1\t1\r\n", "\ufeff0\t0\t1\t1\r\n", "\n\n0\t0\t1\t1"])
def test_byte_order_mark_windows_lines_and_blank_lines_are_no_content(write, content):
    reading = read_events(write(content), strict=True)
    assert columns(reading) == [(0, 0, 1, 1)]


def test_gz_is_unpacked_whatever_its_name(write):
    packed = gzip.compress(b"0\t0\t1\t1\n")
    assert columns(read_events(write(packed, "e.tsv.gz"))) == columns(read_events(write(packed, "e.tsv")))


def test_several_files_are_one_log_in_the_order_given(write):
    first, second = write("A\tr\tB\t1\nA\tr\tB\t9\n", "1.tsv"), write("B\tr\tA\t1\nA\tr\n", "2.tsv")
    reading = read_events([first, second])
    assert named_rows(reading) == [("A", "r", "B", "1"), ("B", "r", "A", "1"), ("A", "r", "B", "9")]
    assert [(row.file, row.line) for row in reading.rejects.rows] == [(str(second), 2)]


def test_rows_keep_file_order_and_line_numbers_across_blocks(write, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 64)
    rows = [f"{i}\t0\t{i + 1}\t{i % 3}" for i in range(500)]
    rows[137] = "1\t0\t2"
    rows[499] = "1\t0\t2\tx"
    reading = read_events(write("\n".join(rows)))
    assert lines_and_reasons(reading) == [
        (138, "expected 4 columns, found 3"),
        (500, "the time 'x' is neither a whole number nor a date; write dates as 2024-01-31"),
    ]
    kept = [row.split("\t") for i, row in enumerate(rows) if i not in (137, 499)]
    expected = sorted(([int(x) for x in row] for row in kept), key=lambda row: row[3])
    assert columns(reading) == [tuple(row) for row in expected]


# ---- names and ids -------------------------------------------------------------------------------------------------


def test_ids_are_checked_against_a_vocabulary(write):
    reading = read_events(
        write("0\t1\t2\t1\n3\t0\t0\t1\n0\t2\t0\t1\n-1\t0\t0\t1\n"), entities=ENTITIES, relations=RELATIONS
    )
    assert columns(reading) == [(0, 1, 2, 1)]
    assert reading.events.entities is ENTITIES
    assert lines_and_reasons(reading) == [
        (2, "unknown entity id 3, the vocabulary ends at 2"),
        (3, "unknown relation id 2, the vocabulary ends at 1"),
        (4, "unknown entity id -1, the vocabulary ends at 2"),
    ]


def test_names_are_checked_against_a_vocabulary(write):
    reading = read_events(write("Cid\tpays\tAnn\t1\nDan\tpays\tAnn\t1\n"), entities=ENTITIES, relations=RELATIONS)
    assert columns(reading) == [(2, 1, 0, 1)]
    assert lines_and_reasons(reading) == [(2, "unknown entity 'Dan'")]


def test_text_among_ids_is_rejected_when_there_is_a_vocabulary(write):
    reading = read_events(write("0\t0\t1\t1\n0\t0\tx\t1\n2\t0\t1\t1\n"), entities=ENTITIES, relations=RELATIONS)
    assert len(reading.events) == 2
    assert lines_and_reasons(reading) == [(2, "unknown entity 'x'")]


def test_codes_with_leading_zeros_are_names(write):
    reading = read_events(write("0\t010\t1\t1\n0\t10\t1\t2\n"))
    assert reading.events.relations.names == ("010", "10")


def test_numbers_with_wide_gaps_are_names(write):
    reading = read_events(write("7000000000\t0\t1\t1\n"))
    assert reading.events.entities.names == ("7000000000", "1")


# ---- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "step", "steps", "clock"),
    [
        (["0", "24", "72"], None, [0, 1, 3], Clock("integer", 0, 24)),
        (["0"], None, [0], Clock("integer", 0, 1)),
        (["0", "10", "29"], 10, [0, 1, 2], Clock("integer", 0, 10)),
        (["0", "10", "29"], "10", [0, 1, 2], Clock("integer", 0, 10)),
        (["7000000000", "7000000003"], None, [0, 3], Clock("integer", 7_000_000_000, 1)),
        (["2014-01-01", "2014-01-02", "2014-01-04"], None, [0, 1, 3], Clock("date", 1388534400, 86400)),
        (["2014-01-01"], None, [0], Clock("date", 1388534400, 86400)),
        (["2014-01-01T06:00"], None, [0], Clock("date", 1388556000, 3600)),
        (["20140101", "20140102", "20140201"], None, [0, 1, 31], Clock("date", 1388534400, 86400)),
        (["2014-01-01 00:30", "2014-01-02T01:00Z"], "day", [0, 1], Clock("date", 1388534400, 86400)),
        (["2014-01-01T00:30", "2014-01-01T03:59:59"], "hour", [0, 3], Clock("date", 1388534400, 3600)),
        (["2014-01-01", "2014-01-05", "2014-01-06"], "week", [0, 0, 1], Clock("date", 1388361600, 604800)),
        (["2014-01-01T00:20", "2014-01-01T00:45"], "15min", [0, 2], Clock("date", 1388535300, 900)),
        (["2014-01-01", "2014-01-09"], "2d", [0, 4], Clock("date", 1388534400, 172800)),
        (["2014-01-01T00:00", "2014-01-01T00:01"], 60, [0, 1], Clock("date", 1388534400, 60)),
        (["1960-01-01", "1960-01-03"], None, [0, 1], Clock("date", -315619200, 172800)),
        (["2014-01-01T06:00", "2014-01-02T06:00"], None, [0, 1], Clock("date", 1388534400, 86400)),
        (["2014-01-01T12:00", "2014-01-08T12:00"], None, [0, 1], Clock("date", 1388534400, 604800)),
        (["1960-01-01T06:00", "1960-01-03T06:00"], None, [0, 1], Clock("date", -315619200, 172800)),
    ],
)
def test_times_become_steps(write, times, step, steps, clock):
    reading = read_events(write("".join(f"0\t0\t1\t{time}\n" for time in times)), ReadOptions(step=step), strict=True)
    assert reading.events.clock == clock
    assert reading.events.step.tolist() == steps


def test_days_begin_at_midnight_whatever_the_hour_of_the_first_events(write):
    clock = read_events(write("0\t0\t1\t2014-01-01T06:00\n0\t0\t1\t2014-01-02T06:00\n")).events.clock
    assert [clock.step(f"2014-01-02{hour}") for hour in ("", "T00:00", "T06:00", "T23:00")] == [1, 1, 1, 1]
    assert clock.step("2014-01-03T05:00") == 2


def test_weeks_begin_on_monday(write):
    reading = read_events(write("0\t0\t1\t2014-01-05\n0\t0\t1\t2014-01-06\n"), ReadOptions(step="week"))
    assert [reading.events.clock.label(t) for t in (0, 1)] == ["2013-12-30", "2014-01-06"]


@pytest.mark.parametrize(
    ("time", "step"),
    [("3", "day"), ("3", 0), *(("2014-01-01", s) for s in ("fortnight", -1, "9" * 20 + "d", "9" * 5000 + "d", 10**17))],
)
def test_a_step_that_does_not_suit_the_times_is_a_settings_error(write, time, step):
    with pytest.raises(SettingsError):
        read_events(write(f"0\t0\t1\t{time}\n"), ReadOptions(step=step))


@pytest.mark.parametrize(
    ("times", "step", "steps", "clock"),
    [
        (["1388541600", "1388627000", "1388793600"], "day", [0, 1, 3], Clock("date", 1388534400, 86400)),
        (["1388534400", "1388966400"], "week", [0, 1], Clock("date", 1388361600, 604800)),
        (["1388534400", "1388966400"], 86400, [16071, 16076], Clock("integer", 0, 86400)),
        (["1388541600005", "1388793600005"], "day", [0, 3], Clock("date", 1388534400, 86400)),
    ],
)
def test_epoch_seconds_and_thousandths_take_steps_by_name(write, times, step, steps, clock):
    events = read_events(write("".join(f"0\t0\t1\t{time}\n" for time in times)), ReadOptions(step=step)).events
    assert (events.clock, events.step.tolist()) == (clock, steps)


@pytest.mark.parametrize(
    ("step", "message"),
    [("day", "at least 1, such as 86400 if they are seconds"), (0, "at least 1"), ("-1", "at least 1")],
)
def test_a_step_that_whole_numbers_cannot_take_comes_with_one_that_they_can(write, step, message):
    with pytest.raises(SettingsError, match=message):
        read_events(write("0\t0\t1\t3\n0\t0\t1\t1388541600\n"), ReadOptions(step=step))


def test_times_that_need_too_many_steps_are_an_error(write):
    with pytest.raises(DataError, match="give a longer step"):
        read_events(write("0\t0\t1\t0\n0\t0\t1\t1\n0\t0\t1\t99999999999\n"))


def test_dates_among_whole_numbers_are_rejected(write):
    reading = read_events(write("0\t0\t1\t1\n0\t0\t1\t2014-01-01\n0\t0\t1\t2\n"))
    assert lines_and_reasons(reading) == [(2, "the time '2014-01-01' is not a whole number as the others are")]


# ---- what is rejected ----------------------------------------------------------------------------------------------

GOOD = "Ann\tpays\tBob\t1\n"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("Ann\tpays\tBob", "expected 4 columns, found 3"),
        ("Ann\tpays\tBob\t1\t2\t3", "expected 4 columns, found 6"),
        ("Ann,pays,Bob,1", "expected 4 columns, found 1"),
        ("Ann\tpays\tBob\tsoon", "the time 'soon' is neither a whole number nor a date; write dates as 2024-01-31"),
        ("Ann\tpays\tBob\t-4", "the time -4 is negative"),
        ("Ann\tpays\tBob\t1.5", "the time '1.5' is neither a whole number nor a date; write dates as 2024-01-31"),
        (
            "Ann\tpays\tBob\t" + "9" * 5000,
            "the time '" + "9" * 40 + "' is neither a whole number nor a date; write dates as 2024-01-31",
        ),
        ("Ann\tpays\tBo\0b\t1", "the line holds a NUL byte"),
        (b"Ann\tpays\tBo\xffb\t1", "the line is not UTF-8"),
        ("A" * 100_001 + "\tpays\tBob\t1", "the line is longer than 100,000 characters"),
        ("A" * 5_000_000 + "\tpays\tBob\t1", "the line is longer than 100,000 characters"),
    ],
)
def test_a_bad_row_is_reported_with_its_line_and_the_others_are_read(write, bad, reason):
    raw = bad if isinstance(bad, bytes) else bad.encode()
    path = write(GOOD.encode() * 2 + b"\n" + raw + b"\n" + GOOD.encode())
    reading = read_events(path)
    assert len(reading.events) == 3
    assert lines_and_reasons(reading) == [(4, reason)]
    assert (reading.rejects.count, reading.rejects.total) == (1, 4)
    assert reading.rejects.sentence().startswith(f"1 of 4 rows was rejected, the first at {path}:4: {reason}.")
    assert len(reading.rejects.rows[0].text) <= 90
    with pytest.raises(DataError) as error:
        read_events(path, strict=True)
    assert str(error.value).startswith(f"{path}:4: {reason}")


def test_a_file_that_is_not_utf_8_is_told_once_with_the_remedy(write, tmp_path):
    rows = [f"{name},pays,Bob,{i}" for i, name in enumerate(["Łódź", "Ann", "Žižkov", "Cid"] * 10)]
    path = write("\n".join(["subject,relation,object,time", *rows]).encode("cp1250"), "e.csv")
    remedy = f"save it as CSV UTF-8, or convert it: iconv -f CP1252 -t UTF-8 {path} > utf8.csv (or -f CP1250)"
    said = f"{path} is not UTF-8 throughout, and 20 lines are left out for that: {remedy}."
    assert read_events(path).rejects.sentence().endswith(f"the line is not UTF-8. {said}")
    with pytest.warns(UserWarning, match=re.escape(said)):
        bm.load(path)
    outcome = bridgemem("data", "check", path)
    assert (outcome.code, outcome.out.count("the line is not UTF-8"), outcome.out.count(said)) == (2, 1, 1)
    for refused in (lambda: read_events(path, strict=True), lambda: mine_files([path], tmp_path / "out")):
        with pytest.raises(DataError, match=re.escape(f"{path}:2") + f".*{re.escape(remedy)}"):
            refused()


def test_other_rejected_rows_are_listed_next_to_lines_that_are_not_utf_8(write):
    path = write(b"subject,relation,object,time\nBo\xff,pays,Ann,1\nBo,pays,Ann,soon\nBo,pays,Ann,2\n", "e.csv")
    lines = bridgemem("data", "check", path).out.splitlines()
    assert "  ... and 1 more; --rejects FILE writes them to a file." in lines
    assert [line for line in lines if line.startswith(f"  {path}")] == [
        f"  {path}:3: the time 'soon' is neither a whole number nor a date; write dates as 2024-01-31"
    ]


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("e.xlsx", ("[Content_Types].xml", "xl/workbook.xml"), "an Excel workbook"),
        ("e.xls", bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600), "an Excel workbook"),
        ("e.ods", ("mimetype", "content.xml", "META-INF/manifest.xml"), "a spreadsheet"),
    ],
)
def test_a_spreadsheet_is_named_with_what_to_save(tmp_path, name, raw, kind):
    path = tmp_path / name
    if isinstance(raw, bytes):
        path.write_bytes(raw)
    else:
        with zipfile.ZipFile(path, "w") as file:
            for inside in raw:
                file.writestr(inside, "<x/>")
    with pytest.raises(DataError, match=f"is {kind}, which is not read: save its sheet of events as CSV UTF-8"):
        read_events(path)


@pytest.mark.parametrize("bad", ['"Ann,pays,Bob,1', 'Ann,"pa"ys,Bob,1'])
def test_quotes_that_do_not_close_are_rejected_on_their_own_line(write, bad):
    reading = read_events(write(f"s,r,o,t\nAnn,pays,Bob,1\n{bad}\nAnn,pays,Bob,2\n", "e.csv"))
    assert len(reading.events) == 2
    assert lines_and_reasons(reading) == [(3, "the line has a quote that is not closed or stands inside a field")]


def test_a_quoted_field_over_several_lines_is_one_rejected_row(write, monkeypatch):
    content = 's,r,o,t\n"Acme\nInc",visits,B,2024-01-01\nA,visits,B,2024-01-02\n'
    content += '"a\n\nb","c\n""d""\ne",B,1\nA,r,B,2024-01-03\n'
    for block in (text.BLOCK, 7):  # a field may also run from one block into the next
        monkeypatch.setattr(text, "BLOCK", block)
        reading = read_events(write(content, "e.csv"))
        assert named_rows(reading) == [("A", "visits", "B", "2024-01-02"), ("A", "r", "B", "2024-01-03")]
        assert lines_and_reasons(reading) == [
            (2, "a quoted field runs over lines 2 to 3, and a row is one line"),
            (5, "a quoted field runs over lines 5 to 9, and a row is one line"),
        ]
        assert reading.rejects.total == 4


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[st.text(alphabet='ab\n",', min_size=1, max_size=5)] * 3), min_size=1, max_size=8))
def test_of_any_well_written_csv_the_rows_of_one_line_are_read_and_no_others(tmp_path, rows):
    whole = [row for row in rows if not any("\n" in field for field in row)]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([("s", "r", "o", "t"), *((*row, 7) for row in [*rows, "xyz"])])
    path = tmp_path / "any.csv"
    path.write_text(written.getvalue())
    reading = read_events(path, ReadOptions(na=()))
    assert [row[:3] for row in named_rows(reading)] == [*whole, tuple("xyz")]
    assert (reading.rejects.count, reading.rejects.total) == (len(rows) - len(whole), len(rows) + 1)


def test_a_quote_that_closes_nowhere_near_costs_its_own_line_alone(write, monkeypatch):
    monkeypatch.setattr(text, "LONGEST_LINE", 200)
    slip, good = '"Ann,pays,Bob,1\n', "Ann,pays,Bob,2\n"
    for content in (slip + good * 500, good + slip + good * 3 + '"Bob, Jr.",pays,Ann,3\n' + good, good * 500 + slip):
        for block in (text.BLOCK, 64):
            monkeypatch.setattr(text, "BLOCK", block)
            reading = read_events(write("s,r,o,t\n" + content, "e.csv"))
            assert [reason for _, reason in lines_and_reasons(reading)] == [UNCLOSED]
            assert len(reading.events) == content.count("\n") - 1


@pytest.mark.parametrize("end", ['Inc",visits,B,3', '",visits,B,3', 'Inc",visits,"B",3'])
def test_the_end_of_a_field_that_is_too_long_is_no_event(write, monkeypatch, end):
    monkeypatch.setattr(text, "LONGEST_LINE", 200)
    content = 's,r,o,t\n"Acme\n' + "more of the note\n" * 50 + f"{end}\nAnn,pays,Bob,4\n"
    assert named_rows(read_events(write(content, "e.csv"))) == [("Ann", "pays", "Bob", "4")]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b'[{"subject": "A", "time": 1}]', "e.json", "is JSON, which is not read: give CSV"),
        (b'[\n {\n  "subject": "A", "time": 1\n}]', "e.json", "is JSON"),
        (b'{"subject": "A", "relation": "r", "object": "B", "time": 1}\n' * 3, "e.jsonl", "is JSON"),
        (b"subject,relation,object,time\rA,r,B,1\rA,r,B,2\r", "e.csv", "line ends of old Macs"),
        (b"A r B 2024-01-01\nB r A 2024-01-02\n", "e.txt", "one column only: separate its columns by tabs"),
        (b"", "e.tsv", "holds no events"),
        (b"\n \n", "e.tsv", "holds no events"),
        (b"subject\trelation\tobject\ttime\n", "e.tsv", "holds no events"),
        (b"a\tb\n", "e.tsv", "has no column for subject, relation, object, time; it has 'a', 'b'"),
        (
            b"subject,relation,object,when\nA,r,B,1\n",
            "e.csv",
            r"has no column for time; .*load\(.*--time-column",
        ),
        (b"A\tr\tB\tnever\n", "e.tsv", "1 of 1 row was rejected, the first at .*e.tsv:1: the time 'never'"),
        (b"\xff\xfeA\0", "e.tsv", "is UTF-16: save it as UTF-8"),
        (gzip.compress(b"0\t0\t1\t1\n" * 9, mtime=0)[:-9], "e.tsv.gz", "is cut short"),
        (gzip.compress(bytes(range(256)) * 99, mtime=0)[:300], "e.tsv.gz", "is cut short"),
        (gzip.compress(b"0\t0\t1\t1\n" * 9, mtime=0)[:20] + b"\xff" * 40, "e.tsv.gz", "damaged|cut short"),
        (b"0\t0\t1\t1\n", "e.tsv.gz", "is named as a gz but is none"),
        (b"", "e.tsv.gz", "is empty"),
        (b"\x1f\x8b", "e.tsv", "cut short|damaged"),
        (b"0\t0\t1\t1\n", "e.parquet", "cannot be read as a table"),
        (b"", "e.parquet", "cannot be read as a table"),
        (b"\x00" * 50, "e.tsv", "."),
    ],
)
def test_a_file_without_events_is_one_clear_sentence(write, content, name, message):
    path = write(content, name)
    with pytest.raises(DataError, match=message) as error:
        read_events(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none.tsv does not exist"):
        read_events(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="is a directory"):
        read_events(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        read_events(str(tmp_path / "none.parquet"))
    with pytest.raises(DataError, match="no file was given"):
        read_events([])


@pytest.mark.parametrize(("rows", "sentence"), [(1, "The one row was read."), (2000, "All 2,000 rows were read.")])
def test_the_report_of_a_clean_reading_counts_its_rows(write, rows, sentence):
    assert read_events(write("0\t0\t1\t1\n" * rows)).rejects.sentence() == sentence


def test_more_rejects_than_are_kept_are_still_counted(write):
    reading = read_events(write("0\t0\t1\tx\n0\t0\n" * 10 + "0\t0\t1\t1\n"), kept=3)
    assert reading.rejects.count == 20
    assert [row.line for row in reading.rejects.rows] == [1, 2, 3]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [b"0\t1\t2\t3", b"A,b,C,2014-01-01", b'"A,b', b"s,r,o,t", b"\xef\xbb\xbf", b"\r", b"\0", b""]
            ),
            st.binary(max_size=20),
            st.text(alphabet='01\t,;|" -T:é', max_size=20).map(str.encode),
        ),
        max_size=8,
    )
)
def test_any_bytes_give_events_and_rejects_or_one_typed_error(tmp_path, lines):
    path = tmp_path / "any.csv"
    path.write_bytes(b"\n".join(lines))
    try:
        reading = read_events(path)
    except BridgeMemError:
        return
    assert len(reading.events) + reading.rejects.count + sum(reading.dropped.values()) == reading.rejects.total
    assert len(reading.rejects.rows) == reading.rejects.count
    assert reading.events.step.min() >= 0


# ---- tables --------------------------------------------------------------------------------------------------------

TABLE = {"subject": ["Ann", "Bob", "Ann"], "relation": ["pays", "greets", "pays"], "object": ["Bob", "Ann", None]}


def test_a_dict_of_columns_is_read(write):
    reading = read_events(TABLE | {"time": [2.0, 1, 3], "more": [0, 0, 0]})
    assert named_rows(reading) == [("Bob", "greets", "Ann", "1"), ("Ann", "pays", "Bob", "2")]
    assert (reading.rejects.count, reading.dropped) == (0, {"without an object (empty)": 1})


def test_ids_that_do_not_occur_are_not_numbered():
    rows = [(5, 2042, 900, 0), (900, 36, 5, 1), (7, 36, 5, 2)]
    events = read_events(
        dict(zip(("subject", "relation", "object", "time"), zip(*rows, strict=True), strict=True))
    ).events
    assert events.relations.names == ("36", "2042")
    assert events.entities.names == ("5", "7", "900")
    assert events.relation.tolist() == [1, 0, 0]
    assert events.subject.tolist() == [0, 2, 1]
    # a number is then a name, and never the place of another
    assert [events.relations.id(name) for name in ("36", 36, "2042", 2042)] == [0, 0, 1, 1]
    for unknown in ("1", 1, 0):
        with pytest.raises(NotFoundError):
            events.relations.id(unknown)


def test_a_dict_of_arrays_is_read_as_ids():
    reading = read_events({name: np.arange(4) for name in ("subject", "relation", "object", "time")})
    assert columns(reading) == [(i, i, i, i) for i in range(4)]


@pytest.mark.parametrize(
    "table",
    [TABLE, TABLE | {"time": [1, 2]}, TABLE | {"time": [None, None, None]}, 7, object(), {}],
)
def test_a_table_without_events_is_a_data_error(table):
    with pytest.raises(DataError):
        read_events(table)


@pytest.mark.parametrize(
    ("kind", "times", "labels"),
    [
        ("BIGINT", "i", ["0", "1"]),
        ("DOUBLE", "i", ["0", "1"]),
        ("DATE", "DATE '2014-01-01' + i::INT", ["2014-01-01", "2014-01-02"]),
        (
            "TIMESTAMP",
            "TIMESTAMP '2014-01-01 00:00:00' + INTERVAL (i) HOUR",
            ["2014-01-01 00:00:00", "2014-01-01 01:00:00"],
        ),
    ],
)
def test_parquet_is_read_in_row_order(tmp_path, kind, times, labels):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "events.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT ({times})::{kind} AS time, 'e' || i AS source, 'pays' AS rel, "
            f"CASE WHEN i = 2 THEN NULL ELSE 'e' || (i + 1) END AS target FROM range(130000) t(i)) TO '{path}'"
        )
    reading = read_events(path)
    assert len(reading.events) == 129_999
    assert (reading.rejects.count, reading.dropped) == (0, {"without an object (empty)": 1})
    assert [reading.events.clock.label(t) for t in (0, 1)] == labels
    assert reading.events.entities.names[:3] == ("e0", "e1", "e2")
    assert (np.diff(reading.events.subject) >= 0).all()


def test_parquet_without_a_column_says_which(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS subject, 2 AS relation, 3 AS object) TO '{tmp_path / 'e.parquet'}'")
    with pytest.raises(DataError, match="no column for time"):
        read_events(tmp_path / "e.parquet")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames_are_read(library):
    pytest.importorskip("duckdb")
    module = pytest.importorskip(library)
    if library == "polars":
        pytest.importorskip("pyarrow")
    table = TABLE | {"time": [2, 1, 3]}
    frame = module.table(table) if library == "pyarrow" else module.DataFrame(table)
    reading = read_events(frame)
    assert named_rows(reading) == [("Bob", "greets", "Ann", "1"), ("Ann", "pays", "Bob", "2")]
    assert (reading.rejects.count, reading.dropped) == (0, {"without an object (empty)": 1})


def test_without_duckdb_the_refusal_says_what_to_install(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DataError, match="pip install duckdb"):
        read_events(write(GOOD))
    assert read_vocabulary(write("Ann\t0\n"), "entity").names == ("Ann",)


def test_rows_come_from_the_file_itself_unless_a_line_is_no_row(write, monkeypatch):
    read, made = [], text.Dialect.sql
    monkeypatch.setattr(text.Dialect, "sql", lambda self, path, end: read.append(path) or made(self, path, end))
    sound = write('\ufeffs,r,o,t\r\n"A, b",r,B,1\r\n\r\nA,r,B,2\r\n', "sound [1].csv")
    assert [row[:3] for row in named_rows(read_events(sound))] == [("A, b", "r", "B"), ("A", "r", "B")]
    packed, bad = write(gzip.compress(b"A\tr\tB\t1\n"), "e.gz"), write("A\tr\tB\t1\nA\tr\n")
    for path in (packed, bad):
        assert len(read_events(path).events) == 1
    assert [path == sound for path in read] == [True, False, False]
    assert not any(path.exists() for path in read[1:])


@pytest.mark.parametrize("separator", [",", "\t"])
def test_line_ends_of_both_kinds_and_odd_letters_are_no_trouble(write, separator):
    rows = [("A\rb", "r", "B", "1"), ("\x01A", "r\x01\x01", "B", "2"), ("NULL", "r", "é", "3")]
    written = "".join(separator.join(row) + end for row, end in zip(rows, ("\n", "\r\n", "\n"), strict=True))
    assert named_rows(read_events(write(written), ReadOptions(na=()), strict=True)) == rows


# ---- vocabularies --------------------------------------------------------------------------------------------------


def test_a_vocabulary_may_be_in_any_order_with_spaces_in_its_names(write):
    vocabulary = read_vocabulary(write("Kim Jong-Un\t1\r\nFrançois (a\tb)\t0\r\n\r\n"), "entity")
    assert vocabulary == Vocabulary("entity", ("François (a\tb)", "Kim Jong-Un"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no names"),
        (b"A\t0\nB\t2\n", "must be 0..1"),
        (b"A\t0\nB\t0\n", ":2: the id 0 is given twice"),
        (b"A\t0\nB 1\n", ":2: expected a name"),
        (b"A\t0\nB\tone\n", ":2: expected a name"),
        (b"A\t-1\nB\t0\n", "must be 0..1"),
        (b"A\t0\n\xff\t1\n", ":2: expected a name in UTF-8"),
    ],
)
def test_a_broken_vocabulary_is_one_clear_sentence(write, content, message):
    with pytest.raises(DataError, match=message):
        read_vocabulary(write(content), "entity")


def test_an_empty_name_is_no_folder():
    with pytest.raises(DataError, match="a name of a file is empty; name a CSV"):
        find_files([" "])

"""Published event files: each layout is told, read by its own columns, and left with a reason for every row."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.layouts import GDELT_1, GDELT_2, LAYOUTS, iso
from bridgemem.events.readers.read import ReadOptions, read_events
from builders import named_rows
from commands import TINY_READER, bridgemem, left_in, planted_rows


def headings_of(text: str) -> list[str]:
    return text.split(",")


ICEWS = headings_of(
    "Event ID,Event Date,Source Name,Source Sectors,Source Country,Event Text,CAMEO Code,Intensity,Target Name,"
    "Target Sectors,Target Country,Story ID,Sentence Number,Publisher,City,District,Province,Country,Latitude,Longitude"
)
POLECAT = headings_of(
    "Event ID,Event Date,Event Type,Event Mode,Intensity,Quad Code,Contexts,Actor Name,Actor Country,Actor COW,"
    "Primary Actor Sector,Actor Sectors,Actor Title,Actor Name Raw,Wikipedia Actor ID,Recipient Name,Recipient Country,"
    "Recipient COW,Primary Recipient Sector,Recipient Sectors,Recipient Title,Recipient Name Raw,"
    "Wikipedia Recipient ID,Placename,City,District,Province,Country,Latitude,Longitude,GeoNames ID,Raw Placename,"
    "Feature Type,Source,Publication Date,Story People,Story Organizations,Story Locations,Language,Version"
)
ACLED = headings_of(
    "event_id_cnty,event_date,year,time_precision,disorder_type,event_type,sub_event_type,actor1,assoc_actor_1,inter1,"
    "actor2,assoc_actor_2,inter2,interaction,civilian_targeting,iso,region,country,admin1,admin2,admin3,location,"
    "latitude,longitude,geo_precision,source,source_scale,notes,fatalities,tags,timestamp"
)

Row = dict[str, str]


def lines(headings: list[str] | tuple[str, ...], rows: list[Row], separator: str = "\t", header: bool = True) -> str:
    """A file in a layout; what a row does not say is empty."""
    text = io.StringIO()
    quoting = csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE
    quotes = '"' if separator == "," else None
    writer = csv.writer(text, delimiter=separator, lineterminator="\n", quoting=quoting, quotechar=quotes)
    writer.writerows([headings] * header + [[row.get(heading, "") for heading in headings] for row in rows])
    return text.getvalue()


def gdelt(first: str, code: str, second: str, day: str = "20150218", added: str = "20150219001500") -> Row:
    return {
        "GlobalEventID": "410412347",
        "SQLDATE": day,
        "Actor1Code": first[:3],
        "Actor1Name": first,
        "Actor2Code": second[:3],
        "Actor2Name": second,
        "EventCode": code,
        "EventBaseCode": code[:3],
        "EventRootCode": code[:2],
        "DATEADDED": added,
        "SOURCEURL": "https://example.org/a",
    }


def icews(first: str, text: str, second: str, day: str = "2018-10-01") -> Row:
    return {
        "Event ID": "30480152",
        "Event Date": day,
        "Source Name": first,
        "Source Country": first,
        "Event Text": text,
        "CAMEO Code": "042",
        "Intensity": "1.9",
        "Target Name": second,
    }


def polecat(first: str, kind: str, second: str, day: str = "2023-01-02") -> Row:
    return {
        "Event ID": "20230102-1-2-3-4-AGREE",
        "Event Date": day,
        "Event Type": kind,
        "Event Mode": "meet",
        "Actor Name": first,
        "Recipient Name": second,
    }


def acled(first: str, kind: str, second: str, day: str = "01 January 2023") -> Row:
    return {
        "event_id_cnty": "YEM1",
        "event_date": day,
        "event_type": "Battles",
        "sub_event_type": kind,
        "actor1": first,
        "actor2": second,
        "notes": "In the city, shots; then, none.",
    }


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes, name: str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def zipped(**files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


GDELT_FILE = lines(GDELT_2, [gdelt("IRAN", "036", "RUSSIA"), gdelt("RUSSIA", "190", "", "20150219")], header=False)
ICEWS_FILE = lines(ICEWS, [icews("Iran", "Make a visit", "Oman"), icews("Oman", "Consult", "", "2018-10-02")])
POLECAT_FILE = lines(POLECAT, [polecat("Iran", "CONSULT", "Oman"), polecat("Oman", "AGREE", "None", "2023-01-03")])
ACLED_FILE = lines(ACLED, [acled("Army, 1st", "Armed clash", "Rebels"), acled("Rioters", "Mob", "")], ",")
FILES = {"gdelt": GDELT_FILE, "icews": ICEWS_FILE, "polecat": POLECAT_FILE, "acled": ACLED_FILE}


# ---- the four layouts ----------------------------------------------------------------------------------------------


def test_gdelt_files_have_61_columns_and_the_daily_ones_58():
    assert (len(GDELT_2), len(GDELT_1)) == (61, 58)
    places = {"Actor1Name": 6, "Actor2Name": 16, "EventCode": 26, "EventRootCode": 28, "DATEADDED": 59, "SOURCEURL": 60}
    assert {heading: GDELT_2.index(heading) for heading in places} == places


@pytest.mark.parametrize("format_", ["auto", "own"])
@pytest.mark.parametrize(
    ("layout", "event"),
    [
        ("gdelt", ("IRAN", "036", "RUSSIA", "2015-02-18")),
        ("icews", ("Iran", "Make a visit", "Oman", "2018-10-01")),
        ("polecat", ("Iran", "CONSULT", "Oman", "2023-01-02")),
        ("acled", ("Army, 1st", "Armed clash", "Rebels", "2023-01-01")),
    ],
)
def test_a_layout_is_told_and_the_row_without_a_second_party_dropped(write, layout, event, format_):
    path = write(FILES[layout], "events.txt")
    reading = read_events(path, ReadOptions(format=layout if format_ == "own" else "auto"), strict=True)
    assert named_rows(reading) == [event]
    assert reading.format == layout
    assert reading.dropped == {"without a second party": 1}
    assert reading.sentence() == "1 of 2 rows was read. 1 row without a second party was left out."
    assert reading.events.entities.names == (event[0], event[2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gz_and_zip_hold_the_same_events(write, layout):
    plain = read_events(write(FILES[layout], "events.CSV"))
    packed = read_events(write(gzip.compress(FILES[layout].encode()), "events.txt.gz"))
    archive = read_events(write(zipped(**{"events.CSV": FILES[layout]}), "events.CSV.zip"))
    assert named_rows(plain) == named_rows(packed) == named_rows(archive)


def test_a_daily_gdelt_file_is_told_by_its_width_even_after_a_broken_line(write):
    text = lines(GDELT_1, [gdelt("IRAN", "036", "RUSSIA", added="20150219")] * 3, header=False)
    reading = read_events(write("cut\toff\n" + text, "20150219.export.CSV"))
    assert len(reading.events) == 3
    assert [(row.line, row.reason) for row in reading.rejects.rows] == [(1, "expected 58 columns, found 2")]


def test_a_gdelt_table_with_headings_needs_not_all_columns(write):
    path = write("GLOBALEVENTID,SQLDATE,Actor1Code,Actor2Code,EventCode\n1,20150218,IRN,RUS,036\n", "bq.csv")
    assert named_rows(read_events(path)) == [("IRN", "036", "RUS", "2015-02-18")]
    bare = write("SQLDATE,Actor1Name,Actor2Name,EventCode\n20150218,IRAN,RUSSIA,036\n", "bare.csv")
    assert named_rows(read_events(bare, ReadOptions(format="gdelt"))) == [("IRAN", "036", "RUSSIA", "2015-02-18")]


@pytest.mark.parametrize(
    ("columns", "event"),
    [
        (ReadOptions(relation="EventRootCode"), ("IRAN", "03", "RUSSIA", "2015-02-18")),
        (ReadOptions(relation="EventBaseCode"), ("IRAN", "036", "RUSSIA", "2015-02-18")),
        (ReadOptions("Actor1Code", "", "Actor2Code"), ("IRA", "0361", "RUS", "2015-02-18")),
        (ReadOptions(time="DATEADDED"), ("IRAN", "0361", "RUSSIA", "2015-02-19")),
    ],
)
def test_a_given_heading_replaces_the_one_of_the_layout(write, columns, event):
    path = write(lines(GDELT_2, [gdelt("IRAN", "0361", "RUSSIA")], header=False), "g.CSV")
    assert named_rows(read_events(path, columns)) == [event]


def test_codes_are_names_even_where_all_look_like_ids(write):
    path = write(lines(GDELT_2, [gdelt("4", "190", "7"), gdelt("7", "173", "4")], header=False), "g.CSV")
    reading = read_events(path)
    assert reading.events.relations.names == ("190", "173")
    assert reading.events.entities.names == ("4", "7")
    known = read_events(
        path, entities=Vocabulary("entity", ("7", "4")), relations=Vocabulary("relation", ("173", "190"))
    )
    assert known.events.relation.tolist() == [1, 0]
    assert known.events.subject.tolist() == [1, 0]


def test_a_row_with_several_parties_is_rejected_once(write):
    rows = [polecat("A;B", "AID", "C;D;E", day) for day in ("2023-01-02", "soon", "later")]
    reading = read_events(write(lines(POLECAT, rows), "p.txt"))
    assert (len(reading.events), reading.rejects.count, reading.rejects.total) == (6, 2, 3)
    assert [row.line for row in reading.rejects.rows] == [3, 4]


def test_several_parties_of_a_polecat_row_become_pairs(write):
    rows = [polecat("Iran; Iraq", "CONSULT", "Oman;Iran; None"), polecat("Iran;Iran", "AID", "Iran")]
    reading = read_events(write(lines(POLECAT, rows), "ngecEvents.txt"), strict=True)
    assert [event[:3] for event in named_rows(reading)] == [
        ("Iran", "CONSULT", "Oman"),
        ("Iraq", "CONSULT", "Oman"),
        ("Iraq", "CONSULT", "Iran"),
        ("Iran", "AID", "Iran"),
    ]


def test_every_reason_to_drop_a_row_is_counted(write):
    crowd = ";".join(f"P{i}" for i in range(101))
    sides = [("A", "B"), ("A", "None"), ("None", ""), ("", "B"), (crowd, "None"), ("A", "")]
    path = write(lines(POLECAT, [polecat(first, "AID", second) for first, second in sides]), "p.txt")
    reading = read_events(path)
    assert reading.dropped == {
        "without a second party": 3,
        "without a first party": 1,
        "without any party": 1,
    }
    assert len(reading.events) == reading.rejects.total - sum(reading.dropped.values()) == 1


@pytest.mark.parametrize(("first", "second", "events"), [(10, 10, 100), (1, 100, 100), (1, 101, 0), (51, 2, 0)])
def test_a_row_that_would_become_too_many_events_is_rejected(write, first, second, events):
    sides = [";".join(f"{side}{i}" for i in range(size)) for side, size in (("P", first), ("Q", second))]
    rows = [polecat("A", "AID", "B"), polecat(sides[0], "AID", sides[1]), polecat("A", "soon", "B", "soon")]
    reading = read_events(write(lines(POLECAT, rows), "p.txt"))
    assert len(reading.events) == 1 + events
    assert (reading.rejects.total, not reading.dropped) == (3, True)
    assert [row.line for row in reading.rejects.rows] == ([4] if events else [3, 4])
    if not events:
        assert reading.rejects.rows[0].reason.startswith(f"the row names {first * second} pairs of parties")
        with pytest.raises(DataError, match=r"p.txt:3: the row names"):
            read_events(write(lines(POLECAT, rows), "p.txt"), strict=True)


def test_a_relation_that_is_missing_and_a_day_that_is_none_are_rejected(write):
    rows = [
        polecat("A", "AID", "B"),
        polecat("A", "None", "B"),
        polecat("A", "AID", "B", "20231301"),
        polecat("A", "AID", "B", "None"),
    ]
    reading = read_events(write(lines(POLECAT, rows), "p.txt"))
    assert [(row.line, row.reason) for row in reading.rejects.rows] == [
        (3, "the relation is empty"),
        (4, "the time '2023-13-01' is neither a whole number nor a date; write dates as 2024-01-31"),
        (5, "the time 'None' is neither a whole number nor a date; write dates as 2024-01-31"),
    ]


def test_quotes_that_an_archive_puts_around_every_text_are_not_part_of_the_names(write):
    text = "\n".join("\t".join(f'"{field}"' for field in line.split("\t")) for line in ICEWS_FILE.splitlines())
    reading = read_events(write(text, "events.tab"))
    assert named_rows(reading) == [("Iran", "Make a visit", "Oman", "2018-10-01")]
    assert reading.columns["relation"] == "Event Text"


def test_headings_written_another_way_are_the_same(write):
    text = ICEWS_FILE.replace("Event Date", "Event.Date").replace("Source Name", "source_name")
    assert read_events(write(text, "events.tab")).format == "icews"


def test_parquet_in_a_published_layout_is_told(tmp_path: Path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "acled.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT 'YEM1' AS event_id_cnty, DATE '2023-01-01' + i::INT AS event_date, 'Battles' AS event_type, "
            "'Army' AS actor1, CASE WHEN i = 1 THEN NULL ELSE 'Rebels' END AS actor2 FROM range(3) t(i)) "
            f"TO '{path}'"
        )
    reading = read_events(path)
    assert named_rows(reading) == [
        ("Army", "Battles", "Rebels", "2023-01-01"),
        ("Army", "Battles", "Rebels", "2023-01-03"),
    ]
    assert reading.dropped == {"without a second party": 1}


# ---- times and steps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20230131", "2023-01-31"),
        ("20230131064500", "2023-01-31T06:45:00"),
        ("31 January 2023", "2023-01-31"),
        ("1 may 2023", "2023-05-01"),
        ("31-Jan-2023", "2023-01-31"),
        (' "2023-01-31" ', "2023-01-31"),
        ("31 Nivose 2023", "31 Nivose 2023"),
        ("2023", "2023"),
        ("", ""),
    ],
)
def test_days_as_published_become_iso_dates(text, expected):
    assert iso(text) == expected


@pytest.mark.parametrize(
    ("step", "labels"),
    [
        (None, ["2015-02-18", "2015-02-18", "2015-02-25"]),
        ("week", ["2015-02-18", "2015-02-18", "2015-02-25"]),
        ("hour", ["2015-02-18 23:00:00", "2015-02-19 00:00:00", "2015-02-25 10:00:00"]),
        ("15min", ["2015-02-18 23:45:00", "2015-02-19 00:15:00", "2015-02-25 10:30:00"]),
    ],
)
def test_gdelt_steps_shorter_than_a_day_come_from_the_time_of_adding(write, step, labels):
    moments = [("20150218", "20150218234500"), ("20150218", "20150219001500"), ("20150225", "20150225103000")]
    rows = [gdelt("A", "010", "B", day, added) for day, added in moments]
    reading = read_events(write(lines(GDELT_2, rows, header=False), "g.CSV"), ReadOptions(step=step))
    assert [event[3] for event in named_rows(reading)] == labels
    assert reading.columns["time"] == ("DATEADDED" if step in ("hour", "15min") else "SQLDATE")


def test_both_ways_acled_writes_a_day_meet_in_one_log(write):
    old, new = acled("A", "Attack", "B", "02 January 2023"), acled("A", "Attack", "B", "2023-01-05")
    paths = [write(lines(ACLED, [row], ","), f"{i}.csv") for i, row in enumerate((old, new))]
    assert [event[3] for event in named_rows(read_events(paths))] == ["2023-01-02", "2023-01-05"]


@pytest.mark.parametrize("layout", ["icews", "polecat", "acled"])
def test_a_step_shorter_than_the_days_of_a_file_is_refused(write, layout):
    with pytest.raises(SettingsError, match="too short a step"):
        read_events(write(FILES[layout], "e.txt"), ReadOptions(step="hour"))


@pytest.mark.parametrize("added", ["20150219", ""])
@pytest.mark.parametrize("headings", [GDELT_1, GDELT_1[:-1]])
def test_a_gdelt_file_of_version_1_has_days_only(write, headings, added):
    text = lines(headings, [gdelt("IRAN", "036", "RUSSIA", added=added)] * 3, header=False)
    with pytest.raises(SettingsError, match="too short a step for gdelt files that have days only"):
        read_events(write(text, "19790101.CSV"), ReadOptions(step="hour"))


def test_a_gdelt_file_that_was_added_at_midnight_has_a_time_of_day(write):
    text = lines(GDELT_2, [gdelt("IRAN", "036", "RUSSIA", added="20150219000000")], header=False)
    assert named_rows(read_events(write(text, "e.CSV"), ReadOptions(step="hour")))[0][3] == "2015-02-19 00:00:00"


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "options", "phrase"),
    [
        (GDELT_FILE, {"format": "gdlet"}, "'gdlet' is not a format"),
        (GDELT_FILE, {"format": "plain"}, "no column for subject"),
        (ACLED_FILE, {"format": "icews"}, "read as icews, has no column for Source Name"),
        ("1\t20150218\t3\t4\n", {"format": "gdelt"}, "has 4 columns, and a gdelt file of events has 61, 58, 57"),
        (GDELT_FILE, {"relation": "Deed"}, "no column for Deed"),
        (
            ICEWS_FILE.replace("Oman", ""),
            {},
            "no row of .* is an event between two parties: 1 row without a second party and 1",
        ),
        ("\n".join(ICEWS_FILE.splitlines()[:1]), {}, "holds no events"),
        (ICEWS_FILE.replace("2018", "soon"), {}, "neither a whole number nor a date"),
        (zipped(a=GDELT_FILE, b=GDELT_FILE), {}, "is a zip of 2 files"),
        (zipped(a=GDELT_FILE)[:-30], {}, "cannot be unpacked"),
        (zipped(a=GDELT_FILE)[:60] + b"\0" * 20 + zipped(a=GDELT_FILE)[80:], {}, "damaged"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(write, content, options, phrase):
    path = write(content, "events.txt")
    with pytest.raises((DataError, SettingsError), match=phrase) as error:
        read_events(path, ReadOptions(**options))
    assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), layout=st.sampled_from([*LAYOUTS]), as_zip=st.booleans())
def test_spoilt_files_are_read_or_refused_and_nothing_else(write, data, layout, as_zip):
    raw = bytearray(zipped(a=FILES[layout]) if as_zip else FILES[layout].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(1, len(raw)))] if data.draw(st.booleans()) else raw
    try:
        reading = read_events(write(bytes(raw), "spoilt"))
    except DataError:
        return
    assert len(reading.events) + reading.rejects.count + sum(reading.dropped.values()) >= reading.rejects.total


def test_files_of_two_layouts_are_not_one_log(write):
    paths = [write(ICEWS_FILE, "i.tab"), write(ACLED_FILE, "a.csv")]
    with pytest.raises(DataError, match=r"i\.tab is in the icews format and .*a\.csv in the acled one"):
        read_events(paths)


def test_only_broken_rows_and_rows_without_a_party_are_refused_with_the_first_reason(write):
    path = write(lines(ICEWS, [icews("Oman", "Consult", "")]) + "cut\toff\n", "i.tab")
    with pytest.raises(DataError, match="expected 20 columns, found 2"):
        read_events(path)


# ---- the command ---------------------------------------------------------------------------------------------------


def planted(layout: str) -> str:
    """The planted events of the command tests, written in a layout."""
    rows = planted_rows()
    if layout == "gdelt":
        codes = {name: f"0{i}0" for i, name in enumerate(sorted({row[1] for row in rows}))}
        noon = [(a, codes[r], b, datetime.fromisoformat(day) + timedelta(hours=12)) for a, r, b, day in rows]
        events = [gdelt(a, r, b, f"{t:%Y%m%d}", f"{t:%Y%m%d%H%M%S}") for a, r, b, t in noon]
        return lines(GDELT_2, events, header=False)
    if layout == "acled":
        return lines(ACLED, [acled(a, r, b, f"{date.fromisoformat(day):%d %B %Y}") for a, r, b, day in rows], ",")
    make, headings = (icews, ICEWS) if layout == "icews" else (polecat, POLECAT)
    return lines(headings, [make(*row) for row in rows])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_import_keeps_the_planted_events_of_every_layout(write, tmp_path, layout):
    path = write(gzip.compress(planted(layout).encode()), "events.gz")
    found = bridgemem("data", "import", path, "-o", tmp_path / "e.npz", "--json").json
    assert (found["format"], found["events"], found["rejected"], found["dropped"]) == (layout, 600, 0, {})
    assert found["splits"]["train"] > found["splits"]["test"] > 0
    stats = bridgemem("data", "stats", tmp_path / "e.npz", "--json").json
    assert (stats["entities"], stats["relations"], stats["steps"]) == (12, 5, 40)
    assert (stats["first"], stats["last"]) == ("2024-01-01", "2024-02-09")


def test_import_says_the_layout_and_what_was_dropped(write, tmp_path):
    alone = lines(ACLED, [acled("Protesters", "Peaceful protest", "")] * 3, ",").split("\n", 1)[1]
    path = write(planted("acled") + alone, "acled.csv")
    outcome = bridgemem(
        "data", "import", path, "-o", tmp_path / "e.npz", "--relation-column", "event_type", "--step", "week"
    )
    assert outcome.code == 0
    first, second, third, last = outcome.out.splitlines()
    assert (
        first
        == "Read as acled: subject from actor1, relation from event_type, object from actor2, time from event_date."
    )
    assert second == "600 of 603 rows were read. 3 rows without a second party were left out."
    assert third == "A step is 1 week."
    assert last.startswith("Wrote ")


def test_an_imported_file_is_fitted_on_its_chronological_split(write, tmp_path):
    packed, run = tmp_path / "e.npz", tmp_path / "run"
    path = write(planted("gdelt"), "20240101.export.CSV")
    assert bridgemem("data", "import", path, "-o", packed, "--format", "gdelt").code == 0
    fitted = bridgemem("fit", "-d", packed, "-b", "recurrence", "-o", run, *TINY_READER)
    assert fitted.code == 0, fitted.err
    assert run.is_dir()


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (("--format", "csv"), "'csv' is not a format"),
        (("--format", "polecat"), "read as polecat, has no column for Actor Name"),
        (("--step", "hour"), "too short a step for icews files"),
        (("--subject-column", "Whom"), "no column for Whom"),
    ],
)
def test_bad_options_are_refused_and_nothing_is_written(write, tmp_path, options, phrase):
    path = write(ICEWS_FILE, "i.tab")
    assert phrase in bridgemem("data", "import", path, "-o", tmp_path / "e.npz", *options).refused()
    assert left_in(tmp_path) == ["i.tab"]

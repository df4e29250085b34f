"""What, with whom, whether and when from the command line, and how they are measured there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bridgemem.cli.schemas import document
from bridgemem.errors import DataError
from bridgemem.forecaster import Forecaster
from commands import bridgemem, write_rows

pytest_plugins = ("small_runs",)


@pytest.fixture
def run(recurrence_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recurrence_run, tmp_path / "run"))


def test_two_parties_without_a_relation_ask_what(recurrence_run: Path) -> None:
    found = bridgemem("forecast", recurrence_run, "--subject", "Arvan", "--object", "Belmor", "--top", "3")
    assert found.code == 0, found.err
    assert "(Arvan, anything, Belmor)" in found.out
    assert "p_event of any event between the two" in found.out
    assert found.out.count("->") == 3


def test_one_party_alone_asks_for_partners(recurrence_run: Path) -> None:
    found = bridgemem("forecast", recurrence_run, "--subject", "Arvan", "--horizon", "7", "--json")
    made = json.loads(found.out)
    document("forecast").validate_python(made)
    assert made["horizon"] == 7
    assert [c["rank"] for c in made["candidates"]] == list(range(1, len(made["candidates"]) + 1))
    assert made["relation"] is None
    assert made["object"] is None


def test_all_three_ask_whether(recurrence_run: Path) -> None:
    asked = ("--subject", "Arvan", "--relation", "visit", "--object", "Belmor")
    found = bridgemem("forecast", recurrence_run, *asked, "--horizon", "5")
    assert found.code == 0, found.err
    assert "Within 5 steps:" in found.out
    made = json.loads(bridgemem("forecast", recurrence_run, *asked, "--horizon", "5", "--json").out)
    document("forecast").validate_python(made)
    assert {one["steps"] for one in made["within"]} >= {1, 5, 7}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "ask with --subject or --object"),
        (("--subject", "Arvan", "--object", "Nobody"), "no entity is called 'Nobody'"),
        (("--subject", "Arvan", "--object", "Belmor", "--horizon", "0"), "horizon must be at least 1"),
        (("--subject", "Arvan", "--object", "Belmor", "--at", "1990-01-01"), "lies before the data set begins"),
        (("--subject", "Arvan", "--horizon", "9999999"), "lie too far ahead"),
    ],
    ids=["nothing", "unknown", "no-steps", "before", "too-far"],
)
def test_bad_queries_are_one_sentence(recurrence_run: Path, options: tuple[str, ...], said: str) -> None:
    found = bridgemem("forecast", recurrence_run, *options)
    assert found.code == 2
    assert said in found.err
    assert len(found.err.strip().splitlines()) == 1


def test_what_is_measured_next_to_plain_rules(run: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    found = bridgemem("evaluate", run, "--query", "what", "--records", records, "-q")
    assert found.code == 0, found.err
    assert "most frequent of the pair" in found.out
    assert "relation head" in found.out
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert {line["method"] for line in lines} == {f"what:{n}" for n in ("head", "overall", "pair", "recent", "object")}
    again = bridgemem("evaluate", run, "--query", "what", "--records", records, "--json")
    document("evaluate").validate_python(json.loads(again.out))
    assert len(records.read_text().splitlines()) == len(lines)
    assert (run / "metrics.what.json").is_file()


def test_whether_is_measured_over_the_split(run: Path, tmp_path: Path) -> None:
    records = tmp_path / "occurrence.jsonl"
    found = bridgemem("evaluate", run, "--query", "whether", "--horizon", "2", "--records", records, "-q")
    assert found.code == 0, found.err
    assert "seen pair interacts" in found.out
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["pair", "triple", "role_relation"]
    assert all(0 <= line["brier"] <= 1 and line["horizon"] == 2 for line in lines)
    made = bridgemem("evaluate", run, "--query", "whether", "--horizon", "2", "--json")
    document("evaluate").validate_python(json.loads(made.out))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--query", "why"), "query is who, what or whether"),
        (("--query", "what", "--horizon", "3"), "--horizon is for who and whether"),
        (("--query", "what", "--workers", "2"), "are for --query who"),
        (("--query", "whether", "--horizon", "500"), "fewer than the horizon"),
    ],
    ids=["unknown", "what-horizon", "workers", "too-long"],
)
def test_what_cannot_be_measured_is_refused(recurrence_run: Path, options: tuple[str, ...], said: str) -> None:
    found = bridgemem("evaluate", recurrence_run, *options)
    assert found.code == 2
    assert said in found.err


def test_who_within_a_horizon_also_says_whether(recurrence_run: Path) -> None:
    asked = ("forecast", recurrence_run, "--subject", "Arvan", "--relation", "visit")
    found = bridgemem(*asked, "--horizon", "3")
    assert "with anybody within 3 steps." in found.out
    made = json.loads(bridgemem(*asked, "--horizon", "3", "--json").out)
    assert 0 < made["p_event"] <= 1
    assert json.loads(bridgemem(*asked, "--json").out)["p_event"] is None


@pytest.mark.parametrize(
    "asked",
    [
        ("--subject", "Arvan", "--relation", "visit"),
        ("--subject", "Arvan", "--object", "Kel"),
        ("--subject", "Arvan"),
        ("--subject", "Arvan", "--relation", "visit", "--object", "Kel"),
    ],
    ids=["who", "what", "partners", "whether"],
)
def test_assumed_events_change_the_answer_and_are_not_kept(
    recurrence_run: Path, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    events = tmp_path / "events.csv"
    events.write_text("subject,relation,object,time\n" + "Arvan,visit,Kel,2024-02-20\n" * 3)
    options = ("forecast", recurrence_run, *asked, "--top", "20")
    found = json.loads(bridgemem(*options, "--assume", events, "--json").out)
    document("forecast").validate_python(found)
    assert found["assumed"]["events"] == 3
    assert found["time"] == "2024-02-21"
    changed = {one["answer"]: one for one in found["assumed"]["changes"]}
    raised = changed.get("Kel") or changed.get("Arvan - visit -> Kel") or changed["within 1 step"]
    assert (raised["plain"] or 0) < raised["assumed"]
    plain = json.loads(bridgemem(*options, "--at", "2024-02-21", "--json").out)
    assert plain["assumed"] is None
    shown = bridgemem(*options, "--assume", events)
    assert "As if 3 events had happened; nothing is kept." in shown.out
    which = "p_given_event" if "--relation" in asked and "--object" not in asked else found["assumed"]["probability"]
    assert f"What the assumed events change in {which}" in shown.out


def test_assumed_events_at_or_after_the_time_asked_about_do_not_count(recurrence_run: Path, tmp_path: Path) -> None:
    asked = ("forecast", recurrence_run, "--subject", "Arvan", "--relation", "visit", "--at", "2024-02-11", "--assume")
    late, some = tmp_path / "late.csv", tmp_path / "some.csv"
    rows = [("Arvan", "visit", "Kel", f"2024-02-{day}") for day in ("10", "11", "12")]
    said = bridgemem(*asked, write_rows(late, rows[1:])).refused()
    assert "none of the 2 assumed events lies before 2024-02-11, the time asked about" in said
    said = bridgemem(*asked, write_rows(late, rows[2:])).refused()
    assert "the assumed event, at 2024-02-12, does not lie before 2024-02-11" in said
    shown = bridgemem(*asked, write_rows(some, rows)).out
    assert (
        "2 of the 3 assumed events, at 2024-02-11, 2024-02-12, lie not before 2024-02-11, the time asked about, and do "
        "not count."
    ) in shown
    assert "do not count" in bridgemem(*asked, some, "--json").json["assumed"]["remark"]
    assumed = Forecaster.load(recurrence_run).assume(rows[1:])
    with pytest.raises(DataError, match="none of the 2 assumed events"):
        assumed.forecast("Arvan", "visit", at="2024-02-11")
    assert assumed.forecast("Arvan", "visit")[0].rank == 1


def test_assumed_events_show_what_moves_most_even_where_it_is_not_among_the_answers(
    recurrence_run: Path, tmp_path: Path
) -> None:
    events = tmp_path / "events.csv"
    events.write_text("subject,relation,object,time\n" + "Arvan,visit,Kel,2024-02-20\n" * 3)
    asked = ("forecast", recurrence_run, "--subject", "Arvan", "--object", "Kel", "--assume", events, "--json")
    whole, one = (json.loads(bridgemem(*asked, "--top", top).out)["assumed"] for top in ("50", "1"))
    assert whole["probability"] == "p_given_event"
    assert json.loads(bridgemem(*asked, "--horizon", "3").out)["assumed"]["probability"] == "p_event"
    moved = {c["answer"]: abs((c["assumed"] or 0) - (c["plain"] or 0)) for c in whole["changes"]}
    shown, *others = [c["answer"] for c in one["changes"]]
    expected = sorted((a for a in moved if a != shown and moved[a] >= 0.01), key=lambda a: -moved[a])[:3]
    assert others == expected
    assert len(others) > 0


def test_events_that_cannot_be_assumed_are_refused(recurrence_run: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text("subject,relation,object,time\nArvan,visit,Kel,someday\n")
    found = bridgemem("forecast", recurrence_run, "--subject", "Arvan", "--assume", events)
    assert found.code == 2
    assert "someday" in found.err


@pytest.mark.parametrize(
    "asked",
    [
        ("--subject", "Arvan", "--relation", "visit"),
        ("--object", "Arvan", "--relation", "visit"),
        ("--subject", "Arvan", "--object", "Belmor"),
        ("--subject", "Arvan"),
        ("--subject", "Arvan", "--relation", "visit", "--object", "Belmor"),
    ],
    ids=["who", "who-acts", "what", "whom", "whether"],
)
def test_why_tells_what_happened_before_each_answer(recurrence_run: Path, asked: tuple[str, ...]) -> None:
    plain = bridgemem("forecast", recurrence_run, *asked, "--top", "2", "--json").json
    document("forecast").validate_python(plain)
    assert plain["reasons"] is None
    made = bridgemem("forecast", recurrence_run, *asked, "--top", "2", "--why", "--json").json
    document("forecast").validate_python(made)
    assert len(made["reasons"]) == len(made.get("candidates", [None]))
    assert all(one["reasons"] for one in made["reasons"])
    text = bridgemem("forecast", recurrence_run, *asked, "--top", "2", "--why").out
    assert made["reasons"][0]["reasons"][0]["sentence"] in text.replace("\n", " ")


def test_why_is_for_a_single_forecast(recurrence_run: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.csv").write_text("subject,relation\nArvan,visit\n")
    asked = ("--queries", tmp_path / "queries.csv", "--out", tmp_path / "answers.csv", "--why")
    assert "--why is for a single forecast" in bridgemem("forecast", recurrence_run, *asked).refused()


def test_explain_says_plain_sentences_and_the_parts_on_request(recurrence_run: Path) -> None:
    asked = ("explain", recurrence_run, "--subject", "Arvan", "--relation", "visit", "--object", "Kel")
    made = bridgemem(*asked, "--json").json["explanations"][0]
    plain, whole = bridgemem(*asked).out, bridgemem(*asked, "--parts").out
    assert plain.startswith(made["headline"])
    assert all(f"- {one['sentence']}" in plain for one in made["reasons"])
    assert "lambda" not in plain
    assert "log score" not in plain
    assert whole.startswith(plain.rstrip())
    assert made["sentence"] in whole


def test_a_group_stands_wherever_a_name_can(recurrence_run: Path, tmp_path: Path) -> None:
    groups, watch = tmp_path / "groups.csv", tmp_path / "watch.csv"
    groups.write_text("group,member\nus,Arvan\nus,Belmor\naid,provide aid\naid,consult\n")
    for asked in (
        ("--subject", "us", "--relation", "aid"),
        ("--subject", "us", "--object", "Kel"),
        ("--subject", "us"),
        ("--subject", "us", "--relation", "aid", "--object", "Kel"),
    ):
        found = bridgemem("forecast", recurrence_run, *asked, "--groups", groups, "--json").json
        assert found["subject"] == "us"
        shown = bridgemem("forecast", recurrence_run, *asked, "--groups", groups, "--horizon", "3")
        assert shown.code == 0, shown.err
        assert "(us, " in shown.out
    watch.write_text("us\n")
    assert bridgemem("outlook", recurrence_run, "--groups", groups, "--watch", watch, "--json").json["watch"] == ["us"]
    issued = bridgemem(
        "forecast", recurrence_run, "--subject", "us", "--groups", groups, "--issue", tmp_path / "s.duckdb"
    )
    assert "Issued as forecast 1." in issued.out
    why = ("forecast", recurrence_run, "--subject", "us", "--groups", groups)
    assert "--why is for single names" in bridgemem(*why, "--why").refused()
    events = tmp_path / "events.csv"
    events.write_text("subject,relation,object,time\nArvan,visit,Kel,2024-02-20\n")
    assert "What the assumed events change" in bridgemem(*why, "--assume", events).out


@pytest.mark.parametrize("query", ["who", "what", "whether"])
def test_the_last_steps_of_a_run_and_its_store_are_measured(run: Path, query: str) -> None:
    before = sorted(path.name for path in run.iterdir())
    horizon = ("--horizon", "1") if query == "whether" else ()
    found = bridgemem("evaluate", run, "--last", "2", "--query", query, *horizon, "-q")
    assert found.code == 0, found.err
    assert "Events from 2024-02-08 to 2024-02-09, none of which was fitted on" in found.out
    made = bridgemem("evaluate", run, "--last", "2", "--query", query, *horizon, "--json").json
    assert made["records"][0]["settings"]["from"] == "2024-02-08"
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize("named", [False, True])
def test_a_window_takes_in_stored_events(run: Path, tmp_path: Path, named: bool) -> None:
    events, store = tmp_path / "events.csv", tmp_path / "own.duckdb" if named else Path(f"{run}.events.duckdb")
    events.write_text("subject,relation,object,time\nArvan,visit,Kel,2024-02-10\n")
    assert bridgemem("ingest", store, events, "--run", run).code == 0
    own = ("--store", store) if named else ()
    day = ("--from", "2024-02-10", "--to", "2024-02-10")
    found = bridgemem("evaluate", run, *day, *own, "-q")
    assert "2024-02-10 to 2024-02-10, 2 queries" in found.out
    assert "1 stored event is read" in found.out
    assert "there is no event from 2024-02-10" in bridgemem("evaluate", run, *day, "--store", "none").refused()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "2024-01-05"), "which cannot measure it; choose a window from then on"),
        (("--last", "39"), "which cannot measure it; choose a window from then on, of at most"),
        (("--last", "2", "--split", "valid"), "a window is measured by itself"),
        (("--last", "2", "--records", "r.jsonl"), "a window is measured by itself"),
        (("--from", "2030-01-01"), "there is no event from 2030-01-01"),
        (("--last", "2", "--query", "what", "--horizon", "2"), "--horizon is for who and whether"),
        (("--last", "2", "--store", "nowhere.duckdb"), "nowhere.duckdb"),
        (("--store", "own.duckdb"), "--store adds stored events to a window"),
    ],
    ids=["fitted", "too-long", "split", "records", "after", "what-horizon", "no-store", "no-window"],
)
def test_windows_that_cannot_be_measured_are_refused(run: Path, options: tuple[str, ...], said: str) -> None:
    assert said in bridgemem("evaluate", run, *options).refused()

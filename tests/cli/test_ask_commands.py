"""`bridgemem forecast` with files, horizons and probabilities, `explain --card`, `calibrate`, and what they refuse."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from tools.publish import fill

from bridgemem.evaluation.records import read_records
from commands import TINY_READER, Walk, bridgemem, left_in

pytest_plugins = ("small_runs",)
ASKED = ("--subject", "Arvan", "--relation", "visit")


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    path = tmp_path / "q.csv"
    path.write_text("subject,relation,object,time\nArvan,visit,,\n,consult,Kel,2024-01-20\n")
    return path


def test_a_file_of_queries_is_answered_into_a_file(recurrence_run: Path, queries: Path) -> None:
    out = queries.with_name("a.csv")
    made = bridgemem("forecast", recurrence_run, "--queries", queries, "--out", out, "--top", "3")
    assert made.code == 0, made.err
    assert "Answered 2 queries in 6 rows" in made.out
    with out.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    alone = bridgemem("forecast", recurrence_run, *ASKED, "--top", "3", "--json").json["candidates"]
    assert [row["candidate"] for row in rows[:3]] == [c["name"] for c in alone]
    assert [float(row["p_given_event"]) for row in rows[:3]] == pytest.approx([c["p_given_event"] for c in alone])
    assert {row["time"] for row in rows} == {"2024-02-10", "2024-01-20"}
    found = bridgemem("forecast", recurrence_run, "--queries", queries, "-o", out, "--force", "--json").json
    assert found["queries"] == 2


def test_queries_that_cannot_be_asked_go_to_a_file_that_can_be_repaired_and_asked(
    recurrence_run: Path, queries: Path
) -> None:
    rejects, out = queries.with_name("rejects.csv"), queries.with_name("a.csv")
    queries.write_text("subject,relation,object,time\nArvan,visit,,\nArvn,visit,,2024-01-20\nArvan,visit\n")
    asked = ("forecast", recurrence_run, "--queries", queries, "--out", out, "--rejects", rejects)
    assert bridgemem(*asked).refused().endswith(f"The rejected rows are in {rejects}.")
    lines = rejects.read_text().splitlines()
    assert lines[0] == "file,line,reason,subject,relation,object,time,row"
    assert lines[1].startswith(f"{queries},3,no entity is called 'Arvn'; did you mean 'Arvan'")
    assert lines[1].endswith(",Arvn,visit,,2024-01-20,")
    assert lines[2] == f'{queries},4,"expected 4 columns, found 2",,,,,"Arvan,visit"'
    repaired = queries.with_name("repaired.csv")
    repaired.write_text("\n".join(lines[:2]).replace(",Arvn,", ",Arvan,") + "\n")
    again = bridgemem("forecast", recurrence_run, "--queries", repaired, "--out", out, "--rejects", rejects, "--json")
    assert again.json["queries"] == 1
    assert rejects.read_text().splitlines() == lines[:1]
    assert (
        "--rejects is for rows of --queries"
        in bridgemem("forecast", recurrence_run, *ASKED, "--rejects", out).refused()
    )


def test_a_single_answer_is_told_as_one(recurrence_run: Path, queries: Path) -> None:
    queries.write_text("subject,relation\nArvan,visit\n")
    out = queries.with_name("a.csv")
    made = bridgemem("forecast", recurrence_run, "--queries", queries, "--out", out, "--top", "1")
    assert made.out.startswith("Answered 1 query in 1 row; ")


def test_answers_replace_no_file_unasked_and_never_their_queries(recurrence_run: Path, queries: Path) -> None:
    before = queries.read_text()
    asked = ("forecast", recurrence_run, "--queries", queries, "--out")
    kept = queries.with_name("events.csv")
    kept.write_text("mine\n")
    assert "use --force to replace it" in bridgemem(*asked, kept).refused()
    assert kept.read_text() == "mine\n"
    (queries.parent / "linked.csv").symlink_to(queries)
    for out in (queries, queries.parent / "linked.csv"):
        assert "is the file of queries itself" in bridgemem(*asked, out, "--force").refused()
    assert queries.read_text() == before
    (queries.parent / "folder.csv").mkdir()
    assert "folder.csv is a folder; name a file." in bridgemem(*asked, queries.parent / "folder.csv").refused()
    assert bridgemem(*asked, kept, "--force", "--top", "1").code == 0
    assert kept.read_text().startswith("query,subject,")


def test_all_bad_lines_are_named_at_once_whatever_is_wrong_with_them(recurrence_run: Path, queries: Path) -> None:
    rows = [
        "Arvn,visit,,",
        "Arvan,visit,,1999-01-01",
        "Arvan,visit,Kel,",
        ",visit,,",
        "Arvan,visit",
        "Kel,visit,,",
    ]
    queries.write_text("\n".join(["subject,relation,object,time", *rows, "Kel,visit,,9999-12-30", ""]))
    asked = ("--queries", queries, "--out", queries.with_name("a.csv"), "--horizon", "7")
    said = bridgemem("forecast", recurrence_run, *asked).refused()
    assert "6 rows that cannot be asked" in said
    for line, phrase in enumerate(
        ["did you mean", "before the data", "leave out the one", "are empty", "found 2"], start=2
    ):
        assert phrase in said.partition(f"line {line}: ")[2].partition("; line")[0]
    assert "line 7" not in said
    assert "line 8: 7 steps from 9999-12-30 on lie too far ahead" in said


def test_bad_rows_are_named_and_nothing_is_written(recurrence_run: Path, queries: Path) -> None:
    out = queries.with_name("a.parquet")
    queries.write_text("subject,relation\nArvn,visit\nKel,visit\nKel,vist\n")
    said = bridgemem("forecast", recurrence_run, "--queries", queries, "--out", out).refused()
    assert "line 2: no entity is called 'Arvn'; did you mean 'Arvan'?" in said
    assert "line 4: no relation is called 'vist'" in said
    assert left_in(queries.parent) == ["q.csv"]


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ((), "ask with --subject or --object, or with --queries"),
        (("--relation", "visit"), "ask with --subject or --object"),
        ((*ASKED, "--out", "a.csv"), "--out is for the answers to --queries"),
        ((*ASKED, "--horizon", "0"), "at least 1, not 0"),
        ((*ASKED, "--horizon", "99999999999"), "too far ahead"),
        (
            (*ASKED, "--at", "9999-12-30", "--horizon", "7"),
            "7 steps from 9999-12-30 on lie too far ahead; ask for fewer",
        ),
        ((*ASKED, "--duplicates", "maybe"), "duplicates must be keep or drop, not 'maybe'"),
        (("--subject", "Zanzibar", "--relation", "visit"), "; `bridgemem names` searches all names of a run."),
        (("--queries", "q.csv"), "--queries needs --out"),
        (("--queries", "q.csv", "--out", "a.txt"), ".csv or .parquet"),
        (("--queries", "q.csv", "--out", "a.csv", *ASKED), "leave these options out"),
        (("--queries", "none.csv", "--out", "a.csv"), "none.csv does not exist"),
        (("--queries", "q.csv", "--out", "a.csv", "--top", "0"), "top must be at least 1"),
    ],
)
def test_forecasts_that_cannot_be_made_are_refused(
    options: tuple[str, ...], phrase: str, recurrence_run: Path, queries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(queries.parent)
    assert phrase in bridgemem("forecast", recurrence_run, *options).refused()
    assert left_in(queries.parent) == ["q.csv"]


def test_a_run_with_frozen_history_is_not_asked(own_csv: Path, tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "run.events.duckdb"
    frozen = ("--history", "frozen", *TINY_READER)
    assert bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *frozen).code == 0
    commands: list[tuple[str | Path, ...]] = [
        ("forecast", run, *ASKED),
        ("explain", run, *ASKED, "--object", "Kel"),
        ("serve", run, "--port", "0", "--store", store),
        ("explore", run, "--port", "0", "--no-browser", "--store", store),
        ("forecast", run, *ASKED),  # with a store of its own by now
    ]
    for words in commands:
        assert bridgemem(*words).refused().endswith("fit a run without --history frozen to ask it."), words
    assert "Forecaster.open" not in (run / "README.md").read_text(encoding="utf-8")
    assert store.is_file()


def test_a_horizon_is_shown_with_its_days_and_what_the_probability_means(recurrence_run: Path) -> None:
    text = bridgemem("forecast", recurrence_run, *ASKED, "--horizon", "7").out
    assert text.startswith("(Arvan, visit, ?) from 2024-02-10 to 2024-02-16\n")
    assert "at least one such event within 7 steps, given that there is one with anybody" in text


def test_a_run_that_was_never_calibrated_says_so_until_it_is(recurrence_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recurrence_run, tmp_path / "run"))
    before = (run / "calibration.json").read_text()
    (run / "calibration.json").unlink()
    text = bridgemem("forecast", run, *ASKED).out
    assert "No probabilities: the run is not calibrated; run `bridgemem calibrate" in text
    assert "bridgemem calibrate" in bridgemem("report", run, "--by", "calibration").refused()
    assert "bridgemem, selected by time-aware" in bridgemem("calibrate", run, "-q").out
    assert (run / "calibration.json").read_text() == before
    assert "no run at" in bridgemem("calibrate", tmp_path).refused()


def test_the_report_shows_the_reliability_of_a_run_and_keeps_it(walk: Walk, run_copy: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    shutil.copy(walk.records, records)
    page = tmp_path / "calibration.md"
    tables = bridgemem("report", run_copy, "--by", "calibration", "--records", records, "-o", page, "--json").json[
        "tables"
    ]
    assert tables[0]["title"] == "Calibrated probabilities"
    assert [row[0] for row in tables[0]["rows"]] == [
        f"own, cenet + bridgemem, chosen under the {f} filter" for f in ("static", "time")
    ]
    assert all(0 <= float(row[5]) <= 1 for row in tables[0]["rows"])
    for table in tables[1:]:
        assert sum(int(row[1].replace(",", "")) for row in table["rows"]) == int(tables[0]["rows"][0][2])
    assert "Reliability of the best candidate" in page.read_text()
    kept = [json.loads(line) for line in records.read_text().splitlines()]
    assert [r["method"] for r in kept[9:]] == ["calibration:bridgemem"] * 2
    again = bridgemem("report", "--by", "calibration", "--records", records, "--json").json["tables"]
    assert again == tables
    plain = bridgemem("report", "--records", records, "--json").json["tables"]
    assert plain == bridgemem("report", "--records", walk.records, "--json").json["tables"]


def test_several_steps_are_evaluated_into_records_of_their_own(walk: Walk, run_copy: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    shutil.copy(walk.records, records)
    done = bridgemem("evaluate", run_copy, "--horizon", "2", "--records", records, "-q")
    assert done.code == 0, done.err
    assert done.out.startswith("own, test, 114 queries, time-aware filter, any of 2 steps\n")
    assert "metrics.horizon2.json" in done.out
    kept = [json.loads(line) for line in records.read_text().splitlines()]
    assert [r["horizon"] for r in kept] == [1] * 9 + [2] * 9
    plain = bridgemem("report", "--records", records, "--json").json["tables"]
    assert plain == bridgemem("report", "--records", walk.records, "--json").json["tables"]
    document = tmp_path / "doc.md"
    document.write_text("<!-- table: horizons -->\n<!-- end -->\n")
    assert fill(read_records(records), document) == 1
    assert "| own, cenet + bridgemem | 2 |" in document.read_text()
    assert "at least 2 steps, not 1" in bridgemem("evaluate", run_copy, "--horizon", "1").refused()
    assert "ask for a shorter horizon" in bridgemem("evaluate", run_copy, "--horizon", "500").refused()


@pytest.mark.parametrize("name", ["card.html", "card.md"])
def test_a_card_is_written_for_every_candidate(name: str, recurrence_run: Path, tmp_path: Path) -> None:
    both = ("--object", "Kel", "--object", "Lor")
    found = bridgemem("explain", recurrence_run, *ASKED, *both, "--card", tmp_path / name, "--json").json[
        "explanations"
    ]
    text = (tmp_path / name).read_text()
    assert [e["object"] for e in found] == ["Kel", "Lor"]
    assert "Why Kel" in text
    assert "Why Lor" in text
    again = ("explain", recurrence_run, *ASKED, *both, "--card", tmp_path / name)
    assert "use --force to replace it" in bridgemem(*again).refused()
    assert f"Wrote {tmp_path / name}." in bridgemem(*again, "--force").out


def test_a_card_replaces_no_picture_of_another(recurrence_run: Path, tmp_path: Path) -> None:
    (tmp_path / "card-2.svg").write_text("mine")
    both = ("--object", "Kel", "--object", "Lor", "--card", tmp_path / "card.md")
    assert "card-2.svg exists already" in bridgemem("explain", recurrence_run, *ASKED, *both).refused()
    assert left_in(tmp_path) == ["card-2.svg"]


def test_a_candidate_that_is_named_twice_is_explained_once(recurrence_run: Path) -> None:
    twice = ("--object", "Kel", "--object", "Kel")
    assert bridgemem("explain", recurrence_run, *ASKED, *twice, "--json").json["explanations"][0]["object"] == "Kel"


def test_a_pair_whose_events_are_older_than_the_window_is_not_called_one_without(recurrence_run: Path) -> None:
    asked = ("explain", recurrence_run, *ASKED, "--object", "Kel", "--json")
    (found,) = bridgemem(*asked, "--at", "2124-01-01").json["explanations"]
    assert found["forgotten"] > 36_000
    assert f"was {found['forgotten']:,} steps before, longer ago than the run looks back." in found["sentence"]
    assert bridgemem(*asked).json["explanations"][0]["forgotten"] == 0
    (first,) = bridgemem(*asked, "--at", "2024-01-01").json["explanations"]
    assert first["sentence"].endswith("since the two have no remembered event.")


def test_a_run_that_may_not_be_written_is_refused_before_it_is_evaluated(
    recurrence_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: mode & os.W_OK == 0 and access(path, mode, **more))
    assert "cannot be written, and the ranks go there" in bridgemem("evaluate", recurrence_run).refused()


def test_a_card_of_another_kind_is_refused(recurrence_run: Path, tmp_path: Path) -> None:
    asked = (*ASKED, "--object", "Kel", "--card", tmp_path / "card.pdf")
    assert ".md or .html" in bridgemem("explain", recurrence_run, *asked).refused()
    assert left_in(tmp_path) == []


def test_stored_scores_that_lack_a_query_name_it_as_it_was_asked(own_csv: Path, tmp_path: Path) -> None:
    from bridgemem.backbones.scorer import Scores
    from bridgemem.backbones.stored import write_scores
    from bridgemem.events.loading import load

    dataset, run = load(own_csv), tmp_path / "run"
    write_scores(tmp_path / "scores", dataset, lambda q: Scores(torch.zeros(len(q), dataset.events.n_entities)))
    fitted = bridgemem("fit", "-d", own_csv, "-b", tmp_path / "scores", "-o", run, *TINY_READER)
    assert fitted.code == 0, fitted.err
    BOTH = ("--subject", "Kel", "--relation", "visit", "--object", "Arvan")
    asked = ("forecast", run, *ASKED)
    assert "has no scores for (Arvan, visit, ?) at 2024-02-10; " in bridgemem(*asked).refused()
    assert (
        "has no scores for (?, visit, Arvan) at 2024-01-02; "
        in bridgemem("explain", run, *BOTH, "--candidate", "subject", "--at", "2024-01-02").refused()
    )
    last = dataset.test.rows(len(dataset.test) - 1, len(dataset.test))
    actor, relation = last.entities.names[last.subject[0]], last.relations.names[last.relation[0]]
    known = f"{actor},{relation},2024-02-09"
    assert bridgemem("forecast", run, "--subject", actor, "--relation", relation, "--at", "2024-02-09").code == 0
    queries = tmp_path / "q.csv"
    queries.write_text(f"subject,relation,time\n{known}\nKel,consult,2024-02-11\n")
    said = bridgemem("forecast", run, "--queries", queries, "--out", tmp_path / "a.csv").refused()
    assert "has no scores for (Kel, consult, ?) at 2024-02-11; " in said

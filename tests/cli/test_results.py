"""`bridgemem report`, `forecast` and `explain`: what they print, and what they refuse."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bridgemem.cli import output
from bridgemem.evaluation.card import card
from bridgemem.evaluation.tables import figure, interval
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.runs import Run
from commands import ACTORS, TINY_READER, Outcome, Walk, bridgemem, compared, left_in, planted_rows, write_rows
from fits import loaded

pytest_plugins = ("small_runs",)
ASKED = ("--subject", "Arvan", "--relation", "visit")


def test_the_report_has_one_table_a_filter_and_every_method_in_it(walk: Walk) -> None:
    tables = bridgemem("report", "--records", walk.records, "--json").json["tables"]
    assert [table["title"].split(",")[0] for table in tables] == ["Raw", "Static filter", "Time-aware filter"]
    for table in tables:
        assert [row[0] for row in table["rows"]] == ["own, cenet", "own, cenet + bridgemem"]
    text = bridgemem("report", "--records", walk.records).out
    assert all(table["title"] in text for table in tables)


def test_the_report_shows_the_figures_of_the_records(walk: Walk) -> None:
    records = [json.loads(line) for line in walk.records.read_text().splitlines()]
    (backbone,) = (r for r in records if r["method"] == "backbone" and r["filter"] == "time")
    (chosen,) = (r for r in records if r["selected_by"] == "time" and r["filter"] == "time")
    (table,) = bridgemem("report", "--records", walk.records, "--filter", "time", "--json").json["tables"]
    for row, record in zip(table["rows"], (backbone, chosen), strict=True):
        shown = [float(cell) for cell in row[1:5]]
        assert shown == pytest.approx([record[m] for m in ("mrr", "hits1", "hits3", "hits10")], abs=5e-5)


def test_the_report_is_written_as_markdown_too(walk: Walk, tmp_path: Path) -> None:
    assert bridgemem("report", "--records", walk.records, "-o", tmp_path / "sub" / "report.md").code == 0
    text = (tmp_path / "sub" / "report.md").read_text()
    assert text.count("### ") == 3
    assert "| own, cenet + bridgemem |" in text
    assert left_in(tmp_path / "sub") == ["report.md"]


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (None, "no file of records"),
        (b"", "no record"),
        (b"not json\n", "line 1 is not a record"),
        (b"[]\n", "line 1 is not a record"),
        (b'{"dataset": "own"}\n', "line 1 is not a record"),
        (b"\xff\xfe\x00\n", "line 1 is not a record"),
    ],
)
def test_records_that_are_missing_or_damaged_are_refused(content: bytes | None, phrase: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert phrase in bridgemem("report", "--records", path, "-o", tmp_path / "report.md").refused()
    assert not (tmp_path / "report.md").exists()


def test_a_cut_line_is_found_by_its_number(walk: Walk, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(walk.records.read_text()[:-20])
    assert "line 9 is not a record" in bridgemem("report", "--records", path).refused()


def test_unknown_filters_and_data_sets_are_refused(walk: Walk) -> None:
    assert "'both'" in bridgemem("report", "--records", walk.records, "--filter", "both").refused()
    assert "'icews14'" in bridgemem("report", "--records", walk.records, "--dataset", "icews14").refused()


def test_a_forecast_ranks_every_candidate_by_its_score(recurrence_run: Path) -> None:
    found = bridgemem("forecast", recurrence_run, *ASKED, "--top", "99", "--json").json["candidates"]
    assert {c["name"] for c in found} == set(ACTORS)
    scores = [c["score"] for c in found]
    assert scores == sorted(scores, reverse=True)
    assert [c["rank"] for c in found] == [1 + sum(s > c["score"] for s in scores) for c in found]
    base = [c["backbone_score"] for c in found]
    assert [c["backbone_rank"] for c in found] == [1 + sum(b > c["backbone_score"] for b in base) for c in found]
    assert all(c["score"] == c["backbone_score"] + c["residual"] for c in found)
    text = bridgemem("forecast", recurrence_run, *ASKED, "--top", "3").out
    assert text.startswith("(Arvan, visit, ?) at 2024-02-10\n")
    assert text.count("\n") == 7
    assert text.endswith("that the partner is this one, given that such an event happens.\n")


@pytest.mark.parametrize(
    "asked",
    [
        ("forecast", "--subject", "1", "--relation", "visit"),
        ("forecast", "--subject", "Arvan", "--relation", "0"),
        ("forecast", "--subject", "Arvan", "--object", "1"),
        ("forecast", "--subject", "1"),
        ("forecast", "--subject", "1", "--relation", "visit", "--object", "Arvan"),
        ("explain", "--subject", "Arvan", "--relation", "visit", "--object", "1"),
    ],
)
def test_a_number_is_a_name_and_never_the_id_of_another(asked: tuple[str, ...], recurrence_run: Path) -> None:
    said = bridgemem(asked[0], recurrence_run, *asked[1:]).refused()
    assert re.search("no (entity|relation) is called '[01]'", said)


@pytest.mark.parametrize("row", ["1,visit,", "Arvan,0,", ",visit,1"])
def test_a_number_in_a_file_of_queries_is_a_name(row: str, recurrence_run: Path, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(f"subject,relation,object\n{row}\n")
    said = bridgemem("forecast", recurrence_run, "--queries", tmp_path / "q.csv", "-o", tmp_path / "a.csv").refused()
    assert re.search("line 2: no (entity|relation) is called '[01]'", said)


def test_the_inverse_query_is_another_one(recurrence_run: Path) -> None:
    forward = bridgemem("forecast", recurrence_run, *ASKED, "--json").json["candidates"]
    inverse = ("--object", "Arvan", "--relation", "visit")
    backward = bridgemem("forecast", recurrence_run, *inverse, "--json").json["candidates"]
    assert [c["score"] for c in forward] != [c["score"] for c in backward]
    assert bridgemem("forecast", recurrence_run, *inverse).out.startswith("(?, visit, Arvan) at ")


def test_forecasts_have_one_model_the_one_of_the_time_aware_selection(walk: Walk) -> None:
    choices = {name: s["choice"] for name, s in json.loads((walk.run / "selection.json").read_text()).items()}
    assert choices["static"] != choices["time"]
    best = bridgemem("forecast", walk.run, *ASKED, "--top", "1", "--json").json["candidates"][0]
    (found,) = bridgemem("explain", walk.run, *ASKED, "--object", best["name"], "--json").json["explanations"]
    assert found["lam"] == choices["time"]["lam"]
    assert bridgemem("forecast", walk.run, *ASKED, "--selected-by", "static").code == 2


def test_an_explanation_prints_parts_that_add_up(recurrence_run: Path) -> None:
    best = bridgemem("forecast", recurrence_run, *ASKED, "--top", "1", "--json").json["candidates"][0]
    args = ("explain", recurrence_run, *ASKED, "--object", best["name"])
    (found,) = bridgemem(*args, "--json").json["explanations"]
    assert found["score"] == pytest.approx(best["score"], abs=1e-12)
    assert found["base"] + found["residual"] == found["score"]
    assert sum(event["part"] for event in found["events"]) == pytest.approx(found["residual"], abs=1e-9)
    text = bridgemem(*args, "--parts").out
    assert found["sentence"] in text
    assert all(event["time"] in text for event in found["events"])


@pytest.fixture(scope="module")
def learned_fit(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A run with a learned residual, compared on 24 queries, and what fitting it printed."""
    run = tmp_path_factory.mktemp("learned") / "run"
    fitted = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER, "--residual", "learned")
    assert fitted.code == 0, fitted.err
    return run, fitted


@pytest.fixture(scope="module")
def learned_run(learned_fit: tuple[Path, Outcome], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a learned residual that did better than the paper's."""
    run = Path(shutil.copytree(learned_fit[0], tmp_path_factory.mktemp("better") / "run"))
    return compared(run, (0.1, 0.05, 0.15))


def test_a_fit_shows_how_the_residuals_did_and_says_which_one_forecasts_use(learned_fit: tuple[Path, Outcome]) -> None:
    folder, fitted = learned_fit
    held = Run(folder).held_out("time")
    assert held is not None
    title = f"Later validation, {held.queries} queries, time-aware filter\n"
    rows = [line.split("  ") for line in fitted.out.partition(title)[2].partition("\n\n")[0].splitlines()[2:]]
    expected = {name: mrr for name, (mrr, *_) in held.naive.items()}
    assert list(expected) == ["most-frequent", "most-recent", "recurrence-dyadic"]
    expected |= {"recurrence": held.backbone, "recurrence + bridgemem": held.bridgemem}
    expected |= {"recurrence + learned": held.learned}
    assert {row[0]: next(filter(None, row[1:])).strip() for row in rows} == {n: figure(v) for n, v in expected.items()}
    assert all(interval(gain) in fitted.out for _, *gain in held.naive.values())
    better = "the residual that ranked better on later validation"
    assert f"Forecasts use recurrence + {Run(folder).preferred()}, {better}." in fitted.out
    card = (folder / "README.md").read_text(encoding="utf-8")
    for name, words in (("static", "static filter"), ("time", "time-aware filter")):
        held = Run(folder).held_out(name)
        assert held is not None
        cells = " | ".join(map(figure, (held.backbone, held.bridgemem, held.learned)))
        row = card.partition(f"| {words} | {held.queries} | {cells} | {held.gain[0]:+.4f} [")[2].partition("\n")[0]
        assert row.endswith(f"| {held.better} |")


def test_a_fit_in_json_holds_the_comparison_where_a_residual_was_learned(own_csv: Path, tmp_path: Path) -> None:
    few = (*TINY_READER, "--learned-set", "epochs=1", "--residual", "learned", "--json", "-q")
    made = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", tmp_path / "run", *few).json
    held = Run(tmp_path / "run").held_out("time")
    assert held is not None
    naive = {name: list(found) for name, found in held.naive.items()}
    gains = {"gain": list(held.gain), "over_backbone": list(held.over_backbone)}
    assert made["held_out"]["time"] == {**asdict(held), **gains, "naive": naive, "better": held.better}
    assert made["forecasts"] == Run(tmp_path / "run").preferred()
    plain = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", tmp_path / "two", *TINY_READER, "--json", "-q")
    assert (plain.json["held_out"], plain.json["forecasts"]) == ({}, "bridgemem")


@pytest.mark.parametrize(
    ("gain", "used"),
    [
        ((0.1, 0.05, 0.15), "learned"),
        (None, "learned"),
        ((0.1, -0.05, 0.25), "learned"),
        ((0.1, -0.15, 0.35), "learned"),
        ((-0.1, -0.35, 0.15), "bridgemem"),
        ((-0.2, -0.3, -0.1), "bridgemem"),
    ],
)
def test_forecasts_use_the_learned_residual_where_it_did_better_unless_told_otherwise(
    gain: tuple[float, float, float] | None, used: str, learned_fit: tuple[Path, Outcome], tmp_path: Path
) -> None:
    run = compared(Path(shutil.copytree(learned_fit[0], tmp_path / "run")), gain)
    by = {
        residual: bridgemem("forecast", run, *ASKED, "--residual", residual, "--json").json["candidates"]
        for residual in ("bridgemem", "learned")
    }
    assert by["bridgemem"] != by["learned"]
    assert bridgemem("forecast", run, *ASKED, "--json").json["candidates"] == by[used]
    shown = bridgemem("forecast", run, *ASKED).out
    assert ("by the learned residual" in shown) == (used == "learned")
    assert ("| learned |\n" in card(Run(run))) == (gain is not None and used == "learned")
    # and so does all that asks through a live forecaster
    with EventStore(tmp_path / "events.duckdb") as store:
        assert (LiveForecaster(loaded(run), store).view.predictor.learned is not None) == (used == "learned")


@pytest.mark.parametrize("noted", [{"queries": 3}, {"gain": [1]}, {"gain": "high"}, {"learned": None}, {"odd": 1}])
def test_a_damaged_comparison_is_refused_in_a_sentence(
    noted: dict[str, Any], learned_fit: tuple[Path, Outcome], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(learned_fit[0], tmp_path / "run"))
    values = json.loads((run / "epochs.json").read_text())
    own = values["learned"]["raw"]["held_out"]
    own["raw"] = noted if "queries" in noted else {**own["raw"], **noted}
    (run / "epochs.json").write_text(json.dumps(values))
    bridgemem("forecast", run, *ASKED).refused()


def test_both_residuals_of_a_run_can_be_asked_for(learned_run: Path, recurrence_run: Path) -> None:
    learned, fixed = (
        bridgemem("forecast", learned_run, *ASKED, "--residual", residual, "--json").json["candidates"]
        for residual in ("learned", "bridgemem")
    )
    assert fixed == bridgemem("forecast", recurrence_run, *ASKED, "--json").json["candidates"] != learned
    assert {c["name"]: c["backbone_rank"] for c in learned}.items() >= {
        (c["name"], c["backbone_rank"]) for c in fixed if c["name"] in {p["name"] for p in learned}
    }
    assert "by the learned residual" not in bridgemem("forecast", learned_run, *ASKED, "--residual", "bridgemem").out


def test_figures_on_the_queries_that_a_residual_was_fitted_on_say_so(
    learned_fit: tuple[Path, Outcome], tmp_path: Path
) -> None:
    run, records = Path(shutil.copytree(learned_fit[0], tmp_path / "run")), tmp_path / "records.jsonl"
    mark = ", fitted on these queries"
    shown = bridgemem("evaluate", run, "--split", "valid", "--records", records).out
    assert shown.count(f"recurrence + learned{mark}") == shown.count(mark) == 1
    page = (run / "README.md").read_text(encoding="utf-8")
    assert page.count(f"| with the learned one{mark} |") == 3
    assert f"MRR, time-aware filter, with the learned one{mark}" in page
    assert bridgemem("report", "--records", records).out.count(mark) == 3
    on_test = bridgemem("evaluate", run, "--records", records).out
    assert "recurrence + learned" in on_test
    assert mark not in on_test


def test_a_learned_explanation_prints_parts_that_add_up(learned_run: Path) -> None:
    for best in bridgemem("forecast", learned_run, *ASKED, "--top", "2", "--json").json["candidates"]:
        args = ("explain", learned_run, *ASKED, "--object", best["name"])
        (found,) = bridgemem(*args, "--json").json["explanations"]
        assert found["score"] == pytest.approx(best["score"], rel=1e-9)
        assert (found["rank"], found["backbone_rank"]) == (best["rank"], best["backbone_rank"])
        parts = found["start"] + sum(found["groups"].values())
        assert found["base"] + parts == pytest.approx(found["score"], rel=1e-9)
        by_events = [event["part"] for event in [*found["events"], found["earlier"]] if event]
        assert found["unseen_pair"] + sum(by_events) == pytest.approx(found["between"], rel=1e-9)
        text = bridgemem(*args, "--parts").out
        assert found["sentence"] in text
        assert all(f"{part:+.4f}" in text for part in [found["score"], *found["groups"].values(), *by_events])
        assert all(event["time"] in text for event in found["events"])


def test_a_candidate_never_seen_is_explained_by_the_common_neighbours_it_shares(learned_run: Path) -> None:
    # on the third day few have interacted
    asked = (*ASKED, "--at", "2024-01-03")
    explained = [
        bridgemem("explain", learned_run, *asked, "--object", name, "--json").json["explanations"][0] for name in ACTORS
    ]
    unseen_candidates = [e for e in explained if not e["seen"] and e["common_neighbours"]]
    assert unseen_candidates
    for e in unseen_candidates:
        assert e["events"] == []
        text = bridgemem("explain", learned_run, *asked, "--object", e["object"], "--parts").out
        assert "The two never interacted; common neighbours:" in text
        assert "Events it comes from" not in text
        assert all(party["name"] in text for party in e["common_neighbours"])


@pytest.mark.parametrize("command", ["forecast", "explain"])
def test_a_residual_that_a_run_does_not_have_is_refused(command: str, recurrence_run: Path) -> None:
    extra = ("--object", "Kel") if command == "explain" else ()
    said = bridgemem(command, recurrence_run, *ASKED, *extra, "--residual", "learned").refused()
    assert "has no learned residual; `bridgemem fit --residual learned` fits one" in said
    said = bridgemem(command, recurrence_run, *ASKED, *extra, "--residual", "magic").refused()
    assert "residual is bridgemem or learned, not 'magic'" in said


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (("--subject", "Arvn", "--relation", "visit"), "did you mean 'Arvan'?"),
        (("--subject", "Arvan", "--relation", "vist"), "did you mean 'visit'?"),
        (("--subject", "99", "--relation", "visit"), "no entity is called '99'"),
        ((*ASKED, "--at", "tomorrow"), "is not a date"),
        ((*ASKED, "--at", "2023-12-31"), "before the data set begins, at 2024-01-01"),
        ((*ASKED, "--at", "99999999999999999"), "is a bare number"),
        ((*ASKED, "--at", "9" * 30), "is a bare number"),
    ],
)
@pytest.mark.parametrize("command", ["forecast", "explain"])
def test_queries_that_cannot_be_answered_are_refused(
    command: str, options: tuple[str, ...], phrase: str, recurrence_run: Path
) -> None:
    extra = ("--object", "Kel") if command == "explain" else ()
    assert phrase in bridgemem(command, recurrence_run, *options, *extra).refused()


def test_other_bad_queries_are_refused(recurrence_run: Path, tmp_path: Path) -> None:
    assert "top must be at least 1" in bridgemem("forecast", recurrence_run, *ASKED, "--top", "0").refused()
    assert "did you mean 'Belmor'" in bridgemem("explain", recurrence_run, *ASKED, "--object", "Belmr").refused()
    assert "no run at" in bridgemem("forecast", tmp_path, *ASKED).refused()
    assert "no run at" in bridgemem("explain", tmp_path, *ASKED, "--object", "Kel").refused()


def test_one_of_a_kind_is_told_as_one() -> None:
    told = [output.counted(n, what) for n, what in ((1, "event"), (0, "event"), (1, "query"), (2000, "entity"))]
    assert told == ["1 event", "0 events", "1 query", "2,000 entities"]


def test_names_from_data_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("title", ["who"], [["red \x1b[31m"], ["turned \u202e"], ["Älvdalen [north]"]])
    output.warn("no entity is called '\x07'")
    shown = capsys.readouterr()
    assert "red \\x1b[31m" in shown.out
    assert "turned \\u202e" in shown.out
    assert "Älvdalen [north]" in shown.out
    assert shown.err == "no entity is called '\\x07'\n"


def test_a_table_on_a_terminal_shows_brackets_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    output.table("title", ["who", "score"], [["[/bold] :smile:", "1.0"]])
    assert "[/bold] :smile:" in screen.getvalue()


def test_letters_that_the_output_lacks_are_written_out(tmp_path: Path) -> None:
    rows = [("Älv" if a == "Kel" else a, r, b, t) for a, r, b, t in planted_rows()]
    data = write_rows(tmp_path / "own.csv", rows)
    run = tmp_path / "run"
    assert bridgemem("fit", "-d", data, "-b", "recurrence", "-o", run, *TINY_READER).code == 0
    program = [sys.executable, "-c", "from bridgemem.cli.main import main; main()", "forecast", str(run), *ASKED]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*program, "--top", "13"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xc4lv" in done.stdout

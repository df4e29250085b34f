"""`bridgemem leakage`: says that it is no forecast, records what was asked for alone, and refuses in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridgemem.evaluation.evaluate import evaluate_backbone
from bridgemem.evaluation.records import read_records, write_records
from bridgemem.evaluation.tables import figure, interval
from bridgemem.events import loading
from bridgemem.studies import leakage
from commands import TINY_CENET, bridgemem, planted_rows, write_rows

pytest_plugins = ("small_runs",)


@pytest.fixture(scope="module")
def backbone(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("queries") / "cenet"
    assert bridgemem("train", "cenet", "-d", own_csv, "-o", folder, *TINY_CENET, "--seed", "5").code == 0
    return folder


def test_what_is_printed_is_what_was_measured_and_says_that_it_is_no_forecast(own_csv: Path) -> None:
    made = bridgemem("leakage", own_csv, "--json").json["records"]
    text = bridgemem("leakage", own_csv, "--quiet").out
    assert "This is not a forecast" in text
    assert "own, test" in text
    assert text.index("Static filter") < text.index("Time-aware filter")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    words = {"backbone": "from the past alone", "leakage:pass": "+ the other queries of the pass"}
    words["leakage:step"] = "+ all other queries of the step"
    for r in (r for r in made if r["filter"] != "raw"):
        told = [interval(r["gain"]["mrr"]), f"{r['settings']['weight']:g}"] if r["gain"] else []
        figures = [figure(r[metric]) for metric in ("mrr", "hits1", "hits3", "hits10")]
        assert " ".join([words[r["method"]], *figures, *told]) in lines
    assert len(made) == 7


def test_the_help_says_that_it_is_no_forecast() -> None:
    assert "not a forecast" in bridgemem("leakage", "--help").out


def test_readings_are_recorded_where_asked_and_a_backbone_keeps_its_own_record(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bridgemem("leakage", own_csv, "--json").code == 0
    assert list(tmp_path.iterdir()) == []
    own = evaluate_backbone("recurrence-dyadic", loading.load(own_csv))
    write_records(tmp_path / "records.jsonl", own)
    for _ in range(2):
        made = bridgemem("leakage", own_csv, "--records", "records.jsonl", "--json").json["records"]
        kept = read_records(tmp_path / "records.jsonl")
        assert kept[:3] == own
        assert [vars(r) for r in kept[3:]] == [r for r in made if r["method"].startswith("leakage:")]
        assert len(kept) == 7


def test_a_file_of_nothing_but_readings_is_reported(own_csv: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    made = bridgemem("leakage", own_csv, "--backbone", "hri", "--records", records, "--json").json["records"]
    shown = bridgemem("report", "--records", records).out
    for r in (r for r in made if r["method"].startswith("leakage:")):
        assert figure(r["mrr"]) in shown


def test_a_trained_backbone_is_read_from_its_folder(own_csv: Path, backbone: Path) -> None:
    made = bridgemem("leakage", own_csv, "--backbone", backbone, "--json").json["records"]
    assert {(r["backbone"], r["seed"], r["settings"]["backbone_seed"]) for r in made} == {("cenet", 5, 5)}


def test_without_a_test_split_validation_is_read_and_it_is_said(own_csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loading.loaded
    monkeypatch.setattr(loading, "loaded", lambda *args, **more: loaded(*args, **more).without_test())
    shown = bridgemem("leakage", own_csv, "--quiet")
    assert shown.code == 0
    assert "has no test split; using its validation split" in shown.err
    assert "own, valid" in shown.out
    assert "The weights were chosen on these same queries." in shown.out


def test_bad_input_is_refused_in_one_sentence_before_the_long_part(
    own_csv: Path, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def began(*_: Any) -> None:
        pytest.fail("the long part began")

    monkeypatch.setattr(leakage, "measure", began)
    assert "no file and no data set" in bridgemem("leakage", "nowhere").refused()
    assert "recurrence-dyadic" in bridgemem("leakage", own_csv, "--backbone", "cenet").refused()
    assert "use cpu or cuda" in bridgemem("leakage", own_csv, "--device", "abacus").refused()
    assert "no saved model" in bridgemem("leakage", own_csv, "--backbone", tmp_path).refused()
    (tmp_path / "records.jsonl").write_text("not json\n")
    assert "line 1" in bridgemem("leakage", own_csv, "--records", tmp_path / "records.jsonl").refused()
    more = write_rows(tmp_path / "more.csv", [*planted_rows(), ("Zed", "visit", "Kel", "2024-02-09")])
    assert "other data" in bridgemem("leakage", more, "--backbone", backbone).refused()

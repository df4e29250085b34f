"""`bridgemem train`, `fit`, `evaluate`, `reproduce` and `demo`: the whole path, and every way to ask for it wrongly."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.events.packs import pack
from bridgemem.runs import Run
from bridgemem.storage.files import FORMAT
from bridgemem.studies import demo as demo_module
from bridgemem.studies.demo import Demo
from commands import (
    ACTORS,
    TINY_CENET,
    TINY_READER,
    Walk,
    bridgemem,
    left_in,
    planted_rows,
    small_files_only,
    write_rows,
)

pytest_plugins = ("small_runs",)
TINY_BACKBONE = tuple(part.replace("--set", "--backbone-set") for part in TINY_CENET)


@pytest.fixture(scope="module")
def without_test(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("like-gdelt") / "like-gdelt.npz"
    pack(Dataset("like-gdelt", load(own_csv).events, 30), path)
    return path


# ---- the path ------------------------------------------------------------------------------------------------------


def test_every_step_of_the_path_says_what_it_did(walk: Walk) -> None:
    out = {name: outcome.out for name, outcome in walk.outcomes.items()}
    assert "All 600 rows were read.\n" in out["check"]
    assert f"Wrote {walk.home / 'own.npz'}" in out["import"]
    assert out["stats"].startswith("own: 12 entities, 5 relations, 600 events")
    assert f"it is in {walk.backbone}" in out["train"]
    assert "its selection is locked" in out["fit"]
    assert "own, test, 144 queries" in out["evaluate"]
    assert "cenet + bridgemem" in out["evaluate"]


def test_output_that_no_terminal_shows_has_no_bars_and_no_colours(walk: Walk) -> None:
    for outcome in walk.outcomes.values():
        assert not re.search("[\x1b\r\u2500-\u259f\u2800-\u28ff]", outcome.out + outcome.err)
        assert outcome.err == ""


def test_train_says_in_json_what_it_made(own_csv: Path, tmp_path: Path) -> None:
    found = bridgemem("train", "cenet", "-d", own_csv, "-o", tmp_path / "b", *TINY_CENET, "--seed", "3", "--json").json
    assert found["backbone"] == "cenet"
    assert found["seed"] == 3
    assert found["parameters"] > 0
    assert left_in(tmp_path) == ["b"]


def test_fit_prints_both_locked_selections(own_csv: Path, walk: Walk, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    found = bridgemem("fit", "-d", own_csv, "-b", walk.backbone, "-o", out, *TINY_READER, "--json").json
    assert set(found["selections"]) == {"static", "time"}
    stored = json.loads((out / "selection.json").read_text())
    for name, selection in found["selections"].items():
        assert selection["filter"] == name
        assert selection["lock"] == stored[name]["lock"]
        assert len(selection["grid"]) == 36
    assert Run(out).config.backbone_seed == 5


def test_the_residual_finds_the_planted_script(recurrence_run: Path, tmp_path: Path) -> None:
    records = bridgemem("evaluate", shutil.copytree(recurrence_run, tmp_path / "run"), "--json").json["records"]
    of = {(r["method"], r["selected_by"], r["filter"]): r for r in records}
    assert of["bridgemem", "time", "time"]["mrr"] > of["backbone", None, "time"]["mrr"] + 0.1
    assert of["bridgemem", "time", "time"]["gain"]["mrr"][1] > 0


def test_every_record_says_how_it_was_measured(walk: Walk) -> None:
    records = [json.loads(line) for line in walk.records.read_text().splitlines()]
    run = Run(walk.run)
    assert len(records) == 9
    for record in records:
        assert record["fingerprint"] == run.config.fingerprint
        assert record["identity"] == run.identity().digest
        assert (record["dataset"], record["split"], record["backbone"]) == ("own", "test", "cenet")
        assert (record["history"], record["ties"], record["queries"]) == ("rolling", "mean", 144)
        assert record["device"].startswith("cpu")
        assert record["version"]
        if record["method"] == "bridgemem":
            assert record["lock"] == run.selection(record["selected_by"]).lock()


def test_evaluating_again_replaces_the_same_records(walk: Walk, run_copy: Path, tmp_path: Path) -> None:
    records = shutil.copy(walk.records, tmp_path / "records.jsonl")
    before = records.read_text()
    assert bridgemem("evaluate", run_copy, "--records", records).code == 0
    assert records.read_text() == before
    assert bridgemem("evaluate", run_copy, "--split", "valid", "--records", records).code == 0
    assert len(records.read_text().splitlines()) == 18


def test_frozen_history_is_another_measurement(own_csv: Path, walk: Walk, tmp_path: Path) -> None:
    frozen = ("--history", "frozen")
    assert bridgemem("fit", "-d", own_csv, "-b", walk.backbone, "-o", tmp_path / "r", *TINY_READER, *frozen).code == 0
    rolling = json.loads((walk.run / "metrics.json").read_text())["test"]
    records = bridgemem("evaluate", tmp_path / "r", "--json").json["records"]
    assert {record["history"] for record in records} == {"frozen"}
    assert [r["mrr"] for r in records] != [r["mrr"] for r in rolling]


def test_reproduce_makes_runs_and_records_and_takes_the_backbone_it_has(own_csv: Path, tmp_path: Path) -> None:
    runs, records = tmp_path / "runs", tmp_path / "records.jsonl"
    args = ("reproduce", own_csv, "--runs", runs, "--records", records, *TINY_READER, *TINY_BACKBONE)
    found = bridgemem(*args, "--seeds", "1-2", "--json").json["records"]
    assert left_in(runs) == ["own-cenet-b42", "own-cenet-b42-s1", "own-cenet-b42-s2"]
    assert {r["backbone"] for r in found} == {
        "cenet",
        "most-frequent",
        "most-recent",
        "recurrence",
        "recurrence-dyadic",
    }
    assert {r["seed"] for r in found if r["method"] == "bridgemem"} == {1, 2}
    weights = (runs / "own-cenet-b42" / "weights.safetensors").stat()
    again = bridgemem(*args, "--seeds", "1")
    assert "own, recurrence-dyadic" in again.out
    assert (runs / "own-cenet-b42" / "weights.safetensors").stat().st_mtime_ns == weights.st_mtime_ns
    sentence = bridgemem(*args, "--seeds", "1", "--backbone-set", "width=16").refused()
    assert "--retrain" in sentence


def test_reproduce_does_not_take_a_backbone_of_data_that_has_changed(own_csv: Path, tmp_path: Path) -> None:
    changing = Path(shutil.copy(own_csv, tmp_path / "own.csv"))
    args = ("reproduce", changing, "--runs", tmp_path / "runs", "--records", tmp_path / "r.jsonl", *TINY_READER)
    assert bridgemem(*args, "--backbone", "popularity").code == 0
    write_rows(changing, planted_rows(seed=8))
    assert "other data" in bridgemem(*args, "--backbone", "popularity").refused()
    assert bridgemem(*args, "--backbone", "popularity", "--retrain").code == 0


def test_without_a_test_split_commands_say_so_and_read_validation(without_test: Path, tmp_path: Path) -> None:
    remark = "like-gdelt has no test split; using its validation split."
    run = tmp_path / "run"
    assert bridgemem("fit", "-d", without_test, "-b", "recurrence", "-o", run, *TINY_READER).code == 0
    outcome = bridgemem("evaluate", run, "--json")
    assert outcome.remarks == [remark]
    assert {record["split"] for record in outcome.json["records"]} == {"valid"}
    assert set(json.loads((run / "metrics.json").read_text())) == {"valid"}
    assert (run / "ranks.valid.parquet").is_file()
    args = ("--runs", tmp_path / "runs", "--records", tmp_path / "records.jsonl", "--backbone", "recurrence")
    outcome = bridgemem("reproduce", without_test, *args, *TINY_READER)
    assert (outcome.code, outcome.err) == (0, f"{remark}\n")


def test_steps_too_short_for_anything_to_follow_are_told(tmp_path: Path) -> None:
    rows = [(*row[:3], f"{row[3]}T{i % 24:02d}:{i % 60:02d}:{i % 59:02d}") for i, row in enumerate(planted_rows())]
    path = write_rows(tmp_path / "own.csv", rows)
    fit = ("fit", "-d", path, "-b", "recurrence", *TINY_READER)
    fitted = bridgemem(*fit, "-o", tmp_path / "seconds", "--set", "window=10")
    assert fitted.code == 0
    assert "no two events of train between the same parties lie 1 to 10 steps apart" in fitted.err
    assert "for instance --step day." in fitted.err
    by_day = bridgemem(*fit, "-o", tmp_path / "days", "--step", "day")
    assert (by_day.code, by_day.err) == (0, "")
    assert by_day.out.startswith("Fitted on own in ")


def test_rows_that_training_leaves_out_are_told(tmp_path: Path) -> None:
    rows = planted_rows()
    rows[3] = (*rows[3][:3], "yesterday")
    path = write_rows(tmp_path / "some.csv", rows)
    outcome = bridgemem("train", "recurrence", "-d", path, "-o", tmp_path / "b", "--json")
    assert outcome.json["backbone"] == "recurrence"
    (remark,) = outcome.remarks
    assert remark.startswith(f"1 of 600 rows was rejected, the first at {path}:5")


def test_the_demo_prints_one_table_with_the_oracle_and_one_reason(
    small_demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "run_demo", lambda **_: small_demo)
    text = bridgemem("demo").out
    shown = [line.split("  ")[0] for line in text.splitlines()]
    assert all(row[0] in shown for row in small_demo.table().rows)
    assert f"{small_demo.headroom:.0%} of the way" in text
    assert str(small_demo.forecast) in text
    found = bridgemem("demo", "--json").json
    assert found["oracle"]["time"]["mrr"] == small_demo.oracle["time"].mrr
    assert len(found["records"]) == len(small_demo.records)
    assert found["forecast"]["sentence"] == small_demo.forecast.sentence()


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "phrase"),
    [
        (("train", "nope", "-d", "DATA", "-o", "OUT"), "no backbone called 'nope'; choose from cenet"),
        (("train", "cenet", "-d", "nope", "-o", "OUT"), "no data set called 'nope'"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--set", "wdth=3"), "no setting called 'wdth'"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--set", "width=broad"), "width must be a whole number"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--set", "width"), "name=value"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--set", "width=0"), "width must be from 1 to 8192, not 0"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--set", "mask=medium"), "mask must be soft or hard"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--device", "tpu"), "no device called 'tpu'"),
        (("train", "cenet", "-d", "DATA", "-o", "OUT", "--device", "meta"), "no device called 'meta'"),
        (("train", "cenet", "-d", "DATA", "-o", "DATA"), "exists already"),
        (("train", "cenet", "-d", "DATA", "-o", "DATA", "--force"), "is no saved model and is not replaced"),
        (("train", "cenet", "-d", "DATA", "-o", "DATA/b"), "cannot be written"),
        (("fit", "-d", "DATA", "-b", "nope", "-o", "OUT"), "no folder and no backbone called 'nope'"),
        (("fit", "-d", "DATA", "-b", "HOME", "-o", "OUT"), "holds no saved model"),
        (("fit", "-d", "DATA", "-b", "cenet", "-o", "OUT"), "`bridgemem train cenet --data DATA --out FOLDER`"),
        (("fit", "-d", "DATA", "-b", "ensemble", "-o", "OUT"), "`bridgemem train ensemble --data"),
        (("fit", "-d", "HOME/own.npz", "-b", "recurrence", "-o", "OUT", "--step", "day"), "time steps already"),
        (("train", "cenet", "-d", "world", "-o", "OUT", "--step", "2"), "time steps already"),
        (("train", "ensemble", "-d", "DATA", "-o", "OUT", "--set", "tuned_for=icews41"), "no settings for 'icews41'"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "RUN"), "--force"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "HOME", "--force"), "is no saved model and is not replaced"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "OUT", "--set", "lambdas=a"), "lambdas must be a number"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "OUT", "--set", "k=0"), "k must be from 1 to 1024, not 0"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "OUT", "--set", "k=2.5"), "k must be a whole number"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "OUT", "--history", "none"), "rolling or frozen"),
        (("fit", "-d", "DATA", "-b", "recurrence", "-o", "OUT", "--device", "cpu:x"), "no device"),
        (("evaluate", "nope"), "no run at nope"),
        (("evaluate", "HOME"), "no run at"),
        (("evaluate", "RUN", "--split", "train"), "test or valid"),
        (("evaluate", "RUN", "--device", "tpu"), "no device"),
        (("evaluate", "RUN", "--records", "DATA"), "is not a record"),
        (("reproduce", "DATA", "--seeds", "x"), "seeds are written as"),
        (("reproduce", "DATA", "--seeds", "5-3"), "seeds are written as"),
        (("reproduce", "DATA", "--seeds", ""), "seeds are written as"),
        (("reproduce", "DATA", "--seeds", "²"), "seeds are written as"),
        (("reproduce", "DATA", "--seeds", "1-999999999999"), "seeds are written as"),
        (("reproduce", "DATA", "--backbone", "nope", "--records", "OUT"), "no backbone called 'nope'"),
        (("reproduce", "DATA", "--records", "DATA"), "is not a record"),
        (("reproduce", "DATA", "--records", "OUT", "--backbone-set", "wdth=1"), "no setting called 'wdth'"),
        (("demo", "--device", "tpu"), "no device"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    command: tuple[str, ...], phrase: str, own_csv: Path, walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"DATA": own_csv, "OUT": tmp_path / "out", "RUN": walk.run, "HOME": walk.home}
    named = [re.sub("|".join(places), lambda m: str(places[m[0]]), part) for part in command]
    before = left_in(walk.run)
    assert phrase.replace("DATA", str(own_csv)) in bridgemem(*named).refused()
    assert left_in(tmp_path) == []
    assert left_in(walk.run) == before


@pytest.mark.parametrize("backbone", ["popularity", "cenet"])
def test_a_backbone_trained_on_what_is_asked_about_is_refused(
    backbone: str, own_csv: Path, walk: Walk, tmp_path: Path
) -> None:
    late, tiny = tmp_path / "late.npz", TINY_CENET if backbone == "cenet" else ()
    assert bridgemem("data", "import", own_csv, "--out", late, "--valid", "0.05", "--test", "0.05").code == 0
    assert bridgemem("train", backbone, "-d", late, "-o", tmp_path / "b", *tiny).code == 0
    fit = ("-b", tmp_path / "b", *TINY_READER)
    sentence = bridgemem("fit", "-d", walk.home / "own.npz", "-o", tmp_path / "leak", *fit).refused()
    assert "trained on other events than the train split of own" in sentence
    assert not (tmp_path / "leak").exists()
    assert bridgemem("fit", "-d", late, "-o", tmp_path / "run", *fit).code == 0
    # one that came from elsewhere has no note, and nothing to compare
    (tmp_path / "b" / "trained.json").unlink()
    assert bridgemem("fit", "-d", walk.home / "own.npz", "-o", tmp_path / "elsewhere", *fit).code == 0


@pytest.mark.parametrize("seed", ["-1", "4294967296", "many"])
def test_a_seed_that_cannot_be_used_is_refused(seed: str, own_csv: Path, tmp_path: Path) -> None:
    outcome = bridgemem("train", "cenet", "-d", own_csv, "-o", tmp_path / "b", "--seed", seed)
    assert outcome.code == 2
    assert "--seed" in outcome.err
    assert left_in(tmp_path) == []


def test_a_cuda_device_that_is_not_there_is_refused(own_csv: Path, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    for command in (("train", "cenet", "-d", own_csv, "-o", tmp_path / "b"), ("demo",)):
        assert "--device cpu" in bridgemem(*command, "--device", "cuda").refused()
    assert left_in(tmp_path) == []


def test_force_replaces_a_run(run_copy: Path, own_csv: Path) -> None:
    assert (run_copy / "metrics.json").is_file()
    outcome = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run_copy, "--force", *TINY_READER)
    assert outcome.code == 0
    assert Run(run_copy).config.backbone == "recurrence"
    assert not (run_copy / "metrics.json").exists()
    assert left_in(run_copy.parent) == [run_copy.name]


def test_a_backbone_of_other_data_is_refused(walk: Walk, tmp_path: Path) -> None:
    unseen_candidates = [(f"{a}-land", r, b, t) for a, r, b, t in planted_rows()]
    larger = write_rows(tmp_path / "larger.csv", unseen_candidates)
    sentence = bridgemem("fit", "-d", larger, "-b", walk.backbone, "-o", tmp_path / "run", *TINY_READER).refused()
    assert "trained on other data" in sentence
    fewer = [row for row in planted_rows() if row[0] != ACTORS[0] != row[2]]
    smaller = write_rows(tmp_path / "smaller.csv", fewer)
    bridgemem("fit", "-d", smaller, "-b", walk.backbone, "-o", tmp_path / "run", *TINY_READER).refused()
    assert not (tmp_path / "run").exists()


# ---- the lock before test ------------------------------------------------------------------------------------------


def unevaluated(run: Path) -> Path:
    for name in ("metrics.json", "ranks.parquet"):
        (run / name).unlink()
    return run


def stays_closed(run: Path) -> str:
    """The refusal of an evaluation, after which nothing about test may lie in the run."""
    sentence = bridgemem("evaluate", run).refused()
    assert not (run / "metrics.json").exists()
    assert not (run / "ranks.parquet").exists()
    return sentence


def test_without_its_selection_a_run_keeps_test_closed(run_copy: Path) -> None:
    (unevaluated(run_copy) / "selection.json").unlink()
    assert "test stays closed" in stays_closed(run_copy)


@pytest.mark.parametrize("removed", ["static", "time"])
def test_one_selection_alone_does_not_open_test(removed: str, run_copy: Path) -> None:
    path = unevaluated(run_copy) / "selection.json"
    selections = json.loads(path.read_text())
    del selections[removed]
    path.write_text(json.dumps(selections))
    assert f"no selection under the {removed} filter" in stays_closed(run_copy)


@pytest.mark.parametrize("edit", ["choice", "figures", "grid", "lock", "no lock"])
def test_an_edited_selection_keeps_test_closed(edit: str, run_copy: Path) -> None:
    path = unevaluated(run_copy) / "selection.json"
    selections = json.loads(path.read_text())
    record = selections["time"]
    if edit == "choice":
        record["choice"]["lam"] += 0.5
    elif edit == "figures":
        record["chosen"]["mrr"] += 0.01
    elif edit == "grid":
        record["grid"][0]["mrr"] += 0.01
    elif edit == "lock":
        record["lock"] = "0" * 16
    else:
        del record["lock"]
    path.write_text(json.dumps(selections))
    assert "changed after it was locked" in stays_closed(run_copy)


def test_data_that_changed_since_the_fit_keeps_test_closed(run_copy: Path, tmp_path: Path) -> None:
    other = write_rows(tmp_path / "own.csv", planted_rows(seed=8))
    pack(load(other), unevaluated(run_copy) / "data.npz")
    assert "changed since it was fitted" in stays_closed(run_copy)
    (run_copy / "data.npz").unlink()
    assert "data.npz is missing; put a copy back" in stays_closed(run_copy)


def test_a_run_of_another_format_is_refused(run_copy: Path) -> None:
    config = run_copy / "config.toml"
    config.write_text(config.read_text().replace(f"format = {FORMAT}", "format = 999"))
    assert "another format version" in bridgemem("evaluate", run_copy).refused()


def test_an_evaluation_that_fills_the_disk_leaves_nothing_half_written(run_copy: Path) -> None:
    unevaluated(run_copy)
    before = left_in(run_copy)
    with small_files_only(1000):
        bridgemem("evaluate", run_copy).refused()
    assert left_in(run_copy) == before
    assert bridgemem("evaluate", run_copy).code == 0


def test_the_program_runs_as_a_process_of_its_own(own_csv: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "bridgemem"]
    good = subprocess.run([*program, "data", "check", own_csv, "--json"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["events"] == 600
    bad = subprocess.run([*program, "evaluate", tmp_path], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.count("\n") == 1

"""The card of a run: always there, in the form that hubs read, and true to the run's own files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bridgemem.errors import BridgeMemError, RunError, SelectionError
from bridgemem.evaluation.card import card, plain, write_card
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.tables import figure, interval
from bridgemem.events.datasets import CATALOG
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refresh import refresh
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.metrics import METRICS
from bridgemem.residuals.selection import digest
from bridgemem.runs import Run
from builders import refresh_note
from commands import TINY_READER, Walk, bridgemem, measured_rows, planted_rows, write_rows
from fits import loaded

pytest_plugins = ("small_runs",)


def front_matter(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="needs the extra 'hub', which brings a reader of YAML")
    _, head, _ = text.split("---\n", 2)
    values = yaml.safe_load(head)
    assert isinstance(values, dict)
    return values


def test_a_fitted_run_has_a_card_that_says_what_is_not_measured(recurrence_run: Path) -> None:
    text = (recurrence_run / "README.md").read_text(encoding="utf-8")
    assert text == card(Run(recurrence_run))
    assert "Not measured yet" in text
    assert "model-index" not in front_matter(text)
    assert "The test part was not read yet." in text


def test_evaluation_writes_the_card_anew(recurrence_run: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(recurrence_run, tmp_path / "run"))
    before = (run.folder / "README.md").read_text(encoding="utf-8")
    evaluate(run)
    after = (run.folder / "README.md").read_text(encoding="utf-8")
    assert after != before
    assert after == card(run)
    assert "Not measured yet" not in after


def test_every_figure_and_interval_of_the_card_is_in_the_records(walk: Walk) -> None:
    text = (walk.run / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"## By stratum.*?(?=\n## )", "", text, flags=re.DOTALL)  # those are in metrics.strata.json
    records = json.loads((walk.run / "metrics.json").read_text())["test"]
    shown = {figure(r[metric]) for r in records for metric in METRICS}
    shown |= {figure(s[who]["mrr"]) for s in selections(walk.run).values() for who in ("backbone", "chosen")}
    assert set(re.findall(r"(?<![\w.+-])1?\.\d{4}(?!\d)", text.partition("# BridgeMem")[2])) <= shown
    chosen = [r for r in records if r["method"] == "bridgemem" and r["selected_by"] == r["filter"]]
    assert len(chosen) == 2
    for r in chosen:
        row = " | ".join(["with bridgemem", *(figure(r[m]) for m in METRICS), interval(r["gain"]["mrr"])])
        assert f"| {row} |" in text


def selections(run: Path) -> dict[str, Any]:
    found = json.loads((run / "selection.json").read_text())
    assert isinstance(found, dict)
    return found


def test_the_card_names_the_choice_its_lock_the_split_and_the_fingerprint(walk: Walk) -> None:
    text, run = (walk.run / "README.md").read_text(encoding="utf-8"), Run(walk.run)
    for selection in selections(walk.run).values():
        assert selection["lock"] in text
        assert f"| {selection['choice']['lam']:g} | {selection['choice']['gate']} |" in text
    dataset = run.dataset
    label = dataset.events.clock.label
    assert run.config.fingerprint in text
    assert f"| train | {len(dataset.train)} | the beginning |" in text
    assert f"| valid | {len(dataset.valid)} | {label(dataset.valid_start)} |" in text
    assert dataset.test_start is not None
    assert f"| test | {len(dataset.test)} | {label(dataset.test_start)} |" in text
    assert f"{dataset.events.n_entities} entities" in text


def test_a_hub_reads_the_front_matter(walk: Walk) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra 'hub'")
    text = (walk.run / "README.md").read_text(encoding="utf-8")
    values = front_matter(text)
    assert {"license", "tags", "datasets", "metrics", "library_name", "model-index"} <= values.keys()
    assert values["datasets"] == ["own"]
    read = hub.ModelCard(text).data
    assert {r.metric_type for r in read.eval_results} == set(METRICS)
    records = json.loads((walk.run / "metrics.json").read_text())["test"]
    base = {r["filter"]: r["mrr"] for r in records if r["method"] == "backbone"}
    alone = [r.metric_value for r in read.eval_results if r.metric_type == "mrr" and "alone" in r.metric_name]
    assert alone == pytest.approx([base[f] for f in FILTERS], abs=1e-6)


def test_names_cannot_break_out_of_the_card(tmp_path: Path) -> None:
    name = "x]\n---\n# y <script> | `z` & \u2028\x85: [a](b) 'q' \"w\" \\"
    data = write_rows(tmp_path / "own.csv", planted_rows())
    fitted = bridgemem("fit", "-d", data, "-b", "recurrence", "-o", tmp_path / "run", *TINY_READER)
    assert fitted.code == 0, fitted.err
    config = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(config.replace('dataset = "own"', f"dataset = {json.dumps(name)}"))
    text = write_card(Run(tmp_path / "run")).read_text(encoding="utf-8")
    assert "<script>" not in text
    assert text.count("\n---\n") == 1
    assert front_matter(text)["datasets"]
    assert plain(name) in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("name", ["", "\n", "\ud800", "```", "  a  b "])
def test_a_plain_name_is_printable_and_never_empty(name: str) -> None:
    assert plain(name)
    assert plain(name).isprintable()
    assert plain(name) == plain(name).strip()


@pytest.mark.parametrize(
    "rows",
    [[], {}, 3, [None], [3], [{}], [{"mrr": "high"}]],
    ids=str,
)
def test_rows_that_are_no_records_are_left_out(rows: Any, walk: Walk, tmp_path: Path) -> None:
    run = Run(shutil.copytree(walk.run, tmp_path / "run"))
    (run.folder / "metrics.json").write_text(json.dumps({"valid": rows, **measured_rows(run)}))
    assert card(run) == card(Run(walk.run))


@pytest.mark.parametrize(
    "changed",
    [
        {"mrr": None},
        {"mrr": float("nan")},
        {"gain": {"mrr": [1]}},
        {"gain": []},
        {"filter": "odd"},
        {"split": 3},
        {"queries": "x"},
        {"method": ["x"]},
        {"subset": "part"},
    ],
    ids=str,
)
def test_a_record_with_a_wrong_value_is_left_out(changed: dict[str, Any], walk: Walk, tmp_path: Path) -> None:
    run = Run(shutil.copytree(walk.run, tmp_path / "run"))
    rows = measured_rows(run)["test"]
    (run.folder / "metrics.json").write_text(json.dumps({"test": [rows[0] | changed, *rows[1:]]}))
    without = Run(shutil.copytree(walk.run, tmp_path / "without"))
    (without.folder / "metrics.json").write_text(json.dumps({"test": rows[1:]}))
    assert card(run) == card(without)


def test_a_card_is_not_written_for_a_changed_selection(walk: Walk, tmp_path: Path) -> None:
    run = Run(shutil.copytree(walk.run, tmp_path / "run"))
    records = selections(run.folder)
    records["time"]["choice"]["lam"] = 7.0
    (run.folder / "selection.json").write_text(json.dumps(records))
    before = (run.folder / "README.md").read_bytes()
    with pytest.raises(BridgeMemError, match="locked"):
        write_card(run)
    assert (run.folder / "README.md").read_bytes() == before


def test_a_learned_residual_is_shown_next_to_the_paper_s_one(own_csv: Path, tmp_path: Path) -> None:
    few = ("--learned-set", "epochs=1")
    run = tmp_path / "run"
    fitted = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER, "--residual", "learned", *few)
    assert fitted.code == 0, fitted.err
    assert "learned one, fitted without a filter" in (run / "README.md").read_text(encoding="utf-8")
    evaluate(Run(run))
    assert (run / "README.md").read_text(encoding="utf-8").count("| with the learned one |") == len(FILTERS)


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        ("recurrence", "at most its number of epochs, or settings of single relations, were chosen on validation"),
        ("hri", "at most its number of epochs, or settings of single relations, were chosen on validation"),
        ("stored", "is its maker's word"),
        ("of-another-package", "is its maker's word"),
    ],
)
def test_the_card_claims_no_more_of_the_backbone_than_is_known(
    backbone: str, said: str, recurrence_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(recurrence_run, tmp_path / "run")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('backbone = "recurrence"', f'backbone = "{backbone}"'))
    text = card(Run(run))
    assert said in text
    assert "The backbone was trained" not in text


@pytest.mark.parametrize(("name", "parts"), [("icews14", 3), ("gdelt", 2)])
def test_the_card_of_a_named_data_set_takes_its_sizes_from_the_catalogue(
    name: str, parts: int, recurrence_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(recurrence_run, tmp_path / "run")
    (run / "data.npz").unlink()
    config = (run / "config.toml").read_text().replace('dataset = "own"', f'dataset = "{name}"')
    if parts == 2:
        config = re.sub(r"test_start = \d+", "test_start = -1", config)
    (run / "config.toml").write_text(config)
    text, known = card(Run(run)), CATALOG[name]
    assert f"{known.entities:,} entities" in text
    assert known.source in text
    assert f"| train | {known.train:,} |" in text
    assert ("| test |" in text) == (parts == 3)
    assert ("no test part" in text) == (parts == 2)
    assert "carries its data" not in text


def test_the_card_of_a_refreshed_run_says_when_it_was_and_over_what(recurrence_run: Path, tmp_path: Path) -> None:
    with EventStore(tmp_path / "wire.duckdb") as store:
        LiveForecaster(loaded(recurrence_run), store).add([("Arvan", "visit", "Nova", "2024-02-10")], "wire", "1")
        run = Run(refresh(Run(recurrence_run), store, tmp_path / "new").run)
    text, (note,) = (run.folder / "README.md").read_text(encoding="utf-8"), run.refreshes()
    assert f"{note.when} over `wire.duckdb`, 1 events added, 0 taken back" in text
    assert "were chosen on the validation part of the run that was fitted" in text
    assert "chosen on validation;" not in text
    assert "no test part: all figures" not in text
    assert f"| valid | {len(run.dataset.valid)} |" in text
    assert "refreshed" not in card(Run(recurrence_run))


def test_the_card_of_a_refreshed_named_data_set_counts_what_the_run_knows(recurrence_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(recurrence_run, tmp_path / "run")
    config = (run / "config.toml").read_text().replace('dataset = "own"', 'dataset = "icews14"')
    (run / "config.toml").write_text(config)
    (run / "refresh.json").write_text(json.dumps([refresh_note()]))
    text = card(Run(run))
    assert f"| train | {len(Run(run).dataset.train)} |" in text
    assert f"{CATALOG['icews14'].source}, and what was added since" in text


@pytest.mark.parametrize("where", ["figure", "time"])
def test_values_that_no_fit_writes_are_one_sentence_even_under_a_fresh_lock(
    where: str, recurrence_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(recurrence_run, tmp_path / "run")
    if where == "time":
        config = (run / "config.toml").read_text()
        (run / "config.toml").write_text(re.sub(r"valid_start = \d+", "valid_start = 10000000000000", config))
    else:
        records = selections(run)
        records["time"]["backbone"]["mrr"] = "high"
        records["time"]["lock"] = digest(records["time"])
        (run / "selection.json").write_text(json.dumps(records))
    with pytest.raises((RunError, SelectionError), match=r"no fit writes|backbone\.mrr must be a number"):
        card(Run(run))

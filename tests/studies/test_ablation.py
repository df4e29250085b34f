"""Ablations: one record a change and filter, each measured as the selected residual was, with one thing changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tools.ablations import LEARNED, STEPS, WITHOUT, groups_table, steps_table

from bridgemem.config import Settings
from bridgemem.errors import RunError, SelectionError, SettingsError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.records import Record
from bridgemem.residuals.features import GROUPS
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.scoring import Choice
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.studies import ablation
from bridgemem.studies.ablation import ablate, ablate_learned, choice_changes, learned_changes, settings_changes
from commands import TINY_READER, bridgemem, measured_rows

pytest_plugins = ("small_runs",)

WEIGHED = [
    "reader=count",
    "reader=neural",
    "shrinkage=none",
    "gate=none",
    "gate=uncertain",
    *(f"tau={t}" for t in (1, 10, 100, 1000)),
    *(f"lambda={x}" for x in (0.1, 0.25, 0.5, 1, 2, 4, 10, 20)),
]
REFITTED = [
    "direction=none",
    "bins=none",
    "pooling=mean",
    *(f"k={k}" for k in (1, 2, 4, 16, 32)),
    *(f"window={w}" for w in (7, 30, 180, "all")),
]


@pytest.fixture(scope="module")
def run(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An evaluated run whose residual is in use under both filters."""
    opened = Run(shutil.copytree(recurrence_run, tmp_path_factory.mktemp("ablation") / "run"))
    evaluate(opened)
    assert all(opened.selection(name).choice.lam > 0 for name in SELECTION_FILTERS)
    return opened


@pytest.fixture(scope="module")
def records(run: Run) -> list[Record]:
    return ablate(run)


def measured(run: Run, method: str, filter_name: str, split: str = "test") -> dict[str, Any]:
    wanted = None if method == "backbone" else filter_name
    (row,) = (r for r in measured_rows(run)[split] if (r["filter"], r["selected_by"]) == (filter_name, wanted))
    return row


def one(records: list[Record], label: str, filter_name: str) -> Record:
    (found,) = (r for r in records if (r.method, r.filter) == (f"ablation:{label}", filter_name))
    return found


def figures(record: Record) -> list[float]:
    return [record.mrr, record.hits1, record.hits3, record.hits10]


def test_every_change_has_one_record_under_every_filter(records: list[Record]) -> None:
    for name in SELECTION_FILTERS:
        labels = [r.method for r in records if r.filter == name]
        assert sorted(labels) == sorted(f"ablation:{label}" for label in [*WEIGHED, *REFITTED, "history=frozen"])
    assert all(r.selected_by == r.filter for r in records)
    assert len({r.key() for r in records}) == len(records)


@pytest.mark.parametrize("name", SELECTION_FILTERS)
def test_a_change_to_what_was_selected_changes_nothing(run: Run, records: list[Record], name: str) -> None:
    choice, own = run.selection(name).choice, measured(run, "bridgemem", name)
    unchanged = [label for label, changed in choice_changes(choice).items() if changed == choice]
    assert {f"lambda={choice.lam:g}", f"gate={choice.gate}"} <= set(unchanged)
    for label in unchanged:
        record = one(records, label, name)
        assert figures(record) == [own[m] for m in ("mrr", "hits1", "hits3", "hits10")]
        assert record.gain == own["gain"]
        assert record.lock == own["lock"]
        settings = {name: value for name, value in own["settings"].items() if name != "steps"}
        assert record.settings == {**settings, "change": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize(
    "label", ["reader=neural", "shrinkage=none", "lambda=20", "direction=none", "bins=none", "k=1", "window=7"]
)
def test_a_change_moves_the_figures(run: Run, records: list[Record], label: str) -> None:
    changed = [one(records, label, name).mrr for name in SELECTION_FILTERS]
    assert changed != [measured(run, "bridgemem", name)["mrr"] for name in SELECTION_FILTERS]


def test_windows_beyond_the_log_are_the_whole_past(records: list[Record]) -> None:
    for name in SELECTION_FILTERS:
        assert figures(one(records, "window=180", name)) == figures(one(records, "window=all", name))


@pytest.mark.parametrize("name", SELECTION_FILTERS)
def test_a_vanishing_lambda_approaches_the_backbone(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "LAMBDAS", (1e-12,))
    monkeypatch.setattr(ablation, "settings_changes", lambda settings: {})
    base = measured(run, "backbone", name)
    tiny = one(ablate(run), "lambda=1e-12", name)
    # only candidates that the backbone holds equal are told apart by so little
    assert abs(tiny.mrr - base["mrr"]) < abs(measured(run, "bridgemem", name)["mrr"] - base["mrr"])
    assert abs(tiny.mrr - base["mrr"]) < 0.02
    assert tiny.gain["mrr"][0] == pytest.approx(tiny.mrr - base["mrr"])


def test_records_say_what_was_changed(records: list[Record]) -> None:
    assert one(records, "k=1", "time").settings["k"] == 1
    assert one(records, "window=all", "time").settings["window"] == 0
    assert one(records, "tau=10", "static").settings["tau"] == 10
    assert one(records, "lambda=20", "static").settings["lambda"] == 20
    assert one(records, "reader=neural", "time").settings["tau"] == "inf"
    assert one(records, "gate=none", "time").settings["gate"] == "none"
    histories = {r.method: r.history for r in records}
    assert histories.pop("ablation:history=frozen") == "frozen"
    assert set(histories.values()) == {"rolling"}
    json.dumps([vars(r) for r in records], allow_nan=False)


def test_seconds_are_told_of_the_run_s_own_fit_only(run: Run, records: list[Record]) -> None:
    for label in WEIGHED:
        assert one(records, label, "time").fit_seconds == run.config.select_fit_seconds
    for label in REFITTED:
        assert one(records, label, "time").fit_seconds is None


def test_validation_can_be_ablated_without_a_look_at_test(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "settings_changes", lambda settings: {"k=1": replace(settings, k=1)})
    found = ablate(run, run.dataset.without_test(), "valid")
    assert [figures(r) for r in ablate(run, split="valid")] == [figures(r) for r in found]
    for name in SELECTION_FILTERS:
        selection = run.selection(name)
        assert one(found, f"lambda={selection.choice.lam:g}", name).mrr == selection.chosen.mrr


def test_a_frozen_run_is_changed_under_its_own_history(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = bridgemem(
        "fit", "-d", own_csv, "-b", "recurrence", "-o", tmp_path / "run", "--history", "frozen", *TINY_READER
    )
    assert fitted.code == 0, fitted.err
    run = Run(tmp_path / "run")
    evaluate(run)
    monkeypatch.setattr(ablation, "settings_changes", lambda settings: {})
    found = ablate(run)
    for name in SELECTION_FILTERS:
        assert (
            one(found, f"gate={run.selection(name).choice.gate}", name).mrr == measured(run, "bridgemem", name)["mrr"]
        )
        assert one(found, "history=rolling", name).history == "rolling"
    assert all(r.history == "frozen" for r in found if r.method != "ablation:history=rolling")


def test_test_stays_closed_without_a_selection(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Run(shutil.copytree(run.folder, tmp_path / "run"))
    (copy.folder / "selection.json").unlink()
    monkeypatch.setattr(Run, "dataset", property(lambda self: pytest.fail("the data was opened")))
    with pytest.raises(SelectionError, match="test stays closed"):
        ablate(copy)


def test_settings_that_are_the_run_s_own_are_no_change() -> None:
    assert list(settings_changes(Settings())) == REFITTED
    bare = Settings(directions=False, bins=(), pooling="mean", k=4, window=0)
    assert list(settings_changes(bare)) == [
        *(f"k={k}" for k in (1, 2, 8, 16, 32)),
        *(f"window={w}" for w in (7, 30, 65, 180)),
    ]
    assert list(choice_changes(Choice())) == WEIGHED


# --- the learned residual --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned_run(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("learned") / "run"
    done = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", folder, *TINY_READER, "--residual", "learned")
    assert done.code == 0, done.err
    return Run(folder)


def test_the_tables_know_every_change_of_the_learned_residual() -> None:
    labels = list(learned_changes(LearnedSettings()))
    assert [label for label in labels if label.startswith(WITHOUT)] == [f"{WITHOUT}{group}" for group in GROUPS]
    assert sorted(label for label in labels if not label.startswith(WITHOUT)) == sorted(STEPS)


def test_every_step_reads_more_than_the_one_before() -> None:
    changes = learned_changes(LearnedSettings())
    ladder = [*(changes[label] for label in STEPS), LearnedSettings()]
    assert [set(settings.without) for settings in ladder] == [
        {"common_neighbours", "actor"},
        {"common_neighbours"},
        set(),
        set(),
    ]
    assert [settings.unseen_candidates > 0 for settings in ladder] == [False, False, False, True]


def test_no_change_reads_a_group_that_the_run_left_out() -> None:
    changes = learned_changes(LearnedSettings(without=("pair",)))
    assert all("pair" in changed.without for changed in changes.values())
    assert set(changes["plain"].without) == {"pair", "common_neighbours", "actor"}


def test_each_change_of_the_learned_residual_is_fitted_and_read_under_every_filter(
    learned_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = {"without nothing": lambda settings: settings}
    changed = {"plain": lambda settings: learned_changes(settings)["plain"], **as_it_is}
    monkeypatch.setattr(
        ablation, "learned_changes", lambda settings: {label: make(settings) for label, make in changed.items()}
    )
    whole = [r for r in evaluate(learned_run) if r.method == "learned" and r.as_chosen]
    found = ablate_learned(learned_run)
    assert sorted((r.method, r.filter, r.selected_by) for r in found) == sorted(
        (f"{LEARNED}{label}", name, name) for label in changed for name in SELECTION_FILTERS
    )
    for name in SELECTION_FILTERS:
        (own,) = (r for r in whole if r.filter == name)
        same = one(found, "learned=without nothing", name)
        # fitted anew from the same settings and seed it is the same residual
        assert figures(same) == figures(own)
        assert same.gain == own.gain
        assert same.lock == own.lock
        assert one(found, "learned=plain", name).settings["unseen_candidates"] == 0
        records = [*whole, *found]
        assert [row[1:] for row in groups_table(records, name).rows][1][1] == "+0.0000"
        assert len(steps_table(records, name).rows) == len(STEPS) + 2


def test_a_learned_residual_is_changed_only_where_there_is_one_and_only_on_test(run: Run, learned_run: Run) -> None:
    with pytest.raises(RunError, match="has no learned residual"):
        ablate_learned(run)
    with pytest.raises(SettingsError, match="read on test only"):
        ablate_learned(learned_run, split="valid")

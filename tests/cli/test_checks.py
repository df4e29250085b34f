"""`bridgemem ablate`, `compare` and `audit`: what they print, how they end, and what they refuse."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bridgemem.backbones import BACKBONES, Entry
from bridgemem.backbones.recurrence import Recurrence
from bridgemem.backbones.scorer import Scores
from bridgemem.evaluation.records import read_records
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.studies import ablation
from commands import TINY_READER, Walk, bridgemem, planted_rows, write_rows

pytest_plugins = ("small_runs",)


@pytest.fixture(autouse=True)
def few_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "KS", (1,))
    monkeypatch.setattr(ablation, "WINDOWS", (7,))


@pytest.fixture(scope="module")
def evaluated(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Path(shutil.copytree(recurrence_run, tmp_path_factory.mktemp("checks") / "run"))
    assert bridgemem("evaluate", run).code == 0
    return run


@pytest.fixture(scope="module")
def learned_run(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with both residuals, evaluated."""
    run = tmp_path_factory.mktemp("learned") / "run"
    fitted = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER, "--residual", "learned")
    assert fitted.code == 0, fitted.err
    assert bridgemem("evaluate", run).code == 0
    return run


def printed(value: float) -> str:
    return f"{value:.4f}".replace("0.", ".", 1)


def test_ablations_are_printed_filter_by_filter_against_the_selected_residual(evaluated: Path) -> None:
    found = bridgemem("ablate", evaluated, "--json").json["records"]
    text = bridgemem("ablate", evaluated).out
    assert text.index("Static filter") < text.index("Time-aware filter")
    lines = text.splitlines()
    metrics = json.loads((evaluated / "metrics.json").read_text())["test"]
    for name in SELECTION_FILTERS:
        (own,) = (r["mrr"] for r in metrics if (r["filter"], r["selected_by"]) == (name, name))
        assert ["as", "selected", f"{own:.4f}".replace("0.", ".")] in [line.split() for line in lines]
        for row in (r for r in found if r["filter"] == name):
            label = row["method"].removeprefix("ablation:")
            cells = [label, f"{row['mrr']:.4f}".replace("0.", "."), f"{row['mrr'] - own:+.4f}"]
            assert cells in [line.split()[:3] for line in lines]
    assert sum(line.startswith("k=1 ") for line in lines) == 2


def test_ablations_are_recorded_only_where_asked(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bridgemem("ablate", evaluated, "--json").code == 0
    assert list(tmp_path.iterdir()) == []
    found = bridgemem("ablate", evaluated, "--records", "records.jsonl", "--json").json["records"]
    assert [vars(r) for r in read_records(tmp_path / "records.jsonl")] == found
    assert bridgemem("ablate", evaluated, "--records", "records.jsonl").code == 0
    assert len(read_records(tmp_path / "records.jsonl")) == len(found)
    shown = bridgemem("report", "records.jsonl", "--filter", "time").out
    assert "Time-aware filter, " in shown
    assert "as selected" in shown
    assert "Static" not in shown
    bridgemem("evaluate", evaluated, "--records", "records.jsonl")
    mixed = bridgemem("report", "records.jsonl", "--filter", "time").out
    assert "gain in MRR [95 %]" in mixed
    assert "difference [95 %]" in mixed
    assert bridgemem("ablate", evaluated, "-o", "table.tex").code == 0
    assert "as selected" in Path("table.tex").read_text()
    assert "exists" in bridgemem("ablate", evaluated, "-o", "table.tex").refused()


@pytest.mark.parametrize(
    ("method", "recorded", "first"), [("bridgemem", "bridgemem", "as selected"), ("learned", "learned", "as learned")]
)
def test_each_residual_is_held_against_its_own_figures(
    method: str, recorded: str, first: str, learned_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ("without pair", "plain")
    changes = ablation.learned_changes
    monkeypatch.setattr(ablation, "learned_changes", lambda settings: {k: changes(settings)[k] for k in kept})
    monkeypatch.setattr(ablation, "settings_changes", lambda settings: {})
    found = bridgemem("ablate", learned_run, "--residual", method, "--json").json["records"]
    assert {r["method"].startswith("ablation:learned=") for r in found} == {method == "learned"}
    lines = [line.split("  ") for line in bridgemem("ablate", learned_run, "--residual", method).out.splitlines()]
    rows = [[cell.strip() for cell in line if cell] for line in lines]
    metrics = json.loads((learned_run / "metrics.json").read_text())["test"]
    for name in SELECTION_FILTERS:
        shown = (r for r in metrics if (r["method"], r["filter"]) == (recorded, name))
        (own,) = (r["mrr"] for r in shown if r["selected_by"] in (name, "raw"))
        assert [first, printed(own)] in rows
        for r in (r for r in found if r["filter"] == name):
            label = r["method"].removeprefix("ablation:").removeprefix("learned=")
            assert any(
                row[:2] == [label, printed(r["mrr"])] and row[2].startswith(f"{r['mrr'] - own:+.4f} [")
                for row in rows
                if len(row) > 2
            )


def test_a_learned_residual_that_is_not_there_is_not_ablated(
    evaluated: Path, learned_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation, "ablate_learned", lambda *_: pytest.fail("the long part began"))
    assert "no learned residual" in bridgemem("ablate", evaluated, "--residual", "learned").refused()
    assert "bridgemem or learned, not 'magic'" in bridgemem("ablate", learned_run, "--residual", "magic").refused()


def test_ablations_of_what_was_not_evaluated_are_refused_first(
    recurrence_run: Path, evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation, "ablate", lambda *_: pytest.fail("the long part began"))
    assert "has not been evaluated" in bridgemem("ablate", recurrence_run).refused()
    assert "not been evaluated on valid" in bridgemem("ablate", evaluated, "--split", "valid").refused()
    assert "'train'" in bridgemem("ablate", evaluated, "--split", "train").refused()
    assert "no run at" in bridgemem("ablate", tmp_path).refused()
    (tmp_path / "records.jsonl").write_text("not json\n")
    assert "line 1" in bridgemem("ablate", evaluated, "--records", tmp_path / "records.jsonl").refused()
    damaged = shutil.copytree(evaluated, tmp_path / "damaged")
    (damaged / "metrics.json").write_text('{"test": [1]}')
    assert "damaged" in bridgemem("ablate", damaged).refused()


def test_test_is_not_ablated_without_a_selection(evaluated: Path, tmp_path: Path) -> None:
    run = shutil.copytree(evaluated, tmp_path / "run")
    (run / "selection.json").unlink()
    assert "test stays closed" in bridgemem("ablate", run).refused()


def test_two_runs_are_compared_metric_by_metric(evaluated: Path, own_csv: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    assert bridgemem("fit", "-d", own_csv, "-b", "popularity", "-o", other, *TINY_READER).code == 0
    assert bridgemem("evaluate", other).code == 0
    found = bridgemem("compare", evaluated, other, "--json").json["differences"]
    assert len(found) == 2 * 3 * 4  # backbone and bridgemem, under each filter, in each metric
    outcome = bridgemem("compare", evaluated, other)
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines()]
    heading = {"mrr": "MRR", "hits1": "H@1", "hits3": "H@3", "hits10": "H@10"}
    for d in found:
        gain = d["gain"]
        interval = f"{gain['value']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]".split()
        figures = [f"{d[side]:.4f}".replace("0.", ".", 1) for side in ("first", "second")]
        assert [f"{d['method']}:", heading[d["metric"]], *figures, *interval, f"{d['p_holm']:.4f}"] in lines


def test_runs_on_other_data_are_not_compared(evaluated: Path, recurrence_run: Path, tmp_path: Path) -> None:
    other, data = tmp_path / "run", write_rows(tmp_path / "own.csv", planted_rows(8))
    assert bridgemem("fit", "-d", data, "-b", "recurrence", "-o", other, *TINY_READER).code == 0
    assert bridgemem("evaluate", other).code == 0
    assert "the runs differ in fingerprint" in bridgemem("compare", evaluated, other).refused()
    assert "was not evaluated on test" in bridgemem("compare", evaluated, recurrence_run).refused()
    assert "neither a run nor a trained backbone at" in bridgemem("compare", evaluated, tmp_path).refused()
    assert "'all'" in bridgemem("compare", evaluated, evaluated, "--split", "all").refused()


def test_runs_with_other_histories_are_not_compared(evaluated: Path, own_csv: Path, tmp_path: Path) -> None:
    frozen = tmp_path / "run"
    assert (
        bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", frozen, "--history", "frozen", *TINY_READER).code == 0
    )
    assert bridgemem("evaluate", frozen, "--json").code == 0
    assert "the runs differ in history" in bridgemem("compare", evaluated, frozen).refused()


def test_a_clean_run_passes_its_audit(evaluated: Path, walk: Walk) -> None:
    for run in (evaluated, walk.run):
        outcome = bridgemem("audit", run, "--steps", "2")
        lines = outcome.out.splitlines()
        assert (outcome.code, lines[-1]) == (0, "pass"), outcome.out
        assert all(line.startswith("shown  ") for line in lines[:-1])
    found = bridgemem("audit", evaluated, "--json").json
    assert found["passed"]
    assert len(found["findings"]) == len(lines) - 1
    assert any("5 steps" in finding["seen"] for finding in found["findings"])
    sampled = bridgemem("audit", evaluated, "--steps", "1", "--sample", "9")
    assert (sampled.code, sampled.out.splitlines()[-1]) == (0, "nothing failed, 1 not checkable")
    assert "not checkable  validation grid: not checked with --sample" in sampled.out


class SeesNow(Recurrence):
    """Reads the labels of the very step it is asked about."""

    name = "sees-now"

    def score(self, queries: Queries, past: Past) -> Scores:
        return super().score(Queries(queries.actor, queries.relation, queries.step + 1), past)


def test_a_run_on_a_backbone_that_reads_the_labels_fails_its_audit(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKBONES, "sees-now", Entry(__name__, "SeesNow", "a cheat", trained=False))
    run = tmp_path / "run"
    assert bridgemem("fit", "-d", own_csv, "-b", "sees-now", "-o", run, *TINY_READER).code == 0
    assert bridgemem("evaluate", run).code == 0
    outcome = bridgemem("audit", run)
    lines = outcome.out.splitlines()
    assert (outcome.code, lines[-1], outcome.err) == (1, "fail", "")
    (caught,) = (line for line in lines if line.startswith("NOT SHOWN"))
    assert caught.startswith("NOT SHOWN  backbone blind to the future")
    as_json = bridgemem("audit", run, "--json")
    assert as_json.code == 1
    assert not json.loads(as_json.out)["passed"]


def test_an_edited_run_fails_its_audit(evaluated: Path, tmp_path: Path) -> None:
    run = shutil.copytree(evaluated, tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["test"][0]["mrr"] += 0.001
    (run / "metrics.json").write_text(json.dumps(metrics))
    outcome = bridgemem("audit", run, "--steps", "1")
    assert outcome.code == 1
    (caught,) = (line for line in outcome.out.splitlines() if line.startswith("NOT SHOWN"))
    assert caught.startswith("NOT SHOWN  metrics from ranks")


@pytest.mark.parametrize(
    ("forged", "mark", "said"),
    [
        ({}, "not checkable", "of learned is not checkable"),
        ({"bridgemem": 0.01}, "NOT SHOWN", "do not come out again"),
        ({"gain": [0.5, 0.4, 0.6]}, "NOT SHOWN", "is not the difference"),
        (None, "not checkable", "does not say how its residuals did"),
    ],
)
def test_what_preferred_a_residual_is_checked_as_far_as_it_is_kept(
    learned_run: Path, tmp_path: Path, forged: dict[str, Any] | None, mark: str, said: str
) -> None:
    run = Path(shutil.copytree(learned_run, tmp_path / "run"))
    values = json.loads((run / "epochs.json").read_text())
    (fit,) = (fit for fit in values["learned"].values() if "time" in fit["held_out"])
    held = fit["held_out"].pop("time")
    if forged is not None:
        fit["held_out"]["time"] = {**held, **forged}
    (run / "epochs.json").write_text(json.dumps(values))
    outcome = bridgemem("audit", run, "--steps", "1")
    (line,) = (line for line in outcome.out.splitlines() if "preferred residual (time)" in line)
    assert line.startswith(mark)
    assert said in line
    assert outcome.code == (1 if mark == "NOT SHOWN" else 0), outcome.out


def test_audits_that_cannot_begin_are_refused(evaluated: Path, tmp_path: Path) -> None:
    assert "no run at" in bridgemem("audit", tmp_path).refused()
    assert "'train'" in bridgemem("audit", evaluated, "--split", "train").refused()
    for option in ("--steps", "--sample"):
        assert bridgemem("audit", evaluated, option, "0").code == 2


def test_data_without_test_is_checked_on_validation(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bridgemem.config import write_toml
    from bridgemem.runs import Run
    from bridgemem.storage.files import read_config

    run = tmp_path / "run"
    assert bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER).code == 0
    opened = Run(run)
    dataset = opened.dataset.without_test()
    tables = read_config(run)
    tables["run"] |= {"fingerprint": dataset.events.fingerprint, "test_start": -1}
    tables["identity"] = {**asdict(dataset.identity), "digest": dataset.identity.digest}
    (run / "config.toml").write_text(write_toml(tables))
    monkeypatch.setattr(Run, "dataset", dataset)
    assert bridgemem("evaluate", run).code == 0
    for command in (("ablate", run), ("compare", run, run), ("audit", run)):
        outcome = bridgemem(*command)
        assert "own has no test split; using its validation split." in outcome.err
        assert outcome.code == 0, outcome.out

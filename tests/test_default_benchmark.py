"""The benchmark of the default model: processes that are measured one by one, their records, ratio and figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("benchmarks", reason="needs benchmarks/ of the repository; run python -m pytest there")

from benchmarks import default, former
from benchmarks import references as plain
from benchmarks.bench import load
from benchmarks.cost import PUBLISHED, draw, own_rows
from benchmarks.default import Cost
from benchmarks.harness import Row, read_rows
from benchmarks.machine import Machine

from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.evaluation.evaluate import evaluate_backbone
from bridgemem.evidence.transitions import Transitions

pytest_plugins = ("small_runs",)
MACHINE: dict[str, Any] = {
    "device": "cpu 2 threads",
    "threads": 2,
    "matmul": 1.0,
    "bandwidth": 1.0,
    "python": "3",
    "torch": "2",
}


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "measure", lambda: Machine(**MACHINE))


def test_a_file_is_fitted_and_evaluated_in_processes_of_their_own(own_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench.jsonl"
    arguments = ["--data", str(own_csv), "--out", str(out), "--figure", str(tmp_path / "cost.svg")]
    assert default.main(arguments) == 0
    rows = read_rows(out)
    assert [row.operation for row in rows] == ["default model, fit", "default model, evaluation"]
    for row in rows:
        assert row.seconds is not None
        assert 0 < row.figures["mrr"] <= 1
        assert row.figures["processor_seconds"] > 0
        assert row.peak_bytes > 50e6, "an interpreter with torch takes more"


def test_a_command_that_fails_is_told_and_leaves_no_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.jsonl"
    assert default.main(["--data", str(tmp_path / "none.csv"), "--out", str(out)]) == 2
    assert "ended with 2; nothing was recorded" in capfd.readouterr().err
    assert not out.exists()


def test_times_are_means_and_memory_is_the_highest() -> None:
    assert Cost.mean([Cost(1.0, 2.0, 30), Cost(3.0, 4.0, 10)]) == Cost(2.0, 3.0, 30)


def row(operation: str, mrr: float, processor: float, dataset: str = "icews14") -> Row:
    cost = Cost(processor / 2, processor, 10**9)
    return default.row_of(operation, dataset, cost, mrr, machine=MACHINE, note="")


def test_the_ratio_to_the_former_fit_is_told_with_what_it_gains() -> None:
    said = default.against_former(row("default model, fit", 0.4731, 100.0), row(default.FORMER, 0.46, 900.0))
    assert said.startswith("icews14: 9.0 times fewer processor seconds")
    assert "MRR +0.0131 (0.4731 and 0.4600)" in said


def test_the_figure_names_what_others_published(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plots'")
    rows = [row("default model, fit", 0.47, 100.0), row("default model, evaluation", 0.47, 9.0)]
    rows += [row("default model, fit", 0.6, 60.0, "own"), replace(rows[0], dataset="gpu", machine={"device": "cuda"})]
    assert [r.dataset for r in own_rows(rows)] == ["icews14", "own"]
    assert draw(rows, tmp_path / "cost.svg")
    text = (tmp_path / "cost.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {point.name}" in text for point in PUBLISHED["icews14"])
    assert "<!-- own -->" in text


def test_the_former_fit_ranks_as_the_backbone_until_it_has_learned() -> None:
    dataset = load("tiny", None)
    backbone, settings = RecurrenceDyadic.fit(dataset.without_test()), plain.PlainSettings()
    transitions, _ = Transitions.fit(dataset.known, former.Settings(width=8, hidden=8), 42, epochs=1)
    queries = former.Queries.of(dataset.valid).take(slice(0, 200))
    cases = plain.learned_cases(dataset, backbone, transitions, queries, "time", former.UNSEEN)
    zero = torch.zeros(cases[0].x.shape[1])
    net = plain.PlainLearned(2 * dataset.events.n_relations, zero, zero + 1, settings).eval()
    expected = next(r.mrr for r in evaluate_backbone("recurrence-dyadic", dataset) if r.filter == "time")
    assert former.mrr(net, dataset, backbone, transitions) == pytest.approx(expected, abs=1e-4)
    fitted, curve = plain.train_learned(cases, cases, 2 * dataset.events.n_relations, settings, seed=1, epochs=2)
    assert curve[1] < curve[0]
    assert former.mrr(fitted, dataset, backbone, transitions) > expected

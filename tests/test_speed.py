"""The benchmarks: they run from end to end, their floors and ratios make sense, and a failure shows."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("benchmarks", reason="needs benchmarks/ of the repository; run python -m pytest there")

from benchmarks import __main__ as command
from benchmarks import dense_cenet, fitting, floors, harness, references, report, scoring
from benchmarks.bench import Bench, load
from benchmarks.harness import Measured, Row, Timing, run_row, timed
from benchmarks.machine import Machine, Peak, measure
from benchmarks.references import Sampled

ROOT = Path(__file__).resolve().parents[1]
MACHINE = Machine("cpu 1 threads", 1, matmul=1e9, bandwidth=1e8, python="3", torch="2")


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(load("tiny", None), budget=0.2)


def rows_of(path: Path) -> dict[str, Row]:
    return {row.operation: row for row in harness.read_rows(path)}


# --- from end to end -------------------------------------------------------------------------------------------------


def test_every_row_of_a_tiny_world_is_measured_and_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # rates that no machine reaches, so that the comparison below holds however busy this one is
    monkeypatch.setattr(command, "measure", lambda device: replace(MACHINE, matmul=1e15, bandwidth=1e14))
    names = [name for name in command.ROWS if name not in ("cenet-training", "import", "help")]
    arguments = ["--datasets", "tiny", "--only", ",".join(names), "--out", str(tmp_path / "bench.jsonl")]
    assert command.main([*arguments, "--reference-seconds", "0.2"]) == 0
    rows = rows_of(tmp_path / "bench.jsonl")
    assert list(rows) == [command.ROWS[name][0] for name in names]
    for row in rows.values():
        assert row.seconds is not None
        assert row.agrees
        assert row.agreement, row.operation
        assert row.floor_seconds is not None
        assert 0 < row.floor_seconds < row.seconds, f"{row.operation} cannot be faster than its floor"
        assert row.reference_seconds is not None
        assert row.ratios["reference"] == pytest.approx(row.reference_seconds / row.seconds)
    printed = capsys.readouterr().out
    assert all(row.operation in printed for row in rows.values())
    assert report.main([str(tmp_path / "bench.jsonl"), "--out", str(tmp_path)]) == 0
    written = (tmp_path / "speed.md").read_text(encoding="utf-8")
    assert sum(line.startswith("| tiny |") for line in written.splitlines()) == len(rows)


def test_the_starting_rows_say_how_long_a_user_waits(tmp_path: Path) -> None:
    assert command.main(["--datasets", "tiny", "--only", "import", "--out", str(tmp_path / "b.jsonl")]) == 0
    (row,) = harness.read_rows(tmp_path / "b.jsonl")
    assert (row.dataset, row.operation) == ("", "import bridgemem")
    assert "0.2 s" in row.agreement


def test_a_gpu_that_is_not_there_is_said_in_a_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks: there is no GPU")


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--only", "idnex"], "no row called 'idnex'"), (["--datasets", "nowhere"], "nowhere")]
)
def test_bad_input_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*arguments, "--out", "unused"]) == 2
    assert said in capsys.readouterr().err


# --- a failure shows -------------------------------------------------------------------------------------------------


def test_a_row_that_breaks_is_printed_with_its_reason_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(bench: Bench) -> Measured:
        raise RuntimeError("no such luck")

    monkeypatch.setitem(command.ROWS, "mining", ("example mining", broken))
    out = tmp_path / "bench.jsonl"
    assert command.main(["--datasets", "tiny", "--only", "mining,counts", "--out", str(out)]) == 1
    rows = rows_of(out)
    assert rows["example mining"].error == "RuntimeError: no such luck"
    assert not rows["count table"].failed
    assert "FAILED" in capsys.readouterr().out
    assert "FAILED" in report.page(list(rows.values()))


def test_a_row_that_runs_too_long_is_stopped() -> None:
    def endless() -> Measured:
        while True:
            time.sleep(0.01)

    row = run_row("waiting", "tiny", endless, MACHINE, limit=0.1)
    assert row.error is not None
    assert "past its limit of 0.1 s" in row.error


@pytest.mark.parametrize("wrong", ["pair_index", "mine", "count_table", "dense_ranks"])
def test_a_disagreement_is_a_failure(wrong: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(references, wrong)

    def changed(*arguments: object) -> object:
        found = right(*arguments)
        if wrong == "pair_index":
            found[next(iter(found))][0, 1] += 1
        elif wrong == "mine":
            found[1][0] += 1
        else:
            found.ravel()[0] += 1
        return found

    monkeypatch.setattr(references, wrong, changed)
    row = {
        "pair_index": fitting.index_build,
        "mine": fitting.example_mining,
        "count_table": fitting.count_table,
        "dense_ranks": scoring.ranking,
    }[wrong]
    assert not row(bench).agrees


def test_another_training_is_a_disagreement(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting.epoch_selection(bench).agrees
    other = Bench(bench.dataset, budget=60.0)
    monkeypatch.setattr(references, "judge", lambda *arguments: 1.0)
    assert not fitting.epoch_selection(other).agrees


# --- figures ---------------------------------------------------------------------------------------------------------


def test_ratios_are_times_faster_and_times_above_the_floor() -> None:
    timing = Timing(seconds=2.0, runs=1, first=2.0, peak=10, added=5)
    found = Measured(timing, floors.Work(flops=5e8, bytes=1e8), Sampled.of(3.0, 0.5), paper=200.0)
    row = run_row("x", "tiny", lambda: found, MACHINE, 0)
    assert row.floor_seconds == 1.0, "the slower of .5 s of products and 1 s of memory traffic"
    assert row.ratios == {"floor": 2.0, "reference": 3.0, "paper": 100.0}
    assert "~6 s" in harness.cells(row)
    assert "100x" in harness.cells(row)


def test_parts_of_a_reference_add_up_with_the_smallest_share() -> None:
    total = Sampled.of(1.0, 0.25) + Sampled.of(2.0)
    assert (total.seconds, total.share) == (6.0, 0.25)


def test_short_work_is_warmed_up_and_long_work_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    _, timing = timed(lambda: calls.append(1), rounds=3)
    assert (len(calls), timing.runs) == (4, 3)
    monkeypatch.setattr(harness, "SHORT", 0.0)
    _, timing = timed(lambda: calls.append(1), rounds=3)
    assert (len(calls), timing.runs) == (5, 1)


def test_the_machine_measures_plausible_rates() -> None:
    machine = measure("cpu", size=128, rounds=1)
    assert 1e7 < machine.matmul < 1e15
    assert 1e7 < machine.bandwidth < 1e14


def test_the_peak_sees_memory_that_is_gone_again() -> None:
    with Peak() as peak:
        np.ones(20_000_000).sum()
    assert peak.highest >= peak.added >= 100_000_000


def test_the_head_of_icews14_costs_what_was_counted_by_hand(bench: Bench) -> None:
    space = replace(bench.space, n_relations=230)
    assert floors.head_flops(space, bench.settings) == 2 * (64 * 128 + 128 * 460)
    assert floors.reader_parameters(space, bench.settings) == 83_021


def test_distinct_states_are_counted_as_multisets() -> None:
    tokens = torch.tensor([[1, 2, 9], [2, 1, 9], [1, 2, 2], [1, 2, 9]], dtype=torch.int16)
    assert floors.distinct_share(tokens, batch=4) == 0.5


def test_records_are_replaced_by_newer_ones_of_the_same_row(tmp_path: Path) -> None:
    path = tmp_path / "records" / "bench.jsonl"
    rows = [Row("a", "tiny", MACHINE.as_dict(), 0.0, seconds=s) for s in (1.0, 2.0)]
    other = Row("b", "tiny", MACHINE.as_dict(), 0.0, seconds=3.0)
    harness.keep_rows(path, [rows[0], other])
    kept = harness.keep_rows(path, [rows[1]])
    assert [(row.operation, row.seconds) for row in kept] == [("a", 2.0), ("b", 3.0)]
    assert [json.loads(line)["seconds"] for line in path.read_text(encoding="utf-8").splitlines()] == [2.0, 3.0]


def test_the_batches_with_dense_histories_hold_every_fact_twice_and_no_lonely_one() -> None:
    assert dense_cenet.batch_bounds(201, 100) == [0, 100, 201]
    assert dense_cenet.batch_bounds(202, 100) == [0, 100, 200, 202]
    dataset = load("tiny", None)
    sides = list(dense_cenet.batches(dataset, replace(Bench(dataset).cenet_settings, batch=100)))
    assert sum(len(side.actor) for pair in sides for side in pair) == 2 * len(dataset.train)
    late = sides[-1][0]
    assert len(late.row) > 0
    assert late.count.min() >= 1


def test_the_curve_is_shown_with_its_exponents() -> None:
    point = {"queries": 500, "entities": 10, "facts": 100, "reads": 7, "calls": 3, "bytes": 2_000_000}
    point |= {"residual_bytes": 1_000_000, "largest": 500_000}
    point |= {"exponent of bytes": 0.5, "exponent of residual bytes by reads": 1.25}
    text = report.page([], [{"axis": "queries", **point}, {"axis": "facts", **point}])
    assert "| queries | 500 | 10 | 100 | 7 | 3 | 2.0 | 1.0 | 0.5 |" in text
    assert "queries 0.50, facts 0.50; of the residual's bytes by dyadic reads 1.25." in text


def test_the_page_of_results_is_what_the_records_give() -> None:
    records, written = ROOT / "results" / "bench.jsonl", ROOT / "results" / "speed.md"
    if not records.is_file():
        pytest.skip("needs results/bench.jsonl of the repository")
    assert written.read_text(encoding="utf-8") == report.page(
        harness.read_rows(records), report.read_points(ROOT / "results" / "curve.json")
    ), "write it anew: python -m benchmarks.report"

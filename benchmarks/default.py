"""`python -m benchmarks.default`: the default model from files to test metrics, as a user runs it.

Each command is a process of its own, so that its peak of memory is its own too. Rows go to results/bench.jsonl, and a
figure shows MRR against minutes next to what others published.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.bench import default_dataset
from benchmarks.cost import OPERATION, draw
from benchmarks.harness import Row, complain, duration, keep_rows, read_rows
from benchmarks.machine import load_average, measure
from bridgemem.cli.options import seeds_of
from bridgemem.errors import BridgeMemError

EVALUATION = "default model, evaluation"
FORMER = "former learned fit"


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds by the clock and of the processors, and its highest resident memory in bytes."""

    seconds: float
    processor: float
    peak: int

    @classmethod
    def mean(cls, costs: Sequence[Cost]) -> Cost:
        """Mean times, and the highest of the peaks."""
        times = (mean(c.seconds for c in costs), mean(c.processor for c in costs))
        return cls(*times, max(c.peak for c in costs))


def run(*command: str | Path) -> tuple[Cost, str]:
    """A module of this Python as a process of its own, and what it printed."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", *map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BridgeMemError(f"`{' '.join(map(str, command))}` ended with {process.returncode}; nothing was recorded.")
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * unit), said


def default_model(
    dataset: str, seed: int, data_dir: Path | None, *, home: Path, records: Path | None = None
) -> tuple[Cost, Cost, float]:
    """What fit and evaluate took, and the time-aware MRR on test of the residual that forecasts use.

    home: where the run is kept. records: the file that its figures are added to.
    """
    folder = home / f"{Path(dataset).stem}-{seed}"
    named = ("-q", *(() if data_dir is None else ("--data-dir", data_dir)))
    fitted, said = run("bridgemem", "fit", "-d", dataset, "-o", folder, "--seed", str(seed), "--json", *named)
    used = json.loads(said).get("forecasts", "bridgemem")
    kept = () if records is None else ("--records", records)
    evaluated, _ = run("bridgemem", "evaluate", folder, "--json", *kept, *named)
    found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["test"]
    own = (r["mrr"] for r in found if (r["method"], r["filter"]) == (used, "time") and r["selected_by"] != "static")
    return fitted, evaluated, next(own)


def rows(
    dataset: str, seeds: Sequence[int], data_dir: Path | None, machine: dict[str, Any], records: Path | None = None
) -> list[Row]:
    """Fit and evaluation of one data set: means over the seeds."""
    with tempfile.TemporaryDirectory() as home:
        found = [default_model(dataset, seed, data_dir, home=Path(home), records=records) for seed in seeds]
    scores = [mrr for _, _, mrr in found]
    note = f"seeds {', '.join(map(str, seeds))}: MRR {', '.join(f'{mrr:.4f}' for mrr in scores)}"
    made = []
    for operation, costs in ((OPERATION, [f for f, _, _ in found]), (EVALUATION, [e for _, e, _ in found])):
        made.append(row_of(operation, dataset, Cost.mean(costs), mean(scores), machine=machine, note=note))
    return made


def row_of(operation: str, dataset: str, cost: Cost, mrr: float, *, machine: dict[str, Any], note: str) -> Row:
    """A row of the table; what is not a time or memory of all rows is among its figures."""
    figures = {"processor_seconds": cost.processor, "mrr": mrr}
    said = f"MRR {mrr:.4f} time-aware, {cost.processor:,.0f} processor s, at most {cost.peak / 1e9:.2f} GB"
    return Row(
        operation,
        dataset,
        machine,
        load_average(),
        seconds=cost.seconds,
        runs=1,
        peak_bytes=cost.peak,
        added_bytes=cost.peak,
        agreement=said,
        note=note,
        figures=figures,
    )


def former_row(dataset: str, seed: int, data_dir: Path | None, machine: dict[str, Any]) -> Row:
    """The fit that the default replaced, under the time-aware filter alone, as a process of its own."""
    named = () if data_dir is None else ("--data-dir", data_dir)
    _, said = run("benchmarks.former", dataset, "--seed", str(seed), *named)
    found = json.loads(said)
    cost = Cost(found["seconds"], found["processor_seconds"], found["peak"])
    return row_of(FORMER, dataset, cost, found["mrr"], machine=machine, note=f"seed {seed}, {found['epochs']} epochs")


def against_former(fitted: Row, former: Row) -> str:
    """The ratio of processor seconds, and what MRR it comes with."""
    ratio = former.figures["processor_seconds"] / fitted.figures["processor_seconds"]
    gain = fitted.figures["mrr"] - former.figures["mrr"]
    return (
        f"{fitted.dataset}: {ratio:.1f} times fewer processor seconds than the former learned fit "
        f"({fitted.figures['processor_seconds']:,.0f} and {former.figures['processor_seconds']:,.0f}), "
        f"MRR {gain:+.4f} ({fitted.figures['mrr']:.4f} and {former.figures['mrr']:.4f})"
    )


def keep(path: Path, made: Sequence[Row]) -> None:
    """Print rows, and add them to the records."""
    for row in made:
        print(f"{row.dataset:11} {row.operation:26} {duration(row.seconds):>8}  {row.agreement}", flush=True)
    keep_rows(path, made)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if everything was measured, 2 for bad input or where a command failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.default", description=__doc__)
    parser.add_argument("--data", nargs="+", help="names of data sets (default: icews14 where it is at hand, or world)")
    parser.add_argument("--seeds", default="42", help="42, or 42-44; figures are means over them")
    parser.add_argument("--former", action="store_true", help="also the fit that the default replaced: many minutes")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BRIDGEMEM_DATA"), help="of the data sets")
    parser.add_argument("--out", type=Path, default=Path("results/bench.jsonl"), help="records; older are replaced")
    parser.add_argument("--records", type=Path, help="also add the figures of every run to this file")
    parser.add_argument("--figure", type=Path, default=Path("results/cost.svg"), help="MRR against minutes, *.svg")
    asked = parser.parse_args(arguments)
    try:
        seeds, machine = seeds_of(asked.seeds), measure().as_dict()
        for dataset in asked.data or [default_dataset(asked.data_dir)]:
            made = rows(dataset, seeds, asked.data_dir, machine, asked.records)
            keep(asked.out, made)
            if asked.former:
                former = former_row(dataset, seeds[0], asked.data_dir, machine)
                keep(asked.out, [former])
                print(against_former(made[0], former), flush=True)
        if draw(read_rows(asked.out), asked.figure):
            print(f"Drew {asked.figure}.")
    except BridgeMemError as problem:
        complain(f"benchmarks: {problem}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

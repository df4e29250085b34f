"""`python -m benchmarks`: measure every operation, print the table, keep the records."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import appending, fitting, scoring, starting, training
from benchmarks.bench import Bench, default_dataset, load
from benchmarks.harness import Measured, Row, complain, keep_rows, print_rows, run_row
from benchmarks.machine import measure
from bridgemem.errors import BridgeMemError

ROWS: dict[str, tuple[str, Callable[[Bench], Measured]]] = {
    "import": ("import bridgemem", starting.importing),
    "help": ("bridgemem --help", starting.help_text),
    "index": ("index build", fitting.index_build),
    "mining": ("example mining", fitting.example_mining),
    "memory": ("index build and mining", fitting.index_and_mining),
    "counts": ("count table", fitting.count_table),
    "fit": ("reader fit", fitting.reader_fit),
    "epochs": ("epoch selection", fitting.epoch_selection),
    "select": ("select + fit", fitting.select_and_fit),
    "refit": ("final refit", fitting.final_refit),
    "learned": ("learned residual fit", fitting.learned_fit),
    "ranks": ("ranks, three filters", scoring.ranking),
    "evaluation": ("evaluation, three filters", scoring.evaluation),
    "choosing": ("choosing on validation", scoring.choosing),
    "forecast": ("single forecast", scoring.forecast),
    "append": ("append of 10 events", appending.append),
    "cenet": ("CENET epoch", training.cenet_epoch),
    "regcn": ("RE-GCN, 8 targets at a step", training.regcn_targets),
    "cenet-training": ("CENET training", training.cenet_training),
}
# what a host does by itself, and what would take it too long
HOST_ONLY = ("import", "help", "mining", "memory", "counts", "learned", "forecast", "append")
ONCE = ("import", "help")
GPU_ONLY = ("cenet-training",)


def options(device: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks{'.gpu' * (device != 'cpu')}", description=__doc__)
    data = os.environ.get("BRIDGEMEM_DATA")
    parser.add_argument("--data", type=Path, default=data, help="folder of the data sets: NAME.npz or NAME/train.txt")
    parser.add_argument("--datasets", help="names, with commas between: icews14, ..., world or tiny")
    parser.add_argument("--only", help=f"rows, with commas between: {', '.join(ROWS)}")
    parser.add_argument(
        "--out", type=Path, default=Path("results/bench.jsonl"), help="records; older rows are replaced"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a row may take; 0: any")
    parser.add_argument("--reference-seconds", type=float, default=20.0, help="that a plain reference may take")
    return parser


def chosen_rows(only: str | None, device: str) -> list[str]:
    """The rows that were asked for, or all that make sense on the device."""
    if only is None:
        unfit = GPU_ONLY if device == "cpu" else HOST_ONLY
        return [name for name in ROWS if name not in unfit]
    names = only.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise BridgeMemError(f"there is no row called {unknown[0]!r}: choose from {', '.join(ROWS)}.")
    return names


def main(arguments: Sequence[str] | None = None, device: str = "cpu") -> int:
    """Exit code 0 if every row was measured and agreed with its reference, 1 if one did not, 2 for bad input."""
    asked = options(device).parse_args(arguments)
    try:
        names = chosen_rows(asked.only, device)
        datasets = asked.datasets.split(",") if asked.datasets else [default_dataset(asked.data)]
        machine = measure(device)
        print(
            f"{machine.device}: {machine.matmul / 1e9:,.0f} GFLOP/s, {machine.bandwidth / 1e9:,.1f} GB/s; "
            f"torch {machine.torch}, Python {machine.python}"
        )
        rows: list[Row] = []
        for dataset in datasets:
            bench = Bench(load(dataset, asked.data), device, asked.reference_seconds)
            for name in names:
                if name in ONCE and dataset != datasets[0]:
                    continue
                title, measured = ROWS[name]
                row = run_row(title, "" if name in ONCE else dataset, partial(measured, bench), machine, asked.limit)
                print_rows([row], header=not rows)
                rows.append(row)
                keep_rows(asked.out, [row])
    except BridgeMemError as problem:
        complain(f"benchmarks: {problem}")
        return 2
    except ModuleNotFoundError as problem:  # of what looks further for a data set that --data does not hold
        complain(f"benchmarks: {problem}; name the folder that holds the data sets with --data.")
        return 2
    failed = [row for row in rows if row.failed]
    for row in failed:
        complain(f"benchmarks: {row.operation} of {row.dataset} failed: {row.error or row.agreement}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

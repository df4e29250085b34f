"""`bridgemem tgb`: a run measured by the evaluator of the Temporal Graph Benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.options import DataDir, Device, Json, Quiet
from bridgemem.cli.output import counted, emit, table
from bridgemem.progress import terminal_progress


def tgb(
    run: Annotated[Path, typer.Argument(help="A run folder that was fitted on an edge list of TGB.")],
    folder: Annotated[Path, typer.Argument(help="TGB's folder of the data set: edge list and negative samples.")],
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    queries: Annotated[
        int | None, typer.Option("--queries", min=1, help="Random sample of queries to read (default: all).")
    ] = None,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a run with the evaluator and the negative samples of TGB's own package (py-tgb)."""
    from bridgemem.evaluation.tables import figure
    from bridgemem.runs import Run
    from bridgemem.studies.tgb import evaluate_tgb
    from bridgemem.training.devices import check_device

    opened = Run(run, data_dir=data_dir)
    with terminal_progress(quiet=quiet) as progress:
        found = evaluate_tgb(
            opened, folder, split=split, queries=queries, device=check_device(device), progress=progress
        )

    def text() -> None:
        title = f"{opened.config.dataset}, {split}, {counted(found[0].queries, 'query')}, TGB's evaluator"
        rows = [[one.method, figure(one.mrr), figure(one.hits10)] for one in found]
        table(title, ["method", "MRR", "Hits@10"], rows)

    emit({"run": run, "split": split, "figures": found}, as_json, text)


def register(app: typer.Typer) -> None:
    app.command()(tgb)

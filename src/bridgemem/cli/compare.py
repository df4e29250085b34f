"""Commands over the ranks of single queries: compare, ranks, strata, headroom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.options import DataDir, Device, Json, Quiet
from bridgemem.cli.output import check_new, emit, say, table, warn
from bridgemem.cli.tables import check_kind, write_tables
from bridgemem.config import either
from bridgemem.errors import SettingsError
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.runs import Run

Split = Annotated[str, typer.Option("--split", help="test or valid (default: test).")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def register(app: typer.Typer) -> None:
    for command in (compare, ranks, strata, headroom):
        app.command()(command)


def split_of(run: Run, wanted: str) -> str:
    """The split to read: validation where the run's data has no test."""
    if wanted not in ("test", "valid"):
        raise SettingsError(f"split is test or valid, not {wanted!r}.")
    if wanted == "test" and run.config.test_start < 0:
        warn(f"{run.config.dataset} has no test split; using its validation split.")
        return "valid"
    return wanted


def metric_of(text: str) -> str:
    """A metric as records name it, from hits@1 or hits1."""
    from bridgemem.ranking.metrics import METRICS

    if (name := text.replace("@", "")) not in METRICS:
        raise SettingsError(f"a metric is mrr, hits@1, hits@3 or hits@10, not {text!r}.")
    return name


def compare(
    contenders: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Runs (RUN, RUN:ROW, or RUN1,RUN2:ROW for seeds) and backbones that rank by themselves.",
        ),
    ],
    split: Split = "test",
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Each with every other (default: all with the first).")
    ] = False,
    metric: Annotated[
        str | None, typer.Option("--metric", help="mrr, hits@1, hits@3 or hits@10 (default: mrr; all of two runs).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the table: .tex, .csv, .md or .json.")
    ] = None,
    force: Force = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on the same queries: paired differences B - A, 95 % intervals, corrected p-values."""
    from bridgemem.ranking.metrics import METRICS
    from bridgemem.runs import Run
    from bridgemem.studies import compare as study
    from bridgemem.studies.ranks import as_run

    metrics = METRICS if metric is None else (metric_of(metric),)
    if out is not None:
        check_kind(out)
        check_new(out, force)
    first = as_run(contenders[0].split(",")[0].rpartition(":")[0] or contenders[0]) or as_run(contenders[0])
    split = split if first is None else split_of(first, split)
    if len(contenders) == 2 and all(Path(one).is_dir() and as_run(one) is not None for one in contenders):
        runs = Run(contenders[0]), Run(contenders[1])
        found = study.compare_runs(*runs, split)
        shown = study.tables_of_runs(found, metrics)
        title = f"{runs[0].config.dataset}, {split}; A is {contenders[0]}, B is {contenders[1]}"
    else:
        with terminal_progress(quiet=quiet) as progress:
            made = study.compare(
                *contenders, split=split, all_pairs=all_pairs, device=device, data_dir=data_dir, progress=progress
            )
        found, title = list(made.differences), ""
        shown = [made.table(name, metrics[0]) for name in ("time", "static")]
    if out is not None:
        write_tables(out, shown, found, force)

    def text() -> None:
        if title:
            say(title)
        for one in shown:
            table(f"\n{one.title}" if title else one.title, one.header, one.rows)
            if one.note:
                say(f"{one.note}\n")
        if out is not None:
            say(f"Written to {out}.")

    emit({"split": split, "differences": found}, as_json, text)


def ranks(
    source: Annotated[str, typer.Argument(metavar="RUN|DATA", help="A run that was evaluated, or data.")],
    backbone: Annotated[
        list[str] | None,
        typer.Option("--backbone", "-b", help="Baseline: training-free name or trained folder; repeatable."),
    ] = None,
    split: Split = "test",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Table of all queries by name: .csv or .parquet.")
    ] = None,
    records: Annotated[Path | None, typer.Option("--records", help="Also append the baselines' records.")] = None,
    force: Force = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank the answer of every query, by the rows of a run and by baselines; no residual is fitted."""
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.evaluation.tables import HEADINGS, SHORT, figure
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.studies.ranks import as_run
    from bridgemem.studies.ranks import ranks as rank

    if out is not None:
        check_new(out, force)
        if out.suffix.lower() not in (".csv", ".parquet"):
            raise SettingsError(f"{out} must end in .csv or .parquet.")
    if records is not None and records.exists():
        read_records(records)
    run = as_run(source, data_dir)
    split = split if run is None else split_of(run, split)
    with terminal_progress(quiet=quiet) as progress:
        found = rank(
            run or source, backbones=backbone or (), split=split, device=device, data_dir=data_dir, progress=progress
        )
    if out is not None:
        _write_frame(out, found.named(), force)
    if records is not None:
        write_records(records, found.records())
    size = len(found.columns["step"])
    figures = [(row, name, found.metrics(row, name)) for row in found.rows for name in FILTERS]
    rows = [{"row": row, "filter": name, **one.as_dict()} for row, name, one in figures]

    def text() -> None:
        cells = [[row, SHORT[name], *map(figure, one.as_dict().values())] for row, name, one in figures]
        table(f"{found.name}, {split}, {size:,} queries", ["row", "filter", *HEADINGS.values()], cells)
        if out is not None:
            say(f"The ranks of all queries are in {out}.")

    emit({"source": source, "split": split, "queries": size, "rows": rows, "out": out}, as_json, text)


def strata(
    run: Annotated[Path, typer.Argument(help="A run folder that was evaluated.")],
    split: Split = "test",
    filter_: Annotated[
        str, typer.Option("--filter", help="raw, static or time, for the filter of that name (default: time).")
    ] = "time",
    metric: Annotated[str, typer.Option("--metric", help="mrr, hits@1, hits@3 or hits@10 (default: mrr).")] = "mrr",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the table: .tex, .csv, .md or .json.")
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Break metrics down by stratum: seen triple, seen pair, two-hop, cold; new entities; frequency; lag."""
    from bridgemem.evaluation import strata as study
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.runs import Run
    from bridgemem.studies.ranks import run_columns

    if filter_ not in FILTERS:
        raise SettingsError(f"--filter is {either(FILTERS)}, not {filter_!r}.")
    metric = metric_of(metric)
    if out is not None:
        check_kind(out)
        check_new(out, force)
    opened = Run(run, data_dir=data_dir)
    split = split_of(opened, split)
    run_columns(opened, split)  # or the sentence that it was not evaluated
    found = study.strata(opened, split)
    shown = found.table(filter_, metric)
    if out is not None:
        write_tables(out, [shown], found.strata, force)

    def text() -> None:
        table(shown.title, shown.header, shown.rows)
        say(f"\n{shown.note}")
        if out is not None:
            say(f"Written to {out}.")

    emit({"run": run, "split": split, "strata": found.strata}, as_json, text)


def headroom(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    split: Split = "test",
    queries: Annotated[
        int | None, typer.Option("--queries", min=1, help="Size of a random sample of queries (default: all).")
    ] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the table: .tex, .csv, .md or .json.")
    ] = None,
    records: Annotated[Path | None, typer.Option("--records", help="Also append the records to this file.")] = None,
    force: Force = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Break the error down by stratum: bounds of any reweighting, and oracles. None of them is a forecast."""
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.runs import Run
    from bridgemem.studies.headroom import Headroom, figures_of, measure
    from bridgemem.training.devices import check_device

    check_device(device)
    if out is not None:
        check_kind(out)
        check_new(out, force)
    if records is not None and records.exists():
        read_records(records)  # a damaged file is better known before the long part
    opened = Run(run, data_dir=data_dir)
    split = split_of(opened, split)
    with terminal_progress(quiet=quiet) as progress:
        found = measure(opened, opened.dataset, split, device, progress, most=queries)
    shown = Headroom(tuple(found)).table()
    if records is not None:
        write_records(records, found)
    if out is not None:
        write_tables(out, [shown], figures_of(found), force)

    def text() -> None:
        table(shown.title, shown.header, shown.rows)
        say(f"\n{shown.note}")
        if out is not None:
            say(f"Written to {out}.")

    emit({"records": found}, as_json, text)


def _write_frame(out: Path, columns: dict[str, Any], force: bool) -> None:
    """Columns as a table file."""
    import csv

    from bridgemem.storage.tables import write_parquet
    from bridgemem.storage.whole import whole_file

    if out.suffix.lower() == ".parquet":
        write_parquet(out, columns, replace=force)
        return
    with whole_file(out, force) as aside, aside.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))

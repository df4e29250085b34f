"""The command that reads a split: at once, in a process pool, on a cluster, or in shards that are joined."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bridgemem import config
from bridgemem.cli.evaluate_window import Window, evaluate_window
from bridgemem.cli.options import DataDir, Device, Json, MemoryDir, Quiet, SplitAt, bounded, residual_of, source_of
from bridgemem.cli.output import emit, say, table, warn
from bridgemem.cli.own_model import given_backbone, show_own
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.events.dataset import Dataset


def no_test(dataset: Dataset, wanted: str) -> str:
    """The split to read: validation where a test split is wanted and there is none."""
    if wanted == "test" and dataset.test_start is None:
        warn(f"{dataset.name} has no test split; using its validation split.")
        return "valid"
    return wanted


def show(records: list[Any], title: str) -> None:
    """The metrics of every method, one table a filter."""
    from bridgemem.evaluation.tables import FILTER_WORDS
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.studies.report import filter_table

    say(title)
    for f in FILTERS:
        made = filter_table(records, f)
        table(f"\n{FILTER_WORDS[f].capitalize()}", made.header, made.rows)


def _show_model(records: list[Any], run: Path, horizon: int | None, remark: str = "") -> None:
    """The model next to what it has to beat, where the rest is, and how far probabilities were off on validation."""
    from bridgemem.evaluation.comparison import evaluation_table

    made = evaluation_table(records)
    steps, page = (f", any of {horizon} steps", f"metrics.horizon{horizon}.json") if horizon else ("", "README.md")
    table(f"{made.title}{steps}", made.header, made.rows)
    say(f"\n{made.note} Figures under the other filters are in {run / page}.")
    if remark:
        say(remark)


@reads_events
def evaluate(
    target: Annotated[
        list[str], typer.Argument(metavar="RUN|DATA...", help="A run folder; with -b the same as for `fit -d`.")
    ],
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", "-b", help="Model to measure: FILE.py:CLASS, folder or name."),
    ] = None,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    device: Device = "cpu",
    query: Annotated[str, typer.Option("--query", help="who, what or whether (default: who).")] = "who",
    horizon: Annotated[
        int | None,
        typer.Option("--horizon", help="Horizon in time steps (default: 1; whether: 1, 7, 14)."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of processes (default: 1).")] = 1,
    master: Annotated[
        str | None, typer.Option("--master", help="Spark master URL of a cluster that evaluates.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", help="Read one part of the steps, as 2/8, for --join.")
    ] = None,
    cells: Annotated[
        int | None,
        typer.Option("--cells", min=1, help="Largest batch in queries x entities."),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option("--queries", min=1, help="Size of a random sample of queries (default: all)."),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="First time of a window (default: start of test).")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Last time of a window (default: the last event).")] = None,
    last: Annotated[int | None, typer.Option("--last", help="Measure the last N time steps (at least 1).")] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="With a window: event store, or none (default: RUN.events.duckdb)."),
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="Join the parts that --shard kept.")] = False,
    records: Annotated[Path | None, typer.Option("--records", help="Also append the records to this file.")] = None,
    residual: Annotated[
        str | None, typer.Option("--residual", help="With -b: learned or bridgemem (default: learned).")
    ] = None,
    seed: Annotated[
        int | None, bounded(config.Seed, "--seed", help="With -b: random seed of the fit (default: 42).")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="With -b: setting as name=value; repeatable.")] = None,
    default: Annotated[
        bool | None,
        typer.Option(help="With -b: also fit the default, without your model (default: up to 500,000 events)."),
    ] = None,
    *,
    reading: ReadOptions,
    split_at: SplitAt = None,
    data_dir: DataDir = None,
    memory_dir: MemoryDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read a split once under the locked selection; write metrics.json and ranks.parquet into the run.

    With -b, measure a model of your own on data: alone, with each residual, and next to naive forecasters.
    """
    from bridgemem.errors import SettingsError
    from bridgemem.evaluation import shards
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.forecaster import Forecaster
    from bridgemem.training.devices import check_device

    _check_ways(split, horizon, workers, master, shard, join, cells, records)
    run = target[0]
    of_run = (horizon, master, shard, cells, queries, join or workers > 1 or query != "who" or None)
    window = None if from_ is None and to is None and last is None else Window(from_, to, last)
    _check_target(target, backbone, (residual, seed, set_, split_at, default), (*of_run, window, store))
    if backbone is not None:
        wanted = OwnModel(backbone, residual, seed, set_, device, split, split_at, default)
        _evaluate_own(source_of(target), wanted, reading, data_dir, records, as_json, quiet)
        return
    if queries is not None and (query != "who" or any((horizon, workers > 1, master, shard, join))):
        raise SettingsError("--queries reads a sample by itself; leave --query, --horizon, --workers and the like out.")
    if window is not None:
        _check_query(query, workers, master, shard, join, None)
        if split != "test" or queries is not None or records is not None or (query == "who" and horizon is not None):
            raise SettingsError("a window is measured by itself; leave --split, --queries, --records and the like out.")
        how: dict[str, Any] = {"data_dir": data_dir, "memory_dir": memory_dir, "as_json": as_json, "quiet": quiet}
        evaluate_window(Path(run), window, query, horizon, store=store, cells=cells, **how)
        return
    if store is not None:
        raise SettingsError("--store adds stored events to a window; give --last, or --from and --to, with it.")
    if query != "who":
        _check_query(query, workers, master, shard, join, cells)
        _evaluate_head(
            query, Path(run), split, horizon, records, as_json, quiet, data_dir=data_dir, memory_dir=memory_dir
        )
        return
    part = None if shard is None else shards.Shard.parse(shard)
    model = Forecaster.load(Path(run), data_dir=data_dir, memory_dir=memory_dir)
    opened = model.run
    _check_writable(opened.folder)
    if records is not None and records.exists():
        read_records(records)  # a damaged file is better known before test is read
    with terminal_progress(quiet=quiet) as progress:
        dataset = model.dataset
        split, device = no_test(dataset, split), check_device(device)
        if part is not None:
            path = shards.write_part(opened, part, split, device, progress, cells)
            _show_part(opened.folder, part, split, path, as_json)
            return
        if join:
            found = shards.join_parts(opened, split, device)
        elif master is not None:
            from bridgemem.outofcore.spark import evaluate_on_spark

            found = evaluate_on_spark(opened, master, 0, split, progress)
        else:
            measured = model.evaluate(
                split,
                horizon=horizon,
                workers=workers,
                cells=cells,
                queries=queries,
                device=device,
                progress=progress,
            )
            found = list(measured.records)
    if records is not None:
        # naive rows are shown for comparison; a file of records holds those of the run
        write_records(records, [record for record in found if record.backbone == opened.config.backbone])
    result = {"records": found, "split": split, "shard": None, "part": None}
    emit(result, as_json, lambda: _show_model(found, opened.folder, horizon, opened.remark()))


def _check_query(
    query: str, workers: int, master: str | None, shard: str | None, join: bool, cells: int | None
) -> None:
    from bridgemem.errors import SettingsError

    if query not in ("who", "what", "whether"):
        raise SettingsError(f"query is who, what or whether, not {query!r}.")
    if workers > 1 or join or any(way is not None for way in (master, shard, cells)):
        raise SettingsError("--workers, --master, --shard, --join and --cells are for --query who; leave them out.")


def _evaluate_head(
    query: str,
    run: Path,
    split: str,
    horizon: int | None,
    records: Path | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """What or whether: one reading, its tables, and its records."""
    from bridgemem.errors import SettingsError
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.evaluation.what import DIRECTIONS, what_table
    from bridgemem.evaluation.whether import read_occurrence_records, write_occurrence_records
    from bridgemem.forecaster import Forecaster

    what = query == "what"
    if what and horizon is not None:
        raise SettingsError("--horizon is for who and whether; what is asked of events as they come.")
    model = Forecaster.load(run, **how)
    _check_writable(model.run.folder)
    if records is not None and records.exists():  # a damaged file is better known before test is read
        read_records(records) if what else read_occurrence_records(records)
    with terminal_progress(quiet=quiet) as progress:
        split = no_test(model.dataset, split)
        if what:
            found = list(model.evaluate_what(split, progress=progress).records)
            tables = [what_table(found, direction) for direction in DIRECTIONS]
            result: dict[str, Any] = {"records": found, "split": split, "shard": None, "part": None}
            if records is not None:
                write_records(records, found)
        else:
            measured = model.evaluate_whether(split, horizon=horizon, progress=progress)
            tables, result = [measured.table()], {"records": list(measured.records), "split": split}
            if records is not None:
                write_occurrence_records(records, measured.records)

    def text() -> None:
        for place, made in enumerate(tables):
            table(("\n" if place else "") + made.title, made.header, made.rows)
        say(
            f"\n{tables[-1].note} The figures are in {model.run.folder / f'metrics.{query}.json'}.".replace("\n ", "\n")
        )

    emit(result, as_json, text)


class OwnModel(NamedTuple):
    """What is asked of a model on data."""

    backbone: str
    residual: str | None
    seed: int | None
    settings: list[str] | None
    device: str
    split: str
    split_at: tuple[str, str] | None
    default: bool | None


def _evaluate_own(
    data: str | list[str],
    wanted: OwnModel,
    reading: ReadOptions,
    data_dir: Path | None,
    records: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fit the residuals on a model and measure them all on a split of data."""
    from bridgemem.config import SAMPLED, Settings
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.events.loading import loaded
    from bridgemem.storage.schema import override
    from bridgemem.studies import own_model as study

    residual = residual_of(wanted.residual or "learned")
    base = SAMPLED if residual == "learned" else Settings()
    settings = override(base, wanted.settings) if wanted.settings else None
    model = given_backbone(wanted.backbone)
    if records is not None and records.exists():
        read_records(records)
    with terminal_progress(quiet=quiet) as progress:
        dataset = loaded(data, reading, split_at=wanted.split_at, data_dir=data_dir, progress=progress)
        split = no_test(dataset, wanted.split)
        seed = 42 if wanted.seed is None else wanted.seed
        found = study.evaluate(
            dataset,
            model,
            split=split,
            residual=residual,
            settings=settings,
            seed=seed,
            device=wanted.device,
            default=wanted.default,
            progress=progress,
        )
    if records is not None:
        write_records(records, [one for one in found if one.backbone == found[0].backbone])
    result = {"records": list(found), "split": split, "shard": None, "part": None}
    emit(result, as_json, lambda: show_own(found, data, wanted.backbone))


def _check_target(target: list[str], backbone: str | None, of_data: tuple[Any, ...], of_run: tuple[Any, ...]) -> None:
    """Refuse a run with a model, data without one, and the options of the other."""
    from bridgemem.errors import RunError, SettingsError

    run = target[0]
    is_run = (Path(run) / "selection.json").is_file()
    if backbone is None:
        if any(option is not None for option in of_data):
            raise SettingsError("--residual, --seed, --set and the like are for a model on data; name it with -b.")
        if len(target) > 1:
            raise SettingsError("evaluate reads one run; to measure a model on several files of data use -b.")
        if run == "world" or Path(run).is_file():
            raise RunError(f"{run} is not a run folder; to measure a model on data use -b, as -b mymodel.py:MyModel.")
        return
    if is_run:
        raise SettingsError(
            f"{run} is a run, which has its backbone; leave -b out, and give your own class as "
            f"`bridgemem --register FILE.py:CLASS evaluate {run}`."
        )
    if any(option is not None for option in of_run):
        raise SettingsError(
            "--query, --queries, --horizon, --from, --to, --last, --store, --workers and the like are for runs; "
            "leave them out."
        )


def _check_ways(
    split: str,
    horizon: int | None,
    workers: int,
    master: str | None,
    shard: str | None,
    join: bool,
    cells: int | None,
    records: Path | None,
) -> None:
    """Refuse what cannot be asked for together, before anything is read."""
    from bridgemem.errors import SettingsError

    if split not in ("test", "valid"):
        raise SettingsError(f"split is test or valid, not {split!r}.")
    if sum((horizon is not None, workers > 1, master is not None, shard is not None, join)) > 1:
        raise SettingsError("--horizon, --workers, --master, --shard and --join are five ways to read; choose one.")
    if cells is not None and (join or horizon is not None or master is not None):
        raise SettingsError("--cells is for reading steps one by one; use it alone, with --workers or with --shard.")
    if shard is not None and records is not None:
        raise SettingsError("a shard has no records of its own; give --records with --join.")


def _check_writable(run: Path) -> None:
    """Refuse a run that may not be written before a split is read for it."""
    from bridgemem.errors import RunError

    if not os.access(run, os.W_OK | os.X_OK):
        raise RunError(f"{run} cannot be written, and the ranks go there; evaluate a copy of it that you may write to.")


def _show_part(run: Path, shard: Any, split: str, path: Path, as_json: bool) -> None:
    then = f"when all {shard.of} are there, `bridgemem evaluate {run} --split {split} --join` joins them"
    made = {"records": [], "split": split, "shard": str(shard), "part": path}
    emit(made, as_json, lambda: say(f"Shard {shard} of {split} is in {path}; {then}."))


def register(app: typer.Typer) -> None:
    app.command()(evaluate)

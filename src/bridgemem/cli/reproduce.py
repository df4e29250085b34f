"""The command that reproduces results: of one experiment, or of every row of a file of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bridgemem import config
from bridgemem.cli.evaluate import no_test, show
from bridgemem.cli.model import HistoryKind, LearnedSet, Method, backbone_settings, going_on, learned_settings_of
from bridgemem.cli.options import PUBLISHED, DataDir, Device, Json, Quiet, Records, Set, bounded, residual_of, seeds_of
from bridgemem.cli.output import counted, emit, say, table, warn
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.errors import SettingsError
from bridgemem.progress import terminal_progress


def register(app: typer.Typer) -> None:
    app.command()(reproduce)


@reads_events
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A named data set, world, or your own file.")] = None,
    backbone: Annotated[str, typer.Option("--backbone", "-b", help="The backbone to correct.")] = "cenet",
    seeds: Annotated[str, typer.Option(help="Seeds of the residual: 42, or 42-46.")] = "42",
    backbone_seed: Annotated[int, bounded(config.Seed, help="Seed of the backbone.")] = 42,
    device: Device = "cpu",
    runs: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs"),
    records: Records = PUBLISHED,
    history: HistoryKind = "rolling",
    residual: Method = "bridgemem",
    *,
    reading: ReadOptions,
    all_: Annotated[bool, typer.Option("--all", help="Recompute every row of a file of records; resumable.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="With --all: data sets, as icews14,yago/hri; repeatable.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="With --all: only show jobs and minutes.")] = False,
    source: Annotated[Path, typer.Option("--from", help="With --all: the records to recompute.")] = PUBLISHED,
    retrain: Annotated[bool, typer.Option("--retrain", help="Retrain the backbone even if its folder exists.")] = False,
    set_: Set = None,
    backbone_set: Annotated[list[str] | None, typer.Option("--backbone-set", help="A backbone's setting.")] = None,
    learned_set: LearnedSet = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train the backbone, fit, select on validation, test once, and write runs and records."""
    if all_:
        _remake(source, only, plan, runs, records, device=device, data_dir=data_dir, as_json=as_json, quiet=quiet)
        return
    if name is None:
        raise SettingsError("name a data set, or use --all for every row of the records.")
    if plan or only:
        raise SettingsError("--plan and --only belong to --all; add it.")
    from bridgemem.config import Settings
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.events.loading import loaded
    from bridgemem.storage.schema import override
    from bridgemem.studies import reproduce as study

    wanted = seeds_of(seeds)
    settings, learned = override(Settings(), set_ or []), learned_settings_of(residual, learned_set)
    if records.exists():
        read_records(records)  # a damaged file is better known before hours of training
    with terminal_progress(quiet=quiet) as progress:
        dataset = loaded(name, reading, data_dir=data_dir, progress=progress)
        no_test(dataset, "test")
        own = backbone_settings(backbone, dataset, backbone_set)
        with going_on(study.reproduced_backbone(runs, dataset, backbone, backbone_seed)):
            made = study.reproduce(
                dataset,
                runs,
                backbone=backbone,
                backbone_settings=own,
                settings=settings,
                seeds=wanted,
                backbone_seed=backbone_seed,
                device=device,
                history=history,
                retrain=retrain,
                progress=progress,
                residual=residual_of(residual),
                learned_settings=learned,
            )
    write_records(records, made.records)
    title = f"{dataset.name}, {made.split}, {made.records[0].queries:,} queries; runs in {runs}, records in {records}"
    emit({"records": made.records}, as_json, lambda: show(made.records, title))


def _remake(
    source: Path,
    only: Sequence[str] | None,
    plan: bool,
    runs: Path,
    records: Path,
    *,
    device: str,
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Recompute every row of a file of records into another file, and show both next to each other."""
    from bridgemem.evaluation.records import read_records
    from bridgemem.studies import remake as study
    from bridgemem.training.devices import check_device

    check_device(device)
    recorded = read_records(source)
    if records in (source, PUBLISHED):  # what is remade stays as it is
        records = runs / "records.jsonl"
    made = study.plan(recorded, only=[one for text in only or () for one in text.split(",") if one], next_to=source)
    told: dict[str, Any] = {"source": source, "jobs": made.jobs, "minutes": made.minutes}
    told |= {"left_out": made.left_out, "differs": made.differs}
    if plan:
        nothing: dict[str, Any] = {"outcomes": {}, "compared": None, "out": None}
        emit({**told, **nothing}, as_json, lambda: _show_plan(made, source, device))
        return
    if not as_json:
        _show_plan(made, source, device)
    try:
        with terminal_progress(quiet=quiet) as progress:
            outcomes = study.remake(made, runs, records, device=device, data_dir=data_dir, progress=progress)
    except KeyboardInterrupt:
        warn(f"bridgemem: interrupted; the jobs that are done are kept in {runs}, and the same command goes on.")
        raise typer.Exit(1) from None
    shown = study.compared(recorded, read_records(records) if records.exists() else [])
    failed = {name: one.failed for name, one in outcomes.items() if one.failed}

    def text() -> None:
        table(f"\n{shown.title}", shown.header, shown.rows)
        say(f"\n{counted(len(outcomes) - len(failed), 'job')} done; runs in {runs}, records in {records}.")
        for name, why in failed.items():
            warn(f"not done: {name}: {why}")

    emit({**told, "outcomes": outcomes, "compared": shown, "out": records}, as_json, text)
    if failed:
        raise typer.Exit(1)


def _show_plan(made: Any, source: Path, device: str) -> None:
    rows = [[job.name, str(job.rows), f"{job.minutes:.1f}"] for job in made.jobs]
    table(f"Plan for the records in {source} (--from FILE takes others)", ["job", "rows", "minutes"], rows)
    where = "" if device.startswith("cuda") else "; trainings take many times as long on a CPU"
    say(f"\n{counted(len(made.jobs), 'job')}, about {made.minutes:.0f} minutes by the seconds in the records{where}.")
    for shown in (made.not_remade(), made.other_inputs()):
        table(f"\n{shown.title}", shown.header, shown.rows)

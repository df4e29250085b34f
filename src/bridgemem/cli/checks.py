"""Commands that check results: ablate, audit, leakage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.compare import split_of
from bridgemem.cli.evaluate import no_test
from bridgemem.cli.options import DataDir, Device, Force, Json, Quiet, Set, SplitAt, residual_of, source_of
from bridgemem.cli.output import check_new, counted, emit, say, table
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.cli.tables import check_kind, write_tables
from bridgemem.errors import NotFoundError, RunError, SettingsError
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.backbones.base import Backbone
    from bridgemem.backbones.verdicts import Finding
    from bridgemem.events.dataset import Dataset
    from bridgemem.runs import Run

RunFolder = Annotated[Path, typer.Argument(help="A run folder that was evaluated.")]
Split = Annotated[str, typer.Option("--split", help="test or valid.")]
READING_WORDS = {"pass": "+ the other queries of the pass", "step": "+ all other queries of the step"}


def register(app: typer.Typer) -> None:
    for command in (ablate, audit, leakage):
        app.command()(command)
    app.command("check-backbone")(check_backbone)


def ablate(
    run: RunFolder,
    split: Split = "test",
    residual: Annotated[
        str | None,
        typer.Option(
            "--residual", help="bridgemem or learned, refitted for each change (default: what forecasts use)."
        ),
    ] = None,
    counting: Annotated[
        bool, typer.Option("--counting", help="Change the counting backbone instead, read alone on validation.")
    ] = False,
    device: Device = "cpu",
    records: Annotated[Path | None, typer.Option("--records", help="Also append the records to this file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the tables: .tex (booktabs) or .md; .csv or .json for the figures."),
    ] = None,
    force: Force = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ablate a residual: change one part at a time and measure it. Nothing is chosen from the result."""
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.runs import Run
    from bridgemem.studies import ablation
    from bridgemem.studies.ablation_tables import ablation_tables
    from bridgemem.studies.counting import ablate_counting
    from bridgemem.training.devices import check_device

    if out is not None:
        check_kind(out)
        check_new(out, force)
    given = None if residual is None else residual_of(residual)
    opened = Run(run, data_dir=data_dir)
    split = "valid" if counting else split_of(opened, split)
    # changes of the learned residual are fitted on validation, and read on test only
    used = "bridgemem" if split == "valid" else opened.preferred()
    residual = given or used
    learned = residual == "learned"
    if learned and not counting:
        ablation.ablated_settings(opened)
    if not counting:
        _check_evaluated(opened, split, residual)
    if records is not None and records.exists():
        read_records(records)  # a damaged file is better known before the long part
    with terminal_progress(quiet=quiet) as progress:
        if counting:
            found = ablate_counting(opened, opened.dataset, check_device(device), progress)
        else:
            change = ablation.ablate_learned if learned else ablation.ablate
            found = change(opened, opened.dataset, split, check_device(device), progress)
    if records is not None:
        write_records(records, found)

    made = ablation_tables(found, FILTERS)
    if out is not None:
        write_tables(out, made, found)

    def text() -> None:
        config = opened.config
        queries = counted(found[0].queries, "query")
        what = "the counting backbone" if counting else f"changes of {residual}"
        if not counting and residual == opened.preferred():
            what += ", which forecasts use"
        say(f"{config.dataset}, {split}, {queries}, {config.backbone}, {config.history} history, {what}")
        for one in made:
            table(f"\n{one.title}", one.header, one.rows)
        if out is not None:
            say(f"\nWrote {out}.")

    emit({"records": found}, as_json, text)


def _check_evaluated(run: Run, split: str, method: str) -> None:
    """Refuse a run whose residual was not measured on the split."""
    from bridgemem.evaluation.records import metrics_of
    from bridgemem.residuals.selection import SELECTION_FILTERS

    remedy = f"run `bridgemem evaluate {run.folder} --split {split}`"
    rows = metrics_of(run, split)
    found = {row.filter for row in rows if row.method == method and row.as_chosen}
    if method == "learned" and rows and not found:
        raise RunError(f"{run.folder} has no learned residual; fit it with --residual learned, and evaluate it.")
    if not set(SELECTION_FILTERS) <= found:
        raise RunError(f"{run.folder} has not been evaluated on {split}; {remedy}.")


def audit(
    run: RunFolder,
    split: Split = "test",
    steps: Annotated[
        int, typer.Option(min=1, help="Time steps to score again with a corrupted future (default: 5).")
    ] = 5,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Random sample of queries to rank again (default: all).")
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Also train the backbone again, on data whose later part differs.")
    ] = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a run: names and dates, ranks and choices computed again, and no score that reads the future."""
    from bridgemem.runs import Run
    from bridgemem.studies.audit import audit as audit_run
    from bridgemem.training.devices import check_device

    opened = Run(run, data_dir=data_dir)
    split = split_of(opened, split)
    with terminal_progress(quiet=quiet) as progress:
        findings = audit_run(
            opened,
            opened.dataset,
            split,
            steps=steps,
            sample=sample,
            device=check_device(device),
            retrain=retrain,
            progress=progress,
        )
    show_findings({"run": run, "split": split}, findings, as_json)


def show_findings(about: dict[str, object], findings: Sequence[Finding], as_json: bool) -> None:
    """One line a check, and one word for all: "pass" only if all is shown; exit code 1 where anything is not."""
    from bridgemem.backbones.verdicts import all_passed, overall

    passed = all_passed(findings)

    def text() -> None:
        width = max(len(finding.verdict) for finding in findings)
        for finding in findings:
            verdict = finding.verdict.upper() if finding.passed is False else finding.verdict
            say(f"{verdict:<{width}}  {finding.check}: {finding.seen}")
        say(overall(findings))

    listed = [{**asdict(finding), "verdict": finding.verdict} for finding in findings]
    emit({**about, "passed": passed, "word": overall(findings), "findings": listed}, as_json, text)
    if passed is False:
        raise typer.Exit(1)


@reads_events
def check_backbone(
    data: Annotated[
        list[str], typer.Argument(help="Same as for `fit -d`; several files are allowed.", metavar="DATA...")
    ],
    backbone: Annotated[
        str, typer.Option("--backbone", "-b", help="FILE.py:CLASS, a name, or the folder of a trained backbone.")
    ],
    set_: Set = None,
    retrain: Annotated[
        bool, typer.Option(help="Train a class again, on data whose later part differs (default: yes).")
    ] = True,
    device: Device = "cpu",
    *,
    reading: ReadOptions,
    split_at: SplitAt = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a model: finite scores, each query by itself, nothing later read, nothing later trained on."""
    from bridgemem.backbones.check import examined
    from bridgemem.events.loading import loaded
    from bridgemem.training.devices import check_device

    with terminal_progress(quiet=quiet) as progress:
        dataset = loaded(source_of(data), reading, split_at=split_at, data_dir=data_dir, progress=progress)
        model, settings = _model_of(backbone, set_)
        found = examined(model, dataset, settings=settings, retrain=retrain, device=check_device(device))
    show_findings({"backbone": found.name, "data": dataset.name}, found.findings, as_json)


def _model_of(text: str, assignments: list[str] | None) -> tuple[Any, Any]:
    """What -b names, to be checked: a class or an object of a file, the class of a name, or a trained backbone."""
    from bridgemem.backbones.check import named
    from bridgemem.backbones.own import from_file, in_file
    from bridgemem.storage.schema import override

    model = from_file(text) if in_file(text) else named(text)
    if not assignments:
        return model, None
    if not isinstance(model, type) or not hasattr(model, "default"):
        raise SettingsError("--set is for classes of backbones, which are trained here; leave it out.")
    return model, override(model.default, assignments)


@reads_events
def leakage(
    data: Annotated[
        list[str], typer.Argument(help="Same as for `fit -d`; several files are allowed.", metavar="DATA...")
    ],
    backbone: Annotated[
        str, typer.Option("--backbone", "-b", help="Training-free name, trained folder, or FILE.py:CLASS.")
    ] = "recurrence-dyadic",
    device: Device = "cpu",
    records: Annotated[Path | None, typer.Option("--records", help="Also append the records to this file.")] = None,
    *,
    reading: ReadOptions,
    split_at: SplitAt = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure query-set leakage: what reading the other queries of a step is worth. This is not a forecast."""
    from bridgemem.evaluation.records import read_records, write_records
    from bridgemem.evaluation.tables import FILTER_WORDS, HEADINGS, figure, interval
    from bridgemem.events.loading import loaded
    from bridgemem.residuals.selection import SELECTION_FILTERS
    from bridgemem.studies.analysis import LEAKAGE
    from bridgemem.studies.leakage import measure
    from bridgemem.training.devices import check_device

    check_device(device)
    if records is not None and records.exists():
        read_records(records)  # a damaged file is better known before the long part
    with terminal_progress(quiet=quiet) as progress:
        dataset = loaded(source_of(data), reading, split_at=split_at, data_dir=data_dir, progress=progress)
        model, seed = _backbone_of(backbone, dataset, device)
        no_test(dataset, "test")
        found = measure(dataset, model, seed, device, progress)
    if records is not None:
        # the backbone's own records come from those who evaluate it, with all that they know of it
        write_records(records, [r for r in found if r.method.startswith(LEAKAGE)])

    def text() -> None:
        first, words = found[0], {"backbone": "from the past alone", **READING_WORDS}
        say(f"{first.dataset}, {first.split}, {counted(first.queries, 'query')}, {first.backbone}")
        say(
            "This is not a forecast: what is asked at t is not known before t. It is what reading the queries is worth."
        )
        if first.split == "valid":
            say("The weights were chosen on these same queries.")
        for f in SELECTION_FILTERS:
            rows = []
            for r in (r for r in found if r.filter == f):
                told = [interval(r.gain["mrr"]), f"{r.settings['weight']:g}"] if r.gain else ["", ""]
                name = words[r.method.removeprefix(LEAKAGE)]
                rows.append([name, *(figure(getattr(r, metric)) for metric in HEADINGS), *told])
            header = ["read", *HEADINGS.values(), "gain in MRR [95 %]", "weight"]
            table(f"\n{FILTER_WORDS[f].capitalize()}", header, rows)

    emit({"records": found}, as_json, text)


def _backbone_of(name: str, dataset: Dataset, device: str) -> tuple[Backbone, int | None]:
    """A training-free backbone by its name, a trained one from its folder with its seed, or one in a file."""
    from bridgemem.backbones import backbone_class, backbone_names, is_trained
    from bridgemem.backbones.own import from_file, in_file
    from bridgemem.backbones.trained import check_trained_on, open_backbone, training_note
    from bridgemem.studies.leakage import scorer_of
    from bridgemem.studies.report import BACKBONE_SEED

    folder = Path(name)
    if in_file(name):
        return scorer_of(from_file(name), dataset, device=device), None
    if folder.is_dir():
        model = open_backbone(folder)
        model.check(dataset)
        check_trained_on(folder, dataset)
        seed = training_note(folder).seed
        return model.to(device), BACKBONE_SEED if seed is None else seed
    if name not in backbone_names() or name == "stored" or is_trained(name):
        raise NotFoundError(
            f"there is no folder {name!r}; give that of a trained backbone, a training-free name such as "
            "recurrence-dyadic, or FILE.py:CLASS."
        )
    return backbone_class(name).fit(dataset.without_test(), device=device), None

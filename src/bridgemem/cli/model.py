"""Commands that make models: demo, train, fit, reproduce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem import config
from bridgemem.cli.options import (
    Data,
    DataDir,
    Device,
    Json,
    Quiet,
    Seed,
    Set,
    SplitAt,
    check_engine,
    one_of,
    residual_of,
    source_of,
)
from bridgemem.cli.output import counted, emit, say, table, warn
from bridgemem.cli.own_model import registered, registering
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.events.dataset import Dataset
    from bridgemem.residuals.learned import LearnedSettings
    from bridgemem.residuals.selection import Selection

Method = Annotated[
    str,
    typer.Option(
        "--residual",
        help="Residual to fit: learned, next to the paper's, or bridgemem alone.",
    ),
]
LearnedSet = Annotated[
    list[str] | None, typer.Option("--learned-set", help="Setting of the learned residual as name=value; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
Tune = Annotated[
    bool | None,
    typer.Option(
        "--tune/--no-tune",
        help="Choose settings on validation first (default: only for an ensemble on new data).",
    ),
]
Budget = Annotated[str, typer.Option("--budget", help="Time for the trials of --tune: 90s, 10m or 2h (default: 10m).")]
HistoryKind = Annotated[
    config.HistoryMode,
    one_of(
        config.HistoryMode, "--history", help="History: rolling (all facts before t) or frozen (none of the split)."
    ),
]


def register(app: typer.Typer) -> None:
    for command in (demo, train, fit):
        app.command()(command)


def demo(seed: Seed = 42, device: Device = "cpu", as_json: Json = False, quiet: Quiet = False) -> None:
    """Run the whole path on a simulated world: fit, test once, explain one forecast."""
    from bridgemem.studies.demo import run_demo
    from bridgemem.training.devices import check_device

    check_device(device)
    with terminal_progress(quiet=quiet) as progress:
        made = run_demo(seed=seed, device=device, progress=progress)

    def text() -> None:
        events, shown = made.dataset.events, made.table()
        say(f"A simulated world: {events.n_entities} actors, {events.n_relations} relations, {len(events):,} events.")
        say(f"Fitted in {made.seconds:.0f} s; then the test split was read once.\n")
        table(shown.title, shown.header, shown.rows)
        say(
            f"\n{shown.note} The oracle knows the rules of the world; the model goes {made.headroom:.0%} of the way "
            "from its backbone to it.\n"
        )
        say(f"One forecast explained: {made.forecast}\n")
        say("Your own events: bridgemem fit -d events.csv -o runs/mine")

    result = {
        "records": made.records,
        "model": made.model,
        "oracle": made.oracle,
        "short_of_oracle": made.short_of_oracle,
        "headroom": made.headroom,
        "seconds": made.seconds,
        "forecast": made.forecast.as_dict(),
    }
    emit(result, as_json, text)


def backbone_settings(name: str, dataset: Dataset, assignments: list[str] | None) -> Any:
    """Settings of a backbone for a data set, changed by --set."""
    from bridgemem.backbones.trained import default_settings
    from bridgemem.storage.schema import override

    return override(default_settings(name, dataset), assignments or [])


@contextmanager
def going_on(backbone: Path) -> Iterator[None]:
    """At Ctrl-C, say what is kept of a training of a backbone, and goes on when it is started again."""
    from bridgemem.backbones.trained import training_states

    try:
        yield
    except KeyboardInterrupt:
        state = next(iter(training_states(backbone)), None)
        if state is None:
            raise
        warn(f"bridgemem: interrupted; the training so far is in {state}, and the same command continues it.")
        raise typer.Exit(1) from None


@contextmanager
def _usable(run: Path) -> Iterator[None]:
    """At Ctrl-C, say that the run holds the paper's residual, where it was saved before the learned one was done."""
    from bridgemem.runs import Run

    try:
        yield
    except KeyboardInterrupt:
        if not run.is_dir() or Run(run).unfinished is None:
            raise
        warn(
            f"bridgemem: interrupted; {run} holds the bridgemem residual and can be used; the same command with "
            "--resume fits the learned one too."
        )
        raise typer.Exit(1) from None


@reads_events
def train(
    name: Annotated[str, typer.Argument(help="The backbone, as in `cenet`, or your own, FILE.py:CLASS.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the trained backbone.")],
    seed: Seed = 42,
    device: Device = "cpu",
    *,
    reading: ReadOptions,
    split_at: SplitAt = None,
    set_: Set = None,
    tune: Tune = None,
    budget: Budget = "10m",
    data_dir: DataDir = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a backbone on the train split; with --tune, choose its settings on validation first."""
    from bridgemem.backbones import backbone_class
    from bridgemem.backbones import trained as backbones
    from bridgemem.backbones.own import blaming
    from bridgemem.backbones.tuning import seconds_of
    from bridgemem.events.loading import loaded
    from bridgemem.storage.whole import check_free

    check_free(out, force)
    name, seconds = registered(name), seconds_of(budget)
    with terminal_progress(quiet=quiet) as progress:
        dataset = loaded(source_of(data), reading, split_at=split_at, data_dir=data_dir, progress=progress)
        settings = backbone_settings(name, dataset, set_)
        kind = backbone_class(name)
        wanted = kind.tuned_unless_set(settings) if tune is None else tune
        with going_on(out), blaming(kind):
            trained = backbones.train(
                name,
                dataset,
                out,
                settings,
                seed,
                device,
                progress,
                force,
                budget=seconds if wanted else None,
                held=[one.partition("=")[0] for one in set_ or []],
            )
    size = sum(tensor.numel() for tensor in trained.tensors().values())
    result = {"backbone": name, "out": out, "parameters": size, "seed": seed, "tuning": trained.tuned}

    def text() -> None:
        if trained.tuned is not None:
            _show_tuning(trained.tuned)
        elif kind.grid and settings == kind.default:
            say(f"{name} has no settings of its own for this data; --tune chooses them on validation.")
        say(f"Trained {name} on {dataset.name} ({size:,} numbers); it is in {out}.")

    emit(result, as_json, text)


def _show_tuning(tuned: dict[str, Any]) -> None:
    """The trials of a tuning, and what validation chose."""
    from bridgemem.backbones.tuning import CUT, HEADER, changed_words, trial_rows

    if not tuned["trials"]:
        say("Nothing to tune: the backbone declares no grid.")
        return
    table(
        f"Tuning: time-aware MRR on {tuned['queries']:,} queries of validation; test was not read",
        HEADER,
        trial_rows(tuned),
    )
    for name, changed in tuned["chosen"].items():
        say(f"Validation chose for {name}: {changed_words(changed)}.")
    if not tuned["whole"]:
        done = Counter(trial["backbone"] for trial in tuned["trials"] if trial["note"] != CUT)
        cut = " in the middle of a trial" if sum(done.values()) < len(tuned["trials"]) else ""
        say(f"The budget of {tuned['budget']:.0f} s was spent{cut}; give more with --budget.")
        for name, a_round in tuned["grid"].items():
            said = f"tried {done[name]} of the {a_round} trials of a first round over the grid"
            if name not in tuned["settled"]:
                say(f"  {name}: {said if done[name] < a_round else 'tried the whole grid once, and did not settle'}.")


@reads_events
def fit(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")],
    backbone: Annotated[
        str,
        typer.Option("--backbone", "-b", help="Trained folder, training-free name, or FILE.py:CLASS (default: auto)."),
    ] = "auto",
    seed: Seed = 42,
    device: Device = "cpu",
    *,
    reading: ReadOptions,
    split_at: SplitAt = None,
    history: HistoryKind = "rolling",
    residual: Method = "learned",
    set_: Set = None,
    learned_set: LearnedSet = None,
    data_dir: DataDir = None,
    force: Force = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted fit.")] = False,
    engine: Annotated[
        str, typer.Option("--engine", help="local, or spark: a cluster reads the features of a mined folder.")
    ] = "local",
    master: Annotated[str, typer.Option("--master", help="Spark master URL, for --engine spark.")] = "",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit the residual on a backbone, choose on validation, lock the choice, refit on train + validation."""
    import time

    from bridgemem.backbones import REGISTERED
    from bridgemem.backbones.own import blaming
    from bridgemem.config import SAMPLED, Settings
    from bridgemem.errors import SettingsError
    from bridgemem.evaluation.comparison import REPORTED, held_out_table, selection_table
    from bridgemem.events.loading import loaded
    from bridgemem.forecaster import Forecaster
    from bridgemem.forecasting.model import Model
    from bridgemem.outofcore.spark_cases import cases_on_spark
    from bridgemem.ranking.filters import FILTERS
    from bridgemem.storage.schema import override
    from bridgemem.storage.whole import reserved_free

    if resume and force:
        raise SettingsError("--resume continues the existing run, --force replaces it; choose one.")
    check_engine(engine, master, ("local", "spark"))
    began = time.perf_counter()
    base = SAMPLED if residual == "learned" else Settings()
    settings, learned = override(base, set_) if set_ else None, learned_settings_of(residual, learned_set)
    given, again, backbone = backbone, registering(backbone), registered(backbone)
    if backbone == given != "auto" and not Path(backbone).is_dir():
        _check_training_free(backbone, data[0])
    model = Forecaster(
        backbone,
        residual=residual_of(residual),
        settings=settings,
        learned_settings=learned,
        history=history,
        seed=seed,
        device=device,
    )
    with terminal_progress(quiet=quiet) as progress, reserved_free(out, force or resume):
        dataset = loaded(source_of(data), reading, split_at=split_at, data_dir=data_dir, progress=progress)
        cluster = cases_on_spark(master, dataset) if engine == "spark" else nullcontext()
        with _usable(out), going_on(Path(backbone)), blaming(REGISTERED.get(backbone, backbone)), cluster:
            made = model.fit(dataset, folder=out, replace=force, resume=resume, progress=progress).parts
        assert isinstance(made, Model)
        fitted = made.fitted
    seconds = time.perf_counter() - began
    selections = {name: {**asdict(s), "lock": s.lock()} for name, s in fitted.selections.items()}
    held_out = {name: held for name in FILTERS if (held := made.held_out(name)) is not None}
    result = {
        "run": out,
        "epochs": fitted.epochs,
        "selections": selections,
        "held_out": {name: {**asdict(held), "better": held.better} for name, held in held_out.items()},
        "naive": {name: asdict(naive) for name, naive in fitted.naive.items()},
        "forecasts": made.preferred(),
        "fit_seconds": fitted.select_fit_seconds,
        "seconds": seconds,
    }

    def text() -> None:
        say(f"Fitted on {dataset.name} in {seconds:.1f} s.")
        if held_out or fitted.naive:
            own = made.config.backbone
            held = held_out.get(REPORTED)
            shown = held_out_table(held, own, made.preferred()) if held else selection_table(fitted, own)
            table(f"\n{shown.title}", shown.header, shown.rows)
            say(f"\n{shown.note}")
        if not held_out:
            _show_selection(fitted.selections[REPORTED], fitted.train.settings)
        if made.remark():
            say(made.remark())
        say(f"The run is in {out}; its selection is locked. Next: bridgemem {again}evaluate {out}")

    emit(result, as_json, text)


def _check_training_free(backbone: str, data: str) -> None:
    """Refuse the name of a backbone that is none, or that takes a training to be worth keeping."""
    from bridgemem.backbones import is_trained
    from bridgemem.backbones.trained import check_name
    from bridgemem.errors import SettingsError

    check_name(backbone)
    if is_trained(backbone):
        raise SettingsError(
            f"{backbone} has to be trained first: `bridgemem train {backbone} --data {data} --out FOLDER`; then name "
            "that folder as the backbone."
        )


def _show_selection(selection: Selection, settings: config.Settings) -> None:
    """What validation chose for the paper's residual, and what it gained there."""
    from bridgemem.evaluation.tables import FILTER_WORDS, figure

    chosen, before = selection.choice, f"MRR {figure(selection.backbone.mrr)}"
    what = (
        f"{before} -> {figure(selection.chosen.mrr)} with lambda {chosen.lam:g}, gate {chosen.gate}, tau {chosen.tau:g}"
        if selection.feasible
        else f"{before} by the backbone, which forecasts use alone; no residual was chosen"
    )
    say(f"Validation, {FILTER_WORDS[selection.filter]}: {what}.")
    if selection.memories:
        past = f"at most {settings.window} steps old" if settings.window else "however old"
        say(f"Validation chose the memory: the last {counted(settings.k, 'event')} of a pair, {past}.")


def learned_settings_of(residual: str, assignments: list[str] | None) -> LearnedSettings | None:
    """The learned residual's settings, refused where none is fitted."""
    from bridgemem.errors import SettingsError
    from bridgemem.residuals.learned import LearnedSettings
    from bridgemem.storage.schema import override

    if not assignments:
        return None
    if residual != "learned":
        raise SettingsError("--learned-set is for --residual learned.")
    return override(LearnedSettings(), assignments, "--learned-set")

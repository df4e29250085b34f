"""The three lines: load, fit, forecast; and the steps that the command line is made of."""

from __future__ import annotations

import glob
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bridgemem.backbones import backbone_class, backbone_defaults
from bridgemem.backbones.base import Backbone
from bridgemem.config import Settings
from bridgemem.errors import DataError, NotFoundError, RunError, SettingsError
from bridgemem.evaluation.card import write_card
from bridgemem.evaluation.evaluate import TRAINING_FREE, describe_device, evaluate, evaluate_backbone
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.reliability import calibrate, fit_calibrations
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG, benchmark_name, load_benchmark, unpack
from bridgemem.events.log import EventLog
from bridgemem.events.readers.read import read_events
from bridgemem.events.world import simulate
from bridgemem.forecasting.predictor import Predictor, Residual
from bridgemem.memory.past import History
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import Slice, fit_learned
from bridgemem.residuals.selection import SELECTION_FILTERS, Fitted
from bridgemem.residuals.selection import fit as fit_residual
from bridgemem.runs import Run, RunConfig, check_trained_on, open_backbone, training_note
from bridgemem.storage.files import reserved_free, whole_folder, write_json
from bridgemem.storage.placing import remove
from bridgemem.training.checkpoint import OtherTrainingWarning

METHODS = ("fixed", "learned")
# backbones that nothing can train again, as sentences call them
NOT_TRAINED = {"stored": "stored scores", "widened": "the backbone of a refreshed run"}


def load(
    source: Any,
    *,
    step: str | int | None = None,
    valid: float | None = None,
    test: float | None = None,
    data_dir: Path | str | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """Events, split by time: a benchmark's name, "world", a packed .npz, a CSV/TSV/Parquet file, or a data frame.

    step: the length of a time step, for files and frames alone; all others have their steps already.
    valid, test: the last shares of the events, a tenth each; for what is not split yet.
    """
    what, packed = source if isinstance(source, str | Path) else "this data", _is_split(source)
    if step is not None and (packed or isinstance(source, EventLog)):
        raise SettingsError(f"{what} has its time steps already; leave step out, or import the events anew with it.")
    if packed and not valid is test is None:
        raise SettingsError(f"{what} is split already; leave valid and test out, or import the events anew with them.")
    shares = [0.1 if share is None else share for share in (valid, test)]
    if isinstance(source, str) and source == "world":
        return simulate().dataset
    if isinstance(source, str) and source in CATALOG:
        return load_benchmark(source, data_dir, progress=progress)
    if isinstance(source, Dataset):
        return source
    name = Path(source).name.split(".")[0] if isinstance(source, str | Path) else "events"
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        return unpack(source)
    if isinstance(source, str) and not Path(source).exists():
        raise NotFoundError(
            f"there is no file and no data set called {source!r}; known data sets are world, {', '.join(CATALOG)}."
        )
    if isinstance(source, EventLog):
        return Dataset.chronological(name, source, *shares)
    reading = read_events(source, step=step, progress=progress)
    if reading.rejects.count or reading.dropped:
        warnings.warn(reading.sentence(), stacklevel=2)
    return Dataset.chronological(name, reading.events, *shares)


def _is_split(source: Any) -> bool:
    if isinstance(source, str | Path):
        return source in ("world", *CATALOG) or Path(source).suffix == ".npz"
    return isinstance(source, Dataset)


def check_device(device: str) -> str:
    """The device, if this machine has it."""
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise SettingsError(f"there is no device called {device!r}; use cpu or cuda.")
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError("no CUDA device is to be had here; use --device cpu, or a CUDA build of torch.")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise SettingsError(f"there is no {device} here, only {torch.cuda.device_count()} CUDA devices, from cuda:0.")
    return device


def default_settings(name: str, dataset: Dataset) -> Any:
    """A backbone's settings for a data set; own data that is called like a benchmark has none of its own."""
    return backbone_defaults(name, benchmark_name(dataset))


def training_state(folder: Path | str) -> Path:
    """Where a training that will be saved in a folder keeps its state."""
    home = Path(folder).absolute()
    return home.parent / f".{home.name}.training"


def train(
    name: str,
    dataset: Dataset,
    folder: Path | str,
    settings: Any = None,
    seed: int = 42,
    device: str = "cpu",
    progress: Progress = SILENT,
    replace: bool = False,
) -> Backbone:
    """Train a backbone on the train split and save it in a folder.

    A long training keeps its state beside that folder until it is saved; started again, it goes on from there. The
    state of one on other data or with other settings is refused, or given up where `replace` says so, and so is a
    backbone that is there. Without settings, it has those of the data set.
    """
    home, state = Path(folder).absolute(), training_state(folder)
    settings = settings or default_settings(name, dataset)
    with reserved_free(home, replace):
        began = time.perf_counter()
        known, on = dataset.without_test(), check_device(device)
        with warnings.catch_warnings():
            if not replace:
                warnings.simplefilter("error", OtherTrainingWarning)
            try:
                backbone = backbone_class(name).fit(known, settings, seed, on, progress, state)
            except OtherTrainingWarning:
                raise RunError(
                    f"{state} keeps an interrupted training on other data or with other settings; finish that one, "
                    "choose another name, or say --force (reproduce: --retrain) to give it up."
                ) from None
        note = {
            "fingerprint": dataset.train.fingerprint,
            "seed": seed,
            "device": describe_device(device),
            # of this start alone, where an earlier one left its state behind
            "seconds": time.perf_counter() - began,
            "parameters": sum(tensor.numel() for tensor in backbone.tensors().values()),
        }
        # the note in the same stroke: a backbone without one passes for one of any data
        with whole_folder(home, replace) as aside:
            backbone.save(aside / "saved")
            for file in (aside / "saved").iterdir():
                file.rename(aside / file.name)
            (aside / "saved").rmdir()
            write_json(aside / "trained.json", note)
        # also what a kill in the middle of writing left of it
        for left in (state, *home.parent.glob(f".{glob.escape(state.name)}.*")):
            remove(left)
        return backbone


def fit(
    dataset: Dataset,
    backbone: str | Backbone = "cenet",
    settings: Settings | None = None,
    seed: int = 42,
    device: str = "cpu",
    selection: str = "time",
    progress: Progress = SILENT,
    method: str = "fixed",
) -> Predictor:
    """A forecaster: the backbone (trained here if named) with a residual fitted and chosen on validation.

    method "learned" forecasts with the learned residual, which is fitted beside the fixed one; a warning says where it
    did no better than that on the later part of validation.
    """
    if method not in METHODS:
        raise SettingsError(f"method is {' or '.join(METHODS)}, not {method!r}.")
    if selection not in SELECTION_FILTERS:
        raise SettingsError(f"selections are made under {' or '.join(SELECTION_FILTERS)}, not {selection!r}.")
    model = backbone
    if isinstance(model, str):
        own = default_settings(model, dataset)
        model = backbone_class(model).fit(dataset.without_test(), own, seed, check_device(device), progress)
    model = model.to(check_device(device))
    fitted = fit_residual(dataset, model, settings, seed, device, progress)
    choice, learned = fitted.selections[selection].choice, None
    if method == "learned":
        source = Slice(dataset, model, fitted.train)
        made = fit_learned([source], None, seed, device, progress, fitted.choices)[selection]
        learned, held = made.model, made.held_out
        if held is not None and held.better == "fixed":
            warnings.warn(
                "on the later part of validation the learned residual gained no standard error over the fixed one "
                f"(MRR {held.learned:.4f} and {held.bridgemem:.4f}); method='fixed' forecasts with the fixed one.",
                stacklevel=2,
            )
    past = History(dataset.known, device=device)
    residual = Residual(past, fitted.train, choice, learned)
    calibration = fit_calibrations(dataset, model, {"": residual}, progress=progress)[""]
    return Predictor(dataset.events, model.to("cpu"), fitted.known.to("cpu"), choice, learned, calibration)


def fit_run(
    dataset: Dataset,
    backbone_folder: Path,
    folder: Path,
    settings: Settings | None = None,
    seed: int = 42,
    backbone_seed: int = 42,
    device: str = "cpu",
    history: str = "rolling",
    replace: bool = False,
    progress: Progress = SILENT,
    method: str = "fixed",
    learned_settings: LearnedSettings | None = None,
) -> tuple[Run, Fitted]:
    """Fit the residual of a saved backbone, choose on validation, and write the run: selection locked, calibrated.

    method "learned" fits the learned residual beside the fixed one, once for each filter.
    """
    if method not in METHODS:
        raise SettingsError(f"method is {' or '.join(METHODS)}, not {method!r}.")
    if method == "learned" and history == "frozen":
        raise SettingsError("the learned residual is fitted with rolling history only; leave --history frozen out.")
    if history not in ("rolling", "frozen"):
        raise SettingsError(f"history is rolling or frozen, not {history!r}.")
    twice = learned_settings is not None and learned_settings.cross_fit > 0
    with reserved_free(Path(folder), replace):
        backbone = _checked_backbone(backbone_folder, dataset, twice).to(check_device(device))
        fitted = fit_residual(dataset, backbone, settings, seed, device, progress, history == "frozen")
        config = RunConfig(
            dataset=dataset.name,
            fingerprint=dataset.events.fingerprint,
            valid_start=dataset.valid_start,
            test_start=-1 if dataset.test_start is None else dataset.test_start,
            backbone=backbone.name,
            backbone_seed=training_note(backbone_folder).get("seed", backbone_seed),
            seed=seed,
            device=device,
            history=history,
            epochs=fitted.epochs,
            select_fit_seconds=fitted.select_fit_seconds,
            refit_seconds=fitted.refit_seconds,
            transitions=fitted.examples,
            parameters=sum(p.numel() for p in fitted.train.reader.parameters()),
        )
        learned = {}
        if method == "learned":
            wanted = learned_settings or LearnedSettings()
            sources = [Slice(dataset, backbone, fitted.train)]
            if wanted.cross_fit:
                home = earlier_backbone(backbone_folder, wanted.cross_fit)
                again = partial(_trained_again, backbone, home, config.backbone_seed, device, progress)
                sources.insert(0, sources[0].earlier(wanted.cross_fit, again, seed, device, fitted.epochs, progress))
            learned = fit_learned(sources, wanted, seed, device, progress, fitted.choices)

        def finish(made: Run) -> None:
            calibrate(made, dataset=dataset, device=device, progress=progress)
            write_card(made)

        return Run.create(folder, dataset, backbone_folder, fitted, config, replace, learned, finish), fitted


def _checked_backbone(folder: Path, dataset: Dataset, twice: bool) -> Backbone:
    """A saved backbone, refused where it was made for other data, or is to be trained twice and cannot be."""
    backbone = open_backbone(folder)
    backbone.check(dataset)
    check_trained_on(folder, dataset)
    if twice and backbone.name in NOT_TRAINED:
        raise SettingsError(
            f"cross_fit trains the backbone again, on earlier events, and {NOT_TRAINED[backbone.name]} cannot be "
            "trained; leave cross_fit out."
        )
    return backbone


def earlier_backbone(folder: Path, cross_fit: float) -> Path:
    """The folder of the backbone that cross-fitting trains on what came before the last share of train."""
    return folder.parent / f"{folder.name}-before-{cross_fit:g}"


def _trained_again(
    backbone: Backbone, home: Path, seed: int, device: str, progress: Progress, dataset: Dataset
) -> Backbone:
    """A backbone of the same kind and settings, trained on another train split; it is kept for the next fit."""
    if not home.is_dir() or not _trained_so(home, dataset, backbone.settings, seed):
        train(backbone.name, dataset, home, backbone.settings, seed, device, progress, replace=True)
    return open_backbone(home)


def _trained_so(folder: Path, dataset: Dataset, settings: Any, seed: int) -> bool:
    """Whether a backbone that `train` saved has these settings, this seed, and was trained on this very train split."""
    note = training_note(folder)
    noted = note.get("fingerprint"), note.get("seed")
    return noted == (dataset.train.fingerprint, seed) and open_backbone(folder).settings == settings


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` made: one run per seed, and every record."""

    dataset: Dataset
    split: str
    runs: list[Run]
    records: list[Record]


def reproduced_backbone(runs: Path, dataset: Dataset, backbone: str, seed: int) -> Path:
    """The folder in which `reproduce` keeps the backbone of its runs."""
    return runs / f"{dataset.name}-{backbone}-b{seed}"


def reproduce(
    dataset: Dataset,
    runs: Path,
    backbone: str = "cenet",
    backbone_settings: Any = None,
    settings: Settings | None = None,
    seeds: tuple[int, ...] = (42,),
    backbone_seed: int = 42,
    device: str = "cpu",
    history: str = "rolling",
    retrain: bool = False,
    progress: Progress = SILENT,
    method: str = "fixed",
    learned_settings: LearnedSettings | None = None,
) -> Reproduction:
    """Train the backbone (or take the one trained before), then for each seed fit, select on validation, test once."""
    backbone_settings = backbone_settings or default_settings(backbone, dataset)
    if not seeds:
        raise DataError("name at least one seed.")
    split = "valid" if dataset.test_start is None else "test"
    home = reproduced_backbone(runs, dataset, backbone, backbone_seed)
    if retrain or not (home / "config.toml").is_file():
        train(backbone, dataset, home, backbone_settings, backbone_seed, device, progress, retrain)
    elif not _trained_so(home, dataset, backbone_settings, backbone_seed):
        raise SettingsError(
            f"{home} was trained on other data, with other settings or another seed, or does not say on what; say "
            "--retrain to replace it."
        )
    made, records = [], []
    suffix = "" if history == "rolling" else f"-{history}"
    for seed in seeds:
        folder = runs / f"{home.name}-s{seed}{suffix}"
        run, _ = fit_run(
            dataset,
            home,
            folder,
            settings,
            seed,
            backbone_seed,
            device,
            history,
            True,
            progress,
            method,
            learned_settings,
        )
        records += evaluate(run, dataset, split, device, progress)
        made.append(run)
    for name in TRAINING_FREE:
        records += evaluate_backbone(name, dataset, split, device, progress)
    return Reproduction(dataset, split, made, records)

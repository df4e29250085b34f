"""Trained backbones: training into a folder, the note of what they were trained on, and opening them again."""

from __future__ import annotations

import glob
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bridgemem.backbones import (
    BACKBONES,
    REGISTERED,
    backbone_class,
    backbone_names,
    is_trained,
    load_backbone,
)
from bridgemem.backbones.base import Backbone, check_trained_events
from bridgemem.backbones.own import Wrapped
from bridgemem.backbones.tuning import TUNING, default_of, tune
from bridgemem.config import Declared, NotNegative, Size, shown
from bridgemem.errors import BackboneError, NotFoundError, RunError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.progress import SILENT, Progress, remark
from bridgemem.storage.files import write_json
from bridgemem.storage.placing import remove
from bridgemem.storage.schema import read_as
from bridgemem.storage.whole import reserved_free, whole_folder
from bridgemem.training.checkpoint import OtherTrainingWarning
from bridgemem.training.devices import check_device, describe_device

NOTE = "trained.json"
RENEWED = "renewed"  # in a run, the folder of the backbone that was trained once more


def default_settings(name: str, dataset: Dataset) -> Any:
    """A backbone's settings for a data set; own data that is called like a benchmark has none of its own."""
    return default_of(backbone_class(name), dataset)


def check_name(name: str) -> None:
    """Refuse the name of a backbone that is not registered."""
    if name not in backbone_names():
        known = ", ".join(backbone_names())
        raise NotFoundError(f"there is no folder and no backbone called {name!r}; choose from {known}.")


def as_backbone(given: Any) -> str | Path | Backbone | type[Backbone]:
    """What a forecaster is given as its backbone: a name, the folder of a trained one, one in memory, or a class.

    A run folder stands for the backbone that is in it, a registered class for its name.
    """
    if isinstance(given, Backbone):
        return given
    if isinstance(given, type) and issubclass(given, Backbone):
        registered = given.name in backbone_names() and backbone_class(given.name) is given
        return given.name if registered else given
    if isinstance(given, str) and issubclass(kind := REGISTERED.get(given, Backbone), Wrapped):
        return kind()  # trained elsewhere
    if isinstance(given, str | Path):
        folder = Path(given)
        if _of_run(folder):
            return folder / "backbone"
        return folder if folder.is_dir() else str(given)
    if isinstance(given, Dataset | EventLog):
        raise BackboneError("the data goes to fit, as in Forecaster().fit(data); the backbone is what is corrected.")
    if isinstance(given, type) or not callable(getattr(given, "score", None)):
        kind = given if isinstance(given, type) else type(given)
        raise BackboneError(
            f"the backbone is a name, a folder or a bridgemem.Backbone, not {kind.__name__}; derive a model of your "
            "own from bridgemem.Backbone, see docs/how-to/own-model.md."
        )
    raise BackboneError(
        f"{type(given).__name__} only scores, and a forecaster also saves its backbone; measure it with "
        "bridgemem.evaluate(data, model), derive it from bridgemem.Backbone, or write its scores with "
        "bridgemem.backbones.stored.write_scores and give that folder."
    )


def training_state(folder: Path | str) -> Path:
    """Where a training that will be saved in a folder keeps its state."""
    home = Path(folder).absolute()
    return home.parent / f".{home.name}.training"


def training_states(folder: Path | str) -> list[Path]:
    """What is kept of an interrupted training of a backbone, and of those of it that are kept next to it."""
    own = training_state(folder)
    further = own.parent.glob(f"{glob.escape(own.name.removesuffix('.training'))}-*.training")
    return [state for state in (own, *sorted(further)) if state.is_dir()]


def train(
    name: str,
    dataset: Dataset,
    folder: Path | str,
    settings: Any = None,
    seed: int = 42,
    device: str = "cpu",
    progress: Progress = SILENT,
    replace: bool = False,
    *,
    budget: str | float | None = None,
    held: Sequence[str] = (),
) -> Backbone:
    """Train a backbone on the train split and save it in a folder.

    A long training keeps its state next to that folder until it is saved; started again, it goes on from there. The
    state of one on other data or with other settings is refused, or given up where `replace` says so, and so is a
    backbone that is there. Without settings, it has those of the data set. budget: time for trials that choose other
    settings than the held ones on validation first, as `tuning.tune` does; they are kept with the backbone.
    """
    home, state = Path(folder).absolute(), training_state(folder)
    settings = settings or default_settings(name, dataset)
    with reserved_free(home, replace):
        known, on = dataset.without_test(), check_device(device)
        trials, tuned = home.parent / f".{home.name}.trials.json", None
        if budget is not None:
            how: dict[str, Any] = {"held": held, "seed": seed, "device": on, "keep": trials, "progress": progress}
            made = tune(name, known, settings=settings, budget=budget, **how)
            settings, tuned = made.settings, made.as_dict()
        began = time.perf_counter()  # what the trials took is noted with them
        with warnings.catch_warnings():
            if not replace:
                warnings.simplefilter("error", OtherTrainingWarning)
            try:
                backbone = backbone_class(name).fit(
                    known, settings, seed=seed, device=on, progress=progress, checkpoint=state
                )
            except OtherTrainingWarning:
                raise RunError(
                    f"{state} keeps an interrupted training on other data or with other settings; finish that one, "
                    "choose another name, or use --force (reproduce: --retrain) to discard it."
                ) from None
        backbone.tuned = tuned
        # unless the backbone knows better, those of this start alone, where an earlier one left a state
        seconds = time.perf_counter() - began if backbone.seconds is None else backbone.seconds
        note = note_of(backbone, dataset, seed, device, seconds)
        with whole_folder(home, replace) as aside:
            save_trained(backbone, aside / "saved", note)
            for file in (aside / "saved").iterdir():
                file.rename(aside / file.name)
            (aside / "saved").rmdir()
        # also what a kill in the middle of writing left of it
        for left in (state, trials, *home.parent.glob(f".{glob.escape(state.name)}.*")):
            remove(left)
        return backbone


@dataclass(frozen=True)
class TrainingNote(Declared):
    """What is noted of a training: on which events, how, where, and what it cost; nothing of one from elsewhere.

    fingerprint: of train. known: of train and validation, which may have told it when to stop.
    """

    fingerprint: str | None = None
    known: str | None = None
    seed: int | None = None
    device: str | None = None
    seconds: NotNegative | None = None
    parameters: Size | None = None

    def stopped_by_other(self, dataset: Dataset) -> bool:
        """Whether another validation part than that of a data set may have told the training when to stop."""
        return self.known not in (None, dataset.known.fingerprint)


def note_of(backbone: Backbone, dataset: Dataset, seed: int, device: str, seconds: float) -> TrainingNote:
    parameters = sum(tensor.numel() for tensor in backbone.tensors().values())
    train, known = dataset.train.fingerprint, dataset.known.fingerprint
    return TrainingNote(train, known, seed, describe_device(device), seconds, parameters)


def save_trained(backbone: Backbone, folder: Path, note: TrainingNote) -> None:
    """Write a backbone with its note: without one it would pass for one of any data."""
    backbone.save(folder)
    if note != TrainingNote():
        write_json(folder / NOTE, asdict(note))
    if backbone.tuned is not None:
        write_json(folder / TUNING, backbone.tuned)


def open_backbone(folder: Path) -> Backbone:
    """A saved backbone, or the reason why what lies there is none."""
    try:
        return load_backbone(folder)
    except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as problem:
        said = shown(str(problem)).strip("'\"")
        raise RunError(
            f"{folder} holds a backbone whose weights and config.toml do not fit ({said}); train it again."
        ) from None


def training_note(folder: Path) -> TrainingNote:
    """What `train` noted next to a backbone; nothing for one that came from elsewhere."""
    return read_as(folder / NOTE, TrainingNote, "put a copy back, or take the file away", missing=TrainingNote())


def check_trained_on(folder: Path, dataset: Dataset) -> None:
    """Refuse a backbone that is noted to be trained on anything but train and validation of a data set."""
    note = training_note(folder)
    check_trained_events(str(folder), note.fingerprint, dataset)
    if note.stopped_by_other(dataset):
        raise BackboneError(
            f"{folder} was trained next to another validation part than that of {dataset.name}, which may have told it "
            "when to stop; train it on this data."
        )


def earlier_backbone(folder: Path, cross_fit: float) -> Path:
    """The folder of the backbone that cross-fitting trains on what came before the last share of train."""
    return _next_to(folder, f"before-{cross_fit:g}")


def renewed_backbone(folder: Path) -> Path:
    """The folder of the backbone that is trained once more, on most of validation too."""
    return _next_to(folder, RENEWED)


def _next_to(folder: Path, what: str) -> Path:
    """A folder next to that of a backbone; next to a run if it lies in one, which holds nothing but its own."""
    home = folder.parent if _of_run(folder.parent) else folder
    return home.parent / f"{home.name}-{what}"


def _of_run(folder: Path) -> bool:
    return (folder / "selection.json").is_file() and (folder / "backbone").is_dir()


def trained_again(
    backbone: Backbone, home: Path | None, seed: int, device: str, progress: Progress, dataset: Dataset
) -> Backbone:
    """A backbone of the same kind and settings, trained on another train split; with a home it is kept there."""
    if home is not None and home.is_dir() and trained_so(home, dataset, backbone.settings, seed):
        return open_backbone(home)
    if not training_free(backbone):
        until = dataset.events.clock.label(dataset.valid_start)
        remark(progress, f"Training {backbone.name} once more, on {dataset.sizes['train']:,} events before {until}.")
    if home is None:
        return type(backbone).fit(
            dataset.without_test(), backbone.settings, seed=seed, device=device, progress=progress
        )
    train(backbone.name, dataset, home, backbone.settings, seed, device, progress, replace=True)
    return open_backbone(home)


def training_free(backbone: Backbone) -> bool:
    """Whether a backbone can be fitted on any events in a moment: it counts, and nothing of it is trained."""
    if backbone.name in BACKBONES:
        return not is_trained(backbone.name) and backbone.retrained
    return not getattr(type(backbone), "trained", True)


def trained_so(folder: Path, dataset: Dataset, settings: Any, seed: int) -> bool:
    """Whether a backbone that `train` saved has these settings, this seed, and was trained on this very train split."""
    note = training_note(folder)
    if (note.fingerprint, note.seed) != (dataset.train.fingerprint, seed) or note.stopped_by_other(dataset):
        return False
    backbone = open_backbone(folder)
    # what the device decided is part of a trained one's settings
    device = (note.device or "cpu").partition(" ")[0]
    return bool(backbone.settings == type(backbone).sized(settings, device))

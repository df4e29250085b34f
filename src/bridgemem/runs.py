"""Runs: a fitted model as a folder: config, data, backbone, transitions, locked selections, metrics and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.trained import open_backbone, save_trained, training_note
from bridgemem.config import Settings, as_settings, write_toml
from bridgemem.errors import RunError, SelectionError
from bridgemem.events.dataset import Dataset, Identity
from bridgemem.events.datasets import CATALOG, benchmark_name, load_benchmark
from bridgemem.events.log import Clock
from bridgemem.events.packs import pack, packed_clock, unpack
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.calibration import Calibration, read_calibration, write_calibrations
from bridgemem.forecasting.model import Model, Parts, RunConfig, described
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.disk.mapped import open_memory
from bridgemem.residuals.learned import Learned, LearnedSettings
from bridgemem.residuals.learning import HeldOut
from bridgemem.residuals.method import Method
from bridgemem.residuals.scoring import Choice
from bridgemem.residuals.selection import SELECTION_FILTERS, Selection
from bridgemem.storage.files import (
    FORMAT,
    link_or_copy,
    locked,
    read_config,
    read_json,
    read_names,
    read_tensors,
    whole_folder,
    write_json,
    write_names,
    write_tensors,
)
from bridgemem.storage.known_files import refuse_links
from bridgemem.storage.placing import recover

T = TypeVar("T")

REFRESHES = "refresh.json"  # in a refreshed run: what was done to the run that was fitted
COUNTED = ("added", "retracted", "new_entities", "new_relations")  # in such a note
ADDED = ("cross_fit",)  # settings that config.toml lacks where the run is of an earlier version
BACK = "put a copy back, or fit the run again"


class Run(Parts):
    """A run folder that is on disk, whole."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        recover(self.folder)
        if not (self.folder / "config.toml").is_file():
            raise RunError(f"there is no run at {self.folder}; `bridgemem fit` makes one.")
        refuse_links(self.folder)
        tables = read_config(self.folder)
        own, settings = tables.get("run"), tables.get("settings", {})
        if not (isinstance(own, dict) and isinstance(settings, dict)):
            raise RunError(f"{self.folder}/config.toml does not describe a run; `bridgemem fit` makes one.")
        if own.get("format", FORMAT) != FORMAT:
            raise RunError(f"{self.folder} has another format version than this program's, which is {FORMAT}.")
        try:
            self.config = as_settings(RunConfig, own, f"{self.folder}/config.toml")
        except TypeError:
            raise RunError(f"{self.folder}/config.toml lacks a setting of the run; {BACK}.") from None
        self.settings = self._settings(Settings, settings)

    def _settings(self, kind: type[T], values: Mapping[str, Any]) -> T:
        """A table of config.toml, refused where it was cut: a default in place of what was said answers otherwise."""
        path = self.folder / "config.toml"
        if not isinstance(values, Mapping):
            raise RunError(f"{path} does not describe a run; {BACK}.")
        lost = [f.name for f in fields(kind) if f.name not in values and f.name not in ADDED]  # type: ignore[arg-type]
        if lost:
            raise RunError(f"{path} is not whole, it lacks {lost[0]}; {BACK}.")
        return as_settings(kind, values, str(path))

    @classmethod
    def create(
        cls,
        folder: Path | str,
        model: Model,
        *,
        backbone: Path | None = None,
        replace: bool = False,
        finish: Callable[[Run], object] | None = None,
    ) -> Run:
        """Write a fitted model.

        backbone: the folder of the saved backbone, whose files are linked or copied; left out, it is saved anew.
        finish: what is yet to be written into the run before it appears under its name.
        """
        dataset, fitted = model.dataset, model.fitted
        with whole_folder(Path(folder), replace) as aside:
            tables = {"run": asdict(model.config), "settings": asdict(model.settings), **identity_table(dataset)}
            if model.fits:
                tables["learned"] = asdict(next(iter(model.fits.values())).model.settings)
            (aside / "config.toml").write_text(write_toml(tables), encoding="utf-8")
            if not benchmark_name(dataset):  # own data, though it may be called like a benchmark
                pack(dataset, aside / "data.npz")
            for kind, vocabulary in (("entities", dataset.events.entities), ("relations", dataset.events.relations)):
                write_names(aside / f"{kind}.txt", vocabulary.names)
            if backbone is None:
                save_trained(model.own_backbone, aside / "backbone", dict(model.trained))
            else:
                link_or_copy(backbone, aside / "backbone")
            parts = {"train": fitted.train, "known": fitted.known}
            tensors = {f"{part}.{name}": t for part, made in parts.items() for name, t in made.tensors().items()}
            for filter_name, fit in model.fits.items():
                tensors |= {f"learned.{filter_name}.{name}": t for name, t in fit.model.tensors().items()}
            write_tensors(aside / "model.safetensors", tensors)
            locked = {name: {**s.as_dict(), "lock": s.lock()} for name, s in fitted.selections.items()}
            write_json(aside / "selection.json", locked)
            learned = {name: fit.as_dict() for name, fit in model.fits.items()}
            write_json(aside / "epochs.json", {"epochs": fitted.epochs, "nll": fitted.curve, "learned": learned})
            if model.calibrations:
                write_calibrations(aside, model.calibrations)
            if finish is not None:
                finish(cls(aside))
        return cls(folder)

    def dataset(self, data_dir: Path | None = None, memory_dir: Path | None = None) -> Dataset:
        """The data the run was fitted on, refused if it is not the same any more.

        memory_dir: a memory on disk that holds it, from which it is read by memory map.
        """
        if memory_dir is not None:
            return self._mapped(memory_dir)
        own, benchmark = self.folder / "data.npz", CATALOG.get(self.config.dataset)
        if not own.is_file() and (benchmark is None or benchmark.fingerprint != self.config.fingerprint):
            raise RunError(f"{own} is missing; {BACK}.")
        dataset = unpack(own) if own.is_file() else load_benchmark(self.config.dataset, data_dir)
        if dataset.events.fingerprint != self.config.fingerprint:
            raise RunError(
                f"the data of {self.folder} changed since it was fitted; fit a new run on the data as it is."
            )
        return dataset

    def identity(self) -> Identity | None:
        """What the ids and steps of the data meant when the run was written; None for a run of an earlier version."""
        path, values = f"{self.folder}/config.toml", read_config(self.folder).get("identity")
        if values is None:
            return None
        if not isinstance(values, dict):
            raise RunError(f"{path} holds an identity that is no table; {BACK}.")
        try:
            found = as_settings(Identity, {k: v for k, v in values.items() if k != "digest"}, path)
        except TypeError:
            raise RunError(f"{path} holds an identity that lacks a part; {BACK}.") from None
        if found.digest != values.get("digest"):
            raise RunError(f"{path} holds an identity whose parts do not give its digest; {BACK}.")
        return found

    def _mapped(self, memory_dir: Path) -> Dataset:
        dataset, config = open_memory(memory_dir), self.config
        for kind, vocabulary in (("entities", dataset.events.entities), ("relations", dataset.events.relations)):
            # earlier versions wrote a space for a line break
            own, there = (
                [name.replace("\n", " ") for name in names]
                for names in (read_names(self.folder / f"{kind}.txt"), vocabulary.names)
            )
            if own != there:
                raise RunError(
                    f"{memory_dir} is a memory of other {kind} than those of {self.folder}; `bridgemem memory "
                    f"{self.folder}` writes one."
                )
        # the fingerprint knows steps and not when they were
        if self._clock() not in (None, dataset.events.clock):
            raise RunError(
                f"{memory_dir} is a memory of other dates or steps than those of {self.folder}; `bridgemem memory "
                f"{self.folder}` writes one."
            )
        test_start = -1 if dataset.test_start is None else dataset.test_start
        found = (dataset.events.fingerprint, dataset.valid_start, test_start)
        if found != (config.fingerprint, config.valid_start, config.test_start):
            raise RunError(
                f"{memory_dir} is a memory of other events, or another split of them, than {self.folder} was fitted "
                f"on; `bridgemem memory {self.folder}` writes one."
            )
        return dataset

    def _clock(self) -> Clock | None:
        """When the steps of the run's data are, without reading it; None where the data did not come with the run."""
        own, known = self.folder / "data.npz", CATALOG.get(self.config.dataset)
        if own.is_file():
            return packed_clock(own)
        return None if known is None else known.clock

    def backbone(self, device: str = "cpu") -> Backbone:
        return open_backbone(self.folder / "backbone").to(device)

    def transitions(self, part: str = "known", device: str = "cpu") -> Transitions:
        """The transitions fitted on "train" (for validation) or on "known", train + validation (for test and after)."""
        own = self._tensors(f"{part}.")
        try:
            model = Transitions.restore(self.settings, own)
        except (KeyError, RuntimeError, ValueError, TypeError, IndexError):
            raise RunError(
                f"{self.folder}/model.safetensors does not hold what config.toml says; fit the run again."
            ) from None
        return model.to(device)

    def learned(self, filter_name: str, device: str = "cpu") -> Learned | None:
        """The learned residual fitted under a filter, or None where the run has none."""
        own = self._tensors(f"learned.{filter_name}.")
        if not own:
            return None
        settings = self._settings(LearnedSettings, read_config(self.folder).get("learned", {}))
        try:
            return Learned.restore(settings, own).to(device)
        except (KeyError, RuntimeError, ValueError, TypeError, IndexError):
            raise RunError(
                f"{self.folder}/model.safetensors does not hold the learned residual that config.toml says; fit the "
                "run again."
            ) from None

    def learning(self, filter_name: str) -> dict[str, Any]:
        """How the learned residual of a filter was fitted: epochs, curve, seconds, parameters, scale, settings."""
        found = read_json(self.folder / "epochs.json")
        for name in ("learned", filter_name):
            found = found.get(name) if isinstance(found, dict) else None
        numbers = ("epochs", "seconds", "parameters", "scale")
        if not (
            isinstance(found, dict)
            and isinstance(found.get("settings"), dict)
            and all(is_number(found.get(name)) for name in numbers)
        ):
            raise RunError(f"{self.folder}/epochs.json does not say how the learned residual was fitted; fit it again.")
        return found

    def held_out(self, filter_name: str) -> HeldOut | None:
        """How the residuals did on the later part of validation under a filter; None where that was not measured."""
        path = self.folder / "epochs.json"
        if not path.is_file():
            raise RunError(f"{path} is missing; {BACK}.")
        values = read_json(path)
        for name in ("learned", filter_name, "held_out"):
            values = values.get(name) if isinstance(values, dict) else None
        if not isinstance(values, dict):
            return None
        try:
            return as_settings(HeldOut, values, str(path))
        except TypeError:
            raise RunError(f"{path} does not say how the residuals did on validation; fit the run again.") from None

    def refreshes(self) -> list[dict[str, Any]]:
        """What `refresh` did to the run since it was fitted, oldest first."""
        path = self.folder / REFRESHES
        found = read_json(path) if path.is_file() else []
        notes = [note for note in found if isinstance(note, dict)] if isinstance(found, list) else []
        for note in notes:
            whole = all(type(note.get(name, 0)) is int for name in COUNTED)
            if not (whole and all(isinstance(note.get(name), str | None) for name in ("when", "store", "origin"))):
                raise RunError(f"{path} holds a note that no refresh writes; {BACK}.")
        return notes

    @property
    def origin(self) -> str | None:
        """The fingerprint of the data the run was fitted on, before any refresh; None where that was not noted."""
        notes = self.refreshes()
        return notes[0].get("origin") if notes else self.config.fingerprint

    def _tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors of the model whose names begin so, without the beginning, all finite."""
        tensors = read_tensors(self.folder / "model.safetensors")
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        if not all(torch.isfinite(tensor).all() for tensor in own.values()):
            raise RunError(f"{self.folder}/model.safetensors holds a number that is NaN or infinite; fit it again.")
        return own

    def selection(self, filter_name: str) -> Selection:
        """The locked selection made under a filter; a record that was edited afterwards is refused."""
        if filter_name not in SELECTION_FILTERS:
            raise SelectionError(f"selections are made under {' or '.join(SELECTION_FILTERS)}, not {filter_name!r}.")
        path = self.folder / "selection.json"
        records = read_json(path) if path.is_file() else {}
        values = records.get(filter_name) if isinstance(records, dict) else None
        if not isinstance(values, dict):
            raise SelectionError(f"{self.folder} has no selection under the {filter_name} filter; test stays closed.")
        selection = Selection.from_dict(values)
        if selection.lock() != values.get("lock"):
            raise SelectionError(f"{path} was changed after it was locked; fit a new run.")
        choice = as_settings(Choice, values["choice"], str(path))
        if choice != selection.choice or not (0 <= choice.lam < math.inf and choice.tau >= 0):
            raise SelectionError(f"{path} holds a lambda or tau that cannot have been chosen; fit a new run.")
        return selection

    def predictor(
        self,
        selected_by: str = "time",
        data_dir: Path | None = None,
        residual: str | None = None,
        memory_dir: Path | None = None,
    ) -> Predictor:
        """What answers queries by name from the run's own data; memory_dir: a memory on disk that holds it."""
        self.refuse_frozen()
        self.selection(selected_by)
        return self.predictor_of(self.dataset(data_dir, memory_dir).events, selected_by, residual)

    def calibration(self, method: Method, lock: str) -> Calibration | None:
        return read_calibration(self.folder, method, lock)

    def backbone_note(self) -> dict[str, Any]:
        home = self.folder / "backbone"
        return described(training_note(home), read_config(home).get("settings", {}))

    def data(self) -> Dataset:
        return self.dataset()

    @property
    def where(self) -> str:
        return str(self.folder)

    def write_metrics(
        self, values: dict[str, Any], horizon: int = 1, finish: Callable[[Run], object] | None = None
    ) -> None:
        """Put the records of a split, for queries of that many steps, next to those of other splits.

        finish: called before anybody else may write, such as for the card of the run.
        """
        path = self.folder / ("metrics.json" if horizon == 1 else f"metrics.horizon{horizon}.json")
        with locked(path):
            known = read_json(path) if path.is_file() else {}
            write_json(path, {**(known if isinstance(known, dict) else {}), **values})
            if finish is not None:
                finish(self)

    def metrics(self) -> dict[str, Any]:
        path = self.folder / "metrics.json"
        if not path.is_file():
            raise RunError(f"{self.folder} was not evaluated yet; `bridgemem evaluate {self.folder}` does it.")
        values = read_json(path)
        rows = values.values() if isinstance(values, dict) else [None]
        if not all(isinstance(part, list) and all(isinstance(row, dict) for row in part) for part in rows):
            raise RunError(f"{path} is damaged; `bridgemem evaluate {self.folder}` makes it anew.")
        return values

    def relations(self) -> tuple[str, ...]:
        """The relations' names, by id."""
        return read_names(self.folder / "relations.txt")

    def ranks_path(self, split: str) -> Path:
        """The table of a split's ranks by its usual name; `table_file` knows the other that it may have."""
        return self.folder / ("ranks.parquet" if split == "test" else f"ranks.{split}.parquet")


def identity_table(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """The identity of a data set as config.toml holds it."""
    identity = dataset.identity
    return {"identity": {**asdict(identity), "digest": identity.digest}}


def is_number(value: Any) -> bool:
    """Whether a value read from JSON is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

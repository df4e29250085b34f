"""Runs: a fitted model as a folder: config, data, backbone, transitions, locked selections, metrics and ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.trained import RENEWED, open_backbone, save_trained, training_note
from bridgemem.config import Declared, Settings, Size, write_toml
from bridgemem.errors import DataError, RunError, SelectionError
from bridgemem.events.aliases import Aliases, read_aliases, write_aliases
from bridgemem.events.dataset import Dataset, Identity
from bridgemem.events.datasets import CATALOG, benchmark_name, load_benchmark
from bridgemem.events.labels import labelled
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.mapped import MappedLog
from bridgemem.events.naming import Stamped, checked, followed_by
from bridgemem.events.packs import pack, unpack
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.calibration import FILE as CALIBRATION
from bridgemem.forecasting.calibration import Calibration, read_calibration, write_calibrations
from bridgemem.forecasting.heads import Heads, HeadsNote
from bridgemem.forecasting.model import Model, Parts, RunConfig, described
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.disk.mapped import open_memory
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS
from bridgemem.residuals.learned import Learned, LearnedSettings
from bridgemem.residuals.learning import FitNote, serving
from bridgemem.residuals.method import Method
from bridgemem.residuals.selection import SELECTION_FILTERS, Fitted, Selection
from bridgemem.storage.files import (
    FORMAT,
    link_or_copy,
    locked,
    read_config,
    read_json,
    read_names,
    write_json,
    write_names,
)
from bridgemem.storage.known_files import refuse_links
from bridgemem.storage.placing import recover
from bridgemem.storage.schema import as_settings, read_as
from bridgemem.storage.tensors import part_of, read_tensors, write_tensors
from bridgemem.storage.whole import whole_folder

MODEL = "model.safetensors"
UPDATES = "updates.json"  # events that were added after the fit, which count in forecasts
REFRESHES = "refresh.json"  # in a refreshed run: what was done to the run that was fitted
CONTINUES = "continues.json"  # in a run that was fitted again over a store: which run it continues
HEADS = "heads.json"  # of what answers what and whether: settings, and how they did on later validation
ALIASES = "aliases.csv"  # other names of entities, for queries and for events that come
# what a forecast depends on; the data itself is told by its fingerprint in config.toml
ANSWERING = ("config.toml", MODEL, "selection.json", CALIBRATION)
VERSIONED = 256 << 20  # bytes of a file that its version reads; of a longer one, its length counts besides
BACK = "put a copy back, or fit the run again"


@dataclass(frozen=True)
class Refreshed(Declared):
    """What a refresh made, and of what: events are counted, batches and retractions are those of the store.

    chosen_until: the step at which the validation part that the selection was made on ended, -1 where the data did.
    origin: the fingerprint of the data that was fitted on.
    """

    run: str
    source: str
    added: Size
    retracted: Size
    events: Size
    new_entities: Size
    new_relations: Size
    batches: Size
    retractions: Size
    reader: str
    epochs: Size
    when: str
    store: str
    chosen_until: int
    origin: str
    backbone: str = "kept frozen"
    selection: str = "kept from the validation of the run that was fitted, and so was the calibration"


@dataclass(frozen=True)
class Continues(Declared):
    """The run that one was fitted again after, over a store.

    origin: the fingerprint of the data that the store's events came after. events: that it was fitted on. last: the
    number of the last stored event among them, 0 for none.
    """

    source: str
    origin: str
    store: str
    events: Size
    last: Size
    when: str


@dataclass(frozen=True)
class RunFile(Declared):
    """config.toml.

    identity: the parts of the data's identity, and their digest. learned: of the learned residual that the run has, or
    that an interrupted fit was yet to make.
    """

    run: RunConfig
    settings: Settings
    identity: dict[str, str]
    learned: LearnedSettings | None = None


@dataclass(frozen=True)
class EpochsFile(Declared):
    """epochs.json: how the reader's epochs were chosen, and how each learned residual was fitted."""

    epochs: Size
    nll: tuple[float, ...]
    learned: dict[str, FitNote]


class Run(Parts):
    """A run folder that is on disk, whole.

    data_dir: the folder of the named data sets, for a run on one of them. memory_dir: a memory on disk that holds its
    data, which is then read by memory map. relation_names: a file with words for relations that are codes.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        data_dir: Path | None = None,
        memory_dir: Path | None = None,
        relation_names: Path | str | None = None,
    ) -> None:
        self.folder, self.data_dir, self.memory_dir = Path(folder), data_dir, memory_dir
        self.relation_names = relation_names
        recover(self.folder)
        if not (self.folder / "config.toml").is_file():
            raise RunError(f"there is no run at {self.folder}; `bridgemem fit` makes one.")
        refuse_links(self.folder)
        own = read_config(self.folder).get("run")
        if not isinstance(own, dict):
            raise RunError(f"{self.folder}/config.toml does not describe a run; `bridgemem fit` makes one.")
        if own.get("format", FORMAT) != FORMAT:
            raise RunError(
                f"{self.folder} has another format version than this program's, which is {FORMAT}; fit again."
            )
        self.file = read_as(self.folder / "config.toml", RunFile, BACK)
        self.config, self.settings = self.file.run, self.file.settings

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

        backbone: the folder of the saved backbone, whose files are linked or copied; left out, it is saved again.
        finish: what is yet to be written into the run before it appears under its name.
        """
        dataset, fitted = model.dataset, model.fitted
        with whole_folder(Path(folder), replace) as aside:
            tables = {"run": asdict(model.config), "settings": asdict(model.settings)}
            own = next((fit.model.settings for fit in model.fits.values()), model.unfinished)
            if own is not None:
                tables["learned"] = asdict(own)
            parts: dict[str, Transitions | Learned | Heads] = {"train": fitted.train, "known": fitted.known}
            parts |= {f"learned.{name}": fit.model for name, fit in model.fits.items()}
            if model.own_heads is not None:
                parts["heads"] = model.own_heads
                write_json(aside / HEADS, asdict(model.own_heads.note))
            write_model(aside, tables, dataset, {name: part.tensors() for name, part in parts.items()})
            if not model.config.data and not benchmark_name(
                dataset
            ):  # own data, though it may be called like a benchmark
                pack(dataset, aside / "data.npz")
            if backbone is None:
                save_trained(model.own_backbone, aside / "backbone", model.trained)
            else:
                link_or_copy(backbone, aside / "backbone")
            if model.own_renewed is not None:
                again, note = model.own_renewed
                save_trained(again, aside / RENEWED, note)
            locked = {name: {**s.as_dict(), "lock": s.lock()} for name, s in fitted.selections.items()}
            write_json(aside / "selection.json", locked)
            learned = {name: fit.note for name, fit in model.fits.items()}
            write_json(aside / "epochs.json", asdict(EpochsFile(fitted.epochs, fitted.curve, learned)))
            if model.calibrations:
                write_calibrations(aside, model.calibrations)
            if finish is not None:
                finish(cls(aside))
        return cls(folder)

    @cached_property
    def dataset(self) -> Dataset:  # type: ignore[override]
        """The data the run was fitted on, refused if it is not the same any more, with aliases and labels."""
        dataset = self._read() if self.memory_dir is None else self._mapped(self.memory_dir)
        events = dataset.events
        entities = replace(events.entities, aliases=self._aliases(events))
        relations = labelled(events.relations, self.relation_names)
        return replace(dataset, events=events.with_vocabularies(entities, relations))

    def _aliases(self, events: EventLog) -> Aliases:
        path = self.folder / ALIASES
        return check_aliases(read_aliases(path), events, str(path)) if path.is_file() else {}

    def _read(self) -> Dataset:
        own, benchmark = self.folder / "data.npz", CATALOG.get(self.config.dataset)
        if self.config.data and not own.is_file():
            if not Path(self.config.data).is_dir():
                raise RunError(
                    f"the data of {self.folder} lay in {self.config.data}, which is gone; put the folder back, or say "
                    "where it is with --memory-dir."
                )
            return self._mapped(Path(self.config.data))
        if not own.is_file() and (benchmark is None or benchmark.fingerprint != self.config.fingerprint):
            raise RunError(f"{own} is missing; {BACK}.")
        dataset = unpack(own) if own.is_file() else load_benchmark(self.config.dataset, self.data_dir)
        if dataset.events.fingerprint != self.config.fingerprint:
            raise RunError(
                f"the data of {self.folder} changed since it was fitted; fit a new run on the data as it is."
            )
        return dataset

    def identity(self) -> Identity:
        """What the ids and steps of the data meant when the run was written."""
        path, values = f"{self.folder}/config.toml", self.file.identity
        found = as_settings(Identity, {k: v for k, v in values.items() if k != "digest"}, f"{path}: identity")
        if found.digest != values.get("digest"):
            raise RunError(f"{path} holds an identity whose parts do not give its digest; {BACK}.")
        return found

    def _mapped(self, memory_dir: Path) -> Dataset:
        dataset, config = open_memory(memory_dir), self.config
        if isinstance(dataset.events, MappedLog) and dataset.events.home and not dataset.events.home.is_split:
            test_start = None if config.test_start < 0 else config.test_start
            dataset = replace(dataset, name=config.dataset, valid_start=config.valid_start, test_start=test_start)
        if other := self.identity().differences(dataset.identity):
            remedy = f"`bridgemem memory {self.folder}` writes one"
            if config.data:
                remedy = "name the folder that it was fitted on with --memory-dir, or fit a new run"
            raise RunError(f"{memory_dir} is a memory of {other} than {self.folder} was fitted on; {remedy}.")
        return dataset

    def backbone(self, device: str = "cpu") -> Backbone:
        return open_backbone(self.folder / "backbone").to(device)

    def renewed(self, device: str = "cpu") -> Backbone | None:
        if not self.config.renewed:
            return None
        if not (self.folder / RENEWED).is_dir():
            raise RunError(f"{self.folder / RENEWED} is missing; {BACK}.")
        return open_backbone(self.folder / RENEWED).to(device)

    def backbone_files(self) -> list[Path]:
        """The files of the backbone, and of its renewed one if it has any."""
        folders = (self.folder / home for home in self.backbone_homes())
        return sorted(path for folder in folders for path in folder.iterdir() if path.is_file())

    def backbone_homes(self) -> tuple[str, ...]:
        """The folders in the run that hold a backbone."""
        return ("backbone", RENEWED) if self.config.renewed else ("backbone",)

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return read_tensors(self.folder / MODEL, remedy=BACK)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Refuse tensors other than those that config.toml describes."""
        try:
            yield
        except ValueError as problem:
            path = self.folder / MODEL
            raise RunError(f"{path} does not hold what config.toml says ({problem}); fit the run again.") from None

    def transitions(self, part: str = "known", device: str = "cpu") -> Transitions:
        """The transitions fitted on "train" (for validation) or on "known", train + validation (for test and after)."""
        with self._fitting():
            return Transitions.restore(self.settings, part_of(self._tensors, f"{part}.")).to(device)

    def fit_names(self) -> tuple[str, ...]:
        found = self._fits()
        return tuple(name for name in FILTERS if name in found)

    def _fits(self) -> dict[str, FitNote]:
        return read_as(self.folder / "epochs.json", EpochsFile, BACK).learned

    def learned(self, filter_name: str, device: str = "cpu") -> Learned | None:
        """The learned residual that ranks under a filter, or None where the run has none."""
        name = serving(self.fit_names(), filter_name)
        if name is None:
            return None
        own = part_of(self._tensors, f"learned.{name}.")
        if self.file.learned is None:
            raise RunError(f"{self.folder}/config.toml: learned is missing; {BACK}.")
        with self._fitting():
            return Learned.restore(self.file.learned, own).to(device)

    def heads(self) -> Heads | None:
        """What answers what and whether, or None in a run that was fitted without."""
        if not (self.folder / HEADS).is_file():
            return None
        note = read_as(self.folder / HEADS, HeadsNote, BACK)
        with self._fitting():
            return Heads.restore(note, part_of(self._tensors, "heads."))

    def learning(self, filter_name: str) -> FitNote:
        found = self._fits()
        name = serving(found, filter_name)
        if name is None:
            raise RunError(f"{self.folder}/epochs.json: learned.raw is missing; {BACK}.")
        return found[name]

    @property
    def unfinished(self) -> LearnedSettings | None:
        """The settings of the learned residual that an interrupted fit was yet to make; None for a whole run."""
        return None if self.fit_names() or self.refreshes() else self.file.learned

    def begun_with(self, dataset: Dataset, settings: Settings, *, learned: LearnedSettings, **named: Any) -> str:
        """What an interrupted fit was begun with instead of all this, in words; empty where it is the same.

        named: fields of config.toml. K, window and a gate of their own are validation's choice, whatever was asked.
        """
        own = self.settings
        if self.selection("time").memories:
            settings = replace(settings, k=own.k, window=own.window)
        if own.gates == (*settings.gates, "entropy"):
            settings = replace(settings, gates=own.gates)
        parts = [
            ("", asdict(self.config), named),
            ("", asdict(own), asdict(settings)),
            ("learned ", asdict(self.file.learned or learned), asdict(learned)),
        ]
        found = [f"{of}{name} {was[name]}" for of, was, now in parts for name in now if was[name] != now[name]]
        return " and ".join(filter(None, [self.identity().differences(dataset.identity), *found]))

    def in_memory(self, device: str = "cpu") -> Model:
        """The model of a run without a learned residual, as the fit had it in memory."""
        config, home = self.config, self.folder / "backbone"
        noted = read_as(self.folder / "epochs.json", EpochsFile, BACK)
        fitted = Fitted(
            self.transitions("train", device),
            self.transitions("known", device),
            config.epochs,
            noted.nll,
            {name: self.selection(name) for name in SELECTION_FILTERS},
            config.select_fit_seconds,
            config.refit_seconds,
            config.transitions,
        )
        found = {m: c for m in self.methods()[1:] if (c := self.calibration(m, self.lock_of(m))) is not None}
        return Model(
            self.dataset,
            self.backbone(device),
            fitted,
            config,
            calibrations=found,
            trained=training_note(home),
            unfinished=self.unfinished,
            own_heads=self.heads(),
        )

    def refreshes(self) -> list[Refreshed]:
        """What `refresh` did to the run since it was fitted, oldest first."""
        return read_as(self.folder / REFRESHES, list[Refreshed], BACK, missing=[])

    @cached_property
    def version(self) -> str:
        """The version of the model: the folder's own name, and a digest of all that its answers depend on."""
        own = self.folder.resolve()
        parts = [own / name for name in (*ANSWERING, UPDATES, ALIASES)]
        parts += [own / path.relative_to(self.folder) for path in self.backbone_files()]
        digest = hashlib.sha256()
        for path in parts:
            if path.is_file():
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
                with path.open("rb") as file:
                    digest.update(file.read(VERSIONED))
        return f"{own.name}@{digest.hexdigest()[:8]}"

    @property
    def origin(self) -> str:
        """The fingerprint of the data the run was fitted on, before any refresh or refit."""
        notes, earlier = self.refreshes(), self.continues()
        return notes[0].origin if notes else self.config.fingerprint if earlier is None else earlier.origin

    def continues(self) -> Continues | None:
        """Which run this one was fitted again after, over the same store; None for any other."""
        path = self.folder / CONTINUES
        return read_as(path, Continues, BACK) if path.is_file() else None

    def selection(self, filter_name: str) -> Selection:
        """The locked selection made under a filter; a record that was edited afterwards is refused."""
        if filter_name not in SELECTION_FILTERS:
            raise SelectionError(f"selections are made under {' or '.join(SELECTION_FILTERS)}, not {filter_name!r}.")
        path = self.folder / "selection.json"
        values = read_as(path, dict[str, dict[str, Any]], BACK, missing={}).get(filter_name)
        if values is None:
            raise SelectionError(
                f"{self.folder} has no selection under the {filter_name} filter, and test stays closed; fit a new run."
            )
        selection = Selection.from_dict(values)
        if selection.lock() != values.get("lock"):
            raise SelectionError(f"{path} was changed after it was locked; fit a new run.")
        return selection

    def predictor(self, residual: str | None = None) -> Predictor:
        """What answers queries by name from the run's own data."""
        self.refuse_frozen()
        return self.predictor_of(self.past_of(self.dataset.events), residual)

    def past_of(self, events: EventLog) -> Past:
        """All that is known: the events of the run's data, and those that were added since."""
        past = Past(events)
        return past.with_delta(followed_by(past.delta, self.updates(events.clock)))

    def updates(self, clock: Clock) -> list[Stamped]:
        """The events that were added after the fit and saved with the run, in their order."""
        path = self.folder / UPDATES
        rows = read_json(path) if path.is_file() else []
        try:
            found = [checked(row, f"event {place}", clock) for place, row in enumerate(rows, 1)]
        except (DataError, TypeError) as problem:
            raise RunError(f"{path} holds what no update writes ({str(problem).rstrip('.')}); {BACK}.") from None
        return [(subject, relation, object_, step) for subject, relation, object_, _, step in found]

    def calibration(self, method: Method, lock: str) -> Calibration | None:
        return read_calibration(self.folder, method, lock)

    def backbone_note(self) -> dict[str, Any]:
        home = self.folder / "backbone"
        return described(training_note(home), read_config(home).get("settings", {}))

    @property
    def where(self) -> str:
        return str(self.folder)

    def write_metrics(
        self, values: dict[str, Any], of: int | str = 1, finish: Callable[[Run], object] | None = None
    ) -> None:
        """Put the records of a split, for queries of that many steps or of another kind, next to those of other splits.

        finish: called before others may write to the folder; writes the card, for example.
        """
        kind = of if isinstance(of, str) else "" if of == 1 else f"horizon{of}"
        path = self.folder / (f"metrics.{kind}.json" if kind else "metrics.json")
        with locked(path):
            known = read_json(path) if path.is_file() else {}
            write_json(path, {**(known if isinstance(known, dict) else {}), **values})
            if finish is not None:
                finish(self)

    def relations(self) -> tuple[str, ...]:
        """The relations' names, by id."""
        return read_names(self.folder / "relations.txt")

    def ranks_path(self, split: str) -> Path:
        """The table of a split's ranks by its usual name; `table_file` knows the other that it may have."""
        return self.folder / ("ranks.parquet" if split == "test" else f"ranks.{split}.parquet")


def check_aliases(table: Aliases, events: EventLog, where: str) -> Aliases:
    """Refuse aliases that have events of their own in the data of a run, which was fitted on them as they are."""
    if both := [name for name in table if name in events.entities.ids]:
        raise RunError(
            f"{where}: {both[0]!r} has events of its own in the data of the run; import the events again with "
            "--aliases and fit a new run, or take the row out."
        )
    return table


def write_model(
    folder: Path, tables: dict[str, dict[str, Any]], dataset: Dataset, parts: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Write what a fitted and a refreshed run have alike: config.toml, the names, and the tensors of every part."""
    identity, events = dataset.identity, dataset.events
    tables = {**tables, "identity": {**asdict(identity), "digest": identity.digest}}
    (folder / "config.toml").write_text(write_toml(tables), encoding="utf-8")
    for kind, vocabulary in (("entities", events.entities), ("relations", events.relations)):
        write_names(folder / f"{kind}.txt", vocabulary.names)
    if events.entities.aliases:
        write_aliases(folder / ALIASES, events.entities.aliases)
    tensors = {f"{part}.{name}": tensor for part, own in parts.items() for name, tensor in own.items()}
    write_tensors(folder / MODEL, tensors)

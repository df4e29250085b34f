"""Forecaster: the one object. Constructed with settings, fitted on data, evaluated, asked, updated, saved, loaded."""

from __future__ import annotations

import dataclasses
import re
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import called
from bridgemem.config import HistoryMode, Settings
from bridgemem.errors import DataError, NotFoundError, RunError, SettingsError
from bridgemem.evaluation.card import write_card
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.reliability import evaluate_horizon
from bridgemem.evaluation.result import Evaluation
from bridgemem.evaluation.shards import evaluate_in_pool
from bridgemem.evaluation.what import evaluate_what
from bridgemem.evaluation.whether import OccurrenceEvaluation, evaluate_whether
from bridgemem.evaluation.window import evaluate_window, window_of
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import user_cache
from bridgemem.events.loading import load
from bridgemem.events.naming import Stamped, followed_by, new_events
from bridgemem.fitting import Fitting
from bridgemem.forecaster.asked import Asked
from bridgemem.forecasting.model import Model, Parts
from bridgemem.forecasting.predictor import Predictor
from bridgemem.hub import pull
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.runs import UPDATES, Run
from bridgemem.showing import html_table
from bridgemem.storage.files import write_json
from bridgemem.storage.schema import settings_of
from bridgemem.storage.whole import whole_folder
from bridgemem.training.devices import check_device

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Forecaster(Asked):
    """Forecast who comes next for (subject, relation, ?, t) from the events strictly before t, and explain why.

    The constructor stores settings and touches nothing. `fit` trains or opens the backbone, fits the residuals, chooses
    on validation and calibrates; test is read by `evaluate` alone. A run folder is the saved form.

    Args:
        backbone: A registered name, the folder of a trained backbone or of a run, a `Backbone`, or a class of them,
            which is trained. "auto" counts: no training.
        residual: "learned", which is fitted next to the paper's, or "bridgemem", the paper's alone.
        settings: Of the paper's residual. When left out, validation chooses K and window on data that the paper has
            not, and next to the learned residual it is fitted on a sample. All settings may be a dict of what differs
            from the defaults.
        learned_settings: Of the learned residual.
        backbone_settings: Of a backbone that is named; those of the data set when left out.
        tune: Time for choosing settings of a named backbone on validation first, as "10m"; none when left out, but for
            an ensemble on data without settings of its own.
        history: "rolling" reads all facts before t, "frozen" none of the split's own.
        seed: Of everything that is drawn.
        device: "cpu" or "cuda".

    Raises:
        SettingsError: A setting has a value that cannot be used.

    Example:
        >>> import bridgemem as bm
        >>> data = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> model = bm.Forecaster("recurrence", settings=bm.Settings(max_epochs=1)).fit(data)
        >>> len(model.forecast(0, 0, top=3))
        3
    """

    _with_heads: ClassVar[bool] = True  # for the other queries than who

    def __init__(
        self,
        backbone: str | Path | Backbone | type[Backbone] = "auto",
        *,
        residual: str = "learned",
        settings: Settings | dict[str, Any] | None = None,
        learned_settings: LearnedSettings | dict[str, Any] | None = None,
        backbone_settings: Any = None,
        tune: str | float | None = None,
        history: HistoryMode = "rolling",
        seed: int = 42,
        device: str = "cpu",
    ) -> None:
        self.backbone, self.residual, self.history = backbone, residual, history
        self.settings, self.backbone_settings = settings_of(Settings, settings), backbone_settings
        self.learned_settings = settings_of(LearnedSettings, learned_settings)
        self.seed, self.device, self.tune = seed, device, tune
        self._parts: Parts | None = None
        self._folder: Path | None = None
        self._predictor: Predictor | None = None
        self._added: list[Stamped] = []  # since the fit, or since the run was saved
        self._wanted: str | None = None

    def fit(
        self,
        data: Any,
        *,
        folder: Path | str | None = None,
        replace: bool = False,
        resume: bool = False,
        progress: Progress = SILENT,
    ) -> Self:
        """Fit on the train and validation splits of data.

        Args:
            data: Whatever `load` takes.
            folder: The run folder to save to. The paper's residual is saved before the learned one is started, so
                that an interrupted fit leaves a run that can be used, or none.
            replace: Whether a run that is there is replaced.
            resume: Go on with the interrupted fit that left the run in folder, on the same data with the same settings:
                only the learned residual is fitted.
            progress: Where the parts of the fit are shown.

        Returns:
            The forecaster itself.

        Raises:
            DataError: The data cannot be read or split.
            RunError: The folder exists and `replace` was not given.

        Example:
            >>> bm.Forecaster("recurrence", residual="bridgemem", settings={"max_epochs": 1}).fit(data)
            Forecaster('recurrence', residual='bridgemem', seed=42): fitted on world
        """
        fitting = Fitting(
            self.backbone,
            residual=self.residual,
            settings=self.settings,
            learned_settings=self.learned_settings,
            backbone_settings=self.backbone_settings,
            tune=self.tune,
            history=self.history,
            seed=self.seed,
            device=self.device,
            heads=self._with_heads,
            take=partial(self._take, folder),
            progress=progress,
        )
        fitting.check()
        dataset = data if isinstance(data, Dataset) else load(data, progress=progress)
        if resume:
            fitting.resume(dataset, folder)
        else:
            fitting.fit(dataset, replace=replace)
        return self

    def _take(self, folder: Path | str | None, model: Model, home: Path | None, replace: bool) -> None:
        """Be the forecaster of a fitted model, and save it where a folder is given. home: of its backbone."""
        self._parts, self._folder, self._predictor, self._added = model, home, None, []
        if folder is not None:
            self.save(folder, replace=replace)
            self._parts = model  # which still has in memory what the rest of a fit reads

    @property
    def parts(self) -> Parts:
        """What was fitted, in memory or in its run folder."""
        if self._parts is None:
            raise RunError("this forecaster is not fitted yet: call fit(data) first, or Forecaster.load(folder).")
        return self._parts

    @property
    def dataset(self) -> Dataset:
        """The data that it was fitted on."""
        return self.parts.dataset

    @property
    def predictor(self) -> Predictor:
        """What answers queries by name, from all events of the data and those added since."""
        if self._predictor is None:
            self._predictor = self._asked()
        return self._predictor

    def _asked(self) -> Predictor:
        parts = self.parts
        if isinstance(parts, Run):
            return parts.predictor(self._wanted)
        parts.refuse_frozen()
        held = parts.held_out("raw")
        if held is not None and parts.preferred() == "bridgemem":
            warnings.warn(
                "on later validation the learned residual does not rank better than the paper's "
                f"(MRR {held.learned:.4f} and {held.bridgemem:.4f}); forecasts use the paper's.",
                stacklevel=2,
            )
        return parts.predictor_of(Past(self.dataset.events))

    def update(self, events: Any, *, max_ahead: int | None = None, progress: Progress = SILENT) -> Self:
        """Add events that came after the fit: forecasts and explanations reflect them at once.

        They may be late and have new names, and nothing is fitted again: relations that came after the fit are
        forecast by recurrence. Duplicates count like any other event. `evaluate` goes on reading the data of the fit.
        `save` keeps the events in the run folder, and `load` brings them back.

        Args:
            events: A CSV, TSV or Parquet file, a data frame, an `EventLog`, or a list of (subject, relation, object,
                time). A time is written as in the data.
            max_ahead: Most steps that an event may lie after the last one before it, since a later one is taken for a
                mistyped time; 0: any. When left out, 5 times the largest gap of the events, at least 30.
            progress: Where reading a long file is shown.

        Returns:
            The forecaster itself.

        Raises:
            DataError: One of the events cannot be used; none was added.

        Example:
            >>> import copy
            >>> actor, relation, time = data.entities[0], data.relations[0], data.events.clock.label(60)
            >>> later = copy.copy(model).update([(actor, relation, "Newcomer", time)])
            >>> "Newcomer" in [candidate.name for candidate in later.forecast(actor, relation, top=5)]
            True
        """
        predictor = self.predictor
        added = new_events(events, predictor.events, max_ahead=max_ahead, progress=progress)
        past = predictor.past
        self._predictor = predictor.with_past(past.with_delta(followed_by(past.delta, added)))
        self._added += added
        return self

    def evaluate(
        self,
        split: str = "test",
        *,
        horizon: int | None = None,
        workers: int = 1,
        cells: int | None = None,
        queries: int | None = None,
        start: str | int | None = None,
        end: str | int | None = None,
        last: int | None = None,
        device: str | None = None,
        progress: Progress = SILENT,
    ) -> Evaluation:
        """Measure a split under every filter, each with the choice made on validation; a saved run keeps the metrics.

        Args:
            split: "test" or "valid".
            horizon: Ask for any of that many steps at once, instead of each alone; of a saved forecaster.
            workers: Share the steps out among that many processes; of a saved forecaster.
            cells: The most queries times entities in a batch.
            queries: A random sample of that many queries, always the same, instead of all.
            start: The first time of a window of steps after all that was fitted on, which is read instead of a split,
                with the events that `update` added; nothing is kept of it.
            end: The last time of the window; that of the last event when left out.
            last: In place of start: how many steps the window has.
            device: "cpu" or "cuda", where it is not that of the forecaster.
            progress: Where the reading is shown.

        Returns:
            An `Evaluation`: prints as a table, `to_frame()` has all records.

        Raises:
            DataError: There is no such split.
            SettingsError: A sample of queries was asked for together with a horizon or several workers.

        Example:
            >>> found = model.evaluate("test")
            >>> found.table().header[:2]
            ['method', 'MRR']
        """
        if not isinstance(split, str):
            raise DataError('evaluate reads a split of the data that was fitted on: "test" or "valid".')
        device = check_device(device or self.device)
        if queries is not None and (horizon is not None or workers > 1):
            raise SettingsError("a sample of queries is read by one process, a step at a time; leave the others out.")
        if any(given is not None for given in (start, end, last)):
            if split != "test" or horizon is not None or queries is not None or workers > 1:
                raise SettingsError("a window is read by itself, a step at a time; leave the others out.")
            window = window_of(self.parts, self.predictor.past, start=start, end=end, last=last)
            records = evaluate_window(self.parts, window, device=device, cells=cells, progress=progress)
        elif horizon is not None:
            records = evaluate_horizon(self.run, horizon, self.dataset, split, device, progress)
        elif workers > 1:
            records = evaluate_in_pool(self.run, workers, split, device, progress, cells)
        else:
            records = evaluate(self.parts, self.dataset, split, device, progress, cells, queries)
        return Evaluation(tuple(records))

    def evaluate_what(self, split: str = "test", *, progress: Progress = SILENT) -> Evaluation:
        """Measure how `what` ranks the relation of each event of a split, next to plain rules.

        Args:
            split: "test" or "valid", on which it was fitted.
            progress: Where the reading is shown.

        Returns:
            An `Evaluation`; a saved run keeps it.

        Example:
            >>> len(model.evaluate_what("test")) > 0
            True
        """
        records = evaluate_what(self.parts, self.dataset, split, progress)
        if isinstance(self.parts, Run):
            self.parts.write_metrics({split: list(map(dataclasses.asdict, records))}, "what")
        return Evaluation(tuple(records))

    def evaluate_whether(
        self, split: str = "test", *, horizon: int | None = None, progress: Progress = SILENT
    ) -> OccurrenceEvaluation:
        """Measure p_event on a split: Brier score and skill, ROC AUC, calibration error.

        Args:
            split: "test" or "valid", on which it was fitted.
            horizon: In steps; a few usual ones when left out.
            progress: Where the reading is shown.

        Returns:
            An `OccurrenceEvaluation`; a saved run keeps it.

        Example:
            >>> len(model.evaluate_whether("test", horizon=3).records) > 0
            True
        """
        records = evaluate_whether(self.parts, self.dataset, split, horizon, progress)
        if isinstance(self.parts, Run):
            self.parts.write_metrics({split: list(map(dataclasses.asdict, records))}, "whether")
        return OccurrenceEvaluation(tuple(records))

    def save(self, folder: Path | str, *, replace: bool = False) -> Path:
        """Write the run folder, whole or not at all.

        Args:
            folder: Where to.
            replace: Whether a folder that exists is replaced.

        Returns:
            The folder.

        Raises:
            RunError: The folder exists and `replace` was not given.

        Example:
            >>> folder = model.save("runs/example", replace=True)
            >>> bm.Forecaster.load(folder).forecast(0, 0, top=1)[0].rank
            1
        """
        if isinstance(self.parts, Model):
            run = Run.create(folder, self.parts, backbone=self._folder, replace=replace, finish=self._finished)
        else:
            with whole_folder(Path(folder), replace) as aside:
                shutil.copytree(self.run.folder, aside, dirs_exist_ok=True)
                if self._added:
                    self._finished(Run(aside))
            run = Run(folder)
        self._parts, self._added = run, []
        return run.folder

    def _finished(self, run: Run) -> None:
        """Write what a run folder holds besides the fit: the events added since, and the card."""
        if self._added:
            write_json(run.folder / UPDATES, [*run.updates(self.predictor.events.clock), *self._added])
        write_card(run)

    @classmethod
    def load(
        cls,
        source: Path | str,
        *,
        residual: str | None = None,
        data_dir: Path | None = None,
        memory_dir: Path | None = None,
        relation_names: Path | str | None = None,
        progress: Progress = SILENT,
    ) -> Self:
        """Load a saved forecaster.

        Args:
            source: A run folder, or the id of one on a model hub, owner/name, which is fetched once. What begins with a
                dot, or lies in a folder that exists here, is a path.
            residual: "bridgemem" or "learned", for forecasts; the better one on validation when left out.
            data_dir: The folder of the named data sets, for a run on one of them.
            memory_dir: A memory on disk that holds the data of the run; it is then read by memory map.
            relation_names: A file with words for relations that are codes: rows of a code and its label.
            progress: Where a download is shown.

        Returns:
            The forecaster; nothing that came with the run is executed.

        Raises:
            RunError: There is no run, or it is damaged or of another version.

        Example:
            >>> bm.Forecaster.load(model.save("runs/loaded", replace=True)).dataset.name
            'world'
        """
        if isinstance(source, str) and HUB_ID.fullmatch(source) and not _is_path(source):
            source = _fetched(source, progress).folder
        run = Run(source, data_dir=data_dir, memory_dir=memory_dir, relation_names=relation_names)
        made = cls(run.config.backbone, settings=run.settings, history=run.config.history, seed=run.config.seed)
        made._parts, made._wanted = run, residual
        made.residual = "learned" if run.fit_names() else "bridgemem"
        return made

    @property
    def run(self) -> Run:
        """The run folder of a saved forecaster."""
        if not isinstance(self.parts, Run):
            raise RunError("this forecaster has no run folder yet: call save(folder) first.")
        return self.parts

    def __repr__(self) -> str:
        name = self.backbone if isinstance(self.backbone, str | Path) else called(self.backbone)
        state = "not fitted" if self._parts is None else f"fitted on {self._parts.config.dataset}"
        return f"Forecaster({str(name)!r}, residual={self.residual!r}, seed={self.seed}): {state}"

    def _repr_html_(self) -> str:
        known: dict[str, object] = {"history": self.history, "seed": self.seed}
        if self._parts is not None:  # from its notes alone: the data of a run is not loaded to be shown
            config = self._parts.config
            known |= {"data": f"{config.dataset} ({config.fingerprint})", "backbone": config.backbone}
            known |= {"residual": self.residual, "fitted with": f"version {config.version} on {config.device}"}
            known |= {"events added since": f"{len(self._added):,}"}
        return html_table(repr(self), [], known.items())


def _is_path(text: str) -> bool:
    """Whether what could be the id of a run on a hub is a path: it exists, begins with a dot, or its parent exists."""
    path = Path(text)
    return path.exists() or text.startswith(".") or path.parent.is_dir()


def _fetched(hub_id: str, progress: Progress) -> Run:
    """A run from a model hub, kept in the user's cache."""
    home = user_cache().parent / "hub" / hub_id.replace("/", "--")
    if home.is_dir():
        return Run(home)
    try:
        return pull(hub_id, home, progress=progress)
    except (NotFoundError, RunError) as problem:
        raise type(problem)(f"there is no folder {hub_id} here, and {problem}") from None

"""A fit from settings and data to a model: backbone, both residuals, heads, probabilities, and what does better."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bridgemem.backbones import backbone_class
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.trained import (
    TrainingNote,
    as_backbone,
    check_name,
    check_trained_on,
    default_settings,
    earlier_backbone,
    note_of,
    open_backbone,
    renewed_backbone,
    trained_again,
    training_free,
    training_note,
)
from bridgemem.backbones.tuning import BUDGET, seconds_of, tune
from bridgemem.config import SAMPLED, HistoryMode, Seed, Settings, check
from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.evaluation.reliability import calibrations_of
from bridgemem.events.dataset import Dataset
from bridgemem.events.mapped import data_folder
from bridgemem.forecasting.heads import Heads, fit_heads
from bridgemem.forecasting.model import Model, RunConfig
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.cases import Source
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import Fit, HeldOut, Trains, earlier_sources, fit_learned, learning_of, renewal_split
from bridgemem.residuals.selection import PAPER_DATA, Fitted
from bridgemem.residuals.selection import fit as fit_residual
from bridgemem.residuals.validation import Validation
from bridgemem.runs import Run
from bridgemem.training.devices import check_device

AUTO = "recurrence-typed"  # what "auto" means: counting, which nothing has to be trained for
Residual = Literal["bridgemem", "learned"]
Take = Callable[[Model, Path | None, bool], None]


@dataclass(frozen=True, eq=False)
class Fitting:
    """One fit, with the settings of a `Forecaster`, which say what they mean.

    take: is given every model as soon as it can be used, the folder of its backbone if it has one, and whether it
    replaces what was kept before.
    heads: what answers the other queries than who: True fits it, False does without, and what is fitted is taken.
    """

    backbone: str | Path | Backbone | type[Backbone]
    take: Take
    residual: str = "learned"
    settings: Settings | None = None
    learned_settings: LearnedSettings | None = None
    backbone_settings: Any = None
    history: HistoryMode = "rolling"
    seed: int = 42
    device: str = "cpu"
    tune: str | float | None = None
    heads: Heads | bool = True
    progress: Progress = field(default=SILENT)

    def check(self) -> None:
        """Refuse settings that no fit can have, before data is read."""
        check("residual", self.residual, Residual)
        check("history", self.history, HistoryMode)
        check("seed", self.seed, Seed)
        if self.residual == "learned" and self.history == "frozen":
            raise SettingsError(
                "the learned residual is fitted with rolling history only; leave --history frozen out, or say "
                "--residual bridgemem."
            )
        check_device(self.device)
        if self.tune is not None:
            seconds_of(self.tune)
            if not isinstance(given := as_backbone(self.backbone), str | type) or given == "auto":
                raise SettingsError("tune chooses settings of a backbone that is trained by its name or its class.")

    def fit(self, dataset: Dataset, *, replace: bool = False) -> None:
        """Fit on train and validation. replace: whether a run that is there is replaced."""
        backbone, home, note = self._started(dataset)
        validation = Validation.of(dataset, backbone, device=self.device, frozen=self.history == "frozen")
        settings = self.settings or (SAMPLED if self.residual == "learned" else Settings())
        free = self.settings is None and dataset.name not in PAPER_DATA
        alone = self.residual == "bridgemem"  # next to the learned residual, later validation compares them all
        # of a sample an epoch is two steps: none but the last was ever chosen
        epochs = settings.max_epochs if settings is SAMPLED else None
        fitted = fit_residual(
            validation,
            settings,
            choose_memory=free,
            with_naive=alone,
            epochs=epochs,
            seed=self.seed,
            progress=self.progress,
        )
        config = self._config(dataset, backbone, fitted, note)
        model = Model(dataset, backbone, fitted, config, trained=note, own_heads=self._heads(dataset))
        model = self._calibrated(model, validation)
        if alone:
            self.take(model, home, replace)
            if fitted.above is not None:
                warnings.warn(
                    f"on validation {fitted.above} is above the model (MRR {fitted.naive[fitted.above].mrr:.4f} and "
                    f"{fitted.selections['time'].chosen.mrr:.4f}); consider it as the backbone, --backbone "
                    f"{fitted.above}.",
                    stacklevel=3,
                )
            return
        # before anything is saved: a backbone may have to be trained again for it
        earlier, renewed = self._earlier(validation, model, home), self._renewed(model, home)
        model = dataclasses.replace(model, unfinished=self._learning(backbone))
        self.take(model, home, replace)
        self._finish(model, validation, earlier, renewed, home)

    def _finish(
        self,
        model: Model,
        validation: Validation,
        earlier: list[Source],
        renewed: tuple[Backbone, TrainingNote] | None,
        home: Path | None,
    ) -> None:
        """Fit the learned residual next to the paper's, and be what does better; what was chosen knows no renewal."""
        fits = self._learned(validation, model.fitted, earlier, self._learning(model.own_backbone))
        model = dataclasses.replace(model, fits=fits, unfinished=None)
        if fits:
            model = self._calibrated(model, validation)
            config = dataclasses.replace(model.config, renewed=renewed is not None)
            model = dataclasses.replace(model, config=config, own_renewed=renewed)
        self.take(model, home, True)
        held = model.held_out("raw")
        if held is not None and held.above is not None:
            self._fall_back(held, model)

    def resume(self, dataset: Dataset, folder: Path | str | None) -> None:
        """Go on where an interrupted fit had saved the paper's residual."""
        if folder is None or self.residual != "learned":
            raise SettingsError("resume fits the learned residual of a run folder; leave --residual bridgemem out.")
        run = Run(folder)
        if run.unfinished is None:
            raise RunError(f"{folder} is a whole run: there is nothing to resume.")
        given = as_backbone(self.backbone)
        home = given if isinstance(given, Path) else None  # next to which a cross-fit keeps the one that it trains
        name = given if isinstance(given, str) else (open_backbone(given) if isinstance(given, Path) else given).name
        model = dataclasses.replace(run.in_memory(self.device), dataset=dataset)
        said = {"seed": self.seed, "device": self.device, "backbone": AUTO if name == "auto" else name}
        wanted = self._learning(model.own_backbone)
        if other := run.begun_with(dataset, self.settings or SAMPLED, learned=wanted, **said):
            raise RunError(f"{folder} was begun with {other}; resume with the same command, or fit a new run.")
        if home is not None and training_note(home) != model.trained:
            raise RunError(f"{folder} was begun on another backbone than {home}; fit a new run.")
        validation = Validation.of(dataset, model.own_backbone, device=self.device)
        earlier, renewed = self._earlier(validation, model, home), self._renewed(model, home)
        self._finish(model, validation, earlier, renewed, run.folder / "backbone")

    def _fall_back(self, held: HeldOut, model: Model) -> None:
        """Where a naive forecaster is above both residuals, be that one, with the paper's residual; say so."""
        name, mrr = held.above or "", max(held.learned, held.bridgemem)
        auto = self.backbone == "auto"
        then = "it is used instead" if auto else f"consider it as the backbone, --backbone {name}"
        warnings.warn(
            f"on the later part of validation {name} is above the model (MRR {held.naive[name][0]:.4f} and "
            f"{mrr:.4f}, without a filter); {then}.",
            stacklevel=5,
        )
        if auto:
            plain = Fitting(
                name,
                self.take,
                residual="bridgemem",
                settings=self.settings,
                seed=self.seed,
                device=self.device,
                heads=model.own_heads or False,  # they read no backbone
                progress=self.progress,
            )
            plain.fit(model.dataset, replace=True)

    def _heads(self, dataset: Dataset) -> Heads | None:
        if self.heads is True and self.history != "frozen":
            return fit_heads(dataset, seed=self.seed, progress=self.progress)
        return self.heads if isinstance(self.heads, Heads) else None

    def _calibrated(self, model: Model, validation: Validation) -> Model:
        """The model with probabilities for each part that has none yet."""
        made = calibrations_of(model, validation, known=model.calibrations, progress=self.progress)
        return dataclasses.replace(model, calibrations={**model.calibrations, **made})

    def _started(self, dataset: Dataset) -> tuple[Backbone, Path | None, TrainingNote]:
        """The backbone on its device, the folder it came from if any, and the note of its training."""
        given = as_backbone(self.backbone)
        if isinstance(given, Backbone):
            given.check(dataset)
            return self._twice(given).to(self.device), None, TrainingNote()
        if isinstance(given, Path):
            backbone = open_backbone(given)
            backbone.check(dataset)
            check_trained_on(given, dataset)
            return self._twice(backbone).to(self.device), given, training_note(given)
        began, own = time.perf_counter(), self.backbone_settings
        if isinstance(given, str):
            name = AUTO if given == "auto" else given
            check_name(name)
            given, own = backbone_class(name), own or default_settings(name, dataset)
        own, tuned = self._tuned(given, own, dataset)
        backbone = given.fit(dataset.without_test(), own, seed=self.seed, device=self.device, progress=self.progress)
        backbone.tuned = tuned
        seconds = time.perf_counter() - began
        return self._twice(backbone), None, note_of(backbone, dataset, self.seed, self.device, seconds)

    def _tuned(self, kind: type[Backbone], own: Any, dataset: Dataset) -> tuple[Any, dict[str, Any] | None]:
        """Settings as validation chooses them, and the trials, where that is wanted; else those given."""
        if self.tune is None and (self.backbone_settings is not None or not kind.tuned_unless_set(own)):
            return own, None
        budget = BUDGET if self.tune is None else self.tune
        how: dict[str, Any] = {"seed": self.seed, "device": self.device, "progress": self.progress}
        made = tune(kind, dataset, settings=own, budget=budget, **how)
        return made.settings, made.as_dict()

    def _twice(self, backbone: Backbone) -> Backbone:
        """A backbone, refused where it has to be trained again and cannot."""
        learning = self._learning(backbone)
        if learning.cross_fit and not backbone.retrained:
            raise SettingsError(
                f"cross_fit trains the backbone again, on earlier events, and {backbone.name} scores cannot be "
                "trained; leave cross_fit out."
            )
        if learning.renewed == "on" and (training_free(backbone) or not backbone.retrained):
            raise SettingsError(
                f"renewed trains the backbone once more, and {backbone.name} is not trained here; leave renewed out."
            )
        return backbone

    def _learning(self, backbone: Backbone) -> LearnedSettings:
        """The learned residual's settings; those at their defaults are the backbone's to say."""
        return learning_of(backbone, self.learned_settings)

    def _config(self, dataset: Dataset, backbone: Backbone, fitted: Fitted, note: TrainingNote) -> RunConfig:
        return RunConfig(
            dataset=dataset.name,
            fingerprint=dataset.events.fingerprint,
            valid_start=dataset.valid_start,
            test_start=-1 if dataset.test_start is None else dataset.test_start,
            backbone=backbone.name,
            backbone_seed=self.seed if note.seed is None else note.seed,
            backbone_entities=dataset.events.n_entities,
            backbone_relations=dataset.events.n_relations,
            seed=self.seed,
            device=self.device,
            history=self.history,
            epochs=fitted.epochs,
            select_fit_seconds=fitted.select_fit_seconds,
            refit_seconds=fitted.refit_seconds,
            transitions=fitted.examples,
            parameters=sum(p.numel() for p in fitted.train.reader.parameters()),
            data=data_folder(dataset.events),
        )

    def _trained_again(self, backbone: Backbone, folder: Path | None, seed: int) -> Trains:
        """How a backbone of the same kind is trained on earlier events, kept next to its folder if it has one."""
        kept = folder if self._learning(backbone).cross_fit else None

        def trains(dataset: Dataset, share: float) -> Backbone:
            home = None if kept is None else earlier_backbone(kept, share)
            return trained_again(backbone, home, seed, self.device, self.progress, dataset)

        return trains

    def _earlier(self, validation: Validation, model: Model, home: Path | None) -> list[Source]:
        """Late train to learn from, where the backbone is not trained or is trained again; nothing elsewhere."""
        wanted, fitted = self._learning(model.own_backbone), model.fitted
        if not wanted.cross_fit and not training_free(model.own_backbone):
            return []
        return earlier_sources(
            validation,
            self._trained_again(model.own_backbone, home, model.config.backbone_seed),
            wanted,
            transitions=fitted.train,
            seed=self.seed,
            epochs=fitted.epochs,
            progress=self.progress,
        )

    def _renewed(self, model: Model, home: Path | None) -> tuple[Backbone, TrainingNote] | None:
        """The backbone trained once more and the note of that, where it is wanted; nothing is chosen with it."""
        own, learning = model.own_backbone, self._learning(model.own_backbone)
        if learning.renewed != "on" or (split := renewal_split(model.dataset, learning)) is None:
            return None
        began, seed = time.perf_counter(), model.config.backbone_seed
        kept = None if home is None else renewed_backbone(home)
        again = trained_again(own, kept, seed, self.device, self.progress, split)
        seconds = time.perf_counter() - began
        return again, note_of(again, split, seed, self.device, seconds) if kept is None else training_note(kept)

    def _learned(
        self,
        validation: Validation,
        fitted: Fitted,
        earlier: list[Source],
        wanted: LearnedSettings,
    ) -> dict[str, Fit]:
        """The learned residuals; none where there is too little to learn from, which a warning says."""
        try:
            return fit_learned(
                validation,
                fitted.train,
                wanted,
                earlier=earlier,
                choices=fitted.choices,
                seed=self.seed,
                progress=self.progress,
            )
        except DataError as problem:
            said = str(problem).partition(";")[0].rstrip(".")
            used = "; forecasts use the paper's" if fitted.choices["time"].lam else ""
            warnings.warn(f"no learned residual was fitted: {said}{used}.", stacklevel=3)
            return {}

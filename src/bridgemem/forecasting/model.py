"""Model: all that a fit makes. In memory it is a `Model`; a run folder is its serialised form, with the same parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bridgemem import __version__
from bridgemem.backbones.averaged import Averaged
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.open_vocabulary import OpenVocabulary
from bridgemem.backbones.scorer import Scorer
from bridgemem.backbones.trained import TrainingNote
from bridgemem.config import Count, Declared, HistoryMode, NotNegative, Seed, Settings, Size
from bridgemem.errors import RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.calibration import Calibration
from bridgemem.forecasting.heads import Heads
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.residuals.learned import Learned, LearnedSettings
from bridgemem.residuals.learning import Fit, FitNote, HeldOut, serving
from bridgemem.residuals.method import BACKBONE, Method
from bridgemem.residuals.selection import SELECTION_FILTERS, Fitted, Selection
from bridgemem.storage.files import FORMAT


@dataclass(frozen=True)
class RunConfig(Declared):
    """What a run is: enough to find its data again and to refuse data that changed.

    backbone_entities, backbone_relations: how many the backbone was fitted on; the data of a refreshed run has more.
    renewed: whether the backbone was trained once more, on most of validation too.
    data: the mined folder or memory on disk that holds the data; empty where the run does, or it is a named data set.
    """

    dataset: str
    fingerprint: str
    valid_start: int
    test_start: int
    backbone: str
    backbone_seed: Seed
    backbone_entities: Count
    backbone_relations: Count
    seed: Seed
    device: str
    history: HistoryMode = "rolling"
    epochs: Size = 0
    select_fit_seconds: NotNegative = 0.0
    refit_seconds: NotNegative = 0.0
    transitions: Size = 0
    parameters: Size = 0
    renewed: bool = False
    data: str = ""
    version: str = __version__
    format: int = FORMAT


class Parts(ABC):
    """The parts of a fitted model, in memory or in a run folder."""

    config: RunConfig
    settings: Settings
    dataset: Dataset  # that it was fitted on

    @property
    @abstractmethod
    def where(self) -> str:
        """What sentences call the model."""

    @abstractmethod
    def backbone(self, device: str = "cpu") -> Backbone:
        """The backbone as trained on train, which all choices were made with."""

    @abstractmethod
    def renewed(self, device: str = "cpu") -> Backbone | None:
        """The same trained once more, on most of validation too; None where the fit did without."""

    def scorer(self, part: str, device: str = "cpu") -> Scorer:
        """What scores, open to names that came after the fit: the backbone for "train", the mean with its renewed one
        for "known", as of transitions.
        """
        own, renewed = self.backbone(device), self.renewed(device) if part == "known" else None
        scorer = own if renewed is None else Averaged((own, renewed))
        return OpenVocabulary(scorer, self.config.backbone_entities, self.config.backbone_relations)

    @abstractmethod
    def backbone_note(self) -> dict[str, Any]:
        """What records say of the backbone: how it was trained, and its settings."""

    @abstractmethod
    def transitions(self, part: str = "known", device: str = "cpu") -> Transitions:
        """The transitions fitted on "train" (for validation) or on "known", train + validation (for test and after)."""

    @abstractmethod
    def selection(self, filter_name: str) -> Selection:
        """The locked selection made under a filter."""

    @abstractmethod
    def fit_names(self) -> tuple[str, ...]:
        """The filters that learned residuals were fitted under, "raw" first; none where there is no such residual."""

    @abstractmethod
    def learned(self, filter_name: str, device: str = "cpu") -> Learned | None:
        """The learned residual that ranks under a filter, or None where there is none."""

    @abstractmethod
    def learning(self, filter_name: str) -> FitNote:
        """How the learned residual that ranks under a filter was fitted."""

    def held_out(self, filter_name: str) -> HeldOut | None:
        """How the residuals did on the later part of validation under a filter; None where that was not measured."""
        return self.learning(filter_name).held_out.get(filter_name) if self.fit_names() else None

    def method(self, name: str, filter_name: str) -> Method:
        """What ranks under a filter by that name: bridgemem as chosen there, learned as fitted there or for all."""
        if name == "learned":
            return Method(name, serving(self.fit_names(), filter_name))
        return Method(name, "static" if filter_name == "static" else "time")

    def lock_of(self, method: Method) -> str:
        """The lock of the selection that a residual was made under; the learned one goes with the time-aware one."""
        return self.selection("static" if method.selected_by == "static" else "time").lock()

    @abstractmethod
    def calibration(self, method: Method, lock: str) -> Calibration | None:
        """The calibration of a method under a locked selection, or None where it was never made."""

    def trial(self, method: Method) -> tuple[Learned, Queries] | None:
        """The network of a learned residual that saw nothing of later validation, and its queries; a fit has it."""
        return None

    @abstractmethod
    def heads(self) -> Heads | None:
        """What answers what and whether, or None where they were not fitted."""

    def methods(self) -> list[Method]:
        """All that the model ranks by, the backbone first."""
        learned = (Method("learned", name) for name in self.fit_names())
        return [BACKBONE, *(Method("bridgemem", name) for name in SELECTION_FILTERS), *learned]

    def preferred(self) -> str:
        """The residual that forecasts use unless told otherwise: bridgemem or learned.

        With both, the learned one where it ranked better on the later part of validation, without a filter or under the
        time-aware one, or where that was not measured.
        """
        if not self.fit_names():
            return "bridgemem"
        held = [found for name in ("raw", "time") if (found := self.held_out(name)) is not None]
        return "learned" if not held or any(found.better == "learned" for found in held) else "bridgemem"

    def remark(self) -> str:
        """How far the probabilities of forecasts were off on later validation; empty where they were not."""
        name = self.method(self.preferred(), "raw")
        found = self.calibration(name, self.lock_of(name))
        late = None if found is None else found.late
        return f"Probabilities of the best candidate: {late.remark}." if late is not None and late.remark else ""

    def predictor_of(self, past: Past, residual: str | None = None) -> Predictor:
        """What answers queries by name from this past.

        residual "bridgemem" or "learned"; None is the learned one where there is one that did better on the later part
        of validation. A forecast knows no filter: the learned residual is that without one, the paper's that of the
        time-aware selection.
        """
        if residual not in (None, "bridgemem", "learned"):
            raise SettingsError(f"residual is bridgemem or learned, not {residual!r}.")
        locked = self.selection("time")
        learned = None if residual == "bridgemem" else self.learned("raw")
        if residual == "learned" and learned is None:
            raise RunError(
                f"{self.where} has no learned residual; `bridgemem fit --residual learned` fits one, "
                "--residual bridgemem does without."
            )
        if residual is None and learned is not None and self.preferred() == "bridgemem":
            learned = None
        name = self.method("bridgemem" if learned is None else "learned", "raw")
        calibration = self.calibration(name, self.lock_of(name))
        own = (self.scorer("known"), self.transitions(), locked.choice, learned, calibration)
        return Predictor(past, *own, heads=self.heads())

    def refuse_frozen(self) -> None:
        """A model of frozen history is measured, and not asked."""
        if self.config.history == "frozen":
            raise RunError(
                f"{self.where} was fitted and measured with frozen history, and a forecast reads all that happened "
                "before its step; fit a run without --history frozen to ask it."
            )


@dataclass(frozen=True)
class Model(Parts):
    """A fitted model in memory.

    trained: the note of its backbone's training. unfinished: of a learned residual that is yet to be fitted.
    own_renewed: the backbone trained once more, and the note of that.
    """

    dataset: Dataset
    own_backbone: Backbone
    fitted: Fitted
    config: RunConfig
    fits: Mapping[str, Fit] = field(default_factory=dict)
    calibrations: Mapping[Method, Calibration] = field(default_factory=dict)
    trained: TrainingNote = field(default_factory=TrainingNote)
    unfinished: LearnedSettings | None = None
    own_heads: Heads | None = None
    own_renewed: tuple[Backbone, TrainingNote] | None = None

    def heads(self) -> Heads | None:
        return self.own_heads

    def trial(self, method: Method) -> tuple[Learned, Queries] | None:
        fit = self.fits.get(method.selected_by or "")
        return None if fit is None else fit.trial

    @property
    def where(self) -> str:
        return "the model"

    @property
    def settings(self) -> Settings:  # type: ignore[override]
        return self.fitted.train.settings

    def backbone(self, device: str = "cpu") -> Backbone:
        return self.own_backbone.to(device)

    def renewed(self, device: str = "cpu") -> Backbone | None:
        return None if self.own_renewed is None else self.own_renewed[0].to(device)

    def backbone_note(self) -> dict[str, Any]:
        return described(self.trained, asdict(self.own_backbone.settings))

    def transitions(self, part: str = "known", device: str = "cpu") -> Transitions:
        return (self.fitted.known if part == "known" else self.fitted.train).to(device)

    def selection(self, filter_name: str) -> Selection:
        if filter_name not in self.fitted.selections:
            raise SettingsError(f"selections are made under {' or '.join(SELECTION_FILTERS)}, not {filter_name!r}.")
        return self.fitted.selections[filter_name]

    def fit_names(self) -> tuple[str, ...]:
        return tuple(self.fits)

    def learned(self, filter_name: str, device: str = "cpu") -> Learned | None:
        name = serving(self.fits, filter_name)
        return None if name is None else self.fits[name].model.to(device)

    def learning(self, filter_name: str) -> FitNote:
        return self.fits[serving(self.fits, filter_name) or filter_name].note

    def calibration(self, method: Method, lock: str) -> Calibration | None:
        return self.calibrations.get(method)


def described(note: TrainingNote, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What records say of a backbone, from the note of its training and its settings."""
    known = {"seconds": note.seconds, "parameters": note.parameters, "device": note.device}
    trained = {f"train_{key}": value for key, value in known.items() if value is not None}
    return {**trained, "backbone_settings": dict(settings)}

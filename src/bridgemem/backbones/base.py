"""The contract of a backbone: a scorer that is trained on a data set and kept in a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bridgemem.backbones import origin
from bridgemem.backbones.scorer import Scorer, score_queries
from bridgemem.config import Declared
from bridgemem.errors import BackboneError
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.files import load_tensors, save_tensors
from bridgemem.storage.schema import as_settings, settings_of
from bridgemem.training.checkpoint import Training, seeded, with_weights
from bridgemem.training.devices import moved

Grid = Mapping[str, tuple[Any, ...]]  # values to try, by the name of their setting
Bounds = Mapping[str, int]


def check_trained_events(what: str, fingerprint: str | None, dataset: Dataset) -> None:
    """Refuse a backbone that is known to be trained on anything but the train split of a data set."""
    if fingerprint not in (None, dataset.train.fingerprint):
        raise BackboneError(
            f"{what} was trained on other events than the train split of {dataset.name}, and may know those that it "
            "would be asked about; train it on this data."
        )


@dataclass(frozen=True)
class NoSettings(Declared):
    """The settings of a backbone that has none."""


class Backbone(Scorer, ABC):
    """A scorer that is trained, saved and loaded, and never changed by what is added to it."""

    name: ClassVar[str]
    default: ClassVar[Any] = NoSettings()
    own_uncertainty: ClassVar[bool] = False
    retrained: ClassVar[bool] = True  # whether it can be trained again, on earlier events
    reads_past: ClassVar[bool] = True  # whether it scores from the past that it is given, where that can be checked
    # settings of a learned residual that it asks for where they are left at their defaults
    learning: ClassVar[Mapping[str, Any]] = {}
    # settings that its paper tunes by data set, with the values to try, the most telling first; see `tuning.tune`
    grid: ClassVar[Grid] = {}
    trial: ClassVar[Bounds] = {}  # the most that a trial spends of a setting, such as epochs
    n_members: int = 0
    settings: Any = default
    tuned: dict[str, Any] | None = None  # the trials that its settings were chosen by, where they were
    fitted_on: str | None = None  # the fingerprint of the train split, where `fit` made it in this process

    @classmethod
    def fit(
        cls,
        dataset: Any,
        settings: Any = None,
        *,
        seed: int = 42,
        device: str = "cpu",
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
    ) -> Self:
        """Train on the train split alone.

        Args:
            dataset: Whatever `load` takes.
            settings: Of this backbone, as its settings class or a dict of what differs from the defaults.
            seed: Of everything that is drawn.
            device: "cpu" or "cuda".
            progress: Where the training is shown.
            checkpoint: A folder where a long training keeps its state, to continue from what the same one left there.
        """
        data, own = load(dataset, progress=progress), settings_of(type(cls.default), settings) or cls.default
        own = cls.sized(own, device)
        with seeded(seed, device):
            made = cls.train(data, own, Training(seed, device, progress, checkpoint))
        made.fitted_on = data.train.fingerprint
        return made

    @classmethod
    @abstractmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        """What `fit` makes; torch's random numbers have their seed."""

    @classmethod
    def sized(cls, settings: Any, device: str) -> Any:
        """The settings, with sizes that are left to the device."""
        return settings

    @classmethod
    def tunable(cls, dataset: Dataset) -> Grid:
        """What of the grid is worth trying on a data set."""
        return cls.grid

    @classmethod
    def tuned_unless_set(cls, settings: Any) -> bool:
        """Whether a training with these settings is to be tuned where nobody says so: nothing is known of the data."""
        return False

    @classmethod
    def parts(cls, settings: Any) -> dict[str, Any]:
        """Of one made of others: the settings of each of them, by its name."""
        return {}

    @classmethod
    def with_parts(cls, settings: Any, changed: Mapping[str, Mapping[str, Any]]) -> Any:
        """Settings with those of some of its parts changed."""
        return settings

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that was learned, by name; what `restore` needs besides the settings."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        """A backbone from its settings and what `tensors` gave; a ValueError says what does not fit."""

    def check(self, dataset: Dataset) -> None:
        """Score one query of the last ids there are: a backbone of other data is refused here, and not half used."""
        check_trained_events(f"this {self.name}", self.fitted_on, dataset)
        events = dataset.events
        ids = (events.n_entities - 1, 2 * events.n_relations - 1, 0)
        try:
            score_queries(self, Queries(*(torch.tensor([i]) for i in ids)), Past(events.prefix(0)))
        except BackboneError as problem:
            if problem.__cause__ is None:
                raise
            raise BackboneError(
                f"this {self.name} was trained on other data than {dataset.name}; train it on this data."
            ) from None

    def grown(self, n_entities: int, n_relations: int) -> Self | None:
        """What `fit` would make of the same train split in a vocabulary with more names; None where it must train."""
        return None

    def to(self, device: str) -> Self:
        """Move to a device; a backbone without tensors of its own stays as it is."""
        return self

    def save(self, folder: Path) -> None:
        """Write config.toml and weights.safetensors, whole or not at all."""
        save_tensors(folder, {"backbone": origin(type(self)), "settings": asdict(self.settings)}, self.tensors())

    @classmethod
    def load(cls, folder: Path) -> Self:
        config, tensors = load_tensors(folder)
        return cls.restore(as_settings(type(cls.default), config.get("settings"), f"{folder}/config.toml"), tensors)


class NetBackbone(Backbone):
    """A backbone that is a network and its settings."""

    def __init__(self, settings: Any, net: Any) -> None:
        self.settings, self.net = settings, net.eval()

    @classmethod
    @abstractmethod
    def shell(cls, settings: Any, tensors: dict[str, Tensor]) -> nn.Module:
        """A network of the sizes that saved weights have; it is made on the meta device, and holds nothing."""

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.net.state_dict().items()}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        # nothing is allocated or drawn before the weights are known to fit
        with torch.device("meta"):
            net = cls.shell(settings, tensors)
        return cls(settings, with_weights(net, tensors))

    def to(self, device: str) -> Self:
        return type(self)(self.settings, moved(self.net, device))

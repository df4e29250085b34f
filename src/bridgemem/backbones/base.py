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
from bridgemem.storage.schema import as_settings, settings_of
from bridgemem.storage.tensors import load_tensors, save_tensors
from bridgemem.training.checkpoint import Training, seeded, shells, with_weights
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
    """A scorer that is trained, saved and loaded, and never changed by what is added to it.

    `bridgemem new-backbone FILE.py` writes a class to start from.

    Example:
        >>> import bridgemem as bm, torch
        >>> class Often(bm.Backbone):
        ...     name = "often"
        ...     def __init__(self, counts):
        ...         self.counts = counts
        ...     @classmethod
        ...     def train(cls, dataset, settings, training):
        ...         objects, size = torch.tensor(dataset.train.object).long(), dataset.train.n_entities
        ...         return cls(torch.bincount(objects, minlength=size).float())
        ...     def score(self, queries, past):
        ...         return self.counts.log1p().repeat(len(queries), 1)
        ...     def tensors(self):
        ...         return {"counts": self.counts}
        ...     @classmethod
        ...     def restore(cls, settings, tensors):
        ...         return cls(tensors["counts"])
        >>> bm.check_backbone(Often, data).word
        'pass'
    """

    name: ClassVar[str]
    default: ClassVar[Any] = NoSettings()
    own_uncertainty: ClassVar[bool] = False
    retrained: ClassVar[bool] = True  # whether it can be trained again, on earlier events
    reads_past: ClassVar[bool] = True  # whether it scores from the past that it is given, where that can be checked
    # settings of a learned residual that it asks for where they are left at their defaults
    learning: ClassVar[Mapping[str, Any]] = {}
    # settings that its paper tunes by data set, with the values to try, the most telling first; see `tuning.tune`
    grid: ClassVar[Grid] = {}
    only_with: ClassVar[Mapping[str, str]] = {}  # a setting of the grid, and the one without which nothing reads it
    trial: ClassVar[Bounds] = {}  # the most that a trial spends of a setting, such as epochs
    n_members: int = 0
    settings: Any = default
    tuned: dict[str, Any] | None = None  # the trials that its settings were chosen by, where they were
    seconds: float | None = None  # of its training, where it knows more of them than the last start of it took
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

        Returns:
            The trained backbone.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.fit(data).name
            'recurrence'
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
        """Learn from the train split alone; `fit` calls it with torch seeded.

        Args:
            dataset: The data; read its train split.
            settings: Of this backbone.
            training: Seed, device, progress and checkpoint.

        Returns:
            The trained backbone.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> from bridgemem.training.checkpoint import Training
            >>> trained = Recurrence.train(data, Recurrence.default, Training(seed=42, device="cpu"))
            >>> trained.share.shape
            torch.Size([30])
        """

    @classmethod
    def sized(cls, settings: Any, device: str) -> Any:
        """Fill in sizes that depend on the device, such as a width.

        Args:
            settings: As given.
            device: "cpu" or "cuda".

        Returns:
            The settings to train with.

        Example:
            >>> from bridgemem.backbones.stream import Stream
            >>> Stream.sized(Stream.default, "cpu").width < Stream.sized(Stream.default, "cuda").width
            True
        """
        return settings

    @classmethod
    def tunable(cls, dataset: Dataset) -> Grid:
        """Choose the part of the grid that `tune` tries on a data set.

        Args:
            dataset: The data.

        Returns:
            Values to try, by setting.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.tunable(data)
            {'decay': (0.9, 0.5, 0.99)}
        """
        return cls.grid

    @classmethod
    def tuned_unless_set(cls, settings: Any) -> bool:
        """Tell whether `bridgemem train` tunes these settings without being asked to.

        Args:
            settings: As given.

        Returns:
            True for an ensemble of members that need tuning on new data; False for others.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.tuned_unless_set(Recurrence.default)
            False
        """
        return False

    @classmethod
    def parts(cls, settings: Any) -> dict[str, Any]:
        """Get the settings of each member, for a backbone made of others.

        Args:
            settings: Of the whole.

        Returns:
            The settings by the name of the member.

        Example:
            >>> from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
            >>> settings = EnsembleSettings(members=("recurrence", "popularity"))
            >>> Ensemble.parts(settings)["recurrence"].decay
            0.9
        """
        return {}

    @classmethod
    def with_parts(cls, settings: Any, changed: Mapping[str, Mapping[str, Any]]) -> Any:
        """Change the settings of some members.

        Args:
            settings: Of the whole.
            changed: What differs, by the name of the member.

        Returns:
            The settings of the whole.

        Example:
            >>> from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
            >>> settings = EnsembleSettings(members=("recurrence", "popularity"))
            >>> Ensemble.parts(Ensemble.with_parts(settings, {"recurrence": {"decay": 0.5}}))["recurrence"].decay
            0.5
        """
        return settings

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Get everything that was learned, by name.

        Returns:
            What `restore` needs in addition to the settings.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> list(Recurrence.fit(data).tensors())
            ['share']
        """

    @classmethod
    @abstractmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        """Make a backbone from its settings and what `tensors` gave.

        Args:
            settings: Of the saved backbone.
            tensors: By name.

        Returns:
            The backbone.

        Raises:
            ValueError: A tensor is missing, or has the wrong type or shape.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> trained = Recurrence.fit(data)
            >>> Recurrence.restore(trained.settings, trained.tensors()).name
            'recurrence'
        """

    def check(self, dataset: Dataset) -> None:
        """Refuse a backbone of other data, by scoring one query of the last ids.

        Args:
            dataset: The data that it is used on.

        Raises:
            BackboneError: It was trained on other data.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> other = bm.simulate(bm.WorldSettings(actors=20, relations=4, steps=40, events=800)).dataset
            >>> try:
            ...     Recurrence.fit(other).check(data)
            ... except bm.BridgeMemError as problem:
            ...     print(problem)
            this recurrence was trained on other events than the train split of world, and may know those that it
            would be asked about; train it on this data.
        """
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
        """Grow to a larger vocabulary, with the result that `fit` on the same train split would have.

        Args:
            n_entities: Number of entities of the larger vocabulary.
            n_relations: Number of its relations.

        Returns:
            The backbone; None if it must be trained again.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.fit(data).grown(n_entities=32, n_relations=8).share.shape
            torch.Size([32])
        """
        return None

    def to(self, device: str) -> Self:
        """Move to a device; a backbone without tensors of its own stays as it is.

        Args:
            device: "cpu" or "cuda".

        Returns:
            The backbone on that device.

        Example:
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.fit(data).to("cpu").share.device.type
            'cpu'
        """
        return self

    def save(self, folder: Path) -> None:
        """Write config.toml and weights.safetensors, atomically.

        Args:
            folder: The folder to write.

        Example:
            >>> from pathlib import Path
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.fit(data).save(Path("saved"))
            >>> sorted(path.name for path in Path("saved").iterdir())
            ['config.toml', 'weights.safetensors']
        """
        save_tensors(folder, {"backbone": origin(type(self)), "settings": asdict(self.settings)}, self.tensors())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a saved backbone.

        Args:
            folder: Where it was saved.

        Returns:
            The backbone.

        Raises:
            BackboneError: The folder is damaged or holds another kind of backbone.

        Example:
            >>> from pathlib import Path
            >>> from bridgemem.backbones.recurrence import Recurrence
            >>> Recurrence.fit(data).save(Path("kept"))
            >>> Recurrence.load(Path("kept")).settings.decay
            0.9
        """
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
        with shells():
            net = cls.shell(settings, tensors)
        return cls(settings, with_weights(net, tensors))

    def to(self, device: str) -> Self:
        return type(self)(self.settings, moved(self.net, device))

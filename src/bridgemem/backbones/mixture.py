"""Mixture: several trained backbones as one, each with an equal say in the probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bridgemem.backbones import BACKBONES, backbone_class, backbone_defaults, load_backbone
from bridgemem.backbones.base import Backbone, Scores
from bridgemem.backbones.history import History
from bridgemem.config import as_settings
from bridgemem.errors import SettingsError
from bridgemem.evaluation.queries import Queries
from bridgemem.events.dataset import Dataset
from bridgemem.progress import SILENT, Progress


@dataclass(frozen=True)
class MixtureSettings:
    """members: the built-in backbones that are mixed; tuned_for: the data set whose settings they have."""

    members: tuple[str, ...] = ("regcn", "tirgn")
    tuned_for: str = ""

    def __post_init__(self) -> None:
        if len(set(self.members)) < max(len(self.members), 2):
            raise SettingsError("members must name at least two different backbones.")
        for name in self.members:
            if name not in BACKBONES or name in ("mixture", "stored"):
                known = ", ".join(b for b in BACKBONES if b not in ("mixture", "stored"))
                raise SettingsError(f"members cannot hold {name!r}; choose from {known}.")


class Mixture(Backbone):
    """log of the mean of the members' probabilities; weights are equal, so there is nothing to choose on validation."""

    name: ClassVar[str] = "mixture"
    default: ClassVar[MixtureSettings] = MixtureSettings()

    def __init__(self, settings: MixtureSettings, members: Sequence[Backbone]) -> None:
        self.settings = settings
        self.members = list(members)
        self.n_members = len(self.members)

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        settings: Any = None,
        seed: int = 42,
        device: str = "cpu",
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
    ) -> Self:
        settings = settings or cls.default
        members = []
        for name in settings.members:
            trained = None if checkpoint is None else checkpoint / name
            if trained is not None and (trained / "config.toml").is_file():
                members.append(load_backbone(trained).to(device))
                continue
            state = None if checkpoint is None else checkpoint / f"{name}.training"
            tuned = backbone_defaults(name, settings.tuned_for)
            members.append(backbone_class(name).fit(dataset, tuned, seed, device, progress, state))
            if trained is not None:
                members[-1].save(trained)
        return cls(settings, members)

    def score(self, queries: Queries, past: History) -> Scores:
        each = [member.score(queries, past).log_p.log_softmax(1) for member in self.members]
        finest = reduce(torch.promote_types, (log_p.dtype for log_p in each))
        own = torch.stack([log_p.to(finest) for log_p in each])
        return Scores(own.logsumexp(0) - math.log(len(own)), members=own)

    def tensors(self) -> dict[str, Tensor]:
        named = zip(self.settings.members, self.members, strict=True)
        return {f"{name}.{key}": tensor for name, member in named for key, tensor in member.tensors().items()}

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        own = as_settings(MixtureSettings, settings, "mixture")
        members = []
        for name in own.members:
            part = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(f"{name}.")}
            members.append(backbone_class(name).restore(asdict(backbone_defaults(name, own.tuned_for)), part))
        return cls(own, members)

    def to(self, device: str) -> Self:
        self.members = [member.to(device) for member in self.members]
        return self

"""Ensemble: several trained backbones as one, each with an equal say in the probabilities."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from bridgemem.backbones import BACKBONES, backbone_class, backbone_defaults, load_backbone
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import Attended, Scores, ask
from bridgemem.backbones.tuning import as_text
from bridgemem.config import Declared, Range
from bridgemem.errors import RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.storage.files import read_json, write_json
from bridgemem.storage.schema import as_settings, override
from bridgemem.storage.tensors import load_tensors, part_of, save_tensors
from bridgemem.training.checkpoint import Training

# One recipe for all data: nothing of it was chosen for a data set, and what has to fit the size of one sizes itself.
RECIPE: dict[str, tuple[str, ...]] = {
    "recurrence-typed": (),
    "stream": (),
    # where names share no words, they are vectors of their own
    "regcn": ("static=true", "static_weight=0", "together=0", "epochs=20", "patience=3"),
    "tpar": ("activation=relu", "window=1000", "late=1", "most_queries=150000", "epochs=3"),
}
NO_MEMBERS = ("ensemble", "counting+stream", "stored")


@dataclass(frozen=True, eq=False)
class EnsembleSettings(Declared):
    """members: the built-in backbones that are mixed; tuned_for: the named data set whose settings they have, if any.

    changed: other settings of members, as in "stream.width=64". They are equal to others that name the same members,
    each with the same settings.
    """

    members: Annotated[tuple[str, ...], Range(ge=2, note="backbones")] = tuple(RECIPE)
    tuned_for: str = ""
    changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.members)) < len(self.members):
            raise SettingsError(f"members must differ, and {', '.join(self.members)} do not.")
        for name in self.members:
            if name not in BACKBONES or name in NO_MEMBERS:
                known = ", ".join(b for b in BACKBONES if b not in NO_MEMBERS)
                raise SettingsError(f"members cannot hold {name!r}; choose from {known}.")
        if self.tuned_for and self.tuned_for not in CATALOG:
            known = ", ".join(CATALOG)
            raise SettingsError(
                f"there are no settings for {self.tuned_for!r} to be tuned_for; choose from {known}, or leave it empty."
            )
        for change in self.changed:
            if change.partition(".")[0] not in self.members:
                raise SettingsError(f"{change!r} names none of the members; known are {', '.join(self.members)}.")
        if self.changed:
            self.each()  # which refuses what they do not take

    def each(self) -> dict[str, Any]:
        """The settings of every member, by name."""
        return {name: override(backbone_defaults(name, self.tuned_for), self._of(name)) for name in self.members}

    def _of(self, member: str) -> list[str]:
        """What is changed of a member, as in "width=64": by the recipe unless tuned for a data set, then as asked."""
        recipe = () if self.tuned_for else RECIPE.get(member, ())
        parts = (change.partition(".") for change in self.changed)
        return [*recipe, *(change for name, _, change in parts if name == member)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnsembleSettings) and list(self.each().items()) == list(other.each().items())

    def __hash__(self) -> int:
        return hash(self.members)


@dataclass(frozen=True, eq=False)
class TrainedSettings(EnsembleSettings):
    """Those of a trained ensemble. own: the settings that each member was trained with."""

    own: dict[str, Any] = field(default_factory=dict)

    def each(self) -> dict[str, Any]:
        return self.own


class Ensemble(Backbone):
    """log of the mean of the members' probabilities; weights are equal, so there is nothing to choose on validation.

    By default one that counts, one that reads the actor's last events, one that evolves the graph, and one that
    follows paths.
    """

    name: ClassVar[str] = "ensemble"
    # what a reader says of train is worth less the longer ago it was trained; its own cost leaves room for more queries
    # and, where there are few, for another training. What validation teaches the members themselves is worth one more
    learning: ClassVar[Mapping[str, Any]] = {
        "cross_fit": 0.2,
        "blocks": 3,
        "renewed": "on",
        "train_queries": 120_000,
        "valid_queries": 120_000,
        "hidden": 128,
    }
    default: ClassVar[EnsembleSettings] = EnsembleSettings()

    def __init__(self, settings: EnsembleSettings, members: Sequence[Backbone]) -> None:
        self.members = list(members)
        own = {name: member.settings for name, member in zip(settings.members, self.members, strict=True)}
        self.settings = TrainedSettings(settings.members, settings.tuned_for, settings.changed, own)
        self.n_members = len(self.members)

    @classmethod
    def tuned_unless_set(cls, settings: Any) -> bool:
        """Members of the recipe fit any data; for others than the published validation finds the settings."""
        return not settings.tuned_for and not settings.changed and not set(settings.members) <= set(RECIPE)

    @classmethod
    def sized(cls, settings: Any, device: str) -> TrainedSettings:
        own = {name: backbone_class(name).sized(one, device) for name, one in settings.each().items()}
        return TrainedSettings(settings.members, settings.tuned_for, settings.changed, own)

    @classmethod
    def parts(cls, settings: Any) -> dict[str, Any]:
        return dict(settings.each())

    @classmethod
    def with_parts(cls, settings: Any, changed: Mapping[str, Mapping[str, Any]]) -> Any:
        texts = [f"{name}.{key}={as_text(v)}" for name, own in changed.items() for key, v in own.items()]
        return replace(settings, changed=(*settings.changed, *texts))

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        made = cls(settings, [_member(name, own, dataset, training) for name, own in settings.each().items()])
        # those of members that an earlier start has finished, too
        each = [member.seconds for member in made.members]
        made.seconds = None if None in each else sum(one for one in each if one is not None)
        return made

    def score(self, queries: Queries, past: Past) -> Scores:
        each = [ask(member, queries, past).log_p.log_softmax(1) for member in self.members]
        finest = reduce(torch.promote_types, (log_p.dtype for log_p in each))
        own = torch.stack([log_p.to(finest) for log_p in each])
        return Scores(own.logsumexp(0) - math.log(len(own)), members=own)

    def attended(self, query: Queries, past: Past) -> Attended | None:
        """Of the first member that has any."""
        found = (member.attended(query, past) for member in self.members)
        return next((one for one in found if one is not None), None)

    def tensors(self) -> dict[str, Tensor]:
        named = zip(self.settings.members, self.members, strict=True)
        return {f"{name}.{key}": tensor for name, member in named for key, tensor in member.tensors().items()}

    @classmethod
    def restore(cls, settings: EnsembleSettings, tensors: dict[str, Tensor]) -> Self:
        each = settings.each().items()
        return cls(settings, [backbone_class(name).restore(own, part_of(tensors, f"{name}.")) for name, own in each])

    def save(self, folder: Path) -> None:
        """As any backbone, with a table of settings for each member."""
        own = self.settings
        settings = {"members": own.members, "tuned_for": own.tuned_for}
        if own.changed:
            settings["changed"] = own.changed
        tables = {"backbone": {"name": self.name}, "settings": settings}
        members = {_table(name): asdict(settings) for name, settings in own.each().items()}
        save_tensors(folder, {**tables, **members}, self.tensors())

    @classmethod
    def load(cls, folder: Path) -> Self:
        (config, tensors), where = load_tensors(folder), f"{folder}/config.toml"
        plain = as_settings(EnsembleSettings, config.get("settings"), where)
        own = {m: as_settings(type(backbone_class(m).default), config.get(_table(m)), where) for m in plain.members}
        return cls.restore(TrainedSettings(plain.members, plain.tuned_for, plain.changed, own), tensors)

    def to(self, device: str) -> Self:
        self.members = [member.to(device) for member in self.members]
        return self


class CountingStream(Ensemble):
    """Counting and the stream reader: what repeats, and what an actor's last events say."""

    name: ClassVar[str] = "counting+stream"
    default: ClassVar[EnsembleSettings] = EnsembleSettings(("recurrence-typed", "stream"))


def _table(member: str) -> str:
    """The table of config.toml that holds a member's settings; flat, as all tables of saved models are."""
    return f"settings-{member}"


def _member(name: str, settings: Any, dataset: Dataset, training: Training) -> Backbone:
    """A member that an earlier start of this very training has finished, or a new one, which is kept for a later."""
    kind, state = backbone_class(name), training.checkpoint
    how: dict[str, Any] = {"seed": training.seed, "device": training.device, "progress": training.progress}
    if state is None:
        return kind.fit(dataset, settings, **how)
    home = state / name
    # validation too, since some members choose their epochs on it
    note = {"seed": training.seed, "fingerprint": dataset.known.fingerprint, "valid_start": dataset.valid_start}
    try:
        noted = read_json(home / "trained.json")
        kept = load_backbone(home) if note.items() <= noted.items() else None
    except RunError:
        noted, kept = {}, None
    if kept is not None and kept.settings == settings:
        kept = kept.to(training.device)
        kept.seconds = noted.get("seconds")
        return kept
    began = time.perf_counter()
    member = kind.fit(dataset, settings, **how, checkpoint=state / f"{name}.training")
    member.seconds = time.perf_counter() - began
    member.save(home)
    write_json(home / "trained.json", {**note, "seconds": member.seconds})
    return member

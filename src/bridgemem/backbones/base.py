"""The contract of a backbone: log scores of every entity, and an uncertainty, from facts strictly before t."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bridgemem.backbones.scorer import Scorer
from bridgemem.errors import NO_MEMORY, BackboneError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import seen_mass
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.files import load_tensors, save_tensors
from bridgemem.storage.schema import as_settings
from bridgemem.training.checkpoint import with_weights


@dataclass(frozen=True)
class Scores:
    """log_p float [n, E]: log scores, higher is likelier. uncertainty float [n] in [0, 1]; None without an oracle.

    members float [k, n, E]: the log probabilities of those that a backbone is made of, if it is made of several.
    absent bool [n, E]: entities that are no candidates, since nobody knew of them before the step; None without any.
    """

    log_p: Tensor
    uncertainty: Tensor | None = None
    members: Tensor | None = None
    absent: Tensor | None = None

    @property
    def of_candidates(self) -> Tensor:
        """The log scores, -inf for whoever is no candidate: all that forecasts, gates and features may read."""
        return self.log_p if self.absent is None else self.log_p.masked_fill(self.absent, -torch.inf)


class Backbone(ABC):
    """A forecaster that is never changed by what is added to it.

    Scores must depend on a query, and on facts strictly before its step (or before `past.frozen_at`), alone: not on
    its answer, nor on the other queries of the batch, nor on their order.
    """

    name: ClassVar[str]
    default: ClassVar[Any]
    # whether its uncertainty is its own; otherwise it is the mass on seen candidates, and entropy is tried next to it
    own_uncertainty: ClassVar[bool] = False
    # how many backbones it is made of, if it is an ensemble of several
    n_members: int = 0
    settings: Any

    @classmethod
    @abstractmethod
    def fit(
        cls,
        dataset: Dataset,
        settings: Any = None,
        seed: int = 42,
        device: str = "cpu",
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
    ) -> Self:
        """Train on the train split alone.

        A long training may keep its state in a folder `checkpoint`, and continue from what the same one left there.
        """

    @abstractmethod
    def score(self, queries: Queries, past: Past) -> Scores:
        """Score every entity as the answer of each query."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that was learned, by name; what `restore` needs besides the settings."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        """A backbone from its settings and what `tensors` gave; a ValueError says what does not fit."""

    def check(self, dataset: Dataset) -> None:
        """Score one query of the last ids there are: a backbone of other data is refused here, and not half used."""
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
        save_tensors(folder, {"backbone": {"name": self.name}, "settings": asdict(self.settings)}, self.tensors())

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
        return type(self)(self.settings, self.net.to(device))


def check_scores(scores: Scores, queries: Queries, n_entities: int, name: str) -> Scores:
    """The scores of a batch, or an error that says how they break the contract."""
    expected = (len(queries), n_entities)
    if tuple(scores.log_p.shape) != expected:
        raise BackboneError(f"{name} returned scores of shape {tuple(scores.log_p.shape)} instead of {expected}.")
    if not torch.isfinite(scores.log_p).all():
        raise BackboneError(f"{name} returned a score that is NaN or infinite; log scores must be finite.")
    members = scores.members
    if members is not None and (tuple(members.shape[1:]) != expected or not torch.isfinite(members).all()):
        raise BackboneError(f"{name} returned scores of its members that are not finite or of the wrong shape.")
    u = scores.uncertainty
    if u is not None and (u.shape != (len(queries),) or not ((u >= 0) & (u <= 1)).all()):
        raise BackboneError(f"{name} returned an uncertainty outside [0, 1] or of the wrong shape.")
    return scores


def score_queries(backbone: Scorer, queries: Queries, past: Past) -> Scores:
    """Checked scores; the answers are withheld, and a backbone without an oracle gets its mass on seen candidates."""
    blind = queries.unanswered()
    try:
        found = backbone.score(blind, past)
    except (IndexError, RuntimeError) as problem:
        if any(words in str(problem) for words in NO_MEMORY):
            raise
        said = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
        raise BackboneError(
            f"{backbone.name} cannot score the queries ({said}); train it on this data, if its weights are damaged or "
            "belong to other data."
        ) from problem
    scores = check_scores(found, blind, past.events.n_entities, backbone.name)
    if scores.uncertainty is not None:
        return scores
    return replace(scores, uncertainty=seen_mass(scores.of_candidates, *past.seen(queries.actor, queries.step)))

"""Training-free backbones: popularity, recurrence of the exact triple, and recurrence with dyadic recency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone, Grid
from bridgemem.backbones.scorer import Added, Scores, SparseScores
from bridgemem.config import Declared, Finite, Share
from bridgemem.equations import log_base
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.storage.tensors import TensorSpec, check_tensors
from bridgemem.training.checkpoint import Training


@dataclass(frozen=True)
class RecurrenceSettings(Declared):
    """score = popularity_weight * share of c

    + [triple seen] triple * (1 + decay^lag) + [pair seen either way] (seen_pair + recency / (1 + lag)).
    """

    popularity_weight: Finite = 0.001
    decay: Share = 0.9
    triple: Finite = 1.0
    seen_pair: Finite = 0.0
    recency: Finite = 0.0


class Popularity(Backbone):
    """Every actor's answer is the most active entity of train: the floor that any forecaster must clear."""

    name: ClassVar[str] = "popularity"
    default: ClassVar[RecurrenceSettings] = RecurrenceSettings(popularity_weight=1.0, triple=0.0)

    def __init__(self, settings: RecurrenceSettings, share: Tensor) -> None:
        self.settings = settings
        self.share = share

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        counts, _ = dataset.train.tallies
        return cls(settings, torch.from_numpy(counts / counts.sum()).to(training.device))

    @property
    def parallel(self) -> bool:
        return True

    def score(self, queries: Queries, past: Past) -> Scores:
        score = self.base.repeat(len(queries), 1)
        for row, candidate, value in self.added(queries, past):
            score[row, candidate] += value
        return Scores(log_base(score))

    def sparse(self, queries: Queries, past: Past) -> SparseScores:
        return SparseScores.of(self.base, self.added(queries, past))

    @property
    def base(self) -> Tensor:
        """What every query begins with, float64 [E]."""
        return self.settings.popularity_weight * self.share

    def added(self, queries: Queries, past: Past) -> list[Added]:
        """What the past of each query adds."""
        s, parts = self.settings, []
        if s.triple:
            seen = past.occurrences(queries.actor, queries.relation, queries.step)
            lag = (queries.step[seen.row] - seen.step).double()
            # e to a logarithm and not a power, whose last bit hangs on where in the tensor a lag stands
            fresh = torch.exp(lag * math.log(s.decay)) if s.decay > 0 else (lag == 0).to(lag.dtype)
            parts.append((seen.row, seen.candidate, s.triple * (1 + fresh)))
        if s.seen_pair or s.recency:
            states = past.dyads.partners(queries.actor, queries.step, k=1, window=0, until=past.cut(queries.step))
            parts.append((states.row, states.candidate, s.seen_pair + s.recency / (1 + states.lag[:, 0].double())))
        return parts

    def grown(self, n_entities: int, n_relations: int) -> Self:
        share = self.share.new_zeros(n_entities)
        share[: len(self.share)] = self.share
        return type(self)(self.settings, share)

    def tensors(self) -> dict[str, Tensor]:
        return {"share": self.share}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        check_tensors(tensors, {"share": TensorSpec(("entities",))})
        return cls(settings, tensors["share"])

    def to(self, device: str) -> Self:
        return type(self)(self.settings, self.share.to(device))


class Recurrence(Popularity):
    """What the actor did under this very relation, the last time first."""

    name: ClassVar[str] = "recurrence"
    default: ClassVar[RecurrenceSettings] = RecurrenceSettings()
    grid: ClassVar[Grid] = {"decay": (0.9, 0.5, 0.99)}


class RecurrenceDyadic(Popularity):
    """Recurrence, and how recently the pair interacted at all."""

    name: ClassVar[str] = "recurrence-dyadic"
    default: ClassVar[RecurrenceSettings] = RecurrenceSettings(seen_pair=0.05, recency=0.5)
    grid: ClassVar[Grid] = {"decay": (0.9, 0.5, 0.99), "recency": (0.5, 0.1, 1.0)}

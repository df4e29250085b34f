"""Widened: a frozen backbone on a vocabulary that has grown since it was fitted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones import backbone_class
from bridgemem.backbones.base import Backbone, Scores
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.config import Declared, Size, write_toml
from bridgemem.errors import BackboneError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import seen_mass
from bridgemem.memory.overlay import GrownLog
from bridgemem.memory.past import Past
from bridgemem.memory.past_overlay import history_of
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.files import read_config
from bridgemem.storage.schema import as_settings
from bridgemem.storage.whole import whole_file


@dataclass(frozen=True)
class WidenedSettings(Declared):
    """The backbone inside, by name, and how many entities and relations it knows."""

    backbone: str = ""
    n_entities: Size = 0
    n_relations: Size = 0


class Widened(Backbone):
    """The backbone's own scores where it knows actor and relation, from the facts that it can read.

    n_entities, n_relations: what the backbone was fitted on; how far the vocabulary has grown is read from the history
    of each call. A training-free backbone grows with it and scores everybody itself. Of a trained one the candidates
    that it does not know get the lowest score of their row, and queries whose actor or relation it does not know are
    answered by recurrence, which needs no training. Either way an entity that came later is no candidate before its
    first event: otherwise the names of a later step would take their share of what is forecast for an earlier one.
    """

    name: ClassVar[str] = "widened"
    default: ClassVar[WidenedSettings] = WidenedSettings()

    def __init__(self, backbone: Backbone, n_entities: int, n_relations: int) -> None:
        self.backbone, self.n_entities, self.n_relations = backbone, n_entities, n_relations
        self.settings = WidenedSettings(backbone.name, n_entities, n_relations)
        self._narrowed: WeakKeyDictionary[Past, Past] = WeakKeyDictionary()
        self._grown: WeakKeyDictionary[Past, Backbone] = WeakKeyDictionary()

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
        raise BackboneError("a widened backbone is not trained; `bridgemem refresh` makes one of a run's own backbone.")

    def score(self, queries: Queries, past: Past) -> Scores:
        events = past.events
        if (events.n_entities, events.n_relations) == (self.n_entities, self.n_relations):
            return self.backbone.score(queries, past)
        absent = self._absent(queries, past)
        if (own_kind := self._grown_to(past)) is not None:
            return replace(own_kind.score(queries, past), absent=absent)
        plain, inverse = queries.relation % events.n_relations, queries.relation // events.n_relations
        knows = (queries.actor < self.n_entities) & (plain < self.n_relations)
        rows, others = knows.nonzero().squeeze(1), (~knows).nonzero().squeeze(1)
        own: Scores | None = None
        if len(rows):
            asked = Queries(queries.actor[rows], plain[rows] + inverse[rows] * self.n_relations, queries.step[rows])
            own = self.backbone.score(asked, self._readable(past))
        rest, by_recurrence = queries.take(others), None
        if len(others):
            by_recurrence = self._recurrence(events, past).score(rest, past).log_p

        def widen(log_p: Tensor | None) -> Tensor:
            dtype = torch.float32 if log_p is None else log_p.dtype
            made = torch.empty((len(queries), events.n_entities), dtype=dtype, device=queries.actor.device)
            if log_p is not None:
                made[rows, : self.n_entities] = log_p
                made[rows, self.n_entities :] = log_p.min(dim=1, keepdim=True).values
            if by_recurrence is not None:
                made[others] = by_recurrence.to(dtype)
            return made

        log_p = widen(None if own is None else own.log_p)
        members = None
        if self.backbone.n_members:
            # those that do not know the actor say what recurrence does, each of them
            each = [None] * self.backbone.n_members if own is None or own.members is None else own.members
            members = torch.stack([widen(member) for member in each])
        scores = Scores(log_p, members=members, absent=absent)
        if own is None or own.uncertainty is None:
            return scores
        uncertainty = own.uncertainty.new_empty(len(queries))
        uncertainty[rows] = own.uncertainty
        seen = past.seen(rest.actor, rest.step)
        uncertainty[others] = seen_mass(scores.of_candidates[others], *seen).to(uncertainty.dtype)
        return replace(scores, uncertainty=uncertainty)

    def _absent(self, queries: Queries, past: Past) -> Tensor | None:
        """The entities that came later and had no event before the step of each query, bool [n, E]; None without."""
        later = torch.arange(self.n_entities, past.events.n_entities, device=past.device)
        steps, which = queries.step.unique(return_inverse=True)
        seen, _ = past.seen(later.repeat(len(steps)), steps.repeat_interleave(len(later)))
        unseen = torch.ones(len(steps) * len(later), dtype=torch.bool, device=past.device).index_fill_(0, seen, False)
        if not unseen.any():
            return None
        absent = unseen.new_zeros((len(queries), past.events.n_entities))
        absent[:, self.n_entities :] = unseen.view(len(steps), len(later))[which]
        return absent

    def _grown_to(self, past: Past) -> Backbone | None:
        """A training-free backbone on all that a history names, built once for each history; None for a trained one."""
        found = self._grown.get(past)
        if found is None:
            found = self.backbone.grown(past.events.n_entities, past.events.n_relations)
            if found is not None:
                self._grown[past] = found
        return found

    @staticmethod
    def _recurrence(events: EventLog, past: Past) -> RecurrenceDyadic:
        nobody = torch.zeros(events.n_entities, dtype=torch.float64, device=past.device)
        return RecurrenceDyadic(RecurrenceDyadic.default, nobody)

    def _readable(self, past: Past) -> Past:
        """The part of a history that the backbone has ids for, built once for each history."""
        found = self._narrowed.get(past)
        if found is None:
            events = narrow(past.events, self.n_entities, self.n_relations)
            found = history_of(events, past.frozen_at, past.device)
            self._narrowed[past] = found
        return found

    def tensors(self) -> dict[str, Tensor]:
        return self.backbone.tensors()

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        raise BackboneError("a widened backbone is loaded from its folder, where the backbone inside lies.")

    def save(self, folder: Path) -> None:
        """The folder of the backbone inside, with a config.toml that says how it is read."""
        self.backbone.save(folder)
        mark_widened(folder, self.n_entities, self.n_relations)

    @classmethod
    def load(cls, folder: Path) -> Self:
        own = as_settings(WidenedSettings, read_config(folder).get("widened", {}), f"{folder}/config.toml")
        if own.backbone == cls.name:
            raise BackboneError(
                f"{folder}/config.toml names no backbone inside the widened one; refresh the run again."
            )
        return cls(backbone_class(own.backbone).load(folder), own.n_entities, own.n_relations)

    def to(self, device: str) -> Self:
        return type(self)(self.backbone.to(device), self.n_entities, self.n_relations)


def mark_widened(folder: Path, n_entities: int, n_relations: int) -> None:
    """Make the folder of a saved backbone that of a widened one; one that is widened already stays as it is."""
    config = read_config(folder)
    name = config["backbone"]["name"]
    if name == Widened.name:
        return
    own = {"widened": asdict(WidenedSettings(name, n_entities, n_relations))}
    with whole_file(Path(folder) / "config.toml") as aside:
        aside.write_text(write_toml({**config, "backbone": {"name": Widened.name}, **own}), encoding="utf-8")


def narrow(events: EventLog, n_entities: int, n_relations: int) -> EventLog:
    """The events among the first entities and relations alone, with vocabularies of that size."""
    if isinstance(events, GrownLog) and n_entities >= events.base.n_entities and n_relations >= events.base.n_relations:
        return GrownLog(events.base, narrow(events.fresh, n_entities, n_relations))
    stays = (events.subject < n_entities) & (events.object < n_entities) & (events.relation < n_relations)
    rows = np.flatnonzero(stays)
    return EventLog(
        events.subject[rows],
        events.relation[rows],
        events.object[rows],
        events.step[rows],
        _first(events.entities, n_entities),
        _first(events.relations, n_relations),
        events.clock,
    )


def _first(vocabulary: Vocabulary, size: int) -> Vocabulary:
    return vocabulary if size >= len(vocabulary) else Vocabulary(vocabulary.kind, vocabulary.names[:size])

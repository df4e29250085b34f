"""Naive forecasters: the simple rules that a model has to beat."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.recurrence import Popularity, Recurrence, RecurrenceDyadic, RecurrenceSettings
from bridgemem.backbones.scorer import Added
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.index import Occurrences
from bridgemem.memory.past import Past


class MostFrequent(Popularity):
    """The partner that was most often the actor's under this relation; those that never were by popularity."""

    name: ClassVar[str] = "most-frequent"
    default: ClassVar[RecurrenceSettings] = RecurrenceSettings()

    def added(self, queries: Queries, past: Past) -> list[Added]:
        seen = past.occurrences(queries.actor, queries.relation, queries.step)
        return [(seen.row, seen.candidate, self._of(queries, seen))]

    def _of(self, queries: Queries, seen: Occurrences) -> Tensor:
        return seen.count.double()


class MostRecent(MostFrequent):
    """The partner that was last the actor's under this relation; those that never were by popularity."""

    name: ClassVar[str] = "most-recent"

    def _of(self, queries: Queries, seen: Occurrences) -> Tensor:
        # above 1, which no popularity reaches, however long ago
        return 1 + 1 / (queries.step[seen.row] - seen.step).double()


NAIVE = (MostFrequent, MostRecent, Recurrence, RecurrenceDyadic)


def naive_backbones(dataset: Dataset, device: str = "cpu", *, other_than: str = "") -> list[Backbone]:
    """Most frequent partner, most recent partner, recurrence, recurrence-dyadic; without the one of that name."""
    return [kind.fit(dataset, device=device) for kind in NAIVE if kind.name != other_than]

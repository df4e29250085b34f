"""Five small torch models as researchers write them, each with one leak, and an honest one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries


def frequencies(events: EventLog) -> torch.Tensor:
    """How often each entity answers each directed relation, as log counts [2R, E]."""
    asked = Queries.of(events)
    assert asked.answer is not None
    counts = torch.zeros(2 * events.n_relations, events.n_entities)
    return counts.index_put((asked.relation, asked.answer), torch.ones(len(asked)), accumulate=True).add(1).log()


class Honest(nn.Module):
    """Log counts of the train split."""

    def __init__(self, data: Dataset) -> None:
        super().__init__()
        self.table = nn.Parameter(frequencies(data.train))

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.table[relation]


class PoolsQueries(Honest):
    """Adds what the queries of the batch have in common, as a graph network over the queries of a step does."""

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        asked = torch.bincount(actor, minlength=self.table.shape[1])
        return self.table[relation] + asked.log1p()


class RemembersQueries(Honest):
    """Counts whom it was asked about at a step, so that early queries tell later ones who is active."""

    def __init__(self, data: Dataset) -> None:
        super().__init__(data)
        self.asked: set[tuple[int, int]] = set()

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        self.asked |= set(zip(actor.tolist(), step.tolist(), strict=True))
        entities = range(self.table.shape[1])
        active = torch.tensor([[(entity, int(t)) in self.asked for entity in entities] for t in step])
        return self.table[relation] + active.float()


class KeyedByActivity(Honest):
    """Keeps a state for each (entity, step) with an event, so that having one at t says who is active at t."""

    def __init__(self, data: Dataset) -> None:
        super().__init__(data)
        events = data.events
        self.states = {
            (int(entity), int(step))
            for column in (events.subject, events.object)
            for entity, step in zip(column, events.step, strict=True)
        }

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        entities = range(self.table.shape[1])
        active = torch.tensor([[(entity, int(t)) in self.states for entity in entities] for t in step])
        return self.table[relation] + active.float()


class ReadsItsTable(Honest):
    """Looks the events up in a table of its own, up to and with the step that it is asked about."""

    def __init__(self, data: Dataset) -> None:
        super().__init__(data)
        facts = Queries.of(data.events)
        assert facts.answer is not None
        columns = (facts.actor, facts.relation, facts.step, facts.answer)
        self.facts = set(zip(*(column.tolist() for column in columns), strict=True))

    def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        keys = zip(actor.tolist(), relation.tolist(), step.tolist(), strict=True)
        entities = range(self.table.shape[1])
        known = torch.tensor([[(*key, entity) in self.facts for entity in entities] for key in keys])
        return self.table[relation] + 10 * known.float()


class TrainedOnTest(Honest):
    """Counts all events, those of validation and test too."""

    def __init__(self, data: Dataset) -> None:
        super().__init__(data)
        self.table = nn.Parameter(frequencies(data.events))


LEAKS: dict[Any, str] = {
    PoolsQueries: "pools the queries of its batch",
    RemembersQueries: "depend on the queries that were asked before: it remembers them",
    KeyedByActivity: "keys the states of candidates by their activity at the step t",
    ReadsItsTable: "reads its own table of events at the step t",
    TrainedOnTest: "was trained on later events, such as the test split",
}

"""GrownHistory: the history of a memory on disk and of the events since, asked like any other."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.memory.dyads import WIDTH, DyadMemory
from bridgemem.memory.overlay import GrownDyads, GrownLog
from bridgemem.memory.past import Occurrences, Past
from bridgemem.memory.timeline import STEP_BITS


def history_of(events: EventLog, frozen_at: int | None = None, device: str | torch.device = "cpu") -> Past:
    """The history of events, in memory, on disk, or of both together."""
    return (GrownHistory if isinstance(events, GrownLog) else Past)(events, frozen_at, device)


class GrownHistory(Past):
    """Reads the memory on disk and the fresh events apart, and puts the answers together."""

    events: GrownLog

    def __init__(self, events: EventLog, frozen_at: int | None = None, device: str | torch.device = "cpu") -> None:
        super().__init__(events, frozen_at, device)
        self._old, self._new = (Past(log, frozen_at, device) for log in (self.events.base, self.events.fresh))
        # a fact at one step counts once, however often it was told
        self._facts = Past(self.events.without_known(), frozen_at, device)

    def _asked_of_base(self, actor: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """The rows whose actor and relation the base knows, and their directed relations as it numbers them."""
        own, base = self.events.n_relations, self.events.base
        plain, inverse = relation % own, relation // own
        rows = ((actor < base.n_entities) & (plain < base.n_relations)).nonzero().squeeze(1)
        return rows, plain[rows] + inverse[rows] * base.n_relations

    def told(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        rows, asked = self._asked_of_base(actor, relation)
        old = self._old.told(actor[rows], asked, step[rows])
        new = self._facts.told(actor, relation, step)
        row, when = torch.cat([rows[old[0]], new[0]]), torch.cat([old[1], new[1]])
        order = (row << STEP_BITS | when).argsort(stable=True)
        return row[order], when[order]

    def occurrences(self, actor: Tensor, relation: Tensor, step: Tensor) -> Occurrences:
        rows, asked = self._asked_of_base(actor, relation)
        old = self._old.occurrences(actor[rows], asked, step[rows])
        new = self._facts.occurrences(actor, relation, step)
        key = torch.cat([rows[old.row] * WIDTH + old.candidate, new.row * WIDTH + new.candidate])
        keys, place = key.unique(return_inverse=True)
        last = torch.zeros_like(keys).scatter_reduce_(0, place, torch.cat([old.step, new.step]), "amax")
        count = torch.zeros_like(keys).index_add_(0, place, torch.cat([old.count, new.count]))
        row = keys // WIDTH
        # inside a row by the time of the last occurrence, as in one memory
        order = (row << STEP_BITS | last).argsort(stable=True)
        return Occurrences(row[order], (keys % WIDTH)[order], last[order], count[order])

    @cached_property
    def dyads(self) -> DyadMemory:
        return GrownDyads(self._old.dyads, self._new.dyads)

    def seen_in_role(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        rows = (actor < self.events.base.n_entities).nonzero().squeeze(1)
        role = relation // self.events.n_relations * self.events.base.n_relations
        old = self._old.seen_in_role(actor[rows], role[rows], step[rows])
        return _either(rows, old, self._new.seen_in_role(actor, relation, step))

    def seen(self, actor: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        rows = (actor < self.events.base.n_entities).nonzero().squeeze(1)
        return _either(rows, self._old.seen(actor[rows], step[rows]), self._new.seen(actor, step))


def _either(rows: Tensor, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Each (row, candidate) of either answer once; rows: those that were asked of the old."""
    keys = torch.cat([rows[old[0]] * WIDTH + old[1], new[0] * WIDTH + new[1]]).unique()
    return keys // WIDTH, keys % WIDTH

"""PairEvents: all that happened between two parties strictly before a step, read from the index of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bridgemem.memory.past import Past


@dataclass(frozen=True)
class PairEvents:
    """The events of an actor and a candidate, newest first.

    relation, direction, step int64 [n]; direction 0: from the actor to the candidate. event int64 [n] counts the
    events, since one of an actor with itself has two rows. n_events: how many there are, with those left out.
    """

    relation: Tensor
    direction: Tensor
    step: Tensor
    event: Tensor
    n_events: int

    @classmethod
    def of(cls, past: Past, actor: int, candidate: int, step: int, *, most: int | None = None) -> PairEvents:
        """The events before a step, or at most that many of the newest."""
        now = torch.tensor([step], device=past.device)
        pair, cut = (torch.full_like(now, actor), torch.full_like(now, candidate), now), past.cut(now)
        rows = 2 if actor == candidate else 1
        count = int(past.dyads.read(*pair, 1, 0, cut).count.sum())
        read = past.dyads.read(*pair, count if most is None else min(count, most * rows), 0, cut)
        relation, direction, lag = (column.flatten() for column in (read.relation, read.direction, read.lag))
        return cls(relation, direction, step - lag, torch.arange(len(lag)) // rows, count // rows)

    def __len__(self) -> int:
        return len(self.step)

    def once(self) -> PairEvents:
        """One row an event: of the two rows of an event of an actor with itself the one that goes forward."""
        rows = torch.arange(len(self)) if len(self) == 0 or int(self.event[-1]) == len(self) - 1 else None
        if rows is None:
            rows = (self.direction == 0).nonzero().squeeze(1)
        return PairEvents(self.relation[rows], self.direction[rows], self.step[rows], self.event[rows], self.n_events)

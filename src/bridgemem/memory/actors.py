"""ActorEvents: the events of every actor in time order, seen from its side, read strictly before a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.timeline import Timeline

_BEYOND = 2**62  # the lag of an event that is not there


@dataclass(frozen=True)
class LastEvents:
    """The last k events of n actors, the newest in the last slot.

    relation (directed), partner int64 [n, k]; lag int64 [n, k] in steps; found bool [n, k]: whether the slot holds an
    event. The ids and the lag of an empty slot are 0.
    """

    relation: Tensor
    partner: Tensor
    lag: Tensor
    found: Tensor


@dataclass(frozen=True)
class ActorEvents:
    """Both sides of every event under the one who acts, in total order: an actor's past is one slice of `line`.

    The values of the line are the partners; relation int64 [m], directed, in its order.
    """

    line: Timeline
    relation: Tensor

    @classmethod
    def build(cls, events: EventLog, device: str | torch.device = "cpu") -> ActorEvents:
        sides = Queries.of(events)
        assert sides.answer is not None
        order = Timeline.build(sides.actor.numpy(), sides.step.numpy(), np.arange(len(sides)), device)
        partner, relation = (column.to(device)[order.value] for column in (sides.answer, sides.relation))
        return cls(Timeline(order.codes, partner), relation)

    def last(self, actor: Tensor, step: Tensor, k: int, until: Tensor) -> LastEvents:
        """The last k events of each actor before `until`, with their lags at a step; int64 [n] each."""
        return self.in_slices(*self.line.before(actor, torch.minimum(until, step)), step, k)

    def in_slices(self, start: Tensor, stop: Tensor, step: Tensor, k: int) -> LastEvents:
        """The last k events of each slice of the line, with their lags at a step; int64 [n] each."""
        at = stop[:, None] + torch.arange(-k, 0, device=stop.device)
        found = at >= start[:, None]
        if not len(self.relation):
            nothing = torch.zeros_like(at)
            return LastEvents(nothing, nothing, nothing, found)
        # the slots in front would hold the events of others, perhaps later ones
        at = at * found
        then = Timeline(self.line.codes[at], at).step
        columns = (self.relation[at], self.line.value[at], step[:, None] - then)
        relation, partner, lag = (column * found for column in columns)
        return LastEvents(relation, partner, lag, found)


def last_of_both(rows: Tensor, old: LastEvents, new: LastEvents) -> LastEvents:
    """The last k events of actors whose events lie in two logs; rows: those asked of the old one.

    Of events at the same step the new log's are the later ones.
    """
    n, k = new.lag.shape
    lag = new.lag.new_full((n, 2 * k), _BEYOND)
    lag[rows, :k] = torch.where(old.found, old.lag, _BEYOND)
    lag[:, k:] = torch.where(new.found, new.lag, _BEYOND)
    relation, partner = torch.zeros_like(lag), torch.zeros_like(lag)
    relation[rows, :k], relation[:, k:] = old.relation, new.relation
    partner[rows, :k], partner[:, k:] = old.partner, new.partner
    order = lag.argsort(dim=1, descending=True, stable=True)[:, k:]
    lag, relation, partner = (column.gather(1, order) for column in (lag, relation, partner))
    found = lag < _BEYOND
    return LastEvents(relation, partner, lag * found, found)

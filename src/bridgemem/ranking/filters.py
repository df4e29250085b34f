"""Filters: which other true answers are taken out of the ranking before the answer's rank is read.

raw: none. static: every answer that was ever true for (actor, relation), at any time. time: only those true at the same
step. The masks are nested, so raw <= time <= static holds for the reciprocal rank of any query under any scorer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.disk.mapped import memory_of
from bridgemem.memory.occurrences import each_once
from bridgemem.memory.timeline import expand

FILTERS = ("raw", "static", "time")


class Filters:
    """Masks built from given events: train + validation for fitting and choosing, all events for reading test."""

    def __init__(self, events: EventLog, device: str | torch.device = "cpu") -> None:
        self._n_directed, self._end = 2 * events.n_relations, events.end
        self._first: Tensor | None = None
        memory = memory_of(events)
        if memory is not None:
            self._time, (self._static, self._first) = memory.triples[0], memory.answers
            return
        facts = Queries.of(events)
        assert facts.answer is not None
        key = (facts.actor * self._n_directed + facts.relation).numpy()
        step, answer = facts.step.numpy(), facts.answer.numpy()
        # a mask must not take the same candidate out twice
        self._time = each_once(key, answer, step, device)
        self._static = each_once(key, answer, np.zeros_like(step), device)

    def mask(self, name: str, queries: Queries) -> tuple[Tensor, Tensor]:
        """(row, candidate) int64 [m]: the entries that the filter removes; never the answer itself."""
        if queries.answer is None:
            raise ValueError("a filter needs queries with answers")
        if name == "raw":
            nothing = queries.actor.new_empty(0)
            return nothing, nothing
        key = queries.actor * self._n_directed + queries.relation
        line = self._time if name == "time" else self._static
        row, at = expand(*(line.at(key, queries.step) if name == "time" else line.ever(key)))
        candidate = line.value[at].long()
        other = candidate != queries.answer[row]
        if self._first is not None:
            # what lies on disk may reach beyond the events of these filters
            other &= (queries.step[row] if name == "time" else self._first[at]) < self._end
        return row[other], candidate[other]

"""Past: the sparse past that backbones share, read strictly before a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.memory.disk.mapped import memory_of
from bridgemem.memory.dyads import DyadMemory
from bridgemem.memory.occurrences import first_meetings, occurrence_lines
from bridgemem.memory.timeline import KEYS, Timeline, expand


@dataclass(frozen=True)
class Occurrences:
    """What the actor of each query did under its relation before: every candidate once, flat, ordered by row.

    row int64 [m] of the batch; candidate int64 [m]; step int64 [m] of the last occurrence; count int64 [m]: the
    snapshots in which (actor, relation, candidate) occurred.
    """

    row: Tensor
    candidate: Tensor
    step: Tensor
    count: Tensor


class Past:
    """Everything known, asked by step: rolling (all facts before t), or frozen at a step for multi-step forecasting."""

    def __init__(self, events: EventLog, frozen_at: int | None = None, device: str | torch.device = "cpu") -> None:
        if events.n_entities * 2 * events.n_relations >= KEYS:
            raise DataError(
                f"{events.n_entities:,} entities under {events.n_relations:,} relations, either way round, are more "
                "than the 2^32 pairs that can be told apart: merge or drop rare ones."
            )
        self.events = events
        self.frozen_at = frozen_at
        self.device = torch.device(device)
        self._memory = memory_of(events)
        if self._memory is not None and self.device.type != "cpu":
            raise SettingsError("a memory on disk is read by the CPU: leave --device or --memory-dir out.")
        # what lies on disk may reach beyond these events: then it ends for this history where they do
        ends = [] if self._memory is None or self._memory.end == events.end else [events.end]
        ends += [] if frozen_at is None else [frozen_at]
        self._last_cut = min(ends, default=None)

    def cut(self, step: Tensor) -> Tensor:
        """The step up to which (excluded) a query at this step may look."""
        return step if self._last_cut is None else step.clamp(max=self._last_cut)

    def _directed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Actor, directed relation, candidate and step of both sides of every event, int64 [2n]."""
        e, relations = self.events, self.events.n_relations
        actor = np.concatenate([e.subject, e.object]).astype(np.int64)
        relation = np.concatenate([e.relation, e.relation.astype(np.int64) + relations])
        candidate = np.concatenate([e.object, e.subject]).astype(np.int64)
        return actor, relation, candidate, np.concatenate([e.step, e.step]).astype(np.int64)

    @cached_property
    def _triples(self) -> tuple[Timeline, Tensor, Tensor]:
        """Occurrences under (actor, directed relation), one a snapshot; the count at each, and the step of the next."""
        if self._memory is not None:
            return self._memory.triples
        actor, relation, candidate, step = self._directed()
        return occurrence_lines(self.relation_key(actor, relation), candidate, step, self.device)

    def relation_key(self, actor: Any, relation: Any) -> Any:
        """One number for (actor, directed relation), of arrays or tensors."""
        return actor * (2 * self.events.n_relations) + relation

    def occurrence_slices(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Where the past occurrences of each query lie, for `occurrences_in`."""
        return self._triples[0].before(self.relation_key(actor, relation), self.cut(step))

    def occurrences_in(self, start: Tensor, stop: Tensor, step: Tensor, size: int | None = None) -> Occurrences:
        """The occurrences in given slices; naming the slices' total length spares a device the wait for it."""
        line, count, following = self._triples
        row, at = expand(start, stop, size)
        # of the snapshots of one triple only the last before the query knows the whole count
        last = (following[at] >= self.cut(step)[row]).nonzero().squeeze(1)
        row, at = row[last], at[last]
        found = Timeline(line.codes[at], line.value[at].long())
        return Occurrences(row, found.value, found.step, count[at].long())

    def occurrences(self, actor: Tensor, relation: Tensor, step: Tensor) -> Occurrences:
        """With whom the actor of each query did its directed relation before, how often, and when last."""
        return self.occurrences_in(*self.occurrence_slices(actor, relation, step), step)

    def told(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """(row, step) of every past fact of the actor of each query under its directed relation, once a snapshot."""
        row, at = expand(*self.occurrence_slices(actor, relation, step))
        return row, Timeline(self._triples[0].codes[at], at).step

    def happened(self, actor: Tensor, relation: Tensor, candidate: Tensor, step: Tensor) -> Tensor:
        """Whether (actor, directed relation, candidate) occurred before the step; bool [n]."""
        seen = self.occurrences(actor, relation, step)
        hits = seen.row[seen.candidate == candidate[seen.row]]
        return torch.zeros(len(actor), dtype=torch.bool, device=actor.device).index_fill_(0, hits, True)

    @cached_property
    def dyads(self) -> DyadMemory:
        """The events of every pair, either way round."""
        if self._memory is not None:
            return self._memory.dyads(self.events.end)
        return DyadMemory.build(self.events, self.device)

    @cached_property
    def _seen_in_role(self) -> Timeline:
        if self._memory is not None:
            return self._memory.seen_in_role
        actor, relation, candidate, step = self._directed()
        return first_meetings(actor * 2 + (relation >= self.events.n_relations), candidate, step, self.device)

    @cached_property
    def _seen(self) -> Timeline:
        if self._memory is not None:
            return self._memory.seen
        actor, _, candidate, step = self._directed()
        return first_meetings(actor, candidate, step, self.device)

    def seen_in_role(self, actor: Tensor, relation: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """(row, candidate) of all partners of the actor in the role the relation gives it, under any relation."""
        role = (relation >= self.events.n_relations).long()
        row, at = expand(*self._seen_in_role.before(actor * 2 + role, self.cut(step)))
        return row, self._seen_in_role.value[at].long()

    def seen(self, actor: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """(row, candidate) of all that the actor has interacted with under any relation, either way round."""
        row, at = expand(*self._seen.before(actor, self.cut(step)))
        return row, self._seen.value[at].long()

"""Activity: how often, how long ago and how often lately something occurred, asked before a cut."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.queries import Queries, renumbered
from bridgemem.memory.index import CutIndex, Index
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import STEP_BITS, changes, code

# windows of the activity rates, in steps
RATES = (3, 10, 30)
IDLE = 10.0  # the log lag of what was never active
NEVER = (0, -1, *(0 for _ in RATES))  # the counts of it: how often, the last step, how often in each window
LOOKUP = 32  # what it takes to look one entry of an index up, in entries that are counted
KEPT = 2  # cuts at which the counts of all keys are kept: the step that is asked for now, and the one before
SPAN = 1 << 24  # keys up to which their ranks are kept in a table of all of them, and not searched
SPARSE = 64  # keys to an entry above which they are searched all the same


def columns_of(counts: Tensor, step: Tensor) -> Tensor:
    """Counts int64 [n, 5], as in NEVER, as features at a step int64 [n]: float32 [n, 5]."""
    made = counts.float().log1p_()
    lag = (step - counts[:, 1]).float().log1p_()
    made[:, 1] = torch.where(counts[:, 0] > 0, lag, IDLE)
    return made


class Activity:
    """What occurred under each key in one log."""

    def __init__(self, key: np.ndarray, step: np.ndarray, span: int, device: torch.device) -> None:
        """key, step int64 [m], in the order of time; keys are below the span."""
        self.limit: int | None = None  # the step from which on nothing is read
        order = np.argsort(key, kind="stable")
        new = changes(key[order])
        first = np.flatnonzero(new)
        rank = np.empty(len(key), dtype=np.int64)
        rank[order] = np.cumsum(new) - 1
        codes = (rank[order] << STEP_BITS) | step[order]
        columns = (key[order][first], first, step[order], codes, rank, step)
        self.keys, self.first, self.step, self.codes, self.ranks_in_time, self.times = (
            torch.from_numpy(column).to(device) for column in columns
        )
        self._kept: dict[int, Tensor] = {}
        self._asked = (-1, 0)  # the last cut at which keys were looked up, and how many
        self.nobody = len(self.keys)
        self._rank: Tensor | None = None
        if span <= min(SPAN, SPARSE * len(key)):
            ranks = torch.arange(len(self.keys), dtype=torch.int32, device=device)
            self._rank = ranks.new_full((span,), len(self.keys)).index_copy_(0, self.keys, ranks)

    def before(self, step: int) -> Activity:
        """The same without what occurred from a step on."""
        made = copy(self)
        made.limit, made._kept, made._asked = step, {}, (-1, 0)
        return made

    def find(self, key: Tensor) -> Tensor:
        """The rank of keys int64 [n] among all that occur; as many as those are for one that never does."""
        if self._rank is not None:
            return self._rank[key].long()
        if not len(self.keys):
            return torch.zeros_like(key)
        rank = torch.searchsorted(self.keys, key)
        known = self.keys[rank.clamp(max=len(self.keys) - 1)] == key
        return torch.where(known, rank, len(self.keys))

    def read(self, rank: Tensor, step: Tensor, cut: Tensor) -> Tensor:
        """The five columns of keys given by rank, float32 [n, 5]; step, cut int64 [n]."""
        return columns_of(self.counts(rank, cut), step)

    def counts(self, rank: Tensor, cut: Tensor) -> Tensor:
        """What occurred before the cut under keys given by rank, int64 [n, 5] as in NEVER; cut int64 [n]."""
        known = (rank < len(self.keys)).nonzero().squeeze(1)
        made = torch.tensor([NEVER], device=rank.device).repeat(len(rank), 1)
        if not len(known):
            return made
        rank, cut = rank[known], cut[known]
        until = cut if self.limit is None else cut.clamp(max=self.limit)
        start, stop = self.first[rank], torch.searchsorted(self.codes, code(rank, until))
        before = [torch.searchsorted(self.codes, code(rank, (cut - r).clamp_(min=0))) for r in RATES]
        # where the log ends before the cut, nothing of it lies in a window that begins after its end
        return made.index_copy_(0, known, self._counts(start, stop, [(stop - of).clamp_(min=0) for of in before]))

    def everybody(self, cut: int) -> Tensor:
        """The counts of all keys and of none before a cut, int32 [keys + 1, 5], in one pass; the last ones are kept."""
        if (kept := self._kept.get(cut)) is not None:
            return kept
        size, until = len(self.keys), cut if self.limit is None else min(cut, self.limit)

        def count(since: int) -> Tensor:
            low, high = torch.searchsorted(self.times, self.times.new_tensor([since, until])).tolist()
            return torch.bincount(self.ranks_in_time[low:high], minlength=size)

        counts = self._counts(self.first, self.first + count(0), [count(cut - r) for r in RATES])
        made = torch.cat([counts, torch.tensor([NEVER], device=counts.device)]).int()
        self._kept = dict([*self._kept.items(), (cut, made)][-KEPT:])  # the whole table changes at once
        return made

    def _counts(self, start: Tensor, stop: Tensor, recent: list[Tensor]) -> Tensor:
        last = torch.where(stop > start, self.step[(stop - 1).clamp_(min=0)], -1) if len(self.step) else start
        return torch.stack([stop - start, last, *recent], dim=1)

    def counts_of(self, rank: Tensor, row: Tensor, cut: Tensor) -> Tensor:
        """As `counts`, of candidates of queries: rank, row int64 [m]; cut int64 [n] of the rows.

        Whether each is looked up, or all keys are counted, is a matter of how many are asked at a cut.
        """
        cuts, which = torch.unique(cut, return_inverse=True)
        if not self._worth_counting(cuts.tolist(), len(rank)):
            return self.counts(rank, cut[row])
        tables = [self.everybody(at) for at in cuts.tolist()]
        if len(tables) == 1:
            return tables[0].index_select(0, rank)
        return torch.cat(tables).index_select(0, which[row] * (len(self.keys) + 1) + rank)

    def _worth_counting(self, cuts: list[int], asked: int) -> bool:
        missing = [cut for cut in cuts if cut not in self._kept]
        if not missing:
            return bool(cuts)
        last, before = self._asked
        # a query at a time adds up as well
        asked += before if [last] == missing else 0
        self._asked = missing[-1], asked
        return len(missing) * (len(self.step) + 8 * len(self.keys)) <= LOOKUP * asked

    def table(self, rank: Tensor, row: Tensor, step: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of candidates: a table float32 [k, 5], and int64 [m]: the row of it that each has.

        rank, row int64 [m]; step, cut int64 [n] of the rows.
        """
        steps, which = torch.unique(step, return_inverse=True)
        cuts = torch.empty_like(steps).scatter_(0, which, cut)
        size = len(self.keys) + 1
        if len(steps) * size > len(rank) or not self._worth_counting(cuts.tolist(), len(rank)):
            return columns_of(self.counts_of(rank, row, cut), step[row]), torch.arange(len(rank), device=rank.device)
        tables = [columns_of(self.everybody(at), cuts.new_full((size,), own)) for own, at in _pairs(steps, cuts)]
        return torch.cat(tables), which[row] * size + rank


def _pairs(one: Tensor, other: Tensor) -> Iterator[tuple[int, int]]:
    return zip(one.tolist(), other.tolist(), strict=True)


class MappedActivity:
    """What occurred under each key in a log on disk: entities, or entities under a directed relation.

    codes int64 [m], mapped: (entity, step) or (entity, directed relation, step) in one number, ascending. A rank is
    where the codes of a key begin; `nobody` is that of a key that never occurs.
    """

    def __init__(self, codes: Tensor, index: Index, *, directed: bool = False, candidates: bool = False) -> None:
        """candidates: an entity is asked for as a candidate, and filed as the actor of the inverse relation."""
        self.codes, self.nobody = codes, len(codes)
        self._index, self._directed, self._candidates = index, directed, candidates

    def find(self, key: Tensor) -> Tensor:
        """As `Activity.find`."""
        self._index.trim()
        filed = self._filed(key) << STEP_BITS
        at = torch.searchsorted(self.codes, filed)
        found = self.codes[at.clamp(max=self.nobody - 1)] >> STEP_BITS == filed >> STEP_BITS
        return torch.where(found, at, self.nobody)

    def _filed(self, key: Tensor) -> Tensor:
        """Keys, relation * entities + entity, as they are filed on disk."""
        if not self._directed:
            return key
        entities, relations = self._index.events.n_entities, self._index.events.n_relations
        relation, entity = key // entities, key % entities
        if self._candidates:
            relation = (relation + relations) % (2 * relations)
        return self._index.relation_key(entity, relation)

    def read(self, rank: Tensor, step: Tensor, cut: Tensor) -> Tensor:
        """As `Activity.read`."""
        return columns_of(self.counts(rank, cut), step)

    def counts(self, rank: Tensor, cut: Tensor) -> Tensor:
        """As `Activity.counts`."""
        self._index.trim()
        known = (rank < self.nobody).nonzero().squeeze(1)
        made = torch.tensor([NEVER]).repeat(len(rank), 1)
        start, cut = rank[known], cut[known]
        key = self.codes[start] >> STEP_BITS
        stop = torch.searchsorted(self.codes, code(key, self._index.cut(cut)))
        before = [torch.searchsorted(self.codes, code(key, (cut - r).clamp_(min=0))) for r in RATES]
        last = torch.where(stop > start, self.codes[(stop - 1).clamp_(min=0)] & ((1 << STEP_BITS) - 1), -1)
        # where the log ends before the cut, nothing of it lies in a window that begins after its end
        recent = [(stop - of).clamp_(min=0) for of in before]
        return made.index_copy_(0, known, torch.stack([stop - start, last, *recent], dim=1))

    def counts_of(self, rank: Tensor, row: Tensor, cut: Tensor) -> Tensor:
        """As `Activity.counts_of`; each is looked up."""
        return self.counts(rank, cut[row])

    def table(self, rank: Tensor, row: Tensor, step: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """As `Activity.table`; each key is looked up once a step."""
        steps, which = torch.unique(step, return_inverse=True)
        cuts = torch.empty_like(steps).scatter_(0, which, cut)
        asked, at = torch.unique(rank * len(steps) + which[row], return_inverse=True)
        when = asked % max(len(steps), 1)
        return self.read(asked // max(len(steps), 1), steps[when], cuts[when]), at


class Activities(NamedTuple):
    """Of one log: every entity, as a candidate under each directed relation, and as an actor under each."""

    # an entity is as often an actor as a candidate, since every fact is seen from both sides
    entities: Activity | MappedActivity
    roles: Activity | MappedActivity
    actor_roles: Activity | MappedActivity

    @classmethod
    def of(cls, index: Index) -> Activities:
        """Those of a log; where it was cut off, under keys made of the sizes of the whole."""
        if (memory := index.memory) is not None:
            return cls(
                MappedActivity(memory.actors, index),
                MappedActivity(memory.acts, index, directed=True, candidates=True),
                MappedActivity(memory.acts, index, directed=True),
            )
        if isinstance(index, CutIndex):
            return cls(*(of.before(index.end) for of in index.whole.once(Activities.of) if isinstance(of, Activity)))
        return cls.built(index)

    @classmethod
    def built(cls, index: Index) -> Activities:
        """Those of a log in memory, made of its events."""
        facts, sizes = Queries.of(index.events), (index.events.n_entities, index.events.n_relations)
        assert facts.answer is not None
        actor, relation, candidate, step = (
            column.numpy() for column in (facts.actor, facts.relation, facts.answer, facts.step)
        )
        keys = (candidate, relation * sizes[0] + candidate, relation * sizes[0] + actor)
        spans = (sizes[0], *[2 * sizes[1] * sizes[0]] * 2)
        return cls(*(Activity(key, step, span, index.device) for key, span in zip(keys, spans, strict=True)))


@dataclass(frozen=True)
class OverlayActivity:
    """What occurred in a base and in its delta, counted apart and added up.

    sizes, known: entities and relations of both together, and of the base; filed: those that the base's keys are made
    with. A rank is one number for that in the base and that in the delta.
    """

    base: Activity | MappedActivity
    delta: Activity | MappedActivity
    sizes: tuple[int, int]
    known: tuple[int, int]
    filed: tuple[int, int]

    def find(self, key: Tensor) -> Tensor:
        """As `Activity.find`."""
        (entities, relations), (old_entities, old_relations) = self.sizes, self.known
        if self.sizes == self.known == self.filed:  # each key is the same in both
            return self.base.find(key).mul_(self.delta.nobody + 1).add_(self.delta.find(key))
        relation, entity = key // entities, key % entities
        known = (entity < old_entities) & (relation % relations < old_relations)
        asked = renumbered(relation, relations, self.filed[1]) * self.filed[0] + entity
        rank = torch.full_like(key, self.base.nobody)
        rank[known] = self.base.find(asked[known])
        return rank * (self.delta.nobody + 1) + self.delta.find(key)

    def read(self, rank: Tensor, step: Tensor, cut: Tensor) -> Tensor:
        """As `Activity.read`."""
        size = self.delta.nobody + 1
        return columns_of(_added(self.base.counts(rank // size, cut), self.delta.counts(rank % size, cut)), step)

    def table(self, rank: Tensor, row: Tensor, step: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """As `Activity.table`; each has a row of its own."""
        size = self.delta.nobody + 1
        parts = ((self.base, rank // size), (self.delta, rank % size))
        counts = _added(*(log.counts_of(own, row, cut) for log, own in parts))
        return columns_of(counts, step[row]), torch.arange(len(rank), device=rank.device)


def _added(old: Tensor, new: Tensor) -> Tensor:
    """Counts in two logs, int [n, 5] as in NEVER, as those in both together."""
    last = torch.maximum(old[:, 1], new[:, 1])
    counts = old + new
    counts[:, 1] = last
    return counts


def activities_of(past: Past) -> tuple[Activity | MappedActivity | OverlayActivity, ...]:
    """The activities of a past, as in `Activities`; those of its base are built once for all pasts that share it."""
    base, *delta = past.indices
    whole = base.whole if isinstance(base, CutIndex) else base
    sizes, known, filed = ((log.n_entities, log.n_relations) for log in (past.events, base.events, whole.events))
    if not delta:
        return base.once(Activities.of if known == filed else Activities.built)
    both = zip(base.once(Activities.of), delta[0].once(Activities.of), strict=True)
    return tuple(OverlayActivity(old, new, sizes, known, filed) for old, new in both)

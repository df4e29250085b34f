"""Neighbours: who interacted with whom before a step, as a graph that decays, and common neighbours in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.memory.index import Index
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.parallel import MOST_WORKERS

# steps after which an interaction counts e times less; the last never decays
DECAY_RATES = (100.0, math.inf)
FLOOR = 1e-5  # of common neighbours, before its logarithm
# sums are of whole parts of one, which are exact in any order: a base and a delta add up to what one log gives
PARTS = 1 << 40
KEPT = 2  # cuts at which the decayed events of a log are kept: the step that is asked for, and the next
OLDEST = 4096  # the lag at which no part is left of an event at any finite rate


@cache
def _decayed(rate: float, device: torch.device) -> Tensor:
    """The parts that are left of an event by its lag, int64 [OLDEST + 1]; none where it is not in the past."""
    parts = [round(PARTS * math.exp(-(lag - 1) / rate)) for lag in range(1, OLDEST)]
    return torch.tensor([0, *parts, 0], device=device)


@dataclass(frozen=True)
class Strengths:
    """Of the pairs of a graph before a cut, under one decay rate: log(1 + decayed events).

    of_pair float32 [pairs]; of_entity int64 [E]: the sum over its pairs, in parts.
    """

    of_pair: Tensor
    of_entity: Tensor


class Graph:
    """Pairs either way round: partner int64 [pairs], those of an owner in a slice; bounds int64 [owners + 1]."""

    def __init__(self, partner: Tensor, bounds: Tensor) -> None:
        self.partner, self.bounds = partner, bounds

    def strengths(self, meetings: Tensor) -> Strengths:
        """meetings int64 [pairs]: decayed events, in parts."""
        strength = _strength(meetings)
        return Strengths(strength.float(), _sums(_parts(strength), self.bounds))

    def fill(self, made: Tensor, owner: Tensor, values: Tensor) -> None:
        """Set the values of the owners' partners, in one column of made [E, n] each; owner int64 [n], -1 for none."""
        start, stop = (self.bounds[(owner + end).clamp(min=0)] for end in (0, 1))
        column, pair = expand(start, torch.where(owner < 0, start, stop))
        made[self.partner[pair], column] = values[pair]

    def product(self, values: Tensor, columns: Tensor) -> Tensor:
        """The matrix of values float32 [pairs] times columns float32 [E, n]: [owners, n]."""
        return F.embedding_bag(
            self.partner, columns, self.bounds, mode="sum", per_sample_weights=values, include_last_offset=True
        )


class LogGraph(Graph):
    """The graph of one log."""

    def __init__(self, index: Index) -> None:
        self.dyads = index.dyads
        owner, partner = self.dyads.parties()
        ids = torch.arange(index.events.n_entities + 1, device=owner.device)
        super().__init__(partner, torch.searchsorted(owner, ids))
        self._meetings: dict[int, list[Tensor]] = {}
        self._kept: dict[int, list[Strengths]] = {}

    def meetings_before(self, cut: int) -> list[Tensor]:
        """The decayed events of every pair for each rate, in parts, int64 [pairs]; those of the last cuts are kept."""
        if (kept := self._meetings.get(cut)) is not None:
            return kept
        made = [torch.zeros_like(self.partner) for _ in DECAY_RATES]
        # in blocks, which stay in the cache, and the rows may be mapped
        for pairs, rows in self.dyads.blocks():
            step = self.dyads.step[rows]
            lag = (cut - step).clamp_(0, OLDEST)
            if cut > self.dyads.end:  # the rows may reach further than what is read of them
                lag[step >= self.dyads.end] = 0
            start = self.dyads.start[pairs.start : pairs.stop + 1] - rows.start
            for of_rate, rate in zip(made, DECAY_RATES, strict=True):
                of_rate[pairs] = _meetings(lag, start, rate)
        self._meetings = dict([*self._meetings.items(), (cut, made)][-KEPT:])
        return made

    def before(self, cut: int) -> list[Strengths]:
        """For each decay rate; those of the last cuts asked for are kept."""
        if (kept := self._kept.get(cut)) is not None:
            return kept
        made = [self.strengths(meetings) for meetings in self.meetings_before(cut)]
        # one for each thread that may be reading, and the whole table changes at once
        self._kept = dict([*self._kept.items(), (cut, made)][-MOST_WORKERS:])
        return made


class TouchedGraph(Graph):
    """All pairs, of base and delta, of the entities that have an event in the delta: owners int64 [owners].

    Their rows are copied from the base, and the pairs of the delta put in their places: only those pairs are computed.
    """

    def __init__(self, base: LogGraph, delta: LogGraph) -> None:
        self.base, self.delta = base, delta
        degree = delta.bounds.diff()
        self.owners = degree.nonzero().squeeze(1)
        of_pair = torch.repeat_interleave(torch.arange(len(self.owners), device=degree.device), degree[self.owners])
        known = self.owners.clamp(max=len(base.bounds) - 1), (self.owners + 1).clamp(max=len(base.bounds) - 1)
        start, stop = (base.bounds[place] for place in known)
        # where the base has the delta's pairs, or would have them
        actor, candidate = delta.dyads.parties()
        # a pair on disk is told by the number of entities there are: a new candidate comes after all of its actor's
        width, codes = base.dyads.width, base.dyads.pairs
        pairs = actor * width + candidate.clamp(max=width)
        self._found = torch.searchsorted(codes, pairs)
        self._seen = torch.zeros_like(pairs, dtype=torch.bool)
        if len(codes):
            self._seen = (codes[self._found.clamp(max=len(codes) - 1)] == pairs) & (candidate < width)
        before = F.pad(
            (~self._seen).long().cumsum(0), (1, 0)
        )  # new pairs of whichever owner before each of the delta's
        bounds = F.pad((stop - start).cumsum(0), (1, 0)) + before[F.pad(degree[self.owners].cumsum(0), (1, 0))]
        first = (bounds[:-1] - before[degree[self.owners].cumsum(0) - degree[self.owners]])[of_pair]
        self._place = first + before[:-1] + self._found - start[of_pair]
        self._old = expand(start, stop)[1]
        own = torch.ones(int(bounds[-1]), dtype=torch.bool, device=pairs.device)
        own[self._place[~self._seen]] = False
        self._copied = own.nonzero().squeeze(1)
        partner = base.partner.new_empty(len(own))
        partner[self._copied], partner[self._place] = base.partner[self._old], delta.partner
        self._of_pair, self._known = of_pair, self.owners < len(base.bounds) - 1
        super().__init__(partner, bounds)

    def before(self, cut: int) -> list[Strengths]:
        """For each decay rate."""
        logs = zip(self.base.before(cut), self.base.meetings_before(cut), self.delta.meetings_before(cut), strict=True)
        return [self._strengths(*of_rate) for of_rate in logs]

    def _strengths(self, base: Strengths, met: Tensor, since: Tensor) -> Strengths:
        """base, met int64 [pairs of the base]: before the cut there; since int64 [pairs of the delta]: here."""
        earlier = torch.zeros_like(since)
        earlier[self._seen] = met[self._found[self._seen]]
        old, new = (_strength(meetings) for meetings in (earlier, earlier + since))
        of_pair = base.of_pair.new_empty(len(self.partner))
        of_pair[self._copied], of_pair[self._place] = base.of_pair[self._old], new.float()
        total = torch.zeros_like(self.owners)
        total[self._known] = base.of_entity[self.owners[self._known]]
        return Strengths(of_pair, total.index_add_(0, self._of_pair, _parts(new) - _parts(old)))


def _strength(meetings: Tensor) -> Tensor:
    """log(1 + decayed events), float64; meetings int64, in parts."""
    return (meetings.double() / PARTS).log1p()


def _parts(strength: Tensor) -> Tensor:
    return (strength * PARTS).round_().long()


@dataclass(frozen=True)
class Weights:
    """The graph before a cut, under one decay rate. A pair weighs its strength times the scales of both.

    base, touched float32 [pairs]: strengths. squared, scale float32 [E]: of an entity, 1 / its own strength and the
    root of it.
    """

    base: Tensor
    touched: Tensor | None
    squared: Tensor
    scale: Tensor


class Neighbours:
    """The graph of all pairs of a history. A pair weighs log(1 + its decayed events), normalised by both degrees.

    The graph of the base is shared by all histories on it. What a delta changes are the pairs and the degrees of the
    entities that it touches: their slices are put together again, all others are read from the base.
    """

    def __init__(self, past: Past) -> None:
        self.n_entities = past.events.n_entities
        graphs = [index.once(LogGraph) for index in past.indices]
        self.base = graphs[0]
        self.touched = TouchedGraph(*graphs) if len(graphs) > 1 and len(graphs[1].partner) else None
        # where each entity's pairs are read: its place among the owners of either graph, -1 for none; int64 [E]
        ids, known = torch.arange(self.n_entities, device=past.device), len(self.base.bounds) - 1
        self._in_base = torch.where(ids < known, ids, -1)
        self._in_touched = torch.full_like(ids, -1)
        if self.touched is not None:
            owners = self.touched.owners
            self._in_base[owners] = -1
            self._in_touched[owners] = torch.arange(len(owners), device=ids.device)
        self._kept: dict[int, list[Weights]] = {}

    def shared(self, actor: Tensor, cut: Tensor) -> Tensor:
        """The common neighbours of each actor with every entity, float32 [rates, E, n].

        actor, cut int64 [n], the cut ascending: only events before it count. Nothing shared is FLOOR, and not zero.
        """
        made = torch.empty((len(DECAY_RATES), self.n_entities, len(actor)), device=actor.device)
        steps, sizes = (of.tolist() for of in torch.unique_consecutive(cut, return_counts=True))
        for step, actors, part in zip(steps, actor.split(sizes), made.split(sizes, dim=2), strict=True):
            for of_rate, weights in zip(part, self.weights_before(step), strict=True):
                # the actors' own rows of the matrix stand upright, and the whole matrix multiplies them
                own = self._strengths(actors, weights).mul_(weights.squared[:, None])
                known = len(self.base.bounds) - 1
                of_rate[:known], of_rate[known:] = self.base.product(weights.base, own), 0.0
                if self.touched is not None and weights.touched is not None:
                    of_rate[self.touched.owners] = self.touched.product(weights.touched, own)
                of_rate.mul_(weights.scale[:, None]).mul_(weights.scale[actors]).add_(FLOOR)
        return made

    def adjacent(self, actor: Tensor, cut: int) -> Tensor:
        """What every entity weighs as a neighbour of each actor, under the first decay rate: float32 [E, n]."""
        weights = self.weights_before(cut)[0]
        return self._strengths(actor, weights) * weights.scale[:, None] * weights.scale[actor]

    def _strengths(self, actor: Tensor, weights: Weights) -> Tensor:
        """Of the pairs of each actor with every entity, float32 [E, n]."""
        made = torch.zeros((self.n_entities, len(actor)), device=actor.device)
        self.base.fill(made, self._in_base[actor], weights.base)
        if self.touched is not None and weights.touched is not None:
            self.touched.fill(made, self._in_touched[actor], weights.touched)
        return made

    def weights_before(self, cut: int) -> list[Weights]:
        """The weights for each decay rate; those of the last cuts asked for are kept."""
        if (kept := self._kept.get(cut)) is not None:
            return kept
        made, base = [], self.base.before(cut)
        for k, touched in enumerate([None] * len(base) if self.touched is None else self.touched.before(cut)):
            total = F.pad(base[k].of_entity, (0, self.n_entities - len(base[k].of_entity)))
            if self.touched is not None and touched is not None:
                total[self.touched.owners] = touched.of_entity
            squared = 1 / (total.double() / PARTS + 1e-6)
            of_touched = None if touched is None else touched.of_pair
            made.append(Weights(base[k].of_pair, of_touched, squared.float(), squared.sqrt().float()))
        self._kept = dict([*self._kept.items(), (cut, made)][-MOST_WORKERS:])
        return made


def _meetings(lag: Tensor, start: Tensor, rate: float) -> Tensor:
    """The decayed events of pairs under one rate, int64 [n]; lag int [rows], not above 0 for those after the cut."""
    if math.isinf(rate):
        seen = lag > 0
        return PARTS * (start.diff() if bool(seen.all()) else _sums(seen, start))
    return _sums(_decayed(rate, lag.device).index_select(0, lag), start)


def _sums(values: Tensor, bounds: Tensor) -> Tensor:
    """Sums of the slices between bounds; int64 or bool [m], int64 [n + 1] -> int64 [n]."""
    if values.device.type == "cpu" and bool((bounds.diff() > 0).all()):
        # several times as quick as differences of running sums, and as exact
        begins = bounds[:-1].numpy()
        # truth values are widened beforehand: numpy would do so piece by piece, at twice the time
        return torch.from_numpy(np.add.reduceat(values.long().numpy(), begins)) if len(begins) else bounds[:0]
    running = F.pad(values.long().cumsum(0), (1, 0))
    return running[bounds[1:]] - running[bounds[:-1]]

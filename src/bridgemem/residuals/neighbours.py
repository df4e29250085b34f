"""Neighbours: who interacted with whom before a step, as a graph that decays, and common neighbours in it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.parallel import MOST_WORKERS

# steps after which an interaction counts e times less; the last never decays
DECAY_RATES = (100.0, math.inf)
FLOOR = 1e-5  # of common neighbours, before its logarithm


class Neighbours:
    """The graph of all pairs of a history. A pair weighs log(1 + its decayed events), normalised by both degrees."""

    def __init__(self, past: Past) -> None:
        self.past, self.n_entities = past, past.events.n_entities
        self.owner, self.partner = past.index.dyads.parties()
        ids = torch.arange(self.n_entities + 1, device=past.device)
        self.bounds = torch.searchsorted(self.owner, ids)
        self._kept: dict[int, list[Tensor]] = {}

    def shared(self, actor: Tensor, cut: Tensor) -> Tensor:
        """The common neighbours of each actor with every entity, float32 [rates, E, n].

        actor, cut int64 [n], the cut ascending: only events before it count. Nothing shared is FLOOR, and not zero.
        """
        made = torch.empty((len(DECAY_RATES), self.n_entities, len(actor)), device=actor.device)
        steps, sizes = (of.tolist() for of in torch.unique_consecutive(cut, return_counts=True))
        for step, actors, part in zip(steps, actor.split(sizes), made.split(sizes, dim=2), strict=True):
            column, pair = expand(self.bounds[actors], self.bounds[actors + 1])
            for k, weight in enumerate(self.weights_before(step)):
                # the actors' own rows of the matrix stand upright, and the whole matrix multiplies them
                own = torch.zeros((self.n_entities, len(actors)), device=actor.device)
                own[self.partner[pair], column] = weight[pair]
                through = F.embedding_bag(
                    self.partner, own, self.bounds, mode="sum", per_sample_weights=weight, include_last_offset=True
                )
                torch.add(through, FLOOR, out=part[k])
        return made

    def weights_before(self, cut: int) -> list[Tensor]:
        """The weight of every pair for each decay rate, float32 [pairs]; those of the last cuts asked for are kept."""
        if (kept := self._kept.get(cut)) is not None:
            return kept
        dyads, made = self.past.index.dyads, []
        age = cut - 1 - dyads.step
        for rate in DECAY_RATES:
            faded = torch.ones_like(age, dtype=torch.float64) if math.isinf(rate) else (-age.double() / rate).exp_()
            meetings = torch.where(age >= 0, faded, 0.0)
            strength = _sums(meetings, dyads.start).log1p()
            scale = (_sums(strength, self.bounds) + 1e-6).rsqrt()
            made.append((strength * scale[self.owner] * scale[self.partner]).float())
        # one for each thread that may be reading, and the whole table changes at once
        self._kept = dict([*self._kept.items(), (cut, made)][-MOST_WORKERS:])
        return made


def _sums(values: Tensor, bounds: Tensor) -> Tensor:
    """Sums of the slices between bounds; float64 [m], int64 [n + 1] -> float64 [n]."""
    running = torch.cat([values.new_zeros(1), values.cumsum(0)])
    return running[bounds[1:]] - running[bounds[:-1]]

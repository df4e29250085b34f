"""Prior and count table: how often each directed relation followed each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace

_BLOCK = 1 << 18  # examples at a time, so that their cells stay small beside them


def log_prior(events: EventLog) -> Tensor:
    """log pi over the 2R directed relations, float64 [2R]: add-one counts over the facts, each seen from both sides."""
    return log_prior_of(np.bincount(events.relation, minlength=events.n_relations))


def log_prior_of(facts: np.ndarray) -> Tensor:
    """The same from how many facts each relation has, int64 [R]."""
    both = np.concatenate([facts, facts]) + 1.0
    return torch.from_numpy(np.log(both / both.sum()))


@dataclass(frozen=True)
class CountTable:
    """counts int64 [tokens, 2R]; tables of disjoint sets of examples add up."""

    counts: Tensor

    @classmethod
    def empty(cls, space: TokenSpace) -> CountTable:
        return cls(torch.zeros((space.size, space.n_directed), dtype=torch.int64))

    @classmethod
    def of(cls, examples: Examples, space: TokenSpace) -> CountTable:
        """Every token of every example adds one count to (token -> target)."""
        # the pad is counted in a row of its own, behind those that are kept: cheaper than looking for it
        table = torch.zeros((space.size + 1, space.n_directed), dtype=torch.int64, device=examples.target.device)
        for tokens, target in zip(examples.tokens.split(_BLOCK), examples.target.split(_BLOCK), strict=True):
            cell = tokens.long() * space.n_directed + target[:, None]
            table += torch.bincount(cell.flatten(), minlength=table.numel()).view_as(table)
        return cls(table[: space.size])

    def merge(self, other: CountTable) -> CountTable:
        return CountTable(self.counts + other.counts)

    def support(self) -> Tensor:
        """Context totals, float64 [tokens + 1]; nothing supports the pad."""
        totals = self.counts.sum(1).double()
        return torch.cat([totals, totals.new_zeros(1)])

    def smooth(self, log_pi: Tensor, strength: float) -> Tensor:
        """p_ct(r | token), float64 [tokens + 1, 2R], Dirichlet-smoothed towards the prior; the pad adds nothing."""
        pi = log_pi.to(self.counts.device).exp()
        p = (self.counts + strength * pi) / (self.counts.sum(1, keepdim=True) + strength)
        return torch.cat([p, p.new_zeros((1, p.shape[1]))])

"""Tokens: an event on a pair reduced to (direction, relation, recency bin), as one id."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bridgemem.config import Settings


@dataclass(frozen=True)
class TokenSpace:
    """token = (direction * R + relation) * bins + bin; the id after the last token pads short states."""

    n_relations: int
    edges: tuple[int, ...]
    directions: bool = True

    @classmethod
    def of(cls, settings: Settings, n_relations: int) -> TokenSpace:
        return cls(n_relations, settings.bins, settings.directions)

    @property
    def n_bins(self) -> int:
        return len(self.edges) + 1

    @property
    def n_directed(self) -> int:
        """Directed relations: r for an event of the pair's first party, r + R for one of the second."""
        return 2 * self.n_relations

    @property
    def size(self) -> int:
        return self.n_directed * self.n_bins

    @property
    def pad(self) -> int:
        return self.size

    def encode(self, relation: Tensor, direction: Tensor, lag: Tensor, found: Tensor) -> Tensor:
        """Token ids int64, the pad where no event was found."""
        edges = torch.tensor(self.edges, dtype=lag.dtype, device=lag.device)
        recency = torch.bucketize(lag, edges)
        directed = relation + (direction * self.n_relations if self.directions else 0)
        return torch.where(found, directed * self.n_bins + recency, self.pad)


def distinct_states(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct multisets among token states [n, K]: (one row of each [u], which of them every state is [n]).

    Neither reader sees the order of the events, so equal multisets are equal states and need reading only once.
    """
    sorted_tokens = tokens.sort(dim=1).values
    # a random linear code groups equal rows in one pass; the comparison below makes the result exact all the same
    draw = torch.Generator().manual_seed(20260)
    weights = torch.randint(-(2**62), 2**62, (tokens.shape[1],), generator=draw).to(tokens.device)
    _, group = torch.unique((sorted_tokens * weights).sum(1), return_inverse=True)
    rows = torch.arange(len(tokens), device=tokens.device)
    count = int(group.max()) + 1 if len(group) else 0
    first = torch.full((count,), len(tokens), device=tokens.device).scatter_reduce_(0, group, rows, "amin")
    if not torch.equal(sorted_tokens[first][group], sorted_tokens):
        return rows, rows
    return first, group

"""Prior and count table: how often each directed relation followed each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.equations import Table
from bridgemem.events.log import EventLog
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.storage.tensors import TensorSpec, check_tensors

# A dense table is the quickest to read, but grows with the square of the relations. Up to that many cells (32 MiB, 457
# relations in five recency bins) it is dense; above, only the cells that occur are kept.
MOST_DENSE = 1 << 22
_BLOCK = 1 << 18  # examples at a time, so that their cells stay small next to them


def log_prior(events: EventLog) -> Tensor:
    """log pi over the 2R directed relations, float64 [2R]: add-one counts over the facts, each seen from both sides."""
    return log_prior_of(events.tallies[1])


def log_prior_of(facts: np.ndarray) -> Tensor:
    """The same from how many facts each relation has, int64 [R]."""
    both = np.concatenate([facts, facts]) + 1.0
    return torch.from_numpy(np.log(both / both.sum()))


@dataclass(frozen=True)
class CountTable:
    """How often each directed relation followed each token; tables of disjoint sets of examples add up.

    Dense: counts int64 [tokens, 2R], cells None. Sparse: cells int64 [m], ascending, token * 2R + relation of whatever
    occurs, and counts int64 [m] of those. Which of the two it is follows from the size of the space alone.
    """

    space: TokenSpace
    counts: Tensor
    cells: Tensor | None = None

    @classmethod
    def empty(cls, space: TokenSpace) -> CountTable:
        none = torch.zeros(0, dtype=torch.int64)
        return cls._of_cells(space, none, none)

    @classmethod
    def of(cls, examples: Examples, space: TokenSpace) -> CountTable:
        """Every token of every example adds one count to (token -> target)."""
        counting = Counting(space, examples.target.device)
        for tokens, target in zip(examples.tokens.split(_BLOCK), examples.target.split(_BLOCK), strict=True):
            counting.add(tokens.long() * space.n_directed + target[:, None])
        return counting.table()

    @classmethod
    def _of_cells(cls, space: TokenSpace, cells: Tensor, counts: Tensor) -> CountTable:
        """A table from its cells int64 [m], ascending, and their counts int64 [m]."""
        if not is_dense(space):
            return cls(space, counts, cells)
        table = counts.new_zeros(space.size * space.n_directed).index_copy_(0, cells, counts)
        return cls(space, table.view(space.size, space.n_directed))

    def merge(self, other: CountTable, sign: int = 1) -> CountTable:
        """The counts of both; with sign -1, those of the other taken away."""
        if self.cells is None or other.cells is None:
            return CountTable(self.space, self.counts + sign * other.counts)
        cells, counts = torch.cat([self.cells, other.cells]), torch.cat([self.counts, sign * other.counts])
        return CountTable(self.space, *_summed(cells, counts)[::-1])

    def widened(self, space: TokenSpace) -> CountTable:
        """The same counts in a space of more relations, where the first ones keep their numbers."""
        old, new = self.space, space.n_relations - self.space.n_relations
        cells = self.counts.flatten().nonzero().squeeze(1) if self.cells is None else self.cells
        counts = self.counts.flatten()[cells] if self.cells is None else self.counts
        token, relation = cells // old.n_directed, cells % old.n_directed
        # what is said of the second party comes after all relations of the first
        token = token + (token >= old.size // 2) * new * old.n_bins
        relation = relation + (relation >= old.n_relations) * new
        return self._of_cells(space, token * space.n_directed + relation, counts)

    def support(self) -> Tensor:
        """Context totals, float64 [tokens + 1]; nothing supports the pad."""
        totals = self._totals().double()
        return torch.cat([totals, totals.new_zeros(1)])

    def _totals(self) -> Tensor:
        """How many counts each token has, int64 [tokens]."""
        if self.cells is None:
            return self.counts.sum(1)
        return self.counts.new_zeros(self.space.size).index_add_(0, self.cells // self.space.n_directed, self.counts)

    def smooth(self, log_pi: Tensor, strength: float) -> Table:
        """p_ct(r | token), float64 [tokens + 1, 2R], Dirichlet-smoothed towards the prior; the pad adds nothing."""
        pi = log_pi.to(self.counts.device).exp()
        if self.cells is not None:
            return SparseProbabilities(self, strength * pi, strength)
        p = (self.counts + strength * pi) / (self._totals()[:, None] + strength)
        return torch.cat([p, p.new_zeros((1, p.shape[1]))])

    def to(self, device: str | torch.device) -> CountTable:
        return CountTable(self.space, self.counts.to(device), None if self.cells is None else self.cells.to(device))

    def equal(self, other: CountTable) -> bool:
        """Whether the space and all counts are the same, on one device."""
        own, others = self.tensors(), other.tensors()
        same = self.space == other.space and own.keys() == others.keys()
        return same and all(torch.equal(own[name], others[name]) for name in own)

    def tensors(self) -> dict[str, Tensor]:
        """What is stored of the table: `counts`, and `cells` where it is sparse."""
        return {"counts": self.counts} if self.cells is None else {"counts": self.counts, "cells": self.cells}

    @classmethod
    def restore(cls, space: TokenSpace, tensors: Mapping[str, Tensor]) -> CountTable:
        """A stored table; ValueError where it is none of this space."""
        check_tensors(tensors, count_specs(space))
        counts, cells = tensors["counts"], tensors.get("cells")
        if bool((counts < 0).any()):
            raise ValueError("one of the counts is negative")
        if cells is not None and len(cells):
            inside = 0 <= int(cells[0]) <= int(cells[-1]) < space.size * space.n_directed
            if not (inside and bool((cells.diff() > 0).all())):
                raise ValueError("the cells of the counts are not those of these settings")
        return cls(space, counts, cells)


def count_specs(space: TokenSpace) -> dict[str, TensorSpec]:
    """What is stored of a count table."""
    if is_dense(space):
        return {"counts": TensorSpec((space.size, space.n_directed), torch.int64)}
    return dict.fromkeys(("counts", "cells"), TensorSpec(("cells",), torch.int64))


def is_dense(space: TokenSpace) -> bool:
    """Whether a count table of this space keeps all of its cells, or only those that occur."""
    return space.size * space.n_directed <= MOST_DENSE


class Counting:
    """A count table in the making: cells, token * 2R + relation, go in as they occur, in any number of batches."""

    def __init__(self, space: TokenSpace, device: str | torch.device = "cpu") -> None:
        self.space, self._cells = space, space.size * space.n_directed
        # the pad is counted in a row of its own, after those that are kept: cheaper than looking for it
        size = self._cells + space.n_directed if is_dense(space) else 0
        self._dense = torch.zeros(size, dtype=torch.int64, device=device)
        self._parts = [(self._dense[:0], self._dense[:0])]

    def add(self, cells: Tensor) -> None:
        """Count cells int64 of any shape; those of the pad are passed over."""
        if len(self._dense):
            self._dense += torch.bincount(cells.flatten(), minlength=len(self._dense))
            return
        found, counts = torch.unique(cells, return_counts=True)
        kept = int(torch.searchsorted(found, self._cells))
        self._parts.append((found[:kept], counts[:kept]))
        # summed whenever they have doubled: each cell is then sorted a few times only, however many batches come
        if sum(len(part[0]) for part in self._parts[1:]) >= len(self._parts[0][0]):
            self._sum()

    def table(self) -> CountTable:
        """The table of all that was counted."""
        if len(self._dense):
            return CountTable(self.space, self._dense[: self._cells].view(self.space.size, self.space.n_directed))
        self._sum()
        cells, counts = self._parts[0]
        return CountTable(self.space, counts, cells)

    def _sum(self) -> None:
        cells, counts = (torch.cat(column) for column in zip(*self._parts, strict=True))
        self._parts = [_summed(cells, counts)]


def _summed(cells: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Equal cells made one, ascending, with their counts added up; those that come to nothing are left out."""
    cells, place = torch.unique(cells, return_inverse=True)
    total = torch.zeros_like(cells).index_add_(0, place, counts)
    kept = total != 0
    return cells[kept], total[kept]


class SparseProbabilities:
    """p_ct(r | token) of a sparse count table, worked out where it is asked: `p[tokens, relation]`.

    Every value is bit for bit that of the dense table, since it is made of the same numbers in the same steps.
    """

    def __init__(self, table: CountTable, prior: Tensor, strength: float) -> None:
        """prior float64 [2R]: pi times the strength."""
        assert table.cells is not None
        self.space, self.prior, self.strength = table.space, prior, strength
        totals = table._totals()
        self.totals = torch.cat([totals, totals.new_zeros(1)])
        # one more cell, after all that can be asked of a token: where a search may end without having found
        last = table.cells.new_tensor([self.space.size * self.space.n_directed])
        self.cells, self.counts = torch.cat([table.cells, last]), torch.cat([table.counts, last.new_zeros(1)])

    def __len__(self) -> int:
        return len(self.totals)

    def __getitem__(self, at: tuple[Tensor, Tensor | int]) -> Tensor:
        """float64, of tokens int64 and relations int64 that broadcast; nothing follows the pad."""
        token, relation = at
        cell = token * self.space.n_directed + relation
        place = torch.searchsorted(self.cells, cell).clamp_(max=len(self.cells) - 1)
        count = torch.where(self.cells[place] == cell, self.counts[place], 0)
        p = (count + self.prior[relation]) / (self.totals[token] + self.strength)
        return torch.where(token == self.space.pad, 0.0, p)

"""Next-relation examples: what the pair had seen, and which directed relation came next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Settings
from bridgemem.events.log import EventLog
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.memory.scan import PairScan
from bridgemem.memory.sorted_rows import sorted_rows


@dataclass(frozen=True)
class Examples:
    """tokens int16/int32 [n, K] (padded), target int64 [n] directed relation, step int64 [n]; ordered by pair."""

    tokens: Tensor
    target: Tensor
    step: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def take(self, rows: Tensor) -> Examples:
        return Examples(self.tokens[rows], self.target[rows], self.step[rows])

    def sample(self, most: int, seed: int) -> Examples:
        """At most that many examples, drawn without replacement by the seed, in their old order."""
        if len(self) <= most:
            return self
        chosen = np.random.default_rng(seed).choice(len(self), size=most, replace=False)
        return self.take(torch.from_numpy(np.sort(chosen)))

    @classmethod
    def joined(cls, parts: Iterable[Examples], k: int) -> Examples:
        """The examples of all parts, of K tokens each, in their order."""
        columns = [(part.tokens, part.target, part.step) for part in parts]
        if not columns:
            nothing = torch.empty(0, dtype=torch.int64)
            return cls(torch.empty((0, k), dtype=torch.int16), nothing, nothing)
        tokens, target, step = (torch.cat(column) for column in zip(*columns, strict=True))
        return cls(tokens, target, step)

    def to(self, device: str | torch.device) -> Examples:
        return Examples(self.tokens.to(device), self.target.to(device), self.step.to(device))


def mined_blocks(events: EventLog, space: TokenSpace, settings: Settings) -> Iterator[Examples]:
    """The examples of `mine` in their order, some at a time, so that they need not fit into memory."""
    narrow = torch.int16 if space.pad < 2**15 else torch.int32
    scan = PairScan(settings.k, settings.window)
    for block in sorted_rows(events):
        seen = scan.feed(*block)
        parts = (torch.from_numpy(part) for part in (seen.relation, seen.direction, seen.lag, seen.found))
        _, step, relation, direction = (torch.from_numpy(column[seen.row]) for column in block)
        yield Examples(space.encode(*parts).to(narrow), relation + direction * space.n_relations, step)


def mine(events: EventLog, space: TokenSpace, settings: Settings) -> Examples:
    """Two examples a fact, one per orientation, wherever the pair has an earlier event inside the window."""
    return Examples.joined(mined_blocks(events, space, settings), settings.k)

"""Next-relation examples: what the pair had seen, and which directed relation came next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Settings
from bridgemem.events.log import EventLog
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.memory.dyads import pair_rows
from bridgemem.memory.scan import last_events, tie_bounds

_BLOCK = 1 << 18


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
        """At most so many examples, drawn without replacement by the seed, in their old order."""
        if len(self) <= most:
            return self
        chosen = np.random.default_rng(seed).choice(len(self), size=most, replace=False)
        return self.take(torch.from_numpy(np.sort(chosen)))

    def to(self, device: str | torch.device) -> Examples:
        return Examples(self.tokens.to(device), self.target.to(device), self.step.to(device))


def mine(events: EventLog, space: TokenSpace, settings: Settings) -> Examples:
    """Two examples a fact, one per orientation, wherever the pair has an earlier event inside the window."""
    pair, step, relation, direction = pair_rows(events)
    order = np.argsort(pair, kind="stable")
    pair, step, relation, direction = pair[order], step[order], relation[order], direction[order]
    first, end = tie_bounds(pair, step)
    has_past = end > first
    if settings.window:
        has_past &= step - step[np.maximum(end - 1, 0)] <= settings.window
    rows = np.flatnonzero(has_past)
    columns = [torch.from_numpy(c) for c in (step, relation, direction)]
    back = torch.arange(1, settings.k + 1)
    narrow = torch.int16 if space.pad < 2**15 else torch.int32
    blocks = []
    # in blocks, so that the wide intermediate arrays stay small whatever the size of the log
    for at in range(0, len(rows), _BLOCK):
        part = rows[at : at + _BLOCK]
        begin, stop, now = (torch.from_numpy(x[part]) for x in (first, end, step))
        position, lag, found = last_events(begin, stop, now, columns[0], back, settings.window)
        blocks.append(space.encode(columns[1][position], columns[2][position], lag, found).to(narrow))
    tokens = torch.cat(blocks) if blocks else torch.empty((0, settings.k), dtype=narrow)
    target = torch.from_numpy(relation[rows] + direction[rows] * space.n_relations)
    return Examples(tokens, target, torch.from_numpy(step[rows]))

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
from bridgemem.memory.scan import PairScan

_BLOCK = 1 << 17


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

    def to(self, device: str | torch.device) -> Examples:
        return Examples(self.tokens.to(device), self.target.to(device), self.step.to(device))


def mine(events: EventLog, space: TokenSpace, settings: Settings) -> Examples:
    """Two examples a fact, one per orientation, wherever the pair has an earlier event inside the window."""
    rows_of_pairs = pair_rows(events)
    order = np.argsort(rows_of_pairs[0], kind="stable")
    columns = [column[order] for column in rows_of_pairs]
    narrow = torch.int16 if space.pad < 2**15 else torch.int32
    scan = PairScan(settings.k, settings.window)
    tokens = [torch.empty((0, settings.k), dtype=narrow)]
    rows = [np.empty(0, dtype=np.int64)]
    # in blocks, so that the wide intermediate arrays stay small whatever the size of the log
    for at in range(0, len(order), _BLOCK):
        seen = scan.feed(*(column[at : at + _BLOCK] for column in columns))
        parts = (torch.from_numpy(part) for part in (seen.relation, seen.direction, seen.lag, seen.found))
        tokens.append(space.encode(*parts).to(narrow))
        rows.append(at + seen.row)
    _, step, relation, direction = (column[np.concatenate(rows)] for column in columns)
    target = relation + direction * space.n_relations
    return Examples(torch.cat(tokens), torch.from_numpy(target), torch.from_numpy(step))

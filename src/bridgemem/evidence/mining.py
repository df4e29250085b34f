"""Mining: the count table of all examples of a log, and the sample of them that the reader is trained on."""

from __future__ import annotations

import numpy as np
import torch

from bridgemem.config import Settings
from bridgemem.events.log import EventLog
from bridgemem.evidence.counts import Counting, CountTable
from bridgemem.evidence.examples import Examples, mine, mined_blocks
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.memory.disk.mapped import memory_of
from bridgemem.memory.scan import PairScan
from bridgemem.memory.sorted_rows import sorted_rows


def counted_and_sampled(
    events: EventLog, settings: Settings, seed: int, device: str = "cpu"
) -> tuple[CountTable, Examples]:
    """The counts of every example, and at most max_examples of them, drawn by the seed.

    A log on disk is read in two passes: how many examples there are, then their counts and those that were drawn. So
    nothing is held that grows with the log, and both ways give the same.
    """
    space = TokenSpace.of(settings, events.n_relations)
    if memory_of(events) is None:
        examples = mine(events, space, settings)
        return CountTable.of(examples.to(device), space), examples.sample(settings.max_examples, seed)
    drawn = _drawn(events, settings, seed)
    counting, kept, passed = Counting(space), [], 0
    for part in mined_blocks(events, space, settings):
        counting.add(part.tokens.long() * space.n_directed + part.target[:, None])
        low, high = np.searchsorted(drawn, [passed, passed + len(part)])
        kept.append(part.take(torch.from_numpy(drawn[low:high] - passed)))
        passed += len(part)
    return counting.table().to(device), Examples.joined(kept, settings.k)


def _drawn(events: EventLog, settings: Settings, seed: int) -> np.ndarray:
    """The places of the sample among all examples, int64 ascending, as `Examples.sample` draws them."""
    # whether a row has a past does not depend on how far back it is read
    scan = PairScan(1, settings.window)
    size = sum(len(scan.feed(*block).row) for block in sorted_rows(events))
    if size <= settings.max_examples:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, size=settings.max_examples, replace=False))

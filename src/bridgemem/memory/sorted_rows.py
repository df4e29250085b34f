"""Sorted rows: both sides of every event in the order of pairs, in blocks, sorted here or read from a folder."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bridgemem.events.log import EventLog
from bridgemem.memory.disk.mapped import memory_of
from bridgemem.memory.dyads import pair_rows

BLOCK = 1 << 17


def sorted_rows(events: EventLog) -> Iterator[tuple[np.ndarray, ...]]:
    """Pair, step, relation, direction of directed rows, int64 [n] each, by pair and total order.

    A pair is any number that orders by actor and candidate. A block has at most BLOCK rows.
    """
    memory = memory_of(events)
    if memory is not None:
        yield from memory.rows(events.end, BLOCK)
        return
    rows = pair_rows(events)
    order = np.argsort(rows[0], kind="stable")
    for at in range(0, len(order), BLOCK):
        part = order[at : at + BLOCK]
        yield tuple(column[part] for column in rows)

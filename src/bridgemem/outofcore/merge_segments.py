"""Joining segments: the index of all partitions becomes one segment in the order of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bridgemem.memory.disk.segments import Note, Segment, SegmentWriter
from bridgemem.storage.columns import forget

ROWS = 1 << 20  # taken from a segment at a time, unless one pair alone has more
JOINED = "all"


def join_segments(folder: Path, notes: Sequence[Note], n_entities: int, n_relations: int) -> Note:
    """One segment with the rows of all; the others stay, for their writer to remove.

    Segments that are ranges of pairs follow each other, and those that are hashes of pairs are merged, by the same
    steps: the smallest pairs are taken from each.
    """
    parts = [Segment(folder, note, n_relations) for note in notes if note["pairs"]]
    for part in parts:
        part.verify()  # damage that was written again would have a checksum of its own
    with SegmentWriter(folder, JOINED, n_entities, n_relations) as writer:
        for rows in _merged(parts):
            writer.add(*rows)
    return writer.note


def _merged(parts: Sequence[Segment]) -> Iterator[tuple[np.ndarray, ...]]:
    """Blocks of pair, step, relation, direction in the order of pairs; at is how many pairs of each part are taken."""
    at = [0] * len(parts)
    while any(i < len(part.pairs) for i, part in zip(at, parts, strict=True)):
        left = [(i, part) for i, part in zip(at, parts, strict=True) if i < len(part.pairs)]
        last = min(_reach(part, i) for i, part in left)
        taken = []
        for n, part in enumerate(parts):
            stop = int(np.searchsorted(part.pairs, last, side="right"))
            if stop > at[n]:
                taken.append(_rows(part, at[n], stop))
                at[n] = stop
                forget(part.columns.values())
        if len(taken) == 1:
            yield taken[0]
            continue
        columns = [np.concatenate(column) for column in zip(*taken, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        yield tuple(column[order] for column in columns)


def _reach(part: Segment, at: int) -> int:
    """The last pair of the next ROWS rows, from pair number `at` on."""
    end = int(np.searchsorted(part.starts, part.starts[at] + ROWS, side="right")) - 2
    return int(part.pairs[min(max(end, at), len(part.pairs) - 1)])


def _rows(part: Segment, start: int, stop: int) -> tuple[np.ndarray, ...]:
    starts = part.starts[start : stop + 1]
    rows = slice(int(starts[0]), int(starts[-1]))
    pair = np.repeat(part.pairs[start:stop], np.diff(starts))
    return pair, part.step[rows], part.relation[rows], part.direction[rows]

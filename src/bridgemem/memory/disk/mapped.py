"""Memory on disk: a log, its index of pairs and all that a history asks of it, in a folder that is read by memory map.

The past of a `MappedLog`, or of a prefix of it, reads the indices of its folder and builds none of its own, so what is
resident is the pages that were read last.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import RunError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.mapped import EVENTS, MANIFEST, Home, MappedLog, open_mapped
from bridgemem.memory.disk.segments import Segment, Segments, open_segments
from bridgemem.memory.disk.tallies import TALLY_COLUMNS, MappedTally
from bridgemem.memory.dyads import BLOCK_ROWS, DyadMemory
from bridgemem.memory.timeline import Timeline, halved
from bridgemem.storage.allocator import return_large
from bridgemem.storage.checksums import VERIFIED, verify_file
from bridgemem.storage.columns import HEADER, again, forget, open_column

RESIDENT = 256 << 20  # bytes of mapped pages that may stay after a read

# the columns next to the segments: whose entries they belong to, and their types
COLUMNS = {
    **{f"events.{name}": "<i4" for name in EVENTS},
    "triples.codes": "<i8",
    "triples.candidate": "<i4",
    "triples.count": "<i4",
    "triples.following": "<i4",
    "answers.codes": "<i8",
    "answers.candidate": "<i4",
    "answers.first": "<i4",
    "seen.codes": "<i8",
    "seen.candidate": "<i4",
    "roles.codes": "<i8",
    "roles.candidate": "<i4",
    "actors.codes": "<i8",
    "acts.codes": "<i8",
    **TALLY_COLUMNS,
}


class PageBudget:
    """Bounds the mapped pages that reads leave behind; pages let go of are read again when they are needed."""

    def __init__(self, columns: Sequence[np.ndarray], most: int) -> None:
        self.columns, self.most = columns, most
        self._before = _file_bytes()

    def trim(self) -> None:
        """Let go of all pages where more are held than may be."""
        if _file_bytes() - self._before > self.most:
            forget(self.columns)
            self._before = _file_bytes()  # none of these pages are the columns' now


def _file_bytes() -> int:
    """Bytes of mapped files that this process holds resident; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


class MappedDyads(DyadMemory):
    """A DyadMemory whose columns are mapped: the past of a pair is searched in its own rows, and nothing is derived."""

    def __init__(self, part: Segment, n_entities: int, end: int, keep: PageBudget) -> None:
        step, relation, direction = (torch.from_numpy(c) for c in (part.step, part.relation, part.direction))
        pairs, start = torch.from_numpy(part.pairs), torch.from_numpy(part.starts)
        super().__init__(pairs, start, step, relation, direction, end, n_entities)
        self._keep = keep

    def _ends(self, rank: Tensor, limit: Tensor) -> Tensor:
        self._keep.trim()
        limit = limit.clamp(max=self.end)
        return halved(self.step, self.start[rank], self.start[rank + 1], limit)

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[slice, slice]]:
        for block in super().blocks(rows):
            self._keep.trim()
            yield block


def open_dyads(folder: Path | str) -> DyadMemory:
    """The index of pairs alone, from a folder with a single segment."""
    segments = open_segments(folder)
    if len(segments.parts) != 1:
        raise RunError(f"{folder} is in {len(segments.parts)} segments; `bridgemem memory --segments` makes them one.")
    part = segments.parts[0]
    keep = PageBudget(tuple(part.columns.values()), RESIDENT)
    return MappedDyads(part, segments.n_entities, segments.end, keep)


class Memory:
    """A folder written by `write_memory`, opened; `resident` bounds the mapped pages that reads leave behind."""

    def __init__(self, home: Home, segments: Segments, resident: int = RESIDENT) -> None:
        return_large()
        folder, lengths, checksums = home.folder, home.manifest["columns"], home.manifest["checksums"]
        self.folder, self.segments, self.end = folder, segments, segments.end
        self._checksums = {name: checksums[name] for name in COLUMNS}
        (self._pairs,) = segments.parts
        others = {name: dtype for name, dtype in COLUMNS.items() if name not in home.columns}
        opened = {name: open_column(folder / f"{name}.npy", dtype, lengths[name]) for name, dtype in others.items()}
        self.columns = {**home.columns, **opened}
        self._keep = PageBudget((*self.columns.values(), *self._pairs.columns.values()), resident)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.columns[name])

    def _line(self, name: str) -> Timeline:
        return Timeline(self._tensor(f"{name}.codes"), self._tensor(f"{name}.candidate"))

    def dyads(self, end: int) -> DyadMemory:
        """The index of pairs, of which nothing at or after `end` is read."""
        return MappedDyads(self._pairs, self.segments.n_entities, end, self._keep)

    def rows(self, end: int, block: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Pair, step, relation, direction of the rows before a step, int64 [n] each, by pair and total order."""
        part = self._pairs
        for at in range(0, len(part.step), block):
            stop = min(at + block, len(part.step))
            first, last = np.searchsorted(part.starts, [at, stop - 1], side="right") - 1
            starts = np.clip(part.starts[first : last + 2], at, stop)
            pair = np.repeat(part.pairs[first : last + 1], np.diff(starts))
            columns = (
                pair,
                *(column[at:stop].astype(np.int64) for column in (part.step, part.relation, part.direction)),
            )
            earlier = columns[1] < end
            yield columns if earlier.all() else tuple(column[earlier] for column in columns)
            self._keep.trim()

    @cached_property
    def triples(self) -> tuple[Timeline, Tensor, Tensor]:
        """As `occurrence_lines` of (actor, directed relation) gives them."""
        return self._line("triples"), self._tensor("triples.count"), self._tensor("triples.following")

    @cached_property
    def answers(self) -> tuple[Timeline, Tensor]:
        """Every candidate once under its (actor, directed relation), all at step 0; and when it was first true."""
        return self._line("answers"), self._tensor("answers.first")

    @cached_property
    def seen(self) -> Timeline:
        """First interactions of the actor."""
        return self._line("seen")

    @cached_property
    def seen_in_role(self) -> Timeline:
        """First interactions of the actor in each of its two roles."""
        return self._line("roles")

    @cached_property
    def actors(self) -> Tensor:
        """(actor, step) of both sides of every event in one number, ascending, int64 [2n]."""
        return self._tensor("actors.codes")

    @cached_property
    def acts(self) -> Tensor:
        """(actor, directed relation, step) of both sides of every event in one number, ascending, int64 [2n]."""
        return self._tensor("acts.codes")

    def tally(self, kind: str, end: int) -> MappedTally:
        """The events of each key of a kind, of which nothing at or after `end` is read."""
        own = f"tally.{kind}."
        columns = {name.removeprefix(own): column for name, column in self.columns.items() if name.startswith(own)}
        return MappedTally(columns, end, self.trim)

    def trim(self) -> None:
        """Let go of pages where more are resident than may be."""
        self._keep.trim()

    @property
    def size(self) -> int:
        """Bytes of all columns on disk."""
        return sum(column.nbytes for column in self._keep.columns)

    def verify(self) -> int:
        """Read every column, and refuse one that is not what was written; returns how many there are."""
        self.segments.verify()
        for name, expected in self._checksums.items():
            verify_file(self.folder / f"{name}.npy", expected, again(self.folder), HEADER)
        return len(self._keep.columns)


def memory_of(events: EventLog) -> Memory | None:
    """The indices on disk of an event log, opened once, or None where they have to be built."""
    if not isinstance(events, MappedLog) or events.home is None:
        return None
    if events.home.opened is None:
        events.home.opened = _opened(events, events.home, RESIDENT, None)
    opened: Memory = events.home.opened
    return opened


def open_memory(folder: Path | str, resident: int = RESIDENT, verify: bool | None = None) -> Dataset:
    """The data set of a memory on disk, or the reason why the folder is none.

    verify: read all of it and compare checksums; left out, only where it is at most VERIFIED bytes. Sizes always are.
    """
    dataset = open_mapped(folder)
    assert isinstance(dataset.events, MappedLog)
    assert dataset.events.home is not None
    dataset.events.home.opened = _opened(dataset.events, dataset.events.home, resident, verify)
    return dataset


def _opened(events: MappedLog, home: Home, resident: int, verify: bool | None) -> Memory:
    """The indices next to a log, which are of its events and names."""
    folder, values = home.folder, home.manifest
    segments = open_segments(folder, verify=False)
    segments.check_vocabulary(events.entities.names, events.relations.names)
    if 2 * values["columns"]["events.step"] != segments.rows or values["fingerprint"] != segments.fingerprint:
        raise RunError(f"{folder} holds an index of other events than its own; {again(folder)}.")
    try:
        memory = Memory(home, segments, resident)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise RunError(f"{folder / MANIFEST} is damaged; {again(folder)}.") from None
    if verify or (verify is None and memory.size <= VERIFIED):
        memory.verify()
    return memory

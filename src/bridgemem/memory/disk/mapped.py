"""Memory on disk: a log, its index of pairs and all that a history asks of it, in a folder that is read by memory map.

A `MappedLog` is an event log whose columns lie in such a folder. Histories and filters of it, or of a prefix of it,
read the folder's indices and build none of their own, so what is resident is the pages that were read last.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import RunError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.memory.disk.segments import AGAIN, HEADER, Segment, Segments, forget, open_column, open_segments
from bridgemem.memory.dyads import DyadMemory
from bridgemem.memory.timeline import Timeline
from bridgemem.storage.checksums import VERIFIED, read_manifest, verify_file
from bridgemem.storage.files import read_json
from bridgemem.storage.placing import recover

FORMAT = 2
MANIFEST = "memory.json"
NAMES = "names.json"
RESIDENT = 256 << 20  # bytes of mapped pages that may stay after a read
BLOCK = 1 << 22  # rows that a pass over a whole column holds at a time

EVENTS = ("subject", "relation", "object", "step")
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
        low, high = self.start[rank], self.start[rank + 1]
        longest = int((high - low).max()) if len(rank) else 0
        for _ in range(longest.bit_length()):
            middle = (low + high) // 2
            open_ = low < high
            # a closed search stays where it is; its middle may lie after the last row
            earlier = open_ & (self.step[torch.where(open_, middle, 0)] < limit)
            low = torch.where(earlier, middle + 1, low)
            high = torch.where(earlier, high, torch.where(open_, middle, high))
        return low


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

    def __init__(
        self,
        folder: Path,
        segments: Segments,
        lengths: Mapping[str, int],
        checksums: Mapping[str, str],
        resident: int = RESIDENT,
    ) -> None:
        self.folder, self.segments, self.end = folder, segments, segments.end
        self._checksums = {name: checksums[name] for name in COLUMNS}
        (self._pairs,) = segments.parts
        self.columns = {
            name: open_column(folder / f"{name}.npy", dtype, lengths[name]) for name, dtype in COLUMNS.items()
        }
        self._keep = PageBudget((*self.columns.values(), *self._pairs.columns.values()), resident)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.columns[name])

    def _line(self, name: str) -> Timeline:
        return Timeline(self._tensor(f"{name}.codes"), self._tensor(f"{name}.candidate"))

    def dyads(self, end: int) -> DyadMemory:
        """The index of pairs, of which nothing at or after `end` is read."""
        return MappedDyads(self._pairs, self.segments.n_entities, end, self._keep)

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

    @property
    def size(self) -> int:
        """Bytes of all columns on disk."""
        return sum(column.nbytes for column in self._keep.columns)

    def verify(self) -> int:
        """Read every column, and refuse one that is not what was written; returns how many there are."""
        self.segments.verify()
        for name, expected in self._checksums.items():
            verify_file(self.folder / f"{name}.npy", expected, AGAIN, HEADER)
        return len(self._keep.columns)


@dataclass(frozen=True, eq=False)
class MappedLog(EventLog):
    """Events whose columns are mapped. They were checked when they were written, and are not read to be checked again.

    memory: the indices of these events, which may reach beyond them; None for a slice that is no past of any step.
    whole: the fingerprint where these are all the events of the memory.
    """

    memory: Memory | None = None
    whole: str | None = None

    def __post_init__(self) -> None:
        pass

    def rows(self, start: int, stop: int) -> EventLog:
        return self._part(start, stop, None)

    def prefix(self, step: int) -> EventLog:
        return self._part(0, int(np.searchsorted(self.step, step)), self.memory)

    def _part(self, start: int, stop: int, memory: Memory | None) -> MappedLog:
        subject, relation, object_, step = (getattr(self, name)[start:stop] for name in EVENTS)
        return MappedLog(subject, relation, object_, step, self.entities, self.relations, self.clock, memory)

    @cached_property
    def fingerprint(self) -> str:
        if self.whole is not None:
            return self.whole
        digest = hashlib.sha256(f"{self.n_entities} {self.n_relations} {len(self)}".encode())
        for name in EVENTS:
            column = getattr(self, name)
            for at in range(0, len(column), BLOCK):
                digest.update(column[at : at + BLOCK].tobytes())
        return digest.hexdigest()[:16]


def memory_of(events: EventLog) -> Memory | None:
    """The indices on disk of an event log, or None where they have to be built."""
    return events.memory if isinstance(events, MappedLog) else None


def open_memory(folder: Path | str, resident: int = RESIDENT, verify: bool | None = None) -> Dataset:
    """The data set of a memory on disk, or the reason why the folder is none.

    verify: read all of it and compare checksums; left out, only where it is at most VERIFIED bytes. Sizes always are.
    """
    folder = Path(folder)
    recover(folder)
    if not (folder / MANIFEST).is_file():
        raise RunError(f"{folder} holds no whole memory on disk: {MANIFEST} is missing; `bridgemem memory` writes one.")
    values = read_manifest(folder / MANIFEST, FORMAT, "a memory", AGAIN)
    verify_file(folder / NAMES, values.get("names"), AGAIN)
    segments, names = open_segments(folder, verify=False), read_json(folder / NAMES)
    try:
        entities, relations = names["entities"], names["relations"]
        segments.check_vocabulary(entities, relations)
        memory = Memory(folder, segments, values["columns"], values["checksums"], resident)
        if verify or (verify is None and memory.size <= VERIFIED):
            memory.verify()
        subject, relation, object_, step = (_locked(memory.columns[f"events.{name}"]) for name in EVENTS)
        if 2 * len(step) != segments.rows or values["fingerprint"] != segments.fingerprint:
            raise RunError(f"{folder} holds an index of other events than its own; write the memory on disk again.")
        log = MappedLog(
            subject,
            relation,
            object_,
            step,
            Vocabulary("entity", tuple(entities)),
            Vocabulary("relation", tuple(relations)),
            Clock(**values["clock"]),
            memory,
            values["fingerprint"],
        )
        return Dataset(values["name"], log, values["valid_start"], values["test_start"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise RunError(f"{folder / MANIFEST} is damaged; write the memory on disk again.") from None


def _locked(column: np.ndarray) -> np.ndarray:
    column = column.view()
    column.flags.writeable = False
    return column

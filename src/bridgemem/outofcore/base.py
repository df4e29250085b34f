"""What every engine shares: sorted rows go in, mergeable parts come out, and the same sample is drawn by all.

An engine partitions the directed rows by pair, sorts each partition by (actor, candidate, step, order, direction) and
feeds it to a `Miner`. The parts add up to the same result however the rows were partitioned and cut into batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bridgemem.config import Settings
from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.events.mapped import MINED
from bridgemem.evidence.counts import Counting, CountTable
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.memory.disk.segments import Note, SegmentWriter
from bridgemem.memory.disk.writing import About, complete_memory
from bridgemem.memory.scan import PairScan
from bridgemem.outofcore.merge_segments import join_segments
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.checksums import file_checksum, write_manifest
from bridgemem.storage.columns import INDEX
from bridgemem.storage.files import write_names
from bridgemem.storage.whole import whole_file

COLUMNS = ("actor", "candidate", "step", "order", "relation", "direction")
BLOCK = 1 << 17  # rows the kernel reads at a time: large enough for numpy, small enough for the cache
LAST_TOKEN = 2**31 - 1  # the highest id of a token, which is kept in 32 bits
SHARD = 1 << 20  # examples in a file

FORMAT = 3
DONE = MINED


@dataclass(frozen=True)
class Mining:
    """What is mined: the settings that decide it (k, window, bins, directions, max_examples), sizes, and the seed."""

    settings: Settings
    n_entities: int
    n_relations: int
    seed: int = 42

    def __post_init__(self) -> None:
        if self.space.pad > LAST_TOKEN:
            raise SettingsError(
                f"{self.n_relations:,} relations in {self.space.n_bins:,} recency bins are more tokens than can be "
                "counted; merge rare relations."
            )

    @cached_property
    def space(self) -> TokenSpace:
        return TokenSpace.of(self.settings, self.n_relations)

    @property
    def token_type(self) -> type[np.signedinteger]:
        """As in `evidence.examples.mine`."""
        return np.int16 if self.space.pad < 2**15 else np.int32


def sample_keys(order: np.ndarray, direction: np.ndarray, seed: int) -> np.ndarray:
    """A number drawn for each directed row, uint64 [n]: the sample is the examples with the smallest ones.

    A bijection of (order, direction) for each seed, so no two rows tie; the mixing steps are those of splitmix64.
    """
    key = order.astype(np.uint64) * np.uint64(2) + direction.astype(np.uint64)
    return _mix(key + _mix(np.array([seed], dtype=np.uint64)))


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Sample:
    """Examples with where they come from.

    sample_key uint64 [n]; pair int64 [n], actor * n_entities + candidate; step int32 [n]; order int64 [n]; target
    int32 [n] directed relation, which tells the direction too; tokens int16/int32 [n, K].
    """

    sample_key: np.ndarray
    pair: np.ndarray
    step: np.ndarray
    order: np.ndarray
    target: np.ndarray
    tokens: np.ndarray

    @classmethod
    def empty(cls, mining: Mining) -> Sample:
        sample_key, whole, narrow = (np.empty(0, dtype=kind) for kind in (np.uint64, np.int64, np.int32))
        return cls(sample_key, whole, narrow, whole, narrow, np.empty((0, mining.settings.k), mining.token_type))

    def __len__(self) -> int:
        return len(self.sample_key)

    def columns(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def take(self, rows: np.ndarray) -> Sample:
        return Sample(*(column[rows] for column in self.columns().values()))

    def smallest(self, most: int) -> Sample:
        """At most that many, those with the smallest sample keys, in their old order."""
        if len(self) <= most:
            return self
        return self.take(np.flatnonzero(self.sample_key <= np.partition(self.sample_key, most - 1)[most - 1]))

    def in_order(self) -> Sample:
        """Sorted as the in-memory path has its examples: by pair, step, order and direction."""
        return self.take(np.lexsort((self.target, self.order, self.step, self.pair)))

    @classmethod
    def concatenate(cls, samples: Iterable[Sample]) -> Sample:
        return cls(*(np.concatenate(parts) for parts in zip(*(s.columns().values() for s in samples), strict=True)))


@dataclass(frozen=True)
class Part:
    """What one sorted partition gave; parts of disjoint partitions merge in any order.

    counts: how often each directed relation followed each token, over all examples.
    relations int64 [R]: events of each relation. sample: at most max_examples examples.
    rows, pairs, examples: how many there were. end: the step after the last. digest: of the rows, whatever their order.
    """

    counts: CountTable
    relations: np.ndarray
    sample: Sample
    rows: int = 0
    pairs: int = 0
    examples: int = 0
    end: int = 0
    digest: int = 0

    @classmethod
    def empty(cls, mining: Mining) -> Part:
        none = np.zeros(mining.n_relations, dtype=np.int64)
        return cls(CountTable.empty(mining.space), none, Sample.empty(mining))

    def plus(self, other: Part, most: int) -> Part:
        """Both in one, with at most that many examples in the sample."""
        return Part(
            self.counts.merge(other.counts),
            self.relations + other.relations,
            Sample.concatenate([self.sample, other.sample]).smallest(most),
            self.rows + other.rows,
            self.pairs + other.pairs,
            self.examples + other.examples,
            max(self.end, other.end),
            (self.digest + other.digest) % 2**64,
        )

    def to_bytes(self) -> bytes:
        """The part as one safetensors document."""
        sizes = np.array([self.rows, self.pairs, self.examples, self.end, self.digest], dtype=np.uint64)
        columns = {f"sample.{name}": np.ascontiguousarray(c) for name, c in self.sample.columns().items()}
        return save({**self.tables(), "sizes": sizes, **columns})

    def tables(self) -> dict[str, np.ndarray]:
        """The count table and the events of each relation, as they are stored."""
        return {**{name: table.numpy() for name, table in self.counts.tensors().items()}, "relations": self.relations}

    @classmethod
    def from_bytes(cls, document: bytes, mining: Mining) -> Part:
        try:
            found = load(document)
            sample = Sample(*(found[f"sample.{name}"] for name in Sample.__dataclass_fields__))
            tables = {name: torch.from_numpy(table) for name, table in found.items() if name in ("counts", "cells")}
            counts = CountTable.restore(mining.space, tables)
            return cls(counts, found["relations"], sample, *found["sizes"].tolist())
        except (SafetensorError, KeyError, TypeError, ValueError) as problem:
            raise RunError(f"a mined part is damaged: {problem}.") from None


def merge(parts: Iterable[Part], mining: Mining) -> Part:
    """One part of all; at most two samples are held at a time, so the parts may be read one by one."""
    total = Part.empty(mining)
    for part in parts:
        total = total.plus(part, mining.settings.max_examples)
    return total


class Miner:
    """The kernel over one sorted partition: rows go in by `feed` in batches of any size, `finish` gives the part.

    What is held between batches does not grow with the partition: a block of rows, the count table, and the sample.
    index: the segment of the memory that the rows are written to as well, which the caller closes.
    limit: sample keys from here on are not drawn, where other parts are known to have enough smaller ones.
    """

    def __init__(self, mining: Mining, index: SegmentWriter | None = None, limit: int = 2**64 - 1) -> None:
        self.mining, self._index = mining, index
        self._scan = PairScan(mining.settings.k, mining.settings.window)
        self._waiting: list[tuple[np.ndarray, ...]] = []
        self._counting = Counting(mining.space)
        self._relations = np.zeros(mining.n_relations, dtype=np.int64)
        self._samples: list[Sample] = [Sample.empty(mining)]
        self._sampled, self._limit = 0, limit
        self._last = (-1, -1, -1)  # pair, step and order of the last row read
        self._rows = self._pairs = self._examples = self._end = self._digest = 0

    def feed(self, columns: Mapping[str, Any]) -> None:
        """The next rows of the partition: int [n] arrays named as in COLUMNS, in the order of the sort.

        direction 0: the event went from actor to candidate; 1: the other way. order tells the events of one step apart,
        and is the same for both directed rows of an event.
        """
        actor, candidate, *others = (np.asarray(columns[name]).astype(np.int64, copy=False) for name in COLUMNS)
        self.feed_pairs(actor * self.mining.n_entities + candidate, *others)

    def feed_pairs(
        self, pair: np.ndarray, step: np.ndarray, order: np.ndarray, relation: np.ndarray, direction: np.ndarray
    ) -> None:
        """The same with int64 [n] columns and actor * n_entities + candidate in one."""
        self._waiting.append((pair, step, order, relation, direction))
        if sum(len(batch[0]) for batch in self._waiting) >= BLOCK:
            self._flush()

    def finish(self) -> Part:
        """The part of all rows fed."""
        self._flush()
        self._shrink()
        sizes = (self._rows, self._pairs, self._examples, self._end, self._digest)
        return Part(self._counting.table(), self._relations, self._samples[0], *sizes)

    def _flush(self) -> None:
        if not self._waiting:
            return
        columns = [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]
        self._waiting = []
        for at in range(0, len(columns[0]), BLOCK):
            self._read(*(column[at : at + BLOCK] for column in columns))

    def _read(
        self, pair: np.ndarray, step: np.ndarray, order: np.ndarray, relation: np.ndarray, direction: np.ndarray
    ) -> None:
        self._check(pair, step, 2 * order + direction)
        if self._index is not None:
            self._index.add(pair, step, relation, direction)
        directed = relation + direction * self.mining.n_relations
        self._rows += len(pair)
        self._end = max(self._end, int(step.max()) + 1)
        self._digest = (self._digest + _digest(pair, step, order, directed)) % 2**64
        self._relations += np.bincount(relation[direction == 0], minlength=len(self._relations))
        seen = self._scan.feed(pair, step, relation, direction)
        parts = (torch.from_numpy(c) for c in (seen.relation, seen.direction, seen.lag, seen.found))
        tokens, target = self.mining.space.encode(*parts).numpy(), directed[seen.row]
        cell = (tokens * self.mining.space.n_directed + target[:, None])[seen.found]
        self._counting.add(torch.from_numpy(cell))
        self._examples += len(target)
        sample_key = sample_keys(order[seen.row], direction[seen.row], self.mining.seed)
        drawn = np.flatnonzero(sample_key < self._limit)
        row, narrow = seen.row[drawn], tokens[drawn].astype(self.mining.token_type)
        when, what = step[row].astype(np.int32), target[drawn].astype(np.int32)
        self._samples.append(Sample(sample_key[drawn], pair[row], when, order[row], what, narrow))
        self._sampled += len(drawn)
        if self._sampled > 1.25 * self.mining.settings.max_examples:
            self._shrink()

    def _check(self, pair: np.ndarray, step: np.ndarray, key: np.ndarray) -> None:
        """Refuse rows that are out of order or come twice, since every number after them would be wrong."""
        last_pair, last_step, last_key = self._last
        new = np.diff(pair, prepend=last_pair)
        later = np.diff(step, prepend=last_step)
        after = np.diff(key, prepend=last_key) > 0
        if not ((new > 0) | ((new == 0) & ((later > 0) | ((later == 0) & after)))).all():
            raise DataError(
                "the rows of a partition must come once each, sorted by actor, candidate, step, order and direction."
            )
        self._pairs += int(np.count_nonzero(new))
        self._last = int(pair[-1]), int(step[-1]), int(key[-1])

    def _shrink(self) -> None:
        """Keep the smallest sample keys; from then on no larger one needs to be looked at."""
        most = self.mining.settings.max_examples
        kept = Sample.concatenate(self._samples).smallest(most)
        self._samples, self._sampled = [kept], len(kept)
        if len(kept) == most:
            self._limit = min(self._limit, int(kept.sample_key.max()))


def _digest(pair: np.ndarray, step: np.ndarray, order: np.ndarray, directed: np.ndarray) -> int:
    """The sum of a mixed number for each row, so that neither order nor partitioning matters."""
    mixed = _mix(pair.astype(np.uint64))
    mixed = _mix(mixed ^ order.astype(np.uint64))
    mixed = _mix(mixed ^ ((step << 32) | directed).astype(np.uint64))
    return int(mixed.sum(dtype=np.uint64))


def write_mined(
    out: Path,
    mining: Mining,
    parts: Iterable[Part],
    notes: Sequence[Note],
    log: Iterable[Sequence[np.ndarray]],
    *,
    about: About,
    source: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Merge the parts of an engine and write the result; `mined.json` comes last and says that the folder is whole.

    notes: of the segments written to `out / "index"`, which are joined to one. log: the events in total order, as for
    `complete_memory`. source: what else is worth recording, as plain JSON.
    """
    total = merge(parts, mining)
    if sum(note["rows"] for note in notes) != total.rows:
        raise RunError(f"{out}: the index and the counts are not of the same rows; mine again into a new folder.")
    sample = total.sample.in_order()
    out.mkdir(parents=True, exist_ok=True)
    files = ["counts.safetensors"]
    for stale in (DONE, "entities.txt", "relations.txt"):
        (out / stale).unlink(missing_ok=True)
    _write(out / "counts.safetensors", save(total.tables()))
    files += (examples := _write_examples(out, sample))
    for kind, listed in (("entities", about.entities), ("relations", about.relations)):
        write_names(out / f"{kind}.txt", listed)
        files.append(f"{kind}.txt")
    index = out / INDEX
    joined = notes[0] if len(notes) == 1 else join_segments(index, notes, mining.n_entities, mining.n_relations)
    complete_memory(index, joined, log, about, progress)
    done = {
        "format": FORMAT,
        "fingerprint": _fingerprint(mining, total, sample),
        "events": int(total.relations.sum()),
        "rows": total.rows,
        "pairs": total.pairs,
        "examples": total.examples,
        "sampled": len(sample),
        "shards": len(examples),
        "end": total.end,
        "n_entities": mining.n_entities,
        "n_relations": mining.n_relations,
        "seed": mining.seed,
        "settings": asdict(mining.settings),
        "clock": asdict(about.clock),
        "source": dict(source or {}),
        "checksums": {name: file_checksum(out / name) for name in files},
    }
    write_manifest(out / DONE, done)
    for column in index.glob("segment-*.npy"):
        if not column.name.startswith(f"segment-{joined['name']}."):
            column.unlink()
    return done


def _write_examples(out: Path, sample: Sample) -> list[str]:
    """The sample in files of at most SHARD examples; returns their names."""
    names = []
    for number, at in enumerate(range(0, max(len(sample), 1), SHARD)):
        names.append(f"examples-{number:05d}.npz")
        columns = {name: column[at : at + SHARD] for name, column in sample.columns().items() if name != "sample_key"}
        with whole_file(out / names[-1]) as aside, aside.open("wb") as file:
            np.savez(file, allow_pickle=False, **columns)
    return names


def _fingerprint(mining: Mining, total: Part, sample: Sample) -> str:
    """The same for the same events in the same order and the same findings, whichever engine made them."""
    digest = hashlib.sha256(f"{total.digest} {mining.n_entities} {mining.n_relations} {total.rows}".encode())
    columns = (sample.pair, sample.step, sample.order, sample.target, sample.tokens)
    for values in (*total.tables().values(), *columns):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(content)

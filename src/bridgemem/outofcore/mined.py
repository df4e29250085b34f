"""A mined folder, opened again: counts, prior, examples and memory, and the transitions fitted on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Settings
from bridgemem.errors import RunError
from bridgemem.events.log import Clock, Vocabulary
from bridgemem.evidence.counts import CountTable, count_specs, log_prior_of
from bridgemem.evidence.examples import Examples
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import EpochChoice, Transitions
from bridgemem.memory.disk.mapped import open_dyads
from bridgemem.memory.disk.segments import Segments, open_segments
from bridgemem.memory.dyads import DyadMemory
from bridgemem.outofcore.base import DONE, FORMAT
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.checksums import read_manifest, verify_file
from bridgemem.storage.files import read_names
from bridgemem.storage.schema import as_settings
from bridgemem.storage.tensors import TensorSpec, read_tensors

_BLOCK = 1 << 20
AGAIN = "mine again"


class Mined:
    """What an engine wrote, in the terms of the in-memory path; a folder that is not whole is refused."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / DONE).is_file():
            raise RunError(f"{folder} is not mined, or not to the end: {DONE}, which is written last, is missing.")
        self.about: dict[str, Any] = read_manifest(self.folder / DONE, FORMAT, "a mined folder", AGAIN)
        self.settings = as_settings(Settings, self.about["settings"], f"{folder}/{DONE}")
        self.clock = Clock(**self.about["clock"])
        self.space = TokenSpace.of(self.settings, self.about["n_relations"])

    @cached_property
    def _tables(self) -> dict[str, Tensor]:
        specs = {"relations": TensorSpec((self.space.n_relations,), torch.int64), **count_specs(self.space)}
        return read_tensors(self._verified("counts.safetensors"), specs, AGAIN)

    def _verified(self, name: str) -> Path:
        """A file of the folder, which is what was written; all of them but the index are read whole."""
        path = self.folder / name
        verify_file(path, self.about["checksums"].get(name), AGAIN)
        return path

    @cached_property
    def counts(self) -> CountTable:
        try:
            return CountTable.restore(self.space, {n: t for n, t in self._tables.items() if n != "relations"})
        except ValueError as problem:
            raise RunError(f"{self.folder}/counts.safetensors: {problem}; {AGAIN}.") from None

    @property
    def log_prior(self) -> Tensor:
        """log pi over the 2R directed relations, float64 [2R]."""
        return log_prior_of(self._tables["relations"].numpy())

    @cached_property
    def examples(self) -> Examples:
        """The sampled examples, ordered by pair: all there are, if they are no more than max_examples."""
        shards = [self._shard(number) for number in range(self.about["shards"])]
        tokens, target, step = (np.concatenate(part) for part in zip(*shards, strict=True))
        if len(target) != self.about["sampled"]:
            raise RunError(f"{self.folder} holds {len(target):,} examples, and {DONE} counts others; mine again.")
        return Examples(
            torch.from_numpy(tokens), torch.from_numpy(target.astype(np.int64)), torch.from_numpy(step.astype(np.int64))
        )

    def _shard(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        path = self._verified(f"examples-{number:05d}.npz")
        try:
            with np.load(path, allow_pickle=False) as found:
                return found["tokens"], found["target"], found["step"]
        except (OSError, KeyError, ValueError, EOFError, BadZipFile) as problem:
            raise RunError(f"{path} cannot be read: {problem}; mine again.") from None

    @property
    def segments(self) -> Segments:
        return open_segments(self.folder / "index")

    @property
    def memory(self) -> DyadMemory:
        """The index of ordered pairs, read by memory map."""
        return open_dyads(self.folder / "index")

    @property
    def entities(self) -> Vocabulary:
        return Vocabulary("entity", self._names("entities"))

    @property
    def relations(self) -> Vocabulary:
        return Vocabulary("relation", self._names("relations"))

    def _names(self, kind: str) -> tuple[str, ...]:
        path = self._verified(f"{kind}.txt")
        names, expected = read_names(path), self.about[f"n_{kind}"]
        if len(names) != expected:
            raise RunError(f"{path} holds {len(names):,} names, and {DONE} counts {expected:,}; mine again.")
        return names

    def prior_before(self, step: int | None) -> Tensor:
        """log pi of the events strictly before a step, or of all: float64 [2R], counted from the index in blocks."""
        if step is None:
            return self.log_prior
        counts = np.zeros(self.space.n_relations, dtype=np.int64)
        for when, relation, direction in self._rows():
            counts += np.bincount(relation[(when < step) & (direction == 0)], minlength=len(counts))
        return log_prior_of(counts)

    def _rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for part in self.segments.parts:
            for at in range(0, len(part.step), _BLOCK):
                block = slice(at, at + _BLOCK)
                yield part.step[block], part.relation[block], part.direction[block]

    def transitions(
        self, seed: int = 42, device: str = "cpu", progress: Progress = SILENT
    ) -> tuple[Transitions, EpochChoice]:
        """Prior and counts of everything mined, and a reader trained on the sample.

        The same as `Transitions.fit` on the whole log wherever all examples are in the sample.
        """
        given = (self.examples, self.counts, self.prior_before, self.settings)
        return Transitions.of(*given, seed=seed, device=device, progress=progress)

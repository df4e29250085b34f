"""Segments: the index of ordered pairs as plain columns in a folder, written piece by piece and read by memory map.

    with SegmentWriter(folder, "00000", n_entities, n_relations) as segment:
        segment.add(pair, step, relation, direction)      # any number of blocks, in the order of the pairs
    seal(folder, [segment.note], n_entities, n_relations)  # once, last: only now is the folder a memory

A segment may be written by any process that sees the folder; its `note` is plain JSON that goes to the one that seals.
Every pair lives in exactly one segment; segments may be ranges of pairs or hashes of them, in any number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.storage.checksums import VERIFIED, read_manifest, verify_file, write_manifest
from bridgemem.storage.columns import HEADER, INDEX, Column, again, open_column

FORMAT = 2
MANIFEST = "segments.json"
LONGEST = 2**31  # steps and, in 16 bits, relations have to stay below

Note = dict[str, Any]


def _dtypes(n_relations: int) -> dict[str, str]:
    relation = "<i2" if n_relations < 2**15 else "<i4"
    return {"pairs": "<i8", "starts": "<i8", "step": "<i4", "relation": relation, "direction": "|i1"}


def _path(folder: Path, name: str, column: str) -> Path:
    return folder / f"segment-{name}.{column}.npy"


class SegmentWriter:
    """Writes one segment from blocks of directed rows, sorted by pair, then step, then order in the log.

    name: of the segment, unlike that of any other in the folder. A pair is actor * n_entities + candidate.
    """

    def __init__(self, folder: Path | str, name: str, n_entities: int, n_relations: int) -> None:
        self.folder, self.name = Path(folder), name
        self.n_entities, self.n_relations = n_entities, n_relations
        self.folder.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._columns = {
            column: self._stack.enter_context(Column(_path(self.folder, name, column), dtype))
            for column, dtype in _dtypes(n_relations).items()
        }
        self._last: tuple[int, int] | None = None
        self._first = -1
        self._end = 0

    def add(self, pair: np.ndarray, step: np.ndarray, relation: np.ndarray, direction: np.ndarray) -> None:
        """Append rows: pair int64 [n], step, relation, direction of any whole type [n].

        Direction 0: the event went from the actor to the candidate; 1: the other way.
        """
        if not len(pair):
            return
        pair, step = np.asarray(pair, np.int64), np.asarray(step, np.int64)
        self._check(pair, step, relation, direction)
        new = np.ones(len(pair), dtype=bool)
        new[1:] = pair[1:] != pair[:-1]
        new[0] = self._last is None or self._last[0] != int(pair[0])
        first = np.flatnonzero(new)
        self._columns["pairs"].add(pair[first])
        self._columns["starts"].add(first + self._columns["step"].length)
        for name, values in (("step", step), ("relation", relation), ("direction", direction)):
            self._columns[name].add(values)
        self._first = int(pair[0]) if self._last is None else self._first
        self._last = int(pair[-1]), int(step[-1])
        self._end = max(self._end, int(step.max()) + 1)

    def _check(self, pair: np.ndarray, step: np.ndarray, relation: np.ndarray, direction: np.ndarray) -> None:
        bounds = (
            ("pair", pair, self.n_entities**2),
            ("step", step, LONGEST),
            ("relation", relation, self.n_relations),
            ("direction", direction, 2),
        )
        for name, values, bound in bounds:
            if len(values) != len(pair) or int(values.min()) < 0 or int(values.max()) >= bound:
                raise DataError(
                    f"segment {self.name} was given a {name} outside 0..{bound - 1}, or too few; write it again."
                )
        fell = pair[1:] < pair[:-1]
        fell |= (pair[1:] == pair[:-1]) & (step[1:] < step[:-1])
        if fell.any() or (self._last is not None and (int(pair[0]), int(step[0])) < self._last):
            raise DataError(f"segment {self.name} was given rows out of order; sort them by pair, step and order.")

    @property
    def note(self) -> Note:
        """What `seal` has to know of the segment, as plain JSON; complete when the writer is closed."""
        return {
            "name": self.name,
            "pairs": self._columns["pairs"].length,
            "rows": self._columns["step"].length,
            "first": self._first,
            "last": -1 if self._last is None else self._last[0],
            "end": self._end,
            "checksums": {name: column.checksum for name, column in self._columns.items()},
        }

    def close(self) -> None:
        """Write what is left; the files of a writer that an error ended belong to no memory, since none names them."""
        starts = self._columns["starts"]
        if starts.length == self._columns["pairs"].length:
            starts.add(np.array([self._columns["step"].length]))
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def vocabulary_digest(entities: Sequence[str], relations: Sequence[str]) -> str:
    """A digest of the names of the ids, in their order."""
    return hashlib.sha256(json.dumps([list(entities), list(relations)]).encode()).hexdigest()[:16]


def seal(
    folder: Path | str,
    notes: Iterable[Note],
    n_entities: int,
    n_relations: int,
    vocabulary: str | None = None,
    fingerprint: str | None = None,
) -> None:
    """Make a memory of the segments whose notes are given; the last thing that is written.

    vocabulary: `vocabulary_digest` of the names, where they are known. fingerprint: that of the event log, likewise.
    """
    folder = Path(folder)
    segments = sorted(notes, key=lambda note: (note["first"], note["name"]))
    if len({note["name"] for note in segments}) != len(segments):
        raise DataError("two segments have the same name; give each its own.")
    values = {
        "format": FORMAT,
        "n_entities": n_entities,
        "n_relations": n_relations,
        "vocabulary": vocabulary,
        "fingerprint": fingerprint,
        "rows": sum(note["rows"] for note in segments),
        "end": max((note["end"] for note in segments), default=0),
        "segments": segments,
    }
    _opened(folder, values)  # what cannot be opened is not called whole
    write_manifest(folder / MANIFEST, values)


class Segment:
    """The columns of one segment, mapped: pairs int64 [p], starts int64 [p + 1]; step, relation, direction [rows]."""

    def __init__(self, folder: Path, note: Note, n_relations: int) -> None:
        self.folder, self.name = folder, note["name"]
        self.checksums: dict[str, Any] = note.get("checksums") or {}
        rows: int = note["rows"]
        lengths: dict[str, int] = {"pairs": note["pairs"], "starts": note["pairs"] + 1}
        self.columns = {
            column: open_column(_path(folder, note["name"], column), dtype, lengths.get(column, rows))
            for column, dtype in _dtypes(n_relations).items()
        }
        self.pairs, self.starts = self.columns["pairs"], self.columns["starts"]
        self.step, self.relation, self.direction = (self.columns[c] for c in ("step", "relation", "direction"))
        self.first, self.last = note["first"], note["last"]
        if int(self.starts[0]) != 0 or int(self.starts[-1]) != rows:
            path = _path(folder, note["name"], "starts")
            raise RunError(f"{path} is damaged, it does not begin or end where it should; {again(folder)}.")
        if self.columns.keys() - self.checksums.keys():
            raise RunError(f"{folder} holds a segment {note['name']} without checksums; {again(folder)}.")

    def verify(self) -> None:
        """Read every column, and refuse one that is not what was written."""
        for column in self.columns:
            verify_file(_path(self.folder, self.name, column), self.checksums[column], again(self.folder), HEADER)


class Segments:
    """A folder of segments that is whole, opened by memory map."""

    def __init__(self, folder: Path, values: Mapping[str, Any], parts: Sequence[Segment]) -> None:
        self.folder, self.parts = folder, tuple(parts)
        self.n_entities: int = values["n_entities"]
        self.n_relations: int = values["n_relations"]
        self.vocabulary: str | None = values["vocabulary"]
        self.fingerprint: str | None = values["fingerprint"]
        self.rows: int = values["rows"]
        self.end: int = values["end"]

    @property
    def size(self) -> int:
        """Bytes of all columns on disk."""
        return sum(column.nbytes for part in self.parts for column in part.columns.values())

    def verify(self) -> None:
        """Read every column of every segment, and refuse one that is not what was written."""
        for part in self.parts:
            part.verify()

    def check_vocabulary(self, entities: Sequence[str], relations: Sequence[str]) -> None:
        """Refuse a memory whose ids mean other names than these."""
        same = (self.n_entities, self.n_relations) == (len(entities), len(relations))
        if not same or self.vocabulary not in (None, vocabulary_digest(entities, relations)):
            raise RunError(
                f"{self.folder} is a memory of other names ({self.n_entities:,} entities, {self.n_relations:,} "
                f"relations) than the {len(entities):,} and {len(relations):,} asked for; write one of this data."
            )


def open_segments(folder: Path | str, verify: bool | None = None) -> Segments:
    """The segments of a folder, or of the index in a mined one, or the reason why they cannot be read.

    verify: read all of it and compare checksums; left out, only where it is at most VERIFIED bytes. Sizes always are.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file() and (folder / INDEX / MANIFEST).is_file():
        folder = folder / INDEX
    if not (folder / MANIFEST).is_file():
        raise RunError(f"{folder} holds no whole memory: {MANIFEST}, which is written last, is missing.")
    found = _opened(folder, read_manifest(folder / MANIFEST, FORMAT, "a memory", again(folder)))
    if verify or (verify is None and found.size <= VERIFIED):
        found.verify()
    return found


def _opened(folder: Path, values: Mapping[str, Any]) -> Segments:
    try:
        parts = [Segment(folder, note, values["n_relations"]) for note in values["segments"] if note["pairs"]]
        made = Segments(folder, values, parts)
        whole = sum(len(part.step) for part in parts) == made.rows
    except (KeyError, TypeError, AttributeError, IndexError):
        whole = False
    if not whole:
        raise RunError(f"{folder / MANIFEST} is damaged; {again(folder)}.")
    return made

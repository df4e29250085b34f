"""Writing a memory on disk: events, index of pairs and indices of a history, a block of actors at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from bridgemem.errors import RunError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.events.mapped import BLOCK, EVENTS, FORMAT, MANIFEST, NAMES, MappedLog
from bridgemem.memory.disk.mapped import COLUMNS, open_memory
from bridgemem.memory.disk.segments import Note, Segment, Segments, SegmentWriter, seal, vocabulary_digest
from bridgemem.memory.disk.tallies import TallyColumns, ranges_of
from bridgemem.memory.occurrences import first_meetings, occurrence_lines
from bridgemem.memory.timeline import STEP_BITS, changes
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.checksums import file_checksum, write_manifest
from bridgemem.storage.columns import Column, again, forget, open_column
from bridgemem.storage.files import write_json
from bridgemem.storage.whole import check_free, whole_folder

MINING_BLOCK = 1 << 20  # directed rows, next to all else that an engine holds
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # pair, step, relation, direction: int64 [n] each


def write_memory(
    dataset: Dataset,
    folder: Path | str,
    segments: Segments | None = None,
    block: int = BLOCK,
    progress: Progress = SILENT,
    replace: bool = False,
) -> Dataset:
    """Write a data set as a memory on disk, and open it.

    segments: its index of pairs where that was mined already, in any number of segments; else it is made here.
    block: about how many directed rows are held at once; an actor with more of them is held whole.
    replace: a memory that is there gives way when the new one is whole.
    """
    events, folder = dataset.events, Path(folder)
    check_place(folder, replace)
    names = events.entities.names, events.relations.names
    if segments is not None:
        segments.check_vocabulary(*names)
        if segments.rows != 2 * len(events) or segments.fingerprint not in (None, events.fingerprint):
            raise RunError(f"{segments.folder} is an index of other events than {dataset.name}; mine these events.")
        segments.verify()  # damage that was written again would have a checksum of its own
    with whole_folder(folder, replace, marks=(MANIFEST,)) as aside:
        with (
            SegmentWriter(aside, "all", events.n_entities, events.n_relations) as writer,
            _Columns(aside) as columns,
            progress.task("writing the memory", total=2 * len(events)) as advance,
        ):
            for at in range(0, len(events), block):
                columns.add_events(*(getattr(events, name)[at : at + block] for name in EVENTS))
            columns.tallies.add_overall(events.relation, events.step, events.n_relations, block)
            for low, high in _actor_blocks(events, block):
                rows = _mined(segments, low, high) if segments is not None else _sorted(events, low, high, block)
                writer.add(*rows)
                columns.add_indices(events, rows)
                advance(len(rows[0]))
        _seal_memory(aside, columns, writer.note, events, dataset)
        open_memory(aside)  # what cannot be opened is not put in place
    return open_memory(folder, verify=False)


def complete_memory(
    folder: Path, note: Note, log: Iterable[Sequence[np.ndarray]], about: About, progress: Progress = SILENT
) -> None:
    """Make a memory of the folder of one segment, in place: its events and all other indices.

    note: of the segment, which holds the events of the log. log: blocks of subject, relation, object, step in total
    order. The manifest is written last.
    """
    (folder / MANIFEST).unlink(missing_ok=True)
    sizes = len(about.entities), len(about.relations)
    with _Columns(folder) as columns, progress.task("writing the memory", total=note["rows"]) as advance:
        for block in log:
            columns.add_events(*block)
        mapped = columns.events()
        entities = Vocabulary("entity", about.entities, aliases=about.aliases)
        names = entities, Vocabulary("relation", about.relations)
        subject, relation, object_, step = mapped.values()
        events = MappedLog(subject, relation, object_, step, *names, about.clock)
        if 2 * len(events) != note["rows"]:
            raise RunError(f"{folder}: the index and the events are not of the same rows; {again(folder)}.")
        part = Segment(folder, note, sizes[1])
        columns.tallies.add_overall(relation, step, sizes[1], MINING_BLOCK)
        segments = Segments(folder, {**_whole(sizes, note), "vocabulary": None, "fingerprint": None}, [part])
        for low, high in _actor_blocks(events, MINING_BLOCK):
            rows = _mined(segments, low, high)
            columns.add_indices(events, rows)
            forget((*part.columns.values(), *mapped.values()))
            advance(len(rows[0]))
    _seal_memory(folder, columns, note, events, about)


class About(NamedTuple):
    """What a memory says of its events: their name, the names of the ids, clock, split and aliases if any."""

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    clock: Clock
    valid_start: int | None = None
    test_start: int | None = None
    aliases: Mapping[str, str] = MappingProxyType({})


def _whole(sizes: tuple[int, int], note: Note) -> dict[str, Any]:
    return {"n_entities": sizes[0], "n_relations": sizes[1], "rows": note["rows"], "end": note["end"]}


def _seal_memory(folder: Path, columns: _Columns, note: Note, events: EventLog, about: About | Dataset) -> None:
    """Write what makes the columns of a folder a memory; the manifest is the last of it."""
    names = events.entities.names, events.relations.names
    seal(folder, [note], events.n_entities, events.n_relations, vocabulary_digest(*names), events.fingerprint)
    named: dict[str, Any] = {"entities": list(names[0]), "relations": list(names[1])}
    if events.entities.aliases:
        named["aliases"] = dict(events.entities.aliases)
    write_json(folder / NAMES, named)
    manifest = {
        "format": FORMAT,
        "name": about.name,
        "fingerprint": events.fingerprint,
        "valid_start": about.valid_start,
        "test_start": about.test_start,
        "clock": asdict(events.clock),
        "columns": {name: column.length for name, column in columns.columns.items()},
        "checksums": {name: column.checksum for name, column in columns.columns.items()},
        "names": file_checksum(folder / NAMES),
    }
    write_manifest(folder / MANIFEST, manifest)


def check_place(folder: Path, replace: bool = False) -> None:
    """Refuse a place where no memory can be written, before anything is; `replace` frees that of a memory alone."""
    if not (replace and folder.exists()):
        check_free(folder)
    elif not (folder / MANIFEST).is_file():
        raise RunError(f"{folder} is not a memory on disk, and is not replaced; choose another name.")


def _actor_blocks(events: EventLog, block: int) -> Iterator[tuple[int, int]]:
    """Ranges of actors with about `block` directed rows each, in order; every actor is in one."""
    counts = np.zeros(events.n_entities, np.int64)
    for at in range(0, len(events), block):
        for column in (events.subject, events.object):
            counts += np.bincount(column[at : at + block], minlength=events.n_entities)
    return ranges_of(counts, block)


def _sorted(events: EventLog, low: int, high: int, block: int) -> Rows:
    """The directed rows of a range of actors, sorted by pair and total order; the log is read in blocks."""
    parts = []
    for at in range(0, len(events), block):
        subject, object_ = events.subject[at : at + block], events.object[at : at + block]
        for direction, (actor, candidate) in enumerate(((subject, object_), (object_, subject))):
            own = np.flatnonzero((actor >= low) & (actor < high))
            pair = actor[own].astype(np.int64) * events.n_entities + candidate[own]
            parts.append((pair, (own + at) * 2 + direction))
    pair, place = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((place, pair))
    pair, place = pair[order], place[order]
    row = place // 2
    return pair, events.step[row].astype(np.int64), events.relation[row].astype(np.int64), place % 2


def _mined(segments: Segments, low: int, high: int) -> Rows:
    """The directed rows of a range of actors out of mined segments, sorted by pair and total order."""
    parts = []
    for part in segments.parts:
        first, last = np.searchsorted(part.pairs, [low * segments.n_entities, high * segments.n_entities])
        starts = part.starts[first : last + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        pair = np.repeat(part.pairs[first:last], np.diff(starts))
        parts.append((pair, part.step[rows], part.relation[rows], part.direction[rows]))
    if not parts:
        none = np.zeros(0, np.int64)
        return none, none, none, none
    pair, step, relation, direction = (np.concatenate(columns).astype(np.int64) for columns in zip(*parts, strict=True))
    order = np.argsort(pair, kind="stable")
    return pair[order], step[order], relation[order], direction[order]


class _Columns:
    """The columns of a memory while they are written: the events first, then the indices, an actor after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._stack = folder, ExitStack()
        self.columns = {
            name: self._stack.enter_context(Column(folder / f"{name}.npy", dtype)) for name, dtype in COLUMNS.items()
        }
        self.tallies = TallyColumns(self.columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._stack.close()

    def add_events(self, *block: np.ndarray) -> None:
        """Append events: subject, relation, object, step [n]."""
        for name, values in zip(EVENTS, block, strict=True):
            self.columns[f"events.{name}"].add(values)

    def events(self) -> dict[str, np.ndarray]:
        """The columns of the events, which are complete now, by memory map."""
        found = {name: self.columns[f"events.{name}"] for name in EVENTS}
        for column in found.values():
            column.close()
        return {name: open_column(column.path, column.dtype.str, column.length) for name, column in found.items()}

    def add_indices(self, events: EventLog, rows: Rows) -> None:
        """Append what the rows of a range of actors add to the indices, whose keys all begin with the actor."""
        pair, step, relation, direction = rows
        actor, candidate = pair // events.n_entities, pair % events.n_entities
        key = actor * (2 * events.n_relations) + relation + direction * events.n_relations
        line, count, following = occurrence_lines(key, candidate, step)
        order = np.lexsort((step, candidate, key))
        first = order[changes(key[order], candidate[order])] if len(order) else order
        seen, roles = first_meetings(actor, candidate, step), first_meetings(actor * 2 + direction, candidate, step)
        made = {
            "triples": {"codes": line.codes, "candidate": line.value, "count": count, "following": following},
            "answers": {"codes": key[first] << STEP_BITS, "candidate": candidate[first], "first": step[first]},
            "seen": {"codes": seen.codes, "candidate": seen.value},
            "roles": {"codes": roles.codes, "candidate": roles.value},
            "actors": {"codes": np.sort((actor << STEP_BITS) | step)},
            "acts": {"codes": np.sort((key << STEP_BITS) | step)},
        }
        for index, values in made.items():
            for name, column in values.items():
                self.columns[f"{index}.{name}"].add(np.asarray(column))
        self.tallies.add_actors(rows, events.n_entities, events.n_relations)

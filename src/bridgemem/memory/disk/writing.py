"""Writing a memory on disk: events, index of pairs and indices of a history, a block of actors at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bridgemem.errors import RunError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.memory.disk.mapped import BLOCK, COLUMNS, EVENTS, FORMAT, MANIFEST, NAMES, open_memory
from bridgemem.memory.disk.segments import Column, Segments, SegmentWriter, seal, vocabulary_digest
from bridgemem.memory.occurrences import first_meetings, occurrence_lines
from bridgemem.memory.timeline import STEP_BITS, changes
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.checksums import file_checksum, write_manifest
from bridgemem.storage.files import write_json
from bridgemem.storage.whole import check_free, whole_folder

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
    with whole_folder(folder, replace, marks=(MANIFEST,)) as aside, ExitStack() as stack:
        columns = {name: stack.enter_context(Column(aside / f"{name}.npy", d)) for name, d in COLUMNS.items()}
        writer = stack.enter_context(SegmentWriter(aside, "all", events.n_entities, events.n_relations))
        with progress.task("writing the memory", total=2 * len(events)) as advance:
            for at in range(0, len(events), block):
                for name in EVENTS:
                    columns[f"events.{name}"].add(getattr(events, name)[at : at + block])
            for low, high in _actor_blocks(events, block):
                rows = _mined(segments, low, high) if segments is not None else _sorted(events, low, high, block)
                writer.add(*rows)
                _add_indices(columns, events, rows)
                advance(len(rows[0]))
        stack.close()
        seal(aside, [writer.note], events.n_entities, events.n_relations, vocabulary_digest(*names), events.fingerprint)
        write_json(aside / NAMES, {"entities": list(names[0]), "relations": list(names[1])})
        manifest = {
            "format": FORMAT,
            "name": dataset.name,
            "fingerprint": events.fingerprint,
            "valid_start": dataset.valid_start,
            "test_start": dataset.test_start,
            "clock": asdict(events.clock),
            "columns": {name: column.length for name, column in columns.items()},
            "checksums": {name: column.checksum for name, column in columns.items()},
            "names": file_checksum(aside / NAMES),
        }
        write_manifest(aside / MANIFEST, manifest)
        open_memory(aside)  # what cannot be opened is not put in place
    return open_memory(folder, verify=False)


def check_place(folder: Path, replace: bool = False) -> None:
    """Refuse a place where no memory can be written, before anything is; `replace` frees that of a memory alone."""
    if not (replace and folder.exists()):
        check_free(folder)
    elif not (folder / MANIFEST).is_file():
        raise RunError(f"{folder} is no memory on disk, and is not replaced; choose another name.")


def _actor_blocks(events: EventLog, block: int) -> Iterator[tuple[int, int]]:
    """Ranges of actors with about `block` directed rows each, in order; every actor is in one."""
    counts = np.zeros(events.n_entities, np.int64)
    for at in range(0, len(events), block):
        for column in (events.subject, events.object):
            counts += np.bincount(column[at : at + block], minlength=events.n_entities)
    reached = np.cumsum(counts)
    low = 0
    while low < events.n_entities:
        before = int(reached[low - 1]) if low else 0
        high = max(int(np.searchsorted(reached, before + block, side="right")), low + 1)
        yield low, high
        low = high


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


def _add_indices(columns: dict[str, Column], events: EventLog, rows: Rows) -> None:
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
    }
    for index, values in made.items():
        for name, column in values.items():
            columns[f"{index}.{name}"].add(np.asarray(column))

"""Given splits: train, valid and test as a folder, as files or as frames, each part of one data set."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.readers.id_files import read_stat, read_vocabulary, with_size
from bridgemem.events.readers.read import Reading, ReadOptions, read_events
from bridgemem.events.readers.text import KEPT_REJECTS
from bridgemem.progress import SILENT, Progress

SPLITS = ("train", "valid", "test")
KINDS = ("entity", "relation")
# what the parts of a split are called elsewhere
WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
PART = re.compile(rf"(?:.*[_. -])?({'|'.join(WORDS)})(?:2id)?", re.IGNORECASE)
ENDINGS = ("", ".txt", ".tsv", ".csv", ".parquet", ".pq", ".parq")
PACKED = ("", ".gz", ".zip")
LAYOUT = "train.txt, valid.txt, test.txt, entity2id.txt and relation2id.txt (or stat.txt)"


@dataclass(frozen=True)
class Split:
    """The parts of a data set that is split already: files or frames by "train", "valid" and, if any, "test".

    folder: where id files and a stat.txt may lie, None for frames and for files of several folders. is_folder: it was
    given as a whole, and not by its files.
    """

    name: str
    parts: Mapping[str, Any]
    folder: Path | None = None
    is_folder: bool = False

    @property
    def has_ids(self) -> bool:
        """Whether the parts are ids that files next to them give names, or the number, to."""
        return self.folder is not None and any(_beside(self.folder, f"{kind}2id.txt") for kind in KINDS)

    def check(self) -> None:
        """Refuse parts without one that every command needs."""
        lacking = [part for part in SPLITS[:2] if part not in self.parts]
        if lacking:
            there = " and ".join(self.parts)
            raise DataError(
                f"{self.name} gives {there}, but no {' and no '.join(lacking)}; add it, or join all events in one file "
                "and give the boundaries with --split-at DATE DATE (split_at in Python)."
            )


def given_split(source: Any) -> Split | None:
    """The split that a source gives: a folder, a dict of parts, files that are named after them, or three frames.

    None where it gives none. Of several files some may be called like parts; then all of them must be.
    """
    if is_folder(source):
        return _in_folder(Path(source))
    if has_parts(source):
        parts = {WORDS[key.lower()]: part for key, part in source.items()}
        files = [Path(part) for part in parts.values() if isinstance(part, str | Path)]
        return Split("events", parts, _home(files) if len(files) == len(parts) else None)
    if not isinstance(source, list | tuple) or not 2 <= len(source) <= 3:
        return None
    if not any(isinstance(part, str | Path) for part in source):
        return Split("events", dict(zip(SPLITS, source, strict=True))) if len(source) == 3 else None
    if not all(isinstance(part, str | Path) for part in source):
        return None
    files = [Path(part) for part in source]
    called = [part_of(path) for path in files]
    if None in called or "train" not in called or len(set(called)) < len(called):
        return None
    home = _home(files)
    by_part = {part: path for part, path in zip(called, files, strict=True) if part}
    return Split(
        home.resolve().name if home else "events", {part: by_part[part] for part in SPLITS if part in by_part}, home
    )


def has_parts(source: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether this is a dict of the parts of a split, and not one of columns."""
    return (
        isinstance(source, Mapping)
        and bool(source)
        and all(isinstance(key, str) and key.lower() in WORDS for key in source)
    )


def read_split(
    split: Split,
    options: ReadOptions,
    progress: Progress = SILENT,
    *,
    strict: bool = False,
    kept: int = KEPT_REJECTS,
) -> tuple[Dataset, Reading]:
    """The data set of a split, all parts read as one table, and how they were read.

    Steps are counted in the largest unit that divides all times, such as 24 for days that are counted in hours.
    Where files name the ids, or count them, all of these are candidates, whether they occur or not.

    Raises:
        DataError: A part is missing or holds something else, or the parts do not follow each other in time.
    """
    split.check()
    vocabularies = _id_vocabularies(split)
    parts = [split.parts[name] for name in SPLITS if name in split.parts]
    entities, relations = vocabularies
    reading = read_events(
        parts,
        options,
        entities=entities,
        relations=relations,
        strict=strict or split.has_ids,
        kept=kept,
        progress=progress,
    )
    events = _numbered(split, reading.events, vocabularies)
    logs = [events.take(reading.parts == i) for i in range(len(parts))]
    places = [str(part) if isinstance(part, str | Path) else name for name, part in split.parts.items()]
    return joined(split.name, places, logs), reading


def load_folder(split: Split, options: ReadOptions, *, progress: Progress = SILENT) -> Dataset:
    """As `read_split`, with warnings of what a user should know of the reading."""
    dataset, reading = read_split(split, options, progress)
    clock = dataset.events.clock
    said = reading.notable()
    if clock.kind == "integer" and clock.unit > 1 and options.step is None:
        said.append(f"All times are multiples of {clock.unit:,}, so a step is {clock.unit:,} units of the times.")
    for sentence in said:
        warnings.warn(sentence, stacklevel=4)
    return dataset


def is_folder(source: object) -> bool:
    """Whether this names a folder that may hold a data set."""
    return isinstance(source, str | Path) and Path(source).is_dir()


def part_of(path: Path) -> str | None:
    """Which part of a split a file is called after, such as train.txt.gz, icews_valid.csv or test2id.txt."""
    name = path.name.lower()
    for packed in PACKED[1:]:
        name = name.removesuffix(packed)
    stem = next((name.removesuffix(end) for end in ENDINGS[1:] if name.endswith(end)), name)
    found = PART.fullmatch(stem)
    return WORDS[found[1]] if found else None


def split_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that are parts of a split; of several for one part the plainest name."""
    found: dict[str, list[Path]] = {}
    for path in sorted(
        folder.iterdir(), key=lambda path: (path.name.split(".")[0].lower() not in WORDS, len(path.name))
    ):
        if path.is_file() and (part := part_of(path)):
            found.setdefault(part, []).append(path)
    for part, paths in found.items():
        stems = {path.name.split(".")[0] for path in paths}
        if len(paths) > 1 and len(stems) > 1 and paths[0].name.split(".")[0].lower() not in WORDS:
            raise DataError(f"{folder} has several files for {part}: {paths[0].name} and {paths[1].name}; keep one.")
    return {part: found[part][0] for part in SPLITS if part in found}


def joined(name: str, files: Sequence[object], logs: Sequence[EventLog]) -> Dataset:
    """One data set of the logs of its splits, each of which begins after the one before it."""
    events = logs[0]
    for path, log in zip(files, logs, strict=True):
        if not len(log):
            raise DataError(f"{path} holds no events that can be read; every part of a split needs some.")
    for path, log in zip(files[1:], logs[1:], strict=True):
        if log.step[0] <= events.step[-1]:
            raise DataError(
                f"{path} begins at step {log.step[0]}, before the split ahead of it has ended; splits must follow each "
                "other in time. Join the events in one file if they are no split."
            )
        events = events.append(log)
    starts = [int(log.step[0]) for log in logs[1:]]
    return Dataset(name, events, starts[0], starts[1] if len(starts) > 1 else None)


def _in_folder(folder: Path) -> Split:
    files = split_files(folder)
    if not {"train", "valid"} <= set(files):
        lacking = [f"{part}.txt" for part in SPLITS[:2] if part not in files]
        raise DataError(
            f"{folder} is not a data set folder: it lacks {', '.join(lacking)}; give one file of events, or a folder "
            f"of {LAYOUT}, or of train, valid and test as CSV or Parquet files."
        )
    return Split(folder.resolve().name, files, folder, is_folder=True)


def _home(files: Iterable[Path]) -> Path | None:
    """The folder of files, None where they have several."""
    homes = {path.parent for path in files}
    return homes.pop() if len(homes) == 1 else None


def _beside(folder: Path, name: str) -> Path | None:
    return next((path for end in ("", ".gz") if (path := folder / f"{name}{end}").is_file()), None)


def _id_vocabularies(split: Split) -> list[Vocabulary | None]:
    """Entities and relations as the files next to the parts name them, None where there are none."""
    if split.folder is None:
        return [None, None]
    files = [_beside(split.folder, f"{kind}2id.txt") for kind in KINDS]
    found = [read_vocabulary(path, kind) if path else None for path, kind in zip(files, KINDS, strict=True)]
    sizes = _sizes(split)
    return [with_size(one, kind, size) if one else None for one, kind, size in zip(found, KINDS, sizes, strict=True)]


def _sizes(split: Split) -> tuple[int, int]:
    """The numbers of entities and relations in a stat.txt, 0 where there is none."""
    stat = _beside(split.folder, "stat.txt") if split.folder else None
    return read_stat(stat) if stat else (0, 0)


def _numbered(split: Split, events: EventLog, known: Sequence[Vocabulary | None]) -> EventLog:
    """The events with all ids that a stat.txt counts, where they are ids without names.

    Ids without a known number of names are refused in a folder, since every candidate counts in a rank.
    """
    made, columns = [events.entities, events.relations], [events.subject, events.relation, events.object]
    for i, (kind, size) in enumerate(zip(KINDS, _sizes(split), strict=True)):
        names = made[i]
        if known[i] is not None or not names.numbers:
            continue
        ids = np.array(list(map(int, names.names)), np.int64)
        if not size and split.folder and split.is_folder:
            raise DataError(
                f"{split.folder} is not a data set folder: it lacks {kind}2id.txt, which names the ids of its "
                "events, or a stat.txt with the numbers of entities and relations."
            )
        if size and ids.max() >= size:
            raise DataError(
                f"{split.folder} has the {kind} id {ids.max()}, and its stat.txt counts {size:,} only; fix stat.txt."
            )
        if size:
            made[i] = with_size(None, kind, size)
            for column in (1,) if i else (0, 2):
                columns[column] = ids[columns[column]]
    return EventLog(columns[0], columns[1], columns[2], events.step, made[0], made[1], events.clock)

"""Folders: the standard layout of temporal knowledge graphs, train, valid and test files of ids under one split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.readers.read import ReadOptions, read_events, read_vocabulary
from bridgemem.progress import SILENT, Progress

SPLITS = ("train", "valid", "test")
NAMES = ("entity2id.txt", "relation2id.txt")


def load_folder(folder: Path | str, *, progress: Progress = SILENT) -> Dataset:
    """A data set under its official split, from `train.txt`, `valid.txt`, `test.txt` (or .gz) and the names of the ids.

    Times are divided by what all of them have in common, such as 24 for days that are counted in hours. A folder
    without a test file loads, and has no test split.

    Args:
        folder: Holds the files; `entity2id.txt` and `relation2id.txt` give every id its name.
        progress: Told how far the reading is.

    Raises:
        DataError: A file is missing or holds something else, or the splits do not follow each other in time.
    """
    folder = Path(folder)
    files = {split: file for split in SPLITS if (file := split_file(folder, split)).is_file()}
    lacking = [f"{split}.txt" for split in SPLITS[:2] if split not in files]
    lacking += [name for name in NAMES if not (folder / name).is_file()]
    if lacking:
        raise DataError(
            f"{folder} is no folder of a data set: it lacks {', '.join(lacking)}; give one file of events, or a folder "
            "of train.txt, valid.txt, test.txt, entity2id.txt and relation2id.txt."
        )
    paths = list(files.values())
    return joined(folder.name, paths, _in_units(read_splits(folder, paths, 1, progress)))


def is_folder(source: object) -> bool:
    """Whether this names a folder that may hold a data set."""
    return isinstance(source, str | Path) and Path(source).is_dir()


def split_file(folder: Path, split: str) -> Path:
    """The file of a split, plain where there is one, else packed."""
    plain = folder / f"{split}.txt"
    return plain if plain.is_file() else folder / f"{split}.txt.gz"


def read_splits(folder: Path, files: Sequence[Path], unit: int, progress: Progress) -> list[EventLog]:
    """The events of each split, ids named by the folder; step = time / unit."""
    entities, relations = (
        read_vocabulary(folder / name, kind) for name, kind in zip(NAMES, ("entity", "relation"), strict=True)
    )
    options = ReadOptions(step=unit)
    return [
        read_events(file, options, entities=entities, relations=relations, strict=True, progress=progress).events
        for file in files
    ]


def joined(name: str, files: Sequence[Path], logs: Sequence[EventLog]) -> Dataset:
    """One data set of the logs of its splits, each of which begins after the one before it."""
    events = logs[0]
    for path, log in zip(files[1:], logs[1:], strict=True):
        if log.step[0] <= events.step[-1]:
            raise DataError(
                f"{path} begins at step {log.step[0]}, before the split ahead of it has ended; splits must follow each "
                "other in time."
            )
        events = events.append(log)
    starts = [int(log.step[0]) for log in logs[1:]]
    return Dataset(name, events, starts[0], starts[1] if len(starts) > 1 else None)


def _in_units(logs: Sequence[EventLog]) -> list[EventLog]:
    """The logs with their times divided by the largest number that divides all of them."""
    unit = max(1, int(np.gcd.reduce([int(np.gcd.reduce(log.step, initial=0)) for log in logs])))
    return [replace(log, step=log.step // unit, clock=Clock("integer", 0, unit)) for log in logs]

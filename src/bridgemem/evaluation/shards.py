"""Evaluation in shards: parts of a split, cut by step, that are ranked anywhere and join to the same ranks and records.

`shard_ranks` takes paths and a range of steps and gives arrays, so that a process pool or a cluster can map it. A part
on disk is a table of ranks and a note that says whose part it is; `join_parts` refuses all but one whole set of them.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from bridgemem import __version__
from bridgemem.config import Count, Declared, Size, check
from bridgemem.errors import RunError, SettingsError
from bridgemem.evaluation.evaluate import KNOWN, conclude, rank_columns, ranked_by, read, reading_of
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.parallel import end_with_parent
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.ranks import batch_of
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.storage.files import write_json
from bridgemem.storage.schema import read_as
from bridgemem.storage.tables import read_columns, write_table
from bridgemem.training.devices import describe_device

FORMAT = 1
AGAIN = "write this shard again"
Ranks = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shard:
    """The number-th of `of` parts of a split, counted from 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise SettingsError(f"a shard is written as 1/{max(self.of, 1)}, the first of that many, not as {self}.")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and len(text) < 20):
            raise SettingsError(f"a shard is written as 2/8, the second of eight, not as {text!r}.")
        return cls(int(number), int(of))


@dataclass(frozen=True)
class PartNote(Declared):
    """What is noted of a part: of which run and shard it is, its steps [first, stop), and the table that holds it."""

    format: int
    run: str
    split: str
    number: Count
    of: Count
    steps: tuple[int, int]
    rows: Size
    device: str
    cells: Count | None
    table: str
    digest: str


def shard_steps(dataset: Dataset, split: str, shards: int) -> list[tuple[int, int]]:
    """The steps [first, stop) of every shard of a split, each with about as many queries."""
    step = dataset.split(split).step
    distinct, start = np.unique(step, return_index=True)
    if len(distinct) < shards:
        raise SettingsError(f"{split} has {len(distinct)} steps, too few for {shards} shards; ask for fewer.")
    places = [0]
    for number in range(1, shards):
        place = int(np.searchsorted(start, len(step) * number // shards))
        # each shard keeps at least one step, whatever the steps weigh
        places.append(min(max(place, places[-1] + 1), len(distinct) - (shards - number)))
    bounds = [*(int(distinct[place]) for place in places), int(distinct[-1]) + 1]
    return list(itertools.pairwise(bounds))


def shard_ranks(
    run: Path | str,
    split: str,
    *,
    first: int,
    stop: int,
    data_dir: Path | None = None,
    memory_dir: Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    cells: int | None = None,
) -> Ranks:
    """The ranks of the queries with first <= step < stop, as columns [n]: rows of the whole split's ranks, bit for bit.

    Every argument is plain, so that the call can be sent to another process or machine. threads: of the arithmetic,
    where it is not to be what torch thinks best. cells: queries times entities in a batch, which bounds the memory.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    opened = Run(run, data_dir=data_dir, memory_dir=memory_dir)
    return _ranks(opened, opened_data(opened, split), split, first, stop, device, SILENT, cells)


def opened_data(run: Run, split: str) -> Dataset:
    """The data of a run as evaluation reads it, once every selection was found intact."""
    for name in SELECTION_FILTERS:
        run.selection(name)
    dataset = run.dataset
    return dataset.without_test() if split == "valid" else dataset


def _ranks(
    run: Run,
    dataset: Dataset,
    split: str,
    first: int,
    stop: int,
    device: str,
    progress: Progress,
    cells: int | None,
) -> Ranks:
    queries = Queries.of(dataset.split(split))
    low, high = np.searchsorted(queries.step.numpy(), [first, stop]).tolist()
    # the last digit of a score may depend on the batch it is computed in: the batches are those of the whole split
    size = batch_of(dataset.events, torch.device(device), cells)
    begin = low // size * size
    part = queries.take(slice(begin, -(-high // size) * size))
    columns = rank_columns(read(run, dataset, split, part, device, progress, cells))
    return {name: column[low - begin : high - begin] for name, column in columns.items()}


def evaluate_in_pool(
    run: Run,
    workers: int,
    split: str = "test",
    device: str = "cpu",
    progress: Progress = SILENT,
    cells: int | None = None,
) -> list[Record]:
    """Evaluate a run by a pool of processes, a shard each, with the same ranks and records as in one process.

    The cores are shared out among the workers. As anywhere, another number of threads may move the last digit of a
    score, and with it the order of candidates that are all but equal.
    """
    check("workers", workers, Count)
    dataset = opened_data(run, split)
    steps = shard_steps(dataset, split, min(workers, len(np.unique(dataset.split(split).step))))
    threads = max(torch.get_num_threads() // len(steps), 1)
    parts: dict[int, Ranks] = {}
    with (
        progress.task(f"reading {split} in {len(steps)} processes", total=len(steps)) as advance,
        # spawned, not forked: a fork of a process whose threads hold locks may wait for ever
        ProcessPoolExecutor(len(steps), mp_context=get_context("spawn"), initializer=end_with_parent) as pool,
    ):
        where = partial(shard_ranks, run.folder, split, data_dir=run.data_dir, memory_dir=run.memory_dir)
        ranks = partial(where, device=device, threads=threads, cells=cells)
        tasks = {pool.submit(ranks, first=first, stop=stop): first for first, stop in steps}
        try:
            for task in as_completed(tasks):
                parts[tasks[task]] = task.result()
                advance()
        except BrokenProcessPool:
            raise RunError(
                "a worker process ended before its shard was read, perhaps because memory ran out; use fewer --workers."
            ) from None
        finally:
            for task in tasks:
                task.cancel()
    return concluded(run, dataset, split, [parts[first] for first, _ in steps], device)


def concluded(
    run: Run, dataset: Dataset, split: str, parts: Sequence[Ranks], device: str, made_on: str | None = None
) -> list[Record]:
    """What `conclude` makes of the ranks of a whole split in parts, given in the order of their steps."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return conclude(run, dataset, split, reading_of(columns, ranked_by(run)), device, made_on)


def parts_folder(run: Run) -> Path:
    """Where the parts of a run's ranks wait to be joined."""
    return run.folder / "shards"


def write_part(
    run: Run,
    shard: Shard,
    split: str = "test",
    device: str = "cpu",
    progress: Progress = SILENT,
    cells: int | None = None,
) -> Path:
    """Rank one shard of a split and keep its part in the run, to be joined when all are there."""
    dataset = opened_data(run, split)
    first, stop = shard_steps(dataset, split, shard.of)[shard.number - 1]
    ranks = _ranks(run, dataset, split, first, stop, device, progress, cells)
    stem = f"{split}-{shard.number:05d}-of-{shard.of:05d}"
    path = write_table(parts_folder(run) / f"{stem}.parquet", ranks)
    rows, made_on = len(ranks["step"]), describe_device(device)
    note = PartNote(
        FORMAT,
        identity(run),
        split,
        shard.number,
        shard.of,
        (first, stop),
        rows,
        made_on,
        cells,
        path.name,
        _digest(path),
    )
    write_json(parts_folder(run) / f"{stem}.json", asdict(note))
    return path


def join_parts(
    run: Run,
    split: str = "test",
    device: str = "cpu",
) -> list[Record]:
    """Join the parts of a split into the ranks, metrics and records of the whole, and take the parts away."""
    folder = parts_folder(run)
    notes = {path: read_as(path, PartNote, AGAIN) for path in sorted(folder.glob(f"{split}-*.json"))}
    if not notes:
        raise RunError(f"{folder} holds no part of {split}; `bridgemem evaluate {run.folder} --shard 1/4` writes one.")
    own = identity(run)
    for path, note in notes.items():
        _check_note(path, note, own, split)
    ordered = sorted(notes.values(), key=lambda note: note.number)
    _check_set(folder, [Shard(note.number, note.of) for note in ordered])
    if len({note.cells for note in ordered}) > 1:
        raise RunError(f"{folder} holds parts that were read with different --cells; write them with the same.")
    dataset = opened_data(run, split)
    steps = shard_steps(dataset, split, len(ordered))
    needed = (*KNOWN, *(method.column(f) for method in ranked_by(run) for f in FILTERS))
    tables = [_table(folder, note, steps[i], needed) for i, note in enumerate(ordered)]
    made_on = " and ".join(sorted({note.device for note in ordered}))
    records = concluded(run, dataset, split, tables, device, made_on)
    for path, note in notes.items():
        path.unlink()
        (folder / note.table).unlink()
    if not any(folder.iterdir()):
        shutil.rmtree(folder)
    return records


def _check_note(path: Path, note: PartNote, own: str, split: str) -> None:
    if Path(note.table).name != note.table:  # it is read, and removed in the end
        raise RunError(f"{path} names a table that does not lie next to it; {AGAIN}.")
    if note.format != FORMAT:
        raise RunError(f"{path} has format {note.format}, and this program joins {FORMAT}; {AGAIN}.")
    if (note.run, note.split) != (own, split):
        raise RunError(
            f"{path} is a part of another run, of this one before it was changed, or of another version of the "
            "program; delete it and write this shard again."
        )


def _check_set(folder: Path, shards: Sequence[Shard]) -> None:
    """Exactly one part of every shard, all of the same cut."""
    if len({shard.of for shard in shards}) > 1:
        cuts = " and of ".join(str(of) for of in sorted({shard.of for shard in shards}))
        raise RunError(f"{folder} holds parts of {cuts} shards, which do not join; keep those of one --shard count.")
    numbers, of = [shard.number for shard in shards], shards[0].of
    if len(set(numbers)) != len(numbers):
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise RunError(f"{folder} holds shard {twice}/{of} more than once; keep one of them.")
    missing = of - len(numbers)
    if missing:
        first = itertools.islice((n for n in range(1, of + 1) if n not in set(numbers)), 5)
        named = ", ".join(f"{n}/{of}" for n in first) + (", ..." if missing > 5 else "")
        raise RunError(f"{folder} lacks {missing} of {of} shards: {named}; write them with --shard.")


def _table(folder: Path, note: PartNote, steps: tuple[int, int], needed: Iterable[str]) -> Ranks:
    """The columns of a part, which are those that its note was written for."""
    path = folder / note.table
    if not path.is_file() or _digest(path) != note.digest:
        raise RunError(f"{path} is missing, or not the one that was written; write this shard again.")
    if note.steps != steps:
        raise RunError(f"{path} holds other steps than this shard of the data has; write this shard again.")
    columns = read_columns(path, needed)
    if len(columns["step"]) != note.rows:
        raise RunError(f"{path} holds other rows than its note says; write this shard again.")
    return columns


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def identity(run: Run) -> str:
    """A digest of what ranks depend on: the program, the run's settings, model and choices, and its backbone."""
    made = hashlib.sha256(__version__.encode())
    for name in ("config.toml", "model.safetensors", "selection.json"):
        path = run.folder / name
        if not path.is_file():
            raise RunError(f"{path} is missing; fit the run again.")
        made.update(f"{name} {_digest(path)}".encode())
    # a backbone may be gigabytes of stored scores: those are told apart by name and size
    for path in run.backbone_files():
        content = _digest(path) if path.suffix == ".toml" else str(path.stat().st_size)
        made.update(f"{path.relative_to(run.folder)} {content}".encode())
    return made.hexdigest()[:16]

"""The embedded engine: DuckDB reads, numbers, sorts and spills on one machine, and the one kernel reads on."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bridgemem.config import Declared, Range, Settings, Size
from bridgemem.errors import RunError
from bridgemem.events.aliases import Aliases
from bridgemem.events.log import Clock, Vocabulary
from bridgemem.events.readers.lakes import event_columns, local_files
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.whole_numbers import plain_number
from bridgemem.memory.disk.segments import Note, SegmentWriter, vocabulary_digest
from bridgemem.memory.disk.writing import About
from bridgemem.outofcore.base import Miner, Mining, Part, write_mined
from bridgemem.outofcore.corpus import Corpus, clear_errors
from bridgemem.outofcore.sources import common_kinds, describe, mining_options
from bridgemem.outofcore.working_directory import PARTS, WORK, mining_place, prepare
from bridgemem.progress import SILENT, Progress, Step
from bridgemem.storage.checksums import checksum, verify_file
from bridgemem.storage.files import read_json, write_json
from bridgemem.storage.whole import sync, whole_file

LEAST_MEMORY = 1 << 29
MOST_THREADS = 1024  # DuckDB starts as many as it is told, and the process ends where there is no room for them
OWN_MEMORY = 350 << 20  # of Python, numpy, torch and the kernel's blocks
EXAMPLE_BYTES = 140  # while samples are merged, with eight tokens each
ROW_BYTES = 200  # of a row while DuckDB sorts it, with the next range being sorted already
MOST_RANGES = 64  # each is a pass over the events, so beyond this DuckDB rather spills


@dataclass(frozen=True)
class Limits(Declared):
    """What the engine may use: bytes of memory in all, threads, and rows of a range (0: what the memory can sort)."""

    memory: Annotated[int, Range(ge=LEAST_MEMORY, note=f"bytes ({LEAST_MEMORY >> 20} MB)")] = 2 << 30
    threads: Annotated[int, Range(ge=1, le=MOST_THREADS)] = 2
    rows: Size = 0

    def for_duckdb(self, settings: Settings) -> int:
        """What is left for DuckDB next to the kernel and the sample."""
        return max(self.memory - OWN_MEMORY - EXAMPLE_BYTES * settings.max_examples, self.memory // 4)


def mine_files(
    sources: Iterable[str | Path],
    out: str | Path,
    settings: Settings | None = None,
    *,
    options: ReadOptions | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
    aliases: Aliases | None = None,
    rejects: Path | None = None,
    seed: int = 42,
    limits: Limits | None = None,
    force: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Mine files of events into a folder: count table, sampled examples, index and names; returns what mined.json says.

    sources: Parquet, CSV and TSV files (gz and zip too) or globs of them, Delta tables, iceberg:// names and s3://
    URLs, in the order of their events where steps tie; plain, or in a published layout.
    options, entities, relations: as for `read_events`. aliases: names that become others, by `read_aliases`.
    rejects: a file for rejected rows, where none may refuse a file of events.
    A run that was cut off goes on when it is started again in the same way; `force` starts over and replaces what an
    earlier mining left in the folder.
    """
    settings, limits, options = settings or Settings(), limits or Limits(), options or ReadOptions()
    out = Path(out)
    with ExitStack() as stack:
        # next to the result, so that a mining that goes on after a kill finds what it fetched
        fetched = out.with_name(f"{out.name}.sources")
        paths = list(stack.enter_context(local_files(list(sources), event_columns(options), fetched)))
        asked = {
            "files": [[str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths],
            "settings": asdict(settings),
            "reading": asdict(options),
            "seed": seed,
            "names": [vocabulary_digest(v.names, ()) if v else None for v in (entities, relations)],
            "aliases": aliases and vocabulary_digest(tuple(aliases), tuple(aliases.values())),
            "rejects": rejects and str(rejects.absolute()),
        }
        files = [describe(path, options) for path in paths]
        options = mining_options(files, options)
        common_kinds(files)
        stack.enter_context(clear_errors(out))
        place = stack.enter_context(mining_place(out, force))
        work = prepare(place, asked, force)
        database = work / "corpus.duckdb"
        memory = limits.for_duckdb(settings)
        corpus = stack.enter_context(closing(Corpus(database, memory, limits.threads, out, rejects)))
        names = [name for known in (entities, relations) if known for name in known.names]
        corpus.read(files, progress, [name for name in names if plain_number(name) != name])
        found = corpus.number(files, options, entities, relations, progress, aliases)
        mining = Mining(settings, found["n_entities"], found["n_relations"], seed)
        rows = limits.rows or max(memory // ROW_BYTES, 1)
        ranges = _Ranges(corpus, mining, place, corpus.bounds(rows, MOST_RANGES))
        ranges.mine(2 * found["events"], progress)
        about = About(
            out.name,
            entities.names if entities and aliases is None else tuple(corpus.names("entity")),
            relations.names if relations else tuple(corpus.names("relation")),
            Clock(**found["clock"]),
            aliases=aliases or {},
        )
        source = {"engine": "duckdb", "files": len(paths)}
        source |= {name: found[name] for name in ("rejected", "dropped", "remarks")}
        made = ranges.parts(), ranges.notes(), corpus.in_order()
        done = write_mined(place, mining, *made, about=about, source=source, progress=progress)
        corpus.close()
        shutil.rmtree(work, ignore_errors=True)
    return {**done, "merged": found.get("merged")}


class _Ranges:
    """The ranges of actors, each sorted by DuckDB, read by the kernel, and kept as a part once it is whole."""

    def __init__(self, corpus: Corpus, mining: Mining, out: Path, bounds: list[int]) -> None:
        self.corpus, self.mining, self.out = corpus, mining, out
        self.bounds = list(pairwise(bounds))
        self._sample_keys = np.empty(0, dtype=np.uint64)

    def mine(self, total: int, progress: Progress) -> None:
        """Mine what is not mined yet; the next range is sorted while the kernel reads the one before."""
        (self.out / WORK / PARTS).mkdir(exist_ok=True)
        with progress.task("mining pairs", total=total) as advance:
            for number in range(len(self.bounds)):
                if self._path(number, "safetensors").is_file():
                    self._passed(self._part(number), advance)
            waiting = [n for n in range(len(self.bounds)) if not self._path(n, "safetensors").is_file()]
            with closing(self._sorted(waiting)) as ranges:
                for number, blocks in ranges:
                    self._range(number, blocks, advance)

    def _sorted(self, numbers: list[int]) -> Generator[tuple[int, Iterator[tuple[np.ndarray, ...]]], None, None]:
        """Ranges with their sorted rows; DuckDB sorts the next one meanwhile, into another cursor's table."""
        cursors = (self.corpus.cursor(), self.corpus.cursor())

        def sort(i: int) -> int:
            return self.corpus.sort(cursors[i % 2], *self.bounds[numbers[i]], self.mining.n_entities)

        with ThreadPoolExecutor(max_workers=1) as sorter:
            try:
                ahead = sorter.submit(sort, 0) if numbers else None
                for i, number in enumerate(numbers):
                    rows = ahead.result() if ahead else 0
                    ahead = sorter.submit(sort, i + 1) if i + 1 < len(numbers) else None
                    yield number, self.corpus.blocks(cursors[i % 2], rows)
            except BaseException:
                for cursor in cursors:
                    cursor.interrupt()
                raise

    def _range(self, number: int, blocks: Iterator[tuple[np.ndarray, ...]], advance: Step) -> None:
        most = self.mining.settings.max_examples
        limit = int(self._sample_keys.max()) if len(self._sample_keys) >= most else 2**64 - 1
        name, index = f"{number:05d}", self.out / "index"
        with SegmentWriter(index, name, self.mining.n_entities, self.mining.n_relations) as segment:
            miner = Miner(self.mining, segment, limit)
            for block in blocks:
                miner.feed_pairs(*block)
                advance(len(block[0]))
            part = miner.finish()
        for file in index.glob(f"segment-{name}.*"):
            sync(file)
        content = part.to_bytes()
        write_json(self._path(number, "json"), {**segment.note, "part": checksum(content)})
        with whole_file(self._path(number, "safetensors")) as aside:
            aside.write_bytes(content)
        self._passed(part, None)

    def _passed(self, part: Part, advance: Step | None) -> None:
        """Remember the smallest sample keys so far: no later range needs to draw a larger one."""
        sample_keys = np.concatenate([self._sample_keys, part.sample.sample_key])
        most = self.mining.settings.max_examples
        self._sample_keys = np.partition(sample_keys, most - 1)[:most] if len(sample_keys) > most else sample_keys
        if advance:
            advance(part.rows)

    def _path(self, number: int, ending: str) -> Path:
        return self.out / WORK / PARTS / f"{number:05d}.{ending}"

    def _part(self, number: int) -> Part:
        path = self._path(number, "safetensors")
        verify_file(path, self._note(number).get("part"), "mine again with --force")
        try:
            return Part.from_bytes(path.read_bytes(), self.mining)
        except RunError as problem:
            raise RunError(f"{path} cannot be used, {problem}") from None

    def parts(self) -> Iterator[Part]:
        return (self._part(number) for number in range(len(self.bounds)))

    def notes(self) -> list[Note]:
        notes = (self._note(number) for number in range(len(self.bounds)))
        return [{name: value for name, value in note.items() if name != "part"} for note in notes]

    def _note(self, number: int) -> Note:
        found = read_json(self._path(number, "json"))
        if not isinstance(found, dict):
            raise RunError(f"{self._path(number, 'json')} is damaged; mine again with --force.")
        return found

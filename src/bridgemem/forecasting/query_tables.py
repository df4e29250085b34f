"""Query tables: queries of any number answered into a file, in bounded memory, in parts that outlive a kill.

All queries are checked first: one that cannot be asked refuses all, and nothing is written. Then they are answered in
blocks of a fixed size. The answers to a block are a part, a file in the folder OUT.parts, and are noted there when they
are whole. A run that is resumed answers the other blocks; so its answers are those of one that was not interrupted.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bridgemem.backbones.trained import RENEWED
from bridgemem.config import Count, check
from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.events.readers.rejects import MOST, RejectedError
from bridgemem.events.readers.text import Reject
from bridgemem.forecasting.answer_files import check_format
from bridgemem.forecasting.batch_queries import (
    HEADER,
    Query,
    answer,
    in_ids,
    named_problems,
)
from bridgemem.forecasting.predictor import Predictor
from bridgemem.forecasting.query_sources import QuerySource
from bridgemem.parallel import end_with_parent
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.checksums import file_checksum
from bridgemem.storage.files import read_json, write_json
from bridgemem.storage.placing import reserved
from bridgemem.storage.tables import join_parquet
from bridgemem.storage.whole import naming_full, whole_file

BLOCK = 10_000  # queries of a part
MOST_ROWS = 200_000  # answers of a part, where each query has many
MANIFEST, DONE = "manifest.json", "done.jsonl"
FORMAT = 1
RUN_FILES = (
    *("config.toml", "entities.txt", "relations.txt", "aliases.csv", "model.safetensors", "epochs.json"),
    *("selection.json", "calibration.json", "updates.json"),
)

Opened = Callable[[], Predictor]
Part = tuple[int, int, str]  # the number of a block from 0, the rows of its answers, and the checksum of their file


@dataclass(frozen=True)
class Asked:
    """What a table of answers answers: the queries by a digest, the model by its identity, and how they were asked."""

    queries: int
    digest: str
    model: str
    top: int
    horizon: int | None
    block: int
    form: str
    format: int = FORMAT

    def check(self, begun: dict[str, Any], parts: Path) -> None:
        """Refuse to go on with parts that were begun otherwise."""
        words = {
            "digest": "other queries",
            "model": "another model, or other events in its store",
            "top": f"--top {begun.get('top')}",
            "horizon": f"--horizon {begun.get('horizon')}",
        }
        for name, value in asdict(self).items():
            if begun.get(name) != value:
                was = words.get(name, "another version of the program")
                raise SettingsError(f"{parts} was begun with {was}; ask as it was begun, or use --force to start over.")


@dataclass(frozen=True)
class Answered:
    """A table of answers that was written: its queries, rows and parts. resumed: parts that were there before."""

    queries: int
    rows: int
    parts: int
    resumed: int


def model_identity(folder: Path | None, predictor: Predictor) -> str:
    """A text that identifies a model and its events, as far as answers depend on them."""
    digest = hashlib.sha256(predictor.events.fingerprint.encode())
    digest.update("\n".join((*predictor.events.entities.names, *predictor.events.relations.names)).encode())
    if folder is not None:
        homes = (folder / "backbone", folder / RENEWED)
        backbone = sorted(path for home in homes for path in home.rglob("*") if path.is_file())
        for path in (*(folder / name for name in RUN_FILES), *backbone):
            if path.is_file():
                digest.update(f"{path.relative_to(folder)} {file_checksum(path)}".encode())
    return digest.hexdigest()[:32]


def answer_table(
    opened: Opened,
    source: QuerySource,
    out: Path,
    *,
    folder: Path | None = None,
    top: int = 10,
    horizon: int | None = None,
    workers: int = 1,
    resume: bool = False,
    replace: bool = False,
    progress: Progress = SILENT,
) -> Answered:
    """Answer all queries of a source into a .csv or .parquet file, or none of them.

    Args:
        opened: Gives the predictor; called once here, and once in each worker, to which it is sent.
        source: The queries, as `query_source` gives them.
        out: The file of answers. Until it is whole, its parts are in the folder OUT.parts.
        folder: The run that the predictor is of, by which it is known again.
        top: Candidates of each query.
        horizon: Forecast horizon in time steps.
        workers: Processes that answer at once; each opens the model.
        resume: Go on with the parts that an interrupted call left.
        replace: Whether an existing file and its parts are replaced.
        progress: Where the progress is shown.

    Returns:
        How many queries were answered, in how many rows.

    Raises:
        RejectedError: If any query cannot be asked; all of them are named.
        SettingsError: If there are parts that were not asked for, or that were begun otherwise.
    """
    check("top", top, Count)
    form, folder_of_parts = check_format(out), check_parts(out, resume, replace)
    predictor = opened()
    size = max(1, min(BLOCK, MOST_ROWS // min(max(1, top), max(1, predictor.events.n_entities))))
    model = model_identity(folder, predictor)
    count, digests = _checked(predictor, source, size, horizon, progress)
    asked = Asked(count, hashlib.sha256("".join(digests).encode()).hexdigest(), model, top, horizon, size, form)
    with reserved(out):
        done = _begun(folder_of_parts, asked, resume)
        resumed, parts = len(done), _Parts(folder_of_parts, form, size, top, horizon)
        todo = _todo(source, size, digests, done)
        if workers > 1:
            made = _by_workers(parts, todo, workers, opened, (folder, model))
        else:
            made = (parts.make(predictor, number, block) for number, block in todo)
        try:
            with naming_full(parts.folder / DONE), progress.task("forecasting", total=count) as advance:
                advance(sum(min(size, count - number * size) for number in done))
                for number, rows, checksum in made:
                    _note(parts.folder, (number, rows, checksum))
                    done[number] = rows
                    advance(min(size, count - number * size))
        except BaseException:
            if not done:  # there is nothing to go on with
                shutil.rmtree(parts.folder)
            raise
        _join([parts.file(number) for number in range(len(digests))], out, form, replace)
        shutil.rmtree(parts.folder)
    return Answered(count, sum(done.values()), len(digests), resumed)


def check_parts(out: Path, resume: bool, replace: bool) -> Path:
    """The folder of the parts of a file; refused where parts are there that were not asked for, or none that were."""
    parts = out.with_name(out.name + ".parts")
    if resume and not (parts / MANIFEST).is_file():
        raise SettingsError(f"there is nothing to resume at {parts}; leave --resume out.")
    if parts.exists() and not (resume or replace):
        raise SettingsError(
            f"{parts} holds the parts of an unfinished table; use --resume to continue, or --force to start over."
        )
    return parts


# ---- the queries ---------------------------------------------------------------------------------------------------


def _checked(
    predictor: Predictor, source: QuerySource, size: int, horizon: int | None, progress: Progress
) -> tuple[int, list[str]]:
    """How many queries there are, and a digest of each block; every query that cannot be asked refuses all."""
    count, wrong, digests, rejects = 0, list[str](), list[str](), list[Reject]()
    with progress.task("checking queries") as advance:
        for block in source.blocks(size):
            try:
                in_ids(predictor, block, horizon, source.name, first=count + 1)
            except RejectedError as problem:
                rejects += problem.rejects[: MOST - len(rejects)]
                wrong += problem.sentences
            digests.append(_digest(block))
            count += len(block)
            advance(len(block))
    if wrong:
        raise RejectedError(named_problems(source.name, wrong), rejects)
    if not count:
        raise DataError(
            f"{source.name} holds no query; write one query per line below the header subject,relation,object."
        )
    return count, digests


def _digest(block: list[Query]) -> str:
    text = json.dumps([(q.subject, q.relation, q.object, q.at) for q in block], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _todo(
    source: QuerySource, size: int, digests: list[str], done: dict[int, int]
) -> Iterator[tuple[int, list[Query]]]:
    """The blocks that are to be answered yet, if they are those that were checked."""
    number = -1
    for number, block in enumerate(source.blocks(size)):
        if number >= len(digests) or _digest(block) != digests[number]:
            break
        if number not in done:
            yield number, block
    else:
        if number + 1 == len(digests):
            return
    raise DataError(
        f"{source.name} gave other queries when it was read again; do not change it while it is read, and give "
        "a DuckDB query an ORDER BY."
    )


# ---- the parts -----------------------------------------------------------------------------------------------------


def _begun(parts: Path, asked: Asked, resume: bool) -> dict[int, int]:
    """The rows of each part that is whole already; the folder is there, with what is asked in its manifest."""
    if resume:
        asked.check(read_json(parts / MANIFEST), parts)
        noted = {part[0]: part for part in _noted(parts)}
        files = {number: parts / _name(number, asked.form) for number in noted}
        whole = [part for n, part in noted.items() if files[n].is_file() and file_checksum(files[n]) == part[2]]
        (parts / DONE).unlink(missing_ok=True)  # without a line that was cut off
        for part in whole:
            _note(parts, part)
        return {number: rows for number, rows, _ in whole}
    if parts.exists():
        _check_parts(parts)
        shutil.rmtree(parts)
    parts.mkdir(parents=True)
    write_json(parts / MANIFEST, asdict(asked))
    return {}


def _check_parts(parts: Path) -> None:
    """Refuse to remove a folder that holds anything but parts."""
    known = {MANIFEST, DONE}
    for path in parts.iterdir():
        if path.name not in known and not path.name.lstrip(".").startswith("part-"):
            raise RunError(f"{parts} holds {path.name!r}, which would be lost; move it away.")


def _note(parts: Path, part: Part) -> None:
    """Note that a part is whole; it is on the disk then."""
    with (parts / DONE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(part) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _noted(parts: Path) -> Iterator[Part]:
    """What was noted; a kill may have cut off the last line."""
    path = parts / DONE
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            number, rows, checksum = json.loads(line)
            yield int(number), int(rows), str(checksum)
        except ValueError:
            return


def _name(number: int, form: str) -> str:
    return f"part-{number + 1:06d}{form}"


@dataclass(frozen=True)
class _Parts:
    """How parts are made, the same in every worker."""

    folder: Path
    form: str
    size: int
    top: int
    horizon: int | None

    def file(self, number: int) -> Path:
        return self.folder / _name(number, self.form)

    def make(self, predictor: Predictor, number: int, block: list[Query]) -> Part:
        """Answer a block into its part."""
        made = answer(predictor, block, self.top, self.horizon, first=number * self.size + 1)
        made.write_part(self.file(number))
        return number, sum(map(len, made.candidates)), file_checksum(self.file(number))


def _by_workers(
    parts: _Parts, todo: Iterator[tuple[int, list[Query]]], workers: int, opened: Opened, known: tuple[Path | None, str]
) -> Iterator[Part]:
    """The parts as several processes make them, in the order of the blocks; known: the run, and its identity."""
    context = multiprocessing.get_context("spawn")  # a fork would share the threads of torch
    threads = max(1, torch.get_num_threads() // workers)
    waiting: deque[Future[Part]] = deque()
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (threads,))
    try:
        for number, block in todo:
            waiting.append(pool.submit(_by_worker, opened, known, parts, number, block))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            "a worker ended before its part was whole, perhaps because memory ran out; finished parts are kept: use "
            "--resume with fewer --workers."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


_held: list[Predictor] = []  # of a worker: the one that it opened


def _begin_worker(threads: int) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    torch.set_num_threads(threads)


def _by_worker(opened: Opened, known: tuple[Path | None, str], parts: _Parts, number: int, block: list[Query]) -> Part:
    """In a worker: answer a block with the model that the parts were begun with."""
    if not _held:
        predictor = opened()
        if model_identity(known[0], predictor) != known[1]:
            raise RunError("the run or its event store changed while it was asked; --force starts over.")
        _held.append(predictor)
    return parts.make(_held[0], number, block)


def _join(parts: list[Path], out: Path, form: str, replace: bool) -> None:
    """The parts as one file, whole or not at all."""
    if form == ".csv":
        with whole_file(out, replace) as aside, aside.open("wb") as file:
            file.write(HEADER.encode())
            for path in parts:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
        return
    join_parquet(parts, out, replace)

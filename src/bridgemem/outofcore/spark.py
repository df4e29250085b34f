"""The Spark engine: a cluster partitions and sorts the rows, and the one kernel reads them through `mapInArrow`."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load, save

from bridgemem import errors
from bridgemem.config import Settings
from bridgemem.errors import BridgeMemError, DataError, RunError, SettingsError
from bridgemem.events.readers.options import ReadOptions
from bridgemem.memory.disk.segments import Note, SegmentWriter
from bridgemem.memory.disk.writing import About
from bridgemem.outofcore.base import BLOCK, COLUMNS, Miner, Mining, Part, Sample, write_mined
from bridgemem.outofcore.spark_events import numbered
from bridgemem.outofcore.working_directory import mining_place, prepare
from bridgemem.progress import SILENT, Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from bridgemem.evaluation.records import Record
    from bridgemem.runs import Run

PARTITION = 1 << 22  # directed rows of a partition, about: what a task sorts, and what one segment holds
PIECE = 1 << 22  # bytes of a part in one cell of a table
CHUNK = 1 << 22  # rows that the driver fetches at a time
BATCH = 1 << 16  # rows of an Arrow batch
PACKAGE = "bridgemem.zip"
CONNECT = 10  # seconds to wait for a master that does not answer

# One table of four kinds of rows. rows: those of the index, at their place in the segment. examples: by sample key,
# with the directed relation that came next. part: the rest of what a partition gave, cut into pieces. log: the events
# in total order, subject and object as a pair.
TABLE = {
    "kind": ("string", "string"),
    "bucket": ("int", "int32"),
    "at": ("bigint", "int64"),
    "pair": ("bigint", "int64"),
    "step": ("int", "int32"),
    "order": ("bigint", "int64"),
    "relation": ("int", "int32"),
    "direction": ("tinyint", "int8"),
    "tokens": ("array<int>", ""),
    "part": ("binary", "binary"),
}
SCHEMA = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TABLE.items())
SENTENCES: tuple[tuple[str, type[BridgeMemError], str], ...] = (
    (r"Path does not exist: (.+?)\. ", DataError, "{} does not exist."),
    (
        r"(?s)reading file (\S.*?)\.\s.*Expected Spark type (\w+), actual Parquet type (\w+)",
        DataError,
        "{0} holds {2} where the files before it hold {1}; write all files with one schema.",
    ),
    (
        r"reading file (\S.*?)\.\s",
        DataError,
        "{} cannot be read as Parquet: it is damaged or something else; write it again or leave it out.",
    ),
    (r"(?i)path (\S+) already exists", RunError, "{} exists already; name another place with --tables."),
    (r"No space left on device", RunError, "the disk of a worker or of the driver is full; free some space."),
    (r"[Jj]ava.gateway", SettingsError, "Spark could not start Java: install Java 17 and set JAVA_HOME."),
    (
        r"PYTHON_VERSION_MISMATCH",
        SettingsError,
        "the workers run another version of Python; set PYSPARK_PYTHON to one like this.",
    ),
    (
        r"ModuleNotFoundError: No module named '(\w+)",
        SettingsError,
        "the workers' Python lacks {}; install the extra spark on them.",
    ),
    (r"Pandas >= (\S+) must be", SettingsError, "mining on Spark needs pandas {}; install the extra spark."),
    (
        r"masters are unresponsive|SparkContext was shut down|stopped SparkContext",
        RunError,
        "the cluster is gone or does not take this program; see the page of its master.",
    ),
)
SIGN = np.uint64(1 << 63)  # flips sample keys to and from signed numbers of the same order
FINE = 48  # bits of a sample key that are left out when sample keys are counted


# ---- the session ---------------------------------------------------------------------------------------------------


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """A Spark session on a master, which ends with the block unless it was there before; its errors in one sentence.

    Workers run the Python named by PYSPARK_PYTHON, or this one, and the very package that runs here.
    """
    check_master(master)
    try:
        from pyspark import SparkFiles
        from pyspark.sql import SparkSession
    except ImportError:
        raise SettingsError("mining on Spark needs pyspark: install the extra spark and Java 17.") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="bridgemem-") as scratch, _clear_errors():
        before, left = SparkSession.getActiveSession(), Path("spark-warehouse")
        clean = before is None and not left.exists()
        with _quiet_start(Path(scratch)):
            builder = SparkSession.builder.appName("bridgemem").config("spark.ui.showConsoleProgress", "false")
            spark = before or builder.master(master).getOrCreate()
        try:
            if before is None:
                # what goes wrong is raised, and told in one sentence
                spark.sparkContext.setLogLevel("OFF")
                logging.getLogger("SQLQueryContextLogger").disabled = True
            if not any(file.endswith(PACKAGE) for file in spark.sparkContext.listFiles):
                # where it lives as long as Spark does, for executors that start later
                spark.sparkContext.addPyFile(str(_package(Path(SparkFiles.getRootDirectory()) / "sent")))
            own = spark.newSession()
            own.conf.set("spark.sql.session.timeZone", "UTC")
            own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
            yield own
        finally:
            if before is None:
                spark.stop()
            if clean:  # Spark makes this folder in passing; it goes only if nothing is in it
                with suppress(OSError):
                    left.rmdir()


def check_master(master: str) -> None:
    """Refuse a master URL that Spark does not know or that does not answer, before a Java machine is started for it."""
    if not re.match(r"(local(\[.+\])?$|spark://.+|yarn$|k8s://.+)", master):
        raise SettingsError(f"{master!r} is not a Spark master: give spark://HOST:PORT, yarn, k8s://URL or local[N].")
    if not master.startswith("spark://"):
        return
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdecimal():
            raise SettingsError(f"{master!r} is not a Spark master: write it as spark://HOST:PORT.")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT):
            return
    raise SettingsError(f"no Spark master answers at {master}: start one there, or give the URL that it shows.")


@contextmanager
def _quiet_start(scratch: Path) -> Iterator[None]:
    """Java tells about its modules and log levels before it can be told not to: that goes to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    log = os.open(scratch / "java.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)


def _package(folder: Path) -> Path:
    """This package as a zip in a folder, so that every worker runs the same version of it."""
    home, packed = Path(__file__).parent.parent, folder / PACKAGE
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(home.rglob("*")):
            if file.suffix in (".py", ".toml"):
                archive.write(file, Path("bridgemem") / file.relative_to(home))
    return packed


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What Spark and Java raise, as one sentence that names the file or the remedy."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as problem:
        raise _sentence(str(problem)) from None


def _sentence(text: str) -> BridgeMemError:
    """The error in what Spark says, which is a page of Java."""
    if own := re.findall(r"bridgemem\.errors\.(\w+): (.+)", text):
        return getattr(errors, own[-1][0], RunError)(own[-1][1])
    for pattern, kind, sentence in SENTENCES:
        if found := re.search(pattern, text):
            return kind(sentence.format(*found.groups()))
    reason = re.search(r"^: [\w.$]+: (.+)$", text, re.MULTILINE) or re.search(r"(\S.*)", text)
    return RunError(f"Spark gave up: {reason[1].rstrip('.')[:300] if reason else 'it gave no reason'}.")


# ---- mining --------------------------------------------------------------------------------------------------------


def mine_on_spark(
    sources: Iterable[str | Path],
    out: str | Path,
    master: str,
    settings: Settings | None = None,
    *,
    options: ReadOptions | None = None,
    seed: int = 42,
    tables: str | None = None,
    rows: int = PARTITION,
    force: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Mine events on a cluster into a folder of this machine; returns what mined.json says.

    sources: what Spark can read, see `spark_events.numbered`. options: as for `read_events`, without
    columns that are joined.
    master: the URL of the cluster. tables: a URI that the workers and this machine both reach, where the cluster
    leaves its results as Parquet; where none is given that is a folder inside `out`, which goes when all is done.
    rows: of a partition, about. The folder is the same whatever they are, but for how the index is cut into segments.
    """
    settings, options, out = settings or Settings(), options or ReadOptions(), Path(out)
    named = [str(source) for source in sources]
    check_master(master)
    asked = {"sources": named, "settings": asdict(settings), "reading": asdict(options), "seed": seed}
    with mining_place(out, force) as home:
        work = prepare(home, asked, force)
        place = tables or (work / "tables").absolute().as_uri()
        with session(master) as spark:
            with progress.task("numbering names and times"):
                shutil.rmtree(work / "tables", ignore_errors=True)
                found = numbered(spark, named, options)
                mining = Mining(settings, len(found.entities), len(found.relations), seed)
            partitions = max(-(-2 * found.total // rows), 1)
            with progress.task("mining pairs on the cluster"):
                _mine_rows(directed(found.events), mining, partitions, place)
                _keep_log(found.events, mining, partitions, place)
            mined = _Tables(spark, place, mining)
            part, notes = mined.fetch(partitions, home / "index", progress)
            rejected = found.total - int(part.relations.sum()) - sum(found.dropped.values())
            source = {"engine": "spark", "files": found.files, "rejected": rejected}
            source |= {"dropped": found.dropped, "remarks": found.remarks}
            about = About(out.name, tuple(found.entities), tuple(found.relations), found.clock)
            made = [part], notes, mined.log(partitions)
            done = write_mined(home, mining, *made, about=about, source=source, progress=progress)
        shutil.rmtree(work, ignore_errors=True)
    return done


def directed(events: DataFrame) -> DataFrame:
    """Two rows an event, one from each party, with the columns of COLUMNS.

    events: whole-number columns subject, relation, object, step, and order, which tells events of one step apart.
    """
    sides = (("subject", "object"), ("object", "subject"))
    both = ", ".join(f"struct({a} AS actor, {c} AS candidate, {i} AS direction)" for i, (a, c) in enumerate(sides))
    return events.selectExpr(f"inline(array({both}))", "step", "`order`", "relation").select(*COLUMNS)


def _mine_rows(rows: DataFrame, mining: Mining, partitions: int, tables: str) -> None:
    """Mine directed rows on the cluster, into a Parquet table.

    Spark commits the output of each task once, so one that died half-way and ran again elsewhere leaves no trace.
    """
    ordered = rows.repartition(partitions, "actor", "candidate").sortWithinPartitions(
        "actor", "candidate", "step", "order", "direction"
    )
    mined = ordered.mapInArrow(partial(_mine_partition, mining=mining), SCHEMA)
    mined.write.partitionBy("kind", "bucket").parquet(tables)


def _keep_log(events: DataFrame, mining: Mining, partitions: int, tables: str) -> None:
    """Add the events in total order to the table: each partition is a range of steps and orders, sorted."""
    ordered = events.repartitionByRange(partitions, "step", "order").sortWithinPartitions("step", "order")
    kept = ordered.mapInArrow(partial(_log_partition, n_entities=mining.n_entities), SCHEMA)
    kept.write.mode("append").partitionBy("kind", "bucket").parquet(tables)


def _log_partition(batches: Iterator[pa.RecordBatch], n_entities: int) -> Iterator[pa.RecordBatch]:
    """On a worker: the events of one range at their places in it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    bucket, at = context.partitionId() if context else 0, 0
    for batch in batches:
        names = ("subject", "object", "step", "relation")
        subject, object_, step, relation = (batch.column(name).to_numpy().astype(np.int64) for name in names)
        place = np.arange(at, at + len(step))
        yield _batch("log", bucket, place, pair=subject * n_entities + object_, step=step, relation=relation)
        at += len(step)


def _mine_partition(batches: Iterator[pa.RecordBatch], mining: Mining) -> Iterator[pa.RecordBatch]:
    """On a worker: the kernel over one sorted partition. The rows pass through; what was mined comes last."""
    from pyspark import TaskContext

    context = TaskContext.get()
    bucket, at, miner = context.partitionId() if context else 0, 0, Miner(mining)
    for batch in batches:
        columns = {name: batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in COLUMNS}
        miner.feed(columns)
        pair = columns["actor"] * mining.n_entities + columns["candidate"]
        place = np.arange(at, at + len(pair))
        yield _batch("rows", bucket, place, pair=pair, **{c: columns[c] for c in ("step", "relation", "direction")})
        at += len(pair)
    part = miner.finish()
    sample = part.sample.take(np.argsort(part.sample.sample_key))
    for start in range(0, len(sample), BLOCK):
        yield _example_batch(bucket, sample.take(np.arange(start, min(start + BLOCK, len(sample)))))
    document = replace(part, sample=Sample.empty(mining)).to_bytes()
    for number, start in enumerate(range(0, len(document), PIECE)):
        yield _batch("part", bucket, np.array([number]), part=[document[start : start + PIECE]])


def _example_batch(bucket: int, sample: Sample) -> pa.RecordBatch:
    import pyarrow as pa

    n, k = sample.tokens.shape
    ends = pa.array(np.arange(n + 1, dtype=np.int32) * k, pa.int32())
    tokens = pa.ListArray.from_arrays(ends, pa.array(sample.tokens.ravel().astype(np.int32)))
    at = (sample.sample_key ^ SIGN).view(np.int64)
    columns = {"pair": sample.pair, "step": sample.step, "order": sample.order, "relation": sample.target}
    return _batch("examples", bucket, at, tokens=tokens, **columns)


def _batch(kind: str, bucket: int, at: np.ndarray, **columns: Any) -> pa.RecordBatch:
    """Rows of TABLE, with null for the columns that their kind does not have."""
    import pyarrow as pa

    columns |= {"kind": np.full(len(at), kind), "bucket": np.full(len(at), bucket), "at": at}
    arrays = []
    for name, (_, alias) in TABLE.items():
        form = pa.type_for_alias(alias) if alias else pa.list_(pa.int32())
        given = columns.get(name)
        arrays.append(pa.nulls(len(at), form) if given is None else pa.array(given, form))
    return pa.RecordBatch.from_arrays(arrays, names=list(TABLE))


# ---- fetching ------------------------------------------------------------------------------------------------------


class _Tables:
    """What the cluster left, read by the driver a bucket at a time, so that it never holds more than one."""

    def __init__(self, spark: SparkSession, place: str, mining: Mining) -> None:
        self.mining, self._table = mining, spark.read.schema(SCHEMA).parquet(place)

    def fetch(self, partitions: int, index: Path, progress: Progress) -> tuple[Part, list[Note]]:
        """All parts in one, and the segments of the index, written to a folder."""
        total, notes = self._sampled(), []
        with progress.task("writing the index", total=partitions) as advance:
            for bucket in range(partitions):
                part = self._part(bucket)
                notes.append(self._segment(bucket, part.rows, index))
                total = total.plus(part, self.mining.settings.max_examples)
                advance()
        return total, notes

    def _of(self, kind: str, condition: str, *columns: str) -> pa.Table:
        return self._table.where(f"kind = '{kind}' AND {condition}").select("at", *columns).toArrow().sort_by("at")

    def _part(self, bucket: int) -> Part:
        pieces = self._of("part", f"bucket = {bucket}", "part").column("part").to_pylist()
        if not pieces:
            raise RunError(
                "the workers wrote their results to a place that this machine does not see: name one with --tables "
                "that all of them reach, such as a folder on a shared disk or s3a://BUCKET/FOLDER."
            )
        return Part.from_bytes(b"".join(pieces), self.mining)

    def _segment(self, bucket: int, rows: int, index: Path) -> Note:
        with SegmentWriter(index, f"{bucket:05d}", self.mining.n_entities, self.mining.n_relations) as segment:
            for at in range(0, rows, CHUNK):
                inside = f"bucket = {bucket} AND at >= {at} AND at < {at + CHUNK}"
                found = self._of("rows", inside, "pair", "step", "relation", "direction")
                segment.add(*(found.column(c).to_numpy() for c in ("pair", "step", "relation", "direction")))
        if segment.note["rows"] != rows:
            raise RunError(f"partition {bucket} lost rows on its way from the workers; run again.")
        return segment.note

    def log(self, partitions: int) -> Iterator[tuple[np.ndarray, ...]]:
        """All events in total order, in blocks: subject, relation, object, step."""
        for bucket in range(partitions):
            for at in itertools.count(0, CHUNK):
                inside = f"bucket = {bucket} AND at >= {at} AND at < {at + CHUNK}"
                found = self._of("log", inside, "pair", "step", "relation")
                pair, step, relation = (found.column(c).to_numpy() for c in ("pair", "step", "relation"))
                if len(pair):
                    yield pair // self.mining.n_entities, relation, pair % self.mining.n_entities, step
                if len(pair) < CHUNK:
                    break

    def _sampled(self) -> Part:
        """A part that is only the sample of all: sample keys are counted first, so that few too many are fetched."""
        from pyspark.sql import functions as F

        bins = self._table.where("kind = 'examples'").groupBy(F.shiftright("at", FINE).alias("bin")).count()
        counts = bins.toArrow().sort_by("bin")
        enough = int(np.searchsorted(np.cumsum(counts.column("count").to_numpy()), self.mining.settings.max_examples))
        most = counts.column("bin")[min(enough, len(counts) - 1)].as_py() if len(counts) else 0
        names = ("pair", "step", "order", "relation", "tokens")
        found = self._of("examples", f"shiftright(at, {FINE}) <= {most}", *names)
        empty = Part.empty(self.mining)
        tokens = found.column("tokens").combine_chunks().flatten().to_numpy().astype(self.mining.token_type)
        pair, step, order, target = (found.column(name).to_numpy() for name in names[:-1])
        sample_key = found.column("at").to_numpy().view(np.uint64) ^ SIGN
        sample = Sample(sample_key, pair, step, order, target, tokens.reshape(len(sample_key), self.mining.settings.k))
        return replace(empty, sample=sample.smallest(self.mining.settings.max_examples))


# ---- evaluating ----------------------------------------------------------------------------------------------------


def evaluate_on_spark(
    run: Run,
    master: str,
    shards: int = 0,
    split: str = "test",
    progress: Progress = SILENT,
) -> list[Record]:
    """Evaluate a run by the tasks of a cluster, a shard of the steps each, with the ranks and records of one process.

    The workers open the run's folder, and that of its data, under the same path as this machine. shards: as many as
    the cluster has cores where none are asked for.
    """
    from bridgemem.evaluation.shards import concluded, opened_data, shard_steps

    dataset = opened_data(run, split)
    with session(master) as spark, progress.task(f"reading {split} on the cluster"):
        most = len(np.unique(dataset.split(split).step))
        steps = shard_steps(dataset, split, min(shards or spark.sparkContext.defaultParallelism, most))
        how = {"run": run.folder.absolute(), "split": split, "data_dir": run.data_dir, "memory_dir": run.memory_dir}
        asked = spark.range(0, len(steps), 1, len(steps))
        ranked = asked.mapInArrow(partial(_rank_steps, steps=steps, how=how), "ranks binary")
        parts = [load(bytes(row["ranks"])) for row in ranked.toLocalIterator(prefetchPartitions=True)]
    return concluded(run, dataset, split, parts, "cpu", "cpu 1 threads")


def _rank_steps(
    batches: Iterator[pa.RecordBatch], steps: list[tuple[int, int]], how: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    """On a worker: the ranks of each range of steps, as one safetensors document."""
    import pyarrow as pa

    from bridgemem.evaluation.shards import shard_ranks

    for batch in batches:
        for number in batch.column("id").to_pylist():
            first, stop = steps[number]
            ranks = shard_ranks(first=first, stop=stop, threads=1, **how)
            document = save({name: np.ascontiguousarray(column) for name, column in ranks.items()})
            yield pa.RecordBatch.from_pydict({"ranks": pa.array([document], pa.binary())})

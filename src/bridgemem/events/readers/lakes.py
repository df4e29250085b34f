"""Lakes: tables of Delta Lake and Iceberg and objects on S3, fetched as files of this machine and read as those are.

A table is read as it is in one version, and only in the columns that hold events. Nothing is held in memory but a batch
of rows; the files go into a folder for temporary files, or into one that outlives an interruption.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.readers.files import find_files
from bridgemem.events.readers.options import ReadOptions
from bridgemem.events.readers.table import Heading, reading
from bridgemem.storage.whole import whole_file

DELTA, ICEBERG, S3 = "delta:", "iceberg://", "s3://"
BATCH = 1 << 16  # rows that are copied at a time
COPIED = 1 << 22  # bytes that are copied at a time
NAMED = {"deltalake": "delta", "pyiceberg": "iceberg", "pyarrow": "s3"}  # which extra installs what


def in_lake(source: Any) -> bool:
    """Whether this names a table or an object that is fetched before it is read."""
    if isinstance(source, str) and source.startswith((DELTA, ICEBERG, S3)):
        return True
    return isinstance(source, str | Path) and (Path(source) / "_delta_log").is_dir()


@contextmanager
def local_files(
    sources: Sequence[str | Path], wanted: Callable[[Sequence[str]], Sequence[str]], folder: Path | None = None
) -> Iterator[dict[Path, str]]:
    """The files that paths, globs and names of lake tables stand for, all of them on this machine, and their names.

    Args:
        sources: Files and globs; a folder of a Delta table, or delta:URI; iceberg://CATALOG/NAMESPACE.TABLE;
            s3://BUCKET/KEY, which may be a glob.
        wanted: Of the columns of a table, those that are needed.
        folder: Where tables are fetched to. What is there already is not fetched again, and all goes when the block
            ends without an error. Left out, it is a folder for temporary files.
    """
    if not any(map(in_lake, sources)):
        yield {path: str(path) for path in find_files(sources)}
        return
    with tempfile.TemporaryDirectory(prefix="bridgemem-") as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        found: dict[Path, str] = {}
        for number, source in enumerate(sources):
            if in_lake(source):
                found |= _fetched(str(source), number, place, wanted)
            else:
                found |= {path: str(path) for path in find_files([source])}
        yield found
    if folder is not None:
        shutil.rmtree(folder)


@contextmanager
def fetched(source: Any, options: ReadOptions) -> Iterator[tuple[list[Any], dict[str, str]]]:
    """The parts of a source of events, with what lies in a lake fetched, and what the fetched files are called."""
    several = isinstance(source, Sequence) and not isinstance(source, str)
    parts = list(source) if several else [source]
    if not any(map(in_lake, parts)):
        yield parts, {}
        return
    with local_files(parts, event_columns(options)) as files:
        names = {str(path): name for path, name in files.items()}
        try:
            yield list(files), names
        except DataError as problem:
            said = str(problem)
            for path, name in names.items():
                said = said.replace(path, name)
            problem.args = (said,)
            raise


def event_columns(options: ReadOptions) -> Callable[[Sequence[str]], Sequence[str]]:
    """Which columns of a table hold events."""

    def wanted(names: Sequence[str]) -> Sequence[str]:
        places = Heading(list(names), options).places("the table")
        return [names[i] for i in sorted({i for found in places for i in found})]

    return wanted


@dataclass(frozen=True)
class LakeTable:
    """One version of a table: its columns, and its rows in batches of some of them."""

    name: str
    version: str
    columns: Sequence[str]
    batches: Callable[[Sequence[str]], Any]


def _fetched(
    source: str, number: int, place: Path, wanted: Callable[[Sequence[str]], Sequence[str]]
) -> dict[Path, str]:
    if source.startswith(S3):
        return _objects(source, number, place)
    table = _iceberg(source) if source.startswith(ICEBERG) else _delta(source.removeprefix(DELTA))
    stem = re.sub(r"\W+", "-", table.name.rstrip("/").rpartition("/")[2]).strip("-") or "table"
    path = place / f"{number:04d}-{stem}-{table.version}.parquet"
    if not path.exists():
        try:
            columns = wanted(table.columns)
        except DataError as problem:
            raise DataError(str(problem).replace("the table", source, 1)) from None
        parquet = _needed("pyarrow.parquet", source)
        with reading(source), whole_file(path) as aside:
            batches = table.batches(columns)
            with parquet.ParquetWriter(str(aside), batches.schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_batch(batch)
    return {path: source}


def _delta(uri: str) -> LakeTable:
    """A table of Delta Lake by its folder or URI, in its last version; its files in the order of their commits."""
    deltalake, arrow = _needed("deltalake", uri), _needed("pyarrow", uri)
    with reading(uri):
        table = deltalake.DeltaTable(uri)
        rows: Any = table.to_pyarrow_dataset()
        added = arrow.table(table.get_add_actions(flatten=True)).to_pylist()
    when = {Path(unquote(file["path"])).name: file["modification_time"] for file in added}

    def batches(columns: Sequence[str]) -> Any:
        files = sorted(rows.get_fragments(), key=lambda file: (when[Path(unquote(file.path)).name], file.path))
        schema = arrow.schema([rows.schema.field(name) for name in columns])
        some = (file.to_batches(schema=rows.schema, columns=list(columns), batch_size=BATCH) for file in files)
        return arrow.RecordBatchReader.from_batches(schema, itertools.chain.from_iterable(some))

    return LakeTable(uri, f"v{table.version()}", rows.schema.names, batches)


def _iceberg(source: str) -> LakeTable:
    """A table of an Iceberg catalog, in its current snapshot; PyIceberg's own settings say what the catalog is."""
    catalog, slash, name = source.removeprefix(ICEBERG).partition("/")
    if not (catalog and slash and "." in name):
        raise SettingsError(f"{source!r} names no Iceberg table: write iceberg://CATALOG/NAMESPACE.TABLE.")
    opened = _needed("pyiceberg.catalog", source)
    with reading(source):
        table = opened.load_catalog(catalog).load_table(name)
        snapshot = table.current_snapshot()
        columns = [field.name for field in table.schema().fields]
    if snapshot is None:
        raise DataError(f"{source} holds no events: give rows of subject, relation, object, time.")

    def batches(chosen: Sequence[str]) -> Any:
        return table.scan(selected_fields=tuple(chosen), snapshot_id=snapshot.snapshot_id).to_arrow_batch_reader()

    return LakeTable(name, str(snapshot.snapshot_id), columns, batches)


def _objects(source: str, number: int, place: Path) -> dict[Path, str]:
    """Objects on S3 as files, by name or by a glob; credentials and the endpoint are those of the environment."""
    files = _needed("pyarrow.fs", source)
    key = source.removeprefix(S3).rstrip("/")
    with reading(source):
        client = _s3_client(files)
        if glob.has_magic(key):
            base = re.split(r"[*?\[]", key, maxsplit=1)[0].rpartition("/")[0]
            listed = client.get_file_info(files.FileSelector(base, recursive=True))
            infos = sorted((i for i in listed if fnmatch.fnmatchcase(i.path, key)), key=lambda info: info.path)
        else:
            infos = client.get_file_info([key])
        infos = [info for info in infos if info.type == files.FileType.File]
    if not infos:
        raise DataError(f"{source} does not exist; name objects, as in s3://bucket/events/*.parquet.")
    found = {}
    for i, info in enumerate(infos):
        # size and time tell one version of an object from another
        version = f"{info.size}-{info.mtime_ns or 0}"
        folder = place / f"{number:04d}-{i:05d}-{version}"
        path = folder / info.base_name
        if not path.exists():
            folder.mkdir(exist_ok=True)
            with (
                reading(f"{S3}{info.path}"),
                client.open_input_stream(info.path, compression=None) as stream,
                whole_file(path) as aside,
                aside.open("wb") as file,
            ):
                shutil.copyfileobj(stream, file, COPIED)
        found[path] = f"{S3}{info.path}"
    return found


def _s3_client(files: Any) -> Any:
    """Arrow's client at the endpoint that AWS's own tools take from the environment; it does not read that itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = endpoint.rpartition("://")
    return files.S3FileSystem(endpoint_override=host or None, scheme=scheme or "https")


def _needed(module: str, source: str) -> Any:
    """A module of an extra, or the sentence that says which extra it is of."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        extra = NAMED[package]
        raise SettingsError(
            f"reading {source} needs {package}, which is not installed: pip install -e '.[{extra}]' in the checkout."
        ) from None

"""Tables of a run: one row a query, as Parquet, or as .npz where DuckDB is not installed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.storage.arrays import check_arrays
from bridgemem.storage.whole import remedy_if_full, whole_file

ASKED = ("actor", "relation", "step", "answer")  # in a table of ranks: what each query asks
RANK = "rank_"  # how the names of its columns of ranks begin


def write_table(path: Path, columns: dict[str, np.ndarray]) -> Path:
    """A table of a run as Parquet, or as .npz where DuckDB is not installed; returns the path written.

    One of the other kind, which an evaluation elsewhere left, goes: it is not of these columns.
    """
    packed = path.with_suffix(".npz")
    if _duckdb() is None:
        with whole_file(packed) as aside, aside.open("wb") as handle:
            np.savez_compressed(handle, allow_pickle=False, **columns)
        path.unlink(missing_ok=True)
        return packed
    write_parquet(path, columns)
    packed.unlink(missing_ok=True)
    return path


def write_parquet(path: Path, columns: dict[str, np.ndarray], replace: bool = True) -> None:
    """Columns as Parquet, whole or not at all; replace: an existing file is replaced."""
    with _needed_duckdb(path).connect() as connection:
        connection.register("ranks", columns)
        _copy(connection, "ranks", path, replace)


def join_parquet(parts: Sequence[Path], path: Path, replace: bool = True) -> None:
    """Parquet files as one, with the rows in their order, whole or not at all; a few row groups are held at a time."""
    # with one thread, equal parts make equal files
    with _needed_duckdb(path).connect(config={"threads": "1"}) as connection:
        connection.execute("SET VARIABLE parts = ?::VARCHAR[]", [list(map(str, parts))])
        _copy(connection, "(FROM read_parquet(getvariable('parts')))", path, replace)


def _copy(connection: Any, table: str, path: Path, replace: bool) -> None:
    duckdb = _needed_duckdb(path)
    with whole_file(path, replace) as aside:
        try:
            connection.execute(f"COPY {table} TO ? (FORMAT parquet, COMPRESSION zstd)", [str(aside)])
        except duckdb.Error as problem:
            said = str(problem).splitlines()[0]
            # of what is told of the file aside, which nobody knows, the system's own words are enough
            why = re.search(re.escape(aside.name) + r"\W+([\w ]+)", said)
            said = why[1] if why else said
            raise RunError(f"{path} cannot be written: {said}{remedy_if_full(said, path)}.") from None


def table_file(path: Path) -> Path | None:
    """The file that holds a table which `write_table` was to write to a path, of either kind; None if there is none."""
    found = [file for file in (path, path.with_suffix(".npz")) if file.is_file()]
    if len(found) > 1:
        raise RunError(
            f"{path} and {found[1].name} are both there, and one of them is of an earlier evaluation; evaluate again."
        )
    return found[0] if found else None


def read_table(path: Path, needed: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """Columns of a table that `write_table` wrote, in either form; refused where it lacks one that is needed."""
    found = table_file(path)
    if found is None:
        raise RunError(f"{path} is missing; restore it from a copy, or write the folder again.")
    return read_columns(found, needed)


def read_columns(path: Path, needed: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """Columns of this very file, Parquet or .npz, which are those of a table of ranks: a number for each query."""
    if path.suffix == ".npz":
        try:
            check_arrays(path)
            with np.load(path, allow_pickle=False) as file:
                columns = {name: file[name] for name in file.files}
        except (DataError, OSError, EOFError, ValueError, TypeError, AttributeError, BadZipFile, zlib.error) as problem:
            raise RunError(f"{path} is damaged: {problem}.") from None
    else:
        columns = _parquet_columns(path)
    if lacking := [name for name in needed if name not in columns]:
        raise RunError(f"{path} lacks the column {lacking[0]}; evaluate the run again.")
    for name, column in columns.items():
        if fault := _fault(name, column, len(columns[next(iter(columns))])):
            raise RunError(f"{path} is damaged: its column {name} {fault}; evaluate the run again.")
    return columns


def _parquet_columns(path: Path) -> dict[str, np.ndarray]:
    duckdb = _needed_duckdb(path)
    with duckdb.connect() as connection:
        try:
            columns = connection.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchnumpy()
        except duckdb.Error as problem:
            raise RunError(f"{path} is damaged: {str(problem).splitlines()[0]}.") from None
    # DuckDB keeps NaN as a missing value, which comes back masked; what has no NaN has no missing value either
    return {
        name: np.ma.filled(c.astype(float), np.nan)
        if isinstance(c, np.ma.MaskedArray) and c.dtype.kind in "biuf"
        else c
        for name, c in columns.items()
    }


def _fault(name: str, column: np.ndarray, rows: int) -> str | None:
    """What is wrong with a column of a table of ranks, or None."""
    if column.dtype.kind not in "biuf" or column.shape != (rows,) or not rows:
        return "does not hold a number for each query"
    if name in ASKED and not (column.dtype.kind in "iu" and column.min() >= 0):
        return "holds something that is no id or step"
    if name.startswith(RANK) and not (np.isfinite(column).all() and column.min() >= 1):
        return "holds something that is no rank"
    return None


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        return None
    return duckdb


def _needed_duckdb(path: Path) -> Any:
    found = _duckdb()
    if found is None:
        raise RunError(
            f"{path} is Parquet, and DuckDB, which reads and writes it, is not installed: pip install duckdb."
        )
    return found

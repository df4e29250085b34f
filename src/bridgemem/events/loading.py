"""Loading: events from a name, a file, a frame or a pack, split by time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG, as_named, load_benchmark
from bridgemem.events.folders import is_folder, load_folder
from bridgemem.events.log import EventLog
from bridgemem.events.mapped import is_mapped, open_mapped
from bridgemem.events.packs import unpack
from bridgemem.events.readers.lakes import in_lake
from bridgemem.events.readers.options import ROLES, ReadOptions, listed_missing
from bridgemem.events.readers.read import read_events
from bridgemem.events.world import World, simulate
from bridgemem.progress import SILENT, Progress

KINDS = (str, Path, Dataset, EventLog, Mapping, list, tuple)
FRAME = ("columns", "schema", "__arrow_c_stream__", "__dataframe__")  # what data frames and tables of any kind have


def load(
    source: Any,
    *,
    subject: str | Sequence[str] = "",
    relation: str | Sequence[str] = "",
    object: str | Sequence[str] = "",
    time: str | Sequence[str] = "",
    relation_is: str = "",
    format: str = "auto",
    step: str | int | None = None,
    time_format: str = "",
    na: Sequence[Any] | None = None,
    keep_na: bool = False,
    valid: float | None = None,
    test: float | None = None,
    data_dir: Path | str | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """Load events, split by time.

    Args:
        source: A data set's name, "world", a packed .npz, a folder of train, valid and test files, a folder that
            `bridgemem mine` wrote, which is read by memory map, a CSV, TSV or Parquet file, several of them, a Delta
            table, iceberg://CATALOG/NAMESPACE.TABLE, an s3:// URL, a data frame, a dict of columns, or a list of
            (subject, relation, object, time). What follows up to `keep_na` is for files and frames alone.
        subject: Heading of the subject column (default: a usual name such as source or actor1).
        relation: Heading of the relation column. Several headings are joined by a colon.
        object: Heading of the object column.
        time: Heading of the time column, or those of year, month and day.
        relation_is: The relation of every row, where no column has one.
        format: auto, gdelt, icews, polecat, acled, or plain for any other table.
        step: Length of a time step: hour, day, week, 15min, 7d; a whole number for whole-number times.
        time_format: day-first, month-first, epoch, epoch-ms, number, or as for `strptime`, such as "%d/%m/%y".
        na: Texts that stand for a missing value (default: NA, nan, null, None, - and the like).
        keep_na: Whether such texts are names, and only an empty value is missing.
        valid: Share of the last events for validation (default: 0.1), where the data are not split yet.
        test: Share of the last events for test (default: 0.1).
        data_dir: Folder of the named data sets.
        progress: Where the reading is shown.

    Returns:
        The events under their split. Rows that were left out or rejected are counted in a warning.

    Raises:
        DataError: The source cannot be read, or holds too few time steps.
        NotFoundError: There is no such file or data set.
        SettingsError: An option does not suit the source.

    Example:
        >>> import bridgemem as bm
        >>> days = [f"{day:02d}.01.2024 12:00" for day in range(1, 31)]
        >>> calls = {"who": ["Ann", "Bob", "Cid"] * 10, "whom": ["Bob", "Cid", "Ann"] * 10, "when": days}
        >>> data = bm.load(calls, subject="who", relation_is="calls", object="whom", time="when", step="day")
        >>> len(data.events), data.events.clock.label(0)
        (30, '2024-01-01')
    """
    options = ReadOptions(
        subject, relation, object, time, relation_is, format, step, time_format, listed_missing(na, keep_na)
    )
    return loaded(source, options, valid=valid, test=test, data_dir=data_dir, progress=progress)


def loaded(
    source: Any,
    options: ReadOptions,
    *,
    valid: float | None = None,
    test: float | None = None,
    data_dir: Path | str | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """Load events as `load` does, with the options of reading as one record."""
    source = _meant(source)
    what, packed = source if isinstance(source, str | Path) else "this data", is_split(source)
    if options.step is not None and (packed or isinstance(source, EventLog)):
        raise SettingsError(f"{what} has its time steps already; leave step out, or import the events anew with it.")
    if options.for_tables and (packed or isinstance(source, EventLog)):
        raise SettingsError(f"{what} has its columns, names and times already; such options are for files of events.")
    if packed and not is_mapped(source) and not valid is test is None:
        raise SettingsError(f"{what} is split already; leave valid and test out, or import the events anew with them.")
    shares = [0.1 if share is None else share for share in (valid, test)]
    if isinstance(source, str) and source == "world":
        return simulate().dataset
    if isinstance(source, str) and source in CATALOG:
        return load_benchmark(source, data_dir, progress=progress)
    if isinstance(source, Dataset):
        return source
    name = Path(source).name.split(".")[0] if isinstance(source, str | Path) else "events"
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        return unpack(source)
    if is_mapped(source):
        return open_mapped(source, valid=valid, test=test)
    if is_folder(source) and not in_lake(source):
        return as_named(load_folder(source, progress=progress))
    if isinstance(source, str) and not in_lake(source) and not Path(source).exists():
        raise NotFoundError(
            f"there is no file and no data set called {source!r}; known data sets are world, {', '.join(CATALOG)}."
        )
    if isinstance(source, EventLog):
        return Dataset.chronological(name, source, valid=shares[0], test=shares[1])
    reading = read_events(source, options, progress=progress)
    if said := reading.notable():
        warnings.warn(said, stacklevel=3)
    return Dataset.chronological(name, reading.events, valid=shares[0], test=shares[1])


def _meant(source: Any) -> Any:
    """What a source that is plainly events in another form stands for; what is none is refused."""
    if isinstance(source, World):
        return source.dataset
    rows = source.tolist() if isinstance(source, np.ndarray) else source
    if isinstance(rows, list | tuple) and rows and all(isinstance(row, list | tuple) and len(row) == 4 for row in rows):
        return dict(zip(ROLES, map(list, zip(*rows, strict=True)), strict=True))
    if rows is source and (isinstance(source, KINDS) or any(hasattr(source, name) for name in FRAME)):
        return source
    raise DataError(
        "events are a data set's name, a file, a folder, a data frame, a dict of columns or a list of (subject, "
        f"relation, object, time), not {source!r:.60}."
    )


def is_split(source: Any) -> bool:
    """Whether a source has its steps and its split already, as all but files and frames of events."""
    if isinstance(source, str | Path):
        return (
            source in ("world", *CATALOG)
            or Path(source).suffix == ".npz"
            or (is_folder(source) and not in_lake(source))
        )
    return isinstance(source, Dataset)

"""Loading: events from a name, a file, a frame or a pack, split by time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, ValuesView
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG, as_named, load_benchmark
from bridgemem.events.folders import SPLITS, given_split, has_parts, is_folder, load_folder, read_split
from bridgemem.events.log import EventLog
from bridgemem.events.mapped import MappedLog, is_mapped, open_mapped
from bridgemem.events.packs import unpack
from bridgemem.events.readers.lakes import in_lake
from bridgemem.events.readers.options import ROLES, ReadOptions, listed_missing
from bridgemem.events.readers.read import Reading, read_events
from bridgemem.events.readers.text import KEPT_REJECTS
from bridgemem.events.tgb import is_edge_list, load_edge_list
from bridgemem.events.world import World, simulate
from bridgemem.progress import SILENT, Progress

KINDS = (str, Path, Dataset, EventLog, Mapping)
ROWS = "give rows of (subject, relation, object, time)"
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
    split_at: Sequence[str | int] | None = None,
    data_dir: Path | str | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """Load events, split by time.

    Args:
        source: A data set's name, "world", a packed .npz, a folder that `bridgemem mine` wrote, which is read by memory
            map, a CSV, TSV or Parquet file, several of them, a Delta table, iceberg://CATALOG/NAMESPACE.TABLE, an
            s3:// URL, a data frame, a dict of columns, or a list or array [n, 4] of (subject, relation, object, time).
            These keep their split: a folder of train, valid and test files, three files that are called so, three
            frames, arrays or lists in this order, {"train": ..., "valid": ..., "test": ...}, and TGB's
            tkgl-*_edgelist.csv. What follows up to `keep_na` is for files and frames alone.
        subject: Heading of the subject column (default: a usual name such as source or actor1).
        relation: Heading of the relation column. Several headings are joined by a colon.
        object: Heading of the object column.
        time: Heading of the time column, or those of year, month and day.
        relation_is: The relation of every row, where no column has one.
        format: auto, gdelt, icews, polecat, acled, or plain for any other table.
        step: Length of a time step: hour, day, week, 15min, 7d; a whole number for whole-number times.
        time_format: day-first, month-first, epoch (seconds), epoch-ms, epoch-us, epoch-ns, number, or as for
            `strptime`, such as "%d/%m/%y".
        na: Texts that stand for a missing value (default: NA, nan, null, None, - and the like).
        keep_na: Whether such texts are names, and only an empty value is missing.
        valid: Share of the last events for validation (default: 0.1), where the data are not split yet.
        test: Share of the last events for test (default: 0.1).
        split_at: First time of validation and first time of test, in place of shares.
        data_dir: Folder of the named data sets.
        progress: Where the reading is shown.

    Returns:
        The events under their split. A warning counts the rows that were left out or rejected, and says if the split
        was made here.

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
    return loaded(source, options, valid=valid, test=test, split_at=split_at, data_dir=data_dir, progress=progress)


def loaded(
    source: Any,
    options: ReadOptions,
    *,
    valid: float | None = None,
    test: float | None = None,
    split_at: Sequence[str | int] | None = None,
    data_dir: Path | str | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """Load events as `load` does, with the options of reading as one record."""
    source = _meant(source)
    cut = Cut.of(valid, test, split_at)
    what, packed = source if isinstance(source, str | Path) else "this data", is_split(source)
    if options.step is not None and (packed or isinstance(source, EventLog)):
        raise SettingsError(f"{what} has its time steps already; leave step out, or import the events again with it.")
    if options.for_tables and (packed or isinstance(source, EventLog)):
        raise SettingsError(f"{what} has its columns, names and times already; leave such options out.")
    if packed and not is_mapped(source) and cut.given:
        raise cut.refused(what)
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
        return cut.applied_to_mapped(source)
    if is_edge_list(source):
        if cut.given:
            raise cut.refused(what)
        return load_edge_list(source, options, progress=progress)
    if not in_lake(source) and (split := given_split(source)):
        if not cut.given:
            return as_named(load_folder(split, options, progress=progress))
        if "valid" in split.parts:
            raise cut.refused(split.name)
        source = list(split.parts.values())
    if isinstance(source, str) and not in_lake(source) and not Path(source).exists():
        raise NotFoundError(
            f"there is no file and no data set called {source!r}; known data sets are world, {', '.join(CATALOG)}."
        )
    if isinstance(source, EventLog):
        return cut.applied(name, source)
    reading = read_events(source, options, progress=progress)
    for said in reading.notable():
        warnings.warn(said, stacklevel=3)
    return cut.applied(name, reading.events)


def read_source(
    name: str,
    files: Sequence[Any],
    options: ReadOptions,
    cut: Cut,
    strict: bool = False,
    kept: int = KEPT_REJECTS,
    progress: Progress = SILENT,
) -> tuple[Dataset, Reading]:
    """The data set of files, and how they were read; files that are called train, valid and test keep their split."""
    split = None if any(map(in_lake, files)) else given_split(list(files))
    if split is not None and cut.given and "valid" in split.parts:
        raise cut.refused(split.name)
    if split is not None and not cut.given:
        split = replace(split, name=name)
        dataset, reading = read_split(split, options, progress, strict=strict, kept=kept)
        return as_named(dataset), reading
    reading = read_events(files, options, strict=strict, kept=kept, progress=progress)
    return cut.applied(name, reading.events), reading


@dataclass(frozen=True)
class Cut:
    """Where events without a split of their own are to be cut: by shares, or at two times."""

    valid: float | None = None
    test: float | None = None
    at: tuple[str | int, str | int] | None = None

    @classmethod
    def of(cls, valid: float | None, test: float | None, at: Sequence[str | int] | None) -> Cut:
        if at is None:
            return cls(valid, test)
        if not valid is test is None:
            raise SettingsError("the split is given by shares or by two times, split_at: give one of both.")
        if isinstance(at, str) or len(at) != 2:
            raise SettingsError("split_at takes two times; give the first of validation and the first of test.")
        return cls(at=(at[0], at[1]))

    @property
    def given(self) -> bool:
        return any(part is not None for part in (self.valid, self.test, self.at))

    def refused(self, what: object) -> SettingsError:
        """The error that a source is split already."""
        wanted = "valid and test" if self.at is None else "split_at"
        return SettingsError(f"{what} is split already; leave {wanted} out, or join its files into one.")

    def applied(self, name: str, events: EventLog) -> Dataset:
        """The events under this split; warns if it was not given."""
        if self.at is not None:
            return Dataset.split_at(name, events, valid=self.at[0], test=self.at[1])
        shares = [0.1 if share is None else share for share in (self.valid, self.test)]
        dataset = Dataset.chronological(name, events, valid=shares[0], test=shares[1])
        if not self.given:
            warnings.warn(made_split(dataset), stacklevel=4)
        return dataset

    def applied_to_mapped(self, source: Path | str) -> Dataset:
        """The data set of a mined folder or a memory on disk, under its own split unless one is given."""
        dataset = open_mapped(source, valid=self.valid, test=self.test)
        if self.at is not None:
            return self.applied(dataset.name, dataset.events)
        home = dataset.events.home if isinstance(dataset.events, MappedLog) else None
        if not self.given and not (home and home.is_split):
            warnings.warn(made_split(dataset), stacklevel=4)
        return dataset


def made_split(dataset: Dataset) -> str:
    """One line that says that a split was made here, with its boundaries."""
    label, sizes = dataset.events.clock.label, dataset.sizes
    return (
        f"{dataset.name} has no split, so it was split by time: train {sizes['train']:,} events, valid "
        f"{sizes['valid']:,} from {label(dataset.valid_start)}, test {sizes['test']:,} from "
        f"{label(dataset.test_start or 0)}; set the boundaries with --split-at DATE DATE (split_at in Python)."
    )


def _meant(source: Any) -> Any:
    """What a source that is plainly events in another form stands for; what is none is refused."""
    if isinstance(source, World):
        return source.dataset
    if has_parts(source):
        _tell_gaps(source.values())
        return {name: _part(part, name) for name, part in source.items()}
    source = _as_array(source)
    if isinstance(source, np.ndarray) and source.ndim == 3:
        source = list(source)
    _tell_gaps([source] if isinstance(source, np.ndarray) else source)
    if isinstance(source, list | tuple) and source and not any(_is_row(row) or _is_record(row) for row in source):
        names = SPLITS if len(source) == len(SPLITS) else [f"part {i}" for i in range(1, len(source) + 1)]
        return [_part(part, name) for part, name in zip(source, names, strict=True)]
    return _part(source, "this data")


def _tell_gaps(parts: Any) -> None:
    """Say it where arrays of ids leave some out, since ids of events are numbered without gaps."""
    if not isinstance(parts, list | tuple | ValuesView):
        return
    arrays = [part for one in parts if isinstance(part := _as_array(one), np.ndarray) and part.shape[1:] == (4,)]
    if not arrays or not all(array.dtype.kind in "iu" for array in arrays):
        return
    ids = np.unique(np.concatenate([array[:, [0, 2]].ravel() for array in arrays]))
    if len(ids) and ids[0] >= 0 and (absent := int(ids[-1]) + 1 - len(ids)):
        warnings.warn(
            f"entity ids are numbered anew: {absent:,} of those up to {ids[-1]:,} do not occur and are no candidates. "
            "To keep them, write a folder with stat.txt; `dataset.events.entities.names` has the ids as they were.",
            stacklevel=5,
        )


def _part(part: Any, what: str) -> Any:
    """An array or a list of events as columns; a table of another kind as it is, and what is none refused."""
    part = _as_array(part)
    if not isinstance(part, np.ndarray | list | tuple):
        if isinstance(part, KINDS) or _is_frame(part):
            return part
        raise DataError(
            "events are a data set's name, a file, a folder, a data frame, a dict of columns, an array or a list of "
            f"(subject, relation, object, time), not {part!r:.60}."
        )
    rows = part
    if isinstance(part, list | tuple) and any(map(_is_record, part)):
        return _of_records(part, what)
    if isinstance(part, np.ndarray):
        records = part.ndim == 1 and (part.dtype.names or part.dtype.hasobject)  # a row each
        if not records and part.shape[1:] != (len(ROLES),):
            raise DataError(f"{what} is an array of shape {part.shape}; {ROWS}, an array of shape (n, 4).")
        rows = part.tolist()
    if not len(rows):
        raise DataError(f"{what} holds no events; {ROWS}.")
    for number, row in enumerate(rows, start=1):
        if not _is_row(row):
            where = (
                f"{what}, row {number} is {row!r:.60}" if isinstance(row, list | tuple) else f"{what} is {rows!r:.60}"
            )
            raise DataError(f"{where}; {ROWS}.")
    return dict(zip(ROLES, map(list, zip(*rows, strict=True)), strict=True))


def _is_record(row: object) -> bool:
    """Whether this may be one event, as a dict of its values."""
    return isinstance(row, Mapping) and all(np.ndim(value) == 0 for value in row.values())


def _of_records(rows: Sequence[Any], what: str) -> dict[str, list[Any]]:
    """A list of dicts of values as columns; all of them need the keys of the first."""
    names = list(rows[0])
    for number, row in enumerate(rows, start=1):
        if not _is_record(row) or set(row) != set(names):
            keys = ", ".join(map(repr, names))
            raise DataError(f"{what}, row {number} is {row!r:.60}; give every row the keys of the first, {keys}.")
    return {name: [row[name] for row in rows] for name in names}


def _as_array(source: Any) -> Any:
    """An array of another library, such as a tensor, as numpy's; anything else as it is."""
    if not hasattr(source, "__array__") or _is_frame(source):
        return source
    try:
        return np.asarray(source.cpu() if hasattr(source, "cpu") else source)
    except (TypeError, RuntimeError):  # a sparse tensor, or one that a network computes with
        raise DataError(f"this {type(source).__name__} is no plain array; {ROWS}, an array of shape (n, 4).") from None


def _is_frame(source: object) -> bool:
    return any(hasattr(source, name) for name in FRAME)


def _is_row(row: object) -> bool:
    """Whether this may be one event, and is no list of events."""
    return (
        isinstance(row, list | tuple) and len(row) == len(ROLES) and not isinstance(row[0], list | tuple | np.ndarray)
    )


def is_split(source: Any) -> bool:
    """Whether a source has its ids, steps and split already, as all but files and frames of events."""
    if isinstance(source, str | Path):
        if source in ("world", *CATALOG) or Path(source).suffix == ".npz" or is_mapped(source):
            return True
        folder = is_folder(source) and not in_lake(source) and not is_edge_list(source)
        return folder and (split := given_split(source)) is not None and split.has_ids
    return isinstance(source, Dataset)

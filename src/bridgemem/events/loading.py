"""Loading: events from a name, a file, a frame or a pack, split by time."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG, as_named, load_benchmark
from bridgemem.events.folders import is_folder, load_folder
from bridgemem.events.log import EventLog
from bridgemem.events.packs import unpack
from bridgemem.events.readers.read import read_events
from bridgemem.events.world import simulate
from bridgemem.progress import SILENT, Progress


def load(
    source: Any,
    *,
    step: str | int | None = None,
    valid: float | None = None,
    test: float | None = None,
    data_dir: Path | str | None = None,
    progress: Progress = SILENT,
) -> Dataset:
    """Events, split by time: a data set's name, "world", a packed .npz, a folder of train, valid and test files, a
    CSV/TSV/Parquet file, or a data frame.

    step: the length of a time step, for files and frames alone; all others have their steps already.
    valid, test: the last shares of the events, a tenth each; for what is not split yet.
    """
    what, packed = source if isinstance(source, str | Path) else "this data", _is_split(source)
    if step is not None and (packed or isinstance(source, EventLog)):
        raise SettingsError(f"{what} has its time steps already; leave step out, or import the events anew with it.")
    if packed and not valid is test is None:
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
    if is_folder(source):
        return as_named(load_folder(source, progress=progress))
    if isinstance(source, str) and not Path(source).exists():
        raise NotFoundError(
            f"there is no file and no data set called {source!r}; known data sets are world, {', '.join(CATALOG)}."
        )
    if isinstance(source, EventLog):
        return Dataset.chronological(name, source, valid=shares[0], test=shares[1])
    reading = read_events(source, step=step, progress=progress)
    if reading.rejects.count or reading.dropped:
        warnings.warn(reading.sentence(), stacklevel=2)
    return Dataset.chronological(name, reading.events, valid=shares[0], test=shares[1])


def _is_split(source: Any) -> bool:
    if isinstance(source, str | Path):
        return source in ("world", *CATALOG) or Path(source).suffix == ".npz" or is_folder(source)
    return isinstance(source, Dataset)

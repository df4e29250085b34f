"""The columns of an .npz: what they declare is compared with the limits before anything is unpacked or allocated."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.limits import TEXT_RATIO, Budget
from bridgemem.storage.arrays import array_header


def check_columns(path: Path, archive: zipfile.ZipFile, rows: Mapping[str, float]) -> None:
    """Refuse an archive whose columns unpack to more than the limit; rows: what an entry of each counts as."""
    budget = Budget()
    budget.open(path, TEXT_RATIO)
    for name in rows:  # all sizes first, since a header may be as long as its member
        budget.spend(path, archive.getinfo(f"{name}.npy").file_size)
    for name, share in rows.items():
        if share:
            with archive.open(f"{name}.npy") as file:
                entries, _ = _declared(archive, name, file)
            budget.spend(path, 0, rows=int(share * entries))


def read_column(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """A column of whole numbers [n]."""
    with archive.open(f"{name}.npy") as file:
        entries, dtype = _declared(archive, name, file)
        return np.frombuffer(file.read(), dtype, entries)


def _declared(archive: zipfile.ZipFile, name: str, file: IO[bytes]) -> tuple[int, np.dtype]:
    """How many entries a column says it has, and of which type; the bytes of its member must bear that out."""
    shape, dtype = array_header(name, file)
    whole = len(shape) == 1 and dtype.kind in "iu"
    if not whole or shape[0] * dtype.itemsize != archive.getinfo(f"{name}.npy").file_size - file.tell():
        raise DataError(f"its {name} is not a column of whole numbers")
    return int(shape[0]), dtype

"""The columns of an .npz: what they declare is compared with the limits before anything is unpacked or allocated."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.limits import TEXT_RATIO, Budget

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


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


def check_arrays(path: Path) -> None:
    """Refuse an .npz of which an array claims more bytes than it has, before they are allocated."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                with archive.open(member) as file:
                    shape, dtype = _header(member.filename, file)
                if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
                    raise DataError(f"{member.filename} claims a shape that it does not have")


def _declared(archive: zipfile.ZipFile, name: str, file: IO[bytes]) -> tuple[int, np.dtype]:
    """How many entries a column says it has, and of which type; the bytes of its member must bear that out."""
    shape, dtype = _header(name, file)
    whole = len(shape) == 1 and dtype.kind in "iu"
    if not whole or shape[0] * dtype.itemsize != archive.getinfo(f"{name}.npy").file_size - file.tell():
        raise DataError(f"its {name} is not a column of whole numbers")
    return int(shape[0]), dtype


def _header(name: str, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type that an array declares."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    except zipfile.BadZipFile:
        raise
    except Exception:  # numpy parses a header as Python, which can fail in any way
        raise DataError(f"its {name} has not the header of an array") from None
    return shape, dtype

"""Arrays in an .npz: what they declare is checked before anything is allocated."""

from __future__ import annotations

import math
import warnings
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from bridgemem.errors import DataError

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_arrays(path: Path) -> None:
    """Refuse an .npz of which an array claims more bytes than it has, before they are allocated."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                with archive.open(member) as file:
                    shape, dtype = array_header(member.filename, file)
                if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > member.file_size:
                    raise DataError(f"{member.filename} claims a shape that it does not have")


def array_header(name: str, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
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

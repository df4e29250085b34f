"""Columns: numbers in .npy files that grow by blocks and are read by memory map; none is held in memory whole."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from bridgemem.errors import RunError
from bridgemem.storage.checksums import checksum

INDEX = "index"  # where a mined folder keeps its columns
HEADER = 128  # bytes before the first number of a column: an .npy header of one axis always fits
MAGIC = b"\x93NUMPY\x01\x00"
AGAIN = "write the memory on disk again"


def again(folder: Path) -> str:
    """What to do about a folder of columns that cannot be used."""
    return "mine again" if folder.name == INDEX else AGAIN


class Column:
    """One .npy file that grows by blocks, of a length that is known when it is closed."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path, self.dtype, self.length = path, np.dtype(dtype), 0
        self.checksum = ""  # of what was added, and when it is closed of the header after that
        self._file: BinaryIO = path.open("wb")
        self._file.write(bytes(HEADER))

    def add(self, values: np.ndarray) -> None:
        """Append values [n], which must fit the column's type."""
        content = np.ascontiguousarray(values, self.dtype).tobytes()
        self._file.write(content)
        self.checksum = checksum(content, self.checksum)
        self.length += len(values)

    def close(self) -> None:
        """Write the header; a column that is closed stays as it is."""
        if self._file.closed:
            return
        header = io.BytesIO()
        shape = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(header, shape)
        if header.tell() != HEADER:
            raise RunError(f"{self.path} has a header that this version of numpy writes otherwise; use a newer numpy.")
        self._file.seek(0)
        self._file.write(header.getvalue())
        self._file.close()
        self.checksum = checksum(header.getvalue(), self.checksum)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_column(path: Path, dtype: str, length: int) -> np.ndarray:
    """A column by memory map, [length]; writes stay private to the process, and nothing here writes.

    Type and length are those of the manifest, which has a checksum; of the header only the first bytes are read.
    """
    expected = HEADER + length * np.dtype(dtype).itemsize
    try:
        with path.open("rb") as file:
            size, magic = os.fstat(file.fileno()).st_size, file.read(len(MAGIC))
        if size != expected:
            raise RunError(f"{path} has {size:,} bytes instead of {expected:,}; {again(path.parent)}.")
        if magic != MAGIC:
            raise RunError(f"{path} is damaged, it is not a .npy file; {again(path.parent)}.")
        if not length:
            return np.empty(0, dtype)
        return np.memmap(path, dtype, "c", HEADER, (length,))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; {again(path.parent)}.") from None
    except (OSError, ValueError) as problem:
        raise RunError(f"{path} cannot be read: {problem}; {again(path.parent)}.") from None


def forget(columns: Iterable[np.ndarray]) -> None:
    """Let go of the pages of mapped columns; they come back from the disk, or its cache, when they are read again."""
    for column in columns:
        held = getattr(column, "_mmap", None)
        if held is not None and hasattr(held, "madvise"):
            held.madvise(mmap.MADV_DONTNEED)

"""Files of events by paths and globs."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from bridgemem.errors import DataError


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """The files that paths and globs name, in the order given and each glob in the order of names.

    A file that is called like a glob is that file.
    """
    found: list[Path] = []
    for pattern in map(str, patterns):
        if not pattern.strip():
            raise DataError("a name of a file is empty; name a CSV, TSV or Parquet file.")
        path = Path(pattern)
        if path.is_dir():
            raise DataError(f"{pattern} is a folder: name its files, as in {pattern.rstrip('/')}/*.parquet.")
        several = [] if path.exists() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        if not path.exists() and not several:
            raise DataError(f"{pattern} does not exist; check its name.")
        found += [path] if path.exists() else [Path(name) for name in several if Path(name).is_file()]
    twice = {str(path) for path in found if found.count(path) > 1} if len(set(found)) < len(found) else set()
    if twice:
        raise DataError(f"{min(twice)} is named twice, and its events would count twice; name it once.")
    if not found:
        raise DataError("no file was given; name files of events.")
    return found

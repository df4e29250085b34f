"""Files of a corpus for mining: which they are, how each holds its events, and that all do it alike."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridgemem.errors import DataError
from bridgemem.events.limits import Budget
from bridgemem.events.readers.table import PARQUET, ROLES, Asked, ColumnNames, Source, connect, find_columns
from bridgemem.events.readers.text import literal, screened, short
from bridgemem.progress import SILENT

DAYS = (19_000_101, 20_991_231)  # whole numbers in between may be days written as 20140131
LAST_ID = 2**31 - 1  # of an entity, or of a relation
TEXT = (".csv", ".tsv", ".txt")
WHOLE = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)")
MOMENT = re.compile(r"DATE|TIMESTAMP.*")


@dataclass(frozen=True)
class SourceFile:
    """One file, where it holds its events, and the kind (whole, date or text) of each role."""

    path: Path
    source: Source
    kinds: tuple[str, ...]

    @property
    def typed(self) -> bool:
        """Whether the file says what its columns are; a text file does not."""
        return self.source.dialect is None

    @contextmanager
    def rows(self, kinds: Sequence[str], folder: Path) -> Iterator[str]:
        """SQL of the four roles in these kinds: whole numbers, seconds since 1970 for dates, and texts as they are.

        folder: where a copy goes, if the file has to be unpacked. A line that is no row refuses the file.
        """
        chosen = zip(self.source.columns, self.kinds, kinds, strict=True)
        select = f"SELECT {', '.join(_expression(*how) for how in chosen)} FROM"
        if self.source.dialect is None:
            yield f"{select} read_parquet({literal(self.path)})"
            return
        with (
            SILENT.task("") as advance,
            screened(self.path, self.source.dialect, advance, budget=Budget(2**63), folder=folder) as found,
        ):
            if found.rejects:
                first = found.rejects[0]
                raise DataError(
                    f"{self.path}:{first.line} cannot be read: {first.reason}; write it again or leave it out."
                )
            yield f"{select} {found.sql()}"


def _expression(column: str, kind: str, wanted: str) -> str:
    if kind == "date":
        # times before 1970 with parts of a second are cut like all others, towards zero
        seconds = f"CAST(trunc(epoch({column})) AS BIGINT)"
        return seconds if wanted == "date" else f"CAST({column} AS VARCHAR)"
    return f"CAST({column} AS {'BIGINT' if wanted == 'whole' else 'VARCHAR'})"


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """The files that paths and globs name, in the order given and each glob in the order of names."""
    found: list[Path] = []
    for pattern in map(str, patterns):
        path = Path(pattern)
        if path.is_dir():
            raise DataError(f"{pattern} is a folder: name its files, as in {pattern.rstrip('/')}/*.parquet.")
        several = [] if path.exists() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
        if not path.exists() and not several:
            raise DataError(f"{pattern} does not exist.")
        found += [path] if path.exists() else [Path(name) for name in several if Path(name).is_file()]
    twice = {str(path) for path in found if found.count(path) > 1} if len(set(found)) < len(found) else set()
    if twice:
        raise DataError(f"{min(twice)} is named twice; its events would count twice.")
    if not found:
        raise DataError("no file was given to mine.")
    return found


def describe(path: Path, names: ColumnNames) -> SourceFile:
    """How a file holds its events."""
    endings = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    if not endings or endings[-1] not in (*PARQUET, *TEXT):
        raise DataError(
            f"{path} is of no kind that can be mined: give Parquet, CSV or TSV files, the latter also as gz."
        )
    with connect() as db:
        source = find_columns(path, Asked("plain", names), db)
    if source is None:
        raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    kinds = zip(source.headings, source.kinds, strict=True)
    return SourceFile(path, source, tuple(_kind(path, heading, declared) for heading, declared in kinds))


def common_kinds(files: Sequence[SourceFile]) -> tuple[str, ...]:
    """The kind of each role in all files; Parquet files that disagree are refused."""
    first = next((file for file in files if file.typed), None)
    for file in files:
        for role, here, there in zip(ROLES, file.kinds, first.kinds if first else file.kinds, strict=True):
            if first is not None and file.typed and here != there:
                raise DataError(
                    f"{file.path} holds {_words(here)} as the {role} where {first.path} holds {_words(there)}; "
                    "write all files with one schema."
                )
    if first is None or not all(file.typed for file in files):
        return ("text",) * len(ROLES)  # next to text files whole numbers are texts too, until all of them are seen
    return first.kinds


def _words(kind: str) -> str:
    return {"whole": "whole numbers", "date": "dates", "text": "texts"}[kind]


def _kind(path: Path, heading: str, declared: str) -> str:
    if WHOLE.fullmatch(declared):
        return "whole"
    if MOMENT.fullmatch(declared):
        return "date"
    if declared == "VARCHAR" or declared.startswith("ENUM"):
        return "text"
    raise DataError(f"{path} has a column {heading!r} of {declared}; events are whole numbers, texts and dates.")


def unreadable(path: Path, problem: Exception) -> DataError:
    """A file that DuckDB could not read, with the first line of its reason."""
    reason = short((str(problem).splitlines() or ["unknown reason"])[0], 300).rstrip(".")
    line = re.search(r"Line: (\d+)", str(problem))
    where = f"{path}:{line[1]}" if line else str(path)
    return DataError(f"{where} cannot be read: {reason}; write it again or leave it out.")

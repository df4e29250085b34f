"""Files of a corpus for mining: which they are, how each holds its events, and that all do it alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.limits import Budget
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.table import MOMENT, PARQUET, Source, connect, find_columns
from bridgemem.events.readers.text import short
from bridgemem.events.times import MIXED_ZONES
from bridgemem.progress import SILENT

LAST_ID = 2**31 - 1  # of an entity, or of a relation
TEXT = (".csv", ".tsv", ".txt")
WHOLE = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)")
WORDS = {"whole": "whole numbers", "date": "dates", "text": "texts"}


@contextmanager
def rows_of(file: Source, kinds: Sequence[str], folder: Path) -> Iterator[str]:
    """SQL of the four roles in these kinds: whole numbers, seconds since 1970 for dates, and texts as they are.

    folder: where a copy goes, if the file has to be unpacked. A line that is no row refuses the file.
    """
    chosen = zip(file.columns, kinds_of(file), kinds, strict=True)
    with SILENT.task("") as advance, file.rows(Budget(2**63), advance, folder=folder) as (table, text):
        for first in text.rejects[:1] if text else ():
            raise DataError(f"{file.name}:{first.line} cannot be read: {first.reason}; write it again or leave it out.")
        yield f"SELECT {', '.join(_expression(*how) for how in chosen)} FROM {table}"


def _expression(column: str, kind: str, wanted: str) -> str:
    if kind == "date":
        # times before 1970 with parts of a second are cut like all others, towards zero
        seconds = f"CAST(trunc(epoch({column})) AS BIGINT)"
        return seconds if wanted == "date" else f"CAST({column} AS VARCHAR)"
    return f"CAST({column} AS {'BIGINT' if wanted == 'whole' else 'VARCHAR'})"


def describe(path: Path, options: ReadOptions) -> Source:
    """How a file holds its events."""
    if options.format not in ("auto", "plain"):
        raise SettingsError(
            f"mining reads plain tables, not {options.format}: import {path} first, or name its columns."
        )
    endings = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    if not endings or endings[-1] not in (*PARQUET, *TEXT):
        raise DataError(
            f"{path} is of no kind that can be mined: give Parquet, CSV or TSV files, the latter also as gz."
        )
    with connect() as db:
        source = find_columns(path, replace(options, format="plain"), db)
    if source is None:
        raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    return source


def common_kinds(files: Sequence[Source]) -> tuple[str, ...]:
    """The kind of each role in all files; Parquet files that disagree are refused."""
    typed = [file for file in files if file.dialect is None]
    for file in typed:
        for role, here, there in zip(ROLES, kinds_of(file), kinds_of(typed[0]), strict=True):
            if here != there:
                raise DataError(
                    f"{file.name} holds {WORDS[here]} as the {role} where {typed[0].name} holds {WORDS[there]}; "
                    "write all files with one schema."
                )
    # next to text files whole numbers are texts too, until all of them are seen
    return kinds_of(files[0]) if len(typed) == len(files) else ("text",) * len(ROLES)


def mixed_zones(files: Sequence[Source]) -> str:
    """The remark that some Parquet files have a time zone and others none; empty where it is not so."""
    zoned = {"TIME ZONE" in file.kinds[-1] for file in files if MOMENT.fullmatch(file.kinds[-1])}
    return MIXED_ZONES.format("", "") if len(zoned) > 1 else ""


def kinds_of(file: Source) -> tuple[str, ...]:
    """The kind of each role in a file: whole, date or text."""
    return tuple(_kind(file, *column) for column in zip(file.headings, file.kinds, strict=True))


def _kind(file: Source, heading: str, declared: str) -> str:
    if WHOLE.fullmatch(declared):
        return "whole"
    if MOMENT.fullmatch(declared):
        return "date"
    if declared == "VARCHAR" or declared.startswith("ENUM"):
        return "text"
    raise DataError(f"{file.name} has a column {heading!r} of {declared}; events are whole numbers, texts and dates.")


def unreadable(path: str, problem: Exception) -> DataError:
    """A file that DuckDB could not read, with the first line of its reason."""
    reason = short((str(problem).splitlines() or ["unknown reason"])[0], 300).rstrip(".")
    return DataError(f"{path} cannot be read: {reason}; write it again or leave it out.")

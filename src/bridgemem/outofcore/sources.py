"""Files of a corpus for mining: which they are, how each holds its events, and that all do it alike."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridgemem.errors import DataError
from bridgemem.events.readers.lines import blocks
from bridgemem.events.readers.table import ROLES, SEPARATORS, Asked, ColumnNames, short
from bridgemem.events.times import is_time

DAYS = (19_000_101, 20_991_231)  # whole numbers in between may be days written as 20140131
LAST_ID = 2**31 - 1  # of an entity, or of a relation
PARQUET = (".parquet", ".pq", ".parq")
TEXT = (".csv", ".tsv", ".txt")
WHOLE = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)")
MOMENT = re.compile(r"DATE|TIMESTAMP.*")


@dataclass(frozen=True)
class SourceFile:
    """One file: its path, the SQL that reads it, and the column and kind (whole, date or text) of each role."""

    path: Path
    table: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    typed: bool  # the file says what its columns are; a text file does not

    def select(self, kinds: Sequence[str]) -> str:
        """The four roles as SQL of these kinds: whole numbers, seconds since 1970 for dates, and texts as they are."""
        chosen = zip(self.columns, self.kinds, kinds, strict=True)
        return f"SELECT {', '.join(_expression(*how) for how in chosen)} FROM {self.table}"


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
    endings = [s.lower() for s in path.suffixes if s.lower() not in (".gz", ".zst")]
    ending = endings[-1] if endings else ""
    if ending in PARQUET:
        return _describe_parquet(path, names)
    if ending in TEXT:
        return _describe_text(path, names)
    raise DataError(f"{path} is of no kind that can be mined: give Parquet, CSV or TSV files, the latter also as gz.")


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


def _describe_parquet(path: Path, names: ColumnNames) -> SourceFile:
    import duckdb

    table = f"read_parquet({quoted(str(path))})"
    try:
        with duckdb.connect() as connection:
            shown = connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    except Exception as problem:  # over damaged files DuckDB raises more than its own errors
        raise unreadable(path, problem) from None
    headings = [str(row[0]) for row in shown]
    chosen = places(path, headings, names)
    kinds = tuple(_kind(path, headings[i], str(shown[i][1])) for i in chosen)
    return SourceFile(path, table, tuple(identifier(headings[i]) for i in chosen), kinds, True)


def _kind(path: Path, heading: str, declared: str) -> str:
    if WHOLE.fullmatch(declared):
        return "whole"
    if MOMENT.fullmatch(declared):
        return "date"
    if declared == "VARCHAR" or declared.startswith("ENUM"):
        return "text"
    raise DataError(f"{path} has a column {heading!r} of {declared}; events are whole numbers, texts and dates.")


def _describe_text(path: Path, names: ColumnNames) -> SourceFile:
    """Separator and columns from the first lines; four or five columns without a heading are read by position."""
    lines = next((lines for _, lines, _ in blocks(path) if any(line.strip() for line in lines)), [])
    sample = [line for line in lines if line.strip()][:50]
    if not sample:
        raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    separator = max(SEPARATORS, key=lambda s: sum(line.count(s) >= 3 for line in sample))
    heading = [text.strip().strip('"') for text in sample[0].split(separator)]
    by_position = names == ColumnNames() and len(heading) in (4, 5) and is_time(heading[3])
    chosen = [0, 1, 2, 3] if by_position else places(path, heading, names)
    columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(heading)))
    quote = "" if separator == "\t" else '"'
    table = (
        f"read_csv({quoted(str(path))}, auto_detect=false, columns={{{columns}}}, delim={quoted(separator)}, "
        f"quote={quoted(quote)}, escape={quoted(quote)}, header={not by_position}, nullstr='', "
        f"compression={quoted('gzip' if path.suffix.lower() == '.gz' else 'auto')})"
    )
    return SourceFile(path, table, tuple(f"c{i}" for i in chosen), ("text",) * len(ROLES), False)


def places(path: Path, headings: Sequence[str], names: ColumnNames) -> list[int]:
    """Where each role's column is, by the names given or by the usual ones."""
    there = {heading.lower(): i for i, heading in reversed(list(enumerate(headings)))}
    wanted = Asked("plain", names).candidates(None)
    found = {
        role: next((there[n.lower()] for n in usual if n.lower() in there), None) for role, usual in wanted.items()
    }
    lost = [getattr(names, role) or role for role, place in found.items() if place is None]
    if lost:
        raise DataError(
            f"{path} has no column for {short(', '.join(lost))}; it has {short(', '.join(map(repr, headings)))}: name "
            "the columns with --subject, --relation, --object and --time."
        )
    return [place for place in found.values() if place is not None]


def unreadable(path: Path, problem: Exception) -> DataError:
    """A file that DuckDB could not read, with the first line of its reason."""
    reason = short((str(problem).splitlines() or ["unknown reason"])[0], 300).rstrip(".")
    line = re.search(r"Line: (\d+)", str(problem))
    where = f"{path}:{line[1]}" if line else str(path)
    return DataError(f"{where} cannot be read: {reason}; write it again or leave it out.")


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'

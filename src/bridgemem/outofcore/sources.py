"""Files of a corpus for mining: which they are, how each holds its events, and a check that all agree."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bridgemem.errors import DataError
from bridgemem.events.limits import MOST_PAIRS, Budget
from bridgemem.events.log import Vocabulary
from bridgemem.events.readers.layouts import SourceLayout
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.rejects import MOST
from bridgemem.events.readers.table import INTEGER, MOMENT, PARQUET, Source, connect, find_columns
from bridgemem.events.readers.text import NOT_UTF8, Screened, literal, short, to_utf8
from bridgemem.events.times import MIXED_ZONES
from bridgemem.events.whole_numbers import plain_number_sql
from bridgemem.progress import SILENT

LAST_ID = 2**31 - 1  # of an entity, or of a relation
TEXT = (".csv", ".tsv", ".txt")
PACKED = (".gz", ".zip")
SPACE = "chr(32)||chr(9)||chr(10)||chr(11)||chr(12)||chr(13)"
WHOLE = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)")
ROW = "bridgemem_row"  # a name that no published layout has
CROWD = "too many parties"  # stands for the time of a row between them
WORDS = {"whole": "whole numbers", "date": "dates", "text": "texts"}


@contextmanager
def rows_of(
    file: Source, kinds: Sequence[str], folder: Path, *, rejecting: bool = False, known: Collection[str] = ()
) -> Iterator[tuple[str, Screened | None]]:
    """SQL of the four roles in these kinds: whole numbers, seconds since 1970 for dates, and texts; 107.0 is named 107.

    folder: where a copy goes, if the file has to be unpacked. rejecting: a fifth column says which row of the file each
    is, the first is 1, and lines that are no rows are rejected; else such a line refuses the file. Next to the SQL
    comes what was found of the lines of a text file. known: names that stay as they are.
    """
    kept = MOST if rejecting else 1
    with SILENT.task("") as advance, file.rows(Budget(2**63), advance, folder=folder, kept=kept) as (table, text):
        for first in text.rejects[:1] if text and not rejecting else ():
            how = to_utf8(file.name) if first.reason == NOT_UTF8 else "write it again or leave it out"
            raise DataError(
                f"{file.name}:{first.line} cannot be read: {first.reason}; {how}; --rejects FILE collects such lines."
            )
        number = f", row_number() OVER () AS {ROW}" * rejecting
        if file.layout is not None:
            yield _published(file, file.layout, f"(SELECT *{number} FROM {table})", f", {ROW}" * rejecting), text
            return
        columns = list(map(_expression, file.columns, kinds_of(file), kinds))
        columns[:3] = [_named(c, known) if k == "text" else c for c, k in zip(columns[:3], kinds[:3], strict=True)]
        yield f"SELECT {', '.join(columns)}{number} FROM {table}", text


def _published(file: Source, layout: SourceLayout, table: str, row: str = "") -> str:
    """SQL of the four roles of a published layout as texts, with a row for each two parties, as `pair_rows` has them.

    A missing party is empty. A row between too many parties has no time, so that it is rejected. Nothing here
    may become a join, which does not keep the order of the rows. row: a further column that is passed on.
    """
    missing = literal("|".join(map(re.escape, sorted({"", *layout.missing}))))
    subject, relation, object_, time = file.texts()
    read = f"""SELECT {_parts(subject, layout)} AS first, {_parts(object_, layout)} AS second,
        {_unquoted(relation)} AS relation, {_unquoted(time)} AS time{row} FROM {table}"""
    firsts, seconds = (
        f"[x FOR x, i IN {side} IF NOT regexp_full_match(x, {missing}) AND list_position({side}, x) = i]"
        for side in ("first", "second")
    )
    label = f"CASE WHEN regexp_full_match(relation, {missing}) THEN '' ELSE relation END"
    named = f"SELECT {firsts} AS firsts, {seconds} AS seconds, {label} AS relation, time{row} FROM ({read})"
    pairs = "flatten([[{'a': x, 'b': y} FOR y IN seconds] FOR x IN firsts])"
    many = "len(firsts) * len(seconds)"
    kept = f"""CASE WHEN {many} = 0 OR {many} > {MOST_PAIRS}
            THEN [{{'a': coalesce(firsts[1], ''), 'b': coalesce(seconds[1], '')}}]
        WHEN {many} = 1 THEN {pairs} ELSE [p FOR p IN {pairs} IF p.a <> p.b] END"""
    timed = f"CASE WHEN {many} > {MOST_PAIRS} THEN {literal(CROWD)} ELSE time END"
    paired = f"SELECT unnest({kept}) AS pair, relation, {timed} AS time{row} FROM ({named})"
    return f"SELECT pair.a, relation, pair.b, time{row} FROM ({paired})"


def _unquoted(text: str) -> str:
    """SQL of a text as `layouts.unquoted` gives it."""
    plain = f"trim({text}, {SPACE})"
    inner = f"trim(replace(substr({plain}, 2, length({plain}) - 2), '\"\"', '\"'), {SPACE})"
    quoted = f"length({plain}) > 1 AND starts_with({plain}, '\"') AND ends_with({plain}, '\"')"
    return f"CASE WHEN {quoted} THEN {inner} ELSE {plain} END"


def _parts(text: str, layout: SourceLayout) -> str:
    """SQL of the texts in a field that may name several parties."""
    if not layout.separator:
        return f"[{_unquoted(text)}]"
    return f"[{_unquoted('part')} FOR part IN string_split({text}, {literal(layout.separator)})]"


def _expression(column: str, kind: str, wanted: str) -> str:
    if kind == "date":
        # times before 1970 with parts of a second are cut like all others, towards zero
        seconds = f"CAST(trunc(epoch({column})) AS BIGINT)"
        return seconds if wanted == "date" else f"CAST({column} AS VARCHAR)"
    return f"CAST({column} AS {'BIGINT' if wanted == 'whole' else 'VARCHAR'})"


def _named(column: str, known: Collection[str]) -> str:
    """SQL of a text as a name, as `ReadOptions.name` has it."""
    text = text_of(column)
    plain = plain_number_sql(text)
    if not known:
        return plain
    return f"CASE WHEN {text} IN ({', '.join(map(literal, sorted(known)))}) THEN {text} ELSE {plain} END"


def describe(path: Path, options: ReadOptions) -> Source:
    """How a file holds its events."""
    endings = [s.lower() for s in path.suffixes if s.lower() not in PACKED]
    if not endings or endings[-1] not in (*PARQUET, *TEXT):
        raise DataError(
            f"{path} is of no kind that can be mined: give Parquet, CSV or TSV files, the latter also as gz or zip."
        )
    with connect() as db:
        source = find_columns(path, options, db)
    if source is None:
        raise DataError(f"{path} is empty: give rows of subject, relation, object, time.")
    if source.layout is not None and options.na is not None:
        source = replace(source, layout=replace(source.layout, missing=frozenset(map(str, options.na))))
    return source


def mining_options(files: Sequence[Source], options: ReadOptions) -> ReadOptions:
    """How files are read together: a published layout has its own step and its own marks of what is missing."""
    first = files[0].layout
    for file in files:
        if (file.layout and file.layout.name) != (first and first.name):
            kinds = [layout.name if layout else "plain" for layout in (first, file.layout)]
            raise DataError(
                f"{files[0].name} is in the {kinds[0]} format and {file.name} in the {kinds[1]} one: give files of one "
                "format at a time."
            )
    if first is None:
        return replace(options, format="plain")
    return replace(options, format=first.name, na=(), step=options.step or first.step)


def common_kinds(files: Sequence[Source]) -> tuple[str, ...]:
    """The kind of each role in all files; Parquet files that disagree are refused."""
    if files[0].layout is not None:
        return ("text",) * len(ROLES)
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
    files = [file for file in files if file.layout is None]
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
    raise DataError(f"{file.name} has a column {heading!r} of {declared}; write whole numbers, texts or dates.")


def unreadable(path: str, problem: Exception) -> DataError:
    """A file that DuckDB could not read, with the first line of its reason."""
    reason = short((str(problem).splitlines() or ["unknown reason"])[0], 300).rstrip(".")
    return DataError(f"{path} cannot be read: {reason}; write it again or leave it out.")


def text_of(column: str) -> str:
    return f"trim(CAST({column} AS VARCHAR), {SPACE})"


@dataclass(frozen=True)
class RawTable:
    """The kind of each role in the table `raw`, and what stands for a missing value in it."""

    kinds: dict[str, str]
    options: ReadOptions
    entities: Vocabulary | None
    relations: Vocabulary | None

    def marks(self, role: str) -> Collection[str]:
        """What stands for a missing value in a role."""
        known = {"subject": self.entities, "object": self.entities, "relation": self.relations}.get(role)
        return self.options.missing(known.names if known else ())

    def missing(self, role: str) -> str:
        """SQL that is true where a row lacks a role; a name of a known vocabulary is never a missing value."""
        marks = sorted(self.marks(role))
        if self.kinds[role] != "text":
            numbers = [mark for mark in marks if INTEGER.fullmatch(mark) and self.kinds[role] == "whole"]
            return f"({role} IS NULL{''.join(f' OR {role} = {number}' for number in numbers)})"
        return f"({role} IS NULL OR {text_of(role)} IN ({', '.join(map(literal, marks))}))"

    def filled(self) -> str:
        """SQL that is true where a row names both parties and the relation."""
        parts = [f"NOT {self.missing(role)}" for role in ROLES[:3]]
        parts += [f"{role} >= 0" for role in ROLES[:3] if self.kinds[role] == "whole"]
        return f"({' AND '.join(parts)})"

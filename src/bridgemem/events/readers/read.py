"""Reading events: TSV, CSV, Parquet (gz too) and data frames -> EventLog, with a report of rejected rows.

DuckDB gives every column as codes into the distinct texts it holds, so that names, ids and times are judged once per
distinct text and not once per row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.limits import MOST_PAIRS, Budget
from bridgemem.events.log import DAY, EventLog, Vocabulary
from bridgemem.events.readers.layouts import FORMATS, SourceLayout, iso
from bridgemem.events.readers.table import (
    INTEGER,
    ROLES,
    Asked,
    ColumnNames,
    Source,
    check_rows,
    connect,
    find_columns,
    reading,
)
from bridgemem.events.readers.text import KEPT_REJECTS, Reject, fault, short, text_lines
from bridgemem.events.times import clock_for, read_times, seconds
from bridgemem.progress import SILENT, Progress, Step

if TYPE_CHECKING:
    import duckdb

__all__ = ["ColumnNames", "Reading", "Reject", "Rejects", "read_events", "read_vocabulary"]


@dataclass(frozen=True)
class Rejects:
    """The rejected rows among all rows read: all are counted, the first 10,000 are kept."""

    rows: tuple[Reject, ...]
    count: int
    total: int

    def sentence(self) -> str:
        """The report in one sentence."""
        if not self.count:
            return "The one row was read." if self.total == 1 else f"All {self.total:,} rows were read."
        first = self.rows[0]
        were, rows = "was" if self.count == 1 else "were", "row" if self.total == 1 else "rows"
        place = f"{first.file}:{first.line}"
        return f"{self.count:,} of {self.total:,} {rows} {were} rejected, the first at {place}: {first.reason}."


@dataclass(frozen=True)
class Reading:
    """Events, the rows that could not become events, and how the source was understood.

    dropped: rows of a published layout that are as they should be but name no pair of parties, counted by the reason.
    format: the layout, "plain" where it is none of the published ones. columns: the heading of each role.
    lines int64 [n]: where in its file each event stands.
    """

    events: EventLog
    rejects: Rejects
    dropped: Mapping[str, int] = field(default_factory=dict)
    format: str = "plain"
    columns: Mapping[str, str] = field(default_factory=dict)
    lines: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def source(self) -> str:
        """How the source was understood, in one sentence."""
        columns = ", ".join(f"{role} from {heading}" for role, heading in self.columns.items())
        return f"Read as {self.format}: {columns}."

    def sentence(self) -> str:
        """What was read, rejected and dropped."""
        said = self.rejects.sentence()
        return f"{said} {_dropped_sentence(self.dropped, self.rejects.total)}" if self.dropped else said


def read_events(
    source: Any,
    *,
    columns: ColumnNames | None = None,
    format: str = "auto",
    step: str | int | None = None,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
    strict: bool = False,
    progress: Progress = SILENT,
) -> Reading:
    """Read events from a file, several files, a data frame, or a dict of columns.

    columns: the headings, where they are neither subject, relation, object, time nor a usual synonym. Text files of
        four or five columns without a heading are read by position.
    format: gdelt, icews, polecat or acled for a file in that published layout, plain for any other; auto tells by the
        headings or the number of columns. In a published layout names stay names even where all are whole numbers,
        the step is a day if none is given, and rows without two parties are dropped.
    step: the length of a time step: a whole number in the file's own units for whole-number times; for dates "hour",
        "day", "week", "15min", "7d" or a number of seconds; these names also where whole numbers are plainly epoch
        seconds or milliseconds. Left out, it is the longest step that fits all times.
    entities, relations: vocabularies that the events must use, by name or by id. Left out, names get ids in the order
        of first appearance; whole numbers (without leading zeros or wide gaps) in their own order, so that they are
        ids already where none is missing. What does not occur gets no id.
    strict: make the first rejected row an error.
    """
    if format not in FORMATS:
        raise SettingsError(f"{short(format)!r} is not a format: give one of {', '.join(FORMATS)}.")
    several = isinstance(source, Sequence) and not isinstance(source, str)
    with connect() as db, progress.task("reading events") as advance:
        rows = _Rows(Asked(format, columns or ColumnNames(), step), db)
        for part in source if several else [source]:
            rows.add(part, advance)
        if not rows.files:
            raise DataError("no file was given to read events from.")
        rows.encode()
    return _resolve(rows, step, entities, relations, strict)


def read_vocabulary(path: str | Path, kind: str) -> Vocabulary:
    """Names from a file of ``name<TAB>id`` lines in any order; the ids must be 0..n-1, each once."""
    names: dict[int, str] = {}
    for number, line in text_lines(Path(path)):
        if not line.strip():
            continue
        name, tab, text = line.rpartition("\t")
        if not tab or not INTEGER.fullmatch(text.strip()) or fault(line):
            raise DataError(f"{path}:{number}: expected a name in UTF-8, a tab and an id, found {short(line)!r}.")
        if int(text) in names:
            raise DataError(f"{path}:{number}: the id {int(text)} is given twice.")
        names[int(text)] = name.strip()
    if not names:
        raise DataError(f"{path} holds no names: expected lines of a name, a tab and an id.")
    if min(names) != 0 or max(names) != len(names) - 1:
        raise DataError(f"{path} has {len(names)} names, so its ids must be 0..{len(names) - 1}, each once.")
    return Vocabulary(kind, tuple(names[i] for i in range(len(names))))


class _Rows:
    """The rows of all files and frames, kept by DuckDB until they are taken out as codes into distinct texts."""

    def __init__(self, asked: Asked, db: duckdb.DuckDBPyConnection) -> None:
        self.asked, self.db = asked, db
        self.files: list[str] = []
        self.rejects: list[Reject] = []
        self.rejected = self.total = 0
        self.layout: SourceLayout | None = None
        self.headings: dict[str, str] = {}
        self.texts: dict[str, list[str]] = {role: [] for role in ROLES}
        self.columns: dict[str, np.ndarray] = {}
        self._budget = Budget()
        self._lines: list[np.ndarray] = []
        self.db.execute(f"CREATE TABLE rows ({', '.join(f'{role} VARCHAR' for role in ROLES)})")

    def add(self, part: Any, advance: Step) -> None:
        """Take the rows of a file, a data frame or a dict of columns."""
        before = self.total
        self.files.append(str(part) if isinstance(part, str | Path) else "data frame")
        if source := find_columns(part, self.asked, self.db):
            self._note(source)
            with source.rows(self._budget, advance) as (table, text), reading(source.name):
                check_rows(source, table, self._budget, self.db)
                insert = f"INSERT INTO rows SELECT {', '.join(source.texts())} FROM {table}"
                count = int(self.db.execute(insert).fetchall()[0][0])
            lines = text.numbers() if text else np.arange(1, count + 1)
            if count != len(lines):
                raise DataError(
                    f"{source.name} cannot be read as a table: {count:,} of {len(lines):,} rows were found."
                )
            self._lines.append(lines)
            if text:
                self.rejects += text.rejects[: KEPT_REJECTS - len(self.rejects)]
                self.rejected += text.rejected
            self.total += count + (text.rejected if text else 0)
        if self.total == before:
            raise DataError(f"{self.files[-1]} holds no events: give rows of subject, relation, object, time.")

    def _note(self, source: Source) -> None:
        """Keep how a source was understood; all of one reading must be of one layout."""
        if len(self.files) == 1:
            self.layout, self.headings = source.layout, dict(zip(ROLES, source.headings, strict=True))
        elif source.layout is not self.layout:
            first, other = (x.name if x else "plain" for x in (self.layout, source.layout))
            raise DataError(
                f"{self.files[0]} is in the {first} format and {self.files[-1]} in the {other} one: "
                "give files of one format at a time."
            )

    def encode(self) -> None:
        """Take the rows out as codes [n] of the four roles, with the file and the line of each row."""
        self.columns = {
            "line": np.concatenate(self._lines),
            "file": np.repeat(np.arange(len(self._lines)), list(map(len, self._lines))),
        }
        kinds = {"names": ("subject", "object"), "relations": ("relation",), "times": ("time",)}
        if not len(self.columns["line"]):
            self.columns |= {role: np.zeros(0, np.int64) for role in ROLES}
            return
        with reading(", ".join(self.files)):
            for kind, roles in kinds.items():
                every = " UNION ALL ".join(f"SELECT {role} AS text FROM rows" for role in roles)
                self.db.execute(f"CREATE TYPE {kind} AS ENUM (SELECT DISTINCT text FROM ({every}))")
                texts = [text for (text,) in self.db.execute(f"SELECT unnest(enum_range(NULL::{kind}))").fetchall()]
                self.texts |= dict.fromkeys(roles, texts)
                codes = ", ".join(f"enum_code({role}::{kind}) AS {role}" for role in roles)
                found = self.db.execute(f"SELECT {codes} FROM rows").fetchnumpy()
                self.columns |= {role: found[role] for role in roles}


@dataclass
class _Texts:
    """The distinct texts of one or two columns: codes int64 [n] per column, texts [d], and how many rows hold each."""

    columns: list[np.ndarray]
    texts: list[str]
    rows: np.ndarray
    faults: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[str], columns: Sequence[np.ndarray], clean: Callable[[str], str] = str.strip) -> _Texts:
        """Clean the texts, and let those that are then equal share a code."""
        codes = _new_codes()
        merged = np.array([codes[clean(text)] for text in texts], np.int64)
        renamed = [merged[column] for column in columns]
        rows = np.bincount(np.concatenate(renamed), minlength=len(codes))
        return cls(renamed, list(codes), rows)

    def valid(self) -> np.ndarray:
        """Which rows have no fault in any of the columns: bool [n]."""
        good = np.ones(len(self.texts), bool)
        good[list(self.faults)] = False
        return np.logical_and.reduce([good[column] for column in self.columns])


def _new_codes() -> defaultdict[str, int]:
    """A dict that gives every new text the next number."""
    codes: defaultdict[str, int] = defaultdict()
    codes.default_factory = codes.__len__
    return codes


def _resolve(
    given: _Rows, step: str | int | None, entities: Vocabulary | None, relations: Vocabulary | None, strict: bool
) -> Reading:
    layout, columns, names = given.layout, given.columns, given.texts["subject"]
    dropped: dict[str, int] = {}
    if layout:
        names, columns, dropped = _pairs(layout, given)
        if not len(columns["subject"]) and not given.rejected:
            sentence = _dropped_sentence(dropped, given.total)
            raise DataError(f"no row of {', '.join(given.files)} is an event between two parties: {sentence}")
    actors = _Texts.of(names, [columns["subject"], columns["object"]])
    links = _Texts.of(given.texts["relation"], [columns["relation"]], layout.label if layout else str.strip)
    moments = _Texts.of(given.texts["time"], [columns["time"]], iso if layout else str.strip)
    actor_ids = _ids(actors, "entity", entities, layout is not None)
    link_ids = _ids(links, "relation", relations, layout is not None)
    times = read_times(moments.texts, moments.rows)
    moments.faults = times.faults
    if layout and step is None and times.kind == "date":
        step = layout.step
    elif layout and step is not None and seconds(step) < DAY and not any(":" in text for text in moments.texts):
        raise layout.too_short(step)

    good = actors.valid() & links.valid() & moments.valid()
    rejects = _rejects(given, columns, good, actors, links, moments)
    if not good.any():
        raise DataError(f"no row of {', '.join(given.files)} is an event: {rejects.sentence()}")
    if strict and rejects.count:
        first = rejects.rows[0]
        raise DataError(f"{first.file}:{first.line}: {first.reason}.")

    moment = times.values[moments.columns[0][good]]
    clock = clock_for(moment, times.kind, step)
    steps = (moment - clock.origin) // clock.unit
    order = np.argsort(steps, kind="stable")
    pairs = np.stack([column[good][order] for column in actors.columns], axis=1)
    pair_ids, entities = _numbered(actor_ids, actors.texts, pairs, "entity", entities)
    relation_ids, relations = _numbered(link_ids, links.texts, links.columns[0][good][order], "relation", relations)
    events = EventLog(pair_ids[:, 0], relation_ids, pair_ids[:, 1], steps[order], entities, relations, clock)
    lines = columns["line"][good][order]
    return Reading(events, rejects, dropped, layout.name if layout else "plain", given.headings, lines)


def _pairs(layout: SourceLayout, given: _Rows) -> tuple[list[str], dict[str, np.ndarray], dict[str, int]]:
    """Names and rows of a published layout with one row for each pair of parties, and the rows that name none.

    A row between several parties becomes one row for each two of them that differ; one that would become too many is
    rejected.
    """
    codes, columns = _new_codes(), given.columns
    parties = [[codes[name] for name in layout.parties(text)] for text in given.texts["subject"]]
    size = np.array([len(found) for found in parties], np.int64)
    first, second = size[columns["subject"]], size[columns["object"]]
    reasons = {
        "without a second party": (second == 0) & (first > 0),
        "without a first party": (first == 0) & (second > 0),
        "without any party": (first == 0) & (second == 0),
    }
    dropped = {reason: int(rows.sum()) for reason, rows in reasons.items() if rows.any()}
    crowded = first * second > MOST_PAIRS
    _reject_crowds(given, np.flatnonzero(crowded), first * second)
    kept = np.flatnonzero(~np.logical_or.reduce([crowded, *reasons.values()]))
    pairs = first[kept] * second[kept]
    row = np.repeat(kept, pairs)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    flat, start = np.array([code for found in parties for code in found], np.int64), np.cumsum(size) - size
    rows = {name: column[row] for name, column in columns.items()}
    rows["subject"] = flat[start[rows["subject"]] + nth // second[row]]
    rows["object"] = flat[start[rows["object"]] + nth % second[row]]
    true = (rows["subject"] != rows["object"]) | (first[row] * second[row] == 1)
    return list(codes), {name: column[true] for name, column in rows.items()}, dropped


def _reject_crowds(given: _Rows, rows: np.ndarray, pairs: np.ndarray) -> None:
    """Reject rows between more parties than one row may name; rows, pairs int64: which, and the pairs of every row."""
    given.rejected += len(rows)
    for i in rows[:KEPT_REJECTS].tolist():
        reason = f"the row names {pairs[i]:,} pairs of parties, and at most {MOST_PAIRS} of one row are read"
        text = "\t".join(given.texts[role][given.columns[role][i]] for role in ROLES)
        file, line = given.files[given.columns["file"][i]], int(given.columns["line"][i])
        given.rejects.append(Reject(file, line, reason, short(text)))


def _dropped_sentence(dropped: Mapping[str, int], total: int) -> str:
    count, reasons = sum(dropped.values()), ", ".join(f"{n:,} {reason}" for reason, n in dropped.items())
    return f"{count:,} of {total:,} row{'s' * (total > 1)} {'was' if count == 1 else 'were'} dropped: {reasons}."


def _ids(found: _Texts, kind: str, vocabulary: Vocabulary | None, named: bool) -> np.ndarray | None:
    """The id of each distinct text, int64 [d], or None where names are still to be numbered; notes the faults.

    named: whole numbers are names too, never ids.
    """
    whole = np.array([bool(INTEGER.fullmatch(text)) for text in found.texts], bool)
    filled = np.array([bool(text) for text in found.texts], bool)
    found.faults = {int(i): f"the {kind} is empty" for i in np.flatnonzero(~filled)}
    all_whole = bool((whole == filled).all()) and not named
    if vocabulary is None:
        if not all_whole:
            return None
        ids = np.array([int(text or -1) for text in found.texts], np.int64)
        if ids.max(initial=0) >= 10_000 + 100 * len(ids):
            return None  # numbers with wide gaps name things, they do not count them
        found.faults |= {int(i): f"the {kind} id {ids[i]} is negative" for i in np.flatnonzero(filled & (ids < 0))}
        return ids
    known = {name: i for i, name in reversed(list(enumerate(vocabulary.names)))}
    known_texts = np.array([text in known for text in found.texts], bool)
    by_id = all_whole or (not named and found.rows[whole].sum() > found.rows[known_texts].sum())
    ids = np.zeros(len(found.texts), np.int64)
    for i in np.flatnonzero(filled):
        text = found.texts[i]
        if by_id and whole[i]:
            ids[i] = int(text)
            if not 0 <= ids[i] < len(vocabulary):
                found.faults[int(i)] = f"unknown {kind} id {text}, the vocabulary ends at {len(vocabulary) - 1}"
        elif text in known:
            ids[i] = known[text]
        else:
            found.faults[int(i)] = f"unknown {kind} {short(text)!r}"
    return ids


def _numbered(
    ids: np.ndarray | None, texts: list[str], codes: np.ndarray, kind: str, vocabulary: Vocabulary | None
) -> tuple[np.ndarray, Vocabulary]:
    """The ids of the accepted rows, and the vocabulary of them; codes int64, in the order of the events."""
    if ids is not None and vocabulary is not None:
        return ids[codes], vocabulary
    if ids is not None:
        # many a table grows with the vocabulary, so numbers that do not occur are left out of it
        used = np.flatnonzero(np.bincount(ids[codes].ravel()))
        return np.searchsorted(used, ids)[codes], Vocabulary(kind, tuple(map(str, used.tolist())))
    first = np.full(len(texts), codes.size)
    first[codes.ravel()[::-1]] = np.arange(codes.size)[::-1]  # of equal codes the last one stays, which is the first
    by_appearance = np.argsort(first)
    number = np.argsort(by_appearance)
    used = by_appearance[: int((first < codes.size).sum())]
    return number[codes], Vocabulary(kind, tuple(texts[i] for i in used))


def _rejects(
    given: _Rows,
    columns: Mapping[str, np.ndarray],
    good: np.ndarray,
    actors: _Texts,
    links: _Texts,
    moments: _Texts,
) -> Rejects:
    """All rejected rows in the order of files and lines: those that were no rows, and those with a faulty value."""
    bad = np.flatnonzero(~good)
    # a row between several parties has become several, side by side; it is rejected once
    again = np.logical_and.reduce([np.diff(columns[name][bad], prepend=-1) == 0 for name in ("file", "line")])
    bad = bad[~again]
    rows = list(given.rejects)
    fields = (
        (actors, actors.columns[0]),
        (links, links.columns[0]),
        (actors, actors.columns[1]),
        (moments, moments.columns[0]),
    )
    for i in bad[:KEPT_REJECTS]:
        reason = next(found.faults[int(codes[i])] for found, codes in fields if int(codes[i]) in found.faults)
        text = "\t".join(found.texts[codes[i]] for found, codes in fields)
        rows.append(Reject(given.files[columns["file"][i]], int(columns["line"][i]), reason, short(text)))
    place = {file: i for i, file in reversed(list(enumerate(given.files)))}
    rows.sort(key=lambda reject: (place[reject.file], reject.line))
    return Rejects(tuple(rows[:KEPT_REJECTS]), given.rejected + len(bad), given.total)

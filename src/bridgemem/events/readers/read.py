"""Reading events: TSV, CSV, Parquet (gz too) and data frames -> EventLog, with a report of rejected rows.

DuckDB gives every column as codes into the distinct texts it holds, so that names, ids and times are judged once per
distinct text and not once per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bridgemem.errors import DataError
from bridgemem.events.clock import DAY
from bridgemem.events.feeds import fine_steps_of
from bridgemem.events.limits import MOST_PAIRS, Budget
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.readers.lakes import fetched
from bridgemem.events.readers.layouts import SourceLayout, iso
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.rejects import RejectedError
from bridgemem.events.readers.table import Source, check_rows, connect, find_columns, reading
from bridgemem.events.readers.text import KEPT_REJECTS, NOT_UTF8, Reject, Screened, short, to_utf8
from bridgemem.events.readers.values import Texts, Values, ids_of, new_codes, numbered
from bridgemem.events.times import UNDERSTOOD, Times, clock_for, read_times, seconds, week_remark
from bridgemem.progress import SILENT, Progress, Step

if TYPE_CHECKING:
    import duckdb

KINDS = {"names": ("subject", "object"), "relations": ("relation",), "times": ("time",)}

__all__ = ["ReadOptions", "Reading", "Reject", "Rejects", "read_events"]


@dataclass(frozen=True)
class Rejects:
    """The rejected rows among all rows read: all are counted, the first 10,000 are kept.

    missing: rows of a plain table that are left out since they lack a value; they are not among those rejected.
    """

    rows: tuple[Reject, ...]
    count: int
    total: int
    missing: tuple[Reject, ...] = ()

    def with_left_out(self, dropped: Mapping[str, int]) -> str:
        """The report, and what was left out since a value is missing."""
        if not dropped:
            return self.sentence()
        left = self.total - sum(dropped.values())
        read = f"{left:,} of {self.total:,} row{'s' * (self.total > 1)} {'was' if left == 1 else 'were'} read."
        at = "".join(f"{first.file}:{first.line}" for first in self.missing[:1])
        return f"{self.sentence() if self.count else read} {left_out_sentence(dropped, at)}"

    def all(self) -> tuple[Reject, ...]:
        """The rows that are kept of both kinds, by file and line."""
        return tuple(sorted((*self.rows, *self.missing), key=lambda reject: (reject.file, reject.line)))

    def sentence(self) -> str:
        """The report in one sentence."""
        if not self.count:
            return "The one row was read." if self.total == 1 else f"All {self.total:,} rows were read."
        first = self.rows[0]
        were, rows = "was" if self.count == 1 else "were", "row" if self.total == 1 else "rows"
        place = f"{first.file}:{first.line}"
        said = f"{self.count:,} of {self.total:,} {rows} {were} rejected, the first at {place}: {first.reason}."
        return " ".join(filter(None, [said, self.not_utf8()]))

    def others(self) -> tuple[Reject, ...]:
        """The rejected rows without the lines that are not UTF-8, of which one sentence is enough."""
        return tuple(reject for reject in self.rows if reject.reason != NOT_UTF8)

    def not_utf8(self) -> str:
        """What to do where lines are not UTF-8; empty where all are."""
        files = Counter(reject.file for reject in self.rows if reject.reason == NOT_UTF8)
        if not files:
            return ""
        file, lines = next(iter(files)), sum(files.values())
        least = "at least " * (self.count > len(self.rows))
        where = f"{file} is" if len(files) == 1 else f"{file} and {len(files) - 1:,} more are"
        left = f"{least}{lines:,} line{'s are' if lines > 1 else ' is'} left out for that"
        return f"{where} not UTF-8 throughout, and {left}: {to_utf8(file)}."


@dataclass(frozen=True)
class Reading:
    """Events, the rows that could not become events, and how the source was understood.

    dropped: rows that are left out since a value is missing, counted by what it is.
    format: the layout, "plain" where it is none of the published ones. columns: the heading of each role, empty where
    the relation is the same in every row. lines int64 [n]: where in its file each event stands. parts int64 [n]: which
    of the files or frames it comes from.
    remarks: what a user should know of how times were read, each a sentence. aliases: the roles whose column was told
    by a usual name other than the role's own. fine: the remark that steps which nobody chose are much finer than the
    stream; empty where they are not.
    """

    events: EventLog
    rejects: Rejects
    dropped: Mapping[str, int] = field(default_factory=dict)
    format: str = "plain"
    columns: Mapping[str, str] = field(default_factory=dict)
    lines: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    parts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    remarks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    fine: str = ""

    @property
    def unusable(self) -> int:
        """Rows that cannot become events: rejected, or without a value in a plain table."""
        return self.rejects.count + (sum(self.dropped.values()) if self.format == "plain" else 0)

    def source(self) -> str:
        """How the source was understood."""
        return understood(self.format, self.columns, self.remarks)

    def notable(self) -> list[str]:
        """What a user who did not ask should know: a line on the reading, one on its steps, none where all is usual."""
        found = ", ".join(f"{role} from {self.columns[role]}" for role in self.aliases)
        said = [f"Columns found by name: {found}." if found else "", *self.remarks]
        said += [self.sentence()] if self.rejects.count or self.dropped else []
        return list(filter(None, [" ".join(filter(None, said)), self.fine]))

    def sentence(self) -> str:
        """What was read, rejected and left out."""
        return self.rejects.with_left_out(self.dropped)


def understood(format: str, columns: Mapping[str, str], remarks: Sequence[str]) -> str:
    """How a source was understood, in words."""
    told = ", ".join(
        f"{role} from {heading}" if heading else f"the same {role} in every row" for role, heading in columns.items()
    )
    return " ".join([f"Read as {format}: {told}.", *remarks])


def read_events(
    source: Any,
    options: ReadOptions | None = None,
    *,
    entities: Vocabulary | None = None,
    relations: Vocabulary | None = None,
    strict: bool = False,
    kept: int = KEPT_REJECTS,
    progress: Progress = SILENT,
) -> Reading:
    """Read events from a file, several files, a data frame, or a dict of columns.

    Text files of four or five columns without a heading are read by position. In a published layout names stay names
    even where all are whole numbers, the step is a day if none is given, and rows without two parties are left out. In
    other tables rows are left out where one of the four values is missing.

    options: how the table is to be read.
    entities, relations: vocabularies that the events must use, by name or by id. Left out, names get ids in the order
        of first appearance; whole numbers (without leading zeros or wide gaps) in their own order, so that they are
        ids already where none is missing. What does not occur gets no id.
    strict: make the first rejected row an error, and in a plain table the first one with a missing value.
    kept: how many rejected rows are kept with their reasons.
    """
    options = options or ReadOptions()
    with fetched(source, options) as (parts, names), connect() as db, progress.task("reading events") as advance:
        rows = Rows(options, db, kept)
        for part in parts:
            rows.add(part, advance)
        rows.call(names)
        rows.encode()
    return _resolve(rows, entities, relations, strict)


class Rows:
    """The rows of all files and frames, kept by DuckDB until they are taken out as codes into distinct texts."""

    def __init__(self, options: ReadOptions, db: duckdb.DuckDBPyConnection, kept: int = KEPT_REJECTS) -> None:
        self.options, self.db, self.kept = options, db, kept
        self.files: list[str] = []
        self.rejects: list[Reject] = []
        self.left: list[Reject] = []
        self.rejected = self.total = 0
        self.layout: SourceLayout | None = None
        self.headings: dict[str, str] = {}
        self.aliases: tuple[str, ...] = ()
        self.texts: dict[str, list[str]] = {role: [] for role in ROLES}
        self.columns: dict[str, np.ndarray] = {}
        self._budget = Budget()
        self._sizes: list[int] = []
        self._screened: list[Screened | None] = []
        self.db.execute(f"CREATE TABLE rows ({', '.join(f'{role} VARCHAR' for role in ROLES)})")

    def add(self, part: Any, advance: Step) -> None:
        """Take the rows of a file, a data frame or a dict of columns."""
        before = self.total
        self.files.append(str(part) if isinstance(part, str | Path) else "data frame")
        if source := find_columns(part, self.options, self.db):
            self._note(source)
            with source.rows(self._budget, advance, kept=self.kept) as (table, text), reading(source.name):
                check_rows(source, table, self._budget, self.db)
                insert = f"INSERT INTO rows SELECT {', '.join(source.texts())} FROM {table}"
                count = int(self.db.execute(insert).fetchall()[0][0])
            if text and count != text.rows:
                raise DataError(f"{source.name} cannot be read as a table: {count:,} of {text.rows:,} rows were found.")
            self._sizes.append(count)
            self._screened.append(text)
            if text:
                self.rejects += text.rejects[: self.kept - len(self.rejects)]
                self.rejected += text.rejected
            self.total += count + (text.rejected if text else 0)
        if self.total == before:
            raise DataError(f"{self.files[-1]} holds no events: give rows of subject, relation, object, time.")

    def _note(self, source: Source) -> None:
        """Keep how a source was understood; all of one reading must be of one layout."""
        if len(self.files) == 1:
            self.layout, self.headings = source.layout, dict(zip(ROLES, source.headings, strict=True))
            if not source.layout and not source.by_position:
                told = (role for role in ROLES if not getattr(self.options, role))
                self.aliases = tuple(role for role in told if self.headings[role].lower() not in ("", role))
        elif source.layout is not self.layout:
            first, other = (x.name if x else "plain" for x in (self.layout, source.layout))
            raise DataError(
                f"{self.files[0]} is in the {first} format and {self.files[-1]} in the {other} one: "
                "give files of one format at a time."
            )

    def call(self, names: Mapping[str, str]) -> None:
        """Call files by other names from here on."""
        self.files = [names.get(file, file) for file in self.files]
        self.rejects = [replace(reject, file=names.get(reject.file, reject.file)) for reject in self.rejects]

    def encode(self) -> None:
        """Take the rows out as codes [n] of the four roles, with the file and the line of each row."""
        self.find_texts()
        (self.columns,) = self.blocks(max(1, sum(self._sizes)))

    def find_texts(self) -> None:
        """The distinct texts of each role; both parties have those of both."""
        if not self.files:
            raise DataError("no file was given to read events from.")
        with reading(", ".join(self.files)):
            for kind, roles in KINDS.items():
                every = " UNION ALL ".join(f"SELECT {role} AS text FROM rows" for role in roles)
                self.db.execute(f"CREATE TYPE {kind} AS ENUM (SELECT DISTINCT text FROM ({every}))")
                texts = [text for (text,) in self.db.execute(f"SELECT unnest(enum_range(NULL::{kind}))").fetchall()]
                self.texts |= dict.fromkeys(roles, texts)

    def time_counts(self) -> np.ndarray:
        """How many rows hold each distinct time: int64 [d]."""
        counts = np.zeros(len(self.texts["time"]), np.int64)
        with reading(", ".join(self.files)):
            found = self.db.execute("SELECT enum_code(time::times) AS code, count(*) AS n FROM rows GROUP BY code")
            columns = found.fetchnumpy()
        counts[columns["code"]] = columns["n"]
        return counts

    def blocks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """The rows as codes of the four roles, with file and line of each, in one block or more of this size."""
        codes = ", ".join(f"enum_code({role}::{kind}) AS {role}" for kind, roles in KINDS.items() for role in roles)
        starts = np.cumsum([0, *self._sizes])
        for first in range(0, max(1, int(starts[-1])), size):
            rows = np.arange(first, min(first + size, int(starts[-1])))
            with reading(", ".join(self.files)):
                found = self.db.execute(
                    f"SELECT {codes} FROM rows WHERE rowid >= {first} AND rowid < {first + size} ORDER BY rowid"
                ).fetchnumpy()
            file = np.searchsorted(starts, rows, side="right") - 1
            line = rows - starts[file] + 1
            for i in np.unique(file).tolist():
                own, text = file == i, self._screened[i]
                line[own] = text.lines_of(line[own]) if text else line[own]
            yield {**{role: found[role] for role in ROLES}, "line": line, "file": file}

    def understood(self, remarks: Sequence[str]) -> str:
        """How the sources were understood."""
        return understood(self.layout.name if self.layout else "plain", self.headings, remarks)

    @property
    def chosen_layout(self) -> SourceLayout | None:
        """The published layout, with the missing values of the options in place of its own."""
        if self.layout is None or self.options.na is None:
            return self.layout
        return replace(self.layout, missing=frozenset(self.options.na))


def _resolve(given: Rows, entities: Vocabulary | None, relations: Vocabulary | None, strict: bool) -> Reading:
    """The events of all rows, and what became of the others."""
    options, layout, names, columns = given.options, given.chosen_layout, given.texts["subject"], given.columns
    dropped: dict[str, int] = {}
    if layout:
        names, columns, dropped = pair_rows(layout, given)
        if not len(columns["subject"]) and not given.rejected:
            sentence = left_out_sentence(dropped)
            raise DataError(f"no row of {', '.join(given.files)} is an event between two parties: {sentence}")
    values = row_values(given, layout, names, columns, (entities, relations))
    actor_ids = ids_of(values.actors, "entity", entities, layout is not None)
    link_ids = ids_of(values.links, "relation", relations, layout is not None)
    times = times_of(given, values.moments)
    values.moments.faults = times.faults
    step = step_of(options.step, layout, times.kind, values.moments.texts)
    left_out = np.zeros(len(columns["line"]), bool)
    if layout is None:
        left_out, dropped = values.left_out()
    good = ~left_out & values.valid()
    missing_rows(given, columns, left_out, values)
    rejects = in_order(given, faulty_rows(given, columns, ~left_out & ~good, values))
    if strict:
        _check_strict(rejects)
    if not good.any():
        untimed = times.faults and not (~left_out & values.moments.valid()).any() and not left_out.all()
        raise no_events(given.files, rejects, dropped, UNDERSTOOD if untimed and not options.time_format else "")

    moment = times.values[values.moments.columns[0][good]]
    clock = clock_for(moment, times.kind, step)
    steps = (moment - clock.origin) // clock.unit
    order = np.argsort(steps, kind="stable")
    pairs = np.stack([column[good][order] for column in values.actors.columns], axis=1)
    pair_ids, entities = numbered(actor_ids, values.actors.texts, pairs, "entity", entities)
    links = values.links.columns[0][good][order]
    relation_ids, relations = numbered(link_ids, values.links.texts, links, "relation", relations)
    events = EventLog(pair_ids[:, 0], relation_ids, pair_ids[:, 1], steps[order], entities, relations, clock)
    remarks = tuple(filter(None, (*times.remarks, week_remark(clock, options.step))))
    lines, parts = (columns[name][good][order] for name in ("line", "file"))
    name = layout.name if layout else "plain"
    fine = "" if options.step is not None else fine_steps_of(events)
    return Reading(events, rejects, dropped, name, given.headings, lines, parts, remarks, given.aliases, fine)


def row_values(
    given: Rows,
    layout: SourceLayout | None,
    names: list[str],
    columns: Mapping[str, np.ndarray],
    known: Sequence[Vocabulary | None],
) -> Values:
    """The distinct texts of all rows; a name of a known vocabulary is never a missing value."""
    entities, relations, times = (
        {""} if layout else given.options.missing(v.names if v else ()) for v in (*known, None)
    )
    party, label = (
        partial(given.options.name, known=v.ids if v else ()) if layout is None else published
        for v, published in zip(known, (str.strip, layout.label if layout else str.strip), strict=True)
    )
    day = iso if layout else str.strip
    return Values(
        Texts.of(names, [columns["subject"], columns["object"]], entities, party),
        Texts.of(given.texts["relation"], [columns["relation"]], relations, label),
        Texts.of(given.texts["time"], [columns["time"]], times, day),
    )


def times_of(given: Rows, moments: Texts) -> Times:
    """The times of all rows; where they cannot be told, the error names the files."""
    try:
        return read_times(moments.filled(), moments.rows, form=given.options.time_format, step=given.options.step)
    except DataError as problem:
        raise DataError(f"{', '.join(given.files)}: {problem}") from None


def step_of(step: str | int | None, layout: SourceLayout | None, kind: str, times: Sequence[str]) -> str | int | None:
    """The step wanted; a published layout has one of its own, and one shorter than a day needs a time of day."""
    if layout and step is None and kind == "date":
        return layout.step
    if layout and step is not None and seconds(step) < DAY and not any(":" in text for text in times):
        raise layout.too_short(step)
    return step


def _check_strict(rejects: Rejects) -> None:
    """Refuse rejected rows by the first of them, or by the first that is left out of a plain table."""
    for first in rejects.all()[:1]:
        remedy = f"; {to_utf8(first.file)}" * (first.reason == NOT_UTF8)
        raise RejectedError(f"{first.file}:{first.line}: {first.reason}{remedy}.", rejects.all())


def no_events(files: Sequence[str], rejects: Rejects, dropped: Mapping[str, int], hint: str) -> DataError:
    """The error that no row is an event; hint: what may help where no time could be read."""
    said = [rejects.sentence()] if rejects.count else []
    said += [left_out_sentence(dropped)] if dropped else []
    sentence = " ".join([f"no row of {', '.join(files)} is an event:", *said, *([hint] if hint else [])])
    return RejectedError(sentence, rejects.all())


def pair_rows(layout: SourceLayout, given: Rows) -> tuple[list[str], dict[str, np.ndarray], dict[str, int]]:
    """Names and rows of a published layout with one row for each pair of parties, and the rows that name none.

    A row between several parties becomes one row for each two of them that differ; one that would become too many is
    rejected.
    """
    codes, columns = new_codes(), given.columns
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


def _reject_crowds(given: Rows, rows: np.ndarray, pairs: np.ndarray) -> None:
    """Reject rows between more parties than one row may name; rows, pairs int64: which, and the pairs of every row."""
    given.rejected += len(rows)
    for i in rows[:KEPT_REJECTS].tolist():
        reason = f"the row names {pairs[i]:,} pairs of parties, and at most {MOST_PAIRS} of one row are read"
        text = "\t".join(given.texts[role][given.columns[role][i]] for role in ROLES)
        file, line = given.files[given.columns["file"][i]], int(given.columns["line"][i])
        given.rejects.append(Reject(file, line, reason, short(text), tuple(text.split("\t"))))


def left_out_sentence(dropped: Mapping[str, int], at: str = "") -> str:
    """How many rows were left out, by what they lack; at: where the first of them stands, if that is known."""
    parts = [f"{n:,} row{'s' * (n > 1)} {reason}" for reason, n in dropped.items()]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    were, first = "was" if sum(dropped.values()) == 1 else "were", f", the first at {at}" if at else ""
    return f"{listed} {were} left out{first}."


def faulty_rows(given: Rows, columns: Mapping[str, np.ndarray], rejected: np.ndarray, values: Values) -> int:
    """Note the rows with a faulty value, bool [n]; how many they are."""
    # those of the lines may stand after them, so as many are kept of both
    return _note(given.rejects, 2 * given.kept, given, columns, np.flatnonzero(rejected), values.fault, values)


def missing_rows(given: Rows, columns: Mapping[str, np.ndarray], left_out: np.ndarray, values: Values) -> int:
    """Note the rows that are left out since they lack a value, bool [n]; how many they are."""
    return _note(given.left, given.kept, given, columns, np.flatnonzero(left_out), values.missing, values)


def _note(
    into: list[Reject],
    most: int,
    given: Rows,
    columns: Mapping[str, np.ndarray],
    bad: np.ndarray,
    why: Callable[[int], str],
    values: Values,
) -> int:
    # a row between several parties has become several, side by side; it is rejected once
    again = np.logical_and.reduce([np.diff(columns[name][bad], prepend=-1) == 0 for name in ("file", "line")])
    bad = bad[~again]
    for i in bad[: max(0, most - len(into))].tolist():
        file, line = given.files[columns["file"][i]], int(columns["line"][i])
        into.append(Reject(file, line, why(i), short(values.text(i)), values.row(i)))
    return len(bad)


def in_order(given: Rows, faulty: int) -> Rejects:
    """All rejected rows in the order of files and lines: those that were no rows, and those with a faulty value."""
    place = {file: i for i, file in reversed(list(enumerate(given.files)))}
    rows, left = (
        tuple(sorted(found, key=lambda reject: (place[reject.file], reject.line))[: given.kept])
        for found in (given.rejects, given.left)
    )
    return Rejects(rows, given.rejected + faulty, given.total, left)

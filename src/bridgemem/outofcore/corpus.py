"""A corpus in DuckDB: files come in once, names and times become numbers, and ranges of pairs go out sorted.

Everything is kept in one database file, so that work that was cut off goes on from the last finished step. Nothing here
holds more rows in memory than DuckDB is allowed to, apart from the distinct times and the sizes of the actors.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.events.aliases import Aliases
from bridgemem.events.dates import FIRST_SECOND
from bridgemem.events.log import Clock, Vocabulary
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.read import understood
from bridgemem.events.readers.rejects import write_rejects
from bridgemem.events.readers.table import Source
from bridgemem.events.readers.text import literal
from bridgemem.events.readers.values import lacking
from bridgemem.events.times import (
    UNDERSTOOD,
    clock_for,
    epoch_remark,
    fine_steps,
    read_times,
    shorter_than_day,
    week_remark,
    whole_numbers,
)
from bridgemem.outofcore.merge_names import merge_names
from bridgemem.outofcore.rejects import TABLES, Judge, keep_lines, rejected
from bridgemem.outofcore.sources import (
    LAST_ID,
    SPACE,
    RawTable,
    common_kinds,
    mixed_zones,
    rows_of,
    text_of,
    unreadable,
)
from bridgemem.progress import Progress

FETCH = 1 << 17  # rows fetched at a time
COUNTS = {"entity": "n_entities", "relation": "n_relations"}
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
FULL = ("No space left", "File too large", "Could not write", "Could not truncate", "max_temp_directory_size", "quota")


@contextmanager
def clear_errors(out: Path, reading: str | None = None) -> Iterator[None]:
    """What DuckDB and the disk raise as one sentence: no room, no memory, another process, or the file being read."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in NO_ROOM:
            raise
        raise _full(out, problem) from None
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except RuntimeError as problem:
        # what becomes of a signal that comes while DuckDB works
        if "interrupted" not in str(problem):
            raise
        raise KeyboardInterrupt from None
    except duckdb.OutOfMemoryException as problem:
        if any(sign in str(problem) for sign in FULL):
            raise _full(out, problem) from None
        raise RunError(f"{out}: sorting needs more than the memory allowed; give a larger --memory.") from None
    except duckdb.Error as problem:
        if any(sign in str(problem) for sign in FULL):
            raise _full(out, problem) from None
        if "Could not set lock" in str(problem) or "Conflicting lock" in str(problem):
            raise RunError(f"{out} is being mined by another process; wait for it or choose another folder.") from None
        if reading is not None:
            raise unreadable(reading, problem) from None
        reason = (str(problem).splitlines() or ["unknown reason"])[0].rstrip(".")
        raise RunError(f"{out}: DuckDB gave up: {reason}; run again with --force to start over.") from None


def _full(out: Path, problem: Exception) -> RunError:
    reason = (str(problem).splitlines() or ["the disk is full"])[0].rstrip(".")
    return RunError(f"{out} cannot be written: {reason}; free some space and run the same command again, it goes on.")


class Corpus:
    """The events of all files in one database; `read` and `number` are done once, also over several runs.

    path: of the database. memory: bytes that DuckDB may use before it spills into a folder next to the database.
    rejects: the file for rejected rows, if they are wanted.
    """

    def __init__(self, path: Path, memory: int, threads: int, out: Path, rejects: Path | None = None) -> None:
        self.out, self._folder, self._names_only, self._rejects = out, path.parent, False, rejects
        self._time_faults: dict[str, str] = {}
        self._by_id: set[str] = set()  # of entity and relation, those whose names are whole numbers that count them
        spill = path.parent / "spill"
        spill.mkdir(parents=True, exist_ok=True)
        with clear_errors(out):
            if not path.exists():
                _create(path)
            self._db = duckdb.connect(str(path))
            self._db.execute(f"SET memory_limit = '{memory // 2**20}MiB'")
            self._db.execute(f"SET threads = {threads}")
            self._db.execute(f"SET temp_directory = {literal(str(spill))}")
            self._db.execute("SET enable_progress_bar = false")

    def close(self) -> None:
        self._db.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        return self._db.cursor()

    def note(self, name: str) -> Any:
        """Something that an earlier step found out, or None."""
        found = self._db.execute("SELECT value FROM notes WHERE name = ?", [name]).fetchone()
        return json.loads(found[0]) if found else None

    def _keep(self, name: str, value: Any) -> None:
        self._db.execute("INSERT INTO notes VALUES (?, ?)", [name, json.dumps(value)])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.Error):  # one that is out of space has rolled back by itself
                self._db.execute("ROLLBACK")
            raise

    # ---- reading ---------------------------------------------------------------------------------------------------

    def read(self, files: Sequence[Source], progress: Progress, known: Collection[str] = ()) -> None:
        """Take the files in, each as one transaction; a row's place over all files is its order.

        known: names that stay as they are, also if they are whole numbers with a fraction of zero.
        """
        if self.note("numbers"):
            return
        kinds = common_kinds(files)
        with clear_errors(self.out):
            columns = ", ".join(
                f"{role} {'VARCHAR' if kind == 'text' else 'BIGINT'}" for role, kind in zip(ROLES, kinds, strict=True)
            )
            rejecting = self._rejects is not None
            self._db.execute(f"CREATE TABLE IF NOT EXISTS raw ({columns}{', row BIGINT, file INTEGER' * rejecting})")
            self._db.execute(TABLES)
            done = {int(row[0]) for row in self._db.execute("SELECT number FROM files").fetchall()}
        with progress.task("reading files", total=len(files)) as advance:
            for number, file in enumerate(files):
                if number not in done:
                    with (
                        clear_errors(self.out, reading=file.name),
                        rows_of(file, kinds, self._folder, rejecting=rejecting, known=known) as (select, text),
                        self._transaction(),
                    ):
                        which = f"SELECT *, {number} FROM ({select})" if rejecting else select
                        rows = self._db.execute(f"INSERT INTO raw {which}").fetchone()
                        if text and rejecting:
                            keep_lines(self._db, number, text)
                        kept = (number, file.name, rows[0] if rows else 0)
                        self._db.execute("INSERT INTO files VALUES (?, ?, ?)", kept)
                advance(1, note=Path(file.name).name)

    # ---- numbering -------------------------------------------------------------------------------------------------

    def number(
        self,
        files: Sequence[Source],
        options: ReadOptions,
        entities: Vocabulary | None,
        relations: Vocabulary | None,
        progress: Progress,
        aliases: Aliases | None = None,
    ) -> dict[str, Any]:
        """Names and times as numbers, by the rules of `read_events`; what was found out, as plain JSON.

        aliases: names that become others, after all have their numbers.
        """
        if found := self.note("numbers"):
            return dict(found)
        kinds = dict(zip(ROLES, common_kinds(files), strict=True))
        table = RawTable(kinds, options, entities, relations)
        with progress.task("numbering names and times"), clear_errors(self.out), self._transaction():
            total = self._one("SELECT count(*) FROM raw")
            if not total:
                raise DataError(
                    f"no event was found in {len(files)} files, {files[0].name} first; look at it with `data check`."
                )
            dropped = self._dropped(table)
            try:
                clock, when, join, remarks = self._times(table)
            except DataError as problem:
                others = " and the files after it" * (len(files) > 1)
                raise DataError(f"{files[0].name}{others}: {problem}") from None
            timed = f"SELECT raw.rowid AS ord, {when} AS step, raw.* EXCLUDE (time) FROM raw {join}"
            self._db.execute(f"CREATE VIEW timed AS SELECT * FROM ({timed}) WHERE step >= 0 AND {table.filled()}")
            self._names_only = files[0].layout is not None  # in published data a number is a name, such as a code
            entity = self._names("entity", ("subject", "object"), {kinds["subject"], kinds["object"]}, entities)
            relation = self._names("relation", ("relation",), {kinds["relation"]}, relations)
            plain = self._events(kinds, entity, relation)
            if self._rejects is not None:
                self._write_rejects(self._rejects, [file.name for file in files], table)
            events = self._one("SELECT count(*) FROM events")
            if not plain:
                self._db.execute("DROP VIEW timed")
                self._db.execute("DROP TABLE raw")
            if not events:
                raise DataError(
                    f"no row of {files[0].name} and the files after it is an event; run `bridgemem data check` on it."
                )
            of_ids = "SELECT count(DISTINCT id) FROM {}"
            made: dict[str, Any] = {
                "clock": asdict(clock),
                "n_entities": len(entities) if entities else entity or self._one(of_ids.format("entity")),
                "n_relations": len(relations) if relations else relation or self._one(of_ids.format("relation")),
                "named": {"entity": entity is None, "relation": relation is None},
                "events": events,
                "rejected": total - events - sum(dropped.values()) + self._one("SELECT count(*) FROM broken"),
                "dropped": dropped,
                "remarks": [
                    *_understood(files[0]),
                    *remarks,
                    *filter(None, [week_remark(clock, options.step), mixed_zones(files), self._fine(clock, options)]),
                ],
            }
            if aliases is not None:
                names = entities.names if entities else self._listed("entity", made)
                made |= merge_names(self._db, names, aliases, "VIEW" if plain else "TABLE")
                made["named"]["entity"] = True
            self._keep("numbers", made)
        return made

    def _fine(self, clock: Clock, options: ReadOptions) -> str:
        """The remark that steps which nobody chose are much finer than the stream; empty where they are not."""
        first, last = self._one("SELECT min(step) FROM events"), self._one("SELECT max(step) FROM events")
        if options.step is not None or not shorter_than_day(clock, (first, last)):
            return ""
        used, events = (self._one(f"SELECT count({what}) FROM events") for what in ("DISTINCT step", "*"))
        return fine_steps(clock, (first, last), used, events)

    def _write_rejects(self, path: Path, files: Sequence[str], table: RawTable) -> None:
        """Write the rows that are no events, as they are fetched."""
        texts = [f"coalesce({text_of(role)}, '')" for role in ROLES]
        if table.kinds["time"] == "date":
            texts[3] = "coalesce(CAST(make_timestamp(time * 1000000) AS VARCHAR), '')"
        known = {"entity": table.entities, "relation": table.relations}
        by_id = {kind: kind in self._by_id for kind in known}
        marks = {role: table.marks(role) for role in ROLES}
        judge = Judge(marks, known, by_id, self._time_faults, published=self._names_only)
        write_rejects(path, rejected(self._db, files, ", ".join(texts), judge))

    def _one(self, query: str) -> int:
        row = self._db.execute(query).fetchone()
        return int(row[0]) if row and row[0] is not None else 0

    def _dropped(self, table: RawTable) -> dict[str, int]:
        """How many rows lack a value, by what they lack first."""
        lacks = "".join(f" WHEN {table.missing(role)} THEN '{role}'" for role in ROLES)
        marks = "".join(f" WHEN '{role}' THEN {text_of(role)}" for role in ROLES)
        query = f"""SELECT role, coalesce(CASE role{marks} END, '') AS mark, count(*)
            FROM (SELECT *, CASE{lacks} END AS role FROM raw) WHERE role IS NOT NULL GROUP BY ALL"""
        return lacking(self._db.execute(query).fetchall())

    def _times(self, table: RawTable) -> tuple[Clock, str, str, tuple[str, ...]]:
        """The clock, the SQL of a row's step (NULL where its time is none), the join that it needs, and remarks."""
        remarks: tuple[str, ...] = ()
        kind, time, step = table.kinds["time"], "time", table.options.step
        if kind == "whole":
            ends = self._db.execute(
                f"SELECT min(time), max(time) FROM raw WHERE NOT {table.missing('time')}"
            ).fetchone()
            low, high = ends if ends and ends[0] is not None else (0, 0)
            kind, parts = whole_numbers(low, high, table.options.time_format, step)
            if parts > 1:
                time = (
                    f"(time - (time % {parts} + {parts}) % {parts}) // {parts}"  # cut as Python cuts, also before 1970
                )
            if parts and not table.options.time_format:
                remarks = (epoch_remark(parts),)
        if kind == "text":
            return self._texts_of_times(table)
        valid = "time >= 0" if kind == "integer" else f"NOT {table.missing('time')}"
        kept = f"SELECT {time} AS time FROM raw WHERE {valid} AND {table.filled()}"
        # the longest step that fits is found from all distinct times; a given one needs both ends and the weekdays only
        weekday = f"(time - {FIRST_SECOND}) // 86400 % 7"
        few = f"SELECT min(time) AS time FROM kept GROUP BY {weekday} UNION ALL SELECT max(time) FROM kept"
        wanted = "SELECT DISTINCT time FROM kept" if step is None else few
        values = self._db.execute(f"WITH kept AS ({kept}) {wanted}").fetchnumpy()["time"]
        values = np.ma.compressed(values).astype(np.int64)
        if not len(values):
            raise DataError(f"no row has a time that can be used. {UNDERSTOOD}")
        clock = clock_for(values, kind, step)
        inside = time.replace("time", "raw.time")
        when = f"CASE WHEN {valid.replace('time', 'raw.time')} THEN ({inside} - {clock.origin}) // {clock.unit} END"
        return clock, when, "", remarks

    def _texts_of_times(self, table: RawTable) -> tuple[Clock, str, str, tuple[str, ...]]:
        text, options = f"trim(COALESCE(CAST(raw.time AS VARCHAR), ''), {SPACE})", table.options
        rows = self._db.execute(
            f"SELECT {text} AS text, count(*), count(*) FILTER ({table.filled()}) FROM raw GROUP BY ALL ORDER BY text"
        ).fetchall()
        missing = options.missing()
        texts = ["" if row[0] in missing else str(row[0]) for row in rows]
        counts = np.array([row[1] for row in rows], dtype=np.int64)
        times = read_times(texts, counts, form=options.time_format, step=options.step)
        good = [i for i, row in enumerate(rows) if i not in times.faults and row[2]]
        if not good:
            fault = next(
                (times.faults[i] for i, text in enumerate(texts) if text and i in times.faults), "all are missing"
            )
            raise DataError(f"no row has a time that can be used: {fault}. {UNDERSTOOD}")
        clock = clock_for(times.values[good], times.kind, options.step)
        self._db.execute("CREATE TABLE times (text VARCHAR, step BIGINT)")
        steps = ((times.values[good] - clock.origin) // clock.unit).tolist()
        pairs = [[texts[i] for i in good], steps]
        self._db.execute("INSERT INTO times SELECT unnest(?::VARCHAR[]), unnest(?::BIGINT[])", pairs)
        self._time_faults = {texts[i]: fault for i, fault in times.faults.items()}
        return clock, "times.step", f"JOIN times ON times.text = {text}", times.remarks

    def _names(self, kind: str, roles: tuple[str, ...], kinds: set[str], known: Vocabulary | None) -> int | None:
        """How many ids there are where whole numbers count things and none is missing, or a vocabulary is known.

        Else None, and a table of names and their ids. Whole numbers get ids in their own order, other names in that of
        first appearance: by step, then by order, the subject before the object. Where a vocabulary is known its ids are
        taken, and rows with others are no events.
        """
        whole = kinds == {"whole"}
        if whole:
            self._by_id.add(kind)
        if whole and known:
            return len(known)
        if whole:
            seen = " UNION ALL ".join(f"SELECT DISTINCT {role} AS number FROM timed" for role in roles)
            self._db.execute(f"CREATE TABLE {kind} AS SELECT DISTINCT number::VARCHAR AS name FROM ({seen})")
            if self._counts_things(kind):
                return self._by_number(kind)
            self._db.execute(f"DROP TABLE {kind}")
        sides = " UNION ALL ".join(
            f"SELECT {text_of(role)} AS name, step::HUGEINT * {2**62} + ord * 2 + {i} AS first FROM timed"
            for i, role in enumerate(roles)
        )
        self._db.execute(f"CREATE TABLE {kind} AS SELECT name, min(first) AS first FROM ({sides}) GROUP BY name")
        digits = "regexp_full_match(name, '-?(0|[1-9][0-9]{0,17})')"
        names_only = self._names_only and not known
        if not (whole or names_only) and not self._one(f"SELECT count(*) FROM {kind} WHERE NOT {digits}"):
            if known:
                self._by_id.add(kind)
                self._db.execute(f"DROP TABLE {kind}")
                return len(known)
            if self._counts_things(kind):
                self._by_id.add(kind)
                return self._by_number(kind)
        numbered = f"SELECT name, row_number() OVER (ORDER BY first) - 1 AS id FROM {kind}"
        if known:
            numbered = (
                "SELECT name, min(id) AS id FROM (SELECT unnest($names) AS name, unnest($ids) AS id) GROUP BY name"
            )
        given = {"names": list(known.names), "ids": list(range(len(known)))} if known else {}
        self._db.execute(f"CREATE OR REPLACE TABLE {kind} AS {numbered}", given)
        return None

    def _counts_things(self, kind: str) -> bool:
        """Whether a table of names, all of them whole numbers, has no wide gaps, so that they are ids."""
        last = self._one(f"SELECT max(name::BIGINT) FROM {kind}")
        if last >= 10_000 + 100 * self._one(f"SELECT count(*) FROM {kind}"):
            return False
        if last > LAST_ID:
            raise DataError(f"the {kind} id {last} is too large; ids must be below 2^31.")
        return True

    def _by_number(self, kind: str) -> int | None:
        """How many there are of a table of ids where none is missing; else None, and the table numbers those it has."""
        numbers = f"SELECT name, name::BIGINT AS number FROM {kind} WHERE name::BIGINT >= 0"
        count, last = self._db.execute(f"SELECT count(DISTINCT number), max(number) FROM ({numbers})").fetchall()[0]
        if last is None or count == last + 1:
            self._db.execute(f"DROP TABLE {kind}")
            return int(count)
        ranked = f"SELECT name, dense_rank() OVER (ORDER BY number) - 1 AS id FROM ({numbers})"
        self._db.execute(f"CREATE OR REPLACE TABLE {kind} AS {ranked}")
        return None

    def _events(self, kinds: dict[str, str], entities: int | None, relations: int | None) -> bool:
        """Events as numbers: a view where the files hold numbers already, else a table; whether it is a view.

        entities, relations: how many ids there are; None where names are looked up.
        """

        def part(role: str, table: str, ids: int | None) -> tuple[str, str]:
            roles = ("relation",) if table == "relation" else ("subject", "object")
            named, whole = ids is None, {kinds[other] for other in roles} == {"whole"}
            text = f"timed.{role}" if whole or (kinds[role] == "whole" and not named) else text_of(f"timed.{role}")
            # numbers are looked up as numbers, which is quicker than as texts
            name = f"{role}_.name::BIGINT" if whole else f"{role}_.name"
            joined = f" JOIN {table} AS {role}_ ON {name} = {text}" if named else ""
            return f"TRY_CAST({f'{role}_.id' if named else text} AS INTEGER) AS {role}", joined

        parts = [
            part("subject", "entity", entities),
            part("object", "entity", entities),
            part("relation", "relation", relations),
        ]
        columns, joins = ", ".join(p[0] for p in parts), "".join(p[1] for p in parts)
        timed_by_join = self._one("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'times'")
        plain = not joins and not timed_by_join and "text" not in kinds.values()
        ends = {"subject": entities, "object": entities, "relation": relations}
        whole = " AND ".join(f"{role} BETWEEN 0 AND {(end or LAST_ID + 1) - 1}" for role, end in ends.items())
        query = f"SELECT * FROM (SELECT ord, step::INTEGER AS step, {columns} FROM timed{joins}) WHERE {whole}"
        self._db.execute(f"CREATE {'VIEW' if plain else 'TABLE'} events AS {query}")
        return plain

    def names(self, kind: str) -> list[str]:
        """The names of the ids; ids without names are their own."""
        with clear_errors(self.out):
            return self._listed(kind, self.note("numbers"))

    def _listed(self, kind: str, numbers: dict[str, Any]) -> list[str]:
        if not numbers["named"][kind]:
            return [str(i) for i in range(numbers[COUNTS[kind]])]
        # of two spellings of a number, as 0 and -0, the plain one
        query = f"SELECT max(name) FROM {kind} GROUP BY id ORDER BY id"
        return [str(row[0]) for row in self._db.execute(query).fetchall()]

    # ---- ranges of pairs -------------------------------------------------------------------------------------------

    def bounds(self, rows_each: int, most: int) -> list[int]:
        """Cuts between actors so that no range has many more rows than asked, unless one actor alone has them."""
        if found := self.note("bounds"):
            return [int(bound) for bound in found]
        with clear_errors(self.out):
            query = "SELECT actor, sum(n)::BIGINT AS n FROM ({}) GROUP BY actor ORDER BY actor".format(
                " UNION ALL ".join(
                    f"SELECT {r} AS actor, count(*) AS n FROM events GROUP BY {r}" for r in ("subject", "object")
                )
            )
            found = self._db.execute(query).fetchnumpy()
            actor, total = found["actor"].astype(np.int64), np.cumsum(found["n"].astype(np.int64))
            ranges = min(max(1, -(-int(total[-1]) // rows_each)), most)
            ends = np.searchsorted(total, total[-1] * np.arange(1, ranges) / ranges)
            cuts = [0, *np.unique(actor[ends] + 1).tolist(), int(actor[-1]) + 1]
            bounds = sorted(set(cuts))
            self._keep("bounds", bounds)
        return bounds

    def sort(self, cursor: duckdb.DuckDBPyConnection, start: int, stop: int, n_entities: int) -> int:
        """Put the directed rows of the actors start..stop-1 into the cursor's table `sorted`; returns how many."""

        def side(actor: str, candidate: str, direction: int) -> str:
            return (
                f"SELECT {actor}::BIGINT * {n_entities} + {candidate} AS pair, step, ord * 2 + {direction} AS key, "
                f"relation FROM events WHERE {actor} >= {start} AND {actor} < {stop}"
            )

        both = f"{side('subject', 'object', 0)} UNION ALL {side('object', 'subject', 1)}"
        with clear_errors(self.out):
            cursor.execute(f"CREATE OR REPLACE TEMP TABLE sorted AS SELECT * FROM ({both}) ORDER BY pair, step, key")
            row = cursor.execute("SELECT count(*) FROM sorted").fetchone()
        return int(row[0]) if row else 0

    def blocks(self, cursor: duckdb.DuckDBPyConnection, rows: int) -> Iterator[tuple[np.ndarray, ...]]:
        """The sorted rows as int64 columns pair, step, order, relation, direction; the table goes with the last."""
        with clear_errors(self.out):
            for at in range(0, rows, FETCH):
                query = f"SELECT * FROM sorted WHERE rowid >= {at} AND rowid < {at + FETCH}"
                found = cursor.execute(query).fetchnumpy()
                pair, step, key, relation = (found[c].astype(np.int64) for c in ("pair", "step", "key", "relation"))
                yield pair, step, key >> 1, relation, key & 1
            cursor.execute("DROP TABLE sorted")

    def in_order(self) -> Iterator[tuple[np.ndarray, ...]]:
        """All events in total order, in blocks: subject, relation, object, step."""
        names = ("subject", "relation", "object", "step")
        with clear_errors(self.out):
            query = f"SELECT {', '.join(names)} FROM events ORDER BY step, ord"
            self._db.execute(f"CREATE OR REPLACE TEMP TABLE in_order AS {query}")
            for at in range(0, self.note("numbers")["events"], FETCH):
                part = f"SELECT * FROM in_order WHERE rowid >= {at} AND rowid < {at + FETCH}"
                found = self._db.execute(part).fetchnumpy()
                yield tuple(np.asarray(found[name]) for name in names)
            self._db.execute("DROP TABLE in_order")


def _create(path: Path) -> None:
    """A new database, whole or absent, even if the disk is full from the start."""
    aside = path.with_suffix(".new")
    for left in path.parent.glob(f"{aside.name}*"):
        left.unlink()
    with duckdb.connect(str(aside)) as db:
        db.execute("CREATE TABLE files (number INTEGER, path VARCHAR, rows BIGINT)")
        db.execute("CREATE TABLE notes (name VARCHAR, value VARCHAR)")
        db.execute("CHECKPOINT")  # closing alone would hide that there is no room
    aside.rename(path)


def _understood(file: Source) -> list[str]:
    """How files in a published layout are read."""
    if file.layout is None:
        return []
    return [understood(file.layout.name, dict(zip(ROLES, file.headings, strict=True)), ())]

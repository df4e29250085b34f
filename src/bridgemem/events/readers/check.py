"""Checking tables of events of any length: every row is judged as `read_events` judges it, a block at a time.

DuckDB keeps the rows and moves them to the disk where they are many; names and times are judged once per distinct text.
So memory grows with the distinct names and times, and not with the rows.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.events.feeds import Feed
from bridgemem.events.readers.lakes import fetched
from bridgemem.events.readers.options import ROLES, ReadOptions
from bridgemem.events.readers.read import (
    Rejects,
    Rows,
    faulty_rows,
    in_order,
    missing_rows,
    no_events,
    pair_rows,
    row_values,
    step_of,
    times_of,
)
from bridgemem.events.readers.table import connect, reading
from bridgemem.events.readers.text import KEPT_REJECTS
from bridgemem.events.readers.values import Values, ids_of, lacking
from bridgemem.events.times import UNDERSTOOD, clock_for, week_remark
from bridgemem.progress import SILENT, Progress

BLOCK = 1 << 20  # rows that are judged at a time
MEMORY = "512MB"  # that DuckDB may use


@dataclass(frozen=True)
class Checked:
    """What a reading would give, without its events."""

    feed: Feed
    rejects: Rejects
    dropped: dict[str, int]
    source: str

    def sentence(self) -> str:
        """What can be read, what is rejected and what is left out."""
        return self.rejects.with_left_out(self.dropped)


def check_events(
    source: Any, options: ReadOptions | None = None, *, kept: int = KEPT_REJECTS, progress: Progress = SILENT
) -> Checked:
    """Judge the rows of a file, several files or a frame; kept: how many rejected rows are kept with their reasons."""
    options = options or ReadOptions()
    with (
        fetched(source, options) as (parts, names),
        tempfile.TemporaryDirectory(prefix="bridgemem-") as folder,
        connect(Path(folder), MEMORY) as db,
        progress.task("reading rows") as advance,
    ):
        rows = Rows(options, db, kept)
        for part in parts:
            rows.add(part, advance)
        rows.call(names)
        rows.find_texts()
        with progress.task("checking rows") as judged:
            return _Check(rows).run(judged)


class _Check:
    """Rows whose distinct texts are judged, and what the blocks of them add up to."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.layout = rows, rows.chosen_layout
        self.values = values = self._distinct()
        texts = (values.actors, values.links, values.moments)
        # every text is cleaned once; of equal ones the code is the same
        self.parties, self.kinds, self.moments = (found.columns[0] for found in texts)
        values.moments.rows = np.bincount(self.moments, rows.time_counts(), len(values.moments.texts)).astype(np.int64)
        for kind, found in (("entity", values.actors), ("relation", values.links)):
            ids_of(found, kind, None, self.layout is not None)
        self.times = times_of(rows, values.moments)
        values.moments.faults = self.times.faults
        self.counts = [np.zeros(len(found.texts), np.int64) for found in texts]
        self.loops = self.bad = self.timed = 0
        self.dropped: Counter[str] = Counter()
        self.lacking: Counter[tuple[str, str]] = Counter()
        rows.db.execute(f"CREATE TABLE judged ({', '.join(f'{role} INTEGER' for role in ROLES)})")

    def _distinct(self) -> Values:
        """The distinct texts, as if each stood in a row of its own."""
        rows, none = self.rows, np.zeros(0, np.int64)
        names = rows.texts["subject"]
        if self.layout:
            rows.columns = dict.fromkeys((*ROLES, "line", "file"), none)
            names = pair_rows(self.layout, rows)[0]
        each = {"subject": names, "relation": rows.texts["relation"], "time": rows.texts["time"]}
        places = {role: np.arange(len(texts)) for role, texts in each.items()}
        return row_values(rows, self.layout, names, {**places, "object": none}, (None, None))

    def run(self, advance: Any) -> Checked:
        rows = self.rows
        for block in rows.blocks(BLOCK):
            self._judge(block)
            advance(len(block["line"]))
        rejects = in_order(rows, self.bad)
        dropped = dict(self.dropped) or lacking([(*what, count) for what, count in self.lacking.items()])
        if not self.counts[2].any():
            untimed = self.times.faults and not self.timed and not rows.options.time_format
            raise no_events(rows.files, rejects, dropped, UNDERSTOOD if untimed else "")
        used = np.flatnonzero(self.counts[2])
        step = step_of(rows.options.step, self.layout, self.times.kind, self.values.moments.texts)
        clock = clock_for(self.times.values[used], self.times.kind, step)
        steps = np.unique((self.times.values[used] - clock.origin) // clock.unit)
        names, relations = (self.values.actors.texts, self.counts[0]), int((self.counts[1] > 0).sum())
        repeated = self._repeated(used, (self.times.values[used] - clock.origin) // clock.unit)
        feed = Feed.counted(names, relations, steps, clock, (repeated, self.loops))
        remarks = (*self.times.remarks, week_remark(clock, rows.options.step))
        return Checked(feed, rejects, dropped, rows.understood(tuple(filter(None, remarks))))

    def _judge(self, block: dict[str, np.ndarray]) -> None:
        self.rows.columns, values = block, self.values
        if self.layout:
            _, block, dropped = pair_rows(self.layout, self.rows)
            self.dropped.update(dropped)
        values.actors.columns = [self.parties[block["subject"]], self.parties[block["object"]]]
        values.links.columns, values.moments.columns = [self.kinds[block["relation"]]], [self.moments[block["time"]]]
        left_out = np.zeros(len(block["line"]), bool)
        if self.layout is None:
            left_out, counts = values.lacking()
            self.lacking.update({(role, mark): count for role, mark, count in counts})
            missing_rows(self.rows, block, left_out, values)
        good = ~left_out & values.valid()
        self.timed += int((~left_out & values.moments.valid()).sum())
        self.bad += faulty_rows(self.rows, block, ~left_out & ~good, values)
        subject, object_ = (column[good] for column in values.actors.columns)
        self.loops += int((subject == object_).sum())
        parts = (np.concatenate([subject, object_]), values.links.columns[0][good], values.moments.columns[0][good])
        for total, codes in zip(self.counts, parts, strict=True):
            total += np.bincount(codes, minlength=len(total))
        self._keep(subject, parts[1], object_, parts[2])

    def _keep(self, *codes: np.ndarray) -> None:
        """Keep events as the codes int64 [n] of their texts, where DuckDB may move them to the disk."""
        db = self.rows.db
        db.register("block", dict(zip(ROLES, codes, strict=True)))
        db.execute("INSERT INTO judged SELECT * FROM block")
        db.unregister("block")

    def _repeated(self, used: np.ndarray, steps: np.ndarray) -> int:
        """How many events equal an earlier one of their step; used, steps int64 [m]: codes of times and their steps."""
        db = self.rows.db
        db.register("stepped", {"time": used, "step": steps})
        same = """SELECT count(*) AS n FROM judged JOIN stepped USING (time)
            GROUP BY hash(subject, relation, object, step) HAVING n > 1"""
        with reading(", ".join(self.rows.files)):
            return int(db.execute(f"SELECT coalesce(sum(n - 1), 0) FROM ({same})").fetchall()[0][0])

"""The tables of the documents on scale, from results/scale.json and, for the way out of core, results/bench.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.harness import Row
from bridgemem.errors import DataError
from bridgemem.evaluation.tables import Table
from bridgemem.events.limits import bytes_of

KIND = "benchmark"  # the word in the marks of these tables: <!-- benchmark: NAME -->
OUT_OF_CORE = "out of core: "  # what the operations of that benchmark begin with
STAGES = ("mine", "fit", "evaluate", "serve")
LABELS = {
    "forecast": "forecast, {queries} queries",
    "serve": "serve, an event added, {queries} queries",
    "evaluate": "evaluate `--cells {cells}`, the last step",
}


def tables(record: Mapping[str, Any], rows: Sequence[Row] = ()) -> dict[str, Callable[[], Table]]:
    """Every table that a document can ask for by name. rows: of bench.jsonl."""
    return {
        "out of core": partial(outofcore_table, rows),
        "out of core growth": partial(outofcore_growth, rows),
        "mining": partial(mining_table, record),
        "mining growth": partial(growth_table, record),
        "mapped": partial(mapped_table, record),
    }


def mining_table(record: Mapping[str, Any]) -> Table:
    """Each size that was mined, by the memory it was given."""
    columns = ["rows", "events", "`--memory`", "seconds", "processor seconds", "peak MB"]
    columns += ["processor seconds a million events", "examples", "result MB"]
    rows = []
    for size in sorted(_section(record, "sizes"), key=lambda size: (bytes_of(size["memory"]), size["rows"])):
        events = size["rows"] / 2
        cells = [_millions(size["rows"]), _millions(events), size["memory"]]
        cells += [f"{size['seconds']:,.0f}", f"{size['cpu_seconds']:,.0f}", f"{size['peak_mb']:,}"]
        cells += [f"{size['cpu_seconds'] / (events / 1e6):.2f}", f"{size['examples'] / 1e6:,.1f}M"]
        rows.append([*cells, f"{size['output_mb']:,}"])
    return Table("Mining out of core", columns, rows)


def growth_table(record: Mapping[str, Any]) -> Table:
    """How mining grows from each size to the next."""
    columns = {"cpu_seconds": "processor seconds", "seconds": "seconds", "peak_mb": "peak memory"}
    rows = [
        [_millions(step["from"]), _millions(step["to"]), *(f"{step[name]:.2f}" for name in columns)]
        for step in _section(record, "growth")
    ]
    return Table("Growth of mining", ["from", "to", *columns.values()], rows)


def mapped_table(record: Mapping[str, Any]) -> Table:
    """Each task on a memory in RAM, on disk, and on disk with a cold cache."""
    columns = ["", "peak in RAM", "on disk", "cold", "opened: RAM, disk", "a query in RAM", "on disk", "cold"]
    measured, rows = {row["task"]: row for row in _section(record, "mapped")}, []
    for task in (task for task in LABELS if task in measured):
        row = measured[task]
        ram, disk, cold = (row[kind] for kind in ("ram", "disk", "cold"))
        cells = [LABELS[task].format(**row), *(f"{kind['peak_mb']:,} MB" for kind in (ram, disk, cold))]
        cells.append(f"{ram['open_seconds']:.1f} s, {disk['open_seconds']:.1f} s")
        rows.append([*cells, f"{ram['query_ms']:.1f} ms", f"{disk['times']:.1f}x", f"{cold['times']:.1f}x"])
    return Table("A memory on disk next to one in RAM", columns, rows)


def outofcore_table(rows: Sequence[Row]) -> Table:
    """Every command on the way from files to forecasts, by the number of events."""
    columns = ["events", "command", "seconds", "processor seconds", "resident GB", "anonymous GB"]
    columns.append("processor seconds a million events")
    made = []
    for row in _out_of_core(rows):
        of, stage = row.figures, row.operation.removeprefix(OUT_OF_CORE)
        cells = [_millions(of["events"]), f"`{stage}`{' *' if row.note else ''}", f"{row.seconds:,.0f}"]
        cells += [
            f"{of['processor_seconds']:,.0f}",
            f"{of['resident_mb'] / 1e3:.2f}",
            f"{of['anonymous_mb'] / 1e3:.2f}",
        ]
        made.append([*cells, f"{of['processor_seconds_a_million']:.1f}"])
    return Table("From files to forecasts out of core", columns, made)


def outofcore_growth(rows: Sequence[Row]) -> Table:
    """The processor seconds of each command by the number of events, and how they grow from size to size."""
    stages: dict[str, dict[float, float]] = {}
    for row in _out_of_core(rows):
        of_stage = stages.setdefault(row.operation.removeprefix(OUT_OF_CORE), {})
        of_stage[row.figures["events"]] = row.figures["processor_seconds"]
    sizes = sorted({size for of in stages.values() for size in of})
    columns = ["command", *(f"at {_millions(size)}" for size in sizes)]
    columns += [f"exponent, {_millions(small)} to {_millions(large)}" for small, large in pairwise(sizes)]
    made = []
    for stage, of in stages.items():
        cells = [f"{of[size]:,.0f} s" if size in of else "" for size in sizes]
        for small, large in pairwise(sizes):
            both = small in of and large in of
            cells.append(f"{math.log(of[large] / of[small]) / math.log(large / small):.2f}" if both else "")
        made.append([f"`{stage}`", *cells])
    return Table("Growth of the way out of core", columns, made)


def _out_of_core(rows: Sequence[Row]) -> list[Row]:
    """The rows of that benchmark, by the number of events and in the order of the commands."""
    own = [row for row in rows if row.operation.startswith(OUT_OF_CORE) and row.seconds is not None]
    if not own:
        raise DataError("there is no benchmark of the way out of core in bench.jsonl.")
    return sorted(own, key=lambda row: (row.figures["events"], STAGES.index(row.operation.removeprefix(OUT_OF_CORE))))


def _section(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    if not record.get(name):
        raise DataError(f"there is no {name!r} in scale.json.")
    return list(record[name])


def _millions(count: float) -> str:
    return f"{count / 1e6:g}M"

"""The tables of the documents on scale: what benchmarks.scale and benchmarks.mapped kept in results/scale.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bridgemem.errors import DataError
from bridgemem.evaluation.tables import Table
from bridgemem.events.limits import bytes_of

KIND = "benchmark"  # the word in the marks of these tables: <!-- benchmark: NAME -->
LABELS = {
    "forecast": "forecast, {queries} queries",
    "serve": "serve, an event added, {queries} queries",
    "evaluate": "evaluate `--cells {cells}`, the last step",
}


def tables(record: Mapping[str, Any]) -> dict[str, Callable[[], Table]]:
    """Every table that a document can ask for by name."""
    return {
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


def _section(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    if not record.get(name):
        raise DataError(f"there is no {name!r} in scale.json.")
    return list(record[name])


def _millions(count: float) -> str:
    return f"{count / 1e6:g}M"

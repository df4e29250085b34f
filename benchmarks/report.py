"""`python -m benchmarks.report`: results/speed.md and marked tables of documents, written from records alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tools.publish import fill_marked

from benchmarks.harness import HEADER, Row, cells, complain, keep_rows, read_rows
from benchmarks.tables import KIND, tables
from bridgemem.errors import BridgeMemError
from bridgemem.storage.files import read_json

INTRODUCTION = """# Speed

Written by `python -m benchmarks.report` from `bench.jsonl`; how it is measured is told in
[docs/concepts/speed.md](../docs/concepts/speed.md). *plain* is the same work in straight numpy and PyTorch in the same
run, *paper* what the paper took on an NVIDIA H20, *floor* the counted products and bytes over what this machine
reaches. A figure with ~ is extrapolated linearly from a part of the work. Memory is what was added to the process, or
on a GPU to the device, at the highest.
"""


CURVE = """## How evaluation grows

Made-up events, three filters and one residual; one size grows and the others stay (`python -m benchmarks.curve`). A
dyadic read is a candidate that the actor interacted with inside the window. Bytes are those of all tensors made,
counted and therefore the same on every machine; an exponent of 1 is linear.

| grows | queries | entities | facts | dyadic reads | operators | MB made | MB of the residual | largest tensor, MB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def growth(points: Sequence[dict[str, Any]]) -> str:
    """The curve of costs as a table, and what its exponents are."""
    lines, said = [], {}
    for p in points:
        sizes = [f"{p[name]:,}" for name in ("queries", "entities", "facts", "reads", "calls")]
        sizes += [f"{p[name] / 1e6:,.1f}" for name in ("bytes", "residual_bytes", "largest")]
        lines.append("| " + " | ".join([p["axis"], *sizes]) + " |")
        said[p["axis"]] = f"{p['axis']} {p['exponent of bytes']:.2f}"
    by_reads = next(p for p in points if p["axis"] == "facts")["exponent of residual bytes by reads"]
    ending = (
        f"Exponents of the bytes: {', '.join(said.values())}; of the residual's bytes by dyadic reads {by_reads:.2f}."
    )
    return CURVE + "\n".join([*lines, "", ending, ""])


def page(rows: Sequence[Row], points: Sequence[dict[str, Any]] = ()) -> str:
    """The whole page: a table for each machine, in the order in which they were first measured; then the curve."""
    machines = list(dict.fromkeys(row.machine["device"] for row in rows))
    ordered = sorted(rows, key=lambda row: machines.index(row.machine["device"]))
    parts = [INTRODUCTION]
    for device, own in groupby(ordered, key=lambda row: row.machine["device"]):
        parts.append(_section(device, list(own)))
    return "\n".join([*parts, growth(points)] if points else parts)


def read_points(path: Path) -> list[dict[str, Any]]:
    """The points of the curve, where it was measured."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _section(device: str, rows: list[Row]) -> str:
    newest = rows[-1].machine
    # other work at the same time makes a machine look slower than it is
    matmul, bandwidth = (max(row.machine[name] for row in rows) / 1e9 for name in ("matmul", "bandwidth"))
    rates = f"{matmul:,.0f} GFLOP/s of float32 products, {bandwidth:,.0f} GB/s"
    lines = [f"## {device}", "", f"{rates}; torch {newest['torch']}, Python {newest['python']}.", ""]
    busiest = max(row.load for row in rows)
    if busiest > 1.5 * newest["threads"] and device.startswith("cpu"):
        lines += [f"Other programs ran on the machine at the same time (load up to {busiest:.1f}).", ""]
    aligned = ["---", "---", *["---:"] * (len(HEADER) - 3), "---"]
    lines += ["| " + " | ".join(line) + " |" for line in (HEADER, aligned)]
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    for row in sorted(rows, key=lambda row: datasets.index(row.dataset)):
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells(row)) + " |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, help="further records, as another machine wrote them")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of bench.jsonl, scale.json and speed.md"
    )
    parser.add_argument(
        "--fill", type=Path, action="append", default=[], help="a document whose marked tables are renewed; repeatable"
    )
    asked = parser.parse_args(arguments)
    missing = [path for path in asked.records if not path.is_file()]
    if missing:
        complain(f"benchmarks: there is no file {missing[0]}.")
        return 2
    kept = keep_rows(asked.out / "bench.jsonl", [row for path in asked.records for row in read_rows(path)])
    (asked.out / "speed.md").write_text(page(kept, read_points(asked.out / "curve.json")), encoding="utf-8")
    try:
        for document in asked.fill:
            fill_marked(document, tables(read_json(asked.out / "scale.json"), kept), KIND)
    except BridgeMemError as problem:
        complain(f"benchmarks: {problem}")
        return 2
    except (AttributeError, KeyError, TypeError, ValueError):
        complain(f"benchmarks: {asked.out / 'scale.json'} is damaged; take it from the repository, or measure again.")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

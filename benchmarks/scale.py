"""Mining out of core at growing sizes: seconds, peak memory, and how they grow.

    python -m benchmarks.scale --rows 20000000 --rows 50000000 --home /scratch --out results/scale.json

Each size is generated once (GDELT-like: 7,691 actors drawn by Zipf's law with exponent 0.9, 240 relations, 2,975
steps), then mined in a process of its own, whose peak memory the system reports. Rows are directed: two for each event.
`python -m benchmarks.report --fill docs/concepts/scale.md` then renews the tables of the document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ACTORS, RELATIONS, STEPS, ZIPF = 7_691, 240, 2_975, 0.9
FILE_EVENTS = 2_500_000


def generate(folder: Path, rows: int, seed: int = 7) -> Path:
    """Parquet files of that many directed rows, in the order of time; kept if they are there already."""
    import duckdb

    home = folder / f"events-{rows}"
    if (home / "done").is_file():
        return home
    home.mkdir(parents=True, exist_ok=True)
    events = rows // 2
    files = math.ceil(events / FILE_EVENTS)
    weight = np.cumsum(1 / np.arange(1, ACTORS + 1) ** ZIPF)
    with duckdb.connect() as connection:
        for number in range(files):
            rng = np.random.default_rng([seed, rows, number])
            first, last = number * events // files, (number + 1) * events // files
            actor = np.searchsorted(weight, rng.random((2, last - first)) * weight[-1]).astype(np.int32)
            # named in the query below
            block = {
                "subject": actor[0],
                "relation": (RELATIONS * rng.random(last - first) ** 2).astype(np.int32),
                "object": actor[1],
                "time": (np.arange(first, last) * STEPS // events).astype(np.int32),
            }
            connection.register("block", block)
            connection.execute(f"COPY (FROM block) TO '{home / f'part-{number:05d}.parquet'}' (FORMAT parquet)")
            connection.unregister("block")
    (home / "done").touch()
    return home


def mine_once(events: Path, out: Path, memory: str, threads: int) -> dict[str, Any]:
    """One mining in this process: seconds of each phase as the progress reports them, and what came out."""
    from bridgemem.events.limits import bytes_of
    from bridgemem.outofcore.duckdb import Limits, mine_files

    watch = _Watch()
    limits = Limits(memory=bytes_of(memory), threads=threads)
    done = mine_files([events / "*.parquet"], out, limits=limits, progress=watch)
    return {"phases": watch.seconds, **{name: done[name] for name in ("rows", "pairs", "examples", "fingerprint")}}


class _Watch:
    """Progress that only looks at the clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def task(self, label: str, total: int | None = None) -> _Timed:
        return _Timed(label, self.seconds)


class _Timed:
    def __init__(self, label: str, seconds: dict[str, float]) -> None:
        self.label, self.seconds = label, seconds

    def __enter__(self) -> Any:
        self.began = time.perf_counter()
        return lambda advance=1, *, note=None: None

    def __exit__(self, *ended: object) -> None:
        self.seconds[self.label] = round(time.perf_counter() - self.began, 2)


def measure(events: Path, out: Path, memory: str, threads: int) -> dict[str, Any]:
    """One mining in a child process: seconds, processor seconds, peak resident memory, bytes on disk."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.scale", "--events", str(events), "--mined", str(out)]
    load, began = os.getloadavg()[0], time.perf_counter()
    child = subprocess.Popen([*command, "--memory", memory, "--threads", str(threads)], stdout=subprocess.PIPE)
    said = child.stdout.read() if child.stdout else b""
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"mining {events} ended with status {status}")
    found = json.loads(said)
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    read = sum(path.stat().st_size for path in events.glob("*.parquet"))
    shutil.rmtree(out, ignore_errors=True)
    return {
        "memory": memory,
        "threads": threads,
        "load_before": round(load, 1),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": usage.ru_maxrss >> 10,
        "microseconds_a_row": round(1e6 * seconds / found["rows"], 3),
        "input_mb": read >> 20,
        "output_mb": written >> 20,
        **found,
    }


def exponents(sizes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How seconds, processor seconds and memory grow from each size to the next: 1 is linear, 0 is flat."""
    ordered = sorted(sizes, key=lambda size: size["rows"])
    found = []
    for small, large in itertools.pairwise(ordered):
        wider = math.log(large["rows"] / small["rows"])
        grown = {
            name: round(math.log(large[name] / small[name]) / wider, 2)
            for name in ("seconds", "cpu_seconds", "peak_mb")
        }
        found.append({"from": small["rows"], "to": large["rows"], **grown})
    return found


def read_section(path: Path | None, name: str) -> list[dict[str, Any]]:
    """The rows of a section of the record, where there are any."""
    record = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
    found: list[dict[str, Any]] = record.get(name, [])
    return found


def keep_sections(path: Path, **sections: Any) -> None:
    """Write sections of the record in place of older ones; the others stay, since several benchmarks share it."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(json.dumps(record | sections, indent=1) + "\n", encoding="utf-8")
    aside.replace(path)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--rows", type=int, action="append", help="directed rows of a size to measure")
    arguments.add_argument("--home", type=Path, default=Path("scale-data"), help="where events and results may lie")
    arguments.add_argument("--out", type=Path, help="the record to add the figures to")
    arguments.add_argument("--memory", default="2GB")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--mined", type=Path, help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.events:
        print(json.dumps(mine_once(asked.events, asked.mined, asked.memory, asked.threads)))
        return
    sizes = {(size["rows"], size["memory"]): size for size in read_section(asked.out, "sizes")}
    for rows in asked.rows or [2_000_000]:
        found = measure(generate(asked.home, rows), asked.home / "mined", asked.memory, asked.threads)
        print(json.dumps(found))
        sizes[found["rows"], found["memory"]] = found
        if asked.out:
            same = [size for size in sizes.values() if size["memory"] == asked.memory]
            keep_sections(asked.out, sizes=[sizes[key] for key in sorted(sizes)], growth=exponents(same))


if __name__ == "__main__":
    main()

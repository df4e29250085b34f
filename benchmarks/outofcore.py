"""From files to forecasts out of core: seconds and resident memory of mine, fit, evaluate and serve at growing sizes.

    python -m benchmarks.outofcore --events 2500000 --events 25000000 --home /scratch --out results/bench.jsonl

The events are drawn like news: pairs of actors by Zipf's law, half of the events between pairs of today, each pair with
relations of its own, a year of days. Every command is the user's own, in a process of its own, whose memory is watched:
resident (what the system counts, pages of mapped files too) and anonymous (what could not be let go of).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row, keep_rows
from benchmarks.machine import load_average
from benchmarks.machine import measure as measure_machine
from benchmarks.tables import OUT_OF_CORE

ACTORS, RELATIONS, DAYS = 10_000, 240, 365
PER_PAIR = 16  # events to a pair, as far as Zipf's law leaves any to the last of them
FILE_EVENTS = 2_500_000
QUERIES = 2_000
ASKED = 200  # forecasts that the service answers


def generate(home: Path, events: int, seed: int = 7) -> Path:
    """Parquet files of that many events in the order of time; kept if they are there already."""
    import duckdb

    folder = home / f"events-{events}"
    if (folder / "done").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, events])
    pairs = max(events // PER_PAIR, 100)
    weight = np.cumsum(1 / np.arange(1, ACTORS + 1) ** 0.8)
    ends = np.searchsorted(weight, rng.random((2, pairs)) * weight[-1])
    usual = (RELATIONS * rng.random((2, pairs)) ** 2).astype(np.int32)
    files = -(-events // FILE_EVENTS)
    with duckdb.connect() as db:
        for number in range(files):
            first, last = number * events // files, (number + 1) * events // files
            size = last - first
            day = (np.arange(first, last) * DAYS // events).astype(np.int32)
            rank = (pairs ** rng.random(size)).astype(np.int64) - 1
            today = rng.random(size) < 0.5
            pair = np.where(today, (rank + day.astype(np.int64) * (pairs // DAYS)) % pairs, rank)
            drawn = rng.random(size)
            other = (RELATIONS * rng.random(size) ** 2).astype(np.int32)
            relation = np.where(drawn < 0.5, usual[0, pair], np.where(drawn < 0.75, usual[1, pair], other))
            turned = rng.random(size) < 0.3
            block = {
                "subject": np.where(turned, ends[1, pair], ends[0, pair]).astype(np.int32),
                "relation": relation,
                "object": np.where(turned, ends[0, pair], ends[1, pair]).astype(np.int32),
                "time": day,
            }
            db.register("block", block)
            names = "'actor ' || subject AS subject, 'R' || relation AS relation, 'actor ' || object AS object"
            when = "(DATE '2024-01-01' + time)::DATE AS time"
            target = folder / f"part-{number:05d}.parquet"
            db.execute(f"COPY (SELECT {names}, {when} FROM block) TO '{target}' (FORMAT parquet)")
            db.unregister("block")
    (folder / "done").touch()
    return folder


@dataclass
class Watched:
    """A command, its seconds, and the most memory that it held, in bytes."""

    seconds: float = 0.0
    processor: float = 0.0
    resident: int = 0
    anonymous: int = 0
    output: str = ""
    figures: dict[str, float] = field(default_factory=dict)


class Watch(threading.Thread):
    """Reads what a process holds, until it ends."""

    def __init__(self, pid: int, found: Watched) -> None:
        super().__init__(daemon=True)
        self.pid, self.found = pid, found

    def run(self) -> None:
        while True:
            try:
                text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
            except OSError:
                return
            sizes = {name: int(size) << 10 for name, size in re.findall(r"(VmHWM|RssAnon):\s+(\d+) kB", text)}
            self.found.resident = max(self.found.resident, sizes.get("VmHWM", 0))
            self.found.anonymous = max(self.found.anonymous, sizes.get("RssAnon", 0))
            time.sleep(0.05)


def started(arguments: Sequence[str], log: Path) -> tuple[subprocess.Popen[bytes], Watched]:
    """A command of bridgemem, with what it says in a file, being watched."""
    found = Watched()
    with log.open("wb") as said:
        child = subprocess.Popen([sys.executable, "-m", "bridgemem", *arguments], stdout=said, stderr=said)
    Watch(child.pid, found).start()
    return child, found


def ended(child: subprocess.Popen[bytes], found: Watched, began: float, log: Path, wanted: int = 0) -> Watched:
    """Wait for a command, and note what it cost."""
    _, status, usage = os.wait4(child.pid, 0)
    found.seconds = time.perf_counter() - began
    found.processor = usage.ru_utime + usage.ru_stime
    found.output = log.read_text(encoding="utf-8", errors="replace")
    if os.waitstatus_to_exitcode(status) not in (0, wanted):
        raise SystemExit(f"bridgemem ended with status {status}:\n{found.output[-2000:]}")
    return found


def run(arguments: Sequence[str], log: Path) -> Watched:
    began = time.perf_counter()
    return ended(*started(arguments, log), began, log)


def serve(folder: Path, log: Path) -> Watched:
    """Start the service, ask it by name, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.perf_counter()
    child, found = started(["serve", str(folder), "--port", str(port)], log)
    address = f"http://127.0.0.1:{port}"
    while True:
        try:
            urllib.request.urlopen(f"{address}/readyz", timeout=5).close()
            break
        except OSError:
            if child.poll() is not None:
                raise SystemExit(f"the service ended:\n{log.read_text()}") from None
            time.sleep(0.2)
    found.figures["ready_seconds"] = time.perf_counter() - began
    names = [(folder / f"{kind}.txt").read_text(encoding="utf-8").splitlines() for kind in ("entities", "relations")]
    rng, waits = np.random.default_rng(0), []
    for _ in range(ASKED):
        subject, relation = (names[0][rng.integers(2_000)], names[1][rng.integers(50)])
        body = json.dumps({"subject": subject, "relation": relation}).encode()
        asked = urllib.request.Request(f"{address}/v1/forecast", body, {"content-type": "application/json"})
        before = time.perf_counter()
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert json.load(answer)
        waits.append(time.perf_counter() - before)
    found.figures["forecast_p50_ms"] = 1e3 * float(np.median(waits))
    found.figures["forecast_first_ms"] = 1e3 * waits[0]
    child.terminate()
    return ended(child, found, began, log, wanted=-15)


def measure(home: Path, events: int, memory: str, options: Sequence[str], keep: bool) -> Iterator[Row]:
    """All four commands at one size, one after the other; keep: what is mined already is not mined again."""
    source, mined, made = generate(home, events), home / f"mined-{events}", home / f"run-{events}"
    keep = keep and (mined / "mined.json").is_file()
    for folder in (made,) if keep else (mined, made):
        shutil.rmtree(folder, ignore_errors=True)
    log, machine = home / f"log-{events}.txt", measure_machine("cpu")
    stages = {
        "mine": lambda: run(["mine", str(source / "*.parquet"), "--out", str(mined), "--memory", memory], log),
        "fit": lambda: run(["fit", "-d", str(mined), "--out", str(made), *options], log),
        "evaluate": lambda: run(["evaluate", str(made), "--queries", str(QUERIES)], log),
        "serve": lambda: serve(made, log),
    }
    if keep:
        del stages["mine"]
    for stage, work in stages.items():
        load, found = load_average(), work()
        million = events / 1e6
        figures = {
            "events": float(events),
            "processor_seconds": found.processor,
            "resident_mb": found.resident / 1e6,
            "anonymous_mb": found.anonymous / 1e6,
            "seconds_a_million": found.seconds / million,
            "processor_seconds_a_million": found.processor / million,
            **found.figures,
        }
        if stage == "mine":
            written = sum(file.stat().st_size for file in mined.rglob("*") if file.is_file())
            figures |= {"disk_mb": written / 1e6, "pairs": float(_manifest(mined)["pairs"])}
        if stage == "evaluate":
            figures["mrr"] = _mrr(made)
        print(json.dumps({"stage": stage, "seconds": found.seconds, **figures}), flush=True)
        yield Row(
            operation=f"{OUT_OF_CORE}{stage}",
            dataset=f"synthetic-{million:g}M",
            machine=machine.as_dict(),
            load=load,
            seconds=found.seconds,
            runs=1,
            peak_bytes=found.resident,
            added_bytes=found.anonymous,
            agreement=f"at most {found.resident / 1e9:.2f} GB resident, {found.anonymous / 1e9:.2f} GB anonymous",
            note=" ".join(options) if stage == "fit" else "",
            figures=figures,
        )


def _manifest(mined: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((mined / "mined.json").read_text(encoding="utf-8"))
    return found


def _mrr(made: Path) -> float:
    """Time-aware, of the learned residual where there is one, else of the paper's."""
    records = json.loads((made / "metrics.json").read_text(encoding="utf-8"))["test"]
    of = {r["method"]: r["mrr"] for r in records if r["filter"] == "time" and r["selected_by"] in ("time", "raw", None)}
    return float(of.get("learned", of["bridgemem"]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--events", type=int, action="append", help="events of a size to measure")
    arguments.add_argument("--home", type=Path, default=Path("scale-data"), help="where events and results may lie")
    arguments.add_argument("--memory", default="1500MB", help="memory limit of mine")
    arguments.add_argument("--fit-options", default="", help="further options of fit, as one text")
    arguments.add_argument("--keep-mined", action="store_true", help="go on from what an earlier call mined")
    arguments.add_argument("--out", type=Path, help="the records to add the figures to")
    asked = arguments.parse_args()
    for events in asked.events or [250_000]:
        # each as soon as it is there: the next one may take an hour
        for row in measure(asked.home, events, asked.memory, asked.fit_options.split(), asked.keep_mined):
            if asked.out:
                keep_rows(asked.out, [row])


if __name__ == "__main__":
    main()

"""A memory on disk against the same memory in RAM: resident memory and time of forecast, evaluate and serve.

    python -m benchmarks.mapped --events 10000000 --home /scratch --out results/scale.json

The events are GDELT-like (7,691 actors drawn by Zipf's law with exponent 0.9, 240 relations, 2,975 steps), the backbone
is recurrence with dyadic recency. Every measurement is a process of its own; its peak of resident memory is what the
system counted, mapped pages included. "cold" means that the files were first put out of the system's cache.
`python -m benchmarks.report --fill docs/concepts/memory-on-disk.md` then renews the table of the document.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale import ACTORS, RELATIONS, STEPS, ZIPF, keep_sections, read_section

QUERIES = 200
CELLS = 1 << 20  # queries times entities in a batch
TASKS = ("forecast", "serve", "evaluate")
Task = tuple[int, Callable[[], Any]]  # how many queries, and what asks them and gives the answers


def resident(field: str) -> int:
    """A count of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def synthetic(events: int, seed: int = 7) -> Any:
    """A data set of that many events; the last step is the test, the two before it validation."""
    from bridgemem.events.dataset import Dataset
    from bridgemem.events.log import EventLog, Vocabulary

    rng = np.random.default_rng(seed)
    weight = np.cumsum(1 / np.arange(1, ACTORS + 1) ** ZIPF)
    subject, object_ = (np.searchsorted(weight, rng.random(events) * weight[-1]).astype(np.int32) for _ in range(2))
    entities, relations = (Vocabulary(kind, tuple(f"{kind} {i}" for i in range(n))) for kind, n in _SIZES)
    step = np.sort(rng.integers(STEPS, size=events).astype(np.int32))
    log = EventLog(subject, rng.integers(RELATIONS, size=events).astype(np.int32), object_, step, entities, relations)
    return Dataset("gdelt-like", log, STEPS - 3, STEPS - 1)


_SIZES = (("entity", ACTORS), ("relation", RELATIONS))


def prepare(home: Path, events: int) -> dict[str, Any]:
    """A run on the data set and its memory on disk, kept if they are there; how long writing took, if done now."""
    from bridgemem.backbones.recurrence import RecurrenceDyadic
    from bridgemem.config import Settings
    from bridgemem.evidence.transitions import Transitions
    from bridgemem.forecasting.model import Model, RunConfig
    from bridgemem.memory.disk.writing import write_memory
    from bridgemem.ranking.metrics import Metrics
    from bridgemem.residuals.scoring import Choice
    from bridgemem.residuals.selection import Fitted, Selection
    from bridgemem.runs import Run

    if not (home / "run").is_dir():
        dataset, settings = synthetic(events), Settings(max_examples=100_000)
        # what is measured is reading; the transitions are those of a slice
        fitted, _ = Transitions.fit(dataset.events.prefix(20), settings, 42, epochs=1)
        zero = Metrics(0.0, 0.0, 0.0, 0.0)
        chosen = {f: Selection(f, Choice(), True, zero, zero, []) for f in ("static", "time")}
        config = RunConfig(
            dataset=dataset.name,
            fingerprint=dataset.events.fingerprint,
            valid_start=STEPS - 3,
            test_start=STEPS - 1,
            backbone=RecurrenceDyadic.name,
            backbone_seed=42,
            backbone_entities=dataset.events.n_entities,
            backbone_relations=dataset.events.n_relations,
            seed=42,
            device="cpu",
        )
        whole = Fitted(fitted, copy.deepcopy(fitted), 1, (), chosen, 0.0, 0.0)
        Run.create(home / "run", Model(dataset, RecurrenceDyadic.fit(dataset), whole, config))
    dataset = Run(home / "run").dataset
    held, began = resident("VmRSS"), time.process_time()
    missing = not (home / "memory").is_dir()
    if missing:
        write_memory(dataset, home / "memory")
    took = time.process_time() - began if missing else None
    size = sum(file.stat().st_size for file in (home / "memory").iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"write_cpu_s": took, "disk": size, "before_writing": held, "peak": peak}


def forget_files(folder: Path) -> None:
    """Put the files of a folder out of the system's cache."""
    for file in folder.iterdir():
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def queries(entities: int) -> list[tuple[int, int]]:
    """(actor, relation) of the queries: half of them about the busiest hundred actors."""
    rng = np.random.default_rng(3)
    actors = np.concatenate([rng.integers(100, size=QUERIES // 2), rng.integers(entities, size=QUERIES // 2)])
    return [(int(a), int(r)) for a, r in zip(actors, rng.integers(RELATIONS, size=QUERIES), strict=True)]


def perform(task: str, home: Path, memory_dir: Path | None) -> dict[str, Any]:
    """One task from opening to end, timed, with a digest of what it answered."""
    import torch

    import bridgemem.live.forecasting  # noqa: F401  (the program itself is no part of what is compared)

    start, began = resident("VmRSS"), time.process_time()
    asked, answers = {"forecast": forecasts, "serve": service, "evaluate": evaluation}[task](home, memory_dir)
    opened = time.process_time()
    made = repr(answers())
    return {
        "queries": asked,
        "threads": torch.get_num_threads(),
        "open_cpu_s": opened - began,
        "ask_cpu_s": time.process_time() - opened,
        "start": start,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "answers": hashlib.sha256(made.encode()).hexdigest()[:16],
    }


def forecasts(home: Path, memory_dir: Path | None) -> Task:
    """Queries to an opened forecaster, all of whose indices are there."""
    from bridgemem.runs import Run

    forecaster = Run(home / "run", memory_dir=memory_dir).predictor()
    forecaster.forecast(0, 0)
    return QUERIES, lambda: [forecaster.forecast(*query) for query in queries(ACTORS)]


def service(home: Path, memory_dir: Path | None) -> Task:
    """Queries to a live forecaster that has taken in an event."""
    from bridgemem.forecaster import Forecaster
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.forecasting import LiveForecaster

    store = EventStore(home / f"events-{os.getpid()}.duckdb")
    live = LiveForecaster(Forecaster.load(home / "run", memory_dir=memory_dir), store)
    live.add([("entity 3", "relation 5", "entity 9", str(STEPS))], "bench", "1")
    return QUERIES, lambda: [live.forecast(*query) for query in queries(ACTORS)]


def evaluation(home: Path, memory_dir: Path | None) -> Task:
    """The ranks of the test, with all indices built by a first query, in batches whose own arrays are small.

    What a batch holds grows with its queries and not with the memory; by default it is larger than the memory here.
    """
    from bridgemem.events.queries import Queries
    from bridgemem.memory.past import Past
    from bridgemem.ranking.filters import Filters
    from bridgemem.residuals.scoring import Choice, Scoring, replay
    from bridgemem.runs import Run

    run = Run(home / "run", memory_dir=memory_dir)
    dataset = run.dataset
    scoring = Scoring(run.scorer("known"), Past(dataset.events), run.transitions(), choices=[Choice()])
    filters, queries = Filters(dataset.events), Queries.of(dataset.test)
    replay(scoring, queries.take(slice(0, 1)), filters=filters)
    return len(queries), lambda: replay(scoring, queries, filters=filters, cells=CELLS).ranks.tobytes()


def child(*arguments: str) -> dict[str, Any]:
    """A measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.mapped", *arguments]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Prepare, measure every task in RAM, on disk and on disk with a cold cache, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="the record to add the figures to")
    parser.add_argument("--task", choices=TASKS, action="append", help="measure these alone")
    parser.add_argument("--only", choices=("prepare", *TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--memory-dir", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only == "prepare":
        say(json.dumps(prepare(given.home, given.events)))
        return
    if given.only is not None:
        say(json.dumps(perform(given.only, given.home, given.memory_dir)))
        return
    given.home.mkdir(parents=True, exist_ok=True)
    base = ("--home", str(given.home), "--events", str(given.events))
    about = {"events": given.events, "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"}
    made = child("--only", "prepare", *base)
    say(f"{given.events:,} events, {made['disk'] / 1e6:,.0f} MB on disk")
    rows = []
    if made["write_cpu_s"] is not None:
        say(f"written in {made['write_cpu_s']:.0f} CPU s")
        written = {"disk_mb": round(made["disk"] / 1e6), "write_seconds": round(made["write_cpu_s"])}
        rows.append({"task": "write", **about, **written})
    memory = given.home / "memory"
    for task in given.task or TASKS:
        found = {"ram": child("--only", task, *base)}
        for kind in ("disk", "cold"):
            if kind == "cold":
                forget_files(memory)
            found[kind] = child("--only", task, *base, "--memory-dir", str(memory))
        report(task, found)
        rows.append({"task": task, **about, **({"cells": CELLS} if task == "evaluate" else {}), **figures(found)})
    if given.out is not None:
        keep(given.out, rows)


def figures(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the record keeps of a task measured in RAM, on disk and cold: MB, CPU seconds, and ratios to RAM."""
    ram = found["ram"]
    kept: dict[str, Any] = {
        "queries": ram["queries"],
        "threads": ram["threads"],
        "program_mb": round(ram["start"] / 1e6),
        "same_answers": len({row["answers"] for row in found.values()}) == 1,
    }
    for kind, row in found.items():
        kept[kind] = {"peak_mb": round(row["peak"] / 1e6), "open_seconds": round(row["open_cpu_s"], 1)}
        if kind == "ram":
            kept[kind]["query_ms"] = round(1e3 * row["ask_cpu_s"] / row["queries"], 1)
        else:
            kept[kind]["times"] = round(row["ask_cpu_s"] / ram["ask_cpu_s"], 2)
    return kept


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows to the record in place of older ones of the same task."""
    kept = {row["task"]: row for row in [*read_section(path, "mapped"), *rows]}
    keep_sections(path, mapped=list(kept.values()))


def report(task: str, found: dict[str, Any]) -> None:
    ram = found["ram"]
    for kind, row in found.items():
        same = "same answers" if row["answers"] == ram["answers"] else "OTHER ANSWERS"
        say(
            f"{task:9} {kind:5} peak {row['peak'] / 1e6:7,.0f} MB ({(row['peak'] - row['start']) / 1e6:+7,.0f}), "
            f"opened in {row['open_cpu_s']:6.1f} CPU s, asked in {row['ask_cpu_s']:6.1f} "
            f"({row['ask_cpu_s'] / ram['ask_cpu_s']:.2f}x), {same}"
        )


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

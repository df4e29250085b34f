"""A load test on loopback, bounded in count and time: `python -m benchmarks.load RUN --out service.md`.

The service runs in a process of its own on a store of its own, which is thrown away; the run is only read.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridgemem import __version__
from bridgemem.errors import BridgeMemError, RunError

TIMEOUT = 60.0
SERVE = "from bridgemem.cli.main import main; main()"
MEMORY = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Plan:
    """What is done: `requests` in all by `clients` at once, at most for `seconds`.

    One of `explain_every` requests asks for an explanation, one of `event_every` adds an event; the rest are forecasts.
    alone: how many forecasts are first asked one after another, each twice.
    """

    requests: int = 2000
    clients: int = 4
    seconds: float = 60.0
    explain_every: int = 10
    event_every: int = 100
    alone: int = 200
    seed: int = 42


@dataclass
class Outcome:
    """Seconds of every request by kind, the sentences of those that failed, and the memory in bytes over time."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    wall: float = 0.0
    done: int = 0
    model: dict[str, Any] = field(default_factory=dict)


class Client:
    """One connection that is kept open."""

    def __init__(self, port: int, outcome: Outcome) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self.outcome = outcome

    def get(self, path: str) -> str:
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise RunError(f"the service answered {path} with {answer.status}: {text[:200]}")
        return text

    def timed(self, kind: str, path: str, body: dict[str, Any]) -> Any:
        """Ask, note the time it took or why it failed, and return the answer."""
        sent = json.dumps(body).encode()
        begin = time.perf_counter()
        try:
            self.connection.request("POST", path, sent, {"Content-Type": "application/json"})
            answer = self.connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as problem:
            self.connection.close()
            self.outcome.errors.append(f"{kind}: {problem}")
            return None
        taken = time.perf_counter() - begin
        if answer.status != 200:
            self.outcome.errors.append(f"{kind}: {answer.status} {text[:200]}")
            return None
        self.outcome.seconds[kind].append(taken)
        return json.loads(text)


@contextmanager
def serving(run: Path, data_dir: Path | None = None) -> Iterator[int]:
    """The port of a service that runs in a process of its own, ready to answer."""
    with tempfile.TemporaryDirectory() as aside:
        words = ["serve", str(run), "--port", "0", "--store", str(Path(aside) / "events.duckdb")]
        words += [] if data_dir is None else ["--data-dir", str(data_dir)]
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^:]+:(\d+)", process.stdout.readline())
            if found is None:
                said = process.communicate(timeout=TIMEOUT)[1].strip()
                raise RunError(said.removeprefix("bridgemem: ") or "the service did not start.")
            port = int(found[1])
            _wait(port)
            yield port
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT)


def _wait(port: int) -> None:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        try:
            Client(port, Outcome()).get("/readyz")
        except (OSError, RunError):
            time.sleep(0.1)
        else:
            return
    raise RunError(f"the service was not ready after {TIMEOUT:g} s.")


def queries(client: Client, seed: int) -> Iterator[dict[str, Any]]:
    """Endless queries: active actors and frequent relations, the more so the more often they are asked."""
    chosen = random.Random(seed)
    found = [json.loads(client.get(f"/v1/{kind}?limit=500"))["names"] for kind in ("entities", "relations")]
    names = [[entry["name"] for entry in entries] for entries in found]
    weights = [[entry["events"] + 1 for entry in entries] for entries in found]
    while True:
        actor, relation = (chosen.choices(n, w)[0] for n, w in zip(names, weights, strict=True))
        yield {"subject" if chosen.random() < 0.5 else "object": actor, "relation": relation}


def load(port: int, plan: Plan) -> Outcome:
    """Ask one by one, then many at once; nothing is asked after the time is over."""
    outcome = Outcome()
    client = Client(port, outcome)
    outcome.model = json.loads(client.get("/v1/model"))
    _alone(client, plan)
    outcome.memory.append(_memory(client))
    begin = time.perf_counter()
    workers = [
        threading.Thread(target=_work, args=(Client(port, outcome), plan, number, begin + plan.seconds))
        for number in range(plan.clients)
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.5)
        outcome.memory.append(_memory(client))
    outcome.wall = time.perf_counter() - begin
    outcome.done = sum(len(taken) for kind, taken in outcome.seconds.items() if "alone" not in kind)
    return outcome


def _alone(client: Client, plan: Plan) -> None:
    """Each query twice: the second finds the backbone's scores kept."""
    asked = queries(client, plan.seed)
    for _ in range(plan.alone):
        query = next(asked)
        client.timed("forecast alone, first", "/v1/forecast", query)
        client.timed("forecast alone, again", "/v1/forecast", query)


def _work(client: Client, plan: Plan, number: int, end: float) -> None:
    asked = queries(client, plan.seed + 1 + number)
    when = client.outcome.model["next_time"]
    for place in range(number, plan.requests, plan.clients):
        if time.perf_counter() > end:
            return
        query = next(asked)
        name = query.get("subject", query.get("object"))
        if place % plan.event_every == plan.event_every - 1:
            event = {"subject": name, "relation": query["relation"], "object": name}
            batch = {"source": "load test", "key": str(place), "events": [{**event, "time": when}]}
            client.timed("event", "/v1/events", batch)
        elif place % plan.explain_every == plan.explain_every - 1:
            client.timed("explain", "/v1/explain", {**query, "subject": name, "object": name})
        else:
            client.timed("forecast", "/v1/forecast", query)


def _memory(client: Client) -> int:
    """The service's resident memory in bytes; 0 where the system does not tell."""
    found = MEMORY.search(client.get("/metrics"))
    return int(float(found[1])) if found else 0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report(outcome: Outcome, plan: Plan) -> str:
    """The outcome as a page of Markdown."""
    m, mib = outcome.model, 1 << 20
    rows = [
        f"| {kind} | {len(taken):,} | {1e3 * statistics.median(taken):.1f} | {1e3 * percentile(taken, 0.99):.1f} "
        f"| {1e3 * max(taken):.1f} |"
        for kind, taken in sorted(outcome.seconds.items())
    ]
    begin, *during = outcome.memory
    halves = during[: len(during) // 2] or [begin], during[len(during) // 2 :] or [begin]
    text = [
        "# The service under load",
        "",
        f"`python -m benchmarks.load`, bridgemem {__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores shared by the service and its {plan.clients} clients, over loopback.",
        "",
        f"The run: {m['dataset']}, {m['backbone']} with the {m['residual']} residual; {m['events']:,} events of "
        f"{m['entities']:,} entities and {m['relations']:,} relations in memory.",
        "",
        f"{outcome.done:,} requests by {plan.clients} clients at once in {outcome.wall:.1f} s: "
        f"**{outcome.done / outcome.wall:.0f} requests a second**, {len(outcome.errors)} errors. Before that one "
        f"client alone asked {plan.alone:,} queries, each twice: the second finds the backbone's scores kept.",
        "",
        "| request | count | p50 ms | p99 ms | longest ms |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
        f"Resident memory of the service: {begin / mib:.0f} MiB when the load began, at most "
        f"{max(halves[0]) / mib:.0f} MiB in the first half of it and {max(halves[1]) / mib:.0f} MiB in the second.",
    ]
    if outcome.errors:
        text += ["", "The first errors:", "", *(f"- {error}" for error in outcome.errors[:10])]
    return "\n".join(text) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write")
    parser.add_argument("--data-dir", type=Path, help="folder of the named data sets")
    for name, kind in (("requests", int), ("clients", int), ("seconds", float), ("alone", int)):
        parser.add_argument(f"--{name}", type=kind, default=getattr(Plan, name))
    given = parser.parse_args(arguments)
    plan = Plan(given.requests, given.clients, given.seconds, alone=given.alone)
    try:
        with serving(given.run, given.data_dir) as port:
            outcome = load(port, plan)
        given.out.write_text(report(outcome, plan), encoding="utf-8")
    except (BridgeMemError, OSError) as problem:
        sys.stderr.write(f"bridgemem: {problem}\n")
        return 2
    return 1 if outcome.errors else 0


if __name__ == "__main__":
    sys.exit(main())

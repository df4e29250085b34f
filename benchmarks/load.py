"""A load test on loopback, bounded in time: `python -m benchmarks.load RUN --out service.md`.

The service runs in a process of its own on a store of its own, which is thrown away; the run is only read.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import re
import socket
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
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, keep_rows
from benchmarks.machine import load_average, measure
from bridgemem import __version__
from bridgemem.errors import BridgeMemError, RunError

TIMEOUT = 60.0
SERVE = "from bridgemem.cli.main import main; main()"
BATCH = 10  # events of the batches that one client alone sends
GAUGE = r"^{} (\S+)$"
MEMORY, PROCESSOR = (
    re.compile(GAUGE.format(f"process_{name}"), re.MULTILINE) for name in ("resident_memory_bytes", "cpu_seconds_total")
)


@dataclass(frozen=True)
class Plan:
    """What is done: `clients` ask at once for `seconds`, each one query after another.

    events, explain: the share of requests that add an event, and that ask for an explanation; the rest are forecasts.
    alone: how many forecasts are first asked one after another, each twice, and after them half as many batches sent.
    """

    clients: int = 32
    seconds: float = 60.0
    events: float = 0.05
    explain: float = 0.0
    alone: int = 200
    seed: int = 42


@dataclass
class Outcome:
    """Seconds of every request by kind, the sentences of those that failed, and the memory in bytes over time.

    processor: seconds of processor time that the service took for the requests of all clients. busy: the load average
    of the machine before anything was asked.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    wall: float = 0.0
    processor: float = 0.0
    busy: float = 0.0
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def together(self) -> list[float]:
        """Seconds of the requests of all clients at once."""
        return [value for kind, taken in self.seconds.items() if "alone" not in kind for value in taken]

    def quarters(self) -> tuple[float, float]:
        """The mean memory in the second and in the last quarter of the load."""
        during = self.memory[1:] or self.memory
        size = max(len(during) // 4, 1)
        return statistics.mean(during[size : 2 * size] or during), statistics.mean(during[-size:])


class Client:
    """One connection that is kept open; plain sockets, since clients share the cores with what they measure."""

    def __init__(self, port: int, outcome: Outcome) -> None:
        self.outcome = outcome
        self.connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
        """Status and text of an answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self.connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        top, _, text = answer.partition(b"\r\n\r\n")
        size = int(re.search(rb"(?i)content-length: (\d+)", top)[1])  # type: ignore[index]
        while len(text) < size:
            text += self._more()
        return int(top.split(b" ", 2)[1]), text.decode()

    def _more(self) -> bytes:
        part = self.connection.recv(1 << 16)
        if not part:
            raise ConnectionError("the service closed the connection")
        return part

    def get(self, path: str) -> str:
        status, text = self.ask("GET", path)
        if status != 200:
            raise RunError(f"the service answered {path} with {status}: {text[:200]}")
        return text

    def timed(self, kind: str, path: str, body: dict[str, Any]) -> None:
        """Ask, and note the time it took or why it failed."""
        sent = json.dumps(body).encode()
        begin = time.perf_counter()
        try:
            status, text = self.ask("POST", path, sent)
        except OSError as problem:
            self.outcome.errors.append(f"{kind}: {problem}")
            raise
        if status != 200:
            self.outcome.errors.append(f"{kind}: {status} {text[:200]}")
        else:
            self.outcome.seconds[kind].append(time.perf_counter() - begin)


@contextmanager
def serving(run: Path, data_dir: Path | None = None) -> Iterator[int]:
    """The port of a service that runs in a process of its own, ready to answer."""
    with tempfile.TemporaryDirectory() as aside:
        words = ["serve", str(run), "--port", "0", "--store", str(Path(aside) / "events.duckdb")]
        words += ["--log-level", "warning"]  # nobody reads its lines, and a full pipe would stop it
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
    weights = [list(accumulate(entry["events"] + 1 for entry in entries)) for entries in found]
    while True:
        actor, relation = (chosen.choices(n, cum_weights=w)[0] for n, w in zip(names, weights, strict=True))
        yield {"subject" if chosen.random() < 0.5 else "object": actor, "relation": relation}


def load(port: int, plan: Plan) -> Outcome:
    """Ask one by one, then many at once; nothing is asked after the time is over."""
    outcome = Outcome(busy=load_average())
    client = Client(port, outcome)
    outcome.model = json.loads(client.get("/v1/model"))
    _alone(client, plan)
    memory, before = _used(client)
    outcome.memory.append(memory)
    begin = time.perf_counter()
    workers = [
        threading.Thread(target=_work, args=(Client(port, outcome), plan, number, begin + plan.seconds))
        for number in range(plan.clients)
    ]
    for worker in workers:
        worker.start()
    after = before
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.5)
        memory, after = _used(client)
        outcome.memory.append(memory)
    outcome.wall, outcome.processor = time.perf_counter() - begin, after - before
    return outcome


def _alone(client: Client, plan: Plan) -> None:
    """Each query twice: the second finds the backbone's scores kept. Then batches of ten events."""
    asked = queries(client, plan.seed)
    for _ in range(plan.alone):
        query = next(asked)
        client.timed("forecast alone, first", "/v1/forecast", query)
        client.timed("forecast alone, again", "/v1/forecast", query)
    for place in range(plan.alone // 2):
        events = [_event(asked, client.outcome.model["next_time"]) for _ in range(BATCH)]
        batch = {"source": "alone", "key": str(place), "events": events}
        client.timed(f"{BATCH} events alone", "/v1/events", batch)


def _event(asked: Iterator[dict[str, Any]], when: str) -> dict[str, Any]:
    """An event between two of those who are asked about."""
    one, other = next(asked), next(asked)
    (subject,), (object_,) = ([q[side] for side in ("subject", "object") if side in q] for q in (one, other))
    return {"subject": subject, "relation": one["relation"], "object": object_, "time": when}


def _work(client: Client, plan: Plan, number: int, end: float) -> None:
    asked, chance = queries(client, plan.seed + 1 + number), random.Random(plan.seed - number)
    when, place = client.outcome.model["next_time"], 0
    while time.perf_counter() < end:
        query, place, kind = next(asked), place + 1, chance.random()
        name = query.get("subject", query.get("object"))
        if kind < plan.events:
            batch = {"source": f"client {number}", "key": str(place), "events": [_event(asked, when)]}
            client.timed("event", "/v1/events", batch)
        elif kind < plan.events + plan.explain:
            client.timed("explain", "/v1/explain", {**query, "subject": name, "object": name})
        else:
            client.timed("forecast", "/v1/forecast", query)


def _used(client: Client) -> tuple[int, float]:
    """The service's resident memory in bytes and its processor seconds; 0 where the system does not tell."""
    text = client.get("/metrics")
    memory, processor = (float(found[1]) if (found := wanted.search(text)) else 0.0 for wanted in (MEMORY, PROCESSOR))
    return int(memory), processor


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report(outcome: Outcome, plan: Plan) -> str:
    """The outcome as a page of Markdown."""
    m, mib, done = outcome.model, 1 << 20, outcome.together
    rows = [
        f"| {kind} | {len(taken):,} | {1e3 * statistics.median(taken):.1f} | {1e3 * percentile(taken, 0.99):.1f} "
        f"| {1e3 * max(taken):.1f} |"
        for kind, taken in sorted(outcome.seconds.items())
    ]
    second, last = outcome.quarters()
    cost = (
        f", {1e3 * outcome.processor / len(done):.1f} ms of processor time each" if outcome.processor and done else ""
    )
    text = [
        "# The service under load",
        "",
        f"`python -m benchmarks.load`, bridgemem {__version__}, Python {platform.python_version()}, "
        f"{len(os.sched_getaffinity(0))} cores shared by the service and its {plan.clients} clients, over loopback"
        + (f"; other work kept them busy (load average {outcome.busy:.1f} before)." if outcome.busy > 1 else "."),
        "",
        f"The run: {m['dataset']}, {m['backbone']} with the {m['residual']} residual; {m['events']:,} events of "
        f"{m['entities']:,} entities and {m['relations']:,} relations in memory.",
        "",
        f"{len(done):,} requests by {plan.clients} clients at once in {outcome.wall:.1f} s, of which "
        f"{plan.events:.0%} add an event: **{len(done) / outcome.wall:.0f} requests a second**, "
        f"{len(outcome.errors)} errors{cost}. Before that one client alone asked {plan.alone:,} queries, each twice: "
        f"the second finds the backbone's scores kept; then it sent batches of {BATCH} events.",
        "",
        "| request | count | p50 ms | p99 ms | longest ms |",
        "|---|---:|---:|---:|---:|",
        *rows,
        "",
        f"Resident memory of the service: {outcome.memory[0] / mib:.0f} MiB when the load began, on average "
        f"{second / mib:.0f} MiB in its second quarter and {last / mib:.0f} MiB in the last "
        f"({last / max(second, 1) - 1:+.1%}).",
    ]
    if outcome.errors:
        text += ["", "The first errors:", "", *(f"- {error}" for error in outcome.errors[:10])]
    return "\n".join(text) + "\n"


def record(outcome: Outcome, plan: Plan) -> Row:
    """The outcome as a row of the benchmarks; seconds: the median of all requests."""
    done = outcome.together
    second, last = outcome.quarters()
    figures = {
        "requests_per_second": len(done) / outcome.wall,
        "p99_seconds": percentile(done, 0.99),
        "errors": float(len(outcome.errors)),
        "processor_seconds_each": outcome.processor / len(done),
        "memory_growth": last / max(second, 1) - 1,
        "clients": float(plan.clients),
    }
    return Row(
        f"service, {plan.clients} clients",
        outcome.model["dataset"] or "",
        measure("cpu").as_dict(),
        outcome.busy,
        seconds=statistics.median(done),
        runs=len(done),
        peak_bytes=max(outcome.memory),
        note=f"{figures['requests_per_second']:.0f} requests a second, p99 {1e3 * figures['p99_seconds']:.0f} ms",
        agrees=not outcome.errors,
        figures=figures,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write")
    parser.add_argument("--records", type=Path, help="records of benchmarks, to which a row is added")
    parser.add_argument("--data-dir", type=Path, help="folder of the named data sets")
    for name in ("clients", "seconds", "events", "explain", "alone"):
        default = getattr(Plan, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"(default: {default:g})")
    given = parser.parse_args(arguments)
    plan = Plan(given.clients, given.seconds, given.events, given.explain, alone=given.alone)
    try:
        with serving(given.run, given.data_dir) as port:
            outcome = load(port, plan)
        given.out.write_text(report(outcome, plan), encoding="utf-8")
        if given.records is not None:
            keep_rows(given.records, [record(outcome, plan)])
    except (BridgeMemError, OSError) as problem:
        sys.stderr.write(f"bridgemem: {problem}\n")
        return 2
    return 1 if outcome.errors else 0


if __name__ == "__main__":
    sys.exit(main())

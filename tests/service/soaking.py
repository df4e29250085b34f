"""A service in a process of its own under posts, forecasts, backups, reloads, a refresh and a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from bridgemem.cli.running import service_of
from bridgemem.client import Client, ServiceError
from bridgemem.errors import BridgeMemError
from bridgemem.live.eventstore import EventStore
from bridgemem.live.storefile import digest
from bridgemem.live.versions import promote
from commands import bridgemem

LONG = 60.0  # seconds from which on a soak has time for a comparison of two models
SERVE = "from bridgemem.cli.main import main; main()"


@dataclass
class Seen:
    """What clients saw. wrong: requests that failed while nobody was killed; refused: bad runs that were."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    forecasts: int = 0
    versions: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    backups: list[tuple[Path, str]] = field(default_factory=list)
    refused: int = 0
    renewed: str = ""
    memory: list[float] = field(default_factory=list)
    restarted: int = 0  # how many measurements of memory were made before the kill


class Soak:
    """A service over a link, with clients that never stop."""

    def __init__(self, home: Path, seconds: float) -> None:
        self.pause = 0.05 if seconds < LONG else 0.2  # of a client between two requests
        self.home, self.link, self.store = home, home / "current", home / "events.duckdb"
        self.seen, self.ended, self.down = Seen(), threading.Event(), threading.Event()

    @contextmanager
    def service(self) -> Iterator[subprocess.Popen[str]]:
        with (self.home / "log.jsonl").open("a") as log:
            words = ["serve", str(self.link), "--store", str(self.store), "--port", "0", "--watch", "0.2"]
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", SERVE, *words, "--log-format", "json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            assert process.stdout is not None
            assert "http://" in process.stdout.readline()
            self.down.clear()
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                process.communicate(timeout=60)

    @property
    def client(self) -> Client:
        found = service_of(self.store)
        assert found is not None
        found.retries = 0
        return found

    def keep_on(self, work: Callable[[Client, int], None]) -> threading.Thread:
        """Do something again and again; what fails while the service is down does not count."""

        def loop() -> None:
            number = 0
            while not self.ended.is_set():
                number += 1
                try:
                    work(self.client, number)
                except (ServiceError, AssertionError, BridgeMemError) as problem:
                    if not self.down.is_set():
                        self.seen.wrong.append(f"{work.__name__}: {problem}")
                    time.sleep(0.05)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        return thread

    def post(self, client: Client, number: int) -> None:
        day = date(2024, 2, 10) + timedelta(days=number // 40)
        key = f"{number}"
        events = [("Arvan", "visit", "Kel", str(day)), ("Kel", "visit", f"New {number % 50}", str(day))]
        client.add(events, source="soak", key=key)
        self.seen.acknowledged[key] = 2
        time.sleep(self.pause)

    def ask(self, client: Client, number: int) -> None:
        found = client.forecast("Arvan", "visit", top=3)
        self.seen.forecasts += 1
        self.seen.versions.add(found["model_version"].split("@")[0])
        time.sleep(self.pause)

    def wait_for(self, version: str) -> None:
        until = time.monotonic() + 60
        while version not in self.seen.versions and time.monotonic() < until:
            time.sleep(0.05)

    def back_up(self) -> None:
        to = self.home / f"backup-{len(self.seen.backups)}.duckdb"
        self.seen.backups.append((to, self.client.backup(to)["digest"]))

    def measure(self) -> None:
        """Note the service's resident memory in bytes."""
        noted = json.loads(self.store.with_name(f"{self.store.name}.service.json").read_text())
        pages = Path(f"/proc/{noted['process']}/statm").read_text().split()[1]
        self.seen.memory.append(float(pages) * os.sysconf("SC_PAGE_SIZE"))


def soak(home: Path, seconds: float, every: float) -> Seen:
    """Two reloads, a bad one, a refresh and a kill in the middle; a backup every few seconds.

    A long one also compares a newer model with the one that is served, and serves it if it is not worse.

    home: holds the run `mine`, which the link `current` points to.
    """
    work = Soak(home, seconds)

    def for_a_while(share: float) -> None:
        until = time.monotonic() + seconds * share
        while True:
            work.back_up()
            work.measure()
            time.sleep(min(every, max(0.0, until - time.monotonic())))
            if time.monotonic() >= until:
                return

    with work.service() as process:
        threads = [work.keep_on(work.post), work.keep_on(work.ask)]
        for_a_while(0.3)
        made = bridgemem("refresh", home / "mine", "--store", work.store, "--out", home / "mine-2", "-q")
        assert made.code == 0, made.err
        promote(home / "mine-2", work.link)
        work.wait_for("mine-2")
        for_a_while(0.2)
        (home / "bad").mkdir()
        (home / "bad" / "config.toml").write_text((home / "mine" / "config.toml").read_text())
        work.link.unlink()
        work.link.symlink_to("bad")
        try:
            work.client.reload()
        except ServiceError as problem:
            work.seen.refused += problem.status == 409
        promote(home / "mine", work.link)
        for_a_while(0.2)
        if seconds >= LONG:
            found = bridgemem("refresh", work.link, "--store", work.store, "--compare", "--window", "2", "-q", "--json")
            work.seen.renewed = found.json["outcome"]
        work.seen.restarted = len(work.seen.memory)
        work.down.set()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with work.service():
        for_a_while(0.3)
        work.ended.set()
        for thread in threads:
            thread.join(60)
    return work.seen


def check_backups(seen: Seen, final: EventStore) -> None:
    """Every backup opens, is what the service said of it, and holds the store as it was: its first batches, whole."""
    stored = final.stored()
    for path, expected in seen.backups:
        with EventStore(path, create=False, read_only=True) as copy:
            with copy.reading() as cursor:
                assert digest(cursor) == expected, path
            until = copy.snapshot().batches
            assert copy.stored() == [event for event in stored if event.batch <= until], path

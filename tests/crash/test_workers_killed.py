"""Worker processes end with the process that started them, also when that one is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

pytest_plugins = ("small_runs",)
WAIT = 60  # seconds for what takes a few


def workers_of(process: int) -> list[int]:
    """The processes that a pool of another one started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == process and b"spawn_main" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def runs(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline, done
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("asked", ["forecast", "evaluate"])
def test_workers_end_when_the_process_that_waits_for_them_is_killed(asked: str, run_copy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bridgemem", asked, str(run_copy), "--workers", "2"]
    if asked == "forecast":
        queries = tmp_path / "q.csv"
        queries.write_text("subject,relation,object\n" + "Arvan,visit,\n" * 20_000)
        command += ["--queries", str(queries), "--out", str(tmp_path / "a.csv")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: process.poll() is None and len(workers_of(process.pid)) == 2)
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(runs, workers)))

"""A Spark standalone cluster on the loopback device: a master and workers, each its own process."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NEEDS_EXTRA = "needs the extra 'spark', which `make` installs where it finds Java"
PATIENCE = 90  # seconds for a daemon to come up on a busy machine


JAVA = 17  # the oldest that Spark runs on


def why_not() -> str | None:
    """Why no cluster can be started here, or None."""
    version = java_version()
    if version is None:
        return f"needs Java {JAVA} or later"
    if version < JAVA:
        return f"needs Java {JAVA} or later, and the one found here is {version}"
    if importlib.util.find_spec("pyspark") is None:
        return NEEDS_EXTRA
    if sys.platform == "win32":
        return "needs process groups"
    return None


def java_version() -> int | None:
    """The main version of the Java that Spark would start, or None where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    try:
        said = subprocess.run([java or "java", "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # Java 8 calls itself 1.8
    return int(found[1]) if found else None


# half of the seconds of a start are spent on compiling code that runs once
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # a killed worker is not waited for
    "spark.shuffle.io.retryWait": "200ms",
}


@dataclass
class Cluster:
    """A running master and its workers; each leads a session of processes, which its executors belong to."""

    home: Path
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        return self.processes[1:]

    def start(self, name: str, kind: str, *arguments: str) -> Path:
        """Start a daemon on a port of the system's choice; gives its log."""
        import pyspark

        spark_home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_LOCAL_DIRS": str(self.home / f"{name}-scratch"),
            "SPARK_WORKER_DIR": str(self.home / name),
        }
        at = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = self.home / f"{name}.log"
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *at, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=self.home,
                    start_new_session=True,
                )
            )
        return log

    def start_master(self) -> None:
        self.url = self._said(self.start("master", "master.Master"), r"Starting Spark master at (\S+)")

    def start_workers(self, count: int) -> None:
        """Start workers of one core each, all at once."""
        size = ("--cores", "1", "--memory", "1g", self.url)
        logs = [self.start(f"worker-{len(self.processes)}", "worker.Worker", *size) for _ in range(count)]
        for log in logs:
            self._said(log, r"(registered) with master")

    def _said(self, log: Path, pattern: str) -> str:
        """What a daemon's log says, as soon as it does."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and all(process.poll() is None for process in self.processes):
            if found := re.search(pattern, log.read_text(errors="replace")):
                return found.group(1)
            time.sleep(0.05)
        raise RuntimeError(f"{log.stem} did not come up:\n{log.read_text(errors='replace')[-2000:]}")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a daemon and its executors at once, as a machine that loses power does."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def running(home: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster that is gone when the block ends, whatever happened inside."""
    cluster = Cluster(home)
    try:
        cluster.start_master()
        cluster.start_workers(workers)
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            if process.poll() is None:
                cluster.kill(process)


def write_settings(folder: Path) -> Path:
    """A folder for SPARK_CONF_DIR that makes drivers and executors small and quick to start."""
    folder.mkdir()
    lines = [f"{name} {value}\n" for name, value in SETTINGS.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return folder

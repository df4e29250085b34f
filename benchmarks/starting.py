"""Rows of starting: how long a user waits for `import bridgemem` and for `bridgemem --help`."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.floors import Work
from benchmarks.harness import Measured, duration, timed

HELP = "import sys; sys.argv = ['bridgemem', '--help']; from bridgemem.cli.main import main; main()"


def importing(b: Bench) -> Measured:
    return _started("import bridgemem", 0.2)


def help_text(b: Bench) -> Measured:
    return _started(HELP, 0.3)


def _started(program: str, target: float) -> Measured:
    """A new interpreter that runs the program, next to one that does nothing."""

    def run(code: str) -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    _, timing = timed(lambda: run(program))
    _, empty = timed(lambda: run("pass"))
    within = "within" if timing.seconds <= target else "NOT within"
    note = f"python alone {duration(empty.seconds)}"
    return Measured(timing, Work(), agreement=f"{within} {target} s", note=note)

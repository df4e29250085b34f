"""A guard for the scan kernel: its passes over the data, and its instructions where valgrind can count them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from counting import Passes

from bridgemem.memory.scan import last_events

SOURCE = Path(__file__).resolve().parents[2] / "src"
K = 8
MOST_PASSES = 10
MOST_INSTRUCTIONS = 90  # for each of the K events of a row; 69 when it was written
ROWS = 80_000

# torch stays out: importing it under valgrind would take minutes, and the kernel only names its type.
# The two system calls mark for valgrind where the counting begins and ends.
PROGRAM = f"""
import os, sys, types
class Stub(types.ModuleType):
    def __getattr__(self, name):
        return type(name, (), {{}})
for name in ("torch", "torch.nn", "torch.nn.functional"):
    sys.modules[name] = Stub(name)
import numpy as np
from bridgemem.memory.scan import last_events, tie_bounds
def inputs(rows):
    pair, step = np.repeat(np.arange(rows // 8), 8), np.tile(np.arange(8), rows // 8)
    return *tie_bounds(pair, step), step, step, np.arange(1, {K} + 1), 65
last_events(*inputs(80))
asked = inputs({ROWS})
os.getppid()
position, lag, found = last_events(*asked)
os.getpgid(0)
assert found.sum() == {ROWS} // 8 * 28
"""


def kernel_passes(rows: int, window: int) -> Passes:
    """All that the kernel does for pairs of eight rows each."""
    passes = Passes()
    step = np.tile(np.arange(8), rows // 8)
    first = np.repeat(np.arange(0, rows, 8), 8)
    end = np.arange(rows)
    first, end, step, back = (passes.of(x) for x in (first, end, step, np.arange(1, K + 1)))
    _, _, found = last_events(first, end, step, step, back, window)
    assert np.asarray(found).sum() == rows // 8 * 28
    return passes


def test_the_kernel_goes_through_its_rows_a_few_times() -> None:
    passes = kernel_passes(800, window=65)
    assert 4 <= passes.calls.total() <= MOST_PASSES, passes.calls
    assert passes.calls["gather"] == 1, "the steps of the events are fetched once"


def test_the_kernel_is_linear_in_its_rows() -> None:
    small, large = kernel_passes(800, window=65), kernel_passes(3200, window=65)
    assert small.calls == large.calls, "no loop over rows or over K"
    assert large.elements == 4 * small.elements


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind, which counts instructions")
def test_the_kernel_takes_few_instructions(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    marks = ["--zero-before=getppid", "--dump-before=getpgid", f"--callgrind-out-file={counts}"]
    homes = [str(SOURCE), str(Path(np.__file__).parents[1])]
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", *marks, sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(homes), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counted = re.search(r"^totals: (\d+)", counts.with_name("counts.1").read_text(encoding="utf-8"), re.MULTILINE)
    assert counted is not None
    assert 5 <= int(counted[1]) / (ROWS * K) <= MOST_INSTRUCTIONS

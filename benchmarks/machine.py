"""The machine as it measures itself: matrix products, memory traffic, and the peaks of memory while something runs."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Machine:
    """A device in words, and what it reached here: matmul in FLOP/s of float32 input, bandwidth in bytes/s."""

    device: str
    threads: int
    matmul: float
    bandwidth: float
    python: str
    torch: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(device: str) -> str:
    if device.startswith("cuda"):
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"cpu {torch.get_num_threads()} threads"


def wait(device: str) -> None:
    """Until the device has done all it was told to."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: str = "cpu") -> float:
    """Wall time of one call."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def measure(device: str = "cpu", size: int | None = None, rounds: int = 5) -> Machine:
    """Rates of large, friendly operations: nothing on this device goes faster than these.

    size: rows of the square matrices; a copy moves 16 times as many bytes as one of them holds.
    """
    on_gpu = device.startswith("cuda")
    size = size or (8192 if on_gpu else 1536)
    a = torch.rand(size, size, device=device)
    target = torch.empty_like(a)
    source = torch.rand(16 * size * size, device=device)
    copy = torch.empty_like(source)

    def best(work: Callable[[], object]) -> float:
        work()
        return min(seconds_of(work, device) for _ in range(rounds))

    # float32 input at the fastest precision the device has for it: the stricter floor
    before = torch.get_float32_matmul_precision()
    try:
        products = []
        for precision in ("highest", "high") if on_gpu else ("highest",):
            torch.set_float32_matmul_precision(precision)
            products.append(best(lambda: torch.mm(a, a, out=target)))
    finally:
        torch.set_float32_matmul_precision(before)
    moved = 2 * source.nbytes
    return Machine(
        describe(device),
        torch.get_num_threads(),
        2 * size**3 / min(products),
        moved / best(lambda: copy.copy_(source)),
        platform.python_version(),
        torch.__version__,
    )


class Peak:
    """Bytes in use while the block ran: `highest` of all, `added` to what was there before.

    On a CPU that is resident memory; where the system cannot start the count anew, the highest is that of the whole
    process. On a GPU it is what torch has allocated there.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.highest = self.added = 0

    def __enter__(self) -> Peak:
        if self.device.startswith("cuda"):
            wait(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        else:
            _reset_resident_peak()
            self.before = _resident("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self.device.startswith("cuda"):
            wait(self.device)
            self.highest = torch.cuda.max_memory_allocated(self.device)
        else:
            self.highest = _resident("VmHWM")
        self.added = max(self.highest - self.before, 0)


def _reset_resident_peak() -> None:
    try:
        CLEAR_REFS.write_text("5")
    except OSError:  # not Linux, or not allowed: the peak of the whole process stands
        return


def _resident(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    try:
        lines = STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        import resource

        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def load_average() -> float:
    """How busy the machine was on top of us, as the system tells it; NaN where it does not."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")

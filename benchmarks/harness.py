"""The harness: what is measured of an operation, its time limit, its row in the table and its record."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.floors import Work
from benchmarks.machine import Machine, Peak, load_average, wait
from benchmarks.references import Sampled

Result = TypeVar("Result")

SHORT, ROUNDS = 2.0, 5  # seconds below which a call is a warm-up, and repeated; how often it is


class TimeLimitError(Exception):
    """A row ran past its limit."""


@dataclass(frozen=True)
class Timing:
    """Seconds of the best run, how many runs there were after the warm-up, and the memory they took."""

    seconds: float
    runs: int
    first: float
    peak: int
    added: int


@dataclass(frozen=True)
class Measured:
    """What a row found: the product's and the reference's cost, the work it comes down to, and whether both agree."""

    timing: Timing
    work: Work
    reference: Sampled | None = None
    reference_added: int = 0
    agreement: str = ""
    agrees: bool = True
    paper: float | None = None
    note: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table as it is kept: one operation on one data set on one machine."""

    operation: str
    dataset: str
    machine: dict[str, Any]
    load: float
    seconds: float | None = None
    runs: int = 0
    first_seconds: float | None = None
    reference_seconds: float | None = None
    reference_share: float = 1.0
    paper_seconds: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    floor_seconds: float | None = None
    peak_bytes: int = 0
    added_bytes: int = 0
    reference_added_bytes: int = 0
    agreement: str = ""
    agrees: bool = True
    note: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.operation, self.dataset, self.machine["device"]

    @property
    def failed(self) -> bool:
        return self.error is not None or not self.agrees


def timed(work: Callable[[], Result], device: str = "cpu", rounds: int = ROUNDS) -> tuple[Result, Timing]:
    """Run once; if that was short it was the warm-up, and the best of some more runs counts."""
    with Peak(device) as peak:
        runs: list[float] = []
        results: list[Result] = []
        while not runs or (runs[0] < SHORT and len(runs) <= rounds):
            results.clear()  # two results at once would count twice
            wait(device)
            began = time.perf_counter()
            results.append(work())
            wait(device)
            runs.append(time.perf_counter() - began)
    counted = runs[1:] or runs
    return results[0], Timing(min(counted), len(counted), runs[0], peak.highest, peak.added)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitError after that many seconds; 0, or a system without such an alarm, has no limit."""
    if not seconds or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeLimitError(f"it ran past its limit of {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_row(operation: str, dataset: str, measure: Callable[[], Measured], machine: Machine, limit: float) -> Row:
    """Measure one row; whatever goes wrong becomes a failed row with its reason, so that the others still run."""
    about: dict[str, Any] = {
        "operation": operation,
        "dataset": dataset,
        "machine": machine.as_dict(),
        "load": load_average(),
    }
    try:
        with time_limit(limit):
            found = measure()
    except Exception as problem:
        return Row(**about, error=f"{type(problem).__name__}: {problem}".splitlines()[0], agrees=False)
    reference, floor = found.reference, found.work.seconds(machine) or None
    seconds = found.timing.seconds
    ratios = {"floor": seconds / floor} if floor else {}
    if reference is not None:
        ratios["reference"] = reference.seconds / seconds
    if found.paper is not None:
        ratios["paper"] = found.paper / seconds
    return Row(
        **about,
        seconds=seconds,
        runs=found.timing.runs,
        first_seconds=found.timing.first,
        reference_seconds=None if reference is None else reference.seconds,
        reference_share=1.0 if reference is None else reference.share,
        paper_seconds=found.paper,
        flops=found.work.flops,
        bytes=found.work.bytes,
        floor_seconds=floor,
        peak_bytes=found.timing.peak,
        added_bytes=found.timing.added,
        reference_added_bytes=found.reference_added,
        agreement=found.agreement,
        agrees=found.agrees,
        note=found.note,
        counts=found.counts,
        ratios=ratios,
        figures=found.figures,
    )


# --- the table -------------------------------------------------------------------------------------------------------

HEADER = (
    "data",
    "operation",
    "seconds",
    "plain",
    "faster",
    "paper",
    "faster",
    "floor",
    "above it",
    "MB added",
    "plain MB",
    "agreement",
)


def cells(row: Row) -> list[str]:
    """A row of the table as text; an extrapolated figure carries a tilde."""
    if row.seconds is None:
        return [row.dataset, row.operation, "FAILED", *[""] * 8, row.error or ""]
    about = "~" if row.reference_share < 1 else ""
    notes = ["" if row.agrees else "DISAGREES", row.agreement, row.note]
    return [
        row.dataset,
        row.operation,
        duration(row.seconds),
        about + duration(row.reference_seconds),
        _times(row.ratios.get("reference"), about),
        duration(row.paper_seconds),
        _times(row.ratios.get("paper")),
        duration(row.floor_seconds),
        _times(row.ratios.get("floor")),
        f"{row.added_bytes / 1e6:,.0f}",
        f"{row.reference_added_bytes / 1e6:,.0f}" if row.reference_seconds is not None else "",
        "; ".join(note for note in notes if note),
    ]


def duration(seconds: float | None) -> str:
    """A time with the unit that suits it."""
    if seconds is None:
        return ""
    for scale, unit, least in ((1, "s", 1.0), (1e3, "ms", 1e-3), (1e6, "us", 0.0)):
        if seconds >= least:
            value = seconds * scale
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return ""


def _times(ratio: float | None, about: str = "") -> str:
    if ratio is None:
        return ""
    return f"{about}{ratio:,.0f}x" if ratio >= 10 else f"{about}{ratio:.2g}x"


def print_rows(rows: Sequence[Row], header: bool = True) -> None:
    """Plain text, in columns that are wide enough for what is usual."""
    widths = (11, 30, 9, 10, 8, 9, 8, 9, 8, 9, 9, 0)
    for line in [HEADER] * header + [cells(row) for row in rows]:
        columns = [
            text.ljust(width) if at < 2 or not width else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(columns).rstrip(), flush=True)


# --- records ---------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    return [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]


def keep_rows(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Write rows to a file of one JSON a line, in place of older ones of the same operation, data and device."""
    kept = {row.key: row for row in [*read_rows(path), *rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(row)) for row in kept.values()]
    aside = path.with_name(f".{path.name}.new")
    aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    aside.replace(path)
    return list(kept.values())


def complain(text: str) -> None:
    print(text, file=sys.stderr)

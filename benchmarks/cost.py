"""Cost: a figure of MRR against minutes, our rows next to what others published of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Row, complain

OPERATION = "default model, fit"
MINUTES, MIDDLE = (0.2, 1000), 20  # of the axis


@dataclass(frozen=True)
class Published:
    """A point of others: time-aware MRR on test and seconds in all, as their authors report both."""

    name: str
    machine: str
    mrr: float
    seconds: float


RECURRENCY, COUNTING = "recurrency baseline", "CountTRuCoLa"
XEON, EPYC = "16 cores", "20 threads"
# Recurrency baseline: arXiv 2404.16726, corrected figures of its repository, tuning included, on a Xeon 4208.
# CountTRuCoLa: arXiv 2509.09474, total, on an EPYC 9474F. ECHO: its repository (ECHO-TKG), about 50 minutes a run.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "icews14": (
        Published(RECURRENCY, XEON, 0.374, 728),
        Published(COUNTING, EPYC, 0.44, 825),
        Published("ECHO", "A100", 0.4743, 3000),
    ),
    "icews18": (
        Published(RECURRENCY, XEON, 0.287, 6758),
        Published(COUNTING, EPYC, 0.328, 21149),
        Published("ECHO", "A100", 0.3654, 3000),
    ),
    "wiki": (Published(RECURRENCY, XEON, 0.814, 9215), Published(COUNTING, EPYC, 0.827, 143)),
    "yago": (Published(RECURRENCY, XEON, 0.909, 778), Published(COUNTING, EPYC, 0.909, 191)),
}


def own_rows(rows: Sequence[Row]) -> list[Row]:
    """The fits of the default model that were measured on a CPU, with a data set each."""
    return [row for row in rows if row.operation == OPERATION and row.seconds and row.machine["device"][:3] == "cpu"]


WIDEST_TITLE = 5.4  # inches


def draw(rows: Sequence[Row], path: Path) -> bool:
    """One panel a data set, minutes on a logarithmic axis; whether it was drawn."""
    own = own_rows(rows)
    if not own:
        return False
    try:
        import matplotlib as mpl
    except ImportError:
        complain("benchmarks: no figure was drawn, since matplotlib is missing; it is in the extra 'plots'.")
        return False
    mpl.use("Agg")
    # a fixed salt and no date keep the file the same as long as the figures are
    mpl.rcParams.update({"svg.hashsalt": "bridgemem", "font.size": 8})
    from matplotlib import pyplot as plt

    cores = sorted({row.machine["threads"] for row in own})
    chart, grid = plt.subplots(
        1, len(own), figsize=(max(3.1 * len(own), WIDEST_TITLE), 2.8), layout="constrained", squeeze=False
    )
    for axes, row in zip(grid[0], own, strict=True):
        minutes, mrr = (row.seconds or 0.0) / 60, row.figures["mrr"]
        axes.scatter([minutes], [mrr], color="#C44E52", zorder=3)
        axes.annotate("default model", (minutes, mrr), (0, -12), textcoords="offset points", color="#C44E52")
        for place, point in enumerate(PUBLISHED.get(row.dataset, ())):
            at, label = (point.seconds / 60, point.mrr), f"{point.name}\n({point.machine})"
            axes.scatter(*at, color="#4E79A7", zorder=3)
            # names stand above and below in turn, and inside the panel
            style = {"ha": "right" if at[0] > MIDDLE else "left", "fontsize": 7}
            axes.annotate(label, at, (0, -19 if place % 2 else 5), textcoords="offset points", **style)
        axes.set(title=row.dataset, xscale="log", xlabel="minutes", xlim=MINUTES)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.margins(y=0.3)
        axes.grid(color="#DDDDDD", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0][0].set_ylabel("MRR, time-aware, test")
    named = " and ".join(map(str, cores))
    chart.suptitle(f"MRR against minutes to the fitted model: ours on {named} cores, others as published", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, metadata={"Date": None})
    plt.close(chart)
    return True

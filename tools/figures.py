"""Figures: the gains as bars, drawn with matplotlib from records."""

from __future__ import annotations

from pathlib import Path

from bridgemem.errors import BridgeMemError, DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import HEADINGS, SHORT, place
from bridgemem.ranking.metrics import METRICS
from bridgemem.studies.report import selected, standard

BACKBONE = "cenet"  # the paper's own
COLOURS = {"mrr": "#4E79A7", "hits1": "#76B7B2", "hits3": "#F28E2B", "hits10": "#B07AA1"}


def gains_figure(records: list[Record], filter_name: str) -> list[tuple[str, dict[str, list[float]]]]:
    """Per data set the mean gain and interval of each metric over the residual's seeds: what the bars show."""
    found: dict[str, list[Record]] = {}
    for r in selected(standard(records), filter_name):
        if r.method == "bridgemem" and r.backbone == BACKBONE and all(m in r.gain for m in METRICS):
            found.setdefault(place(r.dataset, r.split), []).append(r)
    return [
        (name, {m: [sum(r.gain[m][i] for r in group) / len(group) for i in range(3)] for m in METRICS})
        for name, group in sorted(found.items())
    ]


def draw_gains(records: list[Record], filter_name: str, stem: Path) -> list[Path]:
    """The bar chart of the gains as SVG and PNG next to each other; returns the files."""
    groups = gains_figure(records, filter_name)
    if not groups:
        raise DataError(f"no record of bridgemem on {BACKBONE} under the {filter_name} filter: nothing to draw.")
    try:
        import matplotlib as mpl
    except ImportError:
        raise BridgeMemError("drawing needs matplotlib: install bridgemem with its extra 'plots'.") from None
    mpl.use("Agg")
    # a fixed salt and no date keep the file the same as long as the figures are
    mpl.rcParams.update({"svg.hashsalt": "bridgemem", "font.size": 9})
    from matplotlib import pyplot as plt

    chart, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    width = 0.2
    for i, metric in enumerate(METRICS):
        values = [gains[metric] for _, gains in groups]
        at = [g + (i - 1.5) * width for g in range(len(groups))]
        low = [v[0] - v[1] for v in values]
        high = [v[2] - v[0] for v in values]
        heights = [v[0] for v in values]
        axes.bar(at, heights, width * 0.92, color=COLOURS[metric], label=HEADINGS[metric])
        axes.errorbar(at, heights, [low, high], fmt="none", ecolor="#30343B", elinewidth=0.8, capsize=2)
    axes.axhline(0, color="#30343B", linewidth=0.8)
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    axes.set_ylabel(f"gain over {BACKBONE}")
    axes.set_title(
        f"Gain of the residual, {SHORT[filter_name]} filter (bars: mean of seeds; whiskers: 95 %)", fontsize=9
    )
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=4, frameon=False, loc="upper right")
    axes.margins(y=0.18)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    chart.savefig(files[0], metadata={"Date": None})
    chart.savefig(files[1], dpi=160, metadata={"Software": None})
    plt.close(chart)
    return files

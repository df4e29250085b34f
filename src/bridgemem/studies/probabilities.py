"""Tables of calibrated probabilities and of how far they were right."""

from __future__ import annotations

from pathlib import Path

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table, fitted_here, place
from bridgemem.residuals.selection import SELECTION_FILTERS

CALIBRATION = "calibration:"


def single_step(records: list[Record]) -> list[Record]:
    """The records of queries about one step, which all other tables are made of."""
    return [r for r in records if r.horizon == 1]


def _measured(records: list[Record]) -> list[Record]:
    """Records of single-step reliability, one a run and method, in the order of their names."""
    found = [r for r in records if r.method.startswith(CALIBRATION)]
    if not found:
        raise DataError(
            "no record of calibrated probabilities was found; `bridgemem report RUN --by calibration` adds them."
        )
    return sorted(found, key=lambda r: (r.dataset, r.split, r.backbone, r.method, r.selected_by or "", r.seed))


def _label(r: Record) -> str:
    how = f", chosen under the {r.selected_by} filter" if r.selected_by in SELECTION_FILTERS else ""
    name = r.method.removeprefix(CALIBRATION)
    what = r.backbone if name == "backbone" else f"{r.backbone} + {name}"
    return f"{place(r.dataset, r.split)}, {what}{how}{fitted_here(name, r.split)}"


def calibration_table(records: list[Record]) -> Table:
    """The two numbers of every calibration, and its expected calibration error."""
    cells = [
        [
            _label(r),
            str(r.seed),
            f"{r.queries:,}",
            f"{r.settings['temperature']:.3f}",
            f"{r.settings['floor']:.4f}",
            f"{r.settings['ece']:.4f}",
            f"{r.settings['ece_shown']:.4f}",
        ]
        for r in _measured(records)
    ]
    header = [
        "data set, method",
        "seed",
        "queries",
        "temperature",
        "floor",
        "ECE of the best",
        "ECE of the ten shown",
    ]
    note = (
        "Temperature and floor were fitted on validation. A probability is that of the partner, given that the event "
        "happens. ECE: how far the probability of a forecast lies from the share of its bin that came true, on average."
        " A forecast knows no filter: it is made by the learned residual that was fitted without one, or by the "
        "paper's as chosen under the time-aware filter; the other rows are ranked with, and never shown so."
    )
    return Table("Calibrated probabilities", header, cells, note)


def curve_tables(records: list[Record]) -> list[Table]:
    """The reliability curve of every method: of its best candidates by their probability, how many came true."""
    header = ["probability", "forecasts", "mean probability", "came true"]
    return [
        Table(
            f"Reliability of the best candidate: {_label(r)}, seed {r.seed}",
            header,
            [
                [
                    f"{b['low']:.0%} to {b['high']:.0%}",
                    f"{b['count']:,}",
                    f"{b['probability']:.1%}",
                    f"{b['share']:.1%}",
                ]
                for b in r.settings["curve"]
            ],
        )
        for r in _measured(records)
    ]


def draw_curves(records: list[Record], path: Path) -> Path | None:
    """The reliability curves as one SVG picture; None where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    from bridgemem.storage.whole import whole_file

    # a fixed salt and no date keep the file the same as long as the figures are
    with mpl.rc_context({"svg.hashsalt": "bridgemem", "font.size": 9}):
        figure_ = Figure(figsize=(6, 4.2), layout="constrained")
        axes = figure_.add_subplot()
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
        for r in _measured(records):
            bins = r.settings["curve"]
            label = axes.plot(
                [b["probability"] for b in bins], [b["share"] for b in bins], marker="o", markersize=3, label=_label(r)
            )
            label[0].set_linewidth(1)
        axes.set_xlabel("probability of the best candidate")
        axes.set_ylabel("share that came true")
        axes.spines[["top", "right"]].set_visible(False)
        legend = axes.legend(frameon=False, fontsize=7)
        for text in legend.get_texts():
            text.set_parse_math(False)
        with whole_file(path) as aside:
            figure_.savefig(aside, format="svg", metadata={"Date": None})
    return path

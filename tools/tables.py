"""The tables that this repository publishes of its own records, beyond those of `bridgemem report`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from bridgemem.config import SAMPLED
from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import (
    CROSS_FITTED,
    HEADINGS,
    MAIN_METHODS,
    SHORT,
    Table,
    figure,
    fitted_here,
    interval,
    method_name,
    place,
)
from bridgemem.ranking.metrics import METRICS
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.studies.report import (
    BACKBONE_SEED,
    SHORT_BACKBONES,
    Row,
    backbone_seed,
    order,
    paper,
    paper_cells,
    rows,
    selected,
    standard,
)

# forecasters whose rows in the paper are time-aware figures, for scale
FOR_SCALE = ("tirgn", "hri")


def both_filters(records: Iterable[Record]) -> dict[str, dict[str, Row]]:
    """The standard rows under the two filters that choices are made under, by their labels."""
    kept = standard(records)
    return {name: {row.label: row for row in rows(kept, name)} for name in ("static", "time")}


def main_table(records: list[Record]) -> Table:
    """Table 1: static and time-aware side by side, never in one column, the paper's figures next to the static ones."""
    both = both_filters(records)
    header = ["data set, method", "seeds"]
    header += [f"static {h}" for h in HEADINGS.values()] + ["static gain in MRR [95 %]"]
    header += [f"paper (static) {h}" for h in HEADINGS.values()]
    header += [f"time-aware {h}" for h in HEADINGS.values()] + ["time-aware gain in MRR [95 %]"]
    cells = []
    for label, row in both["static"].items():
        honest = both["time"].get(label)
        line = [label, str(row.seeds), *_figures(row), *paper_cells(row)]
        cells.append(line + (_figures(honest) if honest else [""] * 5))
    if not cells:
        raise DataError("no record of a whole split was found.")
    note = (
        "Means over the seeds; the gain is over the same backbone, with a paired bootstrap interval clustered by step. "
        "Each residual was chosen on validation under the filter of its column."
    )
    return Table("Backbones, and what the residual makes of them", header, cells, note)


def short_table(records: list[Record]) -> Table:
    """MRR alone, of few backbones and what is learned on them: what a reader of the README wants."""
    both = both_filters(records)
    cells = []
    for label, row in both["static"].items():
        if row.backbone not in SHORT_BACKBONES or (row.backbone, row.method) == ("recurrence", "bridgemem"):
            continue
        honest = both["time"].get(label)
        cells.append(
            [
                label,
                figure(row.mean["mrr"]),
                paper_cells(row)[0],
                f"{row.gain[0]:+.4f}" if row.gain else "",
                figure(honest.mean["mrr"]) if honest else "",
                interval(honest.gain) if honest and honest.gain else "",
            ]
        )
    header = [
        "data set, method",
        "static MRR",
        "paper (static)",
        "static gain",
        "time-aware MRR",
        "time-aware gain [95 %]",
    ]
    if not cells:
        raise DataError("no record of a whole split was found.")
    return Table("MRR", header, cells)


def _figures(row: Row) -> list[str]:
    return [*(figure(row.mean[m]) for m in METRICS), interval(row.gain) if row.gain else ""]


def spread_table(records: list[Record]) -> Table:
    """How far the figures move with the seed: of the backbone itself, and of the residual on one backbone."""
    cells = []
    for filter_name in ("static", "time"):
        found = [r for r in selected(records, filter_name) if r.history == "rolling"]
        names = sorted({(r.dataset, r.split, r.fingerprint) for r in found if r.backbone == "cenet"})
        for named in names:
            own = [r for r in found if (r.dataset, r.split, r.fingerprint) == named and r.backbone == "cenet"]
            base = [r.mrr for r in own if r.method == "backbone"]
            on_one = {
                f"{name} on one cenet{fitted_here(method, named[1])}": [
                    r.mrr
                    for r in own
                    if method_name(r.method, r.cross_fit) == name and backbone_seed(r) == BACKBONE_SEED
                ]
                for method, name in (*((m, m) for m in MAIN_METHODS[1:]), ("learned", CROSS_FITTED))
            }
            for what, values in {"cenet itself": base, **on_one}.items():
                if len(values) > 1:
                    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
                    extremes = f"{figure(min(values))} to {figure(max(values))}"
                    name = f"{place(*named[:2])}, {what}"
                    cells.append(
                        [name, SHORT[filter_name], str(len(values)), figure(mean), f"{deviation:.4f}", extremes]
                    )
    if not cells:
        raise DataError("no record of cenet under more than one seed was found.")
    header = ["data set, what", "filter", "seeds", "mean MRR", "standard deviation", "range"]
    return Table("Spread over seeds", header, cells)


SAMPLES = (SAMPLED.max_examples, 30_000)  # as the fits of records were made, the older ones on the larger


@dataclass(frozen=True)
class Cost:
    """What a benchmark measured of a fit: the seconds it was about, and whole numbers that go with them."""

    dataset: str
    device: str
    fit_seconds: float | None = None
    refit_seconds: float | None = None
    default_seconds: float | None = None  # of the default model, from files to a run
    settings: dict[str, Any] = field(default_factory=dict)


def efficiency_table(records: list[Record], measured: Sequence[Cost] = ()) -> Table:
    """Table 2: what fitting costs, on each kind of device, next to the paper's seconds on its own GPU."""
    groups: dict[str, list[Record | Cost]] = {}
    for cost in (cost for cost in measured if cost.default_seconds is None):
        groups.setdefault(cost.dataset, []).append(cost)
    for r in records:
        # a fit on a sample, as it is made next to the learned residual, is not what the paper timed
        sampled = r.settings.get("transitions") in SAMPLES
        if r.method == "bridgemem" and r.subset is None and r.fit_seconds is not None and not sampled:
            groups.setdefault(r.dataset, []).append(r)
    cells = []
    for dataset, found in sorted(groups.items()):
        printed = paper()["table2"].get(dataset)
        line = [dataset, *(_distinct(found, what) for what in ("parameters", "epochs", "transitions"))]
        for device in ("cuda", "cpu"):
            line += [_quickest(found, device, what) for what in ("fit_seconds", "refit_seconds")]
        cells.append(line + ([f"{value:,}" for value in printed] if printed else [""] * 4))
    if not cells:
        raise DataError("no record with the seconds of a fit was found.")
    devices = sorted({r.device for found in groups.values() for r in found})
    header = ["data set", "parameters", "epochs", "transitions"]
    header += ["GPU select+fit", "GPU refit", "CPU select+fit", "CPU refit"]
    header += ["paper epochs", "paper transitions", "paper select+fit", "paper refit"]
    note = (
        f"Seconds, the quickest of the runs and benchmarks on each device ({'; '.join(devices)}); the paper's on an "
        "NVIDIA H20."
    )
    return Table("What fitting costs", header, cells, note)


def _quickest(records: Sequence[Record | Cost], device: str, what: str) -> str:
    """The least seconds on a kind of device: sharing it only ever adds time, so they say most about the cost."""
    values = [getattr(r, what) for r in records if r.device.startswith(device)]
    known = [seconds for seconds in values if seconds is not None]
    return f"{min(known):.1f}" if known else ""


def _distinct(records: Sequence[Record | Cost], setting: str) -> str:
    """Every value that a whole-numbered setting has in some records, ascending; nothing where none has it."""
    return ", ".join(f"{value:,}" for value in sorted({r.settings.get(setting) or 0 for r in records} - {0}))


def learned_table(records: list[Record]) -> Table:
    """Wherever a residual was learned: the backbone, the paper's and the learned one, and the paper for scale."""
    both = both_filters(records)
    found = sorted({**both["static"], **both["time"]}.values(), key=order)
    wanted = {(row.dataset, row.split, row.backbone) for row in found if row.method in MAIN_METHODS[2:]}
    shown = [row for row in found if (row.dataset, row.split, row.backbone) in wanted]
    cells = []
    for (dataset, split), group in groupby(shown, key=lambda row: (row.dataset, row.split)):
        for label in (row.label for row in group):
            own = [both[name].get(label) for name in ("time", "static")]
            cells.append([label, seeds(own), *(cell for row in own for cell in _mrr_cells(row))])
        printed = paper()["table1"].get(dataset, {}) if split == "test" else {}
        for name in (name for name in FOR_SCALE if name in printed):
            cells.append([f"{dataset}, {name} in the paper", "", figure(printed[name][0]), "", "", ""])
    if not cells:
        raise DataError("no record of a learned residual was found.")
    header = [
        "data set, method",
        "seeds",
        "time-aware MRR",
        "time-aware gain [95 %]",
        "static MRR",
        "static gain [95 %]",
    ]
    note = (
        "Means over the seeds; the gain is over the same backbone alone, with a paired bootstrap interval clustered by "
        "step. Each residual was fitted and chosen on validation under the filter of its column. The paper's rows of "
        "TiRGN and HRI are time-aware figures."
    )
    return Table("The learned residual next to the paper's", header, cells, note)


def seeds(found: Iterable[Row | None]) -> str:
    """How many seeds some rows are means of: one number, if they agree."""
    return " / ".join(dict.fromkeys(str(row.seeds) for row in found if row))


def _mrr_cells(row: Row | None) -> list[str]:
    return [figure(row.mean["mrr"]), interval(row.gain) if row.gain else ""] if row else ["", ""]


def learned_cost_table(records: list[Record]) -> Table:
    """How large the learned residual is, how long it is fitted and how many seconds that takes on each device."""
    groups: dict[str, list[Record]] = {}
    for r in records:
        if (
            r.method in MAIN_METHODS[2:]
            and r.filter in SELECTION_FILTERS
            and r.as_chosen
            and r.subset is None
            and r.fit_seconds is not None
        ):
            crossed = ", cross-fitted" if r.cross_fit else ""
            groups.setdefault(f"{place(r.dataset, r.split)}, {r.backbone}{crossed}", []).append(r)
    if not groups:
        raise DataError("no record with the seconds of a learned fit was found.")
    cells = []
    for name, found in sorted(groups.items()):
        line = [name, _distinct(found, "parameters"), _distinct(found, "epochs")]
        cells.append(line + [_quickest(found, device, "fit_seconds") for device in ("cuda", "cpu")])
    devices = sorted({r.device for found in groups.values() for r in found})
    header = ["data set, backbone", "parameters", "epochs", "GPU seconds", "CPU seconds"]
    note = (
        "Of a fit under one filter, its share of reading the features with it; epochs of all seeds and filters, "
        f"seconds of the quickest ({'; '.join(devices)})."
    )
    return Table("What learning costs", header, cells, note)


def horizon_table(records: list[Record]) -> Table:
    """Queries about several steps at once, each residual as chosen under the time-aware filter and read under it."""
    found = [r for r in records if r.horizon > 1 and r.filter == "time" and r.as_chosen]
    if not found:
        raise DataError(
            "no record of several steps at once was found; `bridgemem evaluate RUN --horizon 7` makes them."
        )
    found.sort(key=lambda r: (r.dataset, r.split, r.backbone, r.horizon, r.method, r.seed))
    cells = []
    for _, group in groupby(found, key=lambda r: (r.dataset, r.split, r.backbone, r.horizon)):
        for r in group:
            name = r.backbone if r.method == "backbone" else f"{r.backbone} + {r.method}"
            name += fitted_here(r.method, r.split)
            line = [f"{place(r.dataset, r.split)}, {name}", str(r.horizon), str(r.seed), f"{r.queries:,}"]
            line += [str(r.settings.get("windows", "")), *(figure(getattr(r, m)) for m in METRICS)]
            line.append(interval(r.gain["mrr"]) if "mrr" in r.gain else "")
            cells.append([*line, f"{r.settings['ece']:.4f}" if "ece" in r.settings else ""])
    header = [
        "data set, method",
        "steps",
        "seed",
        "answers",
        "windows",
        *HEADINGS.values(),
        "gain in MRR [95 %]",
        "ECE",
    ]
    note = (
        "The split is cut into windows of that many steps; every answer of a window is asked once, from what was known "
        "before the window began, and ranked with the window's other answers taken out. The interval resamples whole "
        "windows. ECE is that of the best candidate's probability to come at least once in the window."
    )
    return Table("Several steps at once", header, cells, note)

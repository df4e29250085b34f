"""Small tables for the front page and the concept pages: one filter, few rows, data sets in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import SHORT, Table, figure
from bridgemem.studies.report import Row, rows, standard
from tools.ablations import ablation_table
from tools.tables import Cost

DATASETS = ("icews14", "icews18", "icews05-15", "gdelt-resplit", "wiki", "yago")
EXAMPLE = "icews14"  # the data set that concept pages show


@dataclass(frozen=True)
class Model:
    """A row of a small table: what a reader calls it, and which records it shows."""

    label: str
    backbone: str
    method: str = "backbone"
    cross_fitted: bool = False
    is_default: bool = False  # its fit is measured as a whole by python -m benchmarks.default


FRONT = (
    Model("RE-GCN, trained here", "regcn"),
    Model("TiRGN, trained here", "tirgn"),
    Model("CENET, trained here", "cenet"),
    Model("CENET + BridgeMem", "cenet", "bridgemem"),
    Model("CENET + learned residual", "cenet", "learned"),
    Model("**default**: counting + learned residual", "recurrence-typed", "learned", is_default=True),
    Model("`counting+stream` + learned residual", "counting+stream", "learned", cross_fitted=True),
    Model("`ensemble` + learned residual", "ensemble", "learned", cross_fitted=True),
    Model("ensembles chosen by hand + learned residual", "ensemble-by-hand", "learned", cross_fitted=True),
)
# what a reader may choose from, the quickest first
CHOICE = (
    Model("`recurrence` alone: repeat what happened", "recurrence"),
    Model("`recurrence-typed` alone: count typed events", "recurrence-typed"),
    *FRONT[5:7],
    Model("RE-GCN + learned residual", "regcn", "learned"),
    Model("TiRGN + learned residual", "tirgn", "learned"),
    *FRONT[7:],
)
UNDER_FILTERS = (
    Model("recurrence", "recurrence"),
    Model("recurrence-typed", "recurrence-typed"),
    Model("RE-GCN", "regcn"),
    Model("CENET", "cenet"),
    Model("CENET + BridgeMem", "cenet", "bridgemem"),
    Model("CENET + learned", "cenet", "learned"),
)
CORRECTED = {
    "cenet": "CENET",
    "regcn": "RE-GCN",
    "tirgn": "TiRGN",
    "csi": "CSI",
    "ensemble": "ensemble",
    "ensemble-by-hand": "ensemble, chosen by hand",
}
# the changes of the paper's residual that a concept page tells about
CHANGES = (
    "as selected: MRR",
    "no residual",
    "reader=count",
    "reader=neural",
    "pooling=mean",
    "direction=none",
    "bins=none",
    "k=1",
    "window=7",
    "history=frozen",
)


def _found(records: list[Record], filter_name: str) -> dict[tuple[str, str, str, bool], Row]:
    own = [r for r in standard(records) if r.horizon == 1]
    return {
        (row.dataset, row.backbone, row.method, bool(row.cross_fit)): row
        for row in rows(own, filter_name)
        if row.split == "test" and row.history == "rolling"
    }


def front_table(records: list[Record]) -> Table:
    """Time-aware MRR of what people know and of what is new here, data sets in columns."""
    found = _found(records, "time")
    cells = []
    for model in FRONT:
        own = [found.get((data, model.backbone, model.method, model.cross_fitted)) for data in DATASETS]
        if any(own):
            cells.append([model.label, *(figure(row.mean["mrr"]) if row else "" for row in own)])
    if not cells:
        raise DataError("no record of the models of the front page was found; `evaluate --records` makes them.")
    return Table("Time-aware MRR on test", ["time-aware MRR", *DATASETS], cells)


def filters_table(records: list[Record]) -> Table:
    """The same scores under each filter, on one data set."""
    names = ("raw", "time", "static")
    found = {name: _found(records, name) for name in names}
    cells = []
    for model in UNDER_FILTERS:
        own = [found[name].get((EXAMPLE, model.backbone, model.method, model.cross_fitted)) for name in names]
        if any(own):
            cells.append([model.label, *(figure(row.mean["mrr"]) if row else "" for row in own)])
    if not cells:
        raise DataError(f"no record of {EXAMPLE} was found.")
    return Table(f"MRR on {EXAMPLE} under each filter", [f"{EXAMPLE}, MRR", *(SHORT[name] for name in names)], cells)


def residuals_table(records: list[Record]) -> Table:
    """What the two residuals make of a few backbones, on one data set."""
    found = _found(records, "time")
    cells = []
    for backbone, label in CORRECTED.items():
        own = [found.get((EXAMPLE, backbone, method, False)) for method in ("backbone", "bridgemem", "learned")]
        if any(own):
            cells.append([label, *(figure(row.mean["mrr"]) if row else "" for row in own)])
    if not cells:
        raise DataError(f"no record of {EXAMPLE} was found.")
    header = [f"{EXAMPLE}, time-aware MRR", "alone", "+ BridgeMem", "+ learned"]
    return Table("What the residuals add", header, cells)


def changes_table(records: list[Record]) -> Table:
    """The ablations that a concept page tells about."""
    whole = ablation_table(records, "time")
    kept = [row for label in CHANGES for row in whole.rows if row[0] == label]
    return Table("Ablations in short", whole.header, kept, whole.note)


def choice_table(records: list[Record], costs: Sequence[Cost] = ()) -> Table:
    """Which model when: minutes to train and fit, and MRR, on the devices that were recorded."""
    found = _found(records, "time")
    cells = []
    for model in CHOICE:
        own = [found.get((data, model.backbone, model.method, model.cross_fitted)) for data in DATASETS[:3]]
        if any(own):
            minutes = _minutes(records, model, costs)
            cells.append([model.label, minutes, *(figure(row.mean["mrr"]) if row else "" for row in own)])
    if not cells:
        raise DataError("no record of a model to choose from was found.")
    header = ["model", f"minutes on {EXAMPLE}", *(f"MRR {data}" for data in DATASETS[:3])]
    note = (
        "Time-aware MRR on test. Minutes are those of training the backbone once and of fitting the residual, without "
        "the trainings on earlier events that cross-fitting adds; GPU is one NVIDIA H200, CPU two cores. A blank was "
        "not recorded."
    )
    return Table("Which model when", header, cells, note)


def _minutes(records: list[Record], model: Model, costs: Sequence[Cost]) -> str:
    """What training and fitting took together, where both were recorded on one kind of device."""
    for cost in costs:
        if model.is_default and cost.dataset == EXAMPLE and cost.default_seconds is not None:
            return _words(cost.default_seconds, _kind(cost.device))
    own = [r for r in records if (r.dataset, r.backbone) == (EXAMPLE, model.backbone) and r.subset is None]
    trained = {
        _kind(str(r.settings.get("train_device") or r.device)): float(seconds)
        for r in own
        if (seconds := r.settings.get("train_seconds")) is not None
    }
    fits = [r for r in own if r.method == model.method and bool(r.cross_fit) == model.cross_fitted]
    fitted: dict[str, float] = {}
    for r in fits:
        if r.fit_seconds is not None:
            kind = _kind(r.device)
            fitted[kind] = min(fitted.get(kind, r.fit_seconds), r.fit_seconds)
    if model.method == "backbone":
        fitted = dict.fromkeys(trained, 0.0)
    if both := [_words(trained[kind] + fitted[kind], kind) for kind in trained if kind in fitted]:
        return ", ".join(both)
    apart = [_words(seconds, kind) for found in (trained, fitted) for kind, seconds in list(found.items())[:1]]
    return " + ".join(apart) if len(apart) == 2 else ""


def _words(seconds: float, kind: str) -> str:
    return f"{seconds / 60:.1f} ({kind})" if seconds >= 6 else f"under 0.1 ({kind})"


def _kind(device: str) -> str:
    return "GPU" if device.startswith("cuda") else "CPU"

"""Transfer: every backbone alone and under both residuals, next to what was published of it and the paper's row."""

from __future__ import annotations

from typing import Any

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import CROSS_FITTED, MAIN_METHODS, SHORT, Table, figure, fitted_here, interval, place
from bridgemem.studies.report import Row, paper, rows, standard
from tools.tables import seeds

# one backbone on one split of a data set
Place = tuple[str, str, str]
# its rows by method and filter
Cell = tuple[str, str]
HEADER = [
    "data set, backbone",
    "time-aware",
    "published (time-aware)",
    "time-aware + BridgeMem, gain [95 %]",
    "time-aware + learned, gain [95 %]",
    "time-aware + learned, cross-fitted, gain [95 %]",
    "static",
    "static + BridgeMem, gain [95 %]",
    "static + learned, gain [95 %]",
    "static + learned, cross-fitted, gain [95 %]",
    "seeds",
    "training seconds",
    "parameters",
    "paper",
    "the paper's filter by its MRR (paper - ours)",
]


def backbones_table(records: list[Record]) -> Table:
    """MRR of every backbone with rolling history; a cell that was not measured stays empty."""
    rolling = standard(r for r in records if r.history == "rolling")
    found: dict[Place, dict[Cell, Row]] = {}
    for name in ("time", "static"):
        for row in rows(rolling, name):
            found.setdefault((row.dataset, row.split, row.backbone), {})[row.name, name] = row
    if not found:
        raise DataError("no record of a backbone with rolling history was found.")
    costs, shown = _training(rolling), _places(found)
    cells = [_line(where, found.get(where, {}), costs.get((where[0], where[2]), {})) for where in shown]
    note = (
        "MRR, means over the residuals' seeds on one training of the backbone; a gain is over the backbone alone. "
        "Cross-fitted is learned from the end of train too, scored by a backbone trained on what came before it. "
        "Empty cells were not measured. RE-GCN and TiRGN choose their epoch on validation, where the residuals are "
        "chosen and learned too; the epochs of CyGNet and EST and the weights of CSI were settled there as well. "
        "Seconds of training are those of the run, which shared its device with others. The last column names the "
        "filter under which the backbone's MRR is nearer to the "
        f"paper's, and says how far it is from it.{_protocols(shown)}"
    )
    return Table("Every backbone alone, with BridgeMem, and with the learned residual", HEADER, cells, note)


def _places(found: dict[Place, dict[Cell, Row]]) -> list[Place]:
    """What was measured, and its gaps: where the paper has a figure of a backbone that was measured elsewhere.

    By data set, in the paper's order, the training-free ones that it does not have at the end.
    """
    splits, everywhere = {where[:2] for where in found}, {where[2] for where in found}
    gaps = {where for s in splits for b in everywhere if _paper_mrr(where := (*s, b)) is not None}
    order = list(paper()["table1"]["icews14"])
    return sorted(found.keys() | gaps, key=lambda p: (*p[:2], order.index(p[2]) if p[2] in order else len(order), p[2]))


def _line(where: Place, own: dict[Cell, Row], cost: dict[str, Any]) -> list[str]:
    dataset, split, backbone = where
    cited = _published(where)
    printed = _paper_mrr(where)
    residuals = {f: [own.get((method, f)) for method in (*MAIN_METHODS[1:], CROSS_FITTED)] for f in ("time", "static")}
    alone = {f: own.get(("backbone", f)) for f in ("time", "static")}
    return [
        f"{place(dataset, split)}, {backbone}",
        _mrr(alone["time"]),
        figure(cited["mrr"]) if cited else "",
        *map(_mrr, residuals["time"]),
        _mrr(alone["static"]),
        *map(_mrr, residuals["static"]),
        seeds(row for found in residuals.values() for row in found),
        _seconds(cost),
        f"{cost['train_parameters']:,}" if "train_parameters" in cost else "",
        "" if printed is None else figure(printed),
        _nearer(printed, alone),
    ]


def _mrr(row: Row | None) -> str:
    if row is None:
        return ""
    gain = f", {interval(row.gain)}" if row.gain else ""
    return f"{figure(row.mean['mrr'])}{gain}{fitted_here(row.method, row.split)}"


def _seconds(cost: dict[str, Any]) -> str:
    if "train_seconds" not in cost:
        return ""
    device = "GPU" if str(cost.get("train_device", "")).startswith("cuda") else "CPU"
    return f"{cost['train_seconds']:,.0f} ({device})"


def _nearer(printed: float | None, alone: dict[str, Row | None]) -> str:
    """The filter under which the backbone's MRR is nearer to the printed one, where both were measured."""
    distances = {name: printed - row.mean["mrr"] for name, row in alone.items() if row and printed is not None}
    if len(distances) < len(alone):
        return ""
    nearest = min(distances, key=lambda name: abs(distances[name]))
    return f"{SHORT[nearest]} ({distances[nearest]:+.4f})"


def _training(records: list[Record]) -> dict[tuple[str, str], dict[str, Any]]:
    """What training a backbone on a data set took, on a GPU where it was trained on one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for r in sorted(records, key=lambda r: not str(r.settings.get("train_device", "")).startswith("cuda")):
        if r.method == "backbone" and "train_seconds" in r.settings:
            found.setdefault((r.dataset, r.backbone), r.settings)
    return found


def _published(where: Place) -> dict[str, Any] | None:
    """The time-aware figure that was published; all of them are of test."""
    dataset, split, backbone = where
    return paper()["published"].get(dataset, {}).get(backbone) if split == "test" else None


def _paper_mrr(where: Place) -> float | None:
    """The MRR of a backbone in the paper's Table 1, or of CENET on validation in its text."""
    dataset, split, backbone = where
    if split == "test":
        figures = paper()["table1"].get(dataset, {}).get(backbone)
    else:
        figures = paper()["validation_mrr"].get(dataset) if backbone == "cenet" else None
    return figures[0] if figures else None


def _protocols(shown: list[Place]) -> str:
    """How the published figures that are shown were measured, in words, and whose are missing altogether."""
    said: dict[str, list[str]] = {}
    for where in shown:
        if cited := _published(where):
            said.setdefault(cited["protocol"], []).append(where[2])
    sentences = [f"{', '.join(dict.fromkeys(names))}: {protocol}" for protocol, names in said.items()]
    known = {backbone for figures in paper()["published"].values() for backbone in figures}
    of_paper = dict.fromkeys(
        backbone for dataset, _, backbone in shown if backbone in paper()["table1"].get(dataset, {})
    )
    unknown = [backbone for backbone in of_paper if backbone not in known]
    sentences += [f"{', '.join(unknown)}: no time-aware figure was found"] if unknown else []
    return f" Published figures, by how they were measured: {'; '.join(sentences)}." if sentences else ""

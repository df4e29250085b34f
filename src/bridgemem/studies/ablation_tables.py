"""Tables of ablations, made from their records."""

from __future__ import annotations

from collections.abc import Iterable

from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import FILTER_WORDS, Table, figure, interval, place
from bridgemem.studies.ablation import CHANGE
from bridgemem.studies.analysis import PART
from bridgemem.studies.counting import METHOD as COUNTING
from bridgemem.studies.counting import WHOLE

ABLATION = "ablation:"
LEARNED = "ablation:learned="
AS_SELECTED = {"bridgemem": "as selected", "learned": "as learned", "counting": "the whole backbone"}


def is_ablation(record: Record) -> bool:
    """Whether a record is of a residual or a backbone with one thing changed; parts of the queries are not."""
    return record.method.startswith(ABLATION) and not record.method.startswith(PART)


def ablated(record: Record) -> str:
    """What was changed: bridgemem, learned, or counting, the backbone."""
    kinds = {LEARNED: "learned", COUNTING: "counting"}
    return next((kind for start, kind in kinds.items() if record.method.startswith(start)), "bridgemem")


def ablation_tables(records: Iterable[Record], filters: Iterable[str]) -> list[Table]:
    """One table for each run, what was changed in it, and filter."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in records:
        if is_ablation(r) and r.selected_by in (None, r.filter):
            past = str(r.settings.get("backbone_seed", "")), r.device, r.fingerprint, str(r.seed)
            groups.setdefault((r.dataset, r.split, r.backbone, ablated(r), *past, r.filter), []).append(r)
    wanted = tuple(filters)
    return [_table(group) for group in groups.values() if group[0].filter in wanted]


def _table(records: list[Record]) -> Table:
    """Each change with its MRR, and its difference from the residual as selected."""
    first = records[0]
    kind = ablated(first)
    rows, whole = [], None
    for r in records:
        change = list(r.gain["mrr"]) if kind == "counting" else r.settings.get(CHANGE)
        if change is not None:
            whole = r.mrr - change[0]
        if r.method != WHOLE:
            label = r.method.removeprefix(ABLATION).removeprefix("learned=").removeprefix("counting=")
            rows.append([label, figure(r.mrr), interval(change) if change else ""])
    if whole is not None:
        rows.insert(0, [AS_SELECTED[kind], figure(whole), ""])
    what = "changes of counting" if kind == "counting" else f"changes of {kind} on {first.backbone}"
    title = f"{FILTER_WORDS[first.filter].capitalize()}, {place(first.dataset, first.split)}, {what}"
    return Table(title, ["change", "MRR", "difference [95 %]"], rows)

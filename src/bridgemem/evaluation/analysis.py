"""Analysis: tables of the ablations and of the parts of the queries, from records."""

from __future__ import annotations

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.report import BACKBONE_SEED, SHORT, Table, figure, interval

ABLATION = "ablation:"
PART = "ablation:part="


def _own(records: list[Record], filter_name: str, history: tuple[str, ...] = ("rolling",)) -> list[Record]:
    """Records of one filter on the backbone that all tables show, chosen under that filter, first residual seed."""
    return [
        r
        for r in records
        if r.filter == filter_name
        and r.selection == filter_name
        and r.history in history
        and r.settings.get("backbone_seed", BACKBONE_SEED) == BACKBONE_SEED
        and r.seed == BACKBONE_SEED
    ]


def ablation_table(records: list[Record], filter_name: str) -> Table:
    """What each change costs or wins: its MRR less that of the selected residual, by data set."""
    own = _own(records, filter_name, ("rolling", "frozen"))
    changed: dict[str, dict[str, Record]] = {}
    for r in own:
        if r.method.startswith(ABLATION) and not r.method.startswith(PART):
            changed.setdefault(r.method.removeprefix(ABLATION), {})[r.lock or ""] = r
    # a change belongs to the run whose locked selection it changed
    wanted = {lock for found in changed.values() for lock in found}
    chosen = {r.lock or "": r for r in own if r.method == "bridgemem" and r.history == "rolling" and r.lock in wanted}
    columns = sorted(chosen, key=lambda lock: (chosen[lock].dataset, chosen[lock].backbone))
    if not columns:
        raise DataError("no ablation was measured; `bridgemem ablate RUN --records FILE` does it.")
    header = ["change", *(f"{chosen[key].dataset}, {chosen[key].backbone}" for key in columns)]
    first = ["as selected: MRR", *(figure(chosen[key].mrr) for key in columns)]
    setting = ["as selected: lambda, gate, tau", *(_setting(chosen[key]) for key in columns)]
    cells = [first, setting, ["no residual", *(f"{-chosen[key].gain['mrr'][0]:+.4f}" for key in columns)]]
    for label, found in changed.items():
        differences = [f"{found[key].mrr - chosen[key].mrr:+.4f}" if key in found else "" for key in columns]
        cells.append([label, *differences])
    title = f"Ablations, {SHORT[filter_name]} filter: MRR less that of the selected residual"
    note = (
        "One thing changed at a time; lambda, gate and tau stay as validation chose them, unless they are the change."
    )
    return Table(title, header, cells, note)


def _setting(record: Record) -> str:
    s = record.settings
    return f"{s['lambda']:g}, {s['gate']}, {s['tau']:g}"


def parts_table(records: list[Record], by: str, filter_name: str) -> Table:
    """Where the gain comes from: the share of the queries in each part, and the gain there."""
    prefix = f"{PART}{by}: "
    own = [r for r in _own(records, filter_name) if r.method.startswith(prefix)]
    if not own:
        raise DataError(
            f"no record of parts by {by} was found; `bridgemem report RUN --by {by} --records FILE` adds them."
        )
    datasets = sorted({r.dataset for r in own})
    total = {d: sum(r.queries for r in own if r.dataset == d) for d in datasets}
    labels = list(dict.fromkeys(r.method.removeprefix(prefix) for r in own))
    header = [by]
    for d in datasets:
        header += [f"{d} share", "backbone MRR", "gain [95 %]"]
    cells = []
    for label in labels:
        line = [label]
        for d in datasets:
            found = next((r for r in own if r.dataset == d and r.method == prefix + label), None)
            line += _part_cells(found, total[d])
        cells.append(line)
    return Table(f"Gain in MRR by {by}, {SHORT[filter_name]} filter", header, cells)


def _part_cells(record: Record | None, total: int) -> list[str]:
    if record is None:
        return ["", "", ""]
    gain = record.gain["mrr"]
    return [f"{record.queries / total:.1%}", figure(record.mrr - gain[0]), interval(gain)]


def relations_table(records: list[Record], filter_name: str, dataset: str, most: int = 10, least: int = 50) -> Table:
    """The relations that gain most and least on one data set, among those with enough queries to say so."""
    prefix = f"{PART}relation: "
    own = [
        r
        for r in _own(records, filter_name)
        if r.method.startswith(prefix) and r.dataset == dataset and r.queries >= least
    ]
    if not own:
        raise DataError(f"no record of parts by relation was found for {dataset}.")
    own.sort(key=lambda r: -r.gain["mrr"][0])
    shown = own if len(own) <= 2 * most else own[:most] + own[-most:]
    cells = [
        [r.method.removeprefix(prefix), str(r.queries), figure(r.mrr - r.gain["mrr"][0]), interval(r.gain["mrr"])]
        for r in shown
    ]
    title = f"Relations of {dataset} that gain most and least, {SHORT[filter_name]} filter, at least {least} queries"
    return Table(title, ["relation", "queries", "backbone MRR", "gain [95 %]"], cells)

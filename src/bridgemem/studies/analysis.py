"""Analysis: tables of the parts of the queries and of what queries give away, from records."""

from __future__ import annotations

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import SHORT, Table, figure, interval, place
from bridgemem.studies.report import BACKBONE_SEED

PART = "ablation:part="
LEAKAGE = "leakage:"
Place = tuple[str, str, str]


def own_records(records: list[Record], filter_name: str) -> list[Record]:
    """Records of one filter, chosen under that filter, the run that all tables show first.

    That is seed 42 of the backbone and of the residual, rolling history, on a GPU; whatever there is comes after it.
    """

    def order(r: Record) -> tuple[bool | int, ...]:
        seed, rolling = r.settings.get("backbone_seed", BACKBONE_SEED), r.history == "rolling"
        standard = (seed == BACKBONE_SEED, rolling, r.seed == BACKBONE_SEED, r.device.startswith("cuda"))
        return (*(not wanted for wanted in standard), seed, r.seed)

    found = [r for r in records if r.filter == filter_name and r.selected_by and r.as_chosen and "mrr" in r.gain]
    return sorted(found, key=order)


def place_of(record: Record) -> Place:
    return record.dataset, record.split, record.backbone


def column_name(record: Record, backbone: bool) -> str:
    """What a column stands for; what all tables show goes without saying."""
    past = "" if record.history == "rolling" else f", {record.history} history"
    return place(record.dataset, record.split) + (f", {record.backbone}" if backbone else "") + past


def parts_table(records: list[Record], by: str, filter_name: str) -> Table:
    """Gain by stratum: the share of the queries in each part, and the gain there."""
    prefix = f"{PART}{by}: "
    runs = _parts_of_runs(records, prefix, filter_name)
    if not runs:
        raise DataError(
            f"no record of parts by {by} was found; `bridgemem report RUN --by {by} --records FILE` adds them."
        )
    several = len({backbone for *_, backbone in runs}) > 1
    shown = {r.method for own in runs.values() for r in own}
    header, lines = [by], {r.method: [r.method.removeprefix(prefix)] for r in records if r.method in shown}
    for own in runs.values():
        header += [f"{column_name(own[0], several)} share", "backbone MRR", "gain [95 %]"]
        parts, total = {r.method: r for r in own}, sum(r.queries for r in own)
        for method, line in lines.items():
            line += _part_cells(parts.get(method), total)
    cells = list(lines.values())
    return Table(f"Gain in MRR by {by}, {SHORT[filter_name]} filter", header, cells)


def _parts_of_runs(records: list[Record], prefix: str, filter_name: str) -> dict[Place, list[Record]]:
    """The parts of one run on each data set, split and backbone, so that they are parts of the same queries."""
    found: dict[Place, dict[tuple[object, ...], dict[str | None, list[Record]]]] = {}
    for r in own_records(records, filter_name):
        if r.method.startswith(prefix):
            run = (r.history, r.seed, r.settings.get("backbone_seed"), r.device)
            found.setdefault(place_of(r), {}).setdefault(run, {}).setdefault(r.lock, []).append(r)
    firsts = {name: next(iter(runs.values())) for name, runs in sorted(found.items())}
    # a run that was fitted again may have left parts that it no longer has
    return {name: max(locks.values(), key=lambda own: sum(r.queries for r in own)) for name, locks in firsts.items()}


def _part_cells(record: Record | None, total: int) -> list[str]:
    if record is None:
        return ["", "", ""]
    gain = record.gain["mrr"]
    return [f"{record.queries / total:.1%}", figure(record.mrr - gain[0]), interval(gain)]


def relations_table(records: list[Record], filter_name: str, dataset: str, most: int = 10, least: int = 50) -> Table:
    """The relations that gain most and least on one data set, among those with enough queries to say so."""
    prefix = f"{PART}relation: "
    runs = _parts_of_runs([r for r in records if r.dataset == dataset], prefix, filter_name)
    if not runs:
        raise DataError(
            f"no record of parts by relation was found for {dataset}; `bridgemem report RUN --by relation` makes them."
        )
    # test first; CENET first, by its letter
    first = runs[min(runs, key=lambda name: (name[1] != "test", name))]
    own = sorted((r for r in first if r.queries >= least), key=lambda r: -r.gain["mrr"][0])
    if not own:
        raise DataError(f"no relation of {dataset} has {least} queries or more; choose a smaller number.")
    shown = own if len(own) <= 2 * most else own[:most] + own[-most:]
    cells = [
        [r.method.removeprefix(prefix), str(r.queries), figure(r.mrr - r.gain["mrr"][0]), interval(r.gain["mrr"])]
        for r in shown
    ]
    what = column_name(own[0], backbone=len(runs) > 1)
    title = f"Relations of {what} that gain most and least, {SHORT[filter_name]} filter, at least {least} queries"
    return Table(title, ["relation", "queries", "backbone MRR", "gain [95 %]"], cells)


def leakage_table(records: list[Record]) -> Table:
    """What reading the other queries of a step adds to a backbone, by data set and filter."""
    found: dict[tuple[str, ...], dict[str, Record]] = {}
    for name in ("time", "static"):
        for r in (r for r in own_records(records, name) if r.method.startswith(LEAKAGE)):
            found.setdefault((*place_of(r), name), {}).setdefault(r.method.removeprefix(LEAKAGE), r)
    if not found:
        raise DataError("no reading of the queries was measured; run `bridgemem leakage DATA --records FILE`.")
    header = ["data set, backbone, filter", "MRR from the past alone"]
    for words in ("the pass", "the step"):
        header += [f"+ the other queries of {words}", "gain [95 %]", "weight", "answers that are asked something"]
    cells = []
    # the time-aware filter first
    for where in sorted(found, key=lambda where: (where[:3], where[3] != "time")):
        read = found[where]
        first = next(iter(read.values()))
        line = [f"{column_name(first, backbone=True)}, {SHORT[where[3]]}", figure(first.mrr - first.gain["mrr"][0])]
        cells.append(line + [cell for reading in ("pass", "step") for cell in _reading_cells(read.get(reading))])
    note = (
        "No forecasts: what is asked at t is not known before t. A table of ratios was counted on the end of train, as "
        "many steps as validation has; its weight was chosen on validation under the filter of the row, 0 being one of "
        "the choices. The gain is over the same backbone, with a paired bootstrap interval clustered by step."
    )
    return Table("Query-set leakage: what the other queries of a step give away", header, cells, note)


def _reading_cells(record: Record | None) -> list[str]:
    if record is None:
        return [""] * 4
    s = record.settings
    return [figure(record.mrr), interval(record.gain["mrr"]), f"{s['weight']:g}", f"{s['answers_asked']:.1%}"]

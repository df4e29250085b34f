"""Analysis: tables of the ablations, of the parts of the queries and of what queries give away, from records."""

from __future__ import annotations

from collections.abc import Callable

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import SHORT, Table, figure, interval, place
from bridgemem.studies.report import BACKBONE_SEED

ABLATION = "ablation:"
PART = "ablation:part="
LEARNED = "ablation:learned="
WITHOUT = "without "
LEAKAGE = "leakage:"
# the changes of the learned residual that lead up to the whole, each with what it adds to the one before it
STEPS = {
    "plain": "learned, plain: the pair, its transitions, the very fact, the candidate",
    "no unseen candidates, without common_neighbours": "+ how active the actor itself is",
    "no unseen candidates": "+ common neighbours of actor and candidate",
}
WHOLE = "+ unseen candidates: the whole"
Place = tuple[str, str, str]


def _own(records: list[Record], filter_name: str) -> list[Record]:
    """Records of one filter, chosen under that filter, the run that all tables show first.

    That is seed 42 of the backbone and of the residual, rolling history, on a GPU; whatever there is comes after it.
    """

    def order(r: Record) -> tuple[bool | int, ...]:
        seed, rolling = r.settings.get("backbone_seed", BACKBONE_SEED), r.history == "rolling"
        standard = (seed == BACKBONE_SEED, rolling, r.seed == BACKBONE_SEED, r.device.startswith("cuda"))
        return (*(not wanted for wanted in standard), seed, r.seed)

    found = [r for r in records if r.filter == filter_name and r.selected_by and r.as_chosen and "mrr" in r.gain]
    return sorted(found, key=order)


def _place(record: Record) -> Place:
    return record.dataset, record.split, record.backbone


def _name(record: Record, backbone: bool) -> str:
    """What a column stands for; what all tables show goes without saying."""
    past = "" if record.history == "rolling" else f", {record.history} history"
    return place(record.dataset, record.split) + (f", {record.backbone}" if backbone else "") + past


def ablation_table(records: list[Record], filter_name: str) -> Table:
    """What each change costs or wins: its MRR minus that of the selected residual, by data set."""
    own = _own(records, filter_name)
    changed: dict[str, dict[tuple[str | None, str], Record]] = {}
    # in the order they were measured in, which is that of their kinds
    labels = dict.fromkeys(r.method.removeprefix(ABLATION) for r in records if _is_change(r))
    for r in filter(_is_change, own):
        changed.setdefault(r.method.removeprefix(ABLATION), {}).setdefault((r.lock, r.split), r)
    # a change belongs to the run whose locked selection it changed, on the split that it was read on
    wanted = {key for found in changed.values() for key in found}
    runs: dict[Place, Record] = {}
    for r in own:
        if r.method == "bridgemem" and (r.lock, r.split) in wanted:
            runs.setdefault(_place(r), r)
    if not runs:
        raise DataError(
            f"no ablation was measured under the {SHORT[filter_name]} filter on a recorded run; "
            "`bridgemem ablate RUN --records FILE` does it."
        )
    columns = [runs[name] for name in sorted(runs)]
    header = ["change", *(_name(r, backbone=True) for r in columns)]
    first = ["as selected: MRR", *(figure(r.mrr) for r in columns)]
    setting = ["as selected: lambda, gate, tau", *(_setting(r) for r in columns)]
    cells = [first, setting, ["no residual", *(f"{-r.gain['mrr'][0]:+.4f}" for r in columns)]]
    for label in labels:
        found = [changed.get(label, {}).get((r.lock, r.split)) for r in columns]
        differences = [f"{c.mrr - r.mrr:+.4f}" if c else "" for c, r in zip(found, columns, strict=True)]
        if any(differences):
            cells.append([label, *differences])
    title = f"Ablations, {SHORT[filter_name]} filter: MRR minus that of the selected residual"
    note = (
        "One thing changed at a time; lambda, gate and tau stay as validation chose them, unless they are the change."
    )
    return Table(title, header, cells, note)


def _is_change(record: Record) -> bool:
    """Whether a record is a change of the paper's residual."""
    return record.method.startswith(ABLATION) and not record.method.startswith((PART, LEARNED))


def _setting(record: Record) -> str:
    s = record.settings
    return f"{s['lambda']:g}, {s['gate']}, {s['tau']:g}"


def steps_table(records: list[Record], filter_name: str) -> Table:
    """From the backbone to the whole learned residual: the MRR after each step, and what the step added."""
    runs = _learned_runs(records, filter_name, STEPS.__contains__)
    header, lines = ["step"], [[words] for words in ("backbone", *STEPS.values(), WHOLE)]
    for run, changes in runs:
        header += [f"{_name(run, backbone=True)} MRR", "gain of the step"]
        ladder = [run.mrr - run.gain["mrr"][0], *(changes[s].mrr if s in changes else None for s in STEPS), run.mrr]
        for line, before, after in zip(lines, [None, *ladder[:-1]], ladder, strict=True):
            line.append("" if after is None else figure(after))
            line.append("" if before is None or after is None else f"{after - before:+.4f}")
    title = f"The learned residual step by step, {SHORT[filter_name]} filter"
    note = "One seed; each step was fitted anew on validation, and its gain is over the one above it."
    return Table(title, header, lines, note)


def groups_table(records: list[Record], filter_name: str) -> Table:
    """What each group of features is worth to the learned residual: what it loses when it is fitted without it."""
    runs = _learned_runs(records, filter_name, lambda label: label.startswith(WITHOUT))
    measured = [r.method.removeprefix(LEARNED) for r in records if r.method.startswith(LEARNED + WITHOUT)]
    header, first = ["group left out"], ["none"]
    lines = {label: [label.removeprefix(WITHOUT)] for label in dict.fromkeys(measured)}
    for run, changes in runs:
        header += [f"{_name(run, backbone=True)} MRR", "difference"]
        first += [figure(run.mrr), ""]
        for label, line in lines.items():
            found = changes.get(label)
            line += [figure(found.mrr), f"{found.mrr - run.mrr:+.4f}"] if found else ["", ""]
    cells = [first, *(line for line in lines.values() if any(line[1:]))]
    title = f"What the learned residual loses without a group of features, {SHORT[filter_name]} filter"
    return Table(title, header, cells, "One seed; each was fitted anew on validation without the group.")


def _learned_runs(
    records: list[Record], filter_name: str, wanted: Callable[[str], bool]
) -> list[tuple[Record, dict[str, Record]]]:
    """On each data set, split and backbone one learned residual with those of its changes that are wanted."""
    own = _own(records, filter_name)
    changes: dict[tuple[object, ...], dict[str, Record]] = {}
    for r in own:
        label = r.method.removeprefix(LEARNED)
        if r.method.startswith(LEARNED) and wanted(label):
            changes.setdefault((r.lock, r.split, r.seed), {}).setdefault(label, r)
    # a change belongs to the run that it was fitted in: the same locked selection, split and seed
    runs: dict[Place, Record] = {}
    for r in own:
        if r.method == "learned" and r.subset is None and (r.lock, r.split, r.seed) in changes:
            runs.setdefault(_place(r), r)
    if not runs:
        raise DataError(
            f"no such change of a learned residual was measured under the {SHORT[filter_name]} filter on a recorded "
            "run; `bridgemem ablate RUN --residual learned --records FILE` does it."
        )
    return [(run, changes[run.lock, run.split, run.seed]) for _, run in sorted(runs.items(), key=lambda item: item[0])]


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
        header += [f"{_name(own[0], several)} share", "backbone MRR", "gain [95 %]"]
        parts, total = {r.method: r for r in own}, sum(r.queries for r in own)
        for method, line in lines.items():
            line += _part_cells(parts.get(method), total)
    cells = list(lines.values())
    return Table(f"Gain in MRR by {by}, {SHORT[filter_name]} filter", header, cells)


def _parts_of_runs(records: list[Record], prefix: str, filter_name: str) -> dict[Place, list[Record]]:
    """The parts of one run on each data set, split and backbone, so that they are parts of the same queries."""
    found: dict[Place, dict[tuple[object, ...], dict[str | None, list[Record]]]] = {}
    for r in _own(records, filter_name):
        if r.method.startswith(prefix):
            run = (r.history, r.seed, r.settings.get("backbone_seed"), r.device)
            found.setdefault(_place(r), {}).setdefault(run, {}).setdefault(r.lock, []).append(r)
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
        raise DataError(f"no record of parts by relation was found for {dataset}.")
    # test first; CENET first, by its letter
    first = runs[min(runs, key=lambda name: (name[1] != "test", name))]
    own = sorted((r for r in first if r.queries >= least), key=lambda r: -r.gain["mrr"][0])
    if not own:
        raise DataError(f"no relation of {dataset} has {least} queries or more.")
    shown = own if len(own) <= 2 * most else own[:most] + own[-most:]
    cells = [
        [r.method.removeprefix(prefix), str(r.queries), figure(r.mrr - r.gain["mrr"][0]), interval(r.gain["mrr"])]
        for r in shown
    ]
    what = _name(own[0], backbone=len(runs) > 1)
    title = f"Relations of {what} that gain most and least, {SHORT[filter_name]} filter, at least {least} queries"
    return Table(title, ["relation", "queries", "backbone MRR", "gain [95 %]"], cells)


def leakage_table(records: list[Record]) -> Table:
    """What reading the other queries of a step adds to a backbone, by data set and filter."""
    found: dict[tuple[str, ...], dict[str, Record]] = {}
    for name in ("time", "static"):
        for r in (r for r in _own(records, name) if r.method.startswith(LEAKAGE)):
            found.setdefault((*_place(r), name), {}).setdefault(r.method.removeprefix(LEAKAGE), r)
    if not found:
        raise DataError("no reading of the queries was measured; `bridgemem leakage DATA --records FILE` does it.")
    header = ["data set, backbone, filter", "MRR from the past alone"]
    for words in ("the pass", "the step"):
        header += [f"+ the other queries of {words}", "gain [95 %]", "weight", "answers that are asked something"]
    cells = []
    # the time-aware filter first
    for where in sorted(found, key=lambda where: (where[:3], where[3] != "time")):
        read = found[where]
        first = next(iter(read.values()))
        line = [f"{_name(first, backbone=True)}, {SHORT[where[3]]}", figure(first.mrr - first.gain["mrr"][0])]
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

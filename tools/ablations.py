"""Tables of the ablations that this repository publishes of its own records."""

from __future__ import annotations

from collections.abc import Callable

from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import SHORT, Table, figure
from bridgemem.studies.analysis import PART, Place, column_name, own_records, place_of
from bridgemem.studies.counting import METHOD as COUNTING
from bridgemem.studies.counting import WHOLE as WHOLE_COUNTING

ABLATION = "ablation:"
LEARNED = "ablation:learned="
WITHOUT = "without "
# the changes of the learned residual that lead up to the whole, each with what it adds to the one before it
STEPS = {
    "plain": "learned, plain: the pair, its transitions, the very fact, the candidate",
    "no unseen candidates, without common_neighbours": "+ how active the actor itself is",
    "no unseen candidates": "+ common neighbours of actor and candidate",
}
WHOLE = "+ unseen candidates: the whole"


def ablation_table(records: list[Record], filter_name: str) -> Table:
    """What each change costs or wins: its MRR minus that of the selected residual, by data set."""
    own = own_records(records, filter_name)
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
            runs.setdefault(place_of(r), r)
    if not runs:
        raise DataError(
            f"no ablation was measured under the {SHORT[filter_name]} filter on a recorded run; "
            "`bridgemem ablate RUN --records FILE` does it."
        )
    columns = [runs[name] for name in sorted(runs)]
    header = ["change", *(column_name(r, backbone=True) for r in columns)]
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
    return record.method.startswith(ABLATION) and not record.method.startswith((PART, LEARNED, COUNTING))


def _setting(record: Record) -> str:
    s = record.settings
    return f"{s['lambda']:g}, {s['gate']}, {s['tau']:g}"


def steps_table(records: list[Record], filter_name: str) -> Table:
    """From the backbone to the whole learned residual: the MRR after each step, and what the step added."""
    runs = _learned_runs(records, filter_name, STEPS.__contains__)
    header, lines = ["step"], [[words] for words in ("backbone", *STEPS.values(), WHOLE)]
    for run, changes in runs:
        header += [f"{column_name(run, backbone=True)} MRR", "gain of the step"]
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
        header += [f"{column_name(run, backbone=True)} MRR", "difference"]
        first += [figure(run.mrr), ""]
        for label, line in lines.items():
            found = changes.get(label)
            line += [figure(found.mrr), f"{found.mrr - run.mrr:+.4f}"] if found else ["", ""]
    cells = [first, *(line for line in lines.values() if any(line[1:]))]
    title = f"What the learned residual loses without a group of features, {SHORT[filter_name]} filter"
    return Table(title, header, cells, "One seed; each was fitted anew on validation without the group.")


def counting_table(records: list[Record]) -> Table:
    """What each part of the counting backbone is worth: the MRR of a change minus that of the whole, by data set."""
    found: dict[str, dict[str, Record]] = {}
    for r in records:
        if r.method.startswith(COUNTING) and r.filter == "time":
            found.setdefault(r.method.removeprefix(COUNTING), {})[r.dataset] = r
    whole = found.pop(WHOLE_COUNTING.removeprefix(COUNTING), {})
    if not whole:
        raise DataError("no change of the counting backbone was measured; run `bridgemem ablate RUN --counting`.")
    names = sorted(whole)
    cells = [["the whole: MRR", *(figure(whole[name].mrr) for name in names)]]
    cells += [
        [label, *(f"{own[n].gain['mrr'][0]:+.4f}" if n in own else "" for n in names)] for label, own in found.items()
    ]
    note = "Validation, time-aware filter, the backbone alone; one thing changed at a time, nothing chosen from it."
    return Table("The parts of the counting backbone", ["change", *names], cells, note)


def _learned_runs(
    records: list[Record], filter_name: str, wanted: Callable[[str], bool]
) -> list[tuple[Record, dict[str, Record]]]:
    """On each data set, split and backbone one learned residual with those of its changes that are wanted."""
    own = own_records(records, filter_name)
    changes: dict[tuple[object, ...], dict[str, Record]] = {}
    for r in own:
        label = r.method.removeprefix(LEARNED)
        if r.method.startswith(LEARNED) and wanted(label):
            changes.setdefault((r.lock, r.split, r.seed), {}).setdefault(label, r)
    # a change belongs to the run that it was fitted in: the same locked selection, split and seed
    runs: dict[Place, Record] = {}
    for r in own:
        if r.method == "learned" and r.subset is None and (r.lock, r.split, r.seed) in changes:
            runs.setdefault(place_of(r), r)
    if not runs:
        raise DataError(
            f"no such change of a learned residual was measured under the {SHORT[filter_name]} filter on a recorded "
            "run; run `bridgemem ablate RUN --residual learned --records FILE`."
        )
    return [(run, changes[run.lock, run.split, run.seed]) for _, run in sorted(runs.items(), key=lambda item: item[0])]

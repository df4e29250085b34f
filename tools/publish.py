"""Publish: every table and figure of results/, and the marked blocks of README and docs, written from the records.

python -m tools.publish --out results --fill README.md
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bridgemem.errors import BridgeMemError, DataError
from bridgemem.evaluation.records import Record, read_records
from bridgemem.evaluation.strata import PARTS
from bridgemem.evaluation.tables import Table
from bridgemem.evaluation.what import DIRECTIONS, WHAT
from bridgemem.evaluation.whether import OccurrenceRecord
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.storage.whole import whole_file
from bridgemem.studies.analysis import leakage_table, parts_table, relations_table
from bridgemem.studies.counting import METHOD as COUNTING
from bridgemem.studies.headroom import by_run, headroom_table
from bridgemem.studies.headroom import short_table as headroom_short
from bridgemem.studies.probabilities import calibration_table, single_step
from bridgemem.studies.remake import plan
from bridgemem.studies.report import filter_table, standard
from tools.ablations import ablation_table, counting_table, groups_table, steps_table
from tools.figures import draw_gains, gains_figure
from tools.heads import read_occurrence, what_over_data, whether_over_data
from tools.overview import changes_table, choice_table, filters_table, front_table, residuals_table
from tools.tables import (
    Cost,
    efficiency_table,
    horizon_table,
    learned_cost_table,
    learned_table,
    main_table,
    short_table,
    spread_table,
)
from tools.transfer import backbones_table

WRITTEN = "Written by `python -m tools.publish --out"  # stands at the head of every page
RELATIONS = "relations.md"
AHEAD = "what.md"  # where what and whether were measured
ERROR = "headroom.md"  # what the error is made of
BENCH = "bench.jsonl"  # the benchmarks' records, next to the pages
TIMED = {"select + fit": "fit_seconds", "final refit": "refit_seconds", "default model, fit": "default_seconds"}
# who fills a block: `table` is written from the records, `benchmark` by python -m benchmarks.report
OPEN = r"^<!-- (?P<kind>table|benchmark): (?P<name>[^>\n]+?) -->(?P<eol>\r?\n)"
MARK = re.compile(rf"(?P<open>{OPEN}).*?(?P<end>^<!-- end -->)", re.DOTALL | re.MULTILINE)


def tables(
    records: list[Record], costs: Sequence[Cost] = (), occurrence: Sequence[OccurrenceRecord] = ()
) -> dict[str, Callable[[], Table]]:
    """Every table that can be asked for by name."""
    every, records = records, single_step(records)
    known: dict[str, Callable[[], Table]] = {
        "main": partial(main_table, records),
        "short": partial(short_table, records),
        "efficiency": partial(efficiency_table, records, costs),
        "spread": partial(spread_table, records),
        "learned": partial(learned_table, records),
        "learned cost": partial(learned_cost_table, records),
        "backbones": partial(backbones_table, records),
        "calibration": partial(calibration_table, records),
        "horizons": partial(horizon_table, every),
        "leakage": partial(leakage_table, records),
        "front": partial(front_table, records),
        "which model": partial(choice_table, records, costs),
        "filters in short": partial(filters_table, records),
        "residuals in short": partial(residuals_table, records),
        "ablations in short": partial(changes_table, records),
        "not remade": lambda: plan(every).not_remade(),
        "other inputs": lambda: plan(every).other_inputs(),
    }
    if any(r.method.startswith(COUNTING) for r in records):
        known["parts of counting"] = partial(counting_table, records)
    if any(r.method.startswith(WHAT) for r in records):
        known |= {f"what, {direction}": partial(what_over_data, records, direction) for direction in DIRECTIONS}
    for (dataset, split, backbone), own in by_run(records).items():
        known["headroom in short"] = partial(headroom_short, records)
        known[f"headroom {dataset} {split} {backbone}"] = partial(headroom_table, own)
    if occurrence:
        known["whether"] = partial(whether_over_data, occurrence)
    for f in ("raw", *SELECTION_FILTERS):
        known[f"filter {f}"] = partial(filter_table, standard(records), f)
    for f in SELECTION_FILTERS:
        known[f"ablation {f}"] = partial(ablation_table, records, f)
        known[f"learned steps {f}"] = partial(steps_table, records, f)
        known[f"learned groups {f}"] = partial(groups_table, records, f)
        for by in PARTS:
            if by != "relation":
                known[f"{by} {f}"] = partial(parts_table, records, by, f)
        for dataset in sorted({r.dataset for r in records}):
            known[f"relation {f} {dataset}"] = partial(relations_table, records, f, dataset)
    return known


PAGES = {
    "main.md": ("Results", ["main", "spread"]),
    "filters.md": ("Every row under each filter", [f"filter {f}" for f in ("time", "static", "raw")]),
    "leakage.md": ("Query-set leakage", ["leakage"]),
    "backbones.md": ("Every backbone, with and without the residuals", ["backbones"]),
    "learned.md": (
        "The learned residual",
        [
            "learned",
            *(f"learned {what} {f}" for what in ("steps", "groups") for f in ("time", "static")),
            "learned cost",
        ],
    ),
    "probabilities.md": ("Probabilities and horizons", ["calibration", "horizons"]),
    "efficiency.md": ("What fitting costs", ["efficiency"]),
    "ablations.md": ("Ablations", ["ablation static", "ablation time"]),
    "remake.md": ("What `reproduce --all` leaves out, or makes from other inputs", ["not remade", "other inputs"]),
    "mechanism.md": (
        "Gain by stratum",
        [f"{by} {f}" for by in PARTS if by != "relation" for f in SELECTION_FILTERS],
    ),
}


def read_costs(path: Path) -> list[Cost]:
    """What the benchmarks measured of fitting, where they wrote anything."""
    if not path.is_file():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            Cost(row["dataset"], row["machine"]["device"], settings=row.get("counts", {}), **{TIMED[what]: seconds})
            for row in rows
            if (what := row["operation"]) in TIMED and (seconds := row["seconds"]) is not None
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path} is damaged; measure again with `make bench`, or take it away.") from None


def publish(records: list[Record], folder: Path) -> list[Path]:
    """Write all pages and figures into a folder; what was not measured is left out and said so on the page."""
    known, written = tables(records, read_costs(folder / BENCH), read_occurrence(folder)), []
    pages = dict(PAGES)
    datasets = sorted({r.dataset for r in records if r.method.startswith("ablation:part=relation")})
    pages[RELATIONS] = ("Relations", [f"relation {f} {d}" for d in datasets for f in SELECTION_FILTERS])
    if asked := [name for name in known if name.startswith("what, ") or name == "whether"]:
        pages[AHEAD] = ("What, whether and when", asked)
    if oracles := [name for name in known if name.startswith("headroom ")]:
        pages[ERROR] = ("What the error is made of", oracles)
    for name, (title, wanted) in pages.items():
        parts = [f"# {title}\n\n{WRITTEN} {folder.name}` from records.jsonl.\n"]
        parts += [_markdown(known[table]) for table in wanted] or ["Not measured.\n"]
        with whole_file(folder / name) as aside:
            aside.write_text("\n".join(parts), encoding="utf-8")
        written.append(folder / name)
    for f in SELECTION_FILTERS:
        if gains_figure(single_step(records), f):
            written += draw_gains(single_step(records), f, folder / f"gains-{f}")
    return written


def foreign(folder: Path) -> list[Path]:
    """The files that `publish` would replace in a folder and did not write; figures go with the pages next to them."""
    pages = [folder / name for name in (*PAGES, RELATIONS, AHEAD, ERROR) if (folder / name).exists()]
    own = {page for page in pages if page.is_file() and WRITTEN.encode() in page.read_bytes()}
    drawn = [] if own else [folder / f"gains-{f}.{kind}" for f in SELECTION_FILTERS for kind in ("svg", "png")]
    return [path for path in (*pages, *drawn) if path.exists() and path not in own]


def fill(records: list[Record], path: Path, costs: Sequence[Cost] = ()) -> int:
    """Renew every block that records fill, <!-- table: NAME --> ... <!-- end -->. Returns how many there are."""
    return fill_marked(path, tables(records, costs))


def fill_marked(path: Path, known: Mapping[str, Callable[[], Table]], kind: str = "table") -> int:
    """Renew every block of a document marked <!-- KIND: NAME --> ... <!-- end -->. Returns how many there are.

    The marks stand at the start of a line; everything outside of them stays as it is, to the byte, and so do the blocks
    of another kind.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path} cannot be read: {problem}.") from None

    def renew(match: re.Match[str]) -> str:
        if match["kind"] != kind:
            return match[0]
        name = match["name"].strip()
        if name not in known:
            raise DataError(f"{path} asks for a {kind} {name!r}; known are {', '.join(sorted(known))}.")
        # the document has its own headings
        lines = ["", *_markdown(known[name]).split("\n")[2:], ""]
        return match["open"] + match["eol"].join(lines) + match["end"]

    renewed, count = MARK.subn(renew, text)
    if count != len(re.findall(OPEN, text, re.MULTILINE)):
        raise DataError(f"{path} has a table mark without its <!-- end -->; close it.")
    if renewed != text:
        with whole_file(path) as aside:
            aside.write_bytes(renewed.encode("utf-8"))
    return sum(match["kind"] == kind for match in MARK.finditer(text))


def _markdown(make: Callable[[], Table]) -> str:
    try:
        return make().markdown()
    except DataError as problem:
        return f"### Not measured\n\nNot measured: {problem}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, and renew documents; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.publish", description="Write results/ from its records.")
    parser.add_argument("--records", type=Path, default=Path("results/records.jsonl"), help="the file of records")
    parser.add_argument("--out", type=Path, help="a folder for all pages and figures")
    parser.add_argument("--fill", type=Path, action="append", default=[], help="a document to renew; repeatable")
    parser.add_argument("--force", action="store_true", help="replace pages that something else wrote")
    given = parser.parse_args(arguments)
    try:
        if given.out is not None and not given.force and (kept := foreign(given.out)):
            raise DataError(f"{kept[0]} exists already; choose another folder, or use --force to replace it.")
        records = read_records(given.records)
        written = publish(records, given.out) if given.out is not None else []
        for document in given.fill:
            fill(records, document, read_costs(given.records.parent / BENCH))
            written.append(document)
    except BridgeMemError as problem:
        sys.stderr.write(f"publish: {problem}\n")
        return 2
    for path in written:
        print(f"Wrote {path}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

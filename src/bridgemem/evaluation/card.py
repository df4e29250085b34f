"""Card: the README.md of a run folder in the model hubs' format, written from the run's own files and nothing else."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgemem.backbones import BACKBONES
from bridgemem.errors import RunError, SettingsError
from bridgemem.evaluation.breakdown import KIND, Strata, Stratum
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import FILTER_WORDS, HEADINGS, Table, figure, fitted_here, interval
from bridgemem.events.datasets import CATALOG
from bridgemem.events.log import Clock
from bridgemem.events.packs import unpack
from bridgemem.forecasting.model import RunConfig
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.metrics import METRICS
from bridgemem.residuals.selection import SELECTION_FILTERS, Selection
from bridgemem.runs import UPDATES, Refreshed, Run
from bridgemem.storage.files import read_json
from bridgemem.storage.schema import as_settings
from bridgemem.storage.whole import whole_file

NAME = "README.md"
METHOD_WORDS = {
    "backbone": "backbone alone",
    "bridgemem": "with bridgemem",
    "learned": "with the learned one",
}
SPLIT_WORDS = {"test": "Test", "valid": "Validation"}


@dataclass(frozen=True)
class Data:
    """What a card says about the data: sizes, the time of a step, and under which terms it may be used."""

    entities: int
    relations: int
    sizes: dict[str, int]
    clock: Clock
    source: str
    licence: str

    @classmethod
    def of(cls, run: Run) -> Data:
        """From the data that the run carries, else from the catalogue of the named data sets."""
        config = run.config
        carried, named = (run.folder / "data.npz").is_file(), config.dataset in CATALOG
        if named and not carried and not config.data:
            known = CATALOG[config.dataset]
            sizes = {"train": known.train, "valid": known.valid} | ({"test": known.test} if known.test else {})
            return cls(known.entities, known.relations, sizes, known.clock, known.source, "other")
        dataset = unpack(run.folder / "data.npz") if carried or not config.data else run.dataset
        sizes = dataset.sizes
        own = "the simulated world of this program" if config.dataset == "world" else "events of the run's own maker"
        if named and run.refreshes():
            own = f"{CATALOG[config.dataset].source}, and what was added since"
        licence = "apache-2.0" if config.dataset == "world" else "other"
        events = dataset.events
        return cls(events.n_entities, events.n_relations, sizes, events.clock, own, licence)


def write_card(run: Run) -> Path:
    """Write the card of a run into its folder, in place of an older one."""
    path = run.folder / NAME
    text = card(run)
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
    return path


def card(run: Run) -> str:
    """The card: front matter for hubs, then what people need to know before they use the run."""
    try:
        return "\n\n".join(_parts(run)) + "\n"
    except (TypeError, ValueError, OverflowError):
        # the folder may come from anywhere, and a lock can be computed for any content
        raise RunError(f"{run.folder} holds a figure or a time that no fit writes; fit a new run.") from None


def _parts(run: Run) -> list[str]:
    data = Data.of(run)
    selections = {name: run.selection(name) for name in SELECTION_FILTERS}
    records = _records(run.folder / "metrics.json")
    return [
        _front_matter(run, data, records),
        f"# {_title(run)}",
        _opening(run),
        "## Data",
        _data(run, data),
        "## Selection",
        _selection(run, selections),
        "## Figures",
        _figures(records),
        *_strata(run),
        "## Limits",
        _limits(run, data, records, selections),
        "## How to load it",
        _loading(run),
    ]


def _title(run: Run) -> str:
    return f"BridgeMem on {plain(run.config.backbone)} for {plain(run.config.dataset)}"


def plain(name: str) -> str:
    """A name from outside as harmless text: printable, on one line, without anything that Markdown or HTML reads."""
    kept = "".join(c if c.isprintable() and c not in "`|<>[]*_\\&#!~" else " " for c in name)
    return " ".join(kept.split()) or "unnamed"


def _records(path: Path) -> list[Record]:
    """The measured rows of metrics.json; what is no record is left out."""
    splits = read_json(path) if path.is_file() else {}
    values = splits.values() if isinstance(splits, dict) else []
    rows = [row for part in values if isinstance(part, list) for row in part]
    return [record for row in rows if (record := _record(row)) is not None]


def _record(row: Any) -> Record | None:
    """A row as a record of a whole split, or None where it is none that a card can show."""
    try:
        record = as_settings(Record, row)
    except SettingsError:
        return None
    numbers = [getattr(record, metric) for metric in METRICS] + record.gain.get("mrr", [])
    known = (record.split in SPLIT_WORDS, record.filter in FILTERS, record.method in METHOD_WORDS)
    return record if all(map(math.isfinite, numbers)) and all(known) and record.subset is None else None


def _front_matter(run: Run, data: Data, records: list[Record]) -> str:
    """YAML that every value enters as JSON, which YAML contains, so that no name can break out of its place."""
    dataset = plain(run.config.dataset)
    values: dict[str, Any] = {"license": data.licence}
    if data.licence == "other":
        values["license_name"] = "terms-of-the-data"
    values |= {
        "library_name": "bridgemem",
        "pipeline_tag": "graph-ml",
        "tags": ["temporal-knowledge-graph", "event-forecasting", "link-prediction", "bridgemem"],
        "datasets": [re.sub(r"[^\w.-]+", "-", dataset)],
        "metrics": list(METRICS),
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    if records:
        lines += ["model-index:", f"- name: {json.dumps(_title(run), ensure_ascii=False)}", "  results:"]
        lines += [f"  - {json.dumps(one, ensure_ascii=False)}" for one in _results(dataset, records)]
    return "\n".join(["---", *lines, "---"])


def _results(dataset: str, records: list[Record]) -> list[dict[str, Any]]:
    """One entry for each split: every filter and method, the residuals as chosen under that very filter."""
    return [
        {
            "task": {"type": "graph-ml", "name": "temporal link prediction, extrapolation"},
            "dataset": {"type": re.sub(r"[^\w.-]+", "-", dataset), "name": dataset, "split": split},
            "metrics": [
                {
                    "type": metric,
                    "name": f"{HEADINGS[metric]}, {FILTER_WORDS[r.filter]}, {_method(r)}",
                    "value": round(getattr(r, metric), 6),
                }
                for f in FILTERS
                for r in _shown(records, split, f)
                for metric in METRICS
            ],
        }
        for split in _splits(records)
    ]


def _splits(records: list[Record]) -> list[str]:
    return [split for split in SPLIT_WORDS if any(r.split == split for r in records)]


def _shown(records: list[Record], split: str, filter_name: str) -> list[Record]:
    """The backbone and the residuals under one filter; raw shows the time-aware choice, having none of its own."""
    found = [r for r in records if (r.split, r.filter) == (split, filter_name) and r.as_chosen]
    return [r for method in METHOD_WORDS for r in found if r.method == method]


def _method(record: Record) -> str:
    crossed = ", cross-fitted" if record.cross_fit else ""
    return METHOD_WORDS[record.method] + crossed + fitted_here(record.method, record.split)


def _opening(run: Run) -> str:
    return (
        "Ranks every entity for (actor, relation, ?, t) from what happened before t. A frozen backbone, "
        f"`{plain(run.config.backbone)}`, gives log scores; a residual read from the earlier events between the very "
        "two parties is added to them.\n\n"
        "This card is written by the program from the files of the run; `bridgemem evaluate` writes it again."
    )


def _data(run: Run, data: Data) -> str:
    config = run.config
    starts = {"valid": config.valid_start, "test": config.test_start}
    if not all(data.clock.holds(step) for split, step in starts.items() if split in data.sizes):
        raise ValueError("a split begins outside of the calendar")
    rows = [
        [split, f"{size:,}", data.clock.label(starts[split]) if split in starts else "the beginning"]
        for split, size in data.sizes.items()
    ]
    carried = "The folder carries its data, in `data.npz`." if (run.folder / "data.npz").is_file() else ""
    if config.data and not carried:
        carried = f"The data is not in the folder: it was mined into one called `{plain(Path(config.data).name)}`."
    return "\n\n".join(
        filter(
            None,
            [
                f"`{plain(config.dataset)}`: {data.entities:,} entities, {data.relations:,} relations, fingerprint "
                f"`{plain(config.fingerprint)}`. Source: {data.source}. {carried}".rstrip(),
                "The split is by time, and a fact belongs to one part alone:",
                _table(["part", "events", "starts at"], rows),
                f"{_trained_on(config)} {_chosen_on(run)}",
                "Events that were added after the fit are in `updates.json`: forecasts read them, and no figure does."
                if (run.folder / UPDATES).is_file()
                else "",
                f"History is {config.history}: "
                + (
                    "a forecast for t may use every fact before t."
                    if config.history == "rolling"
                    else "a forecast uses no fact of the part that it is measured on."
                ),
            ],
        )
    )


def _trained_on(config: RunConfig) -> str:
    if config.backbone == "stored" or config.backbone not in BACKBONES:
        return "The scores come from a model outside of this program; that it read no later fact is its maker's word."
    once = (
        "Whatever weights the backbone has were trained on train; at most its number of epochs, or settings of single "
        "relations, were chosen on validation."
    )
    if not config.renewed:
        return once
    return (
        f"{once} It was trained once more, on train and validation but its later part: figures of validation are of "
        "the first training, those of test and forecasts of the mean of both."
    )


def _chosen_on(run: Run) -> str:
    notes = run.refreshes()
    if not notes:
        return (
            "Lambda, gate and tau were chosen on validation; what forecasts are made with was then fitted on train and "
            "validation. Test is opened only after the choice was locked."
        )
    return (
        "Lambda, gate and tau were chosen on the validation part of the run that was fitted. The run was refreshed "
        f"since, which chose nothing again: {'; '.join(map(_refresh, notes))}. What forecasts are made with was fitted "
        "on all of these events; `valid` is now everything since train, and no test part is left."
    )


def _refresh(note: Refreshed) -> str:
    """When a run was refreshed and over what."""
    counted = f"{note.added:,} events added, {note.retracted:,} taken back"
    return f"{plain(note.when)} over `{plain(note.store)}`, {counted}"


def _selection(run: Run, selections: dict[str, Selection]) -> str:
    rows = [
        [
            FILTER_WORDS[name],
            f"{s.choice.lam:g}",
            s.choice.gate,
            f"{s.choice.tau:g}",
            f"{figure(s.backbone.mrr)} -> {figure(s.chosen.mrr)}",
            f"`{s.lock()}`",
        ]
        for name, s in selections.items()
    ]
    header = ["chosen under", "lambda", "gate", "tau", "MRR on validation", "lock"]
    text = (
        "Of all choices that lower none of the four metrics on validation, the one with the best MRR. The record is "
        "locked by a digest before test is read.\n\n" + _table(header, rows)
    )
    if fits := run.fit_names():
        text += "\n\nBeside the paper's residual the run has a learned one, fitted without a filter."
        others = [FILTER_WORDS[name] for name in fits if name != "raw"]
        text += f" Under the {' and the '.join(others)} another one ranks." if others else ""
    return "\n\n".join([text, *_compared(run)])


def _compared(run: Run) -> list[str]:
    """How the two residuals did on the later part of validation, where that was measured, and which one is used."""
    found = {name: held for name in FILTERS if (held := run.held_out(name)) is not None}
    if not found:
        return []
    rows = [
        [
            FILTER_WORDS[name],
            f"{held.queries:,}",
            *map(figure, (held.backbone, held.bridgemem, held.learned)),
            interval(list(held.gain)),
            held.better,
        ]
        for name, held in found.items()
    ]
    header = ["filter", "queries", "backbone", "bridgemem", "learned", "learned over bridgemem", "better"]
    about = (
        "MRR on the later part of validation, with the learned residual as fitted on the part before. Forecasts use "
        f"the {run.preferred()} residual unless told otherwise: the learned one where its MRR is higher without a "
        "filter or under the time-aware one:"
    )
    return [about, _table(header, rows)]


def _figures(records: list[Record]) -> str:
    if not records:
        return "Not measured yet: `bridgemem evaluate RUN` reads test and writes the figures here."
    about = (
        "Each table is one filter, and only rows of one table can be compared: raw takes no other true answer out of "
        "the ranking, the time-aware filter those of the same step, the static filter those of any step. Ties get the "
        "mean rank. Gains are over the backbone on the same queries, with a 95 % interval over whole steps."
    )
    parts = [about]
    for split in _splits(records):
        for f in FILTERS:
            shown = _shown(records, split, f)
            if not shown:
                continue
            rows = [
                [
                    _method(r),
                    *(figure(getattr(r, metric)) for metric in METRICS),
                    interval(r.gain["mrr"]) if "mrr" in r.gain else "",
                ]
                for r in shown
            ]
            header = ["method", *HEADINGS.values(), "gain in MRR"]
            title = f"{SPLIT_WORDS[split]}, {FILTER_WORDS[f]}, {shown[0].queries:,} queries"
            parts.append(Table(title, header, rows).markdown().rstrip())
    return "\n\n".join(parts)


def _strata(run: Run) -> list[str]:
    """The figures by stratum under the time-aware filter, where they were found; what is no stratum is left out."""
    path = run.folder / f"metrics.{KIND}.json"
    kept = read_json(path) if path.is_file() else {}
    parts: list[str] = []
    for split in SPLIT_WORDS:
        try:
            found = as_settings(list[Stratum], (kept.get(split) if isinstance(kept, dict) else None) or [])
        except SettingsError:
            continue
        shown = [one for one in found if all(map(math.isfinite, one.gain))]
        if shown:
            parts.append(Strata(plain(run.config.dataset), split, tuple(shown)).table().markdown().rstrip())
    return ["## By stratum", *parts] if parts else []


def _limits(run: Run, data: Data, records: list[Record], selections: dict[str, Selection]) -> str:
    config = run.config
    points = [
        "It ranks the entities and relations of its data; it knows nothing of the world beyond them.",
        "Events are what sources reported and coded. What is over-reported is over-forecast.",
        "An explanation says which events moved the score, not that they caused anything. Do not decide about people "
        "by it alone.",
        f"One backbone (seed {config.backbone_seed}) and one residual (seed {config.seed}) were fitted; the intervals "
        "cover the choice of steps and not the choice of seeds.",
        "Figures are of one period. They say little about a time when other things happen.",
    ]
    if data.licence == "other":
        points.append("The program is Apache-2.0; what may be done with this run follows from the terms of its data.")
    if run.refreshes():
        points.append(
            "All figures are on what came since train, and some of that the choice, the probabilities and a learned "
            "residual were made on."
        )
    elif config.test_start < 0:
        points.append("The data has no test part: all figures are on validation, where the choice was made.")
    elif not any(r.split == "test" for r in records):
        points.append("The test part was not read yet.")
    off = [FILTER_WORDS[name] for name, s in selections.items() if s.choice.lam == 0]
    if off:
        points.append(
            f"The residual is switched off under the {' and the '.join(off)}: no choice kept every metric up."
        )
    return "\n".join(f"- {point}" for point in points)


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A table without a heading of its own."""
    return Table("", header, rows).markdown().split("\n", 2)[2].rstrip()


def _loading(run: Run) -> str:
    holds = "The folder holds TOML, JSON, text, Parquet, safetensors and npz; loading it runs none of its content."
    if run.config.history == "frozen":
        return f"Its figures are for frozen history, so it is measured and not asked: `bridgemem evaluate RUN`. {holds}"
    return (
        "```python\n"
        "from bridgemem import Forecaster\n\n"
        'model = Forecaster.load("RUN")  # this folder\n'
        "model.forecast(SUBJECT, RELATION, top=10)\n"
        "```\n\n"
        f"or `bridgemem forecast RUN --subject SUBJECT --relation RELATION`. {holds}"
    )

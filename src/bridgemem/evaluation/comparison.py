"""Comparison: the model next to rows that it has to beat, one row a method, under the filter that the field reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridgemem.evaluation.records import STEPS, Record
from bridgemem.evaluation.tables import FILTER_WORDS, HEADINGS, MAIN_METHODS, Table, figure, fitted_here, interval
from bridgemem.ranking.intervals import ROUGH, steps_note
from bridgemem.ranking.metrics import METRICS
from bridgemem.residuals.learning import HeldOut
from bridgemem.residuals.selection import Fitted

REPORTED = "time"  # the filter of the field's tables
GAIN = "gain of the model [95 %]"
BETTER = "the residual that ranked better on later validation"


def evaluation_table(records: Sequence[Record]) -> Table:
    """What the model has to beat, its backbone and every residual on it; last the model's gain in MRR over each."""
    shown = [r for r in records if r.filter == REPORTED and r.as_chosen]
    other = [r.method == "backbone" or r.backbone != records[0].backbone for r in shown]
    naive = [r for r, rival in zip(shown, other, strict=True) if rival and "model" in r.settings]
    own = sorted((r for r in shown if r not in naive), key=lambda r: MAIN_METHODS.index(r.method))
    first, model = records[0], preferred(records)
    gain = next((r.gain.get("mrr") for r in own if r.method == model), None)
    rows = []
    for r in [*naive, *own]:
        over = gain if r.method == "backbone" and r in own else r.settings.get("model_gain")
        figures = [figure(getattr(r, metric)) for metric in METRICS]
        rows.append([label(r) + fitted_here(r.method, r.split), *figures, interval(over) if over else ""])
    whole = first.settings.get("sampled_from")
    asked = f"{first.queries:,} queries" if whole is None else f"a sample of {first.queries:,} of {whole:,} queries"
    title = f"{first.dataset}, {part_of(first.split, first.settings)}, {asked}, {FILTER_WORDS[REPORTED]}"
    used = f"{first.backbone} + {model}"
    if len({r.method for r in own}) > 2:
        used += f", {BETTER}"
    elif any(r.method == model and r.settings.get("lambda") == 0 for r in own):
        used = f"{first.backbone} alone"
    rough = steps_note(first.settings.get(STEPS, ROUGH))
    return Table(title, ["method", *HEADINGS.values(), GAIN], rows, f"Forecasts use {used}. {rough}".rstrip())


def part_of(split: str, settings: Mapping[str, Any]) -> str:
    """What was measured: the split, or the part of it that the settings of a record name."""
    return f"{settings['from']} to {settings['to']}" if "from" in settings else split


def preferred(records: Sequence[Record]) -> str:
    """The residual that forecasts use, by the records of an evaluation."""
    return next((r.settings["model"] for r in records if "model" in r.settings), "bridgemem")


def label(record: Record) -> str:
    """A method as the rows of a table name it."""
    return record.backbone if record.method == "backbone" else f"{record.backbone} + {record.method}"


def selection_table(fitted: Fitted, backbone: str) -> Table:
    """The same for all of validation, where the paper's residual was fitted alone."""
    chosen = fitted.selections[REPORTED]
    rows = [[name, figure(naive.mrr), interval(list(naive.gain))] for name, naive in fitted.naive.items()]
    rows.append([backbone, figure(chosen.backbone.mrr), ""])
    if chosen.feasible:
        rows.append([f"{backbone} + bridgemem", figure(chosen.chosen.mrr), ""])
    model = f"{backbone} + bridgemem" if chosen.feasible else f"{backbone} alone"
    title = f"Validation, {chosen.queries:,} queries, {FILTER_WORDS[REPORTED]}"
    return Table(title, ["method", "MRR", GAIN], rows, f"Forecasts use {model}.")


def held_out_table(held: HeldOut, backbone: str, model: str) -> Table:
    """The same for later validation, as a fit measured it. model: the residual that forecasts use."""
    rows = [[name, figure(mrr), interval(gain)] for name, (mrr, *gain) in held.naive.items()]
    rows.append([backbone, figure(held.backbone), interval(list(held.over_backbone)) if held.over_backbone else ""])
    over = interval(list(held.gain)) if held.better == "learned" else ""
    rows.append([f"{backbone} + bridgemem", figure(held.bridgemem), over])
    rows.append([f"{backbone} + learned", figure(held.learned), ""])
    title = f"Later validation, {held.queries:,} queries, {FILTER_WORDS[REPORTED]}"
    return Table(title, ["method", "MRR", GAIN], rows, f"Forecasts use {backbone} + {model}, {BETTER}.")

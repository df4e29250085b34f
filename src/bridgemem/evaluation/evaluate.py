"""Evaluate: read a split once under locked selections, and write metrics, intervals, ranks and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from bridgemem.backbones import backbone_class
from bridgemem.backbones.naive import NAIVE, naive_backbones
from bridgemem.backbones.scorer import Scorer
from bridgemem.config import Count, check
from bridgemem.evaluation.breakdown import KIND, affordable, strata_of
from bridgemem.evaluation.card import write_card
from bridgemem.evaluation.records import STEPS, Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.forecasting.model import Parts
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import ROUGH, paired_gains
from bridgemem.residuals.method import Method
from bridgemem.residuals.scoring import Replay, Scoring, replay
from bridgemem.residuals.selection import SELECTION_FILTERS, Selection
from bridgemem.runs import Run
from bridgemem.storage.tables import ASKED, write_table
from bridgemem.training.devices import describe_device

SAMPLE_SEED = 0
# the columns of a table of ranks next to the ranks: what was asked, and what was known of it
KNOWN = (*ASKED, "uncertainty", "answer_support", "answer_lag", "triple_seen")


def evaluate(
    run: Parts,
    dataset: Dataset | None = None,
    split: str = "test",
    device: str = "cpu",
    progress: Progress = SILENT,
    cells: int | None = None,
    most: int | None = None,
) -> list[Record]:
    """Metrics of a fitted model on a split, under all filters, for the backbone and for each locked selection.

    Naive forecasters are measured in the same pass, for comparison: see `naive_backbones`.

    Test is opened only after every selection record was found intact. The figures of a run folder are written into it.
    cells: queries times entities in a batch. most: a sample of that many queries is read.
    """
    for name in SELECTION_FILTERS:
        run.selection(name)
    dataset = dataset or run.dataset
    if split == "valid":
        dataset = dataset.without_test()
    reading = read(run, dataset, split, queries_of(dataset, split, most), device, progress, cells)
    if isinstance(run, Run):
        return conclude(run, dataset, split, reading, device)
    return all_records(run, dataset, split, reading, device)


def queries_of(dataset: Dataset, split: str, most: int | None = None) -> Queries:
    """The queries of a split, or at most that many of them, drawn at random and always the same."""
    check("queries", most, Count | None)
    events = dataset.split(split)
    return Queries.of(events) if most is None else Queries.sampled(events, most, SAMPLE_SEED)


def all_records(run: Parts, dataset: Dataset, split: str, reading: Reading, device: str = "cpu") -> list[Record]:
    """The records of a reading, those of naive forecasters last."""
    selections = {name: run.selection(name) for name in SELECTION_FILTERS}
    records = records_of(run, dataset, split, reading, selections, device)
    records += _naive_records(run, dataset, split, reading, device)
    steps = len(np.unique(reading.replayed.queries.step.numpy()))
    if steps < ROUGH:
        records = [replace(one, settings={**one.settings, STEPS: steps}) for one in records]
    total = 2 * len(dataset.split(split))
    if len(reading.replayed.queries) == total:
        return records
    return [replace(one, settings={**one.settings, "sampled_from": total}) for one in records]


def conclude(
    run: Run, dataset: Dataset, split: str, reading: Reading, device: str, made_on: str | None = None
) -> list[Record]:
    """Write the ranks and the metrics of a whole split into the run, and return its records, naive ones last.

    made_on: the device in words, where another process made the ranks.
    """
    found = all_records(run, dataset, split, reading, device)
    records = [one if made_on is None else replace(one, device=made_on) for one in found]
    columns = rank_columns(reading)
    write_table(run.ranks_path(split), columns)
    # those of an earlier evaluation go in any case
    strata = strata_of(columns, dataset, split, run.config.history) if affordable(dataset) else None
    run.write_metrics({split: None if strata is None else [asdict(one) for one in strata]}, KIND)
    own = [asdict(record) for record in records if record.backbone == run.config.backbone]
    run.write_metrics({split: own}, finish=write_card)
    return records


@dataclass(frozen=True)
class Reading:
    """Queries read by a run, and the column of the replay that each of its methods has."""

    replayed: Replay
    columns: dict[Method, int]


def read(
    run: Parts,
    dataset: Dataset,
    split: str,
    queries: Queries,
    device: str = "cpu",
    progress: Progress = SILENT,
    cells: int | None = None,
) -> Reading:
    """Rank queries of a split by all that the run has and by naive forecasters, under every filter."""
    part = "known" if split == "test" else "train"
    past = history(run, dataset, split, device)
    filters, scoring = Filters(dataset.events, device), scoring_of(run, past, part)
    naive = naive_backbones(dataset.without_test(), device, other_than=run.config.backbone)
    replayed = replay(
        scoring, queries, filters=filters, progress=progress, label=f"reading {split}", cells=cells, rivals=naive
    )
    return Reading(replayed, {name: column for column, name in enumerate(ranked_by(run))})


def ranked_by(run: Parts) -> list[Method]:
    """All whose ranks an evaluation keeps, in the order of their columns: those of the run, then naive forecasters."""
    return [*run.methods(), *(Method(kind.name) for kind in NAIVE if kind.name != run.config.backbone)]


def scoring_of(run: Parts, past: Past, part: str, backbone: Scorer | None = None) -> Scoring:
    """The scoring path of all that a model ranks by, in the order of its methods, as fitted on "train" or "known"."""
    device = str(past.device)
    return Scoring(
        backbone or run.scorer(part, device),
        past,
        run.transitions(part, device),
        choices=[run.selection(name).choice for name in SELECTION_FILTERS],
        learned=[model for name in run.fit_names() if (model := run.learned(name, device)) is not None],
    )


def history(run: Parts, dataset: Dataset, split: str, device: str) -> Past:
    frozen_at = dataset.test_start if split == "test" else dataset.valid_start
    return Past(dataset.events, frozen_at if run.config.history == "frozen" else None, device)


def evaluate_backbone(
    name: str, dataset: Dataset, split: str = "test", device: str = "cpu", progress: Progress = SILENT
) -> list[Record]:
    """Metrics of a training-free backbone, for the same table."""
    if split == "valid":
        dataset = dataset.without_test()
    backbone = backbone_class(name).fit(dataset, device=device)
    past, filters = Past(dataset.events, device=device), Filters(dataset.events, device)
    queries = Queries.of(dataset.split(split))
    label = f"reading {split} for {name}"
    replayed = replay(Scoring(backbone, past), queries, filters=filters, progress=progress, label=label)
    base = base_of(dataset, split, name, device, len(queries))
    return [
        Record(
            **base, method="backbone", filter=f, selected_by=None, history="rolling", seed=0, **_values(replayed, f, 0)
        )
        for f in FILTERS
    ]


def _naive_records(run: Parts, dataset: Dataset, split: str, reading: Reading, device: str) -> list[Record]:
    """Metrics of naive forecasters, and in the settings what the model that forecasts gains over each of them."""
    replayed, records = reading.replayed, []
    for method in ranked_by(run)[len(run.methods()) :]:
        column = reading.columns[method]
        for f in FILTERS:
            one = Record(
                **base_of(dataset, split, method.name, device, len(replayed.queries)),
                method="backbone",
                filter=f,
                selected_by=None,
                history=run.config.history,
                seed=0,
                settings=_model_gain(run, reading, f, column),
                **_values(replayed, f, column),
            )
            records.append(one)
    return records


def _model_gain(run: Parts, reading: Reading, filter_name: str, column: int) -> dict[str, Any]:
    """The residual that forecasts use, and its gain in MRR over a column, with both ends of the interval."""
    replayed, model = reading.replayed, run.preferred()
    own = replayed.of(filter_name, reading.columns[run.method(model, filter_name)])
    gain = paired_gains(replayed.of(filter_name, column), own, replayed.queries.step.numpy())["mrr"]
    return {"model": model, "model_gain": [gain.value, gain.low, gain.high]}


def record(
    run: Parts,
    dataset: Dataset,
    split: str,
    replayed: Replay,
    column: int,
    filter_name: str,
    method: str,
    selection: Selection,
    device: str,
    changed: dict[str, Any] | None = None,
) -> Record:
    """The figures of one column of a replay under one filter, its gain over the backbone, and all its settings."""
    config, settings, choice = run.config, run.settings, selection.choice
    used = {
        "backbone_seed": config.backbone_seed,
        "lambda": choice.lam,
        "gate": choice.gate,
        "tau": choice.tau,
        "window": settings.window,
        "k": settings.k,
        "epochs": config.epochs,
        "transitions": config.transitions,
        "parameters": config.parameters,
        **_renewal(run, split),
    }
    gains = paired_gains(replayed.of(filter_name), replayed.of(filter_name, column), replayed.queries.step.numpy())
    return Record(
        **base_of(dataset, split, config.backbone, device, len(replayed.queries)),
        history=config.history,
        method=method,
        filter=filter_name,
        selected_by=selection.filter,
        seed=config.seed,
        settings={**used, **(changed or {})},
        gain={metric: [g.value, g.low, g.high] for metric, g in gains.items()},
        fit_seconds=config.select_fit_seconds,
        refit_seconds=config.refit_seconds,
        lock=selection.lock(),
        **_values(replayed, filter_name, column),
    )


def _renewal(run: Parts, split: str) -> dict[str, str]:
    """What the settings of a row say of a backbone that was trained once more: test asks it, validation does not."""
    return {"renewed": "on"} if run.config.renewed and split == "test" else {}


def rank_columns(reading: Reading) -> dict[str, np.ndarray]:
    """One row a query: what was asked, what was known, and the answer's rank by method and filter."""
    replayed = reading.replayed
    q = replayed.queries
    assert q.answer is not None
    columns = {
        "actor": q.actor.numpy(),
        "relation": q.relation.numpy(),
        "step": q.step.numpy(),
        "answer": q.answer.numpy(),
        "uncertainty": replayed.uncertainty,
        "answer_support": replayed.answer_support,
        "answer_lag": replayed.answer_lag,
        "triple_seen": replayed.triple_seen,
    }
    for method, column in reading.columns.items():
        for filter_name in FILTERS:
            columns[method.column(filter_name)] = replayed.of(filter_name, column)
    return columns


def reading_of(columns: Mapping[str, np.ndarray], methods: Sequence[Method]) -> Reading:
    """A reading from its columns, of the methods in their order: what `rank_columns` was given."""
    asked = (torch.from_numpy(columns[name]) for name in ("actor", "relation", "step", "answer"))
    ranks = np.stack([np.stack([columns[method.column(f)] for method in methods]) for f in FILTERS])
    known = (columns[name] for name in ("uncertainty", "answer_support", "answer_lag", "triple_seen"))
    return Reading(Replay(Queries(*asked), ranks, *known), {method: column for column, method in enumerate(methods)})


def base_of(dataset: Dataset, split: str, backbone: str, device: str, queries: int) -> dict[str, Any]:
    from bridgemem import __version__

    return {
        "dataset": dataset.name,
        "fingerprint": dataset.events.fingerprint,
        "identity": dataset.identity.digest,
        "split": split,
        "backbone": backbone,
        "queries": queries,
        "device": describe_device(device),
        "version": __version__,
    }


def _values(replayed: Replay, filter_name: str, column: int) -> dict[str, Any]:
    return replayed.metrics(filter_name, column).as_dict()


def records_of(
    run: Parts, dataset: Dataset, split: str, reading: Reading, selections: dict[str, Selection], device: str
) -> list[Record]:
    """All figures of a reading: of the backbone, and of every residual under each selection."""
    replayed, columns = reading.replayed, reading.columns
    config, trained = run.config, run.backbone_note()
    base = base_of(dataset, split, config.backbone, device, len(replayed.queries))
    records = [
        Record(
            **base,
            history=config.history,
            method="backbone",
            filter=f,
            selected_by=None,
            seed=config.backbone_seed,
            settings={"backbone_seed": config.backbone_seed, **trained, **_renewal(run, split)},
            **_values(replayed, f, 0),
        )
        for f in FILTERS
    ]
    for name, selection in selections.items():
        method = Method("bridgemem", name)
        column = columns[method]
        for f in FILTERS:
            rival = run.preferred() != "bridgemem" and run.method("bridgemem", f) == method
            over = _model_gain(run, reading, f, column) if rival else None
            records.append(record(run, dataset, split, replayed, column, f, "bridgemem", selection, device, over))
    if not run.fit_names():
        return records
    for f in FILTERS:
        # what the learned residual weighs and costs is its own: lambda, gate and tau are the paper's
        method, fit = run.method("learned", f), run.learning(f)
        own = {"lambda": None, "gate": None, "tau": None, **asdict(fit.settings)}
        own |= {"epochs": fit.epochs, "parameters": fit.parameters, "scale": fit.scale}
        own |= {"fit_queries": fit.queries, "fit_candidates": fit.candidates}
        selection = selections["static" if f == "static" else "time"]
        one = record(run, dataset, split, replayed, columns[method], f, "learned", selection, device, own)
        timed = replace(one, fit_seconds=fit.seconds, refit_seconds=None, cross_fit=fit.settings.cross_fit)
        records.append(replace(timed, selected_by=method.selected_by))
    return records

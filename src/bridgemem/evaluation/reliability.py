"""Reliability: a run's probabilities, fitted on validation and measured on a split, and queries of several steps."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import NotFoundError, RunError, SettingsError
from bridgemem.evaluation.card import write_card
from bridgemem.evaluation.evaluate import Reading, history, records_of, scoring_of
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.forecasting.calibration import (
    Calibration,
    Curve,
    LogP,
    OverSteps,
    fit_calibration,
    read_calibration,
    with_late,
    write_calibrations,
)
from bridgemem.forecasting.horizon import Activity, Openings, Windowed
from bridgemem.forecasting.model import Parts
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks, best_first
from bridgemem.residuals.method import Method
from bridgemem.residuals.scoring import Scored, Scoring, replay
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.residuals.validation import Validation
from bridgemem.runs import Run
from bridgemem.training.devices import describe_device

# two numbers need no more queries than this, and a reliability curve few more
MOST_FITTED = 2_000
MOST_AHEAD = 1_000  # queries that horizons are fitted on; each is read for all of them
MOST_MEASURED = 30_000
SHOWN = 10  # candidates of a query that a forecast shows


def calibrations_of(
    run: Parts, validation: Validation, *, known: Container[Method] = (), progress: Progress = SILENT
) -> dict[Method, Calibration]:
    """Calibrations of a model's residuals, fitted on validation; residuals know train alone. known: have one.

    A learned residual has seen validation: in its place stands the network that was fitted before the later part, which
    is read on that part alone. Where there is none, as in a run that was loaded, its scores get no curve.
    """
    scoring, methods = scoring_of(run, validation.past, "train", validation.backbone), run.methods()[1:]
    columns = {name: column for column, name in enumerate(methods, start=1) if name not in known}
    trials = {name: fit for name in columns if name.name == "learned" and (fit := run.trial(name)) is not None}
    events, entities = validation.dataset.valid, validation.dataset.events.n_entities
    plain = {name: column for name, column in columns.items() if name not in trials}
    read = [(scoring, validation.queries, events, plain)]
    for name, (net, late) in trials.items():
        own = validation.scoring(run.transitions("train", validation.device), learned=[net])
        read.append((own, late, events.between(int(late.step.min()), events.end), {name: 1}))
    made: dict[Method, Calibration] = {}
    for scoring, queries, part, of in read:
        for name, log_p in _log_p(scoring, queries.sample(MOST_FITTED, 0), of, progress).items():
            seen = name.name == "learned" and name not in trials
            one = (fit_calibration if seen else with_late)(log_p, entities, run.lock_of(name))
            made[name] = replace(one, knots=()) if seen else one
        # one that was fitted on these events is no measure of how well later steps are foreseen
        fresh = {name: (column, made[name]) for name, column in of.items() if name.name != "learned" or name in trials}
        for name, over_steps in _over_steps(scoring, part, fresh, progress).items():
            made[name] = replace(made[name], over_steps=over_steps)
    return {name: made[name] for name in columns}


def _over_steps(
    scoring: Scoring, events: EventLog, fitted: dict[Method, tuple[int, Calibration]], progress: Progress
) -> dict[Method, OverSteps]:
    """How probabilities go over several steps, by method, from windows of these events.

    fitted: the column and the calibration of each.
    """
    if not fitted or not len(events):
        return {}
    windows, activity = Openings.of(events, MOST_AHEAD, 0), Activity(scoring.past)

    def read(scored: Scored) -> list[tuple[Tensor, Tensor]]:
        found = []
        for column, calibration in fitted.values():
            score = scored.total(column)
            best = best_first(score, SHOWN)
            found.append((best.cpu(), calibration.probabilities(score).gather(1, best).cpu()))
        return found

    try:
        parts = list(scoring.batches(windows.queries, read, progress=progress, label="calibrating horizons"))
    except NotFoundError:  # stored scores are those of a split's own queries
        return {}
    asked, first, made = windows.queries.to(scoring.past.device), windows.first(), dict[Method, OverSteps]()
    cut = scoring.past.cut(asked.step)
    draws = {h: activity.draws(asked, cut, h).cpu() for h in windows.horizons()}
    for place, name in enumerate(fitted):
        best, p = (torch.cat(columns) for columns in zip(*(part[place] for part in parts), strict=True))
        until = windows.until(best)
        rows = {h: (first < h).nonzero().squeeze(1) for h in draws}
        made[name] = OverSteps.fit([(h, p[at], draws[h][at], until[at] < h) for h, at in rows.items()])
    return made


def _log_p(scoring: Scoring, queries: Queries, columns: dict[Method, int], progress: Progress) -> dict[Method, LogP]:
    """What temperatures make of the answers and of the best candidates of some queries, by method."""
    found: dict[Method, list[LogP]] = {name: [] for name in columns}

    def read(batch: Scored) -> dict[Method, LogP]:
        asked = batch.queries
        assert asked.answer is not None
        return {name: LogP.of(batch.total(column), asked.answer, asked.step) for name, column in columns.items()}

    for part in scoring.batches(queries, read, progress=progress, label="calibrating") if columns else ():
        for name, log_p in part.items():
            found[name].append(log_p)
    return {name: LogP.joined(parts) for name, parts in found.items()}


def calibrate(
    run: Run, dataset: Dataset | None = None, device: str = "cpu", progress: Progress = SILENT
) -> dict[Method, Calibration]:
    """Fit the calibrations of a run on validation and write them into its folder."""
    frozen = run.config.history == "frozen"
    validation = Validation.of(dataset or run.dataset, run.scorer("train", device), device=device, frozen=frozen)
    # that of a learned residual is made by its fit, which has a network that did not see all of validation
    kept = {m: c for m in run.methods()[1:] if m.name == "learned" and (c := _kept(run, m)) is not None}
    found = {**calibrations_of(run, validation, known=kept, progress=progress), **kept}
    write_calibrations(run.folder, found)
    return found


def _kept(run: Run, name: Method) -> Calibration | None:
    """The calibration that a run has of a method, None where it has none that can be used."""
    try:
        return read_calibration(run.folder, name, run.lock_of(name))
    except RunError:
        return None


@dataclass(frozen=True)
class Reliability:
    """How far the probabilities of one method were right: of the best candidate, and of all that are shown.

    horizon: 1 for a single step, where a forecast comes true with the answer of the query; more for that many steps,
    where it comes true with any of the window's answers. metrics: of raw ranks, of single steps alone.
    """

    method: str
    selected_by: str
    split: str
    horizon: int
    queries: int
    best: Curve
    shown: Curve
    metrics: Metrics | None
    calibration: Calibration

    def as_dict(self) -> dict[str, Any]:
        errors = {"error": self.best.error, "error_shown": self.shown.error}
        return {**asdict(self), **errors}

    def settings(self) -> dict[str, Any]:
        """What a record says of it."""
        c = self.calibration
        return {
            "temperature": c.temperature,
            "floor": c.floor,
            "ece": self.best.error,
            "ece_shown": self.shown.error,
            "curve": [asdict(b) for b in self.best.bins],
        }


def reliability(
    run: Run,
    dataset: Dataset | None = None,
    split: str = "test",
    horizon: int = 1,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> list[Reliability]:
    """Measure every method's probabilities on a split; test is opened under intact selections only."""
    dataset = _readable(run, dataset, split)
    past = history(run, dataset, split, device)
    scoring = scoring_of(run, past, "known" if split == "test" else "train")
    known = {name: _calibration(run, name) for name in run.methods()[1:]}
    windowed = Windowed.of(dataset, split, horizon, device) if horizon > 1 else None
    queries = (windowed.distinct() if windowed else Queries.of(dataset.split(split))).sample(MOST_MEASURED, 0)
    activity = Activity(Past(dataset.events, device=device)) if windowed else None

    def read(scored: Scored) -> dict[Method, tuple[Tensor, ...]]:
        batch, made = scored.queries, {}
        for column, name in enumerate(known, start=1):
            score = scored.total(column)
            best = best_first(score, SHOWN)
            p = known[name].probabilities(score).gather(1, best)
            kept: tuple[Tensor, ...]
            if windowed and activity:
                draws = activity.draws(batch, past.cut(batch.step), horizon)
                p = known[name].over_steps.at_least_once(p, draws, horizon)
                kept = (p, windowed.hits(batch).gather(1, best))
            else:
                assert batch.answer is not None
                own, answers = scored.delta[:, [column]], batch.answer
                ranks = answer_ranks(scored.scores.log_p, answers, scored.row, scored.candidate, own, [_no_mask(batch)])
                kept = (p, best == answers[:, None], ranks[0, 0])
            made[name] = tuple(column.cpu() for column in kept)
        return made

    gathered: dict[Method, list[tuple[Tensor, ...]]] = {name: [] for name in known}
    for part in scoring.batches(queries, read, progress=progress, label=f"reading {split}"):
        for name, of in part.items():
            gathered[name].append(of)
    return [_measured(name, split, horizon, parts, known[name]) for name, parts in gathered.items()]


def _measured(
    name: Method, split: str, horizon: int, parts: list[tuple[Tensor, ...]], calibration: Calibration
) -> Reliability:
    """parts: by batch the probabilities and hits of the shown candidates [n, shown], and the raw ranks if known [n]."""
    p, hit, *ranks = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    metrics = Metrics.of(ranks[0]) if ranks else None
    best, shown = Curve.of(p[:, 0], hit[:, 0]), Curve.of(p.ravel(), hit.ravel())
    return Reliability(name.name, name.selected_by or "", split, horizon, len(p), best, shown, metrics, calibration)


def _no_mask(batch: Queries) -> tuple[Tensor, Tensor]:
    """What the raw filter removes: nothing."""
    nobody = batch.actor.new_empty(0)
    return nobody, nobody


def _calibration(run: Run, name: Method) -> Calibration:
    found = read_calibration(run.folder, name, run.lock_of(name))
    if found is None:
        raise RunError(f"{run.folder} is not calibrated; run `bridgemem calibrate {run.folder}`.")
    return found


def _readable(run: Run, dataset: Dataset | None, split: str) -> Dataset:
    """The data of a run without what the split must not see, after every selection was found intact."""
    for name in SELECTION_FILTERS:
        run.selection(name)
    dataset = dataset or run.dataset
    return dataset.without_test() if split == "valid" else dataset


def reliability_records(run: Run, found: list[Reliability]) -> list[Record]:
    """Single-step reliability as records, for tables; their ranks are raw ones."""
    config = run.config
    return [
        Record(
            dataset=config.dataset,
            fingerprint=config.fingerprint,
            identity=run.identity().digest,
            split=one.split,
            backbone=config.backbone,
            method=f"calibration:{one.method}",
            filter="raw",
            selected_by=one.selected_by,
            history=config.history,
            seed=config.seed,
            queries=one.queries,
            settings={"backbone_seed": config.backbone_seed, **one.settings()},
            device=describe_device("cpu"),
            version=config.version,
            lock=one.calibration.lock,
            mrr=one.metrics.mrr,
            hits1=one.metrics.hits1,
            hits3=one.metrics.hits3,
            hits10=one.metrics.hits10,
        )
        for one in found
        if one.metrics is not None
    ]


def evaluate_horizon(
    run: Run,
    horizon: int,
    dataset: Dataset | None = None,
    split: str = "test",
    device: str = "cpu",
    progress: Progress = SILENT,
) -> list[Record]:
    """Metrics of h-step queries on a split, under all filters, for the backbone and every residual of the run.

    The split is cut into windows of h steps. Every answer of a window is asked once, from what was known before the
    window began; filters take out the other answers of the same window. Gains are resampled by whole windows.
    """
    if horizon < 2:
        raise SettingsError(
            f"--horizon asks for windows of at least 2 steps, not {horizon}; leave it out for one step."
        )
    dataset = _readable(run, dataset, split)
    windowed = Windowed.of(dataset, split, horizon, device)
    past, part = history(run, dataset, split, device), "known" if split == "test" else "train"
    selections = {name: run.selection(name) for name in SELECTION_FILTERS}
    label = f"reading {split}, {horizon} steps at once"
    scoring = scoring_of(run, past, part)
    replayed = replay(scoring, windowed.queries(), filters=windowed.filters, progress=progress, label=label)
    reading = Reading(replayed, {name: column for column, name in enumerate(run.methods())})
    measured = {(m.method, m.selected_by): m for m in reliability(run, dataset, split, horizon, device, progress)}
    windows = len(np.unique(windowed.asked.step))
    records = []
    for record in records_of(run, dataset, split, reading, selections, device):
        own = measured.get((record.method, record.selected_by or ""))
        settings = {**record.settings, "windows": windows, **(own.settings() if own else {})}
        if windows == 1:  # there is nothing to resample
            settings.pop("model_gain", None)
        records.append(replace(record, horizon=horizon, settings=settings, gain=record.gain if windows > 1 else {}))
    run.write_metrics({split: [asdict(record) for record in records]}, horizon, finish=write_card)
    return records

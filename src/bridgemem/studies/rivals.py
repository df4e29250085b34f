"""Rivals: what one gets without a model of one's own, the counting backbone alone and the residual on it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bridgemem.backbones import backbone_class
from bridgemem.evaluation.evaluate import Reading, base_of, history, records_of, scoring_of
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.fitting import AUTO
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.model import Parts
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import paired_gains
from bridgemem.residuals.method import BACKBONE
from bridgemem.residuals.scoring import Replay, Scoring, replay
from bridgemem.residuals.selection import SELECTION_FILTERS

LARGE = 500_000  # events, above which the tool's default is fitted on request alone


class Measured(Forecaster):
    """A forecaster whose ranks are measured and that nobody asks: the heads for other queries are not fitted."""

    _with_heads = False


def rivals(
    model: Forecaster,
    dataset: Dataset,
    split: str,
    reading: Reading,
    default: bool | None = None,
    progress: Progress = SILENT,
) -> list[Record]:
    """Records of recurrence-typed, and of the residual that the default uses on it; none where that is the model.

    Asked are the queries of the reading, so that the gains of the model over both are paired.
    default: whether the default is fitted, or only its backbone; None: by the size of the data.
    """
    own, device = model.parts, model.device
    if own.config.backbone == AUTO:
        return []
    past, part = history(own, dataset, split, device), "known" if split == "test" else "train"
    fitted = None
    if len(dataset.events) <= LARGE if default is None else default:
        fitted = _without_it(model, dataset, progress)
        scoring = scoring_of(fitted, past, part)
    else:
        scoring = Scoring(backbone_class(AUTO).fit(dataset.without_test(), device=device), past)
    queries, filters = reading.replayed.queries, Filters(dataset.events, device)
    replayed = replay(scoring, queries, filters=filters, progress=progress, label=f"reading {split} without the model")
    if fitted is None:
        found = [(one, replayed.of(one.filter, 0)) for one in _alone(own, dataset, split, replayed, device)]
    else:
        found = list(_of_default(fitted, dataset, split, replayed, device))
    return [replace(one, settings={**one.settings, **_gain(own, reading, ranks, one.filter)}) for one, ranks in found]


def _alone(own: Parts, dataset: Dataset, split: str, replayed: Replay, device: str) -> list[Record]:
    """The counting backbone alone, under every filter."""
    base = base_of(dataset, split, AUTO, device, len(replayed.queries))
    same: dict[str, Any] = {"method": "backbone", "selected_by": None, "history": own.config.history, "seed": 0}
    return [Record(**base, **same, filter=f, **_values(replayed, f)) for f in FILTERS]


def _values(replayed: Replay, filter_name: str) -> dict[str, Any]:
    return replayed.metrics(filter_name, 0).as_dict()


def _of_default(
    fitted: Parts, dataset: Dataset, split: str, replayed: Replay, device: str
) -> Iterator[tuple[Record, np.ndarray]]:
    """The counting backbone and the residual that the default uses, as chosen, with their ranks."""
    reading = Reading(replayed, {method: column for column, method in enumerate(fitted.methods())})
    selections = {name: fitted.selection(name) for name in SELECTION_FILTERS}
    for one in records_of(fitted, dataset, split, reading, selections, device):
        if not one.as_chosen or one.method not in ("backbone", fitted.preferred()):
            continue
        method = BACKBONE if one.method == "backbone" else fitted.method(one.method, one.filter)
        yield (
            replace(one, settings={**one.settings, **_validation(fitted, one)}),
            replayed.of(one.filter, reading.columns[method]),
        )


def _without_it(model: Forecaster, dataset: Dataset, progress: Progress) -> Parts:
    """The tool's default, fitted with the settings that the model was measured with; it has nothing to renew."""
    learned = None if model.learned_settings is None else replace(model.learned_settings, renewed="auto")
    other = Measured(
        AUTO,
        residual=model.residual,
        settings=model.settings,
        learned_settings=learned,
        history=model.history,
        seed=model.seed,
        device=model.device,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a fit says of its model is said of the one that was given
        return other.fit(dataset, progress=progress).parts


def _validation(fitted: Parts, one: Record) -> dict[str, float]:
    """How the counting backbone did on validation, next to which the model's own MRR there can be read."""
    counts = one.method == "backbone" and one.filter == "time"
    return {"validation_mrr": fitted.selection("time").backbone.mrr} if counts else {}


def _gain(own: Parts, reading: Reading, ranks: np.ndarray, filter_name: str) -> dict[str, Any]:
    """The residual that the model's forecasts use, and its gain in MRR over these ranks."""
    used = own.preferred()
    mine = reading.replayed.of(filter_name, reading.columns[own.method(used, filter_name)])
    gain = paired_gains(ranks, mine, reading.replayed.queries.step.numpy())["mrr"]
    return {"model": used, "model_gain": [gain.value, gain.low, gain.high]}

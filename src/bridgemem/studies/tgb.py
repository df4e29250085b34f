"""TGB's evaluator on a fitted forecaster: its negative samples and its MRR, from its own package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bridgemem.errors import DataError, NotFoundError, SettingsError
from bridgemem.evaluation.evaluate import history, queries_of, ranked_by, scoring_of
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.events.tgb import tgb_name
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.method import Method
from bridgemem.residuals.scoring import Scored

if TYPE_CHECKING:
    from bridgemem.forecasting.model import Parts

MODES = {"valid": "val", "test": "test"}  # what TGB calls a split


@dataclass(frozen=True)
class TgbFigure:
    """TGB's figures of one method: MRR and Hits@10 against its negative samples, as its evaluator computes them."""

    method: str
    mrr: float
    hits10: float
    queries: int


def evaluate_tgb(
    model: Parts,
    folder: Path | str,
    *,
    split: str = "test",
    queries: int | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> list[TgbFigure]:
    """Measure a fitted model as TGB does, with the negative samples and the evaluator of its package.

    Args:
        model: A run, or `Forecaster.parts`, that was fitted on what `load` makes of the edge list.
        folder: Where TGB keeps the data set: the edge list and NAME_val_ns.pkl, NAME_test_ns.pkl. TGB's package reads
            the latter, which are pickles: take them from TGB alone.
        split: "test" or "valid".
        queries: A random sample of that many (default: all).
        device: "cpu" or "cuda".
        progress: Told how far the reading is.

    Returns:
        One figure for each method: the backbone, and each residual as chosen under the time-aware filter.

    Raises:
        NotFoundError: TGB's package (`pip install py-tgb`) or its files are missing.
        DataError: The model was fitted on other events.
    """
    if split not in MODES:
        raise SettingsError(f"split is test or valid, not {split!r}.")
    name, dataset = tgb_name(folder), model.dataset
    if dataset.name != name:
        raise DataError(f"the model was fitted on {dataset.name}, not on {name}; fit it on {folder}.")
    known = dataset.without_test() if split == "valid" else dataset
    asked = queries_of(known, split, queries)
    sampler, evaluator = _of_package(name, Path(folder), split, dataset)
    past = history(model, known, split, device)
    scoring = scoring_of(model, past, "known" if split == "test" else "train")
    columns = _columns(model)

    def read(batch: Scored) -> np.ndarray:
        negatives = _negatives(sampler, batch.queries, dataset, MODES[split])
        totals = {column: batch.total(column).cpu().numpy() for column in set(columns.values())}
        return np.array([_figures(evaluator, totals[at], batch.queries, negatives) for at in columns.values()])

    label = f"reading {split} as TGB does"
    found = np.concatenate(list(scoring.batches(asked, read, progress=progress, label=label)), axis=1)
    means = found.mean(axis=1)
    return [
        TgbFigure(method, float(mrr), float(hits), len(asked))
        for method, (mrr, hits) in zip(columns, means.tolist(), strict=True)
    ]


def _of_package(name: str, folder: Path, split: str, dataset: Dataset) -> tuple[Any, Any]:
    """TGB's negative sampler with the samples of a split, and its evaluator."""
    try:
        from tgb.linkproppred.evaluate import Evaluator
        from tgb.linkproppred.tkg_negative_sampler import TKGNegativeEdgeSampler
        from tgb.utils.info import DATA_NS_STRATEGY_DICT
    except ImportError:
        raise NotFoundError("py-tgb is not installed: pip install -e '.[tgb]' in the checkout.") from None
    if name not in DATA_NS_STRATEGY_DICT:
        raise NotFoundError(f"this version of TGB has no negative samples for {name}; install a later py-tgb.")
    home = folder if folder.is_dir() else folder.parent
    # TGB numbers versions after the first
    found = sorted(home.glob(f"{name}_{MODES[split]}_ns*.pkl"))
    if not found:
        raise NotFoundError(f"{home} lacks {name}_{MODES[split]}_ns.pkl, which TGB's package downloads; add it.")
    last = dataset.events.n_entities - 1
    sampler = TKGNegativeEdgeSampler(name, 0, last, strategy=DATA_NS_STRATEGY_DICT[name], partial_path=str(home))
    sampler.load_eval_set(fname=str(found[-1]), split_mode=MODES[split])
    return sampler, Evaluator(name=name)


def _columns(model: Parts) -> dict[str, int]:
    """Which column of the scores each method has, residuals as chosen under the time-aware filter, which is TGB's."""
    every = ranked_by(model)
    names = ["backbone", "bridgemem", *(["learned"] if model.fit_names() else [])]
    wanted = {name: Method(name) if name == "backbone" else model.method(name, "time") for name in names}
    return {name: every.index(method) for name, method in wanted.items()}


def _negatives(sampler: Any, queries: Queries, dataset: Dataset, mode: str) -> list[np.ndarray]:
    """The candidates that TGB ranks each answer against, in TGB's own ids, which are those of the data set."""
    events, clock = dataset.events, dataset.events.clock
    own = queries.to("cpu")
    assert own.answer is not None
    relations, asked = events.relations, own.relation.numpy()
    types = np.array(list(map(int, relations.names))) if relations.numbers else np.arange(len(relations))
    edge_type = types[asked % len(types)] + len(types) * (asked >= len(types))
    times = clock.origin + own.step.numpy().astype(np.int64) * clock.unit
    try:
        return sampler.query_batch(own.actor.numpy(), own.answer.numpy(), times, edge_type, split_mode=mode)
    except ValueError as problem:
        raise DataError(f"TGB has no negative samples for an event of {dataset.name}: {problem}") from None


def _figures(evaluator: Any, scores: np.ndarray, queries: Queries, negatives: list[np.ndarray]) -> np.ndarray:
    """TGB's reciprocal rank and hit of each query, float64 [n, 2]; scores float64 [n, E]."""
    assert queries.answer is not None
    found = []
    for row, (answer, others) in enumerate(zip(queries.answer.tolist(), negatives, strict=True)):
        given = {"y_pred_pos": scores[row, [answer]], "y_pred_neg": scores[row, others][None], "eval_metric": ["mrr"]}
        made = evaluator.eval(given)
        found.append((float(made["mrr"]), float(made["hits@10"])))
    return np.array(found)

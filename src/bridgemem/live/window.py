"""Window: how a model does on the last steps, which came after the data that it was fitted on.

Every query reads the events strictly before its step, as a forecast does. Ranks are under the time-aware filter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.forecasting.calibration import Curve
from bridgemem.forecasting.predictor import Predictor
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.ranks import answer_ranks

MOST = 2000  # queries that are asked
AT_ONCE = 64  # of them, so that others who ask wait for a moment
LOWEST = -1e300  # in place of the score of what is no candidate


@dataclass(frozen=True)
class Measured:
    """A model on the steps from `start` on.

    ranks float64 [n], step int64 [n]: of the queries, in an order that is the same for every model. unknown: the share
    of names, entities and relations of each event, that the model was fitted without. calibration: the expected
    calibration error of the best candidate's probability; nan where there are no probabilities.
    """

    start: int
    end: int
    ranks: np.ndarray
    step: np.ndarray
    unknown: float
    calibration: float

    @property
    def queries(self) -> int:
        return len(self.ranks)

    @property
    def mrr(self) -> float:
        return float((1 / self.ranks).mean()) if len(self.ranks) else float("nan")


def measured(predictor: Predictor, fitted: EventLog, start: int, *, most: int = MOST, seed: int = 0) -> Measured:
    """Ask a model about the events from a step on, at most `most` queries, drawn alike for every model.

    fitted: the data of the model, whose names it knows; the window begins after it at the earliest.
    """
    events = predictor.events
    start = max(start, fitted.end)
    window = _ordered(events.between(start, events.end))
    queries = Queries.sampled(window, most, seed)
    filters, ranks, best, hit = Filters(window), list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for rows in torch.arange(len(queries)).split(AT_ONCE):
        asked = queries.take(rows)
        assert asked.answer is not None
        score = predictor.scores_of(asked).clamp(min=LOWEST)
        none, nothing = asked.actor.new_empty(0), score.new_zeros((0, 1))
        ranks.append(
            answer_ranks(score, asked.answer, none, none, nothing, [filters.mask("time", asked)])[0, 0].numpy()
        )
        known = asked.relation % events.n_relations < predictor.n_fitted
        if predictor.calibration is not None and known.any():
            p = predictor.calibration.probabilities(score[known])
            best.append(p.amax(1).numpy())
            hit.append((p.argmax(1) == asked.answer[known]).numpy())
    error = Curve.of(np.concatenate(best), np.concatenate(hit)).error if best else float("nan")
    return Measured(start, events.end, _joined(ranks), queries.step.numpy(), _unknown(window, fitted), error)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0), *parts])


def _ordered(window: EventLog) -> EventLog:
    """The events by step and names, independent of their ids and of the order in which they came."""
    entities, relations = (np.array(v.names, object) for v in (window.entities, window.relations))
    names = entities[window.object], relations[window.relation], entities[window.subject]
    keys = [np.unique(column.astype(str), return_inverse=True)[1] for column in names]
    return window.take(np.lexsort([*keys, np.asarray(window.step)]))


def _unknown(window: EventLog, fitted: EventLog) -> float:
    if not len(window):
        return float("nan")
    entities, relations = set(fitted.entities.names), set(fitted.relations.names)
    of = np.array([name not in entities for name in window.entities.names], bool)
    new = np.array([name not in relations for name in window.relations.names], bool)
    count = of[window.subject].sum() + of[window.object].sum() + new[window.relation].sum()
    return float(count) / (3 * len(window))

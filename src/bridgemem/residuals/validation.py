"""Validation: the split that a fit chooses on, with one past, one set of filters, and scores that are made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

import torch
from torch import Tensor

from bridgemem.backbones.scorer import Scorer, ScorerAround, Scores, score_queries
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.learned import Learned
from bridgemem.residuals.scoring import Choice, Scoring

MOST_QUERIES = 1 << 20  # of validation that a fit chooses from; of more that many are drawn
SEED = 0  # of that draw
# each step that is asked is a pass over all events for common neighbours: of more events than this, wherever they lie,
# queries are drawn from that many steps
MANY_EVENTS, MOST_STEPS = 10_000_000, 64
KEPT_BYTES = 1 << 28  # of scores that a fit keeps; queries beyond are scored again in every pass


def most_steps(events: EventLog) -> int | None:
    """How many steps the queries of a fit are drawn from; None: any number."""
    return MOST_STEPS if len(events) > MANY_EVENTS else None


def validation_queries(dataset: Dataset) -> Queries:
    """The queries of validation; a sample where they are more than a fit ever needs."""
    return Queries.sampled(dataset.valid, MOST_QUERIES, SEED, steps=most_steps(dataset.known))


@dataclass(frozen=True)
class Validation:
    """What every pass of one fit over validation shares. dataset: without its test split."""

    dataset: Dataset
    backbone: Scorer
    past: Past
    filters: Filters
    queries: Queries

    @classmethod
    def of(cls, dataset: Dataset, backbone: Scorer, *, device: str = "cpu", frozen: bool = False) -> Validation:
        """The validation split of a data set; frozen: no fact of the split itself is read."""
        dataset = dataset.without_test()
        past = Past(dataset.events, dataset.valid_start if frozen else None, device)
        queries = validation_queries(dataset)
        kept = KEPT_BYTES // 4 if past.on_disk else KEPT_BYTES
        return cls(
            dataset, ScoredOnce(backbone, queries, past, most=kept), past, Filters(dataset.events, device), queries
        )

    @property
    def device(self) -> str:
        return str(self.past.device)

    def scoring(
        self,
        transitions: Transitions,
        *,
        choices: Sequence[Choice] = (),
        learned: Sequence[Learned] = (),
        unseen: int | None = None,
    ) -> Scoring:
        """The scoring path over this split."""
        return Scoring(self.backbone, self.past, transitions, choices=choices, learned=learned, unseen=unseen)


class ScoredOnce(ScorerAround):
    """A scorer that keeps its scores of given queries over one past, as many as fit; others are scored as they come."""

    def __init__(self, scorer: Scorer, queries: Queries, past: Past, *, most: int = KEPT_BYTES) -> None:
        super().__init__(scorer)
        self.past = past
        self._relations, self._steps = 2 * past.events.n_relations, int(queries.step.max()) + 1 if len(queries) else 1
        self._keys = self._key(queries).unique().to(past.device)
        self._most, self._place = most, torch.full_like(self._keys, -1)
        self._kept: Scores | None = None
        self._used = 0
        self._lock = Lock()

    def _key(self, queries: Queries) -> Tensor:
        return (queries.actor * self._relations + queries.relation) * self._steps + queries.step

    def score(self, queries: Queries, past: Past) -> Scores:
        if past is not self.past or not len(self._keys):
            return score_queries(self.scorer, queries, past)
        key = self._key(queries)
        at = torch.searchsorted(self._keys, key).clamp(max=len(self._keys) - 1)
        place = torch.where(self._keys[at] == key, self._place[at], -1)
        if self._kept is not None and bool((place >= 0).all()):
            return _rows(self._kept, place)
        scores = score_queries(self.scorer, queries, past)
        with self._lock:
            self._keep(scores, at[self._keys[at] == key].unique(), at)
        return scores

    def _keep(self, scores: Scores, wanted: Tensor, at: Tensor) -> None:
        """Keep one row of each of the wanted keys, as far as there is room; at int64 [n]: the key of each row."""
        if scores.absent is not None:
            return
        wanted = wanted[self._place[wanted] < 0]
        if self._kept is None:
            self._kept = _empty(scores, min(len(self._keys), self._most // _row_bytes(scores)))
        wanted = wanted[: len(self._kept.log_p) - self._used]
        row = torch.empty_like(self._keys).index_copy_(0, at, torch.arange(len(at), device=at.device))[wanted]
        room = torch.arange(self._used, self._used + len(wanted), device=at.device)
        assert self._kept.uncertainty is not None
        assert scores.uncertainty is not None
        self._kept.log_p[room] = scores.log_p[row]
        self._kept.uncertainty[room] = scores.uncertainty[row]
        if self._kept.members is not None and scores.members is not None:
            self._kept.members[:, room] = scores.members[:, row]
        self._place[wanted] = room
        self._used += len(wanted)


def _row_bytes(scores: Scores) -> int:
    """What the scores of one query take, at least 1."""
    members = 0 if scores.members is None else scores.members.nbytes
    return max(1, (scores.log_p.nbytes + members) // max(len(scores.log_p), 1))


def _rows(scores: Scores, rows: Tensor) -> Scores:
    """Some of the queries' scores."""
    members = None if scores.members is None else scores.members[:, rows]
    assert scores.uncertainty is not None
    return replace(scores, log_p=scores.log_p[rows], uncertainty=scores.uncertainty[rows], members=members)


def _empty(scores: Scores, size: int) -> Scores:
    """Room for the scores of that many queries."""
    assert scores.uncertainty is not None
    log_p = scores.log_p.new_empty((size, scores.log_p.shape[1]))
    members = None
    if scores.members is not None:
        members = scores.members.new_empty((len(scores.members), size, log_p.shape[1]))
    return Scores(log_p, scores.uncertainty.new_empty(size), members)

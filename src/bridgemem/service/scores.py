"""ScoreCache: the scores of a query that is asked again, or explained, are not computed twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from bridgemem.backbones.scorer import Scorer, ScorerAround, Scores, ask
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past

KEPT_BYTES = 64 << 20

Key = tuple[int, int, int]


@dataclass
class Used:
    """How often kept scores were found, and how often not."""

    hits: int = 0
    misses: int = 0


@dataclass
class _Rows:
    """The scores kept for one history, the least recently used first."""

    rows: OrderedDict[Key, Scores] = field(default_factory=OrderedDict)
    size: int = 0


class ScoreCache(ScorerAround):
    """Another scorer, whose scores for (actor, relation, step) are kept as long as their history lives.

    A history never changes, so what was scored on it stays right; a memory that has grown is another history. At most
    `most` bytes are kept for each, the least recently used go first. alone: entered while the scorer is asked, for
    one that may not be asked by several threads at once.
    """

    def __init__(
        self,
        scorer: Scorer,
        used: Used | None = None,
        most: int = KEPT_BYTES,
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__(scorer)
        self.used, self.most, self.alone = used or Used(), most, alone
        self._kept: WeakKeyDictionary[Past, _Rows] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def score(self, queries: Queries, past: Past) -> Scores:
        """The scores of queries, of which those that are not kept are asked for together."""
        columns = (queries.actor, queries.relation, queries.step)
        keys: list[Key] = list(zip(*(column.tolist() for column in columns), strict=True))
        with self._lock:
            kept = self._kept.setdefault(past, _Rows())
            found = {key: kept.rows[key] for key in keys if key in kept.rows}
            for key in found:
                kept.rows.move_to_end(key)
            missing = {key: place for place, key in enumerate(keys) if key not in found}
            self.used.hits += sum(key in found for key in keys)
            self.used.misses += sum(key not in found for key in keys)
        if not missing:
            return _joined([found[key] for key in keys])
        whole = len(missing) == len(keys)  # then the very tensors, which a past may know already
        asked = queries if whole else queries.take(torch.tensor(list(missing.values())))
        # scored outside the lock: a caller that finds kept scores does not wait for those who must ask the scorer
        with self.alone():
            made = ask(self.scorer, asked, past)
        rows = {key: _row(made, place) for place, key in enumerate(missing)}
        with self._lock:
            for key, scores in rows.items():
                if key not in kept.rows:
                    kept.rows[key] = scores
                    kept.size += _bytes(scores)
            while kept.size > self.most and len(kept.rows) > 1:
                kept.size -= _bytes(kept.rows.popitem(last=False)[1])
        return made if whole else _joined([(rows if key in rows else found)[key] for key in keys])


def _row(scores: Scores, place: int) -> Scores:
    """The scores of one query, without the memory of the others; of a single one they are what they are."""
    if len(scores.log_p) == 1:
        return scores
    own = slice(place, place + 1)
    return Scores(
        scores.log_p[own].clone(),
        None if scores.uncertainty is None else scores.uncertainty[own].clone(),
        None if scores.members is None else scores.members[:, own].clone(),
        None if scores.absent is None else scores.absent[own].clone(),
    )


def _joined(rows: list[Scores]) -> Scores:
    """The scores of single queries as those of a batch."""
    first = rows[0]
    if len(rows) == 1:
        return first
    absent = None
    if any(row.absent is not None for row in rows):
        nobody = torch.zeros_like(first.log_p, dtype=torch.bool)
        absent = torch.cat([nobody if row.absent is None else row.absent for row in rows])
    return Scores(
        torch.cat([row.log_p for row in rows]),
        None if first.uncertainty is None else torch.cat([r.uncertainty for r in rows if r.uncertainty is not None]),
        None if first.members is None else torch.cat([r.members for r in rows if r.members is not None], dim=1),
        absent,
    )


def _bytes(scores: Scores) -> int:
    return scores.log_p.nbytes + (0 if scores.members is None else scores.members.nbytes)

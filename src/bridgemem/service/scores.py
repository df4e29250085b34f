"""ScoreCache: the scores of a query that is asked again, or explained, are not computed twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

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
        """One query is looked up; a batch goes to the scorer as it is."""
        if len(queries) != 1:
            with self.alone():
                return self.scorer.score(queries, past)
        key = (int(queries.actor), int(queries.relation), int(queries.step))
        with self._lock:
            kept = self._kept.setdefault(past, _Rows())
            found = kept.rows.get(key)
            if found is not None:
                kept.rows.move_to_end(key)
                self.used.hits += 1
                return found
            self.used.misses += 1
        # scored outside the lock: a caller that finds kept scores does not wait for those who must ask the scorer
        with self.alone():
            scores = ask(self.scorer, queries, past)
        with self._lock:
            if key not in kept.rows:
                kept.rows[key] = scores
                kept.size += _bytes(scores)
            while kept.size > self.most and len(kept.rows) > 1:
                kept.size -= _bytes(kept.rows.popitem(last=False)[1])
        return scores


def _bytes(scores: Scores) -> int:
    return scores.log_p.nbytes + (0 if scores.members is None else scores.members.nbytes)

"""Backbone scores that are kept: a query asked again, or explained, is not scored twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

from torch import Tensor

from bridgemem.backbones.base import Backbone, Scores
from bridgemem.errors import BackboneError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress

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


class KeptScores(Backbone):
    """Another backbone, whose scores for (actor, relation, step) are kept as long as their history lives.

    A history never changes, so what was scored on it stays right; a memory that has grown is another history. At most
    `most` bytes are kept for each, the least recently used go first. alone: entered while the backbone is asked, for
    one that may not be asked by several threads at once.
    """

    name: ClassVar[str] = "kept"
    default: ClassVar[Any] = None

    def __init__(
        self,
        backbone: Backbone,
        used: Used | None = None,
        most: int = KEPT_BYTES,
        alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.backbone, self.used, self.most, self.alone = backbone, used or Used(), most, alone
        self.settings = backbone.settings
        self._kept: WeakKeyDictionary[Past, _Rows] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def score(self, queries: Queries, past: Past) -> Scores:
        """One query is looked up; a batch goes to the backbone as it is."""
        if len(queries) != 1:
            with self.alone():
                return self.backbone.score(queries, past)
        key = (int(queries.actor), int(queries.relation), int(queries.step))
        with self._lock:
            kept = self._kept.setdefault(past, _Rows())
            found = kept.rows.get(key)
            if found is not None:
                kept.rows.move_to_end(key)
                self.used.hits += 1
                return found
            self.used.misses += 1
        # scored outside the lock: a caller that finds kept scores does not wait for those who must ask the backbone
        with self.alone():
            scores = self.backbone.score(queries, past)
        with self._lock:
            if key not in kept.rows:
                kept.rows[key] = scores
                kept.size += _bytes(scores)
            while kept.size > self.most and len(kept.rows) > 1:
                kept.size -= _bytes(kept.rows.popitem(last=False)[1])
        return scores

    def tensors(self) -> dict[str, Tensor]:
        return self.backbone.tensors()

    def to(self, device: str) -> Self:
        return type(self)(self.backbone.to(device), self.used, self.most, self.alone)

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        settings: Any = None,
        seed: int = 42,
        device: str = "cpu",
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
    ) -> Self:
        raise BackboneError("kept scores are not trained: train a backbone and keep its scores.")

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        raise BackboneError("kept scores are not saved: load the backbone itself.")


def _bytes(scores: Scores) -> int:
    return scores.log_p.nbytes + (0 if scores.members is None else scores.members.nbytes)

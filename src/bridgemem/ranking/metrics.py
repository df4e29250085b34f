"""Metrics: mean reciprocal rank and hits, micro-averaged over all queries."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

METRICS = ("mrr", "hits1", "hits3", "hits10")


@dataclass(frozen=True)
class Metrics:
    """MRR and the shares of answers ranked at most 1, 3 and 10."""

    mrr: float
    hits1: float
    hits3: float
    hits10: float

    @classmethod
    def of(cls, ranks: np.ndarray) -> Metrics:
        """ranks float64 [n], mean-tie."""
        return cls(*(float(v) for v in per_query(ranks).mean(axis=0)))

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def per_query(ranks: np.ndarray) -> np.ndarray:
    """What each query adds to the four metrics, float64 [n, 4]."""
    return np.stack([1 / ranks, ranks <= 1, ranks <= 3, ranks <= 10], axis=1).astype(np.float64)

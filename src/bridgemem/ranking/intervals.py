"""Intervals: paired bootstrap of a gain, resampling whole steps, since queries of one day share their events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bridgemem.ranking.metrics import METRICS, per_query

REPLICATES = 2000


@dataclass(frozen=True)
class Gain:
    """A paired difference of one metric with its 95 % interval."""

    value: float
    low: float
    high: float


def paired_gains(before: np.ndarray, after: np.ndarray, step: np.ndarray, seed: int = 0) -> dict[str, Gain]:
    """The gain of each metric from one set of ranks to another on the same queries (float64 [n] each, step int [n])."""
    difference = per_query(after) - per_query(before)
    _, cluster = np.unique(step, return_inverse=True)
    steps = int(cluster.max()) + 1
    sums = np.stack([np.bincount(cluster, weights=difference[:, m], minlength=steps) for m in range(4)], axis=1)
    sizes = np.bincount(cluster, minlength=steps)
    draws = np.random.default_rng(seed).multinomial(steps, np.full(steps, 1 / steps), size=REPLICATES)
    resampled = (draws @ sums) / (draws @ sizes)[:, None]
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    point = difference.mean(axis=0)
    return {name: Gain(float(point[m]), float(low[m]), float(high[m])) for m, name in enumerate(METRICS)}

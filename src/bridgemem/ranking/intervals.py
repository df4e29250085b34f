"""Intervals: paired bootstrap of a gain, resampling whole steps, since queries of one day share their events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridgemem.ranking.metrics import METRICS, per_query

REPLICATES = 2000
ERRORS = 1.96  # standard errors to either end of a 95 % interval


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


def paired_gain(before: np.ndarray, after: np.ndarray, step: np.ndarray) -> tuple[float, float, float]:
    """The gain in MRR with its 95 % interval, by whole steps or by single queries, whichever is wider.

    The queries may be of a single step, of which there is nothing to resample. Ranks float64 [n], step int [n].
    """
    by_step, difference = paired_gains(before, after, step)["mrr"], 1 / after - 1 / before
    apart = ERRORS * float(difference.std()) / math.sqrt(len(difference))
    return by_step.value, min(by_step.low, by_step.value - apart), max(by_step.high, by_step.value + apart)


def beyond(gain: Sequence[float]) -> bool:
    """Whether a gain with its 95 % interval is more than a standard error."""
    value, low, _ = gain
    return value > (value - low) / ERRORS

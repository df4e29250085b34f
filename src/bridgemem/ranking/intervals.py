"""Intervals: paired bootstrap of a gain, resampling whole steps, since queries of one day share their events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridgemem.ranking.metrics import METRICS, per_query

REPLICATES = 2000
ERRORS = 1.96  # standard errors to either end of a 95 % interval
LEAST, ROUGH = 3, 10  # steps: with fewer than the first there is no interval, with fewer than the second a rough one
NONE = (-1.0, 1.0)  # what stands for no interval: all that a difference in these metrics can be


@dataclass(frozen=True)
class Gain:
    """A paired difference of one metric with its 95 % interval."""

    value: float
    low: float
    high: float


def paired_gains(before: np.ndarray, after: np.ndarray, step: np.ndarray, seed: int = 0) -> dict[str, Gain]:
    """The gain of each metric from one set of ranks to another on the same queries (float64 [n] each, step int [n]).

    Of fewer than LEAST steps nothing can be resampled: the ends are then NONE.
    """
    found = _by_step(before, after, step, seed)
    if len(np.unique(step)) >= LEAST:
        return found
    return {name: Gain(gain.value, *NONE) for name, gain in found.items()}


def steps_note(steps: int) -> str:
    """What is said under a table of intervals from few steps; empty where they are enough."""
    if steps >= ROUGH:
        return ""
    counted = "1 step" if steps == 1 else f"{steps} steps"
    return f"{counted}: " + ("too few for an interval." if steps < LEAST else "the interval is rough.")


def _by_step(before: np.ndarray, after: np.ndarray, step: np.ndarray, seed: int = 0) -> dict[str, Gain]:
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
    by_step, difference = _by_step(before, after, step)["mrr"], 1 / after - 1 / before
    apart = ERRORS * float(difference.std()) / math.sqrt(len(difference))
    return by_step.value, min(by_step.low, by_step.value - apart), max(by_step.high, by_step.value + apart)


def beyond(gain: Sequence[float]) -> bool:
    """Whether a gain with its 95 % interval is more than a standard error."""
    value, low, _ = gain
    return value > (value - low) / ERRORS


def seeded_gains(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], step: np.ndarray, seed: int = 0
) -> dict[str, tuple[Gain, float]]:
    """The gain of each metric between two methods with several seeds each, and a two-sided p-value of no difference.

    before, after: the ranks of every seed, float64 [n] each, of the same queries. Whole steps are resampled, and of
    each method that has several seeds the seeds too, as a second level: the interval is of a difference that holds for
    other days and other seeds. The p-value is the share of resampled differences on the other side of zero, twice.
    """
    _, cluster = np.unique(step, return_inverse=True)
    steps = int(cluster.max()) + 1
    sizes, random = np.bincount(cluster, minlength=steps), np.random.default_rng(seed)
    draws = random.multinomial(steps, np.full(steps, 1 / steps), size=REPLICATES)

    def resampled(seeds: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        each = np.stack([per_query(ranks) for ranks in seeds])
        sums = np.stack(
            [[np.bincount(cluster, weights=own[:, m], minlength=steps) for m in range(len(METRICS))] for own in each]
        )
        means = np.einsum("rk,smk->rsm", draws.astype(float), sums) / (draws @ sizes)[:, None, None]
        weight = np.ones((REPLICATES, 1))
        if len(seeds) > 1:
            weight = random.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=REPLICATES) / len(seeds)
        return each.mean(axis=(0, 1)), (means * weight[:, :, None]).sum(axis=1)

    old, old_drawn = resampled(before)
    new, new_drawn = resampled(after)
    difference = new_drawn - old_drawn
    low, high = np.quantile(difference, [0.025, 0.975], axis=0)
    # one more on either side, since no number of draws shows that there is none
    least = np.minimum((difference <= 0).sum(axis=0), (difference >= 0).sum(axis=0))
    p = np.minimum(1.0, 2 * (least + 1) / (REPLICATES + 1))
    point = new - old
    if steps < LEAST:
        return {name: (Gain(float(point[m]), *NONE), 1.0) for m, name in enumerate(METRICS)}
    return {name: (Gain(float(point[m]), float(low[m]), float(high[m])), float(p[m])) for m, name in enumerate(METRICS)}


def holm(p: Sequence[float]) -> list[float]:
    """p-values of several comparisons, corrected by Holm's method: the chance of any false one stays below each.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        corrected[i] = largest
    return corrected

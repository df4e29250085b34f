"""Numerics: which operations give the same bits whatever stands next to a value, and what to use instead of the others.

Measured with torch on a CPU (plain, AVX2 and AVX-512 kernels, one and two threads):

- The same bits wherever an element stands: + - * /, sqrt, rsqrt, exp, expm1, log, log1p, comparisons, cumsum along a
  row, gathers; softmax and log_softmax of a row of the same length. Sums of integers are exact in any order.
- Other bits near the end of a tensor, where a scalar loop takes over from the vector one: sigmoid, softplus, pow, gelu.
- Other bits with another row length: every reduction. With another number of rows: matrix products, and the sum of a
  single long row, which is cut into one piece for each thread.

So what a forecast reads is cut down to what was known before its step, and never only masked: `by_candidates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

LOWEST = -80.0  # e to less is no normal number in single precision: nothing next to 1, and slow to compute


def by_candidates(function: Callable[[Tensor], Tensor], score: Tensor, fill: float = 0.0) -> Tensor:
    """A row-wise function of scores [n, E], computed on the candidates of each row alone.

    A score of -inf belongs to no candidate: its column is cut out of the row before the function sees it, so that a
    name that comes later changes no bit. function: [k, candidates] -> [k, candidates] or [k]. The first kind gives
    [n, E], filled where there is no candidate, the second [n].
    """
    if not score.numel() or score.amin() != -torch.inf:
        return function(score)
    absent = score == -torch.inf
    made: Tensor | None = None
    for rows, columns in _alike(absent):
        part = function(score[rows[:, None], columns])
        if made is None:
            made = part.new_full(score.shape if part.dim() == 2 else score.shape[:1], fill)
        if part.dim() == 2:
            made[rows[:, None], columns] = part
        else:
            made[rows] = part
    assert made is not None
    return made


def _alike(absent: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows with the same columns present, and these columns; bool [n, E] -> int64 [k] and int64 [candidates].

    Who was known before a step was known before every later one, so rows of one count are alike; others go one by one.
    """
    count = absent.sum(1)
    for size in count.unique():
        rows = (count == size).nonzero().squeeze(1)
        own = absent[rows]
        for group in [rows] if bool((own == own[0]).all()) else rows.split(1):
            yield group, (~absent[group[0]]).nonzero().squeeze(1)


def exponentials(score: Tensor) -> tuple[Tensor, Tensor]:
    """e to the scores [n, E] less the highest of their row, float32 [n, E], and the sums of the rows, float64 [n].

    Their quotient is a softmax: single precision is plenty for numbers of at most 1, and half the memory to go through.
    A score of -inf, which belongs to no candidate, gives 0.
    """

    def powers(own: Tensor) -> Tensor:
        return (own - own.amax(1, keepdim=True)).float().clamp_(min=LOWEST).exp_()

    if not score.numel() or score.amin() != -torch.inf:
        found = powers(score) if score.numel() else score.float()
        return found, row_sums(found)
    return by_candidates(powers, score), by_candidates(lambda own: row_sums(powers(own)), score)


def row_sums(values: Tensor) -> Tensor:
    """Sums of the rows of [n, m], float64 [n]; a single row is summed as one of many would be."""
    if len(values) != 1:
        return values.sum(1, dtype=torch.float64)
    return values.repeat(2, 1).sum(1, dtype=torch.float64)[:1]


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. A sum is quicker than a look at each, and of finite ones mostly finite."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), the same bits wherever an element stands."""
    return 1 / (1 + torch.exp(-x))

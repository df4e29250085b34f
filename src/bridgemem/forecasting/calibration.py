"""Calibration: log scores as probabilities, by two numbers fitted on validation, and how far they can be trusted.

p(c) = (1 - floor) softmax(score / temperature)(c) + floor / E. It is the probability that the partner of an event is c,
given that the event (actor, relation, ?) happens; it says nothing about whether it happens. The floor is the share of
events whose partner nothing in the scores foresaw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import BelowOne, Declared, Finite, Range, Size
from bridgemem.errors import DataError, RunError
from bridgemem.numerics import by_candidates
from bridgemem.residuals.method import Method
from bridgemem.storage.files import write_json
from bridgemem.storage.schema import read_as

FILE = "calibration.json"
# tried at first: from a sixteenth to sixteen, three to a factor of two
TEMPERATURES = tuple(2.0 ** (i / 3) for i in range(-12, 13))
BETWEEN = 8  # places between two of them that are tried afterwards
LEAST = 1e-6  # far below all that are tried
EDGES = (0.0, 0.01, 0.02, 0.05, *(i / 10 for i in range(1, 11)))


@dataclass(frozen=True)
class Calibration(Declared):
    """How scores of one method become probabilities, and the mean -log p of the answers that it was fitted on.

    raw_nll: of the scores as they are. plain_nll: with the best temperature and no floor. nll: with both numbers.
    lock: of the selection that the scores were made under.
    """

    temperature: Annotated[float, Range(ge=LEAST)]
    floor: BelowOne
    queries: Size
    raw_nll: Finite
    plain_nll: Finite
    nll: Finite
    lock: str = ""

    def probabilities(self, score: Tensor) -> Tensor:
        """float64 [n, E] of log scores [n, E]; each row sums to 1, and a score of -inf has no probability."""

        def of(score: Tensor) -> Tensor:
            p = (score.double() / self.temperature).softmax(1)
            return p.mul_(1 - self.floor).add_(self.floor / max(score.shape[1], 1))

        return by_candidates(of, score)


def answer_log_p(score: Tensor, answer: Tensor) -> Tensor:
    """What each temperature makes of the answers: log softmax float64 [n, temperatures]; score [n, E], answer [n]."""
    centred = score - score.max(1, keepdim=True).values
    own = centred.gather(1, answer[:, None]).squeeze(1)
    # single precision is plenty for a sum of numbers below 1; the largest is 1, so that the sum cannot vanish
    small, scratch = centred.float(), torch.empty_like(centred, dtype=torch.float32)
    sums = [torch.mul(small, 1 / t, out=scratch).exp_().sum(1) for t in TEMPERATURES]
    return torch.stack([own / t - s.log().double() for t, s in zip(TEMPERATURES, sums, strict=True)], dim=1)


def fit_calibration(log_p: np.ndarray, entities: int, lock: str = "") -> Calibration:
    """The temperature and floor under which the answers are likeliest; log_p float64 [n, TEMPERATURES]."""
    if not len(log_p):
        raise DataError("validation has no query to calibrate on.")
    plain = _best(log_p, entities, floored=False)
    chosen = _best(log_p, entities, floored=True)
    raw = -float(log_p[:, TEMPERATURES.index(1.0)].mean())
    return Calibration(chosen[1], chosen[2], len(log_p), raw, plain[0], chosen[0], lock)


def _best(log_p: np.ndarray, entities: int, floored: bool) -> tuple[float, float, float]:
    """(nll, temperature, floor) of the best temperature: on the grid first, then between its neighbours there."""

    last = len(TEMPERATURES) - 1

    def tried(place: float) -> tuple[float, float, float]:
        temperature = TEMPERATURES[0] * (TEMPERATURES[1] / TEMPERATURES[0]) ** place
        middle = min(max(round(place), 1), last - 1)
        near = slice(middle - 1, middle + 2)
        own = log_p[:, near] @ _parabola(1 / temperature, [1 / t for t in TEMPERATURES[near]])
        floor = _best_floor(own, entities) if floored else 0.0
        return _nll(own, floor, entities), temperature, floor

    at = min(range(last + 1), key=lambda i: tried(i)[0])
    places = (at + i / BETWEEN for i in range(-BETWEEN, BETWEEN + 1))
    return min(tried(place) for place in places if 0 <= place <= last)


def _parabola(x: float, at: list[float]) -> np.ndarray:
    """What three values count for a value between them; log p over 1 / temperature is a line and little else."""
    a, b, c = at
    weights = [(x - b) * (x - c) / ((a - b) * (a - c)), (x - a) * (x - c) / ((b - a) * (b - c))]
    return np.array([*weights, (x - a) * (x - b) / ((c - a) * (c - b))])


def _nll(log_p: np.ndarray, floor: float, entities: int) -> float:
    if floor == 0:
        return -float(log_p.mean())
    return -float(np.logaddexp(log_p + math.log1p(-floor), math.log(floor / entities)).mean())


def _best_floor(log_p: np.ndarray, entities: int) -> float:
    """The floor with the largest likelihood, which is concave in it: the place where its slope turns."""
    p, even = np.exp(log_p), 1 / entities

    def slope(floor: float) -> float:
        return float(((even - p) / ((1 - floor) * p + floor * even)).mean())

    low, high = 1e-9, 0.99
    if slope(low) <= 0:
        return 0.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return math.sqrt(low * high)


@dataclass(frozen=True)
class Bin:
    """Forecasts between two probabilities: how many, their mean probability, and the share that came true."""

    low: float
    high: float
    count: int
    probability: float
    share: float


@dataclass(frozen=True)
class Curve:
    """The reliability curve of some forecasts; empty bins are left out."""

    bins: tuple[Bin, ...]

    @classmethod
    def of(cls, probability: np.ndarray, hit: np.ndarray) -> Curve:
        """probability float [m] in [0, 1]; hit bool [m]: whether each came true."""
        place = np.clip(np.searchsorted(EDGES, probability, side="right") - 1, 0, len(EDGES) - 2)
        found = []
        for i in np.unique(place).tolist():
            own = place == i
            mean, share = float(probability[own].mean()), float(hit[own].mean())
            found.append(Bin(EDGES[i], EDGES[i + 1], int(own.sum()), mean, share))
        return cls(tuple(found))

    @property
    def count(self) -> int:
        return sum(b.count for b in self.bins)

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of a forecast's bin between probability and share."""
        return sum(b.count * abs(b.probability - b.share) for b in self.bins) / max(self.count, 1)


def write_calibrations(folder: Path, found: Mapping[Method, Calibration]) -> None:
    write_json(folder / FILE, {str(method): asdict(calibration) for method, calibration in found.items()})


def read_calibration(folder: Path, method: Method, lock: str) -> Calibration | None:
    """The calibration of one method of a run, None where it was never made; one of another selection is refused."""
    path, remedy = folder / FILE, f"`bridgemem calibrate {folder}` makes it anew"
    found = read_as(path, dict[str, Calibration], remedy, missing={}).get(str(method))
    if found is not None and found.lock != lock:
        raise RunError(f"{path} was made under another selection; {remedy}.")
    return found

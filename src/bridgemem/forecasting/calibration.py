"""Calibration: log scores as probabilities, fitted on validation, and how far they can be trusted.

p(c) = (1 - floor) softmax(score / temperature)(c) + floor / E. It is the probability that the partner of an event is c,
given that the event (actor, relation, ?) happens; it says nothing about whether it happens. The floor is the share of
events whose partner nothing in the scores foresaw. The probability of the best candidate is then read from a rising
curve, how often the best one came true where it had that probability; the others keep their shares of the rest.

Several steps at once: that c comes at least once in a window, given that anybody does, is 1 - exp(-e^z) with
z = (1 + slope ln h) ln(-ln(1 - p)) + steps ln h + (1 + draws) ln m + (1 + growth) ln(n / m), where a single step holds
m events on average, and a window of h steps n. With four zeros that is 1 - (1 - p)^n, n independent draws. Real ones
are not: the events of one step have different partners, those of later steps repeat them, and a partner of the seventh
step is foreseen less well than one of the first. The best candidate is then read from a rising curve of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import BelowOne, Declared, Finite, NotNegative, Range, Share, Size
from bridgemem.errors import DataError, RunError
from bridgemem.numerics import LOWEST, by_candidates, exponentials
from bridgemem.residuals.method import Method
from bridgemem.storage.files import write_json
from bridgemem.storage.schema import read_as

FILE = "calibration.json"
# tried at first: from a sixteenth to sixteen, three to a factor of two
TEMPERATURES = tuple(2.0 ** (i / 3) for i in range(-12, 13))
BETWEEN = 8  # places between two of them that are tried afterwards
LEAST = 1e-6  # far below all that are tried
GROUPS = 12  # of queries by the probability of the best candidate, whose shares make the curve
FEWEST = 40  # queries of a group
PRIOR = 10.0  # queries that the probability itself counts for in each group
LATE_SHARE = 0.8  # of the fitted queries that lie before the later part, which is measured
TOLERATED = 0.1  # between what was stated and what came true, in a bin of later validation
RIDGE = 1e-3  # holds the four numbers of a horizon near 0 where little speaks against it
NEWTON_STEPS, HALVED = 50, 20  # at most
LEAST_SLOPE = 0.1  # of ln(-ln(1 - p)), so that the order stays at any horizon
EDGES = (0.0, 0.01, 0.02, 0.05, *(i / 10 for i in range(1, 11)))


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
    def of(cls, probability: np.ndarray, hit: np.ndarray, weight: np.ndarray | None = None) -> Curve:
        """probability float [m] in [0, 1]; hit bool [m]: whether each came true; weight: how many each stands for."""
        place = np.clip(np.searchsorted(EDGES, probability, side="right") - 1, 0, len(EDGES) - 2)
        weight = np.ones(len(probability)) if weight is None else weight
        found = []
        for i in np.unique(place).tolist():
            own = place == i
            mean, share = (float(np.average(values[own], weights=weight[own])) for values in (probability, hit))
            found.append(Bin(EDGES[i], EDGES[i + 1], round(float(weight[own].sum())), mean, share))
        return cls(tuple(found))

    @property
    def count(self) -> int:
        return sum(b.count for b in self.bins)

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of a forecast's bin between probability and share."""
        return sum(b.count * abs(b.probability - b.share) for b in self.bins) / max(self.count, 1)


@dataclass(frozen=True)
class Stated(Declared):
    """What a probability was worth on later validation: the error over all bins, and the bin that was furthest off."""

    horizon: Size
    forecasts: Size
    error: NotNegative
    stated: Share
    came_true: Share

    @classmethod
    def of(cls, horizon: int, p: np.ndarray, hit: np.ndarray, weight: np.ndarray | None = None) -> Stated:
        """Of probabilities float64 [m] and whether they came true; where all bins hold few, all forecasts are one."""
        curve, drawn = Curve.of(p, hit, weight), Curve.of(p, hit)
        bins = [b for b, own in zip(curve.bins, drawn.bins, strict=True) if own.count >= 2 * FEWEST]
        overall = float(np.average(p, weights=weight)), float(np.average(hit, weights=weight))
        read = [(b.probability, b.share) for b in bins] or [overall]
        stated, came_true = max(read, key=lambda of: abs(of[0] - of[1]))
        return cls(horizon, len(p), curve.error, min(stated, 1.0), min(came_true, 1.0))

    @property
    def remark(self) -> str:
        """What a user should know before trusting such probabilities; empty where nothing is amiss."""
        if abs(self.stated - self.came_true) < TOLERATED:
            return ""
        return f"stated {self.stated:.0%}, came true {self.came_true:.0%} on the last part of validation"


@dataclass(frozen=True)
class OverSteps(Declared):
    """How the probability of one event's partner becomes that of coming at least once in several steps.

    knots: as of a `Calibration`, for the best candidate of more than one step.
    """

    slope: Finite = 0.0
    steps: Finite = 0.0
    draws: Finite = 0.0
    growth: Finite = 0.0
    knots: tuple[tuple[Share, ...], ...] = ()

    def at_least_once(self, p: Tensor, draws: Tensor, horizon: int) -> Tensor:
        """Probabilities float64 [n, k] of coming at least once.

        p float64 [n, k] of one event's partner, best first, two at least where there are two candidates; draws float64
        [n, 2]: mean events of a step and of the window.
        """
        made = _at_least_once(torch.tensor([self.slope, self.steps, self.draws, self.growth]), p, draws, horizon)
        if not self.knots or horizon == 1 or made.shape[1] < 2:
            return made
        best, second = made[:, :1], made[:, 1:2]
        curve = torch.from_numpy(curve_at(self.knots, best.cpu().numpy())).to(best.device)
        # it stays the best, and of two that are equally good neither gains
        best = torch.where(best > second, torch.maximum(curve, second), best)
        return torch.cat([best, made[:, 1:]], dim=1)

    @classmethod
    def fit(cls, read: Sequence[tuple[int, Tensor, Tensor, Tensor]]) -> OverSteps:
        """The numbers under which what came is likeliest, each horizon counting the same; none are 0. And the curve.

        read: by horizon p float64 [n, k], best first, draws float64 [n, 2], and whether each came, bool [n, k].
        """
        read = [one for one in read if len(one[1])]

        def loss(numbers: Tensor) -> Tensor:
            total = RIDGE * numbers.square().sum()
            for horizon, p, draws, came in read:
                stated = _at_least_once(numbers, p, draws, horizon).clamp(LEAST, 1 - LEAST)
                total = total - torch.where(came, stated, 1 - stated).log().sum() / (len(read) * len(p))
            return total

        numbers = torch.zeros(4, dtype=torch.float64)
        numbers = _least(loss, numbers) if read else numbers
        ahead = [(_at_least_once(numbers, p[:, :1], draws, h), came[:, :1]) for h, p, draws, came in read if h > 1]
        best, came = (torch.cat(column).flatten().numpy() for column in zip(*ahead, strict=True)) if ahead else ((), ())
        slope, steps, draws, growth = numbers.tolist()
        return cls(slope, steps, draws, growth, rising(np.asarray(best), np.asarray(came)))


def _least(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Where a loss of a few numbers float64 [k] is least, from a place on: Newton's steps, halved until they help.

    The first use of any of torch's optimizers in a process loads a compiler, for far longer than this takes.
    """
    for _ in range(NEWTON_STEPS):
        here = at.requires_grad_()
        value = loss(here)
        (slope,) = torch.autograd.grad(value, here, create_graph=True)
        bends = torch.stack([torch.autograd.grad(one, here, retain_graph=True)[0] for one in slope])
        with torch.no_grad():
            bend, axes = torch.linalg.eigh(bends)
            # along an axis that bends down, too, a step leads to where the loss is smaller
            step = axes @ ((axes.T @ slope) / bend.abs().clamp(min=RIDGE))
            tried = (here - step / 2**i for i in range(HALVED))
            better = next((one for one in tried if loss(one) < value), None)
        if better is None:
            break
        at = better
    return at.detach()


def _at_least_once(numbers: Tensor, p: Tensor, draws: Tensor, horizon: int) -> Tensor:
    slope, steps, more, growth = numbers.to(p.device)
    far, inside = math.log(horizon), p.clamp(1e-300, 1 - 1e-12)
    z = (1 + slope * far).clamp(min=LEAST_SLOPE) * torch.log(-torch.log1p(-inside))
    one, window = draws.log().unbind(1)
    z = z + steps * far + ((1 + more) * one + (1 + growth) * (window - one))[:, None]
    return torch.where(p > 0, -torch.expm1(-z.exp()), 0.0)


@dataclass(frozen=True)
class Calibration(Declared):
    """How scores of one method become probabilities, and the mean -log p of the answers that it was fitted on.

    raw_nll: of the scores as they are. plain_nll: with the best temperature and no floor. nll: with both numbers.
    lock: of the selection that the scores were made under. knots: (probability of the best candidate, share that came
    true), both rising; none where there were too few queries. late: what the probability of the best was worth on the
    later part of the queries, as fitted on those before; None where there were too few. over_steps: for horizons.
    """

    temperature: Annotated[float, Range(ge=LEAST)]
    floor: BelowOne
    queries: Size
    raw_nll: Finite
    plain_nll: Finite
    nll: Finite
    lock: str = ""
    knots: tuple[tuple[Share, ...], ...] = ()
    late: Stated | None = None
    over_steps: OverSteps = OverSteps()

    def probabilities(self, score: Tensor) -> Tensor:
        """float64 [n, E] of log scores [n, E]; each row sums to 1, and a score of -inf has no probability."""

        def of(score: Tensor) -> Tensor:
            p = self._shares(score)
            return self._by_curve(p, p.topk(2, dim=1).indices) if self.knots and p.shape[1] > 1 else p

        return by_candidates(of, score)

    def of_best(self, score: Tensor, best: Tensor) -> Tensor:
        """`probabilities` of the best candidates of each row alone, int64 [n, k], best first: float64 [n, k]."""
        if not self.knots or best.shape[1] < 2:
            return self.probabilities(score).gather(1, best)
        # of the others no more is needed than the sum and how many they are
        powers, total = exponentials(score / self.temperature)
        candidates = (score > -torch.inf).sum(1, keepdim=True)
        p = self._floored(powers.gather(1, best).double() / total[:, None], candidates)
        p = p.where(score.gather(1, best) > -torch.inf, 0.0)
        return self._by_curve(p, torch.arange(2, device=p.device).expand(len(p), 2))

    def _shares(self, score: Tensor) -> Tensor:
        powers, total = exponentials(score / self.temperature)
        return self._floored(powers.double() / total[:, None], max(score.shape[1], 1))

    def _floored(self, p: Tensor, candidates: Tensor | int) -> Tensor:
        """Shares with the floor that all candidates have alike."""
        return p.mul_(1 - self.floor).add_(self.floor / candidates)

    def _by_curve(self, p: Tensor, first: Tensor) -> Tensor:
        """Give the best candidate of each row the share of the curve, and the others what is left.

        first int64 [n, 2]: where the best two are.
        """
        (best, second), at = p.gather(1, first).split(1, dim=1), first[:, :1]
        wanted = torch.from_numpy(curve_at(self.knots, best.cpu().numpy())).to(p.device)
        # it stays the best, and of two that are equally good neither gains
        least = second / (1 - best + second).clamp(min=LEAST)
        wanted = torch.where(best > second, torch.maximum(wanted, least), best)
        rest = (1 - wanted) / (1 - best).clamp(min=LEAST)
        return torch.where(best < 1, p * rest, p).scatter_(1, at, torch.where(best < 1, wanted, best))


def curve_at(knots: tuple[tuple[float, ...], ...], p: np.ndarray) -> np.ndarray:
    """The share on the curve for probabilities float64 [n]; the curve begins at (0, 0) and ends at (1, 1)."""
    x, y = zip((0.0, 0.0), *knots, (1.0, 1.0), strict=True)
    return np.interp(p, x, y)


@dataclass(frozen=True)
class LogP:
    """What each temperature makes of queries: log softmax of the answer and of the best, float64 [n, TEMPERATURES].

    hit bool [n]: whether the best is the answer. step int64 [n].
    """

    answer: np.ndarray
    best: np.ndarray
    hit: np.ndarray
    step: np.ndarray

    def __len__(self) -> int:
        return len(self.hit)

    def take(self, rows: np.ndarray) -> LogP:
        return LogP(self.answer[rows], self.best[rows], self.hit[rows], self.step[rows])

    @classmethod
    def of(cls, score: Tensor, answer: Tensor, step: Tensor) -> LogP:
        """score float64 [n, E], answer, step int64 [n]."""
        centred = score - score.max(1, keepdim=True).values
        own = centred.gather(1, answer[:, None]).squeeze(1)
        # single precision is plenty for a sum of numbers below 1; the largest is 1, so that the sum cannot vanish
        small, scratch = centred.float(), torch.empty_like(centred, dtype=torch.float32)
        sums = [
            torch.mul(small, 1 / t, out=scratch).clamp_(min=LOWEST).exp_().sum(1).log().double() for t in TEMPERATURES
        ]
        of_answer = torch.stack([own / t - total for t, total in zip(TEMPERATURES, sums, strict=True)], dim=1)
        columns = (of_answer, -torch.stack(sums, dim=1), centred.argmax(1) == answer, step)
        return cls(*(column.cpu().numpy() for column in columns))

    @classmethod
    def joined(cls, parts: Sequence[LogP]) -> LogP:
        names = ("answer", "best", "hit", "step")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def fit_calibration(found: LogP, entities: int, lock: str = "") -> Calibration:
    """The temperature and floor under which the answers are likeliest, and the curve of the best candidate."""
    if not len(found):
        raise DataError("validation has no query to calibrate on; give it a larger share of the events.")
    plain = _best(found.answer, entities, floored=False)
    chosen = _best(found.answer, entities, floored=True)
    raw = -float(found.answer[:, TEMPERATURES.index(1.0)].mean())
    numbers = (chosen[1], chosen[2], len(found), raw, plain[0], chosen[0], lock)
    return Calibration(*numbers, _curve(found, *chosen[1:], entities))


def with_late(found: LogP, entities: int, lock: str = "") -> Calibration:
    """The calibration of all queries, and what one of the earlier ones was worth on the later ones."""
    made, cut = fit_calibration(found, entities, lock), int(np.ceil(np.quantile(found.step, LATE_SHARE)))
    early, late = np.flatnonzero(found.step < cut), np.flatnonzero(found.step >= cut)
    if min(len(early), len(late)) < 2 * FEWEST:
        return made
    before, later = fit_calibration(found.take(early), entities), found.take(late)
    stated = curve_at(before.knots, _best_p(later, before.temperature, before.floor, entities))
    return replace(made, late=Stated.of(1, stated, later.hit))


def _best_p(found: LogP, temperature: float, floor: float, entities: int) -> np.ndarray:
    """The probability of the best candidate before the curve, float64 [n]."""
    return (1 - floor) * np.exp(_between(found.best, temperature)) + floor / entities


def _curve(found: LogP, temperature: float, floor: float, entities: int) -> tuple[tuple[float, ...], ...]:
    """How often the best came true, by its probability."""
    return rising(_best_p(found, temperature, floor, entities), found.hit)


def rising(p: np.ndarray, hit: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Knots of a curve from probabilities float64 [n] to how many came true, bool [n]; none where these are few.

    Groups of close probabilities are pooled until their shares rise.
    """
    groups = min(GROUPS, len(p) // FEWEST)
    if groups < 2:
        return ()
    pooled: list[list[float]] = []  # probability, share and weight, the first two times the third
    for own in np.array_split(np.argsort(p, kind="stable"), groups):
        stated, hits = float(p[own].sum()), float(hit[own].sum())
        weight = len(own) + PRIOR
        mean = stated / len(own)
        pooled.append([mean * weight, hits + PRIOR * mean, weight])
        while len(pooled) > 1 and pooled[-2][1] * pooled[-1][2] >= pooled[-1][1] * pooled[-2][2]:
            last = pooled.pop()
            pooled[-1] = [a + b for a, b in zip(pooled[-1], last, strict=True)]
    return tuple((min(x / w, 1.0), min(y / w, 1.0)) for x, y, w in pooled)


def _between(log_p: np.ndarray, temperature: float) -> np.ndarray:
    """Columns of temperatures, float64 [n, TEMPERATURES], at one between them."""
    place = math.log(temperature / TEMPERATURES[0]) / math.log(TEMPERATURES[1] / TEMPERATURES[0])
    middle = min(max(round(place), 1), len(TEMPERATURES) - 2)
    near = slice(middle - 1, middle + 2)
    with np.errstate(invalid="ignore"):  # what is impossible ends in a loss that is refused, in one sentence
        return log_p[:, near] @ _parabola(1 / temperature, [1 / t for t in TEMPERATURES[near]])


def _best(log_p: np.ndarray, entities: int, floored: bool) -> tuple[float, float, float]:
    """(nll, temperature, floor) of the best temperature: on the grid first, then between its neighbours there."""

    last = len(TEMPERATURES) - 1

    def tried(place: float) -> tuple[float, float, float]:
        temperature = TEMPERATURES[0] * (TEMPERATURES[1] / TEMPERATURES[0]) ** place
        own = _between(log_p, temperature)
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
    with np.errstate(invalid="ignore"):
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


def write_calibrations(folder: Path, found: Mapping[Method, Calibration]) -> None:
    write_json(folder / FILE, {str(method): asdict(calibration) for method, calibration in found.items()})


def read_calibration(folder: Path, method: Method, lock: str) -> Calibration | None:
    """The calibration of one method of a run, None where it was never made; one of another selection is refused."""
    path, remedy = folder / FILE, f"`bridgemem calibrate {folder}` makes it anew"
    found = read_as(path, dict[str, Calibration], remedy, missing={}).get(str(method))
    if found is not None and found.lock != lock:
        raise RunError(f"{path} was made under another selection; {remedy}.")
    return found

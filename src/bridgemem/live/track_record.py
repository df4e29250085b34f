"""Track record: how good the issued forecasts of a ledger were, next to naive rules.

p_event and p_given_event are scored apart. A claim whose condition was never met, and one whose window is not over,
is not scored. A claim of which some of several events came true counts as that share of a hit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from bridgemem.errors import SettingsError
from bridgemem.events.log import Clock
from bridgemem.forecasting.calibration import Bin, Curve
from bridgemem.live.ledger import Issued, IssuedClaim, Ledger
from bridgemem.showing import as_frame, html_table

GROUPINGS = ("all", "month", "relation", "horizon")
MONTH = 30  # steps that stand for a month where times are no dates
LEAST = 1e-6  # of a probability whose log is taken


@dataclass(frozen=True)
class Score:
    """What some probabilities were worth: of p_event or p_given_event, in one group.

    by: all, month (of the first step), relation or horizon. claims: that are scored; came_true: their mean outcome.
    brier, log_score: of the model and of both rules, lower is better. calibration_error: in the fixed bins.
    """

    probability: str
    by: str
    group: str
    claims: int
    came_true: float
    brier: float
    brier_base_rate: float
    brier_persistence: float
    log_score: float
    log_score_base_rate: float
    log_score_persistence: float
    calibration_error: float


@dataclass(frozen=True)
class TrackRecord:
    """The scores of a ledger; prints as a table. void: claims whose condition was never met. curves: by probability."""

    forecasts: int
    claims: int
    open: int
    void: int
    scores: tuple[Score, ...]
    curves: dict[str, tuple[Bin, ...]]

    header: ClassVar[list[str]] = [
        *("probability", "group", "claims", "came true", "Brier", "base rate", "persistence"),
        *("log score", "base rate", "persistence", "calibration error"),
    ]

    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        return [
            [
                one.probability,
                one.group,
                f"{one.claims:,}",
                f"{one.came_true:.1%}",
                *(f"{v:.4f}" for v in (one.brier, one.brier_base_rate, one.brier_persistence)),
                *(f"{v:.4f}" for v in (one.log_score, one.log_score_base_rate, one.log_score_persistence)),
                f"{one.calibration_error:.4f}",
            ]
            for one in self.scores
        ]

    def to_frame(self) -> Any:
        """The scores as a pandas data frame; a dict of columns where pandas is not installed."""
        rows = list(map(asdict, self.scores))
        return as_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})

    def __str__(self) -> str:
        lines = [self.header, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in lines)

    def _repr_html_(self) -> str:
        return html_table(self.sentence(), self.header, self.rows())

    def sentence(self) -> str:
        """How much there is."""
        scored = self.claims - self.open - self.void
        return (
            f"{self.forecasts:,} forecast{'s' * (self.forecasts != 1)} with {self.claims:,} probabilities: "
            f"{scored:,} scored, {self.open:,} open, {self.void:,} whose condition was not met"
        )


def track_record(ledger: Ledger, *, by: str = "all") -> TrackRecord:
    """Resolve what can be resolved, and score it.

    Args:
        ledger: Of an event store.
        by: "all", or the rows of each "month", "relation" or "horizon".
    """
    if by not in GROUPINGS:
        raise SettingsError(f"scores are grouped by {', '.join(GROUPINGS[:-1])} or {GROUPINGS[-1]}, not {by!r}.")
    if not ledger.store.read_only:
        ledger.resolve()
    issued = ledger.forecasts()
    pairs = [(forecast, claim) for forecast in issued for claim in forecast.claims]
    scored = [(forecast, claim) for forecast, claim in pairs if claim.state not in ("open", "void")]
    groups: dict[tuple[str, str], list[IssuedClaim]] = defaultdict(list)
    name = _grouping(by, ledger.store.clock or Clock())
    for forecast, claim in scored:
        groups[claim.probability, name(forecast, claim)].append(claim)
    states = [claim.state for _, claim in pairs]
    whole: dict[str, list[IssuedClaim]] = defaultdict(list)
    for _, claim in scored:
        whole[claim.probability].append(claim)
    return TrackRecord(
        forecasts=len(issued),
        claims=len(pairs),
        open=states.count("open"),
        void=states.count("void"),
        scores=tuple(_score(probability, by, group, own) for (probability, group), own in sorted(groups.items())),
        curves={probability: _curve(*_stated(own)).bins for probability, own in sorted(whole.items())},
    )


def _grouping(by: str, clock: Clock) -> Callable[[Issued, IssuedClaim], str]:
    if by == "month":
        return lambda forecast, claim: _month(forecast.step, clock)
    if by == "relation":
        return lambda forecast, claim: claim.claim.relation or "any"
    if by == "horizon":
        return lambda forecast, claim: f"{forecast.horizon:>4} step{'s' * (forecast.horizon != 1)}"
    return lambda forecast, claim: "all"


def _month(step: int, clock: Clock) -> str:
    if clock.kind == "date":
        return clock.label(step)[:7]
    first = step // MONTH * MONTH
    return f"{clock.label(first)} to {clock.label(first + MONTH - 1)}"


def _stated(claims: Iterable[IssuedClaim]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the model and of both rules float64 [3, n], and the outcome of each claim float64 [n]."""
    own = list(claims)
    p = np.array([[c.claim.p, c.claim.base_rate, c.claim.persistence] for c in own], np.float64).reshape(-1, 3).T
    return p, np.array([(c.hits or 0) / max(c.total or 1, 1) for c in own], np.float64)


def _curve(p: np.ndarray, hit: np.ndarray) -> Curve:
    # a share of a hit is that much of a hit and the rest of a miss
    both = np.concatenate([p[0], p[0]]), np.repeat([True, False], len(hit)), np.concatenate([hit, 1 - hit])
    some = both[2] > 0
    return Curve.of(*(column[some] for column in both))


def _score(probability: str, by: str, group: str, claims: list[IssuedClaim]) -> Score:
    p, hit = _stated(claims)
    briers = (hit * (1 - p) ** 2 + (1 - hit) * p**2).mean(1).tolist()
    safe = np.clip(p, LEAST, 1 - LEAST)
    logs = (-hit * np.log(safe) - (1 - hit) * np.log1p(-safe)).mean(1).tolist()
    return Score(
        probability=probability,
        by=by,
        group=group.strip(),
        claims=len(claims),
        came_true=float(hit.mean()),
        brier=briers[0],
        brier_base_rate=briers[1],
        brier_persistence=briers[2],
        log_score=logs[0],
        log_score_base_rate=logs[1],
        log_score_persistence=logs[2],
        calibration_error=_curve(p, hit).error,
    )

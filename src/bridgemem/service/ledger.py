"""The ledger over HTTP: answers that are issued as they go out, the list of them, and what they were worth."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Query
from pydantic import Field

from bridgemem.errors import SettingsError
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.ledger import Issued, Ledger
from bridgemem.live.storefile import StoreError
from bridgemem.service.models import MOST_ISSUED, Answer

LOG = logging.getLogger(__name__)
ASSUMED = "Not issued: it rests on assumed events."
NO_STORE = "Not issued: the event store cannot be written now."

Grouping = Literal["all", "month", "relation", "horizon"]
Last = Annotated[int, Query(ge=1, le=MOST_ISSUED, description="That many, those that were issued last.")]
Number = Annotated[
    int | None, Query(ge=1, lt=1 << 63, description="One forecast alone, by the number that its answer carried.")
]


class ClaimTold(Answer):
    """One probability of an issued forecast; null stands for anyone or anything.

    base_rate, persistence: what naive rules said. hits of total: events, once the window is over. changes: how often
    it was resolved.
    """

    id: int
    subject: str | None
    relation: str | None
    object: str | None
    probability: Literal["p_event", "p_given_event"]
    p: float
    base_rate: float
    persistence: float
    state: Literal["open", "yes", "no", "partly", "void"]
    hits: int | None
    total: int | None
    resolved: str | None
    changes: int


class IssuedTold(Answer):
    """A forecast as it was issued, from what was known before `as_of`, and its outcome."""

    id: int
    issued: str = Field(description="When.")
    version: str = Field(description="Of the model.")
    query: str = Field(description="who, what, partners, whether or outlook.")
    subject: str | None
    relation: str | None
    object: str | None
    as_of: str
    time: str
    until: str
    step: int
    horizon: int
    claims: list[ClaimTold]


class IssuedForecasts(Answer):
    """Issued forecasts, in the order in which they were issued."""

    forecasts: list[IssuedTold]


class ScoreTold(Answer):
    """Scores of the probabilities of one group, next to both naive rules; lower is better."""

    probability: Literal["p_event", "p_given_event"]
    by: Grouping
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


class TrackRecordTold(Answer):
    """Scores of issued forecasts. open: claims whose window is not over; void: whose condition was never met."""

    forecasts: int
    claims: int
    open: int
    void: int
    scores: list[ScoreTold]


class Issuer:
    """Issues the answers of a service into the ledger of its store.

    The same query, asked again of the same model before anything new comes, is the forecast that was issued already.
    """

    def __init__(self, store: EventStore) -> None:
        self._ledger = Ledger(store)
        self._made: WeakKeyDictionary[Predictor, dict[str, int]] = WeakKeyDictionary()

    def issue(self, asked: str, found: Any, predictor: Predictor, version: str) -> tuple[int | None, str | None]:
        """The number of an answer in the ledger, or None and a sentence that says why it was not issued."""
        return self.issue_all({asked: found}, predictor, version)[asked]

    def issue_all(
        self, found: Mapping[str, Any], predictor: Predictor, version: str
    ) -> dict[str, tuple[int | None, str | None]]:
        """The same for several answers by what was asked, in one transaction."""
        made = self._made.setdefault(predictor, {})
        new = {asked: one for asked, one in found.items() if asked not in made}
        why: dict[str, str] = {}
        try:
            numbers = self._ledger.issue_all(list(new.values()), predictor=predictor, version=version) if new else []
            for asked, number in zip(new, numbers, strict=True):
                if isinstance(number, SettingsError):
                    why[asked] = f"Not issued: {number}"
                else:
                    made[asked] = number
        except StoreError as problem:
            LOG.warning("could not record the forecasts in the ledger: %s", problem)
            why = dict.fromkeys(new, NO_STORE)
        return {asked: (made.get(asked), why.get(asked)) for asked in found}


def ledger_router(store: EventStore, refusals: Callable[..., dict[int | str, dict[str, Any]]]) -> APIRouter:
    """The addresses that read the ledger; all are resolved first, as far as the stored events reach."""
    router, ledger = APIRouter(tags=["ledger"]), Ledger(store)

    @router.get("/v1/ledger", summary="List issued forecasts", responses=refusals(404, 422))
    def issued(last: Last = 20, forecast: Number = None) -> IssuedForecasts:
        """The latest issued forecasts, of this service or of a command, and their outcomes."""
        ledger.resolve()
        return issued_told(ledger.forecasts(last=last, forecast=forecast))

    @router.get("/v1/ledger/score", summary="Score issued forecasts", responses=refusals(422))
    def score(by: Grouping = "all") -> TrackRecordTold:
        """Brier score, log score and calibration of issued forecasts by month, relation or horizon, next to rules."""
        return TrackRecordTold.model_validate(ledger.score(by=by))

    return router


def issued_told(found: Sequence[Issued]) -> IssuedForecasts:
    """Forecasts of a ledger in the shape that goes out."""
    return IssuedForecasts(forecasts=[_told(one) for one in found])


def _told(one: Issued) -> IssuedTold:
    claims = [
        ClaimTold(
            **{
                name: getattr(c, name)
                for name in ("id", "probability", "state", "hits", "total", "resolved", "changes")
            },
            **{
                name: getattr(c.claim, name)
                for name in ("subject", "relation", "object", "p", "base_rate", "persistence")
            },
        )
        for c in one.claims
    ]
    return IssuedTold(**{name: value for name, value in vars(one).items() if name != "claims"}, claims=claims)

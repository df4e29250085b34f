"""Requests and answers of the service, as checked shapes; its OpenAPI document is made of them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

MOST_EVENTS = 10_000
MOST_QUERIES = 1000
MOST_CANDIDATES = 1000
MOST_ANSWERS = 100_000  # candidates of all queries of one request
MOST_NAMES = 1000
MOST_RETRACTED = 1000
MOST_STORED = 1000
MOST_ISSUED = 100  # each has a claim for every candidate
MOST_ASSUMED = 100
LONGEST_HORIZON = 10_000


def told_as(what: str) -> WrapValidator:
    """Say what was wanted in one sentence, where a choice of types would give one for each of them."""

    def check(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            return read(value)
        except ValidationError:
            raise ValueError(f"this should be {what}") from None

    return WrapValidator(check)


Name = Annotated[str, Field(min_length=1, max_length=1000, description="A name of the data, in its own spelling.")]
Time = Annotated[
    Annotated[str, Field(min_length=1, max_length=100)] | Annotated[int, Field(ge=0)],
    Field(
        description="A time of the data set: a date such as 2014-12-01, where it has dates (20141201 and seconds since "
        "1970 are dates too), or a whole number, where it has numbers."
    ),
    told_as("a time: a text such as '2014-12-01', or a whole number of at least 0"),
]
Offset = Annotated[Name | int, told_as("an offset: a text of 1 to 1,000 characters, or a whole number")]
# JSON has no infinity
OrInfinite = Annotated[float | None, BeforeValidator(lambda value: None if value in (math.inf, -math.inf) else value)]


class Asked(BaseModel):
    """A request: values are not converted, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Answer(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


class Refusal(Answer):
    """Every error: one sentence that names the remedy, and names that may have been meant."""

    error: str
    suggestions: list[str] = []


class NewEvent(Asked):
    subject: Name
    relation: Name
    object: Name
    time: Time


class NewEvents(Asked):
    """A batch, which is stored as a whole or not at all. The same key again changes nothing."""

    source: Name
    key: Name = Field(description="The batch's own name in its source, by which a second delivery of it is known.")
    offset: Offset | None = Field(
        None, description="Position of the batch in its source; /v1/sources lists the last one."
    )
    events: list[NewEvent] = Field(min_length=1, max_length=MOST_EVENTS)


class Received(Answer):
    """The batch is on disk, and the next forecast may use it."""

    batch: int
    accepted: int
    duplicates: int
    late: int
    replayed: bool
    ids: list[str]


class Retraction(Asked):
    """Events to take back, all of them or none. What was taken back before stays so."""

    ids: list[Name] = Field(min_length=1, max_length=MOST_RETRACTED, description="As answers to /v1/events name them.")
    reason: str = Field("", max_length=1000, description="Why; kept next to them.")


class Retracted(Answer):
    """The next forecast is as if the events had never come. already: those that were taken back before."""

    retracted: list[str]
    already: list[str]


class StoredEvent(Answer):
    """An event as it came; retracted: when it was taken back, null while it counts."""

    id: str
    subject: str
    relation: str
    object: str
    time: str
    source: str
    batch: int
    retracted: str | None
    reason: str | None


class StoredEvents(Answer):
    """What the store holds, in the order in which it came."""

    events: list[StoredEvent]


class KnownSource(Answer):
    """A source of batches: how much it sent, the key of its last batch, and its last offset."""

    source: str
    batches: int
    events: int
    duplicates: int = Field(description="Events that were known already when they came, from any source.")
    last_key: str
    last_offset: str | None


class KnownSources(Answer):
    """All sources of batches, by name."""

    sources: list[KnownSource]


Assume = Annotated[
    list[NewEvent] | None,
    Field(
        min_length=1,
        max_length=MOST_ASSUMED,
        description="What if: answer as if these events had happened, and say what they change; none is kept.",
    ),
]


class NamedQuery(Asked):
    """The relation and the time of a query."""

    relation: Name
    at: Time | None = Field(None, description="Time of the event (default: the first unknown step).")


class ForecastQuery(NamedQuery):
    """(subject, relation, ?) or (?, relation, object): the side left out is what is asked."""

    subject: Name | None = None
    object: Name | None = None
    top: int = Field(10, ge=1, le=MOST_CANDIDATES)
    horizon: int | None = Field(
        None,
        ge=1,
        le=LONGEST_HORIZON,
        description="Forecast horizon in steps from `at` on.",
    )
    assume: Assume = None


class BatchQuery(NamedQuery):
    """One of several queries: (subject, relation, ?) or (?, relation, object)."""

    subject: Name | None = None
    object: Name | None = None


class ForecastQueries(Asked):
    """Several queries that are answered together, all or none. `queries` times `top` is at most 100,000."""

    queries: Annotated[list[BatchQuery], Field(min_length=1, max_length=MOST_QUERIES)]
    top: int = Field(10, ge=1, le=MOST_CANDIDATES)
    horizon: int | None = Field(
        None, ge=1, le=LONGEST_HORIZON, description="Forecast horizon in steps from `at` on, of every query."
    )


class ExplainQuery(NamedQuery):
    """Why one side of (subject, relation, object) is an answer to the other."""

    subject: Name
    object: Name
    candidate: Literal["object", "subject"] = "object"


class RankedCandidate(Answer):
    """score = backbone_score + residual; the ranks are after and before the residual.

    p_given_event: that the partner of an event is this one, given that it happens, or with `horizon` that it comes
    at least once, given that anybody does; null where the run was never calibrated.
    """

    name: str
    rank: int
    backbone_rank: int
    score: float
    backbone_score: float
    residual: float
    p_given_event: float | None


class Forecast(Answer):
    """Made from the events strictly before `time`, and from no other; null on the side that is asked for.

    relation_label: words for a relation that is a code; null where there are none.
    """

    subject: str | None
    relation: str
    relation_label: str | None
    object: str | None
    time: str
    until: str = Field(description="The last of the steps that are asked about; `time` without a horizon.")
    step: int
    horizon: int | None
    residual: Literal["bridgemem", "learned"] | None = Field(description="Null: the backbone alone answers.")
    meaning: str = Field(description="What p_given_event is the probability of, or why there is none.")
    candidates: list[RankedCandidate]


class FromModel(Answer):
    """Names the model that gave the answer."""

    model_version: str = Field(description="The run's name, and a digest of what its answers depend on.")


class ChangeTold(Answer):
    """One answer: its probability without and with the assumed events; null where it has none."""

    answer: str
    plain: float | None
    assumed: float | None


class AssumedTold(Answer):
    """How many events were assumed, and what they change: of every answer shown, then of others that move most."""

    events: int
    probability: str = Field(description="Which one changes: p_event or p_given_event.")
    changes: list[ChangeTold]
    remark: str | None = Field(description="Which of them do not count, at or after the time asked about; else null.")


NUMBER = "Number of this forecast in the ledger; null where it was not issued, and a service that issues remarks why."


class ServedForecast(Forecast, FromModel):
    """A forecast, and the model that made it."""

    p_event: float | None = Field(
        description="With `horizon`: that there is such an event with anybody; null without, or where it is not known."
    )
    remark: str | None = Field(
        description="Where the time asked for lies far after the last known event, or why it was not issued; else null."
    )
    assumed: AssumedTold | None = Field(description="What assumed events change; null without.")
    issued: int | None = Field(None, description=NUMBER)


class BatchForecast(Forecast):
    """One of several forecasts. remark: why it was not issued, where the service issues; else null."""

    remark: str | None = None
    issued: int | None = Field(None, description=NUMBER)


class Forecasts(FromModel):
    """One forecast for each query, in their order, all by one model."""

    forecasts: list[BatchForecast]


class EventPart(Answer):
    """A remembered event, and its part of the residual; direction 1: it went from the candidate to the actor."""

    subject: str
    relation: str
    object: str
    time: str
    lag: int
    direction: int
    share: float
    part: float
    relation_label: str | None


class AttendedPart(Answer):
    """An event of the actor that a backbone with attention looked at, its share of the attention, and what it adds to
    the log score of its own partner."""

    subject: str
    relation: str
    object: str
    time: str
    lag: int
    attention: float
    added: float


class ReasonTold(Answer):
    """What happened before, in a sentence, and what it counts: `count` steps, and `of` how many where it is a share.

    kind: before (this very event), pair (any event of the two), followed (this event after any of the two), after (this
    event after one like that which matters most), share (of what the actor does, each partner counted once a step),
    common (partners of both). since, until: the first and the last time that are counted. within: steps after which
    something counts as having followed.
    """

    kind: Literal["before", "pair", "followed", "after", "share", "common"]
    sentence: str
    count: int
    of: int | None
    since: str | None
    until: str | None
    within: int | None


class Explained(Answer):
    """headline and reasons: why, in plain sentences. sentence: what made the score. score = base + residual.

    rank, backbone_rank: after and before the residual. unread: how many events between the two are of relations
    that the run was not fitted on, and no part of this.
    attended: the events of the actor that a backbone with attention looked at most.
    """

    headline: str
    reasons: list[ReasonTold]
    sentence: str
    subject: str
    relation: str
    relation_label: str | None
    object: str
    candidate: Literal["object", "subject"]
    time: str
    base: float
    uncertainty: float
    residual: float
    score: float
    rank: int
    backbone_rank: int
    events: list[EventPart]
    unread: int
    attended: list[AttendedPart]


class BridgeMemExplained(Explained):
    """residual = lam * gate * a, and the events' parts sum to it. tau null: infinite.

    likelier: how many times as likely as on average the relation is after such events. forgotten: how many steps before
    the pair's last event was where all of them are longer ago than the run looks back; else 0.
    """

    residual_name: Literal["bridgemem"]
    gate: float
    lam: float
    tau: OrInfinite
    a_ct: float
    a_nn: float
    rho: float
    a: float
    likelier: float
    forgotten: int


class EarlierPart(Answer):
    """The events before those that are listed one by one."""

    count: int
    first: str
    last: str
    share: float
    part: float


class NeighbourPart(Answer):
    name: str
    share: float


class LearnedExplained(Explained):
    """residual = start + the groups' parts; between = unseen_pair + the events' parts + the earlier ones'."""

    residual_name: Literal["learned"]
    log_p0: float
    scale: float
    seen: bool
    unseen_candidates: int
    start: float
    groups: dict[str, float]
    apart: dict[str, float]
    between: float
    unseen_pair: float
    earlier: EarlierPart | None
    common_neighbours: list[NeighbourPart]


Explanation = Annotated[BridgeMemExplained | LearnedExplained, Field(discriminator="residual_name")]


class ServedBridgeMem(BridgeMemExplained, FromModel):
    """An explanation by the paper's residual, and the model that it explains."""


class ServedLearned(LearnedExplained, FromModel):
    """An explanation by the learned residual, and the model that it explains."""


ServedExplanation = Annotated[ServedBridgeMem | ServedLearned, Field(discriminator="residual_name")]


class Model(FromModel):
    """The served model and the events it knows."""

    version: str = Field(description="Version of the program.")
    dataset: str
    fingerprint: str
    backbone: str
    residual: Literal["bridgemem", "learned"]
    history: str
    events: int
    entities: int
    relations: int
    first_time: str
    last_time: str | None = Field(description="Time of the last known event; null while there is none.")
    next_time: str | None = Field(description="The first unknown step, the default of `at`.")


class KnownLimits(Answer):
    """Limits of one request and of one client."""

    body_bytes: int = Field(description="Bytes of a request's body.")
    concurrent: int = Field(description="Requests at the same time; more are answered with 429.")
    timeout_seconds: float = Field(description="For the headers of a request, and again for its body.")
    connections: int
    connections_per_client: int
    events: int = Field(description="Events of a batch.")
    queries: int = Field(description="Queries of one request to /v1/forecasts.")
    candidates: int = Field(description="Candidates of a query: `top`.")
    answers: int = Field(description="Candidates of all queries of one request.")
    horizon: int
    retracted: int = Field(description="Events of one retraction.")
    stored: int = Field(description="Events of one list.")
    issued: int = Field(description="Forecasts of one list of the ledger.")
    names: int = Field(description="Names of one search.")
    assumed: int = Field(description="Assumed events of one query: `assume`.")
    new_relations: int = Field(description="Relations that a store takes besides those of its run.")
    new_entities: int = Field(description="Entities that a store takes besides those of its run.")
    new_entities_per_batch: int
    new_entities_per_day: int = Field(description="Per day in UTC; /metrics has today's number.")
    max_ahead: int | None = Field(description="Steps after the last event that a new one may lie; null for any.")


class NameFound(Answer):
    """label: words for a relation that is a code; null where there are none."""

    name: str
    events: int
    label: str | None


class NamesFound(Answer):
    """The names that fit best, and how many there are in all."""

    names: list[NameFound]
    known: int


class State(Answer):
    state: str

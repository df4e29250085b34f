"""Documents of commands that ask a run: forecasts, explanations, outlooks, names and the ledger."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridgemem.cli.schemas.base import Document
from bridgemem.forecasting.ahead import PartnerCandidate, RelationCandidate, Within
from bridgemem.forecasting.asked import Assumed
from bridgemem.forecasting.calibration import Bin
from bridgemem.forecasting.grouping import GroupPartner
from bridgemem.forecasting.outlook import ExpectedEvent
from bridgemem.live.ledger import Resolution
from bridgemem.live.track_record import Score
from bridgemem.service.models import Answer, Explanation, Forecast, NameFound, ReasonTold


class AnswerReasons(Answer):
    """What happened before one answer, in plain sentences with their counts."""

    answer: str
    reasons: list[ReasonTold]


class Forecasted(Forecast, Document):
    """The candidates of one query, best first."""

    p_event: float | None = Field(
        description="With --horizon: that there is such an event with anybody; null without, or where it is not known."
    )
    reasons: list[AnswerReasons] | None = Field(description="For each answer; null without --why.")
    assumed: Assumed | None = Field(description="What assumed events change; null without --assume.")
    issued: int | None = Field(description="With --issue: the number of the forecast in the ledger.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class AskedAhead(Document):
    """A query about what, partners or whether, from the events before `time`; null is what is asked for."""

    subject: str | None
    relation: str | None
    object: str | None
    relation_label: str | None
    time: str
    until: str = Field(description="The last of the steps that are asked about.")
    step: int
    horizon: int
    p_event: float | None = Field(description="That it happens at least once within the horizon; null for partners.")
    past_events: int = Field(description="Such events before, each counted, also several in a step.")
    meaning: str = Field(description="What the probabilities are probabilities of.")
    remark: str = Field(description="How far such probabilities were off on later validation; empty where not.")
    reasons: list[AnswerReasons] | None = Field(description="For each answer; null without --why.")
    assumed: Assumed | None = Field(description="What assumed events change; null without --assume.")
    issued: int | None = Field(description="With --issue: the number of the forecast in the ledger.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class ForecastedWhat(AskedAhead):
    """With --subject and --object: what happens between the two, either way round, best first."""

    candidates: list[RelationCandidate]


class ForecastedGroup(AskedAhead):
    """With --groups and a relation: the partners of a group, best first."""

    candidates: list[GroupPartner]


class ForecastedPartners(AskedAhead):
    """With --subject or --object alone: its next partners under any relation, best first."""

    candidates: list[PartnerCandidate]


class ForecastedWhether(AskedAhead):
    """With --subject, --relation and --object: whether and when it happens."""

    within: list[Within]
    median: int | None = Field(description="Steps until it has happened with 50 %; null where that is far ahead.")


class OutlookListed(Document):
    """The likeliest events of the coming steps, or with --surprising those that rose most, best first."""

    time: str
    until: str = Field(description="The last of the steps that are asked about.")
    step: int
    horizon: int
    surprising: bool
    watch: list[str] = Field(description="What is watched; empty for everything.")
    events: int = Field(description="Events that were compared.")
    meaning: str = Field(description="What the probabilities are probabilities of.")
    remark: str = Field(description="How far such probabilities were off on later validation; empty where not.")
    candidates: list[ExpectedEvent]
    out: str | None = Field(description="With --out: the file of the table.")
    issued: int | None = Field(description="With --issue: the number of the forecast in the ledger.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class LedgerClaim(Answer):
    """One probability of an issued forecast and its outcome; a name that is null stands for anyone or anything."""

    id: int
    subject: str | None
    relation: str | None
    object: str | None
    measure: Literal["event", "share", "once"] = Field(
        description="event: at least once in the window. share, once: given that what `asked` leaves open happens."
    )
    asked: Literal["subject", "object", "relation"] | None
    p: float
    base_rate: float
    persistence: float
    probability: Literal["p_event", "p_given_event"]
    state: Literal["open", "yes", "no", "partly", "void"] = Field(
        description="open: the window is not over. partly: some of the events that could. void: there were none."
    )
    hits: int | None
    total: int | None
    resolved: str | None
    changes: int = Field(description="How often it was resolved.")
    history: list[Resolution] = Field(description="With --forecast: every resolution.")


class LedgerForecast(Answer):
    """An issued forecast, from the events before `as_of`; time, until: the first and the last step of its window."""

    id: int
    issued: str
    version: str
    query: Literal["who", "what", "partners", "whether", "outlook"]
    subject: str | None
    relation: str | None
    object: str | None
    as_of: str
    time: str
    until: str
    step: int
    horizon: int
    claims: list[LedgerClaim]


class LedgerListed(Document):
    """The forecasts of a store, in the order in which they were issued."""

    store: str
    forecasts: list[LedgerForecast]


class LedgerScored(Document):
    """Scores of the issued forecasts of a store, next to naive rules."""

    store: str
    forecasts: int
    claims: int
    open: int = Field(description="Probabilities whose window is not over.")
    void: int = Field(description="Probabilities whose condition was never met.")
    scores: list[Score]
    curves: dict[str, list[Bin]] = Field(description="Reliability curves: p_event and p_given_event.")


class ForecastedFile(Document):
    """With --queries: how many were answered, and where the answers are."""

    queries: int
    rows: int
    out: str
    meaning: str = Field(description="What p_given_event is the probability of, or why there is none.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")
    parts: int = Field(description="Blocks of queries that were answered one by one.")
    resumed: int = Field(description="Parts that an interrupted run had answered before.")


class Explained(Document):
    """Why each candidate has its score."""

    explanations: list[Explanation]
    files: list[str] = Field(description="The files of the card.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class NamesListed(Document):
    """The names that fit a text best."""

    names: list[NameFound]
    known: int = Field(description="Number of names in all.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")

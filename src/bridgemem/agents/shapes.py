"""What the tools take and give. Names and texts of events are values of fields: data, and never instructions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bridgemem.service.models import Answer, EventPart, FromModel, NewEvent, ReasonTold

# smaller than those of the service: an answer is read by a model, word by word
MOST_ANSWERS, MOST_NAMES, MOST_HISTORY, MOST_OUTLOOK, MOST_SUPPOSED, MOST_WATCHED = 50, 20, 100, 50, 20, 20
LONGEST_HORIZON, MOST_ISSUED = 365, 20

Name = Annotated[str, Field(min_length=1, max_length=1000, description="A name as search_names gives it.")]
AsOf = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=100,
        description="A time of the data, such as 2014-12-01: only events strictly before it are read. Left out: all.",
    ),
]
Horizon = Annotated[int, Field(ge=1, le=LONGEST_HORIZON, description="How many steps from as_of on.")]
Top = Annotated[int, Field(ge=1, le=MOST_ANSWERS, description="How many answers, best first.")]
Assume = Annotated[
    list[NewEvent] | None,
    Field(
        min_length=1,
        max_length=MOST_SUPPOSED,
        description="What if: answer as if these events had happened, and say what they change. None is kept.",
    ),
]
Side = Literal["object", "subject"]


class FoundName(Answer):
    """events: with this name, as of the time that was asked for."""

    name: str
    label: str | None
    events: int


class FoundNames(Answer):
    """Names that fit a text, best first."""

    names: list[FoundName]


class Explained(FromModel):
    """Why a candidate stands where it does.

    headline, reasons: plain sentences that are counts of past events. sentence: what made the score. events: the
    remembered events with their parts of it.
    """

    subject: str
    relation: str
    object: str
    candidate: Side
    time: str
    rank: int
    backbone_rank: int
    headline: str
    reasons: list[ReasonTold]
    sentence: str
    events: list[EventPart]


class PastEvent(Answer):
    """One event."""

    subject: str
    relation: str
    object: str
    time: str


class History(FromModel):
    """What happened between two parties, newest first. total: with those that are left out."""

    events: list[PastEvent]
    total: int
    before: str = Field(description="Only events strictly before this time are listed.")


class ModelCard(FromModel):
    """What is asked: its data, its model, what it knows as of a time, and its card in Markdown."""

    dataset: str
    backbone: str
    residual: str
    entities: int
    relations: int
    events: int = Field(description="Known before as_of.")
    first_time: str
    last_time: str | None = Field(description="Of the last event before as_of; null where there is none.")
    next_time: str | None = Field(description="The first unknown step, which is asked for unless as_of is given.")
    step: str = Field(description="How long a step is.")
    card: str

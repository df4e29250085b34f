"""Requests and answers about what, partners, whether and the outlook.

Two probabilities are kept apart everywhere. p_event: that it happens at all within the horizon. p_given_event: that it
is this one, given that it happens.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bridgemem.service.models import (
    LONGEST_HORIZON,
    MOST_CANDIDATES,
    NUMBER,
    Answer,
    Asked,
    Assume,
    AssumedTold,
    FromModel,
    Name,
    Time,
    told_as,
)

MOST_WATCHED = 100
Watched = Annotated[
    Name | Annotated[list[Name], Field(min_length=2, max_length=2)],
    told_as("a name, of an actor or a relation, or a list of two names, of a pair of actors"),
]


class AheadAsked(Asked):
    """When, and under which assumptions."""

    at: Time | None = Field(None, description="The first step that is asked about (default: the first unknown step).")
    horizon: int = Field(1, ge=1, le=LONGEST_HORIZON, description="How many steps are asked about, from `at` on.")
    assume: Assume = None


class WhatQuery(AheadAsked):
    """(subject, ?, object): what happens between the two, either way round."""

    subject: Name
    object: Name
    top: int = Field(10, ge=1, le=MOST_CANDIDATES)


class PartnersQuery(AheadAsked):
    """(actor, ?, ?): its next partners, under any relation and in either role."""

    actor: Name
    top: int = Field(10, ge=1, le=MOST_CANDIDATES)


class WhetherQuery(AheadAsked):
    """Whether and when (subject, relation, object) happens; one of them may be left out for anyone or anything."""

    subject: Name | None = None
    relation: Name | None = None
    object: Name | None = None


class OutlookQuery(Asked):
    """The likeliest events of the coming steps, or with `surprising` those that rose most against their usual rate."""

    at: Time | None = Field(None, description="The first step that is asked about (default: the first unknown step).")
    horizon: int = Field(7, ge=1, le=LONGEST_HORIZON, description="How many steps are asked about, from `at` on.")
    top: int = Field(50, ge=1, le=MOST_CANDIDATES)
    surprising: bool = False
    watch: list[Watched] | None = Field(
        None,
        min_length=1,
        max_length=MOST_WATCHED,
        description="Only events of these: an actor or a relation by name, or a pair of actors as a list of two.",
    )


class ServedAhead(FromModel):
    """What was asked, from the events strictly before `time`; null is what is asked for, or anyone."""

    subject: str | None
    relation: str | None
    relation_label: str | None = Field(description="Words for a relation that is a code; null where there are none.")
    object: str | None
    time: str
    until: str = Field(description="The last of the steps that are asked about.")
    step: int
    horizon: int
    p_event: float | None = Field(description="That it happens at least once within the horizon; null for partners.")
    past_events: int = Field(description="Such events before, each counted, also several in a step.")
    meaning: str = Field(description="What the probabilities are probabilities of.")
    remark: str | None = Field(
        description="Where such probabilities were off on later validation, the time lies far ahead, or why it was not "
        "issued; else null."
    )
    assumed: AssumedTold | None = Field(description="What assumed events change; null without.")
    issued: int | None = Field(None, description=NUMBER)


class RelationAnswer(Answer):
    """One of the events that may happen between the two.

    p_given_event: that an event between the two is this one. p_event: that this one happens within the horizon.
    """

    subject: str
    relation: str
    object: str
    rank: int
    p_given_event: float
    p_event: float
    relation_label: str | None


class PartnerAnswer(Answer):
    """A possible partner of the actor. p_event: under any relation within the horizon.

    subject, relation, object: the likeliest event between the two; p_given_event: of it, given that they interact.
    """

    name: str
    rank: int
    p_event: float
    subject: str
    relation: str
    object: str
    p_given_event: float
    relation_label: str | None


class WithinAnswer(Answer):
    """p_event: at least one event within that many steps, the last of which is at `until`."""

    steps: int
    until: str
    p_event: float


class ServedWhat(ServedAhead):
    """The events that may happen between two parties, best first."""

    candidates: list[RelationAnswer]


class ServedPartners(ServedAhead):
    """Earlier partners of the actor, by how likely another event with them is, best first."""

    candidates: list[PartnerAnswer]


class ServedWhether(ServedAhead):
    """p_event by horizon. median: steps until it has happened with 50 %; null where that is far ahead."""

    within: list[WithinAnswer]
    median: int | None


class ExpectedEventTold(Answer):
    """An event that may come. usual: p_event at its mean rate so far; surprise: how far p_event is above, in bits."""

    subject: str
    relation: str
    object: str
    rank: int
    p_event: float
    usual: float
    surprise: float
    past_events: int
    last: str | None
    relation_label: str | None


class ServedOutlook(FromModel):
    """The events of the coming steps, best first. events: how many were compared."""

    time: str
    until: str
    step: int
    horizon: int
    surprising: bool
    watch: list[str]
    events: int
    meaning: str
    remark: str | None = Field(
        description="How far such probabilities were off on later validation, or why it was not issued; else null."
    )
    candidates: list[ExpectedEventTold]
    issued: int | None = Field(None, description=NUMBER)

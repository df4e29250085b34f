"""Requests: a query as predictors are asked it, names that do not occur, and answers in the shapes that go out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from pydantic import TypeAdapter

from bridgemem.errors import NotFoundError
from bridgemem.events.leaps import remark_ahead
from bridgemem.events.log import EventLog
from bridgemem.events.names import Names
from bridgemem.forecasting.ahead import Chance
from bridgemem.forecasting.answers import Answers
from bridgemem.forecasting.asked import Asked, Assumed, Found, with_anybody
from bridgemem.forecasting.predictor import Predictor
from bridgemem.service.ahead_models import (
    OutlookQuery,
    PartnerAnswer,
    PartnersQuery,
    RelationAnswer,
    ServedPartners,
    ServedWhat,
    ServedWhether,
    WhatQuery,
    WhetherQuery,
    WithinAnswer,
)
from bridgemem.service.logs import note_names
from bridgemem.service.models import (
    AssumedTold,
    BatchQuery,
    ExplainQuery,
    ForecastQuery,
    RankedCandidate,
    ServedForecast,
)

# several times as quick as `model_construct` of each
_CANDIDATES: TypeAdapter[list[RankedCandidate]] = TypeAdapter(list[RankedCandidate])

AnyQuery = ForecastQuery | WhatQuery | PartnersQuery | WhetherQuery
AnyAnswer = ServedForecast | ServedWhat | ServedPartners | ServedWhether


class MisspeltError(Exception):
    """A name does not occur. told: the error with names that may have been meant, which takes a while to find."""

    def __init__(self, told: Callable[[], NotFoundError]) -> None:
        super().__init__("a name does not occur")
        self.told = told


def unknown_name(events: EventLog, request: AnyQuery | BatchQuery | ExplainQuery) -> MisspeltError | None:
    """The first name of a query that does not occur, neither known nor assumed."""
    assumed = getattr(request, "assume", None) or []
    parties, relations = {name for e in assumed for name in (e.subject, e.object)}, {e.relation for e in assumed}
    subject, relation, object_ = sides(request)
    for name in (subject, object_):
        # a number is no id here: ids are nothing that callers are told
        if name is not None and name not in events.entities and name not in parties:
            return MisspeltError(partial(_suggested, events, "entity_names", name))
    if relation is not None and relation not in events.relations and relation not in relations:
        return MisspeltError(partial(_suggested, events, "relation_names", relation))
    return None


def sides(request: AnyQuery | BatchQuery | ExplainQuery) -> tuple[str | None, str | None, str | None]:
    """Subject, relation and object as they were named."""
    if isinstance(request, PartnersQuery):
        return request.actor, None, None
    return request.subject, getattr(request, "relation", None), request.object


def key_of(request: AnyQuery | OutlookQuery) -> str:
    """What was asked, as text: two that are equal have the same answer from the same past."""
    return f"{type(request).__name__} {request.model_dump_json()}"


def note_sides(request: AnyQuery) -> None:
    note_names(**dict(zip(("subject", "relation", "object"), sides(request), strict=True)))


def asked_of(request: AnyQuery) -> Asked:
    """A query as predictors are asked it."""
    kind: Literal["whether"] | None = "whether" if isinstance(request, WhetherQuery) else None
    subject, relation, object_ = sides(request)
    top = getattr(request, "top", 10)
    return Asked(subject, relation, object_, request.at, request.horizon, top, kind)


def _suggested(events: EventLog, kind: str, name: str) -> NotFoundError:
    names: Names = getattr(events, kind)
    return names.unknown(name)


def served(found: Found, predictor: Predictor, asked: Asked, version: str, assumed: Assumed | None = None) -> AnyAnswer:
    """An answer of any kind in the shape that goes out; what the predictor made is not checked again."""
    far, told = remark_ahead(predictor.events, found.query.step), assumed and AssumedTold.model_validate(assumed)
    if isinstance(found, Answers):
        who: dict[str, Any] = {**forecast_values(found), "p_event": with_anybody(found, predictor, asked)}
        return ServedForecast.model_construct(**who, model_version=version, remark=far, assumed=told)
    query: dict[str, Any] = {**vars(found.query), "remark": " ".join(filter(None, (found.query.remark, far))) or None}
    query |= {"model_version": version, "assumed": told}
    if isinstance(found, Chance):
        within = [WithinAnswer.model_construct(**vars(one)) for one in found.within]
        return ServedWhether.model_construct(**query, within=within, median=found.median)
    if asked.object is not None and asked.subject is not None:
        rows = [RelationAnswer.model_construct(**vars(one)) for one in found]
        return ServedWhat.model_construct(**query, candidates=rows)
    partners = [PartnerAnswer.model_construct(**vars(one)) for one in found]
    return ServedPartners.model_construct(**query, candidates=partners)


def with_remark(told: AnyAnswer, more: str | None) -> AnyAnswer:
    return told.model_copy(update={"remark": " ".join(filter(None, (told.remark, more))) or None})


def forecast_values(found: Answers) -> dict[str, Any]:
    """The values of a `Forecast`."""
    return {**vars(found.query), "candidates": _CANDIDATES.validate_python(found)}

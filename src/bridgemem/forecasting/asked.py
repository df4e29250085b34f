"""Asked: one query of any kind as one object, put to a predictor; and what assumed events change in its answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from bridgemem.events.leaps import SUPPOSED
from bridgemem.forecasting.ahead import Chance, PartnerCandidate, Ranked, RelationCandidate
from bridgemem.forecasting.answers import Answers
from bridgemem.forecasting.assuming import uncounted
from bridgemem.forecasting.predictor import Predictor

MOVED = 3  # answers that are not shown, but whose probability assumed events move most
LEAST = 0.01  # by so much at least

Found = Answers | Ranked[RelationCandidate] | Ranked[PartnerCandidate] | Chance


@dataclass(frozen=True)
class Asked:
    """One query by name: what is left out of subject, relation and object is asked, unless the kind says otherwise.

    One party and a relation: who. Two parties: what. One party: whom it deals with. All three: whether. Of kind whether
    what is left out stands for anybody or anything.
    """

    subject: str | None
    relation: str | None
    object: str | None
    at: str | int | None = None
    horizon: int | None = None
    top: int = 10
    kind: Literal["who", "what", "whom", "whether"] | None = None

    def of(self, predictor: Predictor, top: int | None = None) -> Found:
        """Answers to who, ranked events or partners, or a chance; top: another number of answers."""
        how: dict[str, Any] = {"at": self.at, "horizon": self.horizon}
        all_three = None not in (self.subject, self.relation, self.object)
        if self.kind == "whether" or (self.kind is None and all_three):
            return predictor.whether(self.subject, self.relation, object=self.object, **how)
        how["top"] = self.top if top is None else top
        if self.relation is not None:
            return predictor.forecast(self.subject, self.relation, object=self.object, **how)
        if self.subject is not None and self.object is not None:
            return predictor.what(self.subject, self.object, **how)
        return predictor.partners(self.subject or self.object or "", **how)


@dataclass(frozen=True)
class Change:
    """One answer: its probability without and with the assumed events; None where it has none."""

    answer: str
    plain: float | None
    assumed: float | None


@dataclass(frozen=True)
class Assumed:
    """How many events were assumed, and what they change in which probability: p_event or p_given_event.

    changes: of every answer that is shown, then of the others whose probability moves most. remark: which of the events
    do not count, as they lie at or after the time asked about; None where all count.
    """

    events: int
    probability: str
    changes: tuple[Change, ...]
    remark: str | None = None


def suppose(
    predictor: Predictor, asked: Asked, events: Any, max_ahead: int | None = None
) -> tuple[Predictor, Asked, Found, Assumed]:
    """The answer as if events had happened, none of which is kept, next to the plain one.

    Both are asked for the same step: the first after the assumed events unless a time is named.
    events, max_ahead: as in `update`.

    Returns:
        Who answers, what it was asked, its answer, and what changed.
    """
    supposing = predictor.assume(events, max_ahead=max_ahead, leap=SUPPOSED)
    count = len(supposing.events) - len(predictor.events)
    asked = replace(asked, at=supposing.events.clock.label(supposing.end) if asked.at is None else asked.at)
    found, column = asked.of(supposing), _probability(asked)
    # a chance has no answers beyond those shown
    whole = found if isinstance(found, Chance) else _whole(supposing, asked)
    before, now = (dict(_told(each, column)) for each in (_plainly(predictor, asked), whole))
    shown = [answer for answer, _ in _told(found, column)]
    moved = {answer: abs((p or 0.0) - (before.get(answer) or 0.0)) for answer, p in now.items() if answer not in shown}
    others = [answer for answer in sorted(moved, key=lambda a: -moved[a])[:MOVED] if moved[answer] >= LEAST]
    changes = tuple(Change(answer, before.get(answer), now.get(answer)) for answer in [*shown, *others])
    remark = uncounted(supposing.assumed, found.query.step, supposing.events.clock)
    return supposing, asked, found, Assumed(count, column, changes, remark)


def _plainly(predictor: Predictor, asked: Asked) -> Found | None:
    """The answer without the assumed events; None where a name is known from these alone."""
    events = predictor.events
    named = ((asked.subject, events.entities), (asked.object, events.entities), (asked.relation, events.relations))
    if any(name is not None and name not in known and name not in predictor.groups for name, known in named):
        return None
    return _whole(predictor, asked)


def _whole(predictor: Predictor, asked: Asked) -> Found:
    """All answers, however few are shown."""
    return asked.of(predictor, max(predictor.events.n_entities, 2 * predictor.events.n_relations))


def _probability(asked: Asked) -> str:
    """Which probability is compared: p_given_event of who, and of what in a single step, else p_event."""
    who = asked.kind != "whether" and asked.relation is not None and None in (asked.subject, asked.object)
    what = asked.kind != "whether" and asked.relation is None and None not in (asked.subject, asked.object)
    return "p_given_event" if who or (what and asked.horizon is None) else "p_event"


def _told(found: Found | None, column: str) -> list[tuple[str, float | None]]:
    """Each answer and its probability."""
    if found is None:
        return []
    if isinstance(found, Chance):
        return [(f"within {one.steps:,} step{'s' * (one.steps != 1)}", one.p_event) for one in found.within]
    return [(one.cells()[0] if isinstance(one, RelationCandidate) else one.name, getattr(one, column)) for one in found]


def with_anybody(found: Answers, predictor: Predictor, asked: Asked) -> float | None:
    """p_event of such an event with anybody within a horizon; None without a horizon, or where it is not known."""
    # a relation that came after the fit has no residual, and is not foreseen
    if asked.horizon is None or predictor.heads is None or found.query.residual is None:
        return None
    who, what = {"object": asked.object, "at": asked.at}, (asked.subject, asked.relation)
    return predictor.whether(*what, **who, horizon=asked.horizon).query.p_event


def as_document(found: Found, predictor: Predictor, asked: Asked) -> dict[str, Any]:
    """An answer as plain values: the query, with its candidates or with `within` and `median`."""
    if isinstance(found, Chance):
        return {**asdict(found.query), "within": list(map(asdict, found.within)), "median": found.median}
    if isinstance(found, Ranked):
        return {**asdict(found.query), "candidates": list(map(asdict, found))}
    rows = list(map(asdict, found))
    return {**asdict(found.query), "candidates": rows, "p_event": with_anybody(found, predictor, asked)}

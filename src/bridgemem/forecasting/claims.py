"""Claims: what an answer states, one probability each, in a form that later events can prove right or wrong.

Next to each stands what two naive rules would have said from the same past. Of p_event: the mean rate so far, and how
often what did, or did not, happen in the last window happened again in the next one (persistence). Of p_given_event:
the share among all earlier events that meet the condition, and among those of the last step that has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Declared
from bridgemem.errors import SettingsError
from bridgemem.events.queries import Queries
from bridgemem.forecasting.ahead import AheadQuery, Chance, PartnerCandidate, Ranked, RelationCandidate
from bridgemem.forecasting.answers import Answers
from bridgemem.forecasting.grouping import GroupPartner
from bridgemem.forecasting.horizon import Activity
from bridgemem.forecasting.occurrence import Keys, Kind, all_seen
from bridgemem.forecasting.outlook import Outlook
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.tallies import PastTallies

# event: that it happens at least once in the window. share: that one of the events that meet the condition is this one.
# once: that it happens at least once, given that the condition is met
Measure = Literal["event", "share", "once"]
MOST_KEYS = 20_000  # that persistence is learned from


@dataclass(frozen=True)
class Claim(Declared):
    """One probability: of (subject, relation, object) in a window; None stands for anybody or anything.

    Without a relation the two interact either way round. asked: the side that a share or once is conditional on being
    anything: (subject, relation, ?) for object, the pair either way round for relation; None of an event. base_rate,
    persistence: what the naive rules say.
    """

    subject: str | None
    relation: str | None
    object: str | None
    measure: Measure
    p: float
    asked: Literal["subject", "object", "relation"] | None = None
    base_rate: float = 0.0
    persistence: float = 0.0

    @property
    def condition(self) -> Claim:
        """What a share or once is conditional on: that the side asked for is anybody or anything."""
        return replace(
            self,
            subject=None if self.asked == "subject" else self.subject,
            relation=None if self.asked == "relation" else self.relation,
            object=None if self.asked == "object" else self.object,
            measure="event",
            asked=None,
        )


@dataclass(frozen=True)
class Statement:
    """The claims of one answer, with the query as it was asked: who, what, partners, whether or outlook."""

    query: str
    subject: str | None
    relation: str | None
    object: str | None
    step: int
    horizon: int
    claims: tuple[Claim, ...]


def stated(found: Any, predictor: Predictor) -> Statement:
    """What an answer of a predictor claims: `Answers`, what, partners, whether or an outlook; with the naive rules."""
    made = _stated(found)
    if not made.claims:
        raise SettingsError("this answer states no probability to issue; run `bridgemem calibrate` on the run first.")
    return replace(made, claims=_with_rules(made, predictor))


def _stated(found: Any) -> Statement:
    if isinstance(found, Answers):
        return _of_answers(found)
    if isinstance(found, Outlook):
        claims = tuple(Claim(e.subject, e.relation, e.object, "event", e.p_event) for e in found)
        return Statement("outlook", None, None, None, found.query.step, found.query.horizon, claims)
    if isinstance(found, Chance | Ranked):
        return _of_ahead(found)
    raise SettingsError(f"a {type(found).__name__} is no forecast that can be issued; give an answer of the model.")


def _of_answers(found: Answers) -> Statement:
    q = found.query
    measure: Measure = "share" if q.horizon is None else "once"
    claims = []
    for one in found:
        if one.p_given_event is None:
            continue
        if q.object is None:
            claims.append(Claim(q.subject, q.relation, one.name, measure, one.p_given_event, "object"))
        else:
            claims.append(Claim(one.name, q.relation, q.object, measure, one.p_given_event, "subject"))
    return Statement("who", q.subject, q.relation, q.object, q.step, q.horizon or 1, tuple(claims))


def _of_ahead(found: Chance | Ranked[Any]) -> Statement:
    q: AheadQuery = found.query
    kind, claims = "whether", list[Claim]()
    if isinstance(found, Ranked):
        kind = "what" if q.object is not None else "partners"
        if q.relation is not None:
            kind = "who"
        for one in found:
            if isinstance(one, GroupPartner):
                ends = (q.subject, one.name) if q.object is None else (one.name, q.object)
                side: Literal["subject", "object"] = "object" if q.object is None else "subject"
                claims.append(Claim(ends[0], q.relation, ends[1], "share", one.p_given_event, side))
                claims.append(Claim(ends[0], q.relation, ends[1], "event", one.p_event))
            elif isinstance(one, PartnerCandidate):
                claims.append(Claim(q.subject, None, one.name, "event", one.p_event))
            elif isinstance(one, RelationCandidate):
                claims.append(Claim(one.subject, one.relation, one.object, "share", one.p_given_event, "relation"))
                claims.append(Claim(one.subject, one.relation, one.object, "event", one.p_event))
    if q.p_event is not None:
        claims.insert(0, Claim(q.subject, q.relation, q.object, "event", q.p_event))
    return Statement(kind, q.subject, q.relation, q.object, q.step, q.horizon, tuple(claims))


# ---- naive rules ---------------------------------------------------------------------------------------------------


def _with_rules(made: Statement, predictor: Predictor) -> tuple[Claim, ...]:
    if predictor.mapped:
        raise SettingsError("a forecast is issued from events in memory; leave --memory-dir out.")
    rules = _Rules(predictor, made)
    return tuple(
        replace(claim, base_rate=base, persistence=again)
        for claim, (base, again) in zip(made.claims, map(rules.of, made.claims), strict=True)
    )


class _Rules:
    """What the naive rules say of claims about one window, from the same past."""

    def __init__(self, predictor: Predictor, made: Statement) -> None:
        self.predictor, self.past = predictor, predictor.past
        self.tallies, self.step, self.horizon = PastTallies(self.past), made.step, made.horizon
        events = self.past.events
        self.end, self.start, self.relations = min(made.step, events.end), events.start, events.n_relations
        self._again: dict[Kind, tuple[float, float]] = {}
        # all candidates of a query share their condition
        self._conditions: dict[tuple[str | None, ...], tuple[float, int, float]] = {}

    def of(self, claim: Claim) -> tuple[float, float]:
        return self._event(claim) if claim.measure == "event" else self._given(claim)

    def _ids(self, claim: Claim) -> tuple[list[int], list[int], list[int]]:
        """The ids of each side; none where it is anybody or anything."""
        members = self.predictor.members
        return (
            [] if claim.subject is None else members("entity", claim.subject),
            [] if claim.relation is None else members("relation", claim.relation),
            [] if claim.object is None else members("entity", claim.object),
        )

    def _keys(self, claim: Claim) -> Keys:
        """Every key that makes the claim true."""
        subject, relation, object_ = self._ids(claim)
        kind: Kind = "pair"
        if claim.relation is None:
            rows = list(product(subject, [0], object_))
        elif claim.subject is not None and claim.object is not None:
            kind, rows = "triple", list(product(subject, relation, object_))
        else:
            back = 0 if claim.subject is not None else self.relations
            kind, rows = "role_relation", [(s, r + back, 0) for s, r in product(subject or object_, relation)]
        s, r, o = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T
        return Keys(kind, s, r, o, torch.full_like(s, self.step))

    def _before(self, keys: Keys, step: int | None = None) -> Any:
        at = torch.full_like(keys.step, self.end if step is None else step)
        return self.tallies.before(keys.kind, keys.subject, keys.relation, keys.object, at)

    def _event(self, claim: Claim) -> tuple[float, float]:
        """That any of the keys occurs: at its mean rate, and as those of the last window did."""
        keys = self._keys(claim)
        before = self._before(keys)
        rate = before.events.double() / max(self.end - self.start, 1)
        lately = (self.end - before.last <= self.horizon) & (before.events > 0)
        seldom, often = self._persistence(keys.kind)
        again = torch.where(lately, often, seldom).double()
        return _any(-torch.expm1(-rate * self.horizon)), _any(again)

    def _persistence(self, kind: Kind) -> tuple[float, float]:
        """How often keys that did not, and that did, occur in the window before the last occurred in the last one."""
        if kind not in self._again:
            date, found = self.end - self.horizon, (0.0, 1.0)
            if date > self.start:
                keys = all_seen(kind, self.tallies, date)
                rows = np.sort(np.random.default_rng(0).permutation(len(keys))[:MOST_KEYS])
                keys = keys.take(torch.from_numpy(rows))
                came = self.tallies.next(kind, keys.subject, keys.relation, keys.object, keys.step) < self.end
                lately = date - self._before(keys, date).last <= self.horizon
                found = _share(came[~lately]), _share(came[lately])
            self._again[kind] = found
        return self._again[kind]

    def _given(self, claim: Claim) -> tuple[float, float]:
        """The share of the claim's events among those that meet its condition: of all so far, and of the last step."""
        keys = self._keys(claim)
        subject, relation, object_ = self._ids(claim)
        most = 2 * self.relations if claim.asked == "relation" else self.past.events.n_entities
        total, last, lately = self._meeting(claim.condition)
        own = float(self._before(keys).events.sum()), self._at(keys, last)
        made = [(n + 1 / most) / (of + 1) for n, of in zip(own, (total, lately), strict=True)]
        if claim.measure == "once":
            actor, back = (subject, 0) if claim.asked == "object" else (object_, self.relations)
            query = Queries(*(torch.tensor([value]) for value in (actor[0], relation[0] + back, self.step)))
            draws = float(Activity(self.past).draws(query, torch.tensor([self.end]), self.horizon)[0, 1])
            made = [1 - (1 - min(p, 1 - 1e-12)) ** draws for p in made]
        return made[0], made[1]

    def _meeting(self, condition: Claim) -> tuple[float, int, float]:
        """Events that met a condition: of all steps so far, the last step that has any, and of that one."""
        key = condition.subject, condition.relation, condition.object
        if key not in self._conditions:
            keys = self._keys(condition)
            before = self._before(keys)
            last = int(before.last.max())
            self._conditions[key] = float(before.events.sum()), last, self._at(keys, last)
        return self._conditions[key]

    def _at(self, keys: Keys, step: int) -> float:
        """Events of one step; none where it is below 0."""
        if step < 0:
            return 0.0
        return float(self._before(keys, step + 1).events.sum() - self._before(keys, step).events.sum())


def _any(p: Tensor) -> float:
    """That any of several comes, each by itself."""
    return float(-torch.expm1(torch.log1p(-p.double().clamp(max=1 - 1e-12)).sum()))


def _share(came: Tensor) -> float:
    return (float(came.sum()) + 0.5) / (len(came) + 1)


def also_known_as(made: Statement, predictor: Predictor) -> dict[str, Sequence[str]]:
    """The names that stored events may have for what is claimed, where these are others: aliases, members of groups."""
    aliases: dict[str, list[str]] = {}
    for alias, name in predictor.events.entities.aliases.items():
        aliases.setdefault(name, []).append(alias)
    found: dict[str, Sequence[str]] = {}
    sides = ((c.subject, c.relation, c.object) for c in made.claims)
    for name in sorted({name for three in sides for name in three if name is not None}):
        known = [each for one in predictor.groups.get(name, (name,)) for each in (one, *aliases.get(one, ()))]
        if known != [name]:
            found[name] = known
    return found

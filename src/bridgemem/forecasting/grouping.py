"""Grouping: a group of actors or relations in place of a name.

p_event of a group is that any of its members' events comes. Given the past each has a hazard of its own, so the
probability that none comes is the product of theirs; events of one pair under several relations are bounded by the
pair's own. p_given_event of a group is the mean of its members', each weighted by the events that are expected of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bridgemem.config import Count, check
from bridgemem.errors import NotFoundError, RunError, SettingsError
from bridgemem.events.queries import Queries
from bridgemem.forecasting.ahead import (
    HORIZONS,
    LONGEST,
    AheadQuery,
    Chance,
    PartnerCandidate,
    Ranked,
    RelationCandidate,
    Shown,
    Within,
    in_steps,
)
from bridgemem.forecasting.occurrence import Keys
from bridgemem.forecasting.outlook import Outlook, outlook
from bridgemem.forecasting.predictor import Predictor
from bridgemem.forecasting.watching import watch_of
from bridgemem.memory.past import Past
from bridgemem.ranking.ranks import batch_size, best_first
from bridgemem.showing import percent

MOST_KEYS = 100_000  # events of all members of a query together
_CHUNK = 4096  # keys whose chances are computed at a time


@dataclass(frozen=True)
class GroupPartner(Shown):
    """A partner of a group under a relation: p_given_event of one event of the group, p_event within the horizon."""

    name: str
    rank: int
    p_given_event: float
    p_event: float
    header: ClassVar[list[str]] = ["candidate", "rank", "p_given_event", "p_event"]

    def cells(self) -> list[str]:
        return [self.name, str(self.rank), percent(self.p_given_event), percent(self.p_event)]


class Grouped(Predictor):
    """A predictor that knows groups: forecasts, what, partners, whether and watch lists take their names."""

    groups: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, predictor: Predictor, groups: Mapping[str, tuple[str, ...]]) -> Self:
        """The same predictor with groups, as `groups_of` checks them."""
        made = cls.__new__(cls)
        vars(made).update(vars(predictor))
        made.groups = groups
        return made

    def with_past(self, past: Past) -> Predictor:
        return Grouped.of(super().with_past(past), self.groups)

    def members(self, kind: str, name: str | int) -> list[int]:
        if name not in self.groups:
            return super().members(kind, name)
        known = self.events.entities if kind == "entity" else self.events.relations
        found = [known.get(one) for one in self.groups[str(name)]]
        if None in found:
            other, wanted = ("relations", "an actor") if kind == "entity" else ("actors", "a relation")
            raise NotFoundError(f"{name!r} is a group of {other}; name {wanted}.")
        return [one for one in found if one is not None]

    def _asks_group(self, *names: str | int | None) -> bool:
        return any(isinstance(name, str) and name in self.groups for name in names)

    def forecast(self, subject: Any = None, relation: Any = None, *, object: Any = None, **how: Any) -> Any:
        """As of a predictor; where a group is named, its partners as `Ranked[GroupPartner]`."""
        if not self._asks_group(subject, relation, object):
            return super().forecast(subject, relation, object=object, **how)
        if relation is None or (subject is None) == (object is None):
            raise SettingsError("give a relation, and a subject or an object: the side left out is what is asked.")
        return self._who(subject, relation, object, **how)

    def what(self, subject: Any, object: Any, **how: Any) -> Ranked[RelationCandidate]:
        """As of a predictor; of a group any of its members."""
        asks = self._asks_group(subject, object)
        return self._what(subject, object, **how) if asks else super().what(subject, object, **how)

    def partners(self, actor: Any, **how: Any) -> Ranked[PartnerCandidate]:
        """As of a predictor; of a group those outside of it."""
        return self._partners(actor, **how) if self._asks_group(actor) else super().partners(actor, **how)

    def whether(self, subject: Any = None, relation: Any = None, *, object: Any = None, **how: Any) -> Chance:
        """As of a predictor; of a group any of its members."""
        if not self._asks_group(subject, relation, object):
            return super().whether(subject, relation, object=object, **how)
        return self._whether(subject, relation, object, **how)

    def outlook(self, *, watch: Any = None, **how: Any) -> Outlook:
        """As of a predictor; a group in a watch list stands for all of its members."""
        if watch is None:
            return super().outlook(**how)
        horizon, top = how.pop("horizon", 7), how.pop("top", 50)
        check("top", top, Count)
        step, steps = self._ahead_of(how.pop("at", None), horizon)
        wanted = watch_of(watch, self.events, self.groups)
        return outlook(self.ahead, step, horizon=steps, top=top, watch=wanted, **how)

    # ---- probabilities ---------------------------------------------------------------------------------------------

    def _keys(self, step: int, subject: Any, relation: Any, object: Any) -> Keys:
        """Every key of the members; None stands for anybody or anything."""
        who = [None if name is None else self.members("entity", name) for name in (subject, object)]
        what = None if relation is None else [self.ahead.relation(r) for r in self.members("relation", relation)]
        size = math.prod(len(side) for side in (*who, what) if side is not None)
        if size > MOST_KEYS:
            raise SettingsError(
                f"the groups stand for {size:,} events, more than the {MOST_KEYS:,} that are asked at once; use "
                "smaller ones."
            )
        rows: Any
        if who[0] is not None and who[1] is not None:
            kind = "pair" if what is None else "triple"
            rows = list(product(who[0], what or [0], who[1]))
            if what is None:  # two of both groups are one pair, whichever is named first
                rows = list({(min(a, b), max(a, b)): (a, r, b) for a, r, b in reversed(rows)}.values())[::-1]
        elif what is None or who == [None, None]:
            raise SettingsError("give two of subject, relation and object, or all three.")
        else:
            back = 0 if who[0] is not None else self.ahead.heads.n_relations
            kind, rows = "role_relation", [(s, r + back, 0) for s, r in product(who[0] or who[1] or (), what)]
        s, r, o = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T
        return Keys(kind, s, r, o, torch.full_like(s, step))  # type: ignore[arg-type]

    def _none_comes(self, keys: Keys, horizons: tuple[int, ...]) -> Tensor:
        """log of the probability that none of the keys comes within each horizon, float64 [horizons]."""
        if keys.kind != "triple":
            return torch.stack([self.ahead.log_survival(p, horizons).sum(0) for p in keys.parts(_CHUNK)]).sum(0)
        link, place, size = torch.unique(
            torch.stack([keys.subject, keys.object]), dim=1, return_inverse=True, return_counts=True
        )
        each = torch.zeros((link.shape[1], len(horizons)), dtype=torch.float64)
        for rows in torch.arange(len(keys)).split(_CHUNK):
            each.index_add_(0, place[rows], self.ahead.log_survival(keys.take(rows), horizons))
        # several events of one pair are at most as likely as any event of it
        several = (size > 1).nonzero().squeeze(1)
        s, o = link[:, several]
        pairs = Keys("pair", s, torch.zeros_like(s), o, keys.step[:1].expand_as(s))
        for first, part in enumerate(pairs.parts(_CHUNK)):
            at = several[first * _CHUNK : (first + 1) * _CHUNK]
            each[at] = torch.maximum(each[at], self.ahead.log_survival(part, horizons))
        return each.sum(0)

    def _median(self, keys: Keys) -> int | None:
        """The steps until any of the keys has come with 50 %; None beyond LONGEST."""
        grid = sorted({round(1.15**power) for power in range(67)} | {LONGEST})
        grid = [steps for steps in grid if steps <= LONGEST]
        late = (self._none_comes(keys, tuple(grid)) <= math.log(0.5)).nonzero()
        if not len(late):
            return None
        last = int(late[0])
        between = range(grid[last - 1] + 1 if last else 1, grid[last] + 1)
        for some in (between[i : i + 100] for i in range(0, len(between), 100)):
            found = (self._none_comes(keys, tuple(some)) <= math.log(0.5)).nonzero()
            if len(found):
                return some[int(found[0])]
        return grid[last]

    def _p_any(self, keys: Keys, horizon: int) -> float:
        return float(-torch.expm1(self._none_comes(keys, (horizon,))[0]))

    def _expected(self, keys: Keys, horizon: int) -> Tensor:
        """How many events are expected of each key, as shares of all; float64 [n]."""
        made = -self.ahead.log_survival(keys, (horizon,))[:, 0] + 1e-12
        return made / made.sum()

    # ---- answers ---------------------------------------------------------------------------------------------------

    def _whether(self, subject: Any, relation: Any, object: Any, at: Any = None, horizon: int | None = None) -> Chance:
        step, steps = self._ahead_of(at, horizon)
        keys = self._keys(step, subject, relation, object)
        shown = tuple(sorted({*HORIZONS, steps}))
        p = -torch.expm1(self._none_comes(keys, shown))
        clock = self.events.clock
        within = tuple(
            Within(h, clock.label(step + h - 1), chance)
            for h, chance in zip(shown, p.tolist(), strict=True)
            if clock.holds(step + h - 1)
        )
        meaning = f"p_event: that any event of the group happens at least once{in_steps(steps)}."
        own = float(p[shown.index(steps)])
        query = self._query(keys, (subject, relation, object), steps, meaning=meaning, p=own)
        return Chance(query, within, self._median(keys))

    def _what(
        self, subject: Any, object: Any, at: Any = None, horizon: int | None = None, top: int = 10
    ) -> Ranked[RelationCandidate]:
        check("top", top, Count)
        step, steps = self._ahead_of(at, horizon)
        keys = self._keys(step, subject, None, object)
        share = self.ahead.scores(keys.subject, keys.object, keys.step).softmax(1)
        p, n = self._expected(keys, steps) @ share, self.ahead.heads.n_relations
        whole = self._p_any(keys, steps)
        rows, names = [], (self._named(subject), self._named(object))
        for rank, directed in enumerate(best_first(p[None], top)[0].tolist(), 1):
            back, relation = divmod(directed, n)
            ends = (keys.object, keys.subject) if back else (keys.subject, keys.object)
            triples = Keys("triple", ends[0], torch.full_like(ends[0], relation), ends[1], keys.step)
            event = min(self._p_any(triples, steps), whole)
            fact = (names[back], self.events.relations.names[relation], names[1 - back])
            rows.append(RelationCandidate(*fact, rank, float(p[directed]), event, self.ahead.label(directed)))
        meaning = (
            "p_given_event: that an event between any two of them is of this kind. p_event: that one of this kind "
            f"happens at least once{in_steps(steps)}."
        )
        return Ranked(rows, self._query(keys, (subject, None, object), steps, meaning=meaning, p=whole))

    def _partners(
        self, actor: Any, at: Any = None, horizon: int | None = None, top: int = 10
    ) -> Ranked[PartnerCandidate]:
        check("top", top, Count)
        step, steps = self._ahead_of(at, horizon)
        ids = torch.tensor(self.members("entity", actor))
        _, seen = self.ahead.past.seen(ids, torch.full_like(ids, step))
        others = torch.unique(seen[~torch.isin(seen, ids)])
        # a partner of one member is asked of all of them
        who, partner = ids.repeat_interleave(len(others)), others.repeat(len(ids))
        keys = Keys("pair", who, torch.zeros_like(who), partner, torch.full_like(who, step))
        each = self.ahead.log_survival(keys, (steps,))[:, 0]
        none = each.reshape(len(ids), -1).sum(0)
        rows, name = [], self._named(actor)
        for rank, best in enumerate(best_first(-none[None], top)[0].tolist() if len(others) else [], 1):
            own = keys.take(torch.arange(best, len(keys), len(others)))
            share = self.ahead.scores(own.subject, own.object, own.step).softmax(1)
            given, directed = (self._expected(own, steps) @ share).max(0)
            back, relation = divmod(int(directed), self.ahead.heads.n_relations)
            other = self.events.entities.names[int(others[best])]
            ends = (other, name) if back else (name, other)
            fact = (ends[0], self.events.relations.names[relation], ends[1])
            p = float(-torch.expm1(none[best]))
            rows.append(PartnerCandidate(other, rank, p, *fact, float(given), self.ahead.label(int(directed))))
        meaning = (
            f"p_event: that any of the group interacts with it at least once{in_steps(steps)}, under any relation. "
            "p_given_event: that an event between them is the one shown."
        )
        return Ranked(rows, self._query(keys, (actor, None, None), steps, meaning=meaning, p=None, step=step))

    def _who(
        self, subject: Any, relation: Any, object: Any, at: Any = None, horizon: int | None = None, top: int = 10
    ) -> Ranked[GroupPartner]:
        check("top", top, Count)
        if self.calibration is None:
            raise RunError("the run is not calibrated, so groups cannot be asked; run `bridgemem calibrate`.")
        step, steps = self._ahead_of(at, horizon)
        keys = self._keys(step, subject, relation, object)  # of each member with anybody
        own, back = self.ahead.heads.n_relations, object is not None
        directed = keys.relation % own + (self.events.n_relations if back else 0)
        p = self._mean_answers(Queries(keys.subject, directed, keys.step), self._expected(keys, steps))
        rows = []
        for rank, best in enumerate(best_first(p[None], top)[0].tolist(), 1):
            if not p[best] > 0:
                break
            other = torch.full_like(keys.subject, best)
            ends = (other, keys.subject) if back else (keys.subject, other)
            event = self._p_any(Keys("triple", ends[0], keys.relation % own, ends[1], keys.step), steps)
            rows.append(GroupPartner(self.events.entities.names[best], rank, float(p[best]), event))
        meaning = (
            "p_given_event: that the partner of such an event of any of them is this one. p_event: that such an event "
            f"with it happens at least once{in_steps(steps)}."
        )
        whole = self._p_any(keys, steps)
        return Ranked(rows, self._query(keys, (subject, relation, object), steps, meaning=meaning, p=whole))

    def _mean_answers(self, queries: Queries, weight: Tensor) -> Tensor:
        """The mean of p_given_event over queries, float64 [E]; weight float64 [n], in all 1."""
        assert self.calibration is not None
        p = torch.zeros(self.events.n_entities, dtype=torch.float64)
        size = batch_size(self.events.n_entities, self.past.device)
        for part, rows, asked in self._parts(queries):
            for some in torch.arange(len(rows)).split(size):
                found = self.calibration.probabilities(self._scored(part, asked.take(some)).total()).cpu()
                p[: found.shape[1]] += weight[rows[some]] @ found
        return p

    # ---- names -----------------------------------------------------------------------------------------------------

    def _named(self, name: Any, kind: str = "entity") -> str:
        if self._asks_group(name):
            return str(name)
        known = self.events.entities if kind == "entity" else self.events.relations
        return known.names[self.members(kind, name)[0]]

    def _query(
        self,
        keys: Keys,
        names: tuple[Any, Any, Any],
        horizon: int,
        *,
        meaning: str,
        p: float | None,
        step: int | None = None,
    ) -> AheadQuery:
        kinds = ("entity", "relation", "entity")
        told = [None if name is None else self._named(name, kind) for name, kind in zip(names, kinds, strict=True)]
        at = int(keys.step[0]) if step is None else step
        return self.ahead.query(keys, told, at, horizon, meaning=meaning, p=p)

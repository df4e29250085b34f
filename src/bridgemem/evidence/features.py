"""Features: what the past says about an actor's candidates, for a small network to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.base import Scores
from bridgemem.backbones.history import History
from bridgemem.evaluation.queries import Queries
from bridgemem.evidence.neighbours import FADES, Neighbours
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.memory.dyads import PairStates
from bridgemem.memory.timeline import Timeline

# decay constants of the kernels over a pair's events, in steps: from yesterday to the whole past
DECAYS = (1.0, 3.0, 10.0, 30.0, 100.0)
# windows of the activity rates, in steps
RATES = (3, 10, 30)
LAST = 16
OLDEST = 2048  # the lag at which even the slowest decay has come to nothing
NEVER = 8.0  # the log lag of a pair that never met
COMPANY = 1.4  # what shared company weighs beside log p0 when strangers are short-listed


def _activity_names(what: str) -> tuple[str, ...]:
    return (f"log {what} count", f"log {what} lag", *(f"{what} rate {r}" for r in RATES))


GROUPS: dict[str, tuple[str, ...]] = {
    "backbone": ("log p0", "uncertainty"),
    "transitions": ("A_ct", "A_nn", "log support", "tokens", "has state"),
    "pair": (
        "met",
        "log pair count",
        "log pair lag",
        *(f"{kind}, decay {d:g}" for kind in ("same way", "other way", "asked", "asked back") for d in DECAYS),
    ),
    "recurrence": ("seen", "log triple count", "log triple lag", "triple share"),
    "candidate": (*_activity_names("candidate"), *_activity_names("role")),
    "actor": ("log partners", *_activity_names("actor"), *_activity_names("actor role")),
    "company": tuple(f"log company, fade {fade:g}" for fade in FADES),
    "relation": ("log prior",),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


def group_slices() -> dict[str, slice]:
    """Which columns belong to each group."""
    slices, at = {}, 0
    for group, names in GROUPS.items():
        slices[group] = slice(at, at + len(names))
        at += len(names)
    return slices


@dataclass(frozen=True)
class Features:
    """One row per (query, candidate): row, candidate int64 [m] ascending, x float32 [m, len(NAMES)].

    evidence: the fixed residual's, and at int64 [m']: the row of each of its candidates here.
    """

    row: Tensor
    candidate: Tensor
    x: Tensor
    evidence: Evidence
    at: Tensor

    def spread(self, values: Tensor, empty: float = 0.0) -> Tensor:
        """What the evidence says of its candidates, float64 [m', ...], as rows of the features, empty elsewhere."""
        return _spread(values.double(), self.at, len(self.row), empty)


def _spread(values: Tensor, at: Tensor, size: int, empty: float = 0.0) -> Tensor:
    made = torch.full((size, *values.shape[1:]), empty, dtype=values.dtype, device=values.device)
    return made.index_copy_(0, at, values)


class FeatureReader:
    """Reads the features of queries from a history; its indices are built once.

    The candidates are all that an actor has ever met, and of the others the `strangers` that log p0 and shared company
    put first.
    """

    def __init__(self, past: History, transitions: Transitions, strangers: int = 0) -> None:
        self.past, self.transitions, self.strangers = past, transitions, strangers
        self.entities, self.relations = past.events.n_entities, past.events.n_relations
        facts = Queries.of(past.events)
        assert facts.answer is not None
        actor, candidate, step = facts.actor.numpy(), facts.answer.numpy(), facts.step.numpy()
        relation = facts.relation.numpy()

        def line(key: np.ndarray) -> Timeline:
            return Timeline.build(key, step, candidate, past.device)

        # an entity is as often an actor as a candidate, since every fact is seen from both sides
        self.active = line(candidate)
        self.roles = line(relation * self.entities + candidate)
        self.actor_roles = line(relation * self.entities + actor)
        self.neighbours = Neighbours(past)
        # weight of an event by its lag; older ones than the table weigh nothing at any speed
        lags = torch.arange(OLDEST + 1, device=past.device)[:, None]
        self.decayed = (-(lags - 1) / torch.tensor(DECAYS, device=past.device)).exp()

    def read(self, queries: Queries, scores: Scores) -> Features:
        """The features of a batch, from facts strictly before each query's step."""
        past, n = self.past, len(queries)
        cut = past.cut(queries.step)
        states = past.dyads.partners(queries.actor, queries.step, LAST, 0, until=cut)
        log_p = scores.log_p.float().log_softmax(1)
        company = self.neighbours.shared(queries.actor, cut)
        keys = self._candidates(states, log_p, company)
        row, candidate = keys // self.entities, keys % self.entities
        assert scores.uncertainty is not None
        columns = [log_p[row, candidate], scores.uncertainty[row].float()]

        evidence = self.transitions.evidence(queries, past)
        at = torch.searchsorted(keys, evidence.row * self.entities + evidence.candidate)
        tokens = (evidence.tokens != self.transitions.space.pad).sum(1) / 8
        read = (evidence.a_ct, evidence.a_nn, evidence.support.log1p(), tokens, torch.ones_like(evidence.support))
        columns += [_spread(values.float(), at, len(keys)) for values in read]

        met = torch.searchsorted(keys, states.row * self.entities + states.candidate)
        columns += self.pair_columns(queries, states, met, len(keys))
        columns += self._recurrence(queries, keys, row, n)
        step, cuts = queries.step[row], cut[row]
        columns += self._activity(self.active, candidate, step, cuts)
        columns += self._activity(self.roles, queries.relation[row] * self.entities + candidate, step, cuts)
        columns += [column[row] for column in self._of_actors(queries, states, cut)]
        columns += [of_fade[row, candidate] for of_fade in company]
        columns.append(self.transitions.log_pi[queries.relation][row])
        return Features(row, candidate, torch.stack([c.float() for c in columns], dim=1), evidence, at)

    def _candidates(self, states: PairStates, log_p: Tensor, company: Tensor) -> Tensor:
        """row * entities + candidate of all candidates that are read, ascending."""
        met = states.row * self.entities + states.candidate
        most = min(self.strangers, self.entities)
        if not most:
            return met
        rating = log_p + COMPANY * company[0]
        rating[states.row, states.candidate] = -torch.inf
        best = rating.topk(most, dim=1)
        row, place = (best.values > -torch.inf).nonzero(as_tuple=True)
        return torch.cat([met, row * self.entities + best.indices[row, place]]).sort().values

    def pair_columns(self, queries: Queries, states: PairStates, at: Tensor, size: int) -> list[Tensor]:
        """How often and how lately the pair met, and decayed sums over its last events by kind."""
        row, direction, lag, found = states.row, states.direction, states.lag, states.found
        asked, asked_way = queries.relation % self.relations, queries.relation // self.relations
        same_way = (direction == 0) & found
        other_way = (direction == 1) & found
        same_relation = states.relation == asked[row][:, None]
        forward = direction == asked_way[row][:, None]
        kinds = (same_way, other_way, same_relation & forward & found, same_relation & ~forward & found)
        # [m, kinds, events] times [m, events, decays]
        sums = torch.stack(kinds, dim=1).float() @ self.decayed[lag.clamp(1, len(self.decayed) - 1)]
        columns = [torch.ones(len(row), device=row.device), states.count.float().log1p(), lag[:, 0].float().log1p()]
        spread = [_spread(values, at, size, e) for values, e in zip(columns, (0.0, 0.0, NEVER), strict=True)]
        return [*spread, *_spread(sums.flatten(1).log1p(), at, size).unbind(1)]

    def _recurrence(self, queries: Queries, keys: Tensor, row: Tensor, n: int) -> list[Tensor]:
        """The very triple: seen, how often, how long ago, and its share among the actor's candidates."""
        seen = self.past.occurrences(queries.actor, queries.relation, queries.step)
        at = torch.searchsorted(keys, seen.row * self.entities + seen.candidate)
        count = _spread(seen.count.float(), at, len(keys))
        lag = _spread((queries.step[seen.row] - seen.step).float().log1p(), at, len(keys))
        total = torch.zeros(n, device=keys.device).index_add_(0, row, count)
        return [(count > 0).float(), count.log1p(), lag, count / total[row].clamp(min=1)]

    def _of_actors(self, queries: Queries, states: PairStates, cut: Tensor) -> list[Tensor]:
        """How many the actor has met, and how active it is, at all and in the role that is asked; [n] each."""
        partners = torch.bincount(states.row, minlength=len(queries)).float().log1p()
        role = queries.relation * self.entities + queries.actor
        return [
            partners,
            *self._activity(self.active, queries.actor, queries.step, cut),
            *self._activity(self.actor_roles, role, queries.step, cut),
        ]

    def _activity(self, line: Timeline, key: Tensor, step: Tensor, cut: Tensor) -> list[Tensor]:
        """How often, how long ago, and how often lately an entry of a timeline occurred before the cut."""
        start, stop = line.before(key, cut)
        count = (stop - start).float()
        last = line.step[(stop - 1).clamp(min=0)] if len(line.codes) else step
        lag = torch.where(stop > start, (step - last).float().log1p(), 10.0)
        recent = [line.before(key, (cut - r).clamp(min=0))[1] for r in RATES]
        return [count.log1p(), lag, *((stop - before).float().log1p() for before in recent)]

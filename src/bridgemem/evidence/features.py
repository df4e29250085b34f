"""Features: what the past says about every candidate that an actor has ever met, for a small network to read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bridgemem.backbones.base import Scores
from bridgemem.backbones.history import History
from bridgemem.evaluation.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.dyads import PairStates
from bridgemem.memory.timeline import Timeline

# decay constants of the kernels over a pair's events, in steps: from yesterday to the whole past
DECAYS = (1.0, 3.0, 10.0, 30.0, 100.0)
# windows of the activity rates, in steps
RATES = (3, 10, 30)
LAST = 16

GROUPS: dict[str, tuple[str, ...]] = {
    "backbone": ("log p0", "uncertainty"),
    "transitions": ("A_ct", "A_nn", "log support", "tokens", "has state"),
    "pair": (
        "log pair count",
        "log pair lag",
        *(f"{kind}, decay {d:g}" for kind in ("same way", "other way", "asked", "asked back") for d in DECAYS),
    ),
    "recurrence": ("seen", "log triple count", "log triple lag", "triple share"),
    "activity": (
        "log candidate count",
        "log candidate lag",
        *(f"candidate rate {r}" for r in RATES),
        "log role count",
        "log role lag",
        *(f"role rate {r}" for r in RATES),
    ),
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
    """One row per (query, candidate ever met): row, candidate int64 [m] ascending, x float32 [m, len(NAMES)].

    support and lag float64 [m] are those of the fixed residual's state: 0 and NaN outside its window.
    """

    row: Tensor
    candidate: Tensor
    x: Tensor
    support: Tensor
    lag: Tensor


class FeatureReader:
    """Reads the features of queries from a history; its indices are built once."""

    def __init__(self, past: History, transitions: Transitions) -> None:
        self.past, self.transitions = past, transitions
        self.entities, self.relations = past.events.n_entities, past.events.n_relations
        facts = Queries.of(past.events)
        assert facts.answer is not None
        candidate, step = facts.answer.numpy(), facts.step.numpy()
        role = facts.relation.numpy() * self.entities + candidate
        self.active = Timeline.build(candidate, step, candidate, past.device)
        self.roles = Timeline.build(role, step, candidate, past.device)

    def read(self, queries: Queries, scores: Scores) -> Features:
        """The features of a batch, from facts strictly before each query's step."""
        past, n = self.past, len(queries)
        cut = past.cut(queries.step)
        states = past.dyads.partners(queries.actor, queries.step, LAST, 0, until=cut)
        row, candidate = states.row, states.candidate
        keys = row * self.entities + candidate
        assert scores.uncertainty is not None
        log_p = scores.log_p.float()
        normalised = log_p - log_p.logsumexp(1, keepdim=True)
        columns = [normalised[row, candidate], scores.uncertainty[row].float()]

        evidence = self.transitions.evidence(queries, past)
        at = torch.searchsorted(keys, evidence.row * self.entities + evidence.candidate)

        def spread(values: Tensor, empty: float = 0.0) -> Tensor:
            return torch.full((len(keys),), empty, dtype=torch.float64, device=keys.device).index_copy_(
                0, at, values.double()
            )

        support, lag = spread(evidence.support), spread(evidence.lag, torch.nan)
        count = (evidence.tokens != self.transitions.space.pad).sum(1)
        has_state = spread(torch.ones_like(evidence.support))
        columns += [spread(evidence.a_ct), spread(evidence.a_nn), support.log1p(), spread(count) / 8, has_state]
        columns += self._pair(queries, states)
        columns += self._recurrence(queries, keys, row, n)
        columns += self._activity(self.active, candidate, queries.step[row], cut[row])
        role = queries.relation[row] * self.entities + candidate
        columns += self._activity(self.roles, role, queries.step[row], cut[row])
        columns.append(self.transitions.log_pi[queries.relation][row])
        return Features(row, candidate, torch.stack([c.float() for c in columns], dim=1), support, lag)

    def _pair(self, queries: Queries, states: PairStates) -> list[Tensor]:
        """How often and how lately the pair met, and decayed sums over its last events by kind."""
        row, direction, lag, found = states.row, states.direction, states.lag, states.found
        asked, asked_way = queries.relation % self.relations, queries.relation // self.relations
        same_way = (direction == 0) & found
        other_way = (direction == 1) & found
        same_relation = states.relation == asked[row][:, None]
        forward = direction == asked_way[row][:, None]
        kinds = (same_way, other_way, same_relation & forward & found, same_relation & ~forward & found)
        columns = [states.count.float().log1p(), lag[:, 0].float().log1p()]
        decayed = [(-(lag.float() - 1) / d).exp() for d in DECAYS]
        return columns + [(weight * kind).sum(1).log1p() for kind in kinds for weight in decayed]

    def _recurrence(self, queries: Queries, keys: Tensor, row: Tensor, n: int) -> list[Tensor]:
        """The very triple: seen, how often, how long ago, and its share among the actor's candidates."""
        seen = self.past.occurrences(queries.actor, queries.relation, queries.step)
        at = torch.searchsorted(keys, seen.row * self.entities + seen.candidate)
        count = torch.zeros(len(keys), device=keys.device).index_copy_(0, at, seen.count.float())
        lag = torch.zeros(len(keys), device=keys.device)
        lag.index_copy_(0, at, (queries.step[seen.row] - seen.step).float().log1p())
        total = torch.zeros(n, device=keys.device).index_add_(0, row, count)
        return [(count > 0).float(), count.log1p(), lag, count / total[row].clamp(min=1)]

    def _activity(self, line: Timeline, key: Tensor, step: Tensor, cut: Tensor) -> list[Tensor]:
        """How often, how long ago, and how often lately an entry of a timeline occurred before the cut."""
        start, stop = line.before(key, cut)
        count = (stop - start).float()
        last = line.step[(stop - 1).clamp(min=0)] if len(line.codes) else step
        lag = torch.where(stop > start, (step - last).float().log1p(), 10.0)
        recent = [line.before(key, (cut - r).clamp(min=0))[1] for r in RATES]
        return [count.log1p(), lag, *((stop - before).float().log1p() for before in recent)]

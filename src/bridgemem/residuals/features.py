"""Features: what the past says about an actor's candidates, for a small network to read."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.backbones.scorer import Scores
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.memory.dyads import PairStates
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.numerics import by_candidates
from bridgemem.ranking.ranks import rows_at_once
from bridgemem.residuals import lags
from bridgemem.residuals.activity import RATES, Activity, OverlayActivity, activities_of
from bridgemem.residuals.neighbours import DECAY_RATES, Neighbours

LAST = 16
NEVER = 8.0  # the log lag of a pair that never interacted
NEIGHBOUR_WEIGHT = 1.4  # what common neighbours weighs next to log p0 when unseen candidates are short-listed


def _activity_names(what: str) -> tuple[str, ...]:
    return (f"log {what} count", f"log {what} lag", *(f"{what} rate {r}" for r in RATES))


GROUPS: dict[str, tuple[str, ...]] = {
    "backbone": ("log p0", "uncertainty"),
    "transitions": ("A_ct", "A_nn", "log support", "tokens", "has state"),
    "pair": (
        "seen pair",
        "log pair count",
        "log pair lag",
        *(
            f"{kind}, {name}"
            for kind in ("same way", "other way", "query relation", "inverse query relation")
            for name in lags.NAMES
        ),
    ),
    "recurrence": ("seen triple", "log triple count", "log triple lag", "triple share"),
    "candidate": (*_activity_names("candidate"), *_activity_names("role")),
    "actor": ("log partners", *_activity_names("actor"), *_activity_names("actor role")),
    "common_neighbours": tuple(f"log common neighbours, decay rate {rate:g}" for rate in DECAY_RATES),
    "relation": ("log prior",),
}
NAMES = tuple(name for names in GROUPS.values() for name in names)
# what all candidates of a query have in common, and what is their own; columns of NAMES, ascending
OF_QUERY = tuple(NAMES.index(name) for name in ("uncertainty", *GROUPS["actor"], *GROUPS["relation"]))
OF_CANDIDATE = tuple(i for i in range(len(NAMES)) if i not in OF_QUERY)
# what is read where there is nothing: no interaction, no event of the query relation
UNSEEN_PAIR = (0.0, 0.0, NEVER, *(0.0 for _ in range(2 * len(lags.NAMES))))
UNSEEN_RELATION = tuple(0.0 for _ in range(2 * len(lags.NAMES)))


def group_columns(members: int = 0) -> dict[str, list[int]]:
    """Which columns belong to each group; those of an ensemble's members come last and belong to the backbone."""
    columns, at = {}, 0
    for group, names in GROUPS.items():
        columns[group] = list(range(at, at + len(names)))
        at += len(names)
    columns["backbone"] += range(at, at + members)
    return columns


@dataclass(frozen=True)
class Block:
    """Some columns of the features: table float32 [k, columns], at int64 [m]: the row of it that each candidate has."""

    table: Tensor
    at: Tensor

    @classmethod
    def sparse(cls, table: Tensor, at: Tensor, size: int) -> Block:
        """A table of the candidates at int64 [k] alone; all others share one more row, of zeros."""
        index = at.new_full((size,), len(table)).index_copy_(0, at, torch.arange(len(at), device=at.device))
        return cls(F.pad(table, (0, 0, 0, 1)), index)


@dataclass(frozen=True)
class Features:
    """One row per (query, candidate): row, candidate int64 [m] ascending.

    of_query float32 [n, len(OF_QUERY)], blocks: the columns of OF_CANDIDATE in their order, and then log p of each
    member where the backbone is an ensemble; both as read, `x` is all.
    evidence: the paper's residual's, and at int64 [m']: the row of each of its candidates here.
    """

    row: Tensor
    candidate: Tensor
    of_query: Tensor
    blocks: tuple[Block, ...]
    evidence: Evidence
    at: Tensor

    @cached_property
    def x(self) -> Tensor:
        """All features in the order of NAMES and the members, float32 [m, len(NAMES) + members]."""
        read = gathered(self.blocks)
        of_candidate, members = read.split([len(OF_CANDIDATE), read.shape[1] - len(OF_CANDIDATE)], dim=1)
        made = self.of_query.new_empty((len(self.row), len(NAMES)))
        made[:, OF_QUERY] = self.of_query[self.row]
        made[:, OF_CANDIDATE] = of_candidate
        return torch.cat([made, members], dim=1)

    def spread(self, values: Tensor, empty: float = 0.0) -> Tensor:
        """What the evidence says of its candidates, float64 [m', ...], as rows of the features, empty elsewhere."""
        return spread(values.double(), self.at, len(self.row), empty)


def gathered(blocks: Sequence[Block], rows: slice = slice(None)) -> Tensor:
    """The columns of all blocks for some of the candidates, side by side: float32 [rows, columns]."""
    return torch.cat([block.table.index_select(0, block.at[rows]) for block in blocks], dim=1)


def _places(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the wanted are among the keys, and where these stand there: int64 [k] each; the keys ascend."""
    at = torch.searchsorted(keys, wanted)
    found = (keys[at.clamp(max=max(len(keys) - 1, 0))] == wanted).nonzero().squeeze(1) if len(keys) else at[:0]
    return found, at[found]


def spread(values: Tensor, at: Tensor, size: int, empty: float = 0.0) -> Tensor:
    """values [k, ...] as the rows `at` of a tensor of that many rows, the others filled."""
    made = torch.full((size, *values.shape[1:]), empty, dtype=values.dtype, device=values.device)
    return made.index_copy_(0, at, values)


def highest(rating: Tensor, most: int) -> Tensor:
    """The candidates with the highest ratings of each row, int64 [n, most], -1 where too few are above -inf.

    Of equal ones the first: which of them topk takes hangs on all others, and on names that came later.
    """
    value, candidate = rating.topk(min(most + 1, rating.shape[1]), dim=1)
    if value.shape[1] > most:
        last = value[:, most]
        tied = ((value[:, most - 1] == last) & (last > -torch.inf)).nonzero().squeeze(1)
        part, level = rating[tied], last[tied, None]
        above, equal = part > level, part == level
        first = equal & (equal.cumsum(1, dtype=torch.int32) <= most - above.sum(1, keepdim=True))
        candidate[tied, :most] = (above | first).nonzero()[:, 1].view(-1, most)
    return candidate.masked_fill_(value == -torch.inf, -1)[:, :most]


@dataclass(frozen=True)
class _Moments:
    """The distinct (actor, step) of a batch, all that a pair's past depends on: int64 [u] each, by step and actor.

    which int64 [n]: that of each query.
    """

    actor: Tensor
    step: Tensor
    cut: Tensor
    which: Tensor

    @classmethod
    def of(cls, queries: Queries, past: Past) -> _Moments:
        entities = past.events.n_entities
        key, which = torch.unique(queries.step * entities + queries.actor, return_inverse=True)
        step = key // entities
        return cls(key % entities, step, past.cut(step), which)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a batch that are read: keys int64 [m], row * entities + candidate, ascending.

    state int64 [m]: the state of the pair among `states`, or as many as there are if there is none. log_p float32
    [n, E]: log p0 of all. shared float32 [rates, E, u]: common neighbours, by entity and moment.
    whole: none was left out.
    """

    keys: Tensor
    state: Tensor
    states: PairStates
    moments: _Moments
    log_p: Tensor
    shared: Tensor
    whole: bool = True

    @property
    def row(self) -> Tensor:
        return self.keys // self.log_p.shape[1]

    @property
    def candidate(self) -> Tensor:
        return self.keys % self.log_p.shape[1]

    def take(self, which: Tensor) -> Candidates:
        """Some of them, int64 [k] ascending."""
        return replace(self, keys=self.keys[which], state=self.state[which], whole=False)


class FeatureReader:
    """Reads the features of queries from a history; its indices are built once, those of a base once for all deltas.

    The candidates are all that an actor ever interacted with, and of the others the `unseen_candidates` that log p0
    and common neighbours put first.
    """

    def __init__(self, past: Past, transitions: Transitions, unseen_candidates: int = 0) -> None:
        self.past, self.transitions, self.unseen_candidates = past, transitions, unseen_candidates
        self.entities, self.relations = past.events.n_entities, past.events.n_relations
        self.active, self.roles, self.actor_roles = activities_of(past)
        self.neighbours = Neighbours(past)
        self.cycle = past.events.clock.cycle

    @cached_property
    def _everybody(self) -> Tensor:
        """The rank of every entity among those that are active, int64 [E]."""
        return self.active.find(torch.arange(self.entities, device=self.past.device))

    def prepare(self, step: int) -> None:
        """Compute ahead what queries about a step read of the base, which all deltas on it share."""
        cut = int(self.past.cut(torch.tensor(step)))
        self.neighbours.base.before(cut)
        for activity in (self.active, self.roles, self.actor_roles):
            own = activity.base if isinstance(activity, OverlayActivity) else activity
            if isinstance(own, Activity):  # on disk each key is looked up
                own.everybody(cut)

    def by(self, transitions: Transitions) -> FeatureReader:
        """The same over other transitions; indices are shared."""
        made = copy.copy(self)
        made.transitions = transitions
        return made

    def read(self, queries: Queries, scores: Scores) -> Features:
        """The features of all candidates of a batch, from facts strictly before each query's step."""
        return self.features(queries, scores, self.candidates(queries, scores))

    def candidates(self, queries: Queries, scores: Scores, last: int = LAST) -> Candidates:
        """Whose features are read: all that were seen, and some of the others.

        last: how many events of a pair are read; 1 where few of the candidates are going to be taken.
        """
        moments = _Moments.of(queries, self.past)
        states = self.past.partners(moments.actor, moments.step, last)
        log_p = by_candidates(lambda own: own.log_softmax(1), scores.of_candidates.float(), -torch.inf)
        shared = self.neighbours.shared(moments.actor, moments.cut)
        bounds = torch.searchsorted(states.row, torch.arange(len(moments.actor) + 1, device=states.row.device))
        row, state = expand(bounds[moments.which], bounds[moments.which + 1])
        keys = row * self.entities + states.candidate.index_select(0, state)
        most = min(self.unseen_candidates, self.entities)
        if most:
            row, unseen = self._unseen_candidates(most, states, moments, log_p, shared[0])
            keys, order = torch.cat([keys, row * self.entities + unseen]).sort()
            state = torch.cat([state, state.new_full((len(row),), len(states.row))])[order]
        return Candidates(keys, state, states, moments, log_p, shared)

    def features(self, queries: Queries, scores: Scores, found: Candidates) -> Features:
        """The features of candidates that were found for the same batch, or of some of them."""
        past, moments, everything = self.past, found.moments, found.states
        found = self._with_events(found)
        states, keys, row, candidate = found.states, found.keys, found.row, found.candidate
        size, own = len(row), torch.arange(len(row), device=row.device)
        seen = (found.state < len(states.row)).nonzero().squeeze(1)
        evidence, at = self._evidence(queries, found)
        asked_at, asked = self._asked(states, found.state[seen], queries.relation[row[seen]])
        cut = past.cut(queries.step)
        # index_select is indexing at a third of its time
        role = queries.relation.index_select(0, row) * self.entities + candidate
        of_moment = candidate * len(moments.actor) + moments.which.index_select(0, row)
        shared = found.shared.flatten(1).index_select(1, of_moment).T.contiguous().log_()
        blocks: tuple[Block, ...] = (
            Block(found.log_p.view(-1).index_select(0, keys)[:, None], own),
            Block.sparse(self._transitions(evidence), at, size),
            self._pairs(found),
            Block.sparse(asked, seen[asked_at], size),
            self._recurrence(queries, keys),
            Block(*self.active.table(self._everybody.index_select(0, candidate), row, queries.step, cut)),
            Block(*self.roles.table(self.roles.find(role), row, queries.step, cut)),
            Block(shared, own),
        )
        if scores.members is not None:
            blocks += (Block(scores.members.flatten(1).index_select(1, keys).T.float().contiguous(), own),)
        of_query = self._of_queries(queries, scores, everything, moments)
        return Features(row, candidate, of_query, blocks, evidence, at)

    def _with_events(self, found: Candidates) -> Candidates:
        """Candidates with the last events of their pairs, where only the newest were read."""
        if found.whole or found.states.lag.shape[1] == LAST:
            return found
        moments, states = found.moments, found.states
        used, state = found.state.unique(return_inverse=True)
        pair = states.take(used[used < len(states.row)])
        asked = moments.actor[pair.row], pair.candidate, moments.step[pair.row]
        read = self.past.dyads.read(*asked, LAST, 0, moments.cut[pair.row])
        return replace(found, state=state, states=replace(read, row=pair.row))

    def _unseen_candidates(
        self, most: int, states: PairStates, moments: _Moments, log_p: Tensor, common_neighbours: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(row, candidate) int64 [k]: the best of those that the actor never interacted with."""
        weight = common_neighbours.T.contiguous().log().mul_(NEIGHBOUR_WEIGHT)
        weight[states.row, states.candidate] = -torch.inf
        size = rows_at_once(log_p)
        best = [
            highest(weight.index_select(0, which).add_(part), most)
            for which, part in zip(moments.which.split(size), log_p.split(size), strict=True)
        ]
        candidate = torch.cat(best)
        row, place = (candidate >= 0).nonzero(as_tuple=True)
        return row, candidate[row, place]

    def _evidence(self, queries: Queries, found: Candidates) -> tuple[Evidence, Tensor]:
        """What the transitions say of the candidates, and int64 [m']: the place of each of theirs among these."""

        def wanted(row: Tensor, candidate: Tensor) -> Tensor:
            return _places(found.keys, row * self.entities + candidate)[0]

        evidence = self.transitions.evidence(queries, self.past, None if found.whole else wanted)
        return evidence, torch.searchsorted(found.keys, evidence.row * self.entities + evidence.candidate)

    def _pairs(self, found: Candidates) -> Block:
        """The pair's own past; of all states those alone that are read."""
        states, state = found.states, found.state
        if not found.whole:
            used, state = state.unique(return_inverse=True)
            states = states.take(used[used < len(states.row)])  # the last place stays that of pairs without a state
        return Block(torch.cat([self.pair_table(states), torch.tensor([UNSEEN_PAIR], device=state.device)]), state)

    def _transitions(self, evidence: Evidence) -> Tensor:
        tokens = (evidence.tokens != self.transitions.space.pad).sum(1) / 8
        read = (evidence.a_ct, evidence.a_nn, evidence.support.log1p(), tokens, torch.ones_like(tokens))
        return torch.stack([values.float() for values in read], dim=1)

    def pair_columns(self, queries: Queries, states: PairStates) -> Tensor:
        """The group "pair" of states whose rows are queries, float32 [n, columns]."""
        at, asked = self._asked(
            states, torch.arange(len(states.row), device=states.row.device), queries.relation[states.row]
        )
        return torch.cat([self.pair_table(states), spread(asked, at, len(states.row))], dim=1)

    def pair_table(self, states: PairStates) -> Tensor:
        """How often and how lately pairs interacted, and the lags of their last events by direction."""
        lag = states.lag.clamp(min=1)
        ways = [torch.where(states.found & (states.direction == way), lag, 0) for way in (0, 1)]
        columns = [torch.ones(len(lag), device=lag.device), states.count.float(), states.lag[:, 0].float()]
        columns[1:] = [column.log1p_() for column in columns[1:]]
        return torch.cat([torch.stack(columns, dim=1), *(lags.of_lags(way, self.cycle) for way in ways)], dim=1)

    def _asked(self, states: PairStates, state: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """The lags of a pair's last events of the relation that is asked, either way round.

        state, asked int64 [m]: of each candidate -> those of them that have any int64 [k], and float32 [k, columns].
        """
        # no relation has the number -1
        relation = torch.where(states.found, states.relation, -1).int()
        same = relation.index_select(0, state) == (asked % self.relations).int()[:, None]
        at = same.any(1).nonzero().squeeze(1)
        state, asked, same = state[at], asked[at], same[at]
        forward = states.direction[state] == (asked // self.relations)[:, None]
        lag = states.lag[state].clamp_(min=1)
        ways = (same & forward, same & ~forward)
        return at, torch.cat([lags.of_lags(torch.where(way, lag, 0), self.cycle) for way in ways], dim=1)

    def _recurrence(self, queries: Queries, keys: Tensor) -> Block:
        """The very triple: seen, how often, how long ago, and its share among the actor's candidates."""
        seen = self.past.occurrences(queries.actor, queries.relation, queries.step)
        count = seen.count.float()
        total = torch.zeros(len(queries), device=keys.device).index_add_(0, seen.row, count)
        lag = (queries.step[seen.row] - seen.step).float().log1p_()
        share = count / total[seen.row].clamp(min=1)
        table = torch.stack([torch.ones_like(count), count.log1p(), lag, share], dim=1)
        read, at = _places(keys, seen.row * self.entities + seen.candidate)
        return Block.sparse(table[read], at, len(keys))

    def _of_queries(self, queries: Queries, scores: Scores, states: PairStates, moments: _Moments) -> Tensor:
        """Uncertainty; how many partners the actor has, how active it is at all and in the role asked; log prior."""
        assert scores.uncertainty is not None
        partners = torch.bincount(states.row, minlength=len(moments.actor)).float().log1p()
        active = self.active.read(self.active.find(moments.actor), moments.step, moments.cut)
        role = self.actor_roles.find(queries.relation * self.entities + queries.actor)
        columns = [
            scores.uncertainty.float()[:, None],
            torch.cat([partners[:, None], active], dim=1)[moments.which],
            self.actor_roles.read(role, queries.step, self.past.cut(queries.step)),
            self.transitions.log_pi[queries.relation].float()[:, None],
        ]
        return torch.cat(columns, dim=1)

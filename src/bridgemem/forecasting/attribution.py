"""Attribution: a learned correction shared out exactly, to groups of features and to the single events of a pair.

Two games, both answered by exact Shapley values. In the first the players are the groups of features; a group that is
absent reads as its mean, and what is left without any group is the start. In the second the players are the events of
the pair: its worth is the part that the groups of BETWEEN have in the first game when their features are read as if
only some of the events had happened, all else equal. The newest LISTED events play one by one, all older ones as one.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.equations import count_evidence
from bridgemem.events.queries import Queries
from bridgemem.memory.dyads import PairStates
from bridgemem.memory.pairs import PairEvents
from bridgemem.residuals.features import GROUPS, LAST, UNSEEN_PAIR, UNSEEN_RELATION, FeatureReader, group_columns
from bridgemem.residuals.learned import Learned, LearnedNet
from bridgemem.residuals.neighbours import FLOOR, Neighbours

LISTED = 8
BETWEEN = ("transitions", "pair", "recurrence")  # the groups that read nothing but the pair's own events
RIVALS = 256  # at most, to whom a candidate is compared
_ROWS = 64  # of features whose coalitions are evaluated at once


def double(learned: Learned) -> Learned:
    """The same residual in double precision, so that what makes no difference has no part, not even by rounding."""
    return Learned(learned.settings, copy.deepcopy(learned.net).cpu().double())


def subsets(players: int) -> Tensor:
    """All subsets of some players, bool [2^players, players]: player j is in subset s where bit j of s is set."""
    return (torch.arange(1 << players)[:, None] >> torch.arange(players)) & 1 == 1


def shapley(players: int) -> Tensor:
    """Shapley values as a linear map of the worth of all subsets: float64 [players, 2^players], at least one player."""
    present = subsets(players)
    size = present.sum(1, keepdim=True)
    # the chance that exactly those of a subset came before a player in a random order
    weight = torch.tensor([1 / (players * math.comb(players - 1, k)) for k in range(players)], dtype=torch.float64)
    return torch.where(present, weight[(size - 1).clamp(min=0)], -weight[size.clamp(max=players - 1)]).T


@torch.no_grad()
def coalitions(net: LearnedNet, x: Tensor, relation: int) -> Tensor:
    """f with every subset of the groups present: x float64 [m, features] -> float64 [m, 2^groups], as in `subsets`."""
    group = torch.empty(len(net.mean), dtype=torch.int64)
    for i, columns in enumerate(group_columns(net.members).values()):
        group[columns] = i
    present = subsets(len(GROUPS))[:, group]
    made = []
    for rows in x.split(_ROWS):
        mixed = torch.where(present, rows[:, None], net.mean).flatten(0, 1)
        made.append(net(mixed, torch.full((len(mixed),), relation)).view(len(rows), -1))
    return torch.cat(made)


@dataclass(frozen=True)
class GroupParts:
    """f / w of one candidate: start + the groups' parts = total; apart: each part less that of the average rival."""

    start: float
    groups: dict[str, float]
    apart: dict[str, float]
    total: float


def group_parts(learned: Learned, x: Tensor, rivals: Tensor, relation: int, total: float | None = None) -> GroupParts:
    """The Shapley values of the groups; x float64 [features] as read, rivals float64 [m, features] of the same query.

    total: f / w of x as the forecast has it, in single precision; what rounding took from it is part of the start.
    What rivals have in common moves no rank. A long list of them is thinned out evenly before it is averaged.
    """
    scale, values = learned.net.scale.detach(), shapley(len(GROUPS))
    worth = coalitions(learned.net, x[None], relation)[0] / scale
    average = coalitions(learned.net, rivals[:: 1 + len(rivals) // RIVALS], relation).mean(0) / scale
    parts, usual = values @ worth, values @ average
    groups, apart = (dict(zip(GROUPS, part.tolist(), strict=True)) for part in (parts, parts - usual))
    total = float(worth[-1]) if total is None else total
    return GroupParts(float(worth[0]) + total - float(worth[-1]), groups, apart, total)


def latest(pair: PairEvents, now: int, kept: Tensor, k: int) -> PairStates:
    """The state at step `now` of the newest k of the rows kept, kept bool [s, n]; one that keeps nothing has none.

    Rows of older events are kept together or not at all, so that the first few tell which k are the newest.
    """
    row = kept.any(1).nonzero().squeeze(1)
    near = kept[row, : 2 * LISTED + k]
    near = F.pad(near, (0, max(0, k - near.shape[1])))
    position = (~near).byte().argsort(dim=1, stable=True)[:, :k]
    found = near.gather(1, position)
    position = position.clamp(max=len(pair) - 1)
    columns = (pair.relation[position], pair.direction[position], now - pair.step[position])
    return PairStates(row, torch.zeros_like(row), kept[row].sum(1), *columns, found)


def pair_features(
    reader: FeatureReader, query: Queries, candidate: int, x: Tensor, pair: PairEvents, kept: Tensor
) -> Tensor:
    """The features x float64 [features] of a candidate, read as if only some rows of the pair's past were there.

    kept bool [s, n], all True in the last -> float64 [s, features]. Only the groups of BETWEEN are read again.
    """
    made, columns = x.repeat(len(kept), 1), group_columns()
    asked = Queries(*(column.expand(len(kept)) for column in (query.actor, query.relation, query.step)))
    states = latest(pair, int(query.step), kept, LAST)
    # without any event the pair never interacted
    pairs = torch.tensor([UNSEEN_PAIR + UNSEEN_RELATION]).repeat(len(kept), 1)
    made[:, columns["pair"]] = pairs.index_copy_(0, states.row, reader.pair_columns(asked, states)).double()
    made[:, columns["recurrence"]] = _recurrence(reader, query, candidate, pair, kept).double()
    made[:, columns["transitions"]] = _transitions(reader, query, pair, kept, x[columns["transitions"]])
    made[-1] = x
    return made


def _recurrence(reader: FeatureReader, query: Queries, candidate: int, pair: PairEvents, kept: Tensor) -> Tensor:
    """The columns of the group "recurrence", float32 [s, 4]: snapshots of the very triple among the rows kept."""
    way, relation = divmod(int(query.relation), reader.relations)
    same = ((pair.relation == relation) & (pair.direction == way)).nonzero().squeeze(1)
    lags, snapshot = torch.unique_consecutive(int(query.step) - pair.step[same], return_inverse=True)
    # one more column, never seen, stands for a triple that never was
    lags = F.pad(lags, (0, 1)).float()
    seen = torch.zeros(len(kept), len(lags)).index_add_(1, snapshot, kept[:, same].float()) > 0
    count = seen.sum(1).float()
    lag = torch.where(count > 0, lags[seen.byte().argmax(1)].log1p(), 0.0)
    known = reader.past.occurrences(query.actor, query.relation, query.step)
    others = known.count[known.candidate != candidate].sum()
    return torch.stack([(count > 0).float(), count.log1p(), lag, count / (others + count).clamp(min=1)], dim=1)


def _transitions(reader: FeatureReader, query: Queries, pair: PairEvents, kept: Tensor, whole: Tensor) -> Tensor:
    """The columns of the group "transitions", float64 [s, 5]; whole float64 [5]: what was read of the whole past."""
    model = reader.transitions
    s, space, asked = model.settings, model.space, int(query.relation)
    now = int(query.step)
    states = latest(pair, now, kept & (now - pair.step <= s.window) if s.window else kept, s.k)
    tokens = space.encode(states.relation, states.direction, states.lag, states.found)
    columns = [
        count_evidence(model.p_ct, model.log_pi, tokens, torch.full((len(tokens),), asked), s.pooling),
        model.reader.evidence(tokens)[:, asked],
        model.support[tokens].sum(1).log1p(),
        (tokens != space.pad).sum(1) / 8,
        torch.ones(len(tokens)),
    ]
    made = torch.zeros(len(kept), len(columns), dtype=torch.float64)
    made[states.row] = torch.stack([c.float() for c in columns], dim=1).double()
    if len(tokens) and int(states.row[-1]) == len(kept) - 1:
        # float32 products of another batch may differ in their last digit, and equal states must not
        made[states.row[(tokens == tokens[-1]).all(1)]] = whole
    return made


@dataclass(frozen=True)
class EventParts:
    """The part of the groups of BETWEEN: unseen_pair + the listed events' parts + the earlier ones' part = total.

    listed: of the newest events, one by one, newest first. n_earlier: how many older ones share the part `earlier`.
    """

    unseen_pair: float
    listed: tuple[float, ...]
    earlier: float
    n_earlier: int
    total: float


def event_parts(
    learned: Learned,
    reader: FeatureReader,
    query: Queries,
    candidate: int,
    x: Tensor,
    pair: PairEvents,
) -> EventParts:
    """The Shapley values of the pair's events; x float64 [features] as read."""
    players = min(pair.n_events, LISTED + 1)
    rows = x[None]
    if players:
        kept = subsets(players)[:, pair.event.clamp(max=LISTED)]
        rows = pair_features(reader, query, candidate, x, pair, kept)
    between = shapley(len(GROUPS))[[list(GROUPS).index(group) for group in BETWEEN]].sum(0)
    worth = coalitions(learned.net, rows, int(query.relation)) @ between / learned.net.scale.detach()
    parts = (shapley(players) @ worth).tolist() if players else []
    return EventParts(
        unseen_pair=float(worth[0]),
        listed=tuple(parts[:LISTED]),
        earlier=sum(parts[LISTED:]),
        n_earlier=max(0, pair.n_events - LISTED),
        total=float(worth[-1]),
    )


def third_parties(neighbours: Neighbours, actor: int, candidate: int, cut: int, most: int = 3) -> dict[int, float]:
    """The common neighbours of two before a step, largest first: the share of each in the sum of the feature.

    Of the decay rates it is the first, which short-lists unseen candidates too.
    """
    through = neighbours.adjacent(torch.tensor([actor, candidate]), cut).double().prod(1)
    share = through / (through.sum() + FLOOR)
    share[[actor, candidate]] = 0.0  # they are no third party to themselves
    best = share.topk(min(most, len(share)))
    return {party: of for party, of in zip(best.indices.tolist(), best.values.tolist(), strict=True) if of > 0}

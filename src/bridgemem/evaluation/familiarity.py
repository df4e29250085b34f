"""Familiarity: what had happened before each query between its two parties, from facts strictly before its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from bridgemem.events.log import EventLog
from bridgemem.memory.past import Past

MOST_EVENTS = 5_000_000  # of a log whose neighbours are held in memory unasked


@dataclass(frozen=True)
class Familiarity:
    """Of n queries, each read from the facts before its step.

    triple bool [n]: the fact itself occurred. pair bool [n]: the two parties interacted, either way round. two_hop
    bool [n]: both interacted with a third one. new bool [n]: one of the two had no event yet. lag float64 [n]: steps
    since the last event of the pair, NaN without one. frequency int64 [n]: events of the relation in train.
    """

    triple: np.ndarray
    pair: np.ndarray
    two_hop: np.ndarray
    new: np.ndarray
    lag: np.ndarray
    frequency: np.ndarray


def familiarity(
    events: EventLog, asked: Mapping[str, np.ndarray], *, valid_start: int, frozen_at: int | None = None
) -> Familiarity:
    """What was known of queries: actor, directed relation, step and answer, int64 [n] each, as in a table of ranks.

    frozen_at: with frozen history no fact from this step on is read. Frequencies are counted before valid_start.
    """
    actor, relation, step, answer = (asked[name] for name in ("actor", "relation", "step", "answer"))
    cut = step if frozen_at is None else np.minimum(step, frozen_at)
    past = Past(events, frozen_at)
    tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in (actor, relation, answer, step)]
    triple = np.zeros(len(step), dtype=bool)
    for at in range(0, len(step), 1 << 14):
        part = slice(at, at + (1 << 14))
        triple[part] = past.happened(*(column[part] for column in tensors)).numpy()
    lag = _lags(events, actor, answer, cut)
    first = np.full(events.n_entities, np.iinfo(np.int64).max)
    for side in (events.subject, events.object):
        np.minimum.at(first, np.asarray(side), np.asarray(events.step))
    new = (first[actor] >= cut) | (first[answer] >= cut)
    train = np.asarray(events.relation)[: int(np.searchsorted(np.asarray(events.step), valid_start))]
    often = np.bincount(train, minlength=events.n_relations)
    pair = ~np.isnan(lag)
    two_hop = np.zeros(len(step), dtype=bool)
    wanted = np.flatnonzero(~pair & ~new)
    if len(wanted):
        two_hop[wanted] = _Neighbours(events).shared(actor[wanted], answer[wanted], cut[wanted])
    # from the query itself, also where history ended before it
    return Familiarity(triple, pair, two_hop, new, step - cut + lag, often[relation % events.n_relations])


def _pairs(events: EventLog) -> np.ndarray:
    """One number for both parties of every event, whichever is the subject; int64 [m]."""
    one, two = np.asarray(events.subject, np.int64), np.asarray(events.object, np.int64)
    return np.minimum(one, two) * events.n_entities + np.maximum(one, two)


def _lags(events: EventLog, actor: np.ndarray, answer: np.ndarray, cut: np.ndarray) -> np.ndarray:
    """Steps from the last event of each pair before its cut to the cut, NaN where there is none."""
    key, step = _pairs(events), np.asarray(events.step, np.int64)
    order = np.lexsort((step, key))
    key, step = key[order], step[order]
    wanted = np.minimum(actor, answer) * events.n_entities + np.maximum(actor, answer)
    distinct, start = np.unique(key, return_index=True)
    stop = np.append(start[1:], len(key))
    at = np.searchsorted(distinct, wanted)
    known = at < len(distinct)
    known[known] = distinct[at[known]] == wanted[known]
    lag = np.full(len(wanted), np.nan)
    # by the place of a pair among all of them, so that one search finds the last event before the cut
    width = int(step.max(initial=0)) + 2
    codes = np.repeat(np.arange(len(distinct)), stop - start) * width + step
    rows = np.flatnonzero(known)
    last = np.searchsorted(codes, at[rows] * width + np.minimum(cut[rows], width - 1)) - 1
    inside = last >= start[at[rows]]
    lag[rows[inside]] = cut[rows[inside]] - step[last[inside]]
    return lag


class _Neighbours:
    """With whom every entity interacted, and since when."""

    def __init__(self, events: EventLog) -> None:
        one, two = np.asarray(events.subject, np.int64), np.asarray(events.object, np.int64)
        ends = np.concatenate([one * events.n_entities + two, two * events.n_entities + one])
        # events are in the order of time, so the first of each pair is where it began
        both = np.concatenate([np.asarray(events.step)] * 2)
        order = np.lexsort((both, ends))
        ends, both = ends[order], both[order]
        first = np.append(True, ends[1:] != ends[:-1]) if len(ends) else np.empty(0, dtype=bool)
        ends, self.since = ends[first], both[first]
        self.other = ends % events.n_entities
        self.bounds = np.searchsorted(ends // events.n_entities, np.arange(events.n_entities + 1))

    def shared(self, one: np.ndarray, two: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """Whether two entities had a neighbour in common before the cut; bool [n]."""
        made = np.zeros(len(one), dtype=bool)
        for i, (a, b, t) in enumerate(zip(one.tolist(), two.tolist(), cut.tolist(), strict=True)):
            few, many = (slice(self.bounds[e], self.bounds[e + 1]) for e in (a, b))
            if few.stop - few.start > many.stop - many.start:
                few, many = many, few
            wanted = self.other[few][self.since[few] < t]
            known = self.other[many][self.since[many] < t]
            if len(wanted) and len(known):
                at = np.searchsorted(known, wanted).clip(max=len(known) - 1)
                made[i] = bool((known[at] == wanted).any())
        return made

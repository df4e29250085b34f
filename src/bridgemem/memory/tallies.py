"""Tallies: how often, how lately and since when a pair, a triple, a role or a relation occurred, strictly before a cut.

Every event counts, told twice or not. A level is the sum of e^(-lag / T) over the past events of a key: a count that
decays. It is kept at each event, so that one search finds it for any later step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.events.queries import renumbered
from bridgemem.memory.index import Index
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import STEP_BITS, changes, code, expand

DECAYS = (2.0, 7.0, 30.0, 120.0)  # T of the levels, in steps
_PAIR_BITS = 32
_NO_STEP = 2**31 - 1


class Tallied(NamedTuple):
    """What happened before a cut under n keys: events int64 [n], first and last step int64 [n], levels float64 [n, T].

    Where nothing happened their number and the levels are 0, the last step is -1 and the first beyond all others.
    """

    events: Tensor
    first: Tensor
    last: Tensor
    level: Tensor

    @classmethod
    def nothing(cls, size: int, device: torch.device) -> Tallied:
        count = torch.zeros(size, dtype=torch.int64, device=device)
        level = torch.zeros((size, len(DECAYS)), dtype=torch.float64, device=device)
        return cls(count, count + _NO_STEP, count - 1, level)

    def plus(self, other: Tallied) -> Tallied:
        """Of two logs together."""
        first, last = torch.minimum(self.first, other.first), torch.maximum(self.last, other.last)
        return Tallied(self.events + other.events, first, last, self.level + other.level)

    def take(self, rows: Tensor) -> Tallied:
        return Tallied(*(column[rows] for column in self))

    def put(self, rows: Tensor, other: Tallied) -> Tallied:
        """The same with other values in some rows."""
        for column, values in zip(self, other, strict=True):
            column[rows] = values
        return self


def decayed(lag: Tensor, decays: tuple[float, ...] = DECAYS) -> Tensor:
    """e^(-lag / T) float64 [n, T] of lags int64 [n]."""
    rates = torch.tensor([1 / decay for decay in decays], dtype=torch.float64, device=lag.device)
    return torch.exp(-lag[:, None].double() * rates)


class Tally:
    """One log's events under keys: keys int64 [k] ascending; by (key, step), each once, steps, codes and levels [m]."""

    def __init__(self, key: np.ndarray, step: np.ndarray, device: torch.device) -> None:
        """key, step int64 [events], in the order of time."""
        order = np.argsort(key, kind="stable")
        key, step = key[order], step[order]
        new_key = changes(key)
        rows = np.flatnonzero(new_key | changes(step))
        events = np.diff(np.append(rows, len(key)))
        key, step, new_key = key[rows], step[rows], new_key[rows]
        first = np.flatnonzero(new_key)
        rank = np.cumsum(new_key) - 1
        total = np.cumsum(events)
        before = total[first] - events[first]
        place = np.arange(len(key)) - first[rank]
        columns = (key[first], np.append(first, len(key)), step, (rank << STEP_BITS) | step, total - before[rank])
        self.keys, self.start, self.step, self.codes, self.counted = (torch.from_numpy(c).to(device) for c in columns)
        self._events, self._place = (torch.from_numpy(c).to(device) for c in (events, place))
        self._level: Tensor | None = None

    @property
    def level(self) -> Tensor:
        """The levels right after each step with events, float64 [m, T]."""
        if self._level is None:
            self._level = _levels(self.step, self._place, self._events)
        return self._level

    def find(self, key: Tensor) -> Tensor:
        """The rank of keys int64 [n] among all that occur; -1 for one that never does."""
        if not len(self.keys):
            return torch.full_like(key, -1)
        rank = torch.searchsorted(self.keys, key).clamp_(max=len(self.keys) - 1)
        return torch.where(self.keys[rank] == key, rank, -1)

    def between(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Where the keys from low on and below high lie: (start, stop) int64 [n] of ranks."""
        return torch.searchsorted(self.keys, low), torch.searchsorted(self.keys, high)

    def before(self, rank: Tensor, step: Tensor, cut: Tensor) -> Tallied:
        """What happened before the cut under keys given by rank, -1 for none, as seen at a step; int64 [n] each."""
        made = Tallied.nothing(len(rank), rank.device)
        known = (rank >= 0).nonzero().squeeze(1)
        stop = torch.searchsorted(self.codes, code(rank[known], cut[known]))
        start = self.start[rank[known]]
        some = (stop > start).nonzero().squeeze(1)
        if not len(some):
            return made
        rows, start, at = known[some], start[some], stop[some] - 1
        last = self.step[at]
        level = self.level[at] * decayed(step[rows] - last)
        return made.put(rows, Tallied(self.counted[at], self.step[start], last, level))

    def next(self, rank: Tensor, step: Tensor) -> Tensor:
        """The step of the first event at or after a step under keys given by rank; int64 [n], beyond all for none."""
        made = torch.full_like(step, _NO_STEP)
        known = (rank >= 0).nonzero().squeeze(1)
        at = torch.searchsorted(self.codes, code(rank[known], step[known]))
        some = (at < self.start[rank[known] + 1]).nonzero().squeeze(1)
        return made.index_copy_(0, known[some], self.step[at[some]])


def _levels(step: Tensor, place: Tensor, events: Tensor) -> Tensor:
    """The levels right after each row: step, place among the rows of its key, events int64 [m] -> float64 [m, T].

    A sum over all rows before is made of sums over twice as many in each pass. What is added to a row depends on it and
    earlier ones alone, so that later events change no bit of it.
    """
    level = events.double()[:, None].repeat(1, len(DECAYS))
    back, most = 1, int(place.max()) if len(place) else 0
    while back <= most:
        rows = (place >= back).nonzero().squeeze(1)
        level[rows] += level[rows - back] * decayed(step[rows] - step[rows - back])
        back *= 2
    return level


@dataclass(frozen=True)
class Tallies:
    """All tallies of one log, each under the ids of that log alone.

    pair: two parties either way round; link: (subject, object); triple: a link by its rank and a relation; actor: in
    either role; role: as subject or as object; role_relation: (actor, directed relation); relation.
    """

    events: EventLog
    pair: Tally
    link: Tally
    triple: Tally
    actor: Tally
    role: Tally
    role_relation: Tally
    relation: Tally

    @classmethod
    def of(cls, index: Index) -> Tallies:
        events, device = index.events, index.device
        subject, relation, object_, step = (
            np.asarray(c).astype(np.int64) for c in (events.subject, events.relation, events.object, events.step)
        )
        relations, link = events.n_relations, (subject << _PAIR_BITS) | object_
        links = np.unique(link)
        # an event of an actor with itself is one event of this actor
        other = subject != object_
        actor = np.stack([subject, np.where(other, object_, -1)], axis=1).ravel()
        roles = np.stack([subject * 2, object_ * 2 + 1], axis=1).ravel()
        directed = np.stack([subject * 2 * relations + relation, (object_ * 2 + 1) * relations + relation], axis=1)
        twice = np.repeat(step, 2)
        columns = {
            "pair": ((np.minimum(subject, object_) << _PAIR_BITS) | np.maximum(subject, object_), step),
            "link": (link, step),
            "triple": (np.searchsorted(links, link) * relations + relation, step),
            "actor": (actor[actor >= 0], twice[actor >= 0]),
            "role": (roles, twice),
            "role_relation": (directed.ravel(), twice),
            "relation": (relation, step),
        }
        return cls(events, **{name: Tally(*of, device) for name, of in columns.items()})

    def ranks(self, kind: str, subject: Tensor, relation: Tensor, object: Tensor) -> Tensor:
        """The rank of each key in the tally of a kind; -1 where it has none. relation: directed for role_relation."""
        tally, relations = getattr(self, kind), self.events.n_relations
        if kind == "pair":
            key = (torch.minimum(subject, object) << _PAIR_BITS) | torch.maximum(subject, object)
        elif kind == "link":
            key = (subject << _PAIR_BITS) | object
        elif kind == "triple":
            link = self.link.find((subject << _PAIR_BITS) | object)
            return torch.where(link < 0, -1, tally.find(link.clamp(min=0) * relations + relation))
        elif kind == "actor":
            key = subject
        elif kind == "role":
            key = subject * 2 + relation
        elif kind == "role_relation":
            key = subject * 2 * relations + relation
        else:
            key = relation
        return tally.find(key)


class PastTallies:
    """The tallies of a past: those of its base and of its delta, read apart and added up."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.parts = [index.once(Tallies.of) for index in past.indices]

    def _known(
        self, part: Tallies, kind: str, subject: Tensor, relation: Tensor, object: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Which keys are made of ids that a part knows, and their directed relations as it numbers them."""
        own, now = part.events, self.past.events
        known = torch.ones_like(subject, dtype=torch.bool)
        if kind in ("pair", "link", "triple", "actor", "role", "role_relation"):
            known &= subject < own.n_entities
        if kind in ("pair", "link", "triple"):
            known &= object < own.n_entities
        if kind in ("triple", "relation", "role_relation"):
            known &= relation % now.n_relations < own.n_relations
        if kind == "role_relation":
            relation = renumbered(relation, now.n_relations, own.n_relations)
        return known, relation

    def before(self, kind: str, subject: Tensor, relation: Tensor, object: Tensor, step: Tensor) -> Tallied:
        """What happened under keys of a kind before a step, as a query at that step may know; int64 [n] each."""
        cut, made = self.past.cut(step), Tallied.nothing(len(step), step.device)
        for part in self.parts:
            known, directed = self._known(part, kind, subject, relation, object)
            rows = known.nonzero().squeeze(1)
            rank = torch.full_like(subject, -1)
            rank[rows] = part.ranks(kind, subject[rows], directed[rows], object[rows])
            made = made.plus(getattr(part, kind).before(rank, step, cut))
        return made

    def next(self, kind: str, subject: Tensor, relation: Tensor, object: Tensor, step: Tensor) -> Tensor:
        """The step of the first event at or after a step: what comes true, which no forecast may read; int64 [n]."""
        found = torch.full_like(step, _NO_STEP)
        for part in self.parts:
            known, directed = self._known(part, kind, subject, relation, object)
            rows = known.nonzero().squeeze(1)
            rank = torch.full_like(subject, -1)
            rank[rows] = part.ranks(kind, subject[rows], directed[rows], object[rows])
            found = torch.minimum(found, getattr(part, kind).next(rank, step))
        return found

    def relations_of(self, kind: str, subject: Tensor, object: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tallied]:
        """Every relation that a link (triple), or an actor in either role (role_relation), had before a step.

        Returns row int64 [m], relation int64 [m] (directed for role_relation), and what happened under it.
        """
        rows, relations, tallied, cut = [], [], [], self.past.cut(step)
        now = self.past.events.n_relations
        for part in self.parts:
            own, asked = part.events.n_relations, torch.arange(len(step), device=step.device)
            if kind == "triple":
                rank = torch.full_like(subject, -1)
                inside = ((subject < part.events.n_entities) & (object < part.events.n_entities)).nonzero().squeeze(1)
                rank[inside] = part.link.find((subject[inside] << _PAIR_BITS) | object[inside])
                asked, base = asked[rank >= 0], rank[rank >= 0]
                width = own
            else:
                inside = (subject < part.events.n_entities).nonzero().squeeze(1)
                asked, base, width = asked[inside], subject[inside], 2 * own
            tally: Tally = getattr(part, kind)
            place, at = expand(*tally.between(base * width, (base + 1) * width))
            row = asked[place]
            found = tally.before(at, step[row], cut[row])
            some = (found.events > 0).nonzero().squeeze(1)
            relation = (tally.keys[at] % width)[some]
            rows.append(row[some])
            relations.append(relation if kind == "triple" else renumbered(relation, own, now))
            tallied.append(found.take(some))
        return torch.cat(rows), torch.cat(relations), Tallied(*(torch.cat(c) for c in zip(*tallied, strict=True)))

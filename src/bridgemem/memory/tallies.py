"""Tallies: how often, how lately and since when a pair, a triple, a role or a relation occurred, strictly before a cut.

Those of a log in memory are made of its events; those of a folder are read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.events.queries import renumbered
from bridgemem.memory.disk.tallies import KINDS, MappedTally
from bridgemem.memory.index import Index
from bridgemem.memory.past import Past
from bridgemem.memory.tally import NO_STEP, Tallied, Tally
from bridgemem.memory.timeline import expand

PAIR_BITS = 32


@dataclass(frozen=True)
class Tallies:
    """All tallies of one log, each under the ids of that log alone.

    pair: two parties either way round; link: (subject, object); triple: a link by its rank and a relation; actor: in
    either role; role: as subject or as object; role_relation: (actor, directed relation); relation.
    """

    events: EventLog
    pair: Tally | MappedTally
    link: Tally | MappedTally
    triple: Tally | MappedTally
    actor: Tally | MappedTally
    role: Tally | MappedTally
    role_relation: Tally | MappedTally
    relation: Tally | MappedTally

    @classmethod
    def of(cls, index: Index) -> Tallies:
        events, device = index.events, index.device
        if (memory := index.memory) is not None:
            return cls(events, **{kind: memory.tally(kind, events.end) for kind in KINDS})
        subject, relation, object_, step = (
            np.asarray(c).astype(np.int64) for c in (events.subject, events.relation, events.object, events.step)
        )
        relations, link = events.n_relations, (subject << PAIR_BITS) | object_
        links = np.unique(link)
        # an event of an actor with itself is one event of this actor
        other = subject != object_
        actor = np.stack([subject, np.where(other, object_, -1)], axis=1).ravel()
        roles = np.stack([subject * 2, object_ * 2 + 1], axis=1).ravel()
        directed = np.stack([subject * 2 * relations + relation, (object_ * 2 + 1) * relations + relation], axis=1)
        twice = np.repeat(step, 2)
        columns = {
            "pair": ((np.minimum(subject, object_) << PAIR_BITS) | np.maximum(subject, object_), step),
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
            key = (torch.minimum(subject, object) << PAIR_BITS) | torch.maximum(subject, object)
        elif kind == "link":
            key = (subject << PAIR_BITS) | object
        elif kind == "triple":
            link = self.link.find((subject << PAIR_BITS) | object)
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

    def _ranked(
        self, kind: str, subject: Tensor, relation: Tensor, object: Tensor
    ) -> Iterator[tuple[Tally | MappedTally, Tensor]]:
        """The tally of each part, and the ranks of the keys there, -1 for none."""
        for part in self.parts:
            known, directed = self._known(part, kind, subject, relation, object)
            rows = known.nonzero().squeeze(1)
            rank = torch.full_like(subject, -1)
            rank[rows] = part.ranks(kind, subject[rows], directed[rows], object[rows])
            yield getattr(part, kind), rank

    def before(
        self, kind: str, subject: Tensor, relation: Tensor, object: Tensor, step: Tensor, *, levels: bool = True
    ) -> Tallied:
        """What happened under keys of a kind before a step, as a query at that step may know; int64 [n] each.

        levels: otherwise they are not read, and 0.
        """
        cut, made = self.past.cut(step), Tallied.nothing(len(step), step.device)
        for tally, rank in self._ranked(kind, subject, relation, object):
            made = made.plus(tally.before(rank, step, cut, levels=levels))
        return made

    def steps(
        self, kind: str, subject: Tensor, relation: Tensor, object: Tensor, since: Tensor, step: Tensor
    ) -> tuple[Tensor, Tensor]:
        """When keys of a kind occurred from a step on and before another, as a query there may know; int64 [n] each.

        Returns row int64 [m] and step int64 [m]; what base and delta both hold comes twice.
        """
        cut = self.past.cut(step)
        found = [tally.steps(rank, since, cut) for tally, rank in self._ranked(kind, subject, relation, object)]
        row, when = zip(*found, strict=True)
        return torch.cat(row), torch.cat(when)

    def next(self, kind: str, subject: Tensor, relation: Tensor, object: Tensor, step: Tensor) -> Tensor:
        """The step of the first event at or after a step: what comes true, which no forecast may read; int64 [n]."""
        found = torch.full_like(step, NO_STEP)
        for tally, rank in self._ranked(kind, subject, relation, object):
            found = torch.minimum(found, tally.next(rank, step))
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
                rank[inside] = part.link.find((subject[inside] << PAIR_BITS) | object[inside])
                asked, base = asked[rank >= 0], rank[rank >= 0]
                width = own
            else:
                inside = (subject < part.events.n_entities).nonzero().squeeze(1)
                asked, base, width = asked[inside], subject[inside], 2 * own
            tally: Tally | MappedTally = getattr(part, kind)
            place, at = expand(*tally.between(base * width, (base + 1) * width))
            row = asked[place]
            found = tally.before(at, step[row], cut[row])
            some = (found.events > 0).nonzero().squeeze(1)
            relation = (tally.keys[at] % width)[some]
            rows.append(row[some])
            relations.append(relation if kind == "triple" else renumbered(relation, own, now))
            tallied.append(found.take(some))
        return torch.cat(rows), torch.cat(relations), Tallied(*(torch.cat(c) for c in zip(*tallied, strict=True)))

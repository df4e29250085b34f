"""OpenVocabulary: a frozen backbone on entities and relations that came after it was fitted."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.scorer import Attended, Scorer, ScorerAround, Scores, ask
from bridgemem.errors import BackboneError
from bridgemem.events.queries import Queries, renumbered
from bridgemem.evidence.gate import seen_mass
from bridgemem.memory.past import Past
from bridgemem.parallel import MOST_WORKERS


class OpenVocabulary(ScorerAround):
    """The scorer's own scores where it knows actor and relation, from the facts that it can read.

    n_entities, n_relations: what it was fitted on; what came since is read from the past of each call. A training-free
    backbone grows with it and scores everybody itself. Of a trained one the candidates that it does not know get the
    lowest score of their row, and queries whose actor or relation it does not know are answered by recurrence, which
    needs no training. Either way an entity that came later is no candidate before its first event: otherwise the names
    of a later step would take their share of what is forecast for an earlier one.
    """

    def __init__(self, scorer: Scorer, n_entities: int, n_relations: int) -> None:
        super().__init__(scorer)
        self.n_entities, self.n_relations = n_entities, n_relations
        self._grown: dict[tuple[int, int], Backbone] = {}

    def score(self, queries: Queries, past: Past) -> Scores:
        events = past.events
        if (events.n_entities, events.n_relations) == (self.n_entities, self.n_relations):
            return self.scorer.score(queries, past)
        if events.n_entities < self.n_entities or events.n_relations < self.n_relations:
            raise BackboneError(
                f"this {self.name} knows {self.n_entities:,} entities and {self.n_relations:,} relations, more than "
                "the events name; use the data that it was fitted on."
            )
        absent = self._absent(queries, past)
        if (grown := self._grown_to(past)) is not None:
            return replace(ask(grown, queries, past), absent=absent)
        knows = (queries.actor < self.n_entities) & (queries.relation % events.n_relations < self.n_relations)
        rows, others = knows.nonzero().squeeze(1), (~knows).nonzero().squeeze(1)
        own: Scores | None = None
        if len(rows):
            relation = renumbered(queries.relation[rows], events.n_relations, self.n_relations)
            asked = Queries(queries.actor[rows], relation, queries.step[rows])
            own = ask(self.scorer, asked, past.within(self.n_entities, self.n_relations))
        rest, by_recurrence = queries.take(others), None
        if len(others):
            by_recurrence = _recurrence(past).score(rest, past).log_p

        def widen(log_p: Tensor | None) -> Tensor:
            dtype = torch.float32 if log_p is None else log_p.dtype
            made = torch.empty((len(queries), events.n_entities), dtype=dtype, device=queries.actor.device)
            if log_p is not None:
                made[rows, : self.n_entities] = log_p
                made[rows, self.n_entities :] = log_p.min(dim=1, keepdim=True).values
            if by_recurrence is not None:
                made[others] = by_recurrence.to(dtype)
            return made

        log_p = widen(None if own is None else own.log_p)
        members = None
        if self.scorer.n_members:
            # those that do not know the actor say what recurrence does, each of them
            each = [None] * self.scorer.n_members if own is None or own.members is None else own.members
            members = torch.stack([widen(member) for member in each])
        scores = Scores(log_p, members=members, absent=absent)
        if own is None or own.uncertainty is None:
            return scores
        uncertainty = own.uncertainty.new_empty(len(queries))
        uncertainty[rows] = own.uncertainty
        seen = past.seen(rest.actor, rest.step)
        uncertainty[others] = seen_mass(scores.of_candidates[others], *seen).to(uncertainty.dtype)
        return replace(scores, uncertainty=uncertainty)

    def attended(self, query: Queries, past: Past) -> Attended | None:
        own, events = (self.n_entities, self.n_relations), past.events
        if int(query.actor) >= own[0] or int(query.relation) % events.n_relations >= own[1]:
            return None
        asked = replace(query, relation=renumbered(query.relation, events.n_relations, own[1]))
        found = self.scorer.attended(asked, past.within(*own))
        return found and replace(found, relation=renumbered(found.relation, own[1], events.n_relations))

    def _absent(self, queries: Queries, past: Past) -> Tensor | None:
        """The entities that came later and had no event before the step of each query, bool [n, E]; None without."""
        later = torch.arange(self.n_entities, past.events.n_entities, device=past.device)
        steps, which = queries.step.unique(return_inverse=True)
        seen, _ = past.seen(later.repeat(len(steps)), steps.repeat_interleave(len(later)))
        unseen = torch.ones(len(steps) * len(later), dtype=torch.bool, device=past.device).index_fill_(0, seen, False)
        if not unseen.any():
            return None
        absent = unseen.new_zeros((len(queries), past.events.n_entities))
        absent[:, self.n_entities :] = unseen.view(len(steps), len(later))[which]
        return absent

    def _grown_to(self, past: Past) -> Backbone | None:
        """A training-free backbone on all that a history names, made once for its sizes; None for a trained one."""
        sizes = past.events.n_entities, past.events.n_relations
        found = self._grown.get(sizes)
        if found is None and isinstance(self.scorer, Backbone):
            found = self.scorer.grown(*sizes)
            if found is not None:
                # one for each thread that may be reading, and the whole table changes at once
                self._grown = dict([*self._grown.items(), (sizes, found)][-MOST_WORKERS:])
        return found


def _recurrence(past: Past) -> RecurrenceDyadic:
    nobody = torch.zeros(past.events.n_entities, dtype=torch.float64, device=past.device)
    return RecurrenceDyadic(RecurrenceDyadic.default, nobody)

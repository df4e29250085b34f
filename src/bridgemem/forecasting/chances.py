"""Chances: the probability that something happens within some steps, whether it ever did or not; in ids."""

from __future__ import annotations

from copy import copy
from functools import cached_property

import torch
from torch import Tensor

from bridgemem.forecasting.heads import Heads
from bridgemem.forecasting.occurrence import SPANS, Keys, Kind, steps_in_spans, steps_of
from bridgemem.forecasting.relations import PairQueries, RelationReader
from bridgemem.memory.disk.tallies import MappedTally
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import Tallies
from bridgemem.memory.tally import Tally
from bridgemem.memory.timeline import STEP_BITS, code

TOGETHER = 4096  # triples that are read at once with the others of their pairs
LEAST = 1e-12  # of a probability or rate that is divided by
RECENT = 30  # steps that tell how many pairs meet for the first time nowadays


class Chances:
    """What fitted heads say of a past; the relations are those of the fit."""

    def __init__(self, past: Past, heads: Heads) -> None:
        self.heads, self.names = heads, past.events
        self.reader = RelationReader(past, heads.n_relations)
        self.past, self.tallies = self.reader.past, self.reader.tallies

    def scores(self, first: Tensor, second: Tensor, step: Tensor) -> Tensor:
        """The log score of every directed relation of each pair, float64 [n, 2R]."""
        return self.heads.relations.scores(self.reader, PairQueries(first, second, step))

    def p_event(self, keys: Keys, horizon: int, *, together: bool = True) -> Tensor:
        """The probability of at least one event within a horizon, float64 [n]."""
        return -torch.expm1(self.log_survival(keys, (horizon,), together=together)[:, 0])

    def log_survival(
        self, keys: Keys, horizons: tuple[int, ...], pairs: Pairs | None = None, *, together: bool = True
    ) -> Tensor:
        """log of the probability that nothing comes within each horizon, float64 [n, horizons]; seen or not.

        pairs: of triples, where they were read already. together: triples are read with the others of their pair, so
        that all come to no less than the pair does; it takes longer.
        """
        if keys.kind == "triple" and together and pairs is None and len(keys) > TOGETHER:
            return torch.cat([self.log_survival(part, horizons) for part in keys.parts(TOGETHER)])
        raised = known = None
        if keys.kind == "triple" and (together or pairs is not None):
            pairs = pairs or Pairs(self, keys)
            raised, known = pairs.raised[pairs.row], pairs.rates[pairs.row]
        made = self.heads.occurrence.log_survival(keys, self.tallies, horizons, raised, known)
        before = self.tallies.before(keys.kind, keys.subject, keys.relation, keys.object, keys.step, levels=False)
        never = (before.events == 0).nonzero().squeeze(1)
        if not len(never):
            return made
        if keys.kind == "triple":
            pairs = pairs or Pairs(self, keys)
            made[never] = pairs.first_times(pairs.row[never], pairs.directed[never], horizons)
        else:
            made[never] = self._first_times(keys.take(never), horizons)
        return made

    def _first_times(self, keys: Keys, horizons: tuple[int, ...]) -> Tensor:
        """The same of pairs and roles that never occurred, float64 [n, horizons].

        Two parties meet for the first time at random, as often as each finds new partners; likewise an actor and a
        relation.
        """
        if keys.kind == "pair":
            sides = [self._partners_of(who, keys.step) for who in (keys.subject, keys.object)]
        else:
            rows = self.tallies.relations_of("role_relation", keys.subject, keys.subject, keys.step)[0]
            asked = zip(keys.relation.tolist(), keys.step.tolist(), strict=True)
            actors = [sum(_actors_of(part, *one) for part in self.tallies.parts) for one in asked]
            sides = [torch.bincount(rows, minlength=len(keys)), torch.tensor(actors)]
        rates = {step: self._first_time_rate(keys.kind, step) for step in set(keys.step.tolist())}
        each = torch.tensor([rates[step] for step in keys.step.tolist()], dtype=torch.float64) * sides[0] * sides[1]
        return -each[:, None] * steps_of(horizons)

    def _partners_of(self, actor: Tensor, step: Tensor) -> Tensor:
        """How many each actor has interacted with."""
        return torch.bincount(self.past.seen(actor, step)[0], minlength=len(actor))

    def _first_time_rate(self, kind: Kind, step: int) -> float:
        """First times a step of late, for one partner of either side: such keys pair up at random."""
        found = [getattr(part, kind) for part in self.tallies.parts]
        total, earlier = (sum(_begun(tally, at) for tally in found) for at in (step, step - RECENT))
        late = total - earlier
        age = max(min(step, self.past.events.end) - self.past.events.start, 1)
        ends = 2 * total if kind == "pair" else total  # a pair is a partner to both of its parties
        return (2 if kind == "pair" else 1) * late / min(RECENT, age) / max(ends, 1) ** 2


class Pairs:
    """The pairs of some triples, each once, and what the heads say of them; each thing is read when it is asked for.

    keys: the pairs, the smaller id first. row, directed int64 [n]: the pair of each triple, and its relation seen from
    the smaller id.
    """

    def __init__(self, chances: Chances, triples: Keys) -> None:
        self._chances, n = chances, chances.heads.n_relations
        ends = torch.minimum(triples.subject, triples.object), torch.maximum(triples.subject, triples.object)
        (one, two, step), self.row = torch.unique(torch.stack([*ends, triples.step]), dim=1, return_inverse=True)
        self.keys = Keys("pair", one, torch.zeros_like(one), two, step)
        self.directed = triples.relation + n * (triples.subject > triples.object)

    def take(self, rows: Tensor) -> Pairs:
        """The same pairs for some of the triples; what was read of them stays."""
        made = copy(self)
        made.row, made.directed = self.row[rows], self.directed[rows]
        return made

    @cached_property
    def rates(self) -> Tensor:
        """That the two interact, float64 [pairs, spans]."""
        return self._chances.heads.occurrence.rates(self.keys, self._chances.tallies)

    @cached_property
    def shares(self) -> Tensor:
        """That an event of a pair is of each directed relation, float64 [pairs, 2R].

        Both directions of an actor with itself are one: each has the share of both.
        """
        keys, n = self.keys, self._chances.heads.n_relations
        shares = self._chances.scores(keys.subject, keys.object, keys.step).softmax(1)
        return torch.where((keys.subject == keys.object)[:, None], shares + shares.roll(n, dims=1), shares)

    @cached_property
    def raised(self) -> Tensor:
        """How many times its own rate each of a pair's triples has for all to come to the pair, float64 [pairs, spans].

        The rates of a pair's seen triples and of the pair are fitted apart. Where the former add up to less than the
        latter times the share of its events that are one of them, all are raised alike.
        """
        row, directed = self._seen()
        n, back = self._chances.heads.n_relations, directed >= self._chances.heads.n_relations
        one, two = self.keys.subject[row], self.keys.object[row]
        ends = torch.where(back, two, one), torch.where(back, one, two)
        triples = Keys("triple", ends[0], directed % n, ends[1], self.keys.step[row])
        rates = self._chances.heads.occurrence.rates(triples, self._chances.tallies)
        told = torch.zeros((len(self.keys), len(SPANS)), dtype=torch.float64).index_add_(0, row, rates)
        share = torch.zeros(len(self.keys), dtype=torch.float64).index_add_(0, row, self.shares[row, directed])
        return (self.rates * share[:, None] / told.clamp(min=LEAST)).clamp(min=1)

    def _seen(self) -> tuple[Tensor, Tensor]:
        """The triples that each pair had: row, and relation as seen from the smaller id, int64 [m] each."""
        keys, n = self.keys, self._chances.heads.n_relations
        rows, relations = [], []
        for back, ends in enumerate(((keys.subject, keys.object), (keys.object, keys.subject))):
            row, relation, _ = self._chances.tallies.relations_of("triple", *ends, keys.step)
            # what comes after the fit is not foreseen; both directions of an actor with itself are one
            known = (relation < n) & ((keys.subject != keys.object)[row] | (back == 0))
            rows.append(row[known])
            relations.append(relation[known] + back * n)
        return torch.cat(rows), torch.cat(relations)

    def first_times(self, row: Tensor, directed: Tensor, horizons: tuple[int, ...]) -> Tensor:
        """log survival of triples that never occurred, by pair and relation: float64 [n, horizons].

        Each is one of the events of its pair that happens to be of this relation.
        """
        nothing = self._chances.log_survival(self.keys, horizons)
        p = -torch.expm1(nothing)
        # where the pair interacts, that none of its events is this one
        many = self._events(nothing, horizons) / p.clamp(min=LEAST)
        none = torch.exp(-self.shares[row, directed][:, None] * many[row])
        return torch.log1p(-(p[row] * (1 - none)).clamp(max=1 - 1e-12))

    def _events(self, nothing: Tensor, horizons: tuple[int, ...]) -> Tensor:
        """How many events of each pair are expected within each horizon, float64 [pairs, horizons].

        nothing: the log of the probability that there is none, of the same shape.
        """
        tallies = self._chances.tallies
        keys = (self.keys.kind, self.keys.subject, self.keys.relation, self.keys.object)
        events = tallies.before(*keys, self.keys.step, levels=False).events
        row, when = tallies.steps(*keys, torch.zeros_like(self.keys.step), self.keys.step)
        active = torch.bincount(torch.unique(code(row, when)) >> STEP_BITS, minlength=len(self.keys))
        steps = -torch.expm1(-self.rates) @ steps_in_spans(horizons).T
        steps = torch.where(events[:, None] > 0, steps, -nothing)
        return steps * ((events + 1) / (active + 1))[:, None]


def _begun(tally: Tally | MappedTally, step: int) -> int:
    """How many keys of a tally occurred before a step."""
    return sum(int(begun.sum()) for _, begun in tally.begun(step))


def _actors_of(part: Tallies, directed: int, step: int) -> int:
    """How many actors had a directed relation before a step."""
    tally, relations = part.role_relation, 2 * part.events.n_relations
    blocks = ((tally.keys[at : at + len(begun)], begun) for at, begun in tally.begun(step))
    return sum(int(((keys % relations == directed) & begun).sum()) for keys, begun in blocks)

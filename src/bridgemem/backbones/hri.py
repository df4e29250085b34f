"""HRI (Gastinger et al., IJCAI 2024): history repeats itself; recent repetitions, and the relation's usual answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone, Grid
from bridgemem.backbones.scorer import Scores
from bridgemem.config import Declared, NotNegative, Share
from bridgemem.equations import log_base
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import Timeline, code, expand
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.ranks import answer_ranks, batch_size
from bridgemem.storage.tensors import TensorSpec, check_tensors
from bridgemem.training.checkpoint import Training

# what validation chooses from, for every directed relation
LAMBDAS = (0.0, 1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.5, 0.9, 1.0001)
ALPHAS = (0.0, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0)
# for a relation that validation does not ask about; a chosen alpha of 1 becomes this one, so that xi breaks ties
LAST_LAMBDA, LAST_ALPHA = 1.0001, 0.99999


@dataclass(frozen=True)
class HriSettings(Declared):
    """score = alpha psi + (1 - alpha) xi, where psi decays with 2^(-lam * steps).

    lam and alpha hold for all relations. With per_relation they are not used: both are chosen for each directed
    relation by its time-aware MRR on validation, as the authors do.
    """

    lam: NotNegative = 0.02
    alpha: Share = 0.999
    per_relation: bool = False


@dataclass(frozen=True)
class Recall:
    """What HRI reads of the past of n queries.

    row int64 [m] of the batch, candidate int64 [m] and age int64 [m] of each past occurrence of (actor, relation,
    candidate), those at one step each by itself: the steps from it to the last step kmax of its relation.
    span int64 [n]: the steps from the first to the last of the relation; xi float64 [n, E]: the relaxed share.
    """

    row: Tensor
    candidate: Tensor
    age: Tensor
    span: Tensor
    xi: Tensor

    def scores(self, lam: Tensor, alpha: Tensor) -> Tensor:
        """alpha psi + (1 - alpha) xi, float64 [n, E]; lam and alpha float64 [n]."""
        dense = self.xi * (1 - alpha)[:, None]
        weight = alpha[self.row] * torch.exp2(-lam[self.row] * self.age) / decay_sum(lam, self.span)[self.row]
        # put, not added by index: on a GPU this one sums in the same order every time
        return dense.index_put_((self.row, self.candidate), weight, accumulate=True)


def decay_sum(lam: Tensor, span: Tensor) -> Tensor:
    """D: the sum of 2^(lam (k - kmax)) over the steps k = kmin .. kmax - 1, float64 [n]; span = kmax - kmin.

    Both psi's weights and D are taken relative to kmax and not to the query's step, which changes nothing but keeps
    them from vanishing. A relation with one step has an empty range, for which the authors' code divides by zero: here
    it counts as one step long.
    """
    rate, terms = lam * math.log(2), span.clamp(min=1).double()
    # a geometric series, which for rate 0 is a plain count
    series = -torch.expm1(-rate * terms) / torch.expm1(rate)
    return torch.where(rate == 0, terms, series)


class _Facts:
    """All facts of a history, both ways round and with duplicates: by (actor, directed relation), and by relation."""

    def __init__(self, past: Past) -> None:
        sides = Queries.of(past.events)
        assert sides.answer is not None
        actor, relation, step, answer = (c.numpy() for c in (sides.actor, sides.relation, sides.step, sides.answer))
        self.by_pair = Timeline.build(past.relation_key(actor, relation), step, answer, past.device)
        self.by_relation = Timeline.build(relation, step, answer, past.device)
        self.pair_step = self.by_pair.step
        # one step more, for a lookup of the first or last fact where there is none
        self.relation_step = torch.cat([self.by_relation.step, self.by_relation.step.new_zeros(1)])
        self.n_entities = past.events.n_entities

    def recall(self, queries: Queries, past: Past) -> Recall:
        """What the history says about queries."""
        cut = past.cut(queries.step)
        # queries that share relation and step share xi and the range of steps: each group is read for one of them
        codes, group = code(queries.relation, cut).unique(return_inverse=True)
        one = torch.zeros_like(codes).scatter_(0, group, torch.arange(len(queries), device=group.device))
        start, stop = self.by_relation.before(queries.relation[one], cut[one])
        first, last = self.relation_step[start], self.relation_step[stop - 1]
        span = torch.where(stop > start, last - first, 0)
        row, at = expand(*self.by_pair.before(past.relation_key(queries.actor, queries.relation), cut))
        age = last[group[row]] - self.pair_step[at]
        return Recall(row, self.by_pair.value[at], age, span[group], self._share(start, stop)[group])

    def _share(self, start: Tensor, stop: Tensor) -> Tensor:
        """xi of slices by relation: of their facts, how many have each entity as their answer; float64 [groups, E]."""
        group, at = expand(start, stop)
        place = group * self.n_entities + self.by_relation.value[at]
        count = torch.bincount(place, minlength=len(start) * self.n_entities).view(len(start), self.n_entities)
        return count.double() / (stop - start).clamp(min=1)[:, None]


def choose(dataset: Dataset, device: str = "cpu", progress: Progress = SILENT) -> tuple[Tensor, Tensor]:
    """lam and alpha of each directed relation, float64 [2R], by its time-aware MRR on validation with rolling history.

    First lam for psi alone, then alpha under that lam; of equals the smaller value is taken.
    """
    known = dataset.without_test()
    past, filters, asked = Past(known.events, device=device), Filters(known.events, device), Queries.of(known.valid)
    facts, size = _Facts(past), batch_size(known.events.n_entities, past.device)
    lam = torch.full((2 * known.events.n_relations,), LAST_LAMBDA, dtype=torch.float64, device=device)
    alpha = torch.full_like(lam, LAST_ALPHA)
    occur = asked.relation.unique().to(device)

    with progress.task("choosing lambda and alpha", total=2 * len(asked)) as advance:

        def best(options: list[tuple[Tensor, Tensor]]) -> Tensor:
            """For each directed relation the first of the options (lam, alpha) that none is better than."""
            totals = np.zeros((len(options), len(lam)))
            for part in asked.batches(size):
                batch = part.to(device)
                recall, mask = facts.recall(batch.unanswered(), past), filters.mask("time", batch)
                for total, (by_lam, by_alpha) in zip(totals, options, strict=True):
                    scores = recall.scores(by_lam[batch.relation], by_alpha[batch.relation])
                    gain = 1 / _ranks(scores, batch, mask).cpu().numpy()
                    total += np.bincount(part.relation.numpy(), gain, len(lam))
                advance(len(part))
            return torch.from_numpy(totals.argmax(0)).to(device)[occur]

        lam[occur] = lam.new_tensor(LAMBDAS)[best([(torch.full_like(lam, x), torch.ones_like(lam)) for x in LAMBDAS])]
        alpha[occur] = lam.new_tensor(ALPHAS)[best([(lam, torch.full_like(lam, x)) for x in ALPHAS])]
    return lam, alpha.clamp(max=LAST_ALPHA)


def _ranks(scores: Tensor, queries: Queries, mask: tuple[Tensor, Tensor]) -> Tensor:
    """Mean-tie ranks of the answers among scores [n, E] under one mask, float64 [n]."""
    assert queries.answer is not None
    nothing = queries.answer.new_empty(0)
    return answer_ranks(scores, queries.answer, nothing, nothing, scores.new_empty((0, 1)), [mask])[0, 0]


class Hri(Backbone):
    """The combined recurrency baseline, as its authors corrected it in 2025: float64, no noise, nothing carried over.

    Nothing is learned from train. With per_relation, `fit` reads validation to choose lam and alpha. An alpha of 1 that
    is set by hand means psi alone; scores below 1e-12 are then one tie, as everywhere in this package.
    """

    name: ClassVar[str] = "hri"
    default: ClassVar[HriSettings] = HriSettings()
    grid: ClassVar[Grid] = {
        "lam": (0.0, 0.01, 0.02, 0.04, 0.1, 0.5, 1.0001),
        "alpha": (0.9, 0.99, 0.999, 0.99999),
    }

    def __init__(self, settings: HriSettings, lam: Tensor, alpha: Tensor) -> None:
        """lam, alpha float64 [2R], one of each for every directed relation."""
        self.settings, self.lam, self.alpha = settings, lam, alpha
        self._facts: WeakKeyDictionary[Past, _Facts] = WeakKeyDictionary()

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        s, device = settings, training.device
        if s.per_relation:
            return cls(s, *choose(dataset, device, training.progress))
        same = torch.ones(2 * dataset.events.n_relations, dtype=torch.float64, device=device)
        return cls(s, s.lam * same, s.alpha * same)

    def score(self, queries: Queries, past: Past) -> Scores:
        if past not in self._facts:
            self._facts[past] = _Facts(past)
        recall = self._facts[past].recall(queries, past)
        return Scores(log_base(recall.scores(self.lam[queries.relation], self.alpha[queries.relation])))

    def grown(self, n_entities: int, n_relations: int) -> Self:
        s, old = self.settings, len(self.lam) // 2
        # a relation that validation never asked about has the last of the choices
        unknown = (LAST_LAMBDA, LAST_ALPHA) if s.per_relation else (s.lam, s.alpha)
        wide = []
        for own, other in zip((self.lam, self.alpha), unknown, strict=True):
            sides = own.new_full((2, n_relations), other)
            sides[:, :old] = own.view(2, old)
            wide.append(sides.flatten())
        return type(self)(s, *wide)

    def tensors(self) -> dict[str, Tensor]:
        return {"lam": self.lam, "alpha": self.alpha}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        check_tensors(tensors, dict.fromkeys(("lam", "alpha"), TensorSpec(("relations",))))
        return cls(settings, tensors["lam"], tensors["alpha"])

    def to(self, device: str) -> Self:
        return type(self)(self.settings, self.lam.to(device), self.alpha.to(device))

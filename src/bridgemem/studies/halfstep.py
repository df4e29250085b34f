"""Half-step oracle: a model that also sees a random half of the facts of the step it forecasts. Not a forecast.

Facts of a step are drawn into two halves, and each is asked with the other half in sight. What that adds is information
that the step itself holds and the past does not: an estimate of how far the error is noise to any forecaster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.occurrences import each_once
from bridgemem.memory.timeline import Timeline, changes, expand
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks
from bridgemem.residuals.scoring import Scored, Scoring

# what is drawn together: "pairs", so that nothing of the two parties is seen at the step; or "facts", one by one
DRAWS = ("pairs", "facts")
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# of a candidate in the other half: silent, active, active in the role asked for; and each next to the actor itself
ACTIVE, IN_ROLE, WITH_ACTOR, CLASSES = 1, 2, 3, 6
SMOOTHING = 2.0  # candidates that every class is thought to have seen already


class OtherHalf:
    """The facts of each step in two halves, and who takes part in the half that a query is not of."""

    def __init__(self, events: EventLog, draw: str, seed: int = 0, device: str | torch.device = "cpu") -> None:
        self.n_entities, self.n_directed = events.n_entities, 2 * events.n_relations
        half = _halves(events, draw, seed)
        both = Queries.of(events)
        assert both.answer is not None
        actor, relation, step, answer = (c.numpy() for c in (both.actor, both.relation, both.step, both.answer))
        half = half.repeat(2)
        self._own = each_once(actor * self.n_directed + relation, answer * 2 + half, step, device)
        self._active = each_once(half, actor, step, device)
        self._in_role = each_once(half * self.n_directed + relation, answer, step, device)
        self._partners = each_once(half * self.n_entities + actor, answer, step, device)

    def half(self, queries: Queries) -> Tensor:
        """The half that the fact of each query was drawn into, int64 [n]."""
        assert queries.answer is not None
        row, at = expand(*self._own.at(queries.actor * self.n_directed + queries.relation, queries.step))
        value = self._own.value[at]
        own = value // 2 == queries.answer[row]
        return torch.zeros_like(queries.actor).index_copy_(0, row[own], value[own] % 2)

    def classes(self, queries: Queries) -> Tensor:
        """What every candidate does in the other half of the step, int64 [n, E] in 0 to 5."""
        other = 1 - self.half(queries)
        made = torch.zeros((len(queries), self.n_entities), dtype=torch.int64, device=other.device)

        def found(line: Timeline, key: Tensor) -> tuple[Tensor, Tensor]:
            row, at = expand(*line.at(key, queries.step))
            return row, line.value[at]

        made[found(self._active, other)] = ACTIVE
        made[found(self._in_role, other * self.n_directed + queries.relation)] = IN_ROLE
        made[found(self._partners, other * self.n_entities + queries.actor)] += WITH_ACTOR
        return made


def _halves(events: EventLog, draw: str, seed: int) -> np.ndarray:
    """0 or 1 for every event, int64 [m]; repeated facts, or all facts of two parties, share theirs within a step."""
    step, one, two = (np.asarray(c, np.int64) for c in (events.step, events.subject, events.object))
    columns = [step, np.minimum(one, two), np.maximum(one, two)]
    if draw == "facts":
        columns = [step, one, two, np.asarray(events.relation, np.int64)]
    order = np.lexsort(columns[::-1])
    group = changes(*(c[order] for c in columns)).cumsum() - 1
    drawn = np.random.default_rng(seed).integers(2, size=int(group[-1]) + 1 if len(group) else 0)
    made = np.empty(len(step), dtype=np.int64)
    made[order] = drawn[group]
    return made


@dataclass(frozen=True)
class ModelOn:
    """A model over one split: the column of the scoring that is the model, and the power of p that calibrates it.

    facts: the events of the split; filters: of all events up to its end.
    """

    scoring: Scoring
    column: int
    scale: float
    facts: EventLog
    filters: Filters
    queries: Queries

    def batches(self, read: Callable[[Scored], Tensor], progress: Progress, label: str) -> list[Tensor]:
        return list(self.scoring.batches(self.queries, read, progress=progress, label=label))


class HalfStep:
    """What the other half of a step says of a candidate, and how much it counts: both from validation.

    ratios float64 [6]: log [share of a class among answers / among the model's other candidates], less that of silence.
    """

    def __init__(self, draw: str, ratios: Tensor, weight: float = 0.0) -> None:
        self.draw, self.ratios, self.weight = draw, ratios, weight

    @classmethod
    def fit(cls, model: ModelOn, progress: Progress = SILENT) -> list[HalfStep]:
        """An oracle for each draw: classes counted on queries of validation, and the weight of the best MRR there."""
        seen = [OtherHalf(model.facts, draw, device=model.scoring.past.device) for draw in DRAWS]
        label = "reading the other half of validation"

        def counted(batch: Scored) -> Tensor:
            return torch.stack([_tally(batch, model, other) for other in seen])

        counts = torch.stack(model.batches(counted, progress, label)).sum(0) + SMOOTHING
        ratios = (counts[:, 0] / counts[:, 1]).log()
        tried = [cls(draw, ratio - ratio[0]) for draw, ratio in zip(DRAWS, ratios, strict=True)]

        def ranked(batch: Scored) -> Tensor:
            return torch.stack(
                [one.ranks(batch, model, other, WEIGHTS) for one, other in zip(tried, seen, strict=True)]
            )

        found = model.batches(ranked, progress, label)
        ranks = torch.cat(found, dim=2).cpu().numpy()
        best = [int(np.argmax([Metrics.of(own).mrr for own in by_weight])) for by_weight in ranks]  # first of equals
        return [cls(one.draw, one.ratios, WEIGHTS[at]) for one, at in zip(tried, best, strict=True)]

    def ranks(self, batch: Scored, model: ModelOn, seen: OtherHalf, weights: Sequence[float] = ()) -> Tensor:
        """Time-aware ranks with the other half in sight, float64 [weights, n]; by default under the chosen weight."""
        queries, classes = batch.queries, seen.classes(batch.queries)
        assert queries.answer is not None
        row, candidate = classes.nonzero(as_tuple=True)
        wanted = torch.tensor(weights or (self.weight,), dtype=torch.float64, device=row.device)
        # the ratios are of probabilities, which the scores are up to this power
        delta = self.ratios[classes[row, candidate]][:, None] * wanted / model.scale
        score = batch.total(model.column)
        return answer_ranks(score, queries.answer, row, candidate, delta, [model.filters.mask("time", queries)])[0]


def _tally(batch: Scored, model: ModelOn, seen: OtherHalf) -> Tensor:
    """How often answers are of each class, and the model's mass on the other candidates, float64 [2, 6]."""
    queries, classes = batch.queries, seen.classes(batch.queries)
    assert queries.answer is not None
    rows = torch.arange(len(queries), device=classes.device)
    score = model.scale * batch.total(model.column)
    score[model.filters.mask("time", queries)] = -torch.inf
    score[rows, queries.answer] = -torch.inf
    mass = score.softmax(1).nan_to_num_()  # with one entity alone nobody is left
    answers = torch.bincount(classes[rows, queries.answer], minlength=CLASSES).double()
    return torch.stack([answers, mass.new_zeros(CLASSES).index_add_(0, classes.flatten(), mass.flatten())])

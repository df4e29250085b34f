"""Predictor: a frozen backbone with its residual, asked by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bridgemem.backbones.base import score_queries
from bridgemem.backbones.scorer import Scorer
from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.events.times import LAST_STEP
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.calibration import Calibration
from bridgemem.forecasting.explanations import Explanation, explain_bridgemem, explain_learned
from bridgemem.forecasting.horizon import Activity, at_least_once, check_horizon, check_past
from bridgemem.memory.past import Past
from bridgemem.memory.past_overlay import history_of
from bridgemem.residuals.learned import Learned
from bridgemem.residuals.scoring import Choice, Scored, Scoring


@dataclass(frozen=True)
class Candidate:
    """A ranked answer: its score is the backbone's log score plus the residual.

    p_given_event: that an event's partner is this one, given that the event happens, or, of a query about several
    steps, that it comes at least once in them, given that anybody does; None where the run was never calibrated.
    """

    name: str
    rank: int
    backbone_rank: int
    score: float
    backbone_score: float
    residual: float
    p_given_event: float | None = None


class Predictor:
    """Who comes next for (actor, relation, ?, t), from the events strictly before t.

    With a learned residual that one corrects the backbone; without, the paper's residual of the choice does. With a
    calibration every candidate has a probability.
    """

    def __init__(
        self,
        events: EventLog,
        backbone: Scorer,
        transitions: Transitions | None,
        choice: Choice,
        learned: Learned | None = None,
        calibration: Calibration | None = None,
        end: int | None = None,
    ) -> None:
        """transitions: None for relations that nothing was fitted on, which the backbone alone forecasts.

        end: the first unknown step, where more is known than these events.
        """
        self.events = events
        self.end = events.end if end is None else end
        self.backbone = backbone
        self.transitions = transitions
        self.choice = choice
        self.learned = learned
        self.calibration = calibration

    @cached_property
    def past(self) -> Past:
        return history_of(self.events)

    @cached_property
    def scoring(self) -> Scoring:
        """The scoring path, with one residual."""
        if self.learned is not None:
            return Scoring(self.backbone, self.past, self.transitions, learned=[self.learned])
        return Scoring(self.backbone, self.past, self.transitions, choices=[self.choice])

    def scored_by(self, backbone: Scorer) -> Predictor:
        """The same predictor, on the same memory, over another scorer."""
        made = copy.copy(self)
        made.backbone, made.scoring = backbone, self.scoring.by(backbone)
        return made

    @cached_property
    def _activity(self) -> Activity:
        return Activity(self.events)

    def query(
        self, actor: str | int, relation: str | int, at: str | int | None = None, inverse: bool = False
    ) -> Queries:
        """The query in ids. `at` is a time of the data set (the first unknown step when left out)."""
        directed = self.events.relations.id(relation) + (self.events.n_relations if inverse else 0)
        ids = [self.events.entities.id(actor), directed, self._step(at)]
        return Queries(*(torch.tensor([value]) for value in ids))

    def _step(self, at: str | int | None) -> int:
        """The step asked for, if it is neither before the first event nor after the last date of the calendar."""
        clock, start = self.events.clock, self.events.start
        step = self.end if at is None else clock.step(at)
        if step < start:
            raise DataError(f"{at!r} lies before the data set begins, at {clock.label(start)}.")
        if self._too_far(step):
            last = clock.label(self.end - 1)
            if at is None:
                raise DataError(
                    f"the step after the last event, which is at {last}, lies too far ahead: ask for an earlier time, "
                    "as with --at, or take that event out of the data."
                )
            raise DataError(f"{at!r} lies too far ahead, and the last event is at {last}: ask for an earlier time.")
        return step

    def _too_far(self, step: int) -> bool:
        """Whether a step is more than can be counted, or lies after the last date of the calendar."""
        return step > LAST_STEP or not self.events.clock.holds(step)

    def check_window(self, queries: Queries, horizon: int) -> None:
        """Refuse that many steps where they reach too far ahead, or where fewer came before."""
        last = int(queries.step.max())
        if self._too_far(last + check_horizon(horizon) - 1):
            when = self.events.clock.label(last)
            raise DataError(
                f"{horizon:,} steps from {when} on lie too far ahead; ask for fewer, or from an earlier time."
            )
        check_past(horizon, min(int(queries.step.min()), self.end) - self.events.start)

    def forecast(
        self,
        actor: str | int,
        relation: str | int,
        at: str | int | None = None,
        top: int = 10,
        inverse: bool = False,
        horizon: int | None = None,
    ) -> list[Candidate]:
        """The likeliest answers to (actor, relation, ?), or with `inverse` to (?, relation, actor), best first.

        horizon: any of that many steps from `at` on, instead of that step alone.
        """
        return self.answers(self.query(actor, relation, at, inverse), top, horizon)[0]

    def answers(self, queries: Queries, top: int = 10, horizon: int | None = None) -> list[list[Candidate]]:
        """The likeliest answers of each query, best first; all of them are scored at once.

        A name that the run was fitted without, and that has no event before the step, is nobody's answer.
        """
        if top < 1:
            raise DataError(f"top must be at least 1, not {top}.")
        if horizon is not None:
            self.check_window(queries, horizon)
        scored = self.scored(queries)
        base, residual = scored.base, scored.residual()
        score = base + residual
        best = score.argsort(dim=1, descending=True, stable=True)[:, :top]
        columns = [
            # 1 + how many score higher; of those that are kept all that do are kept before them
            torch.searchsorted(-score.gather(1, best), -score.gather(1, best)) + 1,
            torch.stack([(base > base.gather(1, c[:, None])).sum(1) + 1 for c in best.T], dim=1),
            *(values.gather(1, best) for values in (score, base, residual)),
            *self._probabilities(queries, score, best, horizon),
        ]
        names = self.events.entities.names
        return [
            [c for c in (Candidate(names[i], *v) for i, *v in zip(chosen, *own, strict=True)) if c.score > -math.inf]
            for chosen, *own in zip(best.tolist(), *(column.tolist() for column in columns), strict=True)
        ]

    def scored(self, queries: Queries) -> Scored:
        """The scores of queries, as every forecast and explanation reads them."""
        with self._by_name(queries):
            return self.scoring.of(queries)

    @contextmanager
    def _by_name(self, queries: Queries) -> Iterator[None]:
        """A backbone of stored scores that lacks those of a query says so in ids; here it is told by name."""
        try:
            yield
        except NotFoundError:
            lacking = queries.take(slice(self._first_unscored(queries), None))
            relations, entities = self.events.relations.names, self.events.entities.names
            actor, relation = entities[int(lacking.actor[0])], relations[int(lacking.relation[0]) % len(relations)]
            inverse, time = int(lacking.relation[0]) >= len(relations), self.events.clock.label(int(lacking.step[0]))
            asked = f"(?, {relation}, {actor})" if inverse else f"({actor}, {relation}, ?)"
            raise NotFoundError(
                f"the backbone of this run has no scores for {asked} at {time}; stored scores answer the times that "
                "they were written for, usually those of validation and test: name one of these, or write more scores."
            ) from None

    def _first_unscored(self, queries: Queries) -> int:
        """Which of some queries, not all of which have scores, is the first without."""
        for row in range(len(queries) - 1):
            try:
                score_queries(self.backbone, queries.take(slice(row, row + 1)), self.past)
            except NotFoundError:
                return row
        return len(queries) - 1

    def _probabilities(self, queries: Queries, score: Tensor, best: Tensor, horizon: int | None) -> list[Tensor]:
        """One column [n, top] of probabilities, or no column where the run was never calibrated."""
        if self.calibration is None:
            return []
        p = self.calibration.probabilities(score).gather(1, best)
        if horizon is None:
            return [p]
        return [at_least_once(p, self._activity.draws(queries, self.past.cut(queries.step), horizon))]

    def explain(
        self,
        actor: str | int,
        relation: str | int,
        candidate: str | int,
        at: str | int | None = None,
        inverse: bool = False,
    ) -> Explanation:
        """Why a candidate has its score: parts that add up, and the events they come from."""
        query = self.query(actor, relation, at, inverse)
        found = self._explained(query, self.events.entities.id(candidate))
        if found.base == -math.inf:
            raise NotFoundError(
                f"{found.candidate!r} is no candidate at {found.time}, since it has no earlier event that the run can "
                "read; ask for a time after its first one."
            )
        return found

    def _explained(self, query: Queries, chosen: int) -> Explanation:
        explain = explain_bridgemem if self.learned is None else explain_learned
        return explain(self.scored(query), chosen, events=self.events, scoring=self.scoring)

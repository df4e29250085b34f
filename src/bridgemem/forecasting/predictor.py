"""Predictor: a frozen backbone with its residual, asked by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bridgemem.backbones.scorer import Scorer, Scores, score_queries
from bridgemem.config import Count, check
from bridgemem.errors import BridgeMemError, DataError, NotFoundError, SettingsError
from bridgemem.events.groups import groups_of
from bridgemem.events.leaps import ADDED
from bridgemem.events.naming import followed_by, new_events
from bridgemem.events.queries import Queries, renumbered
from bridgemem.events.times import LAST_STEP
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.ahead import (
    Ahead,
    Chance,
    PartnerCandidate,
    Ranked,
    RelationCandidate,
    keys_of,
    without_heads,
)
from bridgemem.forecasting.answers import Answered, Answers, Candidate
from bridgemem.forecasting.assuming import check_counted
from bridgemem.forecasting.calibration import Calibration
from bridgemem.forecasting.explaining import attended_events, explain_bridgemem, explain_learned
from bridgemem.forecasting.explanations import EventShare, Explanation
from bridgemem.forecasting.heads import Heads
from bridgemem.forecasting.horizon import Activity, check_horizon, check_past
from bridgemem.forecasting.outlook import Outlook, outlook
from bridgemem.forecasting.reasons import Reason, reasons, reasons_with_anybody
from bridgemem.forecasting.watching import watch_of
from bridgemem.memory.disk.mapped import memory_of
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.ranks import batch_size, best_first, ranks_of
from bridgemem.residuals.learned import Learned
from bridgemem.residuals.scoring import Choice, Scored, Scoring
from bridgemem.residuals.selection import OFF

__all__ = ["SIDES", "Answers", "Predictor"]

SIDES = ("object", "subject")


def _check_side(candidate: str) -> str:
    if candidate not in SIDES:
        raise SettingsError(f"candidate is {' or '.join(SIDES)}, not {candidate!r}.")
    return candidate


class Predictor:
    """Who comes next for (actor, relation, ?, t), from the events strictly before t.

    With a learned residual that one corrects the backbone; without, the paper's residual of the choice does. With a
    calibration every candidate has a probability.

    Relations that came after the fit are forecast by the scorer alone, from all events. Their events are no evidence
    for the fitted relations, which are read from a past without them.
    """

    def __init__(
        self,
        past: Past,
        scorer: Scorer,
        transitions: Transitions,
        choice: Choice,
        learned: Learned | None = None,
        calibration: Calibration | None = None,
        *,
        heads: Heads | None = None,
    ) -> None:
        """heads: what answers what and whether; None where the run has none."""
        self.heads = heads
        self.assumed: tuple[int, ...] = ()  # the steps of the events that are assumed
        self.past, self.events, self.end = past, past.events, past.events.end
        self.scorer, self.transitions, self.choice, self.calibration = scorer, transitions, choice, calibration
        self.learned, self.n_fitted = learned, transitions.space.n_relations
        readable = past.within(self.events.n_entities, self.n_fitted)
        if learned is None:
            self.scoring = Scoring(scorer, readable, transitions, choices=[choice])
        else:
            self.scoring = Scoring(scorer, readable, transitions, learned=[learned])
        # of the relations that came after the fit; None where there are none
        self.later = None if self.n_fitted >= self.events.n_relations else Scoring(scorer, past, choices=[OFF])

    def with_past(self, past: Past) -> Predictor:
        """The same predictor over another past."""
        own = (self.scorer, self.transitions, self.choice, self.learned, self.calibration)
        return Predictor(past, *own, heads=self.heads)

    def assume(
        self, events: Any, *, max_ahead: int | None = None, progress: Progress = SILENT, leap: str = ADDED
    ) -> Predictor:
        """The same predictor as if these events had happened; this one stays as it is.

        events, max_ahead: as in `update`. leap: what is said of an event too far ahead.
        """
        added = new_events(events, self.events, max_ahead=max_ahead, progress=progress, leap=leap)
        made = self.with_past(self.past.with_delta(followed_by(self.past.delta, added)))
        made.assumed = (*self.assumed, *(step for *_, step in added))
        return made

    @property
    def mapped(self) -> bool:
        """Whether events are read from disk."""
        return any(memory_of(index.events) is not None for index in self.past.indices)

    def with_scorer(self, scorer: Scorer) -> Predictor:
        """The same predictor, on the same indices, with another scorer."""
        made = copy(self)
        made.scorer, made.scoring = scorer, self.scoring.by(scorer)
        made.later = None if self.later is None else self.later.by(scorer)
        return made

    def warm(self, alone: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """Build every index, so that the first query waits for none. alone: entered while the scorer is asked."""
        for part, relation in ((self.scoring, 0), (self.later, self.events.n_relations - 1)):
            if part is None:
                continue
            # of the actors of the base the last, which as a rule has the fewest events to be read
            past, actor = part.past, max(part.past.base.n_entities - 1, 0)
            query = Queries(*(torch.tensor([value]) for value in (actor, relation, self.end)))
            past.ready()
            if not self.scorer.parallel:  # else it keeps nothing
                # a scorer that cannot answer says so in answer to a query
                with suppress(BridgeMemError), alone():
                    score_queries(self.scorer, query, past)
            if part.learned:
                part.reader.neighbours.weights_before(int(past.cut(query.step)))

    def prepare(self, step: int) -> None:
        """Compute ahead what queries about a later step read of the base alone, whatever comes before that step."""
        for part in (self.scoring, self.later):
            if part is not None and part.learned:
                part.reader.prepare(step)

    def _parts(self, queries: Queries) -> Iterator[tuple[Scoring, Tensor, Queries]]:
        """The queries of fitted and of later relations: what reads them, their rows, and they as it numbers them."""
        own = self.events.n_relations
        known = queries.relation % own < self.n_fitted
        for part, wanted in ((self.scoring, known), (self.later, ~known)):
            rows = wanted.nonzero().squeeze(1)
            if part is not None and len(rows):
                asked = queries.take(rows)
                relation = renumbered(asked.relation, own, part.past.events.n_relations)
                yield part, rows, Queries(asked.actor, relation, asked.step)

    def query(
        self,
        subject: str | int | None = None,
        relation: str | int | None = None,
        *,
        object: str | int | None = None,
        at: str | int | None = None,
    ) -> Queries:
        """(subject, relation, ?) or (?, relation, object) in ids; the side left out is what is asked.

        at: a time of the data set; the first unknown step when left out.
        """
        return Queries(*(torch.tensor([value]) for value in self.query_ids(subject, relation, object, at)))

    def query_ids(
        self, subject: str | int | None, relation: str | int | None, object: str | int | None, at: str | int | None
    ) -> tuple[int, int, int]:
        """The actor, the directed relation and the step of a query by name."""
        if relation is None:
            raise SettingsError(
                "give a relation; which relation or which partner comes next is asked by what and partners."
            )
        if subject is not None and object is None:
            actor, directed = subject, self.events.relation_id(relation)
        elif object is not None and subject is None:
            actor, directed = object, self.events.relation_id(relation) + self.events.n_relations
        else:
            raise SettingsError("give a subject or an object, not both: the side left out is what is asked.")
        return self.events.entity_id(actor), directed, self._step(at)

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
        check_counted(self.assumed, step, clock)
        return step

    def _too_far(self, step: int) -> bool:
        """Whether a step is more than can be counted, or lies after the last date of the calendar."""
        return step > LAST_STEP or not self.events.clock.holds(step)

    def check_window(self, queries: Queries, horizon: int) -> None:
        """Refuse that many steps where they reach too far ahead, or where fewer came before."""
        self._check_reach(int(queries.step.max()), check_horizon(horizon))
        check_past(horizon, min(int(queries.step.min()), self.end) - self.events.start)

    def _check_reach(self, step: int, horizon: int) -> None:
        """Refuse steps that reach beyond the calendar."""
        if self._too_far(step + horizon - 1):
            when = self.events.clock.label(step)
            raise DataError(
                f"{horizon:,} steps from {when} on lie too far ahead; ask for fewer, or from an earlier time."
            )

    def forecast(
        self,
        subject: str | int | None = None,
        relation: str | int | None = None,
        *,
        object: str | int | None = None,
        at: str | int | None = None,
        horizon: int | None = None,
        top: int = 10,
    ) -> Answers:
        """The likeliest answers to (subject, relation, ?) or (?, relation, object), best first.

        horizon: any of that many steps from `at` on, instead of that step alone.
        """
        return self.answers(self.query(subject, relation, object=object, at=at), top, horizon)[0]

    def answers(self, queries: Queries, top: int = 10, horizon: int | None = None) -> list[Answers]:
        """The likeliest answers of each query, best first; all of them are scored at once.

        A name that the run was fitted without, and that has no event before the step, is no candidate.
        """
        check("top", top, Count)
        if horizon is not None:
            self.check_window(queries, horizon)
        found = dict[int, Answers]()
        for part, rows, asked in self._parts(queries):
            for row, candidates in zip(rows.tolist(), self._candidates(part, asked, top, horizon), strict=True):
                found[row] = Answers(candidates, self._answered(queries, row, horizon))
        return [found[row] for row in range(len(queries))]

    def scores_of(self, queries: Queries, *, progress: Progress = SILENT) -> Tensor:
        """The score of every entity as the answer of each query, float64 [n, E]; -inf where it is no candidate."""
        made = torch.empty((len(queries), self.events.n_entities), dtype=torch.float64)
        size = batch_size(self.events.n_entities, self.past.device)
        with progress.task("scoring", total=len(queries)) as advance:
            for part, rows, asked in self._parts(queries):
                for some in torch.arange(len(rows)).split(size):
                    made[rows[some]] = self._scored(part, asked.take(some)).total().cpu()
                    advance(len(some))
        return made

    def _answered(self, queries: Queries, row: int, horizon: int | None) -> Answered:
        """One of the queries by name, with what its probabilities mean."""
        actor, directed, step = (int(column[row]) for column in (queries.actor, queries.relation, queries.step))
        inverse, relation = divmod(directed, self.events.n_relations)
        name, label = self.events.entities.names[actor], self.events.clock.label
        known = relation < self.n_fitted
        return Answered(
            subject=None if inverse else name,
            relation=self.events.relations.names[relation],
            relation_label=self.events.relations.label(self.events.relations.names[relation]),
            object=name if inverse else None,
            time=label(step),
            until=label(step + (horizon or 1) - 1),
            step=step,
            horizon=horizon,
            residual=None if not known else "bridgemem" if self.learned is None else "learned",
            meaning=self.meaning(horizon, known=known),
        )

    def meaning(self, horizon: int | None = None, *, known: bool = True) -> str:
        """What the probabilities are probabilities of, or why there are none; known: the relation, to the fit."""
        if not known:
            return (
                "No probabilities: the run was fitted without this relation; `bridgemem refresh` makes one that knows "
                "it."
            )
        if self.calibration is None:
            return "No probabilities: the run is not calibrated; run `bridgemem calibrate`."
        if horizon is None:
            late = self.calibration.late
            remark = "" if late is None or not late.remark else f" Those of the best candidate: {late.remark}."
            return f"Probability: that the partner is this one, given that such an event happens.{remark}"
        return (
            f"Probability: at least one such event within {horizon:,} step{'s' * (horizon != 1)}, given that there is "
            "one with anybody; the ranking is that of the first step."
        )

    def _candidates(self, part: Scoring, queries: Queries, top: int, horizon: int | None) -> list[list[Candidate]]:
        scored = self._scored(part, queries)
        base, score = scored.base, scored.total()
        best = best_first(score, top)
        of_best = score.gather(1, best)
        columns = [
            # 1 + how many score higher; of those that are kept all that do are kept before them
            torch.searchsorted(-of_best, -of_best) + 1,
            ranks_of(base, best),
            *(of_best, base.gather(1, best), scored.residual_of(best)),
            *self._probabilities(part, queries, score, best, horizon),
        ]
        names = self.events.entities.names
        return [
            [c for c in (Candidate(names[i], *v) for i, *v in zip(chosen, *own, strict=True)) if c.score > -math.inf]
            for chosen, *own in zip(best.tolist(), *(column.tolist() for column in columns), strict=True)
        ]

    def scores(self, query: Queries) -> Scores:
        """What the scorer alone says of one query."""
        ((part, _, asked),) = self._parts(query)
        with self._by_name(part.past, asked):
            return score_queries(self.scorer, asked, part.past)

    def _scored(self, part: Scoring, queries: Queries) -> Scored:
        with self._by_name(part.past, queries):
            return part.of(queries)

    @contextmanager
    def _by_name(self, past: Past, queries: Queries) -> Iterator[None]:
        """A backbone of stored scores that lacks those of a query says so in ids; here it is told by name."""
        try:
            yield
        except NotFoundError:
            lacking = queries.take(slice(self._first_unscored(past, queries), None))
            relations, entities = past.events.relations.names, past.events.entities.names
            actor, relation = entities[int(lacking.actor[0])], relations[int(lacking.relation[0]) % len(relations)]
            inverse, time = int(lacking.relation[0]) >= len(relations), self.events.clock.label(int(lacking.step[0]))
            asked = f"(?, {relation}, {actor})" if inverse else f"({actor}, {relation}, ?)"
            raise NotFoundError(
                f"the backbone of this run has no scores for {asked} at {time}; stored scores answer the times that "
                "they were written for, usually those of validation and test: name one of these, or write more scores."
            ) from None

    def _first_unscored(self, past: Past, queries: Queries) -> int:
        """Which of some queries, not all of which have scores, is the first without."""
        for row in range(len(queries) - 1):
            try:
                score_queries(self.scorer, queries.take(slice(row, row + 1)), past)
            except NotFoundError:
                return row
        return len(queries) - 1

    def _probabilities(
        self, part: Scoring, queries: Queries, score: Tensor, best: Tensor, horizon: int | None
    ) -> list[Tensor]:
        """One column [n, top] of probabilities, or no column where the run was never calibrated."""
        if self.calibration is None or part is self.later:
            return []
        if horizon is None:
            return [self.calibration.of_best(score, best)]
        draws = Activity(part.past).draws(queries, part.past.cut(queries.step), horizon)
        # what is stated of the best depends on the second, also where only one is asked for
        p = self.calibration.of_best(score, best if best.shape[1] > 1 else best_first(score, 2))
        return [self.calibration.over_steps.at_least_once(p, draws, horizon)[:, : best.shape[1]]]

    @cached_property
    def ahead(self) -> Ahead:
        """What answers what and whether over this past."""
        if self.heads is None:
            raise without_heads("this run")
        return Ahead(self.past, self.heads)

    def what(
        self,
        subject: str | int,
        object: str | int,
        *,
        at: str | int | None = None,
        horizon: int | None = None,
        top: int = 10,
    ) -> Ranked[RelationCandidate]:
        """What happens next between two parties, either way round, given that they interact; best first."""
        check("top", top, Count)
        step, steps = self._ahead_of(at, horizon)
        ids = self.events.entity_id(subject), self.events.entity_id(object)
        return self.ahead.what(*ids, step, horizon=steps, top=top)

    def partners(
        self, actor: str | int, *, at: str | int | None = None, horizon: int | None = None, top: int = 10
    ) -> Ranked[PartnerCandidate]:
        """The next partners of an actor, under any relation and in either role, and the likeliest event with each."""
        check("top", top, Count)
        step, steps = self._ahead_of(at, horizon)
        return self.ahead.partners(self.events.entity_id(actor), step, horizon=steps, top=top)

    def whether(
        self,
        subject: str | int | None = None,
        relation: str | int | None = None,
        *,
        object: str | int | None = None,
        at: str | int | None = None,
        horizon: int | None = None,
    ) -> Chance:
        """Whether and when (subject, relation, object) happens next; None stands for anybody or anything."""
        step, steps = self._ahead_of(at, horizon)
        who = [None if name is None else self.events.entity_id(name) for name in (subject, object)]
        what = None if relation is None else self.ahead.relation(self.events.relation_id(relation))
        ids = (who[0], what, who[1])
        if who[0] is not None and who[1] is not None:
            key = keys_of("pair" if what is None else "triple", who[0], what or 0, who[1], step)
        elif what is None or who == [None, None]:
            raise SettingsError("give two of subject, relation and object, or all three.")
        else:
            actor = who[1] if who[0] is None else who[0]
            directed = what + (self.ahead.heads.n_relations if who[0] is None else 0)
            key = keys_of("role_relation", actor or 0, directed, 0, step)
        return self.ahead.whether(key, ids, horizon=steps)

    def outlook(
        self,
        *,
        horizon: int = 7,
        top: int = 50,
        surprising: bool = False,
        watch: Any = None,
        at: str | int | None = None,
    ) -> Outlook:
        """The likeliest events of the next steps, or those whose probability rose most; see `Forecaster.outlook`."""
        check("top", top, Count)
        step, steps = self._ahead_of(at, horizon)
        wanted = None if watch is None else watch_of(watch, self.events)
        return outlook(self.ahead, step, horizon=steps, top=top, surprising=surprising, watch=wanted)

    groups: Mapping[str, tuple[str, ...]] = {}  # none; see `Grouped`

    def with_groups(self, groups: Any) -> Predictor:
        """The same predictor, with groups wherever a name can stand; see `Forecaster.with_groups`."""
        from bridgemem.forecasting.grouping import Grouped

        return Grouped.of(self, groups_of(groups, self.events))

    def members(self, kind: str, name: str | int) -> list[int]:
        """The ids that a name, of an entity or a relation, stands for."""
        return [self.events.entity_id(name) if kind == "entity" else self.events.relation_id(name)]

    def _ahead_of(self, at: str | int | None, horizon: int | None) -> tuple[int, int]:
        """The first step that is asked about, and how many."""
        step, steps = self._step(at), check_horizon(1 if horizon is None else horizon)
        self._check_reach(step, steps)
        return step, steps

    def explain(
        self,
        subject: str | int,
        relation: str | int,
        object: str | int,
        *,
        at: str | int | None = None,
        candidate: str = "object",
    ) -> Explanation:
        """Why a candidate stands where it does: plain sentences, parts that add up, and the events they come from.

        candidate: "object" or "subject", the side that is explained as an answer.
        """
        inverse = _check_side(candidate) == "subject"
        asked = self.query(None, relation, object=object, at=at) if inverse else self.query(subject, relation, at=at)
        ((part, _, query),) = self._parts(asked)
        chosen = self.events.entity_id(subject if inverse else object)
        found = self._explained(part, query, chosen)
        if found.base > -math.inf:
            found = replace(found, reasons=self._reasons(asked, chosen, found.cause()))
            return found if self.later is None or part is self.later else self._with_unread(found, query, chosen)
        if len(self.past.seen(torch.tensor([chosen]), query.step)[0]):
            raise NotFoundError(
                f"{found.candidate!r} is not a candidate at {found.time} under {found.relation!r}, since the run was "
                "not fitted on the relations of its earlier events; `bridgemem refresh` fits one that is."
            )
        raise NotFoundError(
            f"{found.candidate!r} is not a candidate at {found.time}, since it has no earlier event that the run can "
            "read; ask for a time after its first one."
        )

    def reasons(
        self,
        subject: str | int | None,
        relation: str | int | None,
        object: str | int | None,
        *,
        at: str | int | None = None,
        candidate: str = "object",
    ) -> tuple[Reason, ...]:
        """What happened before that speaks for or against (subject, relation, object), in plain sentences.

        Args:
            subject: A name as text, or an id as an int; None for anybody.
            relation: A name as text, or an id as an int; None for any event between the two.
            object: A name as text, or an id as an int; None for anybody.
            at: The time asked for (default: the first unknown step).
            candidate: The side that is an answer to the other: object or subject.
        """
        inverse, step = _check_side(candidate) == "subject", self._step(at)
        known = relation if relation is None else self.events.relation_id(relation)
        if subject is None or object is None:
            name = object if subject is None else subject
            if name is None or known is None:
                raise SettingsError("name two of subject, relation and object to ask for reasons.")
            back = (subject is None) * self.events.n_relations
            return reasons_with_anybody(self.past, self.events.entity_id(name), known + back, step=step)
        pair = self.events.entity_id(subject), self.events.entity_id(object)
        actor, chosen = pair[::-1] if inverse else pair
        directed = None if known is None else known + inverse * self.events.n_relations
        return reasons(self.past, actor, directed, chosen, step=step)

    def _reasons(self, query: Queries, chosen: int, cause: EventShare | None) -> tuple[Reason, ...]:
        """The reasons of an answer; cause: the event that matters most."""
        ids = int(query.actor), int(query.relation), chosen
        main = None if cause is None else (self.events.relation_id(cause.relation), cause.direction)
        return reasons(self.past, *ids, step=int(query.step), cause=main)

    def _explained(self, part: Scoring, query: Queries, chosen: int) -> Explanation:
        explain, events = explain_learned if part.learned else explain_bridgemem, part.past.events
        found = explain(self._scored(part, query), chosen, events=events, scoring=part)
        return replace(found, attended=attended_events(query, part, events))

    def _with_unread(self, found: Explanation, query: Queries, chosen: int) -> Explanation:
        """An explanation that also tells how many events of the two are of relations that came after the fit."""
        pair = int(query.actor), chosen, int(query.step)
        known, read = (PairEvents.of(past, *pair, most=1).n_events for past in (self.past, self.scoring.past))
        return replace(found, unread=known - read)

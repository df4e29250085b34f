"""Asked: everything that a forecaster can be asked; its predictor answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from bridgemem.events.log import Vocabulary
from bridgemem.events.queries import Queries
from bridgemem.forecasting.ahead import Chance, PartnerCandidate, Ranked, RelationCandidate
from bridgemem.forecasting.answers import Answers
from bridgemem.forecasting.batch_queries import as_queries, in_ids
from bridgemem.forecasting.explanations import Explanation
from bridgemem.forecasting.outlook import Outlook
from bridgemem.forecasting.predictor import Predictor
from bridgemem.progress import SILENT, Progress


class Asked(ABC):
    """The queries of a `Forecaster`. A text is a name, also one of digits; an int is an id."""

    @property
    @abstractmethod
    def predictor(self) -> Predictor:
        """What answers queries by name."""

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
        """Rank the answers to (subject, relation, ?) or (?, relation, object), best first.

        Args:
            subject: A name as text, or an id as an int; left out where the subject is asked.
            relation: A name as text, or an id as an int.
            object: A name as text, or an id as an int; left out where the object is asked.
            at: The time of the event; the first step after the data when left out.
            horizon: Any of that many steps from `at` on, instead of that step alone.
            top: How many answers.

        Returns:
            A list of candidates that prints as a table; `to_frame()` makes a data frame.

        Raises:
            NotFoundError: A name does not occur; `suggestions` holds those that come close.

        Example:
            >>> answers = model.forecast(data.entities[0], "consult", top=3)
            >>> [answer.rank for answer in answers]
            [1, 2, 3]
            >>> 0 < answers[0].p_given_event < 1
            True
        """
        return self.predictor.forecast(subject, relation, object=object, at=at, horizon=horizon, top=top)

    def what(
        self,
        subject: str | int,
        object: str | int,
        *,
        at: str | int | None = None,
        horizon: int | None = None,
        top: int = 10,
    ) -> Ranked[RelationCandidate]:
        """Rank what happens next between two parties, either way round, given that they interact.

        Args:
            subject: A name as text, or an id as an int.
            object: A name as text, or an id as an int.
            at: The time of the event; the first step after the data when left out.
            horizon: p_event is that of any of that many steps from `at` on; of one step when left out.
            top: How many events.

        Returns:
            A list of events that prints as a table, with p_given_event and p_event.

        Example:
            >>> [event.rank for event in model.what(0, 1, top=3)]
            [1, 2, 3]
        """
        return self.predictor.what(subject, object, at=at, horizon=horizon, top=top)

    def partners(
        self, actor: str | int, *, at: str | int | None = None, horizon: int | None = None, top: int = 10
    ) -> Ranked[PartnerCandidate]:
        """Rank the next partners of an actor, under any relation and in either role.

        Args:
            actor: A name as text, or an id as an int.
            at: The first step that is asked about; the first one after the data when left out.
            horizon: Any of that many steps; one when left out.
            top: How many partners.

        Returns:
            A list of partners that prints as a table, each with its likeliest event.

        Example:
            >>> [partner.rank for partner in model.partners(0, horizon=7, top=2)]
            [1, 2]
        """
        return self.predictor.partners(actor, at=at, horizon=horizon, top=top)

    def whether(
        self,
        subject: str | int | None = None,
        relation: str | int | None = None,
        *,
        object: str | int | None = None,
        at: str | int | None = None,
        horizon: int | None = None,
    ) -> Chance:
        """Forecast whether and when an event happens; at most one of the three may be None, for anyone or anything.

        Args:
            subject: A name as text, or an id as an int.
            relation: A name as text, or an id as an int; without one the two parties interact either way round.
            object: A name as text, or an id as an int.
            at: The first step that is asked about; the first one after the data when left out.
            horizon: p_event is that of any of that many steps; of one when left out.

        Returns:
            A table of p_event by horizon; `query.p_event` is that of the horizon asked, `median` the steps until 50 %.

        Example:
            >>> chance = model.whether(0, 0, object=1, horizon=7)
            >>> 0 < chance.query.p_event < 1
            True
        """
        return self.predictor.whether(subject, relation, object=object, at=at, horizon=horizon)

    def outlook(
        self,
        *,
        horizon: int = 7,
        top: int = 50,
        surprising: bool = False,
        watch: Any = None,
        at: str | int | None = None,
    ) -> Outlook:
        """List the likeliest events of the coming steps.

        Args:
            horizon: How many steps.
            top: How many events.
            surprising: Those whose probability rose most against their usual rate, instead of the likeliest.
            watch: A list of names (actors, relations) and of pairs of actors, or a file with one or two names in each
                row; everything when left out. Of a watched pair every relation is asked, seen or not.
            at: The first step that is asked about; the first one after the data when left out.

        Returns:
            An `Outlook`: prints as a table, with `to_frame` and `write`.

        Example:
            >>> [event.rank for event in model.outlook(horizon=3, top=2, watch=[data.entities[0]])]
            [1, 2]
        """
        return self.predictor.outlook(horizon=horizon, top=top, surprising=surprising, watch=watch, at=at)

    @property
    def entities(self) -> Vocabulary:
        """All candidates by id, those that `update` brought too: the columns of `scores`."""
        return self.predictor.events.entities

    def scores(self, queries: Any, *, progress: Progress = SILENT) -> np.ndarray:
        """Score every entity for each query, as forecasts rank them: the backbone's log score plus the residual.

        Args:
            queries: A list of (subject, relation), or of (subject, relation, object, time) with None on the side asked
                for; a data frame with these columns, a file of queries, or `Queries` in ids.
            progress: Where the scoring is shown.

        Returns:
            float64 [queries, entities], with columns in the order of `entities`; -inf for an entity that is no
            candidate, as no event before the step names it.

        Example:
            >>> scores = model.scores([(0, 0), (None, 0, 1)])
            >>> scores.shape
            (2, 30)
            >>> model.entities[scores[0].argmax()] == model.forecast(0, 0)[0].name
            True
        """
        predictor = self.predictor
        asked = queries.unanswered() if isinstance(queries, Queries) else in_ids(predictor, as_queries(queries))
        return predictor.scores_of(asked, progress=progress).numpy()

    def explain(
        self,
        subject: str | int,
        relation: str | int,
        object: str | int,
        *,
        at: str | int | None = None,
        candidate: str = "object",
    ) -> Explanation:
        """Explain a candidate: plain sentences, parts that add up to its score, and the events they come from.

        Args:
            subject: A name as text, or an id as an int.
            relation: A name as text, or an id as an int.
            object: A name as text, or an id as an int.
            at: The time of the event; the first step after the data when left out.
            candidate: "object" or "subject", the side that is explained as an answer.

        Returns:
            An `Explanation`; it prints its sentences, and has every part as a number.

        Raises:
            NotFoundError: A name does not occur, or is not a candidate at that step.

        Example:
            >>> why = model.explain(0, 0, model.forecast(0, 0, top=1)[0].name)
            >>> abs(why.base + why.residual - why.score) < 1e-6
            True
        """
        return self.predictor.explain(subject, relation, object, at=at, candidate=candidate)

    def assume(self, events: Any, *, max_ahead: int | None = None, progress: Progress = SILENT) -> Predictor:
        """Answer as if these events had happened too; the forecaster itself stays as it is.

        Only assumed events before the time asked about count. A time that none of them lies before is refused.

        Args:
            events: As in `update`.
            max_ahead: As in `update`.
            progress: Where reading a long file is shown.

        Returns:
            A predictor with `forecast`, `what`, `partners`, `whether` and `explain`.

        Raises:
            DataError: One of the events cannot be used.

        Example:
            >>> (one, two), visit = data.entities[:2], data.relations[0]
            >>> assumed = model.assume([(one, visit, two, data.events.clock.label(60))])
            >>> len(assumed.events) - len(data.events)
            1
        """
        return self.predictor.assume(events, max_ahead=max_ahead, progress=progress)

    def with_groups(self, groups: Any) -> Predictor:
        """Answer queries about groups too: one name for several actors or several relations.

        Args:
            groups: A dict of the members by the group's name, or a table of two columns, group and member.

        Returns:
            A predictor with `forecast`, `what`, `partners`, `whether` and `outlook`, where a group can stand in place
            of a name.

        Example:
            >>> import bridgemem as bm
            >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
            >>> model = bm.Forecaster("recurrence", settings=bm.Settings(max_epochs=1)).fit(world)
            >>> asked = model.with_groups({"the three": world.entities[:3]})
            >>> alone, together = (asked.whether(who, 0).query.p_event for who in (0, "the three"))
            >>> alone < together
            True
        """
        return self.predictor.with_groups(groups)

"""Ahead: what happens between two parties, with whom an actor deals next, whether and when; asked by name.

Two probabilities are kept apart everywhere. p_event: that it happens at all within the horizon. p_given_event: that it
is this one, given that it happens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import torch

from bridgemem.errors import NotFoundError, RunError
from bridgemem.forecasting.chances import Chances, Pairs
from bridgemem.forecasting.occurrence import Keys, Kind
from bridgemem.ranking.ranks import best_first
from bridgemem.showing import as_frame, html_table, percent

HORIZONS = (1, 2, 3, 7, 14, 30, 60, 90)  # that a forecast of the next event shows
LONGEST = 10_000  # steps within which the median time to the next event is looked for


class Shown(ABC):
    """A row of a table of answers."""

    header: ClassVar[list[str]]

    @abstractmethod
    def cells(self) -> list[str]: ...


@dataclass(frozen=True)
class RelationCandidate(Shown):
    """An event that may happen between two parties.

    Attributes:
        subject: Who acts.
        relation: What happens.
        object: Whom it happens to.
        rank: Place among all events between the two, 1 for the best.
        p_given_event: Probability that an event between the two is this one.
        p_event: Probability that this one happens at least once within the horizon.
        relation_label: Words for a relation that is a code.

    Example:
        >>> best = model.what(0, 1)[0]
        >>> best.rank, {best.subject, best.object} == set(data.entities[:2])
        (1, True)
    """

    subject: str
    relation: str
    object: str
    rank: int
    p_given_event: float
    p_event: float
    relation_label: str | None = None
    header: ClassVar[list[str]] = ["event", "rank", "p_given_event", "p_event"]

    def cells(self) -> list[str]:
        event = f"{self.subject} - {self.relation_label or self.relation} -> {self.object}"
        return [event, str(self.rank), percent(self.p_given_event), percent(self.p_event)]


@dataclass(frozen=True)
class PartnerCandidate(Shown):
    """A partner that an actor may interact with, under any relation.

    Attributes:
        name: The partner.
        rank: Place among all partners, 1 for the best.
        p_event: Probability that the two interact at least once within the horizon.
        subject: Of the likeliest event between the two.
        relation: Of that event.
        object: Of that event.
        p_given_event: Probability of that event, given that the two interact.
        relation_label: Words for a relation that is a code.

    Example:
        >>> best = model.partners(0, horizon=7)[0]
        >>> best.rank, data.entities[0] in (best.subject, best.object)
        (1, True)
    """

    name: str
    rank: int
    p_event: float
    subject: str
    relation: str
    object: str
    p_given_event: float
    relation_label: str | None = None
    header: ClassVar[list[str]] = ["partner", "rank", "p_event", "likeliest event", "p_given_event"]

    def cells(self) -> list[str]:
        event = f"{self.subject} - {self.relation_label or self.relation} -> {self.object}"
        return [self.name, str(self.rank), percent(self.p_event), event, percent(self.p_given_event)]


@dataclass(frozen=True)
class AheadQuery:
    """What was asked, from what was known before `time`; None stands for anybody or anything.

    time, until: the first and the last of the steps that are asked about. p_event: that it happens at least once in
    them; None where several are asked for. past_events: how often it happened before. meaning: what the probabilities
    are probabilities of. remark: how far they were off on later validation; empty where they were not.
    """

    subject: str | None
    relation: str | None
    object: str | None
    time: str
    until: str
    step: int
    horizon: int
    p_event: float | None
    past_events: int
    meaning: str
    remark: str = ""
    relation_label: str | None = None

    def __str__(self) -> str:
        when = f"at {self.time}" if self.until == self.time else f"from {self.time} to {self.until}"
        words = (
            self.subject or "anybody",
            self.relation_label or self.relation or "anything",
            self.object or "anybody",
        )
        return f"({', '.join(words)}) {when}"


@dataclass(frozen=True)
class Within:
    """The probability of at least one event within that many steps, the last of which is at `until`."""

    steps: int
    until: str
    p_event: float


@dataclass(frozen=True)
class Chance:
    """Whether an event happens, and when: p_event by horizon; prints as a table.

    Attributes:
        query: What was asked, with its time and what its probabilities mean.
        within: `p_event` for each of several horizons.
        median: Steps after which the event has happened with probability one half; None beyond 10,000 steps.

    Example:
        >>> chance = model.whether(0, "consult", object=1)
        >>> chance.within[0].steps, chance.within[0].p_event <= chance.within[-1].p_event
        (1, True)
    """

    query: AheadQuery
    within: tuple[Within, ...]
    median: int | None

    def to_frame(self) -> Any:
        """Make a data frame with one row per horizon.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> list(model.whether(0, "consult", object=1).to_frame())
            ['steps', 'until', 'p_event']
        """
        names = [field.name for field in fields(Within)]
        return as_frame({name: [getattr(one, name) for one in self.within] for name in names})

    def __str__(self) -> str:
        lines = [f"{'steps':>5}  {'until':<19}  p_event"]
        lines += [f"{one.steps:>5}  {one.until:<19}  {percent(one.p_event):>7}" for one in self.within]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(one.steps, one.until, percent(one.p_event)) for one in self.within]
        return html_table(str(self.query), ["steps", "until", "p_event"], rows, self.query.meaning)


Row = TypeVar("Row", bound=Shown)


class Listed(list[Row], Generic[Row]):
    """Rows that print as a table. query: what was asked, with what its probabilities mean."""

    query: Any

    def columns(self) -> dict[str, list[Any]]:
        """Get the table by column.

        Returns:
            A list of values for each column.

        Example:
            >>> list(model.what(0, 1).columns())[:4]
            ['subject', 'relation', 'object', 'rank']
        """
        names = [field.name for field in fields(self[0])] if self else []  # type: ignore[arg-type]
        return {name: [getattr(one, name) for one in self] for name in names}

    def to_frame(self) -> Any:
        """Make a data frame with one row per answer.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> len(model.what(0, 1, top=5).to_frame()["relation"])
            5
        """
        return as_frame(self.columns())

    def __str__(self) -> str:
        rows = [self[0].header, *(one.cells() for one in self)] if self else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} to {self.query})"

    def _repr_html_(self) -> str:
        header = self[0].header if self else []
        return html_table(str(self.query), header, [one.cells() for one in self], self.query.meaning)


class Ranked(Listed[Row]):
    """The answers of `what` and `partners`, best first: a list that prints as a table.

    Attributes:
        query: What was asked, with its time and what its probabilities mean.

    Example:
        >>> answers = model.partners(0, horizon=7, top=3)
        >>> [one.rank for one in answers], answers.query.horizon
        ([1, 2, 3], 7)
    """

    def __init__(self, rows: Iterable[Row], query: AheadQuery) -> None:
        super().__init__(rows)
        self.query = query


def without_heads(where: str) -> RunError:
    """What a run says that is asked what or whether and was fitted without."""
    return RunError(f"{where} cannot tell what or whether: it was fitted without; fit it again.")


class Ahead(Chances):
    """Answers by name, from the chances of ids."""

    def relation(self, relation: int) -> int:
        """A relation of the fit, refused where it came later."""
        if relation >= self.heads.n_relations:
            raise NotFoundError(
                f"the run was fitted without {self.names.relations.names[relation]!r}; fit a new run to ask whether it "
                "happens."
            )
        return relation

    # ---- answers ---------------------------------------------------------------------------------------------------

    def what(self, first: int, second: int, step: int, *, horizon: int, top: int) -> Ranked[RelationCandidate]:
        """What happens between two parties, either way round, given that they interact."""
        a, b, t = (torch.tensor([value]) for value in (first, second, step))
        n = self.heads.n_relations
        directed = torch.arange(n if first == second else 2 * n)  # both directions of an actor with itself are one
        ends = (torch.where(directed < n, *either) for either in ((a, b), (b, a)))
        triples = Keys("triple", next(ends), directed % n, next(ends), t.expand_as(directed))
        pairs = Pairs(self, triples)
        p = pairs.shares[0, pairs.directed]
        best = best_first(p[None], top)[0]
        pair = Keys("pair", a, torch.zeros_like(a), b, t)
        whole = float(self.p_event(pair, horizon))
        chance = -torch.expm1(self.log_survival(triples.take(best), (horizon,), pairs.take(best))[:, 0])
        columns = (best.tolist(), p[best].tolist(), chance.clamp(max=whole).tolist())
        rows = [
            RelationCandidate(*self.fact(first, directed, second), rank, given, event, self.label(directed))
            for rank, (directed, given, event) in enumerate(zip(*columns, strict=True), 1)
        ]
        meaning = (
            "p_given_event: that an event between the two is this one. p_event: that this one happens at least once"
            f"{in_steps(horizon)}."
        )
        return Ranked(rows, self._query(pair, (first, None, second), step, horizon, meaning=meaning, p=whole))

    def partners(self, actor: int, step: int, *, horizon: int, top: int) -> Ranked[PartnerCandidate]:
        """Whom an actor deals with, under any relation and in either role: of those that it has dealt with before."""
        who, t = torch.tensor([actor]), torch.tensor([step])
        _, partner = self.past.seen(who, t)
        keys = Keys("pair", who.expand_as(partner), torch.zeros_like(partner), partner, t.expand_as(partner))
        p = self.p_event(keys, horizon)
        rows = []
        if len(partner):
            best = best_first(p[None], top)[0]
            given, relation = self.scores(keys.subject[best], partner[best], keys.step[best]).softmax(1).max(1)
            columns = (partner[best].tolist(), p[best].tolist(), given.tolist(), relation.tolist())
            for rank, (other, event, of, directed) in enumerate(zip(*columns, strict=True), 1):
                fact = self.fact(actor, directed, other)
                rows.append(PartnerCandidate(self._name(other), rank, event, *fact, of, self.label(directed)))
        meaning = (
            f"p_event: that the two interact at least once{in_steps(horizon)}, under any relation. "
            "p_given_event: that an event between them is the one shown."
        )
        return Ranked(rows, self._query(keys, (actor, None, None), step, horizon, meaning=meaning, p=None))

    def whether(self, keys: Keys, ids: tuple[int | None, int | None, int | None], *, horizon: int) -> Chance:
        """Whether and when one key occurs next."""
        shown = tuple(sorted({*HORIZONS, horizon}))
        # all at once: the features are read a single time
        survival = self.log_survival(keys, (*shown, *range(1, LONGEST + 1)))[0]
        p, late = -torch.expm1(survival[: len(shown)]), (survival[len(shown) :] <= math.log(0.5)).nonzero()
        median = int(late[0]) + 1 if len(late) else None
        step, clock = int(keys.step), self.names.clock
        within = tuple(
            Within(steps, clock.label(step + steps - 1), chance)
            for steps, chance in zip(shown, p.tolist(), strict=True)
            if clock.holds(step + steps - 1)
        )
        meaning = f"p_event: that it happens at least once{in_steps(horizon)}."
        own = float(p[shown.index(horizon)])
        return Chance(self._query(keys, ids, step, horizon, meaning=meaning, p=own), within, median)

    # ---- names -----------------------------------------------------------------------------------------------------

    def _query(
        self, keys: Keys, ids: Sequence[int | None], step: int, horizon: int, *, meaning: str, p: float | None
    ) -> AheadQuery:
        subject, relation, object_ = ids
        parties = [None if id_ is None else self._name(id_) for id_ in (subject, object_)]
        what = None if relation is None else self.names.relations.names[relation]
        return self.query(keys, (parties[0], what, parties[1]), step, horizon, meaning=meaning, p=p)

    def query(
        self, keys: Keys, names: Sequence[str | None], step: int, horizon: int, *, meaning: str, p: float | None
    ) -> AheadQuery:
        """What was asked, by name, about keys that are events of it."""
        subject, relation, object_ = names
        label, remark = self.names.clock.label, self.heads.note.remark(keys.kind, horizon)
        asked = (keys.kind, keys.subject, keys.relation, keys.object, keys.step)
        before = self.tallies.before(*asked, levels=False).events
        return AheadQuery(
            subject=subject,
            relation=relation,
            object=object_,
            time=label(step),
            until=label(step + horizon - 1),
            step=step,
            horizon=horizon,
            p_event=p,
            past_events=int(before.sum()),
            meaning=meaning,
            remark=f"Calibration of p_event: {remark}." if remark else "",
            relation_label=None if relation is None else self.names.relations.label(relation),
        )

    def _name(self, entity: int) -> str:
        return self.names.entities.names[entity]

    def label(self, directed: int) -> str | None:
        relations = self.names.relations
        return relations.label(relations.names[directed % self.heads.n_relations])

    def fact(self, first: int, directed: int, second: int) -> tuple[str, str, str]:
        """(subject, relation, object) of a directed relation from the first to the second."""
        back, relation = divmod(directed, self.heads.n_relations)
        name = self.names.relations.names[relation]
        one, two = self._name(first), self._name(second)
        return (two, name, one) if back else (one, name, two)


def in_steps(horizon: int) -> str:
    return " in this step" if horizon == 1 else f" within {horizon:,} steps"


def keys_of(kind: Kind, subject: int, relation: int, object: int, step: int) -> Keys:
    """One key in ids."""
    return Keys(kind, *(torch.tensor([value]) for value in (subject, relation, object, step)))

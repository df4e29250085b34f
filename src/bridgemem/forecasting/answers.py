"""Answers: the ranked answers of one query, which print as a table and become a data frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, SupportsIndex, overload

from bridgemem.showing import as_frame, html_table, percent


@dataclass(frozen=True)
class Candidate:
    """A ranked answer: its score is the backbone's log score plus the residual.

    Attributes:
        name: The candidate.
        rank: Place among all candidates, 1 for the best.
        backbone_rank: Place by the backbone alone.
        score: `backbone_score` + `residual`.
        backbone_score: Log score of the backbone.
        residual: What the residual adds.
        p_given_event: Probability that the partner is this one, given that the event happens; for several steps, that
            it occurs at least once in them, given that anybody does. None if the run was not calibrated.

    Example:
        >>> best = model.forecast(0, "consult")[0]
        >>> best.rank, best.score == best.backbone_score + best.residual
        (1, True)
    """

    name: str
    rank: int
    backbone_rank: int
    score: float
    backbone_score: float
    residual: float
    p_given_event: float | None = None


@dataclass(frozen=True)
class Answered:
    """The query that answers belong to: (subject, relation, ?) or (?, relation, object), None on the side asked for.

    relation_label: words for a relation that is a code. time: of the step asked for, or of the first one with a
    horizon, which until is the last of. residual: bridgemem, learned, or None where the backbone alone answers.
    meaning: what p_given_event is the probability of, or why there is none.
    """

    subject: str | None
    relation: str
    relation_label: str | None
    object: str | None
    time: str
    until: str
    step: int
    horizon: int | None
    residual: str | None
    meaning: str

    def __str__(self) -> str:
        when = f"at {self.time}" if self.until == self.time else f"from {self.time} to {self.until}"
        return f"({self.subject or '?'}, {self.relation_label or self.relation}, {self.object or '?'}) {when}"


class Answers(list[Candidate]):
    """The ranked answers of one query, best first: a list of `Candidate` that prints as a table.

    Attributes:
        query: What was asked, with its time and what its probabilities mean.

    Example:
        >>> answers = model.forecast(0, "consult", top=3)
        >>> len(answers), answers[0].rank
        (3, 1)
        >>> answers.query.relation, answers.query.object is None
        ('consult', True)
    """

    def __init__(self, candidates: Iterable[Candidate], query: Answered) -> None:
        super().__init__(candidates)
        self.query = query

    @overload
    def __getitem__(self, place: SupportsIndex) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> Answers: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Candidate | Answers:
        found = super().__getitem__(place)
        return Answers(found, self.query) if isinstance(found, list) else found

    def to_frame(self) -> Any:
        """Make a data frame with one row per answer.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> list(model.forecast(0, "consult").to_frame())[:3]
            ['name', 'rank', 'backbone_rank']
        """
        names = [field.name for field in fields(Candidate)]
        return as_frame({name: [getattr(candidate, name) for candidate in self] for name in names})

    def __repr__(self) -> str:
        best = "" if not self else f"; the first is {self[0].name!r}{_percent(self[0], ', ')}"
        return f"Answers({len(self)} to {self.query}{best})"

    def _repr_html_(self) -> str:
        rows = [(c.rank, c.name, _percent(c), f"{c.score:.2f}", c.backbone_rank) for c in self]
        header = ["rank", "candidate", "p_given_event", "score", "backbone_rank"]
        return html_table(str(self.query), header, rows, self.query.meaning)

    def __str__(self) -> str:
        width = max([len(c.name) for c in self] + [len("candidate")])
        lines = [f"rank  {'candidate':<{width}}  p_given_event   score  backbone_rank"]
        for c in self:
            lines.append(f"{c.rank:>4}  {c.name:<{width}}  {_percent(c):>13}  {c.score:>6.2f}  {c.backbone_rank:>13}")
        return "\n".join(lines)


def _percent(candidate: Candidate, before: str = "") -> str:
    p = candidate.p_given_event
    return "" if p is None else f"{before}{percent(p)}"

"""Explanations: a score in parts that sum to it, and the events they come from.

The paper's residual: A is the log of a mixture, so an event's share of it is its posterior weight: w_ct p_j / sum p +
w_nn alpha_j, with w_ct and w_nn the mixture's two posterior weights. The shares of a state sum to 1; share times
residual is the event's part. The learned residual: exact Shapley values, see attribution.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor

from bridgemem.forecasting.attribution import BETWEEN
from bridgemem.forecasting.reasons import Reason
from bridgemem.showing import as_frame, html_table

BY_EVENTS = "what happened between the two"
BY_NEIGHBOURS = "their common neighbours"


@dataclass(frozen=True)
class EventShare:
    """One remembered event: who did what to whom, when, and its part of the residual.

    share: its part among the parts of all events, each taken as a size. relation_label: words for a relation that is a
    code.
    """

    subject: str
    relation: str
    object: str
    time: str
    lag: int
    direction: int
    share: float
    part: float
    relation_label: str | None = None

    @property
    def shown(self) -> str:
        """The relation for people."""
        return self.relation_label or self.relation

    def __str__(self) -> str:
        return f"{self.subject} - {self.shown} -> {self.object}"


@dataclass(frozen=True)
class AttendedEvent:
    """An event of the actor that the backbone looked at: who did what to whom, when, and its share of the attention.

    added: what it adds to the log score of the actor's partner in it, before scores are normalised.
    """

    subject: str
    relation: str
    object: str
    time: str
    lag: int
    attention: float
    added: float


@dataclass(frozen=True)
class Explanation:
    """Why a candidate has its rank: plain sentences about the past, and the exact parts of its score.

    Attributes:
        actor: The given side of the query.
        relation: Of the query.
        candidate: The candidate that is explained.
        time: Of the query.
        inverse: Whether the candidate is the subject.
        base: Log score of the backbone, normalised or not.
        uncertainty: Of the backbone, which opens the gate.
        residual: What the residual adds.
        score: `base` + `residual`.
        rank: Place with the residual, 1 for the best.
        backbone_rank: Place without it.
        events: The remembered events of the pair; their parts sum to the residual.
        reasons: What happened before, as sentences that count events.
        unread: Number of events of the pair under relations that came after the fit; they are no part of the score.
        attended: Past events that a backbone with attention attended to most.
        relation_label: Words for a relation that is a code.

    Example:
        >>> why = model.explain(0, "consult", 1)
        >>> abs(why.score - why.base - why.residual) < 1e-6
        True
    """

    actor: str
    relation: str
    candidate: str
    time: str
    inverse: bool
    base: float
    uncertainty: float
    residual: float
    score: float
    rank: int
    backbone_rank: int
    events: tuple[EventShare, ...]
    reasons: tuple[Reason, ...] = field(default=(), kw_only=True)
    unread: int = field(default=0, kw_only=True)
    attended: tuple[AttendedEvent, ...] = field(default=(), kw_only=True)
    relation_label: str | None = field(default=None, kw_only=True)
    residual_name: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, as `bridgemem explain --json` prints it.

        Returns:
            The attributes, with headline and sentence; `candidate` is the side that is explained.

        Example:
            >>> model.explain(0, "consult", 1).as_dict()["candidate"]
            'object'
        """
        values = asdict(self)
        actor, candidate, inverse = (values.pop(name) for name in ("actor", "candidate", "inverse"))
        subject, object_ = (candidate, actor) if inverse else (actor, candidate)
        query = {"subject": subject, "relation": values.pop("relation"), "object": object_}
        said = {"headline": self.headline(), "reasons": values.pop("reasons"), "sentence": self.sentence()}
        named = {**said, "residual_name": self.residual_name}
        return {**named, **query, "candidate": "subject" if inverse else "object", **values}

    def cause(self) -> EventShare | None:
        """Find the remembered event that adds most to the score.

        Returns:
            The event with its share and its part; None if no event adds anything.

        Example:
            >>> cause = model.explain(0, "consult", 1).cause()
            >>> cause is None or cause.part > 0
            True
        """
        main = max(self.events, key=lambda e: e.part, default=None)
        return main if main is not None and main.part > 0 else None

    def query(self) -> str:
        """Write the query, with ? on the side that is asked.

        Returns:
            The query as text.

        Example:
            >>> model.explain(0, "consult", 1).query() == f"({data.entities[0]}, consult, ?)"
            True
        """
        relation = self.relation_label or self.relation
        return f"({'?' if self.inverse else self.actor}, {relation}, {self.actor if self.inverse else '?'})"

    def headline(self) -> str:
        """Tell the rank of the candidate, with and without the residual.

        Returns:
            One sentence.

        Example:
            >>> model.explain(0, "consult", 1).headline().startswith(f"{data.entities[1]} ranks")
            True
        """
        moved = "as by the backbone alone"
        if self.rank != self.backbone_rank:
            way = "up" if self.rank < self.backbone_rank else "down"
            moved = f"{way} from {ordinal(self.backbone_rank)} by the backbone alone"
        return f"{self.candidate} ranks {ordinal(self.rank)} for {self.query()} at {self.time}, {moved}."

    def sentence(self) -> str:
        """Tell what the score is made of, with its figures.

        Returns:
            One sentence.

        Raises:
            NotImplementedError: Only the explanation of a residual has figures.

        Example:
            >>> model.explain(0, "consult", 1).sentence().startswith(f"For ({data.entities[0]}, consult, ?)")
            True
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join([self.headline(), *(f"- {reason}" for reason in self.reasons)])

    def __repr__(self) -> str:
        parts = f"score {self.score:.3f} = {self.base:.3f} {self.residual:+.3f}"
        return f"{type(self).__name__}({self.candidate!r} for {self.query()} at {self.time}: {parts})"

    def _repr_html_(self) -> str:
        rows = [(str(e), e.time, e.lag, f"{e.share:.1%}", f"{e.part:+.4f}") for e in self.events]
        said = " ".join([self.headline(), *map(str, self.reasons)])
        return html_table(said, ["event", "when", "lag", "share", "part"], rows)

    def to_frame(self) -> Any:
        """Make a data frame of the remembered events and their parts.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> list(model.explain(0, "consult", 1).to_frame())[:4]
            ['subject', 'relation', 'object', 'time']
        """
        names = [one.name for one in fields(EventShare)]
        return as_frame({name: [getattr(event, name) for event in self.events] for name in names})

    def _why_unseen(self, why: str) -> str:
        """Why no event between the two counts: as given, unless there are some that the run cannot read."""
        if not self.unread:
            return why
        some = "the one event" if self.unread == 1 else f"the {self.unread:,} events"
        return f"before `bridgemem refresh` the run cannot read {some} of the two under relations that are new to it"


@dataclass(frozen=True, repr=False)
class BridgeMemExplanation(Explanation):
    """residual = lambda * gate * A, and the events' parts sum to the residual.

    likelier: how many times as likely as on average the relation is after such events. It is not e^A, since A_ct sums
    over the events: many that say nothing would count as many times. forgotten: how many steps before the pair's last
    event was where all of them are older than the memory's window; else 0.
    """

    residual_name: ClassVar[str] = "bridgemem"
    gate: float
    lam: float
    tau: float
    a_ct: float
    a_nn: float
    rho: float
    a: float
    likelier: float
    forgotten: int = 0

    def sentence(self) -> str:
        head = (
            f"For {self.query()} at {self.time}, {self.candidate} scores {self.score:.3f}: {self.base:.3f} by the "
            "backbone"
        )
        if not self.lam:
            why = "the residual is off: validation chose so, or the run was fitted without this relation"
            return f"{head}, and nothing more, since {why}."
        if not self.events:
            why = "the two have no remembered event"
            if self.forgotten:
                why = (
                    f"the last event of the two was {steps(self.forgotten)} before, longer ago than the run looks back"
                )
            return f"{head}, and nothing more, since {self._why_unseen(why)}."
        main = max(self.events, key=lambda e: e.share)
        return (
            f"{head} and {self.residual:+.3f} from the pair's own past (gate {self.gate:.2f}): "
            f"{self._weighed()}, {main.share:.0%} of it because {main.subject} did '{main.shown}' to {main.object} "
            f"{steps(main.lag)} before."
        )

    def _weighed(self) -> str:
        """What the events say of the relation, in words: e^A."""
        ratio = math.exp(self.a)
        if math.isclose(ratio, self.likelier, rel_tol=1e-6):
            return f"after what happened between them this relation is {ratio:.3g} times as likely as on average"
        count = len(self.events)
        return f"its chances after each of their {count} remembered events add up to {ratio:.3g} times the average"


@dataclass(frozen=True)
class EarlierEvents:
    """The events of a pair before those that are listed one by one, with their common part."""

    count: int
    first: str
    last: str
    share: float
    part: float


@dataclass(frozen=True)
class ThirdParty:
    """A common neighbour of actor and candidate, with its share of all."""

    name: str
    share: float


@dataclass(frozen=True, repr=False)
class LearnedExplanation(Explanation):
    """residual = start + the groups' parts, all of them f / w; 0 and no groups for a candidate that is not read.

    log_p0: the base normalised over all candidates, which is what the network reads. scale: w. start: f / w with every
    group at its mean, so that it knows the relation alone. apart: the groups' parts less those of the average candidate
    that is read, which is what moves ranks.
    between: the parts of the groups that read the pair's own events = unseen_pair + the events' parts + the earlier
    ones'. seen: whether there are such events; unseen_candidates: how many others are read.
    """

    residual_name: ClassVar[str] = "learned"
    log_p0: float
    scale: float
    seen: bool
    unseen_candidates: int
    start: float
    groups: dict[str, float]
    apart: dict[str, float]
    between: float
    unseen_pair: float
    earlier: EarlierEvents | None
    common_neighbours: tuple[ThirdParty, ...]

    def sentence(self) -> str:
        moved = "as before"
        if self.rank != self.backbone_rank:
            moved = f"{'up' if self.rank < self.backbone_rank else 'down'} from {ordinal(self.backbone_rank)}"
        ranked = f"the learned residual ranks {self.candidate} {ordinal(self.rank)}, {moved}"
        head = f"For {self.query()} at {self.time} {ranked}"
        if self.groups:
            return f"{head}{self._why()}.{'' if self.seen else self._unseen_candidates()}"
        others = (
            f"it is not among the {self.unseen_candidates} unseen candidates that are"
            if self.unseen_candidates
            else "unseen candidates are not"
        )
        why = self._why_unseen("the two never interacted")
        return f"{head}: it keeps the backbone's score, since {why} and {others} read."

    def _why(self) -> str:
        """What sets the candidate apart most, in the direction that it moved."""
        in_all, moved = sum(self.apart.values()), self.rank != self.backbone_rank
        up = self.rank < self.backbone_rank if moved else in_all >= 0
        sign = 1 if up else -1
        reason, value = max(self._reasons().items(), key=lambda r: sign * r[1])
        if sign * value <= 0:
            # who rises with a smaller correction than most has passed those that fell
            return f", only because others {'lose' if up else 'gain'} more" if moved else ""
        link = ", mostly because of" if moved else f"; what speaks most {'for' if up else 'against'} it is"
        detail = self._main_event(sign) if reason == BY_EVENTS else self._through() if reason == BY_NEIGHBOURS else ""
        return f"{link} {reason} ({value:+.2f} relative to the average candidate, {in_all:+.2f} in all){detail}"

    def _reasons(self) -> dict[str, float]:
        """What may set the candidate apart from others, and by how much; together all of it."""
        return {
            BY_EVENTS if self.seen else "what is expected of unseen pairs": sum(self.apart[group] for group in BETWEEN),
            "how sure the backbone is of it": self.apart["backbone"],
            f"how active {self.candidate} is": self.apart["candidate"],
            f"how active {self.actor} is": self.apart["actor"],
            BY_NEIGHBOURS if self.common_neighbours else "their having no common neighbours": self.apart[
                "common_neighbours"
            ],
            "how common the relation is": self.apart["relation"],
        }

    def _main_event(self, sign: int) -> str:
        """The event with the largest part in one direction, if any has."""
        main = max(self.events, key=lambda e: sign * e.part)
        if self.earlier is not None and sign * self.earlier.part > max(0.0, sign * main.part):
            count = self.earlier.count
            many = "earlier event" if count == 1 else f"{count:,} earlier events"
            return f", above all their {many} ({self.earlier.part:+.2f})"
        if sign * main.part <= 0:
            return ""
        return (
            f", above all that {main.subject} did '{main.shown}' to {main.object} {steps(main.lag)} before "
            f"({main.part:+.2f})"
        )

    def _through(self) -> str:
        """The third parties that stand out, where the words of an unseen pair do not name them anyway."""
        return f", above all with {self._common_neighbours()}" if self.seen else ""

    def _unseen_candidates(self) -> str:
        unseen = self._why_unseen("the two never interacted")
        through = f"; common neighbours: {self._common_neighbours()}" if self.common_neighbours else ""
        return f" {unseen[0].upper()}{unseen[1:]}{through}."

    def _common_neighbours(self) -> str:
        return " and ".join(party.name for party in self.common_neighbours[:2])


def steps(n: int) -> str:
    return f"{n:,} step" if n == 1 else f"{n:,} steps"


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, ... 11th, ... 21st"""
    ending = "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def rank_of(scores: Tensor, candidate: int) -> int:
    """1 + how many score higher; scores float [E]."""
    return int((scores > scores[candidate]).sum()) + 1

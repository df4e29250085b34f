"""Explain: a forecast taken apart into parts that sum to its score, and the events they come from.

The paper's residual: A is the log of a mixture, so an event's share of it is its posterior weight: w_ct p_j / sum p +
w_nn alpha_j, with w_ct and w_nn the mixture's two posterior weights. The shares of a state sum to 1; share times
residual is the event's part. The learned residual: exact Shapley values, see attribution.py.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from bridgemem.equations import mixture
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import gate
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.attribution import (
    BETWEEN,
    LISTED,
    EventParts,
    GroupParts,
    double,
    event_parts,
    group_parts,
    third_parties,
)
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past
from bridgemem.numerics import by_candidates
from bridgemem.residuals.scoring import Scored, Scoring
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
    """score = base + residual; base is the backbone's log score as it came, normalised or not.

    unread: how many events between the two are of relations that the run was not fitted on, and no part of this.
    attended: the events of the actor that a backbone with attention looked at most.
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
    events: tuple[EventShare, ...]
    unread: int = field(default=0, kw_only=True)
    attended: tuple[AttendedEvent, ...] = field(default=(), kw_only=True)
    relation_label: str | None = field(default=None, kw_only=True)
    residual_name: ClassVar[str]

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, with the sentence; `candidate` names the side that is explained."""
        values = asdict(self)
        actor, candidate, inverse = (values.pop(name) for name in ("actor", "candidate", "inverse"))
        subject, object_ = (candidate, actor) if inverse else (actor, candidate)
        query = {"subject": subject, "relation": values.pop("relation"), "object": object_}
        named = {"sentence": self.sentence(), "residual_name": self.residual_name}
        return {**named, **query, "candidate": "subject" if inverse else "object", **values}

    def query(self) -> str:
        relation = self.relation_label or self.relation
        return f"({'?' if self.inverse else self.actor}, {relation}, {self.actor if self.inverse else '?'})"

    def sentence(self) -> str:
        """The forecast's reason in plain words."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.sentence()

    def __repr__(self) -> str:
        parts = f"score {self.score:.3f} = {self.base:.3f} {self.residual:+.3f}"
        return f"{type(self).__name__}({self.candidate!r} for {self.query()} at {self.time}: {parts})"

    def _repr_html_(self) -> str:
        rows = [(str(e), e.time, e.lag, f"{e.share:.1%}", f"{e.part:+.4f}") for e in self.events]
        return html_table(self.sentence(), ["event", "when", "lag", "share", "part"], rows)

    def to_frame(self) -> Any:
        """A pandas data frame of the events and their parts; a dict of columns where pandas is not installed."""
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
            f"{head} and {self.residual:+.3f} from the pair's own past (admitted at {self.gate:.0%}): "
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

    rank, backbone_rank: after and before the residual. log_p0: the base normalised over all candidates, which is what
    the network reads. scale: w. start: f / w with every group at its mean, so that it knows the relation alone.
    apart: the groups' parts less those of the average candidate that is read, which is what moves ranks.
    between: the parts of the groups that read the pair's own events = unseen_pair + the events' parts + the earlier
    ones'. seen: whether there are such events; unseen_candidates: how many others are read.
    """

    residual_name: ClassVar[str] = "learned"
    rank: int
    backbone_rank: int
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


def attended_events(query: Queries, scoring: Scoring, events: EventLog) -> tuple[AttendedEvent, ...]:
    """The events that the backbone looked at most for a single query, most first."""
    found = scoring.backbone.attended(query, scoring.past)
    if found is None:
        return ()
    actor, now, names = int(query.actor), int(query.step), events.entities.names
    best = found.attention.argsort(descending=True, stable=True)[:LISTED]
    columns = (found.relation, found.partner, found.lag, found.attention, found.added)
    made = []
    for directed, partner, lag, share, added in zip(*(column[best].tolist() for column in columns), strict=True):
        inverse, relation = divmod(directed, events.n_relations)
        sides = (names[partner], names[actor]) if inverse else (names[actor], names[partner])
        what, when = events.relations.names[relation], events.clock.label(now - lag)
        made.append(AttendedEvent(sides[0], what, sides[1], when, lag, share, added))
    return tuple(made)


def steps(n: int) -> str:
    return f"{n:,} step" if n == 1 else f"{n:,} steps"


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, ... 11th, ... 21st"""
    ending = "th" if 10 < n % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def rank_of(scores: Tensor, candidate: int) -> int:
    """1 + how many score higher; scores float [E]."""
    return int((scores > scores[candidate]).sum()) + 1


def explain_bridgemem(scored: Scored, candidate: int, *, events: EventLog, scoring: Scoring) -> BridgeMemExplanation:
    """Why the paper's residual gives one candidate of one query its score; without transitions it gives none."""
    query, scores, evidence = scored.queries, scored.scores, scored.evidence
    (choice,), transitions, past = scoring.choices, scoring.transitions, scoring.past
    assert scores.uncertainty is not None
    base = float(scored.base[0, candidate])
    u = scores.uncertainty
    admitted = gate(choice.gate, u, scores.of_candidates)
    place: list[int] = []
    if evidence is not None:
        place = (evidence.candidate == candidate).nonzero().flatten().tolist()
    actor, asked, now = int(query.actor), int(query.relation), int(query.step)
    inverse, relation = divmod(asked, events.n_relations)
    a_ct = a_nn = a = residual = 0.0
    rho = likelier = 1.0
    shares: tuple[EventShare, ...] = ()
    if transitions is not None and evidence is not None and place:
        one = slice(place[0], place[0] + 1)
        # without shrinkage both readers count half, which is what a support equal to tau gives
        support, tau = evidence.support[one], choice.tau
        if not choice.shrinkage:
            support, tau = torch.ones_like(support), 1.0
        mixed = mixture(evidence.a_ct[one], evidence.a_nn[one], support, tau)
        a_ct, a_nn, a = (float(x[0]) for x in (evidence.a_ct[one], evidence.a_nn[one], mixed))
        rho = _rho(float(support[0]), tau)
        likelier = _likelier(transitions, evidence.tokens[one], a_ct, a_nn, rho)
        residual = float(scored.delta[place[0], 1])
        weights = _event_weights(transitions, evidence.tokens[one], asked, a_ct, a_nn, a, rho)
        shares = _shares(events, past, transitions, actor, candidate, now, weights, residual)
    return BridgeMemExplanation(
        actor=events.entities.names[actor],
        relation=events.relations.names[relation],
        relation_label=events.relations.label(events.relations.names[relation]),
        candidate=events.entities.names[candidate],
        time=events.clock.label(now),
        inverse=bool(inverse),
        base=base,
        uncertainty=float(u[0]),
        gate=float(admitted[0]),
        lam=choice.lam,
        tau=choice.tau,
        a_ct=a_ct,
        a_nn=a_nn,
        rho=rho,
        a=a,
        likelier=likelier,
        residual=residual,
        score=base + residual,
        events=shares,
        forgotten=0 if place or transitions is None else _last_lag(past, actor, candidate, now),
    )


def _last_lag(past: Past, actor: int, candidate: int, now: int) -> int:
    """How many steps before the last event of a pair was, however long ago; 0 where there is none."""
    last = PairEvents.of(past, actor, candidate, now, most=1)
    return now - int(last.step[0]) if len(last) else 0


def _likelier(transitions: Transitions, tokens: Tensor, a_ct: float, a_nn: float, rho: float) -> float:
    """The mixture of both readers' ratios, that of the counts as a mean over the events; tokens int64 [1, K]."""
    summed = transitions.settings.pooling == "sum"
    events = int((tokens != transitions.space.pad).sum()) if summed else 1
    return (1 - rho) * math.exp(a_ct) / events + rho * math.exp(a_nn)


def _rho(support: float, tau: float) -> float:
    return 1.0 if math.isinf(tau) else tau / (support + tau) if tau else 0.0


def _event_weights(
    transitions: Transitions, tokens: Tensor, asked: int, a_ct: float, a_nn: float, a: float, rho: float
) -> list[float]:
    """The posterior weight of each event of one state, tokens int64 [1, K]; they sum to 1."""
    p = transitions.p_ct[tokens[0], asked]
    alpha = transitions.reader.attention_weights(tokens)[0].double()
    w_ct = (1 - rho) * math.exp(a_ct - a)
    w_nn = rho * math.exp(a_nn - a)
    weights = w_ct * p / p.sum() + w_nn * alpha / alpha.sum()
    return (weights / weights.sum()).tolist()


def _shares(
    events: EventLog,
    past: Past,
    transitions: Transitions,
    actor: int,
    candidate: int,
    now: int,
    weights: list[float],
    residual: float,
) -> tuple[EventShare, ...]:
    s = transitions.settings
    step = torch.tensor([now])
    state = past.dyads.read(torch.tensor([actor]), torch.tensor([candidate]), step, s.k, s.window, past.cut(step))
    return tuple(
        _event(
            events,
            (actor, candidate),
            now,
            (int(state.relation[0, j]), int(state.direction[0, j]), int(state.lag[0, j])),
            weights[j],
            weights[j] * residual,
        )
        for j in range(int(state.found[0].sum()))
    )


def _event(
    events: EventLog, pair: tuple[int, int], now: int, what: tuple[int, int, int], share: float, part: float
) -> EventShare:
    """An event in words; pair: actor and candidate, what: relation, direction and lag."""
    relation, direction, lag = what
    subject, object_ = (events.entities.names[party] for party in (pair[::-1] if direction else pair))
    time = events.clock.label(now - lag)
    name = events.relations.names[relation]
    label = events.relations.label(name)
    return EventShare(subject, name, object_, time, lag, direction, share, part, label)


def explain_learned(scored: Scored, candidate: int, *, events: EventLog, scoring: Scoring) -> LearnedExplanation:
    """Why the learned residual gives one candidate of one query its score."""
    query, scores, found, reader = scored.queries, scored.scores, scored.features, scoring.reader
    learned = double(scoring.learned[0])
    assert scores.uncertainty is not None
    assert found is not None
    actor, asked, now = int(query.actor), int(query.relation), int(query.step)
    inverse, relation = divmod(asked, events.n_relations)
    base = scored.base[0]
    pair = PairEvents.of(reader.past, actor, candidate, now)
    parts, between, common_neighbours = (
        GroupParts(0.0, {}, {}, 0.0),
        EventParts(0.0, (), 0.0, 0, 0.0),
        dict[int, float](),
    )
    place = (found.candidate == candidate).nonzero().flatten()
    if len(place):
        x = found.x[place[0]].double()
        total = float(scored.delta[place[0], 1])
        parts = group_parts(learned, x, found.x.double(), asked, total)
        between = event_parts(learned, reader, query, candidate, x, pair)
        common_neighbours = third_parties(reader.neighbours, actor, candidate, int(reader.past.cut(query.step)))
    listed, earlier = _between_in_words(events, (actor, candidate), now, pair, between)
    return LearnedExplanation(
        actor=events.entities.names[actor],
        relation=events.relations.names[relation],
        relation_label=events.relations.label(events.relations.names[relation]),
        candidate=events.entities.names[candidate],
        time=events.clock.label(now),
        inverse=bool(inverse),
        base=float(base[candidate]),
        uncertainty=float(scores.uncertainty[0]),
        residual=parts.total,
        score=float(base[candidate]) + parts.total,
        events=listed,
        rank=rank_of(scored.total()[0], candidate),
        backbone_rank=rank_of(base, candidate),
        log_p0=float(by_candidates(lambda own: own.log_softmax(1), base[None], -math.inf)[0, candidate]),
        scale=float(learned.net.scale.detach()),
        seen=len(pair) > 0,
        unseen_candidates=learned.settings.unseen_candidates,
        start=parts.start,
        groups=parts.groups,
        apart=parts.apart,
        between=between.total,
        unseen_pair=between.unseen_pair,
        earlier=earlier,
        common_neighbours=tuple(
            ThirdParty(events.entities.names[party], share) for party, share in common_neighbours.items()
        ),
    )


def _between_in_words(
    events: EventLog, parties: tuple[int, int], now: int, pair: PairEvents, parts: EventParts
) -> tuple[tuple[EventShare, ...], EarlierEvents | None]:
    """The events that have a part of their own, and what the earlier ones have in common."""
    moved = sum(map(abs, (*parts.listed, parts.earlier)))

    def share(part: float) -> float:
        return abs(part) / moved if moved else 0.0

    once = pair.once()
    rows = zip(once.relation.tolist(), once.direction.tolist(), (now - once.step).tolist(), strict=True)
    listed = [
        _event(events, parties, now, what, share(part), part) for what, part in zip(rows, parts.listed, strict=False)
    ]
    if not parts.n_earlier:
        return tuple(listed), None
    steps_before = once.step[LISTED:]
    first, last = (events.clock.label(int(step)) for step in (steps_before[-1], steps_before[0]))
    return tuple(listed), EarlierEvents(parts.n_earlier, first, last, share(parts.earlier), parts.earlier)

"""Explaining: how the explanation of a candidate is made from what was scored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bridgemem.equations import mixture
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import gate
from bridgemem.evidence.transitions import Transitions
from bridgemem.forecasting.attribution import (
    LISTED,
    EventParts,
    GroupParts,
    double,
    event_parts,
    group_parts,
    third_parties,
)
from bridgemem.forecasting.explanations import (
    AttendedEvent,
    BridgeMemExplanation,
    EarlierEvents,
    EventShare,
    LearnedExplanation,
    ThirdParty,
    rank_of,
)
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past
from bridgemem.numerics import by_candidates
from bridgemem.residuals.scoring import Scored, Scoring


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
        rank=rank_of(scored.total()[0], candidate),
        backbone_rank=rank_of(scored.base[0], candidate),
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

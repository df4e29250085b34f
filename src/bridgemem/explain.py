"""Explain: a forecast taken apart into parts that sum to its score, and the events behind them.

A is the log of a mixture, so an event's share of it is its posterior weight: w_ct p_j / sum p + w_nn alpha_j, with w_ct
and w_nn the mixture's two posterior weights. The shares of a state sum to 1; share times residual is the event's part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bridgemem.backbones.base import Backbone, score_queries
from bridgemem.backbones.history import History
from bridgemem.evaluation.queries import Queries
from bridgemem.evaluation.replay import Choice
from bridgemem.events.log import EventLog
from bridgemem.evidence.gate import gate
from bridgemem.evidence.transitions import Transitions
from bridgemem.residual import correction, mixture


@dataclass(frozen=True)
class EventShare:
    """One remembered event: who did what to whom, when, and its part of the residual."""

    subject: str
    relation: str
    object: str
    time: str
    lag: int
    direction: int
    share: float
    part: float


@dataclass(frozen=True)
class Explanation:
    """score = base + residual, residual = lambda * gate * A, and the events' parts sum to the residual."""

    actor: str
    relation: str
    candidate: str
    time: str
    inverse: bool
    base: float
    uncertainty: float
    gate: float
    lam: float
    tau: float
    a_ct: float
    a_nn: float
    rho: float
    a: float
    residual: float
    score: float
    events: tuple[EventShare, ...]

    def sentence(self) -> str:
        """The forecast's reason in plain words."""
        asked = f"({'?' if self.inverse else self.actor}, {self.relation}, {self.actor if self.inverse else '?'})"
        head = f"For {asked} at {self.time}, {self.candidate} scores {self.score:.3f}: {self.base:.3f} by the backbone"
        if not self.events:
            return f"{head}, and nothing more, since the two have no remembered event."
        if not self.lam:
            return f"{head}, and nothing more, since validation left the residual off."
        main = max(self.events, key=lambda e: e.share)
        factor = math.exp(self.a)
        steps = "step" if main.lag == 1 else "steps"
        return (
            f"{head} and {self.residual:+.3f} from the pair's own past. What happened between them makes this relation "
            f"{factor:.3g} times as likely as it is on average (admitted at {self.gate:.0%}), mostly because "
            f"{main.subject} did '{main.relation}' to {main.object} {main.lag} {steps} before ({main.share:.0%} of it)."
        )


def take_apart(
    query: Queries,
    candidate: int,
    events: EventLog,
    backbone: Backbone,
    transitions: Transitions,
    choice: Choice,
    past: History,
) -> Explanation:
    """The explanation of one candidate of one query."""
    scores = score_queries(backbone, query, past)
    assert scores.uncertainty is not None
    base = float(scores.log_p[0, candidate].double())
    u = scores.uncertainty
    g = float(gate(choice.gate, u)[0])
    evidence = transitions.evidence(query, past)
    place = (evidence.candidate == candidate).nonzero().flatten().tolist()
    actor, asked, now = int(query.actor), int(query.relation), int(query.step)
    inverse, relation = divmod(asked, events.n_relations)
    a_ct = a_nn = a = residual = 0.0
    rho = 1.0
    shares: tuple[EventShare, ...] = ()
    if place:
        one = slice(place[0], place[0] + 1)
        # without shrinkage both readers count half, which is what a support equal to tau gives
        support, tau = evidence.support[one], choice.tau
        if not choice.shrinkage:
            support, tau = torch.ones_like(support), 1.0
        mixed = mixture(evidence.a_ct[one], evidence.a_nn[one], support, tau)
        a_ct, a_nn, a = (float(x[0]) for x in (evidence.a_ct[one], evidence.a_nn[one], mixed))
        rho = _rho(float(support[0]), tau)
        residual = float(correction(mixed, gate(choice.gate, u), choice.lam)[0])
        weights = _event_weights(transitions, evidence.tokens[one], asked, a_ct, a_nn, a, rho)
        shares = _shares(events, past, transitions, actor, candidate, now, weights, residual)
    return Explanation(
        actor=events.entities.names[actor],
        relation=events.relations.names[relation],
        candidate=events.entities.names[candidate],
        time=events.clock.label(now),
        inverse=bool(inverse),
        base=base,
        uncertainty=float(u[0]),
        gate=g,
        lam=choice.lam,
        tau=choice.tau,
        a_ct=a_ct,
        a_nn=a_nn,
        rho=rho,
        a=a,
        residual=residual,
        score=base + residual,
        events=shares,
    )


def _rho(support: float, tau: float) -> float:
    return 1.0 if math.isinf(tau) else tau / (support + tau) if tau else 0.0


def _event_weights(
    transitions: Transitions, tokens: torch.Tensor, asked: int, a_ct: float, a_nn: float, a: float, rho: float
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
    past: History,
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
    names, rows = events.entities.names, []
    for j in range(int(state.found[0].sum())):
        reverse, lag = int(state.direction[0, j]), int(state.lag[0, j])
        subject, object_ = (candidate, actor) if reverse else (actor, candidate)
        relation = events.relations.names[int(state.relation[0, j])]
        time = events.clock.label(now - lag)
        share = weights[j]
        rows.append(EventShare(names[subject], relation, names[object_], time, lag, reverse, share, share * residual))
    return tuple(rows)

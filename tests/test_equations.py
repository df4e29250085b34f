"""The method: Equations 1 to 5 equal a slow reference that starts from the raw events of one pair."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.backbones.scorer import Scores
from bridgemem.config import Settings
from bridgemem.equations import correction, count_evidence, log_base, memory_state, mixture
from bridgemem.events.queries import Queries
from bridgemem.evidence.examples import mine
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.residuals.scoring import Choice, corrections
from builders import few, random_log, random_transitions, rows_of, token_parts
from precision import close

SETTINGS = Settings(k=4, window=20, bins=(1, 4, 16), width=4, hidden=5)


def reference(events, now, asked, p0, u, lam, tau, settings, prior, examples, w):
    """log S of one candidate by Equations 1 to 5, in plain Python, and its parts A_ct, A_nn, n_B.

    events: the pair's (relation, direction, step) in total order. examples: (tokens, target) of the fitted prefix, a
    token being (direction, relation, bin). w: the reader's weights as nested lists.
    """

    def bin_of(lag):
        return sum(lag > edge for edge in settings.bins)

    def dot(a, b):
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    past = [(d, r, now - t) for r, d, t in events if t < now and now - t <= settings.window]
    B = [(d, r, bin_of(lag)) for d, r, lag in past[::-1][: settings.k]]
    # 1: attention over the events
    z = [[sum(x) for x in zip(w["relation"][r], w["direction"][d], w["recency"][b], strict=True)] for d, r, b in B]
    salience = [math.exp(dot(w["attention"][0], [math.tanh(x) for x in zj]) + w["attention_bias"][0]) for zj in z]
    m = [
        math.fsum(s * zj[i] for s, zj in zip(salience, z, strict=True)) / math.fsum(salience) for i in range(len(z[0]))
    ]
    # 2: layer norm, one hidden layer, and the prior in the softmax
    mean = math.fsum(m) / len(m)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in m) / len(m) + 1e-5)
    normed = [(x - mean) / spread * g + b for x, g, b in zip(m, w["gain"], w["shift"], strict=True)]
    hidden = [dot(row, normed) + b for row, b in zip(w["inner"], w["inner_bias"], strict=True)]
    hidden = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in hidden]
    logits = [dot(row, hidden) + b + math.log(p) for row, b, p in zip(w["outer"], w["outer_bias"], prior, strict=True)]
    A_nn = logits[asked] - math.log(math.fsum(math.exp(x) for x in logits)) - math.log(prior[asked])
    # 3: smoothed transition counts, summed over the events
    followed = {token: [target for tokens, target in examples for t in tokens if t == token] for token in B}
    p_ct = [
        (followed[x].count(asked) + settings.smoothing * prior[asked]) / (len(followed[x]) + settings.smoothing)
        for x in B
    ]
    A_ct = math.log(math.fsum(p_ct)) - math.log(prior[asked])
    # 4: the less support, the more the reader counts
    n_B = sum(len(followed[x]) for x in B)
    rho = tau / (n_B + tau)
    A = math.log((1 - rho) * math.exp(A_ct) + rho * math.exp(A_nn))
    # 5: gated correction of the base score
    return math.log(max(p0, 1e-12)) + lam * 4 * u * (1 - u) * A, A_ct, A_nn, n_B


def weights(transitions: Transitions) -> dict:
    r = transitions.reader
    named = {
        "relation": r.relation.weight,
        "direction": r.direction.weight,
        "recency": r.recency.weight,
        "attention": r.attention.weight,
        "attention_bias": r.attention.bias,
        "gain": r.head[0].weight,
        "shift": r.head[0].bias,
        "inner": r.head[1].weight,
        "inner_bias": r.head[1].bias,
        "outer": r.head[3].weight,
        "outer_bias": r.head[3].bias,
    }
    return {name: value.tolist() for name, value in named.items()}


def plain_examples(transitions: Transitions, events) -> list:
    mined = mine(events, transitions.space, transitions.settings)
    parts = token_parts(transitions.space)
    return [
        ([parts[t] for t in tokens if t != transitions.space.pad], target)
        for tokens, target in zip(mined.tokens.tolist(), mined.target.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("precision", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_method_equals_the_slow_reference(precision, tolerance, seed):
    events = random_log(seed, n=90, n_entities=6, n_relations=3, steps=60)
    transitions = random_transitions(events.prefix(45), SETTINGS, seed)
    transitions.reader.to(precision)
    transitions.reader.log_prior = transitions.log_pi.to(precision)
    prior = transitions.log_pi.exp().tolist()
    examples, w = plain_examples(transitions, events.prefix(45)), weights(transitions)
    queries = Queries.of(events.between(45, 60))
    evidence = transitions.evidence(queries, Past(events))
    assert len(evidence.row) > 100
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(len(queries), generator=generator, dtype=torch.float64)
    p0 = torch.rand(len(queries), events.n_entities, generator=generator, dtype=torch.float64) * 1e-11
    choice = Choice(lam=2.0, gate="uncertain", tau=30.0)
    delta = corrections(evidence, Scores(p0, u), [choice])[:, 1]
    for i, (row, c) in enumerate(zip(evidence.row.tolist(), evidence.candidate.tolist(), strict=True)):
        a, asked, now = (int(x[row]) for x in (queries.actor, queries.relation, queries.step))
        of_pair = [
            (r, d, t) for s, r, o, t in rows_of(events) for d, ends in ((0, (s, o)), (1, (o, s))) if ends == (a, c)
        ]
        score, A_ct, A_nn, n_B = reference(
            of_pair, now, asked, float(p0[row, c]), float(u[row]), 2.0, 30.0, SETTINGS, prior, examples, w
        )
        assert float(evidence.support[i]) == n_B
        assert float(evidence.a_ct[i]) == pytest.approx(A_ct, abs=1e-9)
        assert float(evidence.a_nn[i]) == pytest.approx(A_nn, abs=tolerance)
        assert float(log_base(p0[row, c]) + delta[i]) == pytest.approx(score, abs=2 * tolerance)


finite = st.floats(-8, 8)


@few
@given(a_ct=finite, a_nn=finite, support=st.floats(0, 1e6), tau=st.floats(0.01, 1e4))
def test_the_mixture_lies_between_its_parts_and_leans_by_support(a_ct, a_nn, support, tau):
    parts = [torch.tensor([x], dtype=torch.float64) for x in (a_ct, a_nn, support)]
    mixed = float(mixture(*parts, tau))
    assert min(a_ct, a_nn) - 1e-9 <= mixed <= max(a_ct, a_nn) + 1e-9
    rho = tau / (support + tau)
    assert mixed == pytest.approx(math.log((1 - rho) * math.exp(a_ct) + rho * math.exp(a_nn)), abs=1e-9)


def test_the_limits_of_tau_are_the_two_readers():
    a_ct, a_nn = torch.tensor([1.5, -0.3, 2.0]).double(), torch.tensor([-1.0, 0.7, 0.5]).double()
    support = torch.tensor([0.0, 12.0, 9e5]).double()
    assert torch.equal(mixture(a_ct, a_nn, support, 0.0), a_ct)
    assert torch.equal(mixture(a_ct, a_nn, support, math.inf), a_nn)
    some = support > 0
    assert close(mixture(a_ct, a_nn, support, 1e-12)[some], a_ct[some])
    assert close(mixture(a_ct, a_nn, support, 1e15), a_nn)
    assert torch.equal(mixture(a_ct, a_nn, support, 30.0)[~some], a_nn[~some]), (
        "without support the reader speaks alone"
    )


def test_the_base_log_has_a_floor():
    p0 = torch.tensor([0.0, 1e-30, 1e-12, 0.25], dtype=torch.float64)
    assert log_base(p0).tolist() == pytest.approx([math.log(1e-12)] * 3 + [math.log(0.25)], abs=1e-12)


def test_gate_or_lambda_of_zero_corrects_nothing():
    a = torch.tensor([3.0, -2.0], dtype=torch.float64)
    assert correction(a, torch.zeros(2), 4.0).tolist() == [0, 0]
    assert correction(a, torch.ones(2), 0.0).tolist() == [0, 0]
    assert correction(a, torch.tensor([1.0, 0.5]), 2.0).tolist() == [6.0, -2.0]


def test_attention_is_shared_among_real_events_only():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    salience = torch.tensor([0.0, math.log(3.0), -math.inf])
    m, alpha = memory_state(z, salience, torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2]]))
    assert close(alpha, torch.tensor([[0.25, 0.75, 0, 0], [3 / 7, 3 / 7, 1 / 7, 0]]))
    assert close(m, torch.tensor([[0.25, 0.75], [1 / 7, 6 / 7]]))


def test_pooling_by_mean_divides_by_the_number_of_events():
    p_ct = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.0, 0.0]], dtype=torch.float64)
    log_pi = torch.log(torch.tensor([0.4, 0.6], dtype=torch.float64))
    tokens, asked = torch.tensor([[0, 1, 2], [1, 2, 2]]), torch.tensor([1, 0])
    expected = torch.log(torch.tensor([1.4 / 0.6, 0.1 / 0.4], dtype=torch.float64))
    assert close(count_evidence(p_ct, log_pi, tokens, asked), expected)
    halved = expected - torch.log(torch.tensor([2.0, 1.0], dtype=torch.float64))
    assert close(count_evidence(p_ct, log_pi, tokens, asked, "mean"), halved)

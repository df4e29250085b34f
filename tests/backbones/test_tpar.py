"""TPAR: the flat computation equals the recursion of its definition, query by query and link by link."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.backbones.paths import Links
from bridgemem.backbones.tpar import Tpar, TparNet, TparSettings
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import random_log, rows_of
from precision import FLOAT64, close

SMALL = TparSettings(width=5, attention=3, edges=(6, 4, 3), window=12, time_unit=3.0, dropout=0.0, batch=7)
ACT = {"identity": lambda x: x, "relu": torch.relu, "tanh": torch.tanh}


def network(n_relations: int, **changes) -> TparNet:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return TparNet(n_relations, replace(SMALL, **changes)).double().eval()


def recent(events: EventLog, entity: int, until: int, most: int, window: int) -> list[tuple[int, int, int]]:
    """(relation, destination, step) of the last links that leave an entity before a step."""
    R = events.n_relations
    sides = [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]
    return [(r, o, t) for s, r, o, t in sides if s == entity and until - window <= t < until][-most:]


def recursion(net: TparNet, events: EventLog, actor: int, asked: int, step: int, until: int) -> dict[int, Tensor]:
    """f of every entity that the query reaches, as the paper writes it."""
    s, time = net.settings, net.time
    h = {actor: torch.zeros(s.width, dtype=torch.float64)}
    for layer, most in zip(net.layers, s.edges, strict=True):
        Z, parts = layer.relation, layer.attention
        W_a = torch.cat(
            [b.weight for b in (parts.of_node, parts.of_relation, parts.of_query_relation, parts.of_time)], dim=1
        )
        into: dict[int, list[tuple[int, int, int]]] = {e: [(e, 2 * events.n_relations, 0)] for e in h}
        for e in h:
            for r, o, t in recent(events, e, until, most, s.window):
                into.setdefault(o, []).append((e, r, min(step - t, s.window)))
        after = {}
        for o, links in into.items():
            total = torch.zeros(s.width, dtype=torch.float64)
            for source, r, lag in links:
                D = -lag / s.time_unit
                h_t = torch.sin(time.omega_p * D + time.phi_p) + time.omega_n * D + time.phi_n
                u = torch.cat([h[source], Z[r], Z[asked], h_t])
                a = torch.sigmoid(parts.out.weight[0] @ torch.relu(W_a @ u))
                total = total + a * (h[source] + Z[r] + h_t)
            x = ACT[s.activation](layer.update.transform.weight @ total)
            if net.cell is not None:
                x = net.cell(x[None], h.get(o, torch.zeros_like(x))[None])[0]
            after[o] = x
        h = after
    return {e: net.out.weight[0] @ state for e, state in h.items()}


def asked_of(events: EventLog) -> Queries:
    return Queries.of(events.between(16, 24)).take(slice(0, None, 3))


@pytest.mark.parametrize(
    ("gru", "activation", "frozen"),
    [(False, "identity", None), (True, "identity", 9), (False, "relu", 9), (True, "tanh", None)],
)
def test_scores_equal_the_recursion(gru, activation, frozen):
    events = random_log(6, n=120, n_entities=14, n_relations=2)
    net, queries = network(2, gru=gru, activation=activation), asked_of(events)
    log_p = Tpar(net.settings, net).score(queries, Past(events, frozen)).log_p
    columns = zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True)
    unreached = 0
    for row, (actor, asked, step) in enumerate(columns):
        f = recursion(net, events, actor, asked, step, step if frozen is None else min(step, frozen))
        reached = list(f)
        # only differences inside a row are meant by log scores
        found = log_p[row, reached] - log_p[row, reached[0]]
        assert close(found, torch.stack(list(f.values())) - f[reached[0]], FLOAT64)
        assert log_p[row].exp().sum() == pytest.approx(1)
        unreached += events.n_entities - len(reached)
    assert unreached, "some entity must not be reached"


@pytest.mark.parametrize("gru", [False, True])
def test_the_loss_and_its_gradient_equal_the_cross_entropy_of_the_recursion(gru):
    events = random_log(2, n=60, n_entities=14, n_relations=2)
    net, queries = network(2, gru=gru), asked_of(events)
    dense, answers_reached = [], []
    columns = (queries.actor, queries.relation, queries.step, queries.answer)
    for actor, asked, step, answer in zip(*(c.tolist() for c in columns), strict=True):
        f = recursion(net, events, actor, asked, step, step)
        zero = torch.zeros((), dtype=torch.float64)
        dense.append(torch.stack([f.get(e, zero) for e in range(events.n_entities)]))
        answers_reached.append(answer in f)
    assert any(answers_reached)
    assert not all(answers_reached), "an answer that is not reached takes part with f = 0"
    expected = F.cross_entropy(torch.stack(dense), queries.answer)
    hops = net.walk(Links.of(events, "cpu"), queries, queries.step)
    found = net.loss(hops, queries.relation, queries.answer, events.n_entities)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-10)
    parameters = dict(net.named_parameters())
    gradients = (torch.autograd.grad(loss, list(parameters.values())) for loss in (found, expected))
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        # before the first hop every state is zero
        assert theirs.any() or name == "layers.0.attention.of_node.weight", name
        assert close(ours, theirs, FLOAT64), name


def test_dropout_acts_in_training_alone():
    events = random_log(6, n=120)
    net, queries = network(4, dropout=0.5), asked_of(events)
    hops = net.walk(Links.of(events, "cpu"), queries, queries.step)
    with torch.random.fork_rng(), torch.no_grad():
        assert torch.equal(net(hops, queries.relation), net(hops, queries.relation))
        net.train()
        assert not torch.equal(net(hops, queries.relation), net(hops, queries.relation))

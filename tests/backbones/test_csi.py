"""CSI: two coupled states a node, three losses, and a causal branch that is TPAR's where nothing else acts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bridgemem.backbones.csi import Csi, CsiNet, CsiSettings, from_uniform
from bridgemem.backbones.paths import Hop, Links
from bridgemem.backbones.tpar import Tpar, TparNet, TparSettings
from bridgemem.errors import SettingsError
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import random_log
from precision import FLOAT64, close

SMALL = CsiSettings(width=5, attention=3, edges=(6, 4), window=12, dropout=0.0, batch=64)


def case(**changes) -> tuple[EventLog, Queries, CsiNet, tuple[Hop, ...]]:
    events = random_log(6, n=120, n_entities=14, n_relations=2)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = CsiNet(2, replace(SMALL, **changes)).double().eval()
    queries = Queries.of(events.between(16, 24)).take(slice(0, None, 3))
    return events, queries, net, net.walk(Links.of(events, "cpu"), queries, queries.step)


def links_of(hop: Hop, node: int, n_directed: int) -> Iterator[tuple[int, int, int]]:
    """(source, relation, lag) of the links into a node."""
    stops = [*hop.first.tolist()[1:], len(hop.parts)]
    for source, relation, lag in hop.parts[int(hop.first[node]) : stops[node]].tolist():
        yield source, relation - len(hop.asker), lag - len(hop.asker) - n_directed - 1


def slow_states(net: CsiNet, hops: tuple[Hop, ...], asked: Tensor) -> tuple[Tensor, Tensor]:
    """Both states after the last hop, link by link."""
    causal = shortcut = torch.zeros(len(asked), net.settings.width, dtype=torch.float64)
    time = net.time()
    for layer, hop in zip(net.layers, hops, strict=True):
        Z, parts = layer.relation, layer.attention
        W1 = torch.cat(
            [b.weight for b in (parts.of_node, parts.of_relation, parts.of_query_relation, parts.of_time)], dim=1
        )
        after_c, after_s = [], []
        for node in range(len(hop.row)):
            sum_c = sum_s = torch.zeros(net.settings.width, dtype=torch.float64)
            for s, r, lag in links_of(hop, node, 2 * net.n_relations):
                u = torch.cat([causal[s], Z[r], Z[asked[hop.asker[s]]], time[lag]])
                g = parts.out.weight @ torch.relu(W1 @ u)
                a_c = g[0].exp() / (g[0].exp() + g[1].exp())
                sum_c = sum_c + a_c * (causal[s] + Z[r] + time[lag])
                sum_s = sum_s + (1 - a_c) * (shortcut[s] + Z[r].detach() + time[lag].detach())
            after_c.append(layer.causal.transform.weight @ sum_c)
            after_s.append(layer.shortcut.transform.weight @ sum_s)
        causal, shortcut = torch.stack(after_c), torch.stack(after_s)
    return causal, shortcut


def test_both_states_equal_a_slow_walk_over_the_links():
    _, queries, net, hops = case(gru=False)
    expected = slow_states(net, hops, queries.relation)
    found = net.states(hops, queries.relation, net.start(queries.relation))
    for ours, theirs in zip(found, expected, strict=True):
        assert close(ours, theirs, FLOAT64)


def test_the_loss_and_its_gradient_equal_the_three_terms_written_out():
    events, queries, net, hops = case(gru=False, uniform=0.3, intervention=0.7)
    n, E, last = len(queries), events.n_entities, hops[-1]
    causal, shortcut = slow_states(net, hops, queries.relation)
    f_c, f_s = causal @ net.causal_out.weight[0], shortcut @ net.shortcut_out.weight[0]
    state = torch.random.get_rng_state()
    shift = int(torch.randint(1, n, ()))
    torch.random.set_rng_state(state)
    place = {(q, e): i for i, (q, e) in enumerate(zip(last.row.tolist(), last.entity.tolist(), strict=True))}
    nothing = torch.zeros(net.settings.width, dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(n):
        j, y = (i - shift) % n, int(queries.answer[i])
        own = torch.stack([f_c[place[i, e]] if (i, e) in place else nothing[0] for e in range(E)])
        expected = expected - own.log_softmax(0)[y]
        visited = [place[i, e] for e in range(E) if (i, e) in place]
        q = f_s[visited].softmax(0)
        expected = expected + 0.3 * sum((math.log(1 / len(visited)) - p.log()) / len(visited) for p in q)
        mixed = [
            (causal[place[i, e]] if (i, e) in place else nothing)
            + (shortcut[place[j, e]] if (j, e) in place else nothing)
            for e in range(E)
        ]
        expected = expected - 0.7 * (torch.stack(mixed) @ net.exchanged_out.weight[0]).log_softmax(0)[y]
    expected = expected / n
    found = net.loss(hops, queries.relation, queries.answer, E)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-9)
    parameters = dict(net.named_parameters())
    gradients = (torch.autograd.grad(loss, list(parameters.values())) for loss in (found, expected))
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        # before the first hop every state is zero
        assert theirs.any() or name == "layers.0.attention.of_node.weight", name
        assert close(ours, theirs, FLOAT64), name


@pytest.mark.parametrize("gru", [True, False])
def test_the_causal_branch_is_tpar_where_the_shortcut_has_no_say(gru):
    events, queries, net, hops = case(gru=gru, uniform=0.0, intervention=0.0)
    plain = {name: getattr(net.settings, name) for name in TparSettings.__dataclass_fields__}
    tpar = TparNet(2, TparSettings(**plain)).double().eval()
    with torch.no_grad():
        renamed = {"update": "causal", "cell": "causal_cell", "out": "causal_out"}
        for name, weight in tpar.named_parameters():
            first, *rest = name.split(".")
            if first == "layers":
                number, part, *rest = rest
                own = net.get_parameter(".".join(["layers", number, renamed.get(part, part), *rest]))
            else:
                own = net.get_parameter(".".join([renamed.get(first, first), *rest]))
            # softmax of (g, 0) is the sigmoid of g
            if len(own) > len(weight):
                own[1:] = 0
                weight.copy_(own[:1])
            else:
                weight.copy_(own)
    past = Past(events)
    ours, theirs = Csi(net.settings, net).score(queries, past), Tpar(tpar.settings, tpar).score(queries, past)
    assert close(ours.log_p, theirs.log_p, FLOAT64)
    losses = (each.loss(hops, queries.relation, queries.answer, events.n_entities) for each in (net, tpar))
    one, other = (float(loss.detach()) for loss in losses)
    assert one == pytest.approx(other, abs=1e-9)


def test_the_shortcut_branch_does_not_train_what_both_read():
    events, queries, net, hops = case()
    with torch.no_grad():
        # constant shares cut the way by which the attention reads the tables
        for layer in net.layers:
            layer.attention.out.weight.zero_()
    _, shortcut = net.states(hops, queries.relation, net.start(queries.relation))
    from_uniform(hops[-1], net.shortcut_out(shortcut).squeeze(1), len(queries), events.n_entities).backward()
    assert net.shortcut_out.weight.grad is not None
    for layer in net.layers:
        assert layer.shortcut.transform.weight.grad is not None
        assert layer.relation.grad is None or not layer.relation.grad.any()
    assert all(p.grad is None or not p.grad.any() for p in net.time.parameters())


def test_the_uniform_term_is_zero_for_equal_scores_and_grows_with_their_spread():
    _, queries, _, hops = case()
    n, last = len(queries), hops[-1]
    equal = torch.full((len(last.row),), 3.0, dtype=torch.float64)
    assert float(from_uniform(last, equal, n, 14)) == pytest.approx(0, abs=1e-12)
    spread = torch.randn(len(last.row), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert 0 < float(from_uniform(last, spread, n, 14)) < float(from_uniform(last, 2 * spread, n, 14))


def test_a_last_batch_of_one_query_has_a_loss():
    events, queries, net, _ = case()
    one = queries.take(slice(0, 1))
    hops = net.walk(Links.of(events, "cpu"), one, one.step)
    loss = net.loss(hops, one.relation, one.answer, events.n_entities)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "wrong", [{"batch": 1}, *({name: v} for name in ("uniform", "intervention") for v in (-1.0, math.nan, math.inf))]
)
def test_settings_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        CsiSettings(**wrong)

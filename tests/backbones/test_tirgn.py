"""TiRGN: its encoder, time vectors, history indicators and mixture of decoders against slow loops."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bridgemem.backbones.regcn import Evolved, OwnVectors, Selection
from bridgemem.backbones.snapshots import Snapshot, Snapshots
from bridgemem.backbones.tirgn import Indicator, Tirgn, TirgnNet, TirgnSettings, TirgnTrainer
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training.checkpoint import Checkpoint
from builders import few, logs, random_log, rows_of
from precision import close

D = 6
TINY = TirgnSettings(width=D, kernels=3, history=3, epochs=2)


@cache
def events() -> EventLog:
    return random_log(8, n=160, steps=16)


def network(seed: int = 3, **changes) -> TirgnNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = TirgnNet(OwnVectors(events().n_entities, D), events().n_relations, replace(TINY, **changes))
        # nothing stays at a value that would hide it
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d):
                for tensor in (module.weight, module.bias, module.running_mean):
                    nn.init.normal_(tensor)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
        return net.eval()


def edges_of(snapshot: Snapshot) -> list[tuple[int, int, int]]:
    columns = (snapshot.actor, snapshot.relation, snapshot.answer)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def window_of(length: int = 3) -> tuple[list[Snapshot], Snapshot]:
    graph = Snapshots(events(), "cpu")
    return graph.before(8, length), graph[8]


def slow_layer(a: Tensor, z: Tensor, layer: nn.Module, snapshot: Snapshot) -> Tensor:
    """Edge by edge: both channels normalised over all edges and positions, mixed, sent through W_n and averaged."""
    edges, norm = edges_of(snapshot), layer.norm
    channels = [torch.stack([a[u] for u, _, _ in edges]), torch.stack([z[r] for _, r, _ in edges])]
    message = layer.mix.bias
    for c, x in enumerate(channels):
        mean, var = (x.mean(), x.var(unbiased=False)) if layer.training else (norm.running_mean[c], norm.running_var[c])
        normed = (x - mean) / (var + 1e-5).sqrt() * norm.weight[c] + norm.bias[c]
        message = message + layer.mix.weight[0, c] * normed
    out = []
    for v in range(len(a)):
        coming = [message[i] @ layer.connected[:D] for i, (_, _, w) in enumerate(edges) if w == v]
        x = sum(coming) / len(coming) + a[v] @ layer.connected[D:] if coming else a[v] @ layer.isolated
        out.append(torch.where(x > 0, x, 11 / 48 * x))
    return torch.stack(out)


def slow_evolution(net: TirgnNet, window: list[Snapshot]) -> tuple[Tensor, Tensor]:
    h, z, relations = F.normalize(net.start.entity), net.relation, len(net.relation) // 2
    for snapshot in window:
        x = torch.zeros(2 * relations, D)
        for r in range(relations):
            subjects = {u for u, r2, _ in edges_of(snapshot) if r2 == r}
            if subjects:
                x[r] = x[r + relations] = torch.stack([h[e] for e in subjects]).mean(0)
        z = F.normalize(net.relation_cell(torch.cat([net.relation, x], 1), z))
        a = h
        for layer in net.layers:
            a = slow_layer(a, z, layer, snapshot)
        h = F.normalize(net.entity_cell(F.normalize(a), h))
    return F.normalize(h).tanh(), z


@pytest.mark.parametrize("training", [False, True])
def test_evolution_equals_a_slow_loop(training):
    net, (window, _) = network(dropout=0.0).train(training), window_of()
    h, z = slow_evolution(net, window)
    found = net.evolve(window)
    assert close(found.entity, h)
    assert close(found.relation, z)


def test_the_gradient_of_the_evolution_equals_that_of_the_slow_loop():
    net, (window, _) = network(dropout=0.0).train(), window_of()
    weights = torch.randn(events().n_entities, D, generator=torch.Generator().manual_seed(1))
    layer = net.layers[0]
    parameters = [net.start.entity, net.relation, layer.connected, layer.mix.weight, layer.norm.weight]
    expected = torch.autograd.grad((slow_evolution(net, window)[0] * weights).sum(), parameters)
    found = torch.autograd.grad((net.evolve(window).entity * weights).sum(), parameters)
    for one, other in zip(found, expected, strict=True):
        assert close(one, other, 0.0001)


def test_message_statistics_are_updated_once_a_snapshot():
    net, (window, _) = network().train(), window_of()
    net.evolve(window)
    assert [int(layer.norm.num_batches_tracked) for layer in net.layers] == [3, 3]


def test_a_query_is_read_with_a_linear_and_a_periodic_vector_of_its_step():
    net = network()
    first, second = torch.randn(2, 4, D, generator=torch.Generator().manual_seed(1))
    step = torch.tensor([0, 7, 7, 300])
    channels = net.channels(first, second, step)
    assert torch.equal(channels[:, 0], first)
    assert torch.equal(channels[:, 1], second)
    for row, t in enumerate(step.tolist()):
        assert close(channels[row, 2], net.slope[0] * t + net.offset[0])
        assert close(channels[row, 3], torch.sin(net.slope[1] * t + net.offset[1]), 0.0001)
    assert torch.equal(net.channels(first, second, step[1:2])[1], channels[1])


def seen_before(log: EventLog, step: int) -> set[tuple[int, int, int]]:
    R = log.n_relations
    return {side for s, r, o, t in rows_of(log) if t < step for side in ((s, r, o), (o, r + R, s))}


@few
@given(log=logs(min_size=1), at=st.integers(0, 50))
def test_indicators_hold_what_happened_strictly_before(log, at):
    graph = Snapshots(log, "cpu")
    position, E, R = at % len(graph), log.n_entities, log.n_relations
    actor, relation, answer = graph.columns
    device = torch.device("cpu")
    answers = Indicator(graph, actor * 2 * R + relation, answer, E, device).at(position)
    relations = Indicator(graph, actor * E + answer, relation, 2 * R, device).at(position)
    before = seen_before(log, graph[position].step)
    for row, (s, r, o) in enumerate(edges_of(graph[position])):
        assert answers[row].tolist() == [(s, r, c) in before for c in range(E)]
        assert relations[row].tolist() == [(s, q, o) in before for q in range(2 * R)]


def slow_mixture(local: Tensor, of_past: Tensor, seen: Tensor, rate: float) -> Tensor:
    return (rate * (of_past * seen.float()).softmax(1) + (1 - rate) * local.softmax(1)).log()


def test_scores_mix_the_local_decoder_with_the_one_over_the_past():
    net = network(history_rate=0.4)
    queries = Queries.of(events().between(12, 15)).unanswered()
    scores = Tirgn(net.settings, net).score(queries, Past(events())).log_p
    graph = Snapshots(events(), "cpu")
    for row in range(0, len(queries), 5):
        actor, relation, step = (int(c[row]) for c in (queries.actor, queries.relation, queries.step))
        h, z = slow_evolution(net, graph.before(graph.position(step), 3))
        x = net.channels(h[[actor]], z[[relation]], torch.tensor([step]))
        before = seen_before(events(), step)
        seen = torch.tensor([[(actor, relation, c) in before for c in range(len(h))]])
        expected = slow_mixture(net.entity_local(x, h), net.entity_global(x, h), seen, 0.4)
        assert close(scores[row], expected[0], 0.0001)


def test_the_loss_is_that_of_both_mixtures():
    net, (window, target) = network(history_rate=0.4, task_weight=0.6), window_of()
    generator = torch.Generator().manual_seed(2)
    E, R2, n = events().n_entities, 2 * events().n_relations, len(target)
    seen, seen_relations = (torch.rand(n, k, generator=generator) < 0.3 for k in (E, R2))
    evolved = net.evolve(window)
    h, z, step = evolved.entity, evolved.relation, torch.full((n,), target.step)
    x = net.channels(h[target.actor], z[target.relation], step)
    by_entity = slow_mixture(net.entity_local(x, h), net.entity_global(x, h), seen, 0.4)
    x = net.channels(h[target.actor], h[target.answer], step)
    by_relation = slow_mixture(net.relation_local(x, z), net.relation_global(x, z), seen_relations, 0.4)
    expected = 0.6 * F.nll_loss(by_entity, target.answer) + 0.4 * F.nll_loss(by_relation, target.relation)
    assert close(net.loss_given(evolved, target, seen, seen_relations), expected)
    constrained = Evolved(h, z, torch.tensor(2.5))
    assert close(net.loss_given(constrained, target, seen, seen_relations), expected + 2.5)


def test_the_mixture_survives_logits_that_leave_nothing():
    net, answer = network(), torch.tensor([1])
    far = torch.tensor([[500.0, -500.0]])
    loss = net.mixed_loss(far, far, torch.tensor([[True, True]]), answer)
    assert float(loss.detach()) == pytest.approx(1000, rel=1e-4)


def test_training_scores_validation_as_scoring_does_afterwards():
    dataset = Dataset("tiny", events(), 11, 14)
    net = network()
    selection = Selection(net)
    trainer = TirgnTrainer(selection, dataset, Checkpoint(None, {}, selection))
    target = trainer.graph[trainer.n_train + 1]
    net.eval()
    queries = Queries(target.actor, target.relation, torch.full((len(target),), target.step))
    with torch.no_grad():
        [(evolved, at)] = trainer.evolved(range(trainer.n_train + 1, trainer.n_train + 2))
        found = trainer.log_p(evolved, at)
    assert close(found, Tirgn(net.settings, net).score(queries, Past(dataset.events)).log_p)


def test_the_gradient_reaches_every_parameter():
    dataset = Dataset("tiny", events(), 11, 14)
    selection = Selection(network().train())
    TirgnTrainer(selection, dataset, Checkpoint(None, {}, selection)).loss(range(8, 9)).backward()
    for name, parameter in selection.net.named_parameters():
        assert parameter.grad is not None, name
        # the batch norm after it takes a convolution's bias out again: its gradient is rounding, or nothing
        assert parameter.grad.any() or name.endswith("convolution.bias"), name


def test_a_frozen_past_still_knows_what_time_it_is():
    backbone, past = Tirgn(TINY, network()), Past(events(), frozen_at=9)
    actor, relation = torch.arange(12), torch.arange(12) % 8
    now, late, both = (
        backbone.score(Queries(actor.repeat(k), relation.repeat(k), step), past).log_p
        for k, step in (
            (1, torch.full((12,), 9)),
            (1, torch.full((12,), 15)),
            (2, torch.tensor([9, 15]).repeat_interleave(12)),
        )
    )
    assert not close(now, late)
    assert close(both, torch.cat([now, late]))


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_a_history_rate_that_cannot_be_used_is_refused(rate):
    with pytest.raises(SettingsError, match="history_rate"):
        TirgnSettings(history_rate=rate)

"""RE-GCN: its formulas against slow loops; and the training, choice of epoch and scoring that TiRGN shares with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones import regcn
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.convtranse import ConvTransE
from bridgemem.backbones.regcn import (
    SLOPE,
    Evolved,
    NameVectors,
    OwnVectors,
    Regcn,
    RegcnNet,
    RegcnSettings,
    Selection,
    Trainer,
    unit,
    words_of,
)
from bridgemem.backbones.snapshots import Snapshot, Snapshots
from bridgemem.backbones.tirgn import Tirgn, TirgnSettings
from bridgemem.errors import DataError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training import checkpoint
from bridgemem.training.checkpoint import Checkpoint
from builders import log_of, random_log, rows_of
from precision import close

D = 6
REGCN = RegcnSettings(width=D, kernels=3, history=3, epochs=2)
TINY = {Regcn: REGCN, Tirgn: TirgnSettings(width=D, kernels=3, history=3, epochs=2)}
both = pytest.mark.parametrize("kind", [Regcn, Tirgn])


@cache
def tiny_data() -> Dataset:
    """Twelve entities over sixteen steps, some of them empty."""
    return Dataset("tiny", random_log(8, n=160, steps=16), 11, 14)


@cache
def trained(kind: type[Regcn]) -> Regcn:
    return kind.fit(tiny_data(), TINY[kind])


def network(events, seed: int = 3, **changes) -> RegcnNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = replace(REGCN, **changes)
        net = RegcnNet(OwnVectors(events.n_entities, D), events.n_relations, settings)
        # nothing stays at a value that would hide it
        norms = (m for m in net.modules() if isinstance(m, nn.BatchNorm1d))
        for parameter in (net.gate_bias, *(p for m in norms for p in m.parameters())):
            nn.init.normal_(parameter)
        return net.eval()


def edges_of(snapshot: Snapshot) -> list[tuple[int, int, int]]:
    columns = (snapshot.actor, snapshot.relation, snapshot.answer)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def slow_layer(a: Tensor, z: Tensor, layer: nn.Module, snapshot: Snapshot) -> Tensor:
    """Entity by entity, edge by edge."""
    w_n, w_loop = layer.connected[:D], layer.connected[D:]
    out = []
    for v in range(len(a)):
        messages = [(a[u] + z[r]) @ w_n for u, r, w in edges_of(snapshot) if w == v]
        x = sum(messages) / len(messages) + a[v] @ w_loop if messages else a[v] @ layer.isolated
        out.append(torch.where(x > 0, x, 11 / 48 * x))
    return torch.stack(out)


def slow_states(net: RegcnNet, window: list[Snapshot]) -> tuple[list[Tensor], Tensor]:
    """H_1..H_m and Z_m, written as the specification has it."""
    h, z, relations, states = F.normalize(net.start.entity), net.relation, len(net.relation) // 2, []
    for snapshot in window:
        x = torch.zeros(2 * relations, D)
        for r in range(relations):
            touching = {e for u, r2, v in edges_of(snapshot) if r2 == r for e in (u, v)}
            if touching:
                x[r] = x[r + relations] = torch.stack([h[e] for e in touching]).mean(0)
        z = F.normalize(net.relation_cell(torch.cat([net.relation, x], 1), z))
        a = h
        for layer in net.layers:
            a = slow_layer(a, z, layer, snapshot)
        u = torch.sigmoid(h @ net.gate + net.gate_bias)
        h = u * F.normalize(a) + (1 - u) * h
        states.append(h)
    return states, z


def slow_decoder(decoder: ConvTransE, x: Tensor, table: Tensor) -> Tensor:
    """With the batch's own statistics while training, and without dropout."""

    def norm(x: Tensor, layer: nn.BatchNorm1d) -> Tensor:
        shape = (1, -1, *[1] * (x.dim() - 2))
        dims = [d for d in range(x.dim()) if d != 1]
        mean, var = layer.running_mean, layer.running_var
        if decoder.training:
            mean, var = x.mean(dims), x.var(dims, unbiased=False)
        y = (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
        return y * layer.weight.view(shape) + layer.bias.view(shape)

    x = F.conv1d(norm(x, decoder.input_norm), decoder.convolution.weight, decoder.convolution.bias, padding=1)
    x = norm(x, decoder.kernel_norm).relu().reshape(len(x), -1)
    return norm(decoder.linear(x), decoder.output_norm).relu() @ table.T


def window_of(length: int = 3) -> tuple[list[Snapshot], Snapshot]:
    graph = Snapshots(tiny_data().events, "cpu")
    return graph.before(8, length), graph[8]


@pytest.mark.parametrize("length", [0, 1, 3])
def test_evolution_equals_a_slow_loop(length):
    net, (window, _) = network(tiny_data().events), window_of(length)
    assert len(window) == length
    found = net.evolve(window)
    states, z = slow_states(net, window)
    h = states[-1] if states else F.normalize(net.start.entity)
    assert close(found.entity, F.normalize(h).tanh())
    assert close(found.relation, z)
    assert found.penalty is None


def test_the_gradient_reaches_every_parameter():
    net, (window, target) = network(tiny_data().events).train(), window_of()
    net.loss(net.evolve(window), target).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        # the batch norm after it takes a convolution's bias out again: its gradient is rounding, or nothing
        assert parameter.grad.any() or name.endswith("convolution.bias"), name


def test_the_gradient_of_the_evolution_equals_that_of_the_slow_loop():
    net, (window, _) = network(tiny_data().events), window_of()
    ours, theirs = net.evolve(window), slow_states(net, window)
    parameters = [net.start.entity, net.relation, net.gate, net.layers[0].connected, net.layers[1].isolated]
    weights = torch.randn(ours.entity.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((ours.entity * weights).sum(), parameters)
    expected = torch.autograd.grad((F.normalize(theirs[0][-1]).tanh() * weights).sum(), parameters)
    for one, other in zip(found, expected, strict=True):
        assert close(one, other, 0.0001)


def test_unit_is_the_usual_normalisation():
    x = torch.randn(4, D, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1e-6], [1.0], [1e6], [0.0]])
    assert close(unit(x), F.normalize(x))


def test_the_released_slope_is_that_of_the_mean_of_a_randomised_relu():
    x = torch.linspace(-2, 2, 9)
    assert close(F.leaky_relu(x, SLOPE), F.rrelu(x, training=False))


@pytest.mark.parametrize("training", [False, True])
def test_scores_and_loss_are_those_of_the_decoders_as_specified(training):
    net, (window, target) = network(tiny_data().events, dropout=0.0, task_weight=0.6), window_of()
    net.train(training)
    evolved = net.evolve(window)
    h, z = evolved.entity, evolved.relation
    by_entity = slow_decoder(net.entity_decoder, torch.stack([h[target.actor], z[target.relation]], 1), h)
    by_relation = slow_decoder(net.relation_decoder, torch.stack([h[target.actor], h[target.answer]], 1), z)
    expected = 0.6 * F.cross_entropy(by_entity, target.answer) + 0.4 * F.cross_entropy(by_relation, target.relation)
    assert close(net.loss(evolved, target), expected)
    if not training:
        found = net.log_p(evolved, target.actor, target.relation)
        assert close(found, by_entity.log_softmax(1))


def test_names_of_two_parts_share_their_words():
    names = "Police (India)", "India", "Police_(Peru)", "Bank_(Holy_See_(Rome))", "House_(Upper)_(India)"
    index, words = words_of([*names, "(odd", "Police"])
    vocabulary = ["Police", "India", "Peru", "Bank", "Holy_See_(Rome)", "House_(Upper)", "(odd"]
    assert words == len(vocabulary)
    spelled = [[(place // words, vocabulary[place % words]) for place in places] for places in index]
    assert spelled == [
        [(0, "Police"), (1, "India")],
        [(2, "India")] * 2,
        [(0, "Police"), (1, "Peru")],
        [(0, "Bank"), (1, "Holy_See_(Rome)")],
        [(0, "House_(Upper)"), (1, "India")],
        [(2, "(odd")] * 2,
        [(2, "Police")] * 2,
    ]


def test_name_vectors_are_the_mean_of_their_words_through_blocks_of_two():
    start = NameVectors(torch.tensor([[0, 4], [7, 7]]), 3, 4)
    blocks = [torch.block_diag(*start.blocks[role]) for role in range(3)]
    first = F.leaky_relu((start.word[0] @ blocks[0] + start.word[1] @ blocks[1]) / 2, SLOPE)
    second = F.leaky_relu(start.word[1] @ blocks[2], SLOPE)
    assert close(start(), F.normalize(torch.stack([first, second])))


def test_the_static_penalty_counts_what_lies_outside_the_growing_angle():
    net = network(tiny_data().events, static=True, angle=25.0, static_weight=0.5).train()
    begun = unit(torch.randn(12, D, generator=torch.Generator().manual_seed(1)))
    passed = [torch.randn(12, D, generator=torch.Generator().manual_seed(k)) for k in (2, 3)]
    passed[0][:6] = 2 * begun[:6]
    expected = 0.0
    for k, h in enumerate(passed, start=1):
        for e in range(12):
            expected += 0.5 * max(0.0, math.cos(math.radians(25 * k)) - float(F.cosine_similarity(h[e], begun[e], 0)))
    assert float(net._penalty(begun, passed)) == pytest.approx(expected, abs=1e-4)


def test_the_static_constraint_is_part_of_the_loss_of_training_alone():
    net, (window, target) = network(tiny_data().events, static=True, angle=0.0, dropout=0.0), window_of()
    assert net.evolve(window).penalty is None
    evolved = net.train().evolve(window)
    assert evolved.penalty is not None
    assert evolved.penalty.item() > 0
    plain = net.loss(Evolved(evolved.entity, evolved.relation), target)
    assert close(net.loss(evolved, target), plain + evolved.penalty)


@both
@pytest.mark.parametrize("static", [False, True])
def test_the_contract_is_kept(kind, static):
    backbone = kind.fit(tiny_data(), replace(TINY[kind], static=True)) if static else trained(kind)
    check_backbone(backbone, tiny_data().events)


@both
def test_a_saved_backbone_scores_the_same_and_draws_nothing(kind, tmp_path):
    queries, past = Queries.of(tiny_data().valid), Past(tiny_data().events)
    trained(kind).save(tmp_path / "saved")
    state = torch.random.get_rng_state()
    again = kind.load(tmp_path / "saved")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(t.is_meta for t in (*again.net.parameters(), *again.net.buffers()))
    assert torch.equal(trained(kind).score(queries, past).log_p, again.score(queries, past).log_p)


@both
def test_queries_of_many_steps_score_as_each_step_alone_whatever_was_asked_before(kind):
    backbone, events = kind(TINY[kind], trained(kind).net), tiny_data().events
    queries, past, other = Queries.of(events), Past(events), Past(events.prefix(6))
    mixed = torch.randperm(len(queries), generator=torch.Generator().manual_seed(1))
    together = backbone.score(queries.take(mixed), past).log_p
    backbone.score(queries, other)
    for step in (0, 5, 12):
        alone = (queries.step[mixed] == step).nonzero().squeeze(1)
        found = kind(TINY[kind], backbone.net).score(queries.take(mixed[alone]), past).log_p
        assert close(together[alone], found)
        assert close(backbone.score(queries.take(mixed[alone]), past).log_p, found)


@both
def test_scores_read_the_window_and_not_what_lies_before_it(kind):
    events = tiny_data().events
    queries = Queries.of(events.between(12, 13)).unanswered()
    steps = sorted({t for *_, t in rows_of(events) if t < 12})
    score = trained(kind).score
    whole = score(queries, Past(events)).log_p
    shorter = score(queries, Past(events.between(steps[-3], 99))).log_p
    too_short = score(queries, Past(events.between(steps[-2], 99))).log_p
    assert not close(whole, too_short)
    if kind is Regcn:
        assert torch.equal(whole, shorter)


def test_a_frozen_past_gives_every_later_step_the_scores_of_its_end():
    events = tiny_data().events
    actor, relation = torch.arange(12), torch.arange(12) % 8
    late, now = (Queries(actor, relation, torch.full((12,), step)) for step in (15, 9))
    frozen = trained(Regcn).score(late, Past(events, frozen_at=9)).log_p
    assert torch.equal(frozen, trained(Regcn).score(now, Past(events)).log_p)
    assert not close(frozen, trained(Regcn).score(late, Past(events)).log_p)


@both
def test_training_is_decided_by_the_seed_and_leaves_the_global_one_alone(kind):
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    settings = replace(TINY[kind], epochs=1)
    first, again, other = (kind.fit(tiny_data(), settings, seed=seed) for seed in (42, 42, 1))
    assert torch.equal(torch.rand(2), expected)
    same_tensors(first, again)
    assert not torch.equal(again.tensors()["relation"], other.tensors()["relation"])


@both
def test_training_does_not_read_the_test_split(kind):
    same_tensors(trained(kind), kind.fit(tiny_data().without_test(), TINY[kind]))


def cyclic_world() -> Dataset:
    """Entity e always does relation 0 to the next one, and relation 1 to the one after."""
    rows = [(e, r, (e + 1 + r) % 10, t) for t in range(14) for e in range(10) for r in range(2)]
    return Dataset("cycle", log_of(rows, 10, 2), 10, 12)


@both
def test_a_regular_world_is_learned_and_the_loss_falls(kind, monkeypatch):
    dataset, losses = cyclic_world(), []

    class Noting(kind.trainer):
        def loss(self, targets: range) -> Tensor:
            loss = super().loss(targets)
            losses.append(float(loss.detach()))
            return loss

    monkeypatch.setattr(kind, "trainer", Noting)
    settings = replace(TINY[kind], width=16, kernels=8, history=1, dropout=0.1, epochs=14, learning_rate=5e-3)
    backbone = kind.fit(dataset, settings)
    by_epoch = np.array(losses).reshape(-1, 9).mean(1)
    assert by_epoch[-1] < by_epoch[0] - 0.5
    queries = Queries.of(dataset.test)
    log_p = backbone.score(queries, Past(dataset.events)).log_p
    assert float((log_p.argmax(1) == queries.answer).float().mean()) > 0.8, "chance is 0.1"


def test_snapshots_are_learned_from_together_as_their_number_says(monkeypatch):
    monkeypatch.setattr(regcn, "STEPS", 3)
    seen: list[int] = []
    monkeypatch.setattr(Trainer, "run", lambda trainer, *_: seen.append(trainer.together))
    Regcn.fit(tiny_data(), replace(REGCN, together=0))
    assert seen == [len(set(tiny_data().train.step.tolist())) // 3]
    assert seen[0] > 1


@pytest.mark.parametrize("together", [1, 3])
def test_the_first_snapshot_is_no_target_and_every_other_is_one_once_an_epoch(together, monkeypatch):
    seen: list[range] = []

    class Noting(Trainer):
        def loss(self, targets: range) -> Tensor:
            seen.append(targets)
            return super().loss(targets)

    monkeypatch.setattr(Regcn, "trainer", Noting)
    Regcn.fit(tiny_data(), replace(REGCN, together=together))
    n = len(set(tiny_data().train.step.tolist()))
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    for epoch in (first, second):
        assert sorted(at for targets in epoch for at in targets) == list(range(1, n))
        # without a whole window in front of it, a target stays by itself
        assert all(len(t) == 1 if t.start < REGCN.history else len(t) == min(together, n - t.start) for t in epoch)
    assert first != sorted(first, key=lambda targets: targets.start)
    assert first != second


@both
def test_snapshots_evolve_side_by_side_as_each_does_alone(kind):
    """In evaluation, where neither dropout nor the statistics of a batch tie them together; so do their gradients."""
    alone, joint = (seeded_trainer(kind, together) for together in (1, 3))
    targets = range(5, 8)
    found = joint.evolved(targets)
    assert [at for _, at in found] == list(targets)
    for evolved, at in found:
        [(expected, _)] = alone.evolved(range(at, at + 1))
        assert close(evolved.entity, expected.entity)
        assert close(evolved.relation, expected.relation)
        assert close(joint.log_p(evolved, at), alone.log_p(expected, at))
    loss = torch.stack([alone.loss(range(at, at + 1)) for at in targets]).mean()
    assert close(joint.loss(targets), loss)
    for made in (loss, joint.loss(targets)):
        made.backward()
    theirs = dict(alone.net.named_parameters())
    for name, parameter in joint.net.named_parameters():
        assert close(parameter.grad, theirs[name].grad, 0.0001), name
    assert joint.valid_mrr() == pytest.approx(alone.valid_mrr(), abs=1e-6)


def seeded_trainer(kind: type[Regcn], together: int) -> Trainer:
    """A trainer in evaluation, before its first step; weights do not depend on how many snapshots it takes."""
    settings, events = replace(TINY[kind], together=together), tiny_data().known
    with torch.random.fork_rng():
        torch.manual_seed(2)
        selection = Selection(kind.network(OwnVectors(events.n_entities, D), events.n_relations, settings).eval())
    return kind.trainer(selection, tiny_data(), Checkpoint(None, {}, selection))


def test_the_static_penalty_of_snapshots_side_by_side_is_the_mean_of_theirs():
    net = network(tiny_data().known, static=True, angle=0.1, dropout=0.0).train()
    graph = Snapshots(tiny_data().known, "cpu")
    window, rows = graph.before_each(range(5, 7), 3)
    apart = net.evolve(window, rows).apart(rows)
    expected = torch.stack([net.evolve(graph.before(at, 3)).penalty for at in (5, 6)])
    assert float(expected.detach().min()) > 0
    assert close(torch.stack([e.penalty for e in apart]), expected.mean().expand(2), 1e-4, least=1e-6)


@both
def test_several_snapshots_at_a_step_learn_a_regular_world(kind):
    settings = replace(TINY[kind], width=16, kernels=8, history=1, dropout=0.1, epochs=40, learning_rate=1e-2)
    dataset = cyclic_world()
    backbone = kind.fit(dataset, replace(settings, together=4, patience=40))
    queries = Queries.of(dataset.test)
    log_p = backbone.score(queries, Past(dataset.events)).log_p
    assert float((log_p.argmax(1) == queries.answer).float().mean()) > 0.8, "chance is 0.1"


def test_validation_is_ranked_raw_over_both_directions(monkeypatch):
    found: list[tuple[float, RegcnNet]] = []

    class Noting(Trainer):
        def valid_mrr(self) -> float:
            mrr = super().valid_mrr()
            assert self.net.training
            found.append((mrr, self.net))
            return mrr

    monkeypatch.setattr(Regcn, "trainer", Noting)
    dataset = tiny_data()
    Regcn.fit(dataset, replace(REGCN, epochs=1))
    (mrr, net), queries = found[0], Queries.of(dataset.valid)
    scores = Regcn(REGCN, net).score(queries, Past(dataset.known)).log_p
    reciprocal = []
    for row, answer in zip(scores.tolist(), queries.answer.tolist(), strict=True):
        others = [x for c, x in enumerate(row) if c != answer]
        above, level = sum(x > row[answer] for x in others), sum(x == row[answer] for x in others)
        reciprocal.append(1 / (1 + above + level / 2))
    assert mrr == pytest.approx(np.mean(reciprocal), abs=1e-6)


@both
def test_the_weights_of_the_best_epoch_are_kept_and_patience_ends_the_training(kind, monkeypatch):
    told = iter([0.1, 0.3, 0.2, 0.3, 0.9])
    settings = replace(TINY[kind], epochs=2)
    monkeypatch.setattr(kind.trainer, "valid_mrr", lambda trainer: next(told))
    chosen = kind.fit(tiny_data(), replace(settings, epochs=5, patience=2))
    assert next(told) == 0.9, "four epochs were enough"
    rising = iter([0.1, 0.2])
    monkeypatch.setattr(kind.trainer, "valid_mrr", lambda trainer: next(rising))
    same_tensors(chosen, kind.fit(tiny_data(), settings))


class KilledError(Exception):
    """Stands for whatever ends a process."""


class Killing:
    """Progress that ends the training after that many steps, and notes how many were done when it began."""

    def __init__(self, steps: float) -> None:
        self.steps, self.begun = steps, None

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator:
        done = 0

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            done += advance
            if self.begun is None:
                self.begun = done
            if done >= self.steps:
                raise KilledError

        yield step


def same_tensors(one: Regcn, other: Regcn) -> None:
    assert one.tensors().keys() == other.tensors().keys()
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def steps_taken(net: nn.Module) -> int:
    """As its decoders have counted them."""
    return next(int(m.input_norm.num_batches_tracked) for m in net.modules() if isinstance(m, ConvTransE))


@both
@pytest.mark.parametrize("epochs", [1.5, 2.5])
def test_a_killed_training_continues_to_the_very_same_weights(kind, epochs, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    # the second epoch is the best, so its weights and its figure must live through the kill
    n = len(set(tiny_data().train.step.tolist())) - 1
    answers = {n: 0.1, 2 * n: 0.5, 3 * n: 0.3}
    monkeypatch.setattr(kind.trainer, "valid_mrr", lambda trainer: answers[steps_taken(trainer.net)])
    settings, state = replace(TINY[kind], epochs=3), tmp_path / "state"
    whole = kind.fit(tiny_data(), settings)
    with pytest.raises(KilledError):
        kind.fit(tiny_data(), settings, progress=Killing(epochs * n), checkpoint=state)
    watched = Killing(math.inf)
    same_tensors(whole, kind.fit(tiny_data(), settings, progress=watched, checkpoint=state))
    assert watched.begun == int(epochs) * n


@pytest.mark.parametrize("other", ["seed", "settings", "validation"])
def test_the_state_of_another_training_is_not_used(other, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, settings, seed = tiny_data(), replace(REGCN, epochs=2), 42
    Regcn.fit(dataset, settings, checkpoint=tmp_path / "state")
    if other == "seed":
        seed = 1
    elif other == "settings":
        settings = replace(settings, learning_rate=2e-3)
    else:
        dataset = replace(dataset, test_start=13)
    watched = Killing(math.inf)
    with pytest.warns(UserWarning, match="is of other data or settings; it is replaced"):
        Regcn.fit(dataset, settings, seed=seed, progress=watched, checkpoint=tmp_path / "state")
    assert watched.begun == 0


@both
@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("width", "history", "layers", "kernels", "epochs", "patience")),
        {"together": -1},
        {"width": 8193},
        {"together": 65},
        {"history": 1025},
        {"width": 7, "static": True},
        {"dropout": 1.0},
        {"task_weight": 1.1},
        {"learning_rate": 0.0},
        {"clip": 0.0},
        {"weight_decay": -1.0},
        *(
            {name: math.nan}
            for name in (
                "dropout",
                "task_weight",
                "learning_rate",
                "clip",
                "weight_decay",
                "static_weight",
                "angle",
            )
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(kind, wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        type(kind.default)(**wrong)


@both
def test_a_train_split_of_a_single_step_is_one_clear_error(kind):
    log = log_of([(0, 0, 1, 1), (1, 0, 2, 1), (0, 0, 2, 5), (1, 1, 2, 5)])
    with pytest.raises(DataError, match=r"at least two time steps.* of few has one: give more"):
        kind.fit(Dataset("few", log, 5), TINY[kind])


@both
def test_a_step_of_a_single_fact_can_be_trained(kind):
    log = log_of([(0, 0, 1, 1), (1, 1, 2, 2), (0, 0, 2, 5), (1, 1, 2, 6)])
    backbone = kind.fit(Dataset("few", log, 5), TINY[kind])
    assert all(t.isfinite().all() for t in backbone.tensors().values())

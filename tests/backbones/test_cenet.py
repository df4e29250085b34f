"""CENET: the sparse computations equal the dense ones of its definition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor

from bridgemem.backbones import cenet as module
from bridgemem.backbones.cenet import (
    Cenet,
    CenetNet,
    CenetSettings,
    _Trainer,
    contrastive_loss,
    likeness,
    nce_loss,
    recurring,
)
from bridgemem.backbones.trained import train
from bridgemem.errors import DataError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training import checkpoint
from bridgemem.training.checkpoint import Checkpoint
from builders import TINY_CENET, few, log_of, logs, random_log, rows_of, small_world, tiny_cenet
from precision import TRAINED, close


def dense_counts(events, queries: Queries) -> Tensor:
    """F [n, E]: snapshots before the query in which (actor, relation, candidate) occurred."""
    R = events.n_relations
    snapshots = {side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))}
    counts = torch.zeros(len(queries), events.n_entities)
    for row, (a, r, t) in enumerate(
        zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True)
    ):
        for a2, r2, c, t2 in snapshots:
            if (a2, r2) == (a, r) and t2 < t:
                counts[row, c] += 1
    return counts


def network(events, **changes) -> CenetNet:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return CenetNet(events.n_entities, events.n_relations, replace(TINY_CENET, **changes)).eval()


def small_case() -> tuple:
    events = random_log(6, n=250, n_entities=10, n_relations=2)
    return events, Queries.of(events.between(10, 30))


def past_of(net: CenetNet, events, queries: Queries) -> module._QueryPast:
    seen = Past(events).occurrences(queries.actor, queries.relation, queries.step)
    return net.past(seen, len(queries))


def logits(net: CenetNet, events, queries: Queries) -> Tensor:
    """Of the first scorer and of the second, [2, n, E]."""
    is_object_query = (queries.relation < events.n_relations)[:, None]
    pair = net.pair(queries.actor, queries.relation)
    return net.logits(pair, is_object_query, past_of(net, events, queries)).view(2, len(queries), -1)


def plain_pair(net: CenetNet, queries: Queries) -> Tensor:
    return torch.cat([net.entity[queries.actor], net.relation[queries.relation]], dim=1)


def plain_frequency(net: CenetNet, counts: Tensor) -> Tensor:
    return torch.tanh(counts.softmax(1) @ net.frequency + net.frequency_bias)


def plain_scorer(net: CenetNet, scorer: int, queries: Queries, counts: Tensor) -> Tensor:
    """A scorer's logits row by row from its two linear layers, with its tag on every candidate, [n, E]."""
    s, d = net.settings, net.settings.width
    elsewhere = counts == 0
    if scorer == 0:
        tag = torch.where(elsewhere, -s.history_bias, s.history_bias)
    else:
        tag = torch.where(elsewhere, s.history_bias, counts if s.second_bias == "released" else -s.history_bias)
    vectors = []
    for x, relation in zip(plain_pair(net, queries), queries.relation, strict=True):
        of_role = slice(0, d) if relation < net.n_relations else slice(d, 2 * d)
        vectors.append(F.linear(x, net.scorers[scorer, :, of_role].T, net.scorers_bias[scorer, 0, of_role]))
    return torch.stack(vectors).tanh() @ net.entity.T + tag


def contrast_of(v: Tensor, label: Tensor) -> Tensor:
    others = ~torch.eye(len(label), dtype=torch.bool)
    return contrastive_loss(v, label, likeness(label, v.dtype), others)


def test_the_frequency_feature_equals_the_dense_softmax():
    events, queries = small_case()
    counts = dense_counts(events, queries)
    assert counts.max() > 3
    assert (counts.sum(1) == 0).any(), "a query without any past must be among them"
    net = network(events)
    found = net.frequency_feature(past_of(net, events, queries))
    assert close(found, plain_frequency(net, counts))


def test_queries_that_all_lack_a_past_have_a_feature_and_a_gradient():
    events = log_of([(0, 0, 1, 3), (1, 1, 2, 3)])
    queries, net = Queries.of(events), network(events)
    found = net.frequency_feature(past_of(net, events, queries))
    assert close(found, plain_frequency(net, torch.zeros(4, 6)))
    found.sum().backward()
    assert net.frequency.grad is not None
    assert net.frequency.grad.any()


def test_the_frequency_feature_survives_large_counts():
    events = log_of([(0, 0, 1, t) for t in range(300)] + [(0, 0, 2, t) for t in range(3)])
    queries = Queries.of(events.between(299, 300))
    net = network(events)
    expected = plain_frequency(net, dense_counts(events, queries))
    assert close(net.frequency_feature(past_of(net, events, queries)), expected)


@pytest.mark.parametrize("second_bias", ["released", "described"])
def test_history_biases_equal_the_dense_tags_up_to_a_row_constant(second_bias):
    events, queries = small_case()
    net, counts = network(events, second_bias=second_bias), dense_counts(events, queries)
    for scorer, found in enumerate(logits(net, events, queries)):
        expected = plain_scorer(net, scorer, queries, counts)
        assert close(found.log_softmax(1), expected.log_softmax(1))


def test_each_scorer_drops_units_of_its_own():
    events, queries = small_case()
    net = network(events, dropout=0.5).train()
    with torch.no_grad():
        net.scorers[1], net.scorers_bias[1] = net.scorers[0], net.scorers_bias[0]
        pair, past = net.pair(queries.actor, queries.relation), past_of(net, events, queries)
        past.at.resize_(0), past.count.resize_(0)
        first, second = net.logits(pair, (queries.relation < 2)[:, None], past).view(2, len(queries), -1)
    assert not torch.isclose(first, second).all(1).any()


def test_every_block_of_the_scorers_is_drawn_like_a_layer_of_its_own():
    blocks = network(random_log(1), width=64).scorers.detach().unflatten(2, (2, 64)).transpose(1, 2).flatten(0, 1)
    bound = math.sqrt(2) * math.sqrt(6 / (3 * 64))
    assert torch.allclose(blocks.abs().amax((1, 2)), torch.tensor(bound), rtol=0.01)
    assert len({float(block.sum()) for block in blocks}) == 4


def test_the_nce_loss_is_the_log_of_both_softmaxes_together():
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 5, 7, generator=generator) * 20
    answer = torch.tensor([0, 6, 3, 3, 2])
    together = scores.double().softmax(2).sum(0)
    expected = -together[torch.arange(5), answer].log().mean()
    assert float(nce_loss(scores.view(10, 7), answer.repeat(2))) == pytest.approx(float(expected), abs=1e-4)


def slow_contrast(v: Tensor, label: list[bool]) -> float:
    n = len(v)
    dots = (v @ v.T).tolist()
    total = 0.0
    for i in range(n):
        e = [math.exp(x - max(dots[i])) + 1e-5 for x in dots[i]]
        rest = math.fsum(e[k] for k in range(n) if k != i)
        alike = [j for j in range(n) if j != i and label[j] == label[i]]
        total += math.fsum(-math.log(e[j] / rest) for j in alike) / len(alike)
    return total / n


@pytest.mark.parametrize("label", [[0, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0] * 6, [0, 0, 1, 1, 1, 1]])
def test_the_contrastive_loss_equals_a_slow_loop(label):
    v = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    flags = torch.tensor(label, dtype=torch.bool)
    assert float(contrast_of(v, flags)) == pytest.approx(slow_contrast(v, flags.tolist()), abs=1e-9)


@pytest.mark.parametrize("label", [[0, 1, 0, 0], [1, 1, 0, 1], [1, 0]])
def test_a_class_with_one_member_drops_the_contrastive_term(label):
    v = torch.randn(len(label), 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    loss = contrast_of(v, torch.tensor(label, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert v.grad is not None
    assert not v.grad.any(), "finite, and nothing but zero"


@few
@given(events=logs(min_size=1))
def test_recurring_labels_equal_a_slow_walk(events):
    queries, R = Queries.of(events), events.n_relations
    sides = [side for s, r, o, t in rows_of(events) for side in ((s, r >= R, o, t), (o, True, s, t))]
    expected = [any((a2, d2, c2) == (a, d, c) and t2 < t for a2, d2, c2, t2 in sides) for a, d, c, t in sides]
    assert recurring(queries, R, events.n_entities).tolist() == expected


def with_oracle(events, u: float, mask: str) -> Cenet:
    """An untrained CENET whose oracle always says u."""
    net = network(events, mask=mask)
    with torch.no_grad():
        net.oracle[4].weight.zero_()
        net.oracle[4].bias.fill_(math.log(u / (1 - u)))
    return Cenet(net.settings, net)


@pytest.mark.parametrize("mask", ["soft", "hard"])
@pytest.mark.parametrize("u", [0.9, 0.2])
def test_the_oracle_chooses_whom_to_trust(mask, u):
    events = log_of([(0, 0, 1, 1), (0, 1, 2, 2), (3, 0, 0, 2), (0, 0, 4, 9)], n_entities=6)
    queries = Queries(torch.tensor([0, 5]), torch.tensor([0, 0]), torch.tensor([5, 5]))
    past = Past(events)
    backbone = with_oracle(events, u, mask)
    scores = backbone.score(queries, past)
    # seen as subject before step 5, under any relation: 1 and 2; entity 3 acted on 0, and 4 comes later
    seen = torch.zeros(2, 6)
    seen[0, [1, 2]] = 1
    trusted = seen if u > 0.5 else 1 - seen
    p = logits(backbone.net, events, queries).softmax(2).sum(0)
    weight = trusted.softmax(1) if mask == "soft" else trusted
    assert close(scores.log_p, (p * weight).clamp(min=1e-12).log())
    assert close(scores.uncertainty, torch.full((2,), u))
    if mask == "hard":
        untrusted = scores.log_p[trusted == 0]
        assert torch.equal(untrusted, torch.full_like(untrusted, math.log(1e-12)))


def test_training_is_decided_by_the_seed_and_leaves_the_global_one_alone():
    dataset = small_world().dataset
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    again, other = Cenet.fit(dataset, TINY_CENET), Cenet.fit(dataset, TINY_CENET, seed=1)
    assert torch.equal(torch.rand(2), expected)
    for name, tensor in tiny_cenet().tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name
    assert not torch.equal(again.tensors()["entity"], other.tensors()["entity"])


def test_training_reads_train_alone():
    dataset = small_world().dataset
    trained = Cenet.fit(dataset.without_test(), TINY_CENET)
    only_train = Cenet.fit(
        replace(dataset, events=dataset.known.prefix(dataset.valid_start + 1), test_start=None), TINY_CENET
    )
    for name, tensor in trained.tensors().items():
        assert torch.equal(tensor, only_train.tensors()[name]), name


def test_training_makes_the_answers_likelier():
    dataset = small_world().dataset
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    settings = replace(TINY_CENET, width=16, epochs=6, dropout=0.1)
    untrained = Cenet(settings, network(dataset.events, width=16))
    trained = Cenet.fit(dataset, settings)

    def likelihood(backbone: Cenet) -> float:
        log_p = backbone.score(queries, past).log_p.log_softmax(1)
        return float(log_p[torch.arange(len(queries)), queries.answer].mean())

    assert likelihood(trained) > likelihood(untrained) + 0.1


@pytest.mark.parametrize("facts", [64, 65, 66])
def test_a_last_batch_of_a_single_fact_can_be_trained(facts):
    events = random_log(4, n=80).rows(0, facts)
    later = [(0, 0, 1, events.end), (0, 0, 2, events.end)]
    log = log_of(rows_of(events) + later, n_entities=12, n_relations=4)
    backbone = Cenet.fit(Dataset("few", log, events.end), TINY_CENET)
    assert all(t.isfinite().all() for t in backbone.tensors().values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": "firm"},
        {"second_bias": "none"},
        {"epochs": 0},
        {"width": 8193},
        {"batch": 1},
        {"alpha": 1.1},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"learning_rate": 0.0},
        {"clip": 0.0},
        {"weight_decay": -1.0},
        {"oracle_l1": -1.0},
        *(
            {name: value}
            for name in (
                "alpha",
                "dropout",
                "learning_rate",
                "weight_decay",
                "clip",
                "oracle_l1",
                "history_bias",
            )
            for value in (math.nan, math.inf)
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        CenetSettings(**wrong)


def test_a_train_split_of_a_single_fact_is_one_clear_error():
    log = log_of([(0, 0, 1, 1), (0, 0, 2, 5), (1, 1, 2, 5)])
    with pytest.raises(DataError, match=r"at least two facts.* of few has 1: give more"):
        Cenet.fit(Dataset("few", log, 5), TINY_CENET)


def test_looking_up_parameters_has_the_values_and_the_gradient_of_indexing():
    events, queries = small_case()
    net = network(events)
    plain = plain_pair(net, queries)
    assert torch.equal(net.pair(queries.actor, queries.relation), plain)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    found, expected = (
        torch.autograd.grad((x * weights).sum(), [net.entity, net.relation])
        for x in (net.pair(queries.actor, queries.relation), plain)
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert close(ours, theirs)


def test_a_saved_backbone_scores_the_same_and_draws_nothing(tmp_path):
    dataset = small_world().dataset
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    tiny_cenet().save(tmp_path / "cenet")
    state = torch.random.get_rng_state()
    again = Cenet.load(tmp_path / "cenet")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(t.is_meta for t in (*again.net.parameters(), *again.net.buffers()))
    before, after = (backbone.score(queries, past) for backbone in (tiny_cenet(), again))
    assert torch.equal(before.log_p, after.log_p)
    assert torch.equal(before.uncertainty, after.uncertainty)


def test_weights_of_another_precision_are_read_as_usual():
    doubled = {n: t.double() if t.is_floating_point() else t for n, t in tiny_cenet().tensors().items()}
    again = Cenet.restore(TINY_CENET, doubled)
    for name, tensor in tiny_cenet().tensors().items():
        assert torch.equal(again.tensors()[name], tensor), name


def trainer_of(**changes) -> _Trainer:
    """A trainer without anything left to chance, over batches of a hundred facts and a rest."""
    dataset = small_world().dataset
    net = network(dataset.events, dropout=0.0, batch=100, **changes).train()
    net.oracle[2].p = 0.0
    return _Trainer(net, dataset, Checkpoint(None, {}, net))


@pytest.mark.parametrize("second_bias", ["released", "described"])
def test_the_loss_of_a_batch_and_its_gradient_equal_a_plain_computation(second_bias):
    trainer = trainer_of(second_bias=second_bias)
    net, train = trainer.net, small_world().dataset.train
    batch = trainer.batches[-2]
    queries = Queries.of(train).take(batch.part)
    label = recurring(Queries.of(train), net.n_relations, train.n_entities)[batch.part]
    assert 1 < label.sum() < len(queries) - 1
    counts = dense_counts(train, queries)
    p = sum(plain_scorer(net, scorer, queries, counts).softmax(1) for scorer in (0, 1))
    nce = -p[torch.arange(len(queries)), queries.answer].log().mean()
    v = net.contrast(torch.cat([plain_pair(net, queries), plain_frequency(net, counts)], dim=1))
    contrast = sum(contrast_of(v[side::2], label[side::2]) for side in (0, 1)) / 2
    expected = 0.2 * nce + 0.8 * contrast
    found = trainer.loss(batch)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    trained = {name: p for name, p in net.named_parameters() if not name.startswith("oracle.")}
    gradients = (torch.autograd.grad(loss, list(trained.values())) for loss in (found, expected))
    for name, ours, theirs in zip(trained, *gradients, strict=True):
        assert close(ours, theirs, TRAINED, least=1e-4), name


def test_the_oracle_normalises_each_direction_apart():
    trainer, reference = trainer_of(), trainer_of()
    oracle, batch = reference.net.oracle, trainer.batches[1]
    features = torch.randn(len(trainer.train), 8, generator=torch.Generator().manual_seed(5))
    queries = trainer.train.take(batch.part)
    x = torch.cat([plain_pair(reference.net, queries), features[batch.part]], dim=1).detach()
    label = recurring(trainer.train, trainer.net.n_relations, trainer.net.entity.shape[0])[batch.part].float()
    fit = [F.binary_cross_entropy_with_logits(oracle(x[side::2]).squeeze(1), label[side::2]) for side in (0, 1)]
    expected = (fit[0] + fit[1]) / 2 + 0.01 * sum(p.abs().sum() for p in oracle.parameters())
    found = trainer.oracle_loss(features, batch)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, buffer in oracle.named_buffers():
        assert close(trainer.net.oracle.get_buffer(name), buffer), name


def test_batches_without_room_to_be_kept_train_the_same(monkeypatch):
    settings = replace(TINY_CENET, epochs=2)
    kept = Cenet.fit(small_world().dataset, settings)
    monkeypatch.setattr(module, "HOST_ROOM", 20_000)
    trainer = trainer_of()
    for batch in trainer.batches:
        trainer.past_of(batch)
    assert 0 < len(trainer.kept) < len(trainer.batches), "room for some, not for all"
    same_tensors(kept, Cenet.fit(small_world().dataset, settings))


THREE_EPOCHS = replace(TINY_CENET, epochs=3, oracle_epochs=3)


class KilledError(Exception):
    """Stands for whatever ends a process."""


class Killing:
    """Progress that ends the training in the middle of an epoch; it notes what each task was first told is done."""

    def __init__(self, title: str, epochs: float) -> None:
        self.title, self.epochs, self.begun = title, epochs, {}

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator:
        assert total is not None
        done = 0

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            self.begun.setdefault(label, advance * 3 / total)
            done += advance
            if label == self.title and done >= self.epochs * total / 3:
                raise KilledError

        yield step


def same_tensors(one: Cenet, other: Cenet) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


ONE, TWO = "training CENET", "training CENET's oracle"


@pytest.mark.parametrize(
    ("title", "epochs", "begun"),
    [
        (ONE, 0.5, {ONE: 0, TWO: 0}),
        (ONE, 1.5, {ONE: 1, TWO: 0}),
        (ONE, 2.5, {ONE: 2, TWO: 0}),
        (TWO, 0.5, {ONE: 3, TWO: 0}),
        (TWO, 1.5, {TWO: 1}),
        (TWO, 2.5, {TWO: 2}),
    ],
)
def test_a_killed_training_continues_to_the_very_same_weights(title, epochs, begun, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, state = small_world().dataset, tmp_path / "state"
    whole = Cenet.fit(dataset, THREE_EPOCHS)
    with pytest.raises(KilledError):
        Cenet.fit(dataset, THREE_EPOCHS, progress=Killing(title, epochs), checkpoint=state)
    watched = Killing("", 0)
    same_tensors(whole, Cenet.fit(dataset, THREE_EPOCHS, progress=watched, checkpoint=state))
    assert watched.begun == begun


@pytest.mark.filterwarnings("ignore:what is kept")
@pytest.mark.parametrize("other", ["seed", "settings", "data", "damaged"])
def test_the_state_of_another_training_is_not_used(other, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, settings, seed = small_world().dataset, THREE_EPOCHS, 42
    with pytest.raises(KilledError):
        Cenet.fit(dataset, settings, progress=Killing(TWO, 1.5), checkpoint=tmp_path / "state")
    if other == "seed":
        seed = 1
    elif other == "settings":
        settings = replace(settings, learning_rate=2e-3)
    elif other == "data":
        dataset = replace(dataset, valid_start=dataset.valid_start - 1)
    else:
        (tmp_path / "state" / "weights.safetensors").write_bytes(b"half")
    expected = Cenet.fit(dataset, settings, seed=seed)
    same_tensors(expected, Cenet.fit(dataset, settings, seed=seed, checkpoint=tmp_path / "state"))


def test_a_saved_backbone_leaves_no_state_of_its_training(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    with pytest.raises(KilledError):
        train("cenet", small_world().dataset, tmp_path / "c", THREE_EPOCHS, progress=Killing(TWO, 1.5))
    assert [path.name for path in tmp_path.iterdir()] == [".c.training"]
    (tmp_path / "..c.training.0123abcd.part").mkdir()
    trained = train("cenet", small_world().dataset, tmp_path / "c", THREE_EPOCHS)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    same_tensors(trained, Cenet.load(tmp_path / "c"))
    same_tensors(trained, Cenet.fit(small_world().dataset.without_test(), THREE_EPOCHS))


def test_a_short_training_keeps_no_state(tmp_path):
    with pytest.raises(KilledError):
        Cenet.fit(small_world().dataset, THREE_EPOCHS, progress=Killing(TWO, 1.5), checkpoint=tmp_path / "state")
    assert not Path(tmp_path / "state").exists()

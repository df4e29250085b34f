"""CENET: the sparse computations equal the dense ones of its definition."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given
from torch import Tensor

from bridgemem.backbones.cenet import Cenet, CenetNet, CenetSettings, contrastive_loss, nce_loss, recurring
from bridgemem.backbones.history import History
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.queries import Queries
from bridgemem.events.dataset import Dataset
from builders import TINY_CENET, few, log_of, logs, random_log, rows_of, small_world, tiny_cenet


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
    queries = Queries.of(events.between(10, 30))
    return events, queries, History(events).occurrences(queries.actor, queries.relation, queries.step)


def test_the_frequency_feature_equals_the_dense_softmax():
    events, queries, past = small_case()
    counts = dense_counts(events, queries)
    assert counts.max() > 3
    assert (counts.sum(1) == 0).any(), "a query without any past must be among them"
    net = network(events)
    expected = torch.tanh(counts.softmax(1) @ net.frequency + net.frequency_bias)
    assert torch.allclose(net.frequency_feature(len(queries), past), expected, atol=1e-6)


def test_the_frequency_feature_survives_large_counts():
    events = log_of([(0, 0, 1, t) for t in range(300)] + [(0, 0, 2, t) for t in range(3)])
    queries = Queries.of(events.between(299, 300))
    past = History(events).occurrences(queries.actor, queries.relation, queries.step)
    net = network(events)
    expected = torch.tanh(dense_counts(events, queries).softmax(1) @ net.frequency + net.frequency_bias)
    assert torch.allclose(net.frequency_feature(len(queries), past), expected, atol=1e-6)


@pytest.mark.parametrize("second_bias", ["released", "described"])
def test_history_biases_equal_the_dense_tags_up_to_a_row_constant(second_bias):
    events, queries, past = small_case()
    net = network(events, second_bias=second_bias)
    counts, bias = dense_counts(events, queries), net.settings.history_bias
    elsewhere = counts == 0
    tag1 = torch.where(elsewhere, -bias, bias)
    tag2 = torch.where(elsewhere, bias, counts if second_bias == "released" else -bias)
    x = torch.cat([net.entity[queries.actor], net.relation[queries.relation]], dim=1)
    for tag, scorer, found in zip((tag1, tag2), (0, 1), net.logits(queries.actor, queries.relation, past), strict=True):
        of_role = [net.scorers[scorer + 2 * int(r >= events.n_relations)] for r in queries.relation]
        vectors = torch.stack([layer(row) for layer, row in zip(of_role, x, strict=True)])
        expected = vectors.tanh() @ net.entity.T + tag
        assert torch.allclose(found.log_softmax(1), expected.log_softmax(1), atol=1e-5)


def test_the_nce_loss_is_the_log_of_both_softmaxes_together():
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 5, 7, generator=generator) * 20
    answer = torch.tensor([0, 6, 3, 3, 2])
    together = first.double().softmax(1) + second.double().softmax(1)
    expected = -together[torch.arange(5), answer].log().mean()
    assert float(nce_loss(first, second, answer)) == pytest.approx(float(expected), abs=1e-4)


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
    assert float(contrastive_loss(v, flags)) == pytest.approx(slow_contrast(v, flags.tolist()), abs=1e-9)


@pytest.mark.parametrize("label", [[0, 1, 0, 0], [1, 1, 0, 1], [1, 0], [1]])
def test_a_class_with_one_member_drops_the_contrastive_term(label):
    v = torch.randn(len(label), 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    loss = contrastive_loss(v, torch.tensor(label, dtype=torch.bool)) + 0 * v.sum()
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
    past = History(events)
    backbone = with_oracle(events, u, mask)
    scores = backbone.score(queries, past)
    # met as subject before step 5, under any relation: 1 and 2; entity 3 acted on 0, and 4 comes later
    met = torch.zeros(2, 6)
    met[0, [1, 2]] = 1
    trusted = met if u > 0.5 else 1 - met
    seen = past.occurrences(queries.actor, queries.relation, queries.step)
    first, second = backbone.net.logits(queries.actor, queries.relation, seen)
    p = first.softmax(1) + second.softmax(1)
    weight = trusted.softmax(1) if mask == "soft" else trusted
    assert torch.allclose(scores.log_p, (p * weight).clamp(min=1e-12).log(), atol=1e-5)
    assert torch.allclose(scores.uncertainty, torch.full((2,), u))
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
    queries, past = Queries.of(dataset.valid), History(dataset.events)
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
    events, queries, past = small_case()
    net = network(events)
    seen = net.query(queries.actor, queries.relation, net.frequency_feature(len(queries), past))
    plain = torch.cat([net.entity[queries.actor], net.relation[queries.relation]], dim=1)
    assert torch.equal(net.pair(queries.actor, queries.relation), plain)
    assert torch.equal(seen[:, : plain.shape[1]], plain)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    found, expected = (
        torch.autograd.grad((x * weights).sum(), [net.entity, net.relation])
        for x in (net.pair(queries.actor, queries.relation), plain)
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_saved_backbone_scores_the_same_and_draws_nothing(tmp_path):
    dataset = small_world().dataset
    queries, past = Queries.of(dataset.valid), History(dataset.events)
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
    again = Cenet.restore(asdict(TINY_CENET), doubled)
    for name, tensor in tiny_cenet().tensors().items():
        assert torch.equal(again.tensors()[name], tensor), name

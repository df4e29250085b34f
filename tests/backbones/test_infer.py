"""INFER: sparse walks over fading facts equal the dense matrices of its definition."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bridgemem.backbones import infer as module
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.infer import FIXED_POINT, ComplEx, FadingFacts, Infer, InferSettings, chunks, log_noisy_or
from bridgemem.backbones.scorer import score_queries
from bridgemem.equations import EPSILON
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training import checkpoint
from builders import few, log_of, logs, random_log, rows_of, small_world
from precision import FLOAT32, FLOAT64, close

TINY = InferSettings(walks=20, samples=40)
EMBEDDED = replace(TINY, rank=4, epochs=3, batch=200)
R = 3


@cache
def tiny_infer(embedded: bool = False) -> Infer:
    return Infer.fit(small_world().dataset, EMBEDDED if embedded else TINY)


def slow_weights(events, step: int, s: InferSettings, frozen_at: int | None = None) -> Tensor:
    """W [2R, E, E] from the definition, refreshed at each of the last steps."""
    n_relations, entities = events.n_relations, events.n_entities
    times: dict[tuple[int, int, int], set[int]] = {}
    for a, r, b, t in rows_of(events):
        times.setdefault((r, a, b), set()).add(t)
        times.setdefault((r + n_relations, b, a), set()).add(t)
    W = torch.zeros(2 * n_relations, entities, entities, dtype=torch.float64)
    for now in range(step - s.refreshes + 1, step + 1):
        cut = now if frozen_at is None else min(now, frozen_at)
        for key, seen in times.items():
            earlier = [t for t in seen if t < cut]
            if earlier:
                root = math.sqrt(len(earlier) - 1)
                b = 1 / (1 + math.exp(-root / s.temperature)) - 0.5
                W[key] = min(1.0, math.sqrt(s.unit / (now - max(earlier))) + float(W[key]) * b * root)
    return W


def dense(weights: module.Weights, events) -> Tensor:
    """The same matrices from their sparse rows."""
    W = torch.zeros(2 * events.n_relations * events.n_entities, events.n_entities, dtype=torch.float64)
    for row in range(len(W)):
        at = slice(int(weights.start[row]), int(weights.stop[row]))
        W[row, weights.candidate[at]] = weights.value[at].double()
    return W.view(-1, events.n_entities, events.n_entities)


@few
@given(
    events=logs(min_size=1, max_step=20),
    step=st.integers(0, 25),
    refreshes=st.sampled_from([1, 2, 9]),
    frozen_at=st.sampled_from([None, 0, 5, 18]),
)
def test_weights_equal_a_slow_walk_through_the_past(events, step, refreshes, frozen_at):
    settings = InferSettings(refreshes=refreshes, temperature=0.7, unit=1.5)
    found = FadingFacts(Past(events, frozen_at), settings).at(step)
    expected = slow_weights(events, step, settings, frozen_at)
    assert close(dense(found, events), expected)


def test_a_single_fact_fades_with_the_root_of_its_lag_and_frequent_ones_grow_to_one():
    rows = [(0, 0, 1, 4)] + [(2, 0, 3, t) for t in range(100) if t != 99] + [(4, 0, 5, t) for t in (10, 90)]
    events = log_of(rows, n_relations=1)
    W = dense(FadingFacts(Past(events), InferSettings()).at(108), events)
    assert float(W[0, 0, 1]) == pytest.approx(1 / math.sqrt(104))
    assert float(W[1, 1, 0]) == float(W[0, 0, 1])
    assert float(W[0, 2, 3]) == 1
    only_validity = dense(FadingFacts(Past(events), InferSettings(refreshes=1)).at(108), events)
    assert float(only_validity[0, 2, 3]) == pytest.approx(1 / math.sqrt(10))
    assert float(W[0, 4, 5]) > float(only_validity[0, 4, 5]) == pytest.approx(1 / math.sqrt(18))
    assert float(dense(FadingFacts(Past(events), InferSettings()).at(5), events)[0, 0, 1]) == 1


def slow_log_p(backbone: Infer, events, actor: int, relation: int, step: int) -> Tensor:
    """The noisy-or over all rules with dense matrices, one query, [E]."""
    s, entities = backbone.settings, events.n_entities
    W = slow_weights(events, step, s)
    rules = [(s.identity, [relation])]
    for head, body, confidence in zip(
        *(backbone.rules[name].tolist() for name in ("head", "body", "confidence")), strict=True
    ):
        if head == relation and len(rules) < s.top:
            rules.append((confidence, [r for r in body if r >= 0]))
    none = torch.ones(entities, dtype=torch.float64)
    for confidence, body in rules:
        x = torch.zeros(entities, dtype=torch.float64)
        x[actor] = 1
        for r in body:
            x = (x[:, None] * W[r]).amax(0)
        if backbone.net is not None and len(body) == 1:
            p = slow_complex(backbone.net, actor, body[0]).softmax(0)
            x = torch.where((W[body[0], actor] == 0) & (p >= s.threshold), p, x)
        none *= 1 - confidence * x
    return (1 - none).clamp(min=EPSILON).log()


def slow_complex(net: ComplEx, actor: int, relation: int) -> Tensor:
    def vectors(weight: Tensor) -> Tensor:
        re, im = weight.detach().double().chunk(2, dim=1)
        return torch.complex(re, im)

    entity = vectors(net.entity)
    return ((entity[actor] * vectors(net.relation)[relation])[None] * entity.conj()).sum(1).real


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("top", [1, 5, 40])
def test_scores_equal_dense_matrices_and_a_slow_noisy_or(rank, top):
    events = random_log(8, n=160, n_entities=9, n_relations=R)
    settings = InferSettings(
        walks=100, top=top, prune=0.0, refreshes=4, temperature=2.0, rank=rank, epochs=2, threshold=0.08
    )
    backbone = Infer.fit(Dataset("small", events, 20), settings)
    assert {1, 2, 3} == set((backbone.rules["body"] >= 0).sum(1).tolist())
    queries = Queries.of(events.between(22, 30))
    queries = queries.take(torch.arange(0, len(queries), 3))
    assert len(queries.step.unique()) > 3
    found = backbone.score(queries, Past(events)).log_p
    columns = (queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist())
    expected = torch.stack([slow_log_p(backbone, events, a, r, t) for a, r, t in zip(*columns, strict=True)])
    assert (expected > math.log(EPSILON)).float().mean() > (0.1 if top == 1 else 0.5)
    assert close(found, expected)


def test_walks_that_weigh_too_little_are_not_continued():
    # 0 -> 1 lies 9 steps back and weighs 1/3
    events = log_of([(0, 0, 1, 1), (1, 1, 2, 9)], n_relations=2)
    body = torch.tensor([[0, 1]])
    rules = {
        "head": torch.tensor([1]),
        "body": body,
        "confidence": torch.tensor([0.5], dtype=torch.float64),
        "size": torch.tensor([6, 4]),
    }
    query = Queries(torch.tensor([0]), torch.tensor([1]), torch.tensor([10]))
    for prune, expected in ((0.3, 0.5 / 3), (0.4, EPSILON)):
        backbone = Infer(InferSettings(prune=prune), rules, None)
        log_p = backbone.score(query, Past(events)).log_p[0]
        assert float(log_p[2]) == pytest.approx(math.log(expected), abs=1e-6)
        assert (log_p[[0, 1, 3, 4, 5]] == math.log(EPSILON)).all()


@pytest.mark.parametrize("embedded", [False, True])
def test_little_room_changes_no_score(embedded, monkeypatch):
    dataset, backbone = small_world().dataset, tiny_infer(embedded)
    queries, past = Queries.of(dataset.valid).take(slice(0, 24)), Past(dataset.events)
    expected = backbone.score(queries, past).log_p
    monkeypatch.setattr(module, "ROOM", {"cpu": 200})
    # products of other shapes may differ in a last bit
    assert close(backbone.score(queries, past).log_p, expected, FLOAT32 if embedded else FLOAT64)


def test_chunks_cover_everything_within_the_room():
    load = torch.tensor([3, 0, 4, 20, 0, 1, 9, 1])
    bounds = list(chunks(load, 10))
    assert [i for low, high in bounds for i in range(low, high)] == list(range(8))
    assert all(int(load[low:high].sum()) <= 10 or high == low + 1 for low, high in bounds)
    assert len(bounds) < 6
    assert list(chunks(load[:0], 10)) == []


def test_probabilities_close_to_one_and_to_zero_keep_their_order():
    evidence = torch.tensor([0.0, 1e-9, 1e-3, 0.5, 5.0, 60.0, 61.0, 200.0, 201.0], dtype=torch.float64)
    log_p = log_noisy_or((evidence * FIXED_POINT).round().long())
    assert (log_p.diff() > 0).all()
    assert float(log_p[0]) == math.log(EPSILON)
    assert close(log_p[1:5], (1 - torch.exp(-evidence[1:5])).log())
    assert log_p.isfinite().all()


@pytest.mark.parametrize("embedded", [False, True])
def test_infer_keeps_the_contract(embedded):
    check_backbone(tiny_infer(embedded), small_world().events)


def test_frozen_history_reads_nothing_after_its_step():
    dataset, backbone = small_world().dataset, tiny_infer()
    queries, at = Queries.of(dataset.valid), dataset.valid_start
    frozen = backbone.score(queries, Past(dataset.events, frozen_at=at)).log_p
    known = backbone.score(queries, Past(dataset.events.prefix(at), frozen_at=at)).log_p
    assert torch.equal(frozen, known)
    assert not torch.equal(frozen, backbone.score(queries, Past(dataset.events)).log_p)


def test_the_step_and_the_history_last_asked_for_leave_no_trace():
    dataset, backbone = small_world().dataset, tiny_infer()
    queries = Queries.of(dataset.valid)
    one, other = Past(dataset.events), Past(dataset.train)
    expected = backbone.score(queries, one).log_p
    backbone.score(queries, other)
    backbone.score(queries.take(slice(0, 3)), one)
    assert torch.equal(backbone.score(queries, one).log_p, expected)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_saved_infer_scores_the_same(embedded, tmp_path):
    dataset, backbone = small_world().dataset, tiny_infer(embedded)
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    backbone.save(tmp_path / "infer")
    state = torch.random.get_rng_state()
    again = Infer.load(tmp_path / "infer")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.settings == backbone.settings
    assert torch.equal(again.score(queries, past).log_p, backbone.score(queries, past).log_p)


def mean_rank(backbone: Infer, queries: Queries, past: Past) -> float:
    log_p = score_queries(backbone, queries, past).log_p
    own = log_p.gather(1, queries.answer[:, None])
    return float((1 + (log_p > own).sum(1) + ((log_p == own).sum(1) - 1) / 2).mean())


def planted_world() -> Dataset:
    """Relation 2 holds between a and c five steps after a did 0 to b, and b did 1 to c; all pairs are drawn anew."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for t in range(0, 300, 2):
        a, b, c = torch.randperm(30, generator=generator)[:3].tolist()
        rows += [(a, 0, b, t), (b, 1, c, t + 1), (a, 2, c, t + 5)]
    return Dataset("planted", log_of(rows, n_entities=30), 250)


def test_a_planted_rule_is_learned_and_used():
    dataset = planted_world()
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    asked = queries.take((queries.relation == 2) | (queries.relation == 5))
    # 30 entities: chance is 15.5, and a triple that never recurs leaves the identity rule there
    assert mean_rank(Infer.fit(dataset, replace(TINY, top=1)), asked, past) > 11
    assert mean_rank(Infer.fit(dataset, replace(TINY, walks=200)), asked, past) < 5


def test_fitting_reads_train_alone_and_is_decided_by_the_seed():
    dataset = small_world().dataset
    only_train = replace(dataset, events=dataset.known.prefix(dataset.valid_start + 1), test_start=None)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    same = Infer.fit(only_train, EMBEDDED)
    assert torch.equal(torch.rand(2), expected)
    same_tensors(tiny_infer(embedded=True), same)
    other = Infer.fit(dataset, EMBEDDED, seed=1)
    assert not torch.equal(other.tensors()["entity"], same.tensors()["entity"])


def same_tensors(one: Infer, other: Infer) -> None:
    assert one.tensors().keys() == other.tensors().keys()
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


class KilledError(Exception):
    """Stands for whatever ends a process."""


class Killing:
    """Progress that ends the training of the embedding in the middle of an epoch, and notes where it began."""

    def __init__(self, epochs: float) -> None:
        self.epochs, self.begun = epochs, -1.0

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[object]:
        done, training = 0, label == "training INFER's embedding"

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            if training and self.begun < 0:
                self.begun = advance * EMBEDDED.epochs / total
            done += advance
            if training and 0 < self.epochs * total / EMBEDDED.epochs <= done:
                raise KilledError

        yield step


@pytest.mark.parametrize(("epochs", "begun"), [(0.5, 0), (1.5, 1), (2.5, 2)])
def test_a_killed_training_continues_to_the_very_same_weights(epochs, begun, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset = small_world().dataset
    with pytest.raises(KilledError):
        Infer.fit(dataset, EMBEDDED, progress=Killing(epochs), checkpoint=tmp_path / "state")
    watched = Killing(0)
    same_tensors(
        tiny_infer(embedded=True), Infer.fit(dataset, EMBEDDED, progress=watched, checkpoint=tmp_path / "state")
    )
    assert watched.begun == begun


def test_the_embedding_scores_and_penalises_as_complex_numbers_do():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ComplEx(7, 2, 5)
        with torch.no_grad():
            net.entity.normal_()
            net.relation.normal_()
    triple = torch.tensor([[0, 3, 2], [6, 0, 6], [2, 1, 0]])
    logits = torch.stack([slow_complex(net, a, r) for a, r, _ in triple.tolist()])
    assert close(net.logits(triple[:, 0], triple[:, 1])[0].double(), logits)

    def modulus(weight: Tensor, rows: Tensor) -> Tensor:
        return torch.complex(*weight.detach().double().chunk(2, dim=1))[rows].abs().pow(3).sum(1)

    cubes = modulus(net.entity, triple[:, 0]) + modulus(net.relation, triple[:, 1]) + modulus(net.entity, triple[:, 2])
    fit = -logits.log_softmax(1)[torch.arange(3), triple[:, 2]].mean()
    assert float(net.loss(triple, 0.1).detach()) == pytest.approx(float(fit + 0.1 * cubes.mean()), rel=1e-5)


def test_a_zero_of_the_embedding_has_a_finite_gradient():
    net = ComplEx(4, 1, 2)
    torch.nn.init.zeros_(net.entity)
    net.loss(torch.tensor([[0, 0, 1]]), 0.1).backward()
    assert net.entity.grad is not None
    assert net.entity.grad.isfinite().all()


def test_training_the_embedding_makes_its_loss_smaller():
    train = small_world().dataset.train
    queries = Queries.of(train)
    triples = torch.stack([queries.actor, queries.relation, queries.answer], dim=1)
    losses = [
        float(Infer.fit(small_world().dataset, replace(EMBEDDED, epochs=epochs)).net.loss(triples, 0.0).detach())
        for epochs in (1, 4, 12)
    ]
    assert losses[0] > losses[1] + 0.01
    assert losses[1] > losses[2] + 0.01
    assert losses[2] < math.log(train.n_entities) - 0.1


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("longest", "walks", "samples", "min_support", "top", "refreshes", "epochs", "batch")),
        {"rank": -1},
        {"rank": 8193},
        {"refreshes": 8193},
        {"identity": 0.0},
        {"identity": 1.0},
        {"temperature": 0.0},
        {"unit": 0.0},
        {"learning_rate": 0.0},
        {"min_confidence": 1.0},
        {"prune": -0.1},
        {"threshold": 1.0},
        {"penalty": -1.0},
        *(
            {name: value}
            for name in (
                "temperature",
                "unit",
                "learning_rate",
                "min_confidence",
                "prune",
                "threshold",
                "identity",
                "penalty",
            )
            for value in (math.nan, math.inf)
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        InferSettings(**wrong)


def test_a_train_split_of_a_single_fact_can_be_fitted():
    events = log_of([(0, 0, 1, 1), (0, 0, 2, 5), (1, 1, 2, 5)])
    backbone = Infer.fit(Dataset("few", events, 5), TINY)
    log_p = backbone.score(Queries.of(events.between(5, 6)), Past(events)).log_p
    assert int(log_p[0].argmax()) == 1, "the one thing that was known: 0 did it to 1"


def test_without_any_past_every_candidate_is_as_unlikely_as_any():
    dataset = small_world().dataset
    queries = Queries.of(dataset.valid).take(slice(0, 4))
    log_p = tiny_infer().score(queries, Past(dataset.events.prefix(0))).log_p
    assert (log_p == math.log(EPSILON)).all()

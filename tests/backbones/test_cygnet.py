"""CyGNet: copy and generation as defined, trained sparsely, resumed exactly, and never ahead of its time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bridgemem.backbones import cygnet as module
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.cygnet import BOTH, Cygnet, CygnetNet, CygnetSettings, _Trainer
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import Step
from bridgemem.training import checkpoint
from bridgemem.training.checkpoint import Checkpoint
from builders import log_of, random_log, rows_of, small_world
from precision import TRAINED, close

TINY = CygnetSettings(width=8, epochs=1, batch=32)


@cache
def few_days() -> Dataset:
    """The beginning of the small world, of train, validation and test."""
    return Dataset("few days", small_world().events.prefix(24), 16, 20)


@cache
def tiny_cygnet() -> Cygnet:
    """A CyGNet trained on a few days: far from good, but with every part in place."""
    return Cygnet.fit(few_days(), TINY)


def network(events: EventLog, settings: CygnetSettings = TINY) -> CygnetNet:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return CygnetNet(events.n_entities, events.n_relations, settings)


def trainer_of(dataset: Dataset, settings: CygnetSettings = TINY) -> _Trainer:
    net = network(dataset.events, settings)
    return _Trainer(net, dataset, Checkpoint(None, {}, net))


def same_tensors(one: Cygnet, other: Cygnet) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def vocabularies(events: EventLog, queries: Queries, until: float = math.inf) -> list[set[int]]:
    """The history vocabulary of each query, found by walking over all events."""
    sides = [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + events.n_relations, s, t))]
    asked = zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True)
    return [{c for a2, r2, c, t2 in sides if (a2, r2) == (a, r) and t2 < min(t, until)} for a, r, t in asked]


def slow_log_p(net: CygnetNet, actor: int, relation: int, step: int, vocabulary: set[int]) -> list[float]:
    """log(alpha c + (1 - alpha) g) of every entity, number by number."""
    side, of_side = divmod(relation, net.n_relations)
    time = [(step + 1) * u for u in net.time[side, 0].tolist()]
    m = [*net.entity[side, actor].tolist(), *net.relation[side, of_side].tolist(), *time]

    def linear(mode: int) -> list[float]:
        rows, biases = net.modes[mode, side].tolist(), net.modes_bias[mode, side, 0].tolist()
        return [math.fsum(w * x for w, x in zip(row, m, strict=True)) + b for row, b in zip(rows, biases, strict=True)]

    def softmax(logits: list[float]) -> list[float]:
        powers = [math.exp(x - max(logits)) for x in logits]
        return [power / math.fsum(powers) for power in powers]

    c = softmax([math.tanh(x) - 100 * (e not in vocabulary) for e, x in enumerate(linear(0))])
    g, alpha = softmax(linear(1)), net.settings.alpha
    return [math.log(alpha * copied + (1 - alpha) * generated) for copied, generated in zip(c, g, strict=True)]


@pytest.mark.parametrize("frozen_at", [None, 12])
def test_scores_equal_a_slow_computation_of_the_definition(frozen_at: int | None) -> None:
    events = random_log(6, n=120, n_entities=10, n_relations=2)
    queries = Queries.of(events.between(10, 20))
    seen = vocabularies(events, queries, frozen_at or math.inf)
    assert any(not vocabulary for vocabulary in seen), "a query without any past must be among them"
    assert max(map(len, seen)) > 3
    backbone = Cygnet(TINY, network(events))
    found = backbone.score(queries, Past(events, frozen_at)).log_p
    assert close(found.exp().sum(1), torch.ones(len(queries)))
    asked = zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), seen, strict=True)
    expected = torch.tensor([slow_log_p(backbone.net, *query) for query in asked])
    assert close(found, expected, 0.0001)


def test_without_a_past_the_copy_mode_is_spread_over_all_entities() -> None:
    net = network(random_log(1, n_entities=50))
    query = net.query(slice(0, 1), torch.tensor([[4]]), torch.tensor([[1]]), torch.tensor([[3]]))
    copy, _ = net.logits(slice(0, 1), query, torch.empty(0, dtype=torch.int64))
    c = copy.detach().softmax(1)
    assert float(c.max() / c.min()) < math.e**2
    assert float(c.sum()) == pytest.approx(1)


def test_candidates_of_the_vocabulary_share_the_whole_copy_mode() -> None:
    net = network(random_log(1, n_entities=50))
    query = net.query(slice(1, 2), torch.tensor([[4, 5]]), torch.tensor([[6, 7]]), torch.tensor([[3, 3]]))
    copy, _ = net.logits(slice(1, 2), query, torch.tensor([7, 50 + 8, 50 + 9]))
    c = copy.detach().softmax(1)
    assert float(c[0, 7]) == 1
    assert float(c[1, [8, 9]].sum()) == 1


def test_neither_model_reads_the_weights_of_the_other() -> None:
    events = random_log(2)
    queries, past = Queries.of(events.between(20, 30)), Past(events)
    net = network(events)
    before = Cygnet(TINY, net).score(queries, past).log_p
    with torch.no_grad():
        for table in (net.entity, net.relation, net.time):
            table[1] += 1
        for weights in (net.modes, net.modes_bias):
            weights[:, 1] *= 2
    after = Cygnet(TINY, net).score(queries, past).log_p
    assert torch.equal(before[0::2], after[0::2]), "queries for objects"
    assert not torch.isclose(before[1::2], after[1::2]).all(1).any(), "queries for subjects"


def test_every_table_is_drawn_as_if_it_were_alone() -> None:
    net = CygnetNet(400, 30, CygnetSettings(width=64))
    for table, rows in ((net.entity, 400), (net.relation, 30), (net.time, 1)):
        bound = math.sqrt(2) * math.sqrt(6 / (rows + 64))
        assert torch.allclose(table.abs().amax((1, 2)), torch.tensor(bound), rtol=0.1)
        assert not torch.equal(table[0], table[1])
    largest = torch.cat([net.modes.abs().amax((2, 3)), net.modes_bias.abs().amax((2, 3))])
    assert torch.allclose(largest, torch.tensor(1 / math.sqrt(3 * 64)), rtol=0.02)


def test_batches_follow_time_and_never_hold_two_steps() -> None:
    train = few_days().train
    trainer = trainer_of(few_days())
    facts = [
        (int(s), int(r), int(o), int(t))
        for batch in trainer.batches
        for s, r, o, t in zip(batch.actor[0], batch.relation[0], batch.actor[1], batch.step[0], strict=True)
    ]
    assert facts == rows_of(train)
    sizes = [batch.actor.shape[1] for batch in trainer.batches]
    assert max(sizes) == TINY.batch, "a step of more facts is cut"
    for batch in trainer.batches:
        assert len(batch.step.unique()) == 1
        assert torch.equal(batch.relation[0] + train.n_relations, batch.relation[1])
        assert torch.equal(batch.answer, batch.actor.flip(0).flatten())


def queries_of(trainer: _Trainer, number: int) -> Queries:
    """The object queries of a batch, then its subject queries."""
    batch = trainer.batches[number]
    return Queries(batch.actor.flatten(), batch.relation.flatten(), batch.step.flatten(), batch.answer)


def test_training_reads_the_vocabularies_that_scoring_reads() -> None:
    train = few_days().train
    trainer = trainer_of(few_days())
    past = Past(train)
    for number, batch in enumerate(trainer.batches):
        queries, seen = queries_of(trainer, number), trainer.seen(number)
        assert len(seen) == batch.size == len(seen.unique())
        found = past.occurrences(queries.actor, queries.relation, queries.step)
        assert set(seen.tolist()) == set((found.row * train.n_entities + found.candidate).tolist())
    expected = vocabularies(train, queries)
    assert sum(map(len, expected)) == len(seen)
    assert all(cell % train.n_entities in expected[cell // train.n_entities] for cell in seen.tolist())


def plain_loss(net: CygnetNet, queries: Queries, seen: list[set[int]]) -> Tensor:
    """The mean loss of each of the two models, from dense tensors and one query at a time, added up."""
    assert queries.answer is not None
    losses: list[list[Tensor]] = [[], []]
    for i, vocabulary in enumerate(seen):
        side, relation = divmod(int(queries.relation[i]), net.n_relations)
        time = (int(queries.step[i]) + 1) * net.time[side, 0].detach()
        m = torch.cat([net.entity[side, queries.actor[i]], net.relation[side, relation], time])
        h = torch.tensor([float(e in vocabulary) for e in range(net.n_entities)])
        copy, generation = (net.modes[mode, side] @ m + net.modes_bias[mode, side, 0] for mode in (0, 1))
        p = 0.8 * (copy.tanh() - 100 * (1 - h)).softmax(0) + 0.2 * generation.softmax(0)
        losses[side].append(-p[queries.answer[i]].log())
    total = torch.zeros(())
    for side in (0, 1):
        size = sum(table[side].square().mean() for table in (net.entity, net.relation, net.time))
        total = total + torch.stack(losses[side]).mean() + 0.01 * size
    return total


def test_the_loss_of_a_batch_and_its_gradient_equal_a_plain_computation() -> None:
    trainer = trainer_of(few_days())
    net, number = trainer.net, len(trainer.batches) // 4
    queries = queries_of(trainer, number)
    seen = vocabularies(few_days().train, queries)
    assert any(seen)
    assert not all(seen)
    found, expected = trainer.loss(number), plain_loss(net, queries, seen)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    parameters = dict(net.named_parameters())
    gradients = (torch.autograd.grad(loss, list(parameters.values())) for loss in (found, expected))
    for name, ours, theirs in zip(parameters, *gradients, strict=True):
        assert close(ours, theirs, TRAINED, least=1e-4), name


def test_training_equals_a_plain_loop_over_the_steps() -> None:
    events, settings = random_log(5, n=60, n_entities=6, n_relations=2), replace(TINY, epochs=2, learning_rate=0.02)
    dataset = Dataset("plain", events, 25)
    trained = Cygnet.fit(dataset, settings, seed=3)
    net = network(events, settings)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02, amsgrad=True)
    for step in 2 * sorted({t for *_, t in rows_of(dataset.train)}):
        queries = Queries.of(events.between(step, step + 1))
        optimizer.zero_grad()
        plain_loss(net, queries, vocabularies(events, queries)).backward()
        optimizer.step()
    for name, tensor in trained.tensors().items():
        assert close(tensor, net.state_dict()[name], 0.0001), name


def test_training_only_shrinks_the_direction_of_time() -> None:
    trainer = trainer_of(few_days())
    gradient = torch.autograd.grad(trainer.loss(3), trainer.net.time)[0]
    assert close(gradient, 0.01 * 2 * trainer.net.time / TINY.width, 1e-4, least=1e-6)


def test_batches_without_room_to_be_kept_train_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(TINY, epochs=2)
    kept = Cygnet.fit(few_days(), settings)
    monkeypatch.setattr(module, "HOST_ROOM", 8_000)
    trainer = trainer_of(few_days())
    for number in range(len(trainer.batches)):
        trainer.seen(number)
    assert 0 < len(trainer.kept) < len(trainer.batches), "room for some, not for all"
    same_tensors(kept, Cygnet.fit(few_days(), settings))


def test_cygnet_keeps_the_contract() -> None:
    check_backbone(tiny_cygnet(), small_world().events)


def test_a_frozen_past_gives_the_scores_of_its_last_day() -> None:
    events = small_world().events
    queries = Queries.of(events.between(55, 60))
    frozen = tiny_cygnet().score(queries, Past(events, frozen_at=50)).log_p
    assert torch.equal(frozen, tiny_cygnet().score(queries, Past(events.prefix(50))).log_p)
    assert not torch.equal(frozen, tiny_cygnet().score(queries, Past(events)).log_p)


def test_queries_of_one_side_or_none_can_be_scored() -> None:
    events = small_world().events
    queries, past = Queries.of(events.between(50, 51)), Past(events)
    whole = tiny_cygnet().score(queries, past).log_p
    for rows in (slice(0, None, 2), slice(1, None, 2), slice(0, 0)):
        part = tiny_cygnet().score(queries.take(rows), past).log_p
        assert part.shape == whole[rows].shape
        assert close(part, whole[rows])


def ruled_world() -> Dataset:
    """Twenty actors under two relations: the object is always seven more under one, three times as much under other."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for step in range(30):
        for s, r in zip(*(torch.randint(n, (12,), generator=generator).tolist() for n in (20, 2)), strict=True):
            rows.append((s, r, (s + 7) % 20 if r == 0 else 3 * s % 20, step))
    return Dataset("ruled", log_of(rows, n_entities=20, n_relations=2), 25)


def reciprocal_rank(backbone: Cygnet, queries: Queries, past: Past) -> float:
    log_p = backbone.score(queries, past).log_p
    assert queries.answer is not None
    own = log_p.gather(1, queries.answer[:, None])
    return float((1 / (1 + (log_p > own).sum(1))).mean())


def test_the_generation_mode_learns_a_rule_and_needs_no_past_for_it() -> None:
    dataset = ruled_world()
    settings = CygnetSettings(width=16, epochs=15, learning_rate=0.01)
    trained, chance = Cygnet.fit(dataset, settings), sum(1 / rank for rank in range(1, 21)) / 20
    queries = Queries.of(dataset.valid)
    assert reciprocal_rank(Cygnet(settings, network(dataset.events, settings)), queries, Past(dataset.events, 0)) < (
        2 * chance
    )
    assert reciprocal_rank(trained, queries, Past(dataset.events, 0)) > 4 * chance
    assert reciprocal_rank(trained, queries, Past(dataset.events)) > 0.9


def test_training_makes_the_loss_small() -> None:
    dataset, settings = few_days(), replace(TINY, width=16, epochs=3)

    def mean_loss(net: CygnetNet) -> float:
        trainer = _Trainer(net, dataset, Checkpoint(None, {}, net))
        with torch.no_grad():
            return float(torch.stack([trainer.loss(number) for number in range(len(trainer.batches))]).mean())

    losses = [mean_loss(Cygnet.fit(dataset, replace(settings, epochs=epochs)).net) for epochs in (1, 2, 3)]
    assert mean_loss(network(dataset.events, settings)) > losses[0] > losses[1] > losses[2]


def test_training_is_decided_by_the_seed_and_leaves_the_global_one_alone() -> None:
    dataset = few_days()
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    again, other = Cygnet.fit(dataset, TINY), Cygnet.fit(dataset, TINY, seed=1)
    assert torch.equal(torch.rand(2), expected)
    same_tensors(tiny_cygnet(), again)
    assert not torch.equal(again.tensors()["entity"], other.tensors()["entity"])


def test_training_reads_train_alone() -> None:
    dataset = few_days()
    shorter = replace(dataset, events=dataset.known.prefix(dataset.valid_start + 1), test_start=None)
    same_tensors(tiny_cygnet(), Cygnet.fit(shorter, TINY))


def test_time_is_counted_from_the_first_step_of_train() -> None:
    dataset = few_days()
    late = replace(dataset.events, step=dataset.events.step + 2000)
    shifted = Dataset("later", late, dataset.valid_start + 2000, 2020)
    moved, usual = Cygnet.fit(shifted, TINY), tiny_cygnet()
    expected = usual.score(Queries.of(dataset.valid), Past(dataset.events)).log_p
    assert torch.equal(moved.score(Queries.of(shifted.valid), Past(late)).log_p, expected)


def test_a_single_fact_can_be_trained_on() -> None:
    log = log_of([(0, 0, 1, 1), (0, 0, 2, 5), (1, 1, 2, 5)])
    backbone = Cygnet.fit(Dataset("few", log, 5), TINY)
    assert all(tensor.isfinite().all() for tensor in backbone.tensors().values())


def test_a_saved_backbone_scores_the_same_and_draws_nothing(tmp_path: Path) -> None:
    dataset = few_days()
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    tiny_cygnet().save(tmp_path / "cygnet")
    state = torch.random.get_rng_state()
    again = Cygnet.load(tmp_path / "cygnet")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.settings == TINY
    assert torch.equal(tiny_cygnet().score(queries, past).log_p, again.score(queries, past).log_p)


def test_weights_in_half_precision_are_read_as_usual() -> None:
    dataset = few_days()
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    halved = Cygnet.restore(
        TINY, {k: t.half() if t.is_floating_point() else t for k, t in tiny_cygnet().tensors().items()}
    )
    assert all(tensor.dtype == torch.float32 for name, tensor in halved.tensors().items() if name != "first")
    assert close(halved.score(queries, past).log_p, tiny_cygnet().score(queries, past).log_p, 0.05)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 8193},
        {"batch": 0},
        {"epochs": 0},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"learning_rate": 0.0},
        {"l2": -1.0},
        *({name: value} for name in ("alpha", "learning_rate", "l2") for value in (math.nan, math.inf)),
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        CygnetSettings(**wrong)


THREE_EPOCHS = replace(TINY, epochs=3)


class KilledError(Exception):
    """Stands for whatever ends a process."""


class Killing:
    """Progress that ends a training of three epochs in the middle; it notes how many epochs it was first told of."""

    def __init__(self, epochs: float) -> None:
        self.epochs, self.begun = epochs, -1.0

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        assert total is not None
        done = 0

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            done += advance
            if self.begun < 0:
                self.begun = advance * 3 / total
            if done > self.epochs * total / 3:
                raise KilledError

        yield step


@pytest.mark.parametrize(("killed", "begun"), [(0.5, 0), (1.5, 1), (2.5, 2)])
def test_a_killed_training_continues_to_the_very_same_weights(
    killed: float, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, state = few_days(), tmp_path / "state"
    with pytest.raises(KilledError):
        Cygnet.fit(dataset, THREE_EPOCHS, progress=Killing(killed), checkpoint=state)
    watched = Killing(math.inf)
    resumed = Cygnet.fit(dataset, THREE_EPOCHS, progress=watched, checkpoint=state)
    assert watched.begun == begun
    same_tensors(Cygnet.fit(dataset, THREE_EPOCHS), resumed)


@pytest.mark.filterwarnings("ignore:what is kept")
@pytest.mark.parametrize("other", ["seed", "settings", "data"])
def test_the_state_of_another_training_is_not_used(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, settings, seed = few_days(), THREE_EPOCHS, 42
    with pytest.raises(KilledError):
        Cygnet.fit(dataset, settings, progress=Killing(1.5), checkpoint=tmp_path / "state")
    if other == "seed":
        seed = 1
    elif other == "settings":
        settings = replace(settings, alpha=0.5)
    else:
        dataset = replace(dataset, valid_start=dataset.valid_start - 1)
    watched = Killing(math.inf)
    again = Cygnet.fit(dataset, settings, seed=seed, progress=watched, checkpoint=tmp_path / "state")
    assert watched.begun == 0
    same_tensors(Cygnet.fit(dataset, settings, seed=seed), again)


def test_both_models_answer_in_one_call_as_they_do_one_by_one() -> None:
    trainer = trainer_of(few_days())
    net, batch = trainer.net, trainer.batches[-1]
    nothing = torch.empty(0, dtype=torch.int64)
    together = net.logits(BOTH, net.query(BOTH, batch.actor, batch.relation, batch.step), nothing)
    for side in (0, 1):
        this = slice(side, side + 1)
        alone = net.logits(this, net.query(this, batch.actor[this], batch.relation[this], batch.step[this]), nothing)
        for both, one in zip(together, alone, strict=True):
            assert close(both.unflatten(0, (2, -1))[side], one)

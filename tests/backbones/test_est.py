"""EST: what is computed for whole batches equals a slow walk through its definition, event by event."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.est import EncoderLayer, Est, EstNet, EstSettings, _Trainer, learning_rate
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import Step
from bridgemem.training import checkpoint
from bridgemem.training.checkpoint import Checkpoint
from builders import dataset_of, log_of, random_log, rows_of
from precision import TRAINED, close

TINY_EST = EstSettings(width=8, time_width=4, k=5, layers=2, heads=2, hidden=8, epochs=3, batch=200)


@cache
def small() -> Dataset:
    return dataset_of(random_log(9, n=400))


@cache
def tiny_est() -> Est:
    return Est.fit(small(), TINY_EST)


def network(events: EventLog, settings: EstSettings = TINY_EST) -> EstNet:
    """An untrained network with strong opinions, biases and the states of every other entity."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = EstNet(events.n_entities, events.n_relations, settings).eval()
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.5)
        nn.init.normal_(net.slow[::2])
        nn.init.normal_(net.fast[::2])
    net.period.copy_(torch.tensor([2.0, 20.0]))
    return net


def sides(events: EventLog) -> list[tuple[int, int, int, int]]:
    """(actor, directed relation, tail, step) of both sides of every event, in total order."""
    R = events.n_relations
    return [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]


def torch_layer(layer: EncoderLayer, settings: EstSettings) -> nn.TransformerEncoderLayer:
    """Torch's own Transformer layer with the same weights."""
    own = nn.TransformerEncoderLayer(
        settings.width, settings.heads, settings.hidden, settings.dropout, activation="relu", batch_first=True
    )
    own.self_attn.load_state_dict(
        {
            "in_proj_weight": layer.qkv.weight,
            "in_proj_bias": layer.qkv.bias,
            "out_proj.weight": layer.out.weight,
            "out_proj.bias": layer.out.bias,
        }
    )
    own.linear1, own.linear2 = layer.inner, layer.outer
    own.norm1, own.norm2 = layer.norm_attention, layer.norm_outer
    return own.eval()


def slow_delta(net: EstNet, time: float) -> Tensor:
    inner, _, outer = net.delta
    return outer(inner(torch.tensor([math.log(1 + time)])).clamp(min=0))


def slow_node(net: EstNet, entity: int) -> Tensor:
    """The entity's vector, gated with its normalised state where it has one."""
    n, z = net.entity[entity], net.slow[entity]
    if z.abs().sum() <= 1e-6:
        return n
    zn = (z - z.mean()) / torch.sqrt(z.var(unbiased=False) + 1e-5)
    g = torch.sigmoid(net.fusion(torch.cat([n, zn])))
    return g * n + (1 - g) * zn


def slow_context(net: EstNet, events: EventLog, actor: int, relation: int, step: int, until: int) -> Tensor:
    """The context of one query, from its own events alone: no padding, no batch."""
    s, verb = net.settings, net.relation[relation]
    past = [(r, o, t) for a, r, o, t in sides(events) if a == actor and t < until][-s.k :]
    if not past:
        return torch.zeros(s.width)
    place = min(max((step - 2) / 20, 0), 1)
    qv = torch.tanh(net.query(torch.cat([net.entity[actor], verb, slow_delta(net, place)])))
    tokens = []
    for slot, (r, o, t) in enumerate(past, start=s.k - len(past)):
        n = torch.tanh(net.struct(torch.cat([slow_node(net, o), net.relation[r]])))
        x = net.token(torch.cat([n, net.relation[r], slow_delta(net, (step - t) * s.time_unit)]))
        tokens.append(x + net.hyper(verb) + net.position[slot])
    seq = torch.stack(tokens)[None]
    for layer in net.encoder:
        assert isinstance(layer, EncoderLayer)
        seq = torch_layer(layer, s)(seq)
    seq = net.norm(seq)[0]
    fit = [torch.tanh(net.attention(torch.cat([x, qv]))) for x in seq]
    share = torch.cat(fit).softmax(0)
    return (share[:, None] * seq).sum(0)


def rows(queries: Queries) -> list[tuple[int, int, int]]:
    return list(zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True))


@pytest.mark.parametrize("frozen", [None, 12])
def test_scores_equal_a_slow_walk_through_the_definition(frozen: int | None) -> None:
    events = random_log(5, n=90, n_entities=16)
    net, queries = network(events), Queries.of(events.between(2, 29))
    with torch.no_grad():
        contexts = [
            slow_context(net, events, a, r, t, t if frozen is None else min(t, frozen)) for a, r, t in rows(queries)
        ]
        verbs = net.relation[queries.relation]
        expected = torch.stack([(c * v) @ net.entity.T for c, v in zip(contexts, verbs, strict=True)]).log_softmax(1)
    lengths = {sum(a == b and t2 < t for b, _, _, t2 in sides(events)) for a, _, t in rows(queries)}
    assert {0, 1, 5} <= lengths, "no event, one, exactly k"
    assert max(lengths) > 5
    found = Est(TINY_EST, net).score(queries, Past(events, frozen)).log_p
    assert close(found, expected, 0.0001)


def test_an_actor_without_events_has_every_answer_alike() -> None:
    events = log_of([(0, 0, 1, 3), (2, 1, 3, 9)])
    queries = Queries(torch.tensor([2, 0]), torch.tensor([1, 0]), torch.tensor([9, 9]))
    unknown, known = Est(TINY_EST, network(events)).score(queries, Past(events)).log_p
    assert close(unknown, torch.full((6,), -math.log(6)))
    assert known.std() > 0.01


def test_a_past_without_any_event_can_be_asked() -> None:
    events = log_of([(0, 0, 1, 3)])
    queries = Queries(*(torch.tensor([1]) for _ in range(3)))
    found = Est(TINY_EST, network(events)).score(queries, Past(events.prefix(0))).log_p
    assert close(found, torch.full((1, 6), -math.log(6)))


def test_states_are_written_as_by_a_loop_over_the_actors() -> None:
    events = random_log(1)
    net = network(events)
    actor = torch.tensor([3, 0, 3, 5, 0, 3])
    context = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)) * 0.4
    fast, slow = net.fast.clone(), net.slow.clone()
    for entity in {0, 3, 5}:
        fast[entity] = 0.8 * fast[entity] + 0.2 * context[actor == entity].mean(0)
        difference = fast[entity] - slow[entity]
        slow[entity] += torch.sigmoid(8 * (difference.norm() - 0.7)) * difference
    assert not close(slow[3], fast[3], 0.01), "a gate that is neither open nor shut"
    net.write(actor, context)
    assert close(net.fast, fast)
    assert close(net.slow, slow)


def trainer_of(events: EventLog, **changes: Any) -> _Trainer:
    """A trainer of an untrained network without anything left to chance."""
    settings = replace(TINY_EST, dropout=0.0, **changes)
    net = network(events, settings).train()
    return _Trainer(net, Dataset("small", events, 25), Checkpoint(None, {}, net))


@pytest.mark.parametrize(("mask_past", "spare"), [(True, 0), (True, 2000), (False, 0)])
def test_the_loss_and_its_gradient_equal_a_plain_computation(mask_past: bool, spare: int) -> None:
    events = random_log(6, n=250)
    trainer = trainer_of(events, mask_past=mask_past)
    net, train = trainer.net, Queries.of(events.prefix(25))
    queries = train.take(torch.arange(150, 260))
    assert queries.answer is not None
    masked = torch.zeros(len(queries), events.n_entities, dtype=torch.bool)
    for row, (a, r, t) in enumerate(rows(queries)):
        for a2, r2, c, t2 in sides(events):
            masked[row, c] |= (a2, r2) == (a, r) and t2 < t
    assert masked[torch.arange(len(queries)), queries.answer].any(), "answers that came before must be among them"
    masked[torch.arange(len(queries)), queries.answer] = False
    tokens = Past(events).last_events(queries.actor, queries.step, 5)
    scores = net.scores(*net.context(queries.actor, queries.relation, queries.step, tokens))
    expected = F.cross_entropy(scores.masked_fill(masked, -1e9) if mask_past else scores, queries.answer)
    batch = trainer.queries[:, 150:260]
    # as in an epoch another batch of which masks more
    found, context = trainer.loss(batch, int((batch[7] - batch[6]).sum()) + spare)
    assert not context.requires_grad
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    gradients = (torch.autograd.grad(loss, list(net.parameters())) for loss in (found, expected))
    for (name, _), ours, theirs in zip(net.named_parameters(), *gradients, strict=True):
        assert close(ours, theirs, TRAINED, least=1e-4), name


def test_every_query_is_in_every_epoch() -> None:
    trainer = trainer_of(random_log(2), batch=37)
    found, n = trainer.shuffled(), trainer.queries.shape[1]
    assert n % 37
    assert found.shape == (8, n // 37 + 1, 37)
    seen, expected = ({tuple(row) for row in table.flatten(1).T.tolist()} for table in (found, trainer.queries))
    assert seen == expected


def test_the_learning_rate_warms_up_and_ends_at_a_tenth() -> None:
    settings = EstSettings(epochs=20, learning_rate=1.0)
    rates = [learning_rate(epoch, settings) for epoch in range(1, 21)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[10] == pytest.approx(0.55)
    assert rates[19] == pytest.approx(0.1)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert learning_rate(1, replace(settings, epochs=1)) == 0.5


def world_of_couples() -> Dataset:
    """Everybody has one partner, at all times and in all relations; 20 entities."""
    rng = np.random.default_rng(0)
    subject = rng.integers(20, size=700)
    columns = (subject, rng.integers(3, size=700), subject ^ 1, rng.integers(30, size=700))
    return dataset_of(log_of(np.stack(columns, axis=1).tolist(), n_entities=20))


class Watching:
    """Progress that keeps the notes."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            if note is not None:
                self.losses.append(float(note.removeprefix("loss ")))

        yield step


def test_a_world_with_one_rule_is_learned() -> None:
    dataset, watching = world_of_couples(), Watching()
    settings = replace(TINY_EST, width=32, layers=1, batch=64, epochs=5, learning_rate=2e-2)
    backbone = Est.fit(dataset, settings, progress=watching)
    queries = Queries.of(dataset.valid)
    assert queries.answer is not None
    log_p = backbone.score(queries, Past(dataset.events)).log_p
    rank = 1 + (log_p > log_p.gather(1, queries.answer[:, None])).sum(1)
    assert float((1 / rank).mean()) > 0.9, "by chance it would be 0.18"
    assert len(watching.losses) == 5
    assert watching.losses[0] > watching.losses[2] > watching.losses[4]


def test_est_keeps_the_contract() -> None:
    check_backbone(tiny_est(), small().events)


def test_training_writes_states_and_scoring_leaves_them_alone() -> None:
    dataset, backbone = small(), tiny_est()
    before = {name: tensor.clone() for name, tensor in backbone.net.state_dict().items()}
    assert before["slow"].any()
    backbone.score(Queries.of(dataset.valid), Past(dataset.events))
    for name, tensor in backbone.net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_states_are_part_of_the_scores() -> None:
    dataset, backbone = small(), tiny_est()
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    without = Est.restore(TINY_EST, {**backbone.tensors(), "slow": torch.zeros_like(backbone.net.slow)})
    assert not close(backbone.score(queries, past).log_p, without.score(queries, past).log_p, 0.0001)


def test_another_history_is_read_anew() -> None:
    dataset, backbone = small(), tiny_est()
    queries = Queries.of(dataset.valid)
    whole, shorter = Past(dataset.events), Past(dataset.train)
    first, second, third = (backbone.score(queries, past).log_p for past in (whole, shorter, whole))
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


def same_tensors(one: Est, other: Est) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def test_training_is_decided_by_the_seed_and_leaves_the_global_one_alone() -> None:
    dataset = small()
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    again, other = Est.fit(dataset, TINY_EST), Est.fit(dataset, TINY_EST, seed=1)
    assert torch.equal(torch.rand(2), expected)
    same_tensors(tiny_est(), again)
    assert not torch.equal(again.tensors()["entity"], other.tensors()["entity"])


def test_training_reads_train_alone() -> None:
    dataset = small()
    only_train = replace(dataset, events=dataset.known.prefix(dataset.valid_start + 1), test_start=None)
    same_tensors(tiny_est(), Est.fit(only_train, TINY_EST))


def test_a_train_split_of_a_single_fact_can_be_trained() -> None:
    backbone = Est.fit(Dataset("few", log_of([(0, 0, 1, 1), (0, 0, 2, 5)]), 5), TINY_EST)
    assert all(tensor.isfinite().all() for tensor in backbone.tensors().values())


def test_a_saved_backbone_scores_the_same_and_draws_nothing(tmp_path: Path) -> None:
    dataset = small()
    queries, past = Queries.of(dataset.valid), Past(dataset.events)
    tiny_est().save(tmp_path / "est")
    state = torch.random.get_rng_state()
    again = Est.load(tmp_path / "est")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(t.is_meta for t in (*again.net.parameters(), *again.net.buffers()))
    assert torch.equal(again.score(queries, past).log_p, tiny_est().score(queries, past).log_p)


def test_weights_of_another_precision_are_read_as_usual() -> None:
    doubled = {name: tensor.double() for name, tensor in tiny_est().tensors().items()}
    same_tensors(tiny_est(), Est.restore(TINY_EST, doubled))


class KilledError(Exception):
    """Stands for whatever ends a process."""


class Killing:
    """Progress that ends the training after that many of its three epochs; it notes how many were done at the start."""

    def __init__(self, epochs: float) -> None:
        self.epochs, self.begun = epochs, -1.0

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        assert total is not None
        done = 0

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            if self.begun < 0:
                self.begun = advance * 3 / total
            done += advance
            if done >= self.epochs * total / 3:
                raise KilledError

        yield step


@pytest.mark.parametrize(("epochs", "begun"), [(0.5, 0), (1.5, 1), (2.5, 2)])
def test_a_killed_training_continues_to_the_very_same_weights(
    epochs: float, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, watched = small(), Killing(math.inf)
    with pytest.raises(KilledError):
        Est.fit(dataset, TINY_EST, progress=Killing(epochs), checkpoint=tmp_path / "state")
    same_tensors(tiny_est(), Est.fit(dataset, TINY_EST, progress=watched, checkpoint=tmp_path / "state"))
    assert watched.begun == begun


@pytest.mark.filterwarnings("ignore:what is kept")
@pytest.mark.parametrize("other", ["seed", "settings", "data"])
def test_the_state_of_another_training_is_not_used(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, settings, seed = small(), TINY_EST, 42
    with pytest.raises(KilledError):
        Est.fit(dataset, settings, progress=Killing(1.5), checkpoint=tmp_path / "state")
    if other == "seed":
        seed = 1
    elif other == "settings":
        settings = replace(settings, alpha=0.5)
    else:
        dataset = replace(dataset, valid_start=dataset.valid_start - 1)
    watched = Killing(math.inf)
    Est.fit(dataset, settings, seed=seed, progress=watched, checkpoint=tmp_path / "state")
    assert watched.begun == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("width", "time_width", "k", "layers", "heads", "hidden", "batch", "epochs")),
        {"width": 8196},
        {"time_width": 8193},
        {"hidden": 8193},
        {"k": 1025},
        {"heads": 3},
        {"alpha": 1.1},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"learning_rate": 0.0},
        {"time_unit": 0.0},
        {"scale": -1.0},
        {"weight_decay": -1.0},
        {"threshold": -0.1},
        *(
            {name: value}
            for name in ("alpha", "dropout", "learning_rate", "weight_decay", "time_unit", "threshold", "scale")
            for value in (math.nan, math.inf)
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        EstSettings(**wrong)

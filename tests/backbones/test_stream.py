"""Stream: what is computed for whole batches equals a slow walk through its definition, event by event."""

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
from torch import Tensor, nn

from bridgemem.backbones import load_backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.ensemble import CountingStream, TrainedSettings
from bridgemem.backbones.open_vocabulary import OpenVocabulary
from bridgemem.backbones.stream import (
    Block,
    Stream,
    StreamNet,
    StreamSettings,
    Words,
    _Trainer,
    learning_rate,
    shared_words,
)
from bridgemem.backbones.typed import RecurrenceTyped
from bridgemem.config import Settings
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.queries import Queries, renumbered
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.model import Model
from bridgemem.memory.overlay import Overlay
from bridgemem.memory.past import Past
from bridgemem.progress import Step
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import learning_of
from bridgemem.storage.schema import override
from bridgemem.training import checkpoint
from bridgemem.training.checkpoint import Checkpoint
from builders import dataset_of, log_of, random_log, rows_of
from precision import FLOAT32, close

TINY = StreamSettings(width=8, k=5, heads=2, negatives=0, epochs=3, batch=200)


@cache
def small() -> Dataset:
    return dataset_of(random_log(9, n=400))


@cache
def tiny() -> Stream:
    return Stream.fit(small(), TINY)


def network(events: EventLog, settings: StreamSettings = TINY) -> StreamNet:
    """An untrained network with strong opinions and biases."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = StreamNet(events.n_entities, events.n_relations, settings).eval()
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.5)
    return net


def past_of(events: EventLog, actor: int, until: int, k: int) -> list[tuple[int, int, int]]:
    """(directed relation, partner, step) of an actor's last k sides of events."""
    R = events.n_relations
    sides = [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]
    return [(r, c, t) for a, r, c, t in sides if a == actor and t < until][-k:]


def slow_attention(block: Block, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Head by head with keys and values of its own, as attention is usually written."""
    d, asked = len(x), block.norm_look(x)
    made, shares = block.take.bias.clone(), []
    for head in range(block.heads):
        own = slice(head * d, (head + 1) * d)
        query = block.look.weight[own] @ asked + block.look.bias[own]
        share = torch.stack([query @ token / math.sqrt(d) for token in tokens]).softmax(0)
        values = [block.take.weight[:, own] @ token for token in tokens]
        made = made + sum(s * v for s, v in zip(share, values, strict=True))
        shares.append(share)
    x = x + made
    return x + block.outer(block.inner(block.norm_inner(x)).clamp(min=0)), torch.stack(shares).mean(0)


def slow_scores(
    net: StreamNet, events: EventLog, query: tuple[int, int, int], until: int
) -> tuple[Tensor, list[Tensor]]:
    """The scores of one query from its own events alone, no padding and no batch; and the attention of every block."""
    actor, relation, step = query
    past = past_of(events, actor, until, net.settings.k)
    tokens = []
    for r, c, t in past:
        lag = step - t
        span = net.lag[int(math.log2(max(lag, 1)))] + math.log(1 + lag) * net.log_lag
        tokens.append(net.norm_token(net.entity[c] + net.relation[r] + span))
    tokens.append(net.norm_token(net.nothing))
    x, attention = net.entity[actor] + net.asked[relation], []
    for block in net.blocks:
        assert isinstance(block, Block)
        x, share = slow_attention(block, x, torch.stack(tokens))
        attention.append(share[:-1])
    x = net.norm(x)
    scores = net.entity @ net.final(x) + net.popularity
    for (_, c, _), token in zip(past, tokens, strict=False):
        scores[c] += token @ net.copy(x) / math.sqrt(net.settings.width)
    return scores, attention


def rows(queries: Queries) -> list[tuple[int, int, int]]:
    return list(zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True))


@pytest.mark.parametrize("frozen", [None, 12])
def test_scores_and_attention_equal_a_slow_walk_through_the_definition(frozen: int | None) -> None:
    events = random_log(5, n=90, n_entities=16)
    net, queries = network(events), Queries.of(events.between(2, 29))
    backbone, past = Stream(TINY, net), Past(events, frozen)
    found, read = backbone.score(queries, past).log_p, backbone.read(queries, past)
    lengths = set()
    with torch.no_grad():
        for row, (a, r, t) in enumerate(rows(queries)):
            scores, attention = slow_scores(net, events, (a, r, t), t if frozen is None else min(t, frozen))
            assert close(found[row], scores.log_softmax(0), 0.0001)
            looked = torch.stack(attention).mean(0)
            own = read.events.found[row]
            assert close(read.attention[row][own], looked, 0.0001, least=1e-4)
            assert not read.attention[row][~own].any()
            assert not read.added[row][~own].any()
            lengths.add(len(looked))
    assert {0, 1, 5} <= lengths, "no event, one, exactly k"


def test_an_actor_without_events_is_answered_from_its_own_vector() -> None:
    events = log_of([(0, 0, 1, 3), (2, 1, 3, 9)])
    backbone = Stream(TINY, network(events))
    asked = Queries(torch.tensor([2, 4]), torch.tensor([1, 1]), torch.tensor([9, 9]))
    read = backbone.read(asked, Past(events))
    assert not read.events.found.any()
    assert not read.attention.any()
    one, other = backbone.score(asked, Past(events)).log_p
    assert one.isfinite().all()
    assert not close(one, other, 0.01)


def test_a_past_without_any_event_can_be_asked() -> None:
    events = log_of([(0, 0, 1, 3)])
    queries = Queries(*(torch.tensor([1]) for _ in range(3)))
    assert Stream(TINY, network(events)).score(queries, Past(events.prefix(0))).log_p.isfinite().all()


def test_a_base_with_a_delta_scores_as_one_log() -> None:
    events = random_log(5, n=300)
    backbone, queries = Stream(TINY, network(events)), Queries.of(events.between(20, 30))
    overlay = Past(Overlay(events.prefix(17), events.between(17, events.end)))
    assert torch.equal(backbone.score(queries, overlay).log_p, backbone.score(queries, Past(events)).log_p)


def trainer_of(events: EventLog, **changes: Any) -> _Trainer:
    """A trainer of an untrained network without anything left to chance."""
    certain = dict.fromkeys(("dropout", "token_dropout", "event_dropout", "actor_dropout"), 0.0)
    settings = replace(TINY, **{**certain, **changes})
    net = network(events, settings).train()
    return _Trainer(net, Dataset("small", events, 25), Checkpoint(None, {}, net))


def test_with_every_entity_drawn_once_the_sampled_loss_and_its_gradient_are_the_whole_ones() -> None:
    events = random_log(6, n=250)
    trainer = trainer_of(events)
    net, batch = trainer.net, trainer.queries[:, 150:300]
    actor, relation, step, answer, start, stop = batch.unbind(0)
    read = net(actor, relation, trainer.events.in_slices(start, stop, step, TINY.k))
    partners = [set(p[f].tolist()) for p, f in zip(read.events.partner, read.events.found, strict=True)]
    assert any(len(own) < int(f.sum()) for own, f in zip(partners, read.events.found, strict=True)), "partners repeat"
    assert any(a in own for a, own in zip(answer.tolist(), partners, strict=True))
    order = torch.randperm(events.n_entities)
    # every entity twice, at half of its weight each
    drawn, weight = order.repeat(2), torch.full((2 * len(order),), -math.log(2))
    expected, found = trainer.loss(batch), net.sampled_loss(read, answer, drawn, weight)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    gradients = (torch.autograd.grad(loss, list(net.parameters())) for loss in (found, expected))
    for (name, _), ours, theirs in zip(net.named_parameters(), *gradients, strict=True):
        assert close(ours, theirs, 0.001, least=1e-4), name


def test_the_sampled_sum_is_right_in_expectation() -> None:
    trainer = trainer_of(random_log(6, n=250), negatives=4)
    net, batch = trainer.net, trainer.queries[:, 150:300]
    one = torch.tensor([0, 40, 120])
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        actor, relation, step, answer, start, stop = batch[:, one].unbind(0)
        for row in range(len(one)):
            own = slice(row, row + 1)
            events = trainer.events.in_slices(start[own], stop[own], step[own], TINY.k)
            scores = net.scores(net(actor[own], relation[own], events))
            expected = (scores.logsumexp(1) - scores[:, answer[row]]).exp()
            odds = torch.stack([trainer.loss(batch[:, one[own]]).exp() for _ in range(3000)]).mean()
            assert float(odds / expected) == pytest.approx(1, abs=0.1)


def test_every_query_is_in_every_epoch() -> None:
    trainer = trainer_of(random_log(2), batch=37)
    found, n = trainer.shuffled(), trainer.queries.shape[1]
    assert n % 37
    assert found.shape == (6, n // 37 + 1, 37)
    seen, expected = ({tuple(row) for row in table.flatten(1).T.tolist()} for table in (found, trainer.queries))
    assert seen == expected


def test_the_learning_rate_warms_up_and_ends_near_nothing() -> None:
    rates = [learning_rate(done / 100, replace(TINY, learning_rate=1.0)) for done in range(100)]
    assert rates[0] == pytest.approx(0.01)
    assert max(rates) == pytest.approx(1.0)
    assert rates[:16] == sorted(rates[:16])
    assert rates[15:] == sorted(rates[15:], reverse=True)
    assert rates[99] < 0.02


def world_of_couples() -> Dataset:
    """Everybody has one partner, at all times and in all relations; 20 entities."""
    rng = np.random.default_rng(0)
    subject = rng.integers(20, size=700)
    columns = (subject, rng.integers(3, size=700), subject ^ 1, rng.integers(30, size=700))
    return dataset_of(log_of(np.stack(columns, axis=1).tolist(), n_entities=20))


class Watching:
    """Progress that keeps the notes, and ends the training after that many of its three epochs."""

    def __init__(self, epochs: float = math.inf) -> None:
        self.epochs, self.begun, self.losses = epochs, -1.0, list[float]()

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        assert total is not None
        done = 0

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            if note is not None:
                self.losses.append(float(note.removeprefix("loss ")))
            if self.begun < 0:
                self.begun = advance * 3 / total
            done += advance
            if done >= self.epochs * total / 3:
                raise KilledError

        yield step


class KilledError(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("negatives", [0, 6])
def test_a_world_with_one_rule_is_learned(negatives: int) -> None:
    dataset, watching = world_of_couples(), Watching()
    settings = replace(TINY, width=32, batch=64, epochs=4, learning_rate=1e-2, negatives=negatives)
    backbone = Stream.fit(dataset, settings, progress=watching)
    queries = Queries.of(dataset.valid)
    assert queries.answer is not None
    log_p = backbone.score(queries, Past(dataset.events)).log_p
    rank = 1 + (log_p > log_p.gather(1, queries.answer[:, None])).sum(1)
    assert float((1 / rank).mean()) > 0.9, "by chance it would be 0.18"
    assert len(watching.losses) == 4
    assert watching.losses[0] > 2 * watching.losses[-1]


def test_it_keeps_the_contract() -> None:
    check_backbone(tiny(), small().events)


def same_tensors(one: Stream, other: Stream) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def test_training_is_decided_by_the_seed_and_leaves_the_global_one_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    again, other = Stream.fit(small(), TINY), Stream.fit(small(), TINY, seed=1)
    assert torch.equal(torch.rand(2), expected)
    same_tensors(tiny(), again)
    assert not torch.equal(again.tensors()["entity"], other.tensors()["entity"])


def test_training_reads_train_alone() -> None:
    dataset = small()
    only_train = replace(dataset, events=dataset.known.prefix(dataset.valid_start + 1), test_start=None)
    same_tensors(tiny(), Stream.fit(only_train, TINY))


def test_a_train_split_of_a_single_fact_can_be_trained() -> None:
    backbone = Stream.fit(Dataset("few", log_of([(0, 0, 1, 1), (0, 0, 2, 5)]), 5), replace(TINY, negatives=3))
    assert all(tensor.isfinite().all() for tensor in backbone.tensors().values())


def test_a_saved_backbone_scores_the_same_and_draws_nothing(tmp_path: Path) -> None:
    queries, past = Queries.of(small().valid), Past(small().events)
    tiny().save(tmp_path / "stream")
    state = torch.random.get_rng_state()
    again = load_backbone(tmp_path / "stream")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(again.score(queries, past).log_p, tiny().score(queries, past).log_p)


@pytest.mark.parametrize(("epochs", "begun"), [(0.5, 0), (1.5, 1), (2.5, 2)])
def test_a_killed_training_continues_to_the_very_same_weights(
    epochs: float, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    settings, watched = replace(TINY, negatives=3), Watching()
    with pytest.raises(KilledError):
        Stream.fit(small(), settings, progress=Watching(epochs), checkpoint=tmp_path / "state")
    resumed = Stream.fit(small(), settings, progress=watched, checkpoint=tmp_path / "state")
    same_tensors(Stream.fit(small(), settings), resumed)
    assert watched.begun == begun


@pytest.mark.filterwarnings("ignore:what is kept")
@pytest.mark.parametrize("other", ["seed", "settings", "data"])
def test_the_state_of_another_training_is_not_used(other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, settings, seed = small(), TINY, 42
    with pytest.raises(KilledError):
        Stream.fit(dataset, settings, progress=Watching(1.5), checkpoint=tmp_path / "state")
    if other == "seed":
        seed = 1
    elif other == "settings":
        settings = replace(settings, dropout=0.5)
    else:
        dataset = replace(dataset, valid_start=dataset.valid_start - 1)
    watched = Watching()
    Stream.fit(dataset, settings, seed=seed, progress=watched, checkpoint=tmp_path / "state")
    assert watched.begun == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("blocks", "heads", "batch", "epochs", "learning_rate")),
        *(
            {"dropout": 1.0},
            {"event_dropout": -0.1},
            {"token_dropout": 1.0},
            {"actor_dropout": 1.0},
            {"most_queries": 0},
            {"negatives": -1},
            {"width": 8, "heads": 3},
            {"k": -1},
            {"k": 1025},
            {"width": 8196},
        ),
        *({name: math.nan} for name in ("dropout", "event_dropout", "learning_rate")),
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        StreamSettings(**wrong)


def test_counting_and_stream_are_two_members_of_one_backbone(tmp_path: Path) -> None:
    own = {"recurrence-typed": RecurrenceTyped.default, "stream": TINY}
    settings = TrainedSettings(tuple(own), own=own)
    both = CountingStream.fit(small(), settings)
    assert CountingStream.default.members == settings.members
    queries, past = Queries.of(small().valid), Past(small().events)
    members = both.score(queries, past).members
    assert members is not None
    alone = (RecurrenceTyped.fit(small()), tiny())
    for member, backbone in zip(members, alone, strict=True):
        assert close(member, backbone.score(queries, past).log_p.log_softmax(1).double(), FLOAT32)
    both.save(tmp_path / "both")
    again = load_backbone(tmp_path / "both")
    assert again.name == "counting+stream"
    assert torch.equal(again.score(queries, past).log_p, both.score(queries, past).log_p)
    check_backbone(both, small().events)


def test_more_queries_get_fewer_epochs_but_two() -> None:
    settings = StreamSettings(epochs=6, most_queries=1000)
    assert [settings.epochs_on(n) for n in (0, 100, 200, 333, 5000)] == [6, 6, 5, 3, 2]
    assert replace(settings, epochs=1).epochs_on(5000) == 1
    watched = Watching()
    trained = 2 * len(small().train)
    Stream.fit(small(), replace(TINY, epochs=9, most_queries=4 * trained), progress=watched)
    assert len(watched.losses) == 4


def test_without_its_own_vector_an_actor_is_read_from_its_events_alone() -> None:
    events = random_log(6, n=250)
    net = trainer_of(events, actor_dropout=0.999).net
    one, other = torch.tensor([1]), torch.tensor([2])
    read = Past(events).last_events(one, torch.tensor([events.end]), TINY.k)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert torch.equal(net(one, one, read).state, net(other, one, read).state)
    net.eval()
    assert not torch.equal(net(one, one, read).state, net(other, one, read).state)


def test_what_it_looked_at_is_shown_also_in_an_ensemble_and_a_wider_vocabulary() -> None:
    events = small().events
    queries = Queries.of(events.between(28, 29)).unanswered()
    query, past = queries.take(torch.tensor([0])), Past(events)
    found, read = tiny().attended(query, past), tiny().read(query, past)
    kept = read.events.found[0]
    assert kept.any()
    assert torch.equal(found.attention, read.attention[0, kept])
    assert torch.equal(found.added, read.added[0, kept])
    assert 0 < float(found.attention.sum()) < 1
    both = CountingStream(CountingStream.default, [RecurrenceTyped.fit(small()), tiny()])
    ensemble = both.attended(query, past)
    assert ensemble is not None
    assert torch.equal(ensemble.partner, found.partner)
    assert RecurrenceTyped.fit(small()).attended(query, past) is None
    # two relations more: inverse ones have other numbers, and what a newcomer did was not read
    R = events.n_relations
    wider = replace(events, relations=Vocabulary("relation", (*events.relations.names, "new", "newer")))
    asked = replace(query, relation=renumbered(query.relation, R, R + 2))
    around = OpenVocabulary(tiny(), events.n_entities, R)
    wide = around.attended(asked, Past(wider))
    assert wide is not None
    assert torch.equal(wide.relation, renumbered(found.relation, R, R + 2))
    assert around.attended(replace(asked, relation=torch.tensor([R])), Past(wider)) is None


def test_settings_of_a_member_are_set_by_its_name(tmp_path: Path) -> None:
    settings = override(CountingStream.default, ["stream.width=16", "stream.epochs=1", "recurrence-typed.triple=3"])
    each = settings.each()
    assert each["stream"] == replace(StreamSettings(), width=16, epochs=1)
    assert each["recurrence-typed"].triple == 3
    made = CountingStream.fit(small(), override(settings, ["stream.k=3"]))
    assert made.settings.own["stream"].k == 3
    made.save(tmp_path / "made")
    assert load_backbone(tmp_path / "made").settings == made.settings
    for wrong, said in {
        "stream.widt=3": r"^--set: there is no setting called 'widt' \(did you mean width\?\)",
        "strem.width=3": "'strem.width=3' names none of the members; known are recurrence-typed, stream",
        "stream.width=x": "width must be a whole number",
        "width=3": "there is no setting called 'width'",
    }.items():
        with pytest.raises(SettingsError, match=said):
            override(CountingStream.default, [wrong])


def test_counting_and_stream_are_cross_fitted_unless_told_otherwise() -> None:
    settings = override(CountingStream.default, ["stream.width=8", "stream.k=3", "stream.epochs=1"])
    shares = {}
    for asked in (0.0, 0.4):
        own = LearnedSettings(epochs=1, cross_fit=asked, fitted_under="raw")
        reader = Settings(max_epochs=1)
        model = Forecaster("counting+stream", settings=reader, learned_settings=own, backbone_settings=settings)
        parts = model.fit(small()).parts
        assert isinstance(parts, Model)
        fits = parts.fits
        shares[asked] = fits["raw"].model.settings.cross_fit, fits["raw"].queries
    assert shares[0.0][0] == CountingStream.learning["cross_fit"] == 0.2
    assert shares[0.4][0] == 0.4
    assert shares[0.4][1] > shares[0.0][1] > 2 * len(small().valid)


def test_a_backbone_says_what_of_the_learning_is_left_at_its_default() -> None:
    both = CountingStream(CountingStream.default, [RecurrenceTyped.fit(small()), tiny()])
    assert learning_of(both) == replace(LearnedSettings(), **CountingStream.learning)
    asked = learning_of(both, LearnedSettings(train_queries=500, hidden=8))
    assert (asked.train_queries, asked.valid_queries, asked.hidden) == (500, 120_000, 8)
    assert learning_of(both.members[0]) == LearnedSettings()


def test_sizes_that_are_not_given_are_left_to_the_device(tmp_path: Path) -> None:
    assert [Stream.sized(StreamSettings(), device).width for device in ("cuda:0", "cpu")] == [256, 64]
    made = Stream.fit(small(), {"k": 3, "epochs": 1})
    assert (made.settings.width, made.settings.k) == (64, 3)
    made.save(tmp_path / "stream")
    assert Stream.load(tmp_path / "stream").settings == made.settings


@pytest.mark.parametrize("residual", ["bridgemem", "learned"])
def test_an_explanation_names_the_events_it_looked_at_most(residual: str) -> None:
    dataset, reader, own = small(), Settings(max_epochs=1), LearnedSettings(epochs=1, fitted_under="raw")
    model = Forecaster(tiny(), residual=residual, settings=reader, learned_settings=own).fit(dataset)
    events, names = dataset.events, dataset.events.entities.names
    found = model.explain(3, 1, 5, at=events.end, candidate="subject").attended
    query = Queries(torch.tensor([5]), torch.tensor([1 + events.n_relations]), torch.tensor([events.end]))
    seen = tiny().attended(query, Past(events))
    assert [e.attention for e in found] == sorted(seen.attention.tolist(), reverse=True)
    first = int(seen.attention.argmax())
    inverse, relation = divmod(int(seen.relation[first]), events.n_relations)
    sides = [names[5], names[int(seen.partner[first])]]
    assert [found[0].subject, found[0].object] == (sides[::-1] if inverse else sides)
    assert (found[0].relation, found[0].lag) == (events.relations.names[relation], int(seen.lag[first]))
    assert found[0].time == events.clock.label(events.end - found[0].lag)


NAMES = ("Police (India)", "Army (India)", "Police_(Peru)", "Ban Ki-moon", "police, PERU", "Q17")


def test_the_words_that_names_share_are_found_whatever_stands_between_them() -> None:
    index, words = shared_words(NAMES)
    assert words == 3, "india, peru and police; no other word is in two names"
    assert index.tolist() == [[0, 2], [0, 3], [1, 2], [3, 3], [1, 2], [3, 3]]
    alone, none = shared_words(("Q1", "Q2"))
    assert (alone.shape, none) == ((2, 0), 0)


def test_words_are_the_mean_of_a_name_and_become_part_of_the_vectors() -> None:
    net = network(log_of([(0, 0, 1, 3), (2, 1, 5, 9)]))
    net.words = Words(NAMES, TINY.width)
    india, peru, police = net.words.word
    before, added = net.entity.detach().clone(), net.words().detach()
    assert close(added[0], (india + police).detach() / 2)
    assert close(added[4], (peru + police).detach() / 2)
    assert not added[3].any()
    net.fold()
    assert net.words is None
    assert torch.equal(net.entity, before + added)


def test_training_learns_words_and_leaves_none_behind() -> None:
    events = small().events
    named = replace(
        events, entities=Vocabulary("entity", tuple(f"team {i % 3}" + "!" * i for i in range(len(events.entities))))
    )
    made = {
        words: Stream.fit(replace(small(), events=named), replace(TINY, epochs=1, words=words))
        for words in (True, False)
    }
    assert all(stream.net.words is None for stream in made.values())
    assert not torch.equal(made[True].net.entity, made[False].net.entity)

"""Path encoders: the flat links of a batch equal a slow walk, and what TPAR and CSI share keeps its promises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.backbones import paths
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.csi import Csi, CsiSettings
from bridgemem.backbones.paths import Links, PathBackbone, RelativeTime, late_queries, walk
from bridgemem.backbones.scorer import score_queries
from bridgemem.backbones.tpar import Tpar, TparSettings
from bridgemem.errors import BackboneError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training import checkpoint
from builders import dataset_of, few, log_of, logs, random_log, rows_of, small_world
from precision import close

BOTH = pytest.mark.parametrize("kind", [Tpar, Csi])
TINY = {"width": 8, "attention": 6, "edges": (12, 6), "window": 40, "batch": 64, "epochs": 2}


def tiny(kind: type[PathBackbone], **changes) -> TparSettings | CsiSettings:
    return replace(kind.default, **{**TINY, **changes})


def slow_recent(events: EventLog, entity: int, until: int, most: int, window: int) -> list[tuple[int, int, int]]:
    """(relation, destination, step) of the last links that leave an entity before a step."""
    R = events.n_relations
    sides = [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]
    return [(r, o, t) for s, r, o, t in sides if s == entity and until - window <= t < until][-most:]


@few
@given(events=logs(), asked=st.integers(0, 90), frozen=st.sampled_from([None, 30]), window=st.sampled_from([5, 90]))
def test_the_links_of_a_batch_equal_a_slow_walk_for_each_query(events, asked, frozen, window):
    edges, E, R = (3, 2), events.n_entities, events.n_relations
    actor, step = torch.arange(E), torch.arange(E) % 3 + asked
    past = Past(events, frozen)
    hops = walk(Links.of(events, "cpu"), actor, step, past.cut(step), edges, window)
    for row, (a, t) in enumerate(zip(actor.tolist(), step.tolist(), strict=True)):
        until = t if frozen is None else min(t, frozen)
        before, nodes = [a], {a}
        for hop, most in zip(hops, edges, strict=True):
            expected = {(e, e, 2 * R, 0) for e in nodes}
            for e in nodes:
                recent = slow_recent(events, e, until, most, window)
                expected |= {(e, o, r, min(t - t2, window)) for r, o, t2 in recent}
            nodes = {o for _, o, _, _ in expected}
            mine = hop.row == row
            assert hop.entity[mine].tolist() == sorted(nodes)
            # the node that each link enters, from where the links of the nodes begin
            node = torch.searchsorted(hop.first, torch.arange(len(hop.parts)).int(), right=True) - 1
            source, relation, lag = (hop.parts - torch.tensor([0, len(hop.asker), len(hop.asker) + 2 * R + 1])).T
            own = hop.row[node] == row
            start = int((hop.asker < row).sum())
            columns = (source[own] - start, hop.entity[node[own]], relation[own], lag[own])
            found = [(before[s], o, r, n) for s, o, r, n in zip(*(c.tolist() for c in columns), strict=True)]
            assert set(found) == expected
            assert hop.entity[hop.kept[hop.asker == row]].tolist() == before
            before = sorted(nodes)


def test_only_the_most_recent_links_inside_the_window_are_passed_on():
    events = log_of([(0, 0, 1, 1), (0, 0, 2, 5), (0, 1, 3, 6), (0, 2, 4, 6), (0, 0, 5, 9)])
    actor, step = torch.tensor([0]), torch.tensor([9])

    def reached(most: int, window: int) -> list[int]:
        return walk(Links.of(events, "cpu"), actor, step, step, (most,), window)[0].entity.tolist()

    assert reached(9, 90) == [0, 1, 2, 3, 4]
    assert reached(9, 4) == [0, 2, 3, 4]
    assert reached(9, 3) == [0, 3, 4]
    assert reached(3, 90) == [0, 2, 3, 4]
    assert reached(1, 90) == [0, 4], "of one step, the last in the file is the most recent"


def test_relative_time_equals_its_formula():
    encoder = RelativeTime(TparSettings(width=5, window=7, time_unit=2.0))
    table = encoder()
    assert table.shape == (8, 5)
    for lag in range(8):
        for i in range(5):
            omega_p, phi_p, omega_n, phi_n = (float(p[i].detach()) for p in encoder.parameters())
            D = -lag / 2
            expected = math.sin(omega_p * D + phi_p) + omega_n * D + phi_n
            assert float(table[lag, i].detach()) == pytest.approx(expected, abs=1e-5)


def test_the_latest_facts_supply_the_training_queries():
    events = log_of([(0, 0, 1, t) for t in range(10)])
    assert late_queries(events, 0.3).step.tolist() == [7, 7, 8, 8, 9, 9]
    assert late_queries(events, 1.0).step.tolist() == [t for t in range(10) for _ in range(2)]
    assert late_queries(events, 1e-9).step.tolist() == [9, 9]
    assert late_queries(events, 1.0, 4).step.tolist() == [8, 8, 9, 9]
    assert late_queries(events, 0.1, 4).step.tolist() == [9, 9]


@BOTH
@pytest.mark.parametrize("gru", [True, False])
def test_the_contract_is_kept(kind, gru):
    world = small_world()
    check_backbone(kind.fit(world.dataset, tiny(kind, gru=gru, epochs=1, late=0.2)), world.events)


@BOTH
def test_queries_of_several_steps_in_parts_of_a_batch_score_as_alone(kind, monkeypatch):
    events = random_log(5)
    backbone = kind.fit(dataset_of(events), tiny(kind, epochs=1))
    queries = Queries.of(events.between(18, 30)).unanswered()
    together = backbone.score(queries, Past(events)).log_p
    monkeypatch.setattr(paths, "ROWS", 3)
    assert close(backbone.score(queries, Past(events)).log_p, together)
    assert backbone.score(queries.take(slice(0, 0)), Past(events)).log_p.shape == (0, events.n_entities)


@BOTH
def test_what_is_not_reached_is_finite_and_below_all_that_is(kind):
    events = log_of([(0, 0, 1, 1), (1, 1, 2, 2), (3, 0, 4, 3)], n_entities=7)
    backbone = kind(tiny(kind), kind.network(3, tiny(kind)))
    # 0 reaches 1 and 2; 6 has no past and reaches nobody but itself
    queries = Queries(torch.tensor([0, 6]), torch.tensor([0, 4]), torch.tensor([5, 5]))
    for factor in (1.0, -1.0, 1e6):
        with torch.no_grad():
            for name, weight in backbone.net.named_parameters():
                if name in ("out.weight", "causal_out.weight"):
                    weight.mul_(factor)
        log_p = backbone.score(queries, Past(events)).log_p
        assert log_p.isfinite().all()
        for row, reached in ((0, [0, 1, 2]), (1, [6])):
            others = [e for e in range(7) if e not in reached]
            assert len(log_p[row, others].unique()) == 1
            assert log_p[row, others].max() < log_p[row, reached].min()


@BOTH
def test_the_past_of_one_history_is_not_taken_for_that_of_another(kind):
    events = random_log(7)
    backbone = kind.fit(dataset_of(events), tiny(kind, epochs=1))
    queries = Queries.of(events.between(25, 30)).unanswered()
    rolling, frozen, short = Past(events), Past(events, 12), Past(events.prefix(12))
    first, second, third = (backbone.score(queries, past).log_p for past in (rolling, frozen, short))
    assert not torch.equal(first, second)
    assert torch.equal(second, third)
    assert torch.equal(backbone.score(queries, rolling).log_p, first)


@BOTH
def test_data_with_other_relations_is_refused(kind):
    backbone = kind(tiny(kind), kind.network(3, tiny(kind)))
    events = random_log(7, n_relations=4)
    with pytest.raises(BackboneError, match="3 relations and is asked about 4"):
        backbone.score(Queries.of(events), Past(events))


@BOTH
@pytest.mark.parametrize("gru", [True, False])
def test_a_saved_backbone_scores_the_same_and_draws_nothing(kind, gru, tmp_path):
    events = random_log(3)
    trained = kind.fit(dataset_of(events), tiny(kind, epochs=1, gru=gru))
    trained.save(tmp_path / "saved")
    state = torch.random.get_rng_state()
    again = kind.load(tmp_path / "saved")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert again.settings == trained.settings
    queries = Queries.of(events.between(20, 30)).unanswered()
    before, after = (backbone.score(queries, Past(events)).log_p for backbone in (trained, again))
    assert torch.equal(before, after)


class KilledError(Exception):
    """Stands for whatever ends a process."""


class Killing:
    """Progress that ends a training in the middle of an epoch, and notes which share of it was done at its start."""

    def __init__(self, at: float) -> None:
        self.at, self.begun = at, -1.0

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator:
        assert total is not None
        done = 0

        def step(advance: int = 1, /, *, note: str | None = None) -> None:
            nonlocal done
            if self.begun < 0:
                self.begun = advance / total
            done += advance
            if done >= self.at * total:
                raise KilledError

        yield step


def same_tensors(one: PathBackbone, other: PathBackbone) -> bool:
    return all(torch.equal(tensor, other.tensors()[name]) for name, tensor in one.tensors().items())


@BOTH
def test_a_killed_training_continues_to_the_very_same_weights(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "KEEP_EVERY", 0.0)
    dataset, settings = dataset_of(random_log(3)), tiny(kind, epochs=3)
    whole = kind.fit(dataset, settings)
    with pytest.raises(KilledError):
        kind.fit(dataset, settings, progress=Killing(0.9), checkpoint=tmp_path / "state")
    watched = Killing(math.inf)
    assert same_tensors(whole, kind.fit(dataset, settings, progress=watched, checkpoint=tmp_path / "state"))
    assert watched.begun == pytest.approx(2 / 3)
    other = Killing(math.inf)
    kind.fit(dataset, replace(settings, clip=2.0), progress=other, checkpoint=tmp_path / "state")
    assert other.begun == 0, "the state of another training is not used"


@BOTH
def test_hops_are_walked_once_where_there_is_room_and_the_weights_are_the_same_without(kind, monkeypatch):
    dataset, settings = dataset_of(random_log(3)), tiny(kind, epochs=3)
    walked, weights, walk_as_ever = [], [], paths.walk

    def counted(links, actor, *rest):
        walked.append(len(actor))
        return walk_as_ever(links, actor, *rest)

    monkeypatch.setattr(paths, "walk", counted)
    asked = len(late_queries(dataset.train, settings.late))
    for room, times in ((paths.HOST_ROOM, 1), (0, settings.epochs)):
        monkeypatch.setattr(paths, "HOST_ROOM", room)
        walked.clear()
        weights.append(kind.fit(dataset, settings))
        assert sum(walked) == times * asked
    assert same_tensors(*weights)


@BOTH
def test_training_is_decided_by_the_seed_and_the_train_split_alone(kind):
    events = random_log(3)
    dataset, settings = dataset_of(events), tiny(kind, epochs=1)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    trained = kind.fit(dataset, settings)
    assert torch.equal(torch.rand(2), expected), "the global seed is left alone"
    only_train = replace(dataset, events=dataset.known.prefix(dataset.valid_start + 1), test_start=None)
    assert same_tensors(trained, kind.fit(only_train, settings))
    assert not same_tensors(trained, kind.fit(dataset, settings, seed=1))


def ruled_world(steps: int = 28) -> Dataset:
    """Six actors; whom one meets under relation 0 it meets under 1 in the next step, and whom under 2, never again."""
    rng = np.random.default_rng(0)
    rows, before = [], rng.integers(6, 18, size=6)
    for t in range(steps):
        now = rng.integers(6, 18, size=6)
        for actor in range(6):
            rows += [(actor, 0, now[actor], t), (actor, 1, before[actor], t), (actor, 2, rng.integers(6, 18), t)]
        before = now
    return Dataset("ruled", log_of(rows, n_entities=18), steps - 6)


@BOTH
def test_a_rule_of_relation_and_time_is_learned(kind):
    dataset = ruled_world()
    settings = tiny(kind, batch=32, epochs=5, decay=0.8, learning_rate=2e-2, dropout=0.0, late=1.0)
    queries = Queries.of(dataset.valid)
    queries = queries.take(queries.relation == 1)

    def likelihood(backbone: PathBackbone) -> float:
        log_p = score_queries(backbone, queries, Past(dataset.events)).log_p
        return float(log_p[torch.arange(len(queries)), queries.answer].mean().exp())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained = kind(settings, kind.network(3, settings))
    assert likelihood(untrained) < 0.3
    assert likelihood(kind.fit(dataset, settings)) > 0.8


@BOTH
def test_training_makes_the_loss_smaller(kind):
    dataset = dataset_of(random_log(9, n=400))
    links, queries = Links.of(dataset.train, "cpu"), late_queries(dataset.train, 0.5)

    def loss(backbone: PathBackbone) -> float:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            hops = backbone.net.walk(links, queries, queries.step)
            return float(backbone.net.loss(hops, queries.relation, queries.answer, links.n_entities))

    short, long = (kind.fit(dataset, tiny(kind, epochs=epochs, decay=1.0)) for epochs in (1, 6))
    assert loss(long) < loss(short) - 0.1


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [
        {"edges": ()},
        {"edges": (3, 0)},
        {"width": 0},
        {"width": 8193},
        {"attention": 0},
        {"window": 0},
        {"window": 2**16 + 1},
        {"activation": "sine"},
        {"batch": 0},
        {"epochs": 0},
        {"late": 0.0},
        {"late": 1.1},
        {"decay": 0.0},
        {"decay": 1.1},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"time_unit": 0.0},
        {"learning_rate": 0.0},
        {"clip": 0.0},
        {"weight_decay": -1.0},
        *(
            {name: value}
            for name in ("late", "decay", "dropout", "time_unit", "learning_rate", "clip", "weight_decay")
            for value in (math.nan, math.inf)
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(kind, wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        replace(kind.default, **wrong)

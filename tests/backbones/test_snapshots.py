"""Snapshots: edges both ways, the strict past, and sparse products that equal dense matrices, gradients included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bridgemem.backbones.snapshots import Product, Snapshot, Snapshots
from builders import few, log_of, logs, random_log, rows_of
from precision import close

E, R = 12, 4


def snapshots() -> Snapshots:
    return Snapshots(random_log(5, n=300), "cpu")


def busiest() -> Snapshot:
    graph = snapshots()
    return graph[int(np.diff(graph.bounds).argmax())]


def edges_of(snapshot: Snapshot) -> list[tuple[int, int, int]]:
    columns = (snapshot.actor, snapshot.relation, snapshot.answer)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def table(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))


@few
@given(events=logs())
def test_every_snapshot_holds_its_facts_and_then_their_inverses(events):
    graph, R = Snapshots(events, "cpu"), events.n_relations
    assert graph.steps.tolist() == sorted({t for *_, t in rows_of(events)})
    for position, step in enumerate(graph.steps.tolist()):
        facts = [(s, r, o) for s, r, o, t in rows_of(events) if t == step]
        snapshot = graph[position]
        assert snapshot.step == step
        assert edges_of(snapshot) == facts + [(o, r + R, s) for s, r, o in facts]
        assert snapshot.edges.T.tolist() == [list(edge) for edge in edges_of(snapshot)]


@few
@given(events=logs(), step=st.integers(0, 95), length=st.integers(1, 9))
def test_a_window_is_the_last_snapshots_with_events_strictly_before_a_step(events, step, length):
    graph = Snapshots(events, "cpu")
    window = [snapshot.step for snapshot in graph.before(graph.position(step), length)]
    assert window == [t for t in graph.steps.tolist() if t < step][-length:]


def test_steps_without_events_are_not_counted():
    graph = Snapshots(log_of([(0, 0, 1, 2), (1, 0, 2, 3), (2, 1, 0, 40)]), "cpu")
    assert [s.step for s in graph.before(graph.position(41), 2)] == [3, 40]
    assert [s.step for s in graph.before(graph.position(40), 2)] == [2, 3]


def test_a_log_without_events_has_no_snapshots():
    graph = Snapshots(log_of([]), "cpu")
    assert len(graph) == 0
    assert graph.before(graph.position(7), 3) == []


def test_a_product_and_its_gradient_equal_those_of_the_dense_matrix():
    row, column = np.array([3, 0, 0, 3, 0]), np.array([1, 2, 2, 0, 1])
    weight = np.array([0.5, 1.0, 2.0, -1.0, 0.25])
    dense = torch.zeros(4, 3)
    for r, c, w in zip(row, column, weight, strict=True):
        dense[r, c] += float(w)
    x, ours = (table(3).requires_grad_() for _ in range(2))
    found = Product(row, column, weight, (4, 3), torch.device("cpu"))(ours)
    assert close(found, dense @ x)
    weights = table(4, seed=1)
    (found * weights).sum().backward()
    (dense @ x * weights).sum().backward()
    assert ours.grad is not None
    assert close(ours.grad, x.grad)


def slow_pool(h: Tensor, members: Callable[[int], set[int]]) -> Tensor:
    pooled = torch.zeros(2 * R, h.shape[1])
    for r in range(R):
        if members(r):
            pooled[r] = pooled[r + R] = torch.stack([h[e] for e in members(r)]).mean(0)
    return pooled


def test_relations_pool_the_set_of_their_ends_or_of_their_subjects():
    # a duplicate, a self loop, a relation with both its ends shared, and absent relations
    events = log_of([(0, 0, 1, 3), (0, 0, 1, 3), (2, 0, 2, 3), (0, 1, 2, 3), (4, 2, 5, 2)], E, R)
    snapshot, h = Snapshots(events, "cpu")[1], table(E)
    ends, subjects = {0: {0, 1, 2}, 1: {0, 2}}, {0: {0, 2}, 1: {0}}
    assert close(snapshot.pooled_ends(h), slow_pool(h, lambda r: ends.get(r, set())))
    assert close(snapshot.pooled_subjects(h), slow_pool(h, lambda r: subjects.get(r, set())))


def test_the_surroundings_are_the_mean_message_and_the_own_state_of_every_active_entity():
    snapshot, a, z = busiest(), table(E), table(2 * R, seed=1)
    found = snapshot.around(torch.cat([a, z])).view(-1, 2, 5)
    active = sorted({v for _, _, v in edges_of(snapshot)})
    assert snapshot.active.tolist() == active
    assert len(active) < E, "an entity without edges must be among them"
    for v, (message, own) in zip(active, found, strict=True):
        coming = [a[u] + z[r] for u, r, w in edges_of(snapshot) if w == v]
        assert close(message, torch.stack(coming).mean(0))
        assert torch.equal(own, a[v])


def test_messages_of_edges_are_averaged_where_they_come_in():
    snapshot, a, z = busiest(), table(E), table(2 * R, seed=1)
    edges, own = snapshot.ends(torch.cat([a, z])).split([2 * len(snapshot), len(snapshot.active)])
    for (u, r, _), (of_entity, of_relation) in zip(edges_of(snapshot), edges.view(-1, 2, 5), strict=True):
        assert torch.equal(of_entity, a[u])
        assert torch.equal(of_relation, z[r])
    assert torch.equal(own, a[snapshot.active])
    message = table(len(snapshot), seed=2)
    for v, mean in zip(snapshot.active.tolist(), snapshot.incoming(message), strict=True):
        assert close(mean, message[snapshot.answer == v].mean(0))


@pytest.mark.parametrize("name", ["pooled_ends", "pooled_subjects", "around", "ends"])
def test_windows_side_by_side_multiply_as_each_does_alone(name):
    graph, targets, length = snapshots(), range(3, 6), 2
    windows, rows = graph.before_each(targets, length)
    assert rows.entity[:E].tolist() == list(range(E))
    bounds = np.cumsum([E, *rows.sizes])
    for i, joint in enumerate(windows):
        states, z = table(len(rows.entity)), table(len(targets) * 2 * R, seed=1)
        found = getattr(joint, name)(states if name.startswith("pooled") else torch.cat([states, z]))
        alone, active = [], []
        for k, (at, h) in enumerate(zip(targets, rows.apart(states), strict=True)):
            part = graph.before(at, length)[i]
            tables = h, z[k * 2 * R : (k + 1) * 2 * R]
            alone.append(getattr(part, name)(tables[0] if name.startswith("pooled") else torch.cat(tables)))
            if name == "ends":  # the edges of all come first, and then the active entities of all
                alone[-1], own = alone[-1].split([2 * len(part), len(part.active)])
                active.append(own)
            mine = joint.active[(joint.active >= bounds[k]) & (joint.active < bounds[k + 1])]
            assert rows.entity[mine].tolist() == part.active.tolist()
        assert close(found, torch.cat([*alone, *active]))
    assert graph.before_each(targets, length)[1] is rows


def test_rows_stand_for_every_entity_once_in_every_window():
    graph, targets, length = snapshots(), range(3, 6), 2
    _, rows = graph.before_each(targets, length)
    bounds = np.cumsum([E, *rows.sizes])
    for k, at in enumerate(targets):
        seen = {e for snapshot in graph.before(at, length) for e in snapshot.active.tolist()}
        assert set(rows.entity[bounds[k] : bounds[k + 1]].tolist()) == seen
        assert len(seen) == rows.sizes[k]
    weight = torch.zeros(E).index_add_(0, rows.entity, rows.weight)
    assert close(weight, torch.ones(E))


@pytest.mark.parametrize("name", ["pooled_ends", "pooled_subjects", "around", "ends", "incoming"])
def test_what_a_snapshot_multiplies_with_is_made_once(name):
    graph = snapshots()
    assert getattr(graph[3], name) is getattr(graph[3], name)

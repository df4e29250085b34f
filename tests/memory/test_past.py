"""Past: the sparse past that backbones share equals a slow walk over the log, strictly before each step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import DataError
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import few, log_of, logs, random_log, rows_of


def asked(n_entities: int, n_relations: int, step: int) -> Queries:
    """Every (actor, directed relation) at one step."""
    grid = torch.cartesian_prod(torch.arange(n_entities), torch.arange(2 * n_relations))
    return Queries(grid[:, 0], grid[:, 1], torch.full((len(grid),), step))


def sides(events) -> list[tuple[int, int, int, int]]:
    """(actor, directed relation, candidate, step) of both sides of every event."""
    R = events.n_relations
    return [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]


@few
@given(events=logs(), step=st.integers(0, 95), frozen=st.one_of(st.none(), st.integers(0, 95)))
def test_occurrences_equal_a_slow_walk(events, step, frozen):
    queries = asked(events.n_entities, events.n_relations, step)
    seen = Past(events, frozen).occurrences(queries.actor, queries.relation, queries.step)
    columns = (seen.row, seen.candidate, seen.step, seen.count)
    found = sorted(zip(*(c.tolist() for c in columns), strict=True))
    limit = step if frozen is None else min(step, frozen)
    expected = []
    for row, (a, r) in enumerate(zip(queries.actor.tolist(), queries.relation.tolist(), strict=True)):
        snapshots = {(c, t) for a2, r2, c, t in sides(events) if (a2, r2) == (a, r) and t < limit}
        for candidate in {c for c, _ in snapshots}:
            times = [t for c, t in snapshots if c == candidate]
            expected.append((row, candidate, max(times), len(times)))
    assert found == sorted(expected)
    assert torch.equal(seen.row, seen.row.sort().values)


@few
@given(events=logs(), step=st.integers(0, 95), frozen=st.one_of(st.none(), st.integers(0, 95)))
def test_meetings_equal_a_slow_walk(events, step, frozen):
    queries = asked(events.n_entities, events.n_relations, step)
    past, R = Past(events, frozen), events.n_relations
    limit = step if frozen is None else min(step, frozen)
    seen, in_role = set(), set()
    for row, (a, r) in enumerate(zip(queries.actor.tolist(), queries.relation.tolist(), strict=True)):
        before = [(r2, c) for a2, r2, c, t in sides(events) if a2 == a and t < limit]
        seen |= {(row, c) for _, c in before}
        in_role |= {(row, c) for r2, c in before if (r2 >= R) == (r >= R)}
    for found, expected in (
        (past.seen(queries.actor, queries.step), seen),
        (past.seen_in_role(queries.actor, queries.relation, queries.step), in_role),
    ):
        pairs = list(zip(*(x.tolist() for x in found), strict=True))
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == expected


@few
@given(events=logs(), frozen=st.one_of(st.none(), st.integers(0, 95)), window=st.integers(0, 40), k=st.integers(1, 4))
def test_pairs_read_once_for_a_batch_are_those_read_for_each(events, frozen, window, k):
    past, whole = Past(events, frozen), Queries.of(events)
    some = whole.take(torch.arange(0, len(whole), 2).flip(0))
    batches = [(whole.actor, whole.step), (some.actor, some.step), (some.actor, some.step + 1)]

    def read():
        states = [past.partners(*batch, k, window) for batch in batches]
        columns = [(s.row, s.candidate, s.count, s.found, *(c * s.found for c in (s.relation, s.lag))) for s in states]
        met = [past.seen(*batch) for batch in batches]
        return [
            *map(list, columns),
            *([row[order], candidate[order]] for row, candidate, order in map(sorted_met, met)),
        ]

    def sorted_met(met):
        return *met, (met[0] * events.n_entities + met[1]).argsort()

    alone = read()
    with past.reading_once(whole.actor, whole.step, 4):
        once = read()
    assert all(
        torch.equal(a, b) for one, other in zip(alone, once, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert all(
        torch.equal(a, b) for one, other in zip(alone, read(), strict=True) for a, b in zip(one, other, strict=True)
    )


def test_more_pairs_of_entity_and_relation_than_can_be_told_apart_are_refused():
    Past(log_of([(0, 0, 1, 1)], n_entities=2**16 - 1, n_relations=2**15))
    with pytest.raises(DataError, match=r"65,536 entities under 32,768 relations.* 2\^32"):
        Past(log_of([(0, 0, 1, 1)], n_entities=2**16, n_relations=2**15))


def test_a_named_size_changes_nothing():
    events = random_log(1)
    past, queries = Past(events), Queries.of(random_log(1).between(20, 30))
    start, stop = past.indices[0].occurrence_slices(queries.actor, queries.relation, queries.step)
    size = int((stop - start).sum())
    named = past.indices[0].occurrences_in(start, stop, queries.step, size)
    plain = past.occurrences(queries.actor, queries.relation, queries.step)
    for name in ("row", "candidate", "step", "count"):
        assert torch.equal(getattr(named, name), getattr(plain, name))


# from a count of the raw files: the share of test queries whose answer the actor had interacted with
@pytest.mark.parametrize(("frozen", "in_role", "same_relation"), [(False, 0.710, 0.524), (True, 0.651, 0.444)])
def test_icews14_history_statistics(icews14, frozen, in_role, same_relation):
    past = Past(icews14.events, icews14.test_start if frozen else None)
    queries = Queries.of(icews14.test)
    row, candidate = past.seen_in_role(queries.actor, queries.relation, queries.step)
    partner = (candidate == queries.answer[row]).sum() / len(queries)
    seen = past.occurrences(queries.actor, queries.relation, queries.step)
    recurring = (seen.candidate == queries.answer[seen.row]).sum() / len(queries)
    assert float(partner) == pytest.approx(in_role, abs=0.0006)
    assert float(recurring) == pytest.approx(same_relation, abs=0.0006)


@pytest.fixture(scope="module")
def icews14(data_dir):
    from bridgemem.events.datasets import load_benchmark

    return load_benchmark("icews14", data_dir)

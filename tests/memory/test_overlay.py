"""A base and a delta read like one log that holds all of it: in memory and on disk, with new names and late events."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from bridgemem.events.log import EventLog
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.dyads import DyadMemory
from bridgemem.memory.overlay import Overlay
from bridgemem.memory.past import Past
from builders import base_and_delta as split
from builders import dataset_of, rows_of, together


def same_answers(there: Past, here: Past) -> None:
    """Every read of a past equals that of another one."""
    events = here.events
    assert rows_of(there.events) == rows_of(events)
    assert (there.events.start, there.events.end, len(there.events)) == (events.start, events.end, len(events))
    for mine, other in zip(there.events.tallies, events.tallies, strict=True):
        np.testing.assert_array_equal(mine, other)
    actor, relation, step = torch.cartesian_prod(
        torch.arange(events.n_entities), torch.arange(2 * events.n_relations), torch.tensor([0, 9, 22, 31, 45])
    ).T
    mine, other = there.occurrences(actor, relation, step), here.occurrences(actor, relation, step)
    for field in fields(mine):
        assert torch.equal(getattr(mine, field.name), getattr(other, field.name)), field.name
    for mine, other in zip(there.told(actor, relation, step), here.told(actor, relation, step), strict=True):
        assert torch.equal(mine, other)
    for name, asked in (("seen", (actor, step)), ("seen_in_role", (actor, relation, step))):
        sets = [set(zip(*(c.tolist() for c in getattr(past, name)(*asked)), strict=True)) for past in (here, there)]
        assert sets[0] == sets[1], name
    candidate = (actor * 7 + 1) % events.n_entities
    until = None if here.frozen_at is None else here.cut(step)
    for k, window in ((1, 0), (3, 0), (3, 5), (8, 20)):
        for name, pair in (("partners", (actor,)), ("read", (actor, candidate))):
            mine, other = (getattr(past.dyads, name)(*pair, step, k, window, until) for past in (there, here))
            for field in fields(mine):
                a, b = getattr(mine, field.name), getattr(other, field.name)
                if field.name in ("relation", "direction", "lag"):
                    a, b = a * mine.found, b * other.found  # the others mean nothing
                assert torch.equal(a, b), (name, k, window, field.name)


@pytest.fixture(params=["in memory", "on disk"])
def stored(request: pytest.FixtureRequest, tmp_path: Path):
    """A base as it may lie."""

    def made(base: EventLog) -> EventLog:
        return base if request.param == "in memory" else write_memory(dataset_of(base), tmp_path / "memory").events

    return made


@pytest.mark.parametrize("frozen_at", [None, 25])
@pytest.mark.parametrize("seed", range(4))
def test_a_base_and_a_delta_read_like_one_log(stored, seed, frozen_at):
    base, delta = split(seed)
    there = Past(Overlay(stored(base), delta), frozen_at)
    assert there.repeated.any()
    same_answers(there, Past(together(base, delta), frozen_at))


@pytest.mark.parametrize("seed", range(3))
def test_batches_and_what_is_taken_back_read_like_a_rebuild(stored, seed):
    base, delta = split(seed)
    rng, past = np.random.default_rng(seed), Past(stored(base))
    came = rng.integers(0, 3, len(delta))
    for batch in range(3):
        kept = delta.take((came <= batch) & (rng.random(len(delta)) < 0.8))
        past = past.with_delta(kept)
        assert rows_of(past.delta) == rows_of(kept)
        same_answers(past, Past(together(base, kept)))
    alone = past.with_delta(base.rows(0, 0))
    assert not isinstance(alone.events, Overlay)
    same_answers(alone, Past(base))


@pytest.mark.parametrize("sizes", [(99, -1), (-2, 99), (-2, -1), (-4, -1), (-1, -2), (-4, -3)])
def test_a_past_within_fewer_names_reads_as_if_no_others_had_come(stored, sizes):
    base, delta = split(5)
    whole = together(base, delta)
    n_entities, n_relations = (
        size if size > 0 else of + size for size, of in zip(sizes, (whole.n_entities, whole.n_relations), strict=True)
    )
    past = Past(Overlay(stored(base), delta))
    part = past.within(n_entities, n_relations)
    assert part is past.within(n_entities, n_relations), "it is made once"
    assert past.within(99, 99) is past
    assert part.events.n_entities == min(n_entities, whole.n_entities)
    kept = [(s, r, o, t) for s, r, o, t in rows_of(whole) if s < n_entities and o < n_entities and r < n_relations]
    assert rows_of(part.events) == kept
    same_answers(part, Past(whole.within(n_entities, n_relations)))


def test_queries_of_which_the_delta_knows_nothing_are_read_from_the_base(stored):
    base, delta = split(3)
    delta = delta.take((delta.subject < 4) & (delta.object < 4))
    there, here = Past(Overlay(stored(base), delta)), Past(together(base, delta))
    for actor in range(here.events.n_entities):
        one, relation, step = torch.tensor([actor, actor]), torch.tensor([0, 1]), torch.tensor([22, 40])
        reads = [[past.occurrences(one, relation, step) for past in (there, here)]]
        reads += [[past.dyads.partners(one, step, 3, window) for past in (there, here)] for window in (0, 4)]
        reads += [[past.dyads.read(one, one - actor, step, 3, 4) for past in (there, here)]]
        for mine, other in reads:
            assert torch.equal(mine.row, other.row)
            assert torch.equal(mine.candidate, other.candidate)
            assert torch.equal(mine.count, other.count)


def test_a_pair_without_any_event_has_no_state():
    base, delta = split(0)
    past, nobody = Past(Overlay(base, delta)), torch.tensor([10])
    assert not len(past.dyads.read(nobody, nobody, torch.tensor([0]), 0, 0).row)


def test_a_new_delta_indexes_nothing_of_the_base(monkeypatch):
    base, delta = split(2)
    build, built = DyadMemory.build, list[int]()

    def counted(events: EventLog, device: object = "cpu") -> DyadMemory:
        built.append(len(events))
        return build(events, "cpu")

    monkeypatch.setattr(DyadMemory, "build", counted)
    past = Past(base)
    for part in (delta.rows(0, 9), delta):
        past = past.with_delta(part)
        for view in (past, past.within(base.n_entities - 1, base.n_relations)):
            one = torch.tensor([0])
            view.dyads.partners(one, one + 9, 2, 0)
            view.seen(one, one + 9)
            view.occurrences(one, one, one + 9)
    # the base and its part are indexed once, the delta and its part with every batch
    assert len(built) == 6
    assert sorted(built[:2]) == [9, len(base)]
    assert max(built[4:]) <= len(delta)
    assert "subject" not in vars(past.events), "the columns are not put together"

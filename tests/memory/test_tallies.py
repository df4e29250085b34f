"""Tallies: counts, first and last steps and levels of any key, strictly before a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bridgemem.events.log import EventLog
from bridgemem.memory.disk import tallies as disk
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies
from bridgemem.memory.tally import DECAYS, Tallied
from builders import base_and_delta, dataset_of, log_of, random_log, rows_of, together

KINDS = ("pair", "link", "triple", "actor", "role", "role_relation", "relation")


def asked(events: EventLog, seed: int) -> list[torch.Tensor]:
    """Keys of what happened and of what may never have, at many steps."""
    rng = np.random.default_rng(seed)
    e, r = events.n_entities, events.n_relations
    columns = rng.integers(0, [[e], [r], [e], [events.end + 3]], (4, 300))
    return [torch.from_numpy(column) for column in columns]


def slow(events: EventLog, kind: str, key: tuple[int, int, int], step: int) -> list[int]:
    """The steps of the events of a key before a step, by hand."""
    subject, relation, other = key
    found = []
    for s, r, o, t in rows_of(events):
        same = {
            "pair": {s, o} == {subject, other},
            "link": (s, o) == (subject, other),
            "triple": (s, r, o) == (subject, relation, other),
            "actor": subject in (s, o),
            "relation": r == relation,
        }.get(kind)
        if kind == "role":  # as subject (0) or as object (1)
            same = (s, o)[relation] == subject
        if kind == "role_relation":
            same = (s, r) == (subject, relation)
        if same and t < step:
            found.append(t)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_tallies_are_those_of_the_events_before_the_step(kind: str) -> None:
    events = random_log(3)
    subject, relation, other, step = asked(events, 1)
    if kind == "role":
        relation = relation % 2
    found = PastTallies(Past(events)).before(kind, subject, relation, other, step)
    for row in range(len(step)):
        at = int(step[row])
        steps = slow(events, kind, (int(subject[row]), int(relation[row]), int(other[row])), at)
        assert int(found.events[row]) == len(steps)
        if steps:
            assert (int(found.first[row]), int(found.last[row])) == (min(steps), max(steps))
        levels = [sum(np.exp(-(at - t) / decay) for t in steps) for decay in DECAYS]
        np.testing.assert_allclose(found.level[row].numpy(), levels, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_base_with_a_delta_is_tallied_as_one_log(kind: str, seed: int, where: str, tmp_path: Path) -> None:
    base, delta = base_and_delta(seed)
    columns = asked(together(base, delta), seed)
    if kind == "role":
        columns[1] = columns[1] % 2
    there = on_disk(base, tmp_path / "memory", 50) if where == "disk" else Past(base)
    whole, parts = (PastTallies(past) for past in (Past(together(base, delta)), there.with_delta(delta)))
    one, two = (made.before(kind, *columns) for made in (whole, parts))
    assert_same(one, two)
    assert torch.equal(whole.next(kind, *columns), parts.next(kind, *columns))
    assert steps_of(whole, kind, columns) == steps_of(parts, kind, columns)


def steps_of(tallies: PastTallies, kind: str, columns: list[torch.Tensor], back: int = 9) -> set[tuple[int, int]]:
    """(row, step) of what happened in the last steps under keys."""
    row, step = tallies.steps(kind, *columns[:3], (columns[3] - back).clamp(min=0), columns[3])
    return set(zip(row.tolist(), step.tolist(), strict=True))


def assert_same(one: Tallied, two: Tallied) -> None:
    for name in ("events", "first", "last"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    torch.testing.assert_close(one.level, two.level, rtol=1e-12, atol=1e-12)


def on_disk(events: EventLog, folder: Path, block: int) -> Past:
    return Past(write_memory(dataset_of(events), folder, block=block).events)


@pytest.mark.parametrize("block", [5, 10_000])
@pytest.mark.parametrize("until", [None, 25])
def test_tallies_on_disk_are_those_in_memory_to_the_bit(tmp_path: Path, block: int, until: int | None) -> None:
    events = random_log(6)
    columns, there = asked(events, 4), on_disk(events, tmp_path / "memory", block)
    if until is not None:  # what lies on disk may reach beyond the events
        events, there = events.prefix(until), Past(there.events.prefix(until))
    here, there = PastTallies(Past(events)), PastTallies(there)
    for kind in KINDS:
        keys = [columns[0], columns[1] % 2 if kind == "role" else columns[1], *columns[2:]]
        one, two = (tallies.before(kind, *keys) for tallies in (here, there))
        for name in Tallied._fields:
            assert torch.equal(getattr(one, name), getattr(two, name)), (kind, name)
        counted = there.before(kind, *keys, levels=False)
        assert torch.equal(counted.events, one.events)
        assert not counted.level.any()
        assert torch.equal(here.next(kind, *keys), there.next(kind, *keys))
        assert steps_of(here, kind, keys) == steps_of(there, kind, keys)
        tallies = [getattr(made.parts[0], kind) for made in (here, there)]
        for step in (0, 11, 24, 99):
            began = [torch.cat([found for _, found in tally.begun(step)]) for tally in tallies]
            active = [tally.active(step, step + 7) for tally in tallies]
            for found in (began, active):
                keys = [tally.keys[mask] for tally, mask in zip(tallies, found, strict=True)]
                # the links of a triple are numbered in either log
                assert torch.equal(*keys) or (kind == "triple" and len(keys[0]) == len(keys[1]))
    for kind in ("triple", "role_relation"):
        found = [tallies.relations_of(kind, columns[0], columns[2], columns[3]) for tallies in (here, there)]
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])
        assert all(torch.equal(*both) for both in zip(found[0][2], found[1][2], strict=True))


def test_levels_read_in_parts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is added up at once, also where the oldest rows are out of reach."""
    events = log_of([(0, 0, 1, step) for step in range(0, 4_000_000, 40_000)], 2, 1)
    zero, step = torch.zeros(60, dtype=torch.int64), torch.arange(60) * 50_000
    here, there = PastTallies(Past(events)), PastTallies(on_disk(events, tmp_path / "memory", 100))
    for rows, reach in ((7, 100), (1, 50)):
        monkeypatch.setattr(disk, "LEVEL_ROWS", rows)
        monkeypatch.setattr(disk, "REACH", reach)
        found = [made.before("pair", zero, zero, zero + 1, step).level for made in (here, there)]
        assert torch.equal(found[0], found[1])


def test_all_relations_of_a_link_and_of_an_actor_are_found() -> None:
    events = random_log(5)
    tallies = PastTallies(Past(events))
    subject, _, other, step = asked(events, 2)
    row, relation, found = tallies.relations_of("triple", subject, other, step)
    assert_same(found, tallies.before("triple", subject[row], relation, other[row], step[row]))
    every = torch.arange(events.n_relations).repeat(len(step))
    rows = torch.arange(len(step)).repeat_interleave(events.n_relations)
    known = tallies.before("triple", subject[rows], every, other[rows], step[rows]).events > 0
    assert len(row) == int(known.sum())
    row, relation, found = tallies.relations_of("role_relation", subject, subject, step)
    assert_same(found, tallies.before("role_relation", subject[row], relation, subject[row], step[row]))


def test_the_next_event_is_at_or_after_the_step() -> None:
    events = random_log(7)
    subject, relation, other, step = asked(events, 3)
    found = PastTallies(Past(events)).next("pair", subject, relation, other, step)
    rows = rows_of(events)
    for row in range(len(step)):
        pair, at = {int(subject[row]), int(other[row])}, int(step[row])
        steps = [t for s, _, o, t in rows if {s, o} == pair and t >= at]
        assert int(found[row]) == min(steps, default=2**31 - 1)


def test_the_steps_of_an_event_lie_from_one_on_and_before_another() -> None:
    events = random_log(7)
    subject, relation, other, step = asked(events, 3)
    found = steps_of(PastTallies(Past(events)), "triple", [subject, relation, other, step])
    rows = [(int(s), int(r), int(o), int(t)) for s, r, o, t in zip(subject, relation, other, step, strict=True)]
    assert found == {
        (row, when)
        for row, (s, r, o, t) in enumerate(rows)
        for *key, when in rows_of(events)
        if key == [s, r, o] and t - 9 <= when < t
    }
    assert found

"""ActorEvents: an actor's last events equal a slow walk over the log, in memory, with a delta and on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.memory.actors import LastEvents
from bridgemem.memory.disk.mapped import open_memory
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.overlay import Overlay
from bridgemem.memory.past import Past
from builders import few, log_of, logs, random_log, rows_of


def slow_walk(events: EventLog, actor: int, step: int, until: int, k: int) -> list[tuple[int, int, int]]:
    """(directed relation, partner, lag) of the last k sides of events of one actor."""
    R = events.n_relations
    sides = [side for s, r, o, t in rows_of(events) for side in ((s, r, o, t), (o, r + R, s, t))]
    return [(r, c, step - t) for a, r, c, t in sides if a == actor and t < min(step, until)][-k:]


def rows(last: LastEvents) -> list[list[tuple[int, int, int]]]:
    """The events that were found, by actor; the slots in front of them are empty."""
    made = []
    for relation, partner, lag, found in zip(last.relation, last.partner, last.lag, last.found, strict=True):
        assert found.tolist() == sorted(found.tolist())
        for column in (relation, partner, lag):
            assert not column[~found].any()
        made.append(list(zip(*(column[found].tolist() for column in (relation, partner, lag)), strict=True)))
    return made


@few
@given(events=logs(), step=st.integers(0, 95), frozen=st.one_of(st.none(), st.integers(0, 95)), k=st.integers(1, 7))
def test_last_events_equal_a_slow_walk(events: EventLog, step: int, frozen: int | None, k: int) -> None:
    actor, steps = torch.arange(events.n_entities), torch.full((events.n_entities,), step)
    until = step if frozen is None else frozen
    expected = [slow_walk(events, a, step, until, k) for a in actor.tolist()]
    assert rows(Past(events, frozen).last_events(actor, steps, k)) == expected


@few
@given(whole=logs(), cut=st.integers(0, 40), step=st.integers(0, 95), k=st.integers(1, 7))
def test_a_base_with_a_delta_answers_as_one_log(whole: EventLog, cut: int, step: int, k: int) -> None:
    """The delta has names that the base does not know, and events that come late."""
    base = whole.take(torch.arange(len(whole)).numpy() < cut).within(whole.n_entities - 1, whole.n_relations - 1)
    overlay = Overlay(base, whole.take(torch.arange(len(whole)).numpy() >= cut // 2))
    one = EventLog(
        overlay.subject, overlay.relation, overlay.object, overlay.step, whole.entities, whole.relations, whole.clock
    )
    actor, steps = torch.arange(whole.n_entities), torch.full((whole.n_entities,), step)
    assert rows(Past(overlay).last_events(actor, steps, k)) == rows(Past(one).last_events(actor, steps, k))


@pytest.mark.parametrize("end", [None, 20])
def test_a_memory_on_disk_answers_as_one_in_memory(tmp_path: Path, end: int | None) -> None:
    events = random_log(4)
    write_memory(Dataset("small", events, 25), tmp_path / "memory")
    mapped = open_memory(tmp_path / "memory").events
    mapped = mapped if end is None else mapped.prefix(end)
    own = events if end is None else events.prefix(end)
    actor, steps = torch.arange(events.n_entities), torch.full((events.n_entities,), 26)
    assert rows(Past(mapped).last_events(actor, steps, 5)) == rows(Past(own).last_events(actor, steps, 5))


def test_a_log_without_events_has_none() -> None:
    events = log_of([(0, 0, 1, 3)]).prefix(0)
    assert rows(Past(events).last_events(torch.arange(3), torch.full((3,), 9), 4)) == [[], [], []]

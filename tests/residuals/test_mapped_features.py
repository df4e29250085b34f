"""What the learned residual reads from a memory on disk is what it reads from one in memory, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.memory import dyads
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.past import Past
from bridgemem.residuals.activity import MappedActivity, activities_of
from bridgemem.residuals.neighbours import Neighbours
from builders import few, logs, random_log


def pasts(events: EventLog, home: Path, until: int | None = None) -> tuple[Past, Past]:
    """The past of a log, or of its events before a step, in memory and on disk."""
    there = write_memory(Dataset("log", events, int(events.step[-1])), home, block=20).events
    if until is not None:
        events, there = events.prefix(until), there.prefix(until)
    return Past(events), Past(there)


@few
@given(
    events=logs(min_size=2).filter(lambda log: log.step[0] < log.step[-1]),
    cut=st.integers(0, 100),
    share=st.sampled_from([None, 0.5]),
)
def test_activities_are_counted_alike(tmp_path_factory, events, cut, share):
    until = None if share is None else int(events.step[-1])
    here, there = pasts(events, tmp_path_factory.mktemp("log") / "memory", until)
    cut = cut if until is None else min(cut, here.events.end)
    for kept, (mine, other) in enumerate(zip(activities_of(there), activities_of(here), strict=True)):
        assert isinstance(mine, MappedActivity)
        keys = torch.arange(events.n_entities * (1 if kept == 0 else 2 * events.n_relations))
        step, at = torch.full_like(keys, cut), torch.full_like(keys, cut)
        assert torch.equal(mine.read(mine.find(keys), step, at), other.read(other.find(keys), step, at))
        # of two queries at different steps, each key of the second one only
        row = torch.ones_like(keys)
        asked = torch.tensor([0, cut]), torch.tensor([0, cut])
        tables = [a.table(a.find(keys), row, *asked) for a in (mine, other)]
        assert torch.equal(*(table[rows] for table, rows in tables))


@pytest.mark.parametrize("until", [None, 20])
def test_common_neighbours_are_the_same_and_do_not_depend_on_blocks(tmp_path, until, monkeypatch):
    here, there = pasts(random_log(5, n=500), tmp_path / "memory", until)
    actor = torch.arange(here.events.n_entities).repeat(2)
    cut = torch.tensor([7, 19]).repeat_interleave(here.events.n_entities)
    expected = Neighbours(here).shared(actor, cut)
    assert torch.equal(Neighbours(there).shared(actor, cut), expected)
    monkeypatch.setattr(dyads.DyadMemory.blocks, "__defaults__", (3,))
    assert torch.equal(Neighbours(Past(here.events)).shared(actor, cut), expected)


def test_blocks_are_whole_pairs_in_their_order(tmp_path):
    memory = dyads.DyadMemory.build(random_log(6, n=300))
    for most in (1, 7, 10_000):
        found = list(memory.blocks(most))
        pairs = [place for pair, _ in found for place in range(pair.start, pair.stop)]
        assert pairs == list(range(len(memory.pairs)))
        rows = [place for _, row in found for place in range(row.start, row.stop)]
        assert rows == list(range(len(memory)))
        assert all(row.stop - row.start <= most for pair, row in found if pair.stop - pair.start > 1)

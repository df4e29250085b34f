"""Parts of any partitioning, in any order and any batches, add up to what the in-memory path gives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.config import Settings
from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.evidence.counts import CountTable
from bridgemem.evidence.examples import mine
from bridgemem.memory.disk.segments import Note, SegmentWriter
from bridgemem.memory.disk.writing import About
from bridgemem.outofcore import base
from bridgemem.outofcore.base import COLUMNS, Miner, Mining, Part, Sample, merge, sample_keys, write_mined
from bridgemem.outofcore.mined import Mined
from builders import few, logs
from corpora import assert_same_as_in_memory, awkward_log


def directed(events: EventLog) -> dict[str, np.ndarray]:
    """Both rows of every event, sorted as engines sort them."""
    order = np.arange(len(events))
    ways = ((events.subject, events.object, 0), (events.object, events.subject, 1))
    sides = [
        np.stack([a, c, events.step, order, events.relation, np.full(len(events), d)]).astype(np.int64)
        for a, c, d in ways
    ]
    rows = np.concatenate(sides, axis=1)
    actor, candidate, step, place, _, direction = rows
    rows = rows[:, np.lexsort((direction, place, step, candidate, actor))]
    return dict(zip(COLUMNS, rows, strict=True))


def mine_partitions(
    events: EventLog, mining: Mining, partition: np.ndarray, batch: int, index: Path
) -> tuple[list[Part], list[Note]]:
    """Mine each partition (int [rows]) as an engine would, in batches; the kernel reads blocks of the same size."""
    rows, parts, notes = directed(events), [], []
    for number in range(int(partition.max(initial=0)) + 1):
        own = {name: column[partition == number] for name, column in rows.items()}
        with (
            mock.patch.object(base, "BLOCK", batch),
            SegmentWriter(index, str(number), mining.n_entities, mining.n_relations) as segment,
        ):
            miner = Miner(mining, segment)
            for at in range(0, len(own["actor"]), batch):
                miner.feed({name: column[at : at + batch] for name, column in own.items()})
            parts.append(miner.finish())
        notes.append(segment.note)
    return parts, notes


def written(
    out: Path,
    mining: Mining,
    mined: tuple[Iterable[Part], list[Note]],
    events: EventLog,
    names: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """The mined folder of some parts, with the events in blocks as an engine would stream them."""
    columns = (events.subject, events.relation, events.object, events.step)
    blocks = [[column[at : at + 50] for column in columns] for at in range(0, len(events), 50)]
    about = About("log", *(names or (events.entities.names, events.relations.names)), events.clock)
    return write_mined(out, mining, *mined, blocks, about=about)


def by_pair(events: EventLog, partitions: int, hashed: bool) -> np.ndarray:
    """A partition for each directed row, the same for all rows of a pair: ranges of pairs or hashes of them."""
    rows = directed(events)
    pair = rows["actor"] * events.n_entities + rows["candidate"]
    return pair * 7 % partitions if hashed else pair * partitions // (events.n_entities**2)


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize(("partitions", "batch"), [(1, 10_000), (1, 1), (3, 7), (8, 64), (40, 3)])
def test_any_partitioning_and_batch_size_gives_the_in_memory_result(tmp_path, partitions, batch, hashed):
    events, settings = awkward_log(1), Settings(window=20)
    mining = Mining(settings, events.n_entities, events.n_relations)
    parts, notes = mine_partitions(events, mining, by_pair(events, partitions, hashed), batch, tmp_path / "index")
    written(tmp_path, mining, (reversed(parts), notes), events)
    assert_same_as_in_memory(Mined(tmp_path), events, settings)


@few
@given(
    events=logs(min_size=1),
    k=st.integers(1, 9),
    window=st.sampled_from([0, 1, 5, 65]),
    partitions=st.integers(1, 6),
    batch=st.integers(1, 50),
    most=st.integers(1, 60),
)
def test_random_logs_give_one_result_however_they_are_cut(tmp_path_factory, events, k, window, partitions, batch, most):
    settings = Settings(k=k, window=window, max_examples=most)
    mining = Mining(settings, events.n_entities, events.n_relations)
    fingerprints = set()
    for cut, rows in ((by_pair(events, partitions, True), batch), (by_pair(events, 1, False), 1_000)):
        home = tmp_path_factory.mktemp("mined")
        parts, notes = mine_partitions(events, mining, cut, rows, home / "index")
        fingerprints.add(written(home, mining, (parts, notes), events)["fingerprint"])
        assert_same_as_in_memory(Mined(home), events, settings)
        assert len(Mined(home).examples) == min(most, Mined(home).about["examples"])
    assert len(fingerprints) == 1


ODD = ("A\nlimited", "D\rE", "make a\u2028statement", *(str(i) for i in range(20)))


def test_names_with_line_breaks_keep_their_ids(tmp_path):
    events = awkward_log(1)
    mining = Mining(Settings(), events.n_entities, events.n_relations)
    parts, notes = mine_partitions(events, mining, by_pair(events, 1, False), 1_000, tmp_path / "index")
    entities, relations = ODD[: events.n_entities], ODD[1 : events.n_relations + 1]
    written(tmp_path, mining, (parts, notes), events, (entities, relations))
    assert Mined(tmp_path).entities.names == entities
    assert Mined(tmp_path).relations.names == relations


def test_the_sample_is_the_examples_with_the_smallest_sample_keys_and_the_seed_changes_it(tmp_path):
    events = awkward_log(2, hot=2_000)
    everything = Settings()
    whole, _ = mine_partitions(events, Mining(everything, 10, 5), by_pair(events, 1, False), 1_000, tmp_path / "whole")
    drawn = {}
    for seed in (1, 2):
        mining = Mining(Settings(max_examples=300), 10, 5, seed)
        parts, _ = mine_partitions(events, mining, by_pair(events, 5, True), 77, tmp_path / str(seed))
        sample = merge(parts, mining).sample
        every = whole[0].sample
        expected = np.sort(sample_keys(every.order, every.target // 5, seed))[:300]
        assert np.array_equal(np.sort(sample.sample_key), expected)
        drawn[seed] = set(zip(sample.order.tolist(), (sample.target // 5).tolist(), strict=True))
    assert len(drawn[1] & drawn[2]) < 150


def test_sample_keys_are_uniform_and_never_tie():
    order = np.repeat(np.arange(50_000), 2)
    drawn = sample_keys(order, np.tile([0, 1], 50_000), seed=42)
    assert len(np.unique(drawn)) == len(drawn)
    shares = np.histogram(drawn.astype(np.float64) / 2**64, bins=10, range=(0, 1))[0] / len(drawn)
    assert np.abs(shares - 0.1).max() < 0.005


def test_a_limit_that_other_parts_earn_leaves_the_merged_sample_as_it_is(tmp_path):
    events, mining = awkward_log(3), Mining(Settings(max_examples=100), 10, 5)
    rows = directed(events)
    half = rows["actor"] < 3
    parts = []
    for limited in (False, True):
        first, second = Miner(mining), None
        first.feed({name: c[half] for name, c in rows.items()})
        one = first.finish()
        limit = int(one.sample.sample_key.max()) if limited else 2**64 - 1
        second = Miner(mining, limit=limit)
        second.feed({name: c[~half] for name, c in rows.items()})
        two = second.finish()
        parts.append((merge([one, two], mining).sample.in_order(), len(two.sample)))
    assert all(np.array_equal(a, b) for a, b in zip(*(p[0].columns().values() for p in parts), strict=True))
    assert parts[1][1] < parts[0][1]


def test_a_part_survives_its_bytes_and_damage_is_told():
    miner = Miner(Mining(Settings(), 10, 5))
    miner.feed(directed(awkward_log(4)))
    part = miner.finish()
    again = Part.from_bytes(part.to_bytes(), miner.mining)
    assert (again.rows, again.pairs, again.examples, again.end, again.digest) == (
        (part.rows, part.pairs, part.examples, part.end, part.digest)
    )
    assert again.counts.equal(part.counts)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(again.sample.columns().values(), part.sample.columns().values(), strict=True)
    )
    with pytest.raises(RunError, match="damaged"):
        Part.from_bytes(part.to_bytes()[:-5], miner.mining)


def test_rows_out_of_order_or_given_twice_are_refused():
    rows = directed(awkward_log(5))
    mixed = {name: column[::-1] for name, column in rows.items()}
    twice = {name: np.repeat(column, 2) for name, column in rows.items()}
    for wrong in (mixed, twice):
        miner = Miner(Mining(Settings(), 10, 5))
        miner.feed(wrong)
        with pytest.raises(DataError, match="once each, sorted"):
            miner.finish()


def test_nothing_fed_is_an_empty_part():
    mining = Mining(Settings(), 3, 2)
    part = merge([Miner(mining).finish()], mining)
    assert (part.rows, part.pairs, part.examples, part.counts.counts.sum()) == (0, 0, 0, 0)
    assert len(part.sample) == len(Sample.empty(mining)) == 0


def test_more_tokens_than_can_be_numbered_are_refused_before_anything_is_read():
    with pytest.raises(SettingsError, match="merge rare"):
        Mining(Settings(), 100, 300_000_000)


def test_sparse_counts_are_mined_written_and_read_again(tmp_path, monkeypatch):
    events, mining = awkward_log(6), Mining(Settings(), 10, 5)
    dense = CountTable.of(mine(events, mining.space, mining.settings), mining.space)
    monkeypatch.setattr("bridgemem.evidence.counts.MOST_DENSE", 0)
    parts, notes = mine_partitions(events, mining, by_pair(events, 3, True), 100, tmp_path / "index")
    written(tmp_path, mining, ([Part.from_bytes(part.to_bytes(), mining) for part in parts], notes), events)
    assert_same_as_in_memory(Mined(tmp_path), events, mining.settings)
    found = Mined(tmp_path).counts
    assert torch.equal(dense.counts.flatten()[found.cells], found.counts)
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"counts\.safetensors: counts has 1 dimensions.*mine again"):
        _ = Mined(tmp_path).counts


def test_an_index_of_other_rows_than_the_counts_is_refused(tmp_path):
    events, mining = awkward_log(6), Mining(Settings(), 10, 5)
    parts, notes = mine_partitions(events, mining, by_pair(events, 3, True), 100, tmp_path / "index")
    with pytest.raises(RunError, match="not of the same rows"):
        written(tmp_path, mining, (parts, notes[:2]), events)
    with pytest.raises(RunError, match="not to the end"):
        Mined(tmp_path)

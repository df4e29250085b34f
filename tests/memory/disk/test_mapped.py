"""A memory on disk: every read is bit for bit that of the memory built at once, and what is not whole is refused."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.mapped import MANIFEST, NAMES, MappedLog
from bridgemem.events.queries import Queries
from bridgemem.memory.disk import mapped
from bridgemem.memory.disk.mapped import memory_of, open_dyads, open_memory
from bridgemem.memory.disk.segments import SegmentWriter, open_segments, seal
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.dyads import DyadMemory, pair_rows
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.storage.checksums import file_checksum, write_manifest
from bridgemem.storage.columns import forget
from bridgemem.storage.files import write_json
from builders import dataset_of, few, logs, random_log

WIDTH = 2**32


def equal(first: object, second: object) -> None:
    """Every tensor of two results has the same type and the same values."""
    for field in fields(first):  # type: ignore[arg-type]
        a, b = getattr(first, field.name), getattr(second, field.name)
        assert a.dtype == b.dtype, field.name
        assert torch.equal(a, b), field.name


def everybody(n: int, steps: list[int]) -> torch.Tensor:
    """All (actor, candidate, step), int64 [m, 3]."""
    return torch.cartesian_prod(torch.arange(n), torch.arange(n), torch.tensor(steps))


def split_in_two(events: EventLog) -> Dataset:
    return Dataset("small", events, int(events.step[len(events) // 2]))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memories")


@few
@given(
    events=logs(min_size=2).filter(lambda log: log.step[0] < log.step[len(log) // 2]),
    k=st.integers(1, 9),
    window=st.one_of(st.just(0), st.integers(1, 70)),
    steps=st.lists(st.integers(0, 95), min_size=1, max_size=3, unique=True),
    until=st.one_of(st.none(), st.integers(0, 100)),
    block=st.integers(1, 50),
)
def test_reads_of_pairs_are_bit_identical(tmp_path_factory, events, k, window, steps, until, block):
    opened = write_memory(split_in_two(events), tmp_path_factory.mktemp("m") / "memory", block=block)
    on_disk, built = Past(opened.events).dyads, DyadMemory.build(events)
    actor, candidate, step = everybody(events.n_entities, steps).T
    limit = None if until is None else torch.full_like(step, until)
    equal(on_disk.read(actor, candidate, step, k, window, limit), built.read(actor, candidate, step, k, window, limit))
    equal(on_disk.partners(actor, step, k, window, limit), built.partners(actor, step, k, window, limit))
    for mine, other in zip(
        (*on_disk.parties(), *on_disk.partner_range(actor)),
        (*built.parties(), *built.partner_range(actor)),
        strict=True,
    ):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("until", [None, 20])
@pytest.mark.parametrize("frozen_at", [None, 12])
def test_a_history_and_its_prefix_are_the_same_on_disk(home, until, frozen_at):
    events = random_log(7, n=400)
    place = home / f"history-{until}-{frozen_at}"
    opened = write_memory(dataset_of(events), place, block=90).events
    if until is not None:
        events, opened = events.prefix(until), opened.prefix(until)
    here, there = Past(events, frozen_at), Past(opened, frozen_at)
    assert isinstance(opened, MappedLog)
    assert opened.fingerprint == events.fingerprint
    actor, relation, step = torch.cartesian_prod(
        torch.arange(events.n_entities), torch.arange(2 * events.n_relations), torch.tensor([0, 5, 12, 21, 40])
    ).T
    equal(there.occurrences(actor, relation, step), here.occurrences(actor, relation, step))
    asked = {"seen": (actor, step), "seen_in_role": (actor, relation, step), "told": (actor, relation, step)}
    for name, columns in asked.items():
        for mine, other in zip(getattr(there, name)(*columns), getattr(here, name)(*columns), strict=True):
            assert mine.dtype == other.dtype, name
            assert torch.equal(mine, other), name
    assert torch.equal(there.happened(actor, relation, actor, step), here.happened(actor, relation, actor, step))
    # asked without a cut of its own, a prefix still says nothing of what came after it
    equal(there.dyads.partners(actor, step, 4, 0), here.dyads.partners(actor, step, 4, 0))


@pytest.mark.parametrize("until", [None, 20])
def test_filters_take_out_the_same_answers(home, until):
    events = random_log(9, n=300)
    opened = write_memory(dataset_of(events), home / f"filters-{until}").events
    queries = Queries.of(events)
    if until is not None:
        events, opened = events.prefix(until), opened.prefix(until)
    here, there = Filters(events), Filters(opened)
    for name in FILTERS:
        for mine, other in zip(there.mask(name, queries), here.mask(name, queries), strict=True):
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other), name


def test_the_log_and_its_splits_are_the_same_on_disk(home):
    dataset = dataset_of(random_log(11))
    opened = write_memory(dataset, home / "log", block=7)
    assert (opened.name, opened.valid_start, opened.test_start) == ("small", dataset.valid_start, dataset.test_start)
    for split in ("train", "valid", "test"):
        assert opened.split(split).fingerprint == dataset.split(split).fingerprint
    assert opened.events.entities == dataset.events.entities
    assert opened.events.clock == dataset.events.clock
    assert not opened.events.subject.flags.writeable


def test_an_index_mined_in_segments_becomes_the_same_memory(home):
    dataset = dataset_of(random_log(13))
    events = dataset.events
    pair, step, relation, direction = pair_rows(events)
    pair = pair // WIDTH * events.n_entities + pair % WIDTH
    order = np.argsort(pair, kind="stable")
    rows = [c[order] for c in (pair, step, relation, direction)]
    notes = []
    for part in range(3):
        with SegmentWriter(home / "mined", f"{part}", events.n_entities, events.n_relations) as segment:
            segment.add(*(c[rows[0] % 3 == part] for c in rows))
        notes.append(segment.note)
    seal(home / "mined", notes, events.n_entities, events.n_relations)
    with pytest.raises(RunError, match="3 segments"):
        open_dyads(home / "mined")
    write_memory(dataset, home / "from mined", open_segments(home / "mined"), block=40)
    write_memory(dataset, home / "from log", block=40)
    for file in sorted((home / "from log").iterdir()):
        assert (home / "from mined" / file.name).read_bytes() == file.read_bytes(), file.name
    other = dataset_of(random_log(14, n=201))
    with pytest.raises(RunError, match="other events"):
        write_memory(other, home / "never", open_segments(home / "mined"))
    assert not (home / "never").exists()


def test_the_index_of_pairs_alone_can_be_opened(home):
    dataset = dataset_of(random_log(15))
    write_memory(dataset, home / "alone")
    actor = torch.arange(dataset.events.n_entities)
    step = torch.full_like(actor, 99)
    built = DyadMemory.build(dataset.events)
    equal(open_dyads(home / "alone").partners(actor, step, 3, 0), built.partners(actor, step, 3, 0))


def test_pages_are_let_go_when_more_are_held_than_may_be(home, monkeypatch):
    dataset = dataset_of(random_log(17))
    write_memory(dataset, home / "resident")
    held, let_go = [0], []
    monkeypatch.setattr(mapped, "_file_bytes", lambda: held[0])
    monkeypatch.setattr(mapped, "forget", lambda columns: let_go.append(len(columns)))
    past = Past(open_memory(home / "resident", resident=1000).events)
    actor, step = torch.arange(3), torch.full((3,), 20)
    expected = past.dyads.partners(actor, step, 3, 0)
    held[0] = 999
    past.dyads.partners(actor, step, 3, 0)
    assert not let_go
    held[0] = 1001
    past.dyads.partners(actor, step, 3, 0)
    assert let_go == [57], "all columns of the memory and of its index"
    past.dyads.partners(actor, step, 3, 0)
    assert let_go == [57], "pages of other files are not let go of again and again"
    monkeypatch.undo()
    forget(memory_of(open_memory(home / "resident").events).columns.values())  # type: ignore[union-attr]
    equal(past.dyads.partners(actor, step, 3, 0), expected)


def test_a_memory_on_disk_on_a_device_is_refused(home):
    dataset = dataset_of(random_log(19))
    opened = write_memory(dataset, home / "append")
    with pytest.raises(SettingsError, match="by the CPU"):
        Past(opened.events, device="meta")


def test_a_memory_that_is_not_whole_is_refused(home, tmp_path):
    write_memory(dataset_of(random_log(21)), home / "whole")
    files = [file.name for file in (home / "whole").iterdir()]
    assert len(files) == 60
    for name in files:
        spoilt = Path(shutil.copytree(home / "whole", tmp_path / "spoilt"))
        path = spoilt / name
        path.write_bytes(path.read_bytes()[:-1] if name.endswith(".npy") else b"{}")
        with pytest.raises(RunError):
            open_memory(spoilt)
        path.unlink()
        with pytest.raises(RunError, match="missing"):
            open_memory(spoilt)
        shutil.rmtree(spoilt)
    values = json.loads((home / "whole" / MANIFEST).read_text())
    spoilt = Path(shutil.copytree(home / "whole", tmp_path / "other"))
    (spoilt / MANIFEST).write_text(json.dumps({**values, "format": 1}))
    with pytest.raises(RunError, match="format 1, and this program reads 4; write the memory on disk again"):
        open_memory(spoilt)
    names = json.loads((spoilt / NAMES).read_text())
    names["entities"][0] = "somebody else"
    write_json(spoilt / NAMES, names)
    values["names"] = file_checksum(spoilt / NAMES)
    write_manifest(spoilt / MANIFEST, {name: value for name, value in values.items() if name != "checksum"})
    with pytest.raises(RunError, match="other names"):
        open_memory(spoilt)


def test_a_large_memory_is_verified_where_that_is_asked_for(home, monkeypatch):
    place = home / "large"
    write_memory(dataset_of(random_log(23)), place)
    path = place / "triples.count.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        open_memory(place)
    monkeypatch.setattr(mapped, "VERIFIED", 100)
    open_memory(place)
    said = f"{path} is damaged, its checksum is not the one noted when it was written; write the memory on disk again."
    with pytest.raises(RunError, match=re.escape(said)):
        open_memory(place, verify=True)


def test_damage_is_not_written_again_under_a_new_checksum(home):
    dataset = dataset_of(random_log(25))
    write_memory(dataset, home / "spoilt")
    path = home / "spoilt" / "segment-all.step.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    segments = open_segments(home / "spoilt", verify=False)
    with pytest.raises(RunError, match=r"segment-all\.step\.npy is damaged"):
        write_memory(dataset, home / "copied", segments)
    assert not (home / "copied").exists()

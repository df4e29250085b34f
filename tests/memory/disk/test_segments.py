"""Segments: what is written in blocks is read back whole, and a folder that is not whole is refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import DataError, RunError
from bridgemem.memory.disk.segments import MANIFEST, Segments, SegmentWriter, open_segments, seal, vocabulary_digest
from builders import few

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
E, R = 9, 4


def sorted_rows(seed: int, n: int = 60) -> Columns:
    """Directed rows over few pairs and steps, in the order in which a writer takes them."""
    rng = np.random.default_rng(seed)
    pair, step = rng.integers(E * E, size=n) // 7 * 7, rng.integers(20, size=n)
    order = np.lexsort((step, pair))
    return pair[order], step[order], rng.integers(R, size=n), rng.integers(2, size=n)


def read_back(segments: Segments) -> Columns:
    """All rows of all segments, sorted by pair."""
    parts = [(np.repeat(p.pairs, np.diff(p.starts)), p.step, p.relation, p.direction) for p in segments.parts]
    columns = [np.concatenate(c).astype(np.int64) for c in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return columns[0][order], columns[1][order], columns[2][order], columns[3][order]


def written(folder: Path, rows: Columns, cuts: list[int], names: str | None = None) -> Segments:
    with SegmentWriter(folder, "0", E, R) as segment:
        for low, high in zip([0, *cuts], [*cuts, len(rows[0])], strict=True):
            segment.add(*(c[low:high] for c in rows))
    seal(folder, [segment.note], E, R, names)
    return open_segments(folder)


@few
@given(seed=st.integers(0, 99), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_the_blocks_that_rows_come_in_do_not_show(tmp_path_factory, seed, cuts):
    rows = sorted_rows(seed)
    found = written(tmp_path_factory.mktemp("m"), rows, sorted(cuts))
    for got, expected in zip(read_back(found), rows, strict=True):
        np.testing.assert_array_equal(got, expected)
    part = found.parts[0]
    assert (np.diff(part.pairs) > 0).all(), "every pair once"
    assert found.rows == len(rows[0])
    assert found.end == rows[1].max() + 1


def test_segments_by_hash_and_by_range_hold_the_same_rows(tmp_path):
    rows = sorted_rows(5)
    for name, part in (("hash", rows[0] // 7 % 3), ("range", rows[0] * 3 // (E * E))):
        notes = []
        for number in range(3):
            with SegmentWriter(tmp_path / name, str(number), E, R) as segment:
                segment.add(*(c[part == number] for c in rows))
            notes.append(json.loads(json.dumps(segment.note)))
        seal(tmp_path / name, notes[::-1], E, R)
        for got, expected in zip(read_back(open_segments(tmp_path / name)), rows, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_writer_without_rows_makes_an_empty_memory(tmp_path):
    with SegmentWriter(tmp_path, "0", E, R) as segment:
        pass
    seal(tmp_path, [segment.note], E, R)
    assert open_segments(tmp_path).rows == 0
    assert open_segments(tmp_path).parts == ()


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("value", [-1, E * E])
def test_a_value_out_of_range_is_refused(tmp_path, column, value):
    rows = [c.copy() for c in sorted_rows(1)]
    rows[column][-1] = value if column != 1 else -1
    with SegmentWriter(tmp_path, "0", E, R) as segment, pytest.raises(DataError, match="outside 0"):
        segment.add(rows[0], rows[1], rows[2], rows[3])


def test_rows_out_of_order_are_refused_inside_and_between_blocks(tmp_path):
    one = np.array([0, 0])
    with SegmentWriter(tmp_path, "0", E, R) as segment:
        with pytest.raises(DataError, match="out of order"):
            segment.add(np.array([5, 4]), one, one, one)
        with pytest.raises(DataError, match="out of order"):
            segment.add(np.array([5, 5]), np.array([3, 2]), one, one)
        segment.add(np.array([5, 5]), np.array([3, 3]), one, one)
        with pytest.raises(DataError, match="out of order"):
            segment.add(np.array([5, 6]), np.array([2, 2]), one, one)


@pytest.mark.parametrize("column", ["pairs", "starts", "step", "relation", "direction"])
@pytest.mark.parametrize("how", ["missing", "cut", "longer", "foreign"])
def test_a_column_that_is_not_whole_is_refused_by_name(tmp_path, column, how):
    written(tmp_path, sorted_rows(2), [])
    path = tmp_path / f"segment-0.{column}.npy"
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-1], "longer": content + b"\0", "foreign": bytes(len(content))}[how])
    with pytest.raises(RunError, match=f"{column}.*write the memory on disk again"):
        open_segments(tmp_path)


def test_a_folder_that_was_never_sealed_is_refused(tmp_path):
    with SegmentWriter(tmp_path, "0", E, R) as segment:
        segment.add(*sorted_rows(3))
    with pytest.raises(RunError, match="no whole memory"):
        open_segments(tmp_path)


def test_another_version_and_a_damaged_manifest_are_refused(tmp_path):
    written(tmp_path, sorted_rows(3), [])
    whole = json.loads((tmp_path / MANIFEST).read_text())
    for change, said in (({"format": 99}, "format 99"), ({"rows": 1}, "damaged"), ({"segments": [7]}, "damaged")):
        (tmp_path / MANIFEST).write_text(json.dumps({**whole, **change}))
        with pytest.raises(RunError, match=said):
            open_segments(tmp_path)
    (tmp_path / MANIFEST).write_text("[1,")
    with pytest.raises(RunError, match="damaged"):
        open_segments(tmp_path)


def test_sealing_refuses_a_segment_that_is_not_there(tmp_path):
    with SegmentWriter(tmp_path, "0", E, R) as segment:
        segment.add(*sorted_rows(3))
    for notes in ([{**segment.note, "name": "other"}], [segment.note, segment.note]):
        with pytest.raises((RunError, DataError)):
            seal(tmp_path, notes, E, R)
    assert not (tmp_path / MANIFEST).exists()


def test_other_names_are_refused_even_where_there_are_as_many(tmp_path):
    entities, relations = [f"e{i}" for i in range(E)], [f"r{i}" for i in range(R)]
    found = written(tmp_path, sorted_rows(4), [], vocabulary_digest(entities, relations))
    found.check_vocabulary(entities, relations)
    for other in ((entities[::-1], relations), (entities[1:], relations), (entities, relations[1:])):
        with pytest.raises(RunError, match="other names"):
            found.check_vocabulary(*other)

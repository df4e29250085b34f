"""A byte that flips on a disk: no file of a memory on disk or of a mined folder, and no weights, are used with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bridgemem.errors import RunError
from bridgemem.memory.disk.mapped import open_memory
from bridgemem.memory.disk.writing import write_memory
from bridgemem.outofcore.mined import Mined
from builders import dataset_of, random_log
from commands import Walk, bridgemem

pytest_plugins = ("small_runs",)


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def places(size: int, number: int) -> list[tuple[int, int]]:
    """Where to flip: a header, its padding, the first and last numbers, and others that differ from file to file."""
    at = {0, 9, 60, 100, 126, 128, size // 3 + number, size // 2, size - 2, size - 1}
    return [(where, (where + number) % 8) for where in sorted(at) if 0 <= where < size]


def each_flip_is_found(folder: Path, use: Callable[[], object], remedy: str) -> int:
    use()
    tried = 0
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        for at, bit in places(path.stat().st_size, number):
            flip(path, at, bit)
            with pytest.raises(RunError) as raised:
                use()
            assert path.name in str(raised.value) or path.suffix == ".json", (path.name, at, bit)
            assert str(raised.value).endswith(f"; {remedy}."), str(raised.value)
            flip(path, at, bit)
            tried += 1
    use()
    return tried


def test_a_flipped_byte_in_any_file_of_a_memory_is_found(tmp_path: Path) -> None:
    write_memory(dataset_of(random_log(3)), tmp_path / "memory")
    tried = each_flip_is_found(
        tmp_path / "memory", lambda: open_memory(tmp_path / "memory"), "write the memory on disk again"
    )
    assert tried >= 23 * 9


def test_a_flipped_byte_in_any_file_of_a_mined_folder_is_found(own_csv: Path, tmp_path: Path) -> None:
    done = bridgemem("mine", own_csv, "--out", tmp_path / "mined", "--threads", "1", "-q")
    assert done.code == 0, done.err

    def use() -> None:
        found = Mined(tmp_path / "mined")
        for part in ("counts", "log_prior", "examples", "segments", "memory", "entities", "relations"):
            getattr(found, part)
        open_memory(tmp_path / "mined")  # the events and their indices

    assert each_flip_is_found(tmp_path / "mined", use, "mine again") >= 28 * 8


def test_no_command_answers_from_a_memory_with_a_flipped_byte(walk: Walk, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    assert bridgemem("memory", walk.run, "--out", memory).code == 0
    asked = ("forecast", walk.run, "--subject", "Kel", "--relation", "visit", "--json", "--memory-dir", memory)
    expected = bridgemem(*asked).json
    for name in ("names.json", "segments.json", "segment-all.step.npy", "triples.codes.npy", "events.step.npy"):
        path = memory / name
        flip(path, path.stat().st_size // 2, 3)
        sentence = bridgemem(*asked).refused()
        assert path.name in sentence
        assert "again" in sentence
        flip(path, path.stat().st_size // 2, 3)
    assert bridgemem(*asked).json == expected


def test_no_command_answers_from_weights_with_a_flipped_byte(run_copy: Path) -> None:
    asked = ("forecast", run_copy, "--subject", "Kel", "--relation", "visit")
    expected = bridgemem(*asked).out
    for path in (run_copy / "model.safetensors", run_copy / "backbone" / "weights.safetensors"):
        flip(path, path.stat().st_size * 2 // 3, 0)
        sentence = bridgemem(*asked).refused()
        assert f"{path} is damaged, its checksum is not the one noted when it was written; put a copy back" in sentence
        flip(path, path.stat().st_size * 2 // 3, 0)
    assert bridgemem(*asked).out == expected

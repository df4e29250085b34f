"""Folders of train, valid and test files: the official split, the unit of time, names; and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bridgemem.errors import DataError, SettingsError
from bridgemem.events.datasets import CATALOG, load_benchmark
from bridgemem.events.loading import load
from builders import rows_of
from commands import bridgemem

ROWS = {
    "train": [(0, 0, 1, 0), (1, 1, 2, 24), (2, 0, 0, 24), (0, 0, 1, 48)],
    "valid": [(0, 1, 2, 72), (1, 0, 0, 96)],
    "test": [(2, 1, 1, 120)],
}


def standard_folder(home: Path, rows: dict[str, list[tuple[int, int, int, int]]] = ROWS) -> Path:
    home.mkdir(parents=True)
    for split, events in rows.items():
        text = "".join("\t".join(map(str, row)) + "\n" for row in events)
        if split == "valid":
            with gzip.open(home / f"{split}.txt.gz", "wt") as file:
                file.write(text)
        else:
            (home / f"{split}.txt").write_text(text)
    (home / "entity2id.txt").write_text("Arvan\t0\nBelmor\t1\nKel\t2\nNever seen\t3\n")
    (home / "relation2id.txt").write_text("visit\t0\naid\t1\n")
    return home


def test_a_folder_keeps_its_split_and_all_its_names(tmp_path: Path) -> None:
    data = load(standard_folder(tmp_path / "mine"))
    assert (data.name, data.events.n_entities, data.events.n_relations) == ("mine", 4, 2)
    assert [len(data.split(split)) for split in ROWS] == [4, 2, 1]
    assert rows_of(data.events) == [(s, r, o, t // 24) for rows in ROWS.values() for s, r, o, t in rows]
    assert (data.valid_start, data.test_start) == (3, 5)
    assert data.events.clock.label(3) == "72", "times are those of the files"


def test_without_a_test_file_it_loads_and_test_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine", {name: ROWS[name] for name in ("train", "valid")})
    data = load(str(folder))
    assert data.test_start is None
    with pytest.raises(DataError, match="no test split"):
        _ = data.test
    shown = bridgemem("data", "stats", folder)
    assert shown.code == 0, shown.err


@pytest.mark.parametrize("lost", ["train.txt", "valid.txt.gz", "entity2id.txt", "relation2id.txt"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, lost: str) -> None:
    folder = standard_folder(tmp_path / "mine")
    (folder / lost).unlink()
    with pytest.raises(DataError, match=f"it lacks {lost.removesuffix('.gz')}"):
        load(folder)
    bridgemem("data", "stats", folder).refused()


def test_splits_that_overlap_in_time_are_refused(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine", {**ROWS, "test": [(2, 1, 1, 96)]})
    with pytest.raises(DataError, match="must follow each other in time"):
        load(folder)


def test_what_is_split_and_stepped_is_not_split_again(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine")
    with pytest.raises(SettingsError, match="is split already"):
        load(folder, valid=0.2)
    with pytest.raises(SettingsError, match="has its time steps already"):
        load(folder, step="day")


@pytest.mark.parametrize("name", ["icews14", "yago"])
def test_a_folder_with_the_content_of_a_named_data_set_is_that_data_set(data_dir: Path, name: str) -> None:
    found, named = load(data_dir / name), load_benchmark(name, data_dir)
    assert (found.name, found.identity) == (name, named.identity)
    assert found.events.fingerprint == CATALOG[name].fingerprint

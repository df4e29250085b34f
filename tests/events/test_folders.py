"""Folders of train, valid and test files: the official split, the unit of time, names; and what is refused."""

from __future__ import annotations

import gzip
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bridgemem.errors import DataError, SettingsError
from bridgemem.events import packs
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import CATALOG
from bridgemem.events.loading import load
from builders import rows_of
from commands import bridgemem, named_own, planted_rows, write_rows

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


@pytest.mark.parametrize("name", [name for name, one in CATALOG.items() if one.resplit_of is None])
def test_a_folder_with_the_content_of_a_named_data_set_is_that_data_set(data_dir: Path, name: str) -> None:
    found = load(data_dir / name)
    assert (found.name, found.events.fingerprint) == (name, CATALOG[name].fingerprint)
    assert found.events.clock == CATALOG[name].clock
    assert found.sizes == {part: getattr(CATALOG[name], part) for part in CATALOG[name].splits}


# ---- id files ------------------------------------------------------------------------------------------------------


def test_types_are_kept_and_the_id_is_found_among_the_columns(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine")
    (folder / "entity2id.txt").write_text("Arvan\t0\t7\tcity\nKel\t2\t7\tcity\nBelmor\t1\t3\tperson\nSea\t3\t3\t\n")
    (folder / "relation2id.txt").write_text("2\nvisit\t0\naid\t1\n")
    data = load(folder)
    assert data.entities.names == ("Arvan", "Belmor", "Kel", "Sea")
    assert data.entities.types == {"Arvan": "7\tcity", "Belmor": "3\tperson", "Kel": "7\tcity", "Sea": "3\t"}
    assert list(data.entities.to_frame()["type"]) == ["7\tcity", "3\tperson", "7\tcity", "3\t"]
    assert data.relations.names == ("visit", "aid"), "a line that counts the others is no name"
    assert bridgemem("data", "pack", folder, "-o", tmp_path / "mine.npz").code == 0
    assert load(tmp_path / "mine.npz").entities.types == data.entities.types


def test_repeated_names_are_told_apart(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine")
    (folder / "entity2id.txt").write_text("Georgia\t0\tstate\nGeorgia\t1\tcountry\nGeorgia\t2\tcountry\nKel\t3\tx\n")
    (folder / "relation2id.txt").write_text("visit\t0\nvisit\t1\n")
    data = load(folder)
    assert data.entities.names == ("Georgia", "Georgia (country)", "Georgia (2)", "Kel")
    assert data.relations.names == ("visit", "visit (1)")
    assert [data.entities.id(name) for name in data.entities] == [0, 1, 2, 3]


def test_stat_counts_entities_that_no_file_names(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine")
    (folder / "stat.txt").write_text("6\t2\t0\n")
    named = load(folder)
    assert named.entities.names == ("Arvan", "Belmor", "Kel", "Never seen", "4", "5")
    for kind in ("entity", "relation"):
        (folder / f"{kind}2id.txt").unlink()
    data = load(folder)
    assert (data.entities.names, data.relations.names) == (tuple("012345"), ("0", "1"))
    assert rows_of(data.events) == rows_of(named.events)
    (folder / "stat.txt").write_text("2 2\n")
    with pytest.raises(DataError, match=r"the entity id 2, and its stat.txt counts 2 only"):
        load(folder)
    (folder / "stat.txt").write_text("many\n")
    with pytest.raises(DataError, match="expected the numbers of entities and relations"):
        load(folder)


def test_packed_id_files_and_five_columns_are_read(tmp_path: Path) -> None:
    plain = load(standard_folder(tmp_path / "plain"))
    folder = standard_folder(tmp_path / "mine")
    for name in ("entity2id.txt", "relation2id.txt", "train.txt"):
        rows = (folder / name).read_text()
        (folder / name).unlink()
        wide = "".join(f"{row}\t0\n" for row in rows.splitlines()) if name == "train.txt" else rows
        with gzip.open(folder / f"{name}.gz", "wt") as file:
            file.write(wide)
    assert load(folder).identity == plain.identity


# ---- what is said --------------------------------------------------------------------------------------------------


def test_the_unit_of_the_times_is_said(tmp_path: Path) -> None:
    folder = standard_folder(tmp_path / "mine")
    with pytest.warns(UserWarning, match="All times are multiples of 24, so a step is 24 units of the times"):
        load(folder)
    shown = bridgemem("data", "stats", folder)
    assert "multiples of 24" in shown.err
    assert "a step is 24 units of the times" in shown.out


def test_a_split_that_nobody_gave_is_said_in_one_line(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "own.csv", planted_rows())
    with pytest.warns(UserWarning, match="own has no split, so it was split by time: train"):
        load(rows)
    for given in ({"valid": 0.2}, {"split_at": ("2024-01-20", "2024-01-30")}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load(rows, **given)
    shown = bridgemem("data", "stats", rows)
    assert len(shown.split) == 1


# ---- given splits --------------------------------------------------------------------------------------------------


def named_rows() -> dict[str, list[tuple[str, str, str, str]]]:
    rows = planted_rows()
    days = sorted({row[3] for row in rows})
    parts = {"train": days[:30], "valid": days[30:33], "test": days[33:]}
    return {part: [row for row in rows if row[3] in own] for part, own in parts.items()}


def same_split(data: Dataset) -> None:
    assert data.sizes == {part: len(rows) for part, rows in named_rows().items()}
    clock = data.events.clock
    starts = [min(row[3] for row in named_rows()[part]) for part in ("valid", "test")]
    assert [clock.label(data.valid_start), clock.label(data.test_start or 0)] == starts


def test_three_files_keep_their_split_however_they_are_given(tmp_path: Path) -> None:
    files = [write_rows(tmp_path / "mine" / f"{part}.csv", rows) for part, rows in named_rows().items()]
    odd = [
        write_rows(tmp_path / f"{letter}.csv", rows) for letter, rows in zip("abc", named_rows().values(), strict=True)
    ]
    for given in (files, files[::-1], tuple(map(str, files)), tmp_path / "mine", dict(zip(ROWS, odd, strict=True))):
        same_split(load(given))
    assert bridgemem("data", "import", *files, "-o", tmp_path / "a.npz").code == 0
    same_split(load(tmp_path / "a.npz"))
    for command in (("data", "stats", *files), ("data", "stats", tmp_path / "mine")):
        shown = bridgemem(*command)
        assert f"test {len(named_rows()['test']):,}" in shown.out
        assert shown.split == ()


@pytest.mark.parametrize("kind", ["arrays", "lists"])
def test_three_arrays_or_lists_of_rows_keep_their_split_like_three_frames(kind: str) -> None:
    parts = [[list(map(str, row)) for row in rows] for rows in named_rows().values()]
    given: list[Any] = [np.array(rows) for rows in parts] if kind == "arrays" else parts
    for source in (given, tuple(given), dict(zip(("train", "val", "test"), given, strict=True))):
        same_split(load(source))
    with pytest.raises(SettingsError, match="is split already"):
        load(given, valid=0.2)
    assert load({"train": given[0], "valid": given[1]}).test_start is None
    with pytest.warns(UserWarning, match="has no split, so it"):
        assert len(load(given[:2])) == len(parts[0]) + len(parts[1])


def test_arrays_of_ids_are_read_as_the_same_rows_in_one_list() -> None:
    arrays = [np.array(rows) for rows in ROWS.values()]
    data = load(arrays)
    assert (data.sizes, data.events.n_entities) == ({"train": 4, "valid": 2, "test": 1}, 3)
    joined = load([row for rows in ROWS.values() for row in rows], split_at=(72, 120))
    assert rows_of(data.events) == rows_of(joined.events)
    same = np.array([[(0, 0, 1, at), (1, 0, 2, at), (2, 0, 0, at), (0, 1, 2, at)] for at in (1, 2, 3)])
    sizes = {"train": 4, "valid": 4, "test": 4}
    assert load(same).sizes == load(same.tolist()).sizes == sizes, "four rows are no row"
    assert load(torch.from_numpy(same)).sizes == load(list(torch.from_numpy(same))).sizes == sizes


def test_ids_that_do_not_occur_are_told_of() -> None:
    whole = np.array([row for part in ROWS.values() for row in part]) * [2, 1, 2, 1]
    parts = np.split(whole, [4, 6])
    for source in (parts, dict(zip(("train", "valid", "test"), map(torch.from_numpy, parts), strict=True))):
        with pytest.warns(UserWarning, match="2 of those up to 4 do not occur and are no candidates"):
            assert load(source).events.entities.names == ("0", "2", "4")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="entity ids")
        assert load([part // [2, 1, 2, 1] for part in parts]).events.entities.names == ("0", "1", "2")


def test_an_array_of_records_is_read_as_its_rows() -> None:
    rows = [row for part in ROWS.values() for row in part]
    structured, objects = np.array(rows, dtype="i8,i8,i8,i8"), np.empty(len(rows), dtype=object)
    objects[:] = rows
    records = [dict(zip(("subject", "relation", "object", "time"), row, strict=True)) for row in rows]
    for given in (structured, objects, records):
        assert rows_of(load(given, split_at=(72, 120)).events) == rows_of(load(rows, split_at=(72, 120)).events)
    cut = {"train": records[:4], "valid": records[4:6], "test": rows[6:]}
    assert load(cut).sizes == {"train": 4, "valid": 2, "test": 1}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ([np.ones((5, 3)), np.ones((2, 4)), np.ones((2, 4))], "train is an array of shape (5, 3); give rows of"),
        ({"train": np.ones((5, 4)), "valid": np.ones(4)}, "valid is an array of shape (4,); give rows of"),
        ([np.ones((5, 4)), np.ones((2, 4)), np.ones((0, 4))], "test holds no events"),
        ([[(0, 0, 1, 2)], [(0, 0, 1, 3), (0, 1, 3)], [(0, 0, 1, 4)]], "valid, row 2 is (0, 1, 3); give rows of"),
        ([("Ann", "calls", "Bob")] * 2, "part 1 is ('Ann', 'calls', 'Bob'); give rows of"),
        ([(0, 0, 1, 2), (0, 1, 3)], "this data, row 2 is (0, 1, 3); give rows of"),
        (np.ones((5, 5)), "this data is an array of shape (5, 5); give rows of"),
        (np.array(3), "this data is an array of shape (); give rows of"),
        ([1, 2, 3], "not 1."),
        (torch.ones(5, 3), "this data is an array of shape (5, 3); give rows of"),
        (torch.ones(5, 4).to_sparse(), "this Tensor is no plain array; give rows of"),
        (np.array([(0, 0, 1), (0, 1, 3)], dtype="i8,i8,i8"), "this data, row 1 is (0, 0, 1); give rows of"),
        (
            [{"subject": 0, "time": 1}, {"subject": 1}],
            "this data, row 2 is {'subject': 1}; give every row the keys of the first, 'subject', 'time'.",
        ),
        ([np.array([[0, 0, 1, 9]]), np.array([[0, 0, 1, 3]]), np.array([[0, 0, 1, 10]])], "valid begins at step"),
    ],
)
def test_arrays_of_another_shape_or_order_are_refused_by_the_name_of_their_part(source: Any, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        load(source)


def test_a_folder_of_parquet_files_keeps_its_split(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = ["subject", "relation", "object", "time"]
    frames = [pandas.DataFrame(rows, columns=columns) for rows in named_rows().values()]
    for part, frame in zip(("train", "val", "test"), frames, strict=True):
        frame.to_parquet(tmp_path / f"{part}.parquet")
    same_split(load(tmp_path))
    same_split(load(frames))
    same_split(load(dict(zip(ROWS, frames, strict=True))))
    assert bridgemem("data", "check", tmp_path).code == 0


def test_columns_may_be_named_and_shares_may_not(tmp_path: Path) -> None:
    files = [write_rows(tmp_path / f"{part}.csv", rows) for part, rows in named_rows().items()]
    for file in files:
        file.write_text(file.read_text().replace("subject", "who", 1))
    same_split(load(files, subject="who"))
    for given in ({"valid": 0.2}, {"split_at": ("2024-01-20", "2024-01-30")}):
        with pytest.raises(SettingsError, match="is split already"):
            load(files, subject="who", **given)
    (tmp_path / "valid.csv").unlink()
    with pytest.raises(DataError, match="gives train and test, but no valid"):
        load([files[0], files[2]], subject="who")
    joined = load([files[0], files[2]], subject="who", split_at=("2024-01-20", "2024-02-04"))
    assert len(joined) == len(named_rows()["train"]) + len(named_rows()["test"])


def test_other_files_are_joined_and_the_split_is_said(tmp_path: Path) -> None:
    files = [
        write_rows(tmp_path / f"{letter}.csv", rows) for letter, rows in zip("abc", named_rows().values(), strict=True)
    ]
    with pytest.warns(UserWarning, match="has no split, so it"):
        data = load(files)
    assert len(data) == len(planted_rows())


# ---- boundaries ----------------------------------------------------------------------------------------------------


def test_split_at_sets_both_boundaries_in_python_and_in_every_command(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "own.csv", planted_rows())
    data = load(rows, split_at=("2024-01-20", "2024-01-30"))
    assert [data.events.clock.label(step) for step in (data.valid_start, data.test_start or 0)] == [
        "2024-01-20",
        "2024-01-30",
    ]
    sizes = ", ".join(f"{part} {size:,}" for part, size in data.sizes.items())
    shown = bridgemem("data", "stats", rows, "--split-at", "2024-01-20", "2024-01-30")
    assert sizes in shown.out
    out = tmp_path / "a.npz"
    assert bridgemem("data", "import", rows, "-o", out, "--split-at", "2024-01-20", "2024-01-30").code == 0
    assert load(out).sizes == data.sizes
    with pytest.raises(DataError, match="leaves no events for validation; the events reach from 2024-01-01 to"):
        load(rows, split_at=("2024-01-30", "2024-01-20"))
    bridgemem("data", "stats", rows, "--split-at", "2024-01-20", "soon").refused()
    bridgemem("data", "stats", "world", "--split-at", "10", "20").refused()
    bridgemem("data", "import", rows, "-o", tmp_path / "b.npz", "--valid", "0.1", "--split-at", "1", "2").refused()


# ---- packs ---------------------------------------------------------------------------------------------------------


def test_a_packed_resplit_opens_without_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = load(write_rows(tmp_path / "own.csv", planted_rows()))
    named_own(own, "icews14", monkeypatch)
    steps = own.train.step
    start = int(steps[len(steps) * 9 // 10])
    sizes = {"train": int((steps < start).sum()), "valid": int((steps >= start).sum()), "test": len(own.valid)}
    official = replace(own, name="parent", test_start=None)
    parent = replace(CATALOG["icews14"], name="parent", valid=len(own.valid) + len(own.test), test=None)
    sizes["test"] = parent.valid
    monkeypatch.setitem(CATALOG, "parent", parent)
    monkeypatch.setitem(CATALOG, "child", replace(parent, name="child", resplit_of="parent", **sizes))
    monkeypatch.delenv("BRIDGEMEM_DATA", raising=False)
    monkeypatch.setenv("BRIDGEMEM_HOME", str(tmp_path))
    packs.pack(official, tmp_path / "whole" / "parent.npz")
    made = bridgemem("data", "pack", "child", "-o", tmp_path / "packs" / "child.npz", "--data-dir", tmp_path / "whole")
    assert made.code == 0, made.err
    assert [path.name for path in (tmp_path / "packs").iterdir()] == ["child.npz"], "that file, and not a folder"
    data = load("child", data_dir=tmp_path / "packs")
    assert (data.name, data.sizes) == ("child", sizes)


def test_one_file_holds_one_data_set(tmp_path: Path) -> None:
    assert bridgemem("data", "pack", "world", "-o", tmp_path / "w.npz").code == 0
    assert load(tmp_path / "w.npz").name == "world"
    assert "ends in .csv" in bridgemem("data", "pack", "world", "-o", tmp_path / "w.csv").refused()
    bridgemem("data", "pack", "world", "icews14", "-o", tmp_path / "both.npz").refused()

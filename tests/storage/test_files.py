"""Folders and files appear whole or not at all, and only what this program wrote is ever replaced."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from bridgemem.errors import RunError
from bridgemem.storage import files as store
from bridgemem.storage import placing
from bridgemem.storage.files import (
    link_or_copy,
    locked,
    read_json,
    read_names,
    write_json,
    write_names,
)
from bridgemem.storage.tables import write_table
from bridgemem.storage.tensors import load_tensors, read_tensors, save_tensors, write_tensors
from bridgemem.storage.whole import check_free, whole_file, whole_folder
from builders import few
from commands import left_in, small_files_only


class StoppedError(Exception):
    pass


def fill_and_stop(aside: Path, failure: type[BaseException] = StoppedError) -> None:
    (aside / "a" if aside.is_dir() else aside).write_text("half")
    raise failure


def saved(path: Path, value: float = 1.0) -> Path:
    save_tensors(path, {"backbone": {"name": "x"}}, {"w": torch.full((3,), value)})
    return path


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IsADirectoryError) as problem, whole_file(tmp_path / "folder.csv") as aside:
        aside.write_bytes(b"1")
    assert problem.value.filename == str(tmp_path / "folder.csv")


def test_a_full_disk_is_told_of_the_table_in_plain_words(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="Parquet needs DuckDB")
    path = tmp_path / "ranks.parquet"
    with small_files_only(1000), pytest.raises(RunError) as problem:
        write_table(path, {"a": np.random.default_rng(1).random(10_000)})
    assert str(problem.value) == f"{path} cannot be written: File too large."


def test_a_folder_appears_when_all_is_written(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "deep" / "run") as aside:
        (aside / "a").write_text("1")
        assert not (tmp_path / "deep" / "run").exists()
    assert (tmp_path / "deep" / "run" / "a").read_text() == "1"
    assert left_in(tmp_path / "deep") == ["run"]


@pytest.mark.parametrize("failure", [StoppedError, KeyboardInterrupt, OSError])
def test_a_folder_that_fails_leaves_nothing(failure: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(failure), whole_folder(tmp_path / "run") as aside:
        fill_and_stop(aside, failure)
    assert left_in(tmp_path) == []


def test_a_failed_replacement_keeps_what_was_there(tmp_path: Path) -> None:
    saved(tmp_path / "run", 1.0)
    with pytest.raises(StoppedError), whole_folder(tmp_path / "run", replace=True):
        raise StoppedError
    assert load_tensors(tmp_path / "run")[1]["w"].tolist() == [1.0] * 3
    assert left_in(tmp_path) == ["run"]


def test_a_replacement_whose_last_rename_fails_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "run", 1.0)
    rename = Path.rename

    def fail_for_the_new(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(placing, "_system_call", lambda: None)  # a system that cannot exchange two folders
    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="no"), whole_folder(tmp_path / "run", replace=True):
        pass
    assert load_tensors(tmp_path / "run")[1]["w"].tolist() == [1.0] * 3
    assert left_in(tmp_path) == ["run"]


def test_a_folder_that_a_killed_replacement_took_away_is_back_when_it_is_read(tmp_path: Path) -> None:
    saved(tmp_path / "run", 1.0).rename(placing.aside_of(tmp_path / "run", placing.OLD))
    assert not (tmp_path / "run").exists()
    assert load_tensors(tmp_path / "run")[1]["w"].tolist() == [1.0] * 3
    assert left_in(tmp_path) == ["run"]


def test_a_taken_name_is_refused_unless_it_may_be_replaced(tmp_path: Path) -> None:
    saved(tmp_path / "run", 1.0)
    with pytest.raises(RunError, match="exists already"), whole_folder(tmp_path / "run"):
        pass
    saved(tmp_path / "run", 2.0)
    assert load_tensors(tmp_path / "run")[1]["w"].tolist() == [2.0] * 3
    assert left_in(tmp_path) == ["run"]


def test_what_others_keep_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "notes.txt").write_text("more work")
    for name in ("thesis", "notes.txt"):
        with pytest.raises(RunError, match="is no saved model and is not replaced"):
            check_free(tmp_path / name, replace=True)
        with pytest.raises(RunError), whole_folder(tmp_path / name, replace=True):
            pass
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty", replace=True)


def test_a_name_below_a_file_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        check_free(tmp_path / "file" / "deep" / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RunError, match="may write to"):
        check_free(locked / "run")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "file"
    with whole_file(path) as aside:
        aside.write_text("first")
    with pytest.raises(StoppedError), whole_file(path) as aside:
        fill_and_stop(aside)
    assert path.read_text() == "first"
    with pytest.raises(FileNotFoundError), whole_file(path):
        pass
    assert path.read_text() == "first"
    assert left_in(path.parent) == ["file"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with small_files_only(200):
        with pytest.raises(OSError, match="large"):
            save_tensors(tmp_path / "model", {}, {"w": torch.zeros(1000)})
        with pytest.raises(OSError, match="large"):
            write_json(tmp_path / "values.json", list(range(1000)))
    assert left_in(tmp_path) == []


def test_weights_come_back_bit_for_bit_with_the_usual_permissions(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).double(), "b": torch.arange(5).view(5, 1).T, "c": torch.zeros(0, 2)}
    write_tensors(tmp_path / "weights.safetensors", tensors)
    (tmp_path / "other").write_text("")
    found = read_tensors(tmp_path / "weights.safetensors")
    assert set(found) == set(tensors)
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_json_that_is_missing_cut_or_too_deep_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="missing"):
        read_json(tmp_path / "no.json")
    for content in (b'{"a": 1', b"\xff\xfe", b"", b"[" * 200_000):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(RunError, match="damaged"):
            read_json(tmp_path / "bad.json")


def test_toml_that_is_too_deep_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(RunError):
        store.read_config(tmp_path)


def test_linked_folders_survive_the_replacement_of_their_source(tmp_path: Path) -> None:
    source = saved(tmp_path / "backbone", 1.0)
    link_or_copy(source, tmp_path / "run")
    saved(source, 2.0)
    assert load_tensors(tmp_path / "run")[1]["w"].tolist() == [1.0] * 3


def test_only_the_files_of_a_backbone_are_linked(tmp_path: Path) -> None:
    source = saved(tmp_path / "backbone")
    for name in ("trained.json", "scores-00000.npy", "notes.txt", "id_rsa", ".env", "weights.safetensors.bak"):
        (source / name).write_text("{}")
    (source / "deep").mkdir()
    (source / "deep" / "config.toml").touch()
    link_or_copy(source, tmp_path / "run")
    assert left_in(tmp_path / "run") == ["config.toml", "scores-00000.npy", "trained.json", "weights.safetensors"]


@pytest.mark.parametrize("linked", [True, False])
def test_a_file_that_becomes_a_link_while_a_folder_is_linked_is_not_followed(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tmp_path / "backbone")
    (tmp_path / "secret").write_text("secret")

    def too_soon(folder: Path) -> list[Path]:
        (folder / "weights.safetensors").unlink()
        (folder / "weights.safetensors").symlink_to(tmp_path / "secret")
        return [folder / "weights.safetensors"]

    monkeypatch.setattr(store, "backbone_files", too_soon)
    if not linked:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(RunError, match="is a symbolic link"):
        link_or_copy(source, tmp_path / "run")
    assert (tmp_path / "run" / "weights.safetensors").is_symlink(), "the link itself, and not its target"


def no_links(*_: object, **__: object) -> None:
    raise OSError("cross-device")


def test_folders_are_copied_where_links_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    link_or_copy(saved(tmp_path / "backbone"), tmp_path / "run")
    assert load_tensors(tmp_path / "run")[1]["w"].tolist() == [1.0] * 3


def count_up(path: Path, times: int) -> None:
    for _ in range(times):
        with locked(path):
            found = read_json(path) if path.exists() else 0
            time.sleep(0.001)
            write_json(path, found + 1)


def test_whoever_changes_a_file_waits_for_whoever_does_already(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "count.json"
    others = [threading.Thread(target=count_up, args=(path, 15)) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert read_json(path) == 60
    assert left_in(path.parent) == ["count.json"]


def test_other_processes_find_the_file_locked_until_it_is_written(tmp_path: Path) -> None:
    lock_file = tmp_path / ".a.lock"
    with locked(tmp_path / "a"), lock_file.open("a") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(StoppedError), locked(tmp_path / "a"):
        raise StoppedError
    assert left_in(tmp_path) == []
    lock_file.touch()  # what a kill leaves
    with locked(tmp_path / "a"):
        assert lock_file.exists()
    assert left_in(tmp_path) == []


def test_a_file_is_written_without_waiting_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    count_up(tmp_path / "a.json", 2)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    count_up(tmp_path / "a.json", 2)
    assert read_json(tmp_path / "a.json") == 4
    assert left_in(tmp_path) == ["a.json"]


def test_a_file_that_cannot_be_locked_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match=r"file/a\.json cannot be written: [\w ]+\.$"),
        locked(tmp_path / "file" / "a.json"),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_file_in_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(RunError, match=r"a\.json cannot be written: Permission denied\."):
        count_up(tmp_path / "locked" / "a.json", 1)


@few
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
@example(["A\nlimited", "D\rE", "make a\u2028statement", "\x85", "\x0b\x0c"])
@example(['["a"]'])
@example(["[", '"a"', "]"])
@example([""])
@example([])
def test_names_come_back_whatever_they_hold(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("names") / "names.txt"
    write_names(path, names)
    assert read_names(path) == tuple(names)


def test_plain_names_are_one_a_line_as_earlier_versions_wrote_them(tmp_path: Path) -> None:
    names = ("Kel", "[nobody]", '"Lor"', "make a\u2028statement", "D\rE")
    write_names(tmp_path / "names.txt", names)
    assert (tmp_path / "names.txt").read_bytes() == "\n".join([*names, ""]).encode()
    assert read_names(tmp_path / "names.txt") == names


def test_names_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    for name in ("bad.txt", "none.txt"):
        with pytest.raises(RunError, match=f"{name} cannot be read"):
            read_names(tmp_path / name)

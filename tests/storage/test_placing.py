"""A name has one writer at a time, and a kill at any point leaves the old folder or the new one."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bridgemem.errors import RunError
from bridgemem.storage import placing, whole
from bridgemem.storage.placing import aside_of, reserved
from bridgemem.storage.whole import whole_file, whole_folder
from commands import left_in


def write(path: Path, text: str, replace: bool = True) -> None:
    with whole_folder(path, replace) as aside:
        for name in ("model.safetensors", "config.toml"):
            (aside / name).write_text(text)


def read(path: Path) -> set[str]:
    """What the two files of a folder say; one value where the folder is whole."""
    assert left_in(path) == ["config.toml", "model.safetensors"]
    return {(path / name).read_text() for name in left_in(path)}


def test_a_kill_at_any_line_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parents[1] / "killed_writes.py"), str(tmp_path)]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    seen = []
    for line in said.splitlines():
        exchange, there, kills, left, last, left_over = json.loads(line)
        assert kills > 50
        assert left == (["new", "old"] if there else ["new", "nothing"])
        assert (last, left_over) == ("last", ["run"]), "what the killed ones left is gone"
        seen.append((exchange, there))
    assert len(set(seen)) == 4


def test_of_two_threads_one_writes_and_the_other_is_refused(tmp_path: Path) -> None:
    said: list[str] = []

    def second() -> None:
        with pytest.raises(RunError) as raised:
            write(tmp_path / "run", "second")
        said.append(str(raised.value))

    with whole_folder(tmp_path / "run") as aside:
        (aside / "model.safetensors").write_text("first")
        other = threading.Thread(target=second)
        other.start()
        other.join()
    expected = "is being written by another process; wait until it ends, or choose another name."
    assert said == [f"{tmp_path / 'run'} {expected}"]
    assert (tmp_path / "run" / "model.safetensors").read_text() == "first"
    assert left_in(tmp_path) == ["run"]


def test_another_process_is_refused_and_its_parts_are_left_alone(tmp_path: Path) -> None:
    part = aside_of(tmp_path / "run")
    part.mkdir()
    with (tmp_path / ".run.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="by another process"):
            write(tmp_path / "run", "new")
        assert left_in(tmp_path) == [part.name, ".run.lock"]
    write(tmp_path / "run", "new")
    assert left_in(tmp_path) == ["run"]


def test_a_name_is_held_for_as_long_as_the_work_takes(tmp_path: Path) -> None:
    with reserved(tmp_path / "deep" / "run"):
        with (tmp_path / "deep" / ".run.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(tmp_path / "deep" / "run", "mine")
        with (tmp_path / "deep" / ".run.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert left_in(tmp_path / "deep") == ["run"]
    with pytest.raises(KeyboardInterrupt), reserved(tmp_path / "other" / "run"):
        raise KeyboardInterrupt
    assert left_in(tmp_path) == ["deep"], "no empty folder stays"


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("exchange", [True, False])
def test_what_appears_during_the_write_stays_and_so_does_what_was_written(
    replace: bool, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(placing, "_system_call", lambda: None)
    run = tmp_path / "run"
    with reserved(run):  # which the work before the write, that takes long, has done
        run.mkdir()
        (run / "thesis.tex").write_text("years of work")
        with pytest.raises(RunError, match=r"appeared while.*what was written is in .*run-2\.$"):
            write(run, "new", replace)
    assert (run / "thesis.tex").read_text() == "years of work"
    assert read(tmp_path / "run-2") == {"new"}
    assert left_in(tmp_path) == ["run", "run-2"]


def test_a_name_that_is_taken_in_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_taken", lambda *_: None)  # as the check finds it a moment too soon
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="appeared"):
        write(tmp_path / "run", "new", replace=False)
    assert left_in(tmp_path / "run") == []
    assert read(tmp_path / "run-2") == {"new"}


def test_a_link_in_place_of_a_folder_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "run", "old")
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "nowhere").symlink_to("gone")
    for name in ("link", "nowhere"):
        with pytest.raises(RunError, match="is a symbolic link"):
            write(tmp_path / name, "new")
    assert left_in(tmp_path) == ["link", "nowhere", "run"]
    assert read(tmp_path / "run") == {"old"}


def test_where_nothing_can_be_locked_the_maker_of_the_lock_file_holds_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    write(tmp_path / "run", "old")
    part = aside_of(tmp_path / "run")  # of a live process: this one
    part.mkdir()
    write(tmp_path / "run", "new")
    assert left_in(tmp_path) == [part.name, "run"]
    part.rmdir()
    (tmp_path / ".run.lock").touch()
    with pytest.raises(RunError, match=r"if no process writes it, remove .*\.run\.lock\.$"):
        write(tmp_path / "run", "newer")
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(RunError, match="if no process writes it"):
        write(tmp_path / "run", "newer")
    assert read(tmp_path / "run") == {"new"}


def dead_process() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_parts_of_files_go_with_the_next_write_unless_their_writer_may_live(tmp_path: Path) -> None:
    path, here = tmp_path / "file.json", aside_of(tmp_path / "file.json").name
    own, gone = f"-{os.getpid()}-", f"-{dead_process()}-"
    dead = here.replace(own, gone)
    host, rest = here.split(".json.")[1][:6], here.split(".json.")[1][12:]
    before = f".file.json.{host}{'0' * 6}{rest}"  # before the machine was started again
    elsewhere = f".file.json.{'0' * 12}{rest.replace(own, gone)}"
    for name in (here, dead, before, elsewhere):
        (tmp_path / name).write_text("half")
    with whole_file(path) as aside:
        aside.write_text("whole")
    assert left_in(tmp_path) == sorted([here, elsewhere, "file.json"])


def test_a_file_that_appears_is_not_replaced_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"

    def write_both() -> None:
        with whole_file(path, replace=False) as aside:
            aside.write_text("mine")
            path.write_text("theirs")

    with pytest.raises(RunError, match=r"what was written is in .*answers-2\.csv\."):
        write_both()
    assert (path.read_text(), (tmp_path / "answers-2.csv").read_text()) == ("theirs", "mine")
    with whole_file(path) as aside:
        aside.write_text("mine")
    assert path.read_text() == "mine"
    assert left_in(tmp_path) == ["answers-2.csv", "answers.csv"]

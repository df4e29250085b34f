"""Work that is stopped in the middle leaves no half run, and starting again works."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bridgemem import fitting, runs
from bridgemem.backbones import cenet
from bridgemem.backbones.hri import Hri
from bridgemem.backbones.recurrence import Popularity
from bridgemem.runs import Run
from bridgemem.training import checkpoint
from commands import TINY_CENET, TINY_READER, Walk, bridgemem, left_in, small_files_only

pytest_plugins = ("small_runs",)

# the real program, made to wait for its killer when half of a run folder is written
HALFWAY = """
import sys, time
from pathlib import Path
from bridgemem import runs
from bridgemem.cli.main import main

mark = Path(sys.argv.pop())  # no argument of the command: taken away before the command line is read

def wait(path, tensors):
    path.write_bytes(b"half")
    mark.write_text("now")
    time.sleep(600)

runs.write_tensors = wait
main()
"""


def fit_command(own_csv: Path, run: Path) -> tuple[str | Path, ...]:
    return ("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_fit_leaves_no_run_and_can_be_started_again(
    how: signal.Signals, own_csv: Path, tmp_path: Path
) -> None:
    run, mark = tmp_path / "runs" / "mine", tmp_path / "halfway"
    program = [sys.executable, "-c", HALFWAY, *map(str, fit_command(own_csv, run)), str(mark)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, process.stderr and process.stderr.read()
        process.send_signal(how)
        process.wait()
    assert not run.exists()
    assert all(name.startswith(".mine.") and name.endswith((".part", ".lock")) for name in left_in(run.parent))
    assert bridgemem(*fit_command(own_csv, run)).code == 0
    assert left_in(run.parent) == ["mine"], "what the killed one left is gone"
    assert Run(run).selection("time").choice
    assert bridgemem("evaluate", run).code == 0


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("module", "part"), [(runs, "write_tensors"), (runs, "write_calibrations")])
def test_ctrl_c_ends_in_one_sentence_and_leaves_nothing(
    module: ModuleType, part: str, own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, part, stop)
    outcome = bridgemem(*fit_command(own_csv, tmp_path / "run"))
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "bridgemem: interrupted; nothing half-written was kept.\n"
    assert left_in(tmp_path) == []


def test_ctrl_c_during_training_leaves_no_backbone(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cenet._Trainer, "stage_two", stop)
    outcome = bridgemem("train", "cenet", "-d", own_csv, "-o", tmp_path / "b", *TINY_CENET)
    assert outcome.code == 1
    assert left_in(tmp_path) == []


def test_an_interrupted_training_is_given_up_for_another_one_only_by_force(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "cenet", "-d", own_csv, "-o", tmp_path / "b", *TINY_CENET)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "KEEP_EVERY", 0.0)
        patched.setattr(cenet._Trainer, "stage_two", stop)
        assert "the training so far is in" in bridgemem(*command).err
    sentence = bridgemem(*command, "--set", "width=16").refused()
    assert "keeps an interrupted training" in sentence
    assert "--force" in sentence
    assert left_in(tmp_path) == [".b.training"]
    assert bridgemem(*command, "--set", "width=16", "--force").code == 0
    assert left_in(tmp_path) == ["b"]


def test_ctrl_c_in_a_long_training_says_what_is_kept_and_goes_on_from_there(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ("members=hri,popularity",)
    commands: dict[str, tuple[str | Path, ...]] = {
        "b": ("train", "ensemble", "-d", own_csv, "-o", tmp_path / "b", "-q", "--set", *two),
        "own-ensemble-b42": (
            *("reproduce", own_csv, "--backbone", "ensemble", "--runs", tmp_path, "-q", *TINY_READER),
            *("--records", tmp_path / "records.jsonl", "--backbone-set", *two),
        ),
    }
    for name, command in commands.items():
        with monkeypatch.context() as patched:
            patched.setattr(Popularity, "fit", stop)
            outcome = bridgemem(*command)
        state = tmp_path / f".{name}.training"
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err == (
            f"bridgemem: interrupted; the training so far is in {state}, and the same command continues it.\n"
        )
        assert left_in(state) == ["hri"]
        with monkeypatch.context() as patched:
            patched.setattr(Hri, "fit", stop)
            assert bridgemem(*command).code == 0, "the finished member is not trained again"
        assert not state.exists()


def test_ctrl_c_in_the_second_training_of_a_cross_fit_says_what_is_kept(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ("--set", "members=hri,popularity")
    assert bridgemem("train", "ensemble", "-d", own_csv, "-o", tmp_path / "b", *two).code == 0
    monkeypatch.setattr(Popularity, "fit", stop)
    command = (
        "fit",
        "-d",
        own_csv,
        "-b",
        tmp_path / "b",
        "-o",
        tmp_path / "run",
        *TINY_READER,
        "--residual",
        "learned",
    )
    outcome = bridgemem(*command, "--learned-set", "cross_fit=0.25")
    assert outcome.code == 1
    assert f"is in {tmp_path / '.b-before-0.25.training'}, and the same command continues it" in outcome.err
    assert left_in(tmp_path / ".b-before-0.25.training") == ["hri"]


@pytest.mark.parametrize("part", ["pack", "save_trained", "write_tensors", "write_json", "write_calibrations"])
def test_a_full_disk_at_any_part_of_a_run_leaves_nothing(
    part: str, own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, part, full)
    said = bridgemem(*fit_command(own_csv, tmp_path / "run")).refused()
    assert said.startswith(f"bridgemem: {tmp_path / 'run'}")
    assert f"cannot be written: No space left on device; free some space in {tmp_path}" in said
    assert left_in(tmp_path) == []


def test_a_disk_that_really_refuses_leaves_nothing(own_csv: Path, walk: Walk, tmp_path: Path) -> None:
    with small_files_only(4096):
        bridgemem("train", "cenet", "-d", own_csv, "-o", tmp_path / "b", *TINY_CENET).refused()
        bridgemem("fit", "-d", own_csv, "-b", walk.backbone, "-o", tmp_path / "run", *TINY_READER).refused()
    assert left_in(tmp_path) == []


def test_a_forced_fit_that_fails_keeps_the_run_that_was_there(
    own_csv: Path, run_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in run_copy.iterdir() if path.is_file()}
    monkeypatch.setattr(runs, "write_tensors", full)
    bridgemem(*fit_command(own_csv, run_copy), "--force").refused()
    assert {path.name: path.read_bytes() for path in run_copy.iterdir() if path.is_file()} == before
    assert left_in(run_copy.parent) == [run_copy.name]


def test_records_survive_a_failed_addition(walk: Walk, run_copy: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_bytes(walk.records.read_bytes())
    with small_files_only(records.stat().st_size):
        bridgemem("evaluate", run_copy, "--split", "valid", "--records", records).refused()
    assert records.read_bytes() == walk.records.read_bytes()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_output_into_a_closed_pipe_is_no_traceback(walk: Walk, how: tuple[str, ...], unbuffered: str) -> None:
    code = "from bridgemem.cli.main import main; main()"
    program = [sys.executable, "-c", code, "report", "--records", str(walk.records), *how]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        code_of_end = process.wait()
    assert err == ""
    assert code_of_end == 1


LEARN = (*TINY_READER, "--residual", "learned", "--learned-set", "epochs=1")


def learned_command(own_csv: Path, run: Path) -> tuple[str | Path, ...]:
    return ("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *LEARN)


@pytest.fixture(scope="module")
def interrupted(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit that was interrupted when the learned residual began."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fitting, "fit_learned", stop)
        outcome = bridgemem(*learned_command(own_csv, run), "-q")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        f"bridgemem: interrupted; {run} holds the bridgemem residual and can be used; the same command with --resume "
        "fits the learned one too.\n"
    )
    return run


def test_an_interrupted_fit_is_a_run_that_can_be_asked(interrupted: Path) -> None:
    assert bridgemem("forecast", interrupted, "--subject", "Arvan", "--relation", "visit").code == 0
    assert Run(interrupted).fit_names() == ()


def test_a_resumed_fit_ends_where_an_uninterrupted_one_does(interrupted: Path, own_csv: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(interrupted, tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fitting, "fit_residual", stop)  # what is saved is not fitted again
        assert bridgemem(*learned_command(own_csv, run), "--resume").code == 0
    assert bridgemem(*learned_command(own_csv, tmp_path / "whole")).code == 0
    resumed, whole = Run(run), Run(tmp_path / "whole")
    assert resumed.unfinished is whole.unfinished is None
    assert resumed.selection("time").lock() == whole.selection("time").lock()
    found, expected = (r.learned("raw").tensors() for r in (resumed, whole))  # type: ignore[union-attr]
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name])
    assert (
        "is a whole run: there is nothing to resume" in bridgemem(*learned_command(own_csv, run), "--resume").refused()
    )


@pytest.mark.parametrize(
    ("changed", "phrase"),
    [
        (("--seed", "7"), "was begun with seed 42"),
        (("--set", "width=4"), "was begun with width 8"),
        (("--learned-set", "hidden=5"), "was begun with learned hidden 64"),
        (("-b", "recurrence-dyadic"), "was begun with backbone recurrence;"),
        (("--step", "week"), "was begun with other events and another clock"),
        (("--residual", "bridgemem"), "--learned-set is for --residual learned"),
        (("--force",), "choose one"),
    ],
)
def test_a_fit_is_resumed_only_as_it_was_begun(
    changed: tuple[str, ...], phrase: str, interrupted: Path, own_csv: Path
) -> None:
    assert phrase in bridgemem(*learned_command(own_csv, interrupted), "--resume", *changed).refused()
    assert Run(interrupted).unfinished is not None


def test_only_a_run_is_resumed(own_csv: Path, tmp_path: Path) -> None:
    assert "there is no run at" in bridgemem(*learned_command(own_csv, tmp_path / "run"), "--resume").refused()
    assert left_in(tmp_path) == []

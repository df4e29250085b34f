"""How the program ends when a command fails as nobody foresaw, runs out of memory, or is stopped while it starts."""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
import torch

from bridgemem.cli.main import main
from bridgemem.events import datasets as benchmarks
from commands import Outcome, bridgemem

ROOT = Path(__file__).resolve().parents[2]

# the real program, stopped by a real signal when it imports a module for the first time
STOPPED = """
import importlib.abc, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent ignores

class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Stop())
sys.argv = ["bridgemem", "data", "stats", "world"]
{start}
"""


def as_installed(*args: str) -> Outcome:
    """What the program does in a terminal; unlike `bridgemem` this takes errors that no command foresees."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["bridgemem", *args]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return Outcome(ended.value.code, out.getvalue(), err.getvalue())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("one line\nand another.")

    monkeypatch.setattr(benchmarks, "benchmark_status", fail)
    return monkeypatch


def test_an_error_that_nobody_foresaw_ends_in_one_sentence_that_asks_for_a_report(failing: pytest.MonkeyPatch) -> None:
    outcome = as_installed("data", "list")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        "bridgemem: internal error: ZeroDivisionError: one line and another; run `bridgemem --debug COMMAND ...` for "
        "the traceback, and report it.\n"
    )


def test_debug_shows_the_traceback_before_the_sentence(failing: pytest.MonkeyPatch) -> None:
    outcome = as_installed("--debug", "data", "list")
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback")
    assert "in fail" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("bridgemem: internal error: ZeroDivisionError")


def test_debug_changes_nothing_for_bad_input() -> None:
    assert (
        bridgemem("--debug", "data", "stats", "nowhere.csv").refused()
        == bridgemem("data", "stats", "nowhere.csv").refused()
    )


def test_the_runner_of_the_tests_raises_what_nobody_foresaw(failing: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        bridgemem("data", "list")


def allocate(*_: object) -> None:
    torch.empty(1 << 58, dtype=torch.uint8)


def nothing_left(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("fail", [allocate, nothing_left])
def test_too_little_memory_has_a_sentence_of_its_own(fail: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "benchmark_status", fail)
    outcome = as_installed("data", "list")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.startswith("bridgemem: out of memory")
    assert "internal error" not in outcome.err


def entry_point() -> str:
    """What the installed script does."""
    module, _, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["bridgemem"].partition(
        ":"
    )
    return f"from {module} import {name}; sys.exit({name}())"


@pytest.mark.parametrize("module", ["typer", "bridgemem.errors"])
@pytest.mark.parametrize("start", [entry_point(), "import runpy; runpy.run_module('bridgemem', run_name='__main__')"])
def test_ctrl_c_while_modules_are_loaded_is_no_traceback(start: str, module: str) -> None:
    code = STOPPED.format(module=module, start=start)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT / "src")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "bridgemem: interrupted; nothing half-written was kept.\n"

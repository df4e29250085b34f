"""Kills of mine and of fit from a mined folder: nothing half is taken for whole, and the same command goes on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

import bridgemem as bm
from bridgemem.errors import BridgeMemError
from bridgemem.runs import Run
from commands import bridgemem

# the real program, made to wait for its killer when it comes to a function
WAITING = """
import importlib, sys, time
from pathlib import Path
from bridgemem.cli.main import main

module, name, mark = sys.argv[-3:]  # no arguments of the command: taken away before the command line is read
del sys.argv[-3:]

def wait(*given, **named):
    Path(mark).write_text("now")
    time.sleep(600)

setattr(importlib.import_module(module), name, wait)
main()
"""
QUICK = ("--set", "max_epochs=1", "--set", "max_queries=200", "--set", "max_examples=500")
QUICK += ("--learned-set", "epochs=1", "--learned-set", "train_queries=200", "--learned-set", "valid_queries=200")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("events") / "events.csv"
    world = bm.simulate(bm.WorldSettings(actors=20, relations=5, steps=50, events=2_000)).dataset
    world.events.to_frame().to_csv(path, index=False)
    return path


def mining(table: Path, home: Path) -> tuple[str, ...]:
    return ("mine", str(table), "--out", str(home / "mined"), "--quiet")


def fitting(home: Path) -> tuple[str, ...]:
    return ("fit", "-d", str(home / "mined"), "--out", str(home / "run"), *QUICK, "--quiet")


def killed_at(module: str, name: str, command: tuple[str, ...], home: Path) -> None:
    """Start a command, and kill it when it is about to call a function."""
    mark = home / "mark"
    program = [sys.executable, "-c", WAITING, *command, module, name, str(mark)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not mark.exists() and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, process.stderr and process.stderr.read()
        process.kill()
        process.wait()
    mark.unlink()


def made(home: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    """The files of the mined folder, and the tensors of the run."""
    mined = {str(path.relative_to(home)): path.read_bytes() for path in sorted(home.glob("mined/**/*.npy"))}
    return mined, {name: tensor.tolist() for name, tensor in load_file(home / "run" / "model.safetensors").items()}


@pytest.mark.parametrize("place", ["_actor_blocks", "write_manifest"])
def test_a_mining_killed_while_the_memory_is_written_is_no_data(table: Path, tmp_path: Path, place: str) -> None:
    killed_at("bridgemem.memory.disk.writing", place, mining(table, tmp_path), tmp_path)
    refused = bridgemem(*fitting(tmp_path))
    assert refused.code == 2
    assert "not mined to the end; run the same `bridgemem mine` again" in refused.err
    assert bridgemem(*mining(table, tmp_path)).code == 0
    assert bm.load(tmp_path / "mined").identity == bm.load(table).identity
    assert not (tmp_path / "mined" / "work").exists()


def test_a_fit_from_a_mined_folder_that_is_killed_leaves_no_half_run(table: Path, tmp_path: Path) -> None:
    assert bridgemem(*mining(table, tmp_path)).code == 0
    killed_at("bridgemem.runs", "write_tensors", fitting(tmp_path), tmp_path)
    assert not (tmp_path / "run").exists()
    killed_at("bridgemem.fitting", "fit_learned", fitting(tmp_path), tmp_path)
    assert Run(tmp_path / "run").unfinished is not None, "the paper's residual was saved before the learned one"
    assert bridgemem(*fitting(tmp_path), "--resume").code == 0
    assert Run(tmp_path / "run").unfinished is None
    assert bridgemem("evaluate", tmp_path / "run", "--queries", "20").code == 0


@pytest.mark.long
def test_kills_at_random_points_of_mine_and_fit(
    table: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """25 kills: each leaves what is whole or refused, and what is made in the end is as if none had come."""
    draw, kills, refused = random.Random(7), {"mine": 0, "fit": 0}, 0
    whole, home = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, home):
        folder.mkdir()
    seconds = {}
    for name, command in (("mine", mining(table, whole)), ("fit", fitting(whole))):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "bridgemem", *command], check=True, capture_output=True)
        seconds[name] = time.monotonic() - began
    while sum(kills.values()) < 25:
        name = "mine" if kills["mine"] < 12 else "fit"
        command = mining(table, home) if name == "mine" else fitting(home)
        if name == "fit" or (home / "mined" / "mined.json").is_file():
            command = (*command, "--force")
        process = subprocess.Popen([sys.executable, "-m", "bridgemem", *command], stderr=subprocess.PIPE)
        time.sleep(draw.uniform(0.3, seconds[name]))
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        if process.returncode != -signal.SIGKILL:  # it was done before
            assert process.returncode == 0, said
            continue
        kills[name] += 1
        try:
            opened = bm.load(home / "mined") if name == "mine" else Run(home / "run").dataset
            assert opened.identity == bm.load(table).identity
        except BridgeMemError:
            refused += 1
    if not (home / "mined" / "mined.json").is_file():
        subprocess.run([sys.executable, "-m", "bridgemem", *mining(table, home)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "bridgemem", *fitting(home), "--force"], check=True, capture_output=True)
    assert made(home) == made(whole)
    record_property("kills", kills)
    record_property("refused", refused)

"""Fixtures of fitted runs that many tests share; a test module asks for them with pytest_plugins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridgemem.config import Settings
from bridgemem.events.world import WorldSettings
from bridgemem.studies.demo import Demo, run_demo
from commands import TINY_CENET, TINY_READER, Walk, bridgemem, planted_rows, write_rows


@pytest.fixture(scope="session")
def own_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("own") / "own.csv", planted_rows())


@pytest.fixture(scope="session")
def walk(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """check, import, stats, train, fit and evaluate as a user types them, on CENET."""
    home = tmp_path_factory.mktemp("walk")
    packed, run, backbone = home / "own.npz", home / "run", home / "backbone"
    commands: dict[str, tuple[str | Path, ...]] = {
        "check": ("data", "check", own_csv),
        "import": ("data", "import", own_csv, "--out", packed),
        "stats": ("data", "stats", packed),
        "train": ("train", "cenet", "--data", packed, "--out", backbone, *TINY_CENET, "--seed", "5"),
        "fit": ("fit", "--data", packed, "--backbone", backbone, "--out", run, *TINY_READER),
        "evaluate": ("evaluate", run, "--records", home / "records.jsonl"),
    }
    outcomes = {name: bridgemem(*args) for name, args in commands.items()}
    for name, outcome in outcomes.items():
        assert outcome.code == 0, (name, outcome.err)
    return Walk(home, outcomes)


@pytest.fixture
def run_copy(walk: Walk, tmp_path: Path) -> Path:
    """A fitted, evaluated run that a test may spoil."""
    return Path(shutil.copytree(walk.run, tmp_path / "run"))


@pytest.fixture(scope="session")
def recurrence_run(own_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a training-free backbone, where validation chooses to use the residual; never evaluated, so copy it."""
    run = tmp_path_factory.mktemp("recurrence") / "run"
    fitted = bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", run, *TINY_READER)
    assert fitted.code == 0, fitted.err
    return run


@pytest.fixture(scope="session")
def small_demo() -> Demo:
    world = WorldSettings(actors=40, relations=10, steps=60, events=4000, partners=8)
    return run_demo(world, Settings(width=16, hidden=16, max_epochs=3))

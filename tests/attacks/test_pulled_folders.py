"""Repositories made to harm: refused as a whole, before or after the download, and nothing in them is executed."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from bridgemem.errors import BridgeMemError, RunError
from bridgemem.hub import pull
from commands import bridgemem, left_in

if TYPE_CHECKING:
    from hub_server import Files, StandIn

pytest_plugins = ("hub_server", "small_runs")

NAME = "stranger/a-run"


class Bomb:
    """Pickled, it makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def files(recurrence_run: Path) -> Files:
    """What a good repository holds."""
    paths = (path for path in recurrence_run.rglob("*") if path.is_file())
    return {path.relative_to(recurrence_run).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def refused(stand_in: StandIn, files: Files, home: Path) -> str:
    """Neither Python nor the command line takes what the hub has, and nothing of it stays."""
    stand_in.hold(NAME, files)
    with pytest.raises(BridgeMemError) as raised:
        pull(NAME, home / "mine", endpoint=stand_in.endpoint)
    bridgemem("pull", NAME, "-o", home / "mine", "--endpoint", stand_in.endpoint).refused()
    assert left_in(home) == []
    return str(raised.value)


def test_the_repository_is_taken_before_it_is_spoiled(stand_in: StandIn, files: Files, home: Path) -> None:
    stand_in.hold(NAME, files)
    pull(NAME, home / "mine", endpoint=stand_in.endpoint)
    assert left_in(home) == ["mine"]


@pytest.mark.parametrize(
    "name",
    [
        "model.pkl",
        "pytorch_model.bin",
        "weights.pt",
        "hook.py",
        "backbone/__init__.py",
        "backbone/native.so",
        "setup.cfg",
        "conftest.py",
        "data.npy",
        "README.md.py",
        "config.toml/x.pth",
        "noext",
        "../escaped.json",
        "/tmp/escaped.json",
        "backbone/../../escaped.json",
        "a/b/deep.json",
        ".git/config.toml",
        ".cache/x.json",
        "..json",
        "with space.json",
        "back\\slash.json",
        "new\nline.json",
        "nul\0.json",
        "ünï.json",
        "CONFIG.TOML",
    ],
)
def test_a_foreign_file_is_refused_before_anything_is_fetched(
    name: str, stand_in: StandIn, files: Files, home: Path
) -> None:
    message = refused(stand_in, {**files, name: b"{}"}, home)
    assert "no file of a run" in message
    assert not [request for request in stand_in.requests if "/resolve/" in request]
    assert not (home.parent / "escaped.json").exists()


@pytest.mark.parametrize("missing", ["config.toml", "model.safetensors", "selection.json", "backbone/config.toml"])
def test_a_repository_that_lacks_a_part_is_refused(missing: str, stand_in: StandIn, files: Files, home: Path) -> None:
    del files[missing]
    refused(stand_in, files, home)


def test_an_empty_repository_is_refused(stand_in: StandIn, home: Path) -> None:
    assert "no config.toml" in refused(stand_in, {}, home)


@pytest.mark.parametrize("file", ["model.safetensors", "backbone/weights.safetensors", "data.npz"])
def test_a_pickle_under_another_name_is_not_loaded(
    file: str, stand_in: StandIn, files: Files, home: Path, tmp_path: Path
) -> None:
    bomb = Bomb(tmp_path / "exploded")
    torch.save({"w": bomb}, tmp_path / "saved")
    np.savez(tmp_path / "packed.npz", about=np.array([bomb], dtype=object))
    for harm in (pickle.dumps(bomb), (tmp_path / "saved").read_bytes(), (tmp_path / "packed.npz").read_bytes()):
        message = refused(stand_in, {**files, file: harm}, home)
        assert NAME in message
        assert ".part" not in message
    assert not (tmp_path / "exploded").exists()


def test_a_backbone_named_after_a_module_is_not_imported(stand_in: StandIn, files: Files, home: Path) -> None:
    for module in ("antigravity", "this", "bridgemem.studies.demo", "../hook"):
        config = f"[backbone]\nname = '{module}'\n[settings]\n".encode()
        refused(stand_in, {**files, "backbone/config.toml": config}, home)
    assert not {"antigravity", "this"} & sys.modules.keys()


def test_a_selection_that_was_edited_on_the_way_is_refused(stand_in: StandIn, files: Files, home: Path) -> None:
    records = json.loads(files["selection.json"])
    records["time"]["choice"]["lam"] = 99.0
    assert "locked" in refused(stand_in, {**files, "selection.json": json.dumps(records).encode()}, home)


def test_data_that_is_not_what_the_run_was_fitted_on_is_refused(
    stand_in: StandIn, files: Files, home: Path, tmp_path: Path
) -> None:
    config = files["config.toml"].decode()
    line = next(line for line in config.splitlines() if line.startswith("fingerprint"))
    changed = config.replace(line, 'fingerprint = "0000000000000000"').encode()
    assert "changed since it was fitted" in refused(stand_in, {**files, "config.toml": changed}, home)


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[run]\nformat = 99\n", b"a = " + b"[" * 50_000])
def test_a_config_that_describes_no_run_is_refused(text: bytes, stand_in: StandIn, files: Files, home: Path) -> None:
    refused(stand_in, {**files, "config.toml": text}, home)


def test_markup_in_a_pulled_card_stays_text(stand_in: StandIn, files: Files, home: Path) -> None:
    stand_in.hold(NAME, {**files, "README.md": b"---\nx: !!python/object/apply:os.mkdir [exploded]\n---\n<script>"})
    pull(NAME, home / "mine", endpoint=stand_in.endpoint)
    assert not Path("exploded").exists()
    assert left_in(home) == ["mine"]


def test_a_refused_pull_does_not_touch_the_run_that_it_would_replace(
    stand_in: StandIn, files: Files, home: Path
) -> None:
    stand_in.hold(NAME, files)
    pull(NAME, home / "mine", endpoint=stand_in.endpoint)
    stand_in.hold(NAME, {**files, "model.safetensors": b"cut"})
    with pytest.raises(RunError):
        pull(NAME, home / "mine", endpoint=stand_in.endpoint, replace=True)
    assert (home / "mine" / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert left_in(home) == ["mine"]

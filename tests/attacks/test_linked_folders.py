"""Model folders with links to a user's own files: no target of a link is read, copied into a run or sent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bridgemem
from bridgemem.backbones.ensemble import EnsembleSettings
from bridgemem.backbones.recurrence import Popularity
from bridgemem.backbones.trained import train
from bridgemem.errors import RunError
from bridgemem.evaluation.shards import join_parts
from bridgemem.hub import pull, push
from bridgemem.runs import Run
from commands import TINY_READER, Walk, left_in
from commands import bridgemem as command

if TYPE_CHECKING:
    from hub_server import Files, StandIn

pytest_plugins = ("hub_server", "small_runs")

NAME = "stranger/a-run"
SECRET = b"-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "id_rsa"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def backbone(walk: Walk, tmp_path: Path) -> Path:
    return Path(shutil.copytree(walk.backbone, tmp_path / "backbone"))


def hang_in(path: Path, secret: Path, how: str) -> None:
    """Put something that is no plain file at a path, in place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        kept = path.rename(secret.parent / f"{path.name}.kept")
        if how == "link to the same":  # so that all else about the folder is as it should be
            secret = kept
    if how.startswith("link"):
        path.symlink_to(secret.parent if how == "link to a folder" else secret)
    elif how == "relative link":
        path.symlink_to(os.path.relpath(secret, path.parent))
    elif how == "dangling link":
        path.symlink_to(secret.parent / "gone")
    elif how == "pipe":
        os.mkfifo(path)
    else:
        # a whole path may be too long for a socket
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
            server.bind(path.name)


PLACES = ("config.toml", "weights.safetensors", "trained.json", "scores-00000.npy", "notes.txt", ".hidden", "a/b/deep")
KINDS = ("link", "link to a folder", "relative link", "dangling link", "pipe", "socket")
HOW = [*((place, "link to the same") for place in PLACES), *(("weights.safetensors", kind) for kind in KINDS)]


def refused(outcome: str) -> None:
    assert any(said in outcome for said in ("is a symbolic link", "is a special file", "holds no saved model")), outcome


@pytest.mark.parametrize(("place", "how"), HOW)
def test_a_backbone_with_a_link_in_it_is_not_fitted(
    place: str, how: str, backbone: Path, secret: Path, own_csv: Path, tmp_path: Path
) -> None:
    hang_in(backbone / place, secret, how)
    refused(command("fit", "-d", own_csv, "-b", backbone, "-o", tmp_path / "run", *TINY_READER).refused())
    assert left_in(tmp_path) == ["backbone", "home"]


def test_only_the_files_of_a_backbone_come_into_a_run(own_csv: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backbone"
    Popularity.fit(bridgemem.load(own_csv)).save(folder)
    for name in ("id_rsa", "notes.txt", ".env", "hook.py"):
        (folder / name).write_bytes(SECRET)
    assert command("fit", "-d", own_csv, "-b", folder, "-o", tmp_path / "run", *TINY_READER).code == 0
    assert left_in(tmp_path / "run" / "backbone") == ["config.toml", "weights.safetensors"]


def test_a_member_of_a_mixture_that_is_a_link_is_trained_again(own_csv: Path, tmp_path: Path, secret: Path) -> None:
    data, two = bridgemem.load(own_csv), EnsembleSettings(members=("hri", "popularity"))
    train("ensemble", data, tmp_path / "plain", two)
    state = tmp_path / ".mixed.training" / "popularity"
    Popularity.fit(data).save(state)
    hang_in(state / "weights.safetensors", secret, "link")
    train("ensemble", data, tmp_path / "mixed", two)
    same = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("plain", "mixed")]
    assert same[0] == same[1]
    assert left_in(tmp_path) == ["home", "mixed", "plain"]
    assert secret.read_bytes() == SECRET


RUN_PLACES = (
    *("config.toml", "data.npz", "entities.txt", "model.safetensors", "selection.json", "calibration.json"),
    *("metrics.json", ".metrics.json.lock", "ranks.parquet", "shards/x", "extra"),
    *("backbone", "backbone/weights.safetensors", "backbone/trained.json"),
)


@pytest.mark.parametrize("place", RUN_PLACES)
def test_a_run_with_a_link_in_it_is_not_opened(place: str, run_copy: Path, secret: Path) -> None:
    hang_in(run_copy / place, secret, "link to the same")
    with pytest.raises(RunError, match="is a symbolic link"):
        Run(run_copy)


COMMANDS: dict[str, tuple[str | Path, ...]] = {
    "evaluate": (),
    "forecast": ("--subject", "Kel", "--relation", "visit"),
    "explain": ("--subject", "Kel", "--relation", "visit", "--object", "Lor"),
    "audit": (),
    "memory": ("--out", "made"),
    "refresh": ("--store", "events.duckdb", "--out", "made"),
    "push": (NAME, "--endpoint", "http://127.0.0.1:9"),
    "serve": (),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_a_run_with_a_link_in_it(
    name: str, run_copy: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_copy.parent)
    hang_in(run_copy / "backbone" / "trained.json", secret, "link")
    before = left_in(run_copy.parent)
    assert "is a symbolic link" in command(name, run_copy, *COMMANDS[name]).refused()
    assert left_in(run_copy.parent) == before


def test_a_push_sends_no_file_that_a_run_does_not_have(stand_in: StandIn, run_copy: Path) -> None:
    for name in ("notes.txt", "extra.json", "keys.toml", "backbone/more.safetensors", "shards/mine.json", "a/b.txt"):
        (run_copy / name).parent.mkdir(exist_ok=True)
        (run_copy / name).write_bytes(SECRET)
        with pytest.raises(RunError, match="no file of a run"):
            push(run_copy, NAME, endpoint=stand_in.endpoint)
        (run_copy / name).unlink()
    assert stand_in.requests == []
    pushed = push(run_copy, NAME, endpoint=stand_in.endpoint)
    assert pushed.files == sum(path.is_file() for path in run_copy.rglob("*"))


def test_a_pull_takes_no_file_that_a_run_does_not_have(stand_in: StandIn, recurrence_run: Path, tmp_path: Path) -> None:
    paths = [path for path in recurrence_run.rglob("*") if path.is_file()]
    files: Files = {path.relative_to(recurrence_run).as_posix(): path.read_bytes() for path in paths}
    for name in ("notes.txt", "extra.json", "backbone/more.safetensors", "shards/mine.json", "metrics.horizonx.json"):
        stand_in.hold(NAME, {**files, name: b"{}"})
        with pytest.raises(RunError, match="no file of a run"):
            pull(NAME, tmp_path / "mine", endpoint=stand_in.endpoint)
    assert not [request for request in stand_in.requests if "/resolve/" in request]
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("relative", [True, False])
def test_the_note_of_a_shard_leads_to_no_other_file(relative: bool, run_copy: Path, secret: Path) -> None:
    assert command("evaluate", run_copy, "--shard", "1/2", "-q").code == 0
    (path,) = (run_copy / "shards").glob("*.json")
    note = json.loads(path.read_text())
    path.write_text(json.dumps({**note, "table": "../../home/id_rsa" if relative else str(secret)}))
    with pytest.raises(RunError, match="names a table that does not lie next to it"):
        join_parts(Run(run_copy))
    assert secret.read_bytes() == SECRET

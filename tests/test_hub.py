"""Push and pull against a stand-in hub: what arrives is what was sent, whole or not at all."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bridgemem.errors import NotFoundError, RunError, SettingsError
from bridgemem.hub import pull, push
from bridgemem.runs import Run
from commands import bridgemem, left_in

if TYPE_CHECKING:
    from hub_server import StandIn

pytest_plugins = ("hub_server", "small_runs")

NAME = "someone/a-run"


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def run(recurrence_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recurrence_run, tmp_path / "runs" / "mine"))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_a_run_comes_back_byte_for_byte_and_forecasts_the_same(stand_in: StandIn, run: Path, empty: Path) -> None:
    done = push(run, NAME, endpoint=stand_in.endpoint)
    assert stand_in.files(NAME) == content(run)
    assert done.files == len(content(run))
    pulled = pull(NAME, empty / "mine", endpoint=stand_in.endpoint)
    assert content(pulled.folder) == content(run)
    assert left_in(empty) == ["mine"]
    asked = ("Kel", "visit")
    assert Run(pulled.folder).predictor().forecast(*asked) == Run(run).predictor().forecast(*asked)


def test_large_files_go_next_to_the_commit_and_small_ones_in_it(stand_in: StandIn, run: Path) -> None:
    push(run, NAME, endpoint=stand_in.endpoint)
    assert (run / "model.safetensors").read_bytes() in stand_in.large.values()
    assert (run / "config.toml").read_bytes() not in stand_in.large.values()
    assert len([r for r in stand_in.requests if "/commit/" in r]) == 1


def test_a_new_repository_is_private_unless_said_otherwise(stand_in: StandIn, run: Path) -> None:
    push(run, NAME, endpoint=stand_in.endpoint)
    push(run, "someone/open", endpoint=stand_in.endpoint, public=True)
    assert stand_in.repositories[NAME].private
    assert not stand_in.repositories["someone/open"].private


def test_a_second_push_takes_away_what_the_run_no_longer_has(stand_in: StandIn, run: Path) -> None:
    (run / "metrics.json").write_text(json.dumps({}))
    push(run, NAME, endpoint=stand_in.endpoint)
    assert "metrics.json" in stand_in.files(NAME)
    (run / "metrics.json").unlink()
    push(run, NAME, endpoint=stand_in.endpoint)
    assert stand_in.files(NAME) == content(run)
    assert ".gitattributes" in stand_in.repositories[NAME].commits[-1]


def test_an_earlier_commit_can_be_asked_for(stand_in: StandIn, run: Path, empty: Path) -> None:
    first = push(run, NAME, endpoint=stand_in.endpoint).commit
    with (run / "README.md").open("a") as card:
        card.write("\nA note.\n")
    push(run, NAME, endpoint=stand_in.endpoint)
    old = pull(NAME, empty / "old", revision=first, endpoint=stand_in.endpoint)
    new = pull(NAME, empty / "new", endpoint=stand_in.endpoint)
    assert "A note." in (new.folder / "README.md").read_text()
    assert "A note." not in (old.folder / "README.md").read_text()
    with pytest.raises(NotFoundError, match="revision"):
        pull(NAME, empty / "none", revision="0" * 40, endpoint=stand_in.endpoint)


@pytest.mark.parametrize(
    "name", ["model.pkl", "weights.pt", "run.py", "notes", ".hidden.json", "a/b/c.json", "backbone/hook.py", "data.npy"]
)
def test_a_folder_with_anything_but_a_run_in_it_is_not_pushed(name: str, stand_in: StandIn, run: Path) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_bytes(b"")
    with pytest.raises(RunError, match="no file of a run"):
        push(run, NAME, endpoint=stand_in.endpoint)
    assert stand_in.requests == []


def test_a_link_to_another_file_is_not_followed_by_a_push(stand_in: StandIn, run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (run / "notes.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(RunError, match="link"):
        push(run, NAME, endpoint=stand_in.endpoint)
    assert stand_in.requests == []


def test_a_run_that_is_not_whole_is_not_pushed(stand_in: StandIn, run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors"):
        push(run, NAME, endpoint=stand_in.endpoint)
    assert stand_in.requests == []


def test_a_push_that_fails_leaves_the_repository_as_it_was(stand_in: StandIn, run: Path) -> None:
    push(run, NAME, endpoint=stand_in.endpoint)
    before = stand_in.files(NAME)
    (run / "metrics.json").write_text(json.dumps({}))
    stand_in.broken.add("/commit/")
    with pytest.raises(RunError, match="500"):
        push(run, NAME, endpoint=stand_in.endpoint)
    assert stand_in.files(NAME) == before


def test_a_pull_that_breaks_off_leaves_nothing(stand_in: StandIn, run: Path, empty: Path) -> None:
    push(run, NAME, endpoint=stand_in.endpoint)
    stand_in.cut.add("selection.json")
    with pytest.raises(RunError, match="nothing was changed here"):
        pull(NAME, empty / "mine", endpoint=stand_in.endpoint)
    assert left_in(empty) == []


def test_a_pull_replaces_a_run_only_when_told_and_only_by_a_whole_one(
    stand_in: StandIn, run: Path, empty: Path
) -> None:
    push(run, NAME, endpoint=stand_in.endpoint)
    mine = shutil.copytree(run, empty / "mine")
    with pytest.raises(RunError, match="exists already"):
        pull(NAME, mine, endpoint=stand_in.endpoint)
    (mine / "metrics.json").write_text(json.dumps({}))
    stand_in.cut.add("selection.json")
    with pytest.raises(RunError):
        pull(NAME, mine, endpoint=stand_in.endpoint, replace=True)
    assert (mine / "metrics.json").exists()
    stand_in.cut.clear()
    pull(NAME, mine, endpoint=stand_in.endpoint, replace=True)
    assert content(mine) == content(run)
    assert left_in(empty) == ["mine"]


def test_a_private_run_is_not_there_for_others(
    stand_in: StandIn, run: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, NAME, endpoint=stand_in.endpoint)
    monkeypatch.setenv("HF_TOKEN", "somebody-else")
    with pytest.raises(NotFoundError, match="HF_TOKEN"):
        pull(NAME, empty / "mine", endpoint=stand_in.endpoint)
    with pytest.raises(RunError, match="401"):
        push(run, "someone/other", endpoint=stand_in.endpoint)
    assert left_in(empty) == []


def test_the_commands_push_and_pull(stand_in: StandIn, run: Path, empty: Path) -> None:
    sent = bridgemem("push", run, NAME, "--endpoint", stand_in.endpoint, "--json").json
    assert sent["files"] == len(content(run))
    got = bridgemem("pull", NAME, "--out", empty / "mine", "--endpoint", stand_in.endpoint)
    assert (got.code, got.err) == (0, "")
    assert "recurrence on own" in got.out
    assert content(empty / "mine") == content(run)


@pytest.mark.parametrize("name", ["nobody/nothing", "a/b/c", "", "../x", "x y"])
def test_what_is_not_there_is_one_sentence(name: str, stand_in: StandIn, empty: Path) -> None:
    bridgemem("pull", name, "-o", empty / "mine", "--endpoint", stand_in.endpoint).refused()
    assert left_in(empty) == []


def test_a_hub_that_does_not_answer_is_one_sentence(stand_in: StandIn, run: Path, empty: Path) -> None:
    nobody = "http://127.0.0.1:1"
    assert nobody in bridgemem("pull", NAME, "-o", empty / "mine", "--endpoint", nobody).refused()
    bridgemem("push", run, NAME, "--endpoint", nobody).refused()
    assert left_in(empty) == []


def test_without_the_extra_the_remedy_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SettingsError, match=r"pip install -e '.\[hub\]'"):
        push(run, NAME)


@pytest.mark.parametrize(
    "held",
    [
        {"README.md": b"my BERT", "config.json": b"{}", "model.safetensors": b"weights", "vocab.txt": b"a"},
        {"config.toml": b"", "model.safetensors": b"weights", "pytorch_model.bin": b"x"},
        {"config.toml": b"", "model.safetensors": b"weights"},
        {"notes.md": b"years of work"},
    ],
)
def test_a_repository_that_holds_no_run_is_not_pushed_to(held: dict[str, bytes], stand_in: StandIn, run: Path) -> None:
    stand_in.hold(NAME, held)
    sentence = bridgemem("push", run, NAME, "--endpoint", stand_in.endpoint).refused()
    assert "push to another repository" in sentence
    assert stand_in.files(NAME) == held
    assert not [r for r in stand_in.requests if "/commit/" in r]

"""Two commands that write to one name: one does, the other is refused before it has worked, and nothing is lost."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridgemem import runs
from bridgemem.outofcore import duckdb
from bridgemem.outofcore.mined import Mined
from bridgemem.runs import Run
from bridgemem.storage.tensors import write_tensors
from commands import TINY_READER, Walk, bridgemem, left_in

if TYPE_CHECKING:
    from hub_server import StandIn

pytest_plugins = ("hub_server", "small_runs")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A name that another process is writing."""
    with (tmp_path / ".taken.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path / "taken"


def command(name: str, walk: Walk, own_csv: Path, stand_in: StandIn) -> tuple[str | Path, ...]:
    commands: dict[str, tuple[str | Path, ...]] = {
        "fit": ("-d", own_csv, "-b", walk.backbone, *TINY_READER),
        "train": ("popularity", "-d", own_csv),
        "memory": (walk.run,),
        "mine": (own_csv, "--threads", "1"),
        "pull": ("stranger/a-run", "--endpoint", stand_in.endpoint),
    }
    return (name, *commands[name])


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("name", ["fit", "train", "memory", "mine", "pull"])
def test_the_second_writer_is_refused_before_it_has_worked(
    name: str, force: bool, held: Path, walk: Walk, own_csv: Path, stand_in: StandIn
) -> None:
    asked = command(name, walk, own_csv, stand_in)
    sentence = bridgemem(*asked, "--out", held, *(("--force",) if force else ())).refused()
    assert sentence == (
        f"bridgemem: {held} is being written by another process; wait until it ends, or choose another name."
    )
    assert left_in(held.parent) == [".taken.lock"]
    assert stand_in.requests == []


def test_a_run_that_appears_during_a_fit_stays_and_the_fitted_one_gets_another_name(
    walk: Walk, own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(path: Path, tensors: Any) -> None:
        write_tensors(path, tensors)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "model.safetensors").write_text("another's")

    monkeypatch.setattr(runs, "write_tensors", meanwhile)
    said = bridgemem("fit", "-d", own_csv, "-b", walk.backbone, "-o", tmp_path / "run", *TINY_READER).refused()
    assert f"what was written is in {tmp_path / 'run-2'}." in said
    assert (tmp_path / "run" / "model.safetensors").read_text() == "another's"
    assert Run(tmp_path / "run-2").selection("time").choice
    assert left_in(tmp_path) == ["run", "run-2"]


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_mining_that_replaces_another_leaves_that_whole_until_it_is_done(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mined"
    mine = ("mine", own_csv, "--out", out, "--threads", "1", "-q")
    assert bridgemem(*mine).code == 0
    before = Mined(out).about
    with monkeypatch.context() as patched:
        patched.setattr(duckdb, "write_mined", stop)
        stopped = bridgemem(*mine, "--force", "--set", "k=4")
    assert stopped.code == 1
    assert stopped.err == f"bridgemem: interrupted; {out} is as it was, and the same command starts over.\n"
    assert Mined(out).about == before
    (out / "thesis.txt").write_text("years of work")
    assert "'thesis.txt', which would be lost" in bridgemem(*mine, "--force").refused()
    (out / "thesis.txt").unlink()
    assert bridgemem(*mine, "--force", "--set", "k=4").code == 0
    assert Mined(out).settings.k == 4
    assert left_in(tmp_path) == ["mined"]

"""The tutorials are true: every block of Python and of commands in them is run, in order, in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import bridgemem as package
from commands import Outcome, bridgemem

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
PORT = "8008"  # where the service listens unless told otherwise


@dataclass
class Told:
    """What came of a tutorial: the variables of its Python, and how each command ended."""

    names: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def blocks(name: str) -> list[tuple[str, str]]:
    path = FOLDER / name
    if not path.is_file():
        pytest.skip("needs docs/ of the repository")
    return [(match["kind"], match["code"]) for match in BLOCK.finditer(path.read_text(encoding="utf-8"))]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def serving(words: list[str], port: int) -> Iterator[None]:
    """The service as a second terminal would run it, from when it is ready."""
    program = "from bridgemem.cli.main import main; main()"
    command = [sys.executable, "-c", program, *words, "--port", str(port)]
    # the tests stand in another folder now, where a relative path to the sources leads nowhere
    sources = {"PYTHONPATH": str(Path(package.__file__).resolve().parents[1])}
    process = subprocess.Popen(
        command, env={**os.environ, **sources}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until = time.monotonic() + 60
        while not ready(port):
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                pytest.fail(f"the service did not start: {process.communicate()[0]}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def follow(name: str, home: Path) -> Told:
    """Do what a tutorial says, in a folder that is the current one."""
    told, port, left = Told(), free_port(), blocks(name)

    def go_on() -> None:
        while left:
            kind, code = left.pop(0)
            if kind == "python":
                path = home / ".block.py"
                path.write_text(code.replace(f":{PORT}", f":{port}"), encoding="utf-8")
                told.names = runpy.run_path(str(path), init_globals=told.names)
                path.unlink()
            elif kind == "bash":
                for line in code.splitlines():
                    program, *words = shlex.split(line, comments=True)
                    assert program == "bridgemem", line
                    if words[0] == "serve":
                        with serving(words, port):
                            return go_on()
                    told.outcomes[line] = bridgemem(*words)
                    assert told.outcomes[line].code == 0, (line, told.outcomes[line].err)
        return None

    go_on()
    return told


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = follow("own-data.md", home)
    assert [answer.rank for answer in told.names["answers"]] == [1, 2, 3]
    shown = next(outcome for line, outcome in told.outcomes.items() if " forecast " in line)
    assert told.names["answers"][0].name in shown.out
    assert (home / "runs" / "first" / "README.md").is_file()
    assert "Grell" in capsys.readouterr().out


def test_quick_start(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = follow("quick-start.md", home)
    shown = capsys.readouterr().out
    assert [answer.rank for answer in told.names["answers"]] == [1, 2, 3]
    assert "time-aware filter" in shown
    names = next(outcome for line, outcome in told.outcomes.items() if " names " in line)
    assert "A newcomer" in names.out


def test_own_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = follow("own-model.md", home)
    assert [row[0] for row in told.names["found"].table().rows][-2:] == ["DistMult", "DistMult + bridgemem"]
    assert (home / "mymodel.py").is_file()


def test_own_scores(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = follow("own-scores.md", home)
    # the page promises that the residual helps a model that knows nothing of the pair
    assert told.names["gains"].keys() == {"static", "time"}
    value, low, high = told.names["gains"]["time"]
    assert 0 < low < value < high


def test_service(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(module, reason="needs the extra 'serve'")
    if importlib.util.find_spec("bridgemem.service") is None:
        pytest.skip("needs bridgemem.service")
    told = follow("service.md", home)
    assert [c["rank"] for c in told.names["forecast"]["candidates"]] == [1, 2, 3]
    assert told.names["received"]["accepted"] == 3
    assert told.names["again"]["replayed"]
    assert told.names["again"]["ids"] == told.names["received"]["ids"]
    assert int(told.names["later"]["time"]) > int(told.names["forecast"]["time"])
    assert (home / "runs" / "first.events.duckdb").is_file()


def test_every_tutorial_is_run_here() -> None:
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in FOLDER.glob("*.md")} <= tested


def test_a_tutorial_holds_no_block_that_is_neither_run_nor_shown_as_output() -> None:
    kinds = {kind for path in FOLDER.glob("*.md") for kind, _ in blocks(path.name)}
    assert kinds <= {"python", "bash", "text"}

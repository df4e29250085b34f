"""The front page: short, in its order, and with the output that its code and its commands really have."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import bridgemem
from commands import bridgemem as command

README = Path(__file__).resolve().parents[1] / "README.md"
MOST_LINES = 155  # about 150
HEADINGS = [
    "Install",
    "Python in eight lines",
    "Results",
    "Ask: who, what, whether, when",
    "How it compares",
    "Read on",
    "Cite",
]
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def text() -> str:
    if not README.is_file():
        pytest.skip("needs README.md of the repository")
    return README.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def home(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the Python of the page was run; what it printed is in printed.txt."""
    folder = tmp_path_factory.mktemp("readme")
    sources = str(Path(bridgemem.__file__).resolve().parents[1])
    program = f"import sys; sys.path.insert(0, {sources!r})\n" + blocks(text, "python")[0]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout, encoding="utf-8")
    return folder


def blocks(text: str, kind: str) -> list[str]:
    return [match["code"] for match in BLOCK.finditer(text) if match["kind"] == kind]


def plain(text: str) -> list[str]:
    """Lines without what varies from machine to machine: numbers, and the space that they leave."""
    return [" ".join(re.sub(r"[+-]?\d*\.?\d+", "0", line).split()) for line in text.strip().splitlines()]


def test_the_page_is_short_and_in_its_order(text: str) -> None:
    assert len(text.splitlines()) <= MOST_LINES
    found = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [heading for heading in found if heading in HEADINGS] == HEADINGS
    assert "@misc{li-bridgemem" in text
    assert "Zeyan" in text


def test_eight_lines_of_python_print_what_the_page_shows(text: str, home: Path) -> None:
    (code,) = blocks(text, "python")
    assert len([line for line in code.splitlines() if line]) <= 8
    shown = blocks(text, "text")[0]
    assert plain((home / "printed.txt").read_text(encoding="utf-8")) == plain(shown)


def test_the_command_prints_what_the_page_shows(text: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (line,) = blocks(text, "bash")
    program, *words = shlex.split(line)
    assert program == "bridgemem"
    assert plain(command(*words).out) == plain(blocks(text, "text")[1])

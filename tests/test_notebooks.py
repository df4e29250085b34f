"""The notebooks of examples/ run, and show what they print."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

notebooks = pytest.importorskip("tools.notebooks", reason="needs tools/ of the repository")
pytest.importorskip("matplotlib", reason="needs the extra 'plots'").use("Agg")

PATHS = sorted(notebooks.EXAMPLES.glob("*.ipynb"))


def plain(cells: list[dict[str, Any]]) -> list[list[str]]:
    """What each cell printed, without numbers, versions and the space they take; of a figure that it is one."""
    found = []
    for cell in cells:
        texts = ["".join(out.get("text") or out["data"]["text/plain"]) for out in cell.get("outputs", [])]
        texts = [re.sub(r"@[0-9a-f]+", "@", text) for text in texts]
        found.append([" ".join(re.sub(r"[+-]?\d*\.?\d+", "0", text).replace("-", "").split()) for text in texts])
    return found


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_notebook_runs_and_keeps_its_output(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    again = copy.deepcopy(kept)
    notebooks.run(again)
    assert plain(again["cells"]) == plain(kept["cells"]), "run them again: python -m tools.notebooks"
    assert any("image/png" in out.get("data", {}) for cell in kept["cells"] for out in cell.get("outputs", []))


def test_there_are_three() -> None:
    assert len(PATHS) == 3

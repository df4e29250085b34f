"""Run the notebooks of examples/ and keep what their cells print and draw: `python -m tools.notebooks`.

A cell is Python; a line that begins with ! is a `bridgemem` command. No Jupyter is needed to run them here.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
DPI = 80  # of pictures: enough for a page, and small files


def main() -> int:
    """Run every notebook in a folder of its own, and write it with its outputs."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
            run(notebook)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"Wrote {path.name}.")
    return 0


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells of a notebook in the current folder, in order and in one namespace; outputs are replaced."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(code, start=1):
        cell["execution_count"], cell["outputs"] = number, list(outputs("".join(cell["source"]), namespace, number))


def outputs(source: str, namespace: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """What a cell prints, the value of its last expression, and its figures."""
    shown, value = io.StringIO(), None
    with contextlib.redirect_stdout(shown), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if all(line.startswith("!") for line in source.strip().splitlines()):
            for line in source.strip().splitlines():
                print(_command(line[1:]), end="")
        else:
            value = _value(source, namespace)
    if text := shown.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
    if value is not None:
        data: dict[str, Any] = {"text/plain": str(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
    for picture in _figures():
        data = {"image/png": picture, "text/plain": ["<Figure>"]}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}


def _value(source: str, namespace: dict[str, Any]) -> Any:
    """Run Python; returns the value of the last statement where it is an expression without a semicolon."""
    tree = ast.parse(source)
    end = tree.body[-1] if tree.body else None
    if not isinstance(end, ast.Expr) or source.rstrip().endswith(";"):  # the semicolon as in Jupyter
        exec(compile(tree, "<cell>", "exec"), namespace)  # noqa: S102 - our own notebooks
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "<cell>", "exec"), namespace)  # noqa: S102
    return eval(compile(ast.Expression(end.value), "<cell>", "eval"), namespace)  # noqa: S307


def _command(line: str) -> str:
    """What a command prints; a problem ends the notebook."""
    program, *words = shlex.split(line)
    if program != "bridgemem":
        raise ValueError(f"a line with ! is a bridgemem command, not {line!r}.")
    sources = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    called = [sys.executable, "-m", "bridgemem", *words]
    done = subprocess.run(called, env={**os.environ, **sources}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{line}: {done.stderr}")
    return done.stdout


def _figures() -> Iterator[str]:
    """The open figures as PNG, in base64; they are closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    from matplotlib import pyplot as plt

    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
        yield base64.b64encode(drawn.getvalue()).decode("ascii")
    plt.close("all")


if __name__ == "__main__":
    sys.exit(main())

"""The folder that an engine mines into: what it may hold, and how an unfinished mining continues or starts over."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridgemem.errors import RunError
from bridgemem.outofcore.base import DONE
from bridgemem.storage.files import read_json, write_json
from bridgemem.storage.placing import recover, reserved
from bridgemem.storage.whole import whole_folder

WORK = "work"
PARTS = "parts"  # in there; what lies in it took long to make
NAMES = re.compile(rf"{re.escape(DONE)}|index|{WORK}|examples-\d+\.npz|counts\.safetensors|(?:entities|relations)\.txt")


@contextmanager
def mining_place(out: Path, force: bool) -> Iterator[Path]:
    """Hold the folder to mine into: `out`, or with `force` one that replaces the mined one when it is whole."""
    recover(out)
    if not (force and (out / DONE).is_file()):
        with reserved(out):
            yield out
        return
    foreign = next((path.name for path in sorted(out.iterdir()) if not NAMES.fullmatch(path.name)), None)
    if foreign is not None:
        raise RunError(f"{out} holds {foreign!r}, which would be lost; move it, or choose another folder to mine into.")
    with whole_folder(out, replace=True, marks=(DONE,)) as aside:
        yield aside


def prepare(out: Path, asked: dict[str, Any], force: bool) -> Path:
    """The folder for what is not finished yet, with the plan that it belongs to; refuses a folder of anything else."""
    work, plan = out / WORK, out / WORK / "plan.json"
    asked = json.loads(json.dumps(asked))
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file; choose a folder to mine into.")
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if there - {WORK} and not (out / DONE).is_file() and not plan.is_file():
        raise RunError(f"{out} holds other things; choose an empty or a new folder to mine into.")
    if (out / DONE).is_file() and not force:
        raise RunError(f"{out} is mined already; choose another folder, or use --force to replace it.")
    same = plan.is_file() and read_json(plan) == asked
    if not same and (work / PARTS).is_dir() and not force:
        raise RunError(
            f"{out} holds an unfinished mining of other files or settings; finish that one, choose another folder, "
            "or use --force to start over."
        )
    if force or not same:
        _clear(out)
    work.mkdir(parents=True, exist_ok=True)
    if not plan.is_file():
        write_json(plan, asked)
    return work


def _clear(out: Path) -> None:
    # what says that the folder is whole goes first
    (out / DONE).unlink(missing_ok=True)
    for folder in ("index", WORK):
        shutil.rmtree(out / folder, ignore_errors=True)
    for file in (*out.glob("examples-*.npz"), out / "counts.safetensors", out / "entities.txt", out / "relations.txt"):
        file.unlink(missing_ok=True)

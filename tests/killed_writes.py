"""A program that writes a folder again and again, killed at each line of the code that does so: its argument is a home.

It runs in a process without torch, whose forks are quick. For each way to replace a folder, with one that is there and
without, it prints one line of JSON: how many kills there were, and what they left under the name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from bridgemem.storage import placing, whole
from bridgemem.storage.placing import recover, remove
from bridgemem.storage.whole import whole_folder

WRITERS = (placing.__file__, whole.__file__)


def write(path: Path, text: str) -> None:
    with whole_folder(path, replace=True) as aside:
        for name in ("model.safetensors", "config.toml"):
            (aside / name).write_text(text)


def found_at(path: Path) -> str:
    """What a folder says, in all of its files; "nothing" where there is none."""
    if not path.exists():
        return "nothing"
    return " and ".join(sorted({f"{(path / name).read_text()}" for name in ("model.safetensors", "config.toml")}))


def killed_at(line: int, path: Path) -> bool:
    """Whether a write was killed at the n-th line that it reached, and not done before."""
    child = os.fork()
    if child == 0:
        reached: set[tuple[str, int]] = set()

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in WRITERS:
                return None
            if event == "line":
                reached.add((frame.f_code.co_filename, frame.f_lineno))
            if len(reached) == line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            write(path, "new")
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(home: Path) -> None:
    whole.sync = lambda path: None  # what is written survives a kill without it; it is for power cuts
    by_system = placing._system_call
    for exchange in (True, False):
        placing._system_call = by_system if exchange else lambda: None
        for there in (True, False):
            path, kills, left = home / f"{exchange}-{there}" / "run", 0, set()
            if there:
                write(path, "old")
            while killed_at(kills + 1, path):
                kills += 1
                if not exchange:
                    recover(path)
                left.add(found_at(path))
                if found_at(path) == "new":
                    remove(path)
                if there and not path.exists():
                    write(path, "old")
            write(path, "last")
            after = sorted(entry.name for entry in path.parent.iterdir())
            sys.stdout.write(json.dumps([exchange, there, kills, sorted(left), found_at(path), after]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

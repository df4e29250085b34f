"""Files of a model: TOML, JSON and names; nothing in them runs when loaded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bridgemem.config import parse_json, read_toml
from bridgemem.errors import RunError, SettingsError
from bridgemem.storage.known_files import backbone_files, refuse_links
from bridgemem.storage.placing import fcntl_or_none, same_file
from bridgemem.storage.whole import whole_file

FORMAT = 4


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file while it is read, changed and rewritten; any other process or thread waits.

    What is locked is a file next to it, which is gone afterwards. Where the system has no fcntl, or the disk knows no
    locks, no one waits: of two writers at the same time the later one wins, and what the other one added is lost.
    """
    fcntl = fcntl_or_none()
    if fcntl is None:
        yield
        return
    path = Path(path)
    lock_file = path.parent / f".{path.name}.lock"
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = lock_file.open("a")
        except OSError as problem:
            raise RunError(f"{path} cannot be written: {problem.strerror or problem}.") from None
        with file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if not same_file(lock_file, file.fileno()):
                continue  # its holder has removed it; the next one makes a new file
            try:
                yield
            finally:
                lock_file.unlink(missing_ok=True)
            return


def write_json(path: Path, values: Any) -> None:
    with whole_file(path) as aside:
        aside.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} is missing; restore it from a copy, or write the folder again.") from None
    except (ValueError, RecursionError) as problem:
        raise RunError(f"{path} is damaged: {problem}.") from None


def write_names(path: Path, names: Iterable[str]) -> None:
    """Names by id: one a line, or a JSON list of them where a name holds a line break."""
    names = list(names)
    text = "".join(f"{name}\n" for name in names)
    if _names(text) != names:
        text = json.dumps(names, indent=0) + "\n"
    with whole_file(path) as aside:
        aside.write_bytes(text.encode())


def read_names(path: Path) -> tuple[str, ...]:
    """What `write_names` wrote; as bytes, because a name may hold what else is taken for a line break."""
    try:
        return tuple(_names(path.read_bytes().decode()))
    except (OSError, UnicodeDecodeError) as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None


def _names(text: str) -> list[str]:
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            if all(isinstance(name, str) for name in found):
                return list(found)
    return text.removesuffix("\n").split("\n")


def read_config(folder: Path) -> dict[str, Any]:
    try:
        return read_toml(Path(folder) / "config.toml")
    except SettingsError as problem:
        raise RunError(str(problem)) from None


def link_or_copy(source: Path, target: Path) -> None:
    """The files of a saved backbone under another name; runs that share one share its bytes where the disk allows it.

    Nothing else in the folder comes along, and a folder with a link in it is refused.
    """
    files = backbone_files(source)
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        try:
            os.link(file, target / file.name, follow_symlinks=False)
        except (OSError, NotImplementedError):
            shutil.copy2(file, target / file.name, follow_symlinks=False)
    refuse_links(target)  # a file that has become a link since was taken as one

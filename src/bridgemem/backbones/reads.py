"""Reads: what a model opens by itself while it is constructed, trained and asked, besides the data that it is given."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

CODE = (".py", ".pyc", ".pyi", ".pth", ".so", ".pyd", ".dll", ".dylib", ".ipynb")
SYSTEM = ("/dev", "/proc", "/sys", "/etc", "/usr/share/zoneinfo", "/usr/share/locale", "/usr/lib/locale")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PROCESSES = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"}
TICK = 0.02  # seconds; the times of files are coarser than the clock by up to 10 ms
NAMED = 3  # files that a sentence names


class Reads:
    """What was opened for reading while `watching`, in this thread and in those that it started.

    Left out are code, devices, what ships with Python and with installed packages, and what was written meanwhile.
    """

    def __init__(self, before: tuple[str, ...] = ()) -> None:
        self.sources: list[str] = list(before)
        self._own: set[str] = set()
        self._began = 0
        self._thread = 0
        self._others: set[int] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is opened; inside of itself it goes on."""
        if self in _ACTIVE:
            yield
            return
        _install()
        if not self._began:
            self._began = time.time_ns()
            time.sleep(TICK)
        self._thread, self._others = threading.get_ident(), set(sys._current_frames())
        mapped = _mapped()
        _ACTIVE.append(self)
        try:
            yield
        finally:
            _ACTIVE.remove(self)
            for path in sorted(_mapped() - mapped):  # native readers map a file and open it unseen
                self._read(path)

    def around(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, watched."""

        def asked(*given: Any, **named: Any) -> Any:
            with self.watching():
                return ask(*given, **named)

        return asked

    def concerns(self, thread: int) -> bool:
        """Whether a thread is the one that is watched, or was started since."""
        return thread == self._thread or thread not in self._others

    def note(self, event: str, given: tuple[Any, ...]) -> None:
        """One audit event of Python."""
        if event == "open":
            self._opened(*given)
        elif event == "sqlite3.connect" and given[0] not in (":memory:", ""):
            self._read(given[0])
        elif event == "os.mkdir":
            self._own.add(_plain(given[0]))
        elif event == "os.rename" and self._is_own(_plain(given[0])):
            self._own.add(_plain(given[1]))
        elif event in PROCESSES:
            self._add(f"another process ({event})")
        elif event == "socket.connect" and not isinstance(given[1], str | bytes):
            self._add(f"a connection to {given[1][0]}")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int) or path is None:
            return  # a descriptor that is open already
        written = (isinstance(flags, int) and flags & WRITES) or (isinstance(mode, str) and set(mode) & set("wax+"))
        anew = isinstance(mode, str) and mode.startswith(("w", "x"))
        if written and (anew or not Path(_plain(path)).exists()):  # what is changed in place is read
            self._own.add(_plain(path))
            return
        self._read(path)

    def _read(self, path: Any) -> None:
        name = _plain(path)
        if self._is_own(name) or _ships(name) or not Path(name).is_file():
            return
        if Path(name).stat().st_mtime_ns <= self._began:  # native writers, such as torch.save, are not heard of
            self._add(name)

    def _add(self, source: str) -> None:
        if source not in self.sources:
            self.sources.append(source)

    def _is_own(self, name: str) -> bool:
        return name in self._own or any(str(parent) in self._own for parent in Path(name).parents)

    def __bool__(self) -> bool:
        return bool(self.sources)

    def __str__(self) -> str:
        """The sources, as a sentence names them: the names of files, and of many the first."""
        shown = ", ".join(Path(one).name if os.sep in one else one for one in self.sources[:NAMED])
        rest = len(self.sources) - NAMED
        return shown + (f" and {rest} more" if rest > 0 else "")


_ACTIVE: list[Reads] = []


def _plain(path: Any) -> str:
    return os.path.realpath(os.fsdecode(path))


@cache
def _shipped() -> tuple[str, ...]:
    """The folders of Python, of installed packages and of this one: what ships with them is no model's own file."""
    paths = sysconfig.get_paths()
    own = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    package = str(Path(__file__).resolve().parents[1])
    return tuple(_plain(path) for path in (*own, site.getusersitepackages(), package))


def _ships(name: str) -> bool:
    path = Path(name)
    if path.suffix in CODE or ".so." in path.name:
        return True
    return any(path.is_relative_to(folder) for folder in (*SYSTEM, *_shipped()))


def _mapped() -> set[str]:
    """The files that are mapped into memory, where the system tells."""
    try:
        with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as lines:
            return {fields[5] for line in lines if len(fields := line.rstrip("\n").split(None, 5)) == 6}
    except OSError:
        return set()


@cache
def _install() -> None:
    """An audit hook stays for the life of a process, so there is one, which does nothing unless a watch is active."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if not _ACTIVE:
            return
        for watch in tuple(_ACTIVE):
            if watch.concerns(threading.get_ident()):
                watch.note(event, given)

    sys.addaudithook(hook)

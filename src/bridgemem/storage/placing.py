"""Placing: reserve a name while its folder is written, and put the whole folder there in one step.

While NAME is written, its writer holds a lock on `.NAME.lock`, and `.NAME.TOKEN.part` next to it holds what is written.
The token names the process. What a killed process left is removed, or put back, when NAME is written the next time.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import re
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from bridgemem.errors import RunError

PART, OLD = "part", "old"  # what is being written; what gives way where two folders cannot be exchanged
TOKEN = r"([0-9a-f]{6})([0-9a-f]{6})-([0-9]{1,10})-[0-9a-f]{8}"  # host, boot, process, and a number drawn
NO_REPLACE, EXCHANGE = 1, 2  # flags of renameat2
WORKING_DIRECTORY = -100  # AT_FDCWD
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)

_held: dict[Path, tuple[int, int]] = {}  # reserved names, and the process and thread that hold them
_guard = threading.Lock()


# ---- names of what is not finished ---------------------------------------------------------------------------------


def aside_of(path: Path, kind: str = PART) -> Path:
    """A new hidden name next to a target."""
    host, boot = _machine()
    return path.parent / f".{path.name}.{host}{boot}-{os.getpid()}-{uuid.uuid4().hex[:8]}.{kind}"


def leftovers(path: Path, *kinds: str) -> Iterator[tuple[Path, bool]]:
    """What writers of a target left next to it, or still write, and whether the process is known to be dead."""
    name = re.compile(rf"\.{re.escape(path.name)}\.{TOKEN}\.(?:{'|'.join(kinds)})")
    with suppress(OSError):
        for entry in list(path.parent.iterdir()):
            if match := name.fullmatch(entry.name):
                yield entry, _dead(match[1], match[2], int(match[3]))


@cache
def _machine() -> tuple[str, str]:
    """Digests of where process ids mean the same (the host, or a container on it) and since when (its last start)."""
    host, boot = platform.node(), ""
    with suppress(OSError):
        host += str(Path("/proc/self/ns/pid").stat().st_ino)
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    first, second = (hashlib.sha256(text.encode()).hexdigest()[:6] for text in (host, boot))
    return first, second


def _dead(host: str, boot: str, process: int) -> bool:
    own_host, own_boot = _machine()
    if host != own_host or os.name == "nt":  # there, a signal 0 is not harmless
        return False
    if boot != own_boot:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def clear_dead_files(path: Path) -> None:
    """Remove what killed processes wrote of a file that was not whole, and the log of a database."""
    for left, dead in leftovers(path, PART, rf"{PART}\.wal"):
        if dead and not left.is_dir():
            remove(left)


def remove(path: Path) -> None:
    """Remove a folder or a file; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


# ---- reserving a name ----------------------------------------------------------------------------------------------


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Hold the name of a folder: another process or thread that would write it is refused until the block ends.

    A block inside a block of the same thread changes nothing. The lock ends with the process, however that ends.
    """
    path = Path(path)
    key, own = _key(path), (os.getpid(), threading.get_ident())
    if holds(path):
        yield
        return
    with _guard:
        if _held.get(key, (0, 0))[0] == os.getpid():  # and not of the process that this one was forked from
            raise _busy(path)
        _held[key] = own
    try:
        with _lock(path) as sole:
            _tidy(path, sole)
            yield
    finally:
        with _guard:
            del _held[key]


def holds(path: Path) -> bool:
    """Whether this thread has reserved a name."""
    return _held.get(_key(path)) == (os.getpid(), threading.get_ident())


def _key(path: Path) -> Path:
    return path.parent.resolve() / path.name


def recover(path: Path) -> None:
    """Put a folder back whose replacement was killed between two renames; nothing where another process is at it."""
    path = Path(path)
    if path.name and not os.path.lexists(path) and any(leftovers(path, OLD)):
        with suppress(RunError, OSError), reserved(path):
            pass


def _busy(path: Path, more: str = "") -> RunError:
    return RunError(f"{path} is being written by another process; wait until it ends, or choose another name{more}.")


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold the lock file of a name; yields whether the system vouches that no other process does."""
    fcntl, lock_file = fcntl_or_none(), path.parent / f".{path.name}.lock"
    new = [parent for parent in path.parents if not parent.exists()]
    while True:
        handle, made = _opened(path, lock_file)
        sole = _flocked(fcntl, handle)
        if sole and not same_file(lock_file, handle):
            os.close(handle)  # the one before has removed it meanwhile; the next turn makes a new file
            continue
        if sole or (sole is None and made):
            break
        os.close(handle)
        raise _busy(path, "" if sole is False else f"; if no process writes it, remove {lock_file}")
    try:
        yield bool(sole)
    finally:
        if sole:  # while it is locked, so that nobody waits for a file that is gone
            lock_file.unlink(missing_ok=True)
        os.close(handle)
        if not sole:  # an open file cannot be removed everywhere
            lock_file.unlink(missing_ok=True)
        with suppress(OSError):
            for parent in new:  # those that nothing was put into
                parent.rmdir()


def _opened(path: Path, lock_file: Path) -> tuple[int, bool]:
    """The lock file, and whether it was made just now."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process has just removed the empty folder, or the file
                with suppress(FileExistsError):
                    return os.open(lock_file, flags | os.O_EXCL, 0o666), True
                return os.open(lock_file, flags & ~os.O_CREAT, 0o666), False
    except OSError as problem:
        raise RunError(f"{path} cannot be written: {problem.strerror or problem}.") from None


def _flocked(fcntl: Any, handle: int) -> bool | None:
    """Whether the lock is ours; None where the system or the disk has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def fcntl_or_none() -> Any:
    """The module that locks files, where the system has one."""
    try:
        import fcntl
    except ImportError:  # as on Windows
        return None
    return fcntl


def same_file(path: Path, handle: int) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _tidy(path: Path, sole: bool) -> None:
    """Put back what a killed replacement took away, and remove what killed writers left of the folder.

    Under a lock all of it is of dead writers, since a live one would hold the lock; without, the token has to tell.
    """
    for left, dead in sorted(leftovers(path, OLD, PART)):  # .old and .part of one token: in this order
        if not (sole or dead) or not left.is_dir() or left.is_symlink():
            continue
        if left.suffix == f".{OLD}" and not os.path.lexists(path):
            left.rename(path)
        else:
            remove(left)


# ---- putting a folder in place -------------------------------------------------------------------------------------


def put_folder(aside: Path, path: Path, replace: bool) -> None:
    """Give a whole folder its name; with `replace` an existing one is replaced in the same step.

    FileExistsError where something is there and is not to be replaced.
    """
    if not replace or not os.path.lexists(path):
        put_new(aside, path)
    elif not _renameat2(aside, path, EXCHANGE):
        before = aside.with_suffix(f".{OLD}")
        try:
            path.rename(before)
            aside.rename(path)
        finally:
            if os.path.lexists(path):
                remove(before)
            else:
                before.rename(path)


def put_new(aside: Path, path: Path) -> None:
    """Give a folder or file a name that is free, and raise FileExistsError where it is not."""
    if _renameat2(aside, path, NO_REPLACE):
        return
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    aside.rename(path)


def put_beside(aside: Path, path: Path) -> Path:
    """Give a folder or file the first free name after one that is taken, as in run-2; returns it."""
    stem, ending = (path.name, "") if aside.is_dir() else (path.stem, path.suffix)
    for number in count(2):
        other = path.with_name(f"{stem}-{number}{ending}")
        with suppress(FileExistsError):
            put_new(aside, other)
            return other
    raise AssertionError


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    """Rename as Linux does in one step: into a free name alone, or exchanging two; False where that is not possible."""
    call = _system_call()
    if call is None:
        return False
    if call(WORKING_DIRECTORY, os.fsencode(source), WORKING_DIRECTORY, os.fsencode(target), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _system_call() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    call.restype = ctypes.c_int
    return call

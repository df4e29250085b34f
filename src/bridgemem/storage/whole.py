"""Whole folders and files: they appear under their names when all is written, and not at all when anything fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridgemem.errors import RunError
from bridgemem.storage.placing import (
    aside_of,
    clear_dead_files,
    holds,
    put_beside,
    put_folder,
    put_new,
    recover,
    remove,
    reserved,
)

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # what the system says where a disk is full
MODEL = ("model.safetensors", "weights.safetensors")  # one of them is in every saved run and backbone


@contextmanager
def whole_folder(path: Path, replace: bool = False, marks: tuple[str, ...] = MODEL) -> Iterator[Path]:
    """A folder to fill: it appears under its name when all is written, and not at all when anything fails.

    The name is reserved meanwhile, and an existing folder is replaced in one step. What appears under the name all the
    same, and may not be replaced, stays: the new folder then gets the next free name, and an error says so.
    """
    path = Path(path)
    with reserved_free(path, replace, marks):
        aside = aside_of(path)
        try:
            with naming_full(path):
                aside.mkdir()
                yield aside
                _sync_tree(aside)
            if _taken(path, replace, marks):
                raise _kept_beside(aside, path)
            try:
                put_folder(aside, path, replace)
            except FileExistsError:
                raise _kept_beside(aside, path) from None
            sync(path.parent)
        finally:
            remove(aside)


def _kept_beside(aside: Path, path: Path) -> RunError:
    other = put_beside(aside, path)
    return RunError(f"{path} appeared while it was being written, and is not replaced; what was written is in {other}.")


@contextmanager
def naming_full(path: Path) -> Iterator[None]:
    """Let the error of a full disk name what was being written; writing bytes alone names nothing."""
    try:
        yield
    except OSError as problem:
        named = problem.filename
        # a hidden name next to the target is known to its writer alone
        if problem.errno in NO_ROOM and (named is None or f".{path.name}." in str(named)):
            problem.filename = str(path)
        raise


def remedy_if_full(said: str, path: Path) -> str:
    """What to do where the system says that a disk is full, as the end of a sentence; empty in other cases."""
    if not any(os.strerror(code) in said for code in (errno.ENOSPC, errno.EDQUOT)):
        return ""
    return f"; free some space in {path.absolute().parent}, or name another folder, and try again"


@contextmanager
def reserved_free(path: Path, replace: bool = False, marks: tuple[str, ...] = MODEL) -> Iterator[None]:
    """Check the name of a new folder, and hold it until the block ends, while what goes in is made.

    Inside a block of the same name nothing is checked again: hours may have gone into what is about to be written.
    """
    path = Path(path)
    if holds(path):
        yield
        return
    recover(path)
    check_free(path, replace, marks)
    with reserved(path):
        check_free(path, replace, marks)  # what another process has finished meanwhile
        yield


def check_free(path: Path, replace: bool = False, marks: tuple[str, ...] = MODEL) -> None:
    """Refuse the name of a new folder that is taken or cannot be written, before hours are spent on what goes in.

    `replace` frees the name of an empty folder or of one that holds one of the files in marks, those of a saved model
    unless said otherwise; never of anything else that a user keeps.
    """
    if taken := _taken(path, replace, marks):
        raise RunError(taken)
    home = next(p for p in path.absolute().parents if p.exists())
    if not (home.is_dir() and os.access(home, os.W_OK | os.X_OK)):
        raise RunError(f"{path} cannot be written, since {home} is not a folder that you may write to.")


def _taken(path: Path, replace: bool, marks: tuple[str, ...]) -> str | None:
    """Why a name may not be written, where something is there that is not to be replaced."""
    if path.is_symlink():
        return f"{path} is a symbolic link; name the folder itself, or choose another name."
    if not path.exists():
        return None
    if not replace:
        return f"{path} exists already; choose another name, or use --force to replace it."
    saved = any((path / name).is_file() for name in marks)
    if not path.is_dir() or (any(path.iterdir()) and not saved):
        return f"{path} is no saved model and is not replaced; choose another name."
    return None


@contextmanager
def whole_file(path: Path, replace: bool = True) -> Iterator[Path]:
    """A file to fill, renamed into place when it is whole; with `replace` false only into a name that is still free."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_dead_files(path)
    aside = aside_of(path)
    try:
        with naming_full(path):
            yield aside
            sync(aside)
        try:
            aside.replace(path) if replace else put_new(aside, path)
        except FileExistsError:
            raise _kept_beside(aside, path) from None
        sync(path.parent)
    except OSError as problem:
        if problem.filename == str(aside):  # which nobody knows but this function
            problem.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def _sync_tree(folder: Path) -> None:
    for inner in folder.rglob("*"):
        sync(inner)
    sync(folder)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

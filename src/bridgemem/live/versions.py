"""Versions: a link to the run that is served, moved to another one atomically, and where it pointed before.

Next to the link `current` lies `current.history.json`: every run that it pointed to, the last one last.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bridgemem.config import Count, Declared, check
from bridgemem.errors import NotFoundError, SettingsError
from bridgemem.runs import Run
from bridgemem.storage.files import locked, write_json
from bridgemem.storage.schema import read_as


@dataclass(frozen=True)
class Promoted(Declared):
    """A run that a link pointed to: the folder's name, the model's version, and since when."""

    run: str
    version: str
    when: str


@dataclass(frozen=True)
class Moved:
    """What a link points to now and did before, and the folders that were removed."""

    link: str
    run: str
    version: str
    before: str | None
    removed: tuple[str, ...]


def promote(run: Path | str, link: Path | str, *, keep: int | None = None) -> Moved:
    """Let a link point to a run next to it. keep: of the runs that it pointed to, only that many last ones stay."""
    check("keep", keep, Count | None)
    run, link = Path(run), Path(link)
    if link.exists() and not link.is_symlink():
        raise SettingsError(
            f"{link} is not a link, but a folder or file of its own; name a link, such as runs/current."
        )
    folder = run.resolve()
    if folder.parent != link.parent.resolve():
        raise SettingsError(f"{run} does not lie next to {link}; keep the runs of a link in its folder.")
    version = Run(folder).version
    with locked(link):
        known = history(link)
        before = str(link.readlink()) if link.is_symlink() else None
        _point(link, folder.name)
        known.append(Promoted(folder.name, version, datetime.now(UTC).isoformat(timespec="seconds")))
        removed = _remove_old(link, known, keep) if keep is not None else []
        _write(link, [one for one in known if one.run not in removed])
    return Moved(str(link), folder.name, version, before, tuple(removed))


def rollback(link: Path | str) -> Moved:
    """Let a link point to the run that it pointed to before; once more goes back further."""
    link = Path(link)
    if not link.is_symlink():
        raise NotFoundError(f"there is no link {link}; `bridgemem promote RUN --link {link}` makes one.")
    with locked(link):
        known, now = history(link), str(link.readlink())
        earlier = [one for one in known if one.run != now and (link.parent / one.run / "config.toml").is_file()]
        if not earlier:
            raise NotFoundError(
                f"{link} pointed to no earlier run that is still there; `bridgemem promote RUN` points it to one."
            )
        target = earlier[-1]
        version = Run(link.parent / target.run).version
        _point(link, target.run)
        # what was rolled back is no version to go back to
        _write(link, known[: known.index(target) + 1])
    return Moved(str(link), target.run, version, now, ())


def history(link: Path | str) -> list[Promoted]:
    """The runs that a link pointed to, the last one last."""
    return list(read_as(_notes(Path(link)), list[Promoted], "remove it to begin a new history", missing=[]))


def _notes(link: Path) -> Path:
    return link.with_name(f"{link.name}.history.json")


def _write(link: Path, known: list[Promoted]) -> None:
    write_json(_notes(link), [asdict(one) for one in known])


def _point(link: Path, name: str) -> None:
    """Replace the link in one step; a relative one, so that the folder can be moved as a whole."""
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(name, target_is_directory=True)
    aside.replace(link)


def _remove_old(link: Path, known: list[Promoted], keep: int) -> list[str]:
    """Remove the folders of runs that the link pointed to, but for the last ones; no other folder is touched."""
    last = list(dict.fromkeys(one.run for one in reversed(known)))
    removed = []
    for name in last[keep:]:
        folder = link.parent / name
        if folder.is_dir() and not folder.is_symlink() and (folder / "config.toml").is_file():
            shutil.rmtree(folder)
        removed.append(name)
    return removed

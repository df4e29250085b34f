"""Mapped: an event log whose columns lie in a folder and are read by memory map, so that it may be larger than memory.

`bridgemem mine` and `bridgemem memory` write such folders. The indices of the events lie next to them, and are opened
by what reads the past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Clock, EventLog, Vocabulary
from bridgemem.storage.checksums import read_manifest, verify_file
from bridgemem.storage.columns import INDEX, again, forget, open_column
from bridgemem.storage.files import read_json
from bridgemem.storage.placing import recover

FORMAT = 4
MANIFEST = "memory.json"
NAMES = "names.json"
MINED = "mined.json"  # what makes a mined folder whole
EVENTS = ("subject", "relation", "object", "step")
BLOCK = 1 << 22  # events that a pass over all of them holds at a time


@dataclass
class Home:
    """The folder of a log, which all parts of it share.

    manifest: what memory.json says. columns: of the events. opened: the indices, kept by the first that opens them.
    """

    folder: Path
    manifest: Mapping[str, Any]
    columns: Mapping[str, np.ndarray] = field(repr=False)
    opened: Any = field(default=None, repr=False)

    @property
    def source(self) -> Path:
        """The folder as a user names it: the mined one, or the memory on disk."""
        return self.folder.parent if self.folder.name == INDEX else self.folder

    @property
    def is_split(self) -> bool:
        """Whether the folder has a split of its own; a mined one is cut when it is loaded."""
        return self.manifest.get("valid_start") is not None


@dataclass(frozen=True, eq=False)
class MappedLog(EventLog):
    """Events whose columns are mapped. They were checked when they were written, and are not read to be checked again.

    home: where the indices of these events lie, which may reach beyond them; None for a slice that is no past of any
    step. whole: the fingerprint where these are all the events of the folder.
    """

    home: Home | None = None
    whole: str | None = None

    def __post_init__(self) -> None:
        pass

    def rows(self, start: int, stop: int) -> EventLog:
        return self._part(start, stop, None)

    def prefix(self, step: int) -> EventLog:
        return self._part(0, int(np.searchsorted(self.step, step)), self.home)

    def _part(self, start: int, stop: int, home: Home | None) -> MappedLog:
        subject, relation, object_, step = (getattr(self, name)[start:stop] for name in EVENTS)
        return MappedLog(subject, relation, object_, step, self.entities, self.relations, self.clock, home)

    @cached_property
    def tallies(self) -> tuple[np.ndarray, np.ndarray]:
        made = super().tallies
        forget(getattr(self, name) for name in EVENTS)
        return made

    @cached_property
    def fingerprint(self) -> str:
        if self.whole is not None:
            return self.whole
        digest = hashlib.sha256(f"{self.n_entities} {self.n_relations} {len(self)}".encode())
        for name in EVENTS:
            column = getattr(self, name)
            for at in range(0, len(column), BLOCK):
                digest.update(column[at : at + BLOCK].tobytes())
            forget([column])
        return digest.hexdigest()[:16]


def is_mapped(source: object) -> bool:
    """Whether this names a folder that was mined, or a memory on disk; one that is not whole counts too."""
    if not isinstance(source, str | Path):
        return False
    folder = Path(source)
    return any((folder / name).exists() for name in (MINED, MANIFEST, f"{INDEX}/{MANIFEST}", "work/plan.json"))


def mapped_folder(source: Path | str) -> Path:
    """Where the columns of a mined folder or of a memory on disk lie; one that is not whole is refused."""
    folder = Path(source)
    recover(folder)
    if (folder / MANIFEST).is_file():
        return folder
    if not (folder / MINED).is_file():
        if (folder / "work").is_dir() or (folder / INDEX).is_dir():
            raise DataError(f"{folder} is not mined to the end; run the same `bridgemem mine` again, it goes on.")
        raise RunError(f"{folder} holds no whole memory on disk: {MANIFEST} is missing; `bridgemem memory` writes one.")
    if not (folder / INDEX / MANIFEST).is_file():
        raise DataError(f"{folder} was mined by an earlier version, without its events; mine again.")
    return folder / INDEX


def open_log(source: Path | str) -> MappedLog:
    """The events of a mined folder or of a memory on disk, by memory map.

    Raises:
        RunError: The folder is none, or damaged.
        DataError: It was not mined to the end.
    """
    folder = mapped_folder(source)
    values = read_manifest(folder / MANIFEST, FORMAT, "a memory", again(folder))
    verify_file(folder / NAMES, values.get("names"), again(folder))
    names = read_json(folder / NAMES)
    try:
        lengths, vocabularies = values["columns"], (names["entities"], names["relations"])
        paths = [f"events.{name}" for name in EVENTS]
        columns = {path: open_column(folder / f"{path}.npy", "<i4", lengths[path]) for path in paths}
        subject, relation, object_, step = map(_locked, columns.values())
        return MappedLog(
            subject,
            relation,
            object_,
            step,
            Vocabulary("entity", tuple(vocabularies[0]), aliases=names.get("aliases", {})),
            Vocabulary("relation", tuple(vocabularies[1])),
            Clock(**values["clock"]),
            Home(folder, values, columns),
            values["fingerprint"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise RunError(f"{folder / MANIFEST} is damaged; {again(folder)}.") from None


def open_mapped(source: Path | str, *, valid: float | None = None, test: float | None = None) -> Dataset:
    """The data set of a mined folder or of a memory on disk.

    valid, test: shares of the last events, as for `Dataset.chronological`; left out, the split is the folder's own, and
    a tenth each where it has none.
    """
    log = open_log(source)
    assert log.home is not None
    values, folder = log.home.manifest, log.home.folder
    if log.home.is_split and valid is test is None:
        try:
            return Dataset(str(values["name"]), log, int(values["valid_start"]), values["test_start"])
        except (KeyError, TypeError, ValueError):
            raise RunError(f"{folder / MANIFEST} is damaged; {again(folder)}.") from None
    shares = [0.1 if share is None else share for share in (valid, test)]
    name = str(values.get("name", "events"))
    if log.home.source != folder:  # a mined folder is called what it is called now, and not when it was mined
        name = log.home.source.resolve().name
    return Dataset.chronological(name, log, valid=shares[0], test=shares[1])


def data_folder(events: EventLog) -> str:
    """The absolute path of the folder that holds a log; empty for one in memory."""
    if not isinstance(events, MappedLog) or events.home is None:
        return ""
    return str(events.home.source.resolve())


def _locked(column: np.ndarray) -> np.ndarray:
    column = column.view()
    column.flags.writeable = False
    return column

"""Backbones: forecasters under one contract, built in, from other installed packages, or registered."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import tomllib
import warnings
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bridgemem.errors import BackboneError, NotFoundError

if TYPE_CHECKING:
    from bridgemem.backbones.base import Backbone

GROUP = "bridgemem.backbones"  # the entry-point group in which other packages name their backbones


class Entry(NamedTuple):
    """Where a built-in backbone lives, one line for people, and whether it is trained."""

    module: str
    attribute: str
    line: str
    trained: bool = True


BACKBONES = {
    "cenet": Entry("bridgemem.backbones.cenet", "Cenet", "CENET: scorers for and against history, with an oracle"),
    "cygnet": Entry("bridgemem.backbones.cygnet", "Cygnet", "CyGNet: copies what the past has seen, or generates"),
    "regcn": Entry("bridgemem.backbones.regcn", "Regcn", "RE-GCN: states evolved over the last snapshots"),
    "tirgn": Entry("bridgemem.backbones.tirgn", "Tirgn", "TiRGN: RE-GCN with time vectors and the whole past"),
    "est": Entry("bridgemem.backbones.est", "Est", "EST: an actor's last events, over slowly written entity states"),
    "infer": Entry("bridgemem.backbones.infer", "Infer", "INFER: mined temporal rules over facts that decay with time"),
    "tpar": Entry("bridgemem.backbones.tpar", "Tpar", "TPAR: recursive encoding of the temporal paths from the actor"),
    "csi": Entry("bridgemem.backbones.csi", "Csi", "CSI (reconstructed): paths split into causal and shortcut links"),
    "stream": Entry("bridgemem.backbones.stream", "Stream", "attention over an actor's own last events, with a copy"),
    "counting+stream": Entry("bridgemem.backbones.ensemble", "CountingStream", "recurrence-typed and stream together"),
    "ensemble": Entry(
        "bridgemem.backbones.ensemble", "Ensemble", "several of the trained ones, with an equal say each"
    ),
    "hri": Entry("bridgemem.backbones.hri", "Hri", "HRI: decayed repetition, and the relation's usual answers", False),
    "recurrence": Entry("bridgemem.backbones.recurrence", "Recurrence", "the exact triple, its last time first", False),
    "recurrence-dyadic": Entry(
        "bridgemem.backbones.recurrence",
        "RecurrenceDyadic",
        "recurrence, and how recently the pair interacted at all",
        False,
    ),
    "recurrence-typed": Entry(
        "bridgemem.backbones.typed",
        "RecurrenceTyped",
        "recurrence, every event of the pair by what it leads to, usual answers",
        False,
    ),
    "most-frequent": Entry(
        "bridgemem.backbones.naive", "MostFrequent", "the most frequent partner under the relation", False
    ),
    "most-recent": Entry("bridgemem.backbones.naive", "MostRecent", "the last partner under the relation", False),
    "popularity": Entry("bridgemem.backbones.recurrence", "Popularity", "the most active entities, for all", False),
    "stored": Entry("bridgemem.backbones.stored", "Stored", "the scores of any outside model, from a folder", False),
}


REGISTERED: dict[str, type[Backbone]] = {}  # what `register` made known in this process


@dataclass(frozen=True)
class Listed:
    """A backbone as a list shows it; package names the distribution it comes from, broken says why it is of no use."""

    name: str
    kind: str
    line: str
    package: str = "bridgemem"
    broken: str | None = None


def backbone_names() -> list[str]:
    """All that can be asked for by name: the built-in ones, then those of other packages and registered ones."""
    return [*BACKBONES, *sorted({*_outside(), *REGISTERED})]


def backbone_class(name: str) -> type[Backbone]:
    """The class of a named backbone."""
    if name in BACKBONES:
        module, attribute, *_ = BACKBONES[name]
        return getattr(importlib.import_module(module), attribute)
    if name in REGISTERED:
        return REGISTERED[name]
    outside = _outside()
    if name not in outside:
        known = ", ".join(backbone_names())
        raise NotFoundError(f"there is no backbone called {name!r}; choose from {known}.")
    return _load(name, outside[name])


def list_backbones() -> list[Listed]:
    """Every backbone with one line for people; those of other packages are loaded to see whether they can be."""
    found = [Listed(name, _kind(entry.trained), entry.line) for name, entry in BACKBONES.items()]
    for name, kind in sorted(REGISTERED.items()):
        found.append(Listed(name, _kind(getattr(kind, "trained", True)), _first_line(kind), "registered"))
    for name, points in sorted(_outside().items()):
        if name in REGISTERED:
            continue
        package = ", ".join(map(_package, points))
        try:
            kind = _load(name, points)
        except BackboneError as problem:
            found.append(Listed(name, "unknown", "", package, str(problem)))
            continue
        found.append(Listed(name, _kind(getattr(kind, "trained", True)), _first_line(kind), package))
    return found


def _first_line(kind: type[Backbone]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


def _kind(trained: bool) -> str:
    return "trained" if trained else "training-free"


def _outside() -> dict[str, list[metadata.EntryPoint]]:
    """The entry points of other packages by name; one that would take a built-in's name is passed over."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.name not in BACKBONES:
            found.setdefault(point.name, []).append(point)
    return found


def _package(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _load(name: str, points: list[metadata.EntryPoint]) -> type[Backbone]:
    """The class of an entry point, or the one sentence that says why there is none."""
    from bridgemem.backbones.base import Backbone

    if len(points) > 1:
        packages = " and ".join(map(_package, points))
        raise BackboneError(f"the backbone {name!r} is offered by {packages}; uninstall all of them but one.")
    (point,) = points
    try:
        kind = point.load()
    except Exception as problem:  # whatever the import of a foreign module raises
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0].rstrip(".")
        raise BackboneError(
            f"the backbone {name!r} of the package {_package(point)} cannot be loaded ({reason}); repair or "
            "uninstall it."
        ) from problem
    if not (isinstance(kind, type) and issubclass(kind, Backbone)) or getattr(kind, "name", None) != name:
        raise BackboneError(
            f"the backbone {name!r} of the package {_package(point)} is not a subclass of Backbone with that name; "
            "repair or uninstall it."
        )
    return kind


def is_trained(name: str) -> bool:
    """Whether a named backbone learns anything, and so is trained once and kept, or is made in a moment."""
    return BACKBONES[name].trained if name in BACKBONES else getattr(backbone_class(name), "trained", True)


def backbone_defaults(name: str, dataset: str) -> Any:
    """A backbone's settings for a named data set: its own defaults, changed where the package says so for that one."""
    kind = backbone_class(name)
    values = _per_dataset().get(name, {}).get(dataset, {})
    if not values:
        return kind.default
    return replace(kind.default, **{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


@cache
def _per_dataset() -> dict[str, Any]:
    text = resources.files("bridgemem.backbones").joinpath("settings.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def load_backbone(folder: Path | str) -> Backbone:
    """A saved backbone of any kind."""
    from bridgemem.storage.tensors import load_tensors

    # the class loads itself, since not all of a backbone need lie in its settings and weights
    config, _ = load_tensors(Path(folder))
    noted = config.get("backbone", {})
    name = noted.get("name", "")
    if name not in backbone_names():
        of = f" (class {noted['class']})" if isinstance(noted.get("class"), str) else ""
        raise NotFoundError(
            f"{folder} holds a backbone called {name!r}{of}, which no installed package offers, and a folder holds no "
            "code; give its class again with `bridgemem --register FILE.py:CLASS ...`, bridgemem.register(CLASS), or "
            f"the entry-point group {GROUP}, see docs/how-to/own-model.md."
        )
    kind = backbone_class(name)
    if "digest" in noted and noted["digest"] != source_digest(kind):
        warnings.warn(
            f"{folder} was saved by a different version of {kind.__name__}; scores may differ, so evaluate it again.",
            stacklevel=2,
        )
    return kind.load(Path(folder))


def origin(kind: type[Backbone]) -> dict[str, str]:
    """What a folder notes of the class that saved it: its name, and for a class from a file its source; never code."""
    if kind.name in BACKBONES:
        return {"name": kind.name}
    return {"name": kind.name, "class": kind.__qualname__, "digest": source_digest(kind)}


def source_digest(kind: type[Backbone]) -> str:
    """A digest of the file that defines a class; empty where there is none, as in an interpreter."""
    try:
        path = inspect.getsourcefile(kind)
        return "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return ""

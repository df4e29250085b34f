"""What is corrected: forecasters behind one contract."""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridgemem.errors import NotFoundError

if TYPE_CHECKING:
    from bridgemem.backbones.base import Backbone

# name -> (module, class, one line for people)
BACKBONES = {
    "cenet": (
        "bridgemem.backbones.cenet",
        "Cenet",
        "CENET: contrastive history and non-history scorers with an oracle",
    ),
    "recurrence": (
        "bridgemem.backbones.recurrence",
        "Recurrence",
        "training-free: the exact triple, its last time first",
    ),
    "recurrence-dyadic": (
        "bridgemem.backbones.recurrence",
        "RecurrenceDyadic",
        "training-free: recurrence, and how recently the pair met at all",
    ),
    "popularity": ("bridgemem.backbones.recurrence", "Popularity", "training-free: the most active entities, for all"),
}


def backbone_class(name: str) -> type[Backbone]:
    """The class of a named backbone."""
    if name not in BACKBONES:
        raise NotFoundError(f"there is no backbone called {name!r}; choose from {', '.join(BACKBONES)}.")
    module, attribute, _ = BACKBONES[name]
    return getattr(importlib.import_module(module), attribute)


def backbone_defaults(name: str, dataset: str) -> Any:
    """A backbone's settings for a data set: its own defaults, changed where the package says so for that data set."""
    kind = backbone_class(name)
    overrides = _per_dataset().get(name, {})
    values = {**overrides.get("all", {}), **overrides.get(dataset, {})}
    return replace(kind.default, **values)


@cache
def _per_dataset() -> dict[str, Any]:
    text = resources.files("bridgemem.backbones").joinpath("settings.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def load_backbone(folder: Path | str) -> Backbone:
    """A saved backbone of any kind."""
    from bridgemem.store import load_tensors

    config, tensors = load_tensors(Path(folder))
    return backbone_class(config.get("backbone", {}).get("name", "")).restore(config.get("settings", {}), tensors)

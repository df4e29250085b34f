"""BridgeMem: forecasts on temporal knowledge graphs from what happened between the two parties in question."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"
# said also where nothing else could be imported yet
INTERRUPTED = "bridgemem: interrupted; nothing half-written was kept."

# public name -> where it lives; imported when first used, so that `import bridgemem` stays light
_PUBLIC = {
    "load": "bridgemem.events.loading",
    "Forecaster": "bridgemem.forecaster",
    "EventLog": "bridgemem.events.log",
    "Dataset": "bridgemem.events.dataset",
    "Settings": "bridgemem.config",
    "LearnedSettings": "bridgemem.residuals.learned",
    "WorldSettings": "bridgemem.events.world",
    "Backbone": "bridgemem.backbones.base",
    "Scorer": "bridgemem.backbones.scorer",
    "evaluate": "bridgemem.studies.own_model",
    "register": "bridgemem.backbones.own",
    "ranks": "bridgemem.studies.ranks",
    "compare": "bridgemem.studies.compare",
    "check_backbone": "bridgemem.backbones.check",
    "tune": "bridgemem.backbones.tuning",
    "leakage": "bridgemem.studies.leakage",
    "headroom": "bridgemem.studies.headroom",
    "simulate": "bridgemem.events.world",
    "Client": "bridgemem.client",
    "BridgeMemError": "bridgemem.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bridgemem' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

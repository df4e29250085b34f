"""Fits in one line, for tests that look at what comes of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from bridgemem.backbones.base import Backbone
from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.model import Model
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.selection import Fitted
from bridgemem.runs import Run
from builders import small_world


@cache
def small_forecaster() -> Forecaster:
    """A forecaster of the small world, fitted once; whoever updates or saves one fits their own."""
    settings = Settings(width=8, hidden=8, max_epochs=1)
    return Forecaster("recurrence", residual="bridgemem", settings=settings).fit(small_world().dataset)


def last_event() -> tuple[str, str, str]:
    """Subject, relation and object of the last event of the small world."""
    event = small_world().events[len(small_world().events) - 1]
    return event.subject, event.relation, event.object


def fit_run(
    dataset: Dataset,
    backbone: Path,
    folder: Path,
    settings: Settings | None = None,
    seed: int = 42,
    *,
    residual: str = "bridgemem",
    learned_settings: LearnedSettings | None = None,
    history: str = "rolling",
    replace: bool = False,
) -> tuple[Run, Fitted]:
    """A saved run on a saved backbone, and what was fitted."""
    own = {"settings": settings, "learned_settings": learned_settings}
    model = Forecaster(backbone, residual=residual, history=history, seed=seed, **own).fit(dataset)
    made = model.parts
    assert isinstance(made, Model)
    return Run(model.save(folder, replace=replace)), made.fitted


def fit(
    dataset: Dataset,
    backbone: str | Backbone = "cenet",
    settings: Settings | None = None,
    *,
    seed: int = 42,
    residual: str | None = None,
) -> Predictor:
    """What answers queries, with the choice made under the time-aware filter."""
    fitted = "learned" if residual == "learned" else "bridgemem"
    model = Forecaster(backbone, residual=fitted, settings=settings, seed=seed).fit(dataset)
    return model.parts.predictor_of(Past(dataset.events), residual)


def loaded(run: Run | Path | str, **how: Any) -> Forecaster:
    """A saved forecaster from its run folder."""
    return Forecaster.load(run.folder if isinstance(run, Run) else run, **how)

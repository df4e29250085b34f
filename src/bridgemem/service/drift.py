"""Drift: how the model that is served does on the last steps, measured in the background for the metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from bridgemem.config import Declared, NotNegative, Size
from bridgemem.errors import BridgeMemError
from bridgemem.live.window import Measured, measured
from bridgemem.service.asking import Live, View
from bridgemem.service.logs import Noted, log_fields
from bridgemem.service.metrics import Metrics
from bridgemem.service.scores import ScoreCache, Used

LOG = logging.getLogger(__name__)
MOST = 500  # queries that are asked


@dataclass(frozen=True)
class DriftSettings(Declared):
    """window: steps that are looked back on, 0 for no drift; seconds: from one measurement to the next."""

    window: Size = 7
    seconds: NotNegative = 300.0


class Drift:
    """The last measurement, as gauges; what lies in the window but was part of the model's own fit does not count."""

    def __init__(self, live: Live, settings: DriftSettings, metrics: Metrics) -> None:
        self.live, self.settings = live, settings
        self.found: Measured | None = None
        self._of: Callable[[], View | None] = lambda: None  # the view that was measured, which is not kept alive
        for name, text in (
            ("mrr", "Time-aware MRR on the last steps that came after the model's data."),
            ("calibration", "Calibration error of the best candidate's probability on these steps."),
            ("unknown", "Share of names on these steps that the model was fitted without."),
            ("queries", "Queries that the drift was measured on."),
        ):
            metrics.watch(f"bridgemem_drift_{name}", text, lambda name=name: self._told(name))  # type: ignore[misc]

    def _told(self, name: str) -> float:
        if self.found is None:
            return 0.0 if name == "queries" else math.nan
        return float(getattr(self.found, name))

    async def watch(self) -> None:
        """Measure again and again, whenever events or model have changed."""
        while True:
            try:
                await asyncio.to_thread(self.measure)
            except BridgeMemError as problem:
                LOG.warning("could not measure drift: %s", problem)
            except Exception:
                LOG.exception("could not measure drift")
            await asyncio.sleep(self.settings.seconds)

    def measure(self) -> None:
        """Ask the model about the events of the last steps, one small batch after another."""
        view = self.live.view
        if view is self._of():
            return
        fitted = self.live.run.dataset.events
        if view.version != self.live.run.version:  # another model came in between; the next round is of one
            return
        alone = ScoreCache(view.predictor.scorer, Used(), alone=self.live.asking)
        found = measured(view.predictor.with_scorer(alone), fitted, view.events.end - self.settings.window, most=MOST)
        self.found, self._of = found, weakref.ref(view)
        figures = {"mrr": found.mrr, "calibration": found.calibration, "unknown": found.unknown}
        told = {name: None if math.isnan(value) else round(value, 4) for name, value in figures.items()}
        log_fields(LOG, logging.INFO, "drift", Noted({"model_version": view.version, "queries": found.queries, **told}))

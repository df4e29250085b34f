"""Demo: the whole path on the simulated world, from events to a table with the world's known upper bound in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bridgemem.backbones.cenet import CenetSettings
from bridgemem.backbones.recurrence import Recurrence, RecurrenceDyadic
from bridgemem.backbones.scorer import Scorer, Scores
from bridgemem.config import Settings
from bridgemem.evaluation.evaluate import read
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.events.world import World, WorldSettings, simulate
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.explanations import Explanation
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import Gain, paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals.method import BACKBONE, Method
from bridgemem.residuals.scoring import Replay, Scoring, replay
from bridgemem.residuals.selection import SELECTION_FILTERS, Selection

SMALL_CENET = CenetSettings(width=64, epochs=12, oracle_epochs=6)


class Oracle(Scorer):
    """The world's own probabilities: no forecaster can rank better on average, raw or time-aware."""

    name = "oracle (upper bound)"

    def __init__(self, world: World) -> None:
        self.world = world

    def score(self, queries: Queries, past: Past) -> Scores:
        asked = (queries.actor.numpy(), queries.relation.numpy(), queries.step.numpy())
        return Scores(torch.from_numpy(self.world.true_scores(*asked, events=past.events)))


@dataclass(frozen=True)
class Demo:
    """Metrics by method and filter, the share of the known headroom that the residual wins, one explained forecast."""

    dataset: Dataset
    selections: dict[str, Selection]
    metrics: dict[str, dict[str, Metrics]]
    gains: dict[str, Gain]
    headroom: dict[str, float]
    forecast: Explanation


def run_demo(
    world: WorldSettings | None = None,
    backbone: CenetSettings = SMALL_CENET,
    settings: Settings | None = None,
    seed: int = 42,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Demo:
    """Simulate, train a small CENET, fit the residual, choose on validation, read test once."""
    with progress.task("simulating the world"):
        made = simulate(world)
    dataset = made.dataset
    model = Forecaster(
        "cenet", residual="bridgemem", backbone_settings=backbone, settings=settings, seed=seed, device=device
    )
    model.fit(dataset, progress=progress)
    queries = Queries.of(dataset.test)
    reading = read(model.parts, dataset, "test", queries, device, progress)
    ranked, columns = reading.replayed, reading.columns
    counting = (Recurrence.name, RecurrenceDyadic.name)
    metrics = {name: _all_filters(ranked, columns[Method(name)]) for name in counting}
    scoring = Scoring(Oracle(made), Past(dataset.events))
    metrics[Oracle.name] = _all_filters(replay(scoring, queries, filters=Filters(dataset.events)), 0)
    metrics["cenet"] = _all_filters(ranked, columns[BACKBONE])
    # each filter shows the choice that was made under it; raw shows that of the time-aware filter
    own = {f: columns[Method("bridgemem", "static" if f == "static" else "time")] for f in FILTERS}
    metrics["cenet + bridgemem"] = {f: ranked.metrics(f, column) for f, column in own.items()}
    step = queries.step.numpy()
    gains = {f: paired_gains(ranked.of(f), ranked.of(f, column), step)["mrr"] for f, column in own.items()}
    selections = {name: model.parts.selection(name) for name in SELECTION_FILTERS}
    example = _example(model, queries, ranked.of("time"), ranked.of("time", own["time"]))
    return Demo(dataset, selections, metrics, gains, _headroom(metrics), example)


def _all_filters(read: Replay, column: int) -> dict[str, Metrics]:
    return {f: read.metrics(f, column) for f in FILTERS}


def _headroom(metrics: dict[str, dict[str, Metrics]]) -> dict[str, float]:
    """(residual - backbone) / (oracle - backbone) in MRR.

    Not for the static filter: there the masked rivals give the answer away, and the truth is no upper bound.
    """
    share = {}
    for f in ("raw", "time"):
        backbone, residual, oracle = (
            metrics[name][f].mrr for name in ("cenet", "cenet + bridgemem", "oracle (upper bound)")
        )
        share[f] = (residual - backbone) / (oracle - backbone)
    return share


def _example(model: Forecaster, queries: Queries, before: np.ndarray, after: np.ndarray) -> Explanation:
    """The test query whose answer the residual lifted most, to the very top if it can be."""
    lifted = int((1 / after - 1 / before).argmax())
    one = queries.take(slice(lifted, lifted + 1))
    assert one.answer is not None
    events = model.dataset.events
    inverse, relation = divmod(int(one.relation), events.n_relations)
    at = events.clock.label(int(one.step))
    sides = (int(one.answer), relation, int(one.actor)) if inverse else (int(one.actor), relation, int(one.answer))
    return model.explain(*sides, at=at, candidate="subject" if inverse else "object")

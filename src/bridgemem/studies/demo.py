"""Demo: the whole path on the simulated world, from events to a table with the world's known ceiling in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone, Scores
from bridgemem.backbones.cenet import Cenet, CenetSettings
from bridgemem.backbones.recurrence import Recurrence, RecurrenceDyadic
from bridgemem.config import Settings
from bridgemem.errors import BackboneError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.events.world import World, WorldSettings, simulate
from bridgemem.forecasting.explanations import Explanation
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import History
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import Gain, paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals.scoring import Replay, replay
from bridgemem.residuals.selection import Fitted, fit

SMALL_CENET = CenetSettings(width=64, epochs=12, oracle_epochs=6)


class Ceiling(Backbone):
    """The world's own probabilities: no forecaster can rank better on average, raw or time-aware."""

    name: ClassVar[str] = "ceiling"
    default: ClassVar[None] = None
    settings = None

    def __init__(self, world: World) -> None:
        self.world = world

    def score(self, queries: Queries, past: History) -> Scores:
        asked = (queries.actor.numpy(), queries.relation.numpy(), queries.step.numpy())
        return Scores(torch.from_numpy(self.world.true_scores(*asked, events=past.events)))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        settings: Any = None,
        seed: int = 42,
        device: str = "cpu",
        progress: Progress = SILENT,
        checkpoint: Path | None = None,
    ) -> Self:
        raise BackboneError("the ceiling is not fitted: it is the simulated world's own truth.")

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        raise BackboneError("the ceiling is not saved: simulate the world again by its seed.")


@dataclass(frozen=True)
class Demo:
    """Metrics by method and filter, the share of the known headroom that the residual wins, one explained forecast."""

    dataset: Dataset
    fitted: Fitted
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
    cenet = Cenet.fit(dataset, backbone, seed, device, progress)
    fitted = fit(dataset, cenet, settings, seed, device, progress)
    queries, past = Queries.of(dataset.test), History(dataset.events, device=device)
    filters = Filters(dataset.events, device)
    choices = {"static": 0, "time": 1}
    read = replay(
        queries,
        cenet,
        past,
        filters,
        fitted.known,
        [fitted.selections[name].choice for name in choices],
        progress,
        "reading test",
    )
    on_cpu = History(dataset.events), Filters(dataset.events)
    others = [Recurrence.fit(dataset), RecurrenceDyadic.fit(dataset), Ceiling(made)]
    metrics = {b.name: _all_filters(replay(queries, b, *on_cpu), 0) for b in others}
    metrics["cenet"] = _all_filters(read, 0)
    # each filter shows the choice that was made under it; raw shows that of the time-aware filter
    columns = {f: 1 + choices.get(f, choices["time"]) for f in FILTERS}
    metrics["cenet + bridgemem"] = {f: read.metrics(f, column) for f, column in columns.items()}
    step = queries.step.numpy()
    gains = {f: paired_gains(read.of(f), read.of(f, column), step)["mrr"] for f, column in columns.items()}
    forecaster = Predictor(dataset.events, cenet.to("cpu"), fitted.known.to("cpu"), fitted.selections["time"].choice)
    return Demo(dataset, fitted, metrics, gains, _headroom(metrics), _example(forecaster, queries, read))


def _all_filters(read: Replay, column: int) -> dict[str, Metrics]:
    return {f: read.metrics(f, column) for f in FILTERS}


def _headroom(metrics: dict[str, dict[str, Metrics]]) -> dict[str, float]:
    """(residual - backbone) / (ceiling - backbone) in MRR.

    Not for the static filter: there the masked rivals give the answer away, and the truth is no upper bound.
    """
    share = {}
    for f in ("raw", "time"):
        backbone, residual, ceiling = (metrics[name][f].mrr for name in ("cenet", "cenet + bridgemem", "ceiling"))
        share[f] = (residual - backbone) / (ceiling - backbone)
    return share


def _example(forecaster: Predictor, queries: Queries, read: Replay) -> Explanation:
    """The test query whose answer the residual lifted most, to the very top if it can be."""
    before, after = read.of("time", 0), read.of("time", 2)
    lifted = (1 / after - 1 / before).argmax()
    one = queries.take(slice(int(lifted), int(lifted) + 1))
    assert one.answer is not None
    inverse, relation = divmod(int(one.relation), forecaster.events.n_relations)
    at = forecaster.events.clock.label(int(one.step))
    return forecaster.explain(int(one.actor), relation, int(one.answer), at, bool(inverse))

"""Demo: the whole path on the simulated world, from events to a table with the world's known upper bound in it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from bridgemem.backbones.scorer import Scorer, Scores
from bridgemem.config import Settings
from bridgemem.evaluation.comparison import REPORTED, evaluation_table, preferred
from bridgemem.evaluation.evaluate import all_records, read
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import Table, figure, interval
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
from bridgemem.residuals.scoring import Scoring, replay


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
    """What a fit of the default gives on the world.

    model: the residual that forecasts use. oracle: by filter; under the static one it is no bound. short_of_oracle: the
    model's gain over it, below 0, and headroom: the share of the way to it from the backbone, both time-aware.
    """

    dataset: Dataset
    seconds: float
    records: list[Record]
    model: str
    oracle: dict[str, Metrics]
    short_of_oracle: Gain
    headroom: float
    forecast: Explanation

    def table(self) -> Table:
        """Every method, and the oracle last."""
        made, gain = evaluation_table(self.records), self.short_of_oracle
        figures = [figure(value) for value in self.oracle[REPORTED].as_dict().values()]
        last = [Oracle.name, *figures, interval([gain.value, gain.low, gain.high])]
        return replace(made, rows=[*made.rows, last])


def run_demo(
    world: WorldSettings | None = None,
    settings: Settings | None = None,
    seed: int = 42,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Demo:
    """Simulate, fit the default forecaster, read test once, explain one forecast. settings: of the paper's residual."""
    with progress.task("simulating the world"):
        made = simulate(world)
    dataset, began = made.dataset, time.perf_counter()
    model = Forecaster(settings=settings, seed=seed, device=device).fit(dataset, progress=progress)
    seconds = time.perf_counter() - began
    queries = Queries.of(dataset.test)
    reading = read(model.parts, dataset, "test", queries, device, progress)
    records = all_records(model.parts, dataset, "test", reading, device)
    used, ranked = preferred(records), reading.replayed
    own, unfiltered = (reading.columns[model.parts.method(used, f)] for f in (REPORTED, "raw"))
    truth = replay(Scoring(Oracle(made), Past(dataset.events)), queries, filters=Filters(dataset.events))
    oracle = {f: truth.metrics(f, 0) for f in FILTERS}
    backbone, best = ranked.metrics(REPORTED, 0).mrr, ranked.metrics(REPORTED, own).mrr
    return Demo(
        dataset,
        seconds,
        records,
        used,
        oracle,
        paired_gains(truth.of(REPORTED), ranked.of(REPORTED, own), queries.step.numpy())["mrr"],
        (best - backbone) / (oracle[REPORTED].mrr - backbone),
        # a forecast knows no filter
        _example(model, queries, ranked.of("raw"), ranked.of("raw", unfiltered)),
    )


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

"""The row of appending: a batch of new events, durable and forecast from, on a log and on one ten times as long."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.bench import SEED, Bench
from benchmarks.curve import untrained
from benchmarks.floors import index
from benchmarks.harness import Measured, Timing, duration
from benchmarks.machine import Peak
from benchmarks.references import Sampled
from bridgemem.backbones.open_vocabulary import OpenVocabulary
from bridgemem.backbones.typed import RecurrenceTyped
from bridgemem.events.log import EventLog
from bridgemem.events.naming import NewEvent
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.memory.past import Past
from bridgemem.residuals.learned import Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.scoring import Choice
from bridgemem.training.checkpoint import seeded

SIZE, BATCHES, TIMES = 10, 40, 10  # events of a batch, batches on each log, how much longer the other log is
BATCHES_A_STEP = 10
REBUILT, ASKED = 3, 20  # how often the plain rebuild is done, forecasts that are compared


@dataclass(frozen=True)
class _Run:
    """What a live forecaster needs of a run folder: that it holds no events of a store."""

    folder: Path
    origin: None = None
    version: str = "measured"


@dataclass(frozen=True)
class _Model:
    """The default model, not trained: what a batch costs does not depend on how well it forecasts."""

    run: _Run
    predictor: Predictor


def append(b: Bench) -> Measured:
    """Batches to a live forecaster and its store, on both logs in turn; the median of each."""
    events, entities = b.dataset.events, b.dataset.events.n_entities
    transitions, backbone = untrained(b.train, b.settings), RecurrenceTyped.fit(b.dataset)
    with seeded(SEED, "cpu"):
        learned = Learned(LearnedSettings(), LearnedNet(2 * events.n_relations, LearnedSettings()))
    scorer = OpenVocabulary(backbone, entities, events.n_relations)

    def over(past: Past) -> Predictor:
        return Predictor(past, scorer, transitions, Choice(), learned)

    with tempfile.TemporaryDirectory() as aside, Peak() as peak:
        live, times, worked = [], [list[float](), list[float]()], [list[float](), list[float]()]
        for place, log in enumerate((events, longer(events))):
            home = Path(aside) / str(place)
            home.mkdir()
            model = _Model(_Run(home), over(Past(log)))
            live.append(LiveForecaster(cast(Any, model), EventStore(home / "events.duckdb")))
        feeds = [batches(one.events) for one in live]
        for number in range(BATCHES):
            for one, feed, taken, work in zip(live, feeds, times, worked, strict=True):
                batch = next(feed)
                began, before = time.perf_counter(), time.process_time()
                one.add(batch, "benchmark", str(number))
                taken.append(time.perf_counter() - began)
                work.append(time.process_time() - before)
                one.tidy(wait=True)  # which time between batches is for
        small = live[0]
        rebuilds = []
        for _ in range(REBUILT):
            whole = small.events.take(slice(None))  # as one log, without an overlay
            began = time.perf_counter()
            rebuilt = over(Past(whole))
            rebuilt.warm()
            rebuilds.append(time.perf_counter() - began)
        asked = [(actor, relation) for _, (actor, relation, *_) in zip(range(ASKED), next(feeds[0]) * 2, strict=False)]
        same = sum(small.forecast(*query) == rebuilt.forecast(*query) for query in asked)
        for one in live:
            one.store.close()
    seconds, other = (float(np.median(taken)) for taken in times)
    processor, longer_processor = (float(np.median(taken)) for taken in worked)
    # the first batch of a step, which all pairs decay by
    first = float(np.median(times[0][BATCHES_A_STEP::BATCHES_A_STEP]))
    return Measured(
        Timing(seconds, BATCHES, times[0][0], peak.highest, peak.added),
        index(events.rows(0, SIZE)),
        Sampled(float(np.median(rebuilds))),
        0,
        f"{same} of {len(asked)} lists of ten as after a rebuild",
        same == len(asked),
        note=f"median; {duration(processor)} of processor time; {duration(first)} for the first batch of a step; "
        f"{duration(other)} on {TIMES} times as many events, {duration(longer_processor)} of processor time",
        figures={
            "events": len(events),
            "longer_seconds": other,
            "growth": other / seconds,
            "first_of_step": first,
            "processor_seconds": processor,
            "longer_processor_seconds": longer_processor,
        },
    )


def longer(events: EventLog) -> EventLog:
    """A log several times as long in the same names, each repetition later and between other pairs."""
    rng, span = np.random.default_rng(SEED), events.end - events.start
    objects = [events.object, *(rng.permutation(events.n_entities)[events.object] for _ in range(TIMES - 1))]
    step = np.concatenate([events.step.astype(np.int64) + k * span for k in range(TIMES)])
    subject, relation = (np.tile(column, TIMES) for column in (events.subject, events.relation))
    names = events.entities, events.relations
    return EventLog.from_columns(subject, relation, np.concatenate(objects), step, *names, events.clock)


def batches(events: EventLog) -> Iterator[list[NewEvent]]:
    """Endless batches after a log: events like its own, between parties drawn anew."""
    rng, number = np.random.default_rng(SEED), 0
    who, what = events.entities.names, events.relations.names
    while True:
        step, rows = events.end + number // BATCHES_A_STEP, rng.integers(len(events), size=(3, SIZE))
        subject, relation, object_ = (
            column[row] for column, row in zip((events.subject, events.relation, events.object), rows, strict=True)
        )
        yield [(who[s], what[r], who[o], step) for s, r, o in zip(subject, relation, object_, strict=True)]
        number += 1

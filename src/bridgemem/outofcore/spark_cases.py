"""Features on Spark: the queries that a fit from a mined folder learns from, read by the tasks of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import DataError, RunError
from bridgemem.events.mapped import data_folder, open_log
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.outofcore.spark import session
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.cases import ELSEWHERE, CaseReader, Cases, Source
from bridgemem.residuals.features import FeatureReader
from bridgemem.residuals.validation import ScoredOnce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridgemem.events.dataset import Dataset


@contextmanager
def cases_on_spark(master: str, dataset: Dataset) -> Iterator[None]:
    """Have a fit of a mined data set read its cases on a cluster; the driver fits, and the model is the same.

    The workers open the mined folder under the same path as this machine.
    """
    if not data_folder(dataset.events):
        raise DataError("Spark reads the queries of a mined folder; `bridgemem mine` the events first, then fit that.")
    with session(master) as spark:

        def read(reader: CaseReader, source: Source, batches: Iterable[tuple[int, Queries]]) -> Iterator[Cases]:
            return _read(spark, reader, source, batches)

        token = ELSEWHERE.set(read)
        try:
            yield
        finally:
            ELSEWHERE.reset(token)


@dataclass(frozen=True)
class _Shipped:
    """All that a worker needs, next to the folder: the reader's settings, how far its past goes, and the models."""

    folder: Path
    events: int
    end: int
    unseen: int
    scale: float
    seed: int
    source: Source

    def opened(self) -> tuple[CaseReader, FeatureReader]:
        """The reader over the mapped folder, and what reads the features."""
        log = open_log(self.folder).prefix(self.end)
        if len(log) != self.events:
            raise RunError(f"{self.folder} holds other events on a worker than on the driver; use one shared folder.")
        past = Past(log)
        reader = CaseReader(past, Filters(log), self.unseen, self.scale, self.seed)
        return reader, FeatureReader(past, self.source.transitions, self.unseen)


def _read(
    spark: SparkSession, reader: CaseReader, source: Source, batches: Iterable[tuple[int, Queries]]
) -> Iterator[Cases]:
    context, events = spark.sparkContext, reader.past.events
    # the scores that this process keeps stay here
    scorer = source.scorer.scorer if isinstance(source.scorer, ScoredOnce) else source.scorer
    none = source.queries.take(slice(0, 0))
    shipped = _Shipped(
        Path(data_folder(events)),
        len(events),
        events.end,
        reader.unseen,
        reader.scale,
        reader.seed,
        Source(none, scorer, source.transitions),
    )
    asked, given = list(batches), context.broadcast(shipped)
    # neighbouring batches ask about the same steps, so a task gets a range of them
    tasks = context.parallelize(asked, min(len(asked), context.defaultParallelism) or 1)

    def read_some(some: Iterator[tuple[int, Queries]]) -> Iterator[Cases]:
        import torch

        torch.set_num_threads(1)  # a task has a core
        own, features = given.value.opened()
        for number, batch in some:
            with torch.no_grad():
                yield own.cases(number, batch, given.value.source.scorer, features)

    yield from tasks.mapPartitions(read_some).toLocalIterator(prefetchPartitions=True)

"""Query-set leakage: what the other queries of a step give away. No forecast: they are not known before t.

Every fact is asked both ways, so who is asked about what at t is a trace of the facts of t. The reader here is plain on
purpose: a table of log likelihood ratios, counted at the end of train, of what candidates are asked about. Whatever it
gains, a model that scores the queries of a step together can gain too, and it is not learned from the past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones import backbone_class
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.own import blaming, own_backbone
from bridgemem.backbones.scorer import Scorer, score_queries
from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.result import Evaluation
from bridgemem.evaluation.tables import HEADINGS, Table, figure, interval
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import Timeline, changes, expand
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks, batch_size
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.studies.analysis import LEAKAGE
from bridgemem.training.devices import describe_device

# pass: the queries asked in the same direction, which published code scores together; step: those of both
READINGS = ("pass", "step")
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 4.0, 8.0, 16.0)
SMOOTHING = 2.0  # candidates that every cell of the table is thought to have seen already, at its row's own ratio
MOST_CELLS = 1 << 26  # of a table
AT_ONCE = 1 << 20  # query rows times entities of a batch on a CPU, where small batches are scored faster


@dataclass(frozen=True)
class Sight:
    """What a batch of queries sees. Queries about one relation at one step see the same, and are one kind.

    relation int64 [k]: what each kind asks; of_row int64 [n]: the kind of each query; kind, entity, cue int64 [m]: a
    kind sees that an entity is asked about the relation `cue`; each once, ascending by (kind, entity).
    """

    relation: Tensor
    of_row: Tensor
    kind: Tensor
    entity: Tensor
    cue: Tensor


class Asked:
    """Who is asked about what, by step and, where a reading is of one pass, by direction; no answer is ever read."""

    def __init__(self, events: EventLog, reading: str, device: str | torch.device = "cpu") -> None:
        self.n_entities, self.n_directed = events.n_entities, 2 * events.n_relations
        self._apart = reading == "pass"
        queries = Queries.of(events).unanswered()
        room, step = self._room(queries.relation).numpy(), queries.step.numpy()
        query_code = (queries.actor * self.n_directed + queries.relation).numpy()
        order = np.lexsort((query_code, step, room))
        room, step, query_code = room[order], step[order], query_code[order]
        fresh = changes(room, step, query_code)
        room, step, query_code = room[fresh], step[fresh], query_code[fresh]
        self._together = Timeline.build(room, step, query_code, device)
        actor = query_code // self.n_directed
        self._single = Timeline.build(room * self.n_entities + actor, step, query_code % self.n_directed, device)
        starts = np.flatnonzero(changes(room, step))
        self.widest = int(np.diff(starts, append=len(room)).max(initial=1))

    def _room(self, relation: Tensor) -> Tensor:
        """Which of the queries of a step are seen together, int64 [n]."""
        return (relation * 2 // self.n_directed) if self._apart else torch.zeros_like(relation)

    def other_relations(self, queries: Queries, entity: Tensor) -> tuple[Tensor, Tensor]:
        """(row, relation) of all that an entity int64 [n] is asked about next to each query.

        A query is no cue for its own actor: that it is asked says nothing about whether it is its own answer.
        """
        key = self._room(queries.relation) * self.n_entities + entity
        row, at = expand(*self._single.at(key, queries.step))
        cue = self._single.value[at]
        other = (entity != queries.actor)[row] | (cue != queries.relation[row])
        return row[other], cue[other]

    def sight(self, queries: Queries) -> Sight:
        """All queries that are seen from each query, its own among them."""
        code, of_row = torch.unique(queries.step * self.n_directed + queries.relation, return_inverse=True)
        relation = code % self.n_directed
        kind, at = expand(*self._together.at(self._room(relation), code // self.n_directed))
        query_code = self._together.value[at]
        return Sight(relation, of_row, kind, query_code // self.n_directed, query_code % self.n_directed)


class Tally:
    """How often answers are asked about each relation, and how often the other candidates, by the backbone's p0.

    answers, others float64 [2R + 1, 2R]: by what a candidate is asked about (last: nothing) and what the query asks.
    """

    def __init__(self, asked: Asked, device: str | torch.device = "cpu") -> None:
        size = asked.n_directed
        if size * (size + 1) > MOST_CELLS:
            raise DataError(
                f"{size // 2:,} relations are too many for a table of their pairs: merge or drop rare ones."
            )
        self.asked = asked
        self.answers = torch.zeros((size + 1, size), dtype=torch.float64, device=device)
        self.others = torch.zeros_like(self.answers)

    def add(self, batch: Queries, p: Tensor) -> None:
        """Count a batch; p float [n, E]: the backbone's probabilities with the answer left out."""
        assert batch.answer is not None
        rows = torch.arange(len(batch), device=p.device)
        own = p[rows, batch.actor].double()
        self._add_single(self.answers, batch, batch.answer, torch.ones_like(own))
        # apart from all others, since its own query is no cue for an actor
        self._add_single(self.others, batch, batch.actor, own)
        seen = self.asked.sight(batch)
        rest = p.index_put((rows, batch.actor), p.new_zeros(()))
        mass = p.new_zeros((len(seen.relation), p.shape[1])).index_add_(0, seen.of_row, rest)
        place = (seen.cue, seen.relation[seen.kind])
        self.others.index_put_(place, mass[seen.kind, seen.entity].double(), accumulate=True)
        mass[seen.kind, seen.entity] = 0
        self.others[-1].index_add_(0, seen.relation, mass.sum(1).double())

    def _add_single(self, table: Tensor, batch: Queries, entity: Tensor, weight: Tensor) -> None:
        """Add the cues of one entity a query, int64 [n], each with the query's weight float64 [n]."""
        row, cue = self.asked.other_relations(batch, entity)
        table.index_put_((cue, batch.relation[row]), weight[row], accumulate=True)
        silent = torch.ones_like(entity, dtype=torch.bool).index_fill_(0, row, False)
        table[-1].index_add_(0, batch.relation[silent], weight[silent])

    def ratios(self) -> Tensor:
        """log [share among answers / share among the others], smoothed towards the ratio of the cue alone."""
        marginal = (self.answers.sum(1, keepdim=True) + 1) / (self.others.sum(1, keepdim=True) + 1)
        return ((self.answers + SMOOTHING * marginal) / (self.others + SMOOTHING)).log()


@dataclass(frozen=True)
class Reader:
    """Queries and the ratios, float64 [2R + 1, 2R], that say what they are worth."""

    asked: Asked
    ratios: Tensor

    def cues(self, batch: Queries) -> tuple[Tensor, Tensor, Tensor]:
        """(row, candidate, cue): the strongest cue of each candidate that is asked anything, less that of silence.

        Ascending by (row, candidate). All others would have 0, so that ranks are those of log p0 + weight * cue.
        """
        seen, entities = self.asked.sight(batch), self.asked.n_entities
        found, place = torch.unique_consecutive(seen.kind * entities + seen.entity, return_inverse=True)
        strongest = _most(self.ratios[seen.cue, seen.relation[seen.kind]], place, len(found))
        kinds = torch.arange(len(seen.relation) + 1, device=found.device)
        bounds = torch.searchsorted(found, kinds * entities)
        row, at = expand(bounds[:-1][seen.of_row], bounds[1:][seen.of_row])
        candidate, cue = found[at] % entities, strongest[at]
        silence = self.ratios[-1, batch.relation]
        # the cues of the actor itself leave out the query
        mine = (candidate == batch.actor[row]).nonzero().squeeze(1)
        among, other = self.asked.other_relations(batch, batch.actor)
        own = _most(self.ratios[other, batch.relation[among]], among, len(batch))
        cue[mine] = torch.where(own.isinf(), silence, own)[row[mine]]
        return row, candidate, cue - silence[row]


def _most(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """The largest value of each group, float64 [groups]; minus infinity where a group is empty."""
    return values.new_full((groups,), -torch.inf).scatter_reduce_(0, group, values, "amax")


def count(
    queries: Queries, backbone: Scorer, past: Past, asked: Sequence[Asked], progress: Progress = SILENT
) -> list[Reader]:
    """A reader for each way to see the queries, counted on queries with answers."""
    tallies = [Tally(one, past.device) for one in asked]
    widest = max(one.widest for one in asked)
    with progress.task("counting what the queries say", total=len(queries)) as advance:
        for _, batch in _batches(queries, past, widest):
            log_p = score_queries(backbone, batch, past).log_p
            assert batch.answer is not None
            at = (torch.arange(len(batch), device=past.device), batch.answer)
            # with one entity alone nobody is left
            p = log_p.index_put(at, log_p.new_tensor(-torch.inf)).softmax(1).nan_to_num_()
            for tally in tallies:
                tally.add(batch, p)
            advance(len(batch))
    return [Reader(tally.asked, tally.ratios()) for tally in tallies]


def read(
    queries: Queries,
    backbone: Scorer,
    past: Past,
    filters: Filters,
    readers: Sequence[Reader],
    weights: Sequence[Sequence[float]],
    progress: Progress = SILENT,
    label: str = "reading queries",
) -> np.ndarray:
    """Ranks float64 [readers, filters, weights, n] of log p0 + weight * cue; the first weight of each reader is 0."""
    columns = len(weights[0])
    ranks = np.empty((len(readers), len(FILTERS), columns, len(queries)))
    with progress.task(label, total=len(queries)) as advance:
        for rows, batch in _batches(queries, past, columns * max(reader.asked.widest for reader in readers)):
            assert batch.answer is not None
            log_p = score_queries(backbone, batch, past).log_p
            masks = [filters.mask(name, batch) for name in FILTERS]
            for reader, own, out in zip(readers, weights, ranks, strict=True):
                row, candidate, cue = reader.cues(batch)
                delta = cue[:, None] * cue.new_tensor(own)
                out[..., rows] = answer_ranks(log_p, batch.answer, row, candidate, delta, masks).cpu().numpy()
            advance(len(batch))
    return ranks


def _batches(queries: Queries, past: Past, widest: int) -> Iterator[tuple[np.ndarray, Queries]]:
    """Places and queries, those of one step and relation next to each other; widest: what one query is read with."""
    order = torch.argsort(queries.step * 2 * past.events.n_relations + queries.relation, stable=True)
    cells = AT_ONCE if past.device.type == "cpu" else None
    for rows in order.split(batch_size(max(past.events.n_entities, widest), past.device, cells)):
        yield rows.numpy(), queries.take(rows).to(past.device)


class QueryLeakage(Evaluation):
    """What reading the other queries of a step is worth to a model; prints as a table.

    Attributes:
        records: One for each way to read the queries, and filter.

    Example:
        >>> len(bm.leakage(data, "recurrence").table().rows)
        3
    """

    def table(self) -> Table:
        """Make the table that is printed, under the time-aware filter.

        Returns:
            The model from the past alone, with the queries of its pass, and with those of its step.

        Example:
            >>> bm.leakage(data, "recurrence").table().header[:2]
            ['read', 'MRR']
        """
        shown = [r for r in self.records if r.filter == "time"]
        rows = [
            [
                f"+ queries of the {r.method.removeprefix(LEAKAGE)}" if r.gain else r.backbone,
                *(figure(getattr(r, metric)) for metric in HEADINGS),
                interval(r.gain["mrr"]) if r.gain else "",
            ]
            for r in shown
        ]
        header = ["read", *HEADINGS.values(), "gain in MRR [95 %]"]
        return Table(
            f"{self._title()}, time-aware filter",
            header,
            rows,
            "No forecast: what is asked at t is not known before t.",
        )


def leakage(
    data: Any, scorer: Any = "recurrence-dyadic", *, seed: int = 42, device: str = "cpu", progress: Progress = SILENT
) -> QueryLeakage:
    """Measure what reading the other queries of a step is worth to a model. No forecast: they are not known before t.

    Args:
        data: Whatever `load` takes.
        scorer: The name of a training-free backbone, or a model of your own as `evaluate` takes it.
        seed: Of a class that is trained here.
        device: "cpu" or "cuda".
        progress: Where the parts are shown.

    Returns:
        The records of the model alone ("backbone") and of reading the queries of its pass and of its step too.

    Example:
        >>> found = bm.leakage(data)
        >>> found.mrr("leakage:step") > found.mrr("backbone")
        True
    """
    dataset = data if isinstance(data, Dataset) else load(data, progress=progress)
    return QueryLeakage(
        tuple(measure(dataset, scorer_of(scorer, dataset, seed=seed, device=device), None, device, progress))
    )


def scorer_of(given: Any, dataset: Dataset, *, seed: int = 42, device: str = "cpu") -> Backbone:
    """Your own model, trained here if it is a class; or a training-free backbone by its name."""
    made: Any = own_backbone(backbone_class(given) if isinstance(given, str) else given, dataset)
    if isinstance(made, type) and issubclass(made, Backbone):
        with blaming(made):
            return made.fit(dataset.without_test(), seed=seed, device=device)
    made.check(dataset)
    return made.to(device)


def bound(dataset: Dataset, device: str = "cpu", progress: Progress = SILENT) -> float:
    """The time-aware MRR of counting that also reads all other queries of the step, which no forecast knows."""
    model = backbone_class("recurrence-dyadic").fit(dataset.without_test(), device=device)
    return Evaluation(tuple(measure(dataset, model, None, device, progress))).mrr(LEAKAGE + "step")


def measure(
    dataset: Dataset, backbone: Scorer, seed: int | None = None, device: str = "cpu", progress: Progress = SILENT
) -> list[Record]:
    """The backbone's records, and those of reading the queries too: counted on train, weighed on validation.

    Test is read once, with the chosen weights; where there is none validation is, which they were chosen on. seed:
    that of a trained backbone.
    """
    known = dataset.without_test()
    start, span = known.valid_start, known.events.end - known.valid_start
    late, queries = Queries.of(known.events.between(max(start - span, 0), start)), Queries.of(known.valid)
    past, filters = Past(known.events, device=device), Filters(known.events, device)
    readers = count(late, backbone, past, [Asked(known.events, name, device) for name in READINGS], progress)
    tried = read(queries, backbone, past, filters, readers, [WEIGHTS] * len(readers), progress, "weighing queries")
    chosen = [[0, *(_best(ranks, name) for name in SELECTION_FILTERS)] for ranks in tried]
    weights = [[WEIGHTS[at] for at in own] for own in chosen]
    if dataset.test_start is None:
        ranks = np.stack([own[:, at] for own, at in zip(tried, chosen, strict=True)])
        return _records(dataset, "valid", backbone.name, seed, device, queries, readers, weights, ranks)
    queries = Queries.of(dataset.test)
    past, filters = Past(dataset.events, device=device), Filters(dataset.events, device)
    ratios = [reader.ratios for reader in readers]
    readers = [Reader(Asked(dataset.events, name, device), own) for name, own in zip(READINGS, ratios, strict=True)]
    ranks = read(queries, backbone, past, filters, readers, weights, progress)
    return _records(dataset, "test", backbone.name, seed, device, queries, readers, weights, ranks)


def _best(ranks: np.ndarray, filter_name: str) -> int:
    """Which of the weights has the highest MRR, the smallest of equals; ranks float64 [filters, weights, n]."""
    return int(np.argmax([Metrics.of(own).mrr for own in ranks[FILTERS.index(filter_name)]]))


def _records(
    dataset: Dataset,
    split: str,
    backbone: str,
    seed: int | None,
    device: str,
    queries: Queries,
    readers: Sequence[Reader],
    weights: Sequence[Sequence[float]],
    ranks: np.ndarray,
) -> list[Record]:
    """The backbone under every filter, and each reading under those that a weight was chosen for, 0 being the first.

    ranks float64 [readers, filters, weights, n].
    """
    from bridgemem import __version__

    trained = {} if seed is None else {"backbone_seed": seed}
    names, identity = (dataset.name, dataset.events.fingerprint, split, backbone), {"identity": dataset.identity.digest}

    def row(method: str, name: str, selected_by: str | None, own: np.ndarray, **more: Any) -> Record:
        figures = Metrics.of(own)
        values = (figures.mrr, figures.hits1, figures.hits3, figures.hits10)
        said = {"device": describe_device(device), "version": __version__, "settings": trained, **identity, **more}
        return Record(*names, method, name, selected_by, "rolling", seed or 0, len(queries), *values, **said)

    records = [row("backbone", name, None, ranks[0, i, 0]) for i, name in enumerate(FILTERS)]
    there = queries.to(readers[0].ratios.device)
    assert there.answer is not None
    for reading, reader, own_weights, own_ranks in zip(READINGS, readers, weights, ranks, strict=True):
        told, _ = reader.asked.other_relations(there, there.answer)
        share = len(told.unique()) / len(queries)
        for column, name in enumerate(SELECTION_FILTERS, start=1):
            before, after = own_ranks[FILTERS.index(name)][[0, column]]
            gains = paired_gains(before, after, queries.step.numpy())
            gain = {metric: [g.value, g.low, g.high] for metric, g in gains.items()}
            settings = {**trained, "weight": own_weights[column], "answers_asked": share}
            records.append(row(LEAKAGE + reading, name, name, after, gain=gain, settings=settings))
    return records

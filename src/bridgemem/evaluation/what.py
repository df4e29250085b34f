"""What: how well the relation of an event between two parties is ranked on a split, next to plain rules.

Every event of the split is asked once, (s, ?, o), as its subject sees it: with the direction given, among all relations
from s to o, and with both directions, among those from o to s too. The time-aware filter takes out the other events of
the two at the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.evaluation.comparison import GAIN, part_of
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.tables import FILTER_WORDS, HEADINGS, Table, figure, fitted_here, interval
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.forecasting.ahead import without_heads
from bridgemem.forecasting.heads import Heads
from bridgemem.forecasting.model import Parts
from bridgemem.forecasting.relations import NAMES, PairQueries, Read, RelationReader
from bridgemem.memory.occurrences import each_once
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import expand
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.training.devices import describe_device

WHAT = "what:"  # what the methods of these records begin with
MODEL = "head"
# plain rules; where they know nothing of a relation, or find two alike, its overall frequency decides
RULES = {
    "overall": "most frequent relation of all",
    "pair": "most frequent of the pair",
    "recent": "most recent of the pair",
    "object": "most frequent of the object",
}
DIRECTIONS = ("direction given", "both directions")
FILTERS = ("raw", "time")


def heads_of(run: Parts) -> Heads:
    """What answers what and whether, refused where the run has none."""
    found = run.heads()
    if found is None:
        raise without_heads(run.where)
    return found


def evaluate_what(
    run: Parts, dataset: Dataset | None = None, split: str = "test", progress: Progress = SILENT
) -> list[Record]:
    """Metrics of the relation head and of plain rules on a split; it was fitted on validation."""
    heads, dataset = heads_of(run), dataset or run.dataset
    dataset = dataset.without_test() if split == "valid" else dataset
    asked = dataset.split(split)
    queries, others = PairQueries.of(asked), _Others(asked)
    reader = RelationReader(Past(dataset.events), heads.n_relations)
    ranks: dict[tuple[str, str, str], list[np.ndarray]] = {}
    with progress.task(f"reading {split}", total=len(queries)) as advance:
        for batch in queries.batches(reader.batch):
            read = reader.read(batch)
            scores = {MODEL: heads.relations.of(read), **_rules(read)}
            masks = {"raw": None, "time": others.mask(batch, reader.relations)}
            for name, score in scores.items():
                for filter_name, mask in masks.items():
                    for direction in DIRECTIONS:
                        found = _ranks(score, batch, mask, reader.relations if direction == DIRECTIONS[0] else None)
                        ranks.setdefault((name, filter_name, direction), []).append(found)
            advance(len(batch))
    whole = {key: np.concatenate(parts) for key, parts in ranks.items()}
    return _records(run, dataset, split, whole, queries.step.numpy(), heads)


def _rules(read: Read) -> dict[str, Tensor]:
    """The scores of plain rules, float64 [n, 2R] each."""
    x = read.x.double()
    column = {name: x[..., place] for place, name in enumerate(NAMES)}
    share = column["overall share"].exp()  # below 1, and so decides among equal counts alone
    count = column["triple count"].expm1().round()
    recent = 1 / (1 + column["triple lag"])
    return {
        "overall": share,
        "pair": count + share,
        "recent": torch.where(count > 0, 1 + recent, 0.0) + share * 1e-3,
        "object": column["share of the object"],
    }


class _Others:
    """The relations of every link at every step of a split."""

    def __init__(self, events: EventLog) -> None:
        key = self._key(*(torch.from_numpy(c.astype(np.int64)) for c in (events.subject, events.object))).numpy()
        self.links = torch.from_numpy(np.unique(key))
        rank, step = np.searchsorted(self.links.numpy(), key), events.step.astype(np.int64)
        self.line = each_once(rank, events.relation.astype(np.int64), step)

    @staticmethod
    def _key(subject: Tensor, object: Tensor) -> Tensor:
        return (subject << 32) | object

    def mask(self, queries: PairQueries, relations: int) -> Tensor:
        """Which directed relations are other events of the two at the step, bool [n, 2R]."""
        made = torch.zeros((len(queries), 2 * relations), dtype=torch.bool)
        for half, ends in enumerate(((queries.first, queries.second), (queries.second, queries.first))):
            key = self._key(*ends)
            rank = torch.searchsorted(self.links, key).clamp(max=max(len(self.links) - 1, 0))
            known = (self.links[rank] == key).nonzero().squeeze(1)
            row, at = expand(*self.line.at(rank[known], queries.step[known]))
            made[known[row], self.line.value[at] + half * relations] = True
        assert queries.answer is not None
        made[torch.arange(len(queries)), queries.answer] = False
        return made


def _ranks(score: Tensor, queries: PairQueries, mask: Tensor | None, most: int | None) -> np.ndarray:
    """Mean-tie ranks of the answers among the first candidates, float64 [n]. most: how many; all where None."""
    assert queries.answer is not None
    score = (score if mask is None else score.masked_fill(mask, -torch.inf))[:, :most]
    own = score.gather(1, queries.answer[:, None])
    greater, equal = (score > own).sum(1), (score == own).sum(1)
    return (greater + (equal + 1) / 2).double().numpy()


def _records(
    run: Parts,
    dataset: Dataset,
    split: str,
    ranks: dict[tuple[str, str, str], np.ndarray],
    step: np.ndarray,
    heads: Heads,
) -> list[Record]:
    from bridgemem import __version__

    made = []
    for (name, filter_name, direction), own in ranks.items():
        settings: dict[str, Any] = asdict(heads.note.relations) | {"learned": heads.note.learned}
        if name != MODEL:
            gain = paired_gains(own, ranks[MODEL, filter_name, direction], step)["mrr"]
            settings = {"model_gain": [gain.value, gain.low, gain.high]}
        metrics = Metrics.of(own)
        one = Record(
            dataset=dataset.name,
            fingerprint=dataset.events.fingerprint,
            identity=dataset.identity.digest,
            split=split,
            backbone="relations",
            method=f"{WHAT}{name}",
            filter=filter_name,
            selected_by=None,
            history=run.config.history,
            seed=run.config.seed,
            queries=len(own),
            settings=settings,
            device=describe_device("cpu"),
            version=__version__,
            subset=direction,
            fit_seconds=heads.note.seconds if name == MODEL else None,
            mrr=metrics.mrr,
            hits1=metrics.hits1,
            hits3=metrics.hits3,
            hits10=metrics.hits10,
        )
        made.append(one)
    return made


def what_table(records: Sequence[Record], direction: str = DIRECTIONS[0]) -> Table:
    """Plain rules and the head under the time-aware filter; last the head's gain in MRR over each."""
    shown = [r for r in records if r.filter == "time" and r.subset == direction]
    rows = []
    for name in (*RULES, MODEL):
        (r,) = (r for r in shown if r.method == f"{WHAT}{name}")
        said = RULES.get(name, f"relation head{fitted_here('learned', r.split)}")
        gain = r.settings.get("model_gain")
        rows.append([said, *(figure(getattr(r, m)) for m in METRICS), interval(gain) if gain else ""])
    first = shown[0]
    part = part_of(first.split, first.settings)
    title = f"{first.dataset}, {part}, {first.queries:,} events (s, ?, o), {direction}, {FILTER_WORDS['time']}"
    return Table(title, ["method", *HEADINGS.values(), GAIN], rows)

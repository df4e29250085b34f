"""What each part of the counting backbone is worth, and what two hops would add to it, on validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bridgemem.backbones.scorer import Scores
from bridgemem.backbones.typed import Confidence, RecurrenceTyped, TypedSettings
from bridgemem.equations import EPSILON
from bridgemem.errors import RunError
from bridgemem.evaluation.evaluate import base_of, queries_of
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.index import Occurrences
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.intervals import paired_gains
from bridgemem.residuals.scoring import Scoring, replay
from bridgemem.runs import Run

METHOD = "ablation:counting="
WHOLE = f"{METHOD}whole"
MOST_QUERIES = 20_000
PARTNERS = 8  # of an actor, whose answers two hops lead to
TWO_HOPS = (0.1, 1.0)  # weights that are tried


class TwoHops(RecurrenceTyped):
    """Counting, and the answers that the actor's last partners had under the relation that is asked."""

    weight: float = 0.0

    def _parts(self, queries: Queries, past: Past) -> tuple[Tensor, Occurrences]:
        score, seen = super()._parts(queries, past)
        row, partner = _last_partners(queries, past)
        found = past.occurrences(partner, queries.relation[row], queries.step[row])
        total = torch.zeros(len(row), dtype=score.dtype, device=score.device)
        count = found.count.to(score.dtype)
        total.index_add_(0, found.row, count)
        share = self.weight / PARTNERS * count / total[found.row]
        score.view(-1).index_add_(0, row[found.row] * score.shape[1] + found.candidate, share)
        return score, seen

    def score(self, queries: Queries, past: Past) -> Scores:
        score, seen = self._parts(queries, past)
        score[seen.row, seen.candidate] += self.frequency * seen.count.to(score.dtype).log1p()
        return Scores(score.clamp_(min=EPSILON).log_())


def _last_partners(queries: Queries, past: Past) -> tuple[Tensor, Tensor]:
    """(row, partner) int64 [m]: whom each actor interacted with last."""
    states = past.dyads.partners(queries.actor, queries.step, 1, 0, past.cut(queries.step))
    order = (states.row << 32 | states.lag[:, 0]).argsort(stable=True)
    row = states.row[order]
    place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    kept = order[place < PARTNERS]
    return states.row[kept], states.candidate[kept]


def changed_settings(settings: TypedSettings) -> dict[str, TypedSettings]:
    """Changes of the settings, each of which is counted again."""
    return {
        "without the triple": replace(settings, triple=0.0, frequencies=(0.0,)),
        "without the times of the triple": replace(settings, frequencies=(0.0,)),
        "without the usual answers": replace(settings, popularity_weight=0.0),
        "the last event of the pair alone": replace(settings, ks=(1,)),
        "the last 16 events of the pair": replace(settings, ks=(16,)),
    }


def changed_confidence(whole: Confidence) -> dict[str, Confidence]:
    """Changes of what the events of a pair lead to."""
    nothing = torch.zeros_like(whole.usual)
    return {
        "without the events of the pair": replace(whole, value=torch.zeros_like(whole.value), usual=nothing),
        "one confidence for all relations": replace(whole, value=torch.full_like(whole.value, float(whole.usual))),
        "without the lag": replace(whole, lag=torch.ones_like(whole.lag)),
    }


def changes(whole: RecurrenceTyped, dataset: Dataset, seed: int, device: str) -> dict[str, RecurrenceTyped]:
    """The backbone with one thing changed at a time, by what was changed."""
    own, made = (whole.usual, whole.confidence, whole.frequency), dict[str, RecurrenceTyped]()
    for label, settings in changed_settings(whole.settings).items():
        made[label] = RecurrenceTyped.fit(dataset, settings, seed=seed, device=device)
    for label, confidence in changed_confidence(whole.confidence).items():
        made[label] = RecurrenceTyped(whole.settings, whole.usual, confidence, whole.frequency)
    for weight in TWO_HOPS:
        made[f"two hops, weight {weight:g}"] = more = TwoHops(whole.settings, *own)
        more.weight = weight
    return made


def ablate_counting(run: Run, dataset: Dataset, device: str = "cpu", progress: Progress = SILENT) -> list[Record]:
    """One record per change and filter: how the backbone alone ranks validation, and its gain over the whole one."""
    dataset, seed = dataset.without_test(), run.config.backbone_seed
    whole = run.backbone(device)
    if not isinstance(whole, RecurrenceTyped):
        raise RunError(f"{run.folder} has the backbone {whole.name}; --counting takes apart recurrence-typed alone.")
    made, past = changes(whole, dataset, seed, device), Past(dataset.events, device=device)
    queries = queries_of(dataset, "valid", MOST_QUERIES)
    filters, rivals, label = Filters(dataset.events, device), list(made.values()), "reading changes of the counting"
    found = replay(Scoring(whole, past), queries, filters=filters, progress=progress, label=label, rivals=rivals)
    records, step = [], queries.step.numpy()
    for column, method in enumerate(["whole", *made]):
        for name in FILTERS:
            gains = paired_gains(found.of(name), found.of(name, column), step)
            values: dict[str, Any] = found.metrics(name, column).as_dict()
            records.append(
                Record(
                    **base_of(dataset, "valid", whole.name, device, len(queries)),
                    method=f"{METHOD}{method}",
                    filter=name,
                    selected_by=None,
                    history="rolling",
                    seed=seed,
                    gain={metric: [g.value, g.low, g.high] for metric, g in gains.items()},
                    **values,
                )
            )
    return records

"""Heads: what happens between two parties, and whether and when something happens, fitted on the known events.

Both read counts alone: queries of late train and of validation are read as those of test will be. What is fitted on
events before the later part of validation is measured on that part; then all is fitted again on everything known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Declared, Finite, NotNegative, Size
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import sample_rows
from bridgemem.forecasting.calibration import Stated
from bridgemem.forecasting.occurrence import (
    KINDS,
    HazardNet,
    Kind,
    Occurrence,
    OccurrenceSettings,
    Watched,
    fit_hazard,
    outcomes,
    sampled_outcomes,
)
from bridgemem.forecasting.relations import (
    PairQueries,
    RelationReader,
    Relations,
    RelationSettings,
    fit_relations,
    recent_queries,
    relation_cases,
    untrained,
)
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies
from bridgemem.parallel import in_order
from bridgemem.progress import SILENT, Progress
from bridgemem.storage.tensors import part_of

LATE_SHARE = 0.5  # of validation that lies before its later part
LATE_QUERIES = 1_500
LATE_KEYS = 20_000
LATE_DATES = 8
FEWEST_DATES, SURE = 3, 2.5  # dates and standard errors that tell a gain from chance
LEAST = 1e-9  # of a probability whose logarithm is taken
MEASURED = (1, 7)  # horizons that are measured on later validation, where it is as long
LONGER = 4  # times the epochs: a fit that long finds rare rhythms, and learns few events by heart


@dataclass(frozen=True)
class HeadsNote(Declared):
    """heads.json: the settings of both heads, and how they did on later validation.

    log_loss: of the relation that came, by the network and by the smoothed shares alone; learned: whether the network
    is used. whether: by kind of query and horizon. longer: the kinds that gain from more epochs.
    """

    relations: RelationSettings
    occurrence: OccurrenceSettings
    learned: bool = True
    seconds: NotNegative = 0.0
    queries: Size = 0
    log_loss: dict[str, Finite] = field(default_factory=dict)
    whether: dict[str, tuple[Stated, ...]] = field(default_factory=dict)
    longer: tuple[str, ...] = ()

    def remark(self, kind: str, horizon: int) -> str:
        """The remark about the measured horizon that is nearest to one."""
        found = self.whether.get(kind, ())
        return min(found, key=lambda one: abs(one.horizon - horizon)).remark if found else ""


class Heads:
    """Both fitted heads, and the note of their fit."""

    def __init__(self, relations: Relations, occurrence: Occurrence, note: HeadsNote) -> None:
        self.relations, self.occurrence, self.note = relations, occurrence, note

    @property
    def n_relations(self) -> int:
        return self.relations.n_relations

    def tensors(self) -> dict[str, Tensor]:
        own = {f"relations.{name}": tensor for name, tensor in self.relations.tensors().items()}
        return own | {f"occurrence.{name}": tensor for name, tensor in self.occurrence.tensors().items()}

    @classmethod
    def restore(cls, note: HeadsNote, tensors: dict[str, Tensor]) -> Self:
        """Refuses with a ValueError what is not the weights of such heads."""
        relations = Relations.restore(note.relations, part_of(tensors, "relations."))
        return cls(relations, Occurrence.restore(note.occurrence, part_of(tensors, "occurrence.")), note)


def fit_heads(
    dataset: Dataset,
    relations: RelationSettings | None = None,
    occurrence: OccurrenceSettings | None = None,
    *,
    seed: int = 42,
    progress: Progress = SILENT,
) -> Heads:
    """Fit both heads on train and validation; test is not read."""
    began, known = time.perf_counter(), dataset.known
    relations, occurrence = relations or RelationSettings(), occurrence or OccurrenceSettings()
    valid = dataset.valid.step
    cut = int(np.ceil(np.quantile(valid, LATE_SHARE)))
    note = HeadsNote(relations, occurrence)
    past = Past(known)
    if known.start + 1 < cut < known.end:
        note = _held_out(past, cut, note, seed, progress)
    what = untrained(known.n_relations, relations)
    if note.learned:
        what = _what(past, known.end, relations, seed, progress)
    lengths: dict[Kind, list[int]] = {kind: [LONGER if kind in note.longer else 1] for kind in KINDS}
    nets = _whether(past, known.end, occurrence, seed, progress, lengths)
    whether = Occurrence(occurrence, {kind: net for kind, (net,) in nets.items()})
    past.return_freed()
    return Heads(what, whether, replace(note, seconds=time.perf_counter() - began))


def _what(past: Past, until: int, settings: RelationSettings, seed: int, progress: Progress) -> Relations:
    """Fitted on what came before a step; what is read of a past does not depend on what came later."""
    events = past.events.prefix(until)
    reader = RelationReader(past, events.n_relations)
    cases = relation_cases(reader, recent_queries(events, settings, seed), seed=seed, progress=progress)
    return fit_relations(cases, events.n_relations, settings, seed=seed, progress=progress)


def _whether(
    past: Past, until: int, settings: OccurrenceSettings, seed: int, progress: Progress, lengths: dict[Kind, list[int]]
) -> dict[Kind, list[HazardNet]]:
    """Fitted on what came before a step, all kinds side by side, for one or several times the usual epochs each."""
    tallies, nets = PastTallies(past), {}

    def fitted(kind: Kind) -> list[HazardNet]:
        watched = Watched.of(sampled_outcomes(kind, past, settings, seed, until), tallies)
        return [fit_hazard(watched, settings, seed=seed, longer=longer) for longer in lengths[kind]]

    with progress.task("fitting whether it happens", total=len(KINDS)) as advance:
        for kind, found in zip(KINDS, in_order(fitted, KINDS), strict=True):
            nets[kind] = found
            advance(1)
    return nets


def _held_out(past: Past, cut: int, note: HeadsNote, seed: int, progress: Progress) -> HeadsNote:
    """How heads that were quickly fitted on what came before the later part of validation did on it."""
    known = past.events
    quick = replace(note.relations, queries=max(note.relations.queries // 4, 1))
    reader, head = RelationReader(past, known.n_relations), _what(past, cut, quick, seed, progress)
    late_events = known.between(cut, known.end)
    late = PairQueries.of(late_events, sample_rows(len(late_events), LATE_QUERIES, seed))
    losses = {"learned": 0.0, "shares": 0.0}
    for batch in late.batches(reader.batch):
        read = reader.read(batch)
        assert batch.answer is not None
        for name, score in (("learned", head.of(read)), ("shares", read.base.double())):
            own = score.log_softmax(1)[torch.arange(len(batch)), batch.answer]
            losses[name] -= float(own.sum()) / len(late)
    settings = replace(note.occurrence, rows=max(note.occurrence.rows // 8, 1))
    # of fewer dates no gain is told, so nothing is fitted for longer
    lengths = [1, LONGER] if known.end - cut >= FEWEST_DATES else [1]
    nets = _whether(past, cut, settings, seed, progress, dict.fromkeys(KINDS, lengths))
    usual, *long = (Occurrence(settings, dict(zip(nets, own, strict=True))) for own in zip(*nets.values(), strict=True))
    stated: dict[str, tuple[Stated, ...]] = {}
    longer: list[str] = []
    for kind in KINDS:
        stated[kind], loss = _stated(usual, kind, past, cut, seed)
        for other in long:
            also, lower = _stated(other, kind, past, cut, seed)
            if _gains(loss, lower):
                stated[kind] = also
                longer.append(kind)
    return replace(
        note,
        queries=len(late),
        log_loss=losses,
        learned=losses["learned"] <= losses["shares"],
        whether=stated,
        longer=tuple(longer),
    )


def _stated(
    head: Occurrence, kind: Kind, past: Past, cut: int, seed: int
) -> tuple[tuple[Stated, ...], list[np.ndarray]]:
    """What the probabilities of one kind were worth from the cut on, and the mean log loss of each date, by horizon."""
    made, losses, end = [], [], past.events.end
    tallies = PastTallies(past)
    for horizon in MEASURED:
        if end - cut < horizon:
            continue
        dates = sorted({int(d) for d in np.linspace(cut, end - horizon, LATE_DATES).round()})
        found = outcomes(kind, past, dates, LATE_KEYS // len(dates), seed)
        if not len(found):
            continue
        p = head.probability(found.keys, tallies, (horizon,))[:, 0].numpy()
        hit, weight = (found.after <= horizon).numpy(), found.weight.double().numpy()
        made.append(Stated.of(horizon, p, hit, weight))
        loss = -np.log(np.where(hit, p, 1 - p).clip(min=LEAST)) * weight
        _, date = np.unique(found.keys.step.numpy(), return_inverse=True)
        losses.append(np.bincount(date, weights=loss) / np.bincount(date, weights=weight))
    return tuple(made), losses


def _gains(loss: list[np.ndarray], lower: list[np.ndarray]) -> bool:
    """Whether losses by horizon and date are lower than others: within one step beyond doubt, and over all horizons."""
    if not loss or len(loss[0]) < FEWEST_DATES:
        return False
    within_one = loss[0] - lower[0]
    share = [1 - after.mean() / before.mean() for before, after in zip(loss, lower, strict=True)]
    return bool(sum(share) > 0 and within_one.mean() > SURE * within_one.std(ddof=1) / len(within_one) ** 0.5)

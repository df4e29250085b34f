"""Forecaster: a frozen backbone with its residual, asked by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from bridgemem.attribution import exact
from bridgemem.backbones.base import Backbone, Scores, score_queries
from bridgemem.backbones.history import History
from bridgemem.errors import DataError, RunError, SettingsError
from bridgemem.evaluation.queries import Queries
from bridgemem.evaluation.replay import Choice, corrections
from bridgemem.events.log import EventLog
from bridgemem.events.times import LAST_STEP
from bridgemem.evidence.features import FeatureReader, Features
from bridgemem.evidence.transitions import Transitions
from bridgemem.explain import Explanation, rank_of, take_apart, take_apart_learned
from bridgemem.learned import Learned


@dataclass(frozen=True)
class Candidate:
    """A ranked answer: its score is the backbone's log score plus the residual."""

    name: str
    rank: int
    backbone_rank: int
    score: float
    backbone_score: float
    residual: float


class Forecaster:
    """Who comes next for (actor, relation, ?, t), from the events strictly before t.

    With a learned residual that one corrects the backbone; without, the fixed residual of the choice does.
    """

    def __init__(
        self,
        events: EventLog,
        backbone: Backbone,
        transitions: Transitions,
        choice: Choice,
        learned: Learned | None = None,
    ) -> None:
        self.events = events
        self.backbone = backbone
        self.transitions = transitions
        self.choice = choice
        self.learned = None if learned is None else exact(learned)

    @classmethod
    def open(
        cls,
        folder: Path | str,
        selection: str = "time",
        data_dir: Path | None = None,
        method: str | None = None,
    ) -> Forecaster:
        """The forecaster of a run folder, with the choice made under a filter.

        method "fixed" or "learned"; None is the learned residual where the run has one.
        """
        from bridgemem.runs import Run

        if method not in (None, "fixed", "learned"):
            raise SettingsError(f"method is fixed or learned, not {method!r}.")
        run = Run(folder)
        choice = run.selection(selection).choice
        learned = None if method == "fixed" else run.learned(selection)
        if method == "learned" and learned is None:
            raise RunError(
                f"{folder} has no learned residual; `bridgemem fit --method learned` fits one, --method fixed does "
                "without."
            )
        return cls(run.dataset(data_dir).events, run.backbone(), run.transitions(), choice, learned)

    @cached_property
    def past(self) -> History:
        return History(self.events)

    @cached_property
    def _reader(self) -> FeatureReader:
        assert self.learned is not None
        return self.learned.reader(self.past, self.transitions)

    def query(
        self, actor: str | int, relation: str | int, at: str | int | None = None, inverse: bool = False
    ) -> Queries:
        """The query in ids. `at` is a time of the data set (the first unknown step when left out)."""
        directed = self.events.relations.id(relation) + (self.events.n_relations if inverse else 0)
        step = self.events.end if at is None else self.events.clock.step(at)
        if step < 0:
            raise DataError(f"{at!r} lies before the data set begins, at {self.events.clock.label(0)}.")
        try:
            self.events.clock.label(step)
        except OverflowError:
            step = LAST_STEP + 1
        if step > LAST_STEP:
            end = self.events.clock.label(self.events.end)
            raise DataError(f"{at!r} lies too far ahead; the first unknown step of the data set is {end}.")
        ids = [self.events.entities.id(actor), directed, step]
        return Queries(*(torch.tensor([value]) for value in ids))

    def forecast(
        self,
        actor: str | int,
        relation: str | int,
        at: str | int | None = None,
        top: int = 10,
        inverse: bool = False,
    ) -> list[Candidate]:
        """The likeliest answers to (actor, relation, ?), or with `inverse` to (?, relation, actor), best first."""
        if top < 1:
            raise DataError(f"top must be at least 1, not {top}.")
        query = self.query(actor, relation, at, inverse)
        scores = score_queries(self.backbone, query, self.past)
        base, residual = scores.log_p[0].double(), self._residual(query, scores)
        score = base + residual
        best = score.argsort(descending=True, stable=True)[:top].tolist()
        return [
            Candidate(
                self.events.entities.names[c],
                rank_of(score, c),
                rank_of(base, c),
                float(score[c]),
                float(base[c]),
                float(residual[c]),
            )
            for c in best
        ]

    def explain(
        self,
        actor: str | int,
        relation: str | int,
        candidate: str | int,
        at: str | int | None = None,
        inverse: bool = False,
    ) -> Explanation:
        """Why a candidate has its score: parts that add up, and the events behind them."""
        query = self.query(actor, relation, at, inverse)
        chosen = self.events.entities.id(candidate)
        if self.learned is None:
            return take_apart(query, chosen, self.events, self.backbone, self.transitions, self.choice, self.past)
        scores = score_queries(self.backbone, query, self.past)
        found = self._reader.read(query, scores)
        residual = self._learned_residual(query, found)
        return take_apart_learned(query, chosen, self.events, self.learned, self._reader, scores, found, residual)

    def _residual(self, query: Queries, scores: Scores) -> Tensor:
        """What is added to every candidate's log score, float64 [E]; 0 where nothing is known."""
        if self.learned is not None:
            return self._learned_residual(query, self._reader.read(query, scores))
        evidence = self.transitions.evidence(query, self.past)
        assert scores.uncertainty is not None
        residual = torch.zeros(self.events.n_entities, dtype=torch.float64)
        residual[evidence.candidate] = corrections(evidence, scores, [self.choice])[:, 1]
        return residual

    def _learned_residual(self, query: Queries, found: Features) -> Tensor:
        assert self.learned is not None
        residual = torch.zeros(self.events.n_entities, dtype=torch.float64)
        asked = query.relation.expand(len(found.row))
        residual[found.candidate] = self.learned.correction(found.x.double(), asked)
        return residual

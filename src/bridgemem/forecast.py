"""Forecaster: a frozen backbone with its residual, asked by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from bridgemem.backbones.base import Backbone, score_queries
from bridgemem.backbones.history import History
from bridgemem.errors import DataError
from bridgemem.evaluation.queries import Queries
from bridgemem.evaluation.replay import Choice, corrections
from bridgemem.events.log import EventLog
from bridgemem.events.times import LAST_STEP
from bridgemem.evidence.transitions import Transitions
from bridgemem.explain import Explanation, take_apart


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
    """Who comes next for (actor, relation, ?, t), from the events strictly before t."""

    def __init__(self, events: EventLog, backbone: Backbone, transitions: Transitions, choice: Choice) -> None:
        self.events = events
        self.backbone = backbone
        self.transitions = transitions
        self.choice = choice

    @classmethod
    def open(cls, folder: Path | str, selection: str = "time", data_dir: Path | None = None) -> Forecaster:
        """The forecaster of a run folder, with the choice made under a filter."""
        from bridgemem.runs import Run

        run = Run(folder)
        choice = run.selection(selection).choice
        return cls(run.dataset(data_dir).events, run.backbone(), run.transitions(), choice)

    @cached_property
    def past(self) -> History:
        return History(self.events)

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
        evidence = self.transitions.evidence(query, self.past)
        assert scores.uncertainty is not None
        base = scores.log_p[0].double()
        residual = torch.zeros_like(base)
        residual[evidence.candidate] = corrections(evidence, scores.uncertainty, [self.choice])[:, 1]
        score = base + residual
        best = score.argsort(descending=True, stable=True)[:top].tolist()
        return [
            Candidate(
                self.events.entities.names[c],
                int((score > score[c]).sum()) + 1,
                int((base > base[c]).sum()) + 1,
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
        return take_apart(query, chosen, self.events, self.backbone, self.transitions, self.choice, self.past)

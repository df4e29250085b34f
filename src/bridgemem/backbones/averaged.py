"""Averaged: several trainings of one backbone as one, by the mean of their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from bridgemem.backbones.scorer import Scorer, ScorerAround, Scores, ask
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past


class Averaged(ScorerAround):
    """The mean of the probabilities of several scorers, and of each member if they are made of several.

    The first stands for all where one is enough: its name, and where it looked.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        super().__init__(scorers[0])
        self.scorers = list(scorers)

    @property
    def parallel(self) -> bool:
        return all(scorer.parallel for scorer in self.scorers)

    def score(self, queries: Queries, past: Past) -> Scores:
        each = [ask(scorer, queries, past) for scorer in self.scorers]
        members = [scores.members for scores in each if scores.members is not None]
        if members:
            own = _mean(members)
            return Scores(own.logsumexp(0) - math.log(len(own)), members=own)
        unsure = [scores.uncertainty for scores in each if scores.uncertainty is not None]
        log_p = _mean([scores.log_p.log_softmax(1) for scores in each])
        return Scores(log_p, uncertainty=torch.stack(unsure).mean(0) if unsure else None)


def _mean(log_p: Sequence[Tensor]) -> Tensor:
    """log of the mean of the probabilities; two at a time, as members of large batches fill the memory."""
    return reduce(torch.logaddexp, log_p) - math.log(len(log_p))

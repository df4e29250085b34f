"""A guard for scoring: how many dyadic states are read, and how often the backbone is asked."""

from __future__ import annotations

import pytest
import torch

from bridgemem.backbones.recurrence import Recurrence
from bridgemem.backbones.scorer import Scores
from bridgemem.config import Settings
from bridgemem.events.queries import Queries
from bridgemem.memory.dyads import DyadMemory, PairStates
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.residuals.selection import grid
from builders import random_transitions, small_world


class Reads:
    """What was asked of the memory: calls, (actor, step) asked for, and states returned."""

    def __init__(self) -> None:
        self.calls = self.asked = self.states = self.scored = 0

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    count, partners, score = Reads(), DyadMemory.partners, Recurrence.score

    def counted(memory: DyadMemory, actor: torch.Tensor, *rest: object, **named: object) -> PairStates:
        states = partners(memory, actor, *rest, **named)  # type: ignore[arg-type]
        count.calls, count.asked, count.states = (
            count.calls + 1,
            count.asked + len(actor),
            count.states + len(states.row),
        )
        return states

    def scored(backbone: Recurrence, queries: Queries, past: Past) -> Scores:
        count.scored += len(queries)
        return score(backbone, queries, past)

    monkeypatch.setattr(DyadMemory, "partners", counted)
    monkeypatch.setattr(Recurrence, "score", scored)
    return count


def test_queries_of_one_actor_and_step_share_one_read(reads: Reads) -> None:
    dataset = small_world().dataset
    transitions, past = random_transitions(dataset.train), Past(dataset.events)
    queries = Queries.of(dataset.valid)
    distinct = len(set(zip(queries.actor.tolist(), queries.step.tolist(), strict=True)))
    assert distinct < len(queries)
    transitions.evidence(queries, past)
    assert (reads.calls, reads.asked) == (1, distinct)


def test_choices_and_filters_cost_no_further_read_or_score(reads: Reads) -> None:
    dataset = small_world().dataset
    transitions, past, filters = random_transitions(dataset.train), Past(dataset.events), Filters(dataset.events)
    backbone, queries = Recurrence.fit(dataset), Queries.of(dataset.valid)
    found = []
    for choices in ([Choice()], grid(Settings())):
        reads.clear()
        replay(Scoring(backbone, past, transitions, choices=choices), queries, filters=filters)
        found.append((reads.calls, reads.asked, reads.states, reads.scored))
    assert found[0] == found[1]
    assert found[0][3] == len(queries), "every query is scored once for all filters"


def test_reads_grow_with_the_queries_and_not_faster(reads: Reads) -> None:
    dataset = small_world().dataset
    transitions, past = random_transitions(dataset.train), Past(dataset.events)
    queries = Queries.of(dataset.valid)
    parts = []
    for part in (queries.take(slice(0, len(queries) // 2)), queries):
        reads.clear()
        transitions.evidence(part, past)
        parts.append(reads.states / reads.asked)
    assert parts[1] == pytest.approx(parts[0], rel=0.25)

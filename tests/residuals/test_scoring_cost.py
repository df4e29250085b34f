"""What a replay costs, in counts: operators called and bytes of tensors made, which no busy machine can change."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("benchmarks", reason="needs benchmarks/ of the repository; run python -m pytest there")

from benchmarks.curve import Counted, LowRank, curve, exponents, random_events, rows, untrained

from bridgemem.config import Settings
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.learned import Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.scoring import Choice, Scoring, replay

ENTITIES, ROWS = 400, 100  # of a batch
CELLS = ENTITIES * ROWS
LEARNED = LearnedSettings(hidden=8, relation_width=4, unseen_candidates=5)


@pytest.fixture(scope="module")
def events() -> EventLog:
    return random_events(4000, ENTITIES, relations=5)


def count(events: EventLog, queries: int, cells: int, choices: int = 1, learned: bool = False) -> Counted:
    """What a replay of the last queries does, after one that built the indices."""
    past, filters, transitions = Past(events), Filters(events), untrained(events, Settings(width=8, hidden=8))
    every, backbone = Queries.of(events), LowRank.of(events)
    asked = every.take(slice(len(every) - queries, None))
    models = [Learned(LEARNED, LearnedNet(2 * events.n_relations, LEARNED))] if learned else []
    grid = [Choice(lam=1.0 + i) for i in range(choices)]

    def run() -> None:
        replay(Scoring(backbone, past, transitions, choices=grid, learned=models), asked, filters=filters, cells=cells)

    run()
    with Counted() as counted, torch.no_grad():
        run()
    return counted


@pytest.mark.parametrize(("learned", "most"), [(False, 600), (True, 1500)])
def test_the_operators_called_for_a_batch_do_not_grow_with_its_queries(
    events: EventLog, learned: bool, most: int
) -> None:
    few, many = (count(events, n, cells=n * ENTITIES, learned=learned) for n in (20, 100))
    # distinct steps are read one by one, and the few queries are of fewer of them
    assert many.calls < few.calls * 1.5
    assert many.calls < most


@pytest.mark.parametrize("learned", [False, True])
def test_every_further_batch_costs_the_same(events: EventLog, learned: bool) -> None:
    one, four = (count(events, batches * ROWS, CELLS, learned=learned) for batches in (1, 4))
    assert four.calls < 5 * one.calls
    assert four.bytes < 6 * one.bytes


def test_no_tensor_is_larger_than_the_cells_allow(events: EventLog) -> None:
    # scores are float32; nothing of the size of the scores is ever widened
    small, large = (count(events, 4 * ROWS, cells) for cells in (CELLS, 4 * CELLS))
    assert small.largest <= CELLS * 4
    assert CELLS * 4 < large.largest <= 4 * CELLS * 4


def test_a_further_choice_adds_a_pass_over_the_candidates_it_corrects_and_no_more(events: EventLog) -> None:
    one, nine = (count(events, ROWS, CELLS, choices) for choices in (1, 9))
    assert nine.bytes - one.bytes < 8 * (one.bytes / 2)


def test_cost_is_linear_in_queries_and_in_dyadic_reads() -> None:
    by_queries = exponents(curve("queries", queries=200, entities=500, facts=4000, growth=(1, 2, 4)))
    assert 0.8 < by_queries["bytes"] < 1.1
    by_facts = exponents(curve("facts", queries=200, entities=500, facts=4000, growth=(1, 2, 4)))
    assert 0.8 < by_facts["residual bytes by reads"] < 1.15
    by_entities = exponents(curve("entities", queries=200, entities=500, facts=4000, growth=(1, 2, 4)))
    assert by_entities["bytes"] < 1.1


def test_the_curve_has_a_row_for_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.curve.curve", lambda axis, **_: curve(axis, 50, 60, 500, (1, 2)))
    made = rows()
    assert [row["axis"] for row in made] == ["queries"] * 2 + ["entities"] * 2 + ["facts"] * 2
    assert all(row["bytes"] > 0 and row["largest"] <= row["bytes"] for row in made)

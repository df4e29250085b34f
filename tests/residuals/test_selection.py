"""Fitting and selection: the constraint, the ties, the switch-off, and the lock of the record."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bridgemem.backbones.recurrence import Popularity, Recurrence
from bridgemem.config import Settings
from bridgemem.errors import SelectionError
from bridgemem.events.queries import Queries
from bridgemem.evidence import transitions as transitions_module
from bridgemem.evidence.transitions import EpochChoice, Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.metrics import METRICS
from bridgemem.residuals.scoring import Choice, Replay, Scoring, replay
from bridgemem.residuals.selection import MEMORIES, PAPER, Fitted, Selection, fit, grid, select
from bridgemem.residuals.validation import Validation
from builders import SMALL_READER, small_world

GRID = Settings(lambdas=(0.5, 1.0, 2.0), gates=("none", "uncertain"), taus=(30.0, 100.0))
FITTED = replace(SMALL_READER, lambdas=(0.5, 1.0, 2.0), taus=(30.0, 100.0))
N = 40


def replayed(backbone: np.ndarray, by_choice: dict[Choice, np.ndarray], default: np.ndarray) -> Replay:
    """A replay with made-up ranks, the same under every filter."""
    columns = [backbone, *(by_choice.get(choice, default) for choice in grid(GRID))]
    queries = Queries.of(small_world().dataset.valid).take(slice(0, N))
    return Replay(queries, np.stack([np.stack(columns)] * len(FILTERS)), *(np.zeros(N) for _ in range(4)))


def chosen(backbone: np.ndarray, by_choice: dict[Choice, np.ndarray], default: np.ndarray | None = None) -> Selection:
    default = backbone + 5 if default is None else default
    return select(replayed(backbone, by_choice, default), "time", GRID, small_world().dataset)


def test_the_grid_holds_every_combination_once():
    assert len(grid(Settings())) == len(set(grid(Settings()))) == 36
    assert PAPER in grid(Settings())


def test_the_best_mean_reciprocal_rank_wins():
    better, best = Choice(0.5, "none", 30.0), Choice(2.0, "uncertain", 30.0)
    selection = chosen(np.full(N, 4.0), {better: np.full(N, 3.0), best: np.full(N, 2.0)})
    assert selection.choice == best
    assert selection.feasible
    assert (selection.backbone.mrr, selection.chosen.mrr) == (0.25, 0.5)


def test_a_choice_that_lowers_any_metric_is_not_allowed():
    backbone = np.full(N, 10.0)
    # most answers come first, but one leaves the first ten
    greedy, modest = np.ones(N), np.full(N, 9.0)
    greedy[0] = 11
    selection = chosen(
        backbone, {Choice(2.0, "none", 30.0): greedy, Choice(0.5, "none", 100.0): modest}, default=np.full(N, 12.0)
    )
    assert selection.choice == Choice(0.5, "none", 100.0)
    allowed = [row["lam"] for row in selection.grid if row["allowed"]]
    assert allowed == [0.5]
    assert max(row["mrr"] for row in selection.grid) > selection.chosen.mrr


def test_ties_go_to_the_papers_values():
    better = np.full(N, 2.0)
    assert chosen(np.full(N, 4.0), {}, default=better).choice == PAPER
    without = {c: better for c in grid(GRID) if c != PAPER}
    assert chosen(np.full(N, 4.0), without).choice == Choice(0.5, "uncertain", 100.0), (
        "then gate, then tau, then lambda"
    )
    no_paper_gate = {c: better for c in grid(GRID) if c.gate == "none"}
    assert chosen(np.full(N, 4.0), no_paper_gate).choice == Choice(1.0, "none", 100.0)


def test_equal_to_the_backbone_is_allowed():
    selection = chosen(np.full(N, 4.0), {PAPER: np.full(N, 4.0)})
    assert selection.feasible
    assert selection.choice == PAPER


def test_without_an_allowed_choice_the_residual_is_switched_off():
    selection = chosen(np.full(N, 4.0), {})
    assert not selection.feasible
    assert selection.choice.lam == 0
    assert selection.chosen == selection.backbone
    assert not any(row["allowed"] for row in selection.grid)


@cache
def fitted() -> Fitted:
    dataset = small_world().dataset
    return fit(Validation.of(dataset, Popularity.fit(dataset)), FITTED)


@pytest.mark.parametrize("name", ["static", "time"])
def test_selection_obeys_the_constraint_on_real_ranks(name):
    selection = fitted().selections[name]
    assert selection.filter == name
    assert selection.feasible, "popularity is easily helped"
    assert selection.chosen.mrr > selection.backbone.mrr
    for metric in METRICS:
        assert getattr(selection.chosen, metric) >= getattr(selection.backbone, metric)
    best = max(row["mrr"] for row in selection.grid if row["allowed"])
    assert selection.chosen.mrr == best
    # popularity has no oracle, so the entropy of its scores is tried next to the mass on seen candidates
    tried = replace(FITTED, gates=(*FITTED.gates, "entropy"))
    assert [(row["lam"], row["gate"], row["tau"]) for row in selection.grid] == [
        (c.lam, c.gate, c.tau) for c in grid(tried)
    ]
    dataset = small_world().dataset
    assert selection.queries == 2 * len(dataset.valid)
    assert selection.fingerprint == dataset.known.fingerprint


def test_the_chosen_figures_can_be_measured_again():
    dataset = small_world().dataset.without_test()
    selection = fitted().selections["static"]
    again = replay(
        Scoring(Popularity.fit(dataset), Past(dataset.events), fitted().train, choices=[selection.choice]),
        Queries.of(dataset.valid),
        filters=Filters(dataset.events),
    )
    assert again.metrics("static") == selection.backbone
    assert again.metrics("static", 1) == selection.chosen


def test_frozen_history_is_another_validation():
    dataset = small_world().dataset
    frozen = fit(Validation.of(dataset, Recurrence.fit(dataset), frozen=True), FITTED)
    rolling = fit(Validation.of(dataset, Recurrence.fit(dataset)), FITTED)
    assert frozen.selections["time"].backbone.mrr < rolling.selections["time"].backbone.mrr


def test_the_refit_uses_the_epochs_chosen_before(monkeypatch):
    choices = iter([EpochChoice(2, (1.0, 0.5))])
    monkeypatch.setattr(transitions_module, "_choose_epochs", lambda *given: next(choices))
    dataset = small_world().dataset
    result = fit(Validation.of(dataset, Popularity.fit(dataset)), FITTED)
    assert (result.epochs, result.curve) == (2, (1.0, 0.5))
    for found, events in ((result.train, dataset.train), (result.known, dataset.known)):
        expected, _ = Transitions.fit(events, FITTED, seed=42, epochs=2)
        for name, tensor in expected.tensors().items():
            assert torch.equal(found.tensors()[name], tensor), name


def test_a_selection_survives_its_record():
    for selection in fitted().selections.values():
        again = Selection.from_dict(json.loads(json.dumps(selection.as_dict())))
        assert again == selection
        assert again.lock() == selection.lock()


def test_the_lock_shows_any_change_of_mind():
    selection = fitted().selections["time"]
    locks = {
        selection.lock(),
        replace(selection, choice=replace(selection.choice, lam=7.0)).lock(),
        replace(selection, filter="static").lock(),
        replace(selection, chosen=selection.backbone).lock(),
        replace(selection, grid=selection.grid[:-1]).lock(),
        replace(selection, fingerprint="other").lock(),
    }
    assert len(locks) == 6


@pytest.mark.parametrize("damage", [{"choice": {"lam": 1.0, "door": 2}}, {"backbone": None}, {"surprise": 1}])
def test_a_damaged_record_is_refused(damage):
    values = {**fitted().selections["time"].as_dict(), **damage}
    with pytest.raises(SelectionError, match=r"the selection record: .*; select again in a new run"):
        Selection.from_dict(values)
    with pytest.raises(SelectionError, match="filter is missing"):
        Selection.from_dict({})


def test_validation_chooses_how_much_of_a_pairs_past_is_read() -> None:
    dataset = small_world().dataset
    made = fit(Validation.of(dataset, Recurrence.fit(dataset)), FITTED, choose_memory=True)
    tried = made.selections["time"].memories
    assert [(memory["k"], memory["window"]) for memory in tried] == list(MEMORIES)
    assert len({memory["mrr"] for memory in tried}) > 1
    best = max(tried, key=lambda memory: memory["mrr"])
    assert (made.known.settings.k, made.known.settings.window) == (best["k"], best["window"])


def test_the_grid_can_be_measured_on_a_sample_of_validation() -> None:
    dataset = small_world().dataset
    made = fit(Validation.of(dataset, Recurrence.fit(dataset)), replace(FITTED, max_queries=50))
    assert made.selections["time"].queries == 50
    assert made.selections["time"].memories == []

"""bm.evaluate warns of figures that look like leakage, and of no others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from builders import small_world

QUICK = {"residual": "bridgemem", "settings": {"width": 8, "hidden": 8, "max_epochs": 1}}


@pytest.fixture(scope="module")
def world() -> Dataset:
    return small_world().dataset


def knows(events: EventLog) -> Callable[..., Any]:
    """A model with a table of events of its own, which it reads at the very step of a query."""
    table: dict[tuple[int, ...], set[int]] = {}
    told = Queries.of(events)
    assert told.answer is not None
    for *asked, answer in zip(*(t.tolist() for t in (told.actor, told.relation, told.step, told.answer)), strict=True):
        table.setdefault(tuple(asked), set()).add(answer)

    def knowing(actor: np.ndarray, relation: np.ndarray, step: np.ndarray) -> np.ndarray:
        scores = np.tile(-0.01 * np.arange(events.n_entities), (len(actor), 1))
        for row, asked in enumerate(zip(actor.tolist(), relation.tolist(), step.tolist(), strict=True)):
            scores[row, list(table.get(asked, ()))] += 5.0
        return scores

    return knowing


def test_a_model_that_reads_its_own_table_at_t_is_warned_of(world: Dataset) -> None:
    with pytest.warns(UserWarning, match=r"knowing has an MRR of 1\.0000, .* at or after the query's step"):
        bm.evaluate(world, knows(world.events), **QUICK)


def test_a_model_that_was_trained_on_a_part_of_test_is_warned_of(world: Dataset) -> None:
    half = world.events.between(world.test_start, (world.test_start + world.events.end) // 2)
    with pytest.warns(UserWarning, match=r"knowing is far better on test than on validation .* test events"):
        found = bm.evaluate(world, knows(half), **QUICK)
    assert found.mrr("backbone") < 0.97


def test_an_honest_model_is_not_warned_of(world: Dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bm.evaluate(world, bm.Forecaster("recurrence-typed", **QUICK).fit(world).parts.backbone(), **QUICK)

"""bm.evaluate warns of figures that look like leakage, and of no others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.backbones import REGISTERED
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.runs import Run
from bridgemem.studies.audit import audit
from builders import small_world
from leaking_models import Honest

QUICK = {"residual": "bridgemem", "settings": {"width": 8, "hidden": 8, "max_epochs": 1}}
ALONE: dict[str, Any] = {**QUICK, "default": False}


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
        bm.evaluate(world, knows(world.events), **ALONE)


def test_a_model_that_was_trained_on_a_part_of_test_is_warned_of(world: Dataset) -> None:
    half = world.events.between(world.test_start, (world.test_start + world.events.end) // 2)
    with pytest.warns(UserWarning, match=r"knowing is far better on test than on validation .* test events"):
        found = bm.evaluate(world, knows(half), **ALONE)
    assert found.mrr("backbone") < 0.97


def test_a_model_that_was_trained_on_validation_is_warned_of(world: Dataset) -> None:
    with pytest.warns(UserWarning, match=r"knowing is far better on validation than on test .* events of validation"):
        bm.evaluate(world, knows(world.valid), **ALONE)


def popular(world: Dataset, times: float) -> Callable[..., Any]:
    often = np.log(np.bincount(world.train.object, minlength=world.events.n_entities) + 1.0)
    order = np.linspace(0, 0.1, len(often))  # no two alike
    return lambda actor, relation, step: np.tile(times * (often + order), (len(actor), 1))


def test_scores_of_a_much_larger_scale_and_of_the_other_sign_are_warned_of(world: Dataset) -> None:
    with pytest.warns(UserWarning, match="logits of a much larger scale; divide by a temperature"):
        bm.evaluate(world, popular(world, 1e4), **ALONE)
    with pytest.warns(UserWarning, match=r"are lower scores better in your model\? Return the negative"):
        bm.evaluate(world, lambda *asked: -knows(world.valid)(*asked), **ALONE)


def test_the_table_says_what_one_gets_without_the_model(world: Dataset) -> None:
    found = bm.evaluate(world, popular(world, 1.0), **QUICK)
    rows = {row[0]: row for row in found.table().rows}
    assert list(rows)[4:] == ["recurrence-typed", "recurrence-typed + bridgemem", "own-model", "own-model + bridgemem"]
    assert all("[" in rows[name][-1] for name in ("recurrence-typed", "recurrence-typed + bridgemem"))
    alone = bm.Forecaster("recurrence-typed", **QUICK).fit(world).evaluate("test")
    default = [one.mrr for one in found if (one.backbone, one.method) == ("recurrence-typed", "bridgemem")]
    assert alone.mrr("bridgemem") in default
    assert found.mrr("bridgemem") not in default  # which is the MRR of the model


def test_the_default_is_left_out_on_request_and_its_counting_is_not(world: Dataset) -> None:
    rows = [row[0] for row in bm.evaluate(world, popular(world, 1.0), **ALONE).table().rows]
    assert rows[4:] == ["recurrence-typed", "own-model", "own-model + bridgemem"]


def test_a_model_above_the_bound_of_query_leakage_is_warned_of(world: Dataset) -> None:
    """It guesses in some of the queries, on validation as on test, and knows the rest."""
    whole = knows(world.events)

    def mostly(actor: np.ndarray, relation: np.ndarray, step: np.ndarray) -> np.ndarray:
        scores = whole(actor, relation, step)
        return np.where(((actor + step) % 7 != 0)[:, None], scores, -0.01 * np.arange(scores.shape[1]))

    with pytest.warns(UserWarning, match="better than counting that also reads all other queries of the step"):
        bm.evaluate(world, mostly, **ALONE)


def test_leakage_takes_a_model_of_ones_own(world: Dataset) -> None:
    found = bm.leakage(world, Honest)
    assert {one.backbone for one in found} == {"Honest"}
    assert found.mrr("leakage:step") >= found.mrr("backbone")
    assert [row[0] for row in found.table().rows] == ["Honest", "+ queries of the pass", "+ queries of the step"]
    assert "No forecast" in str(found)
    counting = bm.leakage(world)
    assert counting.mrr("leakage:step") > counting.mrr("backbone")


def test_an_honest_model_is_not_warned_of(world: Dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bm.evaluate(world, bm.Forecaster("recurrence-typed", **QUICK).fit(world).parts.backbone(), **ALONE)


def test_an_audit_does_not_pass_what_it_cannot_check(world: Dataset, tmp_path: Path) -> None:
    """A model with its own table does not react to a corrupted future, whether it is honest or not."""
    with mock.patch.dict(REGISTERED):
        bm.register(knows(world.events), name="table-at-t")
        run = bm.Forecaster("table-at-t", **QUICK).fit(world, folder=tmp_path / "run")
        run.evaluate("test")
        found = {finding.check: finding for finding in audit(Run(tmp_path / "run"), seed=1)}
    assert found["backbone blind to the future"].passed is None
    assert "its maker's word" in found["backbone blind to the future"].seen
    assert found["evidence blind to the future"].passed

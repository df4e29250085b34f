"""Naive forecasters: what a person would try first, ranked by the same path as every model."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.naive import MostFrequent, MostRecent, naive_backbones
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.scorer import score_queries
from bridgemem.config import Settings
from bridgemem.events.queries import Queries
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.model import Model
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import HeldOut
from bridgemem.residuals.scoring import Scoring, replay
from bridgemem.residuals.selection import Naive
from bridgemem.runs import Run
from builders import small_world

QUICK = Settings(width=8, hidden=8, max_epochs=1)
FEW = LearnedSettings(epochs=1, hidden=8, unseen_candidates=5)


@pytest.mark.parametrize("kind", [MostFrequent, MostRecent])
def test_they_keep_the_contract_of_a_backbone(kind: type[MostFrequent]) -> None:
    dataset = small_world().dataset
    check_backbone(kind.fit(dataset), dataset.events)


def test_the_first_is_the_partner_that_a_slow_count_finds() -> None:
    dataset = small_world().dataset
    events, past = dataset.events, Past(dataset.events)
    queries = Queries.of(dataset.test).take(slice(0, 80))
    scores = {kind: score_queries(kind.fit(dataset), queries, past).log_p for kind in (MostFrequent, MostRecent)}
    compared = 0
    for q in range(len(queries)):
        inverse, relation = divmod(int(queries.relation[q]), events.n_relations)
        actor, partner = (events.object, events.subject) if inverse else (events.subject, events.object)
        own = (events.step < int(queries.step[q])) & (actor == int(queries.actor[q])) & (events.relation == relation)
        seen = np.unique(np.stack([partner[own], events.step[own]]), axis=1)
        if not seen.size:
            continue
        who, count = np.unique(seen[0], return_counts=True)
        assert int(scores[MostFrequent][q].argmax()) in who[count == count.max()]
        assert int(scores[MostRecent][q].argmax()) in seen[0][seen[1] == seen[1].max()]
        compared += 1
    assert compared > 20


def test_others_rank_the_same_next_to_a_model_as_alone() -> None:
    dataset = small_world().dataset
    past, filters, queries = Past(dataset.events), Filters(dataset.events), Queries.of(dataset.test)
    others: list[Backbone] = naive_backbones(dataset, other_than="recurrence-dyadic")
    assert [other.name for other in others] == ["most-frequent", "most-recent", "recurrence"]
    together = replay(Scoring(RecurrenceDyadic.fit(dataset), past), queries, filters=filters, rivals=others)
    assert together.ranks.shape[1] == 4
    for column, other in enumerate(others, start=1):
        alone = replay(Scoring(other, past), queries, filters=filters)
        assert np.array_equal(together.ranks[:, column], alone.ranks[:, 0])


def test_an_evaluation_shows_them_with_what_the_model_gains_over_each() -> None:
    found = Forecaster(settings=QUICK, learned_settings=FEW).fit(small_world().dataset).evaluate().records
    naive = [r for r in found if "model_gain" in r.settings]
    assert {(r.backbone, r.filter) for r in naive} == {
        (name, f) for name in ("most-frequent", "most-recent", "recurrence", "recurrence-dyadic") for f in FILTERS
    }
    model = {r.filter: r.mrr for r in found if r.method == naive[0].settings["model"] and r.as_chosen}
    for r in naive:
        value, low, high = r.settings["model_gain"]
        assert value == pytest.approx(model[r.filter] - r.mrr)
        assert low <= value <= high


def test_a_fit_of_the_paper_s_residual_alone_measures_them_on_validation() -> None:
    dataset = small_world().dataset
    with warnings.catch_warnings(record=True):
        parts = Forecaster("recurrence", residual="bridgemem", settings=QUICK).fit(dataset).parts
    assert isinstance(parts, Model)
    queries, filters = Queries.of(dataset.valid), Filters(dataset.known)
    for other in naive_backbones(dataset, other_than="recurrence"):
        alone = replay(Scoring(other, Past(dataset.known)), queries, filters=filters).metrics("time").mrr
        found = parts.fitted.naive[other.name]
        assert found.mrr == pytest.approx(alone, abs=1e-9)
        assert found.gain[0] == pytest.approx(parts.fitted.selections["time"].chosen.mrr - alone, abs=1e-9)
    better = {"most-frequent": Naive(0.9, (-0.3, -0.4, -0.2))}
    assert replace(parts.fitted, naive=better).above == "most-frequent"
    assert replace(parts.fitted, naive={"most-frequent": Naive(0.1, (0.3, 0.2, 0.4))}).above is None


def held(naive: tuple[float, float, float, float]) -> HeldOut:
    return HeldOut(50, 0.3, 0.31, 0.32, (0.01, 0.005, 0.015), {"most-frequent": naive})


def test_a_fit_is_above_naive_ones_unless_they_gain_more_than_a_standard_error() -> None:
    assert held((0.2, 0.12, 0.1, 0.14)).above is None
    assert held((0.33, -0.01, -0.05, 0.03)).above is None
    assert held((0.4, -0.08, -0.1, -0.06)).above == "most-frequent"
    assert replace(held((0.4, -0.08, -0.1, -0.06)), naive={}).above is None


def test_the_default_falls_back_to_a_naive_one_that_is_above_it_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_world().dataset
    monkeypatch.setattr(HeldOut, "above", "most-frequent")
    with pytest.warns(UserWarning, match="most-frequent is above the model .* it is used instead"):
        model = Forecaster(settings=QUICK, learned_settings=FEW).fit(dataset, folder=tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.config.backbone, run.fit_names()) == ("most-frequent", ())
    asked = (int(dataset.test.subject[0]), int(dataset.test.relation[0]))
    assert model.forecast(*asked, top=1) == Forecaster.load(tmp_path / "run").forecast(*asked, top=1)
    with pytest.warns(UserWarning, match="consider it as the backbone, --backbone most-frequent"):
        named = Forecaster("recurrence-dyadic", settings=QUICK, learned_settings=FEW).fit(dataset)
    assert named.parts.config.backbone == "recurrence-dyadic"


def test_what_is_fitted_before_the_learned_residual_is_saved_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    dataset, run = small_world().dataset, tmp_path / "run"
    with monkeypatch.context() as stopped:
        stopped.setattr("bridgemem.fitting.fit_learned", stop)
        with pytest.raises(KeyboardInterrupt):
            Forecaster(settings=QUICK, learned_settings=FEW).fit(dataset, folder=run)
    left = Forecaster.load(run)
    assert left.residual == "bridgemem"
    assert len(left.forecast(0, 0, top=3)) == 3
    Forecaster(settings=QUICK, learned_settings=FEW).fit(dataset, folder=run, replace=True)
    assert Run(run).fit_names() == ("raw",)


def test_data_that_teaches_no_learned_residual_gets_the_paper_s_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from bridgemem.errors import DataError

    def too_few(*_: object, **__: object) -> None:
        raise DataError("small has too few queries to learn from; use --residual bridgemem.")

    monkeypatch.setattr("bridgemem.fitting.fit_learned", too_few)
    with pytest.warns(UserWarning, match="no learned residual was fitted: small has too few queries to learn from;"):
        model = Forecaster(settings=QUICK).fit(small_world().dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.predictor.learned is None


def test_scores_of_naive_ones_are_finite_where_nothing_was_seen() -> None:
    dataset = small_world().dataset
    nothing = Past(dataset.events.prefix(0))
    queries = Queries(*(torch.zeros(1, dtype=torch.int64) for _ in range(3)))
    for kind in (MostFrequent, MostRecent):
        assert bool(torch.isfinite(score_queries(kind.fit(dataset), queries, nothing).log_p).all())

"""HRI: its formula from the raw events, the choice of its parameters, and its published figure."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.hri import ALPHAS, LAMBDAS, Hri, HriSettings, choose, decay_sum
from bridgemem.backbones.recurrence import Popularity
from bridgemem.backbones.scorer import score_queries
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import load_benchmark
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import Scoring, replay
from builders import dataset_of, futures, log_of, random_log, rows_of, small_world


def hri(events: EventLog, lam: float = 0.02, alpha: float = 0.999) -> Hri:
    same = torch.ones(2 * events.n_relations, dtype=torch.float64)
    return Hri(HriSettings(lam, alpha), lam * same, alpha * same)


def query(actor: int, relation: int, step: int) -> Queries:
    return Queries(*(torch.tensor([value]) for value in (actor, relation, step)))


@pytest.mark.parametrize("frozen", [None, 18])
@pytest.mark.parametrize(("lam", "alpha"), [(0.0, 0.5), (0.02, 0.999), (1.0001, 0.99), (0.5, 1.0), (0.1, 0.0)])
def test_scores_equal_the_formula(lam: float, alpha: float, frozen: int | None) -> None:
    events = random_log(8, n=150)
    queries = Queries.of(events.between(20, 30))
    scores = hri(events, lam, alpha).score(queries, Past(events, frozen)).log_p
    R = events.n_relations
    for row, (a, r, t) in enumerate(
        zip(queries.actor.tolist(), queries.relation.tolist(), queries.step.tolist(), strict=True)
    ):
        past = [e for e in rows_of(events) if e[3] < (t if frozen is None else min(t, frozen))]
        sides = [side for s, r2, o, k in past for side in ((s, r2, o, k), (o, r2 + R, s, k))]
        same = [(a2, o, k) for a2, r2, o, k in sides if r2 == r]
        steps = [k for *_, k in same]
        D = sum(2 ** (lam * (k - t)) for k in range(min(steps), max(steps))) if same else 1.0
        D = D or 2 ** (lam * (steps[0] - 1 - t))
        for c in range(events.n_entities):
            psi = sum(2 ** (lam * (k - t)) for a2, o, k in same if (a2, o) == (a, c)) / D
            xi = sum(o == c for _, o, _ in same) / max(len(same), 1)
            expected = math.log(max(alpha * psi + (1 - alpha) * xi, 1e-12))
            assert float(scores[row, c]) == pytest.approx(expected, abs=1e-9)


def test_a_case_worked_out_by_hand() -> None:
    # relation 0 spans steps 2 to 6; (0, 0, 1) at 2 and twice at 4, (0, 0, 2) at 6, another subject's (3, 0, 1) at 5
    events = log_of([(0, 0, 1, 2), (0, 0, 1, 4), (0, 0, 1, 4), (3, 0, 1, 5), (0, 0, 2, 6), (0, 1, 4, 9)])
    scores = hri(events, lam=1.0, alpha=0.75).score(query(0, 0, 10), Past(events)).log_p.exp()[0]
    D = 1 / 2 + 1 / 4 + 1 / 8 + 1 / 16  # of 5, 4, 3 and 2, seen from 6
    assert float(scores[1]) == pytest.approx(0.75 * (1 / 16 + 1 / 4 + 1 / 4) / D + 0.25 * 4 / 5)
    assert float(scores[2]) == pytest.approx(0.75 * 1 / D + 0.25 * 1 / 5)
    assert scores[[0, 3, 4, 5]].tolist() == pytest.approx([1e-12] * 4)


@pytest.mark.parametrize("lam", [0.0, 1e-4, 0.02, 1.0001])
def test_the_closed_form_of_the_decay_equals_its_sum(lam: float) -> None:
    spans = torch.tensor([1, 2, 7, 300])
    found = decay_sum(torch.full((4,), lam, dtype=torch.float64), spans)
    expected = [sum(2 ** (-lam * j) for j in range(1, span + 1)) for span in spans.tolist()]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_relation_of_one_step_and_one_never_seen_have_finite_scores() -> None:
    events = log_of([(0, 0, 1, 3), (2, 0, 4, 3)])
    once = hri(events).score(query(0, 0, 5), Past(events)).log_p[0]
    assert torch.isfinite(once).all()
    assert int(once.argmax()) == 1
    assert float(once[4]) > float(once[5])
    never = hri(events).score(query(0, 1, 5), Past(events)).log_p
    nothing = hri(events).score(query(0, 0, 0), Past(events.prefix(0))).log_p
    for scores in (never, nothing):
        assert scores.unique().tolist() == pytest.approx([math.log(1e-12)])


def test_weights_do_not_vanish_when_the_last_fact_is_long_ago() -> None:
    events = log_of([(0, 0, 1, 0), (0, 0, 2, 1), (0, 0, 3, 2)])
    scores = hri(events, lam=1.0).score(query(0, 0, 9_000), Past(events)).log_p[0]
    assert scores.argsort(descending=True)[:3].tolist() == [3, 2, 1]


def test_two_histories_do_not_get_into_each_other() -> None:
    events = random_log(3)
    queries, backbone = Queries.of(events.between(20, 25)), hri(events)
    pasts = [Past(events), Past(events, 10), Past(events.prefix(15))]
    expected = [hri(events).score(queries, past).log_p for past in pasts]
    for _ in range(2):
        for past, scores in zip(pasts, expected, strict=True):
            assert torch.equal(backbone.score(queries, past).log_p, scores)


@pytest.mark.parametrize("settings", [HriSettings(), HriSettings(per_relation=True)])
def test_it_keeps_the_contract(settings: HriSettings) -> None:
    world = small_world()
    check_backbone(Hri.fit(world.dataset, settings), world.events)


@pytest.mark.parametrize("future", ["deleted", "corrupted", "moved to now"])
def test_scores_do_not_see_the_future(future: str) -> None:
    events = small_world().events
    queries = Queries.of(events.between(50, 51))
    expected = score_queries(hri(events), queries, Past(events))
    found = score_queries(hri(events), queries, Past(futures(events, 50)[future]))
    assert torch.equal(found.log_p, expected.log_p)
    assert found.uncertainty is not None
    assert expected.uncertainty is not None
    assert torch.equal(found.uncertainty, expected.uncertainty)


def test_saving_keeps_the_choice_of_every_relation(tmp_path: Path) -> None:
    world = small_world()
    backbone = Hri.fit(world.dataset, HriSettings(per_relation=True))
    assert len(backbone.lam.unique()) > 1
    backbone.save(tmp_path / "hri")
    again = Hri.load(tmp_path / "hri")
    assert again.settings == backbone.settings
    assert torch.equal(again.lam, backbone.lam)
    assert torch.equal(again.alpha, backbone.alpha)


# --- the choice by relation ------------------------------------------------------------------------------------------


def reciprocal_ranks(dataset: Dataset, lam: float | torch.Tensor, alpha: float) -> np.ndarray:
    """1 / rank of every validation query by the whole evaluation, a slower way than `choose` takes."""
    known = dataset.without_test().events
    same = torch.ones(2 * known.n_relations, dtype=torch.float64)
    made = replay(
        Scoring(Hri(HriSettings(), lam * same, alpha * same), Past(known)),
        Queries.of(dataset.valid),
        filters=Filters(known),
    )
    return 1 / made.of("time")


def test_each_relation_gets_its_best_lambda_then_its_best_alpha() -> None:
    dataset = dataset_of(random_log(5, n=400))
    lam, alpha = choose(dataset)
    relation = Queries.of(dataset.valid).relation.numpy()
    by_lambda = np.stack([reciprocal_ranks(dataset, x, 1.0) for x in LAMBDAS])
    by_alpha = np.stack([reciprocal_ranks(dataset, lam, x) for x in ALPHAS])
    for r in np.unique(relation).tolist():
        assert float(lam[r]) == LAMBDAS[int(by_lambda[:, relation == r].sum(1).argmax())]
        assert float(alpha[r]) == min(ALPHAS[int(by_alpha[:, relation == r].sum(1).argmax())], 0.99999)
    assert len(lam.unique()) > 1
    assert len(alpha.unique()) > 1


def test_a_relation_that_validation_does_not_ask_about_gets_the_last_values() -> None:
    rows = [(a, r, (a + r + 1) % 6, t) for t in range(20) for a in range(3) for r in range(2 if t < 10 else 1)]
    dataset = dataset_of(log_of(rows))
    lam, alpha = choose(dataset)
    assert lam.tolist()[1] == 1.0001
    assert alpha.tolist()[1] == 0.99999
    assert float(lam[0]) == 0.0


def test_test_events_leave_no_trace_in_the_choice() -> None:
    dataset = dataset_of(random_log(5, n=400))
    assert dataset.test_start is not None
    expected = choose(dataset)
    other = replace(dataset, events=futures(dataset.events, dataset.test_start)["corrupted"])
    assert other.events.fingerprint != dataset.events.fingerprint
    for found, before in zip(choose(other), expected, strict=True):
        assert torch.equal(found, before)


def test_repetition_beats_popularity_where_things_repeat() -> None:
    dataset = small_world().dataset
    queries, past, filters = Queries.of(dataset.test), Past(dataset.events), Filters(dataset.events)
    ours, floor = (
        replay(Scoring(kind.fit(dataset), past), queries, filters=filters).metrics("time").mrr
        for kind in (Hri, Popularity)
    )
    assert ours > floor + 0.05


@pytest.mark.parametrize(
    "wrong", [{"lam": -0.1}, {"lam": math.nan}, {"lam": math.inf}, {"alpha": 1.1}, {"alpha": -0.1}, {"alpha": math.nan}]
)
def test_settings_that_cannot_be_used_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        HriSettings(**wrong)


def test_icews14_scores_what_was_measured_independently(data_dir: Path) -> None:
    dataset = load_benchmark("icews14", data_dir)
    backbone = Hri.fit(dataset, HriSettings(lam=0.02, alpha=0.999))
    made = replay(Scoring(backbone, Past(dataset.events)), Queries.of(dataset.test), filters=Filters(dataset.events))
    time, static = made.metrics("time").as_dict(), made.metrics("static").as_dict()
    assert list(time.values()) == pytest.approx([0.3745, 0.2959, 0.4143, 0.5234], abs=0.001)
    assert list(static.values()) == pytest.approx([0.5519, 0.5351, 0.5530, 0.5789], abs=0.001)

"""TGB's evaluator on a run: its package ranks as the time-aware filter does, and what is missing is named."""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import bridgemem as bm
from bridgemem.errors import DataError, NotFoundError
from bridgemem.events.queries import Queries
from bridgemem.studies.tgb import evaluate_tgb
from commands import bridgemem
from edge_lists import edge_list


def with_negatives(folder: Path, name: str, data: bm.Dataset) -> Path:
    """The files that TGB keeps next to an edge list: of each query the true answers of its time, to be left out."""
    events, clock = data.events, data.events.clock
    for mode, split in (("val", data.valid), ("test", data.test)):
        conflicts: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        asked = Queries.of(split)
        assert asked.answer is not None
        times = clock.origin + asked.step.numpy() * clock.unit
        for time, actor, relation, answer in zip(
            times.tolist(), asked.actor.tolist(), asked.relation.tolist(), asked.answer.tolist(), strict=True
        ):
            conflicts[time, actor, relation].append(answer)
        unique = {key: np.unique(values) for key, values in conflicts.items()}
        (folder / f"{name}_{mode}_ns.pkl").write_bytes(pickle.dumps(unique))
    assert events.n_relations == 4
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[bm.Forecaster, Path]:
    home = tmp_path_factory.mktemp("tgb") / "tkgl_icews"
    path = edge_list(home, "tkgl-icews", numbers=True, n=900)
    data = bm.load(path)
    settings = {"width": 8, "hidden": 8, "max_epochs": 1}
    model = bm.Forecaster("recurrence", residual="bridgemem", settings=settings).fit(data)
    return model, with_negatives(home, "tkgl-icews", data)


@pytest.mark.parametrize("split", ["test", "valid"])
def test_its_mrr_is_the_time_aware_one(fitted: tuple[bm.Forecaster, Path], split: str) -> None:
    pytest.importorskip("tgb.linkproppred.evaluate")
    model, folder = fitted
    found = {one.method: one for one in evaluate_tgb(model.parts, folder, split=split)}
    own = model.evaluate(split)
    for method in ("backbone", "bridgemem"):
        assert found[method].mrr == pytest.approx(own.mrr(method, "time"), abs=1e-6)
    assert found["backbone"].queries == own[0].queries


def test_the_command_prints_its_figures(fitted: tuple[bm.Forecaster, Path], tmp_path: Path) -> None:
    pytest.importorskip("tgb.linkproppred.evaluate")
    model, folder = fitted
    run = model.save(tmp_path / "run")
    shown = bridgemem("tgb", run, folder, "--queries", 50)
    assert shown.code == 0, shown.err
    assert "tkgl-icews, test, 50 queries, TGB's evaluator" in shown.out
    assert [one["method"] for one in bridgemem("tgb", run, folder, "--json").json["figures"]] == [
        "backbone",
        "bridgemem",
    ]
    bridgemem("tgb", run, folder, "--split", "train").refused()


def test_what_is_missing_is_named(
    fitted: tuple[bm.Forecaster, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = fitted
    other = edge_list(tmp_path / "other", "tkgl-icews", numbers=True)
    with pytest.raises(NotFoundError, match=r"lacks tkgl-icews_test_ns.pkl"):
        evaluate_tgb(model.parts, other)
    with pytest.raises(DataError, match="was fitted on tkgl-icews, not on tkgl-yago"):
        evaluate_tgb(model.parts, edge_list(tmp_path / "yago", "tkgl-yago", numbers=True))
    monkeypatch.setitem(sys.modules, "tgb.linkproppred.evaluate", None)
    with pytest.raises(NotFoundError, match=r"pip install -e '\.\[tgb\]'"):
        evaluate_tgb(model.parts, folder)

"""Trained again on data that differs later on, a model must score the same: leaks are caught by their name."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import bridgemem as bm
from bridgemem.backbones import BACKBONES, backbone_class
from bridgemem.backbones.check import examined
from bridgemem.backbones.retraining import retrained, trainer
from bridgemem.backbones.stored import Stored, write_scores
from bridgemem.backbones.verdicts import Finding, overall
from bridgemem.errors import BackboneError, DataError
from bridgemem.events.dataset import Dataset
from builders import random_log, small_world
from leaking_models import LEAKS, Honest, ReadsItsTable, TrainedOnTest

# far from good, but with every part in place
FAST: dict[str, dict[str, Any]] = {
    "cenet": {"width": 8, "epochs": 1, "oracle_epochs": 1, "batch": 64},
    "cygnet": {"width": 8, "epochs": 1, "batch": 32},
    "regcn": {"width": 8, "kernels": 3, "history": 3, "epochs": 1},
    "tirgn": {"width": 8, "kernels": 3, "history": 3, "epochs": 1},
    "est": {"width": 8, "time_width": 4, "k": 5, "layers": 1, "heads": 2, "hidden": 8, "epochs": 1, "batch": 200},
    "infer": {"walks": 20, "samples": 40},
    "tpar": {"width": 8, "attention": 6, "edges": (12, 6), "window": 40, "batch": 64, "epochs": 1},
    "csi": {"width": 8, "attention": 6, "edges": (12, 6), "window": 40, "batch": 64, "epochs": 1},
    "stream": {"width": 8, "k": 5, "heads": 2, "negatives": 0, "epochs": 1, "batch": 200},
    "counting+stream": {
        "members": ("recurrence-typed", "stream"),
        "changed": ("stream.width=8", "stream.k=5", "stream.epochs=1", "stream.batch=200"),
    },
    "ensemble": {"members": ("hri", "popularity", "recurrence")},
}


@cache
def world() -> Dataset:
    return small_world().dataset


@cache
def little() -> Dataset:
    return Dataset("little", random_log(8, n=240, steps=20), 14, 17)


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "stored"])
def test_every_built_in_backbone_passes(name: str) -> None:
    found = bm.check_backbone(backbone_class(name), little(), settings=FAST.get(name), queries=24)
    assert (found.passed, found.word) == (True, "pass"), str(found)


@pytest.mark.parametrize(("model", "leak"), LEAKS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_a_leaking_model_is_caught_by_the_name_of_its_leak(model: Any, leak: str) -> None:
    with pytest.raises(BackboneError, match=leak):
        bm.check_backbone(model, world())
    found = examined(model, world())
    assert found.passed is False
    assert [leak in one.seen for one in found if one.passed is False] == [True]


def test_an_honest_one_passes_as_a_class_and_is_its_makers_word_once_trained() -> None:
    assert bm.check_backbone(Honest, world()).word == "pass"
    trained = bm.check_backbone(Honest(world()), world())
    assert (trained.passed, trained.word) == (None, "nothing failed, 2 not checkable")
    assert [one.check for one in trained if one.passed is None] == ["blind to the future", "training"]
    assert all("its maker's word" in one.seen for one in trained if one.passed is None)


@pytest.mark.parametrize("kind", [ReadsItsTable, TrainedOnTest])
def test_a_leak_that_cannot_be_checked_is_never_called_a_pass(kind: Any) -> None:
    found = bm.check_backbone(kind(world()), world())
    assert found.passed is None
    assert "pass" not in str(found)


def test_a_function_that_makes_a_model_is_checked_as_a_class_is() -> None:
    assert bm.check_backbone(lambda data: Honest(data), world()).word == "pass"
    with pytest.raises(BackboneError, match="was trained on later events"):
        bm.check_backbone(lambda data: TrainedOnTest(data), world())
    assert trainer(lambda actor, relation, step: None) is None
    assert trainer(Honest(world())) is None


def test_a_trained_backbone_is_retrained_on_request() -> None:
    from bridgemem.backbones.recurrence import Recurrence

    made = Recurrence.fit(world())
    assert bm.check_backbone(made, world()).passed is None
    assert bm.check_backbone(made, world(), retrain=True).passed is True
    assert bm.check_backbone(Recurrence, world(), retrain=False).passed is None


def test_what_does_not_depend_on_the_data_is_its_makers_word() -> None:
    class FromElsewhere(Honest):
        """As one that reads a file of its own, whatever it is given."""

        def __init__(self, data: Dataset) -> None:
            super().__init__(world())

    found = bm.check_backbone(FromElsewhere, world())
    (last,) = (one for one in found if one.passed is None)
    assert "do not depend on the data that it is given" in last.seen


def test_a_training_that_is_not_repeatable_is_not_checkable() -> None:
    class Restless(nn.Module):
        def __init__(self, data: Dataset) -> None:
            super().__init__()
            noise = torch.Generator().manual_seed(torch.seed() % 2**31)
            self.table = torch.randn(data.events.n_entities, generator=noise)

        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return self.table.repeat(len(actor), 1)

    with torch.random.fork_rng():
        found = bm.check_backbone(Restless, world())
    assert "the same training gave other scores" in next(one.seen for one in found if one.passed is None)


def test_large_logits_are_judged_by_their_scale() -> None:
    class Loud(Honest):
        """Logits of thousands, whose last digits depend on the size of a batch, as those of a product do."""

        def forward(self, actor: torch.Tensor, relation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return 1000 * self.table[relation] + 1e-3 * len(actor)

    assert bm.check_backbone(Loud, world()).passed is True


def test_few_steps_cannot_be_checked() -> None:
    events = world().events.prefix(2)
    found = retrained(lambda data: Honest(data), events)  # type: ignore[arg-type,return-value]
    assert found.passed is None


def test_stored_scores_are_their_makers_word(tmp_path: Any) -> None:
    from bridgemem.backbones.scorer import Scores

    data = little()
    write_scores(tmp_path / "s", data, lambda q: Scores(torch.zeros(len(q), data.events.n_entities)), name="theirs")
    stored = Stored.load(tmp_path / "s")
    found = bm.check_backbone(stored, data)
    assert found.word == "nothing failed, 2 not checkable"
    write_scores(tmp_path / "t", data, lambda q: Scores(torch.zeros(len(q), data.events.n_entities)), splits=["test"])
    with pytest.raises(DataError, match="write those of validation too"):
        bm.check_backbone(Stored.load(tmp_path / "t"), data)


def test_one_word_is_pass_only_if_all_is_shown() -> None:
    shown, unknown, wrong = (Finding("a", passed, "") for passed in (True, None, False))
    assert [one.verdict for one in (shown, unknown, wrong)] == ["shown", "not checkable", "not shown"]
    assert overall([shown, shown]) == "pass"
    assert overall([shown, unknown]) == "nothing failed, 1 not checkable"
    assert overall([wrong, unknown]) == "fail, 1 not checkable"

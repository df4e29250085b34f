"""Mixture: its probabilities are the members' mean, and it is saved, resumed and refused as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bridgemem.backbones import load_backbone
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.history import History
from bridgemem.backbones.hri import Hri
from bridgemem.backbones.mixture import Mixture, MixtureSettings
from bridgemem.backbones.recurrence import Popularity, Recurrence
from bridgemem.errors import SettingsError
from bridgemem.evaluation.queries import Queries
from bridgemem.events.dataset import Dataset
from builders import dataset_of, random_log

CHEAP = MixtureSettings(members=("hri", "popularity"))


@pytest.fixture
def dataset() -> Dataset:
    return dataset_of(random_log(3, n=200))


def scores(backbone: Backbone, dataset: Dataset) -> torch.Tensor:
    return backbone.score(Queries.of(dataset.valid), History(dataset.events)).log_p


def test_the_probabilities_are_the_mean_of_the_members(dataset: Dataset) -> None:
    parts = [scores(kind.fit(dataset), dataset).softmax(1) for kind in (Hri, Popularity)]
    mixed = scores(Mixture.fit(dataset, CHEAP), dataset).exp()
    torch.testing.assert_close(mixed, (parts[0] + parts[1]) / 2)


def test_it_keeps_the_contract(dataset: Dataset) -> None:
    check_backbone(Mixture.fit(dataset, CHEAP), dataset.known)


def test_saved_and_loaded_it_scores_the_same(dataset: Dataset, tmp_path: Path) -> None:
    backbone = Mixture.fit(dataset, CHEAP)
    backbone.save(tmp_path / "b")
    assert torch.equal(scores(load_backbone(tmp_path / "b"), dataset), scores(backbone, dataset))


def test_a_member_trained_before_a_kill_is_not_trained_again(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Mixture.fit(dataset, CHEAP, checkpoint=tmp_path / "state")

    def never(*args: object) -> None:
        raise AssertionError("a finished member was trained again")

    monkeypatch.setattr(Hri, "fit", never)
    resumed = Mixture.fit(dataset, CHEAP, checkpoint=tmp_path / "state")
    assert torch.equal(scores(resumed, dataset), scores(whole, dataset))


@pytest.mark.parametrize("members", [(), ("hri",), ("hri", "hri"), ("hri", "mixture"), ("hri", "stored"), ("hri", "x")])
def test_members_that_make_no_mixture_are_refused(members: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="members"):
        MixtureSettings(members=members)


def test_members_differ_from_what_they_make(dataset: Dataset) -> None:
    mixed = Mixture.fit(dataset, MixtureSettings(members=("recurrence", "popularity")))
    assert not torch.equal(scores(mixed, dataset).argsort(), scores(Recurrence.fit(dataset), dataset).argsort())

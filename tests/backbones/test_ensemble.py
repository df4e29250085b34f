"""Ensemble: its probabilities are the members' mean, and it is saved, resumed and refused as a whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bridgemem.backbones import ensemble, load_backbone
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
from bridgemem.backbones.hri import Hri
from bridgemem.backbones.recurrence import Popularity, Recurrence
from bridgemem.backbones.trained import train, trained_so
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from builders import dataset_of, random_log
from precision import close

CHEAP = EnsembleSettings(members=("hri", "popularity"))


@pytest.fixture
def dataset() -> Dataset:
    return dataset_of(random_log(3, n=200))


def scores(backbone: Backbone, dataset: Dataset) -> torch.Tensor:
    return backbone.score(Queries.of(dataset.valid), Past(dataset.events)).log_p


def test_the_probabilities_are_the_mean_of_the_members(dataset: Dataset) -> None:
    parts = [scores(kind.fit(dataset), dataset).softmax(1) for kind in (Hri, Popularity)]
    mixed = scores(Ensemble.fit(dataset, CHEAP), dataset).exp()
    assert close(mixed, (parts[0] + parts[1]) / 2)


def test_it_keeps_the_contract(dataset: Dataset) -> None:
    check_backbone(Ensemble.fit(dataset, CHEAP), dataset.known)


def test_saved_and_loaded_it_scores_the_same(dataset: Dataset, tmp_path: Path) -> None:
    backbone = Ensemble.fit(dataset, CHEAP)
    backbone.save(tmp_path / "b")
    assert torch.equal(scores(load_backbone(tmp_path / "b"), dataset), scores(backbone, dataset))


def test_a_member_trained_before_a_kill_is_not_trained_again(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Ensemble.fit(dataset, CHEAP, checkpoint=tmp_path / "state")

    def never(*args: object) -> None:
        raise AssertionError("a finished member was trained again")

    monkeypatch.setattr(Hri, "fit", never)
    resumed = Ensemble.fit(dataset, CHEAP, checkpoint=tmp_path / "state")
    assert torch.equal(scores(resumed, dataset), scores(whole, dataset))
    assert resumed.seconds == whole.seconds  # of all members, whichever start trained them


@pytest.mark.parametrize("other", ["seed", "data", "split", "settings"])
def test_a_finished_member_of_another_training_is_trained_again(other: str, dataset: Dataset, tmp_path: Path) -> None:
    state = tmp_path / "state"
    Ensemble.fit(dataset, CHEAP, seed=1, checkpoint=state)
    now, settings = dataset, CHEAP
    if other == "data":
        now = dataset_of(random_log(4, n=200))
    elif other == "split":
        now = Dataset(dataset.name, dataset.known, dataset.valid_start - 2)
    elif other == "settings":
        settings = replace(CHEAP, tuned_for="wiki")
    seed = 2 if other == "seed" else 1
    kept = note(state)
    resumed = Ensemble.fit(now, settings, seed=seed, checkpoint=state)
    assert torch.equal(scores(resumed, now), scores(Ensemble.fit(now, settings, seed=seed), now))
    assert resumed.settings == settings
    assert (note(state) == kept) == (other == "settings")


def note(state: Path) -> dict[str, object]:
    """What is noted of a member's training, but for its seconds."""
    found = json.loads((state / "hri" / "trained.json").read_text())
    return {name: value for name, value in found.items() if name != "seconds"}


def test_a_member_without_a_note_of_its_training_is_trained_again(dataset: Dataset, tmp_path: Path) -> None:
    Hri.fit(dataset, replace(Hri.default, alpha=0.5)).save(tmp_path / "state" / "hri")
    resumed = Ensemble.fit(dataset, CHEAP, checkpoint=tmp_path / "state")
    assert torch.equal(scores(resumed, dataset), scores(Ensemble.fit(dataset, CHEAP), dataset))


TUNED = EnsembleSettings(members=("hri", "popularity"), tuned_for="wiki")


def other_settings(name: str, _: str) -> object:
    """What a later version of the package might say."""
    return replace(Hri.default, lam=0.3, alpha=0.5) if name == "hri" else Popularity.default


def test_a_saved_ensemble_keeps_the_settings_its_members_were_trained_with(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Ensemble.fit(dataset, TUNED)
    trained.save(tmp_path / "b")
    before = scores(trained, dataset)
    monkeypatch.setattr(ensemble, "backbone_defaults", other_settings)
    again = load_backbone(tmp_path / "b")
    assert torch.equal(scores(again, dataset), before)
    assert torch.equal(scores(Ensemble.restore(again.settings, again.tensors()), dataset), before)
    # trained anew from its own settings it is the same; the package would make another one of it
    assert torch.equal(scores(Ensemble.fit(dataset, again.settings), dataset), before)
    assert again.settings == trained.settings
    assert again.settings != TUNED


def test_a_trained_one_is_known_again_by_settings_that_leave_sizes_to_the_device(
    dataset: Dataset, tmp_path: Path
) -> None:
    asked = EnsembleSettings(("recurrence", "stream"), changed=("stream.epochs=1", "stream.heads=1"))
    train("ensemble", dataset, tmp_path / "both", asked, seed=1)
    assert trained_so(tmp_path / "both", dataset, asked, 1)
    assert not trained_so(tmp_path / "both", dataset, replace(asked, changed=("stream.epochs=2",)), 1)
    assert not trained_so(tmp_path / "both", dataset, asked, 2)


def test_settings_of_a_data_set_that_there_are_none_for_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'icews41'.*icews14, icews18"):
        EnsembleSettings(tuned_for="icews41")


@pytest.mark.parametrize(
    "members", [(), ("hri",), ("hri", "hri"), ("hri", "ensemble"), ("hri", "stored"), ("hri", "x")]
)
def test_members_that_make_no_ensemble_are_refused(members: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="members"):
        EnsembleSettings(members=members)


def test_members_differ_from_what_they_make(dataset: Dataset) -> None:
    mixed = Ensemble.fit(dataset, EnsembleSettings(members=("recurrence", "popularity")))
    assert not torch.equal(scores(mixed, dataset).argsort(), scores(Recurrence.fit(dataset), dataset).argsort())


def test_the_recipe_is_the_same_for_all_data_and_gives_way_to_what_is_asked_for() -> None:
    plain, other = EnsembleSettings(), EnsembleSettings(("regcn", "csi"), changed=("regcn.epochs=3",))
    assert plain.members == ("recurrence-typed", "stream", "regcn", "tpar")
    assert plain.each()["regcn"].static
    assert plain.each()["tpar"].most_queries == 150_000
    assert (other.each()["regcn"].epochs, other.each()["regcn"].static) == (3, True)
    assert not EnsembleSettings(("regcn", "csi"), tuned_for="wiki").each()["regcn"].static
    assert not Ensemble.tuned_unless_set(plain), "its members fit any data"
    assert Ensemble.tuned_unless_set(EnsembleSettings(("regcn", "csi")))

"""Natural mistakes in Python: what is meant is taken where it is plain, and one sentence says what to do elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import bridgemem as bm
from bridgemem.backbones.recurrence import Recurrence, RecurrenceSettings
from bridgemem.backbones.scorer import Scores
from bridgemem.errors import BackboneError, BridgeMemError, DataError, NotFoundError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.world import World
from bridgemem.forecasting.answers import Candidate
from commands import planted_rows, write_rows

SMALL = bm.Settings(width=8, hidden=8, max_epochs=1)


def simulated(**sizes: int) -> World:
    return bm.simulate(bm.WorldSettings(**{"actors": 20, "relations": 5, "steps": 40, "events": 800, **sizes}))


@pytest.fixture(scope="module")
def world() -> Dataset:
    return simulated().dataset


def forecaster(backbone: Any, **settings: Any) -> bm.Forecaster:
    return bm.Forecaster(backbone, residual="bridgemem", **{"settings": SMALL, **settings})


class Own(bm.Backbone):
    """First ids first; what `score` returns is made of the scores as a test wants it. It learns nothing."""

    name: ClassVar[str] = "own"
    default: ClassVar[RecurrenceSettings] = RecurrenceSettings()

    def __init__(self, form: Callable[[torch.Tensor], Any] = Scores) -> None:
        self.settings, self.form = self.default, form

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Any) -> Own:
        return cls()

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, torch.Tensor]) -> Own:
        return cls()

    def score(self, queries: Any, past: Any) -> Any:
        return self.form(-torch.arange(past.events.n_entities).float().repeat(len(queries), 1))


class Net(torch.nn.Module):
    """A network as people have it."""


class OnlyScores:
    """A scorer without a name, and no backbone."""

    def score(self, queries: Any, past: Any) -> Any:
        return Own().score(queries, past)


FORMS = {
    "tensor": lambda x: x,
    "array": lambda x: x.numpy(),
    "float64 array": lambda x: x.double().numpy(),
    "whole numbers": lambda x: Scores(x.long()),
    "array of whole numbers": lambda x: x.long().numpy(),
    "Scores of an array": lambda x: Scores(x.numpy()),
    "with gradients": lambda x: Scores(x.requires_grad_()),
}


@pytest.fixture(scope="module")
def wanted(world: Dataset) -> list[Candidate]:
    return forecaster(Own()).fit(world).forecast(0, 0, top=3)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_scores_are_taken_in_every_plain_form(
    form: Callable[[torch.Tensor], Any], world: Dataset, wanted: list[Candidate]
) -> None:
    found = forecaster(Own(form)).fit(world).forecast(0, 0, top=3)
    assert [c.name for c in found] == [c.name for c in wanted]
    assert [c.backbone_score for c in found] == [c.backbone_score for c in wanted]


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (lambda x: None, "NoneType"),
        (lambda x: x.tolist(), "list"),
        (lambda x: (x, None), "tuple"),
        (lambda x: x > -3, "torch.bool values"),
        (lambda x: np.full(x.shape, "high"), "values"),
    ],
)
def test_other_scores_are_refused_with_what_to_return(form: Any, kind: str, world: Dataset) -> None:
    with pytest.raises(BackboneError, match=rf"own returned .*{kind} from score; return Scores\(log_p\)"):
        bm.check_backbone(Own(form), world)


def test_counts_of_any_size_are_not_rounded(world: Dataset) -> None:
    """float32 knows no odd number above 2^24."""
    from bridgemem.backbones.scorer import as_scores

    big = torch.tensor([[2**24 + 1]])
    assert int(as_scores(big, "big", "cpu").log_p) == 2**24 + 1


def test_a_class_of_backbones_is_trained(world: Dataset) -> None:
    for kind, name in ((Recurrence, "recurrence"), (Own, "own")):
        assert forecaster(kind).fit(world).parts.backbone().name == name


def test_events_are_loaded_wherever_a_data_set_belongs(tmp_path: Path) -> None:
    rows = planted_rows()
    csv = write_rows(tmp_path / "own.csv", rows)
    columns = dict(zip(("subject", "relation", "object", "time"), zip(*rows, strict=True), strict=True))
    wanted = bm.load(csv).events.fingerprint
    for given in (rows, [list(row) for row in rows], np.array(rows), columns):
        assert bm.load(given).events.fingerprint == wanted
    assert bm.load(simulated()).name == "world"
    own = Recurrence.fit(str(csv))
    bm.check_backbone(own, csv)
    bm.check_backbone(own, bm.load(csv))
    assert forecaster(own).fit(columns).forecast("Arvan", "visit", top=1)


@pytest.mark.parametrize("given", [None, 3, 2.5, {1, 2}, bm.Forecaster(), bm.load], ids=lambda one: type(one).__name__)
def test_what_is_no_events_is_refused(given: Any) -> None:
    with pytest.raises(DataError, match="events are a data set's name, a file"):
        bm.load(given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (Net(), "derive a model of your own from bridgemem.Backbone"),
        (Net, "not Net; derive"),
        (OnlyScores(), "OnlyScores only scores.*write_scores"),
        (None, "a name, a folder or a bridgemem.Backbone, not NoneType"),
        (lambda queries, past: 0, "not function"),
        (bm.Forecaster(), "not Forecaster"),
    ],
)
def test_what_is_no_backbone_is_refused(given: Any, remedy: str, world: Dataset) -> None:
    model = forecaster(given)
    assert "not fitted" in repr(model)
    with pytest.raises(BackboneError, match=remedy):
        model.fit(world)


def test_data_given_as_the_backbone_is_sent_to_fit(world: Dataset) -> None:
    for data in (world, world.events):
        with pytest.raises(BackboneError, match=r"the data goes to fit, as in Forecaster\(\).fit\(data\)"):
            forecaster(data).fit(world)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (Net(), "Net cannot be called; your model must take"),
        (bm.Forecaster(), r"give its backbone, model.parts.backbone\(\)"),
        (3, r"int has no score\(queries, past\)"),
    ],
)
def test_check_backbone_says_what_it_takes(given: Any, remedy: str, world: Dataset) -> None:
    with pytest.raises(BackboneError, match=remedy):
        bm.check_backbone(given, world)


def test_check_backbone_takes_a_scorer_without_a_name_and_one_that_learned_nothing(world: Dataset) -> None:
    bm.check_backbone(OnlyScores(), world)
    bm.check_backbone(Own(), world)


def test_check_backbone_needs_events(world: Dataset) -> None:
    with pytest.raises(DataError, match="needs events to ask about"):
        bm.check_backbone(Own(), world.events.prefix(0))


@pytest.mark.parametrize("sizes", [{"actors": 25}, {"actors": 15, "relations": 4}, {"seed": 9}], ids=str)
def test_a_backbone_of_other_data_is_refused_at_once(sizes: dict[str, int], world: Dataset) -> None:
    other = Recurrence.fit(simulated(**sizes))
    with pytest.raises(BackboneError, match=r"trained on other events than the train split of world.*train it on this"):
        forecaster(other).fit(world)


def test_a_backbone_of_another_size_is_refused_where_nothing_is_noted(world: Dataset) -> None:
    other = Recurrence.fit(simulated(actors=25))
    other.fitted_on = None
    with pytest.raises(BackboneError, match=r"shape \(1, 25\) instead of \(1, 20\), queries by entities; train it"):
        forecaster(other).fit(world)


def test_a_run_folder_stands_for_its_backbone(world: Dataset, tmp_path: Path) -> None:
    run = forecaster("hri").fit(world).save(tmp_path / "run")
    for folder in (run, str(run), run / "backbone"):
        assert forecaster(folder).fit(world).parts.backbone().name == "hri"
    with pytest.raises(BridgeMemError, match="there is no folder and no backbone called"):
        forecaster(tmp_path / "missing").fit(world)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BridgeMemError, match="holds no saved model"):
        forecaster(tmp_path / "empty").fit(world)


def test_a_saved_backbone_of_a_class_that_is_not_installed_says_how_to_install_it(
    world: Dataset, tmp_path: Path
) -> None:
    run = forecaster(Own()).fit(world).save(tmp_path / "run")
    with pytest.raises(
        NotFoundError, match=r"called 'own' \(class Own\), which no installed package offers.*entry-point group"
    ):
        bm.Forecaster.load(run).forecast(0, 0)


def test_settings_may_be_a_dict(world: Dataset) -> None:
    made = forecaster(
        "recurrence", settings={"max_epochs": 1, "width": 8}, backbone_settings={"popularity_weight": 0.5}
    )
    assert made.fit(world).parts.backbone().settings.popularity_weight == 0.5
    assert made.settings == bm.Settings(max_epochs=1, width=8)
    with pytest.raises(SettingsError, match="did you mean max_epochs"):
        forecaster("recurrence", settings={"max_epoch": 1})
    with pytest.raises(SettingsError, match="not the class Settings"):
        forecaster("recurrence", settings=bm.Settings)


def test_a_data_set_is_no_split_and_a_text_no_number(world: Dataset) -> None:
    model = forecaster("recurrence").fit(world)
    with pytest.raises(DataError, match='evaluate reads a split of the data that was fitted on: "test" or "valid"'):
        model.evaluate(world)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="top must be a whole number"):
        model.forecast(0, 0, top="3")  # type: ignore[arg-type]

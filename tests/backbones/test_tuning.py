"""Tuning: validation chooses the settings of a grid within a budget, in one order, and test is never read."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor

import bridgemem as bm
from bridgemem.backbones import BACKBONES, backbone_class, tuning
from bridgemem.backbones.base import Backbone, Bounds, Grid
from bridgemem.backbones.ensemble import Ensemble, EnsembleSettings
from bridgemem.backbones.hri import Hri
from bridgemem.backbones.regcn import Regcn, RegcnSettings
from bridgemem.backbones.scorer import Scores
from bridgemem.backbones.tirgn import Tirgn, TirgnSettings
from bridgemem.backbones.trained import open_backbone, train
from bridgemem.backbones.tuning import CUT, TUNING, Tuning, as_text, seconds_of, tune
from bridgemem.cli.model import _show_tuning
from bridgemem.config import Count, Declared, Finite
from bridgemem.errors import SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import LineProgress
from bridgemem.training.checkpoint import Training
from builders import random_log
from commands import bridgemem


@dataclass(frozen=True)
class KnobSettings(Declared):
    """The nearer both are to 3 and 7, the better it scores; epochs do nothing."""

    left: Finite = 0.0
    right: Finite = 0.0
    epochs: Count = 50


class Knobs(Backbone):
    """A backbone that is nothing but its settings."""

    name: ClassVar[str] = "knobs"
    default: ClassVar[KnobSettings] = KnobSettings()
    grid: ClassVar[Grid] = {"left": (0.0, 3.0, 9.0), "right": (0.0, 7.0)}
    trial: ClassVar[Bounds] = {"epochs": 2}
    fitted: ClassVar[list[KnobSettings]] = []

    def __init__(self, settings: KnobSettings) -> None:
        self.settings = settings

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        cls.fitted.append(settings)
        with training.progress.task("epochs", total=settings.epochs) as advance:
            for _ in range(settings.epochs):
                advance(1)
        return cls(settings)

    def score(self, queries: Queries, past: Past) -> Scores:
        return Scores(torch.zeros((len(queries), past.events.n_entities)))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        return cls(settings)


@cache
def data() -> Dataset:
    return Dataset("tiny", random_log(8, n=600, steps=40), 30, 35)


@cache
def hri_alone() -> Tuning:
    return tune("hri", data())


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What knobs are worth goes by their settings alone; all others are measured."""
    own = tuning.validation_mrr

    def mrr(backbone: Backbone, queries: Queries, **how: Any) -> float:
        s = backbone.settings
        return (
            1 / (1 + abs(s.left - 3) + abs(s.right - 7))
            if isinstance(s, KnobSettings)
            else own(backbone, queries, **how)
        )

    monkeypatch.setattr(tuning, "validation_mrr", mrr)
    Knobs.fitted.clear()


def test_one_setting_after_the_other_is_tried_and_the_best_is_taken() -> None:
    made = tune(Knobs, data())
    assert made.settings == KnobSettings(3.0, 7.0)
    assert made.whole
    assert [trial.changed for trial in made.trials][:4] == [
        {},
        {"left": 3.0},
        {"left": 9.0},
        {"left": 3.0, "right": 7.0},
    ]
    figures = {str(trial.changed): trial.mrr for trial in made.trials}
    assert figures[str(made.best("knobs").changed)] == max(figures.values())


@pytest.mark.parametrize(("value", "tried"), [(0.0, 0), (3.0, 1)])
def test_a_setting_that_nothing_reads_is_not_tried(value: float, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Knobs, "only_with", {"right": "left"})
    monkeypatch.setattr(Knobs, "grid", {"right": (0.0, 7.0)})
    made = tune(Knobs, data(), settings=KnobSettings(left=value))
    assert len([trial for trial in made.trials if "right" in trial.changed]) == tried


def test_trials_are_shorter_than_a_training_and_what_is_chosen_is_not() -> None:
    made = tune(Knobs, data())
    assert {settings.epochs for settings in Knobs.fitted} == {2}
    assert made.settings.epochs == 50


def test_the_order_and_the_choice_are_the_same_every_time() -> None:
    first, second = tune(Knobs, data()), tune(Knobs, data())
    assert [(t.changed, t.mrr) for t in first.trials] == [(t.changed, t.mrr) for t in second.trials]


def test_what_is_held_stays_as_it_is() -> None:
    made = tune(Knobs, data(), settings={"left": 9.0}, held=("left",))
    assert made.settings == KnobSettings(9.0, 7.0)
    assert all("left" not in trial.changed for trial in made.trials)


def test_test_is_never_read() -> None:
    """Whatever comes after validation is other events: the trials are the same to the last bit."""
    events = data().events
    later = np.asarray(events.step) >= 35
    spoiled = replace(events, object=np.where(later, (events.object + 1) % events.n_entities, events.object))
    one = hri_alone()
    two = tune("hri", Dataset("tiny", spoiled, 30, 35))
    assert [(t.changed, t.mrr) for t in one.trials] == [(t.changed, t.mrr) for t in two.trials]


def test_a_trial_that_reaches_the_budget_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1_000_000, 10))
    monkeypatch.setattr(tuning.time, "monotonic", lambda: float(next(now)))
    made = tune(Knobs, data(), budget=45)
    assert [trial.note for trial in made.trials][-1] == CUT
    assert made.trials[-1].mrr is None
    assert not made.whole
    assert made.settings in (KnobSettings(), KnobSettings(3.0))


def test_nothing_is_chosen_where_no_trial_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1_000_000, 10))
    monkeypatch.setattr(tuning.time, "monotonic", lambda: float(next(now)))
    made = tune(Knobs, data(), budget=1)
    assert made.settings == KnobSettings()
    assert len(made.trials) == 1
    assert made.best("knobs") is None


def test_a_setting_that_does_not_fit_into_memory_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Knobs.train.__func__

    def full(cls: type[Knobs], dataset: Dataset, settings: Any, training: Training) -> Knobs:
        if settings.left == 3.0:
            raise torch.OutOfMemoryError
        return own(cls, dataset, settings, training)

    monkeypatch.setattr(Knobs, "train", classmethod(full))
    made = tune(Knobs, data())
    assert made.settings.left != 3.0
    assert any(trial.note == tuning.NO_ROOM for trial in made.trials)


def test_an_interrupted_tuning_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept = tune(Knobs, data()), tmp_path / "trials.json"
    own, seen = Knobs.train.__func__, []

    def stopping(cls: type[Knobs], dataset: Dataset, settings: Any, training: Training) -> Knobs:
        seen.append(settings)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return own(cls, dataset, settings, training)

    with monkeypatch.context() as patched:
        patched.setattr(Knobs, "train", classmethod(stopping))
        with pytest.raises(KeyboardInterrupt):
            tune(Knobs, data(), keep=kept)
    Knobs.fitted.clear()
    again = tune(Knobs, data(), keep=kept)
    assert len(Knobs.fitted) == len(whole.trials) - 2
    assert [(t.changed, t.mrr) for t in again.trials] == [(t.changed, t.mrr) for t in whole.trials]
    Knobs.fitted.clear()
    other = tune(Knobs, data(), keep=kept, seed=7)  # of another tuning nothing is taken
    assert len(Knobs.fitted) == len(other.trials)


def said(out: io.StringIO) -> list[str]:
    return out.getvalue().splitlines()


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every epoch of a trial takes so long, by the clock that tuning reads."""
    now = [0.0]
    own = Knobs.train.__func__

    def ticking(cls: type[Knobs], dataset: Dataset, settings: Any, training: Training) -> Knobs:
        now[0] += seconds
        return own(cls, dataset, settings, training)

    monkeypatch.setattr(Knobs, "train", classmethod(ticking))
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])


def test_grid_and_budget_are_told_before_the_trials_and_their_pace_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow(monkeypatch, 20.0)
    out = io.StringIO()
    made = tune(Knobs, data(), budget="70s", progress=LineProgress(out, clock=lambda: 0.0))
    assert said(out) == [
        "Tuning knobs. Settings in the grid: 2; trials in a round: 4, and another round follows while one gains; "
        "budget: 70 s.",
        "The first trial took 20 s. If all take as long, the budget holds about 3 of them, and a round of 4 needs "
        "about 80 s.",
    ]
    assert made.grid == {"knobs": 4}
    assert [trial.note for trial in made.trials] == ["", "", "", CUT]


def test_a_round_leaves_out_what_nothing_reads_and_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune(Knobs, data(), held=("left",)).grid == {"knobs": 2}
    monkeypatch.setattr(Knobs, "only_with", {"right": "left"})
    assert tune(Knobs, data()).grid == {"knobs": 3}


def test_nothing_is_expected_of_a_first_trial_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 20.0)
    out = io.StringIO()
    tune(Knobs, data(), budget="10s", progress=LineProgress(out, clock=lambda: 0.0))
    assert len(said(out)) == 1


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0", "10 minutes"])
def test_a_budget_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="90s, 10m or 2h"):
        seconds_of(text)


def test_a_budget_is_a_number_with_a_unit() -> None:
    assert [seconds_of(x) for x in ("90", "90s", "10m", "1.5h", 30)] == [90, 90, 600, 5400, 30]


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "stored"])
def test_every_grid_names_settings_of_its_backbone(name: str) -> None:
    kind = backbone_class(name)
    for setting, values in kind.grid.items():
        assert len(set(values)) == len(values) > 1
        for value in values:
            assert getattr(replace(kind.default, **{setting: value}), setting) == value
    for setting in kind.trial:
        assert getattr(kind.default, setting) >= 1


def test_the_grids_hold_what_the_papers_tune_by_data_set() -> None:
    """Of yago and wiki: short histories, one layer; no graph of names where no name has two parts."""
    for kind, default in ((Regcn, RegcnSettings()), (Tirgn, TirgnSettings())):
        assert {1, 2} <= set(kind.grid["history"])
        assert default.history in kind.grid["history"]
        assert 1 in kind.grid["layers"]
        assert not {"static", "angle"} & set(kind.tunable(data()))
    assert {1, 2, 7, 9, 15} == set(Tirgn.grid["history"])
    assert {10.0, 14.0} == set(Tirgn.grid["angle"])
    assert {0.02, 1.0001} <= set(Hri.grid["lam"])
    assert {0.99, 0.999} <= set(Hri.grid["alpha"])


def test_names_of_two_parts_make_the_static_graph_worth_a_trial() -> None:
    events = data().events
    names = [f"Police ({name})" for name in events.entities.names]
    named = replace(events, entities=replace(events.entities, names=tuple(names)))
    assert "static" in Regcn.tunable(Dataset("named", named, 30, 35))


def test_tirgn_tries_its_grid_in_short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tirgn, "trial", {"epochs": 1})
    small = TirgnSettings(width=6, kernels=3, epochs=20)
    brief = Dataset("brief", random_log(8, n=300, steps=20), 15, 18)
    made = tune("tirgn", brief, settings=small, held=("history_rate",))
    assert made.trials[0].changed == {}
    assert {"history": 1} in [trial.changed for trial in made.trials]
    assert any(trial.changed.get("layers") == 1 for trial in made.trials)
    assert made.settings.epochs == 20
    assert made.settings.width == 6


def test_training_keeps_the_trials_and_a_run_takes_them_along(tmp_path: Path) -> None:
    home = tmp_path / "hri"
    made = train("hri", data(), home, budget="1m")
    kept = json.loads((home / TUNING).read_text(encoding="utf-8"))
    assert kept == json.loads(json.dumps(made.tuned))
    assert kept["split"] == "valid"
    assert len(kept["trials"]) > 5
    opened = open_backbone(home)
    for name, value in kept["chosen"]["hri"].items():
        assert getattr(opened.settings, name) == value
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hri"]
    quick = bm.Settings(width=8, hidden=8, max_epochs=1)
    model = bm.Forecaster(home, residual="bridgemem", settings=quick).fit(data())
    run = model.save(tmp_path / "run")
    assert json.loads((run / "backbone" / TUNING).read_text(encoding="utf-8")) == kept


def test_a_forecaster_tunes_what_it_trains(tmp_path: Path) -> None:
    quick = bm.Settings(width=8, hidden=8, max_epochs=1)
    model = bm.Forecaster("hri", residual="bridgemem", settings=quick, tune="1m").fit(data())
    run = model.save(tmp_path / "run")
    kept = json.loads((run / "backbone" / TUNING).read_text(encoding="utf-8"))
    assert kept["chosen"] == hri_alone().as_dict()["chosen"]


@pytest.mark.parametrize("given", ["auto", Path("somewhere")])
def test_what_is_not_trained_by_its_name_is_not_tuned(given: Any, tmp_path: Path) -> None:
    (tmp_path / "somewhere").mkdir()
    given = tmp_path / given if isinstance(given, Path) else given
    with pytest.raises(SettingsError, match="by its name"):
        bm.Forecaster(given, tune="1m").fit(data())


MEMBERS = EnsembleSettings(("hri", "recurrence"))


def test_every_member_of_an_ensemble_is_tuned_and_keeps_its_settings() -> None:
    made = tune("ensemble", data(), settings=MEMBERS)
    own = hri_alone()
    assert {trial.backbone for trial in made.trials} == {"hri", "recurrence"}
    assert made.settings.each()["hri"] == own.settings
    trained = Ensemble.fit(data(), made.settings)
    assert trained.members[0].settings == own.settings


def test_an_ensemble_on_data_without_settings_is_tuned_unasked(tmp_path: Path) -> None:
    assert Ensemble.tuned_unless_set(MEMBERS)
    assert not Ensemble.tuned_unless_set(replace(MEMBERS, tuned_for="icews14"))
    assert not Ensemble.tuned_unless_set(replace(MEMBERS, changed=("hri.lam=0.5",)))
    assert not backbone_class("counting+stream").tuned_unless_set(backbone_class("counting+stream").default)


def test_texts_of_values_are_what_set_takes() -> None:
    assert [as_text(x) for x in (True, 1.0001, 3, (128, 32), "soft")] == ["true", "1.0001", "3", "128,32", "soft"]


def test_the_command_tunes_and_says_what_was_chosen(own_csv: Path, tmp_path: Path) -> None:
    made = bridgemem("train", "hri", "-d", own_csv, "-o", tmp_path / "hri", "--tune", "--budget", "1m")
    assert made.code == 0, made.err
    assert "Validation chose for hri" in made.out
    assert "test was not read" in made.out
    assert "Tuning hri. Settings in the grid: " in made.err
    assert "The first trial took " in made.err
    json_made = bridgemem(
        "train", "hri", "-d", own_csv, "-o", tmp_path / "json", "--tune", "--set", "lam=0.5", "--json"
    )
    document = json.loads(json_made.out)
    assert all("lam" not in trial["changed"] for trial in document["tuning"]["trials"])


def test_the_command_says_how_much_of_the_grid_a_spent_budget_has_tried(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"backbone": "hri", "changed": {}, "mrr": 0.5, "seconds": 5.0, "note": ""}
    tuned = {"queries": 10, "budget": 11.0, "whole": False, "chosen": {"hri": {}}, "grid": {"hri": 3, "regcn": 9}}
    tuned["settled"] = ["cenet"]
    _show_tuning({**tuned, "trials": [one, one, {**one, "note": CUT}]})
    printed = capsys.readouterr().out
    assert "The budget of 11 s was spent in the middle of a trial; give more with --budget." in printed
    assert "hri: tried 2 of the 3 trials of a first round over the grid." in printed
    assert "regcn: tried 0 of the 9 trials of a first round over the grid." in printed
    _show_tuning({**tuned, "grid": {"hri": 3}, "trials": [one, one, one]})
    assert "hri: tried the whole grid once, and did not settle." in capsys.readouterr().out
    _show_tuning({**tuned, "settled": ["hri"], "trials": [one, one, one]})
    said = capsys.readouterr().out
    assert "hri: tried" not in said, "its search came to its end"
    assert "regcn: tried 0 of the 9 trials" in said


def test_the_command_tunes_an_ensemble_on_own_data_unless_told_not_to(own_csv: Path, tmp_path: Path) -> None:
    members = ("--set", "members=hri,recurrence")
    tuned = bridgemem("train", "ensemble", "-d", own_csv, "-o", tmp_path / "a", *members, "--json")
    plain = bridgemem("train", "ensemble", "-d", own_csv, "-o", tmp_path / "b", *members, "--no-tune", "--json")
    assert json.loads(tuned.out)["tuning"]["trials"]
    assert json.loads(plain.out)["tuning"] is None


def test_a_wrong_budget_is_one_sentence(own_csv: Path, tmp_path: Path) -> None:
    made = bridgemem("train", "hri", "-d", own_csv, "-o", tmp_path / "x", "--tune", "--budget", "soon")
    assert made.code == 2
    assert "90s, 10m or 2h" in made.err
    assert not (tmp_path / "x").exists()


pytest_plugins = ("small_runs",)

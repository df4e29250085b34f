"""Runs with a learned residual: cross-fitted or not, saved, read, evaluated and audited, and what is refused."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.trained import train, training_note
from bridgemem.config import Settings
from bridgemem.errors import RunError, SettingsError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.events.dataset import Dataset
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.neighbours import Neighbours
from bridgemem.studies.ablation import ablate_learned
from bridgemem.studies.audit import audit
from commands import bridgemem
from fits import fit_run

QUICK = LearnedSettings(epochs=6, hidden=16, relation_width=4, batch=64, unseen_candidates=5)
TINY_READER = Settings(width=8, hidden=8, max_epochs=2)


@pytest.fixture(scope="module")
def small() -> Dataset:
    return simulate(WorldSettings(actors=20, events=1_200, steps=40)).dataset


def test_a_fit_that_learns_from_a_smaller_part_of_train_differs(small: Dataset, tmp_path: Path) -> None:
    train("recurrence-dyadic", small, tmp_path / "backbone")
    made = []
    for share in (0.0, 0.3):
        own = replace(QUICK, cross_fit=share, epochs=1)
        folder = tmp_path / f"run{share}"
        made.append(
            fit_run(small, tmp_path / "backbone", folder, TINY_READER, residual="learned", learned_settings=own)[0]
        )
    plain, crossed = (run.learned("time") for run in made)
    assert plain is not None
    assert crossed is not None
    assert crossed.settings.cross_fit == 0.3
    assert not torch.equal(plain.net.mean, crossed.net.mean)
    assert made[0].learning("raw").queries > made[1].learning("raw").queries > 2 * len(small.valid)


def test_the_backbone_of_before_is_kept_for_the_next_fit(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("recurrence-dyadic", small, tmp_path / "backbone")
    own = replace(QUICK, cross_fit=0.3, epochs=1)
    fit_run(small, tmp_path / "backbone", tmp_path / "one", TINY_READER, residual="learned", learned_settings=own)
    assert (tmp_path / "backbone-before-0.3" / "config.toml").is_file()
    trained: list[str] = []
    monkeypatch.setattr("bridgemem.backbones.trained.train", lambda name, *rest: trained.append(name))
    fit_run(small, tmp_path / "backbone", tmp_path / "two", TINY_READER, 43, residual="learned", learned_settings=own)
    assert not trained


@pytest.mark.parametrize("other", ["seed", "no note"])
def test_a_backbone_of_before_that_is_not_of_this_training_is_trained_anew(
    other: str, small: Dataset, tmp_path: Path
) -> None:
    own, second = replace(QUICK, cross_fit=0.3, epochs=1), tmp_path / "backbone-before-0.3"
    for number, seed in enumerate((42, 7)):
        train("recurrence-dyadic", small, tmp_path / "backbone", seed=seed, replace=True)
        if other == "no note" and number:  # as a kill once left it
            (second / "trained.json").unlink()
        run, _ = fit_run(
            small, tmp_path / "backbone", tmp_path / str(seed), TINY_READER, residual="learned", learned_settings=own
        )
        assert training_note(second).seed == run.config.backbone_seed == seed


def test_a_cross_fitted_run_is_recorded_as_such_and_not_ablated(small: Dataset, tmp_path: Path) -> None:
    train("recurrence-dyadic", small, tmp_path / "backbone")
    own = replace(QUICK, cross_fit=0.3, epochs=1)
    run, _ = fit_run(
        small, tmp_path / "backbone", tmp_path / "run", TINY_READER, residual="learned", learned_settings=own
    )
    records = evaluate(run, small)
    assert {(r.method, r.cross_fit) for r in records} == {("backbone", 0.0), ("bridgemem", 0.0), ("learned", 0.3)}
    # and what the backbone was set to
    assert records[0].settings["backbone_settings"] == asdict(RecurrenceDyadic.default)
    assert all(finding.passed is not False for finding in audit(run, small))
    # a backbone that was trained cannot be trained anew for every change
    with pytest.MonkeyPatch.context() as trained:
        trained.setattr("bridgemem.studies.ablation.training_free", lambda backbone: False)
        with pytest.raises(RunError, match="cross-fitted"):
            ablate_learned(run, small)
        outcome = bridgemem("ablate", run.folder, "--residual", "learned")
        assert outcome.code == 2
        assert "cross-fitted" in outcome.err


def test_a_learned_run_is_saved_read_evaluated_and_audited(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("recurrence-dyadic", small, tmp_path / "backbone")
    one = replace(QUICK, fitted_under="raw")
    run, _ = fit_run(
        small, tmp_path / "backbone", tmp_path / "run", TINY_READER, residual="learned", learned_settings=one
    )
    records = evaluate(run, small)
    learned = [r for r in records if r.method == "learned"]
    assert [(r.filter, r.selected_by) for r in learned] == [(f, "raw") for f in ("raw", "static", "time")]
    assert all(r.as_chosen for r in learned)
    assert all(r.fit_seconds is not None and r.fit_seconds > 0 for r in learned)
    assert all(
        r.settings["unseen_candidates"] == QUICK.unseen_candidates and r.settings["lambda"] is None for r in learned
    )
    findings = audit(run, small, steps=2)
    assert all(finding.passed is not False for finding in findings)
    # what preferred one residual was measured with a network that is gone
    assert [f.check for f in findings if f.passed is None] == [f"preferred residual ({f})" for f in ("static", "time")]
    with monkeypatch.context() as leak:
        own = Neighbours.weights_before
        leak.setattr(Neighbours, "weights_before", lambda self, cut: own(self, cut + 1))
        evaluate(run, small)
        found = [f.check for f in audit(run, small, steps=2) if f.passed is False]
        assert found == ["learned blind to the future"]
    first, second = run.learned("time"), run.learned("time")
    assert first is not None
    assert second is not None
    assert all(torch.equal(t, second.tensors()[name]) for name, t in first.tensors().items())


def test_a_run_without_it_has_none(small: Dataset, tmp_path: Path) -> None:
    train("recurrence", small, tmp_path / "backbone")
    run, _ = fit_run(small, tmp_path / "backbone", tmp_path / "run", TINY_READER)
    assert run.learned("time") is None


def test_unknown_methods_and_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="fit_share"):
        LearnedSettings(fit_share=1.0)
    with pytest.raises(SettingsError, match="cross_fit"):
        LearnedSettings(cross_fit=1.0)
    impossible: dict[str, tuple[float, ...]] = {
        "dropout": (-0.1, 1.0, 2.0, math.nan),
        "learning_rate": (-1.0, 0.0, math.inf, math.nan),
        "weight_decay": (-1.0, math.inf, math.nan),
    }
    for name, values in impossible.items():
        for value in values:
            with pytest.raises(SettingsError, match=f"{name} must be"):
                LearnedSettings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="no group of features called 'moon'"):
        LearnedSettings(without=("moon",))
    outcome = bridgemem("fit", "-d", "world", "-b", "recurrence", "-o", tmp_path / "run", "--residual", "magic")
    assert outcome.code == 2
    assert "residual is bridgemem or learned" in outcome.err
    fixed = bridgemem(
        "fit",
        "-d",
        "world",
        "-b",
        "recurrence",
        "-o",
        tmp_path / "run",
        "--residual",
        "bridgemem",
        "--learned-set",
        "unseen_candidates=3",
    )
    assert fixed.code == 2
    assert "--residual learned" in fixed.err
    options = ("--residual", "learned", "--learned-set", "cross_fit=2")
    outcome = bridgemem("fit", "-d", "world", "-b", "recurrence", "-o", tmp_path / "run", *options)
    assert outcome.code == 2
    assert "cross_fit must be" in outcome.err

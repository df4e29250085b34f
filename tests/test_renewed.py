"""The renewed backbone: trained once more on most of validation, read for test and after, and never for a choice."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bridgemem import fitting
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.ensemble import CountingStream, EnsembleSettings
from bridgemem.backbones.scorer import ask
from bridgemem.backbones.trained import (
    check_trained_on,
    note_of,
    renewed_backbone,
    save_trained,
    train,
    trained_again,
    trained_so,
)
from bridgemem.config import Settings
from bridgemem.errors import BackboneError, RunError, SettingsError
from bridgemem.evaluation import shards
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.query_tables import model_identity
from bridgemem.hub import check_run, run_files
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refresh import refresh
from bridgemem.memory.past import Past
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import renewal_split
from bridgemem.runs import Run
from bridgemem.studies.audit import audit
from builders import small_world
from commands import bridgemem
from fits import loaded
from precision import close

pytest_plugins = ["small_runs"]

TINY = EnsembleSettings(
    ("recurrence-typed", "stream"), changed=("stream.width=8", "stream.k=4", "stream.epochs=1", "stream.blocks=1")
)
READER = Settings(width=8, hidden=8, max_epochs=1)
QUICK = LearnedSettings(hidden=8, epochs=1, train_queries=300, valid_queries=300)


def fitted(dataset: Dataset, folder: Path | None = None, **changed: str) -> Forecaster:
    learned = replace(QUICK, **changed)
    model = Forecaster(CountingStream, backbone_settings=TINY, settings=READER, learned_settings=learned)
    return model.fit(dataset, folder=folder)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return small_world().dataset


@pytest.fixture(scope="module")
def run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("renewed") / "run"
    fitted(dataset, folder)
    made = Run(folder)
    for split in ("valid", "test"):
        evaluate(made, dataset, split)
    return made


@pytest.fixture
def own(run: Run, tmp_path: Path) -> Run:
    """A copy of the run that a test may spoil."""
    return Run(shutil.copytree(run.folder, tmp_path / "run"))


def mrr(records: list[Record], method: str) -> float:
    return next(r.mrr for r in records if (r.method, r.filter) == (method, "raw") and r.selected_by in (None, "raw"))


def put(run: Run, backbone: Backbone, dataset: Dataset) -> None:
    """Another renewed backbone, as if it had been trained on the train split of a data set."""
    shutil.rmtree(run.folder / "renewed")
    save_trained(backbone, run.folder / "renewed", note_of(backbone, dataset, 42, "cpu", 1.0))


def test_test_is_scored_by_the_mean_of_both_and_validation_by_the_first(run: Run, dataset: Dataset) -> None:
    first, second = run.backbone(), run.renewed()
    assert run.config.renewed
    assert second is not None
    queries, past = Queries.of(dataset.test), Past(dataset.events)
    alone, again = ask(first, queries, past), ask(second, queries, past)
    assert not torch.equal(alone.log_p, again.log_p)
    assert torch.equal(run.scorer("train").score(queries, past).log_p, alone.log_p)
    found = run.scorer("known").score(queries, past)
    assert alone.members is not None
    assert again.members is not None
    assert found.members is not None
    for mixed, one, other in zip(found.members, alone.members, again.members, strict=True):
        assert close(mixed.exp(), (one.softmax(1) + other.softmax(1)) / 2)
    assert close(found.log_p, found.members.logsumexp(0) - math.log(2))


def test_it_saw_validation_but_its_later_part_and_no_test(run: Run, dataset: Dataset) -> None:
    learned = run.learned("raw")
    assert learned is not None
    split = renewal_split(dataset, learned.settings)
    assert split is not None
    assert dataset.valid_start < split.valid_start <= int(dataset.valid.step[-1])
    again = CountingStream.fit(split, run.backbone().settings, seed=42)
    noted = run.renewed()
    assert noted is not None
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in noted.tensors().items())


def test_choices_and_figures_of_validation_know_nothing_of_it(own: Run, dataset: Dataset) -> None:
    before = {split: evaluate(own, dataset, split) for split in ("valid", "test")}
    constant = CountingStream.fit(dataset.without_test(), own.backbone().settings, seed=1)
    for name, tensor in constant.tensors().items():
        if name.startswith("stream."):
            tensor.zero_()
    put(own, constant, dataset)
    after = {split: evaluate(Run(own.folder), dataset, split) for split in ("valid", "test")}
    for method in ("backbone", "learned"):
        assert mrr(after["valid"], method) == mrr(before["valid"], method)
        assert mrr(after["test"], method) != mrr(before["test"], method)


def test_in_memory_and_saved_it_ranks_the_same(dataset: Dataset, tmp_path: Path) -> None:
    model = fitted(dataset)
    in_memory = model.evaluate()
    model.save(tmp_path / "run")
    saved = Forecaster.load(tmp_path / "run").evaluate()
    assert [saved.mrr(name) for name in ("backbone", "learned")] == [
        in_memory.mrr(name) for name in ("backbone", "learned")
    ]


def test_an_audit_shows_what_it_was_trained_on(own: Run, dataset: Dataset) -> None:
    found = {finding.check: finding for finding in audit(own, dataset)}
    assert all(finding.passed is not False for finding in found.values())
    assert found["renewed backbone"].passed is True
    # one that was trained on train alone, or on test
    for other in (dataset.without_test(), Dataset("whole", dataset.events, int(dataset.events.step[-1]))):
        put(own, CountingStream.fit(other, own.backbone().settings, seed=1), other)
        (finding,) = (f for f in audit(Run(own.folder), dataset) if f.check == "renewed backbone")
        assert finding.passed is False


def test_one_that_test_told_when_to_stop_is_not_used(own: Run, dataset: Dataset, tmp_path: Path) -> None:
    """Two ends of validation can have the same later part begin; what follows it may be the test of another split."""
    learned = own.learned("raw")
    assert learned is not None
    split = renewal_split(dataset, learned.settings)
    assert split is not None
    longer = Dataset(dataset.name, dataset.events, split.valid_start)
    home = renewed_backbone(tmp_path / "backbone")
    trained = train(CountingStream.name, longer, home, TINY)
    assert trained_so(home, longer, trained.settings, 42)
    assert not trained_so(home, split, trained.settings, 42)
    with pytest.raises(BackboneError, match="next to another validation part than that of"):
        check_trained_on(home, split)
    put(own, trained, longer)
    (finding,) = (f for f in audit(Run(own.folder), dataset) if f.check == "renewed backbone")
    assert finding.passed is False
    note = json.loads((own.folder / "backbone" / "trained.json").read_text())
    (own.folder / "backbone" / "trained.json").write_text(json.dumps({**note, "known": longer.known.fingerprint}))
    (finding,) = (f for f in audit(Run(own.folder), dataset) if f.check == "training")
    assert finding.passed is False


def test_a_run_without_its_folder_is_refused(own: Run) -> None:
    shutil.rmtree(own.folder / "renewed")
    with pytest.raises(RunError, match="renewed"):
        Run(own.folder).scorer("known")
    with pytest.raises(RunError, match="renewed"):
        check_run(Run(own.folder))


def test_it_goes_wherever_the_run_goes(own: Run, dataset: Dataset, tmp_path: Path) -> None:
    assert {"renewed/config.toml", "renewed/trained.json", "renewed/weights.safetensors"} <= set(run_files(own.folder))
    subject, relation = dataset.events.entities.names[0], dataset.events.relations.names[0]
    with EventStore(tmp_path / "store.duckdb") as store:
        store.append([], source="wire", key="0")
        LiveForecaster(loaded(own), store).add([(subject, relation, "Newcomer", "2030-03-03")], "wire", "1")
        refresh(own, store, tmp_path / "further")
    further = Run(tmp_path / "further")
    check_run(further)
    first, then = own.renewed(), further.renewed()
    assert first is not None
    assert then is not None
    assert all(torch.equal(tensor, then.tensors()[name]) for name, tensor in first.tensors().items())
    predictor, config = loaded(own).predictor, own.folder / "renewed" / "config.toml"
    told: list[Callable[[Run], str]] = [
        shards.identity,
        lambda run: run.version,
        lambda run: model_identity(run.folder, predictor),
    ]
    before = [tell(Run(own.folder)) for tell in told]
    config.write_text(config.read_text() + "\n# another\n")
    assert all(tell(Run(own.folder)) != was for tell, was in zip(told, before, strict=True))


def test_card_and_records_tell_of_it(run: Run, dataset: Dataset) -> None:
    assert "those of test and forecasts of the mean of both" in (run.folder / "README.md").read_text()
    for split, said in (("test", "on"), ("valid", None)):
        found = evaluate(run, dataset, split)
        assert {
            r.settings.get("renewed") for r in found if r.backbone == run.config.backbone and r.method != "learned"
        } == {said}


def test_an_interrupted_one_goes_on_where_it_was_and_nothing_else_is_lost(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "backbone"
    train(CountingStream.name, dataset, home, TINY)
    begun: list[bool] = []

    def stops(backbone: Backbone, kept: Path | None, *how: Any) -> Backbone:
        if kept == renewed_backbone(home):
            begun.append(kept.is_dir())
            if len(begun) == 1:
                raise KeyboardInterrupt
        return trained_again(backbone, kept, *how)

    monkeypatch.setattr(fitting, "trained_again", stops)
    model = Forecaster(home, settings=READER, learned_settings=QUICK)
    with pytest.raises(KeyboardInterrupt):
        model.fit(dataset, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "before anything is saved"
    model.fit(dataset, folder=tmp_path / "run")
    assert Run(tmp_path / "run").config.renewed
    # one whose learned residual was interrupted finds what was trained, and holds nothing but its own
    monkeypatch.setattr(fitting, "fit_learned", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(dataset, folder=tmp_path / "cut")
    monkeypatch.undo()
    monkeypatch.setattr(fitting, "trained_again", stops)
    model.fit(dataset, folder=tmp_path / "cut", resume=True)
    assert begun == [False, False, True, True]
    assert run_files(tmp_path / "cut") == run_files(tmp_path / "run")
    # nor does a run that another fit takes its backbone from
    Forecaster(tmp_path / "run", settings=READER, learned_settings=QUICK).fit(dataset)
    assert (tmp_path / "run-renewed").is_dir()
    assert run_files(tmp_path / "run") == run_files(tmp_path / "cut")


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_off_leaves_the_backbone_as_it_was_trained(dataset: Dataset, tmp_path: Path) -> None:
    fitted(dataset, tmp_path / "run", renewed="off")
    made = Run(tmp_path / "run")
    assert not made.config.renewed
    assert made.renewed() is None
    assert not (tmp_path / "run" / "renewed").exists()


def test_what_is_not_trained_is_not_renewed(dataset: Dataset) -> None:
    model = Forecaster("recurrence", settings=READER, learned_settings=replace(QUICK, renewed="on"))
    with pytest.raises(SettingsError, match="recurrence is not trained here; leave renewed out"):
        model.fit(dataset)


def test_of_a_saved_backbone_it_is_trained_once_for_all_fits(own_csv: Path, tmp_path: Path) -> None:
    """From the command line, where each fit finds next to the backbone what an earlier one trained."""
    small = [part for one in TINY.changed for part in ("--set", one)]
    few = ("train_queries=300", "valid_queries=300", "epochs=1", "hidden=8")
    reader = ("--set", "width=8", "--set", "hidden=8", "--set", "max_epochs=1")
    learned = [part for one in few for part in ("--learned-set", one)]
    trained = bridgemem("train", "counting+stream", "-d", own_csv, "-o", tmp_path / "backbone", *small)
    assert trained.code == 0, trained.err
    times, said = [], "Training counting+stream once more, on "
    for name in ("one", "two"):
        made = bridgemem("fit", "-d", own_csv, "-b", tmp_path / "backbone", "-o", tmp_path / name, *reader, *learned)
        assert made.code == 0, made.err
        assert (said in made.err) == (name == "one"), "each training is said, and one that is there is not made again"
        times.append((tmp_path / "backbone-renewed" / "weights.safetensors").stat().st_mtime_ns)
        assert (tmp_path / name / "renewed" / "config.toml").is_file()
    assert times[0] == times[1]
    assert bridgemem("evaluate", tmp_path / "one").code == 0
    wrong = bridgemem("fit", "-d", own_csv, "-o", tmp_path / "no", "--learned-set", "renewed=perhaps")
    assert wrong.code == 2
    assert "renewed" in wrong.err
    assert np.isfinite(Forecaster.load(tmp_path / "two").evaluate().mrr("learned"))

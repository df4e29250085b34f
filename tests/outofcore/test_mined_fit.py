"""A mined folder goes from events to forecasts as the same events in memory do, bit for bit."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import bridgemem as bm
from bridgemem.backbones import typed
from bridgemem.config import Settings
from bridgemem.errors import DataError, RunError
from bridgemem.evaluation import whether
from bridgemem.evaluation.records import Record
from bridgemem.events.mapped import MappedLog
from bridgemem.memory.dyads import DyadMemory
from bridgemem.outofcore.duckdb import mine_files
from bridgemem.ranking import ranks
from bridgemem.residuals import validation
from bridgemem.residuals.learned import LearnedSettings
from commands import bridgemem

WORLD = bm.WorldSettings(actors=25, relations=6, steps=60, events=3_000)
# small, and with samples that are less than everything
SETTINGS = Settings(max_epochs=2, max_examples=2_000, max_queries=300, width=8, hidden=8)
LEARNED = LearnedSettings(epochs=1, hidden=8, train_queries=400, valid_queries=300, unseen_candidates=5)


@dataclass(frozen=True)
class Both:
    """The same events fitted in memory and from a mined folder, each in a run folder."""

    table: Path
    mined: Path
    runs: tuple[Path, Path]

    @property
    def models(self) -> list[bm.Forecaster]:
        return [bm.Forecaster.load(run) for run in self.runs]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    home = tmp_path_factory.mktemp("both")
    table = home / "mined.csv"  # so that both data sets have one name
    bm.simulate(WORLD).dataset.events.to_frame().sample(frac=1, random_state=3).to_csv(table, index=False)
    mine_files([table], home / "mined")
    patched = pytest.MonkeyPatch()
    # the ways of large data, on both sides
    patched.setattr(typed, "PERMUTED", 1_000)
    patched.setattr(validation, "MOST_QUERIES", 500)
    patched.setattr(validation, "MANY_EVENTS", 1_000)
    patched.setattr(validation, "MOST_STEPS", 5)
    runs = home / "in memory", home / "on disk"
    for source, run in zip((table, home / "mined"), runs, strict=True):
        bm.Forecaster(settings=SETTINGS, learned_settings=LEARNED).fit(source, folder=run)
    patched.undo()
    return Both(table, home / "mined", runs)


def test_a_mined_folder_loads_as_the_events_that_were_mined(both: Both) -> None:
    here, there = bm.load(both.table), bm.load(both.mined)
    assert isinstance(there.events, MappedLog)
    assert there.identity == here.identity
    assert there.sizes == here.sizes
    for name in ("train", "valid", "test"):
        assert there.split(name).fingerprint == here.split(name).fingerprint
    shares = {"valid": 0.2, "test": 0.0}
    assert bm.load(str(both.mined), **shares).identity == bm.load(both.table, **shares).identity


def test_both_fits_are_the_same_to_the_bit(both: Both) -> None:
    for name in ("model.safetensors", "backbone/weights.safetensors"):
        here, there = (load_file(run / name) for run in both.runs)
        assert here.keys() == there.keys()
        for tensor, values in there.items():
            assert torch.equal(values, here[tensor]), tensor
    here, there = both.runs
    assert (here / "selection.json").read_text() == (there / "selection.json").read_text()
    calibrated = [json.loads((run / "calibration.json").read_text()) for run in both.runs]
    assert calibrated[0] == calibrated[1]
    assert all(any(of["over_steps"].values()) for of in calibrated[0].values()), "fitted on windows"
    assert not (there / "data.npz").exists(), "the log is not copied into the run"


def told(model: bm.Forecaster) -> dict[str, str]:
    """What, with whom, whether and the outlook, of what happened before and of what never did, as they are printed."""
    names, relations = model.dataset.events.entities.names, model.dataset.events.relations.names
    last = model.dataset.events.rows(len(model.dataset.events) - 1, len(model.dataset.events))
    first, second = names[last.subject[0]], names[last.object[0]]
    clock, then = model.dataset.events.clock, model.dataset.test_start or 0
    made: dict[str, object] = {
        "known": model.what(first, second, horizon=3, top=6),
        "itself": model.what(names[-1], names[-1], top=3),
        "partners": model.partners(first, horizon=7, top=5),
        "outlook": model.outlook(horizon=7, top=8),
        "surprising": model.outlook(horizon=3, top=8, surprising=True),
        "watched": model.outlook(horizon=3, top=8, watch=[(names[0], names[-1]), names[3]]),
        "anybody": model.whether(first, relations[0], horizon=9),
        "earlier": model.whether(first, relations[0], object=second, at=clock.label(then), horizon=2),
    }
    made |= {f"whether {r}": model.whether(first, r, object=second, horizon=5) for r in relations}
    return {asked: f"{found!r} {found} {found.query}" for asked, found in made.items()}


def test_both_are_asked_what_with_whom_and_whether_alike(both: Both) -> None:
    made = both.models
    assert told(made[0]) == told(made[1])
    names, relations = made[0].dataset.events.entities.names, made[0].dataset.events.relations.names
    time = made[0].dataset.events.clock.label(made[0].dataset.events.end)
    for model in made:
        model.update([(names[1], relations[1], "Newcomer", time), (names[0], relations[2], names[1], time)])
    assert told(made[0]) == told(made[1])
    found = [model.whether("Newcomer", relations[1], object=names[1]).within for model in made]
    assert found[0] == found[1]


def test_both_are_measured_on_what_and_whether_alike(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whether, "KEYS", 3_000)
    monkeypatch.setattr(whether, "FEWEST_KEYS", 20)  # a sample of the keys of each step
    made = both.models
    for split in ("valid", "test"):
        ranked = [[untimed(record) for record in model.evaluate_what(split).records] for model in made]
        assert ranked[0] == ranked[1]
        stated = [model.evaluate_whether(split, horizon=2).records for model in made]
        assert stated[0] == stated[1]


def untimed(record: Record) -> Record:
    """A record without what a clock said."""
    settings = {name: value for name, value in record.settings.items() if "seconds" not in name}
    return replace(record, fit_seconds=0, refit_seconds=0, settings=settings)


@pytest.mark.parametrize("queries", [None, 50])
def test_both_evaluations_rank_alike(both: Both, queries: int | None) -> None:
    made = both.models
    figures = [[untimed(record) for record in model.evaluate(queries=queries).records] for model in made]
    assert figures[0] == figures[1]
    frames = [pd.read_parquet(model.run.folder / "ranks.parquet") for model in made]
    pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)
    assert len(frames[0]) == (queries or 2 * len(made[0].dataset.test))


def test_both_forecast_explain_and_are_updated_alike(both: Both) -> None:
    made = both.models
    events = bm.load(both.table).events
    actor, relation, time = events.entities[2], events.relations[1], events.clock.label(events.end)
    for _ in range(2):
        here, there = (model.scores([(actor, relation), (None, relation, actor)]) for model in made)
        assert np.array_equal(here, there)
        for horizon in (7, None):
            answers = [model.forecast(actor, relation, horizon=horizon, top=4) for model in made]
            assert str(answers[0]) == str(answers[1])
        explained = [model.explain(actor, relation, answers[0][0].name).as_dict() for model in made]
        assert explained[0] == explained[1]
        for model in made:
            model.update([(actor, relation, "Newcomer", time), ("Newcomer", "a new relation", actor, time)])


def test_no_step_of_a_fit_puts_the_log_together_in_memory(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the whole log was read into memory")

    monkeypatch.setattr(DyadMemory, "build", refused)
    monkeypatch.setattr("bridgemem.memory.index.occurrence_lines", refused)
    monkeypatch.setattr("bridgemem.memory.index.first_meetings", refused)
    monkeypatch.setattr("bridgemem.memory.sorted_rows.pair_rows", refused)
    monkeypatch.setattr("bridgemem.ranking.filters.each_once", refused)
    monkeypatch.setattr("bridgemem.residuals.activity.Activity", refused)
    monkeypatch.setattr("bridgemem.memory.tallies.Tally", refused)
    quick = replace(LEARNED, train_queries=50, valid_queries=50)
    model = bm.Forecaster(settings=SETTINGS, learned_settings=quick).fit(both.mined)
    model.evaluate(queries=20)
    model.forecast(0, 0)
    model.what(0, 1)
    model.outlook(horizon=2, top=3)


def test_a_run_says_where_its_data_was_and_follows_it_with_an_option(both: Both, tmp_path: Path) -> None:
    mined, run = tmp_path / "there", tmp_path / "run"
    shutil.copytree(both.mined, mined)
    bm.Forecaster("recurrence", residual="bridgemem", settings=SETTINGS).fit(mined, folder=run)
    mined.rename(tmp_path / "elsewhere")
    gone = bridgemem("evaluate", run, "--queries", "10")
    assert gone.code == 2
    assert str(mined) in gone.err
    assert "--memory-dir" in gone.err
    assert bridgemem("evaluate", run, "--queries", "10", "--memory-dir", tmp_path / "elsewhere").code == 0
    other = bm.simulate(replace(WORLD, seed=4)).dataset.events.to_frame()
    other.to_csv(tmp_path / "other.csv", index=False)
    mine_files([tmp_path / "other.csv"], mined)
    changed = bridgemem("forecast", run, "--subject", "0", "--relation", "0")
    assert changed.code == 2
    assert "other events" in changed.err


def test_a_mined_folder_that_was_copied_is_called_by_its_own_name(both: Both, tmp_path: Path) -> None:
    shutil.copytree(both.mined, tmp_path / "copied")
    assert bm.load(tmp_path / "copied").name == "copied"


def test_a_folder_that_is_not_mined_to_the_end_is_refused(both: Both, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(both.mined, half)
    (half / "mined.json").unlink()
    with pytest.raises(DataError, match="not mined to the end; run the same `bridgemem mine` again"):
        bm.load(half)
    shutil.copytree(both.mined, tmp_path / "old")
    (tmp_path / "old" / "index" / "memory.json").unlink()
    refused = bridgemem("fit", "-d", tmp_path / "old", "-o", tmp_path / "run")
    assert refused.code == 2
    assert "mine again" in refused.err
    spoilt = tmp_path / "spoilt"
    shutil.copytree(both.mined, spoilt)
    manifest = json.loads((spoilt / "index" / "memory.json").read_text())
    (spoilt / "index" / "memory.json").write_text(json.dumps({**manifest, "name": "other"}))
    with pytest.raises(RunError, match="damaged"):
        bm.load(spoilt)


def test_options_for_tables_do_not_go_with_a_mined_folder(both: Both, tmp_path: Path) -> None:
    refused = bridgemem("fit", "-d", both.mined, "--step", "week", "-o", tmp_path / "run")
    assert refused.code == 2
    assert "time steps already" in refused.err


def test_a_batch_goes_by_the_number_of_events_and_not_by_where_they_lie(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "MANY_EVENTS", 1_000)
    monkeypatch.setattr(ranks, "CELLS", {"cpu": 25 * 80})
    sizes = {ranks.batch_of(bm.load(source).events, torch.device("cpu")) for source in (both.table, both.mined)}
    assert sizes == {20}
    made = both.models
    frames = []
    for model in made:
        model.evaluate(queries=100)
        frames.append(pd.read_parquet(model.run.folder / "ranks.parquet"))
    pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)

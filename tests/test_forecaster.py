"""The forecaster: load, fit, evaluate, ask, save and load again; and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import bridgemem
from bridgemem.backbones import backbone_class, backbone_defaults, load_backbone
from bridgemem.backbones.cenet import Cenet, CenetSettings
from bridgemem.backbones.ensemble import EnsembleSettings
from bridgemem.backbones.hri import Hri
from bridgemem.backbones.trained import check_trained_on, train, training_note
from bridgemem.config import Settings
from bridgemem.errors import BackboneError, BridgeMemError, DataError, NotFoundError, RunError, SettingsError
from bridgemem.events.readers.read import read_events
from bridgemem.forecaster import Forecaster
from bridgemem.memory.past import Past
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.runs import Run
from bridgemem.studies.audit import audit
from bridgemem.studies.reproduce import reproduce
from bridgemem.training.devices import check_device
from builders import small_world
from commands import Walk, named_own, planted_rows, write_rows

pytest_plugins = ("small_runs",)
SMALL = Settings(width=8, hidden=8, max_epochs=2)


def test_three_lines_load_fit_and_forecast(own_csv: Path) -> None:
    data = bridgemem.load(str(own_csv))
    model = bridgemem.Forecaster("recurrence", settings=SMALL).fit(data)
    best = model.forecast("Arvan", "visit", top=3)
    assert len(best) == 3
    assert best[0].score >= best[1].score >= best[2].score
    assert model.predictor.choice.lam > 0
    assert model.explain("Arvan", "visit", best[0].name).score == pytest.approx(best[0].score, abs=1e-12)


def test_the_forecast_finds_the_planted_script(own_csv: Path) -> None:
    """Who got aid yesterday is visited today."""
    data = bridgemem.load(own_csv)
    model = bridgemem.Forecaster("recurrence", settings=SMALL).fit(data)
    events, ranks = data.events, []
    test = data.test
    for s, r, o, t in zip(test.subject, test.relation, test.object, test.step, strict=True):
        if events.relations.names[r] == "visit":
            ranked = [c.name for c in model.forecast(int(s), int(r), at=events.clock.label(t), top=events.n_entities)]
            ranks.append(1 + ranked.index(events.entities.names[o]))
    assert len(ranks) > 10
    assert sum(1 / rank for rank in ranks) / len(ranks) > 0.5


def test_fit_takes_a_backbone_that_is_there_already(own_csv: Path) -> None:
    data = bridgemem.load(own_csv)
    cenet = Cenet.fit(data, CenetSettings(width=8, epochs=1, oracle_epochs=1))
    model = bridgemem.Forecaster(cenet, settings=SMALL).fit(data)
    assert all(math.isfinite(c.score) for c in model.forecast(relation="consult", object="Kel"))


def test_the_same_seed_gives_the_same_forecast(own_csv: Path) -> None:
    data = bridgemem.load(own_csv)
    first, second, other = (
        bridgemem.Forecaster("recurrence", settings=SMALL, seed=seed).fit(data) for seed in (1, 1, 2)
    )
    assert first.forecast("Kel", "visit") == second.forecast("Kel", "visit")
    assert first.forecast("Kel", "visit") != other.forecast("Kel", "visit")


def test_a_named_backbone_has_the_settings_of_the_data_set(
    own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(bridgemem.load(own_csv), name="wiki")
    train("hri", own, tmp_path / "own")
    assert load_backbone(tmp_path / "own").settings == Hri.default, "own data, though it is called like a benchmark"
    assert bridgemem.Forecaster("hri", settings=SMALL).fit(own).parts.backbone().settings == Hri.default
    named, tuned = named_own(own, "wiki", monkeypatch), backbone_defaults("hri", "wiki")
    assert tuned != Hri.default
    assert bridgemem.Forecaster("hri", settings=SMALL).fit(named).parts.backbone().settings == tuned
    train("hri", named, tmp_path / "named")
    assert load_backbone(tmp_path / "named").settings == tuned


@pytest.mark.parametrize("source", ["world", "icews14", "packed", "data", "log"])
def test_a_step_for_what_has_its_steps_is_refused(source: str, walk: Walk) -> None:
    data = bridgemem.load(walk.home / "own.npz")
    given = {"packed": walk.home / "own.npz", "data": data, "log": data.events}.get(source, source)
    with pytest.raises(SettingsError, match="has its time steps already"):
        bridgemem.load(given, step="day")


@pytest.mark.parametrize("share", ["valid", "test"])
@pytest.mark.parametrize("source", ["world", "icews14", "packed", "data"])
def test_a_share_for_what_is_split_is_refused(source: str, share: str, walk: Walk) -> None:
    given = {"packed": walk.home / "own.npz", "data": bridgemem.load(walk.home / "own.npz")}.get(source, source)
    with pytest.raises(SettingsError, match="is split already; leave valid and test out"):
        bridgemem.load(given, **{share: 0.3})


def test_load_takes_paths_logs_columns_and_packed_files(own_csv: Path, tmp_path: Path) -> None:
    from bridgemem.events.packs import pack

    data = bridgemem.load(own_csv, valid=0.2, test=0.2)
    pack(data, tmp_path / "own.npz")
    columns = dict(zip(("subject", "relation", "object", "time"), zip(*planted_rows(), strict=True), strict=True))
    shares = {"valid": 0.2, "test": 0.2}
    events, packed = read_events(own_csv).events, tmp_path / "own.npz"
    for again in (
        *(bridgemem.load(source, **shares) for source in (events, columns)),
        *(bridgemem.load(source) for source in (packed, str(packed), data)),
    ):
        assert again.events.fingerprint == data.events.fingerprint
        assert (again.valid_start, again.test_start) == (data.valid_start, data.test_start)


def test_load_says_which_rows_it_left_out(tmp_path: Path) -> None:
    rows = planted_rows()
    rows[3] = (*rows[3][:3], "yesterday")
    path = write_rows(tmp_path / "some.csv", rows)
    with pytest.warns(UserWarning, match=r"1 of 600 rows was rejected, the first at .*some\.csv:5"):
        data = bridgemem.load(path)
    assert len(data.events) == 599


def test_load_and_fit_refuse_what_they_cannot_use(own_csv: Path) -> None:
    with pytest.raises(NotFoundError, match="no file and no data set called 'icews41'"):
        bridgemem.load("icews41")
    with pytest.raises(DataError):
        bridgemem.load(Path("nowhere.csv"))
    data = bridgemem.load(own_csv)
    with pytest.raises(NotFoundError, match="no backbone called 'nope'"):
        bridgemem.Forecaster("nope").fit(data)
    with pytest.raises(SettingsError, match="residual must be bridgemem or learned"):
        bridgemem.Forecaster("recurrence", residual="magic").fit(data)
    with pytest.raises(SettingsError, match="no device"):
        bridgemem.Forecaster("recurrence", settings=SMALL, device="tpu").fit(data)
    with pytest.raises(DataError, match="at least one seed"):
        reproduce(data, Path("nowhere"), backbone="recurrence", seeds=())


def test_devices_are_checked_by_name_and_presence(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [check_device(name) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]
    for name in ("cuda:2", "mps", "meta", "gpu", ""):
        with pytest.raises(SettingsError):
            check_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingsError, match="--device cpu"):
        check_device("cuda")


def test_the_package_shows_few_names_and_all_of_them_exist() -> None:
    public = [name for name in bridgemem.__all__ if name != "__version__"]
    assert len(public) <= 20
    assert all(getattr(bridgemem, name) for name in public)
    assert set(public) <= set(dir(bridgemem))
    assert issubclass(bridgemem.BridgeMemError, BridgeMemError)
    with pytest.raises(AttributeError, match="no attribute 'forecast_all'"):
        _ = bridgemem.forecast_all


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["popularity", "ensemble"])
def test_a_training_that_is_killed_while_it_is_saved_leaves_no_backbone_without_a_note(
    name: str, own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EnsembleSettings(members=("hri", "popularity")) if name == "ensemble" else None
    data = bridgemem.load(own_csv)
    with monkeypatch.context() as patched:
        patched.setattr("bridgemem.backbones.trained.write_json", stop)
        with pytest.raises(KeyboardInterrupt):
            train(name, data, tmp_path / "b", settings)
    assert not (tmp_path / "b").exists()
    train(name, data, tmp_path / "b", settings)
    late = replace(data, valid_start=data.valid_start - 5)
    with pytest.raises(BackboneError, match="trained on other events"):
        check_trained_on(tmp_path / "b", late)
    with pytest.raises(RunError, match="exists already"):
        train(name, late, tmp_path / "b", settings)
    # and one that takes the place of an earlier one
    with monkeypatch.context() as patched:
        patched.setattr("bridgemem.backbones.trained.write_json", stop)
        with pytest.raises(KeyboardInterrupt):
            train(name, late, tmp_path / "b", settings, replace=True)
    check_trained_on(tmp_path / "b", data)
    assert training_note(tmp_path / "b").fingerprint == data.train.fingerprint


def test_reproduce_takes_no_backbone_of_which_nothing_is_noted(own_csv: Path, tmp_path: Path) -> None:
    data = bridgemem.load(own_csv)
    backbone_class("popularity").fit(data).save(tmp_path / "own-popularity-b42")
    with pytest.raises(SettingsError, match="--retrain"):
        reproduce(data, tmp_path, backbone="popularity", settings=SMALL)
    reproduce(data, tmp_path, backbone="popularity", settings=SMALL, retrain=True)
    assert len(reproduce(data, tmp_path, backbone="popularity", settings=SMALL).runs) == 1


def test_the_constructor_stores_settings_and_touches_nothing() -> None:
    model = bridgemem.Forecaster("nope", residual="magic", device="tpu", seed=7)
    assert (model.backbone, model.residual, model.seed) == ("nope", "magic", 7)
    assert "not fitted" in repr(model)
    with pytest.raises(RunError, match=r"not fitted yet: call fit\(data\)"):
        model.forecast("Kel", "visit")


@pytest.mark.parametrize("residual", ["bridgemem", "learned"])
def test_a_saved_forecaster_says_what_it_said_in_memory(residual: str, own_csv: Path, tmp_path: Path) -> None:
    quick = LearnedSettings(epochs=2, hidden=8)
    model = bridgemem.Forecaster("recurrence", residual=residual, settings=SMALL, learned_settings=quick).fit(own_csv)
    measured = model.evaluate()
    asked = [model.parts.predictor_of(Past(model.dataset.events), residual=m) for m in ("bridgemem", None)]
    said = [one.forecast("Kel", "visit") for one in asked]
    folder = model.save(tmp_path / "run")
    loaded = bridgemem.Forecaster.load(folder)
    assert loaded.residual == residual
    again = [Run(folder).predictor(residual=m).forecast("Kel", "visit") for m in ("bridgemem", None)]
    assert again == said
    assert loaded.forecast("Kel", "visit") == said[1]
    same = loaded.evaluate()
    written, kept = (json.dumps([asdict(r) for r in one.records]) for one in (same, measured))
    assert written == kept
    assert same.mrr(residual) == measured.mrr(residual)
    assert (folder / "metrics.json").is_file()
    assert audit(Run(folder))[0].passed


def test_an_evaluation_is_a_table_and_a_frame(own_csv: Path) -> None:
    model = bridgemem.Forecaster("recurrence", residual="bridgemem", settings=SMALL)
    found = model.fit(own_csv).evaluate("valid")
    assert "\nrecurrence + bridgemem " in str(found)
    frame = found.to_frame()
    assert len(frame["mrr"]) == len(found.records)
    assert 0 < found.mrr("backbone", "raw") <= found.mrr("backbone", "time") <= found.mrr("backbone", "static") <= 1
    with pytest.raises(NotFoundError, match="no figure of 'learned'"):
        found.mrr("learned")


def test_a_folder_that_is_there_is_replaced_where_it_is_said(own_csv: Path, tmp_path: Path) -> None:
    model = bridgemem.Forecaster("recurrence", settings=SMALL).fit(own_csv)
    model.save(tmp_path / "run")
    with pytest.raises(RunError, match="exists already"):
        model.save(tmp_path / "run")
    loaded = bridgemem.Forecaster.load(tmp_path / "run")
    loaded.save(tmp_path / "copy")
    assert loaded.forecast("Kel", "visit") == bridgemem.Forecaster.load(tmp_path / "copy").forecast("Kel", "visit")


def test_a_hub_id_is_fetched_once(own_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, fetched = bridgemem.Forecaster("recurrence", settings=SMALL).fit(own_csv), list[str]()

    def pull(hub_id: str, home: Path, **_: object) -> Run:
        fetched.append(hub_id)
        return Run(model.save(home))

    monkeypatch.setattr("bridgemem.forecaster.pull", pull)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    for _ in range(2):
        assert bridgemem.Forecaster.load("someone/model").forecast("Kel", "visit") == model.forecast("Kel", "visit")
    assert fetched == ["someone/model"]
    with pytest.raises(RunError, match="there is no run at"):
        bridgemem.Forecaster.load(tmp_path / "nowhere")


def test_a_mistyped_path_is_not_looked_for_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridgemem.forecaster.pull", stop)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("runs/none", "./none", "../none", "~/none", "/none", "a/b/c", "none"):
        with pytest.raises(RunError, match="there is no run at"):
            bridgemem.Forecaster.load(path)


def test_a_hub_that_cannot_be_reached_is_told_with_the_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match=r"there is no folder some/run here, and the hub at .* could not be reached"):
        bridgemem.Forecaster.load("some/run")


def test_what_it_returns_prints_and_becomes_a_table() -> None:
    world = small_world().dataset
    model = Forecaster("recurrence", settings=Settings(max_epochs=1)).fit(world)
    answers = model.forecast(0, 0, top=3)
    lines = str(answers).splitlines()
    assert lines[0].split() == ["rank", "candidate", "p_given_event", "score", "backbone_rank"]
    assert [c.name for c in answers] == [line[6:].split("  ")[0] for line in lines[1:]]
    columns = answers.to_frame()
    assert list(columns["name"]) == [c.name for c in answers]
    assert list(columns["p_given_event"]) == [c.p_given_event for c in answers]
    why = model.explain(0, 0, answers[0].name)
    assert str(why).splitlines() == [why.headline(), *(f"- {reason.sentence}" for reason in why.reasons)]
    assert list(why.to_frame()["part"]) == [event.part for event in why.events]
    measured = model.evaluate("valid")
    assert "MRR" in str(measured)
    assert len(measured.to_frame()["mrr"]) == len(measured.records)

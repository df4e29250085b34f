"""Remake: every record has a job or a reason, jobs go on where they stopped, and remade rows are those recorded."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bridgemem.backbones.ensemble import Ensemble
from bridgemem.config import SAMPLED, Settings
from bridgemem.errors import DataError
from bridgemem.evaluation.records import Record, read_records, write_records
from bridgemem.events.dataset import Dataset
from bridgemem.events.world import WorldSettings, simulate
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.residuals.learning import learning_of
from bridgemem.studies import remake as study
from bridgemem.studies.remake import Done, compared, plan, remake
from bridgemem.studies.reproduce import reproduce
from commands import bridgemem
from measurements import GPU, backbone, campaign, learned, residual

RESULTS = Path(__file__).parents[2] / "results" / "records.jsonl"


@pytest.fixture(scope="module")
def world() -> Dataset:
    return simulate(WorldSettings(actors=20, relations=6, steps=40, events=900, partners=5)).dataset


@pytest.fixture(scope="module")
def recorded(world: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """What an experiment on a small world measured: a residual on recurrence, a baseline, a naive row."""
    found = reproduce(world, tmp_path_factory.mktemp("first"), backbone="recurrence", settings=Settings()).records
    return [replace(r, dataset="world") for r in found if r.backbone in ("recurrence", "most-frequent")]


@pytest.fixture
def loads(world: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The small world stands for the named one; what was loaded."""
    seen: list[str] = []

    def load(name: str, **_: Any) -> Dataset:
        seen.append(name)
        return replace(world, name="world")

    monkeypatch.setattr(study, "load", load)
    return seen


def test_every_row_has_a_job_or_a_reason() -> None:
    records = campaign()
    made = plan(records)
    counted = sum(int(what.split()[0]) for what, _ in made.left_out)
    assert sum(job.rows for job in made.jobs) + counted == len(records)


def test_every_row_of_the_published_records_has_a_job_or_a_reason() -> None:
    if not RESULTS.is_file():
        pytest.skip("needs results/ of the repository")
    records = read_records(RESULTS)
    made = plan(records)
    counted = sum(int(what.split()[0]) for what, _ in made.left_out)
    assert sum(job.rows for job in made.jobs) + counted == len(records)
    assert counted < len(records) / 20
    assert len({job.name for job in made.jobs}) == len(made.jobs)
    assert made.minutes > 0


def test_a_subset_is_planned_alone_and_an_unknown_name_refused() -> None:
    records = [backbone(dataset="wiki"), residual(dataset="wiki"), backbone(dataset="yago"), residual(dataset="yago")]
    assert {job.dataset for job in plan(records, only=["yago"]).jobs} == {"yago"}
    with pytest.raises(DataError, match="no record of mars"):
        plan(records, only=["mars"])
    records += [backbone(dataset="yago", backbone="hri"), residual(dataset="yago", backbone="hri")]
    assert [(job.dataset, job.backbone) for job in plan(records, only=["yago/hri"]).jobs] == [("yago", "hri")]
    with pytest.raises(DataError, match="no record of wiki/hri"):
        plan(records, only=["wiki/hri"])


def test_what_came_from_elsewhere_is_left_out_with_its_reason() -> None:
    made = plan([backbone(backbone="stored"), backbone(backbone="somebody's"), backbone(dataset="mine")])
    assert not made.jobs
    assert len(made.left_out) == 3


def test_rows_with_other_inputs_are_named() -> None:
    old = learned(settings={"max_pairs": 5})
    assert [why for _, why in plan([old]).differs] == ["fitted by an earlier recipe of the learned residual"]
    assert plan([backbone()]).differs == (
        ("1 of icews14, cenet", "its training noted no settings: those of today are taken"),
    )
    assert plan([backbone(settings={"backbone_settings": {}, "train_device": GPU})]).differs == ()
    unknown = [backbone(backbone="somebody's"), replace(old, backbone="somebody's")]
    assert plan(unknown).differs == ()  # what is not remade at all
    wide = learned(backbone="counting+stream", settings=asdict(LearnedSettings(train_queries=120_000)))
    assert "hidden=64" in plan([wide]).differs[0][1]
    unaware = {name: noted for name, noted in asdict(LearnedSettings()).items() if name != "renewed"}
    before = [learned(settings=unaware), learned(backbone="ensemble", settings=unaware)]
    why = "fitted before it read whether a pair keeps time"
    assert [said for _, said in plan(before).differs] == [why, f"{why}, the backbone trained once"]
    noted = {"backbone_settings": {}, "train_device": GPU}
    mixed = learned(backbone="ensemble", settings=asdict(learning_of(Ensemble)))
    alone = backbone(backbone="ensemble", settings=noted)
    assert plan([mixed, replace(alone, settings={**noted, "renewed": "on"})]).differs == ()
    assert "test asks two" in plan([mixed, alone]).differs[0][1]
    assert plan([alone]).differs == (), "without a learned residual nothing is trained once more"


def test_an_estimate_counts_every_training_of_an_ensemble_once() -> None:
    noted = {"backbone_settings": {}, "train_seconds": 600.0}
    first = [backbone(backbone="ensemble", settings=noted), learned(backbone="ensemble", cross_fit=0.2)]
    hour = plan(first).minutes
    assert 50 <= hour < 60, "one, three on earlier events, and one on validation"
    assert plan([*first, learned(backbone="ensemble", cross_fit=0.2, seed=43)]).minutes < hour + 10


def test_fits_have_the_settings_that_their_records_note(
    world: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learned residual's, and whether the paper's was fitted on samples."""
    asked: list[dict[str, Any]] = []

    def noting(*_: Any, **how: Any) -> Any:
        asked.append(how)
        raise DataError("enough is known.")

    monkeypatch.setattr(study, "reproduce", noting)
    monkeypatch.setattr(study, "load", lambda *_, **__: world)
    noted = LearnedSettings(train_queries=30_000, without=("actor",))
    sampled = learned(backbone="recurrence", settings={**asdict(noted), "transitions": 30_000})
    now = learned(backbone="recurrence-dyadic", settings={**asdict(noted), "transitions": SAMPLED.max_examples})
    whole = learned(backbone="hri", settings={"transitions": 289_788, "max_pairs": 5, "hidden": 96})
    remake(plan([sampled, now, whole]), tmp_path, tmp_path / "records.jsonl")
    settings = {how["backbone"]: (how["settings"], how["learned_settings"]) for how in asked}
    whole_too = (Settings(), LearnedSettings(hidden=96))
    assert settings == {"recurrence": (None, noted), "recurrence-dyadic": (None, noted), "hri": whole_too}


def test_remade_rows_are_those_recorded(recorded: list[Record], loads: list[str], tmp_path: Path) -> None:
    made = plan(recorded)
    assert [job.work for job in made.jobs] == [("ranks",), ("bridgemem",)]
    done = remake(made, tmp_path / "runs", tmp_path / "records.jsonl")
    assert not any(one.failed for one in done.values())
    others = [backbone(backbone="somebody's")]  # which are not remade stand in the same file
    shown = compared([*recorded, *others], read_records(tmp_path / "records.jsonl"))
    assert len(shown.rows) == 6
    assert {row[-1] for row in shown.rows} <= {"+0.0000", "-0.0000"}


def test_what_is_done_stays_done_and_a_failure_does_not_stop_the_rest(
    recorded: list[Record], loads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, own, calls = plan(recorded), study._do, []

    def failing(job: study.Job, *rest: Any) -> list[Record]:
        calls.append(job.name)
        if job.work == ("ranks",) and len(calls) == 1:
            raise DataError("the file is away.")
        return own(job, *rest)

    monkeypatch.setattr(study, "_do", failing)
    first = remake(made, tmp_path, tmp_path / "records.jsonl")
    assert [one.failed for one in first.values()] == ["the file is away.", ""]
    second = remake(made, tmp_path, tmp_path / "records.jsonl")
    assert calls[2:] == [made.jobs[0].name]
    assert not any(one.failed for one in second.values())
    calls.clear()
    remake(made, tmp_path, tmp_path / "records.jsonl")
    assert calls == []
    assert json.loads((tmp_path / study.STATE).read_text(encoding="utf-8"))[made.jobs[0].name]["records"] == 3
    assert isinstance(second[made.jobs[0].name], Done)


def test_the_command_shows_a_plan_first_and_then_both_figures(
    recorded: list[Record], loads: list[str], tmp_path: Path
) -> None:
    source = tmp_path / "records.jsonl"
    write_records(source, recorded)
    before = source.read_bytes()
    asked = ("reproduce", "--all", "--from", source, "--records", source, "--runs", tmp_path / "runs")
    planned = bridgemem(*asked, "--plan")
    assert planned.code == 0, planned.err
    assert "2 jobs, about" in planned.out
    names = [("--only", job.dataset + "/" + job.backbone) for job in plan(recorded).jobs]
    assert "2 jobs, about" in bridgemem(*asked, *names[0], *names[1], "--plan").out
    assert "1 job, about" in bridgemem(*asked, *names[0], "--plan").out
    first = planned.out.splitlines()[0]
    assert first == f"Plan for the records in {source} (--from FILE takes others)"
    assert not loads
    made = bridgemem(*asked)
    assert made.code == 0, made.err
    assert "Recorded and remade" in made.out
    assert source.read_bytes() == before
    document = json.loads(bridgemem(*asked, "--json").out)
    assert len(document["outcomes"]) == 2
    assert document["source"] == str(source)
    assert document["out"] == str(tmp_path / "runs" / "records.jsonl")


def test_an_interrupted_command_says_that_it_goes_on(
    recorded: list[Record], loads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "records.jsonl"
    write_records(source, recorded)
    asked = ("reproduce", "--all", "--from", source, "--runs", tmp_path / "runs", "-q")
    own = study._do

    def stopping(job: study.Job, *rest: Any) -> list[Record]:
        if job.work != ("ranks",):
            raise KeyboardInterrupt
        return own(job, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(study, "_do", stopping)
        stopped = bridgemem(*asked)
    assert stopped.code == 1
    assert "the same command goes on" in stopped.err
    assert len(json.loads((tmp_path / "runs" / study.STATE).read_text(encoding="utf-8"))) == 1
    assert bridgemem(*asked).code == 0
    assert (tmp_path / "runs" / "records.jsonl").is_file()  # and not with the published ones
    assert len(json.loads((tmp_path / "runs" / study.STATE).read_text(encoding="utf-8"))) == 2


def test_options_of_all_are_refused_without_it_and_so_is_nothing_at_all() -> None:
    assert "use --all" in bridgemem("reproduce").refused()
    assert "belong to --all" in bridgemem("reproduce", "world", "--plan").refused()

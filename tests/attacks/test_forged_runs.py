"""Forged runs: figures, choices or data changed with every digest recomputed, so that the folder agrees with itself."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from bridgemem.evaluation.evaluate import conclude, evaluate, history, ranked_by, reading_of
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import Vocabulary
from bridgemem.events.packs import pack
from bridgemem.events.queries import Queries
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.residuals.scoring import Choice, Replay, Scoring, replay
from bridgemem.residuals.selection import SELECTION_FILTERS, Selection, grid, select
from bridgemem.runs import Run
from bridgemem.storage.files import write_names
from bridgemem.storage.tables import read_table
from bridgemem.studies.audit import audit
from commands import bridgemem, named_own

pytest_plugins = ("small_runs",)

SAMPLE = 64  # queries that `audit --steps 1` once re-ranked, drawn with a seed that everybody knew


@pytest.fixture(scope="module")
def honest(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(recurrence_run, tmp_path_factory.mktemp("honest") / "run"))
    evaluate(Run(folder))
    return folder


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Run:
    """An evaluated run to be forged."""
    return Run(shutil.copytree(honest, tmp_path / "run"))


def found(run: Run) -> str:
    """The one check that fails, as the command prints it."""
    outcome = bridgemem("audit", run.folder, "--steps", "1")
    failed = [line for line in outcome.out.splitlines() if line.startswith("NOT SHOWN")]
    assert (outcome.code, len(failed)) == (1, 1), outcome.out
    return failed[0]


# ---- ranks ---------------------------------------------------------------------------------------------------------


def forge_ranks(run: Run, rows: np.ndarray, column: str = "rank_time.bridgemem.time") -> None:
    """First rank for these queries, and every metric, gain and interval made to agree."""
    columns = {name: values.copy() for name, values in read_table(run.ranks_path("test")).items()}
    columns[column][rows] = 1.0
    conclude(run, run.dataset, "test", reading_of(columns, ranked_by(run)), "cpu")


def test_ranks_forged_outside_a_sample_that_everybody_knows_are_found(run: Run) -> None:
    before = read_table(run.ranks_path("test"))["rank_time.bridgemem.time"]
    drawn = np.random.default_rng(0).choice(len(before), size=SAMPLE, replace=False)
    forge_ranks(run, np.setdiff1d(np.arange(len(before)), drawn))
    after = read_table(run.ranks_path("test"))["rank_time.bridgemem.time"]
    said = found(run)
    assert said.startswith("NOT SHOWN  ranks from scores: ")
    assert "bridgemem.time under the time filter" in said
    # the figures that the scores give and those that were stored
    for figure in (Metrics.of(before).mrr, Metrics.of(after).mrr):
        assert f"{figure:.4f}".removeprefix("0") in said


@pytest.mark.parametrize("column", ["rank_raw.backbone", "rank_static.bridgemem.static"])
def test_a_single_forged_rank_is_found(run: Run, column: str) -> None:
    worst = int(np.argmax(read_table(run.ranks_path("test"))[column]))
    forge_ranks(run, np.array([worst]), column)
    assert f"1 of {len(read_table(run.ranks_path('test'))['step'])} ranks" in found(run)


@pytest.mark.parametrize("column", ["uncertainty", "answer_lag", "triple_seen"])
def test_forged_columns_that_tables_are_made_of_are_found(run: Run, column: str) -> None:
    columns = dict(read_table(run.ranks_path("test")))
    values = columns[column]
    columns[column] = ~values if values.dtype == bool else np.nan_to_num(values) + 1
    conclude(run, run.dataset, "test", reading_of(columns, ranked_by(run)), "cpu")
    assert column in found(run)


# ---- choices -------------------------------------------------------------------------------------------------------


def measured_on(run: Run, split: str) -> Replay:
    """Every choice of the grid ranked on a split."""
    dataset = run.dataset
    read = dataset if split == "test" else dataset.without_test()
    part = "known" if split == "test" else "train"
    past, filters = history(run, read, split, "cpu"), Filters(read.events)
    queries = Queries.of(read.split(split))
    return replay(
        Scoring(run.scorer(part), past, run.transitions(part), choices=grid(run.settings)), queries, filters=filters
    )


def lock_in(run: Run, forge: Callable[[Selection], Selection]) -> None:
    """Selections changed and locked again, and the run evaluated under the new locks."""
    made = {name: forge(run.selection(name)) for name in SELECTION_FILTERS}
    locked = {name: {**selection.as_dict(), "lock": selection.lock()} for name, selection in made.items()}
    (run.folder / "selection.json").write_text(json.dumps(locked))
    evaluate(run)


def other_choice(run: Run, selection: Selection) -> tuple[Choice, Metrics]:
    """What does best on test of all that validation did not choose."""
    on_test = measured_on(run, "test")
    points = [(c, on_test.metrics(selection.filter, i + 1)) for i, c in enumerate(grid(run.settings))]
    return max((p for p in points if p[0] != selection.choice), key=lambda p: p[1].mrr)


def failures(run: Run) -> dict[str, str]:
    return {f.check: f.seen for f in audit(run, steps=1) if f.passed is False}


def test_a_choice_made_on_test_with_its_lock_recomputed_is_found(run: Run) -> None:
    chosen = run.selection("time").choice

    def forge(selection: Selection) -> Selection:
        choice, metrics = other_choice(run, selection)
        return replace(selection, choice=choice, chosen=metrics, feasible=True)

    lock_in(run, forge)
    forged, said = run.selection("time").choice, failures(run)
    assert list(said) == ["selection (static)", "selection (time)"]
    for choice in (chosen, forged):
        assert f"lambda {choice.lam:g}, gate {choice.gate}, tau {choice.tau:g}" in said["selection (time)"]


def test_a_grid_measured_on_test_with_its_lock_recomputed_is_found(run: Run) -> None:
    """The whole record comes from test and agrees with itself; only ranking validation again shows it."""
    on_test, dataset = measured_on(run, "test"), run.dataset

    def forge(selection: Selection) -> Selection:
        made = select(on_test, selection.filter, run.settings, dataset.without_test())
        return replace(made, queries=selection.queries)

    lock_in(run, forge)
    assert list(failures(run)) == ["validation grid (static)", "validation grid (time)"]


def test_a_grid_with_one_edited_row_is_found(run: Run) -> None:
    """The row that did best on test is lifted above all others, just enough to be chosen."""

    def forge(selection: Selection) -> Selection:
        choice, _ = other_choice(run, selection)
        row = next(r for r in selection.grid if Choice(**{k: r[k] for k in asdict(choice)}) == choice)
        lifted = {m: max(r[m] for r in selection.grid) for m in METRICS}
        row.update(lifted, mrr=lifted["mrr"] + 0.01, allowed=True)
        return replace(selection, choice=choice, chosen=Metrics(**{m: row[m] for m in METRICS}), feasible=True)

    lock_in(run, forge)
    assert set(failures(run)) == {"validation grid (static)", "validation grid (time)"}


def test_a_grid_with_rows_taken_out_is_found(run: Run) -> None:
    def forge(selection: Selection) -> Selection:
        rest = [r for r in selection.grid if (r["lam"], r["gate"], r["tau"]) != _point(selection.choice)]
        best = max((r for r in rest if r["allowed"]), key=lambda r: r["mrr"])
        choice = Choice(best["lam"], best["gate"], best["tau"])
        return replace(selection, choice=choice, chosen=Metrics(**{m: best[m] for m in METRICS}), grid=rest)

    lock_in(run, forge)
    assert {"selection (static)", "selection (time)"} <= set(failures(run))


def _point(choice: Choice) -> tuple[float, str, float]:
    return choice.lam, choice.gate, choice.tau


# ---- data ----------------------------------------------------------------------------------------------------------


def swapped(vocabulary: Vocabulary) -> Vocabulary:
    first, second, *rest = vocabulary.names
    return Vocabulary(vocabulary.kind, (second, first, *rest))


def other_names(data: Dataset) -> Dataset:
    return replace(data, events=replace(data.events, entities=swapped(data.events.entities)))


def other_relations(data: Dataset) -> Dataset:
    return replace(data, events=replace(data.events, relations=swapped(data.events.relations)))


def other_dates(data: Dataset) -> Dataset:
    clock = data.events.clock
    return replace(data, events=replace(data.events, clock=replace(clock, origin=clock.origin + 365 * clock.unit)))


def other_steps(data: Dataset) -> Dataset:
    clock = data.events.clock
    return replace(data, events=replace(data.events, clock=replace(clock, unit=7 * clock.unit)))


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        (other_names, "entity names"),
        (other_relations, "relation names"),
        (other_dates, "clock"),
        (other_steps, "clock"),
    ],
)
def test_names_and_dates_changed_in_the_data_are_found_and_named(
    run: Run, forge: Callable[[Dataset], Dataset], named: str
) -> None:
    data = forge(run.dataset)
    pack(data, run.folder / "data.npz")
    for kind, vocabulary in (("entities", data.events.entities), ("relations", data.events.relations)):
        (run.folder / f"{kind}.txt").unlink()
        write_names(run.folder / f"{kind}.txt", vocabulary.names)
    said = found(run)
    assert said.startswith("NOT SHOWN  identity: ")
    assert re.search(rf"other {named}\b", said), said


def test_dates_changed_in_the_copy_of_a_named_data_set_are_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a run does not carry its data, and the catalogue knows the fingerprint alone."""
    data = named_own(run.dataset, run.config.dataset, monkeypatch)
    (run.folder / "data.npz").unlink()
    options = ("--steps", "1", "--data-dir", tmp_path)
    for forge, code in ((lambda given: given, 0), (other_dates, 1)):
        pack(forge(data), tmp_path / f"{data.name}.npz")
        outcome = bridgemem("audit", run.folder, *options)
        assert outcome.code == code, outcome.out + outcome.err
    assert "NOT SHOWN  identity: the data has another clock" in outcome.out


@pytest.mark.parametrize("kind", ["entities", "relations"])
def test_names_changed_in_the_lists_alone_are_found(run: Run, kind: str) -> None:
    path = run.folder / f"{kind}.txt"
    first, second, *rest = path.read_text().split("\n")
    path.unlink()
    path.write_text("\n".join([second, first, *rest]))
    assert f"{kind}.txt" in found(run)


def test_a_run_without_an_identity_is_refused(run: Run) -> None:
    path = run.folder / "config.toml"
    path.write_text(re.sub(r"\[identity\][^\[]*", "", path.read_text()))
    assert "identity is missing" in bridgemem("audit", run.folder, "--steps", "1").refused()


def test_an_identity_whose_parts_were_edited_is_found(run: Run) -> None:
    pack(other_dates(run.dataset), run.folder / "data.npz")
    path, origin = run.folder / "config.toml", run.dataset.events.clock.origin
    path.write_text(re.sub(r'(\nclock = "\S+) \S+', rf"\1 {origin}", path.read_text()))
    assert found(run).startswith("NOT SHOWN  identity: ")

"""Audit: a clean run passes, and every way of doctoring one is found by the check that is there for it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bridgemem.backbones.recurrence import Recurrence
from bridgemem.backbones.scorer import Scores
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refresh import refresh
from bridgemem.memory.past import Past
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals import activity
from bridgemem.residuals.activity import Activity
from bridgemem.residuals.learned import Learned, LearnedNet, LearnedSettings
from bridgemem.residuals.neighbours import Neighbours
from bridgemem.residuals.selection import Selection
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table, write_table
from bridgemem.storage.tensors import read_tensors, write_tensors
from bridgemem.studies.audit import Finding, audit, chance_missed, future_blind
from builders import dataset_of, random_log, random_transitions, small_world
from commands import TINY_READER, bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)
CHECKS = [
    "data",
    "identity",
    "training",
    "selection (static)",
    "selection (time)",
    "validation grid (static)",
    "validation grid (time)",
    "metrics from ranks",
    "ranks from scores",
    "counts from the past",
    "backbone blind to the future",
    "evidence blind to the future",
]
LEARNED = "learned blind to the future"


@pytest.fixture(scope="module")
def clean(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(recurrence_run, tmp_path_factory.mktemp("audit") / "run")
    evaluate(Run(folder))
    evaluate(Run(folder), split="valid")
    return Path(folder)


@pytest.fixture
def run(clean: Path, tmp_path: Path) -> Run:
    """A run to be doctored."""
    return Run(shutil.copytree(clean, tmp_path / "run"))


def failed(run: Run, split: str = "test") -> list[str]:
    findings = audit(run, split=split, steps=2)
    assert all(f.seen for f in findings)
    return [f.check for f in findings if f.passed is False]


def unchecked(findings: Sequence[Finding]) -> list[str]:
    return [f.check for f in findings if f.passed is None]


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.mark.parametrize("split", ["test", "valid"])
def test_a_clean_run_passes(clean: Path, split: str) -> None:
    findings = audit(Run(clean), split=split)
    assert [f.check for f in findings] == CHECKS
    assert [f for f in findings if not f.passed] == []


def test_a_clean_run_with_frozen_history_passes(own_csv: Path, tmp_path: Path) -> None:
    fitted = bridgemem(
        "fit", "-d", own_csv, "-b", "recurrence", "-o", tmp_path / "run", "--history", "frozen", *TINY_READER
    )
    assert fitted.code == 0, fitted.err
    evaluate(Run(tmp_path / "run"))
    assert failed(Run(tmp_path / "run")) == []


def test_a_sample_is_drawn_with_a_fresh_seed_that_the_report_tells(clean: Path) -> None:
    found = [audit(Run(clean), steps=1, sample=20) for _ in range(2)]
    assert [unchecked(findings) for findings in found] == [["validation grid"]] * 2
    said = [next(f.seen for f in findings if f.check == "ranks from scores") for findings in found]
    seeds = [int(seen.split("seed ")[1].split(":")[0]) for seen in said]
    assert seeds[0] != seeds[1]
    again = audit(Run(clean), steps=1, sample=20, seed=seeds[0])
    assert said[0] in [f.seen for f in again]


def test_a_sample_says_how_likely_it_misses_a_forgery(clean: Path) -> None:
    n = len(read_table(Run(clean).ranks_path("test"))["step"])
    (ranks,) = (f for f in audit(Run(clean), steps=1, sample=n // 2) if f.check == "ranks from scores")
    assert ranks.passed
    missed = chance_missed(n, math.ceil(n / 100), n // 2)
    assert f"{n // 2} of {n} queries" in ranks.seen
    assert f"if 1% of the ranks were forged, a sample of this size would miss it with probability {missed:.2g}" in (
        ranks.seen
    )


@pytest.mark.parametrize("size", [0, 1])
def test_a_sample_of_all_is_no_sample(clean: Path, size: int) -> None:
    n = len(read_table(Run(clean).ranks_path("test"))["step"])
    (ranks,) = (f for f in audit(Run(clean), steps=1, sample=n + size) if f.check == "ranks from scores")
    assert ranks.seen.startswith(f"all {n} queries")
    assert "seed" not in ranks.seen


@pytest.mark.parametrize("forged", [0, 1, 3, 12])
@pytest.mark.parametrize("sample", [1, 5, 11, 12])
@pytest.mark.parametrize("allowed", [0, 1, 4])
def test_the_chance_of_missing_a_forgery_is_the_share_of_samples_that_do(
    forged: int, sample: int, allowed: int
) -> None:
    misses = [sum(row < forged for row in rows) <= allowed for rows in combinations(range(12), sample)]
    assert chance_missed(12, forged, sample, allowed) == pytest.approx(sum(misses) / len(misses), abs=1e-12)


@pytest.mark.parametrize("value", [0.9, float("nan"), None, "high"])
def test_an_edited_figure_is_found(run: Run, value: Any) -> None:
    edit(run.folder / "metrics.json", lambda m: {**m, "test": [{**m["test"][0], "mrr": value}, *m["test"][1:]]})
    # rows with a figure that is no number are not read at all, so that their locks cannot be compared either
    unread = [] if isinstance(value, float) else ["selection (static)", "selection (time)"]
    assert failed(run) == [*unread, "metrics from ranks"]
    assert failed(run, "valid") == []


def test_a_backbone_trained_on_other_events_is_found(run: Run) -> None:
    note = run.folder / "backbone" / "trained.json"
    edit(note, lambda noted: {**noted, "fingerprint": "0" * 16})
    assert failed(run) == failed(run, "valid") == ["training"]
    note.unlink()
    (found,) = (f for f in audit(run, steps=2) if f.check == "training")
    assert (found.passed, found.seen) == (True, "fitted again on the train split, it is the same")


def test_after_a_refresh_the_backbone_is_held_against_what_was_train_before(clean: Path, tmp_path: Path) -> None:
    with EventStore(tmp_path / "events.duckdb") as store:
        store.follow(Run(clean).dataset.events)
        late, new = ("Castel", "visit", "Dunhal", "2024-01-05"), ("Arvan", "sing to", "Nova", "2024-02-12")
        store.append([late, new], source="wire", key="1")
        refresh(Run(clean), store, tmp_path / "fresh")
    fresh = Run(tmp_path / "fresh")
    assert fresh.dataset.train.fingerprint != Run(clean).dataset.train.fingerprint
    evaluate(fresh, split="valid")
    assert "training" not in failed(fresh, "valid")
    note = fresh.folder / "backbone" / "trained.json"
    note.unlink()  # a link to that of the run before
    note.write_text(json.dumps({"fingerprint": "0" * 16}))
    assert "training" in failed(fresh, "valid")


def test_an_edited_interval_is_found(run: Run) -> None:
    def widen(metrics: dict[str, Any]) -> dict[str, Any]:
        metrics["test"][-1]["gain"]["mrr"][1] += 0.01
        return metrics

    edit(run.folder / "metrics.json", widen)
    assert failed(run) == ["metrics from ranks"]


def test_a_row_left_out_is_found(run: Run) -> None:
    edit(run.folder / "metrics.json", lambda m: {**m, "test": m["test"][1:]})
    assert failed(run) == ["metrics from ranks"]


def test_an_edited_rank_is_found(run: Run) -> None:
    columns = read_table(run.ranks_path("test"))
    columns["rank_time.bridgemem.time"][int(np.argmax(columns["rank_time.bridgemem.time"]))] = 1.0
    write_table(run.ranks_path("test"), columns)
    assert "metrics from ranks" in failed(run)


def test_ranks_and_figures_edited_together_are_found(run: Run) -> None:
    """Ranks halved and every figure made to fit them: only scoring anew shows it."""
    columns = read_table(run.ranks_path("test"))
    better = np.maximum(1, columns["rank_time.bridgemem.time"] / 2)
    columns["rank_time.bridgemem.time"] = better
    write_table(run.ranks_path("test"), columns)

    def fit_in(metrics: dict[str, Any]) -> dict[str, Any]:
        (row,) = (r for r in metrics["test"] if (r["selected_by"], r["filter"]) == ("time", "time"))
        gains = paired_gains(columns["rank_time.backbone"], better, columns["step"])
        row.update(Metrics.of(better).as_dict(), gain={m: [g.value, g.low, g.high] for m, g in gains.items()})
        return metrics

    edit(run.folder / "metrics.json", fit_in)
    assert failed(run) == ["ranks from scores"]


def test_a_table_of_other_queries_is_found(run: Run) -> None:
    columns = read_table(run.ranks_path("test"))
    write_table(run.ranks_path("test"), {name: column[2:] for name, column in columns.items()})
    assert failed(run) == ["metrics from ranks", "ranks from scores"]


def test_an_edited_selection_is_found(run: Run) -> None:
    def change(locked: dict[str, Any]) -> dict[str, Any]:
        locked["time"]["choice"]["lam"] += 1
        return locked

    edit(run.folder / "selection.json", change)
    assert failed(run) == ["selection (time)", "ranks from scores"]


def test_a_selection_edited_and_locked_again_is_found(run: Run) -> None:
    chosen = run.selection("static")
    other = replace(chosen, choice=replace(chosen.choice, lam=chosen.choice.lam + 1))
    edit(run.folder / "selection.json", lambda s: {**s, "static": {**other.as_dict(), "lock": other.lock()}})
    assert "selection (static)" in failed(run)


def test_a_selection_made_with_test_facts_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Run.selection

    def seen_all(self: Run, name: str) -> Selection:
        return replace(own(self, name), fingerprint=self.config.fingerprint)

    monkeypatch.setattr(Run, "selection", seen_all)
    assert failed(run) == ["selection (static)", "selection (time)"]


@pytest.mark.parametrize("change", ["queries", "allowed", "chosen"])
def test_a_record_that_says_otherwise_than_its_grid_is_found(run: Run, change: str) -> None:
    chosen = run.selection("time")
    others: dict[str, dict[str, Any]] = {
        "queries": {"queries": chosen.queries + 1},
        "allowed": {"grid": [{**row, "allowed": not row["allowed"]} for row in chosen.grid]},
        "chosen": {"chosen": replace(chosen.chosen, mrr=0.9)},
    }
    other = replace(chosen, **others[change])
    edit(run.folder / "selection.json", lambda s: {**s, "time": {**other.as_dict(), "lock": other.lock()}})
    evaluate(run)
    assert failed(run) == ["validation grid (time)" if change == "queries" else "selection (time)"]


def test_counts_that_hold_later_events_are_found(run: Run) -> None:
    path = run.folder / "model.safetensors"
    tensors = read_tensors(path)
    path.unlink()
    write_tensors(
        path, {**tensors, "known.counts": tensors["known.counts"] + torch.eye(*tensors["known.counts"].shape).long()}
    )
    assert "counts from the past" in failed(run)
    assert failed(run, "valid") == []


def test_a_moved_split_is_found(run: Run) -> None:
    dataset = run.dataset
    assert dataset.test_start is not None
    found = audit(run, replace(dataset, test_start=dataset.test_start + 1), steps=1)
    assert {f.check for f in found if not f.passed} >= {"data", "identity", "selection (time)", "ranks from scores"}


@pytest.mark.parametrize("content", ["[]", "{}", '{"test": [{}]}', "{broken", None])
def test_a_damaged_or_missing_file_fails_and_stops_no_other_check(run: Run, content: str | None) -> None:
    path = run.folder / "metrics.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    findings = audit(run, steps=1)
    assert [f.check for f in findings] == CHECKS
    broken = ["selection (static)", "selection (time)", "metrics from ranks"]
    assert [f.check for f in findings if not f.passed] == broken


def test_a_run_without_ranks_fails(run: Run) -> None:
    run.ranks_path("test").unlink()
    assert failed(run) == ["metrics from ranks", "ranks from scores"]


def test_a_backbone_that_cannot_be_opened_fails_every_check_that_scores(run: Run) -> None:
    weights = run.folder / "backbone" / "weights.safetensors"
    weights.unlink()
    weights.write_bytes(b"nothing")
    assert failed(run) == ["validation grid", "ranks from scores", "blind to the future"]


class SeesNow(Recurrence):
    """Reads the labels of the very step it is asked about."""

    def score(self, queries: Queries, past: Past) -> Scores:
        return super().score(Queries(queries.actor, queries.relation, queries.step + 1), past)


class CountsToday(Recurrence):
    """Its scores are in order, but its uncertainty counts the events of the step itself."""

    def score(self, queries: Queries, past: Past) -> Scores:
        today = int((past.events.step == int(queries.step[0])).sum())
        return Scores(super().score(queries, past).log_p, torch.full((len(queries),), today / 1e4))


class Thaws(Recurrence):
    """Rolls on where the history is frozen."""

    def score(self, queries: Queries, past: Past) -> Scores:
        return super().score(queries, Past(past.events))


def blindness(kind: type[Recurrence], frozen: bool = False, learned: Sequence[Learned] = ()) -> list[bool]:
    dataset = small_world().dataset
    transitions = random_transitions(dataset.known)
    frozen_at = dataset.test_start if frozen else None
    found = future_blind(kind.fit(dataset), transitions, dataset, "test", 2, frozen_at=frozen_at, learned=learned)
    checks = {f.check: f.passed for f in found}
    assert list(checks) == [*CHECKS[-2:], *[LEARNED] * bool(learned)]
    return list(checks.values())


@pytest.mark.parametrize("cheat", [SeesNow, CountsToday])
def test_a_backbone_that_reads_the_present_is_found(cheat: type[Recurrence]) -> None:
    assert blindness(cheat) == [False, True]


def test_a_backbone_that_reads_past_a_frozen_history_is_found() -> None:
    assert blindness(Recurrence, frozen=True) == [True, True]
    assert blindness(Thaws, frozen=True) == [False, True]


def test_evidence_that_reads_the_present_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Transitions.evidence

    def ahead(self: Transitions, queries: Queries, past: Past) -> Evidence:
        return own(self, Queries(queries.actor, queries.relation, queries.step + 1), past)

    monkeypatch.setattr(Transitions, "evidence", ahead)
    assert blindness(Recurrence) == [True, False]


@pytest.fixture(scope="module")
def opinions() -> list[Learned]:
    """Learned residuals of two filters that were not trained but have strong opinions."""
    found, settings = [], LearnedSettings(hidden=8, relation_width=4, unseen_candidates=5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(2):
            net = LearnedNet(2 * small_world().events.n_relations, settings)
            for parameter in net.body.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
            found.append(Learned(settings, net))
    return found


def leak(monkeypatch: pytest.MonkeyPatch, reader: type, method: str, cut: int) -> None:
    """Let a reader of features see the step itself, and the one after; cut: where it is among the arguments."""
    own = getattr(reader, method)

    def ahead(self: Any, *given: Any) -> Any:
        return own(self, *given[:cut], given[cut] + 2, *given[cut + 1 :])

    monkeypatch.setattr(reader, method, ahead)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_learned_residual_that_reads_the_past_passes(opinions: list[Learned], frozen: bool) -> None:
    assert blindness(Recurrence, frozen, opinions) == [True, True, True]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("reader", "method", "cut"), [(Neighbours, "weights_before", 0), (Activity, "read", 2), (Activity, "everybody", 0)]
)
def test_a_learned_residual_that_reads_the_present_is_found(
    opinions: list[Learned], monkeypatch: pytest.MonkeyPatch, reader: type, method: str, cut: int, frozen: bool
) -> None:
    monkeypatch.setattr(activity, "LOOKUP", 1 << 40)  # all candidates are counted; the actors are looked up
    leak(monkeypatch, reader, method, cut)
    assert blindness(Recurrence, frozen, opinions) == [True, True, False]


def test_a_leak_that_one_filter_alone_has_is_found(opinions: list[Learned], monkeypatch: pytest.MonkeyPatch) -> None:
    leak(monkeypatch, Neighbours, "weights_before", 0)
    plain = replace(opinions[0].settings, unseen_candidates=0)
    at_the_start = LearnedNet(2 * small_world().events.n_relations, plain)  # where f is zero, whatever it reads
    deaf, other = (Learned(plain, net) for net in (at_the_start, opinions[1].net))
    assert blindness(Recurrence, learned=[deaf]) == [True, True, True]
    assert blindness(Recurrence, learned=[deaf, other]) == [True, True, False]


def test_no_more_steps_are_drawn_than_there_are() -> None:
    dataset = dataset_of(random_log(1))
    found = future_blind(Recurrence.fit(dataset), random_transitions(dataset.known), dataset, "test", steps=999)
    many = len(np.unique(dataset.test.step))
    assert [(f.passed, f.seen.split(" scored")[0]) for f in found] == [(True, f"{many} steps")] * 2


@pytest.fixture(scope="module")
def refreshed(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run refreshed twice, with a late event and new names, and evaluated."""
    home = tmp_path_factory.mktemp("refreshed")
    with EventStore(home / "events.duckdb") as store:
        live = LiveForecaster(loaded(recurrence_run), store)
        live.add([("Arvan", "visit", "Belmor", "2024-01-05"), ("Nova", "sing to", "Kel", "2024-02-12")], "wire", "1")
        refresh(Run(recurrence_run), store, home / "second")
        store.append([("Kel", "visit", "Nova", "2024-02-14")], source="wire", key="2")
        refresh(Run(home / "second"), store, home / "third")
    evaluate(Run(home / "third"), split="valid")
    return home / "third"


def test_a_refreshed_run_passes_as_refresh_left_it(refreshed: Path) -> None:
    found = audit(Run(refreshed), split="valid", steps=2)
    assert [f for f in found if f.passed is False] == []
    assert unchecked(found) == ["validation grid"], "the transitions that the choice was made with are gone"
    said = [f.seen for f in found if f.check.startswith("selection")]
    assert all(seen.startswith("made on train and validation of the run before it was refreshed") for seen in said)


def test_a_selection_that_was_not_made_on_what_was_refreshed_is_found(refreshed: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(refreshed, tmp_path / "run"))
    chosen = run.selection("time")
    other = replace(chosen, fingerprint=run.dataset.known.fingerprint)
    edit(run.folder / "selection.json", lambda s: {**s, "time": {**other.as_dict(), "lock": other.lock()}})
    assert "selection (time)" in failed(run, "valid")
    assert "selection (static)" not in failed(run, "valid")


def test_a_note_that_does_not_say_what_was_chosen_on_fails(refreshed: Path, tmp_path: Path) -> None:
    run = Run(shutil.copytree(refreshed, tmp_path / "run"))
    edit(run.folder / "refresh.json", lambda notes: [{**notes[0], "chosen_until": None}, *notes[1:]])
    found = [f for f in audit(run, split="valid", steps=1) if f.check.startswith("selection")]
    assert [f.passed for f in found] == [False, False]
    assert all("chosen_until" in f.seen for f in found)

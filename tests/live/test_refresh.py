"""Refresh: counts that equal those of the whole log, a reader that goes on, and all else kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bridgemem.errors import DataError, RunError, SelectionError, SettingsError
from bridgemem.events.naming import NewEvent
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refresh import merged_counts, next_name, refresh, widen_transitions
from bridgemem.runs import REFRESHES, Run
from bridgemem.storage.files import FORMAT, write_json
from builders import (
    SMALL_READER,
    few,
    log_of,
    logs,
    negative_log_likelihood,
    random_log,
    random_transitions,
    refresh_note,
    rows_of,
)
from commands import bridgemem
from fits import loaded
from precision import close

pytest_plugins = ("small_runs",)

OLD_NAMES: list[NewEvent] = [
    ("Arvan", "visit", "Belmor", "2024-02-10"),
    ("Belmor", "consult", "Arvan", "2024-02-11"),
    ("Castel", "visit", "Dunhal", "2024-01-05"),  # late
]
NEW_NAMES: list[NewEvent] = [("Arvan", "visit", "Nova", "2024-02-12"), ("Nova", "sing to", "Kel", "2024-02-12")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "events.duckdb") as opened:
        yield opened


def counted(run: Run, part: str) -> None:
    """The run's counts and prior are those of its data, counted from nothing."""
    dataset, transitions = run.dataset, run.transitions(part)
    events = dataset.known if part == "known" else dataset.train
    assert transitions.counts.counts.equal(
        CountTable.of(mine(events, transitions.space, run.settings), transitions.space).counts
    )
    assert transitions.log_pi.equal(log_prior(events))


@few
@given(logs(), st.data())
def test_merged_counts_are_those_of_the_whole_log(before: object, data: st.DataObject) -> None:
    """Whatever is added, late or not, and whatever is taken back."""
    from bridgemem.events.log import EventLog

    assert isinstance(before, EventLog)
    rows = rows_of(before)
    gone = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=5)) if rows else set[int]()
    more = rows_of(data.draw(logs()))
    after = log_of([row for i, row in enumerate(rows) if i not in gone] + more, 5, 3)
    space = TokenSpace.of(SMALL_READER, 3)

    def table(events: EventLog) -> CountTable:
        return CountTable.of(mine(events, space, SMALL_READER), space)

    assert merged_counts(table(before), before, after, space, SMALL_READER).counts.equal(table(after).counts)


def test_widened_transitions_say_the_same_of_old_relations_when_the_prior_does() -> None:
    events = random_log(5, n_relations=4)
    old = random_transitions(events)
    prior = torch.full((12,), -2.0, dtype=torch.float64)
    kept = torch.tensor([0, 1, 2, 3, 6, 7, 8, 9])
    prior[kept] = old.log_pi
    wide = widen_transitions(old, 6, prior)
    tokens = torch.tensor([[old.space.n_bins * 5 + 1, 2, old.space.pad]])
    # directed relation 5 is relation 1 the other way round: 7 among six
    moved = torch.tensor([[old.space.n_bins * 7 + 1, 2, wide.space.pad]])
    assert wide.support[moved].equal(old.support[tokens])
    assert wide.p_ct[moved][..., kept].equal(old.p_ct[tokens])
    a, b = wide.reader(moved)[:, kept], old.reader(tokens)
    assert close(a, b)


@pytest.mark.parametrize("kind", ["recurrence_run", "walk"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_refreshed_run_is_fitted_on_everything_known(
    kind: str, warm: bool, store: EventStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(kind)
    run = Run(found if isinstance(found, Path) else found.run)
    store.append([], source="wire", key="0")
    live = LiveForecaster(loaded(run), store)
    live.add(OLD_NAMES, "wire", "1")
    live.add(NEW_NAMES, "wire", "2")
    made = refresh(run, store, tmp_path / "new", warm=warm)
    assert (made.added, made.retracted, made.new_entities, made.new_relations) == (5, 0, 1, 1)
    new = Run(tmp_path / "new")
    assert rows_of(new.dataset.events) == rows_of(live.events)
    counted(new, "known")
    counted(new, "train")
    assert new.selection("time") == run.selection("time")
    assert new.selection("time").lock() == run.selection("time").lock()
    # the new run knows the new relation, by itself and over the store
    alone, over = Run(new.folder).predictor(), LiveForecaster(loaded(new), store)
    assert rows_of(over.events) == rows_of(live.events)
    assert alone.forecast("Nova", "sing to") == over.forecast("Nova", "sing to")
    assert over.view.predictor.later is None
    noted = json.loads((new.folder / "refresh.json").read_text())
    assert noted[0]["selection"].startswith("kept")
    assert noted[0]["reader"] == ("warm" if warm else "anew")


def test_what_a_run_was_refreshed_with_makes_nothing_late_nor_a_duplicate_once_taken_back(
    recurrence_run: Path, store: EventStore, tmp_path: Path
) -> None:
    run, wrong = Run(recurrence_run), ("Kel", "visit", "Lor", "2031-01-01")
    ids = LiveForecaster(loaded(run), store).add([*OLD_NAMES, wrong], "wire", "1").ids
    refresh(run, store, tmp_path / "second")
    live = LiveForecaster(loaded(tmp_path / "second"), store)
    live.retract(ids[-1])
    for opened in (live, LiveForecaster(loaded(tmp_path / "second"), store)):
        receipt = opened.add([("Kel", "visit", "Lor", "2024-03-14"), wrong], "wire", f"2 {id(opened)}")
        assert (receipt.late, receipt.duplicates) == (0, 0)
        opened.retract(receipt.ids)
    file = tmp_path / "news.csv"
    file.write_text("subject,relation,object,time\nKel,visit,Lor,2024-03-14\nKel,visit,Lor,2031-01-01\n")
    store.close()
    told = bridgemem("ingest", store.path, file, "--run", tmp_path / "second", "--json").json
    assert (told["late"], told["duplicates"]) == (0, 0)


def test_what_was_taken_back_after_a_refresh_is_gone_from_the_next(
    recurrence_run: Path, store: EventStore, tmp_path: Path
) -> None:
    run = Run(recurrence_run)
    ids = LiveForecaster(loaded(run), store).add([*OLD_NAMES, *NEW_NAMES], "wire", "1").ids
    refresh(run, store, tmp_path / "second")
    store.retract(ids[1])
    store.append([("Kel", "visit", "Lor", "2024-02-14")], source="wire", key="2")
    second = Run(tmp_path / "second")
    wanted = rows_of(LiveForecaster(loaded(run), store).events)
    assert rows_of(LiveForecaster(loaded(second), store).events) == wanted
    made = refresh(second, store, tmp_path / "third")
    assert (made.added, made.retracted) == (1, 1)
    third = Run(tmp_path / "third")
    assert rows_of(third.dataset.events) == wanted
    counted(third, "known")
    assert len(json.loads((third.folder / "refresh.json").read_text())) == 2
    with pytest.raises(DataError, match="add events first"):
        refresh(third, store, tmp_path / "fourth")
    assert not (tmp_path / "fourth").exists()


def test_the_run_that_was_refreshed_stays_as_it_was(recurrence_run: Path, store: EventStore) -> None:
    before = {path: path.read_bytes() for path in recurrence_run.rglob("*") if path.is_file()}
    plain = Run(recurrence_run).predictor().forecast("Arvan", "visit")
    LiveForecaster(loaded(recurrence_run), store).add(NEW_NAMES, "wire", "1")
    made = refresh(Run(recurrence_run), store)
    assert Path(made.run) == recurrence_run.parent / "run-2"
    assert {path: path.read_bytes() for path in recurrence_run.rglob("*") if path.is_file()} == before
    assert Run(recurrence_run).predictor().forecast("Arvan", "visit") == plain


def test_new_names_keep_their_ids_whatever_they_hold(recurrence_run: Path, store: EventStore, tmp_path: Path) -> None:
    odd: list[NewEvent] = [("Arvan", "make a\u2028statement", "No\x85va", "2024-02-12")]
    LiveForecaster(loaded(recurrence_run), store).add(odd, "wire", "1")
    refresh(Run(recurrence_run), store, tmp_path / "new", epochs=1)
    new = Run(tmp_path / "new")
    assert new.relations() == new.dataset.events.relations.names
    assert new.relations()[-1] == "make a\u2028statement"


def test_a_warm_reader_goes_on_from_its_weights(recurrence_run: Path, store: EventStore, tmp_path: Path) -> None:
    run = Run(recurrence_run)
    LiveForecaster(loaded(run), store).add(OLD_NAMES, "wire", "1")
    refresh(run, store, tmp_path / "warm", epochs=1)
    refresh(run, store, tmp_path / "anew", warm=False, epochs=1)
    old, warm, anew = (Run(folder).transitions() for folder in (run.folder, tmp_path / "warm", tmp_path / "anew"))
    first, near, far = (t.reader.relation.weight for t in (old, warm, anew))
    assert not near.equal(first)
    assert (near - first).norm() < (far - first).norm()
    examples = mine(Run(tmp_path / "warm").dataset.events, warm.space, run.settings)
    assert negative_log_likelihood(warm.reader, examples) < negative_log_likelihood(anew.reader, examples)


def test_the_learned_residual_is_carried_over(own_csv: Path, store: EventStore, tmp_path: Path) -> None:
    from commands import TINY_READER, bridgemem

    folder = tmp_path / "run"
    options = (*TINY_READER, "--residual", "learned", "--learned-set", "epochs=1")
    assert bridgemem("fit", "-d", own_csv, "-b", "recurrence", "-o", folder, *options).code == 0
    LiveForecaster(loaded(folder), store).add(NEW_NAMES, "wire", "1")
    new = Run(refresh(Run(folder), store).run)
    old_net, new_net = Run(folder).learned("time"), new.learned("time")
    assert old_net is not None
    assert new_net is not None
    rows = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert new_net.net.relation.weight[rows].equal(old_net.net.relation.weight)
    assert len(Run(new.folder).predictor(residual="learned").forecast("Nova", "sing to", top=99)) == 13


def test_a_run_of_another_format_or_with_an_edited_selection_is_refused(
    run_copy: Path, store: EventStore, tmp_path: Path
) -> None:
    LiveForecaster(loaded(run_copy), store).add(OLD_NAMES, "wire", "1")
    record = run_copy / "selection.json"
    text = record.read_text()
    record.write_text(text.replace('"queries": ', '"queries": 1'))
    with pytest.raises(SelectionError, match="changed after it was locked"):
        refresh(Run(run_copy), store, tmp_path / "new")
    record.write_text(text)
    config = run_copy / "config.toml"
    config.write_text(config.read_text().replace(f"format = {FORMAT}", "format = 1"))
    with pytest.raises(RunError, match="another format version"):
        refresh(Run(run_copy), store, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_bad_wishes_are_refused_before_any_work(recurrence_run: Path, store: EventStore, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(RunError, match="exists already"):
        refresh(Run(recurrence_run), store, tmp_path / "taken")
    with pytest.raises(SettingsError, match="epochs"):
        refresh(Run(recurrence_run), store, epochs=0)


def test_names_that_a_refresh_brought_are_no_candidates_before_they_came(
    recurrence_run: Path, store: EventStore, tmp_path: Path
) -> None:
    live = LiveForecaster(loaded(recurrence_run), store)
    live.add(NEW_NAMES, "wire", "1")
    refresh(Run(recurrence_run), store, tmp_path / "new")
    refreshed = Run(tmp_path / "new").predictor()
    for day, known in (("2024-02-12", False), ("2024-02-13", True)):
        found = refreshed.forecast("Arvan", "visit", at=day, top=99)
        assert ("Nova" in {c.name for c in found}) == known
        assert sum(c.p_given_event or 0.0 for c in found) == pytest.approx(1)


def test_names_of_runs_count_on(recurrence_run: Path, tmp_path: Path) -> None:
    def run(name: str, *sources: str) -> Run:
        copy = Path(shutil.copytree(recurrence_run, tmp_path / name))
        if sources:
            write_json(copy / REFRESHES, [refresh_note(source=source) for source in sources])
        return Run(copy)

    first = run("run")
    assert next_name(first) == tmp_path / "run-2"
    second = run("run-2", "run")
    assert next_name(first) == next_name(second) == tmp_path / "run-3"
    assert next_name(run("run-3", "run", "run-2")) == tmp_path / "run-4"
    # a number that belongs to the name stays with it, of a run that was fitted and of one that was named by hand
    assert next_name(run("icews05-15")) == tmp_path / "icews05-15-2"
    assert next_name(run("news-2024", "run")) == tmp_path / "news-2024-2"
    assert next_name(run("icews05-15-2", "icews05-15")) == tmp_path / "icews05-15-3"


def test_touched_pairs_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    from bridgemem.live.refresh import touched

    before = random_log(6, n=300)
    after = log_of([*rows_of(before), (3, 1, 7, 2)], before.n_entities, before.n_relations)
    old, new = touched(before, after)
    assert {frozenset(row[:1] + row[2:3]) for row in rows_of(new)} == {frozenset((3, 7))}
    assert len(new) == len(old) + 1
    assert np.array_equal(np.sort(new.step), new.step)

"""Forecasts over a run and a store: what is added is used, what is taken back is gone, new names never fail."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from test_eventstore import same_log
from test_later_names import LATER

from bridgemem.errors import DataError, NotFoundError, RunError
from bridgemem.events.log import EventLog
from bridgemem.events.naming import NewEvent
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live import forecasting
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import MERGED, LiveForecaster
from bridgemem.memory.dyads import DyadMemory
from bridgemem.memory.past import Past
from bridgemem.runs import Run
from builders import side
from commands import ACTORS, RELATIONS, TINY_READER, Walk, bridgemem, compared
from fits import loaded

pytest_plugins = ("small_runs",)

NEWS: list[NewEvent] = [
    ("Arvan", "visit", "Belmor", "2024-02-10"),
    ("Arvan", "visit", "Nova", "2024-02-11"),
    ("Nova", "sing to", "Kel", "2024-02-12"),
    ("Castel", "sing to", "Dunhal", "2024-01-05"),
]


@pytest.fixture(scope="session")
def learned_run(own_csv: Path, walk: Walk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("learned") / "run"
    fitted = bridgemem(
        "fit",
        "-d",
        own_csv,
        "-b",
        walk.backbone,
        "-o",
        run,
        *TINY_READER,
        "--residual",
        "learned",
        "--learned-set",
        "epochs=2",
    )
    assert fitted.code == 0, fitted.err
    return compared(run, (0.1, 0.05, 0.15))


@pytest.fixture(params=["recurrence", "cenet", "learned"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "cenet":
        return Run(request.getfixturevalue("walk").run)
    return Run(request.getfixturevalue(f"{request.param}_run"))


@pytest.fixture
def live(run: Run, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(run), store)


def same_answers(one: LiveForecaster, other: LiveForecaster) -> None:
    """The same events, and the same numbers for every query."""
    same_log(one.events, other.events)
    same_log(one.view.predictor.scoring.past.events, other.view.predictor.scoring.past.events)
    for relation in one.events.relations.names:
        for actor in one.events.entities.names[-3:]:
            assert one.forecast(actor, relation, top=99) == other.forecast(actor, relation, top=99)


def test_an_empty_store_forecasts_what_the_run_forecasts(live: LiveForecaster) -> None:
    plain = Run(live.run.folder).predictor()
    for inverse in (False, True):
        assert live.forecast(relation="visit", **side("Arvan", inverse)) == plain.forecast(
            relation="visit", **side("Arvan", inverse)
        )
    assert asdict(live.explain("Arvan", "visit", "Belmor")) == asdict(plain.explain("Arvan", "visit", "Belmor"))


def test_an_acknowledged_batch_is_in_the_next_forecast(live: LiveForecaster) -> None:
    before = live.forecast("Arvan", "visit", top=99)
    live.add(NEWS[:1], "wire", "1")
    assert live.events.end == live.base.end + 1
    assert live.forecast("Arvan", "visit", top=99) != before


def test_forecasts_for_a_step_do_not_see_it_or_later_ones(live: LiveForecaster) -> None:
    before = live.forecast("Arvan", "visit", at="2024-02-10", top=99)
    live.add([("Arvan", "visit", "Kel", "2024-02-10"), ("Kel", "visit", "Arvan", "2024-02-11")], "wire", "1")
    assert live.forecast("Arvan", "visit", at="2024-02-10", top=99) == before


def test_a_candidate_is_not_explained_before_its_first_event(live: LiveForecaster) -> None:
    live.add([("Arvan", "visit", "Nova", "2024-02-11"), ("Kel", "sing to", "Solo", "2024-02-11")], "wire", "1")
    with pytest.raises(NotFoundError, match="'Nova' is not a candidate at 2024-02-11"):
        live.explain("Arvan", "visit", "Nova", at="2024-02-11")
    assert live.explain("Arvan", "visit", "Nova", at="2024-02-12").events
    # an event under a relation that the run was fitted without makes a candidate for that relation alone
    with pytest.raises(NotFoundError, match=r"under 'visit', since the run was not fitted on .* `bridgemem refresh`"):
        live.explain("Kel", "visit", "Solo")
    assert live.forecast("Kel", "sing to")[0].name == "Solo"


def test_an_explanation_tells_of_events_that_the_run_cannot_read(live: LiveForecaster) -> None:
    before = live.explain("Arvan", "visit", "Arvan", at="2024-02-13")  # nothing happened between the two
    assert (before.unread, before.events) == (0, ())
    live.add([("Arvan", "sing to", "Arvan", "2024-02-11"), ("Arvan", "sing to", "Kel", "2024-02-11")], "wire", "1")
    after = live.explain("Arvan", "visit", "Arvan", at="2024-02-13")
    assert after.unread == 1
    assert "before `bridgemem refresh` the run cannot read the one event of the two" in after.sentence().replace(
        "B", "b"
    )
    assert live.explain("Arvan", "visit", "Kel", at="2024-02-11").unread == 0  # the event is not earlier


def test_new_names_never_make_a_forecast_fail(live: LiveForecaster) -> None:
    live.add(NEWS, "wire", "1")
    for actor in live.events.entities.names:
        for relation in live.events.relations.names:
            for inverse in (False, True):
                answers = live.forecast(relation=relation, top=99, **side(actor, inverse))
                assert len(answers) == live.events.n_entities
    assert live.forecast("Nova", "sing to")[0].name == "Kel"
    assert live.forecast(relation="sing to", object="Kel")[0].name == "Nova"
    assert live.forecast(relation="visit", object="Nova")[0].name == "Arvan"
    for relation in ("visit", "sing to"):
        explained = live.explain("Nova", relation, "Kel")
        assert explained.score == pytest.approx(explained.base + explained.residual)
        assert "Kel" in explained.sentence()
    with pytest.raises(NotFoundError, match="Nova"):
        live.forecast("Nov", "visit")


def test_events_of_an_unknown_relation_leave_other_forecasts_as_they_were(live: LiveForecaster) -> None:
    live.add([("Lor", "visit", "Kel", "2024-02-12")], "wire", "0")
    before = live.forecast("Arvan", "visit", top=99)
    live.add([("Arvan", "sing to", "Kel", "2024-02-12")], "wire", "1")
    assert live.forecast("Arvan", "visit", top=99) == before


def test_the_first_unknown_step_lies_after_events_of_whatever_relation(live: LiveForecaster) -> None:
    live.add([("Castel", "sing to", "Dunhal", "2024-03-01")], "wire", "1")
    assert live.forecast("Arvan", "visit") == live.forecast("Arvan", "visit", at="2024-03-02")
    assert int(live.view.predictor.query("Arvan", "visit").step) == live.events.end
    assert live.forecast("Arvan", "visit", horizon=live.events.end)


def test_queries_wait_for_the_backbone_alone_while_a_batch_comes_in(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, kept_waiting = Past.ready, list[bool]()

    def watched(self: Past) -> None:
        kept_waiting.append(live._asking.locked())
        ready(self)

    monkeypatch.setattr(Past, "ready", watched)
    live.add(NEWS[:1], "wire", "1")
    assert kept_waiting
    assert not any(kept_waiting)


def test_batches_one_by_one_make_the_same_view_as_opening_anew(live: LiveForecaster) -> None:
    for i, event in enumerate(NEWS):
        live.add([event], "wire", str(i))
    same_answers(live, LiveForecaster(loaded(live.run), live.store))


def test_a_retraction_leaves_what_a_forecaster_that_never_saw_the_event_knows(
    live: LiveForecaster, tmp_path: Path
) -> None:
    ids = live.add(NEWS, "wire", "1").ids
    live.retract(ids[1])
    live.add([("Kel", "consult", "Nova", "2024-02-13")], "wire", "2")
    with EventStore(tmp_path / "other.duckdb") as store:
        other = LiveForecaster(loaded(live.run), store)
        other.add([NEWS[0], *NEWS[2:]], "wire", "1")
        other.add([("Kel", "consult", "Nova", "2024-02-13")], "wire", "2")
        same_answers(live, other)
    for event in (ids[0], ids[2], ids[3], "e5"):
        live.retract(event)
    assert live.forecast("Arvan", "visit") == Run(live.run.folder).predictor().forecast("Arvan", "visit")


@pytest.mark.parametrize("seed", [3, 4])
def test_random_batches_retractions_merges_and_a_restart_forecast_what_a_rebuild_does(
    live: LiveForecaster, seed: int
) -> None:
    rng, held = random.Random(seed), list[str]()
    who, what = (*ACTORS[:4], "New 1", "New 2", "New 3", "New 4"), (*RELATIONS[:3], "sing to")
    for number in range(8):
        days = [f"2024-{rng.choice(('01', '02'))}-{rng.randint(5, 28):02d}" for _ in range(rng.randint(1, 4))]
        batch: list[NewEvent] = [(rng.choice(who), rng.choice(what), rng.choice(who), day) for day in days]
        held += live.add(batch, "wire", str(number)).ids
        if number in (1, 4, 5):
            assert live.compact()
            assert len(live.view.predictor.past.delta) == 0
        if number % 2 or number > 5:
            live.retract([held.pop(rng.randrange(len(held))) for _ in range(1 + number // 4)])
        if number == 6:
            live = LiveForecaster(loaded(live.run), live.store)
        assert live.stored == len(held)
        # the same names under the same ids, and the same order
        same_log(live.events, live.store.events(live.base))
        now = live.view.predictor
        parts = now.scorer, now.transitions, now.choice, now.learned, now.calibration
        rebuilt = Predictor(Past(live.events.take(slice(None))), *parts)
        for actor in live.events.entities.names[-4:]:
            for relation in (*RELATIONS[:2], live.events.relations.names[-1]):
                assert live.forecast(actor, relation, top=99) == rebuilt.forecast(actor, relation, top=99)
        assert asdict(live.explain("Arvan", "visit", "Kel")) == asdict(rebuilt.explain("Arvan", "visit", "Kel"))
    same_answers(live, LiveForecaster(loaded(live.run), live.store))


def test_what_is_taken_back_after_a_merge_leaves_no_trace(live: LiveForecaster, tmp_path: Path) -> None:
    first = live.add(NEWS, "wire", "1").ids
    assert live.merge()
    later = live.add(LATER[:6], "wire", "2").ids
    live.retract(later[0])  # which is none of the merged
    assert len(live.view.predictor.past.base) == len(live.base) + len(NEWS)
    live.retract(first[1])  # with which "Nova" came
    with EventStore(tmp_path / "other.duckdb") as store:
        other = LiveForecaster(loaded(live.run), store)
        other.add([NEWS[0], *NEWS[2:]], "wire", "1")
        other.add(LATER[1:6], "wire", "2")
        same_answers(live, other)
        assert live.stored == other.stored == len(NEWS) + 4


def test_a_merged_event_is_taken_back_without_indexing_the_base_again(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = live.add([*NEWS[:3], ("Kel", "visit", "Solo", "2024-02-11")], "wire", "1").ids
    assert live.compact() == 4
    built, build = list[int](), DyadMemory.build

    def watched(events: EventLog, *where: Any) -> DyadMemory:
        built.append(len(events))
        return build(events, *where)

    monkeypatch.setattr(DyadMemory, "build", watched)
    live.retract(ids[1])  # of whose day and the next one there are two more events
    assert built
    assert max(built) <= 2
    live.add(NEWS[3:], "wire", "2")
    assert max(built) <= 3
    monkeypatch.undo()
    same_log(live.events, live.store.events(live.base))
    same_answers(live, LiveForecaster(loaded(live.run), live.store))


@pytest.mark.parametrize("merged", [False, True])
def test_a_retracted_event_of_a_far_year_makes_no_later_batch_late(live: LiveForecaster, merged: bool) -> None:
    (far,) = live.add([("Arvan", "visit", "Nova", "2031-05-05")], "wire", "1").ids
    if merged:
        assert live.compact() == 1
    assert live.add([("Kel", "visit", "Lor", "2024-02-10")], "wire", "2").late == 1
    live.retract(far)
    assert live.add([("Kel", "visit", "Lor", "2024-02-11")], "wire", "3").late == 0
    assert live.events.end == live.base.end + 2
    again = LiveForecaster(loaded(live.run), live.store)
    assert again.add([("Kel", "visit", "Lor", "2024-02-12")], "wire", "4").late == 0
    live.store.max_ahead = 30
    with pytest.raises(DataError, match="2031"):
        live.add([("Arvan", "visit", "Nova", "2031-05-05")], "wire", "5")


def test_a_merge_gives_way_to_a_retraction_and_takes_batches_with_it(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, warm = live.add(NEWS[:2], "wire", "1").ids, Predictor.warm
    meanwhile: list[Any] = [lambda: live.retract(ids[1]), lambda: live.add(NEWS[2:], "wire", "2")]

    def interrupted(self: Predictor, *how: Any) -> None:
        # in the merge alone: not where a retraction or a batch makes its own view
        if meanwhile and not live._updating.locked():
            meanwhile.pop(0)()
        warm(self, *how)

    monkeypatch.setattr(Predictor, "warm", interrupted)
    assert not live.merge()
    assert live.merge()
    assert len(live.view.predictor.past.delta) == len(NEWS[2:])
    monkeypatch.undo()
    same_answers(live, LiveForecaster(loaded(live.run), live.store))


def test_a_delta_that_has_grown_is_merged_in_the_background(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasting, "LARGE", 20)
    monkeypatch.setattr(forecasting, "SHARE", 0.0)
    for number in range(0, len(LATER), 5):
        live.add(LATER[number : number + 5], "wire", str(number))
    live.tidy(wait=True)
    assert len(live.view.predictor.past.delta) <= 20
    assert live.stored == len(LATER)
    same_answers(live, LiveForecaster(loaded(live.run), live.store))


def test_freed_memory_goes_back_now_and_then_and_not_with_every_batch(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[None] = []
    monkeypatch.setattr(forecasting, "return_freed", lambda: returned.append(None))
    monkeypatch.setattr(forecasting, "FREED_EACH", 0.0)
    live.add(LATER[:1], "wire", "1")
    live.tidy(wait=True)
    assert returned
    before = len(returned)
    monkeypatch.setattr(forecasting, "FREED_EACH", 3600.0)
    live.add(LATER[1:2], "wire", "2")
    live.tidy(wait=True)
    assert len(returned) == before


def test_batches_that_come_at_once_are_each_answered(live: LiveForecaster) -> None:
    given: list[list[NewEvent]] = [[event] for event in LATER[:12]]
    given[5] = [("Arvan", "visit", "", "2024-02-10")]
    told: dict[int, object] = {}

    def send(place: int) -> None:
        try:
            told[place] = live.add(given[place], "wire", str(place)).ids
        except DataError as problem:
            told[place] = str(problem)

    threads = [threading.Thread(target=send, args=(place,)) for place in range(len(given))]
    with live._updating:  # so that those who come first keep the others waiting
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(live._adding._waiting) < len(given) // 2 and time.monotonic() < deadline:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert "the object of event 1" in str(told.pop(5))
    assert sorted(str(ids) for ids in told.values()) == sorted(f"['e{n}']" for n in range(1, len(given)))
    same_answers(live, LiveForecaster(loaded(live.run), live.store))


def test_a_refused_batch_changes_no_view(live: LiveForecaster) -> None:
    view = live.view
    with pytest.raises(DataError):
        live.add([NEWS[0], ("Arvan", "visit", "", "2024-02-10")], "wire", "1")
    assert live.view is view
    live.add(NEWS, "wire", "1")
    view = live.view
    assert live.add(NEWS, "wire", "1").replayed
    assert live.view is view


def test_queries_are_answered_while_events_come_in(recurrence_run: Path, tmp_path: Path) -> None:
    problems: list[BaseException] = []
    with EventStore(tmp_path / "s") as store:
        live, done = LiveForecaster(loaded(recurrence_run), store), threading.Event()

        def ask() -> None:
            try:
                while not done.is_set():
                    live.forecast("Arvan", "visit")
                    live.explain("Arvan", "consult", "Kel")
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(8):
            live.add([(f"actor {i}", f"relation {i % 3}", "Kel", f"2024-02-{10 + i}")], "wire", str(i))
        done.set()
        for thread in threads:
            thread.join()
        assert not problems
        assert live.events.n_entities == live.base.n_entities + 8


def test_a_note_of_merged_events_that_does_not_fit_is_refused(run_copy: Path, tmp_path: Path) -> None:
    import torch

    from bridgemem.storage.tensors import write_tensors

    write_tensors(run_copy / MERGED, {"ids": torch.zeros(3, dtype=torch.int64)})
    with EventStore(tmp_path / "s") as store, pytest.raises(RunError, match="refresh"):
        LiveForecaster(loaded(run_copy), store)

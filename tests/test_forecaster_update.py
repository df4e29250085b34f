"""Forecaster.update: added events count at once, as in a store and in a rebuild, and are saved with the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bridgemem import Forecaster
from bridgemem.errors import BridgeMemError, DataError, RunError
from bridgemem.events.log import EventLog
from bridgemem.events.naming import NewEvent, followed_by, new_events
from bridgemem.forecasting.answers import Candidate
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refresh import chosen_on, refresh
from bridgemem.memory.past import Past
from bridgemem.runs import UPDATES, Run
from bridgemem.storage.known_files import RUN_FILE
from builders import side
from commands import TINY_READER, bridgemem, compared
from fits import loaded

pytest_plugins = ("small_runs",)

# after the data, late, twice, of a new name and of a new relation
NEWS: list[NewEvent] = [
    ("Arvan", "visit", "Belmor", "2024-02-10"),
    ("Arvan", "visit", "Nova", "2024-02-11"),
    ("Kel", "consult", "Arvan", "2024-01-15"),
    ("Kel", "consult", "Arvan", "2024-01-15"),
    ("Nova", "sing to", "Kel", "2024-02-12"),
    ("Castel", "sing to", "Dunhal", "2024-01-05"),
]


@pytest.fixture(params=["recurrence", "cenet", "learned"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "cenet":
        return request.getfixturevalue("walk").run
    if request.param == "recurrence":
        return request.getfixturevalue("recurrence_run")
    run, data = tmp_path / "learned", request.getfixturevalue("own_csv")
    learned = ("--residual", "learned", "--learned-set", "epochs=2")
    fitted = bridgemem("fit", "-d", data, "-b", "recurrence", "-o", run, *TINY_READER, *learned)
    assert fitted.code == 0, fitted.err
    return compared(run, (0.1, 0.05, 0.15))


@pytest.fixture
def model(recurrence_run: Path) -> Forecaster:
    return Forecaster.load(recurrence_run)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "events.duckdb") as opened:
        yield opened


def answers(asked: Any) -> list[list[Candidate]]:
    return [
        asked.forecast(relation=relation, at=at, top=99, **side(actor, inverse))
        for actor in ("Arvan", "Kel", "Nova")
        for relation in ("visit", "consult", "sing to")
        for at in (None, "2024-02-11")
        for inverse in (False, True)
    ]


def explained(asked: Any) -> list[dict[str, Any]]:
    pairs = (("Arvan", "visit", "Nova"), ("Kel", "consult", "Arvan"), ("Nova", "sing to", "Kel"))
    return [asdict(asked.explain(*pair)) for pair in pairs]


def test_an_update_forecasts_what_a_store_and_a_rebuild_do(folder: Path, store: EventStore) -> None:
    model, live = Forecaster.load(folder), LiveForecaster(loaded(folder), store)
    for i, batch in enumerate((NEWS[:1], NEWS[1:4], NEWS[4:])):
        assert model.update(batch) is model
        live.add(batch, "wire", str(i))
    assert answers(model) == answers(live)
    assert explained(model) == explained(live)

    opened, base = Run(folder).predictor(), Run(folder).dataset.events
    whole = followed_by(base, new_events(NEWS, base))
    parts = opened.scorer, opened.transitions, opened.choice, opened.learned, opened.calibration
    rebuilt = Predictor(Past(whole), *parts)
    assert answers(model) == answers(rebuilt)
    assert explained(model) == explained(rebuilt)
    assert model.forecast("Nova", "sing to")[0].name == "Kel"


def test_forecasts_change_and_evaluation_does_not(own_csv: Path) -> None:
    from bridgemem.config import Settings

    model = Forecaster("recurrence", settings=Settings(width=8, hidden=8, max_epochs=1)).fit(own_csv)
    before, measured = model.forecast("Arvan", "visit", top=99), model.evaluate().mrr()
    end = model.predictor.events.end
    model.update(NEWS)
    assert model.forecast("Arvan", "visit", top=99) != before
    assert model.forecast("Arvan", "visit", at=model.dataset.events.clock.label(end - 5), top=99)
    assert model.evaluate().mrr() == measured
    assert len(model.dataset.events) == len(model.predictor.events) - len(NEWS)
    model.fit(own_csv)
    assert model.forecast("Arvan", "visit", top=99) == before


def test_a_file_a_frame_and_a_log_are_taken_like_a_list(model: Forecaster, tmp_path: Path) -> None:
    expected = answers(model.update(NEWS))
    file = tmp_path / "news.csv"
    file.write_text("subject,relation,object,time\n" + "".join(f"{','.join(map(str, row))}\n" for row in NEWS))
    columns = dict(zip(("subject", "relation", "object", "time"), zip(*NEWS, strict=True), strict=True))
    frame = {name: list(values) for name, values in columns.items()}
    home = model.parts.where
    base = Run(home).dataset.events
    log = followed_by(base.rows(0, 0), new_events(NEWS, base))
    assert isinstance(log, EventLog)
    for source in (file, str(file), [file], frame):
        assert answers(Forecaster.load(home).update(source)) == expected, source
    # a log is in order of time, and so are the ids of its new names
    by_time = sorted(NEWS, key=lambda row: str(row[3]))
    assert answers(Forecaster.load(home).update(log)) == answers(Forecaster.load(home).update(by_time))


def test_what_was_added_is_saved_and_comes_back(folder: Path, tmp_path: Path, store: EventStore) -> None:
    model = Forecaster.load(folder).update(NEWS[:2])
    model.save(tmp_path / "first")
    assert not (folder / UPDATES).exists()
    again = Forecaster.load(tmp_path / "first").update(NEWS[2:])
    expected = answers(model.update(NEWS[2:]))
    assert answers(again) == expected
    again.save(tmp_path / "second")
    again.save(tmp_path / "third")
    for home in (tmp_path / "second", tmp_path / "third"):
        assert len(json.loads((home / UPDATES).read_text())) == len(NEWS)
        assert answers(Forecaster.load(home)) == answers(Run(home).predictor()) == expected
        assert "updates.json" in (home / "README.md").read_text()
    assert RUN_FILE.fullmatch(UPDATES), "copied, sent and fetched with the run"
    assert Forecaster.load(tmp_path / "second").dataset.events.fingerprint == Run(folder).config.fingerprint
    # a store goes on after what was added
    last: NewEvent = ("Nova", "visit", "Kel", "2024-02-13")
    live = LiveForecaster(loaded(tmp_path / "second"), store)
    assert live.stored == 0
    ids = live.add([last], "wire", "1").ids
    assert live.stored == 1
    assert answers(live) == answers(again.update([last]))
    live.retract(ids)
    assert answers(live) == expected


def test_a_fitted_model_is_saved_with_what_was_added(own_csv: Path, tmp_path: Path) -> None:
    from bridgemem.config import Settings

    model = Forecaster("recurrence", settings=Settings(width=8, hidden=8, max_epochs=1)).fit(own_csv).update(NEWS)
    expected = answers(model)
    model.save(tmp_path / "run")
    assert answers(model) == expected
    assert answers(Forecaster.load(tmp_path / "run")) == expected


def test_a_refresh_takes_what_was_added_into_the_data(recurrence_run: Path, tmp_path: Path, store: EventStore) -> None:
    Forecaster.load(recurrence_run).update(NEWS).save(tmp_path / "updated")
    run = Run(tmp_path / "updated")
    live = LiveForecaster(loaded(run), store)
    live.add([("Nova", "visit", "Kel", "2024-02-13")], "wire", "1")
    made = refresh(run, store, tmp_path / "refreshed")
    assert (made.added, made.retracted) == (len(NEWS) + 1, 0)
    new = Run(tmp_path / "refreshed")
    assert len(new.dataset.events) == len(live.events)
    assert not (new.folder / UPDATES).exists()
    assert answers(LiveForecaster(loaded(new), store)) == answers(new.predictor())
    chosen, known = chosen_on(new, new.dataset), run.dataset.known
    assert (chosen.fingerprint, len(chosen)) == (known.fingerprint, len(known)), "no added event is taken for one"


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([*NEWS, ("Arvan", "visit", "", "2024-02-10")], "the object of event 7 must be a text"),
        ([*NEWS, ("Arvan", "visit", "Kel", "soon")], "event 7: 'soon' is not a date"),
        ([*NEWS, ("Arvan", "visit", "Kel", "2023-02-10")], "lies before the data begin"),
        (
            [*NEWS, ("Arvan", "visit", "Kel")],
            "event 7 is not made of four parts; give subject, relation, object and time",
        ),
        ([5], "event 1 is not made of"),
        ({"subject": ["Arvan"], "relation": ["visit"], "object": [""], "time": ["2024-02-10"]}, "left out"),
        ("no-such-file.csv", "no-such-file.csv"),
    ],
)
def test_a_wrong_event_adds_none(model: Forecaster, events: Any, problem: str) -> None:
    before = model.forecast("Arvan", "visit", top=99)
    with pytest.raises(BridgeMemError, match=problem):
        model.update(events)
    assert model.forecast("Arvan", "visit", top=99) == before
    assert model.predictor.events.n_entities == model.dataset.events.n_entities


def test_nothing_added_changes_nothing(model: Forecaster, tmp_path: Path) -> None:
    before = model.forecast("Arvan", "visit", top=99)
    assert model.update([]).forecast("Arvan", "visit", top=99) == before
    model.save(tmp_path / "run")
    assert not (tmp_path / "run" / UPDATES).exists()


@pytest.mark.parametrize(
    "content", ["7", "{}x", '["x"]', "[[1, 2, 3, 4]]", '[["a", "b", "c", -1]]', '[["a", "b", "c", true]]', "[null]"]
)
def test_added_events_that_no_update_wrote_are_refused(recurrence_run: Path, tmp_path: Path, content: str) -> None:
    home = Forecaster.load(recurrence_run).save(tmp_path / "run")
    (home / UPDATES).write_text(content)
    with pytest.raises((RunError, DataError), match=r"updates\.json"):
        Forecaster.load(home).forecast("Arvan", "visit")

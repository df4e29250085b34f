"""Live forecasts over a memory on disk: with whatever is added and taken back, the same as over one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from test_eventstore import same_log

from bridgemem.errors import RunError
from bridgemem.events.naming import NewEvent
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import MERGED, LiveForecaster
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.overlay import Overlay
from bridgemem.runs import Run
from builders import side
from commands import TINY_READER, bridgemem
from fits import loaded

pytest_plugins = ("small_runs",)

# after the run's data, on its last day, before it, twice, of new names and of a new relation
NEWS: list[NewEvent] = [
    ("Arvan", "visit", "Belmor", "2024-02-10"),
    ("Arvan", "visit", "Belmor", "2024-02-09"),
    ("Arvan", "visit", "Nova", "2024-02-11"),
    ("Kel", "consult", "Arvan", "2024-01-15"),
    ("Kel", "consult", "Arvan", "2024-01-15"),
    ("Nova", "sing to", "Kel", "2024-02-12"),
    ("Castel", "sing to", "Dunhal", "2024-01-05"),
]


@pytest.fixture(params=["recurrence", "cenet"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.getfixturevalue("walk").run if request.param == "cenet" else _recurrence(request))


def _recurrence(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("recurrence_run")
    return found


@pytest.fixture
def memory(run: Run, tmp_path: Path) -> Path:
    write_memory(run.dataset, tmp_path / "memory")
    return tmp_path / "memory"


@pytest.fixture
def both(run: Run, memory: Path, tmp_path: Path) -> Iterator[tuple[LiveForecaster, LiveForecaster]]:
    """The same run over its data in memory, and over a memory on disk."""
    duplicates = "drop" if run.config.backbone == "recurrence" else "keep"
    stores = [EventStore(tmp_path / f"{i}.duckdb", duplicates=duplicates) for i in range(2)]
    yield LiveForecaster(loaded(run), stores[0]), LiveForecaster(loaded(run, memory_dir=memory), stores[1])
    for store in stores:
        store.close()


def same_answers(plain: LiveForecaster, mapped: LiveForecaster) -> None:
    assert len(plain.events) == len(mapped.events)
    assert plain.events.end == mapped.events.end
    for mine, other in zip(plain.events.tallies, mapped.events.tallies, strict=True):
        np.testing.assert_array_equal(mine, other)
    for relation in ("visit", "consult", plain.events.relations.names[-1]):
        for actor in ("Arvan", "Kel", plain.events.entities.names[-1]):
            query = {"relation": relation, "top": 99, "horizon": 3 if actor == "Arvan" else None}
            query |= side(actor, actor == "Kel")
            assert mapped.forecast(**query) == plain.forecast(**query), query
    here, there = (live.view.predictor for live in (plain, mapped))
    for first, second in (("Arvan", "Belmor"), (plain.events.entities.names[-1], "Kel")):
        assert there.what(first, second, horizon=2) == here.what(first, second, horizon=2)
        assert there.whether(first, "consult", object=second) == here.whether(first, "consult", object=second)
        assert there.whether(first, "visit") == here.whether(first, "visit")
    assert there.partners("Arvan", horizon=3) == here.partners("Arvan", horizon=3)
    assert there.outlook(horizon=3) == here.outlook(horizon=3)
    for asked in (("Arvan", "visit", "Belmor"), ("Kel", "consult", "Arvan")):
        assert asdict(mapped.explain(*asked)) == asdict(plain.explain(*asked))


def test_what_is_added_and_taken_back_gives_the_same_answers(both):
    plain, mapped = both
    same_answers(plain, mapped)
    ids = []
    for i, batch in enumerate((NEWS[:2], NEWS[2:5], NEWS[5:])):
        for live in both:
            ids = [*live.add(batch, "wire", str(i)).ids, *ids]
        same_answers(plain, mapped)
    for live in both:
        live.retract(ids[0])
    same_answers(plain, mapped)
    assert isinstance(mapped.events, Overlay)
    assert (mapped.events.start, mapped.events.end) == (plain.events.start, plain.events.end)
    assert "subject" not in vars(mapped.events), "nothing above puts the columns together"
    same_log(mapped.events, plain.events)


def test_names_of_later_steps_change_no_forecast_before_them(both):
    asked = [{"subject": "Arvan", "relation": "visit", "at": day, "top": 99} for day in ("2024-01-25", "2024-02-10")]
    crowd: list[NewEvent] = [(f"New {i}", "visit", "Arvan", "2024-02-10") for i in range(40)]
    for live in both:
        before = [[(c.name, c.score) for c in live.forecast(**query)] for query in asked]
        chances = [c.p_given_event for query in asked for c in live.forecast(**query)]
        live.add(crowd, "wire", "1")
        assert [[(c.name, c.score) for c in live.forecast(**query)] for query in asked] == before
        assert [c.p_given_event for query in asked for c in live.forecast(**query)] == pytest.approx(chances)
        assert "New 39" in {c.name for c in live.forecast("Arvan", "visit", top=99)}


def test_a_duplicate_of_the_run_is_dropped_where_duplicates_are(run, memory, tmp_path):
    events = run.dataset.events
    last = len(events) - 1
    names = events.entities.names
    fact = (
        names[events.subject[last]],
        events.relations.names[events.relation[last]],
        names[events.object[last]],
        events.clock.label(int(events.step[last])),
    )
    with EventStore(tmp_path / "store.duckdb", duplicates="drop") as store:
        live = LiveForecaster(loaded(run, memory_dir=memory), store)
        live.add([fact, fact, NEWS[0]], "wire", "1")
        assert len(live.events) == len(events) + 1


def test_the_learned_residual_follows_new_events_over_a_memory_on_disk(run, memory, tmp_path, own_csv, walk):
    learned = tmp_path / "learned"
    residual = ("--residual", "learned", "--learned-set", "epochs=1")
    assert bridgemem("fit", "-d", own_csv, "-b", walk.backbone, "-o", learned, *TINY_READER, *residual).code == 0
    with EventStore(tmp_path / "0.duckdb") as here, EventStore(tmp_path / "1.duckdb") as there:
        plain = LiveForecaster(loaded(learned, residual="learned"), here)
        mapped = LiveForecaster(loaded(learned, residual="learned", memory_dir=memory), there)
        for live in (plain, mapped):
            live.add(NEWS, "wire", "1")
            live.tidy(wait=True)
        for subject in ("Arvan", "Kel", "Nova"):
            assert mapped.forecast(subject, "visit") == plain.forecast(subject, "visit"), subject
    with EventStore(tmp_path / "store.duckdb") as store:
        (learned / MERGED).write_bytes(b"")
        with pytest.raises(RunError, match="refreshed"):
            LiveForecaster(loaded(learned, residual="bridgemem", memory_dir=memory), store)

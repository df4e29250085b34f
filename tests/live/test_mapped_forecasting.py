"""Live forecasts over a memory on disk: with whatever is added and taken back, the same as over one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from test_eventstore import same_log

from bridgemem.errors import RunError, SettingsError
from bridgemem.events.log import EventLog
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import MERGED, LiveForecaster
from bridgemem.live.naming import NewEvent
from bridgemem.memory.disk.writing import write_memory
from bridgemem.memory.overlay import GrownLog
from bridgemem.memory.past import Past
from bridgemem.memory.past_overlay import history_of
from bridgemem.runs import Run
from builders import dataset_of, random_log, vocabulary
from commands import TINY_READER, bridgemem

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
    write_memory(run.dataset(), tmp_path / "memory")
    return tmp_path / "memory"


@pytest.fixture
def both(run: Run, memory: Path, tmp_path: Path) -> Iterator[tuple[LiveForecaster, LiveForecaster]]:
    """The same run over its data in memory, and over a memory on disk."""
    duplicates = "drop" if run.config.backbone == "recurrence" else "keep"
    stores = [EventStore(tmp_path / f"{i}.duckdb", duplicates=duplicates) for i in range(2)]
    yield LiveForecaster(run, stores[0]), LiveForecaster(run, stores[1], memory_dir=memory)
    for store in stores:
        store.close()


def same_answers(plain: LiveForecaster, mapped: LiveForecaster) -> None:
    assert len(plain.events) == len(mapped.events)
    assert plain.events.end == mapped.events.end
    for mine, other in zip(plain.events.tallies, mapped.events.tallies, strict=True):
        np.testing.assert_array_equal(mine, other)
    for relation in ("visit", "consult", plain.events.relations.names[-1]):
        for actor in ("Arvan", "Kel", plain.events.entities.names[-1]):
            query = (actor, relation, None, 99, actor == "Kel", 3 if actor == "Arvan" else None)
            assert mapped.forecast(*query) == plain.forecast(*query), query
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
    assert isinstance(mapped.events, GrownLog)
    assert (mapped.events.start, mapped.events.end) == (plain.events.start, plain.events.end)
    assert "subject" not in vars(mapped.events), "nothing above puts the columns together"
    same_log(mapped.events, plain.events)


def test_names_of_later_steps_change_no_forecast_before_them(both):
    asked = [("Arvan", "visit", day, 99) for day in ("2024-01-25", "2024-02-10")]
    crowd: list[NewEvent] = [(f"New {i}", "visit", "Arvan", "2024-02-10") for i in range(40)]
    for live in both:
        before = [[(c.name, c.score) for c in live.forecast(*query)] for query in asked]
        chances = [c.p_given_event for query in asked for c in live.forecast(*query)]
        live.add(crowd, "wire", "1")
        assert [[(c.name, c.score) for c in live.forecast(*query)] for query in asked] == before
        assert [c.p_given_event for query in asked for c in live.forecast(*query)] == pytest.approx(chances)
        assert "New 39" in {c.name for c in live.forecast("Arvan", "visit", top=99)}


def test_a_duplicate_of_the_run_is_dropped_where_duplicates_are(run, memory, tmp_path):
    events = run.dataset().events
    last = len(events) - 1
    names = events.entities.names
    fact = (
        names[events.subject[last]],
        events.relations.names[events.relation[last]],
        names[events.object[last]],
        events.clock.label(int(events.step[last])),
    )
    with EventStore(tmp_path / "store.duckdb", duplicates="drop") as store:
        live = LiveForecaster(run, store, memory_dir=memory)
        live.add([fact, fact, NEWS[0]], "wire", "1")
        assert len(live.events) == len(events) + 1


def test_what_holds_all_events_is_refused_over_a_memory_on_disk(run, memory, tmp_path, own_csv, walk):
    (tmp_path / "copy").mkdir()
    learned = tmp_path / "learned"
    residual = ("--residual", "learned", "--learned-set", "max_epochs=1")
    assert bridgemem("fit", "-d", own_csv, "-b", walk.backbone, "-o", learned, *TINY_READER, *residual).code == 0
    with EventStore(tmp_path / "store.duckdb") as store:
        with pytest.raises(SettingsError, match="--residual bridgemem"):
            LiveForecaster(Run(learned), store, residual="learned", memory_dir=memory)
        LiveForecaster(Run(learned), store, residual="bridgemem", memory_dir=memory)
        (learned / MERGED).write_bytes(b"")
        with pytest.raises(RunError, match="refreshed"):
            LiveForecaster(Run(learned), store, residual="bridgemem", memory_dir=memory)


@pytest.mark.parametrize("seed", range(4))
def test_a_grown_history_reads_like_one_built_of_all_events(tmp_path, seed):
    events = random_log(seed, n=300)
    rng = np.random.default_rng(seed)
    # some of the last events and some of any time come later, with two more entities and a relation
    later = (np.arange(300) > 250) & (rng.random(300) < 0.8) | (rng.random(300) < 0.1)
    entities, relations = vocabulary("entity", events.n_entities + 2), vocabulary("relation", events.n_relations + 1)

    def part(rows: np.ndarray, *names: object) -> EventLog:
        columns = (events.subject, events.relation, events.object, events.step)
        return EventLog(*(c[rows] for c in columns), *names)  # type: ignore[arg-type]

    base = part(~later, events.entities, events.relations)
    fresh = part(later, entities, relations)
    fresh = fresh.append(EventLog([12, 3], [4, 1], [13, 12], [40, 41], entities, relations))  # type: ignore[arg-type]
    opened = write_memory(dataset_of(base), tmp_path / "memory").events
    grown = GrownLog(opened, fresh)  # type: ignore[arg-type]
    columns = [np.concatenate([getattr(base, c), getattr(fresh, c)]) for c in ("subject", "relation", "object", "step")]
    whole = EventLog.from_columns(*columns, entities, relations)
    same_log(grown, whole)

    here, there = Past(whole), history_of(grown)
    actor, relation, step = torch.cartesian_prod(
        torch.arange(whole.n_entities), torch.arange(2 * whole.n_relations), torch.tensor([0, 9, 22, 31, 45])
    ).T
    mine, other = there.occurrences(actor, relation, step), here.occurrences(actor, relation, step)
    for field in fields(mine):
        assert torch.equal(getattr(mine, field.name), getattr(other, field.name)), field.name
    for mine, other in zip(there.told(actor, relation, step), here.told(actor, relation, step), strict=True):
        assert torch.equal(mine, other)
    for name, asked in (("seen", (actor, step)), ("seen_in_role", (actor, relation, step))):
        sets = [set(zip(*(c.tolist() for c in getattr(past, name)(*asked)), strict=True)) for past in (here, there)]
        assert sets[0] == sets[1], name
    candidate = (actor * 7 + 1) % whole.n_entities
    for k, window in ((1, 0), (3, 0), (3, 5), (8, 20)):
        for name, pair in (("partners", (actor,)), ("read", (actor, candidate))):
            mine, other = (getattr(past.dyads, name)(*pair, step, k, window) for past in (there, here))
            for field in fields(mine):
                a, b = getattr(mine, field.name), getattr(other, field.name)
                if field.name in ("relation", "direction", "lag"):
                    a, b = a * mine.found, b * other.found  # the others mean nothing
                assert torch.equal(a, b), (name, k, window, field.name)

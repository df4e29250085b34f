"""Batches that are written together: each is told what it would be alone, and none takes another with it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridgemem.errors import DataError
from bridgemem.events.naming import NewEvent, NewNames
from bridgemem.live.eventstore import Batch, EventStore, Receipt, StoreError
from bridgemem.live.intake import KEPT_STEPS

SOON: NewEvent = ("Iran", "Consult", "Oman", 5)
LATE: NewEvent = ("Iran", "Consult", "Iraq", 3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "events.duckdb") as opened:
        yield opened


def test_of_batches_that_come_together_a_refused_one_takes_no_other_with_it(store: EventStore) -> None:
    store.new_names = NewNames(relations=1)
    given = [
        Batch([SOON], "wire", "1"),
        Batch([("Iran", "Consult", "", 5)], "wire", "2"),
        Batch([("Iran", "Sue", "Oman", 5)], "wire", "3"),
        Batch([LATE, SOON], "wire", "4", offset=7),
        Batch([LATE], "wire", "1"),
        Batch([LATE, SOON], "wire", "4"),
    ]
    first, no_name, too_many, last, other_events, again = store.append_all(given)
    assert first == Receipt(1, 1, 0, 0, False, ["e1"])
    assert last == Receipt(2, 2, 1, 1, False, ["e2", "e3"])
    assert again == Receipt(2, 2, 1, 1, True, ["e2", "e3"])
    for refused, why in (
        (no_name, "the object of event 1"),
        (too_many, "new relations"),
        (other_events, "the key '1'"),
    ):
        assert isinstance(refused, DataError)
        assert why in str(refused)
    assert [event.id for event in store.stored()] == ["e1", "e2", "e3"]
    assert store.last_offset("wire") == "7"


def test_batches_together_are_told_what_they_are_told_one_by_one(store: EventStore, tmp_path: Path) -> None:
    chance = random.Random(3)

    def some() -> list[NewEvent]:
        steps = range(3 * KEPT_STEPS)
        return [(f"a{chance.randrange(3)}", "r", f"b{chance.randrange(2)}", chance.choice(steps)) for _ in range(9)]

    batches = [Batch(some(), "wire", str(number)) for number in range(30)]
    with EventStore(tmp_path / "alone.duckdb") as alone:
        told = [alone.append(b.events, source=b.source, key=b.key) for b in batches]
        assert store.append_all(batches[:20]) + store.append_all(batches[20:]) == told
        for one in (alone, store):
            one.retract([f"e{number}" for number in range(1, 60, 2)])
        assert store.append_all([Batch(batches[0].events, "wire", "x")]) == [
            alone.append(batches[0].events, source="wire", key="x")
        ]
        assert store.stored() != []
        assert [(e.id, e.subject, e.time) for e in store.stored()] == [
            (e.id, e.subject, e.time) for e in alone.stored()
        ]
        assert told[-1].late > 0
        assert told[-1].duplicates > 0


def test_what_could_not_be_written_counts_nowhere(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append([SOON], source="wire", key="1")
    tell = EventStore._told_of

    def breaks(*given: object) -> Receipt:
        raise OSError("No space left on device")

    monkeypatch.setattr(EventStore, "_told_of", breaks)
    with pytest.raises(StoreError, match="nothing was changed"):
        store.append_all([Batch([("Iran", "Consult", "Oman", 9)], "wire", "2"), Batch([LATE], "wire", "3")])
    monkeypatch.setattr(EventStore, "_told_of", tell)
    assert store.append([("Iran", "Consult", "Oman", 9), LATE], source="wire", key="2") == Receipt(
        2, 2, 0, 1, False, ["e2", "e3"]
    )

"""Thousands of relations: memory stays bounded, a batch of them is refused, and a restart survives them."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bridgemem.errors import DataError
from bridgemem.events.naming import NewEvent
from bridgemem.live.eventstore import EventStore, NewNames
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.runs import Run
from commands import ACTORS, TINY_READER, bridgemem, write_rows
from fits import loaded

pytest_plugins = ("small_runs",)

MANY = 9_000
DAY = "2024-02-10"


def own_relations(count: int, day: str = DAY) -> list[NewEvent]:
    """Events that have a relation of their own each."""
    return [(ACTORS[i % 5], f"relation {i}", ACTORS[5 + i % 7], day) for i in range(count)]


class LargestTensor(torch.overrides.TorchFunctionMode):
    """The elements of the largest tensor that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@pytest.fixture
def live(recurrence_run: Path, tmp_path: Path) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


def test_a_batch_of_too_many_relations_is_refused_and_nothing_is_stored(live: LiveForecaster) -> None:
    before = live.forecast("Arvan", "visit")
    with pytest.raises(DataError, match=r"9,000 new relations, and a store takes 1,000 .* nothing was stored"):
        live.add(own_relations(MANY), "attack", "1")
    assert live.store.stored() == []
    assert live.forecast("Arvan", "visit") == before
    assert live.add([("Arvan", "visit", "Kel", DAY)], "news", "1").accepted == 1


def test_new_relations_are_counted_over_all_batches_of_a_store(live: LiveForecaster) -> None:
    live.store.new_names = NewNames(relations=3)
    live.add(own_relations(2), "news", "1")
    live.add([*own_relations(2), ("Arvan", "visit", "Kel", DAY)], "news", "2")  # no new one
    with pytest.raises(DataError, match=r"2 new relations.* of which 2 are used"):
        live.add(own_relations(4), "news", "3")
    live.add(own_relations(3), "news", "4")
    # what is taken back makes room
    held = [event.id for event in live.store.stored() if event.relation == "relation 1"]
    with pytest.raises(DataError, match="1 new relations"):
        live.add(own_relations(4), "news", "5")
    live.retract(held)
    live.add([("Kel", "relation 3", "Lor", DAY)], "news", "6")


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (NewNames(batch=5), "and a batch may name 5"),
        (NewNames(entities=5), "and a store takes 5"),
    ],
)
def test_a_batch_of_too_many_entities_is_refused(live: LiveForecaster, limits: NewNames, named: str) -> None:
    live.store.new_names = limits
    with pytest.raises(DataError, match=f"6 new entities, {named}"):
        live.add([("Arvan", "visit", f"New {i}", DAY) for i in range(6)], "news", "1")
    assert live.store.stored() == []
    live.add([("Arvan", "visit", f"New {i}", DAY) for i in range(5)], "news", "1")


def test_names_that_could_be_stored_but_not_indexed_are_refused(
    live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pairs of entities and relations than an index tells apart would stop every later start."""
    monkeypatch.setattr("bridgemem.events.naming.KEYS", 2 * len(live.events.entities) * (live.events.n_relations + 2))
    live.add(own_relations(1), "news", "1")
    with pytest.raises(DataError, match="pairs that can be told apart"):
        live.add(own_relations(2), "news", "2")
    assert len(live.store.stored()) == 1


def test_a_service_refuses_the_batch_and_goes_on(live: LiveForecaster) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'serve'")
    pytest.importorskip("httpx2", reason="needs httpx2, of the extra 'dev'")
    from starlette.testclient import TestClient

    from bridgemem.service.app import create_app

    def batch(events: list[NewEvent], key: str) -> dict[str, Any]:
        names = ("subject", "relation", "object", "time")
        return {"events": [dict(zip(names, e, strict=True)) for e in events], "source": "attack", "key": key}

    with TestClient(create_app(live)) as client:
        refused = client.post("/v1/events", json=batch(own_relations(MANY), "1"))
        assert refused.status_code == 422
        assert "9,000 new relations" in refused.json()["error"]
        assert client.get("/v1/events").json()["events"] == []
        assert client.post("/v1/events", json=batch([("Arvan", "visit", "Kel", DAY)], "2")).status_code == 200
        assert client.post("/v1/forecast", json={"subject": "Arvan", "relation": "visit"}).status_code == 200


def test_ingest_refuses_the_file_unless_more_are_allowed(recurrence_run: Path, tmp_path: Path) -> None:
    file, store = write_rows(tmp_path / "news.csv", own_relations(1_001)), tmp_path / "events.duckdb"
    refused = bridgemem("ingest", store, file, "--run", recurrence_run)
    refused.refused()
    assert "1,001 new relations" in refused.err
    assert "No events are stored" in bridgemem("stored", store).out
    taken = bridgemem("ingest", store, file, "--run", recurrence_run, "--max-new-relations", "1001", "--json").json
    assert taken["new_relations"] == 1_001


def test_a_store_of_many_relations_is_opened_and_asked_in_bounded_memory(recurrence_run: Path, tmp_path: Path) -> None:
    """Whatever an earlier limit let in: 9,000 relations would make dense tables of 1.6 billion cells."""
    path, run = tmp_path / "events.duckdb", Run(recurrence_run)
    with EventStore(path, new_names=NewNames(relations=MANY)) as store:
        store.follow(run.dataset.events, run.origin)
        store.append(own_relations(MANY), source="earlier", key="1")
    with EventStore(path) as store, LargestTensor() as largest:
        live = LiveForecaster(loaded(run), store)
        assert live.events.n_relations == 5 + MANY
        assert live.forecast("Arvan", "visit")
        assert live.forecast("Arvan", "relation 0", top=1)[0].name == "Farlow"
        explained = live.explain("Arvan", "relation 0", "Farlow")
        assert (explained.residual, explained.events) == (0.0, ())
        assert "the run was fitted without this relation" in explained.sentence()
        assert live.add([("Arvan", "relation 7", "Kel", DAY)], "news", "1").accepted == 1
        with pytest.raises(DataError, match="1 new relations"):
            live.add([("Arvan", "one more", "Kel", DAY)], "news", "2")
    assert 0 < largest.elements < 50 * MANY


FIT = """
import resource, sys
import bridgemem.forecaster
from bridgemem.cli.main import main
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
try:
    main()
finally:
    print("added", (peak() - before) // 1024, "MB")
"""


def test_fit_on_3000_relations_stays_far_below_a_dense_table(tmp_path: Path) -> None:
    """A dense table would have 180 million cells, 1.4 GB, and there were five of them."""
    relations = 3_000
    # every pair comes back a few times, so that most events have a past
    pairs = [(f"e{i % 40}", f"e{(i * 7 + 1) % 40}") for i in range(relations + 200)]
    rows = [(s, f"r{i % relations}", o, str(i // 80)) for i, (s, o) in enumerate(pairs)]
    file = write_rows(tmp_path / "many.csv", rows)
    command = ["fit", "-d", file, "-b", "recurrence", "-o", tmp_path / "run", "-q", *TINY_READER]
    limit = 6 << 30  # of the address space, far more than is used: what grows with the square ends here
    done = subprocess.run(
        [sys.executable, "-c", FIT, *map(str, command)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    word, added, _ = done.stdout.splitlines()[-1].split()
    assert word == "added"
    assert int(added) < 700
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    assert tensors["known.counts"].shape == tensors["known.cells"].shape
    assert max(tensor.numel() for tensor in tensors.values()) < 1 << 22
    assert Run(tmp_path / "run").transitions().counts.counts.sum() > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cells, counts: (cells.flip(0), counts),
        lambda cells, counts: (cells[1:], counts),
        lambda cells, counts: (cells - cells[0] - 1, counts),
        lambda cells, counts: (cells + 10**12, counts),
        lambda cells, counts: (cells.double(), counts),
        lambda cells, counts: (cells, counts.double()),
        lambda cells, counts: (cells, counts[:, None]),
        lambda cells, counts: (None, counts),
    ],
)
def test_sparse_counts_that_were_tampered_with_are_refused(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bridgemem.evidence.transitions import Transitions
    from builders import SMALL_READER, random_log, random_transitions

    monkeypatch.setattr("bridgemem.evidence.counts.MOST_DENSE", 0)
    tensors = random_transitions(random_log(3)).tensors()
    Transitions.restore(SMALL_READER, tensors)
    cells, counts = spoil(tensors["cells"], tensors["counts"])
    spoiled = {**tensors, "counts": counts, "cells": cells}
    with pytest.raises(ValueError, match=r"counts|cells"):
        Transitions.restore(SMALL_READER, {name: t for name, t in spoiled.items() if t is not None})

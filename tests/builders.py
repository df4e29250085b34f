"""Builders shared by the tests: small logs full of awkward cases, small worlds, and other futures for the same past."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from bridgemem.backbones.cenet import Cenet, CenetSettings
from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.readers.read import Reading
from bridgemem.events.world import World, WorldSettings, simulate
from bridgemem.evidence.batches import StateTable
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import Examples, mine
from bridgemem.evidence.reader import Reader, mean_loss
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import Transitions
from bridgemem.runs import Refreshed

Row = tuple[int, int, int, int]

# reproducible runs: a property that fails in one build fails in the next one too
few = settings(max_examples=40, deadline=None, derandomize=True)

SMALL_READER = Settings(width=8, hidden=8, max_epochs=3, batch=512)
TINY_CENET = CenetSettings(width=8, epochs=1, oracle_epochs=1, batch=64)


def refresh_note(**changed: Any) -> dict[str, Any]:
    """What refresh.json holds of one refresh."""
    note = Refreshed(
        "run", "run", 1, 0, 100, 0, 0, 1, 0, "warm", 2, "2024-02-10T00:00:00+00:00", "wire.duckdb", -1, "x"
    )
    return {**asdict(note), **changed}


def vocabulary(kind: str, size: int) -> Vocabulary:
    return Vocabulary(kind, tuple(f"{kind} {i}" for i in range(size)))


def log_of(rows: Iterable[Row], n_entities: int = 6, n_relations: int = 3) -> EventLog:
    """A log from (subject, relation, object, step) rows, sorted by step."""
    columns = np.array(list(rows), dtype=np.int64).reshape(-1, 4).T
    names = vocabulary("entity", n_entities), vocabulary("relation", n_relations)
    return EventLog.from_columns(*columns, *names)


def rows_of(events: EventLog) -> list[Row]:
    """The events as (subject, relation, object, step) in total order, for slow references."""
    columns = (events.subject, events.relation, events.object, events.step)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def named_rows(reading: Reading) -> list[tuple[str, str, str, str]]:
    """The events that were read as users write them: (subject, relation, object, time)."""
    log = reading.events
    e, r, label = log.entities.names, log.relations.names, log.clock.label
    return [(e[s], r[p], e[o], label(t)) for s, p, o, t in rows_of(log)]


def random_log(seed: int, n: int = 200, n_entities: int = 12, n_relations: int = 4, steps: int = 30) -> EventLog:
    """A log with a hub pair, self loops, duplicates inside a step, gaps in time, and pairs that never meet."""
    rng = np.random.default_rng(seed)
    # squared uniforms make entity 0 a hub and leave many pairs without any event
    subject, object_ = (n_entities * rng.random((2, n)) ** 2).astype(np.int64)
    relation = rng.integers(n_relations, size=n)
    step = rng.integers(steps, size=n)
    step[step % 7 == 3] += 1
    hub = rng.random(n) < 0.2
    subject[hub], object_[hub] = 0, 1
    rows = np.stack([subject, relation, object_, step], axis=1)
    rows[: n // 10] = rows[n // 10 : 2 * (n // 10)]
    return log_of(rows[rng.permutation(n)].tolist(), n_entities, n_relations)


def base_and_delta(seed: int) -> tuple[EventLog, EventLog]:
    """A base, and the events that came later: some of the last and some of any time, with new names and duplicates."""
    events, rng = random_log(seed, n=300), np.random.default_rng(seed)
    later = (np.arange(300) > 250) & (rng.random(300) < 0.8) | (rng.random(300) < 0.1)
    base, late = events.take(~later), events.take(later)
    n, r = events.n_entities + 2, events.n_relations + 1
    new = rng.integers(0, [[n], [r], [n], [45]], (4, 40))
    repeated = base.take(rng.random(len(base)) < 0.05)
    columns = [
        np.concatenate([getattr(late, c), getattr(repeated, c), column, np.array([last])])
        for c, column, last in zip(("subject", "relation", "object", "step"), new, (n - 1, r - 1, 3, 41), strict=True)
    ]
    return base, EventLog.from_columns(*columns, vocabulary("entity", n), vocabulary("relation", r))


def together(base: EventLog, delta: EventLog) -> EventLog:
    """One log, built at once."""
    columns = [np.concatenate([getattr(base, c), getattr(delta, c)]) for c in ("subject", "relation", "object", "step")]
    return EventLog.from_columns(*columns, delta.entities, delta.relations)


@st.composite
def logs(draw: st.DrawFn, n_entities: int = 5, n_relations: int = 3, max_step: int = 90, min_size: int = 0) -> EventLog:
    """Logs over few entities and steps, so that ties, duplicates, self loops and long gaps are common."""
    row = st.tuples(
        st.integers(0, n_entities - 1),
        st.integers(0, n_relations - 1),
        st.integers(0, n_entities - 1),
        st.one_of(st.integers(0, 6), st.integers(0, max_step)),
    )
    rows = draw(st.lists(row, min_size=min_size, max_size=40))
    again = draw(st.lists(st.sampled_from(rows), max_size=8)) if rows else []
    return log_of(rows + again, n_entities, n_relations)


@cache
def small_world() -> World:
    return simulate(WorldSettings(actors=30, relations=8, steps=60, events=2400, partners=6, seed=3))


@cache
def tiny_cenet() -> Cenet:
    """A CENET trained on the small world: far from good, but with every part in place."""
    return Cenet.fit(small_world().dataset, TINY_CENET)


def random_transitions(events: EventLog, settings: Settings = SMALL_READER, seed: int = 0) -> Transitions:
    """Real counts with a reader that was not trained but has strong opinions, so that its evidence shows."""
    space = TokenSpace.of(settings, events.n_relations)
    log_pi = log_prior(events)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        reader = Reader(space, log_pi, settings.width, settings.hidden)
        for parameter in reader.parameters():
            torch.nn.init.normal_(parameter, std=0.7)
    return Transitions(settings, log_pi, CountTable.of(mine(events, space, settings), space), reader.eval())


def negative_log_likelihood(reader: Reader, examples: Examples) -> float:
    """Mean -log p(target | state) over the examples, in nats."""
    return mean_loss(reader, StateTable(examples, len(reader.log_prior)).whole())


def token_parts(space: TokenSpace) -> list[tuple[int, int, int]]:
    """Direction, relation and bin of every token, by id."""
    return list(product(range(2), range(space.n_relations), range(space.n_bins)))


def futures(events: EventLog, now: int, seed: int = 0) -> dict[str, EventLog]:
    """The same past with other futures: whatever happens at or after `now` is deleted, permuted or corrupted."""
    rng = np.random.default_rng(seed)
    past, rest = events.prefix(now), events.between(now, events.end)
    n = len(rest)
    columns = (rest.subject, rest.relation, rest.object)
    noise = tuple(rng.integers(bound, size=n) for bound in (events.n_entities, events.n_relations, events.n_entities))
    mixed = rng.permutation(n)
    half = np.sort(rng.permutation(n)[: n // 2])

    def followed_by(columns: tuple[np.ndarray, ...], step: np.ndarray) -> EventLog:
        return past.append(EventLog(*columns, step, events.entities, events.relations))

    return {
        "deleted": past,
        "half deleted": followed_by(tuple(c[half] for c in columns), rest.step[half]),
        "permuted": followed_by(tuple(c[mixed] for c in columns), rest.step),
        "corrupted": followed_by(noise, rest.step),
        "moved to now": followed_by(columns, np.full(n, now)),
    }


def dataset_of(events: EventLog, name: str = "small") -> Dataset:
    return Dataset.chronological(name, events, valid=0.15, test=0.15)


def side(actor: str | int, inverse: bool) -> dict[str, Any]:
    """The side of a query that is known: its object where the query is inverse."""
    return {"object" if inverse else "subject": actor}


def triple(actor: str | int, relation: str | int, candidate: str | int, inverse: bool) -> dict[str, Any]:
    """What explains a candidate of a query."""
    subject, object_ = (candidate, actor) if inverse else (actor, candidate)
    return {
        "subject": subject,
        "relation": relation,
        "object": object_,
        "candidate": "subject" if inverse else "object",
    }

"""Horizon: queries about any of the next h steps, asked from what was known before the first of them.

The single-step method is extended in the simplest way. The ranking is that of the first of the h steps, with all that
happened before it and nothing later. The probability that a candidate comes at least once in them, given that anybody
comes, is made from p, its probability as the partner of one event, and m, how many events such a window holds, on
average over the actor's own windows of the past under this relation, and one more with a single event; see
`calibration.OverSteps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Count, check
from bridgemem.errors import DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries, sample_rows
from bridgemem.memory.occurrences import each_once
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import Timeline, changes, expand
from bridgemem.ranking.filters import Filters

LONGEST = 16  # steps of the windows that probabilities over several steps are fitted on
WINDOWS = 8  # first steps of such windows, at most


def check_horizon(horizon: int) -> int:
    """A horizon, if it is one."""
    check("horizon", horizon, Count)
    return horizon


def check_past(horizon: int, steps: int) -> None:
    """Refuse several steps at once where fewer came before: no window of that length was ever seen."""
    if horizon > max(steps, 1):
        raise DataError(
            f"there are {steps} steps before the one that is asked for, fewer than the {horizon:,} of one window; ask "
            "for a shorter horizon."
        )


def in_windows(events: EventLog, start: int, horizon: int) -> EventLog:
    """The events from a step on, each filed under the first step of its window of h steps, and once in each.

    A last window that the events do not fill is left out: some of its answers are not known.
    """
    whole = (events.end - start) // check_horizon(horizon)
    if whole < 1:
        raise DataError(
            f"there are {max(events.end - start, 0)} steps to read, fewer than the {horizon} of one window; ask for a "
            "shorter horizon."
        )
    part = events.between(start, start + whole * horizon)
    first = part.step - (part.step - start) % horizon
    order = np.lexsort((part.object, part.relation, part.subject, first))
    subject, relation, object_, step = (c[order] for c in (part.subject, part.relation, part.object, first))
    once = changes(step, subject, relation, object_)
    columns = (subject[once], relation[once], object_[once], step[once])
    return EventLog(*columns, events.entities, events.relations, events.clock)


def _facts(events: EventLog, device: str | torch.device) -> Timeline:
    """The candidates of every (actor, directed relation) by step, each once in a step."""
    facts = Queries.of(events)
    assert facts.answer is not None
    key = _key(facts, events.n_relations)
    return each_once(key.numpy(), facts.answer.numpy(), facts.step.numpy(), device)


def _key(queries: Queries, n_relations: int) -> Tensor:
    return queries.actor * (2 * n_relations) + queries.relation


@dataclass(frozen=True)
class Windowed:
    """The h-step queries of a split, one for each answer of each window, and filters that know a window's answers."""

    asked: EventLog
    filters: Filters
    answers: Timeline

    @classmethod
    def of(cls, dataset: Dataset, split: str, horizon: int, device: str | torch.device = "cpu") -> Windowed:
        if split not in ("valid", "test"):
            raise DataError(f"h-step queries are asked of valid or test, not of {split!r}.")
        known = dataset.known if split == "valid" else dataset.events
        start = dataset.valid_start if split == "valid" else dataset.test_start
        if start is None:
            raise DataError(f"{dataset.name} has no test split; use its validation split.")
        asked = in_windows(known, start, horizon)
        rest = known.between(start + (known.end - start) // horizon * horizon, known.end)
        # what came before and after keeps its own steps: the static filter knows every answer there ever was
        filters = Filters(known.prefix(start).append(asked).append(rest), device)
        return cls(asked, filters, _facts(asked, device))

    def queries(self) -> Queries:
        return Queries.of(self.asked)

    def distinct(self) -> Queries:
        """Every query once, without its answers, by step."""
        q = self.queries()
        rows = torch.stack([q.step, q.actor, q.relation], dim=1).unique(dim=0)
        return Queries(rows[:, 1], rows[:, 2], rows[:, 0])

    def hits(self, queries: Queries) -> Tensor:
        """Which candidates come at least once in the window of each query; bool [n, E]."""
        row, at = expand(*self.answers.at(_key(queries, self.asked.n_relations), queries.step))
        size = (len(queries), self.asked.n_entities)
        came = torch.zeros(size, dtype=torch.bool, device=queries.actor.device)
        came[row, self.answers.value[at]] = True
        return came


@dataclass(frozen=True)
class Openings:
    """Queries at the first steps of some windows, which overlap, and how many steps later each of their answers comes.

    One scoring of a query serves all horizons up to the longest. queries: each (actor, relation) of a window once.
    code int64 [m], ascending: query * E + answer; after int64 [m]: the steps until it first comes.
    """

    queries: Queries
    longest: int
    entities: int
    code: Tensor
    after: Tensor

    @classmethod
    def of(cls, events: EventLog, most: int, seed: int) -> Openings:
        """At most that many queries of windows all over these events, whose last steps are never cut off."""
        first, steps = events.start, events.end - events.start
        longest = max(1, min(LONGEST, 2 * steps // 3))
        parts = []
        for start in np.unique(np.linspace(first, events.end - longest, WINDOWS).astype(np.int64)).tolist():
            q = Queries.of(events.between(start, start + longest))
            assert q.answer is not None
            parts.append(torch.stack([torch.full_like(q.step, start), q.actor, q.relation, q.answer, q.step - start]))
        rows = torch.cat(parts, dim=1)
        keys, own = rows[:3].unique(dim=1, return_inverse=True)
        kept = sample_rows(keys.shape[1], most, seed)
        place = torch.full((keys.shape[1],), -1).index_copy_(0, kept, torch.arange(len(kept)))[own]
        code = (place * events.n_entities + rows[3])[place >= 0]
        code, at = code.unique(return_inverse=True)
        after = torch.full_like(code, longest).scatter_reduce_(0, at, rows[4][place >= 0], "amin")
        step, actor, relation = keys[:, kept]
        return cls(Queries(actor, relation, step), longest, events.n_entities, code, after)

    def horizons(self) -> list[int]:
        """Those that are read: 1, 2, 4 and so on."""
        return [2**i for i in range(self.longest.bit_length())]

    def until(self, candidates: Tensor) -> Tensor:
        """Steps until each candidate int64 [n, k] of each query first comes, `longest` where it does not; int64."""
        wanted = torch.arange(len(self.queries))[:, None] * self.entities + candidates
        at = torch.searchsorted(self.code, wanted).clamp(max=len(self.code) - 1)
        return torch.where(self.code[at] == wanted, self.after[at], self.longest)

    def first(self) -> Tensor:
        """Steps until anybody comes, int64 [n]."""
        query = self.code // self.entities
        return torch.full((len(self.queries),), self.longest).scatter_reduce_(0, query, self.after, "amin")


class Activity:
    """How many events a window of an actor and a directed relation holds, from the past alone."""

    def __init__(self, past: Past) -> None:
        self._past = past

    def draws(self, queries: Queries, until: Tensor, horizon: int) -> Tensor:
        """Mean events of the past windows that held any, counted back from `until` int64 [n]; float64 [n], at least 1.

        One window with a single event is counted besides, which is all there is where there is no past.
        """
        row, step = self._past.told(queries.actor, queries.relation, until)
        window = (until[row] - 1 - step) // check_horizon(horizon)
        fresh = torch.ones_like(row, dtype=torch.bool)
        fresh[1:] = (row[1:] != row[:-1]) | (window[1:] != window[:-1])
        events, windows = (torch.bincount(rows, minlength=len(queries)) for rows in (row, row[fresh]))
        return (events + 1).double() / (windows + 1)

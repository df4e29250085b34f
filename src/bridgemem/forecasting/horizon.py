"""Horizon: queries about any of the next h steps, asked from what was known before the first of them.

The single-step method is extended in the simplest way. The ranking is that of the first of the h steps, with all that
happened before it and nothing later. The probability that a candidate comes at least once in them, given that anybody
comes, is made from p, its probability as the partner of one event, and how many events one step and such a window hold,
on average over the actor's own past under this relation, and one more with a single event; see `calibration.OverSteps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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
BLOCK = 1 << 20  # events of a window that are read at once


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
        starts = np.unique(np.linspace(first, events.end - longest, WINDOWS).astype(np.int64)).tolist()
        windows = [events.between(start, start + longest) for start in starts]
        # no window is held next to another: which of their queries are kept is known once all are counted
        bounds = np.cumsum([0, *(len(_asked_in(window)) for window in windows)])
        kept = sample_rows(int(bounds[-1]), most, seed).numpy()
        places = np.searchsorted(kept, bounds)
        asked, codes, after = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start, window, bound, (low, high) in zip(starts, windows, bounds[:-1], pairwise(places), strict=True):
            own = _asked_in(window)[kept[low:high] - bound]
            asked.append(np.stack([*divmod(own, 2 * events.n_relations), np.full_like(own, start)]))
            for key, answer, step in _facts_in(window):
                place, known = _found(own, key)
                codes.append((low + place[known]) * events.n_entities + answer[known])
                after.append(step[known] - start)
        code, at = np.unique(np.concatenate(codes), return_inverse=True)
        least = np.full(len(code), longest)
        np.minimum.at(least, at, np.concatenate(after))
        columns = (torch.from_numpy(column) for column in np.concatenate(asked, axis=1))
        return cls(Queries(*columns), longest, events.n_entities, torch.from_numpy(code), torch.from_numpy(least))

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


def _facts_in(events: EventLog) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(actor, directed relation) in one number, answer and step of both sides of all events, in blocks; int64 each."""
    for at in range(0, len(events), BLOCK):
        facts = Queries.of(events.rows(at, min(at + BLOCK, len(events))))
        assert facts.answer is not None
        yield _key(facts, events.n_relations).numpy(), facts.answer.numpy(), facts.step.numpy()


def _asked_in(events: EventLog) -> np.ndarray:
    """(actor, directed relation) of every event in one number, each once, ascending; int64."""
    found = np.zeros(0, np.int64)
    for key, _, _ in _facts_in(events):
        found = np.union1d(found, key)
    return found


def _found(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each wanted number stands among keys that ascend, int64 [n], and whether it does, bool [n]."""
    if not len(keys):
        return np.zeros_like(wanted), np.zeros(len(wanted), bool)
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return place, keys[place] == wanted


class Activity:
    """How many events a step and a window of an actor and a directed relation hold, from the past alone."""

    def __init__(self, past: Past) -> None:
        self._past = past

    def draws(self, queries: Queries, until: Tensor, horizon: int) -> Tensor:
        """Mean events of the past steps, and of the past windows, that held any; float64 [n, 2], at least 1.

        Windows are counted back from `until` int64 [n]. One with a single event is counted besides, which is all there
        is where there is no past.
        """
        row, step = self._past.told(queries.actor, queries.relation, until)
        events, means = torch.bincount(row, minlength=len(queries)) + 1, []
        for steps in (1, check_horizon(horizon)):
            window = (until[row] - 1 - step) // steps
            fresh = torch.ones_like(row, dtype=torch.bool)
            fresh[1:] = (row[1:] != row[:-1]) | (window[1:] != window[:-1])
            means.append(events.double() / (torch.bincount(row[fresh], minlength=len(queries)) + 1))
        return torch.stack(means, dim=1)

"""Feeds: figures and remarks on events that a user should see before using them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bridgemem.events.aliases import proposed
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.times import fine_steps

LISTED = 10  # proposals that are shown


@dataclass(frozen=True)
class Gap:
    """Steps without any event, between two that have some."""

    after: str
    before: str
    steps: int


@dataclass(frozen=True)
class Feed:
    """Events in figures.

    repeated: events that equal an earlier one of their step. loops: those between a name and itself. once: entities of
    one event alone. first, last: the times of the first and the last step. steps: how many have events. aliases: names
    that differ only by case, spaces, accents or signs, and the most active of them; a table for `--aliases`. remarks:
    problems to look at before they are used.
    """

    events: int
    entities: int
    relations: int
    once: int
    repeated: int
    loops: int
    first: str
    last: str
    steps: int
    step: str
    gap: Gap | None
    aliases: dict[str, str]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, events: EventLog) -> Feed:
        """The figures of a log."""
        columns = (events.subject, events.relation, events.object, events.step)
        order = np.lexsort(columns)
        same = np.logical_and.reduce([np.diff(column[order]) == 0 for column in columns]) if len(events) else []
        loops = int((events.subject == events.object).sum())
        names = events.entities.names, events.tallies[0]
        return cls.counted(names, events.n_relations, np.unique(events.step), events.clock, (int(np.sum(same)), loops))

    @classmethod
    def counted(
        cls,
        names: tuple[Sequence[str], np.ndarray],
        relations: int,
        steps: np.ndarray,
        clock: Clock,
        repeated_and_loops: tuple[int, int],
    ) -> Feed:
        """The figures from counts: names and their parts in events, int64 [n]; steps int64 [m] that have events."""
        known, counts = names
        apart = np.diff(steps)
        gap = None
        if len(apart) and apart.max() > 1:
            at = int(apart.argmax())
            gap = Gap(clock.label(steps[at]), clock.label(steps[at + 1]), int(apart[at]) - 1)
        events = int(counts.sum()) // 2
        fine = fine_steps(clock, (int(steps[0]), int(steps[-1])), len(steps), events) if len(steps) else ""
        return cls(
            events,
            int((counts > 0).sum()),
            relations,
            int((counts == 1).sum()),
            *repeated_and_loops,
            clock.label(steps[0]) if len(steps) else "",
            clock.label(steps[-1]) if len(steps) else "",
            len(steps),
            clock.length(),
            gap,
            proposed(known, counts),
            tuple(filter(None, (fine, _unsplit(len(steps))))),
        )

    def sentences(self) -> list[str]:
        """The figures in words."""
        said = [
            f"Events: {self.events:,}; entities: {self.entities:,}, {self.once:,} of them once; relations: "
            f"{self.relations:,}.",
            f"From {self.first} to {self.last}: {_steps(self.steps)} with events, a step is {self.step}.",
        ]
        if self.gap:
            between = f"between {self.gap.after} and {self.gap.before}"
            said.append(f"The largest gap: {_steps(self.gap.steps)} without events {between}.")
        said.append(f"Repeated events: {self.repeated:,}; events between a name and itself: {self.loops:,}.")
        if self.aliases:
            one = len(self.aliases) == 1
            said.append(
                f"{len(self.aliases):,} name{' differs' if one else 's differ'} from another only by case, spaces, "
                "accents or signs; rows for --aliases (name, canonical name):"
            )
            said += [f"  {name},{last}" for name, last in list(self.aliases.items())[:LISTED]]
            said += ["  ... (--json lists all)"] if len(self.aliases) > LISTED else []
        return said


def fine_steps_of(events: EventLog) -> str:
    """The remark that the steps of a log are much finer than its events; empty where they are not."""
    used = 1 + int(np.count_nonzero(np.diff(events.step))) if len(events) else 0
    return fine_steps(events.clock, (events.start, events.end - 1), used, len(events)) if used else ""


def _unsplit(steps: int) -> str:
    """Why a number of steps cannot be split; empty where they can."""
    if steps >= 3:
        return ""
    return (
        f"{_steps(steps)} with events cannot be split into train, validation and test; import this together with other "
        "files, or ingest it into a store."
    )


def _steps(n: int) -> str:
    return f"{n:,} step{'s' * (n != 1)}"

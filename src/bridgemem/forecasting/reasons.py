"""Reasons: plain sentences about what happened before a forecast, each a count of past events and nothing else.

Every sentence names the events it counts, their unit and their time span, so that a reader can check it. The unit is a
step, under its name where it has one, however many events it holds; of a share it is a partner at a step. None reads an
event at or after the step of the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bridgemem.events.log import Clock
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past

SPANS = (30, 90, 365)  # steps that are looked back on: the first of them with enough to count, else all
ENOUGH = 4
WITHIN = (1, 2, 7)  # steps after which something counts as having followed
NAMES = {7 * 86_400: "week", 86_400: "day", 3600: "hour", 60: "minute", 1: "second"}  # of steps that long


@dataclass(frozen=True)
class Reason:
    """One sentence, and what it counts: `count` steps with such an event, and of how many where it is a share.

    kind: before (this very event), pair (any event of the two), followed (this event after any of the two), after (this
    event after one like the last), share (of what the actor does, each partner counted once a step), common (partners
    of both, which are counted themselves), role (the event with anybody), lately (the same, in the last steps). since,
    until: the times of the first and the last step that are counted. within: steps after which something counts as
    having followed.
    """

    kind: str
    sentence: str
    count: int
    of: int | None = None
    since: str | None = None
    until: str | None = None
    within: int | None = None

    def __str__(self) -> str:
        return self.sentence


def reasons(
    past: Past, actor: int, relation: int | None, candidate: int, *, step: int, cause: tuple[int, int] | None = None
) -> tuple[Reason, ...]:
    """What happened before that speaks for or against (actor, directed relation, candidate) at a step.

    Args:
        past: The events known; only those strictly before the step are read.
        actor: By id.
        relation: Directed, of the past's own relations; None for any event between the two.
        candidate: By id.
        step: The step that is asked for.
        cause: Relation and direction (1: from the candidate) of the event that matters most; the last one by default.

    Returns:
        Sentences with their counts, the most telling first; at least one.
    """
    asked = _Asked(past, actor, relation, candidate, step)
    if not len(asked.pair):
        found = [Reason("pair", f"{asked.both} never interacted before.", 0), asked.common()]
    else:
        found = [asked.before(), asked.followed(), asked.after(cause)]
    return tuple(one for one in [*found, asked.share()] if one is not None)


def reasons_with_anybody(past: Past, actor: int, relation: int, *, step: int) -> tuple[Reason, ...]:
    """What happened before that speaks for or against (actor, directed relation, anybody) at a step."""
    asked = _Asked(past, actor, relation, actor, step)
    return tuple(one for one in (asked.with_anybody(), asked.lately()) if one is not None)


@dataclass(frozen=True)
class _Asked:
    """One query in ids, and the counts that sentences are made of."""

    past: Past
    actor: int
    relation: int | None
    candidate: int
    step: int

    @cached_property
    def pair(self) -> PairEvents:
        return PairEvents.of(self.past, self.actor, self.candidate, self.step).once()

    @property
    def clock(self) -> Clock:
        return self.past.events.clock

    @cached_property
    def end(self) -> int:
        """The step after the last known event before the step that is asked for; later ones tell nothing of it."""
        cut = int(self.past.cut(torch.tensor([self.step])))
        found = (index.events.step for index in self.past.indices)
        before = ((step, int(np.searchsorted(step, cut))) for step in found)
        return 1 + max((int(step[place - 1]) for step, place in before if place), default=self.past.events.start)

    @property
    def both(self) -> str:
        one, two = (self.past.events.entities.names[who] for who in (self.actor, self.candidate))
        return f"{one} and {two}"

    # ---- words -----------------------------------------------------------------------------------------------------

    def _did(self, relation: int, direction: int, *, verb: str = "did") -> str:
        """'A did X to B'."""
        names = self.past.events.entities.names
        pair = (self.actor, self.candidate)
        subject, object_ = pair[::-1] if direction else pair
        return f"{names[subject]} {verb} '{self.past.events.relations.shown(relation)}' to {names[object_]}"

    def _steps(self, n: int) -> str:
        name = NAMES.get(self.clock.unit, "step") if self.clock.kind == "date" else "step"
        return f"{n:,} {name}{'s' * (n != 1)}"

    @property
    def _step(self) -> str:
        """What a step is called."""
        return self._steps(1).removeprefix("1 ")

    @property
    def _on(self) -> str:
        """The word before a step: on a day, in an hour."""
        return "on" if self._step in ("day", "step") else "in"

    def _on_earlier(self, when: Tensor) -> str:
        """'on 3 earlier days, last at 2024-01-10, 4 days before'."""
        n = len(when)
        if n == 1:
            return f"{self._on} one earlier {self._step}, {self._last(when)}"
        return f"{self._on} {n:,} earlier {self._step}s, last {self._last(when)}"

    def _last(self, when: Tensor) -> str:
        last = int(when[-1])
        return f"at {self.clock.label(last)}, {self._steps(self.step - last)} before"

    def _ends(self, since: int, until: int) -> tuple[str, str]:
        return self.clock.label(since), self.clock.label(until)

    # ---- counts: a step counts once, however many events it holds --------------------------------------------------

    @cached_property
    def _together(self) -> Tensor:
        """The steps at which the two interacted, in order."""
        return self.pair.step.unique()

    @cached_property
    def _same(self) -> Tensor:
        """The steps at which the event that is asked about happened; with no relation any event of the two."""
        if self.relation is None:
            return self._together
        direction, relation = divmod(self.relation, self.past.events.n_relations)
        return self._like(relation, direction)

    def _like(self, relation: int, direction: int) -> Tensor:
        own = self.pair.relation == relation
        if self.actor != self.candidate:  # of one with itself both directions are one
            own &= self.pair.direction == direction
        return self.pair.step[own].unique()

    def before(self) -> Reason:
        """How often this very event happened, and when last."""
        when = self._same
        if self.relation is None:
            said = f"{self.both} interacted {self._on_earlier(when)}."
            return Reason("pair", said, len(when), None, *self._ends(int(when[0]), int(when[-1])))
        direction, relation = divmod(self.relation, self.past.events.n_relations)
        if not len(when):
            never = self._did(relation, direction, verb="never did")
            return Reason("before", f"{never} before; the two last interacted {self._last(self._together)}.", 0)
        said = f"{self._did(relation, direction)} {self._on_earlier(when)}."
        return Reason("before", said, len(when), None, *self._ends(int(when[0]), int(when[-1])))

    def followed(self) -> Reason | None:
        """How often this event followed when the two interacted."""
        if self.relation is None:
            return None
        direction, relation = divmod(self.relation, self.past.events.n_relations)
        return self._after("followed", self._together, "the two interacted", self._did(relation, direction))

    def after(self, cause: tuple[int, int] | None) -> Reason | None:
        """How often this event followed one like the last, or like the one that matters most."""
        if self.relation is None:
            return None
        direction, relation = divmod(self.relation, self.past.events.n_relations)
        if cause is None:
            cause = int(self.pair.relation[0]), int(self.pair.direction[0])
        steps = self._like(*cause)
        if len(steps) == len(self._together):  # the same as whenever they interacted
            return None
        return self._after("after", steps, f"{self._did(*cause)}", self._did(relation, direction))

    def _after(self, kind: str, steps: Tensor, happened: str, then: str) -> Reason | None:
        """Of the steps at which something happened, after how many this event came within a few steps.

        Only steps that lie so far back that their whole span is known are counted.
        """
        found = None
        for within in WITHIN:
            last = self.end - 1 - within
            known = steps[steps <= last]
            if not len(known):
                break
            known, since = self._lately(known)
            place = torch.searchsorted(self._same, known, right=True)
            following = torch.cat([self._same, self._same.new_tensor([2**62])])[place]
            found = within, int((following - known <= within).sum()), len(known), since, last
            if 2 * found[1] >= found[2]:
                break
        if found is None or found[1:3] == (0, 1):
            return None
        within, count, of, since, last = found
        ends = self._ends(since, last)
        how = "the next " + (self._steps(within).removeprefix("1 ") if within == 1 else self._steps(within))
        which = f"After {_of(count, of, self._step)} {self._on} which"
        said = f"{which} {happened} from {ends[0]} to {ends[1]}, {then} within {how}."
        return Reason(kind, said, count, of, *ends, within)

    def _lately(self, steps: Tensor) -> tuple[Tensor, int]:
        """The steps of the shortest span with enough of them, and where it begins; else all of them."""
        for span in SPANS:
            since = self.end - span
            if since > self.past.events.start and int((steps >= since).sum()) >= ENOUGH:
                return steps[steps >= since], since
        return steps, int(steps[0])

    def share(self) -> Reason | None:
        """How much of what the actor does in this way, or is done to it, is with this one."""
        if self.relation is None:
            return None
        asked = (torch.tensor([value]) for value in (self.actor, self.relation, self.step))
        told = self.past.told(*asked)[1]
        direction, relation = divmod(self.relation, self.past.events.n_relations)
        names, word = self.past.events.entities.names, self.past.events.relations.shown(relation)
        actor, candidate = names[self.actor], names[self.candidate]
        if not len(told):
            said = f"Nobody did '{word}' to {actor}" if direction else f"{actor} never did '{word}' to anybody"
            return Reason("share", f"{said} before.", 0, 0)
        told, since = self._lately(told.sort().values)
        count, of, ends = int((self._same >= since).sum()), len(told), self._ends(since, self.end - 1)
        what = f"anybody did '{word}' to {actor}" if direction else f"{actor} did '{word}' to anybody"
        who = f"it was {'not ' if (count, of) == (0, 1) else ''}{'' if direction else 'to '}{candidate}"
        span = f"{what} from {ends[0]} to {ends[1]}"
        if of == 1:
            said = f"{self._on.capitalize()} the one {self._step} {self._on} which {span}, {who}."
        else:
            times, each = _of(count, of, "time"), f"each partner counted once a {self._step}"
            said = f"{times.capitalize() if count else f'In {times}'} that {span}, {each}, {who}."
        return Reason("share", said, count, of, *ends)

    @cached_property
    def _told(self) -> Tensor:
        """The steps at which the actor did this to anybody, or anybody to it, in order."""
        return self.past.told(*(torch.tensor([value]) for value in (self.actor, self.relation, self.step)))[1].unique()

    def with_anybody(self) -> Reason:
        """How often the actor did this to anybody, or anybody to it, and when last."""
        direction, relation = divmod(self.relation or 0, self.past.events.n_relations)
        name, word = self.past.events.entities.names[self.actor], self.past.events.relations.shown(relation)
        when = self._told
        if not len(when):
            said = f"Nobody did '{word}' to {name}" if direction else f"{name} never did '{word}' to anybody"
            return Reason("role", f"{said} before.", 0)
        what = f"Somebody did '{word}' to {name}" if direction else f"{name} did '{word}' to somebody"
        said = f"{what} {self._on_earlier(when)}."
        return Reason("role", said, len(when), None, *self._ends(*when[[0, -1]].tolist()))

    def lately(self) -> Reason | None:
        """At how many of the last steps that was."""
        span = SPANS[0]
        since = self.end - span
        if since < self.past.events.start or not len(self._told):
            return None
        count, ends = int((self._told >= since).sum()), self._ends(since, self.end - 1)
        many = "none" if not count else f"{count:,}"
        said = f"It happened {self._on} {many} of the {self._steps(span)} up to {ends[1]}."
        return Reason("lately", said, count, span, *ends)

    def common(self) -> Reason | None:
        """How many both have interacted with."""
        asked = torch.tensor([self.actor, self.candidate])
        row, partner = self.past.seen(asked, torch.full_like(asked, self.step))
        count = len(set(partner[row == 0].tolist()) & set(partner[row == 1].tolist()))
        others = "nobody" if not count else f"{count:,} other{'s' * (count != 1)}"
        return Reason("common", f"Both interacted with {others} before.", count)


def _of(count: int, of: int, unit: str) -> str:
    """'3 of the 4 days'."""
    if of == 1:
        return f"the one {unit}"
    return f"{'none' if not count else 'all' if count == of else f'{count:,}'} of the {of:,} {unit}s"

"""Outlook: the likeliest events of the coming steps, and those whose probability rose most against their usual rate.

The events are the triples that occurred before, and of watched pairs every relation, seen or not. `usual` is the
probability of as many steps at the triple's mean rate since the first event of all. `surprise` is the Kullback-Leibler
divergence of p_event from it in bits, 0 where p_event is not above it: large where a probability is both high now and
far above what is usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bridgemem.forecasting.ahead import Ahead, Listed, Shown, in_steps
from bridgemem.forecasting.answer_files import write_answers
from bridgemem.forecasting.occurrence import CHUNK, Keys, keys_at, seen_keys, seen_ranks
from bridgemem.forecasting.watching import Watch
from bridgemem.showing import percent

_LEAST = 1e-9


@dataclass(frozen=True)
class ExpectedEvent(Shown):
    """An event that may happen, next to how often it usually does.

    Attributes:
        subject: Who acts.
        relation: What happens.
        object: Whom it happens to.
        rank: Place in the outlook, 1 for the first.
        p_event: Probability that it happens at least once within the horizon.
        usual: The same probability at its mean rate so far.
        surprise: How far `p_event` is above `usual`, in bits.
        past_events: Such events before, each counted, also several in a step.
        last: When it last happened; None if never.
        relation_label: Words for a relation that is a code.

    Example:
        >>> first = model.outlook(horizon=7)[0]
        >>> 0 < first.usual < 1, first.past_events > 0
        (True, True)
    """

    subject: str
    relation: str
    object: str
    rank: int
    p_event: float
    usual: float
    surprise: float
    past_events: int
    last: str | None
    relation_label: str | None = None
    header: ClassVar[list[str]] = ["event", "rank", "p_event", "usual", "surprise", "earlier", "last"]

    def cells(self) -> list[str]:
        event = f"{self.subject} - {self.relation_label or self.relation} -> {self.object}"
        chances = [percent(self.p_event), percent(self.usual), f"{self.surprise:.2f}"]
        return [event, str(self.rank), *chances, f"{self.past_events:,}", self.last or "never"]


@dataclass(frozen=True)
class OutlookQuery:
    """What was asked, from what was known before `time`; until: the last of the steps.

    watch: the names that are watched; empty for all. events: how many events were compared. remark: how far such
    probabilities were off on later validation; empty where they were not.
    """

    time: str
    until: str
    step: int
    horizon: int
    surprising: bool
    watch: tuple[str, ...]
    events: int
    meaning: str
    remark: str = ""

    def __str__(self) -> str:
        when = f"at {self.time}" if self.until == self.time else f"from {self.time} to {self.until}"
        which = "Most surprising" if self.surprising else "Likeliest"
        return f"{which} events {when}, of {self.events:,}{' that are watched' * bool(self.watch)}"


class Outlook(Listed[ExpectedEvent]):
    """The likeliest or the most surprising events, best first: a list of `ExpectedEvent` that prints as a table.

    Attributes:
        query: What was asked, with its time and what its probabilities mean.

    Example:
        >>> outlook = model.outlook(horizon=7, top=3)
        >>> [one.rank for one in outlook]
        [1, 2, 3]
    """

    kinds: ClassVar[dict[str, type]] = {
        **dict.fromkeys(("rank", "past_events"), int),
        **dict.fromkeys(("p_event", "usual", "surprise"), float),
    }

    def __init__(self, rows: Iterable[ExpectedEvent], query: OutlookQuery) -> None:
        super().__init__(rows)
        self.query = query

    def write(self, path: Any, *, replace: bool = True) -> None:
        """Write the table, atomically.

        Args:
            path: A .csv or .parquet file.
            replace: Whether an existing file is replaced.

        Example:
            >>> from pathlib import Path
            >>> model.outlook(horizon=7).write(Path("outlook.csv"))
            >>> Path("outlook.csv").read_text().startswith("subject,relation,object,rank")
            True
        """
        write_answers(path, self.columns(), self.kinds, replace)

    def columns(self) -> dict[str, list[Any]]:
        """Get the table by column; an empty outlook has its columns, too.

        Returns:
            A list of values for each column.

        Example:
            >>> list(model.outlook(horizon=7).columns())[:4]
            ['subject', 'relation', 'object', 'rank']
        """
        return super().columns() or {field.name: [] for field in fields(ExpectedEvent)}


def outlook(
    ahead: Ahead, step: int, *, horizon: int, top: int, surprising: bool = False, watch: Watch | None = None
) -> Outlook:
    """The events of the steps from one on, from what was known before it."""
    compared, parts = 0, []
    for keys in _candidates(ahead, step, watch):
        compared += len(keys)
        # the candidates are compared each by itself; those that are kept are read with the others of their pairs
        parts.append(_best(_Expected.of(ahead, keys, step, horizon, together=False), top, surprising))
    kept = _best(_Expected.joined(parts), top, surprising).keys(step)
    best = _best(_Expected.of(ahead, kept, step, horizon), top, surprising)
    clock = ahead.names.clock
    rows = []
    for rank, row in enumerate(zip(*(column.tolist() for column in best), strict=True), 1):
        s, r, o, chance, often, bits, events, last = row
        when = clock.label(last) if events else None
        rows.append(ExpectedEvent(*ahead.fact(s, r, o), rank, chance, often, bits, events, when, ahead.label(r)))
    remark = ahead.heads.note.remark("triple", horizon)
    query = OutlookQuery(
        time=clock.label(step),
        until=clock.label(step + horizon - 1),
        step=step,
        horizon=horizon,
        surprising=surprising,
        watch=() if watch is None else watch.names,
        events=compared,
        meaning=(
            f"p_event: that it happens at least once{in_steps(horizon)}. usual: the same at its mean rate so far. "
            "surprise: how far p_event is above it, in bits."
        ),
        remark=f"Calibration of p_event: {remark}." if remark else "",
    )
    return Outlook(rows, query)


class _Expected(NamedTuple):
    """What is told of n events, a column each."""

    subject: Tensor
    relation: Tensor
    object: Tensor
    p_event: Tensor
    usual: Tensor
    surprise: Tensor
    events: Tensor
    last: Tensor

    @classmethod
    def of(cls, ahead: Ahead, keys: Keys, step: int, horizon: int, *, together: bool = True) -> _Expected:
        p = ahead.p_event(keys, horizon, together=together)
        asked = (keys.subject, keys.relation, keys.object, keys.step)
        before = ahead.tallies.before("triple", *asked, levels=False)
        since = max(step - ahead.past.events.start, 1)
        usual = -torch.expm1(-before.events.double() / since * horizon)
        return cls(*asked[:3], p, usual, divergence(p, usual), before.events, before.last)

    def keys(self, step: int) -> Keys:
        """The events themselves, asked at a step."""
        return Keys("triple", self.subject, self.relation, self.object, torch.full_like(self.subject, step))

    @classmethod
    def joined(cls, parts: list[_Expected]) -> _Expected:
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _best(events: _Expected, top: int, surprising: bool) -> _Expected:
    """The likeliest, or the most surprising, first; of equal ones those that come first."""
    value = events.surprise if surprising else events.p_event
    best = value.sort(descending=True, stable=True).indices[:top]
    if surprising:
        best = best[value[best] > 0]
    return _Expected(*(column[best] for column in events))


def _candidates(ahead: Ahead, step: int, watch: Watch | None) -> Iterator[Keys]:
    """Every triple that occurred before the step, and of watched pairs all of them, each once, by (s, o, r), in parts.

    There is at least one part, which may hold none.
    """
    code, waiting = _Code.of(ahead), torch.zeros(0, dtype=torch.int64)
    for part in _once(ahead, step, code, watch):
        waiting = torch.cat([waiting, part])
        # as many at once as are read at once, however the events lie: a part changes the last digits
        while len(waiting) > CHUNK:
            yield code.keys(waiting[:CHUNK], step)
            waiting = waiting[CHUNK:]
    yield code.keys(waiting, step)


@dataclass(frozen=True)
class _Code:
    """Triples as one number each, in the order (subject, object, relation), of that many entities and relations."""

    entities: int
    relations: int

    @classmethod
    def of(cls, ahead: Ahead) -> _Code:
        return cls(ahead.past.events.n_entities, ahead.past.events.n_relations)

    def __call__(self, keys: Keys) -> Tensor:
        return (keys.subject * self.entities + keys.object) * self.relations + keys.relation

    def keys(self, code: Tensor, step: int) -> Keys:
        link, relation = code // self.relations, code % self.relations
        subject, object_ = link // self.entities, link % self.entities
        return Keys("triple", subject, relation, object_, torch.full_like(code, step))


def _once(ahead: Ahead, step: int, code: _Code, watch: Watch | None) -> Iterator[Tensor]:
    """The codes of all candidates, ascending, each once, in parts of which none is more than a block of keys.

    What comes later changes neither their order nor their number.
    """
    base, *later = ahead.tallies.parts
    own = [code(seen_keys("triple", part, step)) for part in later]
    if watch is not None and watch.pairs:
        pairs = torch.tensor(sorted(watch.pairs)).T
        ends = torch.cat([pairs, pairs.flip(0)], dim=1).repeat_interleave(ahead.heads.n_relations, dim=1)
        relation = torch.arange(ahead.heads.n_relations).repeat(2 * pairs.shape[1])
        own.append(code(Keys("triple", ends[0], relation, ends[1], torch.full_like(relation, step))))
    # few: of the events that came since, and of watched pairs
    others = torch.unique(torch.cat([torch.zeros(0, dtype=torch.int64), *own]))
    for rank in seen_ranks(base.triple, step):
        for some in rank.split(CHUNK):
            found = code(keys_at("triple", base, some, step))
            if not len(found):
                continue
            before = int(torch.searchsorted(others, found[-1], right=True))
            yield _watched(torch.unique(torch.cat([found, others[:before]])), step, code, watch)
            others = others[before:]
    yield _watched(others, step, code, watch)


def _watched(codes: Tensor, step: int, code: _Code, watch: Watch | None) -> Tensor:
    return codes if watch is None else codes[watch.holds(code.keys(codes, step))]


def divergence(p: Tensor, usual: Tensor) -> Tensor:
    """p log2(p / u) + (1 - p) log2((1 - p) / (1 - u)) where p is above u, else 0; float64 [n]."""
    p, u = p.clamp(_LEAST, 1 - _LEAST), usual.clamp(_LEAST, 1 - _LEAST)
    bits = p * (p / u).log() + (1 - p) * ((1 - p) / (1 - u)).log()
    return torch.where(p > u, bits / math.log(2), 0.0)

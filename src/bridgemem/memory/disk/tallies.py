"""Tallies on disk: each kind's keys and rows as columns, written a block of keys at a time and read by memory map.

Levels are not stored: those of a key are added up from its own rows when it is asked, as in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from bridgemem.memory.tally import KEY_BLOCK, NO_STEP, Tallied, TallyRows, decayed, found_among, last_levels
from bridgemem.memory.timeline import STEP_BITS, code, expand, halved
from bridgemem.storage.columns import Column, forget

KINDS = ("pair", "link", "triple", "actor", "role", "role_relation", "relation")
OVERALL = "relation"  # the kind that no range of actors holds whole
_TYPES = {"keys": "<i8", "start": "<i8", "first": "<i4", "step": "<i4", "counted": "<i4"}
TALLY_COLUMNS = {
    f"tally.{kind}.{name}": "<i8" if name == "counted" and kind == OVERALL else dtype
    for kind in KINDS
    for name, dtype in _TYPES.items()
}
BLOCK_ROWS = 1 << 22  # rows that a pass over all of them reads at a time
LEVEL_ROWS = 1 << 19  # rows whose levels are added up at once, unless one key has more
# Rows further back than this add nothing to a level. A sum reaches that far in at most 21 leaps, one of
# which is over 90,000 steps or more, and e^(-90,000 / T) is 0 for every T.
REACH = 21 * 90_000
_WIDTHS = torch.tensor([width << more for more in range(22) for width in (2, 3)]) // 2


class MappedTally:
    """A `Tally` whose columns are mapped, of which nothing at or after `end` is read.

    keys, start int64 [k], [k + 1]; first int32 [k]: the first step of each key; step, counted [m], as in `TallyRows`.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], end: int, trim: Callable[[], None]) -> None:
        self.keys, self.start, self._first, self._step, self._counted = (
            torch.from_numpy(columns[name]) for name in _TYPES
        )
        self.end, self._trim = end, trim

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, key: Tensor) -> Tensor:
        """As `Tally.find`."""
        return found_among(self.keys, key)

    def between(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """As `Tally.between`."""
        return torch.searchsorted(self.keys, low), torch.searchsorted(self.keys, high)

    def before(self, rank: Tensor, step: Tensor, cut: Tensor, *, levels: bool = True) -> Tallied:
        """As `Tally.before`; what is asked of one key before one cut is read once."""
        self._trim()
        made = Tallied.nothing(len(rank), rank.device)
        known = (rank >= 0).nonzero().squeeze(1)
        asked, which = torch.unique(code(rank[known], cut[known].clamp(max=self.end)), return_inverse=True)
        start, stop = self._rows(asked >> STEP_BITS, asked & ((1 << STEP_BITS) - 1))
        some = (stop > start)[which].nonzero().squeeze(1)
        if not len(some):
            return made
        # where nothing came before, a row that is not asked for
        at = (stop - 1).clamp(min=0)
        own = which[some]
        last = self._step[at].long()[own]
        rows, level = known[some], made.level[:0]
        if levels:
            level = self._levels(start, stop)[own] * decayed(step[rows] - last)
        else:
            level = made.level[rows]
        return made.put(rows, Tallied(self._counted[at].long()[own], self._step[start[own]].long(), last, level))

    def _rows(self, rank: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """Where the rows of each key before a cut begin and end."""
        start = self.start[rank]
        return start, halved(self._step, start, self.start[rank + 1], cut)

    def _levels(self, start: Tensor, stop: Tensor) -> Tensor:
        """The levels after the last of some rows of one key each, float64 [n, T]; 0 where there is none."""
        length = (stop - start).clamp(max=REACH)
        made = Tallied.nothing(len(length), length.device).level
        # keys of about the same length at a time, filled up to the longest of them
        width = torch.searchsorted(_WIDTHS, length)
        for own in torch.unique(width[length > 0]).tolist():
            alike = (width == own).nonzero().squeeze(1)
            longest = int(length[alike].max())
            back = torch.arange(longest)
            for rows in alike.split(max(LEVEL_ROWS // longest, 1)):
                inside = back < length[rows, None]
                at = (stop[rows, None] - 1 - back).clamp_(min=0)
                counted = torch.where(inside, self._counted[at].long(), 0)
                events = torch.cat([counted[:, :-1] - counted[:, 1:], counted[:, -1:]], dim=1)
                step = torch.where(inside, self._step[at].long(), 0)
                made[rows] = last_levels(step, events)
        return made

    def next(self, rank: Tensor, step: Tensor) -> Tensor:
        """As `Tally.next`."""
        self._trim()
        made = torch.full_like(step, NO_STEP)
        known = (rank >= 0).nonzero().squeeze(1)
        at = self._rows(rank[known], step[known])[1]
        some = (at < self.start[rank[known] + 1]).nonzero().squeeze(1)
        found = self._step[at[some]].long()
        return made.index_copy_(0, known[some], torch.where(found < self.end, found, NO_STEP))

    def steps(self, rank: Tensor, since: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
        """As `Tally.steps`."""
        self._trim()
        known = (rank >= 0).nonzero().squeeze(1)
        start, stop = self._rows(rank[known], cut[known].clamp(max=self.end))
        row, at = expand(halved(self._step, start, stop, since[known]), stop)
        return known[row], self._step[at].long()

    def begun(self, step: int) -> Iterator[tuple[int, Tensor]]:
        """As `Tally.begun`."""
        for at in range(0, len(self), KEY_BLOCK):
            self._trim()
            yield at, self._first[at : at + KEY_BLOCK] < min(step, self.end)

    def active(self, since: int, until: int) -> Tensor:
        """As `Tally.active`."""
        made = torch.zeros(len(self), dtype=torch.bool)
        for at in range(0, len(self._step), BLOCK_ROWS):
            self._trim()
            step = self._step[at : at + BLOCK_ROWS]
            rows = ((step >= since) & (step < min(until, self.end))).nonzero().squeeze(1)
            made.index_fill_(0, torch.searchsorted(self.start, rows + at, right=True) - 1, True)
        return made


class TallyColumns:
    """The columns of all tallies while they are written, the keys of each kind in ascending order."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        for kind in KINDS:
            columns[f"tally.{kind}.start"].add(np.zeros(1, np.int64))

    def add(self, kind: str, key: np.ndarray, step: np.ndarray) -> None:
        """Append events, int64 [n] each by key and step, under keys above all before."""
        self._add(TallyRows.of(key, step), kind)

    def _add(self, rows: TallyRows, kind: str) -> None:
        own = {name: self._columns[f"tally.{kind}.{name}"] for name in _TYPES}
        own["start"].add(rows.start[1:] + own["step"].length)
        own["keys"].add(rows.keys)
        own["first"].add(rows.step[rows.start[:-1]])
        own["step"].add(rows.step)
        own["counted"].add(rows.counted)

    def add_actors(self, rows: tuple[np.ndarray, ...], n_entities: int, n_relations: int) -> None:
        """Append what both sides of all events of a range of actors tell of them.

        rows: pair, step, relation, direction int64 [n], by pair and total order.
        """
        pair, step, relation, direction = rows
        actor, candidate = pair // n_entities, pair % n_entities
        # an event of an actor with itself, which has two rows, is one event of its pair and of this actor
        once = (actor != candidate) | (direction == 0)
        forward = once & (actor <= candidate)
        self.add("pair", (actor[forward] << 32) | candidate[forward], step[forward])
        forward = direction == 0
        link = (actor[forward] << 32) | candidate[forward]
        links = self._columns["tally.link.keys"].length
        rank = np.cumsum(np.diff(link, prepend=-1) != 0) + links - 1
        self.add("link", link, step[forward])
        for kind, key, when in (
            ("triple", rank * n_relations + relation[forward], step[forward]),
            ("actor", actor[once], step[once]),
            ("role", actor * 2 + direction, step),
            ("role_relation", actor * 2 * n_relations + relation + direction * n_relations, step),
        ):
            order = np.lexsort((when, key))
            self.add(kind, key[order], when[order])

    def add_overall(self, relation: np.ndarray, step: np.ndarray, n_relations: int, block: int) -> None:
        """Append what the columns of all events, in the order of time, tell of relations."""
        events, blocks = np.zeros(n_relations, np.int64), list(_whole_steps(step, block))
        for rows in blocks:
            events += np.bincount(relation[rows], minlength=n_relations)
        if not blocks:
            return
        span = int(step[-1]) - int(step[0]) + 1
        # a relation has a row for each of its steps, however many events there are
        for low, high in ranges_of(np.minimum(events, span), block):
            parts = [_of_relations(relation[rows], step[rows], low, high) for rows in blocks]
            codes, count = (np.concatenate(column) for column in zip(*parts, strict=True))
            order = np.argsort(codes, kind="stable")
            key, when = codes[order] >> STEP_BITS, codes[order] & (2**STEP_BITS - 1)
            self._add(TallyRows.of(key, when, count[order]), "relation")
            forget((relation, step))


def _whole_steps(step: np.ndarray, block: int) -> Iterator[slice]:
    """Rows in the order of time in blocks of about that many, none of which ends within a step."""
    at = 0
    while at < len(step):
        stop = int(np.searchsorted(step, step[min(at + block, len(step)) - 1], side="right"))
        yield slice(at, stop)
        at = stop


def _of_relations(relation: np.ndarray, step: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """(relation, step) of some relations in one number, each once, ascending; and how many events each has."""
    own = (relation >= low) & (relation < high)
    codes = (relation[own].astype(np.int64) << STEP_BITS) | step[own]
    return np.unique(codes, return_counts=True)


def ranges_of(counts: np.ndarray, block: int) -> Iterator[tuple[int, int]]:
    """Ranges of keys with about `block` rows each, in order, from int64 [keys] rows; every key is in one."""
    reached = np.cumsum(counts)
    low = 0
    while low < len(counts):
        before = int(reached[low - 1]) if low else 0
        high = max(int(np.searchsorted(reached, before + block, side="right")), low + 1)
        yield low, high
        low = high

"""Ranks: mean-tie ranks of the answers under every filter and every candidate correction, from one score tensor.

A rank is a count: 1 + #(greater) + #(equal others) / 2. A correction touches few candidates and a filter removes few,
so the whole vocabulary is counted on the backbone's scores, and the touched and the removed candidates are put right
one by one. The result equals ranking the dense scores after correcting and masking them.

What is counted is 2 #(greater) + #(equal), the answer itself among the equal: a whole number, whose half is the rank
less one half. A candidate adds 1 + sign(its score - the answer's) to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bridgemem.config import Count, check
from bridgemem.events.log import EventLog

# scores that are gone through at once on a CPU: what stays in its cache
_BLOCK = 1 << 18
_FEW = 8  # scores among which one lies between the thresholds of its row, or fewer do
_EXACT = 1 << 24  # whole numbers that float32 can count
# query rows times entities that one batch holds if nothing else is asked for; on a CPU few enough that the memory of a
# batch is kept for the next, since larger pieces go back to the system each time, at up to two fifths of the seconds
CELLS = {"cpu": 1 << 20, "cuda": 1 << 26}
MANY_EVENTS = 2_000_000
MOST_QUERIES = 8192  # of a batch, however few the entities


def best_first(score: Tensor, top: int) -> Tensor:
    """The candidates with the highest scores of each row, highest first, of equal ones the first.

    score float [n, E] -> int64 [n, top], or all of them where there are fewer.
    """
    if top >= score.shape[1] or score.device.type != "cpu":  # elsewhere all rows are sorted at once
        return score.argsort(dim=1, descending=True, stable=True)[:, :top]
    # which of equals topk takes hangs on all others: one more tells whether the last has an equal that is left out
    value, candidate = score.topk(top + 1, dim=1)
    tied = (value[:, top - 1] == value[:, top]).nonzero().squeeze(1)
    candidate = candidate[:, :top].sort(1).values
    made = candidate.gather(1, score.gather(1, candidate).argsort(dim=1, descending=True, stable=True))
    for row, own, least in zip(tied.tolist(), score[tied], value[tied, top], strict=True):
        wanted = (own >= least).nonzero().squeeze(1)
        made[row] = wanted[own[wanted].argsort(descending=True, stable=True)[:top]]
    return made


def ranks_of(score: Tensor, chosen: Tensor) -> Tensor:
    """1 + how many of its row score higher than each chosen candidate; float [n, E], int64 [n, k] -> int64 [n, k]."""
    if score.device.type != "cpu":
        return torch.stack([(score > score.gather(1, c[:, None])).sum(1) + 1 for c in chosen.T], dim=1)
    rows, levels = score.numpy(), score.gather(1, chosen).numpy()
    made = []
    for row, own in zip(rows, levels, strict=True):
        # those above the lowest of the chosen are few as a rule, and no others count
        above = np.sort(row[row > own.min(initial=np.inf)])
        made.append(above.size - np.searchsorted(above, own, "right") + 1)
    return torch.from_numpy(np.array(made, np.int64).reshape(chosen.shape))


def answer_ranks(
    log_p: Tensor,
    answer: Tensor,
    row: Tensor,
    candidate: Tensor,
    delta: Tensor,
    masks: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Ranks of the answers, float64 [filters, corrections, n].

    Args:
        log_p: float [n, E], the backbone's log scores, finite.
        answer: int64 [n].
        row, candidate: int64 [m], the corrected entries, ascending by (row, candidate), each once.
        delta: float64 [m, G], what each of G corrections adds to them.
        masks: for each filter the removed entries (row, candidate), each once, never an answer.
    """
    threshold, moved = _thresholds(log_p, answer, row, candidate, delta)
    return _put_right(_count_all(log_p, threshold, moved), threshold, log_p, row, candidate, delta, masks)


def shared_ranks(
    base: Tensor,
    answer: Tensor,
    row: Tensor,
    candidate: Tensor,
    delta: Tensor,
    masks: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """The same where all rows share the scores that are corrected, float64 [E]: these are sorted once, not counted."""
    log_p = base.expand(len(answer), -1)
    threshold, _ = _thresholds(log_p, answer, row, candidate, delta)
    ordered = base.sort().values
    smaller, not_greater = (torch.searchsorted(ordered, threshold, right=right) for right in (False, True))
    total = (2 * len(base) - smaller - not_greater).double()
    return _put_right(total, threshold, log_p, row, candidate, delta, masks)


def _thresholds(log_p: Tensor, answer: Tensor, row: Tensor, candidate: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """The score of each answer under each correction, float64 [G, n], and the rows whose answer is corrected.

    The answer's own correction moves the threshold that everybody else is compared with.
    """
    own = (candidate == answer[row]).nonzero().squeeze(1)
    moved = row[own]
    threshold = log_p[torch.arange(len(log_p), device=log_p.device), answer].double().repeat(delta.shape[1], 1)
    threshold[:, moved] += delta[own].T
    return threshold, moved


def _put_right(
    total: Tensor,
    threshold: Tensor,
    log_p: Tensor,
    row: Tensor,
    candidate: Tensor,
    delta: Tensor,
    masks: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Ranks from counts over all uncorrected scores, float64 [G, n]: touched and removed candidates are put right."""
    n, entities = log_p.shape
    old = log_p[row, candidate].double()
    removed = [_Removed.of(mask, log_p, row * entities + candidate) for mask in masks]
    ranks = log_p.new_empty((len(masks), len(total), n), dtype=torch.float64)
    for g, (level, count) in enumerate(zip(threshold, total, strict=True)):
        added, bar = delta[:, g], level[row]
        count.index_add_(0, row, (old + added - bar).sign_() - (old - bar).sign_())
        for mask, made in zip(removed, ranks, strict=True):
            out = (mask.scores(added) - level[mask.row]).sign_().add_(1)
            made[g] = (count.index_add(0, mask.row, out, alpha=-1) + 1) / 2
    return ranks


def rows_at_once(scores: Tensor) -> int:
    """How many rows of scores [n, E] are gone through at once: a CPU's cache is small, a GPU takes them all."""
    n, entities = scores.shape
    return max(1, _BLOCK // max(entities, 1)) if scores.device.type == "cpu" else max(n, 1)


class _Removed:
    """The entries that a filter removes: row int64 [k], and their scores after a correction."""

    def __init__(self, row: Tensor, base: Tensor, touched: Tensor, place: Tensor) -> None:
        self.row, self._base, self._touched, self._place = row, base, touched, place

    @classmethod
    def of(cls, mask: tuple[Tensor, Tensor], log_p: Tensor, keys: Tensor) -> _Removed:
        """keys int64 [m]: row * entities + candidate of the corrected entries, ascending."""
        row, base = mask[0], log_p[mask].double()
        if not len(keys):
            return cls(row, base, row[:0], row[:0])
        wanted = row * log_p.shape[1] + mask[1]
        place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        touched = (keys[place] == wanted).nonzero().squeeze(1)
        return cls(row, base, touched, place[touched])

    def scores(self, delta: Tensor) -> Tensor:
        """float64 [k]; delta float64 [m] of the corrected entries."""
        return self._base.index_add(0, self._touched, delta[self._place])


def _count_all(log_p: Tensor, threshold: Tensor, moved: Tensor) -> Tensor:
    """2 #(greater) + #(equal) among all scores for each threshold: float64 [G, n] -> float64 [G, n].

    Where the answer is not corrected all thresholds of a row are one, and are counted once. The backbone is the first
    correction, so that its threshold is counted for every row, and the others where an answer has moved.
    """
    if log_p.dtype not in (torch.float32, torch.float64):
        log_p = log_p.float()
    below, above = _neighbours(threshold, log_p.dtype)
    size, entities = rows_at_once(log_p), log_p.shape[1]
    # a CPU adds up floats far faster than truth values
    kind = log_p.dtype if log_p.device.type == "cpu" and entities < _EXACT else torch.bool
    scratch = torch.empty((min(size, len(log_p)), entities), dtype=kind, device=log_p.device)

    def count(scores: Tensor, low: Tensor, high: Tensor) -> Tensor:
        out = scratch[: len(scores)]
        greater = torch.gt(scores, low[:, None], out=out).sum(1)
        return greater + torch.ge(scores, high[:, None], out=out).sum(1)

    first = [count(*of) for of in zip(log_p.split(size), below[0].split(size), above[0].split(size), strict=True)]
    total = torch.cat(first).double().repeat(len(threshold), 1)
    if len(threshold) == 1:
        return total
    for rows in moved.split(size):
        scores, low, high = log_p[rows], below[1:, rows], above[1:, rows]
        # what lies above or below all thresholds of its row counts the same for each of them
        over = scores > high.amax(0)[:, None]
        near = (scores >= low.amin(0)[:, None]).logical_and_(~over)
        row, column = near.nonzero(as_tuple=True)
        if len(row) > scores.numel() // _FEW:
            total[1:, rows] = torch.stack([count(scores, *of) for of in zip(low, high, strict=True)]).double()
            continue
        own, level = scores[row, column].double(), threshold[1:, rows].index_select(1, row)
        counted = (own > level).double() + (own >= level)
        total[1:, rows] = (2.0 * over.sum(1)).double().repeat(len(counted), 1).index_add_(1, row, counted)
    return total


def _neighbours(threshold: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The largest value of a type that is at most the threshold, and the smallest that is at least it.

    Scores of that type are greater than the threshold exactly if they are greater than the first, and not smaller
    exactly if they are not smaller than the second; so that nothing has to be widened to be compared.
    """
    near = threshold.to(dtype)
    if dtype == threshold.dtype:
        return near, near
    infinity = torch.tensor(torch.inf, dtype=dtype, device=near.device)
    wide = near.to(threshold.dtype)
    below = torch.where(wide > threshold, torch.nextafter(near, -infinity), near)
    return below, torch.where(wide < threshold, torch.nextafter(near, infinity), near)


def batch_size(n_entities: int, device: torch.device, cells: int | None = None) -> int:
    """How many queries are read at once: their number times that of the entities is at most `cells`.

    It bounds the peak of memory: what is alive at once are a few float32 tensors of that many cells, the backbone's
    scores and what it makes them from; counting ranks adds none. What is read of pairs comes on top, and is at most
    as many candidates. Ranks do not depend on it.
    """
    check("cells", cells, Count | None)
    most = CELLS.get(device.type, CELLS["cpu"]) if cells is None else cells
    return max(1, min(MOST_QUERIES, most // max(n_entities, 1)))


def batch_of(events: EventLog, device: torch.device, cells: int | None = None) -> int:
    """`batch_size` for queries over a log: on a CPU a quarter of it over millions of events.

    There actors have very many partners. It goes by the events alone, wherever they lie, since the last digit of a
    score may go by the batch.
    """
    if cells is None and device.type == "cpu" and len(events) > MANY_EVENTS:
        cells = CELLS["cpu"] // 4
    return batch_size(events.n_entities, device, cells)

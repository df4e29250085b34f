"""Ranks: mean-tie ranks of the answers under every filter and every candidate correction, from one score tensor.

A rank is a count: 1 + #(greater) + #(equal others) / 2. A correction touches few candidates and a filter removes few,
so the whole vocabulary is counted on the backbone's scores, and the touched and the removed candidates are put right
one by one. The result equals ranking the dense scores after correcting and masking them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
    base = log_p.double()
    n, entities = base.shape
    corrections = delta.shape[1]
    rows = torch.arange(n, device=base.device)
    # the answer's own correction moves the threshold that everybody else is compared with
    own = candidate == answer[row]
    shift = base.new_zeros((n, corrections))
    shift[row[own]] = delta[own]
    threshold = base[rows, answer][:, None] + shift

    greater, equal = _count_all(base, threshold, moved=row[own])
    old = base[row, candidate][:, None]
    new = old + delta
    bar = threshold[row]
    greater.index_add_(0, row, (new > bar).double() - (old > bar).double())
    equal.index_add_(0, row, (new == bar).double() - (old == bar).double())
    total = 1 + greater + (equal - 1) / 2

    keys = row * entities + candidate
    results = []
    for mask_row, mask_candidate in masks:
        score = base[mask_row, mask_candidate][:, None].expand(-1, corrections)
        if len(keys) and len(mask_row):
            wanted = mask_row * entities + mask_candidate
            place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
            touched = (keys[place] == wanted)[:, None]
            score = torch.where(touched, score + delta[place], score)
        bar = threshold[mask_row]
        removed = (score > bar).double() + (score == bar).double() / 2
        results.append(total - torch.zeros_like(total).index_add_(0, mask_row, removed))
    return torch.stack(results).transpose(1, 2)


# thresholds of a row up to which it is gone through once for each; for more it is sorted and they are looked up
FEW = 8


def _count_all(base: Tensor, threshold: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """How many of all scores are greater than, and equal to, each threshold: float64 [n, G] each.

    Where the answer is not corrected all thresholds of a row are one, and are counted once.
    """
    corrections = threshold.shape[1]
    level = threshold[:, :1]
    greater = (base > level).sum(1, keepdim=True).double().repeat(1, corrections)
    equal = (base == level).sum(1, keepdim=True).double().repeat(1, corrections)
    if not len(moved) or corrections == 1:
        return greater, equal
    rows, levels = base[moved], threshold[moved]
    if corrections <= FEW:
        greater[moved] = torch.stack([(rows > one[:, None]).sum(1) for one in levels.T], dim=1).double()
        equal[moved] = torch.stack([(rows == one[:, None]).sum(1) for one in levels.T], dim=1).double()
    else:
        ordered = rows.sort(dim=1).values
        above = torch.searchsorted(ordered, levels, right=True)
        greater[moved] = (base.shape[1] - above).double()
        equal[moved] = (above - torch.searchsorted(ordered, levels)).double()
    return greater, equal

"""Occurrences: what an actor did under a relation, and with whom, filed by (key, step) from plain columns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bridgemem.memory.timeline import Timeline, changes

NEVER = 2**31 - 1


def occurrence_lines(
    key: np.ndarray, candidate: np.ndarray, step: np.ndarray, device: str | torch.device = "cpu"
) -> tuple[Timeline, Tensor, Tensor]:
    """Candidates under a key, one a snapshot; how many snapshots up to each, and the step of the next one (or NEVER).

    key, candidate, step int64 [n], in any order, repeated or not.
    """
    order = np.lexsort((step, candidate, key))
    key, candidate, step = key[order], candidate[order], step[order]
    new_triple = changes(key, candidate)
    new_snapshot = new_triple | changes(step)
    key, candidate, step, new_triple = (c[new_snapshot] for c in (key, candidate, step, new_triple))
    rows = np.arange(len(key), dtype=np.int64)
    count = rows - np.maximum.accumulate(np.where(new_triple, rows, 0)) + 1
    following = np.append(np.where(new_triple[1:], NEVER, step[1:]), NEVER)[: len(key)]
    by_time = Timeline.build(key, step, rows, device)
    place = by_time.value.cpu().numpy()
    columns = (torch.from_numpy(c[place]).to(device) for c in (candidate, count, following))
    candidates, counts, followings = columns
    return Timeline(by_time.codes, candidates), counts, followings


def each_once(key: np.ndarray, candidate: np.ndarray, step: np.ndarray, device: str | torch.device = "cpu") -> Timeline:
    """Each candidate once in a step under a key; key, candidate, step int64 [n] in any order."""
    order = np.lexsort((candidate, step, key))
    key, candidate, step = key[order], candidate[order], step[order]
    once = changes(key, step, candidate)
    return Timeline.build(key[once], step[once], candidate[once], device)


def first_meetings(
    key: np.ndarray, candidate: np.ndarray, step: np.ndarray, device: str | torch.device = "cpu"
) -> Timeline:
    """Each candidate once under a key, at the first of its steps; key, candidate, step int64 [n] in any order."""
    order = np.lexsort((step, candidate, key))
    key, candidate, step = key[order], candidate[order], step[order]
    first = changes(key, candidate)
    return Timeline.build(key[first], step[first], candidate[first], device)

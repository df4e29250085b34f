"""Lags: what the steps since some events of a pair say, how lately these were and whether they keep time."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from bridgemem.events.clock import CYCLES

# decay constants of the kernels over the events, in steps: from yesterday to the whole past
DECAYS = (1.0, 3.0, 10.0, 30.0, 100.0)
OLDEST = 2048  # the lag at which even the slowest decay has come to nothing
NEAR = 10  # gaps are alike whose difference is at most the tenth part, or one step
# what is read of events: decayed sums; how many of the last cycles of the calendar had one at this very place; and of
# the gaps between them, how many were as long as the open one is by now, about as long, and no shorter
NAMES = (*(f"decay {d:g}" for d in DECAYS), "whole cycles ago", "gaps as now", "gaps near now", "gaps not shorter")


def of_lags(lag: Tensor, cycle: int) -> Tensor:
    """The columns of NAMES for events by lag, int64 [n, K], newest first, 0 for none: float32 [n, columns].

    cycle: the steps of a cycle of the calendar, 0 for none.
    """
    weighed = F.embedding_bag(lag.clamp(max=OLDEST), _weights(lag.device), mode="sum")
    return torch.cat([weighed, _rhythm(lag, cycle)], dim=1).log1p_()


@cache
def _weights(device: torch.device) -> Tensor:
    """The weight of an event by its lag, float32 [OLDEST + 1, decays].

    Older ones than the table weigh nothing at any speed, nor does what has no lag.
    """
    lags = torch.arange(OLDEST + 1, device=device)[:, None]
    made = (-(lags - 1) / torch.tensor(DECAYS, device=device)).exp()
    made[0] = 0.0
    return made


def _rhythm(lag: Tensor, cycle: int) -> Tensor:
    """Distinct steps of events whole cycles ago, and gaps between them next to the one that is open: float32 [n, 4]."""
    found = torch.zeros(len(lag), 4, device=lag.device)
    several = (lag > 0).sum(1) > 1  # most pairs have one event, which leaves no gap
    if cycle:
        alone = lag.amax(1)
        found[:, 0] = (alone > 0) & (alone % cycle == 0) & (alone <= CYCLES * cycle)
    found[several] = _gaps(lag[several], cycle)
    return found


def _gaps(lag: Tensor, cycle: int) -> Tensor:
    """The same of rows with several events."""
    until = lag.cummax(1).values
    since = F.pad(until, (1, -1))  # the lag of the event after each one
    fresh = lag > since  # of events of one step the first
    newest = fresh & (since == 0)
    gap = torch.where(fresh & ~newest, lag - since, 0)
    now = (lag * newest).sum(1, keepdim=True)
    off = torch.where(gap > 0, (gap - now).abs(), -1)
    near = (off >= 0) & (off * NEAR <= now.clamp(min=NEAR))
    whole = fresh & (lag % cycle == 0) & (lag <= CYCLES * cycle) if cycle else torch.zeros_like(fresh)
    found = (whole, off == 0, near, (gap >= now) & (gap > 0))
    return torch.stack([columns.sum(1) for columns in found], dim=1).float()

"""Early stopping: train epoch by epoch, and stop where held-out loss no longer improves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from bridgemem.progress import SILENT, Progress


def improving(
    epoch: Callable[[], float],
    *,
    most: int,
    patience: int,
    least_gain: float,
    progress: Progress = SILENT,
    label: str = "training",
) -> Iterator[tuple[int, float, bool]]:
    """(epoch, held-out loss, whether it is the best so far) after each epoch, until none improved for `patience`.

    epoch: trains for one epoch and returns the held-out loss. least_gain: what counts as an improvement.
    """
    best, best_epoch = math.inf, 1
    with progress.task(label, total=most) as advance:
        for number in range(1, most + 1):
            loss = epoch()
            advance(1, note=f"nll {loss:.4f}")
            better = loss < best - least_gain
            if better:
                best, best_epoch = loss, number
            yield number, loss, better
            if number - best_epoch >= patience:
                return

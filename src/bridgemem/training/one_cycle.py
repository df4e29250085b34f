"""OneCycle: a known number of optimizer steps, whose learning rate rises once and falls to nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from bridgemem.training.captured import DecoupledSteps

RISE = 0.25  # the share of the steps in which the learning rate rises


class OneCycle:
    """Steps of AdamW on a small network, with clipped gradients."""

    def __init__(self, net: nn.Module, learning_rate: float, weight_decay: float, steps: int) -> None:
        self.steps = DecoupledSteps(list(net.parameters()), learning_rate, weight_decay, clip=1.0)
        self.highest, self.total, self.taken = learning_rate, steps, 0

    def take(self, loss: Callable[[], Tensor]) -> None:
        """One step down a loss."""
        done = self.taken / self.total
        share = done / RISE - 1 if done < RISE else (done - RISE) / (1 - RISE)
        self.steps.learning_rate = self.highest * (1 + math.cos(math.pi * share)) / 2
        self.steps.take(0, loss, stays=False)
        self.taken += 1

"""Dropout whose random numbers are cheap on a CPU, where torch draws one after the other."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16  # that a share is rounded to: sixteen random bits decide about a value


class Dropout(nn.Module):
    """Leaves out a share of the values in training, and scales the others so that their mean stays."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    @cached_property
    def _draw(self) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(int(torch.randint(2**31, ()))))  # follows torch's own seed

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.dropout(x, self.share, self.training)
        if not self.training or not self.share:
            return x
        words = self._draw.integers(0, 1 << 64, (x.numel() + 3) // 4, dtype=np.uint64)
        bits = torch.from_numpy(words.view(np.int16)[: x.numel()]).view(x.shape)
        left_out = round(self.share * _LEVELS)
        kept = bits >= left_out - _LEVELS // 2
        return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - left_out))

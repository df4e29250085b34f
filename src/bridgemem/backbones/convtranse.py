"""ConvTransE (Shang et al., AAAI 2019): the convolutional decoder that RE-GCN and TiRGN score with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SPAN = 3  # positions that a kernel sees


class ConvTransE(nn.Module):
    """Reads a few vectors of each query as channels, makes one vector of them, and compares it with a table.

    The released code leaves the last normalisation out for a batch of one. Here it is always there: a query's score
    must not depend on how many others are asked with it, and training has both directions of a fact at least.
    """

    def __init__(self, channels: int, width: int, kernels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.input_norm = nn.BatchNorm1d(channels)
        self.convolution = nn.Conv1d(channels, kernels, SPAN, padding=SPAN // 2)
        self.kernel_norm = nn.BatchNorm1d(kernels)
        self.linear = nn.Linear(kernels * width, width)
        self.output_norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """x [n, channels, width], table [k, width] -> logits [n, k]."""
        x = self.convolve(self._drop(self.input_norm(x)))
        x = self._drop(F.relu(self.kernel_norm(x), inplace=True))
        x = self._drop(self.linear(x.flatten(1)))
        return F.relu(self.output_norm(x)) @ table.T

    def convolve(self, x: Tensor) -> Tensor:
        """The convolution [n, channels, width] -> [n, kernels, width], as a product of matrices.

        A GPU's own convolution rounds to 10 bits by default, differently for batches of different sizes, which would
        show in the scores.
        """
        n, _, width = x.shape
        shifted = F.pad(x, (SPAN // 2, SPAN // 2)).unfold(2, width, 1).flatten(1, 2)
        weight, bias = self.convolution.weight.flatten(1), self.convolution.bias
        assert bias is not None
        return torch.baddbmm(bias[:, None], weight.expand(n, -1, -1), shifted)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

"""TPAR (Chen et al., ACL 2024): recursive encoding of the temporal paths that leave a query's actor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from bridgemem.backbones.paths import (
    Hop,
    LinkAttention,
    PathBackbone,
    PathNet,
    PathSettings,
    Update,
    link_sum,
    relation_table,
    spread,
)


@dataclass(frozen=True)
class TparSettings(PathSettings):
    """Published are five hops, width 128 (icews14) or 64, attention 5, no bound on edges or window, and no cell."""


class TparLayer(nn.Module):
    """One hop: h_o = act(W sum of a (h_s + z_r + h_t)), with a = sigmoid of the link's attention."""

    def __init__(self, n_relations: int, settings: TparSettings) -> None:
        super().__init__()
        self.relation = relation_table(n_relations, settings.width)
        self.attention = LinkAttention(settings.width, settings.attention, 1)
        self.update = Update(settings)

    def forward(self, hop: Hop, h: Tensor, query_relation: Tensor, time: Tensor, cell: nn.GRUCell | None) -> Tensor:
        a = self.attention(hop, h, self.relation, query_relation, time).squeeze(1).sigmoid()
        return self.update(hop, link_sum(hop, a, h, self.relation, time), h, cell)


class TparNet(PathNet):
    """f(q, e) = w . h_e after the last hop; what is not reached has f = 0 in training."""

    def __init__(self, n_relations: int, settings: TparSettings) -> None:
        super().__init__(n_relations, settings)
        d = settings.width
        self.layers = nn.ModuleList(TparLayer(n_relations, settings) for _ in settings.edges)
        self.cell = nn.GRUCell(d, d) if settings.gru else None
        self.out = nn.Linear(d, 1, bias=False)

    def forward(self, hops: Sequence[Hop], query_relation: Tensor) -> Tensor:
        time, h = self.time(), self.out.weight.new_zeros(len(query_relation), self.settings.width)
        for layer, hop in zip(self.layers, hops, strict=True):
            h = layer(hop, h, query_relation, time, self.cell)
        return self.out(h).squeeze(1)

    def loss(self, hops: Sequence[Hop], query_relation: Tensor, answer: Tensor, n_entities: int) -> Tensor:
        """Cross-entropy over all entities; the mean, where the paper has the sum, so that `clip` fits any batch."""
        f = spread(hops[-1], self(hops, query_relation), len(query_relation), n_entities)
        return F.cross_entropy(f, answer)


class Tpar(PathBackbone):
    """TPAR with the most recent links of every entity inside a window, as far as the settings bound them.

    Trained for a fixed number of epochs on the train split alone; validation is not read.
    """

    name: ClassVar[str] = "tpar"
    default: ClassVar[TparSettings] = TparSettings()
    network: ClassVar[type[PathNet]] = TparNet

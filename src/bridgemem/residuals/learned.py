"""The learned residual: window, mixture, gate and scale learned together, in place of the paper's fixed ones.

S(q, c) = w log p0(c|q) + f(features of the candidate, relation) for every candidate the actor interacted with and, if
wanted, for some unseen candidates; w log p0(c|q) for all others. Ranks do not change when a row is divided by w, so
this is the backbone's own log score plus f / w where there is anything to read, and the untouched log score elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from bridgemem.config import BelowOne, Count, Declared, Inside, NotNegative, Positive, Size, Units
from bridgemem.errors import SettingsError
from bridgemem.residuals.features import (
    GROUPS,
    NAMES,
    OF_CANDIDATE,
    OF_QUERY,
    Features,
    gathered,
    group_columns,
)
from bridgemem.storage.tensors import tensor_of
from bridgemem.training.checkpoint import with_weights
from bridgemem.training.devices import moved

# scales at which the mass of the candidates that are not read is tabulated; between them it is interpolated
SCALES = tuple(float(s) for s in np.geomspace(0.2, 4.0, 13))
# candidates that go through the network at once: on a CPU what stays in its cache
_ROWS = {"cpu": 1 << 13, "cuda": 1 << 20}


@dataclass(frozen=True)
class LearnedSettings(Declared):
    """A small network: tens of thousands of parameters.

    unseen_candidates: how many of these are read too; 0 leaves them all in the backbone's order.
    without: groups of features that are not read. max_pairs bounds the memory of fitting. cross_fit: the last share of
    train that is learned from too, scored by a backbone trained on what came before it; for a small validation split.
    """

    hidden: Units = 64
    relation_width: Units = 16
    dropout: BelowOne = 0.1
    learning_rate: Positive = 2e-3
    weight_decay: NotNegative = 1e-3
    batch: Count = 256
    max_epochs: Count = 20
    patience: Count = 3
    fit_share: Inside = 0.8
    max_pairs: Count = 8_000_000
    unseen_candidates: Size = 60
    without: tuple[str, ...] = ()
    cross_fit: BelowOne = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := sorted(set(self.without) - set(GROUPS)):
            raise SettingsError(f"there is no group of features called {unknown[0]!r}; known are {', '.join(GROUPS)}.")


class LearnedNet(nn.Module):
    """f: features and an embedding of the asked relation -> one number; w: the scale of the backbone's log score."""

    mean: Tensor
    inverse: Tensor

    def __init__(self, n_directed: int, settings: LearnedSettings, members: int = 0) -> None:
        """members: how many the backbone is made of, if it is an ensemble; their log p is read too."""
        super().__init__()
        read = len(NAMES) + members
        self.relation = nn.Embedding(n_directed, settings.relation_width)
        nn.init.normal_(self.relation.weight, std=0.1)
        width = read + settings.relation_width
        self.body = nn.Sequential(
            nn.Linear(width, settings.hidden),
            nn.GELU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.hidden, settings.hidden),
            nn.GELU(),
            nn.Linear(settings.hidden, 1),
        )
        # f starts at zero: before the first step the learned residual is the backbone
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("mean", torch.zeros(read))
        self.register_buffer("inverse", torch.ones(read))

    @property
    def members(self) -> int:
        return len(self.mean) - len(NAMES)

    def standardise(self, examples: Iterable[Tensor], without: tuple[str, ...] = ()) -> None:
        """Learn mean and deviation of the features from examples, in parts since they may be many.

        Groups that are left out read as their mean.
        """
        count, total, squares = 0, self.mean.double(), self.mean.double()
        for part in examples:
            x = part.double()
            count, total, squares = count + len(x), total + x.sum(0), squares + x.square().sum(0)
        if count > 1:  # a single one has no deviation
            mean = total / count
            variance = (squares - count * mean.square()) / (count - 1)
            self.mean.copy_(mean)
            self.inverse.copy_(1 / variance.clamp(min=1e-6).sqrt())
        columns = group_columns(self.members)
        for group in without:
            self.inverse[columns[group]] = 0.0

    def scaled(self, x: Tensor, columns: Tensor | slice = slice(None)) -> Tensor:
        """x float [m, features], or some columns of them, less their mean and by their deviation."""
        return ((x - self.mean[columns]) * self.inverse[columns]).clamp(-8, 8)

    def forward(self, x: Tensor, relation: Tensor) -> Tensor:
        """x float [m, features] as read, relation int64 [m] directed -> f [m]."""
        return self.body(torch.cat([self.scaled(x), self.relation(relation)], dim=1)).squeeze(1)

    def of(self, features: Features, relation: Tensor) -> Tensor:
        """f [m] of features that were read, relation int64 [n] of the queries; the same as `forward` of all of x.

        The first layer is linear, so what the candidates of a query share goes through it once.
        """
        first = self.body[0]
        assert isinstance(first, nn.Linear)
        read = len(self.mean)
        own_columns = (*OF_CANDIDATE, *range(len(NAMES), read))
        of_query, of_candidate = (torch.tensor(of, device=relation.device) for of in (OF_QUERY, own_columns))
        weight = first.weight.T
        shared = torch.cat([self.scaled(features.of_query, of_query), self.relation(relation)], dim=1)
        by_query = torch.addmm(first.bias, shared, torch.cat([weight[of_query], weight[read:]]))
        columns = of_candidate.split([block.table.shape[1] for block in features.blocks])
        blocks = [replace(b, table=self.scaled(b.table, c)) for b, c in zip(features.blocks, columns, strict=True)]
        own, made, size = weight[of_candidate], [], _ROWS.get(relation.device.type, _ROWS["cpu"])
        for start in range(0, len(features.row), size):
            rows = slice(start, start + size)
            hidden = by_query.index_select(0, features.row[rows]).addmm_(gathered(blocks, rows), own)
            made.append(self.body[1:](hidden).squeeze(1))
        return torch.cat(made) if made else by_query.new_empty(0)

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp().clamp(SCALES[0], SCALES[-1])


class Learned:
    """A fitted learned residual for one filter."""

    def __init__(self, settings: LearnedSettings, net: LearnedNet) -> None:
        self.settings, self.net = settings, net.eval()

    @torch.no_grad()
    def corrections(self, features: Features, relation: Tensor) -> Tensor:
        """f / w of every candidate that was read, float64 [m]; relation int64 [n] of the queries."""
        return (self.net.of(features, relation) / self.net.scale).double()

    def to(self, device: str | torch.device) -> Learned:
        return Learned(self.settings, moved(self.net, device))

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.contiguous() for name, tensor in self.net.state_dict().items()}

    @classmethod
    def restore(cls, settings: LearnedSettings, tensors: dict[str, Tensor]) -> Self:
        # nothing is allocated or drawn before the weights are known to fit
        members = max(len(tensor_of(tensors, "mean", 1)) - len(NAMES), 0)
        with torch.device("meta"):
            net = LearnedNet(len(tensor_of(tensors, "relation.weight", 2)), settings, members)
        return cls(settings, with_weights(net, tensors))

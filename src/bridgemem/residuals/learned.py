"""The learned residual: window, mixture, gate and scale learned together, in place of the paper's fixed ones.

S(q, c) = w log p0(c|q) + f(features of the candidate, relation) for every candidate the actor interacted with and, if
wanted, for some unseen candidates; w log p0(c|q) for all others, with one w that is chosen before f is fitted. Ranks do
not change when a row is divided by w, so this is the backbone's own log score plus f / w where there is anything to
read, and the untouched log score elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

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
from bridgemem.training.checkpoint import shells, with_weights
from bridgemem.training.devices import moved
from bridgemem.training.dropout import Dropout

# of the backbone's log score: what w is chosen from
SCALES = tuple(float(s) for s in np.geomspace(0.2, 4.0, 13))
# candidates that go through the network at once: on a CPU what stays in its cache
_ROWS = {"cpu": 1 << 13, "cuda": 1 << 20}
_CHUNK = 1 << 16  # rows that are summed at once in double precision


@dataclass(frozen=True)
class LearnedSettings(Declared):
    """Settings of the learned residual, a small network.

    Args:
        hidden: Units of the hidden layers.
        relation_width: Width of the embedding of the query relation.
        dropout: Share of units left out in training.
        learning_rate: The highest of the one cycle.
        weight_decay: Of the optimizer.
        batch: Queries in a batch.
        epochs: Of one cycle of the learning rate.
        fit_share: Share of validation before the later part that residuals are compared on.
        train_queries: The most queries of train that it learns from.
        valid_queries: The most queries of validation that it learns from; what was learned is compared on no more.
        unseen_candidates: How many unseen candidates are read; 0 leaves them in the backbone's order.
        without: Groups of features that are not read.
        cross_fit: The last share of train that is learned from too, scored by a backbone trained on what came before
            it; 0 leaves it to the backbone.
        blocks: How many such shares at most, one before the other; none is added where the others have queries enough.
        renewed: "on" trains the backbone once more, on train and validation but its later part, and averages the two
            for test and after; nothing is chosen with it. "off" does not, and "auto" is as the backbone says.
        fitted_under: "raw" fits one network without a filter, "auto" another one for the time-aware filter where that
            ranks better on later validation, "each" one for each filter.

    Raises:
        SettingsError: A value is out of its range, or there is no such group of features.

    Example:
        >>> bm.LearnedSettings(hidden=32, without=("actor",)).epochs
        5
    """

    hidden: Units = 64
    relation_width: Units = 16
    dropout: BelowOne = 0.1
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 1e-3
    batch: Count = 256
    epochs: Count = 5
    fit_share: Inside = 0.8
    train_queries: Count = 15_000
    valid_queries: Count = 20_000
    unseen_candidates: Size = 60
    without: tuple[str, ...] = ()
    cross_fit: BelowOne = 0.0
    blocks: Count = 1
    renewed: Literal["auto", "on", "off"] = "auto"
    fitted_under: Literal["raw", "auto", "each"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := sorted(set(self.without) - set(GROUPS)):
            raise SettingsError(f"there is no group of features called {unknown[0]!r}; known are {', '.join(GROUPS)}.")


class LearnedNet(nn.Module):
    """f: features and an embedding of the asked relation -> one number; w: the scale of the backbone's log score."""

    mean: Tensor
    inverse: Tensor
    log_scale: Tensor

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
            Dropout(settings.dropout),
            nn.Linear(settings.hidden, settings.hidden),
            nn.GELU(),
            nn.Linear(settings.hidden, 1),
        )
        # f starts at zero: before the first step the learned residual is the backbone
        last = self.body[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.register_buffer("log_scale", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(read))
        self.register_buffer("inverse", torch.ones(read))

    @property
    def members(self) -> int:
        return len(self.mean) - len(NAMES)

    @property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Which features all candidates of a query share, and which are their own; int64 each."""
        own = (*OF_CANDIDATE, *range(len(NAMES), len(self.mean)))
        return torch.tensor(OF_QUERY, device=self.mean.device), torch.tensor(own, device=self.mean.device)

    def standardise(self, of_query: Tensor, of_candidate: Tensor, without: tuple[str, ...] = ()) -> None:
        """Learn mean and deviation of the features from examples: float [n, columns] of queries, [m, columns] of
        candidates. Groups that are left out read as their mean.
        """
        for columns, values in zip(self.columns, (of_query, of_candidate), strict=True):
            count = len(values)
            if count < 2:  # a single one has no deviation
                continue
            # in parts, since in double precision all of them would take four times their memory
            total = sum(part.double().sum(0) for part in values.split(_CHUNK))
            mean = total / count
            squares = sum((part.double() - mean).square().sum(0) for part in values.split(_CHUNK))
            self.mean[columns] = mean.float()
            self.inverse[columns] = (squares / (count - 1)).clamp(min=1e-6).rsqrt().float()
        groups = group_columns(self.members)
        for group in without:
            self.inverse[groups[group]] = 0.0

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
        of_query, of_candidate = self.columns
        by_query, own = self.first_layer(self.scaled(features.of_query, of_query), relation)
        columns = of_candidate.split([block.table.shape[1] for block in features.blocks])
        blocks = [replace(b, table=self.scaled(b.table, c)) for b, c in zip(features.blocks, columns, strict=True)]
        made, size = [], _ROWS.get(relation.device.type, _ROWS["cpu"])
        for start in range(0, len(features.row), size):
            rows = slice(start, start + size)
            hidden = by_query.index_select(0, features.row[rows]).addmm_(gathered(blocks, rows), own)
            made.append(self.body[1:](hidden).squeeze(1))
        return torch.cat(made) if made else by_query.new_empty(0)

    def first_layer(self, of_query: Tensor, relation: Tensor) -> tuple[Tensor, Tensor]:
        """What queries add to the first layer [n, hidden], from their scaled columns, and the weights of the rest."""
        first = self.body[0]
        assert isinstance(first, nn.Linear)
        weight, (shared, own) = first.weight.T, self.columns
        values = torch.cat([of_query, self.relation(relation)], dim=1)
        return torch.addmm(first.bias, values, torch.cat([weight[shared], weight[len(self.mean) :]])), weight[own]

    @property
    def scale(self) -> Tensor:
        return self.log_scale.exp()


class Learned:
    """A fitted learned residual."""

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
        with shells():
            net = LearnedNet(len(tensor_of(tensors, "relation.weight", 2)), settings, members)
        return cls(settings, with_weights(net, tensors))

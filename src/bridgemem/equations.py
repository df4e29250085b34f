"""The method: Equations 1 to 5 of the paper, in its order, as functions of tensors.

A state B of a pair is up to K tokens (direction, relation, recency bin), padded. All that depends on a token alone
(its vector z, its salience w.tanh(z), its transition probabilities) is computed once per token, in a table whose last
row belongs to the pad, and then looked up. Probabilities are natural; whatever is called log_* or A is a natural log.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-12


class Table(Protocol):
    """A table [T+1, 2R] that is read entry by entry: a tensor, or a sparse one that is asked in the same way."""

    def __getitem__(self, at: Any, /) -> Tensor: ...

    def __len__(self) -> int: ...


def memory_state(z: Tensor, salience: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 1: m = sum_j alpha_j z_j with alpha = softmax_j(w.tanh(z_j)).

    z [T+1, d], salience [T+1] with -inf for the pad, tokens int64 [n, K] -> m [n, d], alpha [n, K].
    """
    alpha = torch.softmax(salience[tokens], dim=1)
    return F.embedding_bag(tokens, z, per_sample_weights=alpha, mode="sum"), alpha


def neural_evidence(logits: Tensor, log_prior: Tensor) -> Tensor:
    """Equation 2: A_nn(r) = log softmax(MLP(LN(m)) + log pi)_r - log pi_r for all r; logits [n, 2R] -> [n, 2R]."""
    return torch.log_softmax(logits + log_prior, dim=1) - log_prior


def count_evidence(
    p_ct: Table, log_prior: Tensor, tokens: Tensor, query_relation: Tensor, pooling: str = "sum"
) -> Tensor:
    """Equation 3: A_ct = log sum_j p_ct(r | token_j) - log pi_r.

    p_ct [T+1, 2R] with zeros for the pad, tokens int64 [n, K], asked int64 [n] -> [n]. The paper prints the sum;
    pooling "mean" divides by the number of events, as an ablation.
    """
    total = p_ct[tokens, query_relation[:, None]].sum(1)
    if pooling == "mean":
        total = total / (tokens != len(p_ct) - 1).sum(1)
    return total.log() - log_prior[query_relation]


def mixture(a_ct: Tensor, a_nn: Tensor, support: Tensor, tau: float) -> Tensor:
    """Equation 4: A = log[(1 - rho) e^A_ct + rho e^A_nn], rho = tau / (n_B + tau).

    tau = 0 is the count reader alone, tau = inf the neural reader alone.
    """
    if math.isinf(tau):
        return a_nn
    if tau == 0:
        return a_ct
    rho = tau / (support + tau)
    return torch.logaddexp(torch.log1p(-rho) + a_ct, rho.log() + a_nn)


def log_base(p0: Tensor) -> Tensor:
    """Equation 5, first term: log max{p0, epsilon}."""
    return p0.clamp(min=EPSILON).log()


def correction(a: Tensor, gate: Tensor, lam: float) -> Tensor:
    """Equation 5, second term: lambda g(q) A(q, c), to be added to the base log score of the same candidate."""
    return lam * gate * a

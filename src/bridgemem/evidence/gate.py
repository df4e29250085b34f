"""Gates: how much of the residual a query admits, and the uncertainty of backbones without an oracle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bridgemem.config import Gate, check
from bridgemem.numerics import by_candidates, exponentials, row_sums


def gate(name: str, uncertainty: Tensor, log_p: Tensor) -> Tensor:
    """g(q) float64 [n] of queries with uncertainty u [n] and log scores [n, E].

    "uncertain" is 4u(1 - u); "entropy" is 4h(1 - h), h being the entropy of the scores as a share of the largest there
    is; "none" is 1 for every query.
    """
    if name == "none":
        return torch.ones_like(uncertainty, dtype=torch.float64)
    check("gate", name, Gate)
    u = uncertainty.double() if name == "uncertain" else relative_entropy(log_p)
    return 4 * u * (1 - u)


def relative_entropy(log_p: Tensor) -> Tensor:
    """Entropy of log scores [n, E] as a share of the largest that this many candidates have, float64 [n] in [0, 1].

    A score of -inf belongs to no candidate; 0 where there is a single one.
    """

    def share(log_p: Tensor) -> Tensor:
        normalised = log_p.log_softmax(1)
        # the lowest finite number, since 0 times -inf is nothing
        entropy = -row_sums(normalised.exp() * normalised.clamp(min=torch.finfo(log_p.dtype).min))
        return (entropy / max(math.log(max(log_p.shape[1], 1)), 1e-9)).clamp(0, 1)

    return by_candidates(share, log_p)


def seen_mass(log_p: Tensor, row: Tensor, candidate: Tensor) -> Tensor:
    """u_q for a backbone without an oracle: its probability mass on candidates that the actor has interacted with.

    log_p [n, E] log scores, not necessarily normalised; (row, candidate) int64 [m] names the seen ones -> [n].
    """
    n, entities = log_p.shape
    seen = (row * entities + candidate).unique()
    powers, total = exponentials(log_p)
    mass = powers.view(-1).index_select(0, seen).double()
    # one after the other in each row: adding by index on a GPU takes another order every time
    sizes = torch.bincount(seen // max(entities, 1), minlength=n)
    summed = torch.segment_reduce(mass, "sum", lengths=sizes, unsafe=True)
    return (summed / total).clamp(0, 1).to(log_p.dtype)

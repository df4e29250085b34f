"""Gates: how much of the residual a query admits, and the uncertainty of backbones without an oracle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bridgemem.errors import SettingsError

GATES = ("uncertain", "entropy", "none")


def gate(name: str, uncertainty: Tensor, log_p: Tensor) -> Tensor:
    """g(q) float64 [n] of queries with uncertainty u [n] and log scores [n, E].

    "uncertain" is 4u(1 - u); "entropy" is 4h(1 - h), h being the entropy of the scores as a share of the largest there
    is; "none" is 1 for every query.
    """
    if name == "none":
        return torch.ones_like(uncertainty, dtype=torch.float64)
    if name not in GATES:
        raise SettingsError(f"there is no gate called {name!r}: choose {', '.join(GATES[:-1])} or {GATES[-1]}.")
    u = uncertainty.double() if name == "uncertain" else relative_entropy(log_p)
    return 4 * u * (1 - u)


def relative_entropy(log_p: Tensor) -> Tensor:
    """Entropy of log scores [n, E] as a share of log E, float64 [n] in [0, 1]; 0 where there is a single candidate."""
    normalised = log_p.log_softmax(1)
    entropy = -(normalised.exp() * normalised).sum(1).double()
    return (entropy / max(math.log(log_p.shape[1]), 1e-9)).clamp(0, 1)


def met_mass(log_p: Tensor, row: Tensor, candidate: Tensor) -> Tensor:
    """u_q for a backbone without an oracle: its probability mass on candidates that the actor has met.

    log_p [n, E] log scores, not necessarily normalised; (row, candidate) int64 [m] names the met ones -> [n].
    """
    met = torch.zeros(log_p.shape, dtype=torch.bool, device=log_p.device)
    met[row, candidate] = True
    # summed row by row, since adding by index on a GPU takes another order every time
    return log_p.softmax(dim=1).mul_(met).sum(1).clamp(0, 1)

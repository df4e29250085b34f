"""Gates: how much of the residual a query admits, and the uncertainty of backbones without an oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from bridgemem.errors import SettingsError


def gate(name: str, uncertainty: Tensor) -> Tensor:
    """g(q) float64 [n] from u_q [n]: "uncertain" is 4u(1 - u), "none" is 1 for every query."""
    u = uncertainty.double()
    if name == "uncertain":
        return 4 * u * (1 - u)
    if name == "none":
        return torch.ones_like(u)
    raise SettingsError(f"there is no gate called {name!r}: choose uncertain or none.")


def met_mass(log_p: Tensor, row: Tensor, candidate: Tensor) -> Tensor:
    """u_q for a backbone without an oracle: its probability mass on candidates that the actor has met.

    log_p [n, E] log scores, not necessarily normalised; (row, candidate) int64 [m] names the met ones -> [n].
    """
    met = torch.zeros(log_p.shape, dtype=torch.bool, device=log_p.device)
    met[row, candidate] = True
    # summed row by row, since adding by index on a GPU takes another order every time
    return log_p.softmax(dim=1).mul_(met).sum(1).clamp(0, 1)

"""Replay: score every query from what was known before its step, and rank the answers under every filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone, Scores, score_queries
from bridgemem.backbones.history import History
from bridgemem.errors import SettingsError
from bridgemem.evaluation.filters import FILTERS, Filters
from bridgemem.evaluation.metrics import Metrics
from bridgemem.evaluation.queries import Queries
from bridgemem.evaluation.ranks import answer_ranks
from bridgemem.evidence.gate import gate
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.progress import SILENT, Progress
from bridgemem.residual import correction, mixture

# query rows times entities that one batch may hold; a few float64 tensors of this size are alive at once
CELLS = {"cpu": 1 << 23, "cuda": 1 << 26}


@dataclass(frozen=True)
class Choice:
    """One setting of the residual that can be selected. Without shrinkage both readers count half, whatever n_B."""

    lam: float = 1.0
    gate: str = "uncertain"
    tau: float = 100.0
    shrinkage: bool = True


@dataclass(frozen=True)
class Replay:
    """Ranks float64 [filters, 1 + choices, n] (the backbone first), and what was known of each query, [n] each.

    uncertainty: u_q. answer_support: n_B of the answer's own dyadic state, 0 without one. answer_lag: steps since the
    pair's last event inside the window, NaN without one. triple_seen: the very fact happened before.
    """

    queries: Queries
    ranks: np.ndarray
    uncertainty: np.ndarray
    answer_support: np.ndarray
    answer_lag: np.ndarray
    triple_seen: np.ndarray

    def of(self, filter_name: str, column: int = 0) -> np.ndarray:
        """The ranks under one filter: column 0 is the backbone, column i + 1 the i-th choice."""
        return self.ranks[FILTERS.index(filter_name), column]

    def metrics(self, filter_name: str, column: int = 0) -> Metrics:
        return Metrics.of(self.of(filter_name, column))


def batch_size(n_entities: int, device: torch.device) -> int:
    return max(1, min(8192, CELLS.get(device.type, CELLS["cpu"]) // max(n_entities, 1)))


def corrections(evidence: Evidence, uncertainty: Tensor, choices: Sequence[Choice]) -> Tensor:
    """What the backbone alone and every choice add to each evidenced candidate: float64 [m, 1 + choices], finite."""
    even = torch.ones_like(evidence.support)
    mixed = {
        (tau, shrinkage): mixture(
            evidence.a_ct, evidence.a_nn, *((evidence.support, tau) if shrinkage else (even, 1.0))
        )
        for tau, shrinkage in {(c.tau, c.shrinkage) for c in choices}
    }
    gates = {name: gate(name, uncertainty)[evidence.row] for name in {c.gate for c in choices}}
    columns = [correction(mixed[c.tau, c.shrinkage], gates[c.gate], c.lam) for c in choices]
    delta = torch.stack([torch.zeros_like(evidence.a_ct), *columns], dim=1)
    if not torch.isfinite(delta).all():
        raise SettingsError("a correction is NaN or infinite: fit again with smaller lambdas or a larger smoothing.")
    return delta


def replay(
    queries: Queries,
    backbone: Backbone,
    past: History,
    filters: Filters,
    transitions: Transitions | None = None,
    choices: Sequence[Choice] = (),
    progress: Progress = SILENT,
    label: str = "ranking",
) -> Replay:
    """Rank the answers of all queries: the backbone's ranks, and those after each choice of the residual.

    The backbone's scores and the evidence are computed once; all choices and all filters are ranked from them.
    """
    size = batch_size(past.events.n_entities, past.device)
    ranks, known = [], []
    with progress.task(label, total=len(queries)) as advance:
        for part in queries.batches(size):
            batch = part.to(past.device)
            assert batch.answer is not None
            scores = score_queries(backbone, batch, past)
            assert scores.uncertainty is not None
            masks = [filters.mask(name, batch) for name in FILTERS]
            batch_ranks, answer_state = _rank(batch, scores, past, transitions, choices, masks)
            ranks.append(batch_ranks.cpu())
            seen = past.happened(batch.actor, batch.relation, batch.answer, batch.step)
            known.append(torch.stack([scores.uncertainty.double(), *answer_state, seen.double()]).cpu())
            advance(len(part))
    uncertainty, support, lag, triple_seen = torch.cat(known, dim=1).numpy()
    return Replay(queries, torch.cat(ranks, dim=2).numpy(), uncertainty, support, lag, triple_seen.astype(bool))


def _rank(
    batch: Queries,
    scores: Scores,
    past: History,
    transitions: Transitions | None,
    choices: Sequence[Choice],
    masks: Sequence[tuple[Tensor, Tensor]],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The batch's ranks, and support and lag of each answer's own dyadic state (0 and NaN where it has none)."""
    assert batch.answer is not None
    assert scores.uncertainty is not None
    support = torch.zeros(len(batch), dtype=torch.float64, device=past.device)
    lag = torch.full_like(support, torch.nan)
    if transitions is None:
        none = batch.actor.new_empty(0)
        return answer_ranks(scores.log_p, batch.answer, none, none, support[:0, None], masks), (support, lag)
    evidence = transitions.evidence(batch, past)
    own = evidence.candidate == batch.answer[evidence.row]
    support[evidence.row[own]] = evidence.support[own]
    lag[evidence.row[own]] = evidence.lag[own].double()
    delta = corrections(evidence, scores.uncertainty, choices)
    return answer_ranks(scores.log_p, batch.answer, evidence.row, evidence.candidate, delta, masks), (support, lag)

"""Replay: score every query from what was known before its step, and rank the answers under every filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.base import Backbone, Scores, score_queries
from bridgemem.equations import correction, mixture
from bridgemem.errors import SettingsError
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import gate
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.memory.past import History
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks, batch_size

if TYPE_CHECKING:
    from bridgemem.residuals.learned import Learned


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


def corrections(evidence: Evidence, scores: Scores, choices: Sequence[Choice]) -> Tensor:
    """What the backbone alone and every choice add to each evidenced candidate: float64 [m, 1 + choices], finite."""
    assert scores.uncertainty is not None
    even = torch.ones_like(evidence.support)
    mixed = {
        (tau, shrinkage): mixture(
            evidence.a_ct, evidence.a_nn, *((evidence.support, tau) if shrinkage else (even, 1.0))
        )
        for tau, shrinkage in {(c.tau, c.shrinkage) for c in choices}
    }
    log_p, names = scores.of_candidates, {c.gate for c in choices}
    gates = {name: gate(name, scores.uncertainty, log_p)[evidence.row] for name in names}
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
    learned: Sequence[Learned] = (),
    cells: int | None = None,
) -> Replay:
    """Rank the answers of all queries: the backbone's ranks, and those after each residual.

    The backbone's scores, the evidence and the features are computed once; all residuals and all filters are ranked
    from them. Columns: the backbone, every choice of the fixed residual, every learned one. cells bounds the memory,
    as in `batch_size`.
    """
    read = _reading(past, transitions, choices, learned)
    size = batch_size(past.events.n_entities, past.device, cells)
    columns = 1 if transitions is None else 1 + len(choices) + len(learned)
    parts = [torch.empty((len(FILTERS) * columns + 4, 0), dtype=torch.float64)]
    with progress.task(label, total=len(queries)) as advance:
        for part in queries.batches(size):
            batch = part.to(past.device)
            assert batch.answer is not None
            scores = score_queries(backbone, batch, past)
            assert scores.uncertainty is not None
            masks = [filters.mask(name, batch) for name in FILTERS]
            found = read(batch, scores)
            made = answer_ranks(scores.log_p, batch.answer, found.row, found.candidate, found.delta, masks)
            seen = past.happened(batch.actor, batch.relation, batch.answer, batch.step)
            known = torch.stack([scores.uncertainty.double(), *_of_answers(batch, found), seen.double()])
            # all that is kept of a batch comes back at once
            parts.append(torch.cat([made.flatten(0, 1), known]).cpu())
            advance(len(part))
    rows = torch.cat(parts, dim=1).numpy()
    uncertainty, support, lag, triple_seen = rows[-4:]
    ranks = rows[:-4].reshape(len(FILTERS), columns, len(queries))
    return Replay(queries, ranks, uncertainty, support, lag, triple_seen.astype(bool))


@dataclass(frozen=True)
class _Corrections:
    """What residuals add: row, candidate int64 [m]; delta float64 [m, columns], the first all zero; state of each."""

    row: Tensor
    candidate: Tensor
    delta: Tensor
    support: Tensor
    lag: Tensor


def _reading(
    past: History, transitions: Transitions | None, choices: Sequence[Choice], learned: Sequence[Learned]
) -> Callable[[Queries, Scores], _Corrections]:
    """How a batch's corrections are read: with features where a learned residual wants them, or with none at all."""
    if transitions is None:

        def nothing(batch: Queries, scores: Scores) -> _Corrections:
            ids, values = batch.actor.new_empty(0), torch.empty(0, dtype=torch.float64, device=past.device)
            return _Corrections(ids, ids, values[:, None], values, values)

        return nothing

    def fixed(batch: Queries, scores: Scores) -> _Corrections:
        seen = transitions.evidence(batch, past)
        delta = corrections(seen, scores, choices)
        return _Corrections(seen.row, seen.candidate, delta, seen.support, seen.lag)

    if not learned:
        return fixed
    if len({model.settings.strangers for model in learned}) > 1:
        raise SettingsError("learned residuals that read different numbers of strangers are replayed one by one.")
    reader = learned[0].reader(past, transitions)

    def both(batch: Queries, scores: Scores) -> _Corrections:
        seen = reader.read(batch, scores)
        by_choice = seen.spread(corrections(seen.evidence, scores, choices))
        by_network = [model.corrections(seen, batch.relation) for model in learned]
        delta = torch.cat([by_choice, torch.stack(by_network, dim=1)], dim=1)
        return _Corrections(
            seen.row,
            seen.candidate,
            delta,
            seen.spread(seen.evidence.support),
            seen.spread(seen.evidence.lag, torch.nan),
        )

    return both


def _of_answers(batch: Queries, found: _Corrections) -> tuple[Tensor, Tensor]:
    """Support and lag of each answer's own dyadic state, float64 [n]: 0 and NaN where it has none."""
    assert batch.answer is not None
    support = torch.zeros(len(batch), dtype=torch.float64, device=found.row.device)
    lag = torch.full_like(support, torch.nan)
    own = found.candidate == batch.answer[found.row]
    support[found.row[own]] = found.support[own].double()
    lag[found.row[own]] = found.lag[own].double()
    return support, lag

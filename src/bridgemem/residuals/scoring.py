"""The one scoring path: backbone scores, evidence, features and corrections of queries, from facts before each step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.scorer import Scorer, Scores, SparseScorer, score_queries
from bridgemem.equations import correction, mixture
from bridgemem.errors import SettingsError
from bridgemem.events.queries import Queries
from bridgemem.evidence.gate import gate
from bridgemem.evidence.transitions import Evidence, Transitions
from bridgemem.memory.past import Past
from bridgemem.parallel import in_order
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks, batch_of, shared_ranks
from bridgemem.residuals.features import LAST, FeatureReader, Features

if TYPE_CHECKING:
    from bridgemem.residuals.learned import Learned

Made = TypeVar("Made")


@dataclass(frozen=True)
class Choice:
    """One setting of the residual that can be selected. Without shrinkage both readers count half, whatever n_B."""

    lam: float = 1.0
    gate: str = "uncertain"
    tau: float = 100.0
    shrinkage: bool = True


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


@dataclass(frozen=True)
class Scored:
    """A batch of queries, scored once: what the backbone says, and what each residual adds to the candidates it reads.

    row, candidate int64 [m], ascending; delta float64 [m, columns]: first the backbone, which adds nothing, then every
    residual. evidence: None without transitions. features: None where none were read.
    """

    queries: Queries
    scores: Scores
    row: Tensor
    candidate: Tensor
    delta: Tensor
    evidence: Evidence | None = None
    features: Features | None = None

    @cached_property
    def base(self) -> Tensor:
        """The backbone's log scores, float64 [n, E]; -inf for entities that are no candidates."""
        return self.scores.of_candidates.double()

    def total(self, column: int = 1) -> Tensor:
        """S = log p0 + what a residual adds, float64 [n, E]."""
        made, at = self.base.clone(), self._keys
        made.view(-1)[at] += self.delta[:, column]
        return made

    @cached_property
    def _keys(self) -> Tensor:
        return self.row * self.scores.log_p.shape[1] + self.candidate

    def residual_of(self, candidate: Tensor, column: int = 1) -> Tensor:
        """What a residual adds to some candidates of every query, int64 [n, k] -> float64 [n, k]."""
        rows = torch.arange(len(candidate), device=candidate.device)[:, None]
        wanted = rows * self.scores.log_p.shape[1] + candidate
        if not len(self._keys):
            return torch.zeros(wanted.shape, dtype=self.delta.dtype, device=wanted.device)
        at = torch.searchsorted(self._keys, wanted).clamp_(max=len(self._keys) - 1)
        return torch.where(self._keys[at] == wanted, self.delta[:, column][at], 0.0)

    def of_answers(self) -> tuple[Tensor, Tensor]:
        """Support and lag of each answer's own dyadic state, float64 [n]: 0 and NaN where it has none."""
        found, answer = self.evidence, self.queries.answer
        assert answer is not None
        support = torch.zeros(len(answer), dtype=torch.float64, device=answer.device)
        lag = torch.full_like(support, torch.nan)
        if found is not None:
            own = found.candidate == answer[found.row]
            support[found.row[own]] = found.support[own].double()
            lag[found.row[own]] = found.lag[own].double()
        return support, lag


class Scoring:
    """Scores queries over a past: by the backbone, by every choice of the paper's residual, by every learned one.

    The backbone's scores, the evidence and the features are computed once for all columns. transitions: None where
    nothing was fitted, so that nothing is added. unseen: of unseen candidates that many are read, where features are
    wanted without a learned residual.
    """

    def __init__(
        self,
        backbone: Scorer,
        past: Past,
        transitions: Transitions | None = None,
        *,
        choices: Sequence[Choice] = (),
        learned: Sequence[Learned] = (),
        unseen: int | None = None,
    ) -> None:
        wanted = {model.settings.unseen_candidates for model in learned} | ({unseen} - {None})
        if len(wanted) > 1:
            raise SettingsError(
                "learned residuals that read different numbers of unseen candidates are replayed one by one."
            )
        self.backbone, self.past, self.transitions = backbone, past, transitions
        self.choices, self.learned = tuple(choices), tuple(learned)
        self._unseen = next(iter(wanted), None)

    def by(self, backbone: Scorer) -> Scoring:
        """The same over another scorer; indices are shared."""
        made = copy.copy(self)
        made.backbone = backbone
        return made

    @property
    def columns(self) -> int:
        """The backbone and every residual."""
        return 1 + len(self.choices) + len(self.learned)

    @cached_property
    def reader(self) -> FeatureReader:
        """What reads the features; its indices are built once."""
        assert self.transitions is not None
        return FeatureReader(self.past, self.transitions, self._unseen or 0)

    def of(self, queries: Queries) -> Scored:
        """Score one batch, which lies on the device of the past."""
        if self._unseen is not None and self.transitions is not None:
            # the backbone, its uncertainty, the evidence and the features ask for the same pairs
            with self.past.reading_once(queries.actor, queries.step, LAST):
                return self._with_features(queries)
        scores = score_queries(self.backbone, queries, self.past)
        if self.transitions is None:
            nobody = queries.actor.new_empty(0)
            delta = torch.empty((0, self.columns), dtype=torch.float64, device=nobody.device)
            return Scored(queries, scores, nobody, nobody, delta)
        seen = self.transitions.evidence(queries, self.past)
        return Scored(queries, scores, seen.row, seen.candidate, corrections(seen, scores, self.choices), evidence=seen)

    def _with_features(self, queries: Queries) -> Scored:
        scores = score_queries(self.backbone, queries, self.past)
        read = self.reader.read(queries, scores)
        by_choice = read.spread(corrections(read.evidence, scores, self.choices))
        by_network = [model.corrections(read, queries.relation)[:, None] for model in self.learned]
        delta = torch.cat([by_choice, *by_network], dim=1)
        return Scored(queries, scores, read.row, read.candidate, delta, read.evidence, read)

    def batches(
        self,
        queries: Queries,
        read: Callable[[Scored], Made],
        *,
        cells: int | None = None,
        progress: Progress = SILENT,
        label: str = "scoring",
    ) -> Iterator[Made]:
        """What a function reads from all queries, scored in batches; cells bounds the memory, as in `batch_of`.

        Several batches are scored at once where the backbone permits it.
        """
        size = batch_of(self.past.events, self.past.device, cells)
        several = self.past.device.type == "cpu" and self.backbone.parallel

        def scored(part: Queries) -> tuple[int, Made]:
            return len(part), read(self.of(part.to(self.past.device)))

        with progress.task(label, total=len(queries)) as advance:
            for count, made in in_order(scored, queries.batches(size), several=several):
                advance(count)
                yield made


@dataclass(frozen=True)
class Replay:
    """Ranks float64 [filters, columns, n] (the backbone first), and what was known of each query, [n] each.

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
        """The ranks under one filter: column 0 is the backbone, column i + 1 the i-th residual."""
        return self.ranks[FILTERS.index(filter_name), column]

    def metrics(self, filter_name: str, column: int = 0) -> Metrics:
        return Metrics.of(self.of(filter_name, column))


def replay(
    scoring: Scoring,
    queries: Queries,
    *,
    filters: Filters,
    progress: Progress = SILENT,
    label: str = "ranking",
    cells: int | None = None,
    rivals: Sequence[Scorer] = (),
) -> Replay:
    """Rank the answers of all queries under every filter, by the backbone and after each residual of the scoring.

    rivals: other scorers, each of which ranks the same batches as a further column, after all those of the scoring.
    """
    columns = scoring.columns + len(rivals)

    def ranked(batch: Scored) -> Tensor:
        asked, scores = batch.queries, batch.scores
        assert asked.answer is not None
        assert scores.uncertainty is not None
        masks = [filters.mask(name, asked) for name in FILTERS]
        made = answer_ranks(scores.log_p, asked.answer, batch.row, batch.candidate, batch.delta, masks)
        others = [_ranks_by(scorer, asked, scoring.past, masks) for scorer in rivals]
        made = torch.cat([made, *others], dim=1)
        seen = scoring.past.happened(asked.actor, asked.relation, asked.answer, asked.step)
        known = torch.stack([scores.uncertainty.double(), *batch.of_answers(), seen.double()])
        # all that is kept of a batch comes back at once
        return torch.cat([made.flatten(0, 1), known]).cpu()

    nothing = torch.empty((len(FILTERS) * columns + 4, 0), dtype=torch.float64)
    parts = scoring.batches(queries, ranked, cells=cells, progress=progress, label=label)
    rows = torch.cat([nothing, *parts], dim=1).numpy()
    uncertainty, support, lag, triple_seen = rows[-4:]
    ranks = rows[:-4].reshape(len(FILTERS), columns, len(queries))
    return Replay(queries, ranks, uncertainty, support, lag, triple_seen.astype(bool))


def _ranks_by(scorer: Scorer, queries: Queries, past: Past, masks: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Ranks of the answers by a scorer alone, float64 [filters, 1, n]."""
    assert queries.answer is not None
    if isinstance(scorer, SparseScorer):
        found = scorer.sparse(queries.unanswered(), past)
        return shared_ranks(found.base, queries.answer, found.row, found.candidate, found.added[:, None], masks)
    log_p, nobody = score_queries(scorer, queries, past).log_p, queries.actor.new_empty(0)
    nothing = torch.empty((0, 1), dtype=torch.float64, device=log_p.device)
    return answer_ranks(log_p, queries.answer, nobody, nobody, nothing, masks)

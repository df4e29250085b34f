"""Cases: queries with a sample of their candidates, weighted so that the loss over all of them is estimated unbiased.

Of the candidates that are read each is kept with a probability pi that grows with p0, the answer always; a kept one
counts 1 / pi times. The mass of the candidates that are not read is exact: one number for each query and filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bridgemem.backbones.scorer import Scorer, score_queries
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.memory.timeline import drained, expand
from bridgemem.numerics import LOWEST
from bridgemem.parallel import in_order
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.ranks import batch_of
from bridgemem.residuals.features import Candidates, FeatureReader, gathered
from bridgemem.residuals.learned import SCALES

KEEP_ALL = 100.0  # pi = rate + this times p0, so that a candidate with a hundredth of the mass is always kept
RATE = 0.03
MOST_BY_RATE = 16  # candidates of a query that the rate alone keeps, however many it has
SCALE_QUERIES = 1_500
LEAST = 1e-30  # of the mass of the candidates that are not read
FREED_EACH = 32  # batches after which what reads of a memory on disk left free goes back to the system


@dataclass(frozen=True)
class Source:
    """Queries to learn from over one past, with a scorer and transitions that know nothing of their answers."""

    queries: Queries
    scorer: Scorer
    transitions: Transitions


@dataclass(frozen=True)
class Cases:
    """Queries ready for fitting: the candidates that were kept, flat, and the mass of all that are not read.

    Of m candidates: x float16 [m, columns] of their own, logit float32 [m]: scale * log p0, log_weight float32 [m]:
    -log pi, is_answer bool [m], removed: bool [m] for each filter.
    Of n queries: of_query float32 [n, columns], relation, step int64 [n]; start int64 [n + 1]: where its candidates
    begin; own float32 [n]: scale * log p0 of the answer; rest: for each filter float32 [n], log of the summed
    p0^scale of the candidates that are neither read nor removed. n_directed: how many directed relations there are.
    """

    x: Tensor
    logit: Tensor
    log_weight: Tensor
    is_answer: Tensor
    removed: dict[str, Tensor]
    of_query: Tensor
    relation: Tensor
    step: Tensor
    start: Tensor
    own: Tensor
    rest: dict[str, Tensor]
    scale: float
    n_directed: int

    def __len__(self) -> int:
        return len(self.own)

    @classmethod
    def joined(cls, parts: list[Cases]) -> Cases:
        """The cases of all parts, in their order; the list is emptied, so that none is held twice."""
        wide, scale, n_directed = [p.x for p in parts], parts[0].scale, parts[0].n_directed

        def join(name: str) -> Tensor:
            return torch.cat([getattr(p, name) for p in parts])

        def join_each(name: str) -> dict[str, Tensor]:
            return {f: torch.cat([getattr(p, name)[f] for p in parts]) for f in FILTERS}

        sizes = torch.cat([p.start.diff() for p in parts]).cumsum(0)
        narrow = {name: join(name) for name in _NARROW}
        removed, rest = join_each("removed"), join_each("rest")
        parts.clear()
        return cls(
            x=drained(wide),
            **narrow,
            removed=removed,
            rest=rest,
            start=torch.cat([sizes.new_zeros(1), sizes]),
            scale=scale,
            n_directed=n_directed,
        )

    def candidates(self, rows: Tensor, size: int | None = None) -> tuple[Tensor, Tensor]:
        """The place in `rows` and the place among all of every candidate of these queries, int64 each."""
        return expand(self.start[rows], self.start[rows + 1], size)

    def touched(self, filter_name: str) -> float:
        """The share of the queries of which a filter removes a candidate that was kept."""
        row, _ = self.candidates(torch.arange(len(self), device=self.own.device))
        return len(row[self.removed[filter_name]].unique()) / max(len(self), 1)

    def take(self, rows: Tensor) -> Cases:
        """Some of the queries, int64 [k]."""
        _, at = self.candidates(rows)
        sizes = self.start.diff()[rows].cumsum(0)
        return Cases(
            x=self.x[at],
            logit=self.logit[at],
            log_weight=self.log_weight[at],
            is_answer=self.is_answer[at],
            removed={f: of[at] for f, of in self.removed.items()},
            of_query=self.of_query[rows],
            relation=self.relation[rows],
            step=self.step[rows],
            start=torch.cat([sizes.new_zeros(1), sizes]),
            own=self.own[rows],
            rest={f: of[rows] for f, of in self.rest.items()},
            scale=self.scale,
            n_directed=self.n_directed,
        )


_NARROW = (
    "logit",
    "log_weight",
    "is_answer",
    "of_query",
    "relation",
    "step",
    "own",
)  # all columns of it but the wide x


# reads numbered batches of a source as cases, in their order, where other processes do it
Elsewhere = Callable[["CaseReader", Source, Iterable[tuple[int, Queries]]], Iterable[Cases]]
ELSEWHERE: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


class CaseReader:
    """Reads queries as cases over one past, at one scale of the backbone's log score."""

    def __init__(self, past: Past, filters: Filters, unseen: int, scale: float, seed: int) -> None:
        self.past, self.filters, self.unseen, self.scale = past, filters, unseen, scale
        self.seed = seed
        self._reader: FeatureReader | None = None

    def read(self, source: Source, *, progress: Progress = SILENT) -> Cases:
        """All queries of a source; filters are built from train + validation."""
        return Cases.joined(self.parts(source, progress=progress))

    def parts(self, source: Source, *, progress: Progress = SILENT) -> list[Cases]:
        """The same, by batch."""
        if self._reader is None:
            self._reader = FeatureReader(self.past, source.transitions, self.unseen)
        reader = self._reader.by(source.transitions)
        several = self.past.device.type == "cpu" and source.scorer.parallel
        numbered, elsewhere = enumerate(_batches(source.queries, self.past)), ELSEWHERE.get()
        with progress.task("reading what the learned residual is fitted on", total=len(source.queries)) as advance:
            parts = list[Cases]()
            found = (
                elsewhere(self, source, numbered)
                if elsewhere
                else in_order(lambda of: self.cases(*of, source.scorer, reader), numbered, several=several)
            )
            for made in found:
                parts.append(made)
                advance(len(made))
                if len(parts) % FREED_EACH == 0:
                    self.past.return_freed()
        self.past.return_freed()
        return parts

    def cases(self, number: int, batch: Queries, scorer: Scorer, reader: FeatureReader) -> Cases:
        """The cases of one batch of a source; number: its place among all."""
        assert batch.answer is not None
        scores = score_queries(scorer, batch, self.past)
        found = reader.candidates(batch, scores, last=1)
        # every batch draws for itself, whichever comes first
        draw = torch.Generator(device=self.past.device).manual_seed(self.seed + number)
        kept, log_weight = self._kept(found, batch.answer, draw)
        mass = (self.scale * found.log_p).exp_()
        mass.view(-1)[found.keys] = 0.0
        rest, removed, some = mass.sum(1), {}, found.take(kept)
        rests = {}
        for name in FILTERS:
            row, candidate = self.filters.mask(name, batch)
            out = torch.zeros_like(rest).index_add_(0, row, mass[row, candidate])
            rests[name] = (rest - out).clamp_(min=LEAST).log_()
            removed[name] = torch.isin(some.keys, row * mass.shape[1] + candidate)
        features = reader.features(batch, scores, some)
        rows = torch.arange(len(batch) + 1, device=rest.device)
        return Cases(
            x=gathered(features.blocks).half(),
            logit=self.scale * found.log_p.view(-1)[some.keys],
            log_weight=log_weight,
            is_answer=some.candidate == batch.answer[some.row],
            removed=removed,
            of_query=features.of_query,
            relation=batch.relation,
            step=batch.step,
            start=torch.searchsorted(some.row, rows),
            own=self.scale * found.log_p[rows[:-1], batch.answer],
            rest=rests,
            scale=self.scale,
            n_directed=2 * reader.relations,
        )

    def _kept(self, found: Candidates, answer: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which of the candidates are kept int64 [k], and what each counts: -log pi float32 [k]."""
        row = found.row
        many = torch.bincount(row, minlength=len(answer)).clamp_(min=1)
        rate = (MOST_BY_RATE / many).clamp_(max=RATE)
        pi = rate[row].add_(found.log_p.view(-1)[found.keys].exp_(), alpha=KEEP_ALL).clamp_(max=1.0)
        pi[found.candidate == answer[row]] = 1.0
        kept = (torch.rand(len(pi), generator=draw, device=pi.device) < pi).nonzero().squeeze(1)
        return kept, -pi[kept].log()


def _batches(queries: Queries, past: Past) -> Iterator[Queries]:
    """Queries in batches on the device of the past."""
    return queries.to(past.device).batches(batch_of(past.events, past.device))


def best_scale(scorer: Scorer, past: Past, queries: Queries, seed: int) -> float:
    """The power of p0 under which the answers are likeliest."""
    if not len(queries):
        return 1.0
    some = queries.sample(SCALE_QUERIES, seed)
    total = np.zeros(len(SCALES))
    for batch in _batches(some, past):
        assert batch.answer is not None
        log_p = score_queries(scorer, batch, past).of_candidates.float().log_softmax(1)
        own = log_p.gather(1, batch.answer[:, None]).squeeze(1)
        total += [float((own * s - (log_p * s).clamp_(min=LOWEST).logsumexp(1)).double().sum()) for s in SCALES]
    return SCALES[int(total.argmax())] if math.isfinite(float(total.max())) else 1.0

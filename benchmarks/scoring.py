"""Rows of scoring: ranks under three filters, a whole evaluation, the choice on validation, and a single forecast."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks import floors
from benchmarks import references as plain
from benchmarks.bench import Bench
from benchmarks.harness import Measured, Timing, timed
from benchmarks.machine import Peak, wait
from benchmarks.references import Sampled
from bridgemem.backbones.scorer import score_queries
from bridgemem.config import Settings
from bridgemem.events.queries import Queries
from bridgemem.forecasting.predictor import Predictor
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks
from bridgemem.residuals.scoring import Choice, Replay, Scoring, corrections, replay
from bridgemem.residuals.selection import PAPER, grid

PLAIN_BATCH = 256
SAME_MRR = 1e-5  # two orders of adding float32 numbers may swap a near tie, and no more
ASKED = 20  # single forecasts that are timed


def ranking(b: Bench) -> Measured:
    """The ranks alone, from the same scores and the same residual: they must be the same bit for bit."""
    queries = b.few_queries().take(slice(0, None, 2)).to(b.device)
    assert queries.answer is not None
    scores = score_queries(b.cenet, queries, b.past)
    evidence = b.transitions.evidence(queries, b.past)
    delta = corrections(evidence, scores, [PAPER])
    filters = Filters(b.known, b.device)
    masks = [filters.mask(name, queries) for name in FILTERS]
    arguments = (scores.log_p, queries.answer, evidence.row, evidence.candidate, delta, masks)
    ranks, timing = timed(lambda: answer_ranks(*arguments), b.device)
    with Peak(b.device) as peak:
        expected, plain_timing = timed(lambda: plain.dense_ranks(*arguments), b.device)
    same = torch.equal(ranks.cpu(), expected.cpu())
    agreement = f"{ranks.numel():,} ranks " + ("identical" if same else "differ")
    work = floors.ranking(len(queries), b.known.n_entities)
    note = f"{len(queries):,} queries"
    return Measured(timing, work, Sampled(plain_timing.seconds), peak.added, agreement, same, note=note)


def evaluation(b: Bench) -> Measured:
    """Validation from nothing: index, filters, backbone scores, residual, ranks of both under three filters."""
    return _replayed(b, [PAPER])


def choosing(b: Bench) -> Measured:
    """The same for all points of the grid that lambda, gate and tau are chosen from."""
    return _replayed(b, grid(Settings()), PLAIN_BATCH)


def _replayed(b: Bench, choices: Sequence[Choice], most: int | None = None) -> Measured:
    """A replay of validation, against the plain loop over some of its queries (at most that many)."""
    transitions, cenet = b.transitions, b.cenet  # made before the clock starts

    def run(queries: Queries) -> Replay:
        past, filters = Past(b.known, device=b.device), Filters(b.known, b.device)
        return replay(Scoring(cenet, past, transitions, choices=choices), queries, filters=filters)

    _, timing = timed(lambda: run(b.queries), b.device, rounds=1)
    asked = b.few_queries().take(slice(0, most))
    began = time.perf_counter()
    with Peak(b.device) as peak:
        filters, residual = plain.PlainFilters(b.known), plain.PlainResidual(transitions, b.device)
        prepared = time.perf_counter() - began
        parts, done, began = [], 0, time.perf_counter()
        for batch in asked.to(b.device).batches(PLAIN_BATCH):
            parts.append(plain.evaluate(iter([batch]), cenet, b.past, filters, residual, choices).cpu())
            wait(b.device)
            done += len(batch)
            if time.perf_counter() - began > b.budget:
                break
        measured = time.perf_counter() - began
    expected = torch.cat(parts, dim=2).numpy()
    agreement, agrees = _same_ranks(run(asked.take(slice(0, done))).ranks, expected)
    reference = Sampled(prepared) + Sampled.of(measured, done / len(b.queries))
    work = floors.cenet_scores(len(b.queries), b.known.n_entities, b.known.n_relations, b.cenet_settings)
    work += floors.ranking(len(b.queries), b.known.n_entities)
    note = f"{len(b.queries):,} queries, {len(choices)} choice" + "s" * (len(choices) > 1)
    return Measured(timing, work, reference, peak.added, agreement, agrees, note=note)


def _same_ranks(ranks: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
    """In words, and whether every column of ranks has the same MRR under every filter."""
    gap = max(
        abs(Metrics.of(own).mrr - Metrics.of(other).mrr)
        for own, other in zip(ranks.reshape(-1, ranks.shape[2]), expected.reshape(-1, ranks.shape[2]), strict=True)
    )
    same = float((ranks == expected).mean())
    return f"{same:.3%} of {ranks.size:,} ranks identical, MRR within {gap:.0e}", gap <= SAME_MRR


def forecast(b: Bench) -> Measured:
    """One query after the other to a forecaster on the host; the median of them."""
    forecaster = Predictor(Past(b.known), b.cenet, b.transitions, PAPER)
    asked = b.few_queries().take(slice(0, ASKED))
    end, relations = b.known.end, b.known.n_relations
    pairs = zip(asked.actor.tolist(), asked.relation.tolist(), strict=True)
    queries = [(a, r % relations, r >= relations) for a, r in pairs]
    forecaster.forecast(*queries[0][:2])  # builds the index
    answers, times = [], []
    with Peak() as peak:
        for actor, relation, inverse in queries:
            began = time.perf_counter()
            answers.append(forecaster.forecast(relation=relation, **{"object" if inverse else "subject": actor}))
            times.append(time.perf_counter() - began)
    residual, plain_answers, plain_times = plain.PlainResidual(b.transitions, "cpu"), [], []
    with Peak() as plain_peak:
        for row in range(len(asked)):
            one = Queries(asked.actor[row : row + 1], asked.relation[row : row + 1], torch.tensor([end]))
            began = time.perf_counter()
            plain_answers.append(plain.best(one, b.cenet, forecaster.past, residual, PAPER, b.known))
            plain_times.append(time.perf_counter() - began)
    same = sum([c.name for c in own] == other for own, other in zip(answers, plain_answers, strict=True))
    work = floors.cenet_scores(1, b.known.n_entities, b.known.n_relations, b.cenet_settings)
    timing = Timing(float(np.median(times)), len(times), times[0], peak.highest, peak.added)
    return Measured(
        timing,
        work,
        Sampled(float(np.median(plain_times))),
        plain_peak.added,
        f"{same} of {len(queries)} lists of ten identical",
        same == len(queries),
        note="median",
    )

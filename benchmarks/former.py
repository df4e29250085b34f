"""`python -m benchmarks.former`: the learned fit that the sampled one replaced, whole, with its MRR on test.

Every validation query, every candidate that is read, epochs chosen on the later queries, then all fitted anew, in
straight PyTorch on `recurrence-dyadic`. The former fit did so under two filters; here it is the time-aware one alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import references as plain
from benchmarks.bench import load
from bridgemem.backbones.recurrence import RecurrenceDyadic
from bridgemem.backbones.scorer import score_queries
from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.features import FeatureReader

UNSEEN = 60  # candidates that the actor never interacted with
FILTER = "time"
BATCH = 256


@torch.no_grad()
def mrr(net: plain.PlainLearned, dataset: Dataset, backbone: RecurrenceDyadic, transitions: Transitions) -> float:
    """Time-aware on test, with mean ties."""
    past, filters = Past(dataset.events), Filters(dataset.events)
    reader, total, queries = FeatureReader(past, transitions, UNSEEN), 0.0, Queries.of(dataset.test)
    for batch in queries.batches(BATCH):
        assert batch.answer is not None
        scores = score_queries(backbone, batch, past)
        score, found = net.scale * scores.log_p.float().log_softmax(1), reader.read(batch, scores)
        score[found.row, found.candidate] += net(found.x, batch.relation[found.row])
        score[filters.mask(FILTER, batch)] = -torch.inf
        own = score.gather(1, batch.answer[:, None])
        rank = 1 + (score > own).sum(1) + ((score == own).sum(1) - 1) / 2
        total += float((1 / rank.double()).sum())
    return total / len(queries)


def fit(dataset: Dataset, seed: int) -> tuple[plain.PlainLearned, RecurrenceDyadic, Transitions, int]:
    """The network, its backbone, the transitions of train + validation, and the epochs that were chosen."""
    settings, known = plain.PlainSettings(), dataset.without_test()
    backbone = RecurrenceDyadic.fit(known)
    train, choice = Transitions.fit(dataset.train, Settings(), seed)
    after, _ = Transitions.fit(known.events, Settings(), seed, epochs=choice.epochs)
    queries, n_directed = Queries.of(dataset.valid), 2 * known.events.n_relations
    cases = plain.learned_cases(dataset, backbone, train, queries, FILTER, UNSEEN)
    curve, _, _ = plain.fit_learned(cases, n_directed, settings, seed, float("inf"))
    epochs = 1 + curve.index(min(curve))
    net, _ = plain.train_learned(cases, [], n_directed, settings, seed=seed, epochs=epochs)
    return net, backbone, after, epochs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.former", description=__doc__)
    parser.add_argument("dataset", help="its name, or world or tiny")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    asked = parser.parse_args(arguments)
    dataset, began, used = load(asked.dataset, asked.data_dir), time.perf_counter(), time.process_time()
    net, backbone, transitions, epochs = fit(dataset, asked.seed)
    took = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - used, "epochs": epochs}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({**took, "peak": peak, "mrr": mrr(net.eval(), dataset, backbone, transitions)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

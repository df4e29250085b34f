"""check_backbone: the contract of a backbone as a public test that anyone can run on their own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import Scorer, Scores, check_scorer, score_queries
from bridgemem.errors import BackboneError, DataError
from bridgemem.events.loading import load
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past

TOLERANCE = 1e-4


def check_backbone(backbone: Scorer, events: Any, *, queries: int = 64, seed: int = 0) -> None:
    """Check that a backbone, or any scorer, keeps its contract on the given events.

    Checked: scores are finite and of the right shape; the same batch gives the same bits; order and batch size do not
    matter; nothing at or after the query's step is read; saving and loading a backbone changes nothing.

    Args:
        backbone: A `Backbone` or a `Scorer`.
        events: An `EventLog`, or whatever `load` takes.
        queries: How many are asked at most.
        seed: Of the choice of queries and of the futures that are made up.

    Raises:
        BackboneError: It does not; the sentence says how.
        DataError: There are no events to ask about.

    Example:
        >>> from bridgemem.backbones.recurrence import Recurrence
        >>> bm.check_backbone(Recurrence.fit(data), data.events, queries=8)
    """
    check_scorer(backbone)
    events = events if isinstance(events, EventLog) else load(events).events
    if not len(events):
        raise DataError("check_backbone needs events to ask about; this log holds none.")
    rng = np.random.default_rng(seed)
    device = _device_of(backbone)
    steps = np.unique(events.step)
    now = int(steps[len(steps) * 3 // 4])
    asked = Queries.of(events.between(now, now + 1))
    asked = asked.take(torch.from_numpy(rng.permutation(len(asked))[:queries])).to(device)
    past = Past(events, device=device)
    scores = score_queries(backbone, asked, past)

    _same(scores, score_queries(backbone, asked, past), 0.0, "the same batch gave different scores the second time")
    order = torch.from_numpy(rng.permutation(len(asked))).to(device)
    shuffled = score_queries(backbone, asked.take(order), past)
    _same(_rows(scores, order), shuffled, TOLERANCE, "scores depend on the order of the queries")
    single = [score_queries(backbone, asked.take(slice(i, i + 1)), past) for i in range(min(8, len(asked)))]
    for i, alone in enumerate(single):
        _same(_rows(scores, slice(i, i + 1)), alone, TOLERANCE, "scores depend on the other queries of the batch")

    for what, future in other_futures(events, now, rng).items():
        _same(scores, score_queries(backbone, asked, Past(future, device=device)), 0.0, f"scores changed when {what}")

    if not isinstance(backbone, Backbone):
        return
    with tempfile.TemporaryDirectory() as folder:
        backbone.save(Path(folder) / "saved")
        again = type(backbone).load(Path(folder) / "saved").to(str(device))
    _same(scores, score_queries(again, asked, past), 0.0, "scores changed by saving and loading")


def _device_of(backbone: Scorer) -> torch.device:
    tensors = backbone.tensors() if isinstance(backbone, Backbone) else {}
    return next((tensor.device for tensor in tensors.values()), torch.device("cpu"))


def other_futures(events: EventLog, now: int, rng: np.random.Generator) -> dict[str, EventLog]:
    """The same past with other futures from a step on: deleted, permuted, and made of random facts."""
    past, rest = events.prefix(now), events.between(now, events.end)
    n = len(rest)

    def with_future(subject: np.ndarray, relation: np.ndarray, object_: np.ndarray) -> EventLog:
        step = rest.step
        return past.append(EventLog(subject, relation, object_, step, events.entities, events.relations, events.clock))

    mixed = rng.permutation(n)
    return {
        "the future was deleted": past,
        "the future was permuted": with_future(rest.subject[mixed], rest.relation[mixed], rest.object[mixed]),
        "the future was made of random facts": with_future(
            rng.integers(events.n_entities, size=n),
            rng.integers(events.n_relations, size=n),
            rng.integers(events.n_entities, size=n),
        ),
    }


def _rows(scores: Scores, rows: torch.Tensor | slice) -> Scores:
    uncertainty, members = scores.uncertainty, scores.members
    return Scores(
        scores.log_p[rows],
        None if uncertainty is None else uncertainty[rows],
        None if members is None else members[:, rows],
    )


def _same(expected: Scores, found: Scores, tolerance: float, complaint: str) -> None:
    pairs = [(expected.log_p, found.log_p)]
    if expected.uncertainty is not None and found.uncertainty is not None:
        pairs.append((expected.uncertainty, found.uncertainty))
    if expected.members is not None and found.members is not None:
        pairs.append((expected.members, found.members))
    gap = max(float((a - b).abs().max()) for a, b in pairs)
    # of the scale of the scores: float32 logits of 1000 are exact to no more than 1e-4
    if gap > tolerance * max(1.0, float(expected.log_p.abs().max())):
        raise BackboneError(
            f"{complaint} (largest difference {gap:.3g}); score a query from its own ids and the facts before its step "
            "alone."
        )

"""The curve: what evaluating costs as queries, entities and facts grow, with the exponent of each.

Costs are counted, not only timed: tensor operators called, bytes of the tensors they made, and the largest of them.
Counts are the same on every machine and in every run, so that a test may compare them. `python -m benchmarks.curve`
keeps the points in results/curve.json, and `python -m benchmarks.report` makes a table of them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import Scores
from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog, Vocabulary
from bridgemem.events.queries import Queries
from bridgemem.evidence.counts import CountTable, log_prior
from bridgemem.evidence.examples import mine
from bridgemem.evidence.reader import Reader
from bridgemem.evidence.tokens import TokenSpace
from bridgemem.evidence.transitions import Transitions
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import Filters
from bridgemem.residuals.scoring import Choice, Scoring, replay
from bridgemem.training.checkpoint import Training

AXES = ("queries", "entities", "facts")
GROWTH = (1, 2, 4, 8)


class Counted(TorchDispatchMode):
    """Counts what torch does inside a `with`: calls of operators, bytes of the tensors made, bytes of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        self.calls += 1
        for made in tree_leaves(out):
            # a view, or the same tensor changed in place, is nothing new
            if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
                self.bytes += made.untyped_storage().nbytes()
                self.largest = max(self.largest, made.untyped_storage().nbytes())
        return out


class LowRank(Backbone):
    """A fixed random scorer of the cost of a real one: (actor + relation) times every entity."""

    name: ClassVar[str] = "low-rank"
    default: ClassVar[None] = None
    width: ClassVar[int] = 64

    def __init__(self, actor: Tensor, relation: Tensor) -> None:
        self.actor, self.relation, self.settings = actor, relation, None

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        return cls.of(dataset.events, training.seed, training.device)

    @classmethod
    def of(cls, events: EventLog, seed: int = 42, device: str = "cpu") -> Self:
        draw = torch.Generator().manual_seed(seed)
        sizes = (events.n_entities, 2 * events.n_relations)
        actor, relation = (torch.randn(n, cls.width, generator=draw).to(device) for n in sizes)
        return cls(actor, relation)

    def score(self, queries: Queries, past: Past) -> Scores:
        asked = self.actor[queries.actor] + self.relation[queries.relation]
        return Scores((asked @ self.actor.T / 8).log_softmax(1), torch.sigmoid(asked[:, 0]))

    def tensors(self) -> dict[str, Tensor]:
        return {"actor": self.actor, "relation": self.relation}

    @classmethod
    def restore(cls, settings: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        return cls(tensors["actor"], tensors["relation"])


def random_events(
    facts: int, entities: int, relations: int = 20, steps: int = 100, groups: int = 40, seed: int = 0
) -> EventLog:
    """Facts between entities that meet inside small groups, so that pairs repeat as they do in the world."""
    rng = np.random.default_rng(seed)
    subject = rng.integers(entities, size=facts)
    partner = (subject + rng.integers(1, groups, size=facts)) % entities
    step = np.sort(rng.integers(steps, size=facts))
    known = Vocabulary("entity", tuple(map(str, range(entities))))
    kinds = Vocabulary("relation", tuple(map(str, range(relations))))
    return EventLog.from_columns(subject, rng.integers(relations, size=facts), partner, step, known, kinds)


def untrained(events: EventLog, settings: Settings, device: str = "cpu") -> Transitions:
    """Real counts with a reader that was not trained: reading it costs the same."""
    space, log_pi = TokenSpace.of(settings, events.n_relations), log_prior(events)
    reader = Reader(space, log_pi, settings.width, settings.hidden).eval()
    return Transitions(settings, log_pi, CountTable.of(mine(events, space, settings), space), reader).to(device)


@dataclass(frozen=True)
class Point:
    """One size on one axis, and what evaluating it cost; `residual_bytes` is what the residual added to the backbone.

    reads: dyadic states read, one for each query and candidate that the actor has interacted with inside the window.
    """

    axis: str
    queries: int
    entities: int
    facts: int
    reads: int
    calls: int
    bytes: int
    residual_bytes: int
    largest: int
    seconds: float


def measured(axis: str, events: EventLog, queries: int, cells: int | None = None, device: str = "cpu") -> Point:
    """Evaluate the last facts of the events under three filters with one residual; indices are built before."""
    past, filters = Past(events, device=device), Filters(events, device)
    backbone, transitions = LowRank.of(events, device=device), untrained(events, Settings(), device)
    every = Queries.of(events)
    asked = every.take(slice(len(every) - queries, None))
    reads = sum(len(transitions.evidence(part.to(device), past).row) for part in asked.batches(4096))

    def run(model: Transitions | None) -> tuple[Counted, float]:
        began = time.process_time()
        with Counted() as counted, torch.no_grad():
            scoring = Scoring(backbone, past, model, choices=[Choice()] if model else ())
            replay(scoring, asked, filters=filters, cells=cells)
        return counted, time.process_time() - began

    run(transitions)  # indices that are made on first use
    (alone, _), (both, seconds) = run(None), run(transitions)
    added = both.bytes - alone.bytes
    return Point(
        axis, queries, events.n_entities, len(events), reads, both.calls, both.bytes, added, both.largest, seconds
    )


def curve(
    axis: str,
    queries: int = 500,
    entities: int = 1000,
    facts: int = 10_000,
    growth: Sequence[int] = GROWTH,
    cells: int | None = None,
    device: str = "cpu",
) -> list[Point]:
    """Points along one axis, the other sizes kept."""
    base = {"queries": queries, "entities": entities, "facts": facts}
    points = []
    for factor in growth:
        size = {**base, axis: base[axis] * factor}
        events = random_events(size["facts"], size["entities"])
        points.append(measured(axis, events, size["queries"], cells, device))
    return points


def exponent(sizes: Iterable[float], costs: Iterable[float]) -> float:
    """The slope of log cost over log size by least squares: 1 is linear."""
    x, y = (np.log(np.fromiter(values, dtype=np.float64)) for values in (sizes, costs))
    if len(x) < 2 or np.ptp(x) == 0:
        return math.nan
    return float(np.polyfit(x, y, 1)[0])


def exponents(points: Sequence[Point]) -> dict[str, float]:
    """How the cost of points along one axis grows: with the axis itself, and with the dyadic reads."""
    size = [getattr(p, points[0].axis) for p in points]
    reads = [p.reads for p in points]
    return {
        "bytes": exponent(size, [p.bytes for p in points]),
        "seconds": exponent(size, [max(p.seconds, 1e-6) for p in points]),
        "residual bytes by reads": exponent(reads, [p.residual_bytes for p in points]),
    }


def rows(device: str = "cpu", cells: int | None = None) -> list[dict[str, Any]]:
    """The whole curve as rows for a table: one a point, each with the exponents of its axis."""
    made = []
    for axis in AXES:
        points = curve(axis, cells=cells, device=device)
        found = exponents(points)
        made += [{**vars(p), **{f"exponent of {name}": value for name, value in found.items()}} for p in points]
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curve", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/curve.json"), help="where the points are kept")
    asked = parser.parse_args(arguments)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(rows(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Retraining: a model trained again where only the later part of the data differs must score the earlier part the same.

This finds what corrupting the past that a model is given cannot find: a table of events of its own that it reads at the
step it is asked about, and a training on events that came later. A model that has these from elsewhere, as from a file
or a checkpoint, is found by what it opens (reads.py) and by what it knows (elsewhere.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bridgemem.backbones.base import Backbone
from bridgemem.backbones.elsewhere import Elsewhere, knowledge
from bridgemem.backbones.reads import Reads
from bridgemem.backbones.scorer import Scorer, score_queries
from bridgemem.backbones.verdicts import MAKERS_WORD, Finding
from bridgemem.errors import BackboneError, DataError
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training.checkpoint import seeded

CHECK = "training"
MOST_EVENTS = 20_000  # of the last ones that are trained on, since training is repeated
EXACT = 1e-6  # of the scale of the scores: what rounding may change
NOISE = 1e-4  # of the scale: if the same training differs by more, nothing can be told from a difference

Train = Callable[[Dataset], Scorer]

# by what the later part differs in, what a model does whose scores differ too; the first that differs names it
LEAKS = {
    "later": "was trained on later events, such as the test split",
    "paired": "reads its own table of events at the step t that it is asked about",
    "active": "keys the states of candidates by their activity at the step t that it is asked about",
    "cut": "depends on how many events there are at and after the step t that it is asked about",
}


def trainer(given: Any, settings: Any = None, *, seed: int = 42, device: str = "cpu") -> Train | None:
    """What trains a model on a data set: a class of backbones, any other class or a function that takes the data.

    None for a model that is trained already, which can only be asked.
    """
    if isinstance(given, type) and issubclass(given, Backbone):
        return lambda data: given.fit(data, settings, seed=seed, device=device)
    if not isinstance(given, type) and not inspect.isroutine(given):
        return None
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return None
    takes = [_binds(signature, count) for count in (1, 2, 3)]
    if not takes[0] or (not isinstance(given, type) and any(takes[1:])):
        return None

    def constructed(data: Dataset) -> Scorer:
        from bridgemem.backbones.own import blaming, wrapped

        with seeded(seed, device), blaming(given):
            made = given(data)
        return made if isinstance(made, Backbone) else wrapped(made)()

    return constructed


def retrained(
    train: Train, events: EventLog, *, queries: int = 64, seed: int = 0, valid_start: int | None = None
) -> Finding:
    """Train on the same data with other later parts, and compare the scores of the earlier part.

    The data are the last events, cut into train, validation and test. Trained again are: the same; with the events of
    the first test step t paired otherwise; with other parties there; with other events after t; with nothing from t on.
    Asked are queries of t, and of the last step of validation. Last it is trained on data in which entities changed
    places; see elsewhere.py.

    Args:
        train: What trains a model on a data set.
        events: Those before test.
        queries: How many are asked.
        seed: Of what is drawn.
        valid_start: Where validation begins in these data, if it is known; see elsewhere.py.

    Raises:
        BackboneError: The model cannot be trained.
    """
    try:
        data = practice(events)
    except DataError:
        return Finding(CHECK, None, "the data has too few time steps to be cut into train, validation and test")
    rng = np.random.default_rng(seed)
    asked = _asked(data, rng, queries)
    past = Past(data.events)

    def scores(of: Dataset, past: Past = past) -> torch.Tensor:
        return score_queries(train(of), asked, past).log_p.double()

    first = scores(data)
    scale = max(1.0, float(first.abs().max()))
    noise = float((scores(data) - first).abs().max())
    if noise > NOISE * scale:
        seen = f"the same training gave other scores (by {noise:.3g}); seed its random numbers, and check again"
        return Finding(CHECK, None, seen)
    gaps = {name: float((scores(other) - first).abs().max()) for name, other in other_later_parts(data, rng).items()}
    for name, leak in LEAKS.items():
        gap = gaps.get(name, 0.0)
        if not gap <= max(EXACT * scale, 10 * noise):
            return Finding(CHECK, False, f"it {leak}: trained again on data that differs there alone, {gap:.3g} off")
    elsewhere = knowledge(train, data, queries, valid_start=valid_start, seed=seed)
    if elsewhere is not None:
        return _from_elsewhere(elsewhere)
    early = _other_train(data, rng)
    if float((scores(early, Past(early.events)) - first).abs().max()) <= EXACT * scale:
        return Finding(CHECK, None, f"its scores do not depend on the data that it is given: they are {MAKERS_WORD}")
    times = data.events.clock.label(data.test_start or 0)
    return Finding(CHECK, True, f"trained {len(gaps) + 4} times: the same scores whatever happens from {times} on")


def _from_elsewhere(found: Elsewhere) -> Finding:
    seen = (
        "trained on data in which entities changed places, it still ranks what really happened above what was made up "
        f"(MRR {found.true:.2f} and {found.invented:.2f})"
    )
    if found.later:
        return Finding(CHECK, False, f"it knows later events that are not in the data that it is given: {seen}")
    return Finding(CHECK, None, f"it knows events from elsewhere: {seen}; what else it knows is {MAKERS_WORD}")


def other_later_parts(data: Dataset, rng: np.random.Generator) -> dict[str, Dataset]:
    """The same data with another later part: from the first step of test on, or after it, by what differs there."""
    events, start = data.events, data.test_start
    assert start is not None
    before, now, later = events.prefix(start), events.between(start, start + 1), events.between(start + 1, events.end)

    def made(now: EventLog, later: EventLog) -> Dataset:
        return replace(data, events=before.append(now).append(later) if len(later) else before.append(now))

    active = np.union1d(now.subject, now.object)
    idle = np.setdiff1d(np.arange(events.n_entities), active)
    pool = idle if len(idle) > 1 else np.arange(events.n_entities)
    found = {
        "paired": made(_with(now, object_=np.roll(now.object, 1)), later),
        "active": made(_with(now, rng.choice(pool, len(now)), rng.choice(pool, len(now))), later),
        "cut": replace(data, events=before, test_start=None),
    }
    if len(later):
        parties = rng.integers(events.n_entities, size=(2, len(later)))
        found["later"] = made(now, _with(later, parties[0], parties[1]))
    return found


def _other_train(data: Dataset, rng: np.random.Generator) -> Dataset:
    """The same data with other parties in train."""
    parties = rng.integers(data.events.n_entities, size=(2, len(data.train)))
    rest = data.events.between(data.valid_start, data.events.end)
    return replace(data, events=_with(data.train, parties[0], parties[1]).append(rest))


def _with(events: EventLog, subject: np.ndarray | None = None, object_: np.ndarray | None = None) -> EventLog:
    return replace(
        events,
        subject=events.subject if subject is None else subject,
        object=events.object if object_ is None else object_,
    )


def practice(events: EventLog) -> Dataset:
    """The last events under a split of their own, whose test begins with a step of several events."""
    last = events.rows(max(0, len(events) - MOST_EVENTS), len(events))
    if len(last) < len(events):
        last = last.between(last.start + 1, last.end)  # whole steps alone
    data = Dataset.chronological("events", last, valid=0.15, test=0.2)
    steps, counts = np.unique(data.test.step, return_counts=True)
    several = steps[counts > 1]
    start = int(several[0]) if len(several) else int(steps[0])
    return replace(data, test_start=start)


def _asked(data: Dataset, rng: np.random.Generator, most: int) -> Queries:
    """Queries of the first step of test, and of the last one before it."""
    start = data.test_start
    assert start is not None
    events, before = data.events, data.valid.end - 1
    parts = [Queries.of(events.between(step, step + 1)) for step in (start, before)]
    drawn = [part.take(torch.from_numpy(rng.permutation(len(part))[:most])) for part in parts]
    return Queries(*(torch.cat([getattr(part, name) for part in drawn]) for name in ("actor", "relation", "step")))


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def check_retrained(
    train: Train,
    events: EventLog,
    *,
    queries: int = 64,
    seed: int = 0,
    valid_start: int | None = None,
    reads: Reads | None = None,
) -> Finding:
    """As `retrained`; a model that cannot be trained on part of the data is not checkable by it.

    Nor is one that reads files of its own. reads: what it opened before.
    """
    reads = reads or Reads()
    try:
        with reads.watching():
            found = retrained(train, events, queries=queries, seed=seed, valid_start=valid_start)
    except BackboneError as problem:
        found = Finding(CHECK, None, f"it cannot be trained on a part of the data: {problem}".rstrip("."))
    return with_reads(found, reads)


def with_reads(found: Finding, reads: Reads) -> Finding:
    """A finding on a model that opened files of its own: these are named, and it is not shown to know nothing later."""
    if not reads:
        return found
    if found.passed is not None and found.passed:
        return replace(found, passed=None, seen=f"it read {reads}: what is in there is {MAKERS_WORD}")
    return replace(found, seen=f"{found.seen}; it read {reads}")

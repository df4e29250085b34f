"""Knowledge from elsewhere: whether a model knows events which nothing in the data that it was given tells.

The model is trained on data in which entities of like degree changed places. This data says nothing of who really met
whom, so a model that learns from it alone ranks the true later events no better than invented ones: the same events
with the entities changed in other ways. Both are equally likely for it, whatever it does and however good it is. One
that kept a checkpoint, a file or a table of the true events ranks these first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from bridgemem.backbones.scorer import Scorer, score_queries
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past

ALIKE = 16  # entities that change places with each other: of neighbouring degree, so that popularity says nothing
INVENTED = 39
ERRORS = 5.0  # how many standard deviations of the invented ones the true ones are above them
CLEAR = 0.02  # in MRR
KNOWN = 0.15  # in MRR, above counting on new events: more than what learning from earlier events adds
FEW = 8  # new events of which nothing is said


@dataclass(frozen=True)
class Elsewhere:
    """Mean reciprocal ranks of the true events, and of invented ones; and whether some were known before they happened.

    later: among new events it is far better than counting which knows all earlier events.
    """

    true: float
    invented: float
    later: bool


def knowledge(
    train: Callable[[Dataset], Scorer], data: Dataset, most: int, *, valid_start: int | None = None, seed: int = 0
) -> Elsewhere | None:
    """What a model knows of the true events at the end of the data; None where it shows nothing.

    valid_start: from when on the events count as later, where it is known: a model that is trained elsewhere on the
    train split may know those before.
    """
    rng = np.random.default_rng(seed)
    start = max(data.test_start or 0, valid_start or 0)
    later = data.events.between(start, data.events.end)
    if not len(later):
        return None
    drawn, unheard = rng.permutation(len(later)), _new(later, data.events.prefix(start))
    drawn = drawn[np.argsort(~unheard[drawn], kind="stable")]  # what never happened before says most
    half = max(1, most // 4)
    rows = np.sort(np.concatenate([drawn[:half], drawn[max(half, len(drawn) - half) :]]))
    shown = later.take(rows)
    told = _counted(shown, data.events.prefix(start))
    new = unheard[rows] & (valid_start is not None)
    compared = np.where(np.repeat(new, 2), told, np.inf)  # an event is two queries
    first = _measured(train, data, shown, compared, rng)
    # a draw may leave a hub in its place by chance, two of them do not
    again = None if first is None else _measured(train, data, shown, compared, rng)
    return None if first is None or again is None else replace(again, later=first.later and again.later)


def _measured(
    train: Callable[[Dataset], Scorer], data: Dataset, shown: EventLog, told: np.ndarray, rng: np.random.Generator
) -> Elsewhere | None:
    """told: of each query, the reciprocal rank by what earlier events tell; infinite where nothing is compared."""
    places = _alike(data.events)
    events = _renamed(data.events, _changed(places, rng))
    model, past = train(replace(data, events=events)), Past(events)

    def reciprocal(shown: EventLog) -> np.ndarray:
        asked = Queries.of(shown)
        return _reciprocal(score_queries(model, asked, past).log_p, asked)

    true = reciprocal(shown)
    invented = np.stack([reciprocal(_renamed(shown, _changed(places, rng))) for _ in range(INVENTED)])
    each = invented.mean(axis=1)
    if true.mean() <= each.max() or true.mean() - each.mean() < max(CLEAR, ERRORS * each.std()):
        return None
    above = (true - told)[np.isfinite(told)]
    later = len(above) >= FEW and above.mean() > max(KNOWN, 3 * above.std() / len(above) ** 0.5)
    return Elsewhere(float(true.mean()), float(each.mean()), bool(later))


def _reciprocal(score: torch.Tensor, asked: Queries) -> np.ndarray:
    """1 / rank of the answers with mean ties, float64 [n]."""
    assert asked.answer is not None
    own = score.gather(1, asked.answer.to(score.device)[:, None])
    rank = 0.5 + (score > own).sum(1) + (score == own).sum(1) / 2
    return (1 / rank).double().cpu().numpy()


def _counted(shown: EventLog, earlier: EventLog) -> np.ndarray:
    """1 / rank of the answers by how often the two parties interacted before, and by the relation's counts."""
    asked, known = Queries.of(shown), Queries.of(earlier)
    assert known.answer is not None
    score = torch.zeros(len(asked), earlier.n_entities, dtype=torch.float64)
    for row in range(len(asked)):
        same = [known.actor == asked.actor[row], known.relation == asked.relation[row]]
        pair, often = (torch.bincount(known.answer[own], minlength=earlier.n_entities) for own in same)
        score[row] = pair + often / (1 + often.sum())
    return _reciprocal(score, asked)


def _alike(events: EventLog) -> list[np.ndarray]:
    """Groups of entities of neighbouring degree, ids int64."""
    degree = np.bincount(np.concatenate([events.subject, events.object]), minlength=events.n_entities)
    order = np.argsort(-degree, kind="stable")
    return [order[at : at + ALIKE] for at in range(0, len(order), ALIKE)]


def _changed(groups: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """The entity in the place of each, int64 [E], drawn within each group."""
    changed = np.empty(sum(map(len, groups)), np.int64)
    for group in groups:
        changed[group] = rng.permutation(group)
    return changed


def _renamed(events: EventLog, changed: np.ndarray) -> EventLog:
    """The same events with other entities, in the order of the events."""
    return replace(
        events,
        subject=changed[events.subject].astype(events.subject.dtype),
        object=changed[events.object].astype(events.object.dtype),
    )


def _new(shown: EventLog, earlier: EventLog) -> np.ndarray:
    """Which events never happened before, bool."""

    def keys(events: EventLog) -> np.ndarray:
        pair = events.subject.astype(np.int64) * events.n_entities + events.object
        return pair * events.n_relations + events.relation

    return ~np.isin(keys(shown), keys(earlier))

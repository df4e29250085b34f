"""What the explorer's page shows beyond the service's own answers: the clock, a pair's past, the backbone, quality."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch

from bridgemem.errors import BridgeMemError, RunError
from bridgemem.evaluation.breakdown import Stratum
from bridgemem.evaluation.records import Record, metrics_of
from bridgemem.evaluation.strata import by_support, read_strata
from bridgemem.evaluation.tables import MAIN_METHODS, fitted_here
from bridgemem.events.log import Clock, EventLog
from bridgemem.events.queries import Queries
from bridgemem.forecasting.explanations import rank_of
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.ledger import Ledger
from bridgemem.live.track_record import Score
from bridgemem.memory.pairs import PairEvents
from bridgemem.memory.past import Past
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.ranking.ranks import best_first
from bridgemem.residuals.method import BACKBONE, Method
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table

MOST_BINS = 120  # of the picture of all events under the slider
MOST_EVENTS = 2000  # of one pair; the newest are shown
STRATA = ("history", "entities")  # groups that are shown
LATELY = 0.1  # the share of the events that the first query is taken from


@dataclass(frozen=True)
class Overview:
    """The steps that can be asked for, start..end, how busy they were, and a query to begin with.

    activity: events in stretches of `stretch` steps from the start to the end; empty without events. labels: words for
    relations that are codes.
    """

    clock: Clock
    start: int
    end: int
    activity: list[int]
    stretch: int
    actor: str | None
    relation: str | None
    labels: dict[str, str]


def overview(events: EventLog) -> Overview:
    if not len(events):
        return Overview(events.clock, events.start, events.end, [], 1, None, None, {})
    stretch = math.ceil((events.end - events.start) / MOST_BINS)
    activity = np.bincount((events.step - events.start) // stretch)
    late = slice(len(events) - math.ceil(LATELY * len(events)), None)
    asked = events.subject[late].astype(np.int64) * events.n_relations + events.relation[late]
    values, counts = np.unique(asked, return_counts=True)
    actor, relation = divmod(int(values[counts.argmax()]), events.n_relations)
    names = events.entities.names[actor], events.relations.names[relation]
    labels = {name: label for name in events.relations.names if (label := events.relations.label(name))}
    return Overview(events.clock, events.start, events.end, activity.tolist(), stretch, *names, labels)


@dataclass(frozen=True)
class PairPast:
    """The events of two parties strictly before a step, oldest first, in columns.

    relation: the names; which: the place of each event's relation in it; forward: it went from the actor to the
    candidate. total counts those too that are left out because they are older than the newest MOST_EVENTS.
    """

    relation: list[str]
    step: list[int]
    which: list[int]
    forward: list[bool]
    total: int


def pair_past(past: Past, actor: str, candidate: str, step: int) -> PairPast:
    events = past.events
    found = PairEvents.of(past, events.entity_id(actor), events.entity_id(candidate), step, most=MOST_EVENTS).once()
    relations, which = found.relation.flip(0).unique(return_inverse=True)
    return PairPast(
        [events.relations.names[r] for r in relations.tolist()],
        found.step.flip(0).tolist(),
        which.tolist(),
        (found.direction == 0).flip(0).tolist(),
        found.n_events,
    )


def outcome(
    events: EventLog, relation: str, step: int, *, subject: str | None = None, object: str | None = None
) -> list[str] | None:
    """Whom the answer turned out to be, or None where the step lies beyond what is known."""
    if step >= events.end:
        return None
    now = events.between(step, step + 1)
    asked, answer = (now.object, now.subject) if subject is None else (now.subject, now.object)
    actor = events.entity_id(subject if subject is not None else object or "")
    hits = (asked == actor) & (now.relation == events.relation_id(relation))
    return [events.entities.names[c] for c in np.unique(answer[hits]).tolist()]


@dataclass(frozen=True)
class Opinion:
    """A candidate as the backbone alone sees it; share: its part of the probability, all candidates together 1."""

    name: str
    rank: int
    share: float


def opinions(
    forecaster: Predictor, triple: tuple[str, str, str], step: int, *, candidate: str, top: int
) -> list[Opinion]:
    """The backbone's own best candidates, and after them the selected one if it is not among them."""
    subject, relation, object_ = triple
    inverse = candidate == "subject"
    asked = forecaster.query(None, relation, object=object_) if inverse else forecaster.query(subject, relation)
    query = Queries(asked.actor, asked.relation, torch.tensor([step]))
    log_p = forecaster.scores(query).of_candidates[0].double()
    share, looked_at = log_p.softmax(0), forecaster.events.entity_id(subject if inverse else object_)
    known = int((log_p > -torch.inf).sum())
    best: list[int] = best_first(log_p[None], top)[0, :known].tolist()
    shown = best if looked_at in best else [*best, looked_at]
    names = forecaster.events.entities.names
    return [Opinion(names[c], rank_of(log_p, c), float(share[c])) for c in shown]


@dataclass(frozen=True)
class Recorded:
    """Scores of issued forecasts. overall: of each probability. why: what to do where none was issued."""

    forecasts: int
    claims: int = 0
    open: int = 0
    void: int = 0
    overall: tuple[Score, ...] = ()
    scores: tuple[Score, ...] = ()
    why: str = ""


def recorded(store: EventStore, by: str) -> Recorded:
    """The track record of a store's ledger, resolved as far as its events reach."""
    ledger = Ledger(store)
    if not ledger.exists:
        return Recorded(0, why="No forecast was issued yet; `bridgemem forecast RUN ... --issue STORE` issues one.")
    ledger.resolve()
    overall = ledger.score()
    scores = overall.scores if by == "all" else ledger.score(by=by).scores
    return Recorded(overall.forecasts, overall.claims, overall.open, overall.void, overall.scores, scores)


@dataclass(frozen=True)
class Measured:
    """One method under one filter; gain: of each metric over the backbone, with both ends of its 95 % interval.

    remark: what is said after its name, of a residual that was cross-fitted, or fitted on these very queries.
    """

    method: str
    filter: str
    metrics: dict[str, float]
    gain: dict[str, list[float]]
    remark: str = ""


@dataclass(frozen=True)
class Part:
    """The queries whose answer has that much support, and the gain in MRR there under one filter."""

    support: str
    filter: str
    method: str
    queries: int
    backbone: float
    gain: list[float]


@dataclass(frozen=True)
class Quality:
    """How good a run is on one split; without a split it was not evaluated yet, and `why` says what to do."""

    split: str | None
    queries: int = 0
    measured: tuple[Measured, ...] = ()
    parts: tuple[Part, ...] = ()
    strata: tuple[Stratum, ...] = ()
    why: str = ""


def quality(run: Run) -> Quality:
    """What was measured on test, or on validation where test was not read."""
    try:
        split = next((name for name in ("test", "valid") if metrics_of(run, name)), None)
        if split is None:
            raise RunError(f"{run.folder} has not been evaluated; run `bridgemem evaluate {run.folder}`.")
        found = metrics_of(run, split)
        measured = _measured(found)
        kept = read_strata(run, split)
        strata = () if kept is None else tuple(one for one in kept.strata if one.group in STRATA)
        return Quality(split, found[0].queries, measured, _parts(run, split, measured), strata)
    except BridgeMemError as problem:
        return Quality(None, why=str(problem))


def _remark(record: Record) -> str:
    return (", cross-fitted" if record.cross_fit else "") + fitted_here(record.method, record.split)


def _measured(records: list[Record]) -> tuple[Measured, ...]:
    """Each method under each filter as it was chosen there; nothing is chosen under raw, which shows that of time."""
    return tuple(
        Measured(r.method, f, {m: getattr(r, m) for m in METRICS}, dict(r.gain), _remark(r))
        for f in FILTERS
        for r in records
        if r.filter == f and r.method in MAIN_METHODS and r.subset is None and r.as_chosen
    )


def _parts(run: Run, split: str, measured: tuple[Measured, ...]) -> tuple[Part, ...]:
    columns = read_table(run.ranks_path(split))
    masks = {name: mask for name, mask in by_support(columns).items() if mask.any()}
    found = []
    for f in SELECTION_FILTERS:
        for method in (m.method for m in measured if m.filter == f and m.method != "backbone"):
            # the learned residual may be one for all filters
            after = next((columns[c] for by in (f, "raw") if (c := Method(method, by).column(f)) in columns), None)
            if after is None:
                continue
            for name, mask in masks.items():
                before = columns[BACKBONE.column(f)][mask]
                gain = paired_gains(before, after[mask], columns["step"][mask])["mrr"]
                values = list(asdict(gain).values())
                found.append(Part(name, f, method, int(mask.sum()), Metrics.of(before).mrr, values))
    return tuple(found)

"""Renewal: the model that is served replaced by a newer one, if an honest comparison does not find that one worse.

A candidate is fitted without the last steps of the store. It and the model that is served are asked about the events of
these steps, each from what happened strictly before. Only if the candidate is not worse is a run fitted on everything;
it then takes the place of the one that is served.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bridgemem.config import Count, NotNegative, check
from bridgemem.forecaster import Forecaster
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.live.refit import can_refit, refit
from bridgemem.live.refresh import next_name, refresh
from bridgemem.live.versions import promote
from bridgemem.live.window import Measured, measured
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.intervals import paired_gain
from bridgemem.runs import Run

WINDOW = 7  # steps at the end of the store that models are compared on
ENOUGH = 0.2  # new events, as a share of those that the selection was made on, from which on everything is chosen again
LEAST = 20  # queries below which nothing can be said


@dataclass(frozen=True)
class Renewal:
    """What became of one round.

    outcome: "renewed", "kept" (the candidate was worse) or "waiting" (too little has happened). how: "refresh" keeps
    what was chosen, "refit" chooses and calibrates again. window: steps that both were compared on, from `start` to
    `end`. gain: of the candidate's time-aware MRR over the serving one's on the same queries, with its 95 % interval.
    run, model_version: what is served afterwards.
    """

    when: str
    outcome: str
    reason: str
    how: str | None
    new_events: int
    window: int
    start: str | None
    end: str | None
    queries: int
    serving_mrr: float | None
    candidate_mrr: float | None
    gain: float | None
    low: float | None
    high: float | None
    run: str
    model_version: str
    before: str


@dataclass(frozen=True)
class Rules:
    """When and how to renew. window: steps to compare on; enough: as `ENOUGH`; keep: runs of the link that stay."""

    window: int = WINDOW
    enough: float = ENOUGH
    keep: int | None = None

    def __post_init__(self) -> None:
        check("window", self.window, Count)
        check("enough", self.enough, NotNegative)
        check("keep", self.keep, Count | None)


def renew(
    link: Path | str,
    store: EventStore,
    rules: Rules | None = None,
    *,
    load: Callable[[Path], Run] = Run,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Renewal:
    """Compare a newer model with the one that is served, and serve it if it is not worse.

    Args:
        link: The link to the run that is served, next to the runs.
        store: The event store that the run follows.
        rules: What to compare on, and when to choose again.
        load: How a run folder is opened.
        device: "cpu" or "cuda".
        progress: Where the fits report to.

    Returns:
        What was compared and what became of it; `LINK.renewals.jsonl` keeps it too.
    """
    rules, link = rules or Rules(), Path(link)
    run = load(link.resolve())
    serving = LiveForecaster(Forecaster.load(run.folder, data_dir=run.data_dir), store)
    known, end = run.dataset.events, serving.events.end
    new = len(serving.events) - len(known)
    start = end - rules.window
    if new <= 0 or start <= known.end:
        label = known.clock.label
        reason = (
            f"the run knows the events before {label(known.end)}, and the store goes on to {label(end - 1)}; a window "
            f"of {rules.window:,} steps and something before it are needed"
        )
        return _noted(link, _round("waiting", reason, new, rules, run))
    how = "refit" if new >= rules.enough * _chosen_on(run) and can_refit(run) else "refresh"
    made = refit if how == "refit" else refresh
    with tempfile.TemporaryDirectory(dir=run.folder.parent, prefix=".candidate-") as aside:
        candidate = Path(aside) / "candidate"
        made(run, store, candidate, until=start, device=device, progress=progress)
        ours = measured(serving.view.predictor, known, start)
        newer = LiveForecaster(Forecaster.load(candidate), store)
        theirs = measured(newer.view.predictor, newer.run.dataset.events, start)
        serving.follow_again()
    found = _compared(ours, theirs)
    if len(ours.ranks) < LEAST:
        reason = f"only {len(ours.ranks):,} queries in the window, and {LEAST} are needed"
        return _noted(link, _round("waiting", reason, new, rules, run, how, found))
    if found.high < 0:
        reason = "the candidate is worse: the whole interval lies below 0"
        return _noted(link, _round("kept", reason, new, rules, run, how, found))
    target = next_name(run)
    made(run, store, target, device=device, progress=progress)
    moved = promote(target, link, keep=rules.keep)
    better = "better" if found.low > 0 else "not worse"
    done = _round("renewed", f"the candidate is {better}, and was fitted on everything", new, rules, run, how, found)
    return _noted(link, done, moved.run, moved.version)


@dataclass(frozen=True)
class _Comparison:
    ours: Measured
    theirs: Measured
    gain: float
    low: float
    high: float


def _compared(ours: Measured, theirs: Measured) -> _Comparison:
    if not len(ours.ranks):
        return _Comparison(ours, theirs, 0.0, 0.0, 0.0)
    return _Comparison(ours, theirs, *paired_gain(ours.ranks, theirs.ranks, ours.step))


def _chosen_on(run: Run) -> int:
    """How many events the run had when its selection was made."""
    notes, continued = run.refreshes(), run.continues()
    if not notes:
        return len(run.dataset.events)
    return notes[0].events - notes[0].added if continued is None else continued.events


def _round(
    outcome: str,
    reason: str,
    new: int,
    rules: Rules,
    run: Run,
    how: str | None = None,
    found: _Comparison | None = None,
) -> Renewal:
    label = run.dataset.events.clock.label
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = Renewal(
        when=now,
        outcome=outcome,
        reason=reason,
        how=how,
        new_events=new,
        window=rules.window,
        start=None,
        end=None,
        queries=0,
        serving_mrr=None,
        candidate_mrr=None,
        gain=None,
        low=None,
        high=None,
        run=run.folder.name,
        model_version=run.version,
        before=run.version,
    )
    if found is None or not found.ours.queries:
        return made
    return replace(
        made,
        start=label(found.ours.start),
        end=label(found.ours.end - 1),
        queries=found.ours.queries,
        serving_mrr=found.ours.mrr,
        candidate_mrr=found.theirs.mrr,
        gain=found.gain,
        low=found.low,
        high=found.high,
    )


def _noted(link: Path, made: Renewal, run: str | None = None, version: str | None = None) -> Renewal:
    """Write a round next to the link, after those before it."""
    if run is not None and version is not None:
        made = replace(made, run=run, model_version=version)
    with link.with_name(f"{link.name}.renewals.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(made)) + "\n")
    return made

"""refresh --compare and --every: a newer model next to the one that is served, once or again and again."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.cli.follow import stopped_by_signals
from bridgemem.cli.output import counted, emit, say, warn
from bridgemem.errors import BridgeMemError, SettingsError
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.renewal import Renewal, Rules

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
LOOK = 60.0  # seconds between two looks at how far the store has come


@dataclass(frozen=True)
class Every:
    """How often to renew: after a number of seconds, or of steps of the store's own clock."""

    seconds: float | None = None
    steps: int | None = None

    @classmethod
    def of(cls, text: str) -> Every:
        found = re.fullmatch(r"\s*(\d{1,6})\s*(s|min|h|d|w|steps?)\s*", text)
        if found is None or not int(found[1]):
            raise SettingsError(f"--every is written as 30min, 24h, 7d, or 7steps of the store's clock, not {text!r}.")
        number, unit = int(found[1]), found[2]
        return cls(steps=number) if unit.startswith("step") else cls(seconds=float(number * SECONDS[unit]))


@dataclass(frozen=True)
class Round:
    """What one round needs. opened: the store, or a copy that the service that has it makes."""

    link: Path
    opened: Callable[[], AbstractContextManager[EventStore]]
    rules: Rules
    data_dir: Path | None
    device: str
    quiet: bool

    def run(self) -> Renewal:
        from functools import partial

        from bridgemem.live.renewal import renew
        from bridgemem.runs import Run

        with self.opened() as store, terminal_progress(quiet=self.quiet) as progress:
            load = partial(Run, data_dir=self.data_dir)
            return renew(self.link, store, self.rules, load=load, device=self.device, progress=progress)

    def steps_ahead(self) -> int:
        """How many steps the store has come further than the data of the run that is served."""
        from bridgemem.runs import Run

        run = Run(self.link.resolve(), data_dir=self.data_dir)
        events = run.dataset.events
        with self.opened() as store:
            return store.events(events).end - events.end


def compare_once(todo: Round, as_json: bool) -> None:
    """One honest comparison, and the new run where it was not worse."""
    _show(todo.run(), as_json)


def keep_renewing(todo: Round, every: Every, as_json: bool) -> None:
    """Renew again and again until Ctrl-C; a round that fails is reported, and the next one comes."""
    with stopped_by_signals() as stop:
        while not stop.is_set():
            if _due(todo, every):
                try:
                    _show(todo.run(), as_json)
                except (BridgeMemError, OSError) as problem:
                    warn(f"bridgemem: this round failed, and the old model is still served: {problem}")
            _wait(stop, every)


def _due(todo: Round, every: Every) -> bool:
    if every.steps is None:
        return True
    try:
        return todo.steps_ahead() >= every.steps
    except (BridgeMemError, OSError) as problem:
        warn(f"bridgemem: the store cannot be read: {problem}")
        return False


def _wait(stop: threading.Event, every: Every) -> None:
    stop.wait(LOOK if every.seconds is None else every.seconds)


def _show(made: Renewal, as_json: bool) -> None:
    def text() -> None:
        if made.queries:
            say(f"Compared on {made.start} to {made.end}, {counted(made.queries, 'query')}, time-aware MRR:")
            say(f"  serving   {made.serving_mrr:.4f}  {made.before}")
            say(f"  candidate {made.candidate_mrr:.4f}  {made.how}, fitted without these steps")
            say(f"  gain {made.gain:+.4f}, 95 % interval {made.low:+.4f} to {made.high:+.4f}")
        if made.outcome == "renewed":
            say(f"Renewed: {made.reason}; {made.run}, version {made.model_version}, takes the place of {made.before}.")
        elif made.outcome == "kept":
            say(f"Kept {made.model_version}: {made.reason}.")
        else:
            say(f"Waiting: {made.reason}.")

    emit(asdict(made), as_json, text)

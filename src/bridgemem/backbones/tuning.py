"""Tuning: the settings that a backbone's paper tunes by data set, chosen on validation within a budget of time."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bridgemem.backbones import backbone_class, backbone_defaults, backbone_names
from bridgemem.backbones.base import Backbone, Grid
from bridgemem.backbones.scorer import score_queries
from bridgemem.config import Declared, NotNegative
from bridgemem.errors import RunError, SettingsError
from bridgemem.events.dataset import Dataset
from bridgemem.events.datasets import benchmark_name
from bridgemem.events.loading import load
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress, Step, remark
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.ranks import answer_ranks, batch_of
from bridgemem.showing import as_frame, html_table
from bridgemem.storage.files import read_json, write_json
from bridgemem.storage.schema import as_settings, settings_of
from bridgemem.training.devices import check_device, describe_device

TUNING = "tuning.json"  # next to the weights of a backbone that was tuned
BUDGET = 600.0  # seconds of trials, where nothing else is said
QUERIES = 10_000  # of validation that a trial is measured on
SAMPLE_SEED = 0
LEAST_GAIN = 0.001  # of MRR that a trial has to be above the best so far: less is noise
HEADER = ["backbone", "settings", "MRR", "seconds", ""]
CUT, NO_ROOM = "cut off: the budget was spent", "out of memory"


@dataclass(frozen=True)
class Trial(Declared):
    """One setting tried: what it changes of where tuning began, and its time-aware MRR on validation, None without."""

    backbone: str
    changed: dict[str, Any]
    mrr: float | None
    seconds: NotNegative
    note: str = ""

    @property
    def words(self) -> str:
        """What was changed, as `--set` takes it."""
        return changed_words(self.changed)


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`: the chosen settings and every trial. Only train and validation were read.

    Attributes:
        settings: The chosen settings.
        trials: Every trial, in order.
        queries: Number of validation queries that each trial was measured on.
        budget: Seconds that were granted.
        whole: Whether the search ended within the budget.
        seed: Of every training.
        device: "cpu" or "cuda".
        fingerprint: Of the train split.
        grid: Number of trials that one round over the grid takes, by backbone.
        settled: Backbones whose search came to its end.

    Example:
        >>> tuning.settings.decay in (0.5, 0.9, 0.99), len(tuning.trials) > 2
        (True, True)
    """

    settings: Any
    trials: tuple[Trial, ...]
    queries: int
    budget: float
    whole: bool
    seed: int
    device: str
    fingerprint: str
    grid: dict[str, int] = field(default_factory=dict)
    settled: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of all trials together."""
        return sum(trial.seconds for trial in self.trials)

    def best(self, backbone: str) -> Trial | None:
        """Find the trial whose settings were chosen for a backbone.

        Args:
            backbone: Its name; the name of a member for an ensemble.

        Returns:
            The trial; None if none ended.

        Example:
            >>> tuning.best("recurrence").backbone
            'recurrence'
        """
        found: Trial | None = None
        for trial in self.trials:
            if trial.backbone == backbone and trial.mrr is not None and _beats(trial, found):
                found = trial
        return found

    def as_dict(self) -> dict[str, Any]:
        """Make a dict of plain values, as it is kept next to the trained backbone.

        Returns:
            Trials, chosen settings and the conditions of the search.

        Example:
            >>> tuning.as_dict()["split"]
            'valid'
        """
        named = ("queries", "budget", "whole", "seed", "device", "fingerprint", "grid", "settled")
        kept = {name: getattr(self, name) for name in named}
        backbones = dict.fromkeys(trial.backbone for trial in self.trials)
        chosen = {name: {} if (one := self.best(name)) is None else one.changed for name in backbones}
        how = {"split": "valid", "filter": "time", "seconds": self.seconds, "least_gain": LEAST_GAIN, "chosen": chosen}
        return {**kept, **how, "trials": [asdict(trial) for trial in self.trials]}

    def to_frame(self) -> Any:
        """Make a data frame with one row per trial, in order.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> list(tuning.to_frame())
            ['backbone', 'settings', 'mrr', 'seconds', 'note']
        """
        names = ("backbone", "words", "mrr", "seconds", "note")
        titles = ("backbone", "settings", "mrr", "seconds", "note")
        return as_frame({title: [getattr(t, n) for t in self.trials] for title, n in zip(titles, names, strict=True)})

    def __repr__(self) -> str:
        best = max((t.mrr for t in self.trials if t.mrr is not None), default=None)
        shown = "no trial ended" if best is None else f"best validation MRR {best:.4f}"
        return f"Tuning({len(self.trials)} trials in {self.seconds:.0f} s, {shown})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), HEADER, self.rows())

    def rows(self) -> list[list[str]]:
        """Write the trials as rows of a table.

        Returns:
            One list of texts per trial.

        Example:
            >>> len(tuning.rows()) > 2
            True
        """
        return trial_rows(self.as_dict())


def tune(
    backbone: str | type[Backbone],
    data: Any,
    *,
    settings: Any = None,
    budget: str | float = BUDGET,
    held: Sequence[str] = (),
    seed: int = 42,
    device: str = "cpu",
    queries: int = QUERIES,
    keep: Path | None = None,
    progress: Progress = SILENT,
) -> Tuning:
    """Choose the settings of a backbone on validation; test is never read.

    Each trial trains with one setting changed, for fewer epochs than a whole training where it has any, and is measured
    by its time-aware MRR on a sample of validation. The settings of the grid are tried one after the other, in the
    order that the backbone declares them, again until none gains any more or the budget is spent.

    Args:
        backbone: A registered name or a class. Of an ensemble every member is tuned, with an equal share of the budget.
        data: Whatever `load` takes.
        settings: Where to begin; those of the data set when left out.
        budget: Time for all trials: seconds, or a text as "90s", "10m" or "2h". A trial that reaches it is cut off.
        held: Names of settings that stay as they are.
        seed: Of everything that a trial draws.
        device: "cpu" or "cuda".
        queries: The most queries of validation that a trial is measured on.
        keep: A file for the trials made so far; the same tuning goes on from there.
        progress: Where the trials are shown.

    Returns:
        The settings, for `Forecaster(name, backbone_settings=...)`, and the trials.

    Example:
        >>> import bridgemem as bm
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> made = bm.tune("hri", world, budget="1m")
        >>> made.trials[0].changed
        {}
    """
    kind = backbone_class(backbone) if isinstance(backbone, str) else backbone
    dataset = load(data, progress=progress)
    began, known = settings_of(type(kind.default), settings) or default_of(kind, dataset), dataset.without_test()
    trials = _Trials(known, seed, check_device(device), queries, seconds_of(budget), keep, progress)
    members = kind.parts(began)
    if not members:
        best, whole = trials.searched(kind, began, held, trials.budget)
        return trials.tuning(replace(began, **best), whole)
    chosen, all_whole = {}, True
    for place, (name, own) in enumerate(members.items()):
        own_held = [one.partition(".")[2] for one in held if one.startswith(f"{name}.")]
        until = trials.spent + (trials.budget - trials.spent) / (len(members) - place)
        chosen[name], whole = trials.searched(backbone_class(name), own, own_held, until)
        all_whole &= whole
    return trials.tuning(kind.with_parts(began, chosen), all_whole)


def default_of(kind: type[Backbone], dataset: Dataset) -> Any:
    """Settings of a class for a data set; own data that is called like a benchmark has none of its own."""
    registered = kind.name in backbone_names() and backbone_class(kind.name) is kind
    return backbone_defaults(kind.name, benchmark_name(dataset)) if registered else kind.default


def seconds_of(budget: str | float) -> float:
    """A time as seconds: a number of them, or a text with a unit, as in 90s, 10m or 2h."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([smh]?)\s*", str(budget))
    if found is None or not (seconds := float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]):
        raise SettingsError(f"the budget is a time above 0, as 90s, 10m or 2h, not {budget!r}.")
    return seconds


def as_text(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(as_text, value)) if isinstance(value, tuple | list) else str(value)


def changed_words(changed: Mapping[str, Any]) -> str:
    """Changed settings, each as `--set` takes it."""
    return ", ".join(f"{name}={as_text(value)}" for name, value in changed.items()) or "the defaults"


def trial_rows(tuned: Mapping[str, Any]) -> list[list[str]]:
    """The trials that are kept with a backbone, as words under `HEADER`."""
    return [
        [
            trial["backbone"],
            changed_words(trial["changed"]),
            "" if trial["mrr"] is None else f"{trial['mrr']:.4f}",
            f"{trial['seconds']:.1f}",
            trial["note"],
        ]
        for trial in tuned["trials"]
    ]


def _beats(trial: Trial, best: Trial | None) -> bool:
    assert trial.mrr is not None
    return best is None or best.mrr is None or trial.mrr >= best.mrr + LEAST_GAIN


class _OutOfTimeError(Exception):
    """The budget is spent in the middle of a trial."""


class _Until:
    """A progress whose steps end the work when the time has come."""

    def __init__(self, progress: Progress, end: float) -> None:
        self.progress, self.end = progress, end

    @contextmanager
    def task(self, label: str, total: int | None = None) -> Iterator[Step]:
        with self.progress.task(label, total) as advance:

            def step(count: int = 1, /, *, note: str | None = None) -> None:
                advance(count, note=note)
                if time.monotonic() > self.end:
                    raise _OutOfTimeError

            yield step


class _Trials:
    """The trials of one tuning, in a budget of seconds that those of an earlier start count towards."""

    def __init__(
        self,
        known: Dataset,
        seed: int,
        device: str,
        queries: int,
        budget: float,
        keep: Path | None,
        progress: Progress,
    ) -> None:
        self.known, self.seed, self.device, self.budget = known, seed, device, budget
        self.asked = Queries.sampled(known.valid, queries, SAMPLE_SEED)
        self.keep, self.progress = keep, progress
        self.before = self._kept()
        self.made: list[Trial] = []
        self.grid: dict[str, int] = {}  # trials of one round, by backbone
        self.settled: list[str] = []

    @property
    def spent(self) -> float:
        return sum(trial.seconds for trial in self.made)

    @property
    def _key(self) -> dict[str, Any]:
        """What identifies these trials."""
        known = self.known
        return {
            "fingerprint": known.events.fingerprint,
            "valid_start": known.valid_start,
            "seed": self.seed,
            "device": torch.device(self.device).type,
            "queries": len(self.asked),
        }

    def _kept(self) -> list[tuple[dict[str, Any], Trial]]:
        """The whole trials of an earlier start; none where they are of another tuning or cannot be read."""
        if self.keep is None or not self.keep.is_file():
            return []
        try:
            found = read_json(self.keep)
            if found["key"] != self._key:
                return []
            return [(one["settings"], as_settings(Trial, one["trial"])) for one in found["trials"]]
        except (RunError, SettingsError, KeyError, TypeError):
            return []

    def searched(
        self, kind: type[Backbone], began: Any, held: Sequence[str], until: float
    ) -> tuple[dict[str, Any], bool]:
        """What is changed of some settings, and whether the search ended before that many seconds were spent."""
        grid = {name: values for name, values in kind.tunable(self.known).items() if name not in held}
        if not grid:
            return {}, True
        _check_grid(kind, began, grid)
        a_round = self.grid[kind.name] = _trials_of(kind, began, grid)
        if (left := until - self.spent) <= 0:
            return {}, False
        remark(
            self.progress,
            f"Tuning {kind.name}. Settings in the grid: {len(grid)}; trials in a round: {a_round}, and another round "
            f"follows while one gains; budget: {_seconds(left)}.",
        )
        tried: set[str] = set()
        with self.progress.task(f"tuning {kind.name}") as advance:

            def tried_with(changed: dict[str, Any]) -> Trial:
                trial = self._trial(kind, began, changed, until)
                tried.add(repr(changed))
                advance(1, note=trial.words + ("" if trial.mrr is None else f": {trial.mrr:.4f}"))
                return trial

            best = tried_with({})
            if best.mrr is not None:
                remark(self.progress, _pace(best.seconds, left, a_round))
            changed = True
            while changed:
                changed = False
                for name, values in grid.items():
                    for value in values:
                        now = replace(began, **best.changed)
                        other = {**best.changed, name: value}
                        other = {key: other[key] for key in grid if key in other and other[key] != getattr(began, key)}
                        idle = name in kind.only_with and not getattr(now, kind.only_with[name])
                        if idle or value == getattr(now, name) or repr(other) in tried:
                            continue
                        if self.spent >= until:
                            return best.changed, False
                        trial = tried_with(other)
                        if trial.mrr is not None and _beats(trial, best):
                            best, changed = trial, True
        if whole := self.made[-1].note != CUT:
            self.settled.append(kind.name)
        return best.changed, whole

    def _trial(self, kind: type[Backbone], began: Any, changed: dict[str, Any], until: float) -> Trial:
        settings = replace(began, **changed)
        # a whole training is the winner's alone
        shorter = {n: most for n, most in kind.trial.items() if n not in changed and most < getattr(settings, n)}
        settings = kind.sized(replace(settings, **shorter), self.device)
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(settings).items()}
        for known, trial in self.before:
            if trial.backbone == kind.name and known == plain:
                self.made.append(trial)
                return trial
        began_at = time.monotonic()
        limited = _Until(self.progress, began_at + until - self.spent)
        mrr, note = None, ""
        try:
            mrr = self._measured(kind, settings, limited)
        except _OutOfTimeError:
            note = CUT
        except torch.OutOfMemoryError:
            note = NO_ROOM
        if torch.device(self.device).type == "cuda":
            gc.collect()  # recorded steps go with the network that they belong to
            torch.cuda.empty_cache()
        made = Trial(kind.name, changed, mrr, time.monotonic() - began_at, note)
        self.made.append(made)
        if mrr is not None:
            self.before.append((plain, made))
            self._write()
        return made

    def _write(self) -> None:
        if self.keep is not None:
            trials = [{"settings": settings, "trial": asdict(trial)} for settings, trial in self.before]
            write_json(self.keep, {"key": self._key, "trials": trials})

    def _measured(self, kind: type[Backbone], settings: Any, progress: Progress) -> float:
        made = kind.fit(self.known, settings, seed=self.seed, device=self.device, progress=progress)
        return validation_mrr(made, self.asked, past=self.past, filters=self.filters, progress=progress)

    @cached_property
    def past(self) -> Past:
        return Past(self.known.events, device=self.device)

    @cached_property
    def filters(self) -> Filters:
        return Filters(self.known.events, self.device)

    def tuning(self, settings: Any, whole: bool) -> Tuning:
        return Tuning(
            settings,
            tuple(self.made),
            queries=len(self.asked),
            budget=self.budget,
            whole=whole,
            seed=self.seed,
            device=describe_device(self.device),
            fingerprint=self.known.train.fingerprint,
            grid=self.grid,
            settled=tuple(self.settled),
        )


def _trials_of(kind: type[Backbone], began: Any, grid: Grid) -> int:
    """The trials of one round: where it begins, and every other value of what is read there."""
    read = [name for name in grid if name not in kind.only_with or getattr(began, kind.only_with[name])]
    return 1 + sum(value != getattr(began, name) for name in read for value in grid[name])


def _pace(seconds: float, budget: float, a_round: int) -> str:
    """What the first trial lets expect; those of other settings may take more or less."""
    held = max(1, int(budget / max(seconds, 1e-3)))
    return (
        f"The first trial took {_seconds(seconds)}. If all take as long, the budget holds about {held:,} of them, and "
        f"a round of {a_round} needs about {_seconds(seconds * a_round)}."
    )


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _check_grid(kind: type[Backbone], settings: Any, grid: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a grid that names what is no setting, which is a mistake of the backbone's author."""
    for name in (*grid, *kind.trial, *kind.only_with.values()):
        if not hasattr(settings, name):
            raise SettingsError(f"{kind.name} would tune {name!r}, which is none of its settings; repair its `grid`.")


@torch.no_grad()
def validation_mrr(
    backbone: Backbone, queries: Queries, *, past: Past, filters: Filters, progress: Progress = SILENT
) -> float:
    """The time-aware MRR of a backbone alone on queries, each from the facts before its step."""
    size, total = batch_of(past.events, past.device), 0.0
    with progress.task("reading validation", total=len(queries)) as advance:
        for part in queries.batches(size):
            batch = part.to(past.device)
            log_p = score_queries(backbone, batch, past).log_p
            assert batch.answer is not None
            nobody = batch.answer.new_empty(0)
            nothing = torch.empty((0, 1), dtype=torch.float64, device=log_p.device)
            masks = [filters.mask("time", batch)]
            ranks = answer_ranks(log_p, batch.answer, nobody, nobody, nothing, masks)
            total += float((1 / ranks).sum())
            advance(len(part))
    return total / max(len(queries), 1)

"""Compare: paired differences of any two methods, rows or runs on the same queries, and the reasons to refuse one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.backbones.base import Backbone
from bridgemem.errors import RunError, SettingsError
from bridgemem.evaluation.breakdown import OWN_ROWS, ranks_of
from bridgemem.evaluation.tables import FILTER_WORDS, HEADINGS, Table, figure, interval
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.intervals import ROUGH, Gain, holm, seeded_gains, steps_note
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.runs import Run
from bridgemem.showing import as_frame
from bridgemem.storage.tables import ASKED, RANK
from bridgemem.studies.ranks import Ranks, as_run, ranks, run_columns, with_baseline

SAME = ("fingerprint", "valid_start", "test_start", "history")


@dataclass(frozen=True)
class Difference:
    """B - A in one metric under one filter, with its 95 % interval.

    method: the row, where both runs have it; else empty. p: of no difference, two-sided; p_holm: corrected for all that
    were compared under the same filter in the same metric. Means over seeds where there are several.
    """

    method: str
    filter: str
    metric: str
    first: float
    second: float
    gain: Gain
    a: str = "A"
    b: str = "B"
    seeds_a: int = 1
    seeds_b: int = 1
    p: float = 1.0
    p_holm: float = 1.0


@dataclass(frozen=True)
class Comparison:
    """Paired differences between methods; prints as a table.

    Attributes:
        dataset: Name of the data.
        split: "test" or "valid".
        queries: Number of queries.
        differences: One for each pair of methods, filter and metric.
        steps: Number of time steps, which the intervals resample.

    Example:
        >>> comparison.queries == 2 * len(data.test)
        True
    """

    dataset: str
    split: str
    queries: int
    differences: tuple[Difference, ...]
    steps: int = ROUGH

    def table(self, filter_name: str = "time", metric: str = "mrr") -> Table:
        """Make the table of one metric under one filter.

        Args:
            filter_name: "raw", "static" or "time".
            metric: "mrr", "hits1", "hits3" or "hits10".

        Returns:
            One row per difference, with interval and corrected p-value.

        Example:
            >>> comparison.table().header
            ['B - A', 'A', 'B', 'difference', 'p (Holm)']
        """
        rows = [
            [
                f"{d.b} - {d.a}",
                figure(d.first),
                figure(d.second),
                interval([d.gain.value, d.gain.low, d.gain.high]),
                f"{d.p_holm:.4f}",
            ]
            for d in self.differences
            if (d.filter, d.metric) == (filter_name, metric)
        ]
        what = f"{HEADINGS[metric]}, {FILTER_WORDS[filter_name]}"
        title = f"{self.dataset}, {self.split}, {self.queries:,} queries, {what}"
        several = any(d.seeds_a > 1 or d.seeds_b > 1 for d in self.differences)
        over = "time steps and seeds" if several else "time steps"
        note = (
            f"95 % intervals, paired, by resampling {over}; two-sided p of no difference, corrected by Holm's method."
        )
        note = f"{note} {steps_note(self.steps)}".rstrip()
        return Table(title, ["B - A", "A", "B", "difference", "p (Holm)"], rows, note)

    def to_frame(self) -> Any:
        """Make a data frame with one row per difference.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> list(comparison.to_frame())[:4]
            ['a', 'b', 'filter', 'metric']
        """
        names = ("a", "b", "filter", "metric", "first", "second")
        columns: dict[str, Any] = {name: [getattr(d, name) for d in self.differences] for name in names}
        columns |= {name: [getattr(d.gain, name) for d in self.differences] for name in ("value", "low", "high")}
        return as_frame(columns | {name: [getattr(d, name) for d in self.differences] for name in ("p", "p_holm")})

    def __str__(self) -> str:
        return self.table().markdown()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@dataclass(frozen=True, eq=False)
class Contender:
    """What is compared: one row of runs that differ in their seeds, or a baseline."""

    label: str
    row: str
    seeds: tuple[Ranks, ...]

    def of(self, filter_name: str) -> list[np.ndarray]:
        return [one.of(self.row, filter_name) for one in self.seeds]


def compare(
    *contenders: Any,
    split: str = "test",
    all_pairs: bool = False,
    device: str = "cpu",
    data_dir: Path | None = None,
    progress: Progress = SILENT,
) -> Comparison:
    """Paired differences between methods on the same queries, with intervals and corrected p-values.

    Args:
        *contenders: Each a text "RUN", "RUN:ROW" or "RUN1,RUN2:ROW" for the seeds of one method, the name or folder of
            a backbone that ranks by itself, a `Run`, a saved `Forecaster`, or a pair of one of these (or a list of
            them) and a row. Rows are backbone, bridgemem, learned and the naive ones; the run's best residual when left
            out. The first must be of a run.
        split: "test" or "valid".
        all_pairs: Compare each with every other, instead of all with the first.
        device: "cpu" or "cuda", for backbones that have to rank.
        data_dir: The folder of the named data sets.
        progress: Where that ranking is shown.

    Returns:
        A `Comparison`: prints as a table; `differences` holds the numbers.

    Raises:
        RunError: Two of them answered different queries, or one was not evaluated.

    Example:
        >>> import bridgemem as bm, tempfile
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> model = bm.Forecaster("recurrence", residual="bridgemem", settings=bm.Settings(max_epochs=1)).fit(world)
        >>> folder = model.save(tempfile.mkdtemp() + "/run")
        >>> _ = model.evaluate("test")
        >>> [round(d.gain.value, 4) for d in bm.compare(model, (model, "bridgemem")).differences[:1]]
        [0.0]
    """
    if len(contenders) < 2:
        raise SettingsError("name at least two to compare, as runs/a:learned recurrence-dyadic.")
    made: list[Contender] = []
    for given in contenders:
        made.append(_contender(given, made, split, device, data_dir, progress))
    first = made[0].seeds[0]
    for other in (one for contender in made for one in contender.seeds):
        _check_same(first, other)
    pairs = list(combinations(made, 2)) if all_pairs else [(made[0], other) for other in made[1:]]
    found = [one for a, b in pairs for one in _differences(a, b, first.columns["step"])]
    step = first.columns["step"]
    return Comparison(first.dataset.name, split, len(step), tuple(_corrected(found)), len(np.unique(step)))


def compare_runs(first: Run, second: Run, split: str = "test") -> list[Difference]:
    """Every row of its own that both runs have under a filter; refused where the runs answered different queries.

    A residual is listed once under each filter, as it was selected for that one: what ranks under it. A choice made for
    another filter, such as bridgemem.static under the time-aware filter, is compared by `compare` where it is named.
    """
    for what in SAME:
        a, b = getattr(first.config, what), getattr(second.config, what)
        if a != b:
            raise RunError(
                f"the runs differ in {what} ({a!r} and {b!r}); only runs on the same data, split and history can be "
                "compared."
            )
    before, after = run_columns(first, split), run_columns(second, split)
    if not all(np.array_equal(before[name], after[name]) for name in ASKED):
        raise RunError("the runs ranked different queries; evaluate both on the same split.")
    if _filters(before) != _filters(after):
        raise RunError("the runs were ranked under different filters; evaluate both again.")
    found = []
    for row, name in product(OWN_ROWS, FILTERS):
        a, b = ranks_of(before, row, name), ranks_of(after, row, name)
        if a is not None and b is not None:
            found += [replace(one, method=row) for one in _of_ranks([a], [b], before["step"], name)]
    return _corrected(found)


def tables_of_runs(found: Sequence[Difference], metrics: Sequence[str] = METRICS) -> list[Table]:
    """The differences of two runs, a table for each filter, the time-aware one first."""
    return [
        Table(
            FILTER_WORDS[f].capitalize(),
            ["row: metric", "A", "B", "B - A (95 % interval)", "p (Holm)"],
            [
                [
                    f"{d.method}: {HEADINGS[d.metric]}",
                    figure(d.first),
                    figure(d.second),
                    interval([d.gain.value, d.gain.low, d.gain.high]),
                    f"{d.p_holm:.4f}",
                ]
                for d in found
                if d.filter == f and d.metric in metrics
            ],
        )
        for f in reversed(FILTERS)
    ]


def _filters(columns: Iterable[str]) -> set[str]:
    """The filters that a table holds ranks under, by its columns."""
    return {name.removeprefix(RANK).partition(".")[0] for name in columns if name.startswith(RANK)}


def _contender(
    given: Any, before: Sequence[Contender], split: str, device: str, data_dir: Path | None, progress: Progress
) -> Contender:
    """What one of the things to compare means."""
    source, row = given if isinstance(given, tuple) else _parted(given)
    sources = source if isinstance(source, list) else [source]
    runs = [as_run(one, data_dir) for one in sources]
    if any(run is None for run in runs):
        if len(sources) > 1 or isinstance(given, tuple):
            raise RunError(f"{given} names something that is not a run folder; check the names.")
        if isinstance(given, str | Path) and Path(given).is_dir() and not (Path(given) / "config.toml").is_file():
            raise RunError(f"there is neither a run nor a trained backbone at {given}; check its name.")
        if not before:
            raise RunError(f"the first to compare is a run that was evaluated; {given} is none.")
        return _baseline(given, before[0].seeds[0], device, progress)
    if len(kinds := sorted({run.config.backbone for run in runs if run is not None})) > 1:
        raise RunError(f"commas join seeds of one method, and {given} joins {' and '.join(kinds)}; give them apart.")
    found = [ranks(run, split=split, data_dir=data_dir) for run in runs]
    row = row or found[0].model
    for one in found:
        one.of(row)  # or the sentence that it has no such row
    label = ",".join(Path(one.name).name for one in found) + f":{row}"
    return Contender(label, row, tuple(found))


def _parted(given: Any) -> tuple[Any, str | None]:
    """A text as its run folders and its row."""
    if not isinstance(given, str) or Path(given).exists():
        return given, None
    names, colon, row = given.rpartition(":")
    listed = (names if colon else given).split(",")
    return (listed if len(listed) > 1 else listed[0]), row if colon else None


def _baseline(given: Any, first: Ranks, device: str, progress: Progress) -> Contender:
    """A backbone that ranks the queries of a run by itself; naive rows were ranked with it."""
    if isinstance(given, str) and given in first.rows and given not in ("backbone", "bridgemem", "learned"):
        return Contender(given, given, (first,))
    if not isinstance(given, str | Path | Backbone) and not isinstance(given, type):
        raise RunError(f"{type(given).__name__} is neither a run nor a backbone; give one of them.")
    asked = replace(first, columns={name: first.columns[name] for name in ASKED})
    made = with_baseline(asked, given, device=device, progress=progress)
    (row,) = made.rows
    return Contender(row, row, (made,))


def _check_same(first: Ranks, other: Ranks) -> None:
    """Refuse ranks of other data, another history or other queries."""
    for what, a, b in (
        ("data", first.dataset.events.fingerprint, other.dataset.events.fingerprint),
        ("history", first.history, other.history),
    ):
        if a != b:
            raise RunError(
                f"{first.name} and {other.name} differ in {what} ({a!r} and {b!r}); compare only what ranked the same "
                "queries from the same history."
            )
    if not all(np.array_equal(first.columns[name], other.columns[name]) for name in ASKED):
        raise RunError(f"{first.name} and {other.name} ranked different queries; evaluate both on the same split.")


def _differences(a: Contender, b: Contender, step: np.ndarray) -> list[Difference]:
    return [
        replace(one, a=a.label, b=b.label, seeds_a=len(a.seeds), seeds_b=len(b.seeds))
        for name in FILTERS
        for one in _of_ranks(a.of(name), b.of(name), step, name)
    ]


def _of_ranks(
    before: Sequence[np.ndarray], after: Sequence[np.ndarray], step: np.ndarray, filter_name: str
) -> list[Difference]:
    tested = seeded_gains(before, after, step)
    old, new = (
        {m: float(np.mean([Metrics.of(one).as_dict()[m] for one in seeds])) for m in METRICS}
        for seeds in (before, after)
    )
    return [Difference("", filter_name, m, old[m], new[m], tested[m][0], p=tested[m][1]) for m in METRICS]


def _corrected(found: Sequence[Difference]) -> list[Difference]:
    """Differences with p-values corrected for all of the same filter and metric."""
    made = list(found)
    for key in {(d.filter, d.metric) for d in found}:
        places = [i for i, d in enumerate(found) if (d.filter, d.metric) == key]
        for i, p in zip(places, holm([found[i].p for i in places]), strict=True):
            made[i] = replace(found[i], p_holm=p)
    return made

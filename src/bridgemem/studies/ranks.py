"""Ranks: the rank of every query's answer by each row of a run, and by baselines that nothing is fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.backbones import backbone_class, is_trained
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.scorer import called
from bridgemem.backbones.trained import (
    as_backbone,
    check_name,
    check_trained_on,
    default_settings,
    open_backbone,
    training_note,
)
from bridgemem.errors import BackboneError, RunError, SettingsError
from bridgemem.evaluation.breakdown import ranks_of, rows_of
from bridgemem.evaluation.evaluate import queries_of
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.forecaster import Forecaster
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import FILTERS, Filters
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals.method import BACKBONE
from bridgemem.residuals.scoring import Scoring, replay
from bridgemem.runs import Run
from bridgemem.showing import as_frame
from bridgemem.storage.tables import ASKED, RANK, read_table, table_file
from bridgemem.training.devices import check_device, describe_device

NOTES = ("triple_seen", "answer_lag", "answer_support", "uncertainty")  # what a run also knows of its queries


@dataclass(frozen=True, eq=False)
class Ranks:
    """Mean-tie ranks of the answers of a split, by one or more rows: a backbone, a residual on it, a baseline.

    Attributes:
        name: The run or the data.
        dataset: The data.
        split: "test" or "valid".
        history: "rolling" or "frozen".
        columns: One entry per query: actor, directed relation, step and answer in ids, ranks in `rank_FILTER.ROW`.
        settings: Of the baselines, by row.
        device: Where they ranked.

    Example:
        >>> ranks.rows, len(ranks.of("recurrence")) == 2 * len(data.test)
        (('recurrence', 'popularity'), True)
    """

    name: str
    dataset: Dataset
    split: str
    history: str
    columns: dict[str, np.ndarray]
    settings: dict[str, dict[str, Any]]
    device: str

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The rows that have ranks: "backbone", "bridgemem", "learned", and names of baselines."""
        return rows_of(self.columns)

    def of(self, row: str, filter_name: str = "time") -> np.ndarray:
        """Get the ranks of one row under a filter.

        Args:
            row: One of `rows`; a residual is the one selected under this filter.
            filter_name: "raw", "static" or "time".

        Returns:
            One rank per query, float64 [n].

        Raises:
            SettingsError: There is no such row or filter.

        Example:
            >>> bool(ranks.of("recurrence").min() >= 1)
            True
        """
        if filter_name not in FILTERS:
            raise SettingsError(f"a filter is one of {', '.join(FILTERS)}, not {filter_name!r}.")
        if (found := ranks_of(self.columns, row, filter_name)) is not None:
            return found
        raise SettingsError(f"{self.name} has no row {row!r}; choose from {', '.join(self.rows)}.")

    def metrics(self, row: str, filter_name: str = "time") -> Metrics:
        """Compute MRR and Hits@k of one row.

        Args:
            row: One of `rows`.
            filter_name: "raw", "static" or "time".

        Returns:
            mrr, hits1, hits3 and hits10.

        Example:
            >>> figures = ranks.metrics("recurrence")
            >>> figures.hits1 <= figures.mrr <= 1
            True
        """
        return Metrics.of(self.of(row, filter_name))

    @property
    def model(self) -> str:
        """The main row: learned, else bridgemem, else the backbone."""
        own = [row for row in ("learned", "bridgemem", "backbone") if row in self.rows]
        return own[0] if own else self.rows[0]

    def records(self) -> list[Record]:
        """Make records of the baselines, one per filter; those of a run are in its metrics.json.

        Returns:
            The records.

        Example:
            >>> [record.filter for record in ranks.records()[:3]]
            ['raw', 'static', 'time']
        """
        from bridgemem import __version__

        made = []
        for row, name in ((row, name) for row in self.rows if row in self.settings for name in FILTERS):
            figures, note = self.metrics(row, name), self.settings[row]
            made.append(
                Record(
                    dataset=self.dataset.name,
                    fingerprint=self.dataset.events.fingerprint,
                    identity=self.dataset.identity.digest,
                    split=self.split,
                    backbone=row,
                    method="backbone",
                    filter=name,
                    selected_by=None,
                    history=self.history,
                    seed=note.get("backbone_seed", 0),
                    queries=len(self.columns["step"]),
                    mrr=figures.mrr,
                    hits1=figures.hits1,
                    hits3=figures.hits3,
                    hits10=figures.hits10,
                    settings=note,
                    device=self.device,
                    version=__version__,
                )
            )
        return made

    def to_frame(self) -> Any:
        """Make a data frame with one row per query: the event by name, the side that is asked, and the ranks.

        Returns:
            A pandas data frame with ranks in columns FILTER.ROW; a dict of columns if pandas is not installed.

        Example:
            >>> list(ranks.to_frame())[4:8]
            ['asked', 'raw.recurrence', 'static.recurrence', 'time.recurrence']
        """
        return as_frame(self.named())

    def named(self) -> dict[str, np.ndarray]:
        """Get the columns of `to_frame` as arrays.

        Returns:
            An array for each column.

        Example:
            >>> list(ranks.named())[:5]
            ['subject', 'relation', 'object', 'time', 'asked']
        """
        events, own = self.dataset.events, self.columns
        n_relations, entities = events.n_relations, np.array(events.entities.names, dtype=object)
        reverse = own["relation"] >= n_relations
        actor, answer = entities[own["actor"]], entities[own["answer"]]
        steps, place = np.unique(own["step"], return_inverse=True)
        made = {
            "subject": np.where(reverse, answer, actor),
            "relation": np.array(events.relations.names, dtype=object)[own["relation"] % n_relations],
            "object": np.where(reverse, actor, answer),
            "time": np.array([events.clock.label(int(step)) for step in steps], dtype=object)[place],
            "asked": np.where(reverse, "subject", "object").astype(object),
        }
        made |= {f"{name}.{row}": self.of(row, name) for row in self.rows for name in FILTERS}
        return made | {name: own[name] for name in NOTES if name in own}

    def __repr__(self) -> str:
        return f"Ranks({self.name!r}, {self.split}, {len(self.columns['step']):,} queries, {', '.join(self.rows)})"


def ranks(
    source: Any,
    *,
    backbones: Sequence[Any] = (),
    split: str = "test",
    device: str = "cpu",
    data_dir: Path | None = None,
    progress: Progress = SILENT,
) -> Ranks:
    """Rank the answer of every query, by the rows of a run and by baselines; no residual is fitted.

    Args:
        source: A run that was evaluated (a folder, or a saved `Forecaster`), or data, as `load` takes it.
        backbones: Baselines that rank the same queries: names of training-free backbones, folders of trained ones, or
            a `Backbone`. With data at least one.
        split: "test" or "valid".
        device: "cpu" or "cuda", for baselines.
        data_dir: The folder of the named data sets.
        progress: Where the ranking is shown.

    Returns:
        The ranks by row; `rows` names them.

    Raises:
        SettingsError: There is nothing to rank by.
        RunError: The run was not evaluated.

    Example:
        >>> import bridgemem as bm
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> found = bm.ranks(world, backbones=["recurrence", "hri"])
        >>> found.rows
        ('recurrence', 'hri')
    """
    if split not in ("test", "valid"):
        raise SettingsError(f"split is test or valid, not {split!r}.")
    run = as_run(source, data_dir)
    if run is not None:
        made = Ranks(
            str(run.folder), run.dataset, split, run.config.history, run_columns(run, split), {}, run.config.device
        )
    else:
        dataset = source if isinstance(source, Dataset) else load(source, data_dir=data_dir, progress=progress)
        if not backbones:
            raise SettingsError("name what ranks the queries of the data: at least one backbone, as -b recurrence.")
        made = Ranks(dataset.name, dataset, split, "rolling", {}, {}, describe_device(device))
    for given in backbones:
        made = with_baseline(made, given, device=device, progress=progress)
    return made


def as_run(source: Any, data_dir: Path | None = None) -> Run | None:
    """The run that a source is or names; None for data."""
    if isinstance(source, Run):
        return source
    if isinstance(source, Forecaster):
        return source.run
    is_folder = isinstance(source, str | Path) and (Path(source) / "selection.json").is_file()
    return Run(source, data_dir=data_dir) if is_folder else None


def run_columns(run: Run, split: str) -> dict[str, np.ndarray]:
    """The table of ranks of a run on a split."""
    path = run.ranks_path(split)
    if table_file(path) is None:
        remedy = f"run `bridgemem evaluate {run.folder} --split {split}`"
        raise RunError(f"{run.folder} was not evaluated on {split}; {remedy}.")
    columns = read_table(path)
    missing = [name for name in ASKED if name not in columns]
    if missing or not any(name.startswith(RANK) for name in columns):
        raise RunError(
            f"{path} lacks the column {(missing or [BACKBONE.column('static')])[0]}; evaluate the run again."
        )
    return columns


def with_baseline(made: Ranks, given: Any, *, device: str = "cpu", progress: Progress = SILENT) -> Ranks:
    """Ranks with those of a backbone alone next to them, of the same queries from the same history."""
    dataset, frozen = made.dataset, made.history == "frozen"
    dataset = dataset.without_test() if made.split == "valid" else dataset
    backbone, name, note = _opened(given, made.dataset, check_device(device), progress)
    if name in made.rows:
        return made
    began = dataset.test_start if made.split == "test" else dataset.valid_start
    past = Past(dataset.events, began if frozen else None, device)
    queries = queries_of(dataset, made.split)
    columns = dict(made.columns)
    asked = {key: getattr(queries, key).numpy() for key in ASKED}
    if columns and not all(np.array_equal(asked[key], columns[key]) for key in ASKED):
        raise RunError(f"{made.name} ranked a sample of the queries; evaluate all of them to compare it with {name}.")
    label = f"reading {made.split} for {name}"
    found = replay(
        Scoring(backbone, past), queries, filters=Filters(dataset.events, device), progress=progress, label=label
    )
    columns |= asked
    columns |= {f"{RANK}{f}.{name}": found.of(f) for f in FILTERS}
    return replace(made, columns=columns, settings={**made.settings, name: note}, device=describe_device(device))


def _opened(given: Any, dataset: Dataset, device: str, progress: Progress) -> tuple[Backbone, str, dict[str, Any]]:
    """A backbone that ranks by itself, what it is called, and what its records note."""
    found = as_backbone(given)
    if isinstance(found, Backbone):
        found.check(dataset)
        return found.to(device), called(found), {"backbone_seed": 0}
    if isinstance(found, Path):
        opened, note = open_backbone(found), training_note(found)
        opened.check(dataset)
        check_trained_on(found, dataset)
        known = {"backbone_seed": note.seed or 0, "train_seconds": note.seconds, "train_device": note.device}
        return opened.to(device), opened.name, {**known, "backbone_settings": asdict(opened.settings)}
    name = found if isinstance(found, str) else found.name
    if isinstance(found, str):
        check_name(name)
        if is_trained(name):
            raise BackboneError(f"{name} has to be trained first: `bridgemem train {name}`; then name that folder.")
    kind = backbone_class(name) if isinstance(found, str) else found
    settings = default_settings(name, dataset) if isinstance(found, str) else None
    made = kind.fit(dataset.without_test(), settings, device=device, progress=progress)
    return made, name, {"backbone_seed": 0, "backbone_settings": asdict(made.settings)}

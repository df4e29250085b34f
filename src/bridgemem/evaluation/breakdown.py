"""Breakdown: figures of a run by stratum: seen triple, seen pair, two-hop, cold; new entities, relations, lags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bridgemem.config import Declared
from bridgemem.evaluation.familiarity import MOST_EVENTS, Familiarity, familiarity
from bridgemem.evaluation.tables import FILTER_WORDS, HEADINGS, Table, figure, interval
from bridgemem.events.dataset import Dataset
from bridgemem.ranking.filters import FILTERS
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import METRICS, Metrics
from bridgemem.showing import as_frame
from bridgemem.storage.tables import RANK

OWN_ROWS = ("backbone", "bridgemem", "learned")
LAG_EDGES = (1, 2, 5, 17, 65)
FREQUENCY_EDGES = (1, 100, 1_000, 10_000)
KIND = "strata"  # what the file of a run that keeps them is called by
NOTE = (
    "Every query is in one stratum of each group, by facts strictly before it. Seen pair: the two interacted, but not "
    "in this way. Two-hop: both interacted with a third one. Cold: none of these. "
    "The gain is of the last residual over the backbone."
)


@dataclass(frozen=True)
class Stratum(Declared):
    """The figures of one part of the queries under one filter: each row's metrics, and the last residual's gain."""

    group: str
    stratum: str
    filter: str
    queries: int
    share: float
    rows: dict[str, dict[str, float]]
    gain: tuple[float, ...]


def rows_of(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """What ranked, by the columns of a table of ranks: "learned" for rank_time.learned.raw."""
    found = (name.removeprefix(RANK).partition(".")[2] for name in columns if name.startswith(RANK))
    plain = (row.rpartition(".")[0] if row.rpartition(".")[2] in FILTERS else row for row in found)
    return tuple(dict.fromkeys(plain))


def ranks_of(columns: Mapping[str, np.ndarray], row: str, filter_name: str) -> np.ndarray | None:
    """The ranks of a row under a filter, as validation chose the residual for it; None where there are none."""
    chosen = "static" if filter_name == "static" else "time"
    for choice in (row, f"{row}.{filter_name}", f"{row}.{chosen}", f"{row}.raw"):
        if (found := columns.get(f"{RANK}{filter_name}.{choice}")) is not None:
            return found
    return None


def strata_of(
    columns: Mapping[str, np.ndarray], dataset: Dataset, split: str, history: str = "rolling"
) -> list[Stratum]:
    """The strata of the queries of a table of ranks, which were ranked from that history of a data set."""
    began = dataset.test_start if split == "test" else dataset.valid_start
    known = familiarity(
        dataset.events, columns, valid_start=dataset.valid_start, frozen_at=began if history == "frozen" else None
    )
    rows = [row for row in rows_of(columns) if row in OWN_ROWS] or list(rows_of(columns))
    return [
        _stratum(columns, rows, (group, name, f), mask)
        for f in FILTERS
        for group, masks in groups(known).items()
        for name, mask in masks.items()
        if mask.any()
    ]


def groups(known: Familiarity) -> dict[str, dict[str, np.ndarray]]:
    """Masks of queries, bool [n], by group and stratum; those of a group have each query once."""
    unseen = ~known.triple & ~known.pair
    return {
        "history": {
            "seen triple": known.triple,
            "seen pair": ~known.triple & known.pair,
            "two-hop": unseen & known.two_hop,
            "cold": unseen & ~known.two_hop,
        },
        "entities": {"both seen": ~known.new, "new entity": known.new},
        "relation, events in train": by_edges(known.frequency.astype(float), FREQUENCY_EDGES, "none"),
        "lag in steps": by_edges(known.lag, LAG_EDGES, "never interacted"),
    }


def by_edges(values: np.ndarray, edges: tuple[int, ...], none: str) -> dict[str, np.ndarray]:
    """Masks of values that have none, and of those between the edges."""
    masks = {none: ~(values >= edges[0])}
    for low, high in zip(edges, (*edges[1:], None), strict=True):
        name = f"{low:,} and more" if high is None else f"{low:,}" if high == low + 1 else f"{low:,}-{high - 1:,}"
        masks[name] = (values >= low) & ((values < high) if high is not None else True)
    return masks


def _stratum(
    columns: Mapping[str, np.ndarray], rows: Sequence[str], key: tuple[str, str, str], mask: np.ndarray
) -> Stratum:
    group, name, filter_name = key
    ranks = {row: found[mask] for row in rows if (found := ranks_of(columns, row, filter_name)) is not None}
    first, last = (ranks[row] for row in (rows[0], rows[-1]))
    gain = paired_gains(first, last, columns["step"][mask])["mrr"]
    figures = {row: Metrics.of(one).as_dict() for row, one in ranks.items()}
    return Stratum(
        group, name, filter_name, int(mask.sum()), float(mask.mean()), figures, (gain.value, gain.low, gain.high)
    )


@dataclass(frozen=True)
class Strata:
    """All strata of a run on a split; they print as one table."""

    dataset: str
    split: str
    strata: tuple[Stratum, ...]

    def table(self, filter_name: str = "time", metric: str = "mrr") -> Table:
        """One metric under one filter, by stratum."""
        shown = [one for one in self.strata if one.filter == filter_name]
        rows = list(shown[0].rows) if shown else []
        cells = [
            [
                f"{one.group}: {one.stratum}",
                f"{one.queries:,}",
                f"{one.share:.1%}",
                *(figure(one.rows[row][metric]) for row in rows),
                *([interval(list(one.gain))] if len(rows) > 1 else []),
            ]
            for one in shown
        ]
        gain = ["gain in MRR [95 %]"] if len(rows) > 1 else []
        title = f"{self.dataset}, {self.split}, {HEADINGS[metric]} by stratum, {FILTER_WORDS[filter_name]}"
        return Table(title, ["stratum", "queries", "share", *rows, *gain], cells, NOTE)

    def to_frame(self) -> Any:
        """One row a stratum, row and filter; a pandas data frame where pandas is installed."""
        flat = [(one, row, values) for one in self.strata for row, values in one.rows.items()]
        names = ("group", "stratum", "filter", "queries", "share")
        made: dict[str, list[Any]] = {name: [getattr(one, name) for one, _, _ in flat] for name in names}
        made["row"] = [row for _, row, _ in flat]
        return as_frame(made | {metric: [values[metric] for _, _, values in flat] for metric in METRICS})

    def as_rows(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.strata]

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def affordable(dataset: Dataset) -> bool:
    """Whether the strata of a data set are found unasked: its events fit into memory at small cost."""
    return len(dataset.events) <= MOST_EVENTS

"""Mechanism: where the gain comes from, as the same figures on parts of the queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.evaluation.intervals import paired_gains
from bridgemem.evaluation.metrics import Metrics
from bridgemem.evaluation.records import Record
from bridgemem.fitting import SELECTION_FILTERS
from bridgemem.runs import Run, read_table

Columns = dict[str, np.ndarray]
SUPPORT_EDGES = (1, 100, 1_000, 10_000, 100_000)
LAG_EDGES = (1, 2, 5, 17, 65)


def _by_edges(values: np.ndarray, edges: tuple[int, ...], none: str) -> dict[str, np.ndarray]:
    """Masks of values that have none, and of those between the edges."""
    masks = {none: ~(values >= edges[0])}
    for low, high in zip(edges, (*edges[1:], None), strict=True):
        name = f"{low:,} and more" if high is None else f"{low:,}" if high == low + 1 else f"{low:,}-{high - 1:,}"
        masks[name] = (values >= low) & ((values < high) if high is not None else True)
    return masks


def by_support(columns: Columns, n_relations: int) -> dict[str, np.ndarray]:
    """By n_B of the answer's own state."""
    return _by_edges(columns["answer_support"], SUPPORT_EDGES, "no dyadic past")


def by_recency(columns: Columns, n_relations: int) -> dict[str, np.ndarray]:
    """By the steps since the pair's last event inside the window."""
    return _by_edges(np.nan_to_num(columns["answer_lag"], nan=0), LAG_EDGES, "none in the window")


def by_uncertainty(columns: Columns, n_relations: int) -> dict[str, np.ndarray]:
    """By the backbone's u_q, in fifths of the unit interval."""
    fifth = np.clip((columns["uncertainty"] * 5).astype(int), 0, 4)
    return {f"{i / 5:.1f} to {(i + 1) / 5:.1f}": fifth == i for i in range(5)}


def by_repeat(columns: Columns, n_relations: int) -> dict[str, np.ndarray]:
    """By whether the exact triple was seen before, and if not, whether the pair has a dyadic past."""
    seen, past = columns["triple_seen"].astype(bool), columns["answer_support"] > 0
    return {
        "triple seen before": seen,
        "triple new, pair met lately": ~seen & past,
        "triple new, pair not met lately": ~seen & ~past,
    }


def by_relation(columns: Columns, n_relations: int) -> dict[str, np.ndarray]:
    """By relation, both directions together."""
    relation = columns["relation"] % n_relations
    return {str(r): relation == r for r in np.unique(relation)}


PARTS: dict[str, Callable[[Columns, int], dict[str, np.ndarray]]] = {
    "support": by_support,
    "uncertainty": by_uncertainty,
    "repeat": by_repeat,
    "recency": by_recency,
    "relation": by_relation,
}


def parts(run: Run, by: str, names: tuple[str, ...], split: str = "test") -> list[Record]:
    """Backbone and residual on every part of the queries, under the filter that the residual was selected for."""
    if by not in PARTS:
        raise DataError(f"--by is one of {', '.join(PARTS)}, not {by!r}.")
    columns = read_table(run.ranks_path(split))
    if "triple_seen" not in columns:
        raise RunError(f"{run.folder} was evaluated by an older version; evaluate it again.")
    masks = PARTS[by](columns, len(names))
    if by == "relation":
        masks = {f"{names[int(r)]}": mask for r, mask in masks.items()}
    return [record for f in SELECTION_FILTERS for record in _of_filter(run, columns, masks, by, f, split)]


def _of_filter(
    run: Run, columns: Columns, masks: dict[str, np.ndarray], by: str, filter_name: str, split: str
) -> Iterator[Record]:
    before, after = columns[f"backbone_{filter_name}"], columns[f"bridgemem_by_{filter_name}_{filter_name}"]
    config, selection = run.config, run.selection(filter_name)
    for part, mask in masks.items():
        if not mask.any():
            continue
        gains = paired_gains(before[mask], after[mask], columns["step"][mask])
        shared: dict[str, Any] = {
            "dataset": config.dataset,
            "fingerprint": config.fingerprint,
            "split": split,
            "backbone": config.backbone,
            "filter": filter_name,
            "history": config.history,
            "queries": int(mask.sum()),
            "device": config.device,
            "version": config.version,
            "subset": f"{by}: {part}",
        }
        own = {"backbone_seed": config.backbone_seed}
        yield Record(
            **shared, method="backbone", selection=None, seed=config.backbone_seed, settings=own, **_of(before[mask])
        )
        yield Record(
            **shared,
            method="bridgemem",
            selection=filter_name,
            seed=config.seed,
            settings=own,
            gain={m: [g.value, g.low, g.high] for m, g in gains.items()},
            lock=selection.lock(),
            **_of(after[mask]),
        )


def _of(ranks: np.ndarray) -> dict[str, Any]:
    return Metrics.of(ranks).as_dict()

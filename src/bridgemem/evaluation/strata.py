"""Strata: gain by stratum, as the same figures on parts of the queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.evaluation.evaluate import KNOWN
from bridgemem.evaluation.records import Record
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals.method import BACKBONE, Method
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.storage.tables import read_table

Columns = dict[str, np.ndarray]
SUPPORT_EDGES = (0, 1, 100, 1_000, 10_000, 100_000)
LAG_EDGES = (1, 2, 5, 17, 65)


def _by_edges(values: np.ndarray, edges: tuple[int, ...], none: str) -> dict[str, np.ndarray]:
    """Masks of values that have none, and of those between the edges."""
    masks = {none: ~(values >= edges[0])}
    for low, high in zip(edges, (*edges[1:], None), strict=True):
        name = f"{low:,} and more" if high is None else f"{low:,}" if high == low + 1 else f"{low:,}-{high - 1:,}"
        masks[name] = (values >= low) & ((values < high) if high is not None else True)
    return masks


def _seen(columns: Columns) -> np.ndarray:
    """Whether the answer has a dyadic state: the pair interacted inside the window; bool [n]."""
    return ~np.isnan(columns["answer_lag"])


def by_support(columns: Columns) -> dict[str, np.ndarray]:
    """By n_B of the answer's own state; 0 where its events were never seen to lead anywhere."""
    support = np.where(_seen(columns), columns["answer_support"], np.nan)
    return _by_edges(support, SUPPORT_EDGES, "no dyadic past")


def by_recency(columns: Columns) -> dict[str, np.ndarray]:
    """By the steps since the pair's last event inside the window."""
    return _by_edges(columns["answer_lag"], LAG_EDGES, "none in the window")


def by_uncertainty(columns: Columns) -> dict[str, np.ndarray]:
    """By the backbone's u_q, in fifths of the unit interval."""
    fifth = np.clip((columns["uncertainty"] * 5).astype(int), 0, 4)
    return {f"{i / 5:.1f} to {(i + 1) / 5:.1f}": fifth == i for i in range(5)}


def by_repeat(columns: Columns) -> dict[str, np.ndarray]:
    """By whether the exact triple was seen before, and if not, whether the pair has a dyadic past."""
    seen, past = columns["triple_seen"].astype(bool), _seen(columns)
    return {
        "seen triple": seen,
        "seen pair": ~seen & past,
        "unseen pair": ~seen & ~past,
    }


def by_relation(columns: Columns) -> dict[str, np.ndarray]:
    """By relation."""
    relation = columns["relation"]
    return {str(r): relation == r for r in np.unique(relation)}


PARTS: dict[str, Callable[[Columns], dict[str, np.ndarray]]] = {
    "support": by_support,
    "uncertainty": by_uncertainty,
    "repeat": by_repeat,
    "recency": by_recency,
    "relation": by_relation,
}


def parts(run: Run, by: str, names: tuple[str, ...], split: str = "test") -> list[Record]:
    """The residual and its gain on every part of the queries, under the filter that it was selected for."""
    if by not in PARTS:
        raise DataError(f"--by is one of {', '.join(PARTS)}, not {by!r}.")
    ranked = (m.column(f) for f in SELECTION_FILTERS for m in (BACKBONE, Method("bridgemem", f)))
    columns = read_table(run.ranks_path(split), (*KNOWN, *ranked))
    if not names or not (columns["relation"] < 2 * len(names)).all():
        raise RunError(f"{run.folder} has ranks of other relations than its relations.txt names; evaluate it again.")
    columns["relation"] = columns["relation"] % len(names)  # both directions together
    masks = PARTS[by](columns)
    if by == "relation":
        # two relations of one name stay two parts
        shared = {name for name, times in Counter(names).items() if times > 1}
        masks = {f"{names[int(r)]} ({r})" if names[int(r)] in shared else names[int(r)]: m for r, m in masks.items()}
    return [
        _record(run, columns, mask, f"{by}: {part}", filter_name, split)
        for filter_name in SELECTION_FILTERS
        for part, mask in masks.items()
        if mask.any()
    ]


def _record(run: Run, columns: Columns, mask: np.ndarray, part: str, filter_name: str, split: str) -> Record:
    """The figures of the queries of one part; the gain says what the backbone had there."""
    before = columns[BACKBONE.column(filter_name)][mask]
    after = columns[Method("bridgemem", filter_name).column(filter_name)][mask]
    config, figures = run.config, Metrics.of(after)
    return Record(
        dataset=config.dataset,
        fingerprint=config.fingerprint,
        split=split,
        backbone=config.backbone,
        method=f"ablation:part={part}",
        filter=filter_name,
        selected_by=filter_name,
        history=config.history,
        seed=config.seed,
        queries=len(after),
        mrr=figures.mrr,
        hits1=figures.hits1,
        hits3=figures.hits3,
        hits10=figures.hits10,
        settings={"backbone_seed": config.backbone_seed},
        gain={m: [g.value, g.low, g.high] for m, g in paired_gains(before, after, columns["step"][mask]).items()},
        device=config.device,
        version=config.version,
        lock=run.selection(filter_name).lock(),
        subset=part,
    )

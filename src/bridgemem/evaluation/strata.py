"""Strata: a run by stratum, and the gain of its residual on parts of the queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from bridgemem.errors import DataError, RunError
from bridgemem.evaluation.breakdown import KIND, LAG_EDGES, Strata, Stratum, by_edges, strata_of
from bridgemem.evaluation.card import write_card
from bridgemem.evaluation.evaluate import KNOWN
from bridgemem.evaluation.records import Record
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.residuals.method import BACKBONE, Method
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.storage.schema import read_as
from bridgemem.storage.tables import read_table

Columns = dict[str, np.ndarray]
SUPPORT_EDGES = (0, 1, 100, 1_000, 10_000, 100_000)


def _seen(columns: Columns) -> np.ndarray:
    """Whether the answer has a dyadic state: the pair interacted inside the window; bool [n]."""
    return ~np.isnan(columns["answer_lag"])


def by_support(columns: Columns) -> dict[str, np.ndarray]:
    """By n_B of the answer's own state; 0 where its events were never seen to lead anywhere."""
    support = np.where(_seen(columns), columns["answer_support"], np.nan)
    return by_edges(support, SUPPORT_EDGES, "no dyadic past")


def by_recency(columns: Columns) -> dict[str, np.ndarray]:
    """By the steps since the pair's last event inside the window."""
    return by_edges(columns["answer_lag"], LAG_EDGES, "none in the window")


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


def strata(run: Run, split: str = "test") -> Strata:
    """The strata of a run that was evaluated on a split, as its evaluation kept them, or found and kept now."""
    kept = read_strata(run, split)
    if kept is None:
        columns = read_table(run.ranks_path(split), KNOWN)
        dataset = run.dataset if split == "test" else run.dataset.without_test()
        found = tuple(strata_of(columns, dataset, split, run.config.history))
        kept = Strata(run.config.dataset, split, found)
        run.write_metrics({split: kept.as_rows()}, KIND, finish=write_card)
    return kept


def read_strata(run: Run, split: str) -> Strata | None:
    """The strata that a run keeps of a split; None where it keeps none."""
    path, remedy = run.folder / f"metrics.{KIND}.json", "remove the file, and ask again"
    rows = read_as(path, dict[str, list[Stratum] | None], remedy, missing={}).get(split)
    return None if rows is None else Strata(run.config.dataset, split, tuple(rows))


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
        identity=run.identity().digest,
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

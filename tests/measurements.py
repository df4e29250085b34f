"""Made-up records, for the tests of the tables, figures and documents that are written from records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bridgemem.evaluation.records import Record
from bridgemem.ranking.metrics import METRICS

GPU = "cuda NVIDIA H200"
FILTERS = ("raw", "static", "time")
DATASETS = ("icews14", "wiki")


def backbone(**changes: Any) -> Record:
    """A backbone on a whole test split."""
    made = Record(
        dataset="icews14",
        fingerprint="f",
        split="test",
        backbone="cenet",
        method="backbone",
        filter="time",
        selected_by=None,
        history="rolling",
        seed=42,
        queries=1000,
        mrr=0.40,
        hits1=0.30,
        hits3=0.50,
        hits10=0.60,
        settings={"backbone_seed": 42},
        device=GPU,
    )
    return replace(made, **changes)


def residual(**changes: Any) -> Record:
    """The residual on the same backbone, chosen under the time-aware filter."""
    made = backbone(
        method="bridgemem",
        selected_by="time",
        mrr=0.45,
        hits1=0.36,
        hits3=0.57,
        hits10=0.68,
        settings={"backbone_seed": 42, "lambda": 2.0, "gate": "uncertain", "tau": 300.0, "epochs": 20},
        gain={m: [0.05 + i / 100, 0.04 + i / 100, 0.06 + i / 100] for i, m in enumerate(METRICS)},
        fit_seconds=8.0,
        refit_seconds=5.0,
        lock="lock",
    )
    return replace(made, **changes)


def learned(**changes: Any) -> Record:
    """The residual learned on the same backbone, under the time-aware filter."""
    made = residual(
        method="learned",
        mrr=0.47,
        settings={"backbone_seed": 42, "lambda": None, "gate": None, "tau": None, "epochs": 7, "parameters": 21_000},
        gain={m: [0.07 + i / 100, 0.06 + i / 100, 0.08 + i / 100] for i, m in enumerate(METRICS)},
        fit_seconds=4.0,
        refit_seconds=None,
    )
    return replace(made, **changes)


def relearned(label: str, mrr: float, **changes: Any) -> Record:
    """The learned residual fitted anew with one thing changed."""
    return learned(method=f"ablation:learned={label}", mrr=mrr, fit_seconds=None, **changes)


def part(name: str, queries: int, gain: float = 0.05, **changes: Any) -> Record:
    """One part of the queries, named as 'support: 1-99'."""
    bounds = {m: [gain, gain - 0.01, gain + 0.01] for m in METRICS}
    made = residual(method=f"ablation:part={name}", subset=name, queries=queries, gain=bounds)
    return replace(made, settings={"backbone_seed": 42}, fit_seconds=None, refit_seconds=None, **changes)


def change(label: str, mrr: float, **changes: Any) -> Record:
    """The residual with one thing changed."""
    return residual(method=f"ablation:{label}", mrr=mrr, **changes)


def reseeded(record: Record, seed: int) -> Record:
    """The same on another backbone: one trained with another seed."""
    own = seed if record.method == "backbone" else record.seed
    return replace(record, seed=own, settings={**record.settings, "backbone_seed": seed})


def campaign() -> list[Record]:
    """Something of every kind on two data sets: backbones, seeds, choices, repeats, learned ones, ablations, parts."""
    records = []
    for d, dataset in enumerate(DATASETS):
        for f, name in enumerate(FILTERS):
            at = 0.01 * f + 0.001 * d
            plain = backbone(dataset=dataset, filter=name, mrr=0.4 + at)
            records += [plain, reseeded(replace(plain, mrr=0.41 + at), 43)]
            records += [
                replace(plain, backbone="recurrence", seed=0, settings={}, mrr=0.35 + at, device="cpu 2 threads")
            ]
            for choice in ("static", "time"):
                lock = f"{dataset} {choice}"
                chosen = residual(dataset=dataset, filter=name, selected_by=choice, lock=lock)
                off = 0.0 if choice == name else 0.02
                records += [replace(chosen, seed=42 + i, mrr=0.45 + at + i / 1e4 - off) for i in range(3)]
                records += [replace(chosen, device="cpu 2 threads", mrr=0.99, fit_seconds=33.7, refit_seconds=17.2)]
                better = learned(dataset=dataset, filter=name, selected_by=choice, lock=lock)
                records += [replace(better, seed=42 + i, mrr=0.47 + at + i / 1e4 - off) for i in range(2)]
        for name in ("static", "time"):
            own: dict[str, Any] = {"dataset": dataset, "filter": name, "selected_by": name, "lock": f"{dataset} {name}"}
            records += [change("reader=count", 0.44, **own), change("history=frozen", 0.3, history="frozen", **own)]
            records += [relearned("plain", 0.46, **own), relearned("no unseen candidates", 0.465, **own)]
            told = {"backbone_seed": 42, "weight": 0.5, "answers_asked": 0.6}
            records += [residual(method=f"leakage:{reading}", settings=told, **own) for reading in ("pass", "step")]
            records += [
                relearned(f"without {group}", 0.45 + i / 1e3, **own) for i, group in enumerate(("pair", "actor"))
            ]
            for by, labels in (("support", "0 1-99"), ("uncertainty", "low high"), ("repeat", "seen new")):
                records += [part(f"{by}: {label}", 300 + 50 * i, **own) for i, label in enumerate(labels.split())]
            records += [part(f"recency: {label}", 500, **own) for label in ("1", "2-4")]
            records += [part(f"relation: r{i:02d}", 40 + i, i / 1000, **own) for i in range(40)]
    return records


def ahead() -> list[Record]:
    """Queries of seven steps at once, and what was measured of probabilities."""
    curve = [{"low": 0.1, "high": 0.2, "count": 40, "probability": 0.15, "share": 0.2}]
    calibrated = {
        "backbone_seed": 42,
        "temperature": 1.5,
        "floor": 0.02,
        "ece": 0.03,
        "ece_shown": 0.01,
        "curve": curve,
    }
    made = [
        made(filter=f, horizon=7, mrr=0.2, settings={**calibrated, "windows": 5})
        for made in (backbone, residual, learned)
        for f in FILTERS
    ]
    return [*made, residual(method="calibration:bridgemem", filter="raw", settings=calibrated, gain={})]

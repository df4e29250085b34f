"""Reproduce: the paper's experiment, from a data set to the records of every seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridgemem.backbones.trained import default_settings, train, trained_so
from bridgemem.config import HistoryMode, Settings
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.evaluate import evaluate
from bridgemem.evaluation.records import Record
from bridgemem.events.dataset import Dataset
from bridgemem.forecaster import Forecaster
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.runs import Run
from bridgemem.storage.whole import reserved_free


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` made: one run per seed, and every record."""

    dataset: Dataset
    split: str
    runs: list[Run]
    records: list[Record]


def reproduced_backbone(runs: Path, dataset: Dataset, backbone: str, seed: int) -> Path:
    """The folder in which `reproduce` keeps the backbone of its runs."""
    return runs / f"{dataset.name}-{backbone}-b{seed}"


def reproduce(
    dataset: Dataset,
    runs: Path,
    *,
    backbone: str = "cenet",
    backbone_settings: Any = None,
    settings: Settings | None = None,
    seeds: tuple[int, ...] = (42,),
    backbone_seed: int = 42,
    device: str = "cpu",
    history: HistoryMode = "rolling",
    retrain: bool = False,
    progress: Progress = SILENT,
    residual: str = "bridgemem",
    learned_settings: LearnedSettings | None = None,
) -> Reproduction:
    """Train the backbone (or take the one trained before), then for each seed fit, select on validation, test once."""
    backbone_settings = backbone_settings or default_settings(backbone, dataset)
    if not seeds:
        raise DataError("name at least one seed.")
    split = "valid" if dataset.test_start is None else "test"
    home = reproduced_backbone(runs, dataset, backbone, backbone_seed)
    if retrain or not (home / "config.toml").is_file():
        train(backbone, dataset, home, backbone_settings, backbone_seed, device, progress, retrain)
    elif not trained_so(home, dataset, backbone_settings, backbone_seed):
        raise SettingsError(
            f"{home} was trained on other data, with other settings or another seed, or does not say on what; say "
            "--retrain to replace it."
        )
    made, records = [], []
    suffix = "" if history == "rolling" else f"-{history}"
    for seed in seeds:
        folder = runs / f"{home.name}-s{seed}{suffix}"
        model = Forecaster(
            home,
            residual=residual,
            settings=settings,
            learned_settings=learned_settings,
            history=history,
            seed=seed,
            device=device,
        )
        with reserved_free(folder, replace=True):
            run = Run(model.fit(dataset, progress=progress).save(folder, replace=True))
        records += evaluate(run, dataset, split, device, progress)
        made.append(run)
    return Reproduction(dataset, split, made, records)

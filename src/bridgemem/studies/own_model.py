"""evaluate: your own model in one table, alone and with each residual, next to naive forecasters, with intervals."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from bridgemem.backbones import BACKBONES
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.check import check_backbone
from bridgemem.backbones.own import blaming, own_backbone
from bridgemem.backbones.stored import Stored
from bridgemem.config import Settings
from bridgemem.evaluation.evaluate import all_records, queries_of, read
from bridgemem.evaluation.result import Evaluation
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.forecaster import Forecaster
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.studies.doubts import alarm, scale_and_sign
from bridgemem.studies.rivals import Measured, rivals


def evaluate(
    data: Any,
    scorer: Any,
    *,
    split: str | None = None,
    residual: str = "learned",
    settings: Settings | dict[str, Any] | None = None,
    learned_settings: LearnedSettings | dict[str, Any] | None = None,
    seed: int = 42,
    device: str = "cpu",
    default: bool | None = None,
    progress: Progress = SILENT,
) -> Evaluation:
    """Measure your own model: alone, with each residual on it, next to what it has to beat.

    The contract of `check_backbone` is checked first. The residuals are fitted and chosen on train and validation; the
    split is read once. Intervals are paired, over time steps. Figures that look like leakage are warned of.

    Args:
        data: Whatever `load` takes.
        scorer: A callable (actor, relation, step) -> log scores [n, entities], on NumPy arrays of n ids, or tensors
            where it is a torch module; a `Scorer`; a `Backbone`, or a class of them, which is trained. Any other class
            is constructed with the data, without its test split. Relation ids from R on ask for the subject.
        split: "test" or "valid"; test when left out, or validation where there is no test.
        residual: "learned", next to the paper's, or "bridgemem", the paper's alone.
        settings: Of the paper's residual.
        learned_settings: Of the learned residual.
        seed: Of everything that is drawn.
        device: "cpu" or "cuda".
        default: Whether the tool's default, which has none of your model in it, is fitted for comparison too (default:
            up to 500,000 events). Its counting backbone alone is measured in any case.
        progress: Where the parts are shown.

    Returns:
        An `Evaluation`: it prints as a table, and `to_frame()` has all records.

    Raises:
        BackboneError: The model breaks the contract of a scorer; the sentence says how.

    Example:
        >>> import bridgemem as bm, numpy as np
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> often = np.bincount(world.train.object, minlength=30)
        >>> def popular(actor, relation, step):
        ...     return np.tile(np.log(often + 1.0), (len(actor), 1))
        >>> found = bm.evaluate(world, popular, residual="bridgemem", settings={"max_epochs": 1})
        >>> [row[0] for row in found.table().rows][-2:]
        ['popular', 'popular + bridgemem']
    """
    dataset = data if isinstance(data, Dataset) else load(data, progress=progress)
    backbone, known = own_backbone(scorer, dataset), dataset.without_test().events
    # built-in ones are checked by tests, and stored scores know none but the queries of validation and test
    checked = not isinstance(backbone, str | Path | Stored) and backbone.name not in BACKBONES
    model = Measured(
        backbone,
        residual=residual,
        settings=settings,
        learned_settings=learned_settings,
        seed=seed,
        device=device,
    )
    with blaming(backbone):
        if checked and isinstance(backbone, Backbone):
            backbone.check(dataset)
            check_backbone(backbone.to(device), known)
        model.fit(dataset, progress=progress)
        if checked and isinstance(backbone, type):
            check_backbone(model.parts.backbone(device), known)  # before the split is read
        part = split or ("test" if dataset.test_start is not None else "valid")
        found = _compared(model, dataset, part, default, progress)
    if checked:
        said = list(scale_and_sign(model.parts.backbone(device), dataset, device))
        leak = alarm(found, model.parts.selection("time").backbone.mrr, dataset, progress)
        for one in [*said, *([leak] if leak else [])]:
            warnings.warn(one, stacklevel=2)
    return found


def _compared(model: Forecaster, dataset: Dataset, split: str, default: bool | None, progress: Progress) -> Evaluation:
    """The records of the model and of naive forecasters, and of what one gets without the model."""
    data = dataset.without_test() if split == "valid" else dataset
    reading = read(model.parts, data, split, queries_of(data, split), model.device, progress)
    records = all_records(model.parts, data, split, reading, model.device)
    return Evaluation((*records, *rivals(model, data, split, reading, default, progress)))

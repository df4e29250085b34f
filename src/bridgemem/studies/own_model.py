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
from bridgemem.evaluation.result import Evaluation
from bridgemem.events.dataset import Dataset
from bridgemem.events.loading import load
from bridgemem.forecaster import Forecaster
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.learned import LearnedSettings
from bridgemem.studies.leakage import bound

NEAR_ONE = 0.97  # above every MRR of a backbone or residual in results/records.jsonl
LEAP = 0.1  # in MRR, from validation to test; few queries need more, three times the widest standard error


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
    progress: Progress = SILENT,
) -> Evaluation:
    """Measure your own model: alone, with each residual on it, and next to naive forecasters.

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
    model = Forecaster(
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
        found = model.evaluate(split or ("test" if dataset.test_start is not None else "valid"), progress=progress)
    if checked and (said := alarm(found, model.parts.selection("time").backbone.mrr, dataset, progress)):
        warnings.warn(said, stacklevel=2)
    return found


def alarm(
    found: Evaluation, validation: float, dataset: Dataset | None = None, progress: Progress = SILENT
) -> str | None:
    """Why the figures of a backbone look like leakage; None where they do not.

    validation: its MRR there. dataset: where the bound of query-set leakage is measured, if it may be reached at all.
    """
    alone, name, split = found.mrr("backbone"), found[0].backbone, found[0].split
    if alone >= NEAR_ONE:
        return (
            f"{name} has an MRR of {alone:.4f}, which forecasts do not reach: look for events at or after the query's "
            "step among what it reads or was trained on."
        )
    if split == "test" and alone - validation > max(LEAP, 1.5 / found[0].queries ** 0.5):
        return (
            f"{name} is far better on test than on validation (MRR {alone:.4f} and {validation:.4f}): look for test "
            "events among what it was trained on."
        )
    # the bound is at least the counting backbone's own MRR, so nothing below the naive rows can pass it
    naive = [one.mrr for one in found if one.backbone != name and one.method == "backbone" and one.filter == "time"]
    data = dataset if split == "test" or dataset is None else dataset.without_test()
    if data is None or alone <= max(naive, default=1.0):
        return None
    if alone > (most := bound(data, progress=progress)):
        return (
            f"{name} has an MRR of {alone:.4f}, better than counting that also reads all other queries of the step "
            f"({most:.4f}), which no forecast knows: look for queries or events of the step among what it reads."
        )
    return None

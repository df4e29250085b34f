"""Refit: a run fitted from the start on everything known now, with its choices and probabilities made again.

A refresh keeps what validation chose for the run that was fitted. After enough events that validation is old. A refit
fits the same model with the same settings, validates it on the last tenth of all events, and goes on with the same
store: the new run remembers which of its events came from there.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

from bridgemem.backbones.trained import training_free
from bridgemem.events.dataset import Dataset
from bridgemem.forecaster import Forecaster
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import MERGED
from bridgemem.live.refresh import all_known, next_name
from bridgemem.progress import SILENT, Progress
from bridgemem.runs import CONTINUES, Continues, Run
from bridgemem.storage.files import write_json
from bridgemem.storage.tensors import write_tensors
from bridgemem.storage.whole import whole_folder

VALIDATION = 0.1  # the last share of all events, on which lambda, gate and tau are chosen and probabilities fitted


def can_refit(run: Run) -> bool:
    """Whether a run can be fitted again in a moment: its backbone counts, and is not trained."""
    return training_free(run.backbone())


def refit(
    run: Run,
    store: EventStore,
    out: Path | str | None = None,
    *,
    until: int | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> Continues:
    """A new run folder, fitted on all that the run and the store know before the step `until`."""
    target = next_name(run) if out is None else Path(out)
    reading, _, _ = all_known(store, run, run.dataset.events, until)
    dataset = Dataset.chronological(run.config.dataset, reading.events, valid=VALIDATION, test=0.0)
    model = Forecaster(
        run.config.backbone,
        residual="learned" if run.fit_names() else "bridgemem",
        settings=run.settings,
        learned_settings=run.file.learned,
        seed=run.config.seed,
        device=device,
    )
    last = int(reading.ids.max(initial=0))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = Continues(run.folder.name, run.origin, store.path.name, len(reading.events), last, now)
    with whole_folder(target) as aside:
        model.fit(dataset, progress=progress).save(aside, replace=True)
        write_tensors(aside / MERGED, {"ids": torch.from_numpy(reading.ids)})
        write_json(aside / CONTINUES, asdict(made))
    return made

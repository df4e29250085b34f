"""Stats: the sizes of a data set, and the counts that fingerprint its whole data and memory path."""

from __future__ import annotations

from typing import Any

import numpy as np

from bridgemem.config import Settings
from bridgemem.events.dataset import Dataset
from bridgemem.progress import SILENT, Progress


def describe(dataset: Dataset, progress: Progress = SILENT) -> dict[str, Any]:
    """Entities, relations, splits, steps, transition examples of train, and the reader's parameters."""
    from bridgemem.evidence.counts import log_prior
    from bridgemem.evidence.examples import mine
    from bridgemem.evidence.reader import Reader
    from bridgemem.evidence.tokens import TokenSpace

    events, settings = dataset.events, Settings()
    space = TokenSpace.of(settings, events.n_relations)
    with progress.task("mining transitions"):
        examples = mine(dataset.train, space, settings)
    reader = Reader(space, log_prior(dataset.train), settings.width, settings.hidden)
    return {
        "name": dataset.name,
        "entities": events.n_entities,
        "relations": events.n_relations,
        "events": len(events),
        "splits": dataset.sizes,
        "steps": len(np.unique(events.step)),
        "step": events.clock.length(),
        "first": events.clock.label(int(events.step[0])),
        "last": events.clock.label(int(events.step[-1])),
        "transition_examples": len(examples),
        "reader_parameters": sum(p.numel() for p in reader.parameters()),
        "fingerprint": events.fingerprint,
        "identity": dataset.identity.digest,
    }

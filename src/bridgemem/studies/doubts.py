"""Doubts: figures of a model of one's own that look like leakage, or like scores of another scale or sign."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from bridgemem.backbones.scorer import Scorer, score_queries
from bridgemem.evaluation.result import Evaluation
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.fitting import AUTO
from bridgemem.memory.past import Past
from bridgemem.progress import SILENT, Progress
from bridgemem.studies.leakage import bound

NEAR_ONE = 0.97  # above every MRR of a backbone or residual in results/records.jsonl
LEAP = 0.1  # in MRR, between validation and test; few queries need more, three times the widest standard error
ASKED = 500  # queries of validation that show scale and sign
CERTAIN, WRONG = 0.999, 0.3  # a softmax that is surer than this, and that many hits short of it
BETTER = 2.0  # how many times the MRR of a random order, and its own, the negative scores reach


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
    leap = max(LEAP, 1.5 / found[0].queries ** 0.5)
    if split == "test" and alone - validation > leap:
        return (
            f"{name} is far better on test than on validation (MRR {alone:.4f} and {validation:.4f}): look for test "
            "events among what it was trained on."
        )
    if split == "test" and validation - alone - _harder(found) > leap:
        return (
            f"{name} is far better on validation than on test (MRR {validation:.4f} and {alone:.4f}): look for events "
            "of validation among what it was trained on, by which the residual was chosen wrongly."
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


def _harder(found: Evaluation) -> float:
    """How much harder test is than validation, by the MRR of counting on both, where that was measured."""
    for one in found:
        if (one.backbone, one.method, one.filter) == (AUTO, "backbone", "time") and "validation_mrr" in one.settings:
            return max(0.0, float(one.settings["validation_mrr"]) - one.mrr)
    return 0.0


def scale_and_sign(backbone: Scorer, dataset: Dataset, device: str = "cpu") -> Iterator[str]:
    """What queries of validation say against the scale and the sign of a model's scores, in sentences."""
    data = dataset.without_test()
    queries = Queries.sampled(data.valid, ASKED, seed=0).to(device)
    past, answer = Past(data.events, device=device), queries.answer
    assert answer is not None
    sure, rank, turned = [], [], []
    for rows in torch.arange(len(queries)).split(64):
        batch = queries.take(rows.to(device))
        log_p = score_queries(backbone, batch, past).log_p.double()
        own = log_p.gather(1, answer[rows.to(device)][:, None])
        above, equal = (log_p > own).sum(1), (log_p == own).sum(1)
        sure.append(log_p.softmax(1).amax(1).cpu().numpy())
        rank.append((above + (equal + 1) / 2).cpu().numpy())
        turned.append((log_p.shape[1] - above - (equal - 1) / 2).cpu().numpy())
    name, certain, ranks = backbone.name, float(np.median(np.concatenate(sure))), np.concatenate(rank)
    hits = float((ranks <= 1).mean())
    if certain > CERTAIN and hits < certain - WRONG:
        yield (
            f"{name} gives its first candidate a probability of {certain:.4f} (median) and is right in {hits:.2f} of "
            "the queries: scores look like logits of a much larger scale; divide by a temperature or return "
            "log-probabilities."
        )
    mrr, negative = float((1 / ranks).mean()), float((1 / np.concatenate(turned)).mean())
    random = float((1 / np.arange(1, data.events.n_entities + 1)).mean())
    if mrr < random and negative > BETTER * max(random, mrr):
        yield (
            f"{name} has an MRR of {mrr:.4f} on validation, less than a random order ({random:.4f}), and "
            f"{negative:.4f} with all scores negated: are lower scores better in your model? Return the negative."
        )

"""Headroom: what the error of a run is made of, by stratum, and what no reweighting of its features can win back.

Every row next to the model knows the answers it is measured on, or facts of their step. None is a forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.breakdown import by_edges, groups
from bridgemem.evaluation.evaluate import base_of, history, queries_of
from bridgemem.evaluation.familiarity import familiarity
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.result import Evaluation
from bridgemem.evaluation.tables import Table, figure, place
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.forecaster import Forecaster
from bridgemem.forecasting.model import Parts
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.filters import Filters
from bridgemem.ranking.intervals import paired_gains
from bridgemem.ranking.metrics import Metrics
from bridgemem.ranking.ranks import answer_ranks
from bridgemem.residuals.cases import CaseReader, Source, best_scale
from bridgemem.residuals.features import Features, gathered
from bridgemem.residuals.learned import Learned, LearnedNet
from bridgemem.residuals.learning import fit_cases, learning_of
from bridgemem.residuals.scoring import Scored, Scoring
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.studies.halfstep import HalfStep, ModelOn, OtherHalf
from bridgemem.training.devices import check_device

HEADROOM = "headroom:"  # what the methods of its records begin with
FILTER = "time"
# the rows by method, as tables name them; the last ones in the order of DRAWS
ROWS = {
    "read": "answer read",
    "told-apart": "told apart",
    "in-sample": "in-sample",
    "two-halves": "two halves",
    "half-step-pairs": "half-step, other pairs",
    "half-step-facts": "half-step, other facts",
}
NOTE = (
    "No row but the model is a forecast. Answer read: the answer ranks first wherever the model reads it. Told apart: "
    "the same, but tied with candidates whose every feature is within a tenth of its standard deviation. In-sample: "
    "the network fitted on these very queries; two halves: on the other half of their steps. Half-step: the model sees "
    "a random half of the facts of the step itself, of other pairs or of any. Missing: the share of 1 - MRR."
)
NEAR = 0.1  # standard deviations of every feature within which two candidates pass for equal
FIRST = 1e6  # what ranks a candidate first when it is added to its score
FIT_QUERIES = 30_000  # of the split that networks are fitted on, at most
SLOW = 0.2  # of the learning rate, where the network of the run goes on with half of the queries
VALID_QUERIES = 3_000  # that the half-step oracle is weighed on, at most
AT_ONCE = "answers at once"
AT_ONCE_EDGES = (1, 2, 3, 6)
_CHUNK = 1 << 16  # candidates whose features are compared at once


class Headroom(Evaluation):
    """What the error of a run is made of; prints as a table."""

    def table(self) -> Table:
        return headroom_table(self.records)


def headroom(
    model: Any,
    *,
    split: str = "test",
    queries: int | None = None,
    device: str = "cpu",
    data_dir: Path | None = None,
    progress: Progress = SILENT,
) -> Headroom:
    """Measure what the error of a model is made of, by stratum, under the time-aware filter.

    Args:
        model: A `Forecaster`, or the folder of a run.
        split: "test" or "valid".
        queries: A random sample of that many (default: all).
        device: "cpu" or "cuda".
        data_dir: The folder of the named data sets.
        progress: Where the parts are shown.

    Returns:
        The records of all rows that are no forecasts, by stratum, each with its gain over the model.

    Raises:
        SettingsError: There is no such split.

    Example:
        >>> found = bm.headroom(model)
        >>> found.mrr("headroom:read") >= found.mrr("headroom:told-apart")
        True
    """
    if split not in ("test", "valid"):
        raise SettingsError(f"split is test or valid, not {split!r}.")
    run = model.parts if isinstance(model, Forecaster) else model
    opened = run if isinstance(run, Parts) else Run(run, data_dir=data_dir)
    return Headroom(tuple(measure(opened, None, split, check_device(device), progress, most=queries)))


def measure(
    run: Parts,
    dataset: Dataset | None = None,
    split: str = "test",
    device: str = "cpu",
    progress: Progress = SILENT,
    *,
    most: int | None = None,
) -> list[Record]:
    """One record for every row and stratum under the time-aware filter, with its gain over the model of the run.

    Nothing is chosen from them. The half-step oracle is weighed on validation. most: a sample of that many queries is
    read.
    """
    for name in SELECTION_FILTERS:
        run.selection(name)
    dataset = dataset or run.dataset
    known = dataset.without_test()
    valid = _model_on(run, known, "valid", device, most=VALID_QUERIES)
    oracles = HalfStep.fit(valid, progress)
    dataset = dataset if split == "test" else known
    plain = _model_on(run, dataset, split, device, most=most)
    half = _halves(plain.queries, run.config.seed)
    networks = _networks(run, plain, half, progress)
    model = _model_on(run, dataset, split, device, networks=networks, most=most)
    pass_ = _Pass(model, networks[0].net, oracles)
    made = torch.cat(model.batches(pass_.read, progress, f"reading {split}"), dim=1).cpu().numpy()
    own, at_once, ranks = made[0], made[1].astype(int), dict(zip(ROWS, made[2:-1], strict=True))
    ranks["two-halves"] = np.where(half == 0, made[-1], ranks["two-halves"])
    strata = _strata(run, dataset, split, model.queries, at_once)
    weights = {f"half-step-{oracle.draw}": {"weight": oracle.weight} for oracle in oracles}
    return list(_records(run, dataset, split, device, _Ranks(model.queries.step.numpy(), own, ranks, strata, weights)))


def _model_on(
    run: Parts,
    dataset: Dataset,
    split: str,
    device: str,
    *,
    networks: Sequence[Learned] = (),
    most: int | None = None,
) -> ModelOn:
    """The model of a run over a split; networks: further columns of the scoring, after its own."""
    past, part = history(run, dataset, split, device), "known" if split == "test" else "train"
    learned = run.learned(FILTER, device)
    read = [model for model in (learned, *networks) if model is not None]
    scoring = Scoring(
        run.scorer(part, device),
        past,
        run.transitions(part, device),
        choices=[run.selection(FILTER).choice],
        learned=read,
        unseen=None if read else learning_of(run.backbone()).unseen_candidates,
    )
    by_network = learned is not None and run.preferred() == "learned"
    return ModelOn(
        scoring,
        2 if by_network else 1,
        float(learned.net.scale) if learned is not None and by_network else 1.0,
        dataset.split(split),
        Filters(dataset.events, device),
        queries_of(dataset, split, most),
    )


def _halves(queries: Queries, seed: int) -> np.ndarray:
    """0 or 1 for every query: halves of the steps, drawn at random, or of the facts of a single one; int64 [n]."""
    step = queries.step.numpy()
    _, group = np.unique(step, return_inverse=True)
    if group.max(initial=0) == 0:
        group = np.arange(len(step)) // 2
    many = int(group.max(initial=0)) + 1
    return (np.random.default_rng(seed).permutation(many) < many // 2).astype(np.int64)[group]


def _networks(run: Parts, model: ModelOn, half: np.ndarray, progress: Progress) -> list[Learned]:
    """Networks that know the answers: fitted on all queries, on the first half, on the second.

    They go on from the network of the run, so that they differ from it by what they saw and not by how much.
    """
    past, scoring, seed = model.scoring.past, model.scoring, run.config.seed
    start = run.learned(FILTER, str(past.device))
    settings = learning_of(run.backbone()) if start is None else start.settings
    rows = torch.arange(len(model.queries))
    if len(rows) > FIT_QUERIES:
        rows = rows[torch.from_numpy(np.sort(np.random.default_rng(seed).choice(len(rows), FIT_QUERIES, False)))]
    queries = model.queries.take(rows)
    scale = best_scale(scoring.backbone, past, queries, seed) if start is None else float(start.net.scale)
    assert scoring.transitions is not None
    reader = CaseReader(past, model.filters, settings.unseen_candidates, scale, seed)
    cases = reader.read(Source(queries, scoring.backbone, scoring.transitions), progress=progress)
    of = torch.from_numpy(half)[rows]
    parts = [torch.arange(len(rows)), *((of == which).nonzero().squeeze(1) for which in (0, 1))]
    if not all(len(part) for part in parts):
        raise DataError("there are too few queries to fit on two halves of them; use a longer split.")
    # on late validation of icews14 slow steps carry over better to the other half, and fast ones know their own better
    slow = replace(settings, learning_rate=settings.learning_rate * SLOW)
    own = (settings, slow, slow) if start is not None else (settings,) * len(parts)
    return [
        fit_cases(cases.take(part.to(past.device)), FILTER, how, start=start, seed=seed, progress=progress).model
        for part, how in zip(parts, own, strict=True)
    ]


class _Pass:
    """What is read of every batch of a split. The last networks of the scoring are those of `_networks`."""

    def __init__(self, model: ModelOn, net: LearnedNet, oracles: Sequence[HalfStep]) -> None:
        self.model, self.net = model, net
        device = model.scoring.past.device
        self.oracles = [(oracle, OtherHalf(model.facts, oracle.draw, device=device)) for oracle in oracles]

    def read(self, batch: Scored) -> Tensor:
        """float64 [9, n]: ranks of the model, how many answers at once, ranks of ROWS, and of the last network.

        The row of two halves is that of the network fitted on the first; the last is that fitted on the second.
        """
        asked, features = batch.queries, batch.features
        assert asked.answer is not None
        assert features is not None
        mask = self.model.filters.mask(FILTER, asked)
        own = batch.candidate == asked.answer[batch.row]
        first = torch.where(own, FIRST, -FIRST).double()[:, None]
        columns = batch.delta[:, [self.model.column, -3, -2, -1]]
        delta = torch.cat([columns, first], dim=1)
        ranks = answer_ranks(batch.scores.log_p, asked.answer, batch.row, batch.candidate, delta, [mask])[0]
        model, in_sample, on_first, on_second, read = ranks
        at_once = torch.bincount(mask[0], minlength=len(asked)).double() + 1
        tied = self._tied(features, own, mask, batch.scores.log_p.shape[1])
        seen = torch.zeros_like(at_once, dtype=torch.bool).index_fill_(0, batch.row[own], True)
        told = torch.where(seen, 1 + tied / 2, read)
        halves = [oracle.ranks(batch, self.model, other)[0] for oracle, other in self.oracles]
        return torch.stack([model, at_once, read, told, in_sample, on_first, *halves, on_second])

    def _tied(self, features: Features, own: Tensor, mask: tuple[Tensor, Tensor], entities: int) -> Tensor:
        """How many candidates of each query the filter leaves whose features are nearly the answer's, float64 [n]."""
        row, columns = features.row, self.net.columns[1]
        place = row.new_zeros(len(features.of_query)).index_copy_(0, row[own], own.nonzero().squeeze(1))
        has = torch.zeros_like(place, dtype=torch.bool).index_fill_(0, row[own], True)
        other = ~own & has[row] & ~torch.isin(row * entities + features.candidate, mask[0] * entities + mask[1])
        answers = self.net.scaled(gathered([replace(b, at=b.at[place]) for b in features.blocks]), columns)
        count = torch.zeros(len(place), dtype=torch.float64, device=row.device)
        for start in range(0, len(row), _CHUNK):
            part = slice(start, start + _CHUNK)
            x = self.net.scaled(gathered(features.blocks, part), columns)
            near = (x - answers[row[part]]).abs().amax(1) <= NEAR
            count.index_add_(0, row[part], (near & other[part]).double())
        return count


@dataclass(frozen=True)
class _Ranks:
    """Ranks of all queries by the model and by every row, float64 [n]; masks of strata, bool [n]; settings by row."""

    step: np.ndarray
    own: np.ndarray
    rows: dict[str, np.ndarray]
    strata: dict[str | None, np.ndarray]
    settings: dict[str, dict[str, Any]]


def _strata(
    run: Parts, dataset: Dataset, split: str, queries: Queries, at_once: np.ndarray
) -> dict[str | None, np.ndarray]:
    """Masks of all queries, under None, and of every stratum that has any."""
    assert queries.answer is not None
    asked = {name: getattr(queries, name).numpy() for name in ("actor", "relation", "step", "answer")}
    began = dataset.test_start if split == "test" else dataset.valid_start
    frozen_at = began if run.config.history == "frozen" else None
    known = groups(familiarity(dataset.events, asked, valid_start=dataset.valid_start, frozen_at=frozen_at))
    wanted = {name: known[name] for name in ("history", "entities")}
    wanted[AT_ONCE] = by_edges(at_once.astype(float), AT_ONCE_EDGES, "none")
    made: dict[str | None, np.ndarray] = {None: np.ones(len(at_once), dtype=bool)}
    for group, masks in wanted.items():
        made |= {f"{group}: {name}": mask for name, mask in masks.items() if mask.any()}
    return made


def _records(run: Parts, dataset: Dataset, split: str, device: str, found: _Ranks) -> Iterator[Record]:
    config, total = run.config, 2 * len(dataset.split(split))
    sampled = {} if len(found.own) == total else {"sampled_from": total}
    for subset, mask in found.strata.items():
        base: dict[str, Any] = base_of(dataset, split, config.backbone, device, int(mask.sum()))
        for row, ranks in found.rows.items():
            gains = paired_gains(found.own[mask], ranks[mask], found.step[mask])
            figures: dict[str, Any] = {**Metrics.of(ranks[mask]).as_dict()}
            yield Record(
                **base,
                **figures,
                method=f"{HEADROOM}{row}",
                filter=FILTER,
                selected_by=FILTER,
                history=config.history,
                seed=config.seed,
                settings={
                    "backbone_seed": config.backbone_seed,
                    "over": run.preferred(),
                    **sampled,
                    **found.settings.get(row, {}),
                },
                gain={metric: [g.value, g.low, g.high] for metric, g in gains.items()},
                lock=run.selection(FILTER).lock(),
                subset=subset,
            )


def by_run(records: Iterable[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """The records of headroom by data set, split and backbone; of several seeds the first."""
    found: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        own = found.setdefault((r.dataset, r.split, r.backbone), []) if r.method.startswith(HEADROOM) else []
        if not own or (own[0].seed, own[0].device) == (r.seed, r.device):
            own.append(r)
    return found


def figures_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for each stratum of a run: its shares of the queries and of what is missing, and the MRR of each row."""
    parts: dict[str | None, list[Record]] = {}
    for r in records:
        parts.setdefault(r.subset, []).append(r)
    total = parts[None][0]
    missing = total.queries * (1 - _model(total))
    return [
        {
            "stratum": subset or "all",
            "queries": own[0].queries,
            "share": own[0].queries / total.queries,
            "missing": own[0].queries * (1 - _model(own[0])) / missing if missing else 0.0,
            "model": _model(own[0]),
            **{r.method.removeprefix(HEADROOM): r.mrr for r in own},
        }
        for subset, own in parts.items()
    ]


def _model(record: Record) -> float:
    """The MRR of the model on the queries of a record."""
    return record.mrr - record.gain["mrr"][0]


def _where(record: Record) -> str:
    """Data set and split of a run, and how many queries were drawn where not all were read."""
    sampled = f", {record.queries:,} queries" if "sampled_from" in record.settings else ""
    return place(record.dataset, record.split) + sampled


def headroom_table(records: Sequence[Record]) -> Table:
    """All rows of one run by stratum, from its records."""
    cells = [
        [one["stratum"], f"{one['share']:.1%}", f"{one['missing']:.1%}", figure(one["model"])]
        + [figure(one[row]) for row in ROWS]
        for one in figures_of(records)
    ]
    name = f"{records[0].backbone} + {records[0].settings['over']}"
    title = f"{_where(records[0])}, {name}, time-aware MRR: what the error is made of"
    return Table(title, ["stratum", "queries", "missing", "model", *ROWS.values()], cells, NOTE)


def short_table(records: Iterable[Record]) -> Table:
    """The rows over whole splits, one column a run."""
    runs = by_run(records)
    if not runs:
        raise DataError("no headroom was measured; `bridgemem headroom RUN --records FILE` does it.")
    whole = [figures_of(own)[0] for own in runs.values()]
    rows = {"model": "the model", **ROWS}
    cells = [[words, *(figure(one[row]) for one in whole)] for row, words in rows.items()]
    header = ["time-aware MRR", *(_where(own[0]) for own in runs.values())]
    return Table("What the error is made of", header, cells, NOTE)

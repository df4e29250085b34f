"""Whether: how good p_event is on a split: Brier score and skill, log loss, ROC AUC, calibration, time to event.

At each step of the split every key that occurred before (or a sample of known weight) is asked whether it occurs within
the next h steps. Two rules stand next to the head. Persistence says how often keys that did, or did not, occur in the
last h steps occurred in the next h. The other is the key's own mean rate since the first event of all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bridgemem.config import parse_json
from bridgemem.errors import DataError, SettingsError
from bridgemem.evaluation.comparison import part_of
from bridgemem.evaluation.tables import Table
from bridgemem.evaluation.what import heads_of
from bridgemem.events.dataset import Dataset
from bridgemem.events.log import EventLog
from bridgemem.forecasting.calibration import Curve
from bridgemem.forecasting.heads import Heads
from bridgemem.forecasting.horizon import check_horizon
from bridgemem.forecasting.model import Parts
from bridgemem.forecasting.occurrence import KINDS, Kind, Outcomes, outcomes, sampled_outcomes
from bridgemem.memory.past import Past
from bridgemem.memory.tallies import PastTallies
from bridgemem.progress import SILENT, Progress
from bridgemem.ranking.intervals import REPLICATES
from bridgemem.showing import as_frame
from bridgemem.storage.files import locked
from bridgemem.storage.schema import as_settings
from bridgemem.storage.whole import whole_file
from bridgemem.training.devices import describe_device

KEYS = 1_000_000  # that are asked at most of a split, over all of its steps
FEWEST_KEYS = 2_000  # of a step, however many steps there are
KIND_WORDS = {
    "pair": "seen pair interacts",
    "triple": "seen (s, r, o) happens",
    "role_relation": "seen (s, r, anybody) happens",
}
RULES = ("persistence", "rate")
FEW_BLOCKS = 5  # of the horizon in a split, below which an interval is rough
LEAST = 1e-6  # of a probability whose log is taken


@dataclass(frozen=True)
class OccurrenceRecord:
    """One row: a kind of query, a horizon, and what the probabilities were worth.

    keys: how many were asked, standing for `stands_for`. share: of them that came true. skill: 1 - Brier score / that
    of each rule, with both ends of its 95 % interval, which resamples blocks of h steps. crps: of the time to the next
    event, up to the horizon, of the head and of the mean rate.
    """

    dataset: str
    fingerprint: str
    split: str
    kind: str
    horizon: int
    seed: int
    steps: int
    keys: int
    stands_for: float
    share: float
    brier: float
    log_loss: float
    auc: float
    ece: float
    skill: dict[str, list[float]]
    rules: dict[str, float]
    crps: dict[str, float]
    curve: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    version: str = ""
    identity: str = ""

    def key(self) -> str:
        """What makes two records measurements of the same thing; a newer one replaces the older."""
        return json.dumps([self.dataset, self.split, self.kind, self.horizon, self.seed])


@dataclass(frozen=True)
class OccurrenceEvaluation:
    """`p_event` measured on a split, one record for each kind of query and horizon; prints as a table.

    Attributes:
        records: All records.

    Example:
        >>> found = model.evaluate_whether("valid", horizon=1)
        >>> {record.horizon for record in found.records}
        {1}
    """

    records: tuple[OccurrenceRecord, ...]

    def __len__(self) -> int:
        return len(self.records)

    def table(self) -> Table:
        """Make the table that is printed.

        Returns:
            One row for each kind of query and horizon.

        Example:
            >>> len(model.evaluate_whether("valid", horizon=1).table().rows) > 0
            True
        """
        return whether_table(self.records)

    def to_frame(self) -> Any:
        """Make a data frame of all records.

        Returns:
            A pandas data frame; a dict of columns if pandas is not installed.

        Example:
            >>> set(model.evaluate_whether("valid", horizon=1).to_frame()["horizon"])
            {1}
        """
        rows = [asdict(record) for record in self.records]
        return as_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})

    def __str__(self) -> str:
        return str(self.table())


def usual_horizons(steps: int) -> tuple[int, ...]:
    """What a split of that many steps is asked for."""
    return (1, 3) if steps < 20 else (1, 7, 14) if steps < 100 else (1, 7, 14, 30)


def evaluate_whether(
    run: Parts,
    dataset: Dataset | None = None,
    split: str = "test",
    horizon: int | None = None,
    progress: Progress = SILENT,
) -> list[OccurrenceRecord]:
    """p_event of every kind on a split; the head was fitted on validation. horizon: the usual ones where None."""
    heads, dataset = heads_of(run), dataset or run.dataset
    dataset = dataset.without_test() if split == "valid" else dataset
    start = dataset.valid_start if split == "valid" else dataset.test_start
    if start is None:
        raise DataError(f"{dataset.name} has no test split; use its validation split.")
    steps = dataset.events.end - start
    wanted = [check_horizon(horizon)] if horizon is not None else [h for h in usual_horizons(steps) if h <= steps]
    if max(wanted) > steps:
        raise DataError(f"{split} has {steps} steps, fewer than the horizon of {max(wanted):,}; ask for a shorter one.")
    made = []
    with progress.task(f"reading {split}", total=len(KINDS)) as advance:
        for kind in KINDS:
            measured = _Measured(kind, dataset.events, start, heads)
            made += [measured.record(run, dataset, split, h) for h in wanted]
            advance(1)
    return made


class _Measured:
    """One kind of query at every step from a start on: what was stated, what came, and what rules say."""

    def __init__(self, kind: Kind, events: EventLog, start: int, heads: Heads) -> None:
        past, self.heads = Past(events), heads
        dates = list(range(start, events.end))
        self.kind, self.tallies = kind, PastTallies(past)
        self.found = outcomes(kind, past, dates, max(KEYS // len(dates), FEWEST_KEYS), 0)
        self.weight, self.after = self.found.weight.double().numpy(), self.found.after.numpy()
        self.known, self.step = self.found.known.numpy(), self.found.keys.step.numpy()
        self.lag, self.rate = _lag_and_rate(self.found, self.tallies, events.start)
        before = Past(events.prefix(start))
        self.earlier = sampled_outcomes(kind, before, heads.occurrence.settings, 0)
        self.earlier_lag, _ = _lag_and_rate(self.earlier, PastTallies(before), events.start)

    def stated(self, horizons: tuple[int, ...]) -> np.ndarray:
        return self.heads.occurrence.probability(self.found.keys, self.tallies, horizons).numpy()

    def persistence(self, horizon: int) -> np.ndarray:
        """How often those that did, or did not, occur in the last h steps occurred in the next, before the split."""
        whole = (self.earlier.known >= horizon).numpy()
        hit, weight = (self.earlier.after <= horizon).numpy()[whole], self.earlier.weight.double().numpy()[whole]
        lately = self.earlier_lag[whole] <= horizon
        share = [(hit[own] * weight[own]).sum() / max(weight[own].sum(), 1) for own in (~lately, lately)]
        return np.where(self.lag <= horizon, share[1], share[0])

    def record(self, run: Parts, dataset: Dataset, split: str, horizon: int) -> OccurrenceRecord:
        from bridgemem import __version__

        rows = np.flatnonzero(self.known >= horizon)
        p = self.stated(tuple(range(1, horizon + 1)))[rows]
        hit, weight = (self.after[rows] <= horizon).astype(float), self.weight[rows]
        rules = {"persistence": self.persistence(horizon), "rate": -np.expm1(-self.rate * horizon)}
        own = p[:, -1]
        losses = {name: (values[rows] - hit) ** 2 for name, values in rules.items()}
        step = self.step[rows]
        curve = Curve.of(own, hit.astype(bool), weight)
        log_p = np.log(np.clip(np.where(hit > 0, own, 1 - own), LEAST, 1))
        return OccurrenceRecord(
            dataset=dataset.name,
            fingerprint=dataset.events.fingerprint,
            identity=dataset.identity.digest,
            split=split,
            kind=self.kind,
            horizon=horizon,
            seed=run.config.seed,
            steps=len(np.unique(step)),
            keys=len(rows),
            stands_for=float(weight.sum()),
            share=_mean(hit, weight),
            brier=_mean((own - hit) ** 2, weight),
            log_loss=-_mean(log_p, weight),
            auc=_auc(own, hit > 0, weight),
            ece=curve.error,
            skill={name: _skill((own - hit) ** 2, loss, weight, step, horizon) for name, loss in losses.items()},
            rules={name: _mean(loss, weight) for name, loss in losses.items()},
            crps=self._crps(p, rows, horizon),
            curve=[asdict(b) for b in curve.bins],
            settings=asdict(self.heads.note.occurrence),
            device=describe_device("cpu"),
            version=__version__,
        )

    def _crps(self, p: np.ndarray, rows: np.ndarray, horizon: int) -> dict[str, float]:
        """The continuous ranked probability score of the time to the next event, cut off at the horizon."""
        made = {"head": 0.0, "rate": 0.0}
        for place in range(horizon):
            came = self.after[rows] <= place + 1
            stated = {"head": p[:, place], "rate": -np.expm1(-self.rate[rows] * (place + 1))}
            for name, values in stated.items():
                made[name] += _mean((values - came) ** 2, self.weight[rows])
        return made


def _lag_and_rate(found: Outcomes, tallies: PastTallies, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps since the last event of each key, and its events a step since the first of all."""
    keys = found.keys
    before = tallies.before(keys.kind, keys.subject, keys.relation, keys.object, keys.step, levels=False)
    lag = (keys.step - before.last).numpy()
    return lag, (before.events / (keys.step - first).clamp(min=1)).double().numpy()


def _mean(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.average(values, weights=weight)) if len(values) else 0.0


def _skill(
    own: np.ndarray, rule: np.ndarray, weight: np.ndarray, step: np.ndarray, horizon: int, seed: int = 0
) -> list[float]:
    """1 - Brier score over the rule's, and both ends of its 95 % interval, where there are two steps.

    Queries at steps closer than the horizon share outcomes, so blocks of as many consecutive steps are drawn. The last
    step is followed by the first, so that each is drawn as often as any other.
    """
    _, date = np.unique(step, return_inverse=True)
    sums = np.stack([np.bincount(date, weights=values * weight) for values in (own, rule)], axis=1)
    point = 1 - sums[:, 0].sum() / max(sums[:, 1].sum(), LEAST)
    size = len(sums)
    if size < 2:  # there is nothing to resample
        return [float(point)]
    block, twice = min(horizon, size), np.cumsum(np.concatenate([np.zeros((1, 2)), sums, sums]), axis=0)
    draw = np.random.default_rng(seed)
    draws = np.zeros((REPLICATES, 2))
    for at in range(0, size, block):  # the last block is as long as is missing
        first = draw.integers(size, size=REPLICATES)
        draws += twice[first + min(block, size - at)] - twice[first]
    low, high = np.quantile(1 - draws[:, 0] / np.maximum(draws[:, 1], LEAST), [0.025, 0.975])
    return [float(point), float(low), float(high)]


def _auc(p: np.ndarray, hit: np.ndarray, weight: np.ndarray) -> float:
    """The probability that one that came true was stated higher than one that did not; equal ones count half."""
    values, place = np.unique(p, return_inverse=True)
    came, not_came = (np.bincount(place, weights=weight * own, minlength=len(values)) for own in (hit, ~hit))
    below = np.cumsum(not_came) - not_came
    total = came.sum() * not_came.sum()
    return float((came * (below + not_came / 2)).sum() / total) if total else 0.5


def whether_table(records: Sequence[OccurrenceRecord]) -> Table:
    """One row for each kind of query and horizon."""
    header = ["whether", "steps", "keys", "came true", "Brier", "skill over persistence [95 %]"]
    header += ["skill over the own rate [95 %]", "ROC AUC", "calibration error"]
    rows = [
        [
            KIND_WORDS[r.kind],
            str(r.horizon),
            f"{r.keys:,}",
            f"{r.share:.2%}",
            f"{r.brier:.4f}",
            *(skill_cell(r.skill[rule]) for rule in RULES),
            f"{r.auc:.3f}",
            f"{r.ece:.4f}",
        ]
        for r in records
    ]
    first = records[0]
    note = "Keys that occurred before, at every step; skill is 1 - Brier score / that of the rule."
    if rough := sorted({r.horizon for r in records if r.steps < FEW_BLOCKS * r.horizon}):
        steps = " and ".join(str(horizon) for horizon in rough)
        note += f" Within {steps} step{'s' * (rough != [1])} the intervals are rough: the split is too short for them."
    return Table(
        f"{first.dataset}, {part_of(first.split, first.settings)}: at least one event within that many steps",
        header,
        rows,
        note,
    )


def skill_cell(skill: list[float]) -> str:
    """A skill with both ends of its interval, where it has any."""
    return f"{skill[0]:+.3f} [{skill[1]:+.3f}, {skill[2]:+.3f}]" if len(skill) == 3 else f"{skill[0]:+.3f}"


def write_occurrence_records(path: Path, records: Sequence[OccurrenceRecord]) -> None:
    """Add records to a file of JSON lines, replacing earlier measurements of the same thing."""
    with locked(path):
        kept = {record.key(): record for record in (read_occurrence_records(path) if path.exists() else [])}
        kept.update({record.key(): record for record in records})
        with whole_file(path) as aside:
            aside.write_text("".join(json.dumps(asdict(r)) + "\n" for r in kept.values()), encoding="utf-8")


def read_occurrence_records(path: Path) -> list[OccurrenceRecord]:
    """The records of a file, or which line is none."""
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number} is no record of whether"
        try:
            records.append(as_settings(OccurrenceRecord, parse_json(line), where))
        except SettingsError as problem:
            raise DataError(f"{str(problem).rstrip('.')}; keep such records in a file of their own.") from None
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{where}: {problem}.") from None
    return records

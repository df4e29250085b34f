"""Documents of commands that fit, measure or check a model: records, tables, runs and findings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from bridgemem.backbones import Listed
from bridgemem.backbones.tuning import Trial
from bridgemem.cli.schemas.base import Document
from bridgemem.evaluation.breakdown import Stratum
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.whether import OccurrenceRecord
from bridgemem.forecasting.calibration import Calibration
from bridgemem.ranking.intervals import Gain
from bridgemem.ranking.metrics import Metrics
from bridgemem.service.models import Answer, Explanation
from bridgemem.studies.compare import Difference
from bridgemem.studies.remake import Done, Job


class Measured(Document):
    """Figures, one record each, as in files of records."""

    records: list[Record]


class Evaluated(Measured):
    """Figures of a run, or of your own model, on a split."""

    split: Literal["test", "valid"]
    shard: str | None = Field(description="With --shard: the part that was read, as 2/8; there are no records then.")
    part: str | None = Field(description="With --shard: the file of its ranks.")


class EvaluatedWhether(Document):
    """With --query whether: how good p_event is on a split."""

    split: Literal["test", "valid"]
    records: list[OccurrenceRecord]


class NewBackbone(Document):
    """A new file to start your own model from."""

    file: str
    backbone: str = Field(description="What -b takes, as mymodel.py:MyModel.")


class PrintedTable(Answer):
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


class Remade(Document):
    """With --all: the jobs that recompute every row of a file of records, and their outcomes."""

    source: str = Field(description="The file of the records that are recomputed.")
    jobs: list[Job]
    minutes: float = Field(description="Estimate for all jobs, from the seconds in the records.")
    left_out: list[tuple[str, str]] = Field(description="Rows that are not remade, and why.")
    differs: list[tuple[str, str]] = Field(description="Rows that are remade from other inputs, and which.")
    outcomes: dict[str, Done] = Field(description="By the name of a job; empty with --plan.")
    compared: PrintedTable | None = Field(description="What was recorded next to what was remade; null with --plan.")
    out: str | None = Field(description="The file of the remade records.")


class Reported(Measured):
    """The records that the tables are made of, and the tables as they are printed, in text cells."""

    tables: list[PrintedTable]
    files: list[str]


class CalibratedMethod(Answer):
    method: str
    selected_by: str | None
    calibration: Calibration


class Calibrated(Document):
    """How scores become probabilities, for each method of a run."""

    calibrations: list[CalibratedMethod]


class Demonstrated(Document):
    """The demo: records of every method and filter, the oracle, and one explained forecast."""

    records: list[Record]
    model: Literal["bridgemem", "learned"] = Field(description="The residual that forecasts use.")
    oracle: dict[str, Metrics] = Field(description="By filter.")
    short_of_oracle: Gain = Field(description="The model's gain over the oracle, below 0, time-aware.")
    headroom: float = Field(description="The share of the way from the backbone to the oracle, time-aware.")
    seconds: float
    forecast: Explanation


class Tuned(Answer):
    """How settings were chosen on validation: every trial in its order, and what was taken for each backbone."""

    split: Literal["valid"]
    filter: Literal["time"]
    queries: int = Field(description="Validation queries that each trial was measured on.")
    budget: float = Field(description="Time limit of the trials in seconds.")
    seconds: float
    whole: bool = Field(description="Whether the search finished within the budget.")
    least_gain: float = Field(description="Least gain of MRR over the best trial before it.")
    seed: int
    device: str
    fingerprint: str
    grid: dict[str, int] = Field(description="Trials that one round over the grid takes, by backbone.")
    settled: list[str] = Field(description="Backbones whose search came to its end.")
    chosen: dict[str, dict[str, Any]] = Field(description="What differs from the settings it began with, by backbone.")
    trials: list[Trial]


class Trained(Document):
    """A trained backbone."""

    backbone: str
    out: str
    parameters: int
    seed: int
    tuning: Tuned | None = Field(description="With --tune; null without.")


class Fitted(Document):
    """A run: what validation chose under each filter, and how the residuals did on its later part."""

    run: str
    epochs: int
    selections: dict[str, dict[str, Any]] = Field(description="By filter: the choice, its metrics, grid and lock.")
    held_out: dict[str, dict[str, Any]] = Field(description="By filter; empty where nothing was learned.")
    naive: dict[str, dict[str, Any]] = Field(
        description="Naive forecasters on validation, time-aware; next to a learned residual they are in held_out."
    )
    forecasts: Literal["bridgemem", "learned"] = Field(description="The residual that forecasts use.")
    fit_seconds: float
    seconds: float


class Compared(Document):
    """Paired differences of runs, rows and backbones, B - A, with p-values corrected for all of them."""

    split: Literal["test", "valid"]
    differences: list[Difference]


class RankedRow(Answer):
    """The figures of one row under one filter."""

    row: str = Field(description="backbone, bridgemem, learned, or the name of a baseline.")
    filter: Literal["raw", "static", "time"]
    mrr: float
    hits1: float
    hits3: float
    hits10: float


class Stratified(Document):
    """A run by stratum, under every filter."""

    run: str
    split: Literal["test", "valid"]
    strata: list[Stratum]


class RankedQueries(Document):
    """The rank of every query, summed up by row; --out has them one by one."""

    source: str
    split: Literal["test", "valid"]
    queries: int
    rows: list[RankedRow]
    out: str | None


class Finding(Answer):
    check: str
    passed: bool | None = Field(description="Null where it cannot be checked.")
    seen: str
    verdict: Literal["shown", "not shown", "not checkable"]


class Audited(Document):
    """The checks of a run; `passed` is true only if all is shown, null where nothing failed but not all was checked."""

    run: str
    split: Literal["test", "valid"]
    passed: bool | None
    word: str
    findings: list[Finding]


class CheckedBackbone(Document):
    """The checks of a model; `passed` as in an audit."""

    backbone: str
    data: str
    passed: bool | None
    word: str
    findings: list[Finding]


class TgbFigure(Answer):
    method: str
    mrr: float
    hits10: float
    queries: int


class MeasuredByTgb(Document):
    """A run measured by TGB's evaluator."""

    run: str
    split: Literal["test", "valid"]
    figures: list[TgbFigure]


class BackbonesListed(Document):
    """All backbones; `broken` says why one cannot be used."""

    backbones: list[Listed]


class Pushed(Document):
    """Where a run is on a hub."""

    repository: str
    commit: str
    files: int


class Pulled(Document):
    """A run from a hub."""

    run: str
    dataset: str
    backbone: str

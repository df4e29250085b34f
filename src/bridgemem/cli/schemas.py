"""Schemas: the one JSON document that each command prints with --json, and the lines of standard error."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from bridgemem.backbones import Listed
from bridgemem.backbones.tuning import Trial
from bridgemem.cli.configured import Setting
from bridgemem.evaluation.breakdown import Stratum
from bridgemem.evaluation.records import Record
from bridgemem.evaluation.whether import OccurrenceRecord
from bridgemem.events.aliases import MergedName
from bridgemem.events.readers.text import Reject
from bridgemem.forecasting.ahead import PartnerCandidate, RelationCandidate, Within
from bridgemem.forecasting.asked import Assumed
from bridgemem.forecasting.calibration import Bin, Calibration
from bridgemem.forecasting.grouping import GroupPartner
from bridgemem.forecasting.outlook import ExpectedEvent
from bridgemem.live.eventstore import Stored
from bridgemem.live.ledger import Resolution
from bridgemem.live.track_record import Score
from bridgemem.ranking.intervals import Gain
from bridgemem.ranking.metrics import Metrics
from bridgemem.service.models import (
    Answer,
    BackedUp,
    Explanation,
    Forecast,
    NameFound,
    ReasonTold,
    RejectedRow,
    Removed,
    ReplayedRows,
)
from bridgemem.studies.compare import Difference
from bridgemem.studies.remake import Done, Job


class Document(Answer):
    """What every document begins with."""

    command: str = Field(description="The command that printed it.")
    version: str = Field(description="Of the program.")


class Failure(Answer):
    """A line of standard error: why the command failed, in one sentence. The exit code is 1 or 2."""

    error: str
    code: str = Field(description="What kind of failure it is; see the list of codes.")
    suggestions: list[str] = Field(description="Names that may have been meant.")


class Remark(Answer):
    """A line of standard error: a remark next to the result."""

    warning: str


class Measured(Document):
    """Figures, one record each, as in files of records."""

    records: list[Record]


class Evaluated(Measured):
    """Figures of a run, or of a model of one's own, on a split."""

    split: Literal["test", "valid"]
    shard: str | None = Field(description="With --shard: the part that was read, as 2/8; there are no records then.")
    part: str | None = Field(description="With --shard: the file of its ranks.")


class EvaluatedWhether(Document):
    """With --query whether: what p_event is worth on a split."""

    split: Literal["test", "valid"]
    records: list[OccurrenceRecord]


class NewBackbone(Document):
    """A file that was written to start a model of one's own from."""

    file: str
    backbone: str = Field(description="What -b takes, as mymodel.py:MyModel.")


class PrintedTable(Answer):
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


class Remade(Document):
    """With --all: the jobs that make every row of a file of records anew, and how each went."""

    jobs: list[Job]
    minutes: float = Field(description="About what all jobs take, by the seconds in the records.")
    left_out: list[tuple[str, str]] = Field(description="Rows that are not remade, and why.")
    differs: list[tuple[str, str]] = Field(description="Rows that are remade from other inputs, and which.")
    outcomes: dict[str, Done] = Field(description="By the name of a job; empty with --plan.")
    compared: PrintedTable | None = Field(description="What was recorded next to what was remade; null with --plan.")
    out: str | None = Field(description="The file of the remade records.")


class Reported(Measured):
    """The records that the tables are made of, and the tables as they are printed, in text cells."""

    tables: list[PrintedTable]
    files: list[str]


class AnswerReasons(Answer):
    """What happened before one answer, in plain sentences with their counts."""

    answer: str
    reasons: list[ReasonTold]


class Forecasted(Forecast, Document):
    """The candidates of one query, best first."""

    p_event: float | None = Field(
        description="With --horizon: that there is such an event with anybody; null without, or where it is not known."
    )
    reasons: list[AnswerReasons] | None = Field(description="For each answer; null without --why.")
    assumed: Assumed | None = Field(description="What assumed events change; null without --assume.")
    issued: int | None = Field(description="With --issue: the number of the forecast in the ledger.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class AskedAhead(Document):
    """What was asked of what, with whom and whether, from the events before `time`; null is what is asked for."""

    subject: str | None
    relation: str | None
    object: str | None
    relation_label: str | None
    time: str
    until: str = Field(description="The last of the steps that are asked about.")
    step: int
    horizon: int
    p_event: float | None = Field(description="That it happens at least once within the horizon; null for partners.")
    past_events: int = Field(description="How often it happened before.")
    meaning: str = Field(description="What the probabilities are probabilities of.")
    remark: str = Field(description="How far such probabilities were off on later validation; empty where not.")
    reasons: list[AnswerReasons] | None = Field(description="For each answer; null without --why.")
    assumed: Assumed | None = Field(description="What assumed events change; null without --assume.")
    issued: int | None = Field(description="With --issue: the number of the forecast in the ledger.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class ForecastedWhat(AskedAhead):
    """With --subject and --object: what happens between the two, either way round, best first."""

    candidates: list[RelationCandidate]


class ForecastedGroup(AskedAhead):
    """With --groups and a relation: the partners of a group, best first."""

    candidates: list[GroupPartner]


class ForecastedPartners(AskedAhead):
    """With --subject or --object alone: whom it deals with, under any relation, best first."""

    candidates: list[PartnerCandidate]


class ForecastedWhether(AskedAhead):
    """With --subject, --relation and --object: whether and when it happens."""

    within: list[Within]
    median: int | None = Field(description="Steps until it has happened with 50 %; null where that is far ahead.")


class OutlookListed(Document):
    """The likeliest events of the coming steps, or with --surprising those that rose most, best first."""

    time: str
    until: str = Field(description="The last of the steps that are asked about.")
    step: int
    horizon: int
    surprising: bool
    watch: list[str] = Field(description="What is watched; empty for everything.")
    events: int = Field(description="Events that were compared.")
    meaning: str = Field(description="What the probabilities are probabilities of.")
    remark: str = Field(description="How far such probabilities were off on later validation; empty where not.")
    candidates: list[ExpectedEvent]
    out: str | None = Field(description="With --out: the file of the table.")
    issued: int | None = Field(description="With --issue: the number of the forecast in the ledger.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class LedgerClaim(Answer):
    """One probability of an issued forecast, and what became of it; null in a name is anybody or anything."""

    id: int
    subject: str | None
    relation: str | None
    object: str | None
    measure: Literal["event", "share", "once"] = Field(
        description="event: at least once in the window. share, once: given that what `asked` leaves open happens."
    )
    asked: Literal["subject", "object", "relation"] | None
    p: float
    base_rate: float
    persistence: float
    probability: Literal["p_event", "p_given_event"]
    state: Literal["open", "yes", "no", "partly", "void"] = Field(
        description="open: the window is not over. partly: some of the events that could. void: there were none."
    )
    hits: int | None
    total: int | None
    resolved: str | None
    changes: int = Field(description="How often it was resolved.")
    history: list[Resolution] = Field(description="With --forecast: every resolution.")


class LedgerForecast(Answer):
    """An issued forecast, from the events before `as_of`; time, until: the first and the last step of its window."""

    id: int
    issued: str
    version: str
    query: Literal["who", "what", "partners", "whether", "outlook"]
    subject: str | None
    relation: str | None
    object: str | None
    as_of: str
    time: str
    until: str
    step: int
    horizon: int
    claims: list[LedgerClaim]


class LedgerListed(Document):
    """The forecasts of a store, in the order in which they were issued."""

    store: str
    forecasts: list[LedgerForecast]


class LedgerScored(Document):
    """What the issued forecasts of a store were worth, next to naive rules."""

    store: str
    forecasts: int
    claims: int
    open: int = Field(description="Probabilities whose window is not over.")
    void: int = Field(description="Probabilities whose condition was never met.")
    scores: list[Score]
    curves: dict[str, list[Bin]] = Field(description="Reliability curves: p_event and p_given_event.")


class ForecastedFile(Document):
    """With --queries: how many were answered, and where the answers are."""

    queries: int
    rows: int
    out: str
    meaning: str = Field(description="What p_given_event is the probability of, or why there is none.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")
    parts: int = Field(description="Blocks of queries that were answered one by one.")
    resumed: int = Field(description="Parts that an interrupted run had answered before.")


class Explained(Document):
    """Why each candidate has its score."""

    explanations: list[Explanation]
    files: list[str] = Field(description="The files of the card.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


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
    queries: int = Field(description="Of validation that each trial was measured on.")
    budget: float = Field(description="Seconds that the trials might take.")
    seconds: float
    whole: bool = Field(description="Whether the search came to its end within the budget.")
    least_gain: float = Field(description="Of MRR that a trial has to be above the best before it.")
    seed: int
    device: str
    fingerprint: str
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


class NamedData(Answer):
    name: str
    title: str
    found: str | None = Field(description="Where it lies; null where it was not found.")


class DataListed(Document):
    """The named data sets."""

    datasets: list[NamedData]


class StepsWithout(Answer):
    """Steps without any event, between the times of two that have some."""

    after: str
    before: str
    steps: int


class DataChecked(Document):
    """What is in events, and what is wrong with them. The exit code is 2 where any row was rejected."""

    events: int
    entities: int
    relations: int
    once: int = Field(description="Entities that occur once.")
    repeated: int = Field(description="Events that equal an earlier one.")
    loops: int = Field(description="Events between a name and itself.")
    first: str
    last: str
    steps: int = Field(description="Steps that have events.")
    step: str = Field(description="The length of a time step in words.")
    gap: StepsWithout | None = Field(description="The largest gap; null without any.")
    aliases: dict[str, str] = Field(description="Names that differ from another by case, spaces, accents or signs.")
    remarks: list[str] = Field(description="What may stand in the way of using the events.")
    rejected: int
    fingerprint: str | None = Field(description="Of a data set; null for files.")
    rejects: list[Reject] = Field(description="The first 10,000.")


class DataDescribed(Document):
    """Sizes of a data set."""

    name: str
    entities: int
    relations: int
    events: int
    splits: dict[str, int]
    steps: int
    step: str = Field(description="The length of a time step in words.")
    first: str
    last: str
    transition_examples: int
    reader_parameters: int
    fingerprint: str


class DataImported(Document):
    """A packed data set, and how its source was understood."""

    out: str
    format: str
    columns: dict[str, str]
    events: int
    step: str = Field(description="The length of a time step in words.")
    splits: dict[str, int]
    merged: list[MergedName] | None = Field(description="Names merged by aliases; null without any.")
    dropped: dict[str, int] = Field(description="Rows without two parties, by reason.")
    rejected: int
    rejects: list[Reject] = Field(description="The first 100.")
    remarks: list[str] = Field(description="How times and missing values were read, where that needs a word.")


class PackedFile(Answer):
    path: str
    bytes: int


class DataPacked(Document):
    """Packed data sets."""

    files: list[PackedFile]


class DataDownloaded(Document):
    """A named data set in the cache."""

    folder: str


class Aliased(Document):
    """The aliases of a packed data set or a run; after a change of a packed one, what was merged."""

    aliases: dict[str, str] = Field(description="Canonical names by alias.")
    merged: list[MergedName] | None
    loops: int | None = Field(description="Events that became self-loops.")


class NamesListed(Document):
    """The names that fit a text best."""

    names: list[NameFound]
    known: int = Field(description="How many names there are in all.")
    stored_events: int = Field(description="Events of the store that were read after the run's own.")


class BackbonesListed(Document):
    """All backbones; `broken` says why one is of no use."""

    backbones: list[Listed]


class Ingested(Document):
    """What became of a batch of events."""

    batch: int
    source: str
    events: int
    accepted: int
    duplicates: int
    late: int
    replayed: bool = Field(description="The batch was stored before; nothing changed.")
    new_entities: int
    new_relations: int
    left_out: int = Field(description="Rows that were skipped.")
    last_offset: str | None
    ids: list[str] | None = Field(description="Of the events, in the file's order; null without --ids.")


class FeedIngested(Document):
    """With --follow: what became of a feed, when it ended."""

    source: str
    batches: int
    events: int
    accepted: int
    duplicates: int
    late: int
    rejected: int = Field(description="Lines that cannot be used.")
    skipped: int = Field(description="Lines that were stored before.")
    last_offset: str | None = Field(description="Of a file: a JSON text with file, inode, offset, line and mark.")


class StoredListed(Document):
    """The latest events of a store; `retracted` null: in force."""

    events: list[Stored]


class Retracted(Document):
    """An event that was taken back."""

    retracted: str
    subject: str
    relation: str
    object: str
    time: str
    already: bool


class Refreshed(Document):
    """A run that was fitted further; `added` and `retracted` count events."""

    run: str
    source: str = Field(description="The run that it was made of.")
    added: int
    retracted: int
    events: int
    new_entities: int
    new_relations: int
    batches: int
    retractions: int
    reader: str
    epochs: int
    when: str
    store: str
    chosen_until: int = Field(description="The step at which the validation of the fit ended; -1: at its data's end.")
    origin: str
    backbone: str
    selection: str


class Renewed(Document):
    """With --compare or --every: what was compared, and what is served afterwards; one document a round."""

    when: str
    outcome: Literal["renewed", "kept", "waiting"]
    reason: str
    how: Literal["refresh", "refit"] | None = Field(description="refit: chosen and calibrated again.")
    new_events: int
    window: int = Field(description="Steps that both were compared on.")
    start: str | None
    end: str | None
    queries: int
    serving_mrr: float | None = Field(description="Under the time-aware filter.")
    candidate_mrr: float | None = Field(description="Of one that was fitted without the window.")
    gain: float | None
    low: float | None = Field(description="Of the 95 % interval of the gain, paired.")
    high: float | None
    run: str = Field(description="That is served afterwards.")
    model_version: str
    before: str = Field(description="The version that was served.")


class StoreCopied(BackedUp, Document):
    """A copy of an event store, read back; `digest` of all rows at its moment."""


class StoreReduced(Removed, Document):
    """What was removed from an event store for good."""


class RejectedListed(Document):
    """Rows in the quarantine of a store, and how many there are in all."""

    rows: list[RejectedRow]
    known: int


class RejectedExported(Document):
    """With --out: how many rows were written, and where."""

    rows: int
    out: str


class RejectedReplayed(ReplayedRows, Document):
    """With --replay: what became of the repaired rows."""


class RejectedDropped(Document):
    """With --drop: how many rows were dropped."""

    dropped: int


class StoreCompacted(Document):
    """A store after a compaction."""

    store: str
    events: int
    batches: int
    retractions: int
    merged: int | None = Field(description="Events that the service merged into its base; null: no service runs.")
    bytes: int = Field(description="Size of the file now.")
    before: int = Field(description="Size of the file before.")


class LinkMoved(Document):
    """The run that a link points to now."""

    link: str
    run: str
    version: str = Field(description="Of the model.")
    before: str | None = Field(description="The run that it pointed to; null: none.")
    removed: list[str] = Field(description="Folders that were deleted, as older than what is kept.")


class ConfigShown(Document):
    """What a command would start with if it were called without any option."""

    of: Literal["serve", "explore"]
    file: str | None = Field(description="The TOML file that was read.")
    settings: list[Setting]


class MemoryWritten(Document):
    """A memory on disk."""

    out: str
    events: int
    files: int
    bytes: int


class Mined(Document):
    """What was mined, as mined.json holds it."""

    format: int
    fingerprint: str
    events: int
    rows: int
    pairs: int
    examples: int
    sampled: int
    shards: int
    end: int
    n_entities: int
    n_relations: int
    seed: int
    settings: dict[str, Any]
    clock: dict[str, Any]
    source: dict[str, Any]
    checksums: dict[str, Any]
    merged: dict[str, Any] | None = Field(None, description="Names merged by aliases, and events that became loops.")


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


class Schema(Document):
    """The JSON Schema of a command's document, and of the lines of standard error."""

    document: dict[str, Any]
    stderr: dict[str, Any]


DOCUMENTS: dict[str, Any] = {
    "demo": Demonstrated,
    "train": Trained,
    "fit": Fitted,
    "evaluate": Evaluated | EvaluatedWhether,
    "new-backbone": NewBackbone,
    "calibrate": Calibrated,
    "forecast": Forecasted | ForecastedFile | ForecastedWhat | ForecastedPartners | ForecastedWhether | ForecastedGroup,
    "reproduce": Measured | Remade,
    "outlook": OutlookListed,
    "explain": Explained,
    "names": NamesListed,
    "data list": DataListed,
    "data check": DataChecked,
    "data stats": DataDescribed,
    "data import": DataImported,
    "data aliases": Aliased,
    "data pack": DataPacked,
    "data download": DataDownloaded,
    "ingest": Ingested | FeedIngested,
    "stored": StoredListed,
    "retract": Retracted,
    "refresh": Refreshed | Renewed,
    "rejected": RejectedListed | RejectedExported | RejectedReplayed | RejectedDropped,
    "prune": StoreReduced,
    "erase": StoreReduced,
    "compact": StoreCompacted,
    "backup": StoreCopied,
    "ledger list": LedgerListed,
    "ledger score": LedgerScored,
    "promote": LinkMoved,
    "rollback": LinkMoved,
    "config show": ConfigShown,
    "mine": Mined,
    "memory": MemoryWritten,
    "ablate": Measured,
    "compare": Compared,
    "ranks": RankedQueries,
    "strata": Stratified,
    "headroom": Measured,
    "audit": Audited,
    "check-backbone": CheckedBackbone,
    "leakage": Measured,
    "tgb": MeasuredByTgb,
    "report": Reported,
    "push": Pushed,
    "pull": Pulled,
    "backbones list": BackbonesListed,
    "schema": Schema,
}
Line = Annotated[Failure | Remark, Field(description="A line of standard error.")]


def document(command: str) -> TypeAdapter[Any]:
    """What reads and describes the document of a command."""
    return TypeAdapter(DOCUMENTS[command])

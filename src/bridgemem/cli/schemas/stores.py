"""Documents of commands on event stores and on the runs that follow them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridgemem.cli.schemas.base import Document
from bridgemem.live.eventstore import Stored
from bridgemem.service.admin_models import BackedUp, RejectedRow, Removed, ReplayedRows


class Ingested(Document):
    """The result of ingesting a batch of events."""

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
    ids: list[str] | None = Field(description="Ids of the events, in the file's order; null without --ids.")


class FeedIngested(Document):
    """With --follow: the totals of a feed, when it ended."""

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
    """The latest events of a store; `retracted` is null while an event counts."""

    events: list[Stored]


class Retracted(Document):
    """A retracted event."""

    retracted: str
    subject: str
    relation: str
    object: str
    time: str
    already: bool


class Refreshed(Document):
    """A run that was fitted further; `added` and `retracted` count events."""

    run: str
    source: str = Field(description="The run that was refreshed.")
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
    serving_mrr: float | None = Field(description="MRR of the served run under the time-aware filter.")
    candidate_mrr: float | None = Field(description="MRR of the newer model, fitted without the window.")
    gain: float | None
    low: float | None = Field(description="Lower end of the paired 95 % interval of the gain.")
    high: float | None = Field(description="Upper end of that interval.")
    run: str = Field(description="The run that is served afterwards.")
    model_version: str
    before: str = Field(description="The version that was served.")


class StoreCopied(BackedUp, Document):
    """A copy of an event store, read back; `digest` of all rows at its moment."""


class StoreReduced(Removed, Document):
    """What was removed permanently from an event store."""


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
    version: str = Field(description="Version of the model.")
    before: str | None = Field(description="The run that it pointed to; null: none.")
    removed: list[str] = Field(description="Folders that were deleted, as older than what is kept.")

"""What the operator's routes take and give: backups, removals, the quarantine, compactions and reloads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridgemem.service.models import MOST_EVENTS, Answer, Asked, FromModel, Name, Time


class BackupWanted(Asked):
    """A file of the machine that the service runs on."""

    to: str = Field(min_length=1, max_length=4000, description="Absolute path of the copy.")
    replace: bool = Field(False, description="Whether an existing file is replaced.")


class BackedUp(Answer):
    """A copy of the store, read back. digest: of all rows at its moment."""

    path: str
    events: int
    batches: int
    retractions: int
    bytes: int
    digest: str


class PruneWanted(Asked):
    """Events to remove permanently: those before a time, of a source, or of a source before a time."""

    before: Time | None = None
    source: Name | None = None


class EraseWanted(Asked):
    """A name whose events are removed permanently."""

    name: Name


class Removed(Answer):
    """What was removed permanently. what: which events a prune removed; empty for an erased name."""

    kind: Literal["prune", "erase"]
    what: str
    when: str
    events: int = Field(description="Removed from the store.")
    counted: int = Field(description="Of these, events that counted until then.")
    rejected: int = Field(description="Rows removed from the quarantine.")
    texts: int = Field(description="Other texts that were blanked, such as reasons of retractions.")
    claims: int = Field(description="Of issued forecasts that named it.")
    carried: int = Field(description="Batches with the name in their source, key or offset, which stay.")
    left: int = Field(description="Events that the store holds now.")


class RejectedRow(Answer):
    """A row in quarantine, as files of rejected rows have it; row: as it came, where it has no values."""

    source: str
    when: str
    file: str
    line: int
    reason: str
    subject: str
    relation: str
    object: str
    time: str
    row: str


class RejectedRows(Answer):
    """Rows in quarantine, in the order in which they came, and how many there are in all."""

    rows: list[RejectedRow]
    known: int


class NewReject(Asked):
    """A row that was rejected before it was sent as an event."""

    file: str = Field(max_length=4000)
    line: int
    reason: str = Field(max_length=4000)
    text: str = Field(max_length=4000)
    row: list[str] = Field(max_length=4)


class NewRejects(Asked):
    """Rows of a batch that were rejected by the client that read it, to be kept in quarantine."""

    source: Name
    key: Name
    rows: list[NewReject] = Field(max_length=MOST_EVENTS)


class DropWanted(Asked):
    """Whose rows are dropped from the quarantine; all without a source."""

    source: Name | None = None


class Dropped(Answer):
    """How many rows were dropped from the quarantine."""

    dropped: int


class RepairedRow(Asked):
    """A row of the quarantine, by file and line, with the event that it is."""

    file: str = Field(max_length=4000)
    line: int
    subject: Name
    relation: Name
    object: Name
    time: Time


class RepairedRows(Asked):
    """Repaired rows, which are stored under the sources that they came from."""

    rows: list[RepairedRow] = Field(min_length=1, max_length=MOST_EVENTS)


class ReplayedRows(Answer):
    """The result of storing repaired rows. left: rows in quarantine now."""

    events: int
    accepted: int
    duplicates: int
    late: int
    left: int


class Compacted(Answer):
    """The store after its new events were merged into the base. merged: how many that were."""

    merged: int
    events: int
    batches: int
    retractions: int
    bytes: int


class Reloaded(FromModel):
    """What is served now, and what was before; changed: whether they are two versions."""

    before: str
    changed: bool

"""Documents of commands on data sets, and of mining."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from bridgemem.cli.schemas.base import Document
from bridgemem.events.aliases import MergedName
from bridgemem.events.readers.text import Reject
from bridgemem.service.models import Answer


class NamedData(Answer):
    name: str
    title: str
    found: str | None = Field(description="Its folder; null if it was not found.")


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
    repeated: int = Field(description="Events that equal an earlier one of their step.")
    loops: int = Field(description="Events between a name and itself.")
    first: str
    last: str
    steps: int = Field(description="Steps that have events.")
    step: str = Field(description="The length of a time step in words.")
    gap: StepsWithout | None = Field(description="The largest gap; null without any.")
    aliases: dict[str, str] = Field(description="Names that differ from another by case, spaces, accents or signs.")
    remarks: list[str] = Field(description="Problems to look at before the events are used.")
    rejected: int
    fingerprint: str | None = Field(description="Fingerprint of a data set; null for files.")
    rejects: list[Reject] = Field(description="The first 10,000 rejected rows.")


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
    fingerprint: str = Field(description="Digest of ids and steps.")
    identity: str = Field(description="Digest of these and of names, clock and split boundaries.")


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
    rejects: list[Reject] = Field(description="The first 100 rejected rows.")
    remarks: list[str] = Field(description="How times and missing values were read, where that is not obvious.")


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

"""Compaction: the file of an event store, rewritten without its free space."""

from __future__ import annotations

from dataclasses import dataclass

from bridgemem.live.eventstore import EventStore


@dataclass(frozen=True)
class Compacted:
    """A store after a compaction. merged: events that a service made part of its base; None without a service.

    bytes, before: the size of the file now and before; a service leaves the file as it is.
    """

    store: str
    events: int
    batches: int
    retractions: int
    merged: int | None
    bytes: int
    before: int


def compact(store: EventStore) -> Compacted:
    """Rewrite the file of a store, verify it, and put it in the place of the old one; the store is closed then.

    A kill leaves the old file or the new one, both with every acknowledged batch. Nothing that is stored changes:
    retracted events stay in the file, and ids, keys and offsets are as they were.
    """
    before = store.path.stat().st_size
    with store:
        counts = store.counts()
        store.rewrite()
    return Compacted(str(store.path), **counts, merged=None, bytes=store.path.stat().st_size, before=before)

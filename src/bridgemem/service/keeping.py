"""Routes for what a store keeps and forgets: retention, erasure, the quarantine; they need the admin token."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from bridgemem.events.naming import NewEvent
from bridgemem.events.readers.text import Reject
from bridgemem.live.eventstore import Receipt
from bridgemem.live.quarantine import MOST, Quarantine, Repaired, drop, in_quarantine, rejected, replay
from bridgemem.live.retention import Removal, Remove, erase, prune
from bridgemem.service.admin_models import (
    Dropped,
    DropWanted,
    EraseWanted,
    NewRejects,
    PruneWanted,
    RejectedRow,
    RejectedRows,
    Removed,
    RepairedRows,
    ReplayedRows,
)
from bridgemem.service.asking import Live
from bridgemem.service.logs import note

PATHS = frozenset({"/v1/prune", "/v1/erase", "/v1/rejected", "/v1/rejected/drop", "/v1/replay"})
Whose = Annotated[str | None, Query(max_length=1000, description="Only what came from this source.")]
Last = Annotated[int, Query(ge=1, le=MOST, description="That many, those that came last.")]
Responses = dict[int | str, dict[str, Any]]


def keeping_router(live: Live, quarantine: Quarantine, responses: Responses) -> APIRouter:
    """The routes; live: applies each removal."""
    router = APIRouter(tags=["admin"])

    def removed(remove: Remove) -> Removed:
        made: Removal = live.remove(remove)
        note(removed=made.events)
        return Removed.model_validate(made, from_attributes=True)

    @router.post("/v1/prune", summary="Remove events by age or source", responses=responses)
    def prune_events(wanted: PruneWanted) -> Removed:
        """Remove events permanently. The next forecast is as if they had never come."""
        before = None if wanted.before is None else str(wanted.before)
        return removed(lambda store: prune(store, before=before, source=wanted.source))

    @router.post("/v1/erase", summary="Erase a name", responses=responses)
    def erase_name(wanted: EraseWanted) -> Removed:
        """Remove every event that names it, and the name from every other text of the store."""
        return removed(lambda store: erase(store, wanted.name))

    _quarantine(router, live, quarantine, responses)
    return router


def _quarantine(router: APIRouter, live: Live, quarantine: Quarantine, responses: Responses) -> None:
    store = live.store

    @router.get("/v1/rejected", summary="Rows in quarantine", responses=responses)
    def rows(source: Whose = None, last: Last = 1000) -> RejectedRows:
        """The rejected rows in quarantine, with the columns of files of rejected rows."""
        found = [RejectedRow.model_validate(row) for row in rejected(store, source=source, last=last)]
        return RejectedRows(rows=found, known=in_quarantine(store))

    @router.post("/v1/rejected", summary="Keep rejected rows", responses=responses)
    def keep(given: NewRejects) -> RejectedRows:
        """Keep rows that were rejected before they were sent, such as lines of a file."""
        note(source=given.source, key=given.key, rejected=len(given.rows))
        if not store.holds_batch(given.source, given.key):
            rows = [Reject(row.file, row.line, row.reason, row.text, tuple(row.row)) for row in given.rows]
            quarantine.keep(given.source, given.key, rows)
        return RejectedRows(rows=[], known=in_quarantine(store))

    @router.post("/v1/rejected/drop", summary="Drop rows in quarantine", responses=responses)
    def drop_rows(wanted: DropWanted) -> Dropped:
        """Drop the rows of a source from the quarantine, or all."""
        return Dropped(dropped=drop(store, source=wanted.source))

    @router.post("/v1/replay", summary="Store repaired rows", responses=responses)
    def replay_rows(given: RepairedRows) -> ReplayedRows:
        """Store repaired rows under the sources that they came from, and take them out of quarantine."""

        def append(events: Any, source: str, key: str) -> Receipt:
            return live.add(events, source, key)

        done = replay(store, [_repaired(row) for row in given.rows], append)
        note(accepted=done.accepted, duplicates=done.duplicates, late=done.late)
        return ReplayedRows.model_validate(done, from_attributes=True)


def _repaired(row: Any) -> Repaired:
    event: NewEvent = (row.subject, row.relation, row.object, str(row.time))
    return Repaired(row.file, row.line, event)

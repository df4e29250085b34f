"""Routes for the operator of the service: they need the admin token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastapi import APIRouter

from bridgemem.errors import BridgeMemError, SettingsError
from bridgemem.live.backup import backup, copy_name
from bridgemem.live.eventstore import EventStore
from bridgemem.live.switching import RefusedRunError, Switched
from bridgemem.service.admin_models import BackedUp, BackupWanted, Compacted, Reloaded
from bridgemem.service.keeping import PATHS as KEEPING
from bridgemem.service.logs import Noted, log_fields, note
from bridgemem.service.metrics import Metrics

LOG = logging.getLogger(__name__)
ADMIN = frozenset({"/v1/reload", "/v1/backup", "/v1/compact"}) | KEEPING


class Switchable(Protocol):
    """What can be changed for another run; `bridgemem.live.switching.Switch` is one."""

    @property
    def moved(self) -> Path | None: ...

    def reload(self) -> Switched: ...

    def compact(self) -> int: ...


@dataclass(frozen=True)
class Admin:
    """What the operator of the service may change. watch: seconds between two looks at the run's link; 0 for none."""

    live: Switchable
    token: str
    watch: float = 0.0


class Reloading:
    """Reloads, counted and logged, on request or by the link. after: called when another model is served."""

    def __init__(self, live: Switchable, metrics: Metrics, after: Callable[[], object]) -> None:
        self.live, self.metrics, self.after = live, metrics, after

    def reload(self) -> Switched:
        try:
            done = self.live.reload()
        except BridgeMemError:
            self.metrics.reloads.labels("refused").inc()
            raise
        self.metrics.reloads.labels("served" if done.changed else "unchanged").inc()
        if done.changed:
            self.after()
            log_fields(LOG, logging.INFO, "reload", Noted({"model_version": done.model_version, "before": done.before}))
        return done

    async def watch(self, seconds: float) -> None:
        """Look every few seconds whether the link was moved; a run that is refused is not tried again until then."""
        refused: Path | None = None
        while True:
            await asyncio.sleep(seconds)
            try:
                moved = await asyncio.to_thread(lambda: self.live.moved)
                if moved is None or moved == refused:
                    continue
                refused = moved
                await asyncio.to_thread(self.reload)
                refused = None
            except RefusedRunError as problem:
                LOG.error("%s", problem)
            except Exception:
                LOG.exception("reload failed")


def admin_router(reloading: Reloading, store: EventStore, responses: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["admin"])

    @router.post("/v1/reload", summary="Serve what the run's link points to now", responses=responses)
    def reload() -> Reloaded:
        """Load the run again, try it, and serve it from the next request on. One that fails is refused."""
        done = reloading.reload()
        note(model_version=done.model_version)
        return Reloaded.model_validate(done)

    @router.post("/v1/backup", summary="Copy the event store", responses=responses)
    def copy(wanted: BackupWanted) -> BackedUp:
        """Write a copy of the store as it is now, on the machine of the service, and read it back."""
        if not Path(wanted.to).is_absolute():
            raise SettingsError(f"{wanted.to!r} is not an absolute path; write it from the root.")
        return BackedUp.model_validate(backup(store, copy_name(store.path, wanted.to), replace=wanted.replace))

    @router.post("/v1/compact", summary="Merge new events into the base", responses=responses)
    def compact() -> Compacted:
        """Merge the events that came since the last merge; forecasts and batches go on meanwhile."""
        merged = reloading.live.compact()
        store.checkpoint()
        return Compacted(merged=merged, **store.counts(), bytes=store.path.stat().st_size)

    return router

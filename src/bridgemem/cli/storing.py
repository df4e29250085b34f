"""Commands that look after an event store: backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bridgemem.cli.live import StoreFile
from bridgemem.cli.options import Force, Json
from bridgemem.cli.output import counted, emit, say
from bridgemem.cli.running import RemoteStore, opened_store


def register(app: typer.Typer) -> None:
    app.command()(backup)


def backup(
    store: StoreFile,
    to: Annotated[Path, typer.Argument(help="File for the copy, or a folder, where it is named by the time.")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Copy an event store as it is now and verify the copy; a service that has it open goes on."""
    from dataclasses import asdict
    from datetime import UTC, datetime

    from bridgemem.live.backup import backup as copy
    from bridgemem.live.eventstore import EventStore

    if to.is_dir():
        to = to / f"{store.stem}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{store.suffix}"
    with opened_store(store, lambda: EventStore(store, create=False)) as opened:
        made: dict[str, Any] = (
            opened.client.backup(to.absolute(), replace=force)
            if isinstance(opened, RemoteStore)
            else asdict(copy(opened, to, replace=force))
        )

    def text() -> None:
        what = f"{counted(made['events'], 'event')} in {counted(made['batches'], 'batch')}".replace("batchs", "batches")
        say(f"Wrote {to}: {what}, {counted(made['retractions'], 'retraction')}; read back and equal to the store.")

    emit({**made, "path": str(to)}, as_json, text)

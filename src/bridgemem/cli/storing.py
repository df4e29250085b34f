"""Commands that look after an event store: compact, backup, prune, erase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.live import StoreFile
from bridgemem.cli.options import Force, Json
from bridgemem.cli.output import counted, emit, say
from bridgemem.cli.running import RemoteStore, opened_store

if TYPE_CHECKING:
    from bridgemem.client import Client
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.retention import Removal


def register(app: typer.Typer) -> None:
    for command in (compact, backup, prune, erase):
        app.command()(command)


def compact(store: StoreFile, as_json: Json = False) -> None:
    """Merge new events into the base of the service that has a store open; without one, rewrite its file.

    A service does this by itself when many events have come. Nothing that is stored or forecast changes.
    """
    from dataclasses import asdict

    from bridgemem.live.compaction import Compacted
    from bridgemem.live.compaction import compact as rewritten
    from bridgemem.live.eventstore import EventStore

    with opened_store(store, lambda: EventStore(store, create=False)) as opened:
        if isinstance(opened, RemoteStore):
            before = store.stat().st_size
            made = Compacted(str(store), **opened.client.compact(), before=before)
        else:
            made = rewritten(opened)

    def text() -> None:
        what = f"{counted(made.events, 'event')} in {_batches(made.batches)}, {counted(made.retractions, 'retraction')}"
        if made.merged is None:
            say(f"Rewrote {store}: {what}; {made.bytes:,} bytes, before {made.before:,}.")
        else:
            say(f"The service merged {counted(made.merged, 'new event')} into its base; {store} holds {what}.")

    emit(asdict(made), as_json, text)


def backup(
    store: StoreFile,
    to: Annotated[
        str, typer.Argument(metavar="TO", help="File for the copy, or FOLDER/, where it is named by the time.")
    ],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Copy an event store as it is now and verify the copy; a service that has it open goes on."""
    from bridgemem.live.backup import backup as copy
    from bridgemem.live.backup import copy_name
    from bridgemem.live.eventstore import EventStore

    file = copy_name(store, to)
    with opened_store(store, lambda: EventStore(store, create=False)) as opened:
        made: dict[str, Any] = (
            opened.client.backup(file.absolute(), replace=force)
            if isinstance(opened, RemoteStore)
            else asdict(copy(opened, file, replace=force))
        )

    def text() -> None:
        what = f"{counted(made['events'], 'event')} in {_batches(made['batches'])}"
        say(f"Wrote {file}: {what}, {counted(made['retractions'], 'retraction')}; read back and equal to the store.")

    emit({**made, "path": str(file)}, as_json, text)


def prune(
    store: StoreFile,
    before: Annotated[
        str | None, typer.Option("--before", help="Remove events before this time, e.g. 2024-01-01.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Remove events that came from this source.")] = None,
    as_json: Json = False,
) -> None:
    """Remove events before a date, of a source, or both, permanently; keys stay, so a repeated batch stays out."""
    from bridgemem.live.retention import prune as remove

    made = _removed(
        store,
        lambda opened: remove(opened, before=before, source=source),
        lambda client: client.prune(before=before, source=source),
    )
    emit(made, as_json, lambda: _show(made, f"No event {made['what']} was found; nothing changed."))


def erase(
    store: StoreFile,
    name: Annotated[str, typer.Argument(help="Name of an entity or relation, in its exact spelling.")],
    as_json: Json = False,
) -> None:
    """Permanently remove every event that names an entity or relation, and the name from all texts of the store."""
    from bridgemem.live.retention import erase as remove

    made = _removed(store, lambda opened: remove(opened, name), lambda client: client.erase(name))

    def text() -> None:
        _show(made, "Nothing in the store has this name; nothing changed.")
        if made["carried"]:
            say(f"{_batches(made['carried'])} have it in their source, key or offset, which stay; see prune --source.")
        say("Earlier backups and runs that were fitted on such events still have it: delete them, or fit them again.")

    emit(made, as_json, text)


def _removed(
    store: Path, locally: Callable[[EventStore], Removal], remotely: Callable[[Client], dict[str, Any]]
) -> dict[str, Any]:
    """What was removed, from the file or by the service that has it open."""
    from bridgemem.live.eventstore import EventStore

    with opened_store(store, lambda: EventStore(store, create=False)) as opened:
        return remotely(opened.client) if isinstance(opened, RemoteStore) else asdict(locally(opened))


def _show(made: dict[str, Any], nothing: str) -> None:
    if not any(made[what] for what in ("events", "rejected", "texts", "claims")):
        say(nothing)
        return
    kind = f" {made['what']}" if made["what"] else ""
    were = "was" if made["events"] == 1 else "were"
    counted_ones = f", of which {made['counted']:,} counted" if made["counted"] != made["events"] else ""
    say(f"{counted(made['events'], 'event')}{kind} {were} removed{counted_ones}; the store holds {made['left']:,}.")
    if made["rejected"]:
        say(f"Removed from the quarantine: {counted(made['rejected'], 'row')}.")
    if made["claims"]:
        say(f"Removed from the ledger: {counted(made['claims'], 'claim')} of issued forecasts.")
    if made["texts"]:
        say(f"Blanked: {counted(made['texts'], 'reason')} of retractions.")


def _batches(n: int) -> str:
    return f"{n:,} batch{'es' * (n != 1)}"

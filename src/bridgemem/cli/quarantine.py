"""rejected: the rows in a store's quarantine, listed, exported, replayed after repair, or dropped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.live import StoreFile
from bridgemem.cli.options import DataDir, Json
from bridgemem.cli.output import REPEATED, counted, emit, say
from bridgemem.cli.running import RemoteStore, opened_store

if TYPE_CHECKING:
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.quarantine import Rejected, Repaired


def register(app: typer.Typer) -> None:
    app.command()(rejected)


def rejected(
    store: StoreFile,
    source: Annotated[str | None, typer.Option("--source", help="Only rows of this source.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="Number of latest rows to list (default: 20).")] = 20,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Export all rows as CSV, in the format of --rejects.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Repaired export: its rows are stored and leave the quarantine.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="With --replay: run that the events follow, unless a service has it.")
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the rows, or those of --source.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List rows that were rejected and are kept in the store; export them, replay them after repair, or drop them."""
    from bridgemem.errors import SettingsError
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.quarantine import MOST

    if sum((out is not None, replay is not None, drop)) > 1:
        raise SettingsError("choose one of --out, --replay and --drop.")
    if replay is not None:
        _replay(store, replay, run, data_dir, as_json)
        return
    with opened_store(store, lambda: EventStore(store, create=False, read_only=not drop)) as opened:
        if drop:
            gone = _dropped(opened, source)
            emit({"dropped": gone}, as_json, lambda: say(f"Dropped {counted(gone, 'row')}."))
            return
        rows, known = _rows(opened, source, MOST if out else last)
    if out is not None:
        _export(rows, out, as_json)
        return

    def text() -> None:
        for row in rows:
            shown = row.row or ", ".join((row.subject, row.relation, row.object, row.time))
            say(f"{row.file}:{row.line}: {row.reason} ({shown})")
        if not rows:
            say("No row is in quarantine." if source is None else f"No row of {source} is in quarantine.")
        elif known > len(rows):
            say(f"{counted(known, 'row')} in total; show more with --last N.")

    emit({"rows": rows, "known": known}, as_json, text)


def _rows(opened: EventStore | RemoteStore, source: str | None, last: int) -> tuple[list[Rejected], int]:
    from bridgemem.live.quarantine import Rejected, in_quarantine
    from bridgemem.live.quarantine import rejected as read

    if isinstance(opened, RemoteStore):
        found = opened.client.rejected(source, last=last)
        return [Rejected(**row) for row in found["rows"]], found["known"]
    return read(opened, source=source, last=last), in_quarantine(opened)


def _dropped(opened: EventStore | RemoteStore, source: str | None) -> int:
    from bridgemem.live.quarantine import drop

    if isinstance(opened, RemoteStore):
        return opened.client.post("/v1/rejected/drop", {} if source is None else {"source": source})["dropped"]
    return drop(opened, source=source)


def _export(rows: list[Rejected], out: Path, as_json: bool) -> None:
    from bridgemem.events.readers.rejects import write_rejects
    from bridgemem.live.quarantine import as_rejects

    write_rejects(out, as_rejects(rows))

    def text() -> None:
        say(f"Wrote {counted(len(rows), 'row')} to {out}. Repair subject, relation, object and time, delete the rows")
        say("that are to stay in quarantine, and use --replay with the file.")

    emit({"rows": len(rows), "out": str(out)}, as_json, text)


def _replay(store: Path, file: Path, run: Path | None, data_dir: Path | None, as_json: bool) -> None:
    from bridgemem.errors import SettingsError
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.forecasting import in_force, merged_ids
    from bridgemem.live.quarantine import read_repaired
    from bridgemem.live.quarantine import replay as again
    from bridgemem.runs import Run

    rows = read_repaired(file)
    with opened_store(store, lambda: EventStore(store, create=False)) as opened:
        if isinstance(opened, RemoteStore):
            done = opened.client.replay([_as_json(row) for row in rows])
        else:
            if run is None:
                raise SettingsError("say which run the events follow with --run; it gives time steps and names.")
            followed = Run(run, data_dir=data_dir)
            base = followed.dataset.events
            opened.follow(in_force(base, merged_ids(followed, base), opened, opened.snapshot()), followed.origin)
            done = asdict(again(opened, rows, lambda events, s, key: opened.append(events, source=s, key=key)))

    def text() -> None:
        if not done["events"]:
            say("These rows were replayed before; nothing changed.")
        else:
            say(f"Stored {counted(done['events'], 'repaired row')}; {done['accepted']:,} new.")
            say(f"{REPEATED}: {done['duplicates']:,}; late: {done['late']:,}.")
        say(f"In quarantine now: {counted(done['left'], 'row')}.")

    emit(done, as_json, text)


def _as_json(row: Repaired) -> dict[str, Any]:
    subject, relation, object_, time = row.event
    values = {"subject": subject, "relation": relation, "object": object_, "time": time}
    return {"file": row.file, "line": row.line, **values}

"""Commands for data that keep growing: ingest, retract, refresh."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.options import (
    DataDir,
    Device,
    Duplicates,
    Format,
    Json,
    ObjectColumn,
    Quiet,
    RelationColumn,
    SubjectColumn,
    TimeColumn,
)
from bridgemem.cli.output import emit, say, warn
from bridgemem.progress import terminal_progress

StoreFile = Annotated[Path, typer.Argument(help="The event store, one DuckDB file.")]


def register(app: typer.Typer) -> None:
    for command in (ingest, retract, refresh):
        app.command()(command)


def ingest(
    store: StoreFile,
    file: Annotated[Path, typer.Argument(help="Events to take in: a CSV, TSV or Parquet file.")],
    run: Annotated[Path, typer.Option("--run", help="The run that the events follow; its steps and names are used.")],
    source: Annotated[str | None, typer.Option("--source", help="Where the events come from; the file's name.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="What names this batch; the same key again changes nothing.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", help="How far the source was read; the last one is told after each batch.")
    ] = None,
    skip_rejected: Annotated[
        bool, typer.Option("--skip-rejected", help="Take the other rows where some cannot be read.")
    ] = False,
    format_: Format = "auto",
    subject: SubjectColumn = "",
    relation: RelationColumn = "",
    object_: ObjectColumn = "",
    time: TimeColumn = "",
    duplicates: Duplicates = "keep",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Add the events of a file to an event store as one batch, whole or not at all."""
    from bridgemem.errors import DataError
    from bridgemem.events.read import ColumnNames, read_events
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.naming import named_events
    from bridgemem.runs import Run

    opened_run = Run(run)
    base = opened_run.dataset(data_dir).events
    reading = read_events(file, columns=ColumnNames(subject, relation, object_, time), format=format_)
    left_out, told = reading.rejects.count, reading.sentence()
    if left_out and not skip_rejected:
        raise DataError(f"{told} Nothing was taken in; mend the file, or say --skip-rejected to take the other rows.")
    # a file's own content names its batch, so that the same file twice is one batch
    named = key or hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    whose, events = source or file.name, named_events(reading.events, base)
    new = {
        "new_entities": len({name for s, _, o, _ in events for name in (s, o)} - set(base.entities.names)),
        "new_relations": len({r for _, r, _, _ in events} - set(base.relations.names)),
    }
    with EventStore(store, duplicates=duplicates) as opened:
        opened.follow(base, opened_run.origin)
        receipt = opened.append(events, source=whose, key=named, offset=offset)
        reached = opened.last_offset(whose)
    if left_out or reading.dropped:
        warn(f"bridgemem: {told}")

    def text() -> None:
        if receipt.replayed:
            say(f"Batch {receipt.batch} was taken in before; nothing was changed.")
        else:
            ids = f", {receipt.ids[0]} to {receipt.ids[-1]}" if receipt.ids else ""
            say(f"Batch {receipt.batch}: {len(receipt.ids):,} events{ids}; {receipt.accepted:,} of them count.")
            say(f"{receipt.duplicates:,} were known already, {receipt.late:,} came late.")
            if any(new.values()):
                say(f"New names: {new['new_entities']:,} entities, {new['new_relations']:,} relations.")
        if left_out:
            say(f"{left_out:,} row{' was' if left_out == 1 else 's were'} left out.")
        if reached is not None:
            say(f"{whose} was read up to {reached}.")

    emit({**asdict(receipt), **new, "left_out": left_out, "last_offset": reached}, as_json, text)


def retract(
    store: StoreFile,
    event: Annotated[str, typer.Argument(help="The id of the event, as ingest named it: e12.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it is taken back; kept beside it.")] = "",
    as_json: Json = False,
) -> None:
    """Take a stored event back: forecasts are then as if it had never come."""
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.naming import shown_time

    with EventStore(store, create=False) as opened:
        opened.retract(event, reason)
        subject, relation, object_, came = opened.event(event)
    time = shown_time(str(came))
    values = {"retracted": event, "subject": subject, "relation": relation, "object": object_, "time": time}
    emit(values, as_json, lambda: say(f"{event} is retracted: {subject}, {relation}, {object_}, {time}."))


def refresh(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    store: Annotated[Path, typer.Option("--store", help="The event store, one DuckDB file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The new run folder; else the run's name with the next number.")
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm/--anew", help="The reader goes on from its weights, or is fitted anew.")
    ] = True,
    duplicates: Duplicates = "keep",
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a run that was fitted on everything known now; its backbone and selection stay those of the old one."""
    from bridgemem.api import check_device
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.refresh import refresh as bring_up
    from bridgemem.runs import Run

    opened_run = Run(run)
    with EventStore(store, create=False, duplicates=duplicates) as opened, terminal_progress(quiet=quiet) as progress:
        made = bring_up(opened_run, opened, out, warm, None, check_device(device), force, data_dir, progress)

    def text() -> None:
        say(f"{made.added:,} events were added and {made.retracted:,} taken back; {made.run} knows {made.events:,}.")
        say(f"New names: {made.new_entities:,} entities, {made.new_relations:,} relations.")
        say(f"The reader was fitted {made.reader} ({made.epochs} epochs). The backbone was kept frozen.")
        say("The selection was kept: it is what the validation of the fitted run chose, and was not chosen again.")

    emit(made, as_json, text)

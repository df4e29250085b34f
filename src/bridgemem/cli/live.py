"""Commands for data that keep growing: ingest, stored, retract, refresh."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem import config
from bridgemem.cli.follow import STDIN, EventField, Follow, FollowOptions, FromStart, OffsetField, UntilEnd
from bridgemem.cli.follow import follow as follow_feed
from bridgemem.cli.options import (
    DataDir,
    Device,
    Duplicates,
    Json,
    MaxAhead,
    MaxNewNamesPerBatch,
    MaxNewNamesPerDay,
    MaxNewRelations,
    Quiet,
    bounded,
)
from bridgemem.cli.output import counted, emit, say, warn
from bridgemem.cli.reading import ReadOptions, reads_events
from bridgemem.cli.rejects import RejectsFile, kept, rejects_to
from bridgemem.cli.running import keep_rejected, opened_store, resolve_forecasts, store_to_read
from bridgemem.progress import terminal_progress

if TYPE_CHECKING:
    from bridgemem.events.log import EventLog
    from bridgemem.events.naming import NewEvent
    from bridgemem.events.readers.read import Reading
    from bridgemem.events.readers.text import Reject
    from bridgemem.live.eventstore import Receipt

StoreFile = Annotated[Path, typer.Argument(help="The event store, one DuckDB file.")]


def register(app: typer.Typer) -> None:
    for command in (ingest, stored, retract, refresh):
        app.command()(command)


@reads_events
def ingest(
    store: StoreFile,
    file: Annotated[
        Path, typer.Argument(help="Event file: CSV, TSV or Parquet; JSON lines with --follow, - for standard input.")
    ],
    run: Annotated[Path, typer.Option("--run", help="Run that the events follow.")],
    source: Annotated[
        str | None, typer.Option("--source", help="Name of the source (default: the file's name).")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: a repeated key changes nothing.")] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", help="Offset of the source after this batch, kept with it.")
    ] = None,
    skip_rejected: Annotated[
        bool, typer.Option("--skip-rejected", help="Skip rows that cannot be used and take the others.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Also print the ids of the events, in the file's order.")] = False,
    follow: Follow = False,
    until_end: UntilEnd = False,
    from_start: FromStart = False,
    event_field: EventField = "",
    offset_field: OffsetField = "",
    *,
    reading: ReadOptions,
    rejects: RejectsFile = None,
    duplicates: Duplicates = None,
    max_new_relations: MaxNewRelations = None,
    max_new_names: MaxNewNamesPerBatch = None,
    max_new_names_day: MaxNewNamesPerDay = None,
    max_ahead: MaxAhead = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Add the events of a file to an event store as one batch, whole or not at all; or follow a feed of them."""
    from bridgemem.errors import SettingsError
    from bridgemem.events.leaps import max_ahead_of
    from bridgemem.events.readers.read import read_events
    from bridgemem.events.readers.rejects import RejectedError
    from bridgemem.live.eventstore import EventStore, NewNames
    from bridgemem.live.forecasting import in_force, merged_ids
    from bridgemem.runs import Run

    if reading.step is not None:
        raise SettingsError("the run that the events follow gives the time steps: leave --step out.")
    opened_run = Run(run, data_dir=data_dir)
    base = opened_run.dataset.events
    new_names = NewNames.of(max_new_relations, max_new_names, max_new_names_day)

    def open_store() -> EventStore:
        opened = EventStore(store, duplicates=duplicates, new_names=new_names)
        opened.follow(in_force(base, merged_ids(opened_run, base), opened, opened.snapshot()), opened_run.origin)
        if not follow or max_ahead is not None:  # a feed does not stop at a leap unless it is told to
            opened.max_ahead = max_ahead_of(max_ahead, base)
        return opened

    feed = FollowOptions(until_end, from_start, event_field, offset_field)
    if follow or file == STDIN:
        if key or offset or ids:
            raise SettingsError("--key, --offset and --ids are for one batch, and a feed is many: leave them out.")
        whole = {"skip": skip_rejected, "as_json": as_json}
        follow_feed(file, source, opened_run, open_store, feed, reading=reading, rejects=rejects, **whole)
        return
    if feed != FollowOptions():
        raise SettingsError(
            "--until-end, --from-start, --event-field and --offset-field are for a feed: use --follow too."
        )
    if file.is_dir():
        raise SettingsError(f"{file} is a folder; give one file of events, or a feed with --follow.")
    # a file's own content names its batch, so that the same file twice is one batch, under whatever name it comes
    named = key or hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    with rejects_to(rejects) as write:
        try:
            found = read_events(file, reading.following(base), kept=kept(rejects))
            events, rejected, left_out, told = _usable(found, file, base, skip_rejected)
        except RejectedError as problem:
            if store.is_file():  # none is made for what is refused
                with opened_store(store, open_store) as opened:
                    keep_rejected(opened, source or file.name, named, problem.rejects)
            raise
        write(rejected)
    new = {
        "new_entities": len({name for s, _, o, _ in events for name in (s, o) if name not in base.entities}),
        "new_relations": len({r for _, r, _, _ in events if r not in base.relations}),
    }
    with opened_store(store, open_store) as opened:
        whose = source or (None if key else opened.sender(named)) or file.name
        keep_rejected(opened, whose, named, rejected)
        receipt = opened.append(events, source=whose, key=named, offset=offset)
        resolve_forecasts(opened)
        reached = opened.last_offset(whose)
    if left_out or found.dropped or found.remarks:
        warn(f"bridgemem: {' '.join([*found.remarks, *([told] if told else [])])}")

    def text() -> None:
        _show_receipt(receipt, new, ids)
        if left_out:
            were = "was" if left_out == 1 else "were"
            say(f"{counted(left_out, 'row')} {were} left out; ingest what is fixed alone, or the others count again.")
        if reached is not None:
            say(f"{whose} was read up to {reached}.")

    result = {"source": whose, "events": len(receipt.ids), **asdict(receipt), **new}
    result |= {"left_out": left_out, "last_offset": reached, "ids": receipt.ids if ids else None}
    emit(result, as_json, text)


def _show_receipt(receipt: Receipt, new: dict[str, int], ids: bool) -> None:
    """What became of a batch, how many names it brought, and where they are wanted the ids of its events."""
    if receipt.replayed:
        say(f"Batch {receipt.batch} was stored before; nothing changed.")
        return
    say(f"Batch {receipt.batch}: {counted(len(receipt.ids), 'event')}; {receipt.accepted:,} new.")
    if ids:
        say(f"Ids, in the file's order: {', '.join(receipt.ids)}.")
    say(f"Known already: {receipt.duplicates:,}{_counted_how(receipt)}; late: {receipt.late:,}.")
    if any(new.values()):
        entities, relations = counted(new["new_entities"], "entity"), counted(new["new_relations"], "relation")
        say(f"New names: {entities}, {relations}.")


def _counted_how(receipt: Receipt) -> str:
    """Whether the events that were known already count; nothing where there are none."""
    if not receipt.duplicates:
        return ""
    size = len(receipt.ids)
    share = f" ({receipt.duplicates / size:.0%})" if size > 1 else ""
    if receipt.accepted == size:
        return f"{share}, which count again (--duplicates drop lets an event count once, from any source)"
    return f"{share}, which do not count again"


def _usable(reading: Reading, file: Path, base: EventLog, skip: bool) -> tuple[list[NewEvent], list[Reject], int, str]:
    """The rows of a file that a run can use, in their order, the others, how many they are, and what to say of them.

    Where others may not be skipped, they refuse the file.
    """
    from bridgemem.errors import DataError
    from bridgemem.events.naming import checked, named_events, shown_time
    from bridgemem.events.readers.rejects import RejectedError
    from bridgemem.events.readers.text import Reject

    named = named_events(reading.events, base if reading.by_position else None)
    lines = reading.lines.tolist()
    events: list[NewEvent] = []
    faults: list[Reject] = []
    for row in sorted(range(len(named)), key=lines.__getitem__):
        try:
            checked(named[row], f"{file}:{lines[row]}", base.clock)
        except DataError as problem:
            cells = (*named[row][:3], shown_time(str(named[row][3])))
            faults.append(Reject(str(file), lines[row], str(problem).rstrip("."), " ".join(cells), cells))
        else:
            events.append(named[row])
    told = [reading.sentence()] if reading.rejects.count or reading.dropped else []
    if faults:
        first = faults[0].reason
        told.append(f"{len(faults):,} of the rows that were read cannot be used, the first since {first}.")
    rejected = sorted([*reading.rejects.all(), *faults], key=lambda reject: reject.line)
    left_out = reading.unusable + len(faults)
    if left_out and not (skip and events):
        remedy = ", or use --skip-rejected to take the other rows" if events else ""
        raise RejectedError(f"{' '.join(told)} Nothing was taken in; fix the file{remedy}.", rejected)
    return events, rejected, left_out, " ".join(told)


def stored(
    store: StoreFile,
    source: Annotated[str | None, typer.Option("--source", help="Only events of this source.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="Number of latest events to list (default: 20).")] = 20,
    as_json: Json = False,
) -> None:
    """List what an event store holds, with the ids that retract takes."""
    from bridgemem.live.eventstore import EventStore

    with opened_store(store, lambda: EventStore(store, create=False, read_only=True)) as opened:
        found = opened.stored(source, last)

    def text() -> None:
        for event in found:
            gone = "" if event.retracted is None else f", retracted{f': {event.reason}' if event.reason else ''}"
            fact = f"{event.subject}, {event.relation}, {event.object}, {event.time}"
            say(f"{event.id}: {fact} (batch {event.batch} of {event.source}{gone})")
        if not found:
            say("No events are stored." if source is None else f"No event of {source} is stored there.")
        elif len(found) == last:
            say("There may be more; show them with --last N.")

    emit({"events": found}, as_json, text)


def retract(
    store: StoreFile,
    event: Annotated[str, typer.Argument(help="Event id as printed by stored and ingest --ids, e.g. e12.")],
    reason: Annotated[str, typer.Option("--reason", help="Reason for the retraction, kept with the event.")] = "",
    as_json: Json = False,
) -> None:
    """Retract a stored event: forecasts no longer use it."""
    from bridgemem.live.eventstore import EventStore

    with opened_store(store, lambda: EventStore(store, create=False)) as opened:
        (before,) = opened.retract(event, reason)
        resolve_forecasts(opened)
    again = before.retracted is not None
    names = {name: getattr(before, name) for name in ("subject", "relation", "object", "time")}

    def text() -> None:
        fact = ", ".join(names.values())
        if again:
            why = f" ({before.reason})" if before.reason else ""
            say(f"{before.id} was retracted before, on {before.retracted}{why}; nothing changed: {fact}.")
        else:
            say(f"{before.id} is retracted: {fact}.")

    emit({"retracted": before.id, **names, "already": again}, as_json, text)


def refresh(
    run: Annotated[Path, typer.Argument(help="The run folder; with --compare or --every a link to it.")],
    store: Annotated[Path, typer.Option("--store", help="The event store, one DuckDB file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New run folder (default: the run's name with the next number).")
    ] = None,
    warm: Annotated[
        bool, typer.Option("--warm/--anew", help="Continue from the reader's weights, or fit it from scratch.")
    ] = True,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare with the served run first; move the link if not worse.")
    ] = False,
    every: Annotated[
        str | None, typer.Option("--every", help="Do --compare every 24h, 30min, 7d, or 7steps of the store's clock.")
    ] = None,
    window: Annotated[
        int, bounded(config.Count, "--window", help="Steps at the end of the store to compare on (default: 7).")
    ] = 7,
    choose_after: Annotated[
        float,
        typer.Option("--choose-after", min=0, help="Share of new events after which to choose again (default: 0.2)."),
    ] = 0.2,
    keep: Annotated[
        int | None,
        bounded(config.Count, "--keep", help="Runs of the link to keep; older ones are deleted (default: all)."),
    ] = None,
    duplicates: Duplicates = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
    device: Device = "cpu",
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Refit a run on all events known now: once, or on a schedule and only if the new one is not worse."""
    from bridgemem.training.devices import check_device

    device = check_device(device)
    if compare or every is not None:
        from bridgemem.cli.renew import Every, Round, compare_once, keep_renewing
        from bridgemem.errors import SettingsError
        from bridgemem.live.renewal import Rules

        if not run.is_symlink():
            raise SettingsError(f"{run} is not a link; make one: `bridgemem promote RUN --link runs/current`.")
        if out is not None or force or not warm:
            raise SettingsError("--out, --force and --anew are for one run: leave them out with --compare or --every.")
        todo = Round(
            run, lambda: store_to_read(store, duplicates), Rules(window, choose_after, keep), data_dir, device, quiet
        )
        if every is None:
            compare_once(todo, as_json)
        else:
            keep_renewing(todo, Every.of(every), as_json)
        return
    from bridgemem.live.refresh import refresh as bring_up
    from bridgemem.runs import Run

    how: dict[str, Any] = {"warm": warm, "device": device, "replace_out": force}
    fitted = Run(run, data_dir=data_dir)  # refused before the store is opened
    with store_to_read(store, duplicates) as opened, terminal_progress(quiet=quiet) as progress:
        made = bring_up(fitted, opened, out, progress=progress, **how)

    def text() -> None:
        were = "event was" if made.added == 1 else "events were"
        say(f"{made.added:,} {were} added and {made.retracted:,} retracted; {made.run} knows {made.events:,}.")
        say(f"New names: {counted(made.new_entities, 'entity')}, {counted(made.new_relations, 'relation')}.")
        say(f"The reader was fitted {made.reader} ({counted(made.epochs, 'epoch')}). The backbone was kept frozen.")
        say("The selection was kept: it is what the validation of the fitted run chose, and was not chosen again.")

    emit(asdict(made), as_json, text)

"""ingest --follow: a feed of newline-delimited JSON, taken in until Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.output import REPEATED, counted, emit, say, warn

if TYPE_CHECKING:
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.following import Feed, Followed
    from bridgemem.runs import Run

STDIN = Path("-")
Follow = Annotated[bool, typer.Option("--follow", help="Follow FILE as JSON lines until Ctrl-C; - is stdin.")]
UntilEnd = Annotated[bool, typer.Option("--until-end", help="Stop where the file ends now.")]
FromStart = Annotated[bool, typer.Option("--from-start", help="Read a replaced file from its start.")]
EventField = Annotated[str, typer.Option("--event-field", help="Field that holds the event (default: the line).")]
OffsetField = Annotated[
    str, typer.Option("--offset-field", help="Field with the offset of the line, for exactly once.")
]


@dataclass(frozen=True)
class FollowOptions:
    """What only a followed feed has."""

    until_end: bool = False
    from_start: bool = False
    event_field: str = ""
    offset_field: str = ""

    def check(self, file: Path, source: str | None) -> None:
        """Refuse options that the feed has no use for."""
        from bridgemem.errors import SettingsError

        if file != STDIN and self.offset_field:
            raise SettingsError("--offset-field is for standard input; a file is read exactly once without it.")
        if file == STDIN and (self.until_end or self.from_start):
            raise SettingsError("--until-end and --from-start are for files; standard input is read to its end.")
        if self.offset_field and source is None:
            raise SettingsError("offsets are kept by source: give standard input a name with --source.")


def follow(
    file: Path,
    source: str | None,
    run: Run,
    opened: Callable[[], EventStore],
    options: FollowOptions,
    *,
    reading: Any,
    rejects: Path | None,
    skip: bool,
    as_json: bool,
) -> None:
    """Take in a feed until it ends, or Ctrl-C, and say what became of it. opened: opens the store for the run."""
    from bridgemem.events.readers.json_lines import JsonLines
    from bridgemem.events.readers.rejects import RejectsLog
    from bridgemem.live.following import Followed, Follower

    options.check(file, source)
    lines = JsonLines(reading, run.dataset.events, event_field=options.event_field, offset_field=options.offset_field)
    name = source or ("stdin" if file == STDIN else file.name)
    with ExitStack() as exits:
        feed, reached = _feed(file, name, opened, options, exits)
        follower = Follower(
            feed,
            lines,
            opened,
            Followed(name, last_offset=reached),
            RejectsLog(rejects) if rejects else None,
            skip,
            _remark,
        )
        _remark(_beginning(file, name, reached, options))
        stop = exits.enter_context(stopped_by_signals())
        done = follower.run(stop, until_end=options.until_end)
        done.skipped, half = feed.skipped, feed.half_line()
    emit(asdict(done), as_json, lambda: _show(done, rejects, half))


def _feed(
    file: Path, name: str, opened: Callable[[], EventStore], options: FollowOptions, exits: ExitStack
) -> tuple[Feed, str | None]:
    """Where the lines come from, and how far they were read before."""
    from bridgemem.live.following import FileFeed, StreamFeed, position_of
    from bridgemem.live.tail import Tail

    with opened() as store:
        reached = store.last_offset(name)
        if file == STDIN:
            by_offset = bool(options.offset_field)
            return StreamFeed(sys.stdin.fileno(), name, offsets=by_offset, last=reached if by_offset else None), reached
        position = position_of(store, name)
    tail = Tail(file, position, from_start=options.from_start, remark=_remark)
    exits.callback(tail.close)
    return FileFeed(tail), reached


def _beginning(file: Path, name: str, reached: str | None, options: FollowOptions) -> str:
    end = "" if options.until_end else " Ctrl-C ends it."
    if file != STDIN:
        at = "from the start" if reached is None or options.from_start else f"after {_shown(reached)}"
        return f"following {file} {at}.{end}"
    if not options.offset_field:
        return (
            "following standard input, at least once: lines that are sent again count again. Give their offsets with "
            f"--offset-field for exactly once.{end}"
        )
    after = "" if reached is None else f" after the offset {reached}"
    return f"following standard input as {name}{after}, exactly once.{end}"


def _remark(sentence: str) -> None:
    warn(f"bridgemem: {sentence}")


def _shown(reached: str) -> str:
    """An offset for people."""
    from bridgemem.errors import DataError
    from bridgemem.live.tail import Position

    try:
        at = Position.of(reached, "")
    except DataError:
        return f"the offset {reached}"
    return f"line {at.line:,} (byte {at.offset:,})"


def _show(done: Followed, rejects: Path | None, half: int) -> None:
    batches = f"{done.batches:,} batch{'es' * (done.batches != 1)}"
    say(f"{done.source}: {counted(done.events, 'event')} in {batches}.")
    say(f"{REPEATED}: {done.duplicates:,}; late: {done.late:,}.")
    if done.skipped:
        say(f"Skipped {counted(done.skipped, 'line')} that had been stored before.")
    if done.rejected:
        where = f" (in {rejects})" if rejects else ""
        say(f"Rejected: {counted(done.rejected, 'line')}{where}.")
    if done.last_offset is not None:
        say(f"Read up to {_shown(done.last_offset)}; the same command goes on there.")
    if half:
        say(f"The last {counted(half, 'byte')} are no whole line yet and wait for its end.")


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that the batch at hand is stored first."""
    stop = threading.Event()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in (signal.SIGINT, signal.SIGTERM):
            before[name] = signal.signal(name, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)

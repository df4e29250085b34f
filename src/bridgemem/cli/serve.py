"""Commands that serve a run: serve."""

from __future__ import annotations

import gc
import os
import signal
import socket
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from bridgemem.cli.configured import ConfigFile, Configured
from bridgemem.cli.follow import EventField
from bridgemem.cli.options import (
    DataDir,
    Duplicates,
    LogFormat,
    LogLevel,
    MaxAhead,
    MaxNewNamesPerBatch,
    MaxNewNamesPerDay,
    MaxNewRelations,
    MemoryDir,
    NewEvents,
    RelationNames,
    Residual,
)
from bridgemem.cli.output import say, warn
from bridgemem.cli.running import noted_service
from bridgemem.errors import BridgeMemError, SettingsError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from bridgemem.events.naming import NewNames
    from bridgemem.live.eventstore import EventStore
    from bridgemem.live.switching import Switch
    from bridgemem.service.limits import Limits

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LAST_PORT = 65_535


def register(app: typer.Typer) -> None:
    app.command(cls=Configured)(serve)


def serve(
    run: Annotated[Path, typer.Argument(help="A run folder, or a link to one that is watched.")],
    store: NewEvents = None,
    duplicates: Duplicates = None,
    max_new_relations: MaxNewRelations = None,
    max_new_names: MaxNewNamesPerBatch = None,
    max_new_names_day: MaxNewNamesPerDay = None,
    max_ahead: MaxAhead = None,
    follow: Annotated[
        Path | None, typer.Option("--follow", help="Growing file of newline-delimited JSON to take in.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Name of the followed feed (default: its file).")
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option("--rejects", help="File for rejected lines (default: next to the store).")
    ] = None,
    event_field: EventField = "",
    host: Annotated[str, typer.Option("--host", help="Address; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=LAST_PORT, help="Port; 0 picks a free one.")] = 8008,
    issue: Annotated[bool, typer.Option("--issue", help="Issue answers into the ledger (default: off).")] = False,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token that clients send.")
    ] = None,
    admin_token_file: Annotated[
        Path | None,
        typer.Option("--admin-token-file", help="Token of admin routes (default: a new one)."),
    ] = None,
    watch: Annotated[float, typer.Option("--watch", min=0, help="Seconds between link checks.")] = 2.0,
    drift_window: Annotated[
        int,
        typer.Option("--drift-window", min=0, help="Steps to measure drift on; 0: none."),
    ] = 7,
    drift_every: Annotated[float, typer.Option("--drift-every", min=1, help="Seconds between drift checks.")] = 300.0,
    body_limit: Annotated[int, typer.Option("--body-limit", min=1, help="Largest request in bytes.")] = 4 << 20,
    concurrent: Annotated[int, typer.Option("--concurrent", min=1, help="Largest number of concurrent requests.")] = 64,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for headers, and for a body.")] = 15.0,
    residual: Residual = None,
    data_dir: DataDir = None,
    memory_dir: MemoryDir = None,
    relation_names: RelationNames = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
    config: ConfigFile = None,
) -> None:
    """Serve forecasts over HTTP and ingest new events, until interrupted."""
    check_installed()
    from bridgemem.client import read_token
    from bridgemem.events.leaps import max_ahead_of
    from bridgemem.events.naming import NewNames
    from bridgemem.forecaster import Forecaster
    from bridgemem.live.switching import Switch
    from bridgemem.service.admin import Admin
    from bridgemem.service.app import create_app
    from bridgemem.service.drift import DriftSettings
    from bridgemem.service.limits import Limits
    from bridgemem.service.logs import set_up_logs

    token = None if token_file is None else read_token(token_file)
    if token is None and host not in LOOPBACK:
        warn(f"bridgemem: anyone who reaches {host} can ask and add events; restrict it with --token-file.")
    if issue and memory_dir is not None:
        raise SettingsError("a forecast is issued from events in memory; leave --memory-dir or --issue out.")
    limits = Limits(body=body_limit, concurrent=concurrent, timeout=timeout)
    hosts = ("127.0.0.1", "localhost", "[::1]") if host in LOOPBACK else ()
    load = partial(
        Forecaster.load, residual=residual, data_dir=data_dir, memory_dir=memory_dir, relation_names=relation_names
    )
    if admin_token_file is not None:
        read_token(admin_token_file)
    load(run.resolve())  # what is wrong with it is told before anything is made
    new_names = NewNames.of(max_new_relations, max_new_names, max_new_names_day)
    with listen(host, port) as place, open_store(run, store, duplicates, new_names) as events:
        live = Switch(run, events, load)
        events.max_ahead = max_ahead_of(max_ahead, live.view.events)
        set_up_logs(log_format, log_level)
        with ExitStack() as exits:
            exits.enter_context(_followed(live, follow, source, rejects, event_field))
            secret = exits.enter_context(noted_service(events.path, host, place.getsockname()[1], admin_token_file))
            admin = Admin(live, secret, watch if run.is_symlink() else 0.0)
            drift = DriftSettings(drift_window, drift_every)
            app = create_app(live, token, limits, hosts, admin=admin, drift=drift, issue=issue)
            listen_forever(app, place, f"Serving {run}", limits)


def _followed(
    live: Switch, file: Path | None, source: str | None, rejects: Path | None, event_field: str
) -> AbstractContextManager[None]:
    """Follow a file while the service runs; nothing without one."""
    from bridgemem.events.readers.json_lines import JsonLines
    from bridgemem.events.readers.options import ReadOptions
    from bridgemem.live.feeding import Feeding

    if file is None:
        if source or rejects or event_field:
            raise SettingsError("--source, --rejects and --event-field are for a file that is followed: use --follow.")
        return nullcontext()
    aside = rejects or live.store.path.with_name(f"{live.store.path.name}.rejects.csv")
    lines = JsonLines(ReadOptions(), live.view.events, event_field=event_field)
    feeding = Feeding(live, file, lines, source=source, rejects=aside)
    warn(f"bridgemem: following {file} as {feeding.source}; rejected lines go to {aside}.")
    return feeding.running()


def open_store(run: Path, store: Path | None, duplicates: str | None, new_names: NewNames | None = None) -> EventStore:
    """The store that was named, or the run's own; where no such can be made, the sentence says how to name another."""
    from bridgemem.live.eventstore import EventStore

    place = store or default_store(run)
    try:
        return EventStore(place, duplicates=duplicates, new_names=new_names)
    except BridgeMemError as problem:
        if store is not None or place.exists():
            raise
        said = str(problem).rstrip(".")
        raise type(problem)(f"{said}; --store names another file for new events, where you may write.") from None


def default_store(run_folder: Path) -> Path:
    """Where a run's new events are kept unless told otherwise: next to its folder, which may be replaced as a whole.

    A refreshed run goes on with the store it was refreshed over, unless there is one of its own.
    """
    from bridgemem.runs import Run

    whole = run_folder.resolve()
    own = whole.with_name(f"{whole.name}.events.duckdb")
    if own.is_file() or not (whole / "config.toml").is_file():
        return own
    run = Run(whole)
    notes = [*reversed(run.refreshes()), run.continues()]
    for store in (note.store for note in notes if note is not None):
        earlier = whole.parent / Path(store).name
        if earlier.is_file():
            return earlier
    return own


def check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import swagger_ui_bundle  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise SettingsError(
            f"{missing.name} is not installed, which serving needs: pip install -e '.[serve]' in the checkout."
        ) from None


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        place = socket.create_server((host, port), family=family)
        # an answer is sent at once, and not when the caller has acknowledged its first part, some 40 ms later
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return place
    except OSError as problem:
        raise SettingsError(
            f"cannot listen on {host} port {port}: {problem.strerror or problem}; choose another --port or --host."
        ) from None


def _leave_a_core() -> None:
    """Score on all cores but one: connections and batches of events go on meanwhile, and would only be in the way."""
    import torch

    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) - 1)))


def listen_forever(app: FastAPI, place: socket.socket, what: str, limits: Limits) -> None:
    """Run the application on a socket until Ctrl-C or a request to end; both are a normal end."""
    from bridgemem.service.connections import make_server
    from bridgemem.storage.allocator import few_arenas

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    _leave_a_core()
    few_arenas()
    # what stays in memory is not searched for garbage again and again, which stops all threads for a while
    gc.collect()
    gc.freeze()
    host, port = place.getsockname()[:2]
    say(f"{what} at http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C ends it)")
    server = make_server(app, limits)
    # uvicorn ends well at both signals, and passes them on afterwards
    before = signal.signal(signal.SIGTERM, end)
    try:
        server.run(sockets=[place])
    except KeyboardInterrupt:
        say("Ended; every event that was acknowledged is stored.")
    finally:
        signal.signal(signal.SIGTERM, before)
        gc.unfreeze()

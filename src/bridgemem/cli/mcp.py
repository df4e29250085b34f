"""Commands that give a run to agents: mcp."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridgemem.cli.ask import Store
from bridgemem.cli.options import DataDir, Duplicates, RelationNames, Residual
from bridgemem.cli.output import counted, warn
from bridgemem.cli.running import store_to_read
from bridgemem.cli.serve import LAST_PORT, LOOPBACK, check_installed, default_store, listen, listen_forever
from bridgemem.errors import BridgeMemError, SettingsError

if TYPE_CHECKING:
    from bridgemem.agents.reading import Following


def register(app: typer.Typer) -> None:
    app.command("mcp")(mcp)


def mcp(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    store: Store = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP at /mcp (default: standard input and output).")
    ] = False,
    host: Annotated[str, typer.Option("--host", help="With --http: address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=LAST_PORT, help="With --http: port; 0 picks a free one.")
    ] = 8009,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="With --http: file with the token that clients must send.")
    ] = None,
    residual: Residual = None,
    duplicates: Duplicates = None,
    data_dir: DataDir = None,
    relation_names: RelationNames = None,
) -> None:
    """Serve a run to agents as read-only tools, over the Model Context Protocol (MCP)."""
    _check_installed()
    from bridgemem.agents.reading import Following, Still
    from bridgemem.agents.serving import http_app
    from bridgemem.agents.tools import make_server
    from bridgemem.client import read_token
    from bridgemem.forecaster import Forecaster
    from bridgemem.service.asking import Service
    from bridgemem.service.limits import Limits

    if not http and token_file is not None:
        raise SettingsError("--token-file is for --http; standard input and output need no token.")
    token = None if token_file is None else read_token(token_file)
    if http and token is None and host not in LOOPBACK:
        warn(f"bridgemem: anyone who reaches {host} can ask; restrict it with --token-file.")
    model = Forecaster.load(run, residual=residual, data_dir=data_dir, relation_names=relation_names)
    file = default_store(run) if store is None else Path(store)
    live = Still(model.run, model.predictor)
    if store != "none":
        live = following = Following(model, file, partial(store_to_read, file, duplicates, read_only=True))
        if store is not None or file.is_file():
            _read(following, named=store is not None)
    service = Service(live)
    service.warm()
    server = make_server(service)
    if not http:
        server.run("stdio")
        return
    limits, hosts = Limits(), ("127.0.0.1", "localhost", "[::1]") if host in LOOPBACK else ()
    with listen(host, port) as place:
        listen_forever(http_app(server, limits, token, hosts), place, f"MCP tools of {run}, path /mcp,", limits)


def _read(following: Following, named: bool) -> None:
    """Read the store for the first time; standard output is the protocol's, so what there is to say is a warning."""
    try:
        following.read()
    except BridgeMemError as problem:
        if named:
            raise
        warn(f"bridgemem: {problem} The events stored there are left out until it can be read.")
        return
    warn(f"bridgemem: {counted(following.stored, 'stored event')} read after the run's own; more are followed.")


def _check_installed() -> None:
    check_installed()
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise SettingsError("mcp is not installed: pip install -e '.[mcp]' in the checkout.") from None

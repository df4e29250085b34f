"""Commands that show a run in a browser: explore."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.configured import ConfigFile, Configured
from bridgemem.cli.options import DataDir, NewEvents, RelationNames, Residual
from bridgemem.cli.serve import LAST_PORT, check_installed, listen, listen_forever, open_store

HOST = "127.0.0.1"


def register(app: typer.Typer) -> None:
    app.command(cls=Configured)(explore)


def explore(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    store: NewEvents = None,
    port: Annotated[int, typer.Option("--port", min=0, max=LAST_PORT, help="Port; 0 picks a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser, or only print its address.")
    ] = True,
    residual: Residual = None,
    data_dir: DataDir = None,
    relation_names: RelationNames = None,
    config: ConfigFile = None,
) -> None:
    """Explore a run in the browser: forecasts, reasons and metrics. Nothing leaves this machine."""
    check_installed()
    from bridgemem.explorer.routes import CHARTS, asset, explorer_router
    from bridgemem.forecaster import Forecaster
    from bridgemem.live.forecasting import LiveForecaster
    from bridgemem.service.app import create_app
    from bridgemem.service.limits import Limits
    from bridgemem.service.logs import set_up_logs

    asset(CHARTS)  # what is not installed is told before anything is opened
    model = Forecaster.load(run, residual=residual, data_dir=data_dir, relation_names=relation_names)
    with listen(HOST, port) as place, open_store(run, store, None) as events:
        live = LiveForecaster(model, events)
        limits = Limits()
        set_up_logs("text", "warning")
        app = create_app(live, limits=limits, hosts=(HOST, "localhost"), page=explorer_router)
        if browser:
            # the socket listens already: a browser that is early waits for the first answer
            address = f"http://{HOST}:{place.getsockname()[1]}/explore"
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        listen_forever(app, place, f"Exploring {run}", limits)

"""`bridgemem config`: what serve and explore would start with, and where each value comes from."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bridgemem.cli.configured import ConfigFile, settings_of, variable
from bridgemem.cli.options import Json, one_of
from bridgemem.cli.output import emit, say, table

Configurable = Literal["serve", "explore"]
app = typer.Typer(help="Show the settings of serve and explore.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def options() -> None:
    pass


@app.command()
def show(
    context: typer.Context,
    command: Annotated[
        Configurable, one_of(Configurable, "--command", help="serve or explore (default: serve).")
    ] = "serve",
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Print every option with its value and its origin: environment, file or default."""
    path = config or (Path(named) if (named := os.environ.get(variable("config"))) else None)
    whole: Any = context.find_root().command
    found = settings_of(whole.commands[command], path)

    def text() -> None:
        rows = [[s.name, "-" if s.value is None else str(s.value), _origin(s.origin, s.variable, path)] for s in found]
        table(f"Settings of {command}", ["option", "value", "from"], rows)
        say("Precedence: command line, environment, file, default.")

    settings = [asdict(setting) for setting in found]
    emit({"of": command, "file": None if path is None else str(path), "settings": settings}, as_json, text)


def _origin(origin: str, name: str, path: Path | None) -> str:
    return {"environment": name, "file": str(path), "default": f"default ({name})"}[origin]

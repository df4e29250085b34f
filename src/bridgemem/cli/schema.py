"""The command that describes what the others print with --json: schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bridgemem.cli.options import Json
from bridgemem.cli.output import emit, say


def register(app: typer.Typer) -> None:
    app.command()(schema)


def schema(
    command: Annotated[list[str], typer.Argument(help="A command, as in `forecast` or `data check`.")],
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json, and of the lines of standard error."""
    from pydantic import TypeAdapter

    from bridgemem.cli.schemas import DOCUMENTS, Line, document
    from bridgemem.errors import NotFoundError

    name = " ".join(command)
    if name not in DOCUMENTS:
        raise NotFoundError(f"no command called {name!r} prints JSON; choose from {', '.join(DOCUMENTS)}.")
    made = {"document": document(name).json_schema(), "stderr": TypeAdapter(Line).json_schema()}
    emit(made, as_json, lambda: say(json.dumps(made, indent=2)))

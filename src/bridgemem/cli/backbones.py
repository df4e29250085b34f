"""`bridgemem backbones`: what can be trained and corrected by name."""

from __future__ import annotations

import typer

from bridgemem.cli.options import Json
from bridgemem.cli.output import emit, table

app = typer.Typer(help="List the backbones and their settings.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def options() -> None:
    pass


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every backbone, built in or added by an installed package."""
    from bridgemem.backbones import list_backbones

    found = list_backbones()

    def text() -> None:
        rows = [[f.name, "broken" if f.broken else f.kind, f.package, f.broken or f.line] for f in found]
        table("Backbones", ["name", "kind", "package", "what"], rows)

    emit({"backbones": found}, as_json, text)

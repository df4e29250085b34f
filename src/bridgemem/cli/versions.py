"""Commands that choose which run is served: promote, rollback."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridgemem import config
from bridgemem.cli.options import Json, bounded
from bridgemem.cli.output import emit, say

if TYPE_CHECKING:
    from bridgemem.live.versions import Moved

Link = Annotated[Path, typer.Option("--link", help="Link that `serve` is given, next to the runs.")]


def register(app: typer.Typer) -> None:
    for command in (promote, rollback):
        app.command()(command)


def promote(
    run: Annotated[Path, typer.Argument(help="The run folder to serve.")],
    link: Link = Path("runs/current"),
    keep: Annotated[
        int | None,
        bounded(config.Count, "--keep", help="Runs of the link to keep; older ones are deleted (default: all)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Point a link to a run; a service that was started with the link changes to it within seconds."""
    from bridgemem.live.versions import promote as move

    _show(move(run, link, keep=keep), as_json)


def rollback(
    link: Annotated[Path, typer.Argument(help="The link that `serve` was given.")] = Path("runs/current"),
    as_json: Json = False,
) -> None:
    """Point a link back to the run that it pointed to before."""
    from bridgemem.live.versions import rollback as back

    _show(back(link), as_json)


def _show(moved: Moved, as_json: bool) -> None:
    def text() -> None:
        was = "" if moved.before in (None, moved.run) else f"; it was {moved.before}"
        say(f"{moved.link} is now {moved.run}, version {moved.version}{was}.")
        if moved.removed:
            say(f"Deleted, as older than what is kept: {', '.join(moved.removed)}.")

    emit(asdict(moved), as_json, text)

"""Commands for model hubs: push, pull."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.options import Json, Quiet
from bridgemem.cli.output import emit, say
from bridgemem.progress import terminal_progress

Repository = Annotated[str, typer.Argument(help="The repository on the hub, as OWNER/NAME.")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="URL of the hub (default: $HF_ENDPOINT).")]


def register(app: typer.Typer) -> None:
    for command in (push, pull):
        app.command()(command)


def push(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    repository: Repository,
    public: Annotated[
        bool, typer.Option("--public", help="Make the repository public; your own data is uploaded with it.")
    ] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Commit message on the hub.")] = "",
    endpoint: Endpoint = None,
    as_json: Json = False,
) -> None:
    """Upload a run and its card to a model hub; a new repository is private. Log in through $HF_TOKEN."""
    from bridgemem import hub

    done = hub.push(run, repository, endpoint=endpoint, public=public, message=message)
    text = f"{run} is in {done.repository}: {done.files} files, commit {done.commit[:12]}."
    emit(asdict(done), as_json, lambda: say(text))


def pull(
    repository: Repository,
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit (default: the newest).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
    endpoint: Endpoint = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download a run from a model hub; it is checked first, and nothing in it is executed."""
    from bridgemem import hub

    with terminal_progress(quiet=quiet) as progress:
        run = hub.pull(repository, out, revision=revision, endpoint=endpoint, replace=force, progress=progress)
    result = {"run": out, "dataset": run.config.dataset, "backbone": run.config.backbone}
    emit(result, as_json, lambda: say(f"{repository} is in {out}: {run.config.backbone} on {run.config.dataset}."))

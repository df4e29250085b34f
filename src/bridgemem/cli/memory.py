"""Commands that put a memory on disk: memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridgemem.cli.options import DataDir, Json, Quiet
from bridgemem.cli.output import counted, emit, say
from bridgemem.progress import terminal_progress


def register(app: typer.Typer) -> None:
    app.command()(memory)


def memory(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    segments: Annotated[
        Path | None,
        typer.Option("--segments", help="Reuse the pair index of this folder, written by `bridgemem mine`."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing memory.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the checksums of an existing folder and write nothing.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's events and their indices to disk, for forecast, evaluate and serve with --memory-dir."""
    from bridgemem.errors import RunError, SettingsError
    from bridgemem.memory.disk.mapped import memory_of
    from bridgemem.memory.disk.segments import open_segments
    from bridgemem.memory.disk.writing import check_place, write_memory
    from bridgemem.runs import Run

    if verify:
        if segments is not None or force:
            raise SettingsError("--verify writes nothing; leave --segments and --force out.")
        _verify(run, out, as_json)
        return
    check_place(out, force)
    opened = Run(run, data_dir=data_dir)
    if opened.refreshes():
        raise RunError(
            f"{run} was refreshed with events that may still be retracted, which a memory on disk cannot do; write "
            "one of the run that was fitted, or do without."
        )
    mined = None if segments is None else open_segments(segments)
    with terminal_progress(quiet=quiet) as progress:
        dataset = write_memory(opened.dataset, out, mined, progress=progress, replace=force)
    made = memory_of(dataset.events)
    size = 0 if made is None else made.size
    files = sum(path.is_file() for path in out.iterdir())
    result = {"out": out, "events": len(dataset.events), "files": files, "bytes": size}
    text = f"{counted(len(dataset.events), 'event')} and all indices are in {out}, {size / 1e6:,.1f} MB."
    emit(result, as_json, lambda: say(f"{text} Use them with --memory-dir {out}."))


def _verify(run: Path, folder: Path, as_json: bool) -> None:
    """Read all of a run's memory on disk, which is refused where a file is not what was written."""
    from bridgemem.memory.disk.mapped import open_memory
    from bridgemem.runs import Run

    open_memory(folder, verify=True)
    dataset = Run(run, memory_dir=folder).dataset
    files = [path for path in folder.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    result = {"out": folder, "events": len(dataset.events), "files": len(files), "bytes": size}
    text = f"{folder} is whole: the checksums of {counted(len(files), 'file')} match, {size / 1e6:,.1f} MB."
    emit(result, as_json, lambda: say(text))

"""The program `bridgemem`: its commands, and how every error becomes one sentence and an exit code."""

from __future__ import annotations

import io
import itertools
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bridgemem import INTERRUPTED, __version__
from bridgemem.cli import (
    ask,
    backbones,
    checks,
    compare,
    config,
    data,
    evaluate,
    explore,
    hub,
    ledger,
    live,
    mcp,
    memory,
    mine,
    model,
    names,
    outlook,
    own_model,
    quarantine,
    reproduce,
    results,
    schema,
    sections,
    serve,
    storing,
    tgb,
    versions,
)
from bridgemem.cli.groups import Grouped
from bridgemem.cli.output import fail, say, wants_json, warn
from bridgemem.errors import NO_MEMORY, BridgeMemError

CTRL_C = 130  # how typer ends a command at Ctrl-C
USAGE: Any = typer.BadParameter.__mro__[2]  # click's ClickException, wherever this version of typer has it from

app = typer.Typer(
    name="bridgemem",
    cls=Grouped,
    help="Forecast events on temporal knowledge graphs, and explain the forecasts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data.app, name="data")
app.add_typer(backbones.app, name="backbones")
app.add_typer(config.app, name="config")
app.add_typer(ledger.app, name="ledger")
model.register(app)
reproduce.register(app)
evaluate.register(app)
own_model.register(app)
results.register(app)
ask.register(app)
names.register(app)
outlook.register(app)
checks.register(app)
compare.register(app)
tgb.register(app)
hub.register(app)
serve.register(app)
explore.register(app)
mcp.register(app)
live.register(app)
storing.register(app)
quarantine.register(app)
versions.register(app)
mine.register(app)
memory.register(app)
schema.register(app)
sections.apply(app)


def _version(wanted: bool) -> None:
    if wanted:
        say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
    register: Annotated[
        list[str] | None,
        typer.Option("--register", metavar="FILE.py:CLASS", help="Import your own backbone; repeatable."),
    ] = None,
) -> None:
    own_model.register_all(register)


def _debugging() -> bool:
    """Whether --debug stands before the command."""
    return "--debug" in itertools.takewhile(lambda argument: argument.startswith("-"), sys.argv[1:])


def _remark(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one sentence, without the place in the code where it came up."""
    warn(f"bridgemem: {message}")


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 failed or interrupted, 2 bad input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter is no reason to stop
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _remark
            try:
                _run()
            finally:
                _flush()
    except SystemExit as ended:
        if ended.code == CTRL_C:
            fail("interrupted", INTERRUPTED.removeprefix("bridgemem: "))
            sys.exit(1)
        raise
    except BridgeMemError as problem:
        fail(problem.code, str(problem), problem.suggestions)
        sys.exit(2)
    except OSError as problem:
        fail("file", _refused(problem))
        sys.exit(2)
    except Exception as problem:
        fail(*_unexpected(problem))
        # as the cause, so that a caller that runs a command in process sees what went wrong
        raise SystemExit(1) from problem


def _flush() -> None:
    """Write out what is still buffered; a reader who left, as `head` does, ends the command quietly."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # otherwise the interpreter tries once more when it ends, and complains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _run() -> None:
    """Run the command; with --json also what is wrong with the options is said in JSON."""
    if not wants_json():
        app()
    try:
        ended = app(standalone_mode=False)
    except USAGE as problem:
        fail("usage", problem.format_message())
        sys.exit(problem.exit_code)
    sys.exit(ended if isinstance(ended, int) else 0)


def _refused(problem: OSError) -> str:
    """What the system refused, and what to do where a disk is full."""
    from bridgemem.storage.whole import NO_ROOM, remedy_if_full

    said, where = problem.strerror or str(problem), problem.filename
    if problem.errno in NO_ROOM and where:
        return f"{where} cannot be written: {said}{remedy_if_full(said, Path(where))}."
    return f"{said} ({where})." if where else f"{said}."


def _unexpected(problem: Exception) -> tuple[str, str]:
    """The code and the sentence of an error that no command foresees."""
    if _debugging():
        traceback.print_exception(problem)
    said = " ".join(str(problem).split())[:300].rstrip(".")
    if isinstance(problem, MemoryError) or any(words in said for words in NO_MEMORY):
        return "out_of_memory", (
            f"out of memory{f' ({said})' if said else ''}; use less data, smaller settings (`evaluate` has --cells), "
            "or a machine with more."
        )
    return "internal", (
        f"internal error: {type(problem).__name__}{f': {said}' if said else ''}; run `bridgemem --debug COMMAND ...` "
        "for the traceback, and report it."
    )

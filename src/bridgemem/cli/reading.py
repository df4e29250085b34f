"""The options of reading event files, the same for every command that reads one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridgemem.cli.options import Step, whole_or_text

__all__ = ["ReadOptions", "reads_events"]

if TYPE_CHECKING:
    from bridgemem.events.readers.options import ReadOptions
else:
    ReadOptions = Any  # commands start without the reader


def _read_options(
    subject: Annotated[str, typer.Option("--subject-column", help="Heading of the subject column.")] = "",
    relation: Annotated[
        str, typer.Option("--relation-column", help="Heading of the relation column; several, as in A,B, are joined.")
    ] = "",
    object_: Annotated[str, typer.Option("--object-column", help="Heading of the object column.")] = "",
    time: Annotated[
        str, typer.Option("--time-column", help="Heading of the time column, or year,month,day for three of them.")
    ] = "",
    relation_is: Annotated[
        str, typer.Option("--relation-is", help="Relation of every row, in place of a column.")
    ] = "",
    format_: Annotated[
        str, typer.Option("--format", help="auto, gdelt, icews, polecat, acled, or plain for any other table.")
    ] = "auto",
    step: Step = None,
    time_format: Annotated[
        str,
        typer.Option(
            "--time-format", help="day-first, month-first, epoch, epoch-ms, -us or -ns, number, or strptime: %d/%m/%y."
        ),
    ] = "",
    na: Annotated[
        list[str] | None, typer.Option("--na", help="Text for a missing value; repeatable (default: NA, nan, - ...).")
    ] = None,
    keep_na: Annotated[bool, typer.Option("--keep-na", help="Keep NA and the like as names.")] = False,
) -> ReadOptions:
    """How a table of events is to be read, from what the command line gives."""
    from bridgemem.events.readers.options import ReadOptions, listed_missing

    return ReadOptions(
        subject,
        relation,
        object_,
        time,
        relation_is,
        format_,
        whole_or_text(step),
        time_format,
        listed_missing(na, keep_na),
    )


def reads_events(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets them as one, in its parameter `reading`."""
    shared = inspect.signature(_read_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = _read_options(**{name: given.pop(name) for name in shared})
        command(**given, reading=options)

    listed = [(shared if name == "reading" else {name: own[name]}).values() for name in own]
    names = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for group in listed for parameter in group]
    run.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in names}
    return run
